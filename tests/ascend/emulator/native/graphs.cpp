// Graphs. What is launched on a captured stream is recorded, and not done; a replay does it,
// in the order of the recording. A replay stops where it waits for a value in memory that is
// not there (aclrtValueWait), and goes on in the thread that writes the value. torch_npu
// finds these functions by their names.
#include "emulator.h"
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <vector>

namespace {

using emulator::Task;

struct Group {  // launches that can be replaced
  std::vector<Task> tasks;
};
struct Step {
  std::string name;
  Task task;
  std::function<bool()> ready;  // only where a replay may have to wait
};
struct Graph {
  std::vector<Step> steps;
  std::vector<std::unique_ptr<Group>> groups;
  Group *open = nullptr;  // while it is captured
  aclrtStream stream = nullptr;
  size_t next = 0;
  bool runs = false;
};

// How many launches of each stream come before a point in a stream or an event.
using Clock = std::map<aclrtStream, size_t>;
struct Capture {
  Graph *graph;
  aclrtStream origin;
  std::map<aclrtStream, Clock> streams;
};
struct Mark {  // an event that was recorded on a captured stream
  Capture *capture;
  Clock clock;
};

std::recursive_mutex lock;
std::map<aclrtStream, Capture *> captures;
std::map<aclrtStream, Group *> updates;
std::map<aclrtStream, Graph *> waiting;  // what runs on a stream, and waits
std::map<aclrtEvent, Mark> marks;
std::set<Graph *> graphs;
std::atomic<size_t> busy{0};  // streams in these tables
thread_local int inside = 0;

// What is forgotten is declared before it, and so forgotten after it: a task may have to wait for
// Python's lock, of which the owner may wait for this one.
using Guard = std::lock_guard<std::recursive_mutex>;

void count_busy() { busy = captures.size() + updates.size() + waiting.size(); }
aclError refuse(aclError code, const std::string &what) {
  emulator::set_error(what);
  return code;
}
template <class Table>
auto found(const Table &table, aclrtStream stream) {
  const auto at = table.find(emulator::canonical(stream));
  return at == table.end() ? nullptr : at->second;
}
void merge(Clock &into, const Clock &other) {
  for (const auto &[stream, launches] : other)
    into[stream] = std::max(into[stream], launches);
}
// The comparisons of aclrtValueWait.
constexpr uint32_t AT_LEAST = 0, EQUAL = 1, AND = 2;
bool holds(uint64_t there, uint64_t value, uint32_t how) {
  if (how == AT_LEAST) return there >= value;
  return how == EQUAL ? there == value : (there & value) != 0;
}
void add(Capture *capture, aclrtStream stream, Step step) {
  capture->streams[stream][stream]++;
  if (capture->graph->open)
    capture->graph->open->tasks.push_back(std::move(step.task));
  else
    capture->graph->steps.push_back(std::move(step));
}
void forget(Capture *capture) {
  for (const auto &[stream, clock] : capture->streams) captures.erase(stream);
  for (auto at = marks.begin(); at != marks.end();)
    at = at->second.capture == capture ? marks.erase(at) : std::next(at);
  count_busy();
  delete capture;
}

// Runs a graph to its end, or to where it waits.
aclError advance(Graph *graph) {
  emulator::Inside launch;
  for (; graph->next < graph->steps.size(); graph->next++) {
    auto &step = graph->steps[graph->next];
    {
      Guard guard(lock);
      if (step.ready && !step.ready()) {
        waiting[graph->stream] = graph;
        count_busy();
        return 0;
      }
    }
    try {
      step.task();
    } catch (const std::exception &error) {
      graph->runs = false;
      return refuse(ACL_ERROR_RT_MODEL_EXECUTE,
                    "replay of " + step.name + ": " + error.what());
    }
  }
  graph->runs = false;
  return 0;
}
// Goes on with the graphs for which the wait is over.
aclError wake() {
  for (;;) {
    Graph *next = nullptr;
    {
      Guard guard(lock);
      for (const auto &[stream, graph] : waiting)
        if (graph->steps[graph->next].ready()) next = graph;
      if (!next) return 0;
      waiting.erase(next->stream);
      count_busy();
    }
    if (auto error = advance(next)) return error;
  }
}

}  // namespace

namespace emulator {
Inside::Inside() { inside++; }
Inside::~Inside() { inside--; }

Mode mode_of(aclrtStream stream) {
  if (inside || !busy) return RUNS;
  Guard guard(lock);
  if (found(updates, stream)) return UPDATES;
  return found(captures, stream) ? CAPTURES : RUNS;
}
aclError behind_a_wait(aclrtStream stream, const char *name) {
  if (inside || !busy) return 0;
  Guard guard(lock);
  const auto *graph = found(waiting, stream);
  if (!graph) return 0;
  return refuse(ACL_ERROR_RT_MODEL_RUNNING,
                std::string(name) + " behind a graph that waits, at step " +
                    std::to_string(graph->next) + " of " + std::to_string(graph->steps.size()) +
                    ", for a value that nobody has written");
}
aclError in_a_capture(aclrtStream stream, const char *name) {
  if (mode_of(stream) == RUNS) return behind_a_wait(stream, name);
  return refuse(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, std::string(name) + " in a capture");
}
void record(aclrtStream stream, const std::string &name, Task task) {
  Guard guard(lock);
  if (auto *group = found(updates, stream))
    group->tasks.push_back(std::move(task));
  else
    add(found(captures, stream), canonical(stream), {name, std::move(task), {}});
}
int launch(aclrtStream stream, const char *name, std::function<int()> run) {
  if (auto error = behind_a_wait(stream, name)) return error;
  if (mode_of(stream) == RUNS) return run();
  record(stream, name, [run] {
    if (run()) throw std::runtime_error(aclGetRecentErrMsg());
  });
  return 0;
}

aclError recorded(aclrtEvent event, aclrtStream stream) {
  if (!busy) return 0;
  if (auto error = behind_a_wait(stream, "an event")) return error;
  Guard guard(lock);
  marks.erase(event);
  if (auto *capture = found(captures, stream))
    marks[event] = {capture, capture->streams[canonical(stream)]};
  return 0;
}
aclError waits_for(aclrtEvent event, aclrtStream stream) {
  if (!busy) return 0;
  Guard guard(lock);
  const auto mark = marks.find(event);
  auto *capture = found(captures, stream);
  if (mark == marks.end())
    return capture ? refuse(ACL_ERROR_RT_CAPTURE_DEPENDENCY,
                            "a captured stream waits for an event from before the capture")
                   : 0;
  auto *joined = mark->second.capture;
  if (capture && capture != joined)
    return refuse(ACL_ERROR_STREAM_CAPTURE_CONFLICT, "two captures meet");
  stream = canonical(stream);
  captures[stream] = joined;
  merge(joined->streams[stream], mark->second.clock);
  count_busy();
  return 0;
}
void destroyed(aclrtEvent event) {
  if (!busy) return;
  Guard guard(lock);
  marks.erase(event);
}
}  // namespace emulator

extern "C" {
aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode) {
  Guard guard(lock);
  if (found(captures, stream)) return refuse(ACL_ERROR_RT_STREAM_CAPTURED, "a second capture");
  stream = emulator::canonical(stream);
  captures[stream] = new Capture{new Graph, stream, {{stream, {}}}};
  count_busy();
  return 0;
}
aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus *status,
                                aclmdlRI *graph) {
  Guard guard(lock);
  const auto *capture = found(captures, stream);
  *status =
      capture ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  if (graph) *graph = capture ? capture->graph : nullptr;
  return 0;
}
aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *result) {
  std::unique_ptr<Graph> graph;
  Guard guard(lock);
  auto *capture = found(captures, stream);
  *result = nullptr;
  if (!capture) return refuse(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the end of no capture");
  const auto origin = capture->origin;
  if (origin != emulator::canonical(stream))
    return refuse(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "the capture began on another stream");
  graph.reset(capture->graph);
  size_t unjoined = 0;
  for (auto &[side, clock] : capture->streams)
    unjoined += capture->streams[origin][side] < clock[side];
  forget(capture);
  if (unjoined)
    return refuse(ACL_ERROR_RT_STREAM_UNJOINED,
                  std::to_string(unjoined) + " streams of a capture never join it");
  if (graph->open) return refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "an open group of tasks");
  graphs.insert(graph.get());
  *result = graph.release();
  return 0;
}
aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode *mode) {
  static thread_local aclmdlRICaptureMode mine = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
  std::swap(mine, *mode);
  return 0;
}
aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream) {
  Guard guard(lock);
  auto *capture = found(captures, stream);
  if (!capture || capture->graph->open)
    return refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no capture, or a group in a group");
  auto &groups = capture->graph->groups;
  groups.push_back(std::make_unique<Group>());
  capture->graph->open = groups.back().get();
  return 0;
}
aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp *handle) {
  Guard guard(lock);
  auto *capture = found(captures, stream);
  auto *group = capture ? capture->graph->open : nullptr;
  if (!group) return refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "the end of no group of tasks");
  capture->graph->open = nullptr;
  const auto run = [group] {
    for (const auto &task : group->tasks) task();
  };
  add(capture, emulator::canonical(stream), {"a group of tasks", run, {}});
  *handle = group;
  return 0;
}
aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp handle) {
  std::vector<Task> old;
  Guard guard(lock);
  bool there = false;
  for (const auto *graph : graphs)
    for (const auto &group : graph->groups) there |= group.get() == handle;
  if (!there) return refuse(ACL_ERROR_RT_INVALID_HANDLE, "no such group of tasks");
  if (found(captures, stream) || found(updates, stream))
    return refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "an update in a capture or an update");
  auto *group = static_cast<Group *>(handle);
  old.swap(group->tasks);
  updates[emulator::canonical(stream)] = group;
  count_busy();
  return 0;
}
aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream) {
  Guard guard(lock);
  const auto *group = found(updates, stream);
  if (!group || group->tasks.empty())
    return refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no update, or one without launches");
  updates.erase(emulator::canonical(stream));
  count_busy();
  emulator::count("update of a graph");
  return 0;
}
aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
  if (auto error = emulator::in_a_capture(stream, "a replay")) return error;
  auto *graph = static_cast<Graph *>(model);
  {
    Guard guard(lock);
    if (!graphs.count(graph)) return refuse(ACL_ERROR_RT_INVALID_HANDLE, "no such graph");
    if (graph->runs) return refuse(ACL_ERROR_RT_MODEL_RUNNING, "the graph runs already");
    graph->runs = true;
    graph->next = 0;
    graph->stream = emulator::canonical(stream);
  }
  emulator::count("replay of a graph");
  if (auto error = advance(graph)) return error;
  return wake();
}
aclError aclmdlRIDestroy(aclmdlRI model) {
  std::unique_ptr<Graph> forgotten;
  Guard guard(lock);
  auto *graph = static_cast<Graph *>(model);
  if (!graphs.count(graph)) return refuse(ACL_ERROR_RT_INVALID_HANDLE, "no such graph");
  if (graph->runs) return refuse(ACL_ERROR_RT_MODEL_RUNNING, "the graph runs");
  graphs.erase(graph);
  forgotten.reset(graph);
  return 0;
}

// torch_npu makes its external events of these.
aclError aclrtValueWrite(void *place, uint64_t value, uint32_t, aclrtStream stream) {
  const auto write = [=] {
    Guard guard(lock);
    *static_cast<uint64_t *>(place) = value;
    return 0;
  };
  if (auto error = emulator::launch(stream, "a write of a value", write)) return error;
  return emulator::mode_of(stream) == emulator::RUNS ? wake() : 0;
}
aclError aclrtValueWait(void *place, uint64_t value, uint32_t how, aclrtStream stream) {
  if (how > AND) return refuse(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "a wait with another comparison");
  Guard guard(lock);
  const auto *at = static_cast<uint64_t *>(place);
  const auto ready = [=] { return holds(*at, value, how); };
  if (auto *capture = found(captures, stream)) {
    if (capture->graph->open)
      return refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "a wait in a group of tasks");
    add(capture, emulator::canonical(stream), {"a wait", [] {}, ready});
    return 0;
  }
  if (ready()) return 0;
  return refuse(ACL_ERROR_RT_WAIT_TIMEOUT, "a wait outside of a graph, for a value not there");
}
}
