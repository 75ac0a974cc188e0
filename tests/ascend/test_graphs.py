"""Graphs of the emulated device through torch_npu: recorded, replayed, updated."""

import gc
import json
import weakref

import pytest
import torch
import torch_npu

from conftest import says

MEGABYTE = 1 << 20


@pytest.fixture
def x():
    return torch.ones(4, device="npu")


def captured(run):
    """A graph of what a function launches, and what it returned."""
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        results = run()
    return graph, results


REFUSED = """
import json, torch, torch_npu
torch.npu.empty_cache = lambda: None  # torch_npu believes in a capture that failed
x, side = torch.ones(4, device="npu"), torch.npu.Stream()
event = torch.npu.Event()
event.record()
def fork():
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        x.add_(1)
said = {}
for what, run in {
    "streams of a capture never join it": fork,
    "item() in a capture": x.sum().item,
    "a copy that waits": x.cpu,
    "aclrtSynchronizeDevice in a capture": torch.npu.synchronize,
    "aclrtStreamQuery in a capture": lambda: torch.npu.current_stream().query(),
    "waits for an event from before": event.wait,
}.items():
    said[what] = "nothing"
    try:
        with torch.npu.graph(torch.npu.NPUGraph()):
            run()
    except RuntimeError as error:
        said[what] = str(error)
print("\\n" + json.dumps(said))
"""


def test_what_no_capture_may_do_is_refused():
    found = json.loads(says(REFUSED).stdout.splitlines()[-1])
    assert len(found) == 6
    assert [what for what, said in found.items() if what not in said] == []


def test_copies_from_and_to_the_host(x):
    """From and to pinned memory, which the graph keeps until it ends."""
    given, got = (torch.zeros(4).pin_memory() for _ in range(2))
    kept = weakref.ref(given)

    def run(given=given):
        x.copy_(given, non_blocking=True)
        x.add_(1)
        got.copy_(x, non_blocking=True)

    graph, _ = captured(run)
    given.fill_(2)
    graph.replay()
    torch.npu.synchronize()
    assert got.tolist() == [3] * 4
    del given, run
    gc.collect()
    assert kept() is not None
    del graph
    gc.collect()
    assert kept() is None


def test_memory_of_a_graph_comes_back(x):
    torch.npu.empty_cache()
    before = torch.npu.mem_get_info()
    graph, result = captured(lambda: x.new_ones(16 * MEGABYTE) + 1)
    assert before[0] - torch.npu.mem_get_info()[0] >= 64 * MEGABYTE
    del graph, result
    gc.collect()
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info() == before


class Updatable:
    """A graph with attention that waits until its lengths are new."""

    def __init__(self):
        self.query = torch.randn(1, 1, 4, device="npu")
        self.cache = torch.eye(4, device="npu")[None]
        self.table = torch.zeros(1, 1, dtype=torch.int32, device="npu")
        self.out = torch.zeros(1, 1, 4, device="npu")
        self.sums = torch.zeros(1, device="npu")
        self.event, self.stream = torch.npu.ExternalEvent(), torch.npu.Stream()
        self.graph, self.after = captured(self._run)

    def attend(self, length, kernel, **out):
        return kernel(
            self.query,
            self.cache,
            self.cache,
            block_table=self.table,
            block_size=4,
            input_layout="TND",
            actual_seq_lengths=[1],
            actual_seq_lengths_kv=[length],
            sparse_mode=3,
            **out,
        )

    def attend_into_out(self, length):
        kernel = torch_npu.npu_fused_infer_attention_score.out
        self.attend(length, kernel, out=[self.out, self.sums])

    def expected(self, length):
        return self.attend(length, torch_npu.npu_fused_infer_attention_score)[0].cpu()

    def _run(self):
        stream = torch.npu.current_stream()
        self.event.wait(stream)
        self.event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        self.attend_into_out(1)
        self.group = torch.npu.graph_task_group_end(stream)
        return self.out * 2

    def update(self, run):
        with torch.npu.stream(self.stream):
            torch.npu.graph_task_update_begin(self.stream, self.group)
            run()
            torch.npu.graph_task_update_end(self.stream)
            self.event.record(self.stream)


@pytest.mark.parametrize("first", ["update", "replay"])
def test_a_replay_waits_for_its_update(first):
    one = Updatable()
    for length in (3, 2):
        steps = [
            lambda length=length: one.update(lambda: one.attend_into_out(length)),
            one.graph.replay,
        ]
        for step in steps if first == "update" else reversed(steps):
            step()
        torch.npu.synchronize()
        assert torch.equal(one.out.cpu(), one.expected(length))
        assert torch.equal(one.after.cpu(), 2 * one.expected(length))


def test_what_would_hang_on_a_device_is_refused():
    """Behind a replay whose update does not come; and an update without a launch."""
    one = Updatable()
    one.graph.replay()
    for run in (one.out.cpu, torch.npu.synchronize, lambda: one.out + 1):
        with pytest.raises(RuntimeError, match=r"waits, at step \d of"):
            run()
    with pytest.raises(RuntimeError, match="behind a graph that waits"):
        one.graph.replay()
    with pytest.raises(RuntimeError, match="no update, or one without launches"):
        one.update(lambda: None)
    with torch.npu.stream(one.stream):  # which then gets its launch, and ends
        one.attend_into_out(3)
        torch.npu.graph_task_update_end(one.stream)
        one.event.record(one.stream)
    assert torch.equal(one.out.cpu(), one.expected(3))
