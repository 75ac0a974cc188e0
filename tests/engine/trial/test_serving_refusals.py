"""Servers refuse what balance scheduling cannot do, with a sentence each."""

import re
from types import SimpleNamespace

import pytest
from vllm.v1.core.sched.balance.rank.start import start_balance_gate
from vllm.v1.core.sched.scheduler import Scheduler

from schedulers import engine_config, make_scheduler
from vllm_server import START_S, ServeProcess, free_port


@pytest.mark.slow
@pytest.mark.ci
def test_ranks_that_would_decide_differently_are_refused_at_the_start(
    moe_model, tmp_path
):
    """Two hosts with the same wheel, but for one line that somebody changed on one."""
    common = ("-dp", "2", "--data-parallel-size-local", "1")
    common += ("--data-parallel-balance", "adaptive")
    common += ("--data-parallel-address", "127.0.0.1")
    common += ("--data-parallel-rpc-port", str(free_port()))
    headless = ("--headless", "--data-parallel-start-rank", "1")
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib\n"
        "read = pathlib.Path.read_bytes\n"
        "pathlib.Path.read_bytes = lambda path: read(path) + (\n"
        "    b'#' if path.match('vllm_balance/core/policies/adaptive.py') else b'')\n"
    )
    changed = {"PYTHONPATH": str(tmp_path)}
    port = ("--port", str(free_port()))
    first = ServeProcess(tmp_path, "first", moe_model, *common, *port, forked=True)
    second = ServeProcess(
        tmp_path, "second", moe_model, *common, *headless, environment=changed
    )
    first.start()
    second.start()
    try:
        first.wait(START_S)
    finally:
        first.kill()
        second.kill()
    log = first.log.read_text() + second.log.read_text()
    assert re.search(r"rank (\d) has [^(]+\(balance code [^)]+\), rank (?!\1)", log)


def test_a_scheduler_that_copies_is_refused_at_the_start(moe_model):
    """What else cannot work is refused in `test_options.py`."""

    class Copying(Scheduler):
        def schedule(self):
            """Asks no gate."""

    config = engine_config(moe_model, data_parallel_size=2, data_parallel_balance="cap")
    core = SimpleNamespace(
        scheduler=make_scheduler(config, Copying), vllm_config=config
    )
    with pytest.raises(ValueError, match=r"Copying has a schedule\(\) of its own"):
        start_balance_gate(core)
