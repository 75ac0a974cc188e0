// Streams and events. Kernels run at once, in the thread that launches them. What a
// device does to the host's memory can be made late (EMULATOR_LATE=1): it then happens
// at the first synchronisation that covers it, and not before.
#include "emulator.h"
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <unistd.h>
#include <vector>

namespace {

struct Stream {
  int32_t id;
  uint64_t enqueued = 0, done = 0;
  std::deque<std::function<void()>> waiting;
};
struct Event {
  int32_t id;
  Stream *stream = nullptr;
  uint64_t place = 0;  // in the stream, when it was recorded
  uint64_t micros = 0;
  bool asked = false;
};

std::recursive_mutex lock;
std::atomic<int32_t> ids{1};
Stream default_stream{0};
std::set<Stream *> streams{&default_stream};

uint64_t now() {
  using namespace std::chrono;
  return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}
Stream *stream_of(aclrtStream stream) {
  return stream ? static_cast<Stream *>(stream) : &default_stream;
}
void run_until(Stream *stream, uint64_t place) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (!streams.count(stream)) return;  // destroyed, and drained then
  while (stream->done < place && !stream->waiting.empty()) {
    auto work = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    stream->done++;
    work();
  }
}
void run_all(Stream *stream) { run_until(stream, UINT64_MAX); }
void run_everything() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  const std::vector<Stream *> all(streams.begin(), streams.end());
  for (auto *stream : all) run_all(stream);
}
void complete(Event *event) {
  if (event->stream) run_until(event->stream, event->place);
}
Stream *new_stream() {
  auto *stream = new Stream{ids++};
  std::lock_guard<std::recursive_mutex> guard(lock);
  streams.insert(stream);
  return stream;
}

int copy(void *to, const void *from, size_t bytes, aclrtMemcpyKind kind, aclrtStream stream) {
  if (!emulator::late() || kind != ACL_MEMCPY_DEVICE_TO_HOST) {
    memmove(to, from, bytes);
    return 0;
  }
  const auto *start = static_cast<const char *>(from);
  std::vector<char> snapshot(start, start + bytes);
  memset(to, emulator::POISON, bytes);
  emulator::enqueue(stream, [to, snapshot = std::move(snapshot)] {
    memcpy(to, snapshot.data(), snapshot.size());
  });
  return 0;
}

}  // namespace

namespace emulator {
bool late() {
  static const bool on = number("EMULATOR_LATE", 0) != 0;
  return on;
}
void enqueue(aclrtStream where, std::function<void()> work) {
  if (!late()) return work();
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto *stream = stream_of(where);
  stream->enqueued++;
  stream->waiting.push_back(std::move(work));
}
void drain(aclrtStream stream) { run_all(stream_of(stream)); }
aclrtStream canonical(aclrtStream stream) { return stream_of(stream); }
}  // namespace emulator

extern "C" {
aclError aclrtMemcpy(void *to, size_t, const void *from, size_t bytes, aclrtMemcpyKind) {
  memmove(to, from, bytes);
  return 0;
}
aclError aclrtMemcpyAsync(void *to, size_t, const void *from, size_t bytes,
                          aclrtMemcpyKind kind, aclrtStream stream) {
  return emulator::launch(stream, "aclrtMemcpyAsync",
                          [=] { return copy(to, from, bytes, kind, stream); });
}

aclError aclrtCtxGetCurrentDefaultStream(aclrtStream *stream) {
  *stream = &default_stream;
  return 0;
}
aclError aclrtCreateStream(aclrtStream *stream) {
  *stream = new_stream();
  return 0;
}
aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t, uint32_t) {
  *stream = new_stream();
  return 0;
}
aclError aclrtDestroyStream(aclrtStream stream) {
  auto *mine = stream_of(stream);
  if (mine == &default_stream) return 0;
  std::lock_guard<std::recursive_mutex> guard(lock);
  run_all(mine);
  streams.erase(mine);
  delete mine;
  return 0;
}
aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }
aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status) {
  if (auto error = emulator::in_a_capture(stream, "aclrtStreamQuery")) return error;
  std::lock_guard<std::recursive_mutex> guard(lock);
  const bool done = stream_of(stream)->waiting.empty();
  *status = done ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  run_all(stream_of(stream));  // whoever asks again finds it done
  return 0;
}
aclError aclrtStreamGetId(aclrtStream stream, int32_t *id) {
  *id = stream_of(stream)->id;
  return 0;
}
aclError aclrtSynchronizeStream(aclrtStream stream) {
  if (auto error = emulator::in_a_capture(stream, "aclrtSynchronizeStream")) return error;
  run_all(stream_of(stream));
  return 0;
}
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) {
  return aclrtSynchronizeStream(stream);
}
aclError aclrtSynchronizeDevice() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  for (auto *stream : streams)
    if (auto error = emulator::in_a_capture(stream, "aclrtSynchronizeDevice")) return error;
  run_everything();
  return 0;
}
aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return aclrtSynchronizeDevice(); }

aclError aclrtCreateEvent(aclrtEvent *event) {
  *event = new Event{ids++};
  return 0;
}
aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t) { return aclrtCreateEvent(event); }
aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t) { return aclrtCreateEvent(event); }
aclError aclrtDestroyEvent(aclrtEvent event) {
  emulator::destroyed(event);
  delete static_cast<Event *>(event);
  return 0;
}
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  if (auto error = emulator::recorded(event, stream)) return error;
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto *mine = static_cast<Event *>(event);
  mine->stream = stream_of(stream);
  mine->place = mine->stream->enqueued;
  mine->micros = now();
  mine->asked = false;
  return 0;
}
aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return 0; }
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  if (auto error = emulator::waits_for(event, stream)) return error;
  if (!emulator::late()) return 0;
  const Event copy = *static_cast<Event *>(event);
  emulator::enqueue(stream, [copy] {
    if (copy.stream) run_until(copy.stream, copy.place);
  });
  return 0;
}
aclError aclrtSynchronizeEvent(aclrtEvent event) {
  complete(static_cast<Event *>(event));
  return 0;
}
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto *mine = static_cast<Event *>(event);
  const bool waiting = emulator::late() && mine->stream && streams.count(mine->stream) &&
                       mine->stream->done < mine->place && !mine->asked;
  mine->asked = true;
  if (!waiting) complete(mine);
  *status = waiting ? ACL_EVENT_RECORDED_STATUS_NOT_READY : ACL_EVENT_RECORDED_STATUS_COMPLETE;
  return 0;
}
aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus *status) {
  complete(static_cast<Event *>(event));
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return 0;
}
aclError aclrtEventElapsedTime(float *ms, aclrtEvent from, aclrtEvent to) {
  const auto start = static_cast<Event *>(from)->micros, end = static_cast<Event *>(to)->micros;
  *ms = float(int64_t(end - start)) / 1000.0f;
  return 0;
}
aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t *micros) {
  *micros = static_cast<Event *>(event)->micros;
  return 0;
}

aclError aclrtLaunchCallback(aclrtCallback f, void *data, aclrtCallbackBlockType,
                             aclrtStream stream) {
  return emulator::launch(stream, "aclrtLaunchCallback", [=] {
    emulator::enqueue(stream, [=] { f(data); });
    return 0;
  });
}
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc f, void *data) {
  return aclrtLaunchCallback(f, data, ACL_CALLBACK_NO_BLOCK, stream);
}
aclError aclrtProcessReport(int32_t ms) {
  constexpr aclError REPORT_TIMEOUT = 107019;  // ACL_ERROR_RT_REPORT_TIMEOUT
  usleep(ms > 0 && ms < 100 ? useconds_t(ms) * 1000 : 100000);
  return REPORT_TIMEOUT;
}
aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return 0; }
aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return 0; }
}
