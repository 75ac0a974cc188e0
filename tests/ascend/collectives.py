"""One rank of a group on the emulated device; says what HCCL does otherwise than gloo.

Arguments: rank, ranks, a file for the group's store. Prints JSON.
"""

import json
import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
LARGE = (5 << 20) // 4 + 3
"""More float32 elements than the emulator moves at once, and no round number."""


def main(rank: int, ranks: int, store: str) -> None:
    import torch_npu  # noqa: F401

    torch.npu.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,npu:hccl", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    every = [*collectives(rank, ranks), *letters(rank, ranks), *groups(rank)]
    every += replays(rank, ranks)
    print(json.dumps([name for name, same in every if not same]), flush=True)
    os._exit(0)


def data(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, of which every sum and product is exact."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randint(-2, 3, (count,), generator=draw).to(dtype)


def collectives(rank: int, ranks: int) -> Iterator[tuple[str, bool]]:
    """Those that the plugin uses.

    Not all_gather to a list of tensors that are no multiple of 32 bytes: torch_npu pads
    these with an operator of CANN's compiler, which the emulator refuses by name.
    """

    def same(name, run, mine):
        found = [run(mine.clone().to(device)).cpu() for device in ("cpu", "npu")]
        return f"{name} {mine.dtype} {len(mine)}", torch.equal(*found)

    def reduce(t, operation=dist.ReduceOp.SUM):
        dist.all_reduce(t, operation)
        return t

    def broadcast(t):
        dist.broadcast(t, src=1)
        return t

    def gather(t):
        out = t.new_empty(ranks * len(t))
        dist.all_gather_into_tensor(out, t)
        return out

    def gather_list(t):
        out = [torch.empty_like(t) for _ in range(ranks)]
        dist.all_gather(out, t)
        return torch.cat(out)

    def scatter(t):
        out = t.new_empty(len(t) // ranks)
        if t.device.type == "npu":
            dist.reduce_scatter_tensor(out, t)
            return out
        return reduce(t).chunk(ranks)[rank]  # gloo has none

    def exchange(t, sent=None, come=None):
        out = t.new_empty(sum(come) if come else len(t))
        dist.all_to_all_single(out, t, come, sent)
        return out

    for dtype in DTYPES:
        for count in (1, 7, 4096):
            mine = data(rank, count, dtype)
            for name in ("SUM", "MAX", "MIN", "PRODUCT"):
                operation = getattr(dist.ReduceOp, name)
                yield same(name, lambda t, o=operation: reduce(t, o), mine)
            yield same("gather", gather, mine)
            yield same("broadcast", broadcast, mine)
        yield same("gather a list", gather_list, mine)
    for run in (gather, broadcast):
        yield same("large", run, data(rank, LARGE))
    for run in (scatter, exchange):
        yield same(run.__name__, run, data(rank, 6 * ranks))
    for least in (0, 1):  # rank 0 gets nothing, or all get something
        sent = [(least + rank + to) % 3 if to or least else 0 for to in range(ranks)]
        come = [(least + at + rank) % 3 if rank or least else 0 for at in range(ranks)]
        uneven = data(rank, sum(sent))
        yield same("uneven", lambda t, s=sent, c=come: exchange(t, s, c), uneven)


def letters(rank: int, ranks: int) -> Iterator[tuple[str, bool]]:
    """Send and receive, one by one and as a ring in both directions at once."""
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for count in (1, 1000, LARGE):
        mine = data(rank, count).to("npu")
        one, other = torch.empty_like(mine), torch.empty_like(mine)
        if rank % 2 == 0:
            dist.send(mine, right)
        else:
            dist.recv(one, left)
            yield f"receive {count}", torch.equal(one.cpu(), data(left, count))
        operations = [
            dist.P2POp(dist.isend, mine, right),
            dist.P2POp(dist.isend, mine + 1, left),
            dist.P2POp(dist.irecv, one, left),
            dist.P2POp(dist.irecv, other, right),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        torch.npu.synchronize()
        yield f"ring {count}", torch.equal(one.cpu(), data(left, count))
        yield f"ring {count}", torch.equal(other.cpu(), data(right, count) + 1)


def replays(rank: int, ranks: int) -> Iterator[tuple[str, bool]]:
    """In a graph, which nobody waits for while it is captured."""
    place = torch.zeros(6 * ranks, device="npu")

    def run(t):
        """Uneven parts to all, then back; lists of sizes that are gone in a replay."""
        sent = [2 * (rank + to) % 12 for to in range(ranks)]
        come = [2 * (at + rank) % 12 for at in range(ranks)]
        parts = t.repeat(2)[: sum(sent)]
        moved, back = t.new_empty(sum(come)), t.new_empty(sum(sent))
        dist.all_to_all_single(moved, parts, come, sent)
        dist.all_to_all_single(back, moved, sent, come)
        every = t.new_empty(ranks * len(t))
        dist.all_gather_into_tensor(every, t)
        dist.broadcast(every, src=0)
        dist.all_reduce(every)
        return moved, back, every

    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        results = run(place)
    for number in range(2):
        mine = data(rank + 10 * number, len(place))
        place.copy_(mine)
        graph.replay()
        torch.npu.synchronize()
        for found, expected in zip(results, run(mine), strict=True):
            yield f"replay {number}", torch.equal(found.cpu(), expected)


def groups(rank: int) -> Iterator[tuple[str, bool]]:
    """Two groups at a time, of which the ranks are not 0, 1, …; then that of all again,
    which has made its connection before."""
    pairs = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    for name, group in (("pair", pairs[rank in (1, 2)]), ("all", None)):
        t = torch.full((5,), float(rank), device="npu")
        dist.all_reduce(t, group=group)
        yield name, t.tolist() == [3.0 if group else 6.0] * 5


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
