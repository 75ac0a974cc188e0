"""What the ranks of a group must have in common, and how a row gets to the others."""

import importlib.util
import multiprocessing
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.v1.core.sched.balance import group as balance_group
from vllm.v1.core.sched.balance.group import (
    WIDTH,
    RowExchange,
    decode,
    difference,
    encode,
    identity_of,
)
from vllm.v1.core.sched.balance.policies.rows import Row

from schedulers import engine_config
from vllm_server import free_port

OPTIONS = (
    {"data_parallel_balance": "cap"},
    {"data_parallel_balance": "adaptive"},
    {"data_parallel_dispatch": "tokens"},
)
POLICY, DISPATCH = "--data-parallel-balance", "--data-parallel-dispatch"
MINE = {POLICY: "adaptive", DISPATCH: "unset", "balance code": "abc"}
ROW = Row(*[1] * len(Row._fields))
ROWS = st.builds(Row, *[st.integers(-(2**63), 2**63 - 1)] * len(Row._fields))


def test_no_option_changes_the_key_of_the_compile_cache(moe_model):
    configs = [
        engine_config(moe_model, data_parallel_size=2, **options)
        for options in ({}, *OPTIONS)
    ]
    assert len({config.compute_hash() for config in configs}) == 1
    assert len({config.parallel_config.compute_hash() for config in configs}) == 1
    other = engine_config(moe_model, data_parallel_size=2, enable_expert_parallel=True)
    assert other.compute_hash() != configs[0].compute_hash()
    off, cap, *_ = [identity_of(config.parallel_config) for config in configs]
    assert off == {POLICY: "off", DISPATCH: "unset", "balance code": "any"}
    assert cap["balance code"] == balance_group.code_version()


def test_an_edit_of_any_file_is_another_version_wherever_they_are(tmp_path):
    folder = Path(balance_group.__file__).parent
    hidden = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(folder, tmp_path / "copy", ignore=hidden)

    def version():
        spec = importlib.util.spec_from_file_location("copied", copy / "group.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.code_version()

    versions = {version()}
    assert versions == {balance_group.code_version()}
    for path in copy.rglob("*.py"):
        with path.open("a") as file:
            file.write("\n")
        assert version() not in versions, path
        versions.add(version())


@pytest.mark.parametrize("what", MINE)
def test_the_sentence_says_what_differs(what):
    sentence = difference(3, MINE | {what: "other"}, 0, MINE)
    assert f"rank 3 has {what} other, rank 0 has {what} {MINE[what]}." in sentence
    assert difference(3, dict(MINE), 0, MINE) is None


def run_rank(rank, port, identity, answers):
    group = stateless_init_torch_distributed_process_group(
        "127.0.0.1", port, rank, 2, "gloo"
    )
    exchange = RowExchange(20.0, identity)
    try:
        answers.put((rank, exchange.gather(ROW, group, print).running))
    except RuntimeError as error:
        answers.put((rank, str(error)))
    exchange.close(None)


def exchange_once(identities):
    """What each rank has got from its first exchange."""
    context = multiprocessing.get_context("fork")
    answers, port = context.Queue(), free_port()
    processes = [
        context.Process(target=run_rank, args=(rank, port, identity, answers))
        for rank, identity in enumerate(identities)
    ]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    return found


def test_ranks_compare_themselves():
    """As they do at the start, and in a new group of elastic expert parallelism."""
    assert exchange_once([MINE, dict(MINE)]) == {0: (1, 1), 1: (1, 1)}
    found = exchange_once([MINE, MINE | {POLICY: "cap"}])
    said = "Data parallel rank {} has --data-parallel-balance {}, rank {} has "
    # Who looks first tells; the other may find that it has left.
    told = [found[0].startswith(said.format(1, "cap", 0))]
    told += [found[1].startswith(said.format(0, "adaptive", 1))]
    assert any(told), found


def test_a_rank_that_says_nothing_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "5")
    found = exchange_once([MINE, None])
    assert found[0].startswith("Data parallel balance: rank 0 has waited 5 s at most")


@settings(deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_rows_arrive(rows):
    assert [Row(*row) for row in decode(map(encode, rows))] == rows


@settings(deadline=None)
@given(ROWS, st.integers(0, WIDTH - 1), st.integers(0, 31))
def test_one_bit_that_changed_on_the_way_is_an_error(row, place, bit):
    """So is a buffer of zeros that nobody wrote to: its checksum is not 0."""
    good, bad = encode(row), encode(row)
    bad[place] ^= 1 << bit
    for damaged in (bad, [0] * WIDTH):
        with pytest.raises(RuntimeError, match="the row of rank 1 arrived damaged"):
            decode([good, damaged])
