"""Build the rebased tree and run its tests: ours, and upstream's for what we touch."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from balance_tools.distribution import Choice
from balance_tools.env import make_env
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.rebase.checkout import make_checkout
from balance_tools.rebase.hub import write_hub
from balance_tools.rebase.session import Session, Work
from balance_tools.rebase.upstream_tests import (
    FAILED,
    OFF,
    ON,
    PASSED,
    PLAIN,
    Setup,
    newly_failing,
    run_tests,
    select,
)
from balance_tools.series import load_series
from balance_tools.wheel import build_wheel

# What the conftest of upstream's tests imports.
TEST_REQUIREMENTS = ("tblib", "pytest-asyncio")
NO_CONSTRAINTS = "# Another release than the pin: the resolver decides.\n"


def verify(
    paths: Paths, work: Work, session: Session, base: Path | None, engine: list[str]
) -> str:
    """Verify the series in `work.final`; returns the part of the report.

    Args:
        paths: The repository.
        work: The rebase.
        session: Its journal.
        base: Interpreter of an environment that has the requirements of the new
            release already; None installs them.
        engine: Arguments for pytest on our engine tests; empty leaves them out.

    Raises:
        ToolError: a test that passes without the patches fails with them, or one of
            our engine tests fails.
    """
    folder = work.path / "verify"
    plan = next(p for p in session.plans if p.package == "vllm")
    series = work.final / "vllm"
    envs: dict[str, Path] = {}
    roots: dict[str, Paths] = {}
    for name, used in ((OFF, series), (PLAIN, None)):
        short = "patched" if used else "plain"
        patches: dict[str, Path | None] = {"vllm": used, "vllm_ascend": None}
        root = make_checkout(paths, folder / short, session.lock, patches)
        (root.root / "tests" / "constraints.txt").write_text(NO_CONSTRAINTS)
        wheel = build_wheel(root, Choice(), root.dist)
        envs[name] = _environment(root, wheel, base)
        roots[name] = root
    write_hub(folder / "hub")
    touched = load_series(series).paths
    files = select(Path(plan.new_tree), touched)
    setups = [
        Setup(PLAIN, envs[PLAIN]),
        Setup(OFF, envs[OFF]),
        Setup(ON, envs[OFF], ("switch_balance_on",)),
    ]
    results = run_tests(Path(plan.new_tree), files, setups, folder, folder / "hub")
    lines = [
        "",
        f"## Upstream's own tests of the touched modules, {plan.new_label}",
        "",
    ]
    lines += ["| setup | passed | failed | test files |", "|---|---|---|---|"]
    for setup in setups:
        found = list(results[setup.name].values())
        counts = f"{found.count(PASSED)} | {found.count(FAILED)}"
        lines.append(f"| {setup.name} | {counts} | {len(files)} |")
    failing = newly_failing(results)
    lines += ["", f"Newly failing: {len(failing)}.", *(f"- {one}" for one in failing)]
    (folder / "upstream.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if failing:
        raise ToolError(
            f"{folder / 'upstream.md'}: expected no newly failing test, found "
            f"{len(failing)}, first {failing[0]}; correct the patch or our files, then "
            "run tools/rebase.sh --continue --verify"
        )
    if engine:
        lines += ["", _engine_tests(roots[OFF], envs[OFF], engine, folder)]
    return "\n".join(lines) + "\n"


def _environment(root: Paths, wheel: Path, base: Path | None) -> Path:
    """Return the interpreter of an environment with the wheel in it."""
    if base is None:
        python = make_env(root, wheel) / "bin" / "python"
        _install(python, *TEST_REQUIREMENTS)
        return python
    folder = root.env / "layered"
    remove_tree(folder)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    said = subprocess.run(
        [str(base), "-c", "import site; print('\\n'.join(site.getsitepackages()))"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    (site,) = folder.glob("lib/python*/site-packages")
    lines = "".join(f"import site; site.addsitedir({d!r})\n" for d in said.split())
    (site / "base.pth").write_text(lines)
    _install(python, "--no-deps", str(wheel))
    _install(python, *TEST_REQUIREMENTS)
    return python


def _install(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    if subprocess.run(command, stdout=sys.stderr).returncode:
        raise ToolError(
            f"{python}: pip could not install {arguments[-1]}; read what it wrote above"
        )


def _engine_tests(root: Paths, python: Path, arguments: list[str], folder: Path) -> str:
    log = folder / "engine.log"
    with log.open("w") as output:
        code = subprocess.run(
            [str(python), "-m", "pytest", *arguments],
            cwd=root.root,
            env={**os.environ, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    summary = last[0].strip("= ") if last else "no output"
    if code:
        raise ToolError(
            f"{log}: expected the engine tests to pass, found {summary}; correct the "
            "patch or our files, then run tools/rebase.sh --continue --verify"
        )
    return f"Our engine tests on the rebased wheel: {summary}."
