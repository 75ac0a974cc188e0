"""A stock vllm or vllm-ascend over or under ours: refused at start, with the repair."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from balance_tools.paths import Paths
from conftest import HERE, VERSION
from environments import Environment
from stub_wheels import write_stub

ASK = """
import importlib.metadata
points = importlib.metadata.entry_points(group="vllm.platform_plugins")
for found in {each.name: each for each in points}.values():  # as vLLM does
    if found.value.startswith("vllm_balance.start:"):
        assert found.load()() is None
        print("starts")
"""
"""What vLLM does first of all; vLLM itself would want torch."""
ENTRY_POINTS = {
    "vllm": "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n",
    "vllm-ascend": "[vllm.platform_plugins]\nascend = vllm_ascend:register\n",
}

Stock = Callable[..., Path]


@pytest.fixture
def stock(paths: Paths, tmp_path: Path) -> Stock:
    """Makes a small wheel with upstream's own text of the files that we patch."""

    def make(name: str, version: str) -> Path:
        package = name.replace("-", "_")
        patches = "".join(p.read_text() for p in paths.patches(package).glob("*.patch"))
        names = [
            line[len("+++ b/") :] for line in patches.splitlines() if line[:3] == "+++"
        ]
        (pristine,) = paths.pristine.glob(f"{name}-0.23.0{'.post1' * ('-' in name)}")
        names += [f"{package}/__init__.py", f"{package}/envs.py"]
        files = {file: (pristine / file).read_text() for file in names}
        info = f"{package}-{version}.dist-info/entry_points.txt"
        return write_stub(
            tmp_path / version, name, version, files=files | {info: ENTRY_POINTS[name]}
        )

    return make


def starts(environment: Environment) -> bool:
    """Whether vLLM would go on; else it ends without saying so."""
    result = environment.run("python", "-c", ASK, check=False)
    if result.returncode == 0:
        assert result.stdout == "starts\n"
    return result.returncode == 0


def refusal(environment: Environment) -> str:
    result = environment.run("python", "-c", ASK, check=False)
    assert result.returncode == 1, result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def repair(environment: Environment, wheel: Path, line: str) -> None:
    """Run the commands of a refusal, in the folder of the wheel."""
    commands = line.partition("Repair: ")[2].split(" && ")
    assert commands[-1] == f"pip install {wheel.name}"
    for command in commands:
        arguments = command.split()[1:]
        if arguments[0] == "install":
            arguments = ["install", "--no-deps", "--no-compile", str(wheel)]
        environment.pip("--quiet", *arguments)


def assert_refused_and_repaired(
    environment: Environment, wheel: Path, *sentences: str
) -> None:
    line = refusal(environment)
    for sentence in sentences:
        assert sentence in line
    repair(environment, wheel, line)
    assert starts(environment)
    environment.run("vllm-balance", "verify")


def test_stock_vllm_laid_over_ours_and_a_fix_of_a_patched_file(
    bare, reference_wheel, stock
):
    bare.install(reference_wheel)
    assert starts(bare)
    with (bare.packages / "vllm/v1/core/sched/scheduler.py").open("a") as file:
        file.write("# a fix\n")
    assert starts(bare), "it is the operator's business"
    assert bare.run("vllm-balance", "verify", check=False).returncode == 1
    bare.install("--ignore-installed", stock("vllm", "0.24.0"))
    assert_refused_and_repaired(
        bare,
        reference_wheel,
        "found vllm 0.24.0",
        "/vllm/config/parallel.py: expected the patch of balance scheduling in it",
    )


def test_stock_vllm_under_ours(bare, reference_wheel, stock):
    bare.install(stock("vllm", "0.23.0"))
    bare.install("--ignore-installed", reference_wheel)
    assert_refused_and_repaired(
        bare,
        reference_wheel,
        f"expected only vllm {VERSION}.reference, found vllm 0.23.0",
    )


@pytest.mark.parametrize("version", ["0.23.0.post1", "0.24.0"])
def test_stock_plugin(bare, build, stock, version):
    """By plain pip, over and under ours: none is taken for already installed."""
    wheel, other = build(HERE), stock("vllm-ascend", version)
    is_over = version == "0.23.0.post1"
    for path in [wheel, other] if is_over else [other, wheel]:
        bare.install(path)
    assert_refused_and_repaired(bare, wheel, f"found vllm-ascend {version}")


def test_stock_plugin_beside_the_reference_wheel(bare, reference_wheel, stock):
    bare.install(reference_wheel, stock("vllm-ascend", "0.23.0.post1"))
    assert_refused_and_repaired(bare, reference_wheel, "expected no vllm-ascend beside")


def test_the_server_itself_refuses(installed, paths, tmp_path):
    """`vllm serve` with a stock vllm before ours on the path ends in one line."""
    pristine = paths.pristine / "vllm-0.23.0" / "vllm"
    (tmp_path / "vllm").symlink_to(pristine)
    serve = ["-m", "vllm.entrypoints.cli.main", "serve", "nothing"]
    result = subprocess.run(
        [str(installed.python), *serve],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    *_, last = result.stderr.splitlines()
    assert last.startswith(f"error: {tmp_path}/vllm/")
    assert "pip uninstall -y vllm vllm-ascend vllm-balance && pip install" in last
