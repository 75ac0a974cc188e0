"""Whether our files and hooks fit a release: what mypy says, and Relies-On lines."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_tools.drift.symbols import Modules
from balance_tools.errors import ToolError
from balance_tools.files import exclusive, remove_tree
from balance_tools.hooks.model import PatchStatus
from balance_tools.manifest import files_of_ours, ignored_in, walk
from balance_tools.paths import Paths
from balance_tools.run import capture
from balance_tools.series.apply import Series, load_series, patched_files
from balance_tools.text import added_lines
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine

VENDORED, WHOLLY_OURS = "vllm", "vllm_balance"
# Upstream's requirements are not installed where the tools are; its own mistakes are
# not ours.
CONFIGURATION = """\
[mypy]
python_version = 3.11
ignore_missing_imports = True
follow_imports = silent
check_untyped_defs = True
namespace_packages = True
explicit_package_bases = True
show_error_codes = True

[mypy-vllm.*]
ignore_missing_imports = False
"""
_CRASHED = 2  # mypy's exit status when it could not check
_LINE = re.compile(r"\bline \d+")


@dataclass(frozen=True, order=True)
class Finding:
    file: str
    """A file of ours or a patched one; "" for a Relies-On line."""
    line: int
    """0 for a Relies-On line."""
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.file else self.text


@dataclass(frozen=True)
class Pin:
    """Our files, and what the type checker finds in them on the release of the pin."""

    paths: Paths
    files: tuple[str, ...]
    mistakes: tuple[Finding, ...]
    uncalled: Mapping[tuple[str, str], range]


def read_pin(paths: Paths) -> Pin:
    files = our_modules(paths.root)
    tree = ensure_pristine(load_lock(paths.lock).vllm, paths)
    series, folder = load_series(paths.patches(VENDORED)), paths.build / "contract/pin"
    with exclusive(folder.parent / ".lock"):
        hooks = lay_out(folder, tree, series, paths.root, files)
        mistakes = type_check(folder, [*files, *hooks])
        return Pin(paths, files, mistakes, uncalled(folder, files, hooks))


def our_modules(root: Path) -> tuple[str, ...]:
    vendored = [f"{VENDORED}/{path}" for path in files_of_ours(root / VENDORED)]
    modules = {*vendored} - ignored_in(root, vendored)
    if not modules:
        raise ToolError(
            f"{root / VENDORED}: expected files of ours to hold against the release, "
            "found none; restore them from git"
        )
    modules |= {f"{WHOLLY_OURS}/{path}" for path in walk(root / WHOLLY_OURS)}
    return tuple(sorted(name for name in modules if name.endswith(".py")))


def findings(pin: Pin, series: Series, tree: Path, folder: Path) -> tuple[Finding, ...]:
    """Return everything of ours that does not fit a release, worst first.

    What only patches call that the bump leaves out need not fit.

    `series` is for `tree`, the release; `folder` is scratch, and replaced.
    """
    hooks = lay_out(folder, tree, series, pin.paths.root, pin.files)
    new, modules = type_check(folder, [*pin.files, *hooks]), Modules(tree)
    vanished = [
        Finding("", 0, f"{patch.name}: Relies-On {' | '.join(symbols)} is gone")
        for patch in series.patches
        for symbols in patch.header.relies_on
        if not any(map(modules.find, symbols))
    ]
    left_out = [
        (file, lines)
        for (file, name), lines in uncalled(folder, pin.files, hooks).items()
        if (file, name) not in pin.uncalled
    ]
    of_ours = (
        error
        for error in new
        if error.file in pin.files or error.line in hooks[error.file]
        if not any(error.file == f and error.line in lines for f, lines in left_out)
    )
    return (*vanished, *_not_on_the_pin(pin, of_ours))


def _not_on_the_pin(pin: Pin, errors: Iterable[Finding]) -> Iterator[Finding]:
    """Leave out findings that the pin has, too, on whatever line.

    What is loose in our own types is `make lint`'s business.
    """

    def without_place(error: Finding) -> tuple[str, str]:
        return error.file, _LINE.sub("line", error.text)

    left_over = Counter(map(without_place, pin.mistakes))
    for error in errors:
        left_over[without_place(error)] -= 1
        if left_over[without_place(error)] < 0:
            yield error


def uncalled(
    folder: Path, files: Sequence[str], hooks: Mapping[str, frozenset[int]]
) -> dict[tuple[str, str], range]:
    """Return the lines of our functions and classes that no hook leads to, by name.

    Files and hooks are as `lay_out` made them. A name counts wherever it is said, so
    that a function of the same name as another's method is taken to be called.
    """
    called: set[str] = set()
    for path, added in hooks.items():
        lines = (folder / path).read_text().splitlines()
        called.update(*(re.findall(r"\w+", lines[number - 1]) for number in added))
    others: dict[tuple[str, str], range] = {}
    names_in: dict[tuple[str, str], set[str]] = {}
    for file in files:
        for node in ast.parse((folder / file).read_bytes()).body:
            named = {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(node)}
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                key, last = (file, node.name), node.end_lineno or node.lineno
                others[key], names_in[key] = range(node.lineno, last + 1), named
            else:
                called |= named
    while new := [key for key in others if key[1] in called]:
        for key in new:
            del others[key]
            called |= names_in[key]
    return others


def status_of(findings: Sequence[Finding]) -> PatchStatus:
    if not findings:
        return PatchStatus.UNTOUCHED
    return PatchStatus.VANISHED if not findings[0].file else PatchStatus.MISFIT


def lay_out(
    folder: Path, tree: Path, series: Series, source: Path, files: Sequence[str]
) -> Mapping[str, frozenset[int]]:
    """Put `tree`, what the series makes of it, and our `files` together in `folder`.

    `folder` is replaced, and `files` are relative to the repository, `source`.

    Returns:
        Each patched file to the lines in it that are ours.
    """
    remove_tree(folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.json")
    shutil.copytree(tree / VENDORED, folder / VENDORED, ignore=ignored)
    hooks = {}
    for path, content in patched_files(series, tree).items():
        (folder / path).write_bytes(content)
        old = (tree / path).read_bytes()
        hooks[path] = added_lines(old.splitlines(), content.splitlines())
    for path in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, folder / path)
    return hooks


def type_check(root: Path, files: Sequence[str]) -> tuple[Finding, ...]:
    with tempfile.TemporaryDirectory() as name:
        configuration = Path(name) / "mypy.ini"
        configuration.write_text(CONFIGURATION)
        command = [sys.executable, "-m", "mypy", "--config-file", str(configuration)]
        command += ["--cache-dir", os.devnull, "--no-error-summary", "--output=json"]
        run = capture([*command, *files], cwd=root)
    reports = [line for line in run.text.splitlines() if line.startswith("{")]
    if run.status >= _CRASHED or (run.status and not reports):
        raise ToolError(
            f"{root}: expected mypy to check our files, found that it "
            f"stopped with {run.status}: {run.tail}; is this tree whole?"
        )
    errors = [e for e in map(json.loads, reports) if e["severity"] == "error"]
    return tuple(sorted(Finding(e["file"], e["line"], e["message"]) for e in errors))
