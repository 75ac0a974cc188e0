"""Real servers refuse what balance scheduling cannot do, with a sentence each."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from balance_tools.serving.server import free_port

REFUSED_S = 150


@contextlib.contextmanager
def serve(
    folder: Path, name: str, *options: str, path: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`vllm serve` that may fail; its log is folder/name.log, and it imports what is in
    the folder `path` first."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *options],
            cwd=folder,
            env={
                **os.environ,
                **({"PYTHONPATH": str(path)} if path else {}),
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_ranks_that_would_decide_differently_are_refused_at_the_handshake(
    moe_model: Path, tmp_path: Path
) -> None:
    """Two hosts, as far as vLLM is concerned, with the same wheel, but for one line
    that somebody changed on one of them. What else differs is in test_identity.py."""
    common = (
        *(str(moe_model), "--data-parallel-size", "2"),
        *("--data-parallel-size-local", "1", "--data-parallel-balance", "adaptive"),
        *("--data-parallel-address", "127.0.0.1"),
        *("--data-parallel-rpc-port", str(free_port())),
    )
    headless = ("--headless", "--data-parallel-start-rank", "1")
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib\n"
        "read = pathlib.Path.read_bytes\n"
        "pathlib.Path.read_bytes = lambda path: read(path) + (\n"
        "    b'#' if path.match('sched/balance/policies/adaptive.py') else b'')\n"
    )
    with (
        serve(tmp_path, "first", *common, "--port", str(free_port())) as host,
        serve(tmp_path, "second", *common, *headless, path=tmp_path),
    ):
        assert host.wait(REFUSED_S) != 0
    log = (tmp_path / "first.log").read_text()
    assert "Data parallel rank 1 has version" in log
    assert "of the balance code, the front-end has " in log


def test_a_scheduler_that_copies_is_refused_at_the_start(
    moe_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else cannot work is refused in `test_gate.py`."""
    (tmp_path / "copying_scheduler.py").write_text(
        "from vllm.v1.core.sched.scheduler import Scheduler\n"
        "class CopyingScheduler(Scheduler):\n"
        "    def schedule(self):\n"
        "        raise AssertionError('never reached')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = ("-dp", "2", "--data-parallel-balance", "cap")
    copying = ("--scheduler-cls", "copying_scheduler.CopyingScheduler")
    with serve(tmp_path, "refused", str(moe_model), *options, *copying) as process:
        assert process.wait(REFUSED_S) != 0
    sentence = "CopyingScheduler has a schedule() of its own"
    assert sentence in (tmp_path / "refused.log").read_text()
