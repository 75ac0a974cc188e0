"""One rank of a group on the emulated device; the ranks compare HCCL with gloo.

Arguments: case, rank, ranks, a file for the group's store. Prints JSON.
"""

import json
import os
import signal
import sys

import torch
import torch.distributed as dist

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
LARGE = (5 << 20) // 4 + 3
"""More float32 elements than the emulator moves at once, and no round number."""


def main(case: str, rank: int, ranks: int, store: str) -> None:
    import torch_npu  # noqa: F401

    torch.npu.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,npu:hccl", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    print(json.dumps(CASES[case](rank, ranks)), flush=True)
    os._exit(0)  # groups of dead peers cannot be left


def data(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small integers, of which every sum and product is exact."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randint(-2, 3, (count,), generator=draw).to(dtype)


def compare(what: str, run, *inputs: torch.Tensor) -> list[str]:
    """Run on the CPU with gloo and on the device with HCCL; differences as text."""
    results = []
    for device in ("cpu", "npu"):
        results.append([t.cpu() for t in run(*(t.clone().to(device) for t in inputs))])
    return [
        f"{what}: {a.flatten()[:8].tolist()} expected, {b.flatten()[:8].tolist()} found"
        for a, b in zip(*results, strict=True)
        if not torch.equal(a, b)
    ]


def equal(rank: int, ranks: int, group=None) -> dict[str, object]:
    """Every collective that the plugin uses.

    Not all_gather to a list of tensors that are no multiple of 32 bytes: torch_npu pads
    these with an operator of CANN's compiler, which the emulator refuses by name.
    """
    checked, wrong = 0, []

    def check(what, run, *inputs):
        nonlocal checked
        checked += 1
        wrong.extend(compare(what, run, *inputs))

    operations = {"SUM": 0, "MAX": 0, "MIN": 0, "PRODUCT": 0}
    for dtype in DTYPES:
        for count in (1, 7, 4096):
            mine = data(rank, count, dtype)
            for name in operations:
                op = getattr(dist.ReduceOp, name)

                def reduce(t, op=op):
                    dist.all_reduce(t, op, group=group)
                    return [t]

                check(f"all_reduce {name} {dtype}", reduce, mine)
            check(f"all_gather {dtype}", lambda t: gather(t, ranks, group), mine)
            if count % 32 == 0:
                check("to a list", lambda t: gather_list(t, ranks, group), mine)
            check(f"broadcast {dtype}", lambda t: broadcast(t, group), mine)
    large = data(rank, LARGE, torch.float32)
    check("all_gather large", lambda t: gather(t, ranks, group), large)
    check("broadcast large", lambda t: broadcast(t, group), large)
    parts = data(rank, 6 * ranks, torch.float32)
    check("reduce_scatter", lambda t: reduce_scatter(t, ranks, group), parts)
    check("all_to_all", lambda t: exchange(t, None, None, group), parts)
    out = [1 + (rank + to) % 3 for to in range(ranks)]
    come = [1 + (source + rank) % 3 for source in range(ranks)]
    uneven = data(rank, sum(out), torch.float32)
    check("all_to_all uneven", lambda t: exchange(t, out, come, group), uneven)
    none = [0 if to == 0 else 3 for to in range(ranks)]
    from_all = [0 if rank == 0 else 3 for _ in range(ranks)]
    check(
        "all_to_all with nothing for rank 0",
        lambda t: exchange(t, none, from_all, group),
        data(rank, sum(none), torch.float32),
    )
    dist.barrier(group=group)
    return {"checked": checked, "wrong": wrong}


def gather(t, ranks, group):
    out = torch.empty(ranks * t.numel(), dtype=t.dtype, device=t.device)
    dist.all_gather_into_tensor(out, t, group=group)
    return [out]


def gather_list(t, ranks, group):
    out = [torch.empty_like(t) for _ in range(ranks)]
    dist.all_gather(out, t, group=group)
    return out


def broadcast(t, group):
    dist.broadcast(t, src=1, group=group)
    return [t]


def reduce_scatter(t, ranks, group):
    out = torch.empty(t.numel() // ranks, dtype=t.dtype, device=t.device)
    if t.device.type == "cpu":  # gloo has none: by definition
        total = t.clone()
        dist.all_reduce(total, group=group)
        out.copy_(total.chunk(ranks)[dist.get_rank(group)])
    else:
        dist.reduce_scatter_tensor(out, t, group=group)
    return [out]


def exchange(t, out_splits, in_splits, group):
    size = sum(in_splits) if in_splits is not None else t.numel()
    out = torch.empty(size, dtype=t.dtype, device=t.device)
    dist.all_to_all_single(out, t, in_splits, out_splits, group=group)
    return [out]


def letters(rank: int, ranks: int) -> dict[str, object]:
    """Send and receive, one by one and as a ring in both directions at once."""
    checked, wrong = 0, []
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for count in (1, 1000, LARGE):
        mine = data(rank, count, torch.float32)
        got = torch.empty_like(mine, device="npu")
        if rank % 2 == 0:
            dist.send(mine.to("npu"), right)
        else:
            dist.recv(got, left)
            same = torch.equal(got.cpu(), data(left, count, mine.dtype))
            checked, wrong = checked + 1, wrong + [f"receive {count}"] * (not same)
        buffers = [torch.empty_like(mine, device="npu") for _ in range(2)]
        operations = [
            dist.P2POp(dist.isend, mine.to("npu"), right),
            dist.P2POp(dist.isend, (mine + 1).to("npu"), left),
            dist.P2POp(dist.irecv, buffers[0], left),
            dist.P2POp(dist.irecv, buffers[1], right),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        torch.npu.synchronize()
        expected = data(left, count, mine.dtype), data(right, count, mine.dtype) + 1
        for a, b in zip(buffers, expected, strict=True):
            same = torch.equal(a.cpu(), b)
            checked, wrong = checked + 1, wrong + [f"ring of {count}"] * (not same)
    return {"checked": checked, "wrong": wrong}


def groups(rank: int, ranks: int) -> dict[str, object]:
    """The same in two groups at a time, of which the ranks are not 0, 1, …

    And before and after it in the group of all: one that has made its connection must
    find it again.
    """
    before = torch.full((5,), float(rank), device="npu")
    dist.all_reduce(before)
    pairs = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    mine = pairs[0] if rank in (0, 3) else pairs[1]
    t = torch.full((5,), float(rank), device="npu")
    dist.all_reduce(t, group=mine)
    every = torch.tensor([float(rank)] * 5).to("npu")
    dist.all_reduce(every)
    return {"pair": t[0].item(), "all": [before[0].item(), every[0].item()]}


def everything(rank: int, ranks: int) -> dict[str, object]:
    """All of the above in one process."""
    found = [equal(rank, ranks), letters(rank, ranks)]
    wrong = [line for part in found for line in part["wrong"]]
    checked = [part["checked"] for part in found]
    return {"wrong": wrong, "checked": checked, **groups(rank, ranks)}


def failing(rank: int, ranks: int, how, limit_s: str = "") -> dict[str, object]:
    """The error of those that wait for rank 1, after a first call that all make.

    With `limit_s`, HCCL's time limit from then on: before, ranks may start slowly.
    """
    t = torch.ones(4, device="npu")
    dist.all_reduce(t)
    torch.npu.synchronize()
    if rank == 1:
        how()
    if limit_s:
        os.environ["HCCL_EXEC_TIMEOUT"] = limit_s
    try:
        dist.all_reduce(t)
        torch.npu.synchronize()
    except RuntimeError as error:
        return {"error": str(error)}
    return {"error": None}


def signal_self(number: signal.Signals):
    os.kill(os.getpid(), number)


def call_something_else():
    other = torch.ones(8, device="npu")
    try:
        dist.all_reduce(other)
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    os._exit(0)


CASES = {
    "all": everything,
    "killed": lambda r, n: failing(r, n, lambda: signal_self(signal.SIGKILL)),
    "silent": lambda r, n: failing(r, n, lambda: signal_self(signal.SIGSTOP), "3"),
    "different": lambda r, n: failing(r, n, call_something_else),
}

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
