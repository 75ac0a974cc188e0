"""A small repository with a lock, two packages and a series, to rebase in tests."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import index_samples
from balance_tools.__main__ import main
from balance_tools.advisories.table import TABLE_NAME
from balance_tools.paths import Paths
from balance_tools.rebase.command import VERBS
from balance_tools.rebase.sources import artifact_of
from balance_tools.series.apply import diff_file, load_series, patched_files
from balance_tools.upstream.lock import Lock, dump_lock
from series_samples import HEADER

Files = dict[str, bytes]

CLOSED, OTHER = "GHSA-2222-3333-4444", "GHSA-2222-3333-5555"
ADVISORIES = f"""\
as-of = 2026-01-02
[[advisory]]
id = "{CLOSED}"
severity = "high 7.5"
affected = "<2.0"
what = "a long list"
workaround = "refuse lists"
[[advisory]]
id = "{OTHER}"
severity = "low"
affected = "<3.0"
what = "a short list"
workaround = "refuse short lists"
""".encode()
"""Two, of which release 2.0 fixes one."""

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
ASCEND: Files = {"vllm_ascend/__init__.py": b"", "vllm_ascend/plugin.py": PLUGIN}

IMPORT = b"from vllm.balance import create_gate\n"
GATE = b"        self.gate = create_gate(config)\n"
EXCHANGE = b"            self.gate.exchange(self.active)\n"
OURS = b"""\
def create_gate(config: object) -> object:
    from vllm.queue import Queue

    return Queue()
"""
RELYING = HEADER.replace("pkg.other:helper", "vllm.queue:Queue").replace(
    "pkg.other:Engine.step", "vllm.engine:Engine.sync | vllm.queue:Queue.peek"
)
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


WITH_DEFER = replaced(PLUGIN, (b"    return", DEFER + b"    return"))
PATCHES = (
    ("vllm/engine.py", "gate.patch", ENGINE, WITH_GATE),
    ("vllm/engine.py", "hold.patch", WITH_GATE, WITH_HOLD),
    ("vllm/engine.py", "exchange.patch", WITH_HOLD, WITH_EXCHANGE),
    ("vllm_ascend/plugin.py", "defer.patch", PLUGIN, WITH_DEFER),
)


def make_root(folder: Path, header: str = RELYING) -> Path:
    """A repository with a lock, its archives in the cache, the series, and our file."""
    paths = Paths(folder / "root")
    made = []
    for name, files in (("vllm", UPSTREAM), ("vllm_ascend", ASCEND)):
        artifact = artifact_of(archive := make_sdist(folder, f"{name}-1.0", files))
        cached = paths.cached(artifact.sha256, artifact.filename)
        cached.parent.mkdir(parents=True)
        archive.rename(cached)
        made.append(artifact)
    paths.lock.write_text(dump_lock(Lock(*made)))
    for path, name, old, new in PATCHES:
        patch = paths.patches(path.split("/")[0]) / name
        patch.parent.mkdir(parents=True, exist_ok=True)
        patch.write_bytes(header.encode() + diff_file(path, old, new))
        with (patch.parent / "series").open("a") as series:
            series.write(f"{name}\n")
    files = {".gitignore": b"/build/\n", "vllm/balance.py": OURS}
    write_tree(paths.root, files | {TABLE_NAME: ADVISORIES})
    return paths.root


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


def sample(folder: Path) -> tuple[Path, Path]:
    tree = write_tree(folder / "tree", UPSTREAM)
    return make_root(folder, HEADER) / "patches" / "vllm", tree


def rebase(root: Path, *arguments: str) -> int:
    verb, *rest = arguments if arguments[0] in VERBS else ("bump", *arguments)
    return main(["rebase", verb, "--root", str(root), *rest])


def report(root: Path, name: str) -> str:
    return (root / "build" / "rebase" / name / "report.md").read_text()


def statuses(root: Path, name: str) -> dict[str, str]:
    """Patch to what the report's first table says of it."""
    row = r"^\| vllm\w* \| (\S+) \| ([\w-]+) \|$"
    return dict(re.findall(row, report(root, name), re.MULTILINE))


def tracked(root: Path) -> Files:
    files = {"upstream.toml": (root / "upstream.toml").read_bytes()}
    for path in sorted((root / "patches").rglob("*")):
        if path.is_file():
            files[path.relative_to(root).as_posix()] = path.read_bytes()
    return files


def patched_engine(series: Path, upstream: Path) -> bytes:
    return patched_files(load_series(series), upstream)["vllm/engine.py"]


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
