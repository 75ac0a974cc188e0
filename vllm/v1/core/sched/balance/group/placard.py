# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a rank does now, for who looks at a hang from outside: `vllm-balance doctor`.

In a server that hangs nobody may answer. So a thread of each rank writes twice per
second into a file in memory, which others find among the open files of the process
(`/proc/PID/fd`), also when the process was stopped, and which goes with it:

    rank 1 of 4: wave 3, step 120, exchange since 5100.25, seen 5130.50;
    others 2=3/119@5100.00 store@5129.00; at wait(group/exchange.py:80) < gather(…)

All times are of `time.monotonic`, which is the same in all processes of a machine.
`others` and `at` are there while something lasts long. The title of the process would
be in `ps`, too, but in a forked one it cannot always be changed.
"""

import os
import sys
import threading
import time
from functools import cache
from types import FrameType

_PERIOD_S = 0.5
LONG_S = 2.0
"""What lasts longer may be a hang: then a rank says where it is, and who is not."""

_MOST_OTHERS, _FRAMES = 16, 8

FILE = "vllm-balance placard"


class Placard:
    """What one rank does. No step waits for the thread that writes it."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        """No wave has begun.

        Args:
            rank: data parallel rank.
            size: number of the ranks.
        """
        self.join(rank, size)
        self._asked: float | None = None
        self.show("idle", 0, 0)

    def publish(self) -> None:
        """From now on this is what the process shows."""
        _newest[:] = [self]
        _start_writing(os.getpid())

    def show(self, doing: str, wave: int, step: int) -> None:
        """What this rank begins to do.

        Args:
            doing: "model" for all between two exchanges, "exchange", or "idle".
            wave: number of the wave.
            step: number of the last step that has ended.
        """
        self._now = doing, wave, step, time.monotonic()

    def begin(self) -> None:
        """A step begins, if none has: after an exchange it has begun already."""
        doing, wave, step, _ = self._now
        if doing == "idle":
            self.show("model", wave, step)

    @property
    def late(self) -> bool:
        """Whether others may wait for it: what it does lasts long."""
        return self._now[0] != "idle" and self._lasts_long

    @property
    def _lasts_long(self) -> bool:
        return time.monotonic() - self._now[3] > LONG_S

    def join(self, rank: int, size: int) -> None:
        """This process is now that rank in a group of so many."""
        self._rank, self._size = rank, size
        self._heard: dict[int, tuple[str, float]] = {}

    def ask(self) -> None:
        """The store of the group is asked for all heartbeats."""
        self._asked = time.monotonic()

    def hear(self, heartbeats: dict[int, str]) -> None:
        """The store has answered."""
        now, before = time.monotonic(), self._heard
        self._heard = {
            rank: before[rank] if before.get(rank, ("",))[0] == said else (said, now)
            for rank, said in heartbeats.items()
        }
        self._asked = None

    def text(self) -> str:
        """What it says."""
        doing, wave, step, since = self._now
        text = (
            f"rank {self._rank} of {self._size}: wave {wave}, step {step}, "
            f"{doing} since {since:.2f}, seen {time.monotonic():.2f}"
        )
        if not self._lasts_long:
            return text
        others = self._others((wave, step)) if self.late else []
        if self.late and self._asked is not None:
            others.append(f"store@{self._asked:.2f}")
        if others:
            text += f"; others {' '.join(others)}"
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        return f"{text}; at {stack(main)}"

    def _others(self, position: tuple[int, int]) -> list[str]:
        """Ranks that are behind, or whose heartbeat stands still."""
        found = []
        for rank, (said, changed) in self._heard.items():
            words = said.split()
            place = tuple(map(int, words[1:3])) if len(words) > 1 else (-1, -1)
            if place < position or time.monotonic() - changed > 2 * LONG_S:
                where = "/".join(map(str, place)) if len(words) > 1 else said
                found.append((changed, f"{rank}={where}@{changed:.2f}"))
        return [text for _, text in sorted(found)[:_MOST_OTHERS]]


def stack(frame: FrameType | None) -> str:
    """The innermost functions of a stack, each with its file and line."""
    found: list[str] = []
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        file = "/".join(code.co_filename.split("/")[-2:])
        found.append(f"{code.co_name}({file}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(found)


_newest: list[Placard] = []


@cache
def _start_writing(pid: int) -> None:
    """One thread for each process: a fork inherits the cache, but no thread."""
    threading.Thread(target=_write, daemon=True, name=f"placard of {pid}").start()


def _write() -> None:
    try:
        file = os.memfd_create(FILE)
    except (AttributeError, OSError):  # not Linux, or not allowed
        return
    while True:
        text = _newest[0].text().encode()
        os.ftruncate(file, os.pwrite(file, text, 0))
        time.sleep(_PERIOD_S)
