"""The installed Ascend wheel: it is whole, its libraries load, its modules import."""

import json
import os
import subprocess

from conftest import program, says

START = "from vllm_balance.start import register; register(); print('starts')"
"""What the guard says before anything else of vLLM is imported."""


def test_the_wheel_verifies():
    result = subprocess.run(["vllm-balance", "verify"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_kernel_libraries_load_with_all_their_symbols():
    code = (
        "import torch, torch_npu, vllm_ascend.vllm_ascend_C as c;"
        "import torch._C as t;"
        "names = t._dispatch_get_registrations_for_dispatch_key('PrivateUse1');"
        "print(sum(n.startswith('_C_ascend::') for n in names))"
    )
    result = says(code, LD_BIND_NOW="1")
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout.split()[-1]) >= 60


NOT_INSTALLED = {
    "attention.fa3_v1": "flash_attn_npu_v3",
    "distributed.kv_transfer.kv_pool.ascend_store.backend.mooncake_backend": (
        "mooncake.store"
    ),
    "distributed.kv_transfer.kv_pool.lmcache_ascend_connector": "lmcache_ascend",
    "distributed.kv_transfer.kv_pool.ucm_connector": "ucm",
    "xlite.utils": "xlite",
    "xlite.xlite": "xlite",
    # Upstream's own faults: vLLM 0.23.0 has no such modules.
    "kv_offload.cpu_npu": "vllm.v1.kv_offload.mediums",
    "kv_offload.npu": "vllm.v1.kv_offload.abstract",
}
"""Modules of the plugin that want what upstream does not require."""


def test_every_module_imports():
    """But for those that need what upstream does not require, by name."""
    found = json.loads(program("imports.py").splitlines()[-1])
    assert found["imported"] >= 420
    assert found["failed"] == {
        f"vllm_ascend.{module}": f"ModuleNotFoundError: No module named '{missing}'"
        for module, missing in NOT_INSTALLED.items()
    }
    # Upstream's modules for 310P import each other in a circle; on that device the
    # plugin imports another one of it first.
    assert {name.split(".")[1] for name in found["cycles"]} <= {"_310p"}


def test_it_starts():
    assert says(START).stdout == "starts\n"


def test_a_triton_without_what_it_imports_is_refused():
    result = says("import sys; sys.modules['pybind11'] = None; " + START)
    assert result.returncode == 1
    assert "pybind11: triton-ascend imports it, found no such" in result.stderr
    assert "Repair: pip install pybind11" in result.stderr


def test_a_triton_that_hides_triton_ascend_is_refused(tmp_path):
    """As xgrammar brings it on x86_64; install.md has the repair."""
    info = tmp_path / "triton-3.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: triton\nVersion: 3.9.0"
    )
    before = os.environ["PYTHONPATH"]
    result = says(START, PYTHONPATH=f"{tmp_path}:{before}")
    assert result.returncode == 1
    assert "found triton 3.9.0 over them" in result.stderr
    assert "pip uninstall --yes triton triton-ascend; pip install" in result.stderr
    assert "'triton-ascend==3.2.2'" in result.stderr
    (info / "METADATA").unlink()
    info.rmdir()
    stock = tmp_path / "triton"
    stock.mkdir()
    (stock / "__init__.py").touch()
    result = says(START, PYTHONPATH=f"{tmp_path}:{before}")
    assert result.returncode == 1
    assert f"{stock}: expected triton-ascend, found no backends/ascend" in result.stderr
