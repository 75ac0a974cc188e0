"""The machine that is checked: files below a root, variables, programs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path

from vllm_balance.build_info import BuildInfo
from vllm_balance.doctor.plan import Plan
from vllm_balance.doctor.smi import Smi, ask, fields
from vllm_balance.doctor.versions import RELEASES

SECONDS = 10.0
"""A healthy program of the vendor answers in one or two."""


@dataclass(frozen=True)
class Machine:
    root: Path
    """`/`, or where the files of another machine lie."""
    environ: Mapping[str, str]
    info: BuildInfo | None
    """The wheel that is installed; None for a checkout."""
    plan: Plan

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def glob(self, pattern: str) -> list[str]:
        paths = self.root.glob(pattern.lstrip("/"))
        return sorted(f"/{path.relative_to(self.root)}" for path in paths)

    def fields(self, name: str) -> dict[str, str]:
        """The lines `KEY=VALUE` or `KEY : VALUE` of a file."""
        return fields(self.read(name))

    def run(
        self, *command: str, seconds: float = SECONDS, **variables: str
    ) -> tuple[str, str]:
        """The output of a read-only program, and why it failed (else empty)."""
        try:
            done = subprocess.run(
                command,
                env={**self.environ, **variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
            )
        except FileNotFoundError:
            return "", f"no {command[0]} on PATH"
        except (subprocess.TimeoutExpired, OSError) as error:
            return "", str(error)
        status = f"status {done.returncode}" if done.returncode else ""
        return done.stdout + done.stderr, status

    @property
    def is_for_npus(self) -> bool:
        """Whether the wheel needs NPUs; a checkout is taken for one that does not."""
        return self.info is not None and self.info.target == "ascend"

    def version_for(self, name: str) -> str:
        """The vendor's version that belongs to the wheel; empty if none is known."""
        version = self.info.upstreams.get("vllm", "") if self.info else ""
        return RELEASES.get(".".join(version.split(".")[:2]), {}).get(name, "")

    @cached_property
    def smi(self) -> Smi:
        """What `npu-smi` reports; it is called once."""
        return ask(partial(self.run, "npu-smi"))

    @property
    def visible(self) -> list[int]:
        """Positions in the list of NPUs that ASCEND_RT_VISIBLE_DEVICES leaves.

        By its reference (CANN 8.0 to 9.1), all behind a space or behind a number
        that does not exist is ignored.
        """
        numbers = [str(n) for n in range(len(self.smi.npus))]
        chosen = self.environ.get("ASCEND_RT_VISIBLE_DEVICES", ",".join(numbers))
        return [int(n) for n in takewhile(numbers.__contains__, chosen.split(","))]
