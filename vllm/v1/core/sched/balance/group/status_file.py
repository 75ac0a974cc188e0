# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a rank does now, for who looks at a hang from outside: `vllm-balance doctor`.

In a server that hangs nobody may answer. So each rank writes twice per second into a
file in memory, which others find among the open files of the process (`/proc/PID/fd`),
also when the process was stopped, and which goes with it. It has one JSON object:

    {"rank": 1, "size": 4, "wave": 3, "step": 120, "doing": "exchange",
     "since": 5100.25, "seen": 5130.50,
     "others": {"2": [[3, 119], 5100.0], "store": [null, 5129.0]},
     "stack": "wait(group/exchange.py:80) < gather(…)"}

All times are of `time.monotonic`, which is the same in all processes of a machine.
`others` and `stack` say something while what the rank does lasts long. The title of the
process would be in `ps`, too, but in a forked one it cannot always be changed.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import NamedTuple

LONG_S = 2.0
"""What lasts longer may be a hang: then a rank says where it is, and who is not."""

_FRAMES = 8

FILE = "vllm-balance status"


class Status(NamedTuple):
    """What a rank does."""

    doing: str
    """`model` for all between two exchanges, `exchange`, or `idle`."""
    wave: int
    step: int
    """The last one that has ended."""
    since: float
    """Seconds of `time.monotonic` when it began."""

    @property
    def position(self) -> tuple[int, int]:
        """Wave and step."""
        return self.wave, self.step

    def lasts(self) -> float:
        """Seconds for which the rank has done it."""
        return time.monotonic() - self.since

    def is_late(self) -> bool:
        """Whether other ranks may wait for this one: what it does lasts long."""
        return self.doing != "idle" and self.lasts() > LONG_S


def text_of(
    status: Status,
    rank: int,
    size: int,
    others: Mapping[str, tuple[tuple[int, int] | None, float]],
) -> str:
    """The text of the file.

    Args:
        status: what the rank does.
        rank: of the group.
        size: number of the ranks.
        others: ranks that are late, and the store if it does not answer: the wave and
            step where each is, if that is known, and since when.
    """
    stack = main_stack() if status.lasts() > LONG_S else ""
    found = {"rank": rank, "size": size, **status._asdict(), "seen": time.monotonic()}
    return json.dumps({**found, "others": others, "stack": stack})


class StatusFile:
    """The file in memory; nothing is written where the system has none."""

    def __init__(self) -> None:
        self._file: int | None = None
        try:
            self._file = os.memfd_create(FILE)
        except (AttributeError, OSError):  # not Linux, or not allowed
            return

    def write(self, text: str) -> None:
        """Replaces what the file has."""
        if self._file is not None:
            os.ftruncate(self._file, os.pwrite(self._file, text.encode(), 0))


def main_stack() -> str:
    """The innermost functions of the main thread, each with its file and line."""
    main = threading.main_thread().ident or 0
    frame: FrameType | None = sys._current_frames().get(main)
    found: list[str] = []
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        file = "/".join(code.co_filename.split("/")[-2:])
        found.append(f"{code.co_name}({file}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(found)
