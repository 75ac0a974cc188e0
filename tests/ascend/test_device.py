"""The emulated device through torch_npu: streams, which devices are seen."""

import json
import os
from pathlib import Path

import pytest
import torch_npu  # noqa: F401

from conftest import says

OUTSIDE = """
import ctypes
count = ctypes.c_uint32()
runtime = ctypes.CDLL("libascendcl.so")
print(runtime.aclrtGetDeviceCount(ctypes.byref(count)), count.value)
"""


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 8), ("0", 1), ("2,5,7", 3), ("1,9,2", 1), ("", 0)]
)
def test_visible_devices(visible, count):
    environment = {} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible}
    result = says(OUTSIDE, **environment)
    assert result.stdout.split() == ["0", str(count)], result.stderr


MEMORY = """
import torch, torch_npu
torch.npu.set_device(0)
free = torch.npu.mem_get_info()
block = torch.empty(4 << 20, device="npu:0")
print(free[0] - torch.npu.mem_get_info()[0] >= 16 << 20)
del block
torch.npu.empty_cache()
print(torch.npu.mem_get_info() == free)
for size, device in ((1, "npu:1"), (200 << 20, "npu:0")):
    try:
        torch.empty(size, device=device)
    except Exception as error:
        print(type(error).__name__)
"""


def test_a_device_that_is_not_visible_is_refused_and_memory_ends():
    result = says(MEMORY, ASCEND_RT_VISIBLE_DEVICES="3", EMULATOR_MEMORY=str(100 << 20))
    assert result.stdout.split() == ["True", "True", "RuntimeError", "OutOfMemoryError"]


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
