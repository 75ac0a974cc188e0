"""What the ranks of a group must have in common, and how a row gets to the others."""

import importlib.util
import multiprocessing
import shutil
from pathlib import Path

import pytest
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.v1.core.sched.balance.rank import group as balance_group
from vllm.v1.core.sched.balance.rank.group import RowExchange, identity_of

from schedulers import engine_config, rank_config
from vllm_balance.code_hash import CORE
from vllm_balance.core.policies.rows import Limits
from vllm_server import free_port

OPTIONS = (
    {"data_parallel_balance": "cap"},
    {"data_parallel_balance": "adaptive"},
    {"data_parallel_balance": "adaptive", "data_parallel_balance_ttft_ms": 2000},
    {"data_parallel_dispatch": "tokens"},
)


def test_no_option_changes_the_key_of_the_compile_cache(moe_model):
    configs = [
        engine_config(moe_model, data_parallel_size=2, **options)
        for options in ({}, *OPTIONS)
    ]
    assert len({config.compute_hash() for config in configs}) == 1
    assert len({config.parallel_config.compute_hash() for config in configs}) == 1
    other = engine_config(moe_model, data_parallel_size=2, enable_expert_parallel=True)
    assert other.compute_hash() != configs[0].compute_hash()
    version = f"(balance code {balance_group.code_version()}, "
    version += "steps in flight 2, rows sent after a step)"
    assert [identity_of(config) for config in configs] == [
        "--data-parallel-balance off",
        f"--data-parallel-balance cap {version}",
        f"--data-parallel-balance adaptive {version}",
        "--data-parallel-balance adaptive --data-parallel-balance-ttft-ms 2000 "
        + version,
        "--data-parallel-balance off --data-parallel-dispatch tokens",
    ]


@pytest.mark.parametrize(
    "difference",
    [
        {"async_scheduling": True},  # then two steps are in flight
        {"data_parallel_size_local": 1},  # then rows are sent before their step
        {"data_parallel_dispatch": "tokens"},
        {"data_parallel_balance_tpot_ms": 80},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_ranks_that_would_exchange_or_decide_differently_are_not_alike(
    moe_model, difference
):
    common = {"policy": "adaptive", "async_scheduling": False}
    one, other = (
        identity_of(rank_config(moe_model, **common | more))
        for more in ({}, difference)
    )
    assert one != other


def test_an_edit_of_what_decides_is_another_version_wherever_the_files_are(tmp_path):
    """Not one of what a front-end does, nor of an option's text: they may differ."""
    copy, hidden = tmp_path / "copy", shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(balance_group.__file__).parents[1], copy, ignore=hidden)
    shutil.copytree(CORE, copy / "core", ignore=hidden)

    def version():
        spec = importlib.util.spec_from_file_location("copied", copy / "rank/group.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.CORE = copy / "core"
        return module.code_version()

    versions, rooms = {version()}, set()
    assert versions == {balance_group.code_version()}
    for path in copy.rglob("*.py"):
        with path.open("a") as file:
            file.write("\n")
        room = path.relative_to(copy).parts[0]
        assert (version() in versions) is (room not in ("core", "rank")), path
        versions.add(version())
        rooms.add(room)
    assert rooms == {"__init__.py", "core", "front", "options.py", "rank"}


def join(rank, port, answers):
    """Rank 0 says what it is, and rank 1 nothing."""
    group = stateless_init_torch_distributed_process_group(
        "127.0.0.1", port, rank, 2, "gloo"
    )
    if rank == 0:
        try:
            RowExchange(20.0, "one").join(group, Limits(8, 64), print)
        except RuntimeError as error:
            answers.put(str(error))


def test_a_rank_that_says_nothing_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "5")
    context, port = multiprocessing.get_context("fork"), free_port()
    answers = context.Queue()
    ranks = [context.Process(target=join, args=(n, port, answers)) for n in (0, 1)]
    for rank in ranks:
        rank.start()
    said = answers.get(timeout=60)
    assert said.startswith("Data parallel balance: rank 0 has waited 5 s at most")
    for rank in ranks:
        rank.join()
