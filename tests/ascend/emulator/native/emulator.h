// What the parts of the emulated device share.
#pragma once
#include "acl/acl.h"
#include "acl/acl_rt.h"
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

namespace emulator {

inline size_t number(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

// The device of this thread, as the process numbers its visible devices.
int32_t current_device();

// What aclGetRecentErrMsg answers; torch_npu puts it into its exceptions.
void set_error(const std::string &text);

// EMULATOR_LATE=1: copies to the host, and functions of the host, wait in their stream
// until somebody synchronises. A reader that did not wait sees bytes of POISON.
bool late();
constexpr int POISON = 0xA5;
void enqueue(aclrtStream stream, std::function<void()> work);
void drain(aclrtStream stream);

// One handle for each stream: that of the default stream may be null.
aclrtStream canonical(aclrtStream stream);

// Graphs. A launch on a captured stream is recorded: as a task, which does it on the same
// addresses. A launch inside of another one is part of it, and neither.
using Task = std::function<void()>;
enum Mode { RUNS, CAPTURES, UPDATES };
Mode mode_of(aclrtStream stream);
class Inside {
 public:
  Inside();
  ~Inside();
};
void record(aclrtStream stream, const std::string &name, Task task);
// Does it, or records it; what it answers, or that the stream waits.
int launch(aclrtStream stream, const char *name, std::function<int()> run);
// Errors: a graph on the stream waits, behind which the emulator can run nothing; the same,
// or the stream is captured.
aclError behind_a_wait(aclrtStream stream, const char *name);
aclError in_a_capture(aclrtStream stream, const char *name);
// What happened to events: they fork and join what is captured.
aclError recorded(aclrtEvent event, aclrtStream stream);
aclError waits_for(aclrtEvent event, aclrtStream stream);
void destroyed(aclrtEvent event);

// EMULATOR_COUNTS=FILE: a line for each replay, update, collective, and call of an operator that
// is not aten's, with the process.
void count(const char *what);

}  // namespace emulator
