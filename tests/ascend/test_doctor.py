"""`vllm-balance doctor` on emulated NPUs: the real wheel, its libraries, its plugin.

Driver, devices and `npu-smi` are files (`doctor_roots`); requirements, symbols of the
kernel libraries, and the command line, which the plugin configures, are real.
"""

import json
import os
import subprocess
from pathlib import Path

from doctor_roots import ASCEND, FakeMachine
from test_serving import OPTIONS


def test_all_is_well_with_the_real_wheel(tmp_path, moe_model):
    machine = FakeMachine(tmp_path)
    real = os.environ["LD_LIBRARY_PATH"]
    cuda, cann = (Path(name) for name in real.split(":"))
    home = os.environ["ASCEND_HOME_PATH"]  # torch_npu looks into it
    for name, target in {
        home: machine.folder / "root" / f"{ASCEND}/cann-9.1.0"[1:],
        f"{ASCEND}/cann-9.1.0/lib64": cann,
        f"{ASCEND}/nnal/atb/latest/atb/cxx_abi_1/lib": cann,
        "/cuda": cuda,
    }.items():
        link = machine.folder / "root" / name[1:]
        if link.is_dir():
            link.rename(link.with_name("as_it_was"))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    environ = os.environ | machine.variables | {"ASCEND_HOME_PATH": home}
    environ["LD_LIBRARY_PATH"] = f"{real}:/cuda:{machine.variables['LD_LIBRARY_PATH']}"
    environ["PATH"] = f"{machine.programs}:{os.environ['PATH']}"
    command = ["vllm-balance", "doctor", "--json", "--fail-on", "unknown"]
    command += ["--root", str(machine.folder / "root"), "--", "vllm", "serve"]
    command += [str(moe_model), "--data-parallel-size", "2", *OPTIONS]
    command += ["--data-parallel-balance", "adaptive"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    lines = {x["what"]: x for x in json.loads(done.stdout)["lines"]}
    assert [x for x in lines.values() if x["state"] != "ok"] == []
    assert done.returncode == 0
    assert lines["balance"]["found"] == "adaptive: 2 ranks agree once per step"
    assert int(lines["libraries"]["found"].split()[0]) > 5
    assert int(lines["requirements"]["found"].split()[1]) > 50
