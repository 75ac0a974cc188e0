// The emulated device: its number, name and memory, which is memory of the host.
// Signatures are those of the headers that the torch_npu wheel ships.
#include "emulator.h"
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr aclError OUT_OF_MEMORY = 207001;   // ACL_ERROR_RT_MEMORY_ALLOCATION
constexpr aclError PARAM_INVALID = 107000;   // ACL_ERROR_RT_PARAM_INVALID
constexpr aclError INVALID_DEVICE = 107001;  // ACL_ERROR_RT_INVALID_DEVICEID
constexpr int MOST_DEVICES = 64;
constexpr size_t ALIGNMENT = 512;

thread_local int32_t device = 0;
thread_local bool chosen = false;  // of this thread's device: torch_npu chooses, if none is
thread_local std::string last_error;
int contexts[MOST_DEVICES];

struct Block {
  size_t bytes;
  int32_t device;
};
std::mutex lock;
std::map<void *, Block> blocks;     // device allocations
std::map<void *, size_t> reserved;  // address ranges
std::atomic<size_t> used[MOST_DEVICES];

size_t capacity() {
  static const size_t bytes = emulator::number("EMULATOR_MEMORY", size_t(4) << 30);
  return bytes;
}

// As the driver reads ASCEND_RT_VISIBLE_DEVICES: up to the first entry that is no device.
const std::vector<int32_t> &visible() {
  static const std::vector<int32_t> found = [] {
    const int32_t here = int32_t(emulator::number("EMULATOR_DEVICES", 8));
    std::vector<int32_t> ids;
    const char *text = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (!text) {
      for (int32_t i = 0; i < here; i++) ids.push_back(i);
      return ids;
    }
    std::stringstream entries(text);
    for (std::string entry; std::getline(entries, entry, ',');) {
      char *end = nullptr;
      const long id = strtol(entry.c_str(), &end, 10);
      if (end == entry.c_str() || *end || id < 0 || id >= here) break;
      ids.push_back(int32_t(id));
    }
    return ids;
  }();
  return found;
}

bool exists(int32_t id) { return id >= 0 && size_t(id) < visible().size(); }

void choose(int32_t id) {
  device = id;
  chosen = true;
}

aclError refuse_device(int32_t id) {
  emulator::set_error("device " + std::to_string(id) + " does not exist: " +
                      std::to_string(visible().size()) + " devices are visible");
  return INVALID_DEVICE;
}

aclError take(size_t bytes) {
  auto &mine = used[device];
  if (mine.fetch_add(bytes) + bytes <= capacity()) return 0;
  mine -= bytes;
  emulator::set_error("out of memory: " + std::to_string(bytes) + " bytes wanted, " +
                      std::to_string(capacity() - mine.load()) + " free");
  return OUT_OF_MEMORY;
}

}  // namespace

namespace emulator {
int32_t current_device() { return device; }
void set_error(const std::string &text) { last_error = "[emulator] " + text; }
void count(const char *what) {
  static const char *file = getenv("EMULATOR_COUNTS");
  if (!file) return;
  const std::string line = std::to_string(getpid()) + " " + what + "\n";
  const int fd = open(file, O_CREAT | O_WRONLY | O_APPEND, 0600);
  const bool written = fd >= 0 && write(fd, line.data(), line.size()) == ssize_t(line.size());
  if (!written) perror(file);
  close(fd);
}
}  // namespace emulator

extern "C" {
aclError aclInit(const char *) { return 0; }
aclError aclFinalize() { return 0; }
const char *aclGetRecentErrMsg() { return last_error.c_str(); }
const char *aclrtGetSocName() {
  const char *name = getenv("EMULATOR_SOC");
  return name ? name : "Ascend910B3";
}
aclError aclrtGetDeviceCount(uint32_t *n) {
  *n = uint32_t(visible().size());
  return 0;
}
aclError aclrtSetDevice(int32_t id) {
  if (!exists(id)) return refuse_device(id);
  choose(id);
  return 0;
}
aclError aclrtGetDevice(int32_t *id) {
  if (!chosen) return ACL_ERROR_RT_CONTEXT_NULL;
  *id = device;
  return 0;
}
aclError aclrtResetDevice(int32_t) { return 0; }
aclError aclrtCreateContext(aclrtContext *context, int32_t id) {
  if (!exists(id)) return refuse_device(id);
  choose(id);
  *context = &contexts[id];
  return 0;
}
aclError aclrtGetCurrentContext(aclrtContext *context) {
  if (!chosen) return ACL_ERROR_RT_CONTEXT_NULL;
  *context = &contexts[device];
  return 0;
}
aclError aclrtSetCurrentContext(aclrtContext context) {
  const auto id = static_cast<int *>(context) - contexts;
  if (id < 0 || id >= MOST_DEVICES) return PARAM_INVALID;
  choose(int32_t(id));
  return 0;
}
aclError aclrtGetPrimaryCtxState(int32_t, uint32_t *flags, int32_t *active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return 0;
}
aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr, int64_t *value) {
  *value = 24;  // cores
  return 0;
}
aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t *value) {
  *value = 24;
  return 0;
}
aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t, int32_t) {
  *can = 1;
  return 0;
}
aclError aclrtGetPhyDevIdByLogicDevId(int32_t logical, int32_t *physical) {
  if (!exists(logical)) return refuse_device(logical);
  *physical = visible()[size_t(logical)];
  return 0;
}
aclError aclrtDeviceGetBareTgid(int32_t *pid) {
  *pid = getpid();
  return 0;
}
aclError aclrtGetHardwareSyncAddr(void **address) {
  static char page[4096];
  *address = page;
  return 0;
}

aclError aclrtMalloc(void **pointer, size_t bytes, aclrtMemMallocPolicy) {
  if (auto error = take(bytes)) return error;
  *pointer = nullptr;
  if (posix_memalign(pointer, ALIGNMENT, bytes ? bytes : ALIGNMENT)) {
    used[device] -= bytes;
    return OUT_OF_MEMORY;
  }
  std::lock_guard<std::mutex> guard(lock);
  blocks[*pointer] = {bytes, device};
  return 0;
}
aclError aclrtMallocAlign32(void **pointer, size_t bytes, aclrtMemMallocPolicy policy) {
  return aclrtMalloc(pointer, bytes, policy);
}
aclError aclrtFree(void *pointer) {
  {
    std::lock_guard<std::mutex> guard(lock);
    const auto found = blocks.find(pointer);
    if (found == blocks.end()) {
      emulator::set_error("aclrtFree of memory that is not allocated");
      return PARAM_INVALID;
    }
    used[found->second.device] -= found->second.bytes;
    blocks.erase(found);
  }
  free(pointer);
  return 0;
}
aclError aclrtMallocHost(void **pointer, size_t bytes) {
  return posix_memalign(pointer, 64, bytes ? bytes : 64) ? OUT_OF_MEMORY : 0;
}
aclError aclrtFreeHost(void *pointer) {
  free(pointer);
  return 0;
}
aclError aclrtMemset(void *to, size_t, int32_t value, size_t bytes) {
  memset(to, value, bytes);
  return 0;
}
aclError aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t bytes,
                          aclrtStream stream) {
  return emulator::launch(stream, "aclrtMemsetAsync",
                          [=] { return aclrtMemset(to, room, value, bytes); });
}
aclError aclrtGetMemInfo(aclrtMemAttr, size_t *left, size_t *total) {
  const size_t mine = used[device];
  *total = capacity();
  *left = *total > mine ? *total - mine : 0;
  return 0;
}

// Addresses and memory apart: expandable segments, sleep mode.
aclError aclrtReserveMemAddress(void **address, size_t bytes, size_t, void *wanted, uint64_t) {
  void *found = mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return OUT_OF_MEMORY;
  std::lock_guard<std::mutex> guard(lock);
  reserved[found] = bytes;
  *address = found;
  return 0;
}
aclError aclrtReleaseMemAddress(void *address) {
  std::lock_guard<std::mutex> guard(lock);
  const auto found = reserved.find(address);
  if (found == reserved.end()) return PARAM_INVALID;
  munmap(address, found->second);
  reserved.erase(found);
  return 0;
}
aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t bytes,
                             const aclrtPhysicalMemProp *, uint64_t) {
  if (auto error = take(bytes)) return error;
  *handle = reinterpret_cast<aclrtDrvMemHandle>(new Block{bytes, device});
  return 0;
}
aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  auto *block = reinterpret_cast<Block *>(handle);
  used[block->device] -= block->bytes;
  delete block;
  return 0;
}
aclError aclrtMapMem(void *, size_t, size_t, aclrtDrvMemHandle, uint64_t) { return 0; }
aclError aclrtUnmapMem(void *) { return 0; }
aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp *, aclrtMemGranularityOptions,
                                          size_t *bytes) {
  *bytes = size_t(2) << 20;
  return 0;
}

// Compiled kernels are registered when their library is loaded. None is ever launched:
// that aborts with the launch's name.
aclError aclrtBinaryLoadFromData(const void *, size_t bytes, const aclrtBinaryLoadOptions *,
                                 aclrtBinHandle *handle) {
  *handle = new size_t(bytes);
  return 0;
}
aclError aclrtBinaryUnLoad(aclrtBinHandle handle) {
  delete static_cast<size_t *>(handle);
  return 0;
}

// Functions of CANN's own C library.
int mmGetTid() { return int(syscall(SYS_gettid)); }
int strcpy_s(char *to, size_t room, const char *from) {
  constexpr int ERANGE_ = 34;
  if (strlen(from) >= room) return ERANGE_;
  strcpy(to, from);
  return 0;
}
}
