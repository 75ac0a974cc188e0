"""The store of the heartbeats may be slow, and the ranks may be many."""

import threading
import time
from collections import Counter
from datetime import timedelta

import pytest
import torch.distributed as dist
from vllm.v1.core.sched.balance.group import liveness
from vllm.v1.core.sched.balance.group.liveness import RankWatch, read_heartbeats

TIMEOUT_S = 4.0


def open_store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class SlowStore(dist.Store):
    """A store whose every call takes that long, once it is slow. It has one thread, as
    that of torch: calls wait for each other."""

    def __init__(self, store, lock=None):
        super().__init__()
        self.inner, self.delay = store, 0.0
        self.lock = lock or threading.Lock()
        self.calls = Counter()

    def _call(self, name, *arguments):
        self.calls[name] += 1
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


class Group:
    """As much of a process group as the watch asks for."""

    def __init__(self, rank, size, store):
        self.place = rank, size
        self.store = store

    def rank(self):
        return self.place[0]

    def size(self):
        return self.place[1]

    def get_group_store(self):
        return self.store


@pytest.fixture
def ended(monkeypatch):
    """Ranks that a watch wanted to end, by the reason."""
    found = []
    monkeypatch.setattr(
        RankWatch, "_end_process", lambda watch, reason: found.append(reason)
    )
    return found


def watches(monkeypatch, size, stores):
    monkeypatch.setattr(dist, "PrefixStore", lambda _, store: store)
    return [
        RankWatch(Group(rank, size, stores[rank]), TIMEOUT_S, print)
        for rank in range(size)
    ]


def test_a_slow_store_ends_no_rank_that_is_healthy(monkeypatch, ended):
    """Every call takes twice the period of the heartbeats; the step, three times the
    time-out."""
    store = open_store()
    stores = [SlowStore(store) for _ in range(3)]
    found = watches(monkeypatch, 3, stores)
    time.sleep(0.5)
    for one in stores:
        one.delay = 0.1 * TIMEOUT_S
    for watch in found:
        watch.begin_step()
    time.sleep(3 * TIMEOUT_S)
    for watch in found:
        watch.end_step(0, 1)
        watch.close()
    assert ended == []


@pytest.mark.parametrize("size", [2, 1024])
def test_all_heartbeats_are_read_in_two_calls(size):
    store = SlowStore(open_store())
    store.inner.multi_set(
        [f"{rank}" for rank in range(size)], [f"{rank} 0 7" for rank in range(size)]
    )
    found = read_heartbeats(store, size)
    assert found == {rank: f"{rank} 0 7" for rank in range(size)}
    assert store.calls == {"check": 1, "multi_get": 1}


def test_ranks_that_have_not_come_yet_are_no_reason_to_wait():
    store = open_store()
    store.set_timeout(timedelta(seconds=5))
    assert read_heartbeats(store, 3) == {}
    store.set("1", "4 0 7")
    assert read_heartbeats(store, 3) == {1: "4 0 7"}
    assert liveness.read_heartbeats(store, 1) == {}
