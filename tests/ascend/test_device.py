"""The emulated device through torch_npu: memory, streams, which devices are seen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_npu  # noqa: F401

MEGABYTE = 1 << 20
OUTSIDE = """
import ctypes
count = ctypes.c_uint32()
runtime = ctypes.CDLL("libascendcl.so")
print(runtime.aclrtGetDeviceCount(ctypes.byref(count)), count.value)
"""


def says(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a process of its own says."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
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
    result = says(OUTSIDE, **environment)
    assert result.stdout.split() == ["0", str(count)], result.stderr


def test_a_device_that_is_not_visible_is_refused_and_memory_ends():
    code = """
import torch, torch_npu
print(torch.npu.device_count())
torch.npu.set_device(0)
free = torch.npu.mem_get_info()
block = torch.empty(4 << 20, device="npu:0")
print(free[0] - torch.npu.mem_get_info()[0] >= 16 << 20)
del block
torch.npu.empty_cache()
print(torch.npu.mem_get_info() == free)
for run in (
    lambda: torch.ones(1, device="npu:1"),
    lambda: torch.empty(200 << 20, device="npu:0"),
):
    try:
        run()
        print("done")
    except Exception as error:
        print(type(error).__name__)
"""
    result = says(
        code, ASCEND_RT_VISIBLE_DEVICES="3", EMULATOR_MEMORY=str(100 * MEGABYTE)
    )
    count, taken, back, device, memory = result.stdout.split()
    assert (taken, back) == ("True", "True"), "memory does not come back"
    assert count == "1"
    assert device != "done"
    assert memory == "OutOfMemoryError"


MADE = """
import json, torch, torch_npu
torch.npu.set_device(1)
host = torch.ones(3)
made = {
    "ones": torch.ones(3, device="npu"),
    "full": torch.full((3,), 1.0, device="npu"),
    "arange": torch.arange(3, device="npu"),
    "eye": torch.eye(3, device="npu"),
    "randperm": torch.randperm(3, device="npu"),
    "tensor": torch.tensor([1.0], device="npu"),
    "zeros_like": torch.zeros_like(host, device="npu"),
    "to": host.to("npu"),
}
print(json.dumps({name: str(tensor.device) for name, tensor in made.items()}))
"""


def test_tensors_are_made_on_the_device_of_the_thread():
    """On device 0 they would be in another communicator of their rank's group."""
    found = json.loads(says(MADE).stdout.splitlines()[-1])
    assert set(found.values()) == {"npu:1"}, found


LATE = """
import json, torch, torch_npu
def waits_for_another():
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    side.synchronize()
event = torch.npu.Event()
waits = {
    "event": lambda x: event.synchronize(),
    "device": lambda x: torch.npu.synchronize(),
    "stream": lambda x: torch.npu.current_stream().synchronize(),
    "scalar": lambda x: x.sum().item(),
    "a stream that waits": lambda x: waits_for_another(),
    "another stream": lambda x: torch.npu.Stream().synchronize(),
    "nobody": lambda x: None,
}
found = {}
for name, wait in waits.items():
    x = torch.arange(4, device="npu")
    y = x.to("cpu", non_blocking=True)
    x.add_(10)
    event.record()
    early = y.tolist() == [0, 1, 2, 3]
    wait(x)
    found[name] = [early, y.tolist() == [0, 1, 2, 3]]
print(json.dumps(found))
"""


def test_late_streams_show_who_does_not_wait():
    result = says(LATE, EMULATOR_LATE="1")
    found = json.loads(result.stdout)
    for name in ("event", "device", "stream", "scalar", "a stream that waits"):
        assert found[name] == [False, True], name
    for name in ("another stream", "nobody"):
        assert found[name] == [False, False], name


def test_a_function_of_cann_that_is_not_emulated_aborts_by_name():
    listed = Path(os.environ["LD_LIBRARY_PATH"].split(":")[1]).parent / "refusing.txt"
    name = next(n for n in listed.read_text().split() if n.startswith("aclop"))
    result = says(f"import ctypes; ctypes.CDLL('libascendcl.so').{name}()")
    assert result.returncode == -6
    assert f"{name} is not emulated" in result.stderr
