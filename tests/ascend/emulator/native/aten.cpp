// Every aten operator that torch_npu has for its device runs the CPU kernel on the same
// memory instead: memory of the emulated device is the host's (device.cpp), so a tensor of
// the device has an alias on the CPU for nothing. What makes memory or views stays
// torch_npu's own; what has no kernel on the CPU stays torch_npu's own too, and ends there
// with the name of the CANN function that it looks for.
#include "emulator.h"
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cstring>
#include <set>
#include <string>
#include <torch/extension.h>
#include <torch/library.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

using at::Tensor;

namespace {

constexpr auto NPU = c10::DeviceType::PrivateUse1;

// "npu" without a number is the device of this thread.
c10::DeviceIndex current_index() {
  return c10::impl::VirtualGuardImpl(NPU).getDevice().index();
}

bool on_npu(const Tensor &t) { return t.defined() && t.device().type() == NPU; }

aclrtStream current_stream() { return c10_npu::getCurrentNPUStream().stream(); }

// The same memory on the CPU. What is recorded does not keep it: the pool of its graph does.
Tensor make_alias(const Tensor &t, bool keeps = true) {
  const auto &storage = t.storage();
  auto *keep = keeps ? new c10::Storage(storage) : nullptr;
  c10::DataPtr data(storage.mutable_data(), keep,
                    [](void *kept) { delete static_cast<c10::Storage *>(kept); },
                    c10::Device(c10::kCPU));
  c10::Storage shared(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data),
                      c10::GetAllocator(c10::kCPU), true);
  auto cpu = at::detail::make_tensor<c10::TensorImpl>(
      std::move(shared), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  cpu.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return cpu;
}

void drain_current_stream() {
  if (emulator::late()) emulator::drain(current_stream());
}

// The arguments of one call: tensors of the device, and what stands for them on the CPU.
class Aliases {
 public:
  c10::DeviceIndex device = 0;
  bool npu = false;

  explicit Aliases(bool keep = true) : keep_(keep) {}

  Tensor to_cpu(const Tensor &t) {
    if (!on_npu(t)) return t;
    npu = true;
    device = t.device().index();
    for (const auto &alias : all_)
      if (alias.npu.is_same(t)) return alias.cpu;
    auto cpu = make_alias(t, keep_);
    all_.push_back({t, cpu, cpu.storage().mutable_data()});
    return cpu;
  }

  Tensor to_npu(const Tensor &cpu) const {
    if (!cpu.defined() || !npu || cpu.device().type() != c10::kCPU) return cpu;
    for (const auto &alias : all_)
      if (alias.cpu.is_same(cpu)) return alias.npu;
    for (const auto &alias : all_) {
      if (!alias.cpu.storage().is_alias_of(cpu.storage())) continue;
      if (alias.npu.dtype() == cpu.dtype())
        return alias.npu.as_strided(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
    const auto options = cpu.options().device(c10::Device(NPU, device));
    auto made = at::empty_strided(cpu.sizes(), cpu.strides(), options);
    const size_t offset = cpu.storage_offset() * cpu.itemsize();
    if (const size_t room = made.storage().nbytes())
      memcpy(made.storage().mutable_data(),
             static_cast<const char *>(cpu.storage().data()) + offset,
             std::min(room, cpu.storage().nbytes() - offset));
    return made;
  }

  // An `out` argument may have been resized by its kernel.
  void take_back() {
    for (auto &alias : all_) {
      const bool same_memory = alias.cpu.storage().data() == alias.data;
      if (same_memory && alias.cpu.sizes() == alias.npu.sizes()) continue;
      if (same_memory) {
        alias.npu.unsafeGetTensorImpl()->set_sizes_and_strides(
            alias.cpu.sizes(), alias.cpu.strides(), alias.cpu.storage_offset());
        continue;
      }
      alias.npu.resize_(alias.cpu.sizes());
      memcpy(alias.npu.mutable_data_ptr(), alias.cpu.contiguous().const_data_ptr(),
             alias.cpu.nbytes());
    }
  }

 private:
  struct Alias {
    Tensor npu, cpu;
    void *data;
  };
  const bool keep_;
  std::vector<Alias> all_;
};

c10::IValue argument_on_cpu(const c10::IValue &value, const c10::Argument &argument,
                            Aliases &aliases) {
  if (value.isTensor()) return aliases.to_cpu(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor &t : value.toTensorVector()) list.push_back(aliases.to_cpu(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor> t : value.toOptionalTensorList())
      list.push_back(t ? std::optional<Tensor>(aliases.to_cpu(*t)) : std::nullopt);
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == NPU) {
    const auto device = value.toDevice();
    aliases.npu = true;
    aliases.device = device.has_index() ? device.index() : current_index();
    return c10::Device(c10::kCPU);
  }
  if (value.isGenerator() && value.toGenerator().device().type() == NPU)
    return c10::IValue();  // the CPU's own: seeds differ from a device's in any case
  if (value.isBool() && argument.name() == "pin_memory") return false;
  return value;
}

using torch::jit::Stack;

// Runs the kernel of the CPU on what is on top of the stack.
void run_on_cpu(const c10::OperatorHandle &op, Stack *stack) {
  const auto &schema = op.schema();
  const auto &arguments = schema.arguments();
  const size_t first = stack->size() - arguments.size();
  Aliases aliases;
  for (size_t i = 0; i < arguments.size(); i++)
    (*stack)[first + i] = argument_on_cpu((*stack)[first + i], arguments[i], aliases);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  aliases.take_back();
  const size_t returned = stack->size() - schema.returns().size();
  for (size_t i = returned; i < stack->size(); i++) {
    auto &value = (*stack)[i];
    if (value.isTensor()) {
      value = aliases.to_npu(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor &t : value.toTensorVector()) list.push_back(aliases.to_npu(t));
      value = list;
    }
  }
}

std::vector<Tensor> tensors_of(const c10::IValue &value) {
  if (value.isTensor()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<Tensor>();
}
std::vector<Tensor> tensors_of(const Stack &values) {
  std::vector<Tensor> all;
  for (const auto &value : values)
    for (const Tensor &t : tensors_of(value))
      if (t.defined()) all.push_back(t);
  return all;
}

// The results, where all are tensors that the operator was given: in place, or `out`. An `out`
// without elements gets its size from the kernel, and its memory.
std::optional<Stack> results_among(const Stack &given, const c10::FunctionSchema &schema) {
  Stack results;
  for (const auto &result : schema.returns()) {
    const auto *alias = result.alias_info();
    for (size_t i = 0; alias && i < given.size(); i++) {
      const auto *other = schema.arguments()[i].alias_info();
      if (!other || !alias->isWrite() || other->beforeSet() != alias->beforeSet()) continue;
      if (given[i].isTensor() && given[i].toTensor().numel()) results.push_back(given[i]);
    }
  }
  if (results.size() != schema.returns().size()) return {};
  return results;
}

// Zeros in the place of integers, which may not be there yet: a kernel that is asked for shapes
// could take them for indices. A view has those of its argument.
Stack without_integers(const Stack &given, const c10::FunctionSchema &schema) {
  emulator::Inside launch;
  for (const auto &result : schema.returns())
    if (result.alias_info()) return given;
  Stack harmless = given;
  for (auto &value : harmless)
    if (value.isTensor() && on_npu(value.toTensor()) &&
        c10::isIntegralType(value.toTensor().scalar_type(), true))
      value = at::zeros_like(value.toTensor());
  return harmless;
}

// A result with memory of its own: which of them, and where it lies.
struct Place {
  size_t result;
  Tensor memory;
};

// What a replay does: the kernel on the same memory, and its results to their places.
emulator::Task again(const c10::OperatorHandle &op, const Stack &given,
                     const std::vector<Place> &places) {
  Stack arguments;
  Aliases aliases(false);
  for (size_t i = 0; i < given.size(); i++)
    arguments.push_back(argument_on_cpu(given[i], op.schema().arguments()[i], aliases));
  return [=] {
    at::AutoDispatchBelowADInplaceOrView below;
    Stack stack = arguments;
    op.callBoxed(&stack);
    const auto made = tensors_of(stack);
    for (Place place : places) {
      const Tensor &result = made.at(place.result);
      TORCH_CHECK(result.sizes() == place.memory.sizes(), "another shape than when captured");
      place.memory.copy_(result);
    }
  };
}

// On a captured stream, a launch is recorded and not done. A kernel that makes its results is
// asked for their shapes; they are zeros until a replay.
void record(const c10::OperatorHandle &op, emulator::Mode mode, Stack *stack) {
  const auto &schema = op.schema();
  const auto name = toString(op.operator_name());
  const Stack given(stack->end() - schema.arguments().size(), stack->end());
  torch::jit::drop(*stack, given.size());
  if (const auto results = results_among(given, schema)) {
    stack->insert(stack->end(), results->begin(), results->end());
  } else {
    TORCH_CHECK(mode == emulator::CAPTURES, "[emulator] ", name, " makes results in an update");
    const Stack harmless = without_integers(given, schema);
    stack->insert(stack->end(), harmless.begin(), harmless.end());
    run_on_cpu(op, stack);
  }
  std::set<const void *> taken;
  for (const Tensor &t : tensors_of(given)) taken.insert(t.storage().data());
  const auto results = tensors_of(Stack(stack->end() - schema.returns().size(), stack->end()));
  std::vector<Place> places;
  for (size_t i = 0; i < results.size(); i++) {
    const Tensor &t = results[i];
    if (!on_npu(t) || !t.numel() || taken.count(t.storage().data())) continue;
    memset(t.data_ptr(), 0, t.nbytes());
    places.push_back({i, make_alias(t, false)});
  }
  emulator::record(current_stream(), name, again(op, given, places));
}

void check_no_wait(const char *name) {
  TORCH_CHECK(!emulator::behind_a_wait(current_stream(), name), aclGetRecentErrMsg());
}

void on_cpu(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
  check_no_wait(op.schema().name().c_str());
  const auto mode = emulator::mode_of(current_stream());
  if (mode != emulator::RUNS) return record(op, mode, stack);
  run_on_cpu(op, stack);
}

Tensor contiguous(const Tensor &t, c10::MemoryFormat format) {
  return t.is_contiguous(format) ? t : t.clone(format);
}

// To pinned memory a copy may come late: what the kernels before it have written.
void copy_late(aclrtStream stream, Tensor to, const Tensor &from) {
  Tensor snapshot = at::empty(to.sizes(), to.options().pinned_memory(false));
  snapshot.copy_(from);
  if (to.is_contiguous()) memset(to.mutable_data_ptr(), emulator::POISON, to.nbytes());
  emulator::enqueue(stream, [to, snapshot]() mutable {
    at::AutoDispatchBelowADInplaceOrView below;
    to.copy_(snapshot);
  });
}

Tensor &copy(Tensor &to, const Tensor &from, bool non_blocking) {
  const bool to_host = !on_npu(to), from_host = !on_npu(from);
  const bool waits = to_host && !(non_blocking && to.is_pinned());
  const auto stream = current_stream();
  const bool runs = emulator::mode_of(stream) == emulator::RUNS;
  TORCH_CHECK(runs || !(waits || (from_host && !from.is_pinned())),
              "[emulator] a copy that waits, or from memory that is not pinned, in a capture");
  Aliases aliases(runs);
  Tensor target = aliases.to_cpu(to), source = aliases.to_cpu(from);
  const auto run = [=] {
    at::AutoDispatchBelowADInplaceOrView below;
    if (to_host && !waits && emulator::late()) {
      copy_late(stream, target, source);
    } else {
      if (waits) drain_current_stream();
      Tensor(target).copy_(source);
    }
    return 0;
  };
  TORCH_CHECK(!emulator::launch(stream, "copy_", run), aclGetRecentErrMsg());
  return to;
}

at::Scalar to_scalar(const Tensor &t) {
  TORCH_CHECK(!emulator::in_a_capture(current_stream(), "item()"), aclGetRecentErrMsg());
  drain_current_stream();
  return at::_local_scalar_dense(make_alias(t));
}

Tensor to_copy(const Tensor &t, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
               std::optional<at::Device> device, std::optional<bool> pin, bool non_blocking,
               std::optional<at::MemoryFormat> format) {
  const auto options =
      t.options().dtype(dtype.value_or(t.scalar_type())).device(device.value_or(t.device()));
  const bool to_host = options.device().is_cpu();
  // As PyTorch does: a copy to the host that nobody waits for gets pinned memory.
  const bool pinned = to_host && (pin.value_or(false) || (non_blocking && on_npu(t)));
  auto made = at::empty_like(t, options.pinned_memory(pinned),
                             format.value_or(at::MemoryFormat::Preserve));
  return made.copy_(t, non_blocking);
}

// Memory, views and streams: torch_npu's own work on the emulated device.
const std::set<std::string> KEEP = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::empty_like",
    "aten::empty_with_format", "aten::empty_with_format.names", "aten::unsafe_empty_with_format",
    "aten::empty_with_swapped_memory", "aten::new_empty_strided", "aten::as_strided",
    "aten::as_strided_", "aten::_reshape_alias", "aten::view", "aten::squeeze",
    "aten::squeeze.dim", "aten::unsqueeze", "aten::unfold", "aten::view_as_complex",
    "aten::view_as_real", "aten::set_", "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::resize_",
    "aten::resize_as_", "aten::is_pinned", "aten::pin_memory", "aten::_pin_memory",
    "aten::record_stream"};
const std::set<std::string> OURS = {"aten::contiguous", "aten::_to_copy", "aten::copy_",
                                    "aten::_local_scalar_dense"};

torch::Library *library;  // lives as long as the process

int64_t install() {
  library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1,
                               __FILE__, __LINE__);
  int64_t count = 0;
  auto &dispatcher = c10::Dispatcher::singleton();
  for (const auto &name :
       dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::PrivateUse1)) {
    const auto full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (full.rfind("aten::", 0) || KEEP.count(full) || OURS.count(full)) continue;
    if (full.find("npu") != std::string::npos) continue;
    const auto op = dispatcher.findSchema(name);
    // "Computed": composite kernels too. The check for explicit registrations would leave
    // operators on torch_npu's own path, which does nothing here.
    if (!op || !op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    library->impl(full.c_str() + strlen("aten::"),
                  torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
    count++;
  }
  library->impl("contiguous", TORCH_FN(contiguous));
  library->impl("_to_copy", TORCH_FN(to_copy));
  library->impl("copy_", TORCH_FN(copy));
  library->impl("_local_scalar_dense", TORCH_FN(to_scalar));
  return count + int64_t(OURS.size());
}

}  // namespace

// A function of Python, which may be forgotten without the lock of its interpreter.
emulator::Task task_of(py::object function) {
  const auto forget = [](py::object *kept) {
    py::gil_scoped_acquire lock;
    delete kept;
  };
  std::shared_ptr<py::object> kept(new py::object(std::move(function)), forget);
  return [kept] {
    py::gil_scoped_acquire lock;
    try {
      (*kept)();
    } catch (py::error_already_set &error) {
      throw std::runtime_error(error.what());
    }
  };
}

PYBIND11_MODULE(emulated_aten, m) {
  m.def("install", &install, "Replaces the kernels; how many.");
  m.def("count", &emulator::count, "Adds a line to EMULATOR_COUNTS.");
  m.def(
      "mode",
      [](const char *name) {
        check_no_wait(name);
        return int(emulator::mode_of(current_stream()));
      },
      "What becomes of a launch on the current stream: 0 runs, 1 captured, 2 an update.");
  m.def(
      "inside",
      [](const py::function &kernel, const py::tuple &arguments, const py::dict &rest) {
        emulator::Inside launch;
        return kernel(*arguments, **rest);
      },
      "Calls a kernel; what it launches is part of it.");
  m.def(
      "record",
      [](const char *name, py::object function) {
        emulator::record(current_stream(), name, task_of(std::move(function)));
      },
      "Records a launch on the current stream.");
}
