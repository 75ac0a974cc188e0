"""Who is silent, late or gone, by what the store says; and a store that is slow."""

import time

from vllm.v1.core.sched.balance.rank.watch import (
    LONG_SILENCE,
    PATIENCE,
    Heartbeats,
    RankStatus,
)

from vllm_balance.doctor import server


def heartbeats():
    """Those of rank 1 of four, which waits for the others in step 2 of wave 1."""
    return Heartbeats(None, 1, 4, lambda: RankStatus("model", 1, 2, 0.0))


def test_what_a_rank_writes_is_read_by_the_doctor():
    written = RankStatus("exchange", 3, 121, time.monotonic() - 10)
    read = server.Status.read(written.text(1, 4) + "behind it")
    assert read is not None
    assert (read.rank, read.size, read.wave, read.step) == (1, 4, 3, 121)
    assert read.since == written.since
    assert "text(rank/watch.py" in read.stack


def test_a_rank_that_stands_still_in_several_readings_is_silent():
    beats = heartbeats()
    for number in range(PATIENCE + 1):
        assert beats.silent() == []
        beats.hear([f"{number} 1 2", "0 1 2", "9 1 2", f"{number} 1 3"])
    assert beats.silent() == [2]
    assert beats.blame() == "no answer from rank 2 (process ended or stopped)"
    beats.hear(["9 1 2", "0 1 2", "10 1 2", "9 1 3"])
    assert beats.silent() == []


def test_rank_0_is_silent_if_its_store_is():
    beats = heartbeats()
    for _ in range(PATIENCE):
        assert beats.silent() == []
        beats.tick()
    assert beats.silent() == [0]


def test_ranks_that_live_but_are_behind_are_named():
    beats = heartbeats()
    beats.hear(["7 0 5", "9 1 2", "3 1 1", "8 1 2"])
    assert beats.blame() == "ranks 0, 2 not there yet (the process is alive)"
    beats.hear(["8 1 2", "9 1 2", "4 1 2", "9 1 3"])
    assert beats.blame() == "all other ranks answer"


class SlowStore:
    """Each call takes three periods of the watch; the other ranks are healthy."""

    def __init__(self, readings):
        self.left, self.found = readings, []
        self.beats = Heartbeats(self, 1, 3, lambda: RankStatus("model", 0, 0, 0.0))

    def wait(self):
        for _ in range(3):
            self.beats.tick()
            self.found.append(self.beats.silent(LONG_SILENCE))

    def set(self, key, said):
        self.wait()

    def check(self, keys):
        self.wait()
        return True

    def multi_get(self, keys):
        self.wait()
        self.left -= 1
        if not self.left:
            self.beats.end()
        return [b"%d 0 0" % self.left] * len(keys)


def test_a_slow_store_makes_no_healthy_rank_silent():
    """For as long as the watch waits before it ends a process."""
    store = SlowStore(readings=20)
    store.beats._talk(0.0)
    assert store.found == [[]] * 9 * 20
