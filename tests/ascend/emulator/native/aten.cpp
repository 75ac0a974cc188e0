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

Tensor make_alias(const Tensor &t) {
  const auto &storage = t.storage();
  auto *keep = new c10::Storage(storage);
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
  if (emulator::late()) emulator::drain(c10_npu::getCurrentNPUStream().stream());
}

// The arguments of one call: tensors of the device, and what stands for them on the CPU.
class Aliases {
 public:
  c10::DeviceIndex device = 0;
  bool npu = false;

  Tensor to_cpu(const Tensor &t) {
    if (!on_npu(t)) return t;
    npu = true;
    device = t.device().index();
    for (const auto &alias : all_)
      if (alias.npu.is_same(t)) return alias.cpu;
    auto cpu = make_alias(t);
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

void on_cpu(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
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

Tensor contiguous(const Tensor &t, c10::MemoryFormat format) {
  return t.is_contiguous(format) ? t : t.clone(format);
}

Tensor &copy(Tensor &to, const Tensor &from, bool non_blocking) {
  Aliases aliases;
  Tensor target = aliases.to_cpu(to), source = aliases.to_cpu(from);
  const bool to_host = on_npu(from) && !on_npu(to);
  if (to_host && emulator::late()) {
    if (non_blocking && to.is_pinned()) {
      // What the kernels before it have written, however late it arrives.
      Tensor snapshot = at::empty(target.sizes(), target.options().pinned_memory(false));
      snapshot.copy_(source);
      if (target.is_contiguous())
        memset(target.mutable_data_ptr(), emulator::POISON, target.nbytes());
      emulator::enqueue(c10_npu::getCurrentNPUStream().stream(), [target, snapshot]() mutable {
        at::AutoDispatchBelowADInplaceOrView below;
        target.copy_(snapshot);
      });
      return to;
    }
    drain_current_stream();
  }
  at::AutoDispatchBelowADInplaceOrView below;
  target.copy_(source);
  return to;
}

at::Scalar to_scalar(const Tensor &t) {
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

PYBIND11_MODULE(emulated_aten, m) {
  m.def("install", &install, "Replaces the kernels; how many.");
}
