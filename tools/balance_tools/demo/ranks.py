"""Real ranks on the cores of this machine: a model, and a trial.

The demo and ``bench/real.py`` measure with them. Nothing is emulated: a prompt takes
time on a core, and the other ranks wait for it.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from balance_tools.errors import ToolError
from balance_tools.run import tail_of, to_log
from vllm_balance.cores import usable_cores

CLIENTS, SLOTS, STEP_TOKENS = 8, 8, 1024
"""For each rank: clients, slots, and tokens of a step."""
FEWEST, MOST = 2, 4


def rank_count() -> int:
    """The number of ranks: one for each core, from FEWEST to MOST."""
    return min(MOST, max(FEWEST, usable_cores()))


def _cpu() -> dict[str, str]:
    """The entries of /proc/cpuinfo for the first core; empty without Linux."""
    if not (info := Path("/proc/cpuinfo")).exists():
        return {}
    first, *_ = info.read_text(errors="replace").partition("\n\n")
    parts = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in parts}


def machine() -> str:
    """The name of this machine: the number of its cores, and their type.

    With family and model, because a virtual machine may hide the name of its cores.
    """
    cpu = _cpu()
    name = cpu.get("model name") or platform.processor() or "unknown"
    if "cpu family" in cpu:
        name += f" (family {cpu['cpu family']}, model {cpu['model']})"
    return f"{usable_cores()} cores of {name}, {platform.machine()}"


LAYERS, DENSE = 4, 2
"""Layers of the served model, and how many of them have no experts.

Few and wide ones, because launching a layer's operators takes time in each step, which
it does not on a device with graphs.
"""


def hidden_size() -> int:
    """The hidden size of the served model: with 768 a prompt needs half of the work.

    A core without AVX-512 multiplies half as fast.
    """
    return 1024 if "avx512f" in _cpu().get("flags", "").split() else 768


def drawn(
    prompts: int, clients: int, tokens: int, answer: int, spread: float
) -> tuple[str, ...]:
    """Options of `vllm bench serve` for requests of drawn lengths, in a closed loop.

    Args:
        prompts: the number of requests.
        clients: requests in flight.
        tokens: mean tokens of a prompt.
        answer: mean tokens of an answer.
        spread: lengths are uniform, from 1 - spread to 1 + spread of the mean.
    """
    return (
        "--dataset-name",
        "random",
        "--random-input-len",
        str(tokens),
        "--random-output-len",
        str(answer),
        "--random-range-ratio",
        str(spread),
        "--num-prompts",
        str(prompts),
        "--max-concurrency",
        str(clients),
        "--temperature",
        "0",
    )


@dataclass(frozen=True)
class Served:
    """How the ranks of a server are set up."""

    ranks: int
    asynchronous: bool = True
    api_servers: int = 1
    options: tuple[str, ...] = ()
    """Further options of `vllm serve`."""

    @property
    def shared(self) -> tuple[str, ...]:
        """The options that server and simulator take."""
        return (
            "--data-parallel-size",
            str(self.ranks),
            "--max-num-seqs",
            str(SLOTS),
            "--max-num-batched-tokens",
            str(STEP_TOKENS),
            "--api-server-count",
            str(self.api_servers),
            "--async-scheduling" if self.asynchronous else "--no-async-scheduling",
        )

    @property
    def binding(self) -> str:
        """The cores of the ranks in vLLM's syntax; without it ranks could share one."""
        cores = sorted(os.sched_getaffinity(0))[: self.ranks]
        return "|".join(map(str, cores)) if len(cores) == self.ranks else "nobind"


def make_model(python: Path, folder: Path, dense_layers: int = DENSE) -> Path:
    """A mixture of experts with random weights that takes time on a core.

    Args:
        python: of an environment with the reference wheel.
        folder: gets the model.
        dense_layers: how many of its layers have no experts.

    Raises:
        ToolError: it could not be made.
    """
    model, log = folder / "large", folder.with_suffix(".log")
    if model.exists():
        return model
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ("-m", "vllm_balance.reference.tiny_models", "--model", "large")
    # Not from a checkout, whose vllm would be imported.
    command = [python, *arguments, "--out", folder.resolve()]
    command += ["--hidden", str(hidden_size()), "--layers", str(LAYERS)]
    command += ["--dense-layers", str(dense_layers)]
    if to_log(command, log, cwd=folder.parent) != 0:
        raise ToolError(f"{log}: expected a model, found {tail_of(log)}; read the log")
    return model


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_trial(
    python: Path,
    folder: Path,
    model: Path,
    load: Sequence[str],
    served: Served,
    policies: Sequence[str],
    minutes: float,
    options: Sequence[str] = (),
    is_shown: bool = True,
) -> None:
    """Run `vllm-balance trial`, with its server on a free port.

    Args:
        python: of an environment with the reference wheel.
        folder: gets the report.
        model: the folder of the model.
        load: options of `vllm bench serve`.
        served: the setup of the server.
        policies: names of the policies.
        minutes: the longest duration.
        options: further options of the trial.
        is_shown: whether its output goes to the terminal, else to the log.

    Raises:
        ToolError: the trial failed.
    """
    limits = ("--result-dir", str(folder.resolve()), "--minutes", f"{minutes:g}")
    command = [
        "trial",
        *limits,
        *options,
        "--policy",
        *policies,
        *load,
        "--",
        "vllm",
        "serve",
        str(model.resolve()),
        "--host",
        "127.0.0.1",
        "--port",
        str(free_port()),
        *served.shared,
        *served.options,
    ]
    run_command(python, folder, command, is_shown, served.binding)


def run_command(
    python: Path,
    folder: Path,
    arguments: Sequence[str],
    is_shown: bool,
    binding: str = "nobind",
) -> None:
    """Run `vllm-balance …`."""
    log = folder.with_suffix(".log")
    programs = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    quiet |= {"PATH": programs, "VLLM_LOGGING_LEVEL": "ERROR"}
    quiet |= {"VLLM_CPU_OMP_THREADS_BIND": binding}
    # Libraries that the client loads write pages at its end.
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [str(python.parent / "vllm-balance"), *arguments],
            cwd=folder.parent,
            env={**os.environ, **quiet},
            stdout=None if is_shown else errors,
            stderr=errors,
        )
        try:
            status = process.wait()
        finally:  # also after Ctrl-C or a signal: the trial then stops its server
            process.terminate()
            process.wait()
    if status:
        raise ToolError(
            f"{log}: expected the {arguments[0]} to end well, found exit status "
            f"{status}: {tail_of(log)}; if the machine was busy, run this again when "
            "it is not"
        )


def report_of(folder: Path) -> dict[str, Any]:
    """The report of a trial."""
    text = (folder / "report" / "report.json").read_text(encoding="utf-8")
    report: dict[str, Any] = json.loads(text)
    return report


def load_average() -> float:
    """The processes that ran, or were ready to, in the last minute on average."""
    return os.getloadavg()[0]
