"""Builds what `make test-ascend` runs in: the Ascend wheel on an emulated device.

    .venv/bin/python tests/ascend/build.py

Prints the folder. `FOLDER/run COMMAND …` runs a command in it. Downloads are verified
and stay in build/cache; what was built stays while it is made from the same files.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tomlkit

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "tools"), str(HERE), str(ROOT)]

from balance_tools.environment.reference import group_requirements
from balance_tools.errors import ToolError
from balance_tools.files import exclusive, remove_tree, sha256_of
from balance_tools.paths import Paths
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.lock import Artifact
from balance_tools.upstream.pip_config import pip_settings
from emulator import native
from unpack import unpack
from unpatched import make_unpatched

BUILT = ROOT / "build/ascend"
PACKAGES = HERE / "packages.toml"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{PYTHON.replace('.', '')}"
MACHINE = "x86_64"
CONSTRAINTS = HERE / f"constraints-{TAG}.txt"
PROGRAMS = ("gcc", "g++", "nm", "readelf")

UNPATCHED = "unpatched"
"""The folder of the environment without our patches, beside `env`."""

TESTS_NEED = ("pytest-mock", "pytest-xdist")
"""Upstream's tests the first, ours the second: they run on two cores."""

NOT_COMPILED, NOT_COMPILED_VERSION = "arctic-inference", "0.1.1"
"""On the index as source only; minutes of C++, for suffix speculation alone."""


@contextmanager
def step(title: str) -> Iterator[None]:
    """Say on stderr what goes on, and how long it took."""
    print(f"{title} …", file=sys.stderr, flush=True)
    start = time.monotonic()
    yield
    print(f"  {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def main() -> int:
    try:
        check_machine()
        print(build(build_wheel(), BUILT))
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def check_machine() -> None:
    """Raises ToolError with what this machine lacks."""
    tags = list(tomlkit.parse(PACKAGES.read_text()))
    if platform.machine() != MACHINE or TAG not in tags:
        pythons = " or ".join(tag.replace("cp3", "3.") for tag in tags)
        raise ToolError(
            f"{sys.executable}: expected Python {pythons} on {MACHINE}, found "
            f"{PYTHON} on {platform.machine()}; {PACKAGES.name} has packages for no "
            "other. Another Python: make clean, then make PYTHON3=… test-ascend"
        )
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise ToolError(
            f"{', '.join(missing)}: expected a C++ compiler and binutils, found none; "
            "install them (Debian: apt-get install g++ binutils)"
        )


def build_wheel() -> Path:
    """The A2 wheel of this checkout for this machine."""
    command = [sys.executable, "-m", "balance_tools", "wheel", "--target", "ascend"]
    command += ["--python", TAG, "--arch", MACHINE]
    command += ["--kernels", "prebuilt"]
    result = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT / "tools"), **_environ()}, stdout=-1
    )
    if result.returncode:
        raise ToolError("the A2 wheel: expected it to be built; read the line above")
    return Path(result.stdout.decode().split()[1])


def build(wheel: Path, out: Path) -> Path:
    """Make or update the environments, with and without our patches, and the emulator.

    Returns `out`; raises ToolError if a download, pip or the compiler failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out / ".lock"):
        files = _fetch(Paths.find())
        environment = out / "env"
        base_from = [*(a.sha256 for a, _, _ in files.values()), str(out)]
        base_from += [sha256_of(CONSTRAINTS), *_tests_need()]
        if not _is_current(out / "base.stamp", base_from):
            remove_tree(environment)
            (out / "wheel.stamp").unlink(missing_ok=True)
            _make_environment(environment, wheel, files)
            _mark(out / "base.stamp", base_from)
        if not _is_current(out / "wheel.stamp", [sha256_of(wheel)]):
            with step(f"installing {wheel.name}"):
                install_wheel(environment, wheel)
            with step("copying that, with upstream's own vllm and vllm_ascend"):
                where = site_packages(environment).relative_to(environment)
                make_unpatched(environment, str(where), out / UNPATCHED)
            _mark(out / "wheel.stamp", [sha256_of(wheel)])
        packages = site_packages(environment)
        linked = sorted((packages / "vllm_ascend").glob("*.so"))
        compiled_from = [*base_from, *map(sha256_of, linked), *native.sources()]
        if not _is_current(out / "native.stamp", compiled_from):
            with step("compiling the emulated device (a minute)"):
                remove_tree(out / "native")
                native.build(packages, out / "native")
            _mark(out / "native.stamp", compiled_from)
        native.write_run(out, environment, out / "native")
    return out


def site_packages(environment: Path) -> Path:
    return environment / "lib" / f"python{PYTHON}" / "site-packages"


Files = dict[str, tuple[Artifact, Path, str | None]]


def _fetch(paths: Paths) -> Files:
    found: Files = {}
    for name, table in tomlkit.parse(PACKAGES.read_text()).unwrap()[TAG].items():
        stands_in_for = table.pop("stands-in-for", None)
        artifact = Artifact(**table)
        found[name] = (artifact, fetch(artifact, paths), stands_in_for)
    return found


def _make_environment(environment: Path, wheel: Path, files: Files) -> None:
    venv.create(environment, with_pip=False)
    packages = site_packages(environment)
    for name, (artifact, path, version) in files.items():
        what = f" as {version}" if version else ""
        with step(f"unpacking {artifact.filename}{what}"):
            unpack(path, packages, version, drop=_is_of_cuda)
        if name == "triton-ascend":
            triton = (path, version)
    _stand_in(packages, NOT_COMPILED, NOT_COMPILED_VERSION)
    with step(f"installing what {wheel.name} requires (a minute)"):
        _install(environment, str(wheel), *_tests_need())
    with step("putting triton-ascend back, which triton has overwritten (install.md)"):
        uv(environment, "uninstall", "triton", "triton-ascend")
        shutil.rmtree(packages / "triton", ignore_errors=True)
        unpack(triton[0], packages, triton[1], drop=_is_of_cuda)


def install_wheel(environment: Path, wheel: Path) -> None:
    """Put a wheel in the place of the one that is installed; nothing else changes."""
    arguments = ("--no-cache", "--no-deps", "--reinstall", str(wheel))
    uv(environment, "install", *arguments)


def _install(environment: Path, *arguments: str) -> None:
    uv(environment, "install", "--constraint", str(CONSTRAINTS), *arguments)


def _is_of_cuda(requirement: str) -> bool:
    return requirement.startswith(("nvidia", "cuda", "triton"))


def _tests_need() -> list[str]:
    return [
        *group_requirements(ROOT / "pyproject.toml", "engine"),
        *TESTS_NEED,
    ]


def _stand_in(packages: Path, name: str, version: str) -> None:
    folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Summary: A stand-in without contents, of make test-ascend.\n"
    )
    (folder / "RECORD").write_text("")


def uv(environment: Path, *arguments: str) -> None:
    """Run `uv pip ARGUMENTS` on an environment, with the index that pip would take."""
    python = environment / "bin/python"
    command = [str(Path(sys.executable).with_name("uv")), "pip", *arguments]
    command += ["--python", str(python)]
    indexes = [s.location for s in pip_settings().sources if s.setting == "index-url"]
    variables = {"UV_DEFAULT_INDEX": indexes[0]} if indexes else {}
    result = subprocess.run(
        command, env={**variables, **_environ()}, capture_output=True, text=True
    )
    if result.returncode:
        raise ToolError(
            f"{python}: expected uv to {' '.join(arguments)}, "
            f"found that it failed:\n{result.stderr[-3000:]}"
        )


def _is_current(stamp: Path, made_from: Iterable[str]) -> bool:
    if stamp.is_file() and stamp.read_text() == _digest(made_from):
        return True
    stamp.unlink(missing_ok=True)
    return False


def _mark(stamp: Path, made_from: Iterable[str]) -> None:
    stamp.write_text(_digest(made_from))


def _digest(made_from: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(made_from).encode()).hexdigest()


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


if __name__ == "__main__":
    sys.exit(main())
