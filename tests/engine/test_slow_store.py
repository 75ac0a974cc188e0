"""The store of the heartbeats may be slow."""

import threading
import time
from types import SimpleNamespace

import torch.distributed as dist
from vllm.v1.core.sched.balance.group.rank_watch import RankWatch

TIMEOUT_S = 6.0


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
