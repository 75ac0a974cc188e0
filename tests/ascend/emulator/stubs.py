"""Shared libraries in the place of those that a machine lacks.

Every library that the given ones link, and that nobody has, gets a stand-in of its
name. Functions that are linked are those of our own sources, or abort by name.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM = re.compile(
    r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|libgomp|libutil|libz|"
    r"libresolv|ld-linux.*)\.so"
)
SYSTEM_VERSIONS = ("GLIBC", "GCC", "CXXABI", "GOMP")
WEAK = "wvWV"
DATA = ("_ZTV", "_ZTI", "_ZTS")
"""Virtual tables and descriptions of types: data, of which the address counts."""

ABORTING = """\
#include <stdio.h>
#include <stdlib.h>
static void refuse(const char *name) {
  fprintf(stderr, "[emulator] %s is not emulated\\n", name);
  abort();
}
"""
REGISTERS = "__cuda"
"""What compiled kernels call when their library is loaded: nothing runs them here."""


@dataclass(frozen=True)
class Stubs:
    """What to make stand-ins for, and from what.

    Attributes:
        consumers: the libraries whose links must resolve.
        present: further libraries that are there.
        sources: our own C and C++ sources; their functions win.
        library_sources: sources of one library, for its versioned symbols.
        includes: folders of headers.
        extra: names of libraries that are opened at run time.
        nodes: the library of a version node that is not named after it.
    """

    consumers: Sequence[Path]
    present: Sequence[Path] = ()
    sources: Sequence[Path] = ()
    library_sources: Mapping[str, Path] = field(default_factory=dict)
    includes: Sequence[Path] = ()
    extra: Sequence[str] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)


def make(stubs: Stubs, out: Path, name: str) -> list[str]:
    """Write the libraries into `out`.

    Args:
        stubs: what for.
        out: an empty folder.
        name: of the library that has what belongs to no library in particular.

    Returns:
        The functions that abort.
    """
    needed = dict.fromkeys([*_needed(stubs), *stubs.extra])
    missing = _missing(stubs)
    core = f"lib{name}.so"
    refusing = _emit(out, core, missing.pop("", []), None, stubs.sources, (), stubs)
    for library in needed:
        node = stubs.nodes.get(library, library)
        symbols = missing.pop(node, [])
        source = stubs.library_sources.get(library)
        sources = [source] if source else []
        version = node if symbols else None
        refusing += _emit(out, library, symbols, version, sources, (core,), stubs)
    if missing:
        raise SystemExit(f"error: no library for the symbol versions {sorted(missing)}")
    return sorted(refusing)


def _needed(stubs: Stubs) -> Iterable[str]:
    here = {path.name for path in (*stubs.consumers, *stubs.present)}
    for path in stubs.consumers:
        for found in re.findall(r"NEEDED.*\[(.*)\]", _run("readelf", "-d", str(path))):
            if not SYSTEM.match(found) and found not in here:
                yield found


def _missing(stubs: Stubs) -> dict[str, list[str]]:
    """Undefined symbols that nobody has, by their version ("" for none)."""
    defined = {
        symbol.partition("@")[0]
        for path in (*stubs.consumers, *stubs.present, *_system_libraries())
        for symbol, _ in _symbols(path, "--defined-only")
    }
    found: dict[str, dict[str, None]] = {"": {}}
    for path in stubs.consumers:
        for symbol, kind in _symbols(path, "--undefined-only"):
            base, _, version = symbol.replace("@@", "@").partition("@")
            if kind in WEAK or base in defined or base.startswith(("Py", "_Py")):
                continue
            if not version.startswith(SYSTEM_VERSIONS):
                found.setdefault(version, {})[base] = None
    return {version: list(symbols) for version, symbols in found.items()}


def _system_libraries() -> Iterable[Path]:
    """The C, C++ and compression libraries that this machine's linker finds."""
    for line in _run("/sbin/ldconfig", "-p").splitlines():
        name, _, path = line.strip().partition(" ")
        if SYSTEM.match(name) and path:
            yield Path(path.rpartition("=> ")[2])


def _symbols(path: Path, which: str) -> Iterable[tuple[str, str]]:
    for line in _run("nm", "-D", which, str(path)).splitlines():
        fields = line.split()
        yield fields[-1], fields[-2]


def _emit(
    out: Path,
    library: str,
    symbols: Iterable[str],
    version: str | None,
    sources: Iterable[Path],
    depends: Iterable[str],
    stubs: Stubs,
) -> list[str]:
    """Write one library; returns which of its functions abort."""
    stem = out / re.sub(r"\W", "_", library)
    objects = [_compile(source, stem, stubs.includes) for source in sources]
    own = {
        line.split()[-1]
        for path in objects
        for line in _run("nm", "--defined-only", "-g", str(path)).splitlines()
    }
    refusing, text = [], [ABORTING]
    for symbol in symbols:
        if symbol in own:
            continue
        if symbol.startswith(DATA):
            text.append(f"char {symbol}[512];")
        elif symbol.startswith(REGISTERS):
            text.append(f"long {symbol}(void) {{ return 0; }}")
        else:
            text.append(f'long {symbol}(void) {{ refuse("{symbol}"); return 0; }}')
            refusing.append(symbol)
    source = stem.with_suffix(".c")
    source.write_text("\n".join(text) + "\n")
    command = ["g++", "-w", "-O1", "-fPIC", "-shared", "-x", "c", str(source), "-x"]
    command += ["none", *map(str, objects), "-o", str(out / library)]
    command += [f"-Wl,-soname,{library}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]
    command += [*(str(out / name) for name in depends), "-lpthread", "-ldl", "-lrt"]
    if version:
        script = stem.with_suffix(".map")
        script.write_text(f"{version} {{ global: *; }};\n")
        command.append(f"-Wl,--version-script={script}")
    _run(*command)
    return refusing


def _compile(source: Path, stem: Path, includes: Iterable[Path]) -> Path:
    made = stem.with_name(f"{stem.name}_{source.stem}.o")
    compiler = ["g++", "-std=c++17"] if source.suffix == ".cpp" else ["gcc"]
    folders = [f"-I{folder}" for folder in includes]
    _run(*compiler, "-O1", "-fPIC", *folders, "-c", str(source), "-o", str(made))
    return made


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"error: {' '.join(command[:3])} …: {result.stderr[-3000:]}")
    return result.stdout
