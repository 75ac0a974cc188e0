"""Who is silent, late or gone, by what the store says; and a store that is slow."""

import threading
import time
from types import SimpleNamespace

import torch.distributed as dist
from vllm.v1.core.sched.balance.watch import (
    LEFT,
    PATIENCE,
    Heartbeats,
    RankWatch,
    Status,
)

from vllm_balance.doctor import server

TIMEOUT_S = 6.0


def heartbeats():
    """Those of rank 1 of four, which waits for the others in step 2 of wave 1."""
    return Heartbeats(None, 1, 4, lambda: Status("model", 1, 2, 0.0))


def test_what_a_rank_writes_is_read_by_the_doctor():
    written = Status("exchange", 3, 121, time.monotonic() - 10)
    read = server.Status.read(written.text(1, 4) + "behind it")
    assert read is not None
    assert (read.rank, read.size, read.wave, read.step) == (1, 4, 3, 121)
    assert read.since == written.since
    assert "text(balance/watch.py" in read.stack


def test_a_rank_that_stands_still_in_several_readings_is_silent():
    beats = heartbeats()
    for number in range(PATIENCE + 1):
        assert beats.silent() == []
        beats.hear([f"{number} 1 2", "0 1 2", "9 1 2", LEFT])
    assert beats.silent() == [2]
    assert beats.blame() == "no answer from rank 2 (process ended or stopped)"
    beats.hear(["9 1 2", "0 1 2", "10 1 2", LEFT])
    assert beats.silent() == []


def test_rank_0_is_silent_if_its_store_is():
    beats = heartbeats()
    for _ in range(PATIENCE):
        assert beats.silent() == []
        beats.tick()
    assert beats.silent() == [0]


def test_ranks_that_are_behind_or_left_are_told_apart():
    beats = heartbeats()
    beats.hear(["7 0 5", "9 1 2", LEFT, "8 1 2"])
    assert beats.blame() == "rank 0 not there yet (the process is alive)"
    beats.hear(["7 1 2", "9 1 2", LEFT, "8 1 2"])
    assert beats.blame() == "rank 2 left (its log says why)"


class SlowStore(dist.Store):
    """One whose every call takes that long, one after another, as torch's own."""

    def __init__(self, store):
        super().__init__()
        self.inner, self.delay, self.lock = store, 0.0, threading.Lock()

    def _call(self, name, *arguments):
        with self.lock:
            time.sleep(self.delay)
            return getattr(self.inner, name)(*arguments)

    def set(self, key, value):
        return self._call("set", key, value)

    def check(self, keys):
        return self._call("check", keys)

    def multi_get(self, keys):
        return self._call("multi_get", keys)

    def clone(self):
        return self


def test_a_slow_store_ends_no_rank_that_is_healthy(monkeypatch):
    """Calls take two periods of heartbeats each; the step, two time-outs."""
    ended, found = [], []
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(RankWatch, "_end_process", lambda _, why: ended.append(why))
    monkeypatch.setattr(dist, "PrefixStore", lambda _, store: store)
    stores = [SlowStore(store) for _ in range(3)]
    for rank in range(3):
        group = SimpleNamespace(
            rank=lambda rank=rank: rank,
            size=lambda: 3,
            get_group_store=lambda rank=rank: stores[rank],
        )
        found.append(RankWatch(TIMEOUT_S))
        found[-1].join(group, print)
        found[-1].start()
    time.sleep(0.5)
    for one in stores:
        one.delay = 0.1 * TIMEOUT_S
    for watch in found:
        watch.show("model", 0, 0)
    time.sleep(2 * TIMEOUT_S)
    for watch in found:
        watch.show("idle", 0, 1)
        watch.leave()
    assert ended == []
