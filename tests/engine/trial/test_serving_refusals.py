"""Real servers refuse what balance scheduling cannot do, with a sentence each."""

import re
from contextlib import ExitStack

from vllm_server import START_S, ServeProcess, free_port


def refusal(*hosts):
    """The log of the first of these hosts, which ends by itself."""
    with ExitStack() as stack:
        for host in hosts:
            host.start()
            stack.callback(host.kill)
        hosts[0].wait(START_S)
    return hosts[0].log.read_text()


def test_ranks_that_would_decide_differently_are_refused_at_the_start(
    moe_model, tmp_path
):
    """Two hosts with the same wheel, but for one line that somebody changed on one."""
    common = (
        "--data-parallel-size",
        "2",
        "--data-parallel-balance",
        "adaptive",
        "--data-parallel-size-local",
        "1",
        "--data-parallel-address",
        "127.0.0.1",
        "--data-parallel-rpc-port",
        str(free_port()),
    )
    headless = ("--headless", "--data-parallel-start-rank", "1")
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib\n"
        "read = pathlib.Path.read_bytes\n"
        "pathlib.Path.read_bytes = lambda path: read(path) + (\n"
        "    b'#' if path.match('vllm_balance/core/policies/adaptive.py') else b'')\n"
    )
    changed = {"PYTHONPATH": str(tmp_path)}
    port = ("--port", str(free_port()))
    second = ServeProcess(
        tmp_path, "second", moe_model, *common, *headless, environment=changed
    )
    log = refusal(ServeProcess(tmp_path, "first", moe_model, *common, *port), second)
    log += second.log.read_text()
    assert re.search(r"rank (\d) has [^(]+\(balance code [^)]+\), rank (?!\1)", log)


def test_a_scheduler_that_copies_is_refused_at_the_start(moe_model, tmp_path):
    """What else cannot work is refused in `test_options.py`."""
    (tmp_path / "copying_scheduler.py").write_text(
        "from vllm.v1.core.sched.scheduler import Scheduler\n"
        "class CopyingScheduler(Scheduler):\n"
        "    def schedule(self):\n"
        "        raise AssertionError('never reached')\n"
    )
    options = ("-dp", "2", "--data-parallel-balance", "cap")
    copying = ("--scheduler-cls", "copying_scheduler.CopyingScheduler")
    server = ServeProcess(
        tmp_path,
        "refused",
        moe_model,
        *options,
        *copying,
        environment={"PYTHONPATH": str(tmp_path)},
    )
    assert "CopyingScheduler has a schedule() of its own" in refusal(server)
