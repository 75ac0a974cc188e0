"""What a wheel says about its own making: vllm_balance/build.json."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

from balance_tools.wheel_plan import WheelPlan
from vllm_balance.build_info import BuildInfo
from vllm_balance.fingerprint import LOCK, PACKAGES, lock_sha256, series_sha256


def build_record(plan: WheelPlan) -> str:
    """The text of build.json; the same sources always give the same text."""
    root = plan.paths.root
    kernels = plan.kernels
    made_from = (kernels and kernels.made_from()) or {}
    commit, dirty = commit_of(root)
    record = BuildInfo(
        wheel=plan.filename,
        distributions=plan.distributions,
        upstreams={entry.name: entry.version for entry in plan.upstreams.values()},
        target=plan.target.name,
        device=kernels.device_type if kernels else None,
        soc=plan.choice.soc or None,
        arch=plan.choice.arch if kernels else None,
        kernels=plan.choice.kernels if kernels else None,
        kernel_wheel=plan.kernel_wheel.filename if plan.kernel_wheel else None,
        toolchain=made_from.get("toolchain"),
        commit=commit,
        dirty=dirty,
        lock_sha256=lock_sha256(root),
        series_sha256={name: series_sha256(root, name) for name in PACKAGES},
        lock=(root / LOCK).read_text(encoding="utf-8"),
    )
    return json.dumps(asdict(record), indent=1) + "\n"


def commit_of(root: Path) -> tuple[str | None, bool | None]:
    """The commit of a checkout and whether it has changes; (None, None) outside git.

    A file that git neither tracks nor ignores is a change: it may be in the wheel.
    """
    if not (root / ".git").exists():
        return None, None
    try:
        head = _git(root, "rev-parse", "HEAD").strip()
        changes = _git(root, "status", "--porcelain", "--untracked-files=normal")
    except (OSError, subprocess.CalledProcessError):
        # No git here, a checkout of another user, no commit yet: the commit is a
        # convenience, the hashes of lock and series are what identifies the sources.
        return None, None
    return head, bool(changes.strip())


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
