"""Experts and collectives of the reference platform, against their plain statement."""

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_balance.reference.communicator import ReferenceCommunicator
from vllm_balance.reference.moe import expert_loop

WORLD = 3
SIZES = ([2, 3, 1], [0, 4, 1], [0, 0, 2], [1, 1, 1])


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(0, 9),
    top_k=st.integers(1, 3),
    owned=st.integers(1, 5),
    seed=st.integers(0, 2**16),
)
def test_expert_loop_equals_a_dense_sum(
    tokens: int, top_k: int, owned: int, seed: int
) -> None:
    """Five experts, of which this rank owns the first ``owned``."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, 6, generator=draw)
    gate_up = torch.randn(5, 8, 6, generator=draw)
    down = torch.randn(5, 6, 4, generator=draw)
    choice = torch.rand(tokens, 5, generator=draw).argsort(dim=1)[:, :top_k]
    weights = torch.rand(tokens, top_k, generator=draw)
    expected = torch.zeros_like(x)
    for token in range(tokens):
        for weight, expert in zip(weights[token], choice[token], strict=True):
            if expert < owned:
                gate, up = (gate_up[expert] @ x[token]).split(4)
                silu = gate / (1 + (-gate).exp())
                expected[token] += weight * (down[expert] @ (silu * up))
    local = torch.where(choice < owned, choice, -1)
    result = expert_loop(x, gate_up[:owned], down[:owned], weights, local)
    torch.testing.assert_close(result, expected)


def _rank(rank: int, port: int) -> None:
    """Every collective, in a real process group; an assertion ends the process."""
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    group = dist.group.WORLD
    communicator = ReferenceCommunicator(group, device_group=group)
    for sizes in SIZES:
        whole = torch.arange(sum(sizes) * 2.0).view(-1, 2)
        part = whole.split(sizes)[rank]
        gathered, doubled = communicator.all_gatherv([part, 2 * part], sizes=sizes)
        assert torch.equal(gathered, whole)
        assert torch.equal(doubled, 2 * whole)
        mine = whole * (rank + 1)
        before = mine.clone()
        expected = part * sum(range(1, WORLD + 1))
        assert torch.equal(communicator.reduce_scatterv(mine, 0, sizes), expected)
        turned = communicator.reduce_scatterv(mine.t(), -1, sizes)
        assert torch.equal(turned, expected.t())
        assert torch.equal(mine, before), "the argument was changed"
    equal = torch.full((2, 1), float(rank))
    (gathered,) = communicator.all_gatherv([equal])
    assert gathered.flatten().tolist() == [0, 0, 1, 1, 2, 2]
    assert communicator.reduce_scatterv(torch.ones(3, 2), 0).tolist() == [[3, 3]]
    with pytest.raises(ValueError, match=r"rank \d has 2 rows"):
        communicator.all_gatherv(equal, sizes=[1, 1, 1])
    with pytest.raises(ValueError, match="add up to 4"):
        communicator.reduce_scatterv(torch.ones(3, 2), 0, sizes=[1, 1, 2])
    dist.destroy_process_group()


def test_ragged_collectives() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Forked: the import of vllm takes seconds.
    mp.start_processes(_rank, args=(port,), nprocs=WORLD, start_method="fork")
