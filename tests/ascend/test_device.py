"""The emulated device through torch_npu: memory, streams, which devices are seen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_npu  # noqa: F401


def says(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import torch, torch_npu\n{code}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        cwd="/",
    )


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 8), ("0", 1), ("2,5,7", 3), ("1,9,2", 1), ("", 0)]
)
def test_visible_devices(visible, count):
    environment = {} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible}
    result = says("print(torch.npu.device_count())", **environment)
    assert result.stdout.split()[-1:] == [str(count)], result.stderr


def test_a_device_that_is_not_visible_is_refused():
    result = says("torch.ones(1, device='npu:1')", ASCEND_RT_VISIBLE_DEVICES="3")
    assert result.returncode != 0
    assert "1" in result.stderr.splitlines()[-1]


def test_memory_ends():
    code = "torch.npu.mem_get_info()\ntorch.empty(200 << 20, device='npu')"
    result = says(code, EMULATOR_MEMORY=str(100 << 20))
    assert "OutOfMemoryError" in result.stderr


def test_freed_memory_comes_back():
    free, total = torch.npu.mem_get_info()
    block = torch.empty(64 << 20, device="npu")
    assert torch.npu.mem_get_info()[0] <= free - (64 << 20)
    del block
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info() == (free, total)


LATE_COPY = """
x = torch.arange(4, device='npu')
y = x.to('cpu', non_blocking=True)
x.add_(10)
event = torch.npu.Event(); event.record()
early = y.tolist()
{wait}
print(early != [0, 1, 2, 3], y.tolist() == [0, 1, 2, 3])
"""


@pytest.mark.parametrize(
    ("wait", "arrives"),
    [
        ("event.synchronize()", True),
        ("torch.npu.synchronize()", True),
        ("torch.npu.current_stream().synchronize()", True),
        ("x.sum().item()", True),
        ("torch.npu.Stream().synchronize()", False),
        ("pass", False),
    ],
)
def test_a_late_stream_shows_who_does_not_wait(wait, arrives):
    result = says(LATE_COPY.format(wait=wait), EMULATOR_LATE="1")
    assert result.stdout.split() == ["True", str(arrives)], result.stderr
    result = says(LATE_COPY.format(wait=wait))
    assert result.stdout.split() == ["False", "True"], result.stderr


def test_a_stream_that_waits_for_another():
    code = """
side = torch.npu.Stream()
x = torch.arange(4, device='npu')
y = x.to('cpu', non_blocking=True)
side.wait_stream(torch.npu.current_stream())
side.synchronize()
print(y.tolist())
"""
    result = says(code, EMULATOR_LATE="1")
    assert "[0, 1, 2, 3]" in result.stdout, result.stderr


def test_a_function_of_cann_that_is_not_emulated_aborts_by_name():
    listed = Path(os.environ["LD_LIBRARY_PATH"].split(":")[1]).parent / "refusing.txt"
    name = next(n for n in listed.read_text().split() if n.startswith("aclop"))
    result = says(f"import ctypes; ctypes.CDLL('libemulated_cann.so').{name}()")
    assert result.returncode == -6
    assert f"{name} is not emulated" in result.stderr


@pytest.mark.parametrize(
    "name", ["softmax", "cumsum", "sort", "index", "matmul", "where"]
)
def test_results_of_aten_are_those_of_the_cpu(name):
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    runs = {
        "softmax": lambda t: t.softmax(-1),
        "cumsum": lambda t: t.cumsum(0),
        "sort": lambda t: t.sort(-1)[1],
        "index": lambda t: t[t > 0],
        "matmul": lambda t: t @ t,
        "where": lambda t: torch.where(t > 0, t, -t).t().contiguous().view(-1),
    }
    found = runs[name](x.to("npu"))
    assert found.device.type == "npu"
    assert torch.equal(found.cpu(), runs[name](x))
