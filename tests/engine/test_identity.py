"""What identifies a group of ranks, and what does not."""

import multiprocessing

import pytest
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.v1.core.sched.balance.group.exchange import RowExchange
from vllm.v1.core.sched.balance.identity import check_same_identity, identity_of
from vllm.v1.core.sched.balance.policies.rows import Row

from schedulers import engine_config
from vllm_server import free_port

POLICIES = (
    {"data_parallel_balance": "cap"},
    {"data_parallel_balance": "adaptive"},
    {"data_parallel_dispatch": "tokens"},
)
ROW = Row(*[1] * len(Row._fields))


def test_no_option_changes_the_key_of_the_compile_cache(moe_model):
    configs = [
        engine_config(moe_model, data_parallel_size=2, **options)
        for options in ({}, *POLICIES)
    ]
    assert len({config.compute_hash() for config in configs}) == 1
    assert len({config.parallel_config.compute_hash() for config in configs}) == 1
    other = engine_config(moe_model, data_parallel_size=2, enable_expert_parallel=True)
    assert other.compute_hash() != configs[0].compute_hash()


def test_a_rank_of_a_stock_vllm_is_refused(moe_model):
    config = engine_config(moe_model, data_parallel_size=2, data_parallel_balance="cap")
    own = {"data_parallel_balance": identity_of(config)}
    check_same_identity(1, own, config.parallel_config)
    with pytest.raises(RuntimeError, match=r"rank 1 .* unknown"):
        check_same_identity(1, {}, config.parallel_config)


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


def test_ranks_compare_themselves_where_no_front_end_does():
    """With Ray, or with one front-end per rank, there is no common handshake."""
    mine = {"policy": "adaptive", "code": "abc", "dispatch": None}
    assert exchange_once([mine, dict(mine)]) == {0: (1, 1), 1: (1, 1)}
    found = exchange_once([mine, mine | {"dispatch": "tokens"}])
    assert found[1].startswith(
        "Data parallel rank 1 was started with --data-parallel-dispatch tokens, rank 0 "
        "with no --data-parallel-dispatch. "
    )
    assert "rank 1 left" in found[0]
