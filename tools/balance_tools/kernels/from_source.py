"""The Ascend kernels from source: the superbuild is run and its outcome is checked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from balance_tools import run
from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.kernels.stage import WITHOUT_AICORE_LIBRARY, stage_of
from balance_tools.kernels.toolchain import Toolchain, find_toolchain
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.upstream.lock import Lock
from balance_tools.upstream.pristine import ensure_pristine
from vllm_balance.cores import usable_cores

COPIED = (".gitmodules", "CMakeLists.txt", "cmake", "csrc")
"""Files of the sdist that upstream's build reads, beside the package's folder."""


def build_kernels(paths: Paths, lock: Lock, choice: Choice) -> None:
    """Compile the kernels of one wheel where the build of the wheel looks for them.

    Nothing is compiled again while the sources, the choice and the toolchain are the
    same; a build that was stopped goes on.
    """
    pristine = ensure_pristine(lock.vllm_ascend, paths)
    stage = stage_of(paths, lock, choice, None)
    assert stage is not None
    toolchain = find_toolchain(choice)
    inputs = {**stage.inputs, "toolchain": toolchain.description}
    if stage.made_from() == inputs:
        return
    work = paths.build / "kernels" / "work" / choice.name
    source = _prepare(pristine, work, inputs)
    run_superbuild(paths.root, work, toolchain, choice.soc)
    _check(source / "vllm_ascend", choice.soc, work)
    stage.clear()
    stage.folder.mkdir(parents=True)
    shutil.move(source / "vllm_ascend", stage.folder / "vllm_ascend")
    stage.finish(toolchain=toolchain.description)
    remove_tree(work)


def run_superbuild(root: Path, work: Path, toolchain: Toolchain, soc: str) -> None:
    source, build, log = work / "source", work / "superbuild", work / "build.log"
    definitions = {
        "KERNELS_SOURCE": source,
        "KERNELS_JOBS": os.environ.get("MAX_JOBS") or usable_cores(),
        "SOC_VERSION": soc,
        **toolchain.definitions,
    }
    arguments = [f"-D{name}={value}" for name, value in definitions.items()]
    commands = (
        ["cmake", "-S", str(root), "-B", str(build), *arguments],
        ["cmake", "--build", str(build)],
    )
    # A stopped build of the operators may have left a package, and upstream's script
    # would install it even if the next build fails.
    for package in source.glob("csrc/build/cann-ops-transformer*.run"):
        package.unlink()
    title = f"compiling the kernels for {soc}, see {log}"
    environment = build_environment(os.environ, work, soc)
    log.unlink(missing_ok=True)
    with progress(title, len(commands), "step") as done:
        for step, command in enumerate(commands, 1):
            if run.to_log(command, log, env=environment) != 0:
                raise ToolError(
                    f"{log}: expected the kernels to compile for {soc}, found that "
                    f"{' '.join(command[:2])} failed: {run.tail_of(log)}; read the log"
                )
            done(step)


def build_environment(
    environment: Mapping[str, str], work: Path, soc: str
) -> dict[str, str]:
    """The environment of upstream's build: that of the caller, with three differences.

    SOC_VERSION is what the plugin's setup.py would be told. Upstream's script adds a
    folder to the caller's git configuration: here to a file that goes away with the
    build. And what VLLM_BATCH_INVARIANT=1 adds, binaries that are downloaded without
    verification and installed into CANN, is not part of the wheel.
    """
    return {
        **environment,
        "SOC_VERSION": soc,
        "GIT_CONFIG_GLOBAL": str(work / "gitconfig"),
        "VLLM_BATCH_INVARIANT": "0",
    }


def _prepare(pristine: Path, work: Path, inputs: Mapping[str, str]) -> Path:
    """A writable copy of the sources, or that of a stopped build of equal inputs."""
    source, stamp = work / "source", work / "inputs.json"
    text = json.dumps(inputs, indent=1) + "\n"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == text:
        return source
    remove_tree(work)
    (source / "vllm_ascend").mkdir(parents=True)
    no_cache = shutil.ignore_patterns("__pycache__")  # of a Python that ran there
    for name in COPIED:
        if (pristine / name).is_dir():
            shutil.copytree(pristine / name, source / name, ignore=no_cache)
        elif (pristine / name).is_file():
            shutil.copy2(pristine / name, source / name)
    stamp.write_text(text, encoding="utf-8")
    return source


def _check(built: Path, soc: str, work: Path) -> None:
    """Refuse a build that did not make all that the plugin loads.

    The script for the operators ends well when it knows none for a chip.
    """
    patterns = ["vllm_ascend_C*.so", "_cann_ops_custom/vendors/*/op_api/lib/*.so"]
    if not soc.startswith(WITHOUT_AICORE_LIBRARY):
        patterns.append("libvllm_ascend_kernels.so")
    for pattern in patterns:
        if not list(built.glob(pattern)):
            raise ToolError(
                f"{built / pattern}: expected the build to make such a file, found "
                f"none, although it reported no error; read {work / 'build.log'}"
            )
