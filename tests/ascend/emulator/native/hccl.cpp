// Emulated HCCL: one host, through a shared segment with a seat for each rank. A call
// returns when its exchange is done. A peer that died, did not come, or called something
// else is named, in the error of the caller and on stderr.
#include "emulator.h"
#include "hccl/hccl.h"
#include "hccl/hccl_types.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sched.h>
#include <sstream>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr size_t SLOT = 4 << 20;    // what a rank publishes at once
constexpr size_t LETTER = 1 << 20;  // what one rank hands to another at once
constexpr size_t PAGE = 4096;
constexpr double LOOK_EVERY_S = 0.05;

struct Call {  // what a rank is calling: equal on all ranks
  char name[24];
  uint64_t count;
  int32_t type, reduce, root;
};
struct Seat {
  std::atomic<uint64_t> arrived;
  std::atomic<int32_t> pid;
  uint64_t started;  // of the process: pids are given again
  Call call;
};
struct Mailbox {
  std::atomic<uint64_t> written, read;
  std::atomic<uint64_t> bytes;
};
struct Comm {
  char *segment = nullptr;
  size_t bytes = 0;
  uint32_t size = 0, rank = 0;
  std::string name;
  uint64_t round = 0;
  Seat *seat(uint32_t r) { return reinterpret_cast<Seat *>(segment) + r; }
  size_t seats() const { return (sizeof(Seat) * size + PAGE - 1) / PAGE * PAGE; }
  char *slot(uint32_t r) { return segment + seats() + r * SLOT; }
  char *box(uint32_t from, uint32_t to) {
    return segment + seats() + size * SLOT + (size_t(from) * size + to) * (LETTER + PAGE);
  }
};

std::mutex table_lock;
std::map<std::string, Comm *> table;  // by name, for operators that are given one

double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}
double limit_s(bool joining) {
  return double(joining ? emulator::number("HCCL_CONNECT_TIMEOUT", 120)
                        : emulator::number("HCCL_EXEC_TIMEOUT", 1836));
}

// When a process started, in clock ticks since boot; 0 if it is gone or a zombie.
uint64_t start_of(int32_t pid) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  const size_t n = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[n] = 0;
  const char *rest = strrchr(text, ')');
  if (!rest) return 0;
  char state;
  unsigned long long started = 0;
  const int found = sscanf(rest + 2,
                           "%c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                           "%*d %*d %llu",
                           &state, &started);
  return found == 2 && state != 'Z' && state != 'X' ? started : 0;
}
bool dead(Seat *seat) {
  const int32_t pid = seat->pid.load();
  return pid && start_of(pid) != seat->started;
}
std::string who(Comm *c, uint32_t r) {
  const int32_t pid = c->seat(r)->pid.load();
  return "rank " + std::to_string(r) +
         (pid ? " (process " + std::to_string(pid) + ")" : " (not joined)");
}
std::string say(const Call &call) {
  std::stringstream text;
  text << call.name << " of " << call.count << " elements of type " << call.type;
  if (call.reduce >= 0) text << ", reduction " << call.reduce;
  if (call.root >= 0) text << ", root " << call.root;
  return text.str();
}
HcclResult fail(Comm *c, HcclResult code, const std::string &what) {
  const std::string text = "hccl: " + c->name + ", rank " + std::to_string(c->rank) + " of " +
                           std::to_string(c->size) + ": " + what;
  emulator::set_error(text);
  fprintf(stderr, "[emulator] %s\n", text.c_str());
  return code;
}

// Sleeps a little more each time; every LOOK_EVERY_S it asks whether to go on.
class Patience {
 public:
  explicit Patience(bool joining) : start_(seconds()), looked_(start_), limit_(limit_s(joining)) {}
  bool look() {
    if (++spins_ < 200) {
      sched_yield();
      return false;
    }
    const timespec nap{0, 20000};
    nanosleep(&nap, nullptr);
    const double now = seconds();
    if (now - looked_ < LOOK_EVERY_S) return false;
    looked_ = now;
    return true;
  }
  bool over() const { return looked_ - start_ > limit_; }

 private:
  double start_, looked_, limit_;
  uint64_t spins_ = 0;
};

HcclResult meet(Comm *c, const Call &call, bool joining = false) {
  const uint64_t round = ++c->round;
  c->seat(c->rank)->call = call;
  c->seat(c->rank)->arrived.store(round);
  Patience patience(joining);
  for (uint32_t r = 0; r < c->size;) {
    if (c->seat(r)->arrived.load() >= round) {
      r++;
      continue;
    }
    if (!patience.look()) continue;
    if (dead(c->seat(r)) && c->seat(r)->arrived.load() < round)
      return fail(c, HCCL_E_REMOTE, who(c, r) + " died; it was waited for in " + say(call));
    if (patience.over()) {
      std::string late;
      for (uint32_t k = 0; k < c->size; k++)
        if (c->seat(k)->arrived.load() < round) late += (late.empty() ? "" : ", ") + who(c, k);
      return fail(c, HCCL_E_TIMEOUT, "no answer from " + late + " in " + say(call));
    }
  }
  return HCCL_SUCCESS;
}
// All ranks arrive with the same call, or each is told what the other called.
HcclResult agree(Comm *c, const Call &call) {
  if (auto error = meet(c, call)) return error;
  for (uint32_t r = 0; r < c->size; r++) {
    const Call &other = c->seat(r)->call;
    if (memcmp(&other, &call, sizeof call))
      return fail(c, HCCL_E_PARA, "called " + say(call) + ", but " + who(c, r) + " " + say(other));
  }
  return meet(c, call);  // nobody overwrites its call before all have read it
}

Call call_of(const char *name, uint64_t count, HcclDataType type, int32_t reduce = -1,
             int32_t root = -1) {
  Call call;
  memset(&call, 0, sizeof call);
  snprintf(call.name, sizeof call.name, "%s", name);
  call.count = count;
  call.type = type;
  call.reduce = reduce;
  call.root = root;
  return call;
}

size_t width(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_UINT8:
      return 1;
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_UINT16:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_BFP16:
      return 2;
    case HCCL_DATA_TYPE_INT32:
    case HCCL_DATA_TYPE_UINT32:
    case HCCL_DATA_TYPE_FP32:
      return 4;
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_UINT64:
    case HCCL_DATA_TYPE_FP64:
      return 8;
    default:
      fprintf(stderr, "[emulator] hccl: data type %d is not emulated\n", int(type));
      abort();
  }
}
float from_bf16(uint16_t v) {
  const uint32_t bits = uint32_t(v) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
uint16_t to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);  // stays NaN
  bits += 0x7fff + ((bits >> 16) & 1);
  return uint16_t(bits >> 16);
}
template <class T>
T combine(T a, T b, HcclReduceOp op) {
  switch (op) {
    case HCCL_REDUCE_SUM:
      return T(a + b);
    case HCCL_REDUCE_PROD:
      return T(a * b);
    case HCCL_REDUCE_MAX:
      return a > b ? a : b;
    case HCCL_REDUCE_MIN:
      return a < b ? a : b;
    default:
      fprintf(stderr, "[emulator] hccl: reduction %d is not emulated\n", int(op));
      abort();
  }
}
template <class T>
void reduce_as(void *to, const void *from, size_t n, HcclReduceOp op) {
  auto *a = static_cast<T *>(to);
  const auto *b = static_cast<const T *>(from);
  for (size_t i = 0; i < n; i++) a[i] = combine<T>(a[i], b[i], op);
}
void reduce(void *to, const void *from, size_t n, HcclDataType type, HcclReduceOp op) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
      return reduce_as<int8_t>(to, from, n, op);
    case HCCL_DATA_TYPE_UINT8:
      return reduce_as<uint8_t>(to, from, n, op);
    case HCCL_DATA_TYPE_INT16:
      return reduce_as<int16_t>(to, from, n, op);
    case HCCL_DATA_TYPE_INT32:
      return reduce_as<int32_t>(to, from, n, op);
    case HCCL_DATA_TYPE_INT64:
      return reduce_as<int64_t>(to, from, n, op);
    case HCCL_DATA_TYPE_FP32:
      return reduce_as<float>(to, from, n, op);
    case HCCL_DATA_TYPE_FP64:
      return reduce_as<double>(to, from, n, op);
    case HCCL_DATA_TYPE_FP16:
      return reduce_as<_Float16>(to, from, n, op);
    case HCCL_DATA_TYPE_BFP16: {
      auto *a = static_cast<uint16_t *>(to);
      const auto *b = static_cast<const uint16_t *>(from);
      for (size_t i = 0; i < n; i++) a[i] = to_bf16(combine(from_bf16(a[i]), from_bf16(b[i]), op));
      return;
    }
    default:
      fprintf(stderr, "[emulator] hccl: no reduction for data type %d\n", int(type));
      abort();
  }
}

using Take = std::function<void(uint32_t rank, size_t at, const char *data, size_t bytes)>;

// Every rank publishes its bytes in rounds of SLOT; `most` is the largest of all ranks.
HcclResult exchange(Comm *c, const Call &call, const void *send, size_t mine, size_t most,
                    const Take &take) {
  if (auto error = agree(c, call)) return error;
  for (size_t at = 0; at < most; at += SLOT) {
    if (at < mine)
      memcpy(c->slot(c->rank), static_cast<const char *>(send) + at, std::min(SLOT, mine - at));
    if (auto error = meet(c, call)) return error;
    for (uint32_t r = 0; r < c->size; r++) take(r, at, c->slot(r), std::min(SLOT, most - at));
    if (auto error = meet(c, call)) return error;
  }
  return HCCL_SUCCESS;
}

HcclResult join(const std::string &name, uint32_t size, uint32_t rank, HcclComm *out) {
  auto *c = new Comm;
  c->size = size;
  c->rank = rank;
  c->name = name;
  c->bytes = c->seats() + size * SLOT + size_t(size) * size * (LETTER + PAGE);
  const std::string path = "/" + name;
  const int fd = shm_open(path.c_str(), O_CREAT | O_RDWR, 0600);
  if (fd < 0 || ftruncate(fd, off_t(c->bytes))) return fail(c, HCCL_E_SYSCALL, "no shared memory");
  void *found = mmap(nullptr, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (found == MAP_FAILED) return fail(c, HCCL_E_MEMORY, "no shared memory");
  c->segment = static_cast<char *>(found);
  c->seat(rank)->started = start_of(getpid());
  c->seat(rank)->pid.store(getpid());
  const auto result = meet(c, call_of("joining", 0, HCCL_DATA_TYPE_INT8), true);
  if (rank == 0 || result) shm_unlink(path.c_str());
  if (result) return result;
  std::lock_guard<std::mutex> guard(table_lock);
  table[name] = c;
  *out = c;
  return HCCL_SUCCESS;
}

HcclResult all_reduce(Comm *c, const Call &call, const void *from, void *to, size_t n,
                      HcclDataType type, HcclReduceOp op) {
  const size_t w = width(type), bytes = n * w;
  std::vector<char> sum(bytes);
  const auto result = exchange(c, call, from, bytes, bytes,
                               [&](uint32_t r, size_t at, const char *data, size_t length) {
                                 if (r == 0)
                                   memcpy(&sum[at], data, length);
                                 else
                                   reduce(&sum[at], data, length / w, type, op);
                               });
  if (!result) memcpy(to, sum.data(), bytes);
  return result;
}

struct Letter {
  bool sending;
  char *data;
  size_t bytes;
  uint32_t peer;
  size_t at = 0;
  bool done = false;
};
// Moves each letter on as far as it goes, until all are done.
HcclResult post(Comm *c, std::vector<Letter> letters) {
  for (const auto &letter : letters)
    if (letter.peer >= c->size || letter.peer == c->rank)
      return fail(c, HCCL_E_PARA, "there is no peer " + std::to_string(letter.peer));
  Patience patience(false);
  size_t left = letters.size();
  while (left) {
    bool moved = false;
    std::vector<bool> busy(2 * c->size, false);  // one letter at a time and direction
    for (auto &letter : letters) {
      const size_t lane = letter.peer * 2 + letter.sending;
      if (letter.done || busy[lane]) continue;
      busy[lane] = true;
      char *page = letter.sending ? c->box(c->rank, letter.peer) : c->box(letter.peer, c->rank);
      auto *box = reinterpret_cast<Mailbox *>(page);
      const bool full = box->written.load() > box->read.load();
      if (full == letter.sending) continue;
      const size_t part = std::min(LETTER, letter.bytes - letter.at);
      if (letter.sending) {
        memcpy(page + PAGE, letter.data + letter.at, part);
        box->bytes.store(letter.bytes);
        box->written.fetch_add(1);
      } else {
        if (box->bytes.load() != letter.bytes)
          return fail(c, HCCL_E_PARA,
                      who(c, letter.peer) + " sends " + std::to_string(box->bytes.load()) +
                          " bytes where " + std::to_string(letter.bytes) + " are received");
        memcpy(letter.data + letter.at, page + PAGE, part);
        box->read.fetch_add(1);
      }
      letter.at += part;
      moved = true;
      if (letter.at == letter.bytes) {
        letter.done = true;
        left--;
      }
    }
    if (moved || !left || !patience.look()) continue;
    for (const auto &letter : letters) {
      if (letter.done) continue;
      const char *what = letter.sending ? "send to it" : "receive from it";
      if (dead(c->seat(letter.peer)))
        return fail(c, HCCL_E_REMOTE, who(c, letter.peer) + " died in a " + what);
      if (patience.over())
        return fail(c, HCCL_E_TIMEOUT, "no answer from " + who(c, letter.peer) + " in a " + what);
    }
  }
  return HCCL_SUCCESS;
}

HcclResult all_gather(Comm *c, const Call &call, const void *from, void *to, size_t bytes) {
  std::vector<char> all(bytes * c->size);  // `from` may lie inside `to`
  const auto result = exchange(c, call, from, bytes, bytes,
                               [&](uint32_t r, size_t at, const char *data, size_t length) {
                                 memcpy(&all[r * bytes + at], data, length);
                               });
  if (!result) memcpy(to, all.data(), all.size());
  return result;
}

// What a collective does, at once or in a replay.
HcclResult launch(const char *name, aclrtStream stream, const std::function<HcclResult()> &run) {
  return HcclResult(emulator::launch(stream, name, [=] {
    emulator::count(name);
    return int(run());
  }));
}
// A list with an entry for each rank, which the caller may change after the launch.
std::vector<uint64_t> list(HcclComm comm, const void *numbers) {
  const auto *first = static_cast<const uint64_t *>(numbers);
  return {first, first + static_cast<Comm *>(comm)->size};
}

}  // namespace

#define COMM (static_cast<Comm *>(comm))

extern "C" {
HcclResult HcclGetRootInfo(HcclRootInfo *info) {
  static std::atomic<int> number{0};
  memset(info, 0, sizeof *info);
  snprintf(info->internal, 100, "emulated_hccl_%d_%llu_%d", getpid(),
           static_cast<unsigned long long>(start_of(getpid())), number++);
  return HCCL_SUCCESS;
}
HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo *info, uint32_t rank,
                                HcclComm *comm) {
  return join(info->internal, size, rank, comm);
}
HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo *info, uint32_t rank,
                                      const HcclCommConfig *, HcclComm *comm) {
  return join(info->internal, size, rank, comm);
}
HcclResult HcclCreateSubCommConfig(HcclComm *parent, uint32_t size, uint32_t *, uint64_t id,
                                   uint32_t rank, HcclCommConfig *, HcclComm *comm) {
  const auto *from = static_cast<Comm *>(*parent);
  return join(from->name + "_" + std::to_string(id), size, rank, comm);
}
HcclResult HcclCommDestroy(HcclComm comm) {
  {
    std::lock_guard<std::mutex> guard(table_lock);
    table.erase(COMM->name);
  }
  munmap(COMM->segment, COMM->bytes);
  delete COMM;
  return HCCL_SUCCESS;
}
HcclResult HcclGetRankSize(HcclComm comm, uint32_t *size) {
  *size = COMM->size;
  return HCCL_SUCCESS;
}
HcclResult HcclGetRankId(HcclComm comm, uint32_t *rank) {
  *rank = COMM->rank;
  return HCCL_SUCCESS;
}
HcclResult HcclGetCommName(HcclComm comm, char *name) {
  snprintf(name, 128, "%s", COMM->name.c_str());
  return HCCL_SUCCESS;
}
HcclResult HcclGetCommAsyncError(HcclComm, HcclResult *error) {
  *error = HCCL_SUCCESS;
  return HCCL_SUCCESS;
}
HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }
uint32_t HcclGetCommConfigCapability() { return 0; }
const char *HcclGetErrorString(HcclResult result) {
  static thread_local char text[32];
  snprintf(text, sizeof text, "emulated HCCL error %d", int(result));
  return text;
}

HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
  return launch("HcclBarrier", stream, [=] {
    const auto call = call_of("barrier", 0, HCCL_DATA_TYPE_INT8);
    return agree(COMM, call);
  });
}
HcclResult HcclAllReduce(void *from, void *to, uint64_t n, HcclDataType type, HcclReduceOp op,
                         HcclComm comm, aclrtStream stream) {
  return launch("HcclAllReduce", stream, [=] {
    const auto call = call_of("all_reduce", n, type, op);
    return all_reduce(COMM, call, from, to, n, type, op);
  });
}
HcclResult HcclReduce(void *from, void *to, uint64_t n, HcclDataType type, HcclReduceOp op,
                      uint32_t root, HcclComm comm, aclrtStream stream) {
  return launch("HcclReduce", stream, [=] {
    const auto call = call_of("reduce", n, type, op, int32_t(root));
    std::vector<char> sum(n * width(type));
    const auto result = all_reduce(COMM, call, from, sum.data(), n, type, op);
    if (!result && COMM->rank == root) memcpy(to, sum.data(), sum.size());
    return result;
  });
}
HcclResult HcclReduceScatter(void *from, void *to, uint64_t n, HcclDataType type, HcclReduceOp op,
                             HcclComm comm, aclrtStream stream) {
  return launch("HcclReduceScatter", stream, [=] {
    const auto call = call_of("reduce_scatter", n, type, op);
    const size_t part = n * width(type);
    std::vector<char> sum(part * COMM->size);
    const auto result = all_reduce(COMM, call, from, sum.data(), n * COMM->size, type, op);
    if (!result) memcpy(to, sum.data() + COMM->rank * part, part);
    return result;
  });
}
HcclResult HcclReduceScatterV(void *from, const void *counts, const void *places, void *to,
                              uint64_t n, HcclDataType type, HcclReduceOp op, HcclComm comm,
                              aclrtStream stream) {
  const auto count_of = list(comm, counts), place_of = list(comm, places);
  return launch("HcclReduceScatterV", stream, [=] {
    uint64_t all = 0;
    for (uint32_t r = 0; r < COMM->size; r++) all = std::max(all, place_of[r] + count_of[r]);
    const auto call = call_of("reduce_scatter_v", all, type, op);
    std::vector<char> sum(all * width(type));
    const auto result = all_reduce(COMM, call, from, sum.data(), all, type, op);
    if (!result) memcpy(to, sum.data() + place_of[COMM->rank] * width(type), n * width(type));
    return result;
  });
}
HcclResult HcclBroadcast(void *data, uint64_t n, HcclDataType type, uint32_t root, HcclComm comm,
                         aclrtStream stream) {
  return launch("HcclBroadcast", stream, [=] {
    const auto call = call_of("broadcast", n, type, -1, int32_t(root));
    const size_t bytes = n * width(type);
    return exchange(COMM, call, data, COMM->rank == root ? bytes : 0, bytes,
                    [&](uint32_t r, size_t at, const char *part, size_t length) {
                      if (r == root && COMM->rank != root)
                        memcpy(static_cast<char *>(data) + at, part, length);
                    });
  });
}
HcclResult HcclScatter(void *from, void *to, uint64_t n, HcclDataType type, uint32_t root,
                       HcclComm comm, aclrtStream stream) {
  return launch("HcclScatter", stream, [=] {
    const auto call = call_of("scatter", n, type, -1, int32_t(root));
    const size_t part = n * width(type), all = part * COMM->size;
    std::vector<char> whole(all);
    const auto result = exchange(COMM, call, from, COMM->rank == root ? all : 0, all,
                                 [&](uint32_t r, size_t at, const char *data, size_t length) {
                                   if (r == root) memcpy(&whole[at], data, length);
                                 });
    if (!result) memcpy(to, whole.data() + COMM->rank * part, part);
    return result;
  });
}
HcclResult HcclAllGather(void *from, void *to, uint64_t n, HcclDataType type, HcclComm comm,
                         aclrtStream stream) {
  return launch("HcclAllGather", stream, [=] {
    const auto call = call_of("all_gather", n, type);
    return all_gather(COMM, call, from, to, n * width(type));
  });
}
HcclResult HcclAllGatherV(void *from, uint64_t n, void *to, const void *counts, const void *places,
                          HcclDataType type, HcclComm comm, aclrtStream stream) {
  const auto count_of = list(comm, counts), place_of = list(comm, places);
  return launch("HcclAllGatherV", stream, [=] {
    const size_t w = width(type);
    size_t most = 0, all = 0;
    for (uint32_t r = 0; r < COMM->size; r++) {
      most = std::max<size_t>(most, count_of[r] * w);
      all += count_of[r];
    }
    const auto call = call_of("all_gather_v", all, type);
    return exchange(COMM, call, from, n * w, most,
                    [&](uint32_t r, size_t at, const char *data, size_t length) {
                      const size_t bytes = count_of[r] * w;
                      if (at < bytes)
                        memcpy(static_cast<char *>(to) + place_of[r] * w + at, data,
                               std::min(length, bytes - at));
                    });
  });
}
HcclResult HcclAlltoAllV(const void *from, const void *send_counts, const void *send_places,
                         HcclDataType type, const void *to, const void *receive_counts,
                         const void *receive_places, HcclDataType, HcclComm comm,
                         aclrtStream stream) {
  const auto out = list(comm, send_counts), out_at = list(comm, send_places);
  const auto in = list(comm, receive_counts), in_at = list(comm, receive_places);
  return launch("HcclAlltoAllV", stream, [=] {
    const size_t w = width(type), n = COMM->size;
    const auto call = call_of("all_to_all_v", 0, type);
    std::vector<uint64_t> counts(n * n);  // who sends how much to whom
    if (auto error = exchange(COMM, call, out.data(), n * 8, n * 8,
                              [&](uint32_t r, size_t, const char *data, size_t length) {
                                memcpy(&counts[r * n], data, length);
                              }))
      return error;
    std::vector<size_t> bytes(n, 0), mine(n, 0);  // of each rank; where this rank's part begins
    for (size_t r = 0; r < n; r++) {
      if (counts[r * n + COMM->rank] != in[r])
        return fail(COMM, HCCL_E_PARA,
                    who(COMM, uint32_t(r)) + " sends " +
                        std::to_string(counts[r * n + COMM->rank]) + " elements where " +
                        std::to_string(in[r]) + " are received");
      for (size_t k = 0; k < n; k++) {
        if (k == COMM->rank) mine[r] = bytes[r];
        bytes[r] += counts[r * n + k] * w;
      }
    }
    std::vector<char> packed(bytes[COMM->rank] + 1);
    size_t at = 0;
    for (size_t k = 0; k < n; k++) {
      memcpy(&packed[at], static_cast<const char *>(from) + out_at[k] * w, out[k] * w);
      at += out[k] * w;
    }
    return exchange(COMM, call, packed.data(), bytes[COMM->rank],
                    *std::max_element(bytes.begin(), bytes.end()),
                    [&](uint32_t r, size_t start, const char *data, size_t length) {
                      const size_t low = std::max(start, mine[r]);
                      const size_t high = std::min(start + length, mine[r] + in[r] * w);
                      if (low < high)
                        memcpy(static_cast<char *>(const_cast<void *>(to)) + in_at[r] * w +
                                   (low - mine[r]),
                               data + (low - start), high - low);
                    });
  });
}
HcclResult HcclAlltoAll(const void *from, uint64_t out, HcclDataType type, const void *to,
                        uint64_t in, HcclDataType to_type, HcclComm comm, aclrtStream stream) {
  const size_t n = COMM->size;
  const std::vector<uint64_t> outs(n, out), ins(n, in);
  std::vector<uint64_t> out_at, in_at;
  for (size_t r = 0; r < n; r++) {
    out_at.push_back(r * out);
    in_at.push_back(r * in);
  }
  return HcclAlltoAllV(from, outs.data(), out_at.data(), type, to, ins.data(), in_at.data(),
                       to_type, comm, stream);
}

HcclResult HcclSend(void *data, uint64_t n, HcclDataType type, uint32_t peer, HcclComm comm,
                    aclrtStream stream) {
  return launch("HcclSend", stream, [=] {
    return post(COMM, {{true, static_cast<char *>(data), n * width(type), peer}});
  });
}
HcclResult HcclRecv(void *data, uint64_t n, HcclDataType type, uint32_t peer, HcclComm comm,
                    aclrtStream stream) {
  return launch("HcclRecv", stream, [=] {
    return post(COMM, {{false, static_cast<char *>(data), n * width(type), peer}});
  });
}
HcclResult HcclBatchSendRecv(HcclSendRecvItem *items, uint32_t n, HcclComm comm,
                             aclrtStream stream) {
  std::vector<Letter> letters;
  for (uint32_t i = 0; i < n; i++) {
    const auto &item = items[i];
    const size_t bytes = item.count * width(item.dataType);
    const bool sending = item.sendRecvType == HCCL_SEND;
    letters.push_back({sending, static_cast<char *>(item.buf), bytes, item.remoteRank});
  }
  return launch("HcclBatchSendRecv", stream, [=] { return post(COMM, letters); });
}

// For operators that communicate inside: the group by the name that they are given, and a
// gather that nobody counts.
HcclComm emulator_group(const char *name) {
  std::lock_guard<std::mutex> guard(table_lock);
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}
HcclResult emulator_all_gather(void *from, void *to, uint64_t bytes, HcclComm comm) {
  return all_gather(COMM, call_of("gather inside", bytes, HCCL_DATA_TYPE_INT8), from, to, bytes);
}
}
