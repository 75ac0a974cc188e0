"""The entry point of the images, on roots that lack one thing or another."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "docker" / "entrypoint.sh"
ASCEND = "usr/local/Ascend"
# As the vendor writes them: they read variables that may not be set, and end with the
# status of a test.
SET_ENV = """
export ASCEND_HOME_PATH={root}/usr/local/Ascend/cann
export LD_LIBRARY_PATH=$ASCEND_HOME_PATH/lib64:$LD_LIBRARY_PATH
export PYTHONPATH=$ASCEND_HOME_PATH/python:$PYTHONPATH
false
"""
FILES = {
    f"{ASCEND}/ascend-toolkit/set_env.sh": SET_ENV,
    f"{ASCEND}/nnal/atb/set_env.sh": "export ATB_ARGUMENTS=$*; false\n",
    f"{ASCEND}/cann/share/info/ascendnpu-ir/bin/set_env.sh": "export BISHENGIR=1\n",
    f"{ASCEND}/driver/lib64/driver/libascend_hal.so": "",
    "dev/davinci_manager": "",
    "dev/devmm_svm": "",
    "dev/hisi_hdc": "",
    "dev/davinci3": "",
    "usr/lib/x86_64-linux-gnu/libjemalloc.so.2": "",
}
MISSING = {
    "ascend-toolkit/set_env.sh": "there is no {root}/usr/local/Ascend/ascend-toolkit/",
    "nnal/atb/set_env.sh": "there is no {root}/usr/local/Ascend/nnal/atb/set_env.sh",
    "libascend_hal.so": "there is no libascend_hal.so below {root}/usr/local/Ascend/dr",
    "davinci_manager": "there is no {root}/dev/davinci_manager (pass --device",
    "devmm_svm": "there is no {root}/dev/devmm_svm (pass --device",
    "hisi_hdc": "there is no {root}/dev/hisi_hdc (pass --device",
    "davinci3": "there is no {root}/dev/davinci0 (pass --device",
    "libjemalloc.so.2": "there is no libjemalloc.so.2 (install jemalloc)",
}


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{root}", str(root)))
    return root


def variables(root, image="ascend", **more):
    own = {"VLLM_BALANCE_IMAGE": image, "VLLM_BALANCE_ROOT": str(root)}
    return {"PATH": os.environ["PATH"], **own, **more}


def start(root, *command, image="ascend", user=None, script=SCRIPT, **more):
    return subprocess.run(
        [str(script), *command],
        env=variables(root, image, **more),
        user=user,
        capture_output=True,
        text=True,
    )


def refusal(result):
    """The one line that is said, and nothing else."""
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = [x for x in result.stderr.splitlines() if "LD_PRELOAD" not in x]
    assert line.startswith("vllm-balance: cannot start: ")
    return line


def test_becomes_the_command_in_the_environment_of_cann(root):
    result = start(root, "env")
    found = dict(line.split("=", 1) for line in result.stdout.splitlines())
    driver, cann = f"{root}/{ASCEND}/driver/lib64", f"{root}/{ASCEND}/cann"
    paths = f"{driver}:{driver}/common:{driver}/driver:{cann}/lib64:"
    assert found["LD_LIBRARY_PATH"] == paths
    assert found["PYTHONPATH"] == f"{cann}/python:"
    assert found["ATB_ARGUMENTS"] == "--cxx_abi=1"
    assert found["BISHENGIR"] == "1"
    assert found["LD_PRELOAD"] == f"{root}/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"


def test_is_replaced_by_the_command_and_keeps_what_the_caller_preloads(root):
    """Its arguments and its exit status are passed on."""
    command = 'echo $$ $LD_PRELOAD; printf "<%s>" "$@"; exit 7'
    process = subprocess.Popen(
        [str(SCRIPT), "sh", "-c", command, "_", "a b", "", "*"],
        env=variables(root, LD_PRELOAD="of_the_caller.so"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # there is no such library
        text=True,
    )
    first, arguments = process.communicate()[0].splitlines()
    pid, preloaded = first.split()
    assert int(pid) == process.pid
    assert preloaded.endswith("libjemalloc.so.2:of_the_caller.so")
    assert (process.returncode, arguments) == (7, "<a b><><*>")


def test_names_what_is_missing_in_one_sentence_and_nothing_else(root, tmp_path):
    (root / f"{ASCEND}/nnal/atb/set_env.sh").unlink()
    message = refusal(start(root, "vllm", "serve"))
    assert MISSING["nnal/atb/set_env.sh"].format(root=root) in message
    assert message.count("; ") == 0
    shutil.rmtree(root)
    message = refusal(start(tmp_path, "vllm", "serve"))
    assert message.count("; ") == len(MISSING) - 1
    for expected in MISSING.values():
        assert expected.format(root=tmp_path) in message
    assert re.search(r"mount the host's driver: -v \S+", message)


@pytest.mark.skipif(os.getuid() != 0, reason="must become another user")
def test_names_the_group_of_a_device_that_may_not_be_opened(root):
    for folder in [root, *root.parents]:
        is_own = folder.stat().st_uid == os.getuid()
        if is_own and folder.name.startswith(("pytest-", "popen-")):
            folder.chmod(0o755)
    root.parent.chmod(0o755)
    device = root / "dev" / "davinci3"
    device.chmod(0o660)
    for path in root.glob("dev/*"):
        os.chown(path, 1000, 1000)
        path.chmod(0o660)
    (root / "dev" / "hisi_hdc").chmod(0o664)  # to be read, not written
    # The checkout may lie in a folder that only its owner may enter.
    script = Path(shutil.copy(SCRIPT, root))
    message = refusal(start(root, "vllm", "serve", user=4321, script=script))
    assert message.count("user 4321 may not open") == 4
    assert f"{device} (add its group: --group-add 1000)" in message
    assert start(root, "true", user=1000, script=script).returncode == 0


def test_what_is_installed_can_be_asked_without_a_device(tmp_path):
    command = tmp_path / "bin" / "vllm-balance"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho installed\n")
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    result = start(tmp_path, "vllm-balance", "info", PATH=path)
    assert (result.returncode, result.stdout) == (0, "installed\n")


def test_the_reference_image_needs_no_cann(root):
    shutil.rmtree(root / "usr" / "local")
    shutil.rmtree(root / "dev")
    assert start(root, "true", image="reference").returncode == 0
