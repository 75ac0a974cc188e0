"""`vllm-balance doctor` on emulated NPUs: the real wheel, its plugin.

Driver, devices and `npu-smi` are files (`doctor_roots`); requirements and the command
line, which the plugin configures, are real.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from doctor_roots import FakeMachine
from test_serving import OPTIONS


def test_all_is_well_with_the_real_wheel(tmp_path, moe_model):
    machine = FakeMachine(tmp_path)
    root = machine.folder / "root"
    home = Path(os.environ["ASCEND_HOME_PATH"])  # torch_npu looks into it
    link = root / home.relative_to("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(root / machine.variables["ASCEND_HOME_PATH"].lstrip("/"))
    environ = os.environ | machine.variables | {"ASCEND_HOME_PATH": str(home)}
    environ["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    environ["PATH"] = f"{machine.programs}:{os.environ['PATH']}"
    if sys.version_info >= (3, 11):
        # As on a fresh machine: what was seen of a model is in no cache, and the look
        # takes nothing from the folder it runs in, here a checkout.
        environ["VLLM_CACHE_ROOT"] = str(tmp_path / "cache")
    command = ["vllm-balance", "doctor", "--json", "--fail-on", "unknown"]
    command += ["--root", str(root), "--", "vllm", "serve"]
    command += [str(moe_model), "--data-parallel-size", "2", *OPTIONS]
    command += ["--data-parallel-balance", "adaptive"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    lines = {x["what"]: x for x in json.loads(done.stdout)["lines"]}
    assert [x for x in lines.values() if x["state"] != "ok"] == [], done.stderr
    assert done.returncode == 0
    assert lines["balance"]["found"] == "adaptive: 2 ranks agree once per step"
    assert int(lines["requirements"]["found"].split()[1]) > 50
