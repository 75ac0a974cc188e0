"""A small repository with a lock, two packages and a series, to rebase in tests."""

import ast
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import index_samples
from balance_tools.__main__ import main
from balance_tools.paths import Paths
from balance_tools.rebase.command import VERBS
from balance_tools.rebase.sources import artifact_of
from balance_tools.series.apply import load_series
from balance_tools.upstream.lock import Lock, dump_lock
from series_samples import apply_series, make_patch, pristine

Files = dict[str, bytes]

ENGINE = b'''\
"""Sample engine."""

from vllm.interface import Base
from vllm.queue import Queue


class Engine(Base):
    """One rank."""

    def __init__(self, config):
        self.limit = config.limit
        self.running = []
        self.waiting = Queue()

    def loop(self):
        while self.handle_shutdown():
            executed = self.step()
            if not executed:
                continue

            # 3) All-reduce.
            self.active = self.sync(
                executed,
            )

            if not self.active:
                self.wave += 1

        raise SystemExit

    def schedule(self, budget):
        scheduled = []
        while self.waiting and budget > 0:
            if len(self.running) == self.limit:
                break

            request = self.waiting.peek()
            if request.blocked:
                self.waiting.pop()
                continue

            # Admit it.
            self.running.append(request)
            scheduled.append(request)
            budget -= request.tokens
        return scheduled

    def sync(self, executed):
        return executed

    def drain(self):
        for request in self.running:
            request.abort()
        self.running.clear()
'''
SYNC = (
    b"            self.active = self.sync(\n                executed,\n            )\n"
)
SYNC_AND_WAVE = SYNC + (
    b"\n            if not self.active:\n                self.wave += 1\n"
)
QUEUE = b"class Queue(list):\n    def peek(self):\n        return self[0]\n"
PLUGIN = b'def enabled(config):\n    """Whether it is on."""\n    return config.on\n'

UPSTREAM: Files = {
    "vllm/__init__.py": b"",
    "vllm/engine.py": ENGINE,
    "vllm/queue.py": QUEUE,
}
ASCEND: Files = {
    "vllm_ascend/__init__.py": b"",
    "vllm_ascend/plugin.py": PLUGIN,
}

IMPORT = b"from vllm.balance import create_gate\n"
GATE = b"        self.gate = create_gate(config)\n"
EXCHANGE = b"            self.gate.exchange(self.active)\n"
HOLD = b"            if self.gate.holds(request):\n                break\n\n"
DEFER = b'    if hasattr(config, "balance"):\n        return False\n'


def replaced(source: bytes, *changes: tuple[bytes, bytes]) -> bytes:
    for old, new in changes:
        assert source.count(old) == 1, (source.count(old), old)
        source = source.replace(old, new)
    return source


WITH_GATE = replaced(
    ENGINE,
    (b"from vllm.interface", IMPORT + b"from vllm.interface"),
    (b"        self.waiting = Q", GATE + b"        self.waiting = Q"),
)
WITH_HOLD = replaced(
    WITH_GATE, (b"            # Admit it.\n", HOLD + b"            # Admit it.\n")
)
WITH_EXCHANGE = replaced(WITH_HOLD, (SYNC, SYNC + EXCHANGE))


@cache
def _made_once() -> tempfile.TemporaryDirectory[str]:
    """Make the repository once for a test run, with real quilt."""
    directory = tempfile.TemporaryDirectory()
    root = Path(directory.name)
    paths = Paths(root)
    archives = {}
    for name, files in (("vllm", UPSTREAM), ("vllm_ascend", ASCEND)):
        archives[name] = archive = make_sdist(root, f"{name}-1.0", files)
        artifact = artifact_of(archive)
        cached = paths.cached(artifact.sha256, artifact.filename)
        cached.parent.mkdir(parents=True)
        archive.rename(cached)
        archives[name] = cached
    lock = Lock(artifact_of(archives["vllm"]), artifact_of(archives["vllm_ascend"]))
    paths.lock.write_text(dump_lock(lock))
    tree = write_tree(root / "tree", {**UPSTREAM, **ASCEND})
    patches = paths.patches("vllm")
    make_patch(patches, tree, "gate.patch", {"vllm/engine.py": WITH_GATE})
    make_patch(patches, tree, "hold.patch", {"vllm/engine.py": WITH_HOLD})
    make_patch(patches, tree, "exchange.patch", {"vllm/engine.py": WITH_EXCHANGE})
    pristine(tree, patches)
    plugin = replaced(PLUGIN, (b"    return", DEFER + b"    return"))
    ascend = paths.patches("vllm_ascend")
    make_patch(ascend, tree, "defer.patch", {"vllm_ascend/plugin.py": plugin})
    shutil.rmtree(root / "tree")
    return directory


def make_sdist(folder: Path, name: str, files: Mapping[str, bytes]) -> Path:
    archive = folder / f"{name}.tar.gz"
    archive.write_bytes(index_samples.make_sdist(name, files))
    return archive


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def edit(patch: Path, old: str, new: str) -> None:
    text = patch.read_text()
    assert old in text
    patch.write_text(text.replace(old, new))


def make_root(folder: Path) -> Path:
    root = folder / "root"
    shutil.copytree(_made_once().name, root)
    return root


def sample(folder: Path) -> tuple[Path, Path]:
    """Return (patches, pristine tree) of one package."""
    tree = write_tree(folder / "tree", UPSTREAM)
    return make_root(folder) / "patches" / "vllm", tree


def rebase(root: Path, *arguments: str) -> int:
    """Run tools/rebase.sh in this process; returns its exit code."""
    verb, *rest = arguments if arguments[0] in VERBS else ("bump", *arguments)
    return main(["rebase", verb, "--root", str(root), *rest])


def report(root: Path, name: str) -> str:
    return (root / "build" / "rebase" / name / "report.md").read_text()


def statuses(root: Path, name: str) -> dict[str, str]:
    """Patch to what the report's first table says of it."""
    row = r"^\| vllm\w* \| (\S+) \| ([\w-]+) \|$"
    return dict(re.findall(row, report(root, name), re.MULTILINE))


def tracked(root: Path) -> Files:
    """Everything that a rebase may change in the end."""
    files = {"upstream.toml": (root / "upstream.toml").read_bytes()}
    for path in sorted((root / "patches").rglob("*")):
        if path.is_file():
            files[path.relative_to(root).as_posix()] = path.read_bytes()
    return files


def patched_engine(series: Path, upstream: Path) -> bytes:
    copy = upstream.with_name(upstream.name + ".patched")
    shutil.copytree(upstream, copy, symlinks=True)
    apply_series(load_series(series), copy)
    return (copy / "vllm/engine.py").read_bytes()


HOOKS_STAND = {
    "module": r"^from vllm\.balance import create_gate$",
    "__init__": r"^    self\.gate = create_gate\(config\)$",
    "loop": r"^        self\.active = self\.sync\(.*\)\n"
    r"        self\.gate\.exchange\(self\.active\)$",
    "schedule": r"^        request = self\.waiting\.peek\(\)\n(?:        .*\n)*"
    r"        if self\.gate\.holds\(request\):\n            break\n"
    r"(?:        .*\n)*        self\.running\.append\(request\)$",
}


def misplaced(source: bytes) -> list[str]:
    """Which of the four hooks are misplaced, by code that shares nothing with ours."""
    tree = ast.parse(source)
    (engine,) = [n for n in tree.body if getattr(n, "name", "") == "Engine"]
    assert isinstance(engine, ast.ClassDef)
    texts = {getattr(n, "name", ""): ast.unparse(n) for n in engine.body}
    texts["module"] = whole = ast.unparse(tree)
    words = ("import create_gate", "= create_gate(", "gate.exchange(", "gate.holds(")
    found = [word for word in words if whole.count(word) != 1]
    return found + [
        where
        for where, pattern in HOOKS_STAND.items()
        if not re.search(pattern, texts[where], re.MULTILINE)
    ]
