"""What the server does without each package that the wheel requires, or with another.

    .venv/bin/python bench/ascend/missing_packages.py [NAME …] [--out FILE]

Needs what `make test-ascend` has built. Takes each required package out of a copy of
the environment, and puts a version there that the wheel does not allow: the newest
below the least, and the newest above the greatest. Serves a tiny model there each time,
and asks for a completion and for one that must fit a pattern. A server that says that
it is healthy and fails afterwards is what this looks for. Other versions of torch and
its relatives are left out: they are gigabytes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "ascend")]

from packaging.requirements import Requirement
from tqdm import tqdm

from balance_tools.errors import ToolError
from balance_tools.serving import server as server_module
from balance_tools.serving.server import Server
from build import BUILT, copy_environment, remove_tree, site_packages, uv

OWN = {"vllm", "vllm-ascend"}
NO_OTHER_VERSION = {"torch", "torch-npu", "torchaudio", "torchvision", "triton-ascend"}
"""Nor may another package bring one."""
STAND_IN = {"arctic-inference"}
"""Nothing is in it here: packages.toml."""
OPTIONS = (
    *("--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
    *("--gpu-memory-utilization", "0.3", "--max-num-batched-tokens", "256"),
    *("--max-num-seqs", "2", "--distributed-executor-backend", "uni"),
)
PROMPT = [3, 4, 5, 6]
PATTERN = {"structured_outputs": {"regex": "[ab]{8}"}}
LATE = "late"
"""It said that it was healthy, and failed at a request."""
START_S = 400
AT_ONCE = 2
CAUSE = re.compile(r"(?:\w+\.)*(?:\w*(?:Error|Exception|error)): .+")


@dataclass(frozen=True)
class Change:
    """One way in which an environment is not as the wheel requires."""

    package: str
    """Its name."""
    wanted: str
    """What the wheel requires, as its metadata say it."""
    version: str | None = None
    """What uv is to install instead, or None for nothing."""

    def __str__(self) -> str:
        return self.version or f"no {self.package}"


def main() -> int:
    """Make every change, and say what a server does then."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("package", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON")
    options = parser.parse_args()
    every = list(changes(requirements()))
    if not every:
        parser.error(f"{BUILT}: expected a wheel in it, found none; make test-ascend")
    unknown = {*options.package} - {c.package for c in every}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not required by the wheel")
    chosen = [c for c in every if not options.package or c.package in options.package]
    server_module.START_S = START_S
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=BUILT.parent) as folder:
        model = make_model(Path(folder))
        whole = outcome(Path(folder), model, None)
        if whole != "works":
            raise ToolError(f"{BUILT}: expected it to serve as it is, found: {whole}")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            told = pool.map(lambda c: outcome(Path(folder), model, c), chosen)
            for change, says in zip(chosen, tqdm(told, total=len(chosen)), strict=True):
                found[str(change)] = says
                tqdm.write(f"{change} ({change.wanted}): {says}")
                if options.out:
                    options.out.write_text(json.dumps(found, indent=1) + "\n")
    late = [change for change, says in found.items() if says.startswith(LATE)]
    print(f"{len(found)} changes; healthy, and failed afterwards: {late or 'none'}")
    return bool(late)


def requirements() -> list[Requirement]:
    """Of the wheel's two distributions, those that hold here, by name."""
    installed = distributions(path=[str(site_packages(BUILT / "env"))])
    own = [d for d in installed if d.name in OWN]
    found = [Requirement(line) for d in own for line in d.requires or []]
    here = (r for r in found if r.marker is None or r.marker.evaluate({"extra": ""}))
    without = OWN | STAND_IN
    return sorted((r for r in here if r.name not in without), key=lambda r: r.name)


def changes(wanted: Sequence[Requirement]) -> Iterator[Change]:
    """Nothing, less and more of each, without repetition."""
    beyond = {"==": ("<", ">"), ">=": ("<",), "<": (">=",)}
    seen = set()
    for requirement in wanted:
        ways: list[str | None] = [None]
        if requirement.name not in NO_OTHER_VERSION:
            for one in requirement.specifier:
                for sign in beyond.get(one.operator, ()):
                    ways.append(f"{requirement.name}{sign}{one.version}")
        for version in ways:
            says = f"{requirement.name}{requirement.specifier}"
            change = Change(requirement.name, says, version)
            if str(change) not in seen:
                seen.add(str(change))
                yield change


def make_model(folder: Path) -> Path:
    """A tiny mixture of experts, made with the environment as it is."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests/ascend')!r})\n"
        "from pathlib import Path\nfrom tiny import tiny_models\n"
        f"print(tiny_models().make('moe', Path({str(folder)!r})))"
    )
    command = [str(BUILT / "run"), "python", "-c", code]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Path(result.stdout.split()[-1])


def outcome(folder: Path, model: Path, change: Change | None) -> str:
    """What a server does: works (all but patterns), refuses to start, or fails late."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        copy_environment(BUILT, out)
        try:
            if change is not None:
                make(out / "env", change)
        except ToolError:
            return "not tried: the index has no such version, or it does not fit"
        try:
            return served(out, model)
        finally:
            remove_tree(out / "env")


def make(environment: Path, change: Change) -> None:
    """Make the change."""
    if change.version is None:
        uv(environment, "uninstall", change.package)
    else:
        kept = [str(r) for r in requirements() if r.name in NO_OTHER_VERSION]
        binary = ("--only-binary", ":all:")
        uv(environment, "install", "--no-cache", *binary, change.version, *kept)


def served(out: Path, model: Path) -> str:
    """What a server in this environment does."""
    server = Server(
        out,
        model,
        *OPTIONS,
        environment={"EMULATOR_MEMORY": str(1 << 30)},
        python=out / "env/bin/python",
        enter=(str(out / "run"),),
    )
    stage = "refuses"
    try:
        server.start()
        server.wait_until_ready()
        stage = LATE
        server.completion(PROMPT, 8)
        stage = "no patterns"
        server.completion(PROMPT, 8, **PATTERN)
    except Exception as error:
        return f"{_stage(stage, server)}: {_cause(server, error)}"
    finally:
        server.stop()
    return "works"


def _stage(failed: str, server: Server) -> str:
    """What failed; a server that a request for a pattern ended has failed late."""
    if failed == "no patterns":
        try:
            server.completion(PROMPT, 8)
        except Exception:
            return LATE
    return failed


def _cause(server: Server, error: Exception) -> str:
    log = server.log.read_text(errors="replace")
    lines = (line for line in log.splitlines() if "WARNING" not in line)
    causes = CAUSE.findall("\n".join(lines)) or [str(error)]
    return str(causes[0])[:200]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(f"error: {error}")
