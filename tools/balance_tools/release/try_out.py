"""A wheel on a machine with nothing but Python: install, serve, uninstall, look.

"Nothing but Python": the only programs that are found are those of the new environment
and `lscpu`, and home and the folder for temporary files are empty.
"""

from __future__ import annotations

import os
import shutil
import venv
from collections.abc import Mapping
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import named_in_part
from balance_tools.progress import progress
from balance_tools.run import output_of
from balance_tools.serving.server import Server

TOKENS = 8
SERVE = (
    *("--data-parallel-size", "2", "--api-server-count", "1"),
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
    *("--max-model-len", "128", "--data-parallel-balance", "cap"),
)
LIST_OWNED = """
import importlib.metadata, os
for found in importlib.metadata.distributions():
    for file in found.files or ():
        print(os.path.normpath(found.locate_file(file)))
"""
NEEDED = "lscpu"
"""vLLM's CPU worker asks it; it is in util-linux, which no Linux distribution lacks."""


def try_out(wheel: Path, folder: Path, requirements: Path | None = None) -> list[str]:
    """Install the reference wheel in a new environment, serve, uninstall.

    Args:
        wheel: The reference wheel.
        folder: A new one, with a short path: sockets are made below it.
        requirements: A site-packages folder that has pip and all that the wheel
            requires; without one, pip fetches it.

    Returns:
        What vLLM left in home and the folder for temporary files, relative to `folder`.

    Raises:
        ToolError: something does not work, or stays in the environment.
    """
    environment = folder / "env"
    python = environment / "bin" / "python"
    variables = _variables(folder)
    for name in ("home", "tmp", "work", "programs"):
        (folder / name).mkdir(parents=True)
    (folder / "programs" / NEEDED).symlink_to(_program(NEEDED))
    with progress("trying out the reference wheel on its own", 6, "step") as report:
        venv.create(environment, with_pip=requirements is None)
        if requirements is not None:
            _link_packages(requirements, environment)
        before = _files(environment)
        report(1)
        # pip's configuration and cache are in the real home.
        pip = (python, "-m", "pip", "--disable-pip-version-check")
        at_home = {**variables, "HOME": os.environ.get("HOME", "/")}
        _run(at_home, *pip, "install", "--quiet", wheel.resolve())
        report(2)
        _run(variables, environment / "bin" / "vllm-balance", "verify")
        report(3)
        _serve(python, folder / "work", variables)
        report(4)
        _run(variables, *pip, "uninstall", "--quiet", "--yes", "vllm")
        owned = set(_run(variables, python, "-c", LIST_OWNED).splitlines())
        report(5)
        strange = _files(environment) - before - owned
        left = sorted(path for path in strange if not _byte_code(path))
    if left:
        raise ToolError(
            f"{wheel.name}: expected nothing after `pip uninstall vllm`, found "
            f"{named_in_part(left)}; see why RECORD does not list them"
        )
    return sorted(
        Path(path).relative_to(folder).as_posix()
        for name in ("home", "tmp")
        for path in _files(folder / name)
    )


def _serve(python: Path, work: Path, variables: Mapping[str, str]) -> None:
    """Make a tiny model, serve it on two ranks and ask for a few tokens."""
    make_model = ("-m", "vllm_balance.reference.tiny_models", "--model", "moe")
    _run(variables, python, *make_model, "--out", work)
    (model,) = (path for path in work.iterdir() if path.is_dir())
    with Server(work, model, *SERVE, environment=variables, python=python) as server:
        tokens = server.completion([1, 2, 3], TOKENS)
    if len(tokens) != TOKENS:
        raise ToolError(
            f"{server.log}: expected {TOKENS} tokens from the server of the installed "
            f"wheel, found {len(tokens)}; read what it says"
        )


def _variables(folder: Path) -> dict[str, str]:
    home = folder / "home"
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "XDG_"))},
        "HOME": str(home),
        "PATH": f"{folder / 'env' / 'bin'}:{folder / 'programs'}",
        "PYTHONPATH": "",
        "TMPDIR": str(folder / "tmp"),
    }


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ToolError(f"{name}: expected it on PATH, found none; install util-linux")
    return found


def _link_packages(source: Path, environment: Path) -> None:
    """Fill the environment with links to the packages of another, without ours."""
    (target,) = environment.glob("lib/python*/site-packages")
    for entry in source.iterdir():
        if not entry.name.startswith("vllm") and entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)


def _run(variables: Mapping[str, str], *command: object) -> str:
    return output_of(command, env=variables, cwd=Path(variables["HOME"]))


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if not path.is_dir()}


def _byte_code(path: str) -> bool:
    """Whether it is byte code whose source is there: of a package that stays."""
    file = Path(path)
    source = file.parent.parent / f"{file.name.partition('.')[0]}.py"
    return file.parent.name == "__pycache__" and source.is_file()
