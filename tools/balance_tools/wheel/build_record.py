"""The build record of a wheel: vllm_balance/build.json."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import sha256_of
from balance_tools.fingerprint import LOCK, PACKAGES, lock_sha256, series_sha256
from balance_tools.manifest import files_of_ours, walk
from balance_tools.run import WHEEL_SOURCES, edited, git
from balance_tools.wheel.plan import OURS, WheelPlan
from vllm_balance.build_info import BuildInfo

_PATCHED = re.compile(r"^\+\+\+ b/(\S+)$", re.MULTILINE)


def build_record(plan: WheelPlan, wheel_root: Path) -> str:
    """The text of build.json; the same sources always give the same text.

    `wheel_root` is the unpacked wheel, complete but for this record and compiled files.
    """
    root, kernels = plan.paths.root, plan.kernels
    made_from = (kernels and kernels.made_from()) or {}
    commit, dirty = source_state(root)
    record = BuildInfo(
        wheel=plan.filename,
        distributions=plan.distributions,
        upstreams={entry.name: entry.version for entry in plan.upstreams.values()},
        target=plan.target.name,
        device=kernels.device_type if kernels else None,
        soc=plan.choice.soc or None,
        arch=plan.choice.arch if kernels else None,
        kernels=plan.choice.kernels if kernels else None,
        kernel_wheel=kernels.wheel.filename if kernels and kernels.wheel else None,
        toolchain=made_from.get("toolchain"),
        commit=commit,
        dirty=dirty,
        lock_sha256=lock_sha256(root),
        series_sha256={name: series_sha256(root, name) for name in PACKAGES},
        own_files={n: sha256_of(wheel_root / n) for n in own_files(plan, wheel_root)},
        hooks=hooks(plan, wheel_root),
        lock=(root / LOCK).read_text(encoding="utf-8"),
        advisories={
            judged.advisory.id: {
                "cve": judged.advisory.cve,
                "severity": judged.advisory.severity,
                "status": judged.status.value,
                "detail": judged.detail,
            }
            for judged in plan.judged
        },
        advisories_as_of=plan.advisories.as_of.isoformat(),
    )
    return json.dumps(asdict(record), indent=1) + "\n"


def source_state(root: Path) -> tuple[str | None, bool | None]:
    """The commit, and whether the sources differ from it; None where git cannot say.

    A file that git neither tracks nor ignores is a change. Settings of this machine
    that hide a change from `git status` have no effect here: flags of the index,
    filters, and ignore rules outside the repository.
    """
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None, None
    head = git(root, "rev-parse", "HEAD")
    changes = git(root, "status", "--porcelain", "-unormal")
    rules = "--exclude-per-directory=.gitignore"
    others = git(root, "ls-files", "--others", rules, "--", *WHEEL_SOURCES)
    # A checkout of another user, no commit yet: the commit is a convenience, the hashes
    # in the record are what identifies the sources.
    if head.status or changes.status or others.status:
        return None, None
    is_changed = changes.text.strip() or others.text.strip()
    return head.text.strip(), bool(is_changed or edited(root))


def own_files(plan: WheelPlan, wheel_root: Path) -> list[str]:
    names = [f"{OURS}/{path}" for path in walk(wheel_root / OURS)]
    for package in plan.target.packages:
        paths = files_of_ours(plan.paths.vendored(package))
        names += [f"{package}/{path}" for path in paths]
    return sorted(name for name in names if (wheel_root / name).is_file())


def hooks(plan: WheelPlan, wheel_root: Path) -> dict[str, str]:
    """By each patched file of upstream: the first line that the patches add."""
    lines = {}
    for package in plan.target.packages:
        artifact = plan.lock.packages[package]
        pristine = plan.paths.unpacked(artifact.project, artifact.version)
        for patch in sorted(plan.paths.patches(package).glob("*.patch")):
            for name in _PATCHED.findall(patch.read_text(encoding="utf-8")):
                lines[name] = _first_new_line(wheel_root / name, pristine / name)
    return dict(sorted(lines.items()))


def _first_new_line(patched: Path, upstream: Path) -> str:
    text = upstream.read_text(encoding="utf-8")
    for line in map(str.strip, patched.read_text(encoding="utf-8").splitlines()):
        if line not in text:
            return line
    raise ToolError(
        f"{patched.name}: expected its patch to add a line that upstream lacks, found "
        "none; the server could not tell it from a stock one, so make the hook unlike "
        "upstream's lines"
    )
