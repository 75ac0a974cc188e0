"""A wheel on a machine with nothing but Python: install, serve, uninstall, look.

"Nothing but Python": the only programs that are found are those of the new environment
and `lscpu`, and home and the folder for temporary files are empty.
"""

import os
import shutil
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path

from vllm_server import Server

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


def try_out(wheel: Path, folder: Path, packages: Path) -> list[str]:
    """Install the reference wheel in a new environment, serve, uninstall.

    `folder` is new and has a short path, for sockets are made below it; `packages` is a
    site-packages folder with pip and all that the wheel requires. Returns what vLLM
    left in home and the folder for temporary files, relative to `folder`.
    """
    environment = folder / "env"
    python = environment / "bin" / "python"
    variables = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "XDG_"))},
        "HOME": str(folder / "home"),
        "PATH": f"{environment / 'bin'}:{folder / 'programs'}",
        "PYTHONPATH": "",
        "TMPDIR": str(folder / "tmp"),
    }
    for name in ("home", "tmp", "work", "programs"):
        (folder / name).mkdir(parents=True)
    (folder / "programs" / NEEDED).symlink_to(str(shutil.which(NEEDED)))
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python*/site-packages")
    for entry in packages.iterdir():
        if not entry.name.startswith("vllm") and entry.name != "__pycache__":
            (site / entry.name).symlink_to(entry)
    before = files(environment)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(variables, *pip, "install", "--no-index", wheel.resolve())
    run(variables, environment / "bin" / "vllm-balance", "verify")
    serve(python, folder / "work", variables)
    run(variables, *pip, "uninstall", "--yes", "vllm")
    owned = set(run(variables, python, "-c", LIST_OWNED).splitlines())
    left = files(environment) - before - owned
    assert [path for path in left if not byte_code(path)] == []
    return sorted(
        Path(path).relative_to(folder).as_posix()
        for name in ("home", "tmp")
        for path in files(folder / name)
    )


def serve(python: Path, work: Path, variables: Mapping[str, str]) -> None:
    """Make a tiny model, serve it on two ranks and ask for a few tokens."""
    make_model = ("-m", "vllm_balance.reference.tiny_models", "--model", "moe")
    run(variables, python, *make_model, "--out", work)
    (model,) = (path for path in work.iterdir() if path.is_dir())
    with Server(work, model, *SERVE, environment=variables, python=python) as server:
        assert len(server.completion([1, 2, 3], TOKENS)) == TOKENS


def run(variables: Mapping[str, str], *command: object) -> str:
    home = variables["HOME"]
    done = subprocess.run(
        command, env=variables, cwd=home, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if not path.is_dir()}


def byte_code(path: str) -> bool:
    """Whether it is byte code whose source is there: of a package that stays."""
    file = Path(path)
    source = file.parent.parent / f"{file.name.partition('.')[0]}.py"
    return file.parent.name == "__pycache__" and source.is_file()
