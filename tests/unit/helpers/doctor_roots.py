"""Machines made of files: what `vllm-balance doctor` would find on a healthy one.

The forms of `npu-smi` are those that people have shown in public: of 24.1.rc3.7 and
26.0.rc2 on A3 in vllm-ascend's issues 2035 and 12980, of A2 in 4621, with processes in
nyaterm's 268, of 310P in ollama's 5315, of Ascend 950 in SwanLab's pull request 1719.
What `-t board` prints is in the plugin's setup.py; the files below /usr/local/Ascend
are in its collect_env.py and installation.md, in 4621, and in the guides of CANN.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import packaging

from balance_tools.paths import Paths
from vllm_balance.build_info import BuildInfo

ROOT = Paths.find().root
ASCEND = "/usr/local/Ascend"
CHIPS = {
    "A2": ("910B3", "Chip Type : Ascend\nChip Name : 910B3\n"),
    "A3": ("Ascend910", "NPU Name : 9392\nChip Name : Ascend910\n"),
    "310P": ("310P3", "Chip Type : Ascend\nChip Name : 310P3\n"),
    "A5": ("Ascend950PR", "NPU Name : 9579\nChip Name : Ascend950PR\n"),
}
"""Device to the name in the table, and to what `-t board` says."""
FORMS = {
    "A2": "| {i}     {name}     | {health}            | 91.3   33   0    / 0 |\n"
    "| 0             | {bus}  | 0           0    / 0     ",
    "A3": "| 0     {name}           | {health}            | 162.6 34 0 / 0 |\n"
    "| {i}     {i}         | {bus}  | 0           0    / 0 ",
    "310P": "| 1       {name}           | {health}        | NA   59  0  / 0 |\n"
    "| {i}       {i}       | {bus}    | 0            ",
    "A5": "| {i}      | {name}      | {health}            | 195.6  56  0 / 0 |\n"
    "|        |      | {bus}  | 0           0    / 0     ",
}
"""Two rows of the table, of a chip; its memory follows."""
MOUNTS = "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=1048576k 0 0\n"
TRIE = """Local:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.0.0.1
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
"""
TCP = "  sl  local_address rem_address   st tx_queue\n"
PACKAGES = {
    "torch": "2.10.0+cpu",
    "torch-npu": "2.10.0.post4",
    "triton-ascend": "3.2.2",
    "transformers": "5.5.4",
    "packaging": packaging.__version__,
}


def table(device="A2", version="25.5.1", used=3406, health="OK", processes=()):
    """What `npu-smi info` prints of two chips; `processes` are of the first."""
    name = CHIPS[device][0]
    total = {"A2": 65536, "A3": 65536, "310P": 44280, "A5": 131072}[device]
    rows = [f"| npu-smi {version}      Version: {version}      |"]
    for i in range(2):
        bus, memory = f"0000:C{i + 1}:00.0", f"{used:<5}/ {total}"
        form = FORMS[device].format(i=i, name=name, health=health, bus=bus)
        rows += [form + f"{memory} |", "+=====+=====+=====+"]
    rows.append("| NPU     Chip | Process id | Process name | Process memory(MB) |")
    card = "1" if device == "310P" else "0"
    chip = "" if device == "A5" else "       0"
    more = " NA        |" if version.startswith("26") else ""
    for pid, what, memory_mb in processes:
        rows.append(f"| {card}{chip} | {pid} | {what} | {memory_mb} |{more}")
    rows.append(f"| No running processes found in NPU {card}                     |")
    return "\n".join(rows) + "\n"


@dataclass
class FakeMachine:
    """A root, a folder of installed packages, programs, and variables."""

    folder: Path
    device: str = "A2"
    line: str = "0.23"
    hdk: str = "25.5.1"
    cann: str = "9.1.0"
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self._make_root()
        self._make_packages()
        self.programs.mkdir()
        self.npu_smi(table(self.device, self.hdk))

    def write(self, name, text):
        path = self.folder / "root" / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _make_root(self):
        self.write("/proc/self/mounts", MOUNTS)
        self.write("/proc/net/fib_trie", TRIE)
        self.write("/proc/net/tcp", TCP)
        self.write("/proc/sys/kernel/hostname", "head\n")
        self.write("/etc/hosts", "127.0.0.1 localhost\n10.0.0.1 head\n")
        for name, state in (("eth0", "up"), ("lo", "unknown"), ("eth1", "down")):
            self.write(f"/sys/class/net/{name}/operstate", f"{state}\n")
        chips = ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc")
        for name in chips:
            self.write(f"/dev/{name}", "")
        fields = f"Version={self.hdk}\nInnerversion=V100R001C23SPC002B212\n"
        fields += "compatible_version_fw=[6.4.0,6.4.99],[7.0.0,8.9.9]\n"
        self.write(f"{ASCEND}/driver/version.info", fields)
        self.write(f"{ASCEND}/firmware/version.info", "Version=7.8.0.2.212\n")
        home = f"{ASCEND}/cann-{self.cann}"
        info = f"package_name=Ascend-cann-toolkit\nversion={self.cann}\narch=aarch64\n"
        self.write(f"{home}/aarch64-linux/ascend_toolkit_install.info", info)
        atb = f"{ASCEND}/nnal/atb/latest"
        text = f"    Ascend-cann-atb : {self.cann}\n    Platform : aarch64\n"
        self.write(f"{atb}/version.info", text)
        self.write(f"{atb}/atb/cxx_abi_1/lib/libatb.so", "")
        self.variables |= {
            "ASCEND_HOME_PATH": home,
            "ATB_HOME_PATH": f"{atb}/atb/cxx_abi_1",
            "LD_LIBRARY_PATH": f"{home}/lib64:{atb}/atb/cxx_abi_1/lib",
            "GLOO_SOCKET_IFNAME": "eth0",
            "HCCL_SOCKET_IFNAME": "=eth0",
            "HCCL_IF_IP": "10.0.0.1",
        }

    @property
    def packages(self):
        return self.folder / "site"

    def install(self, name, version, *requires, below=""):
        """A distribution that has a metadata file and nothing else."""
        folder = self.packages / below
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        return info

    def remove(self, name):
        for info in self.packages.glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(info)

    def _make_packages(self):
        ours = self.packages / "vllm_balance"
        for path in (ROOT / "vllm_balance").rglob("*.py"):
            link = ours / path.relative_to(ROOT / "vllm_balance")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        is_for_npus = self.line != "0.33"
        label = "a2" if is_for_npus else "reference"
        version = f"{self.line}.0+balance.1.{label}"
        names = ("vllm", "vllm-ascend", "vllm-balance")
        nothing: dict[str, Any] = dict.fromkeys(BuildInfo.__dataclass_fields__)
        nothing |= {"hooks": {}, "own_files": {}, "series_sha256": {}}
        record = nothing | {
            "wheel": f"vllm-{version}-py3-none-any.whl",
            "distributions": dict.fromkeys(names, version),
            "upstreams": {"vllm": f"{self.line}.0"},
            "target": "ascend" if is_for_npus else "reference",
            "device": self.device if self.device != "310P" else "_310P",
        }
        (ours / "build.json").write_text(json.dumps(record))
        requires = [f"{n}=={v.partition('+')[0]}" for n, v in PACKAGES.items()]
        self.install(names[0], version, *requires, "nobody; python_version < '3'")
        for name in names[1:]:
            self.install(name, version)
        for name, version in PACKAGES.items():
            self.install(name, version)
        (self.packages / "packaging").symlink_to(Path(packaging.__file__).parent)
        for name in ("vllm", "vllm_ascend", "torch_npu", "pybind11", "triton"):
            (self.packages / name).mkdir()
            (self.packages / name / "__init__.py").touch()
        (self.packages / "triton/backends/ascend").mkdir(parents=True)

    @property
    def programs(self):
        return self.folder / "bin"

    def npu_smi(self, info, device="", status=0):
        """What it prints, of which device's board, and how it ends."""
        (self.folder / "info").write_text(info)
        (self.folder / "board").write_text(CHIPS[device or self.device][1])
        script = self.programs / "npu-smi"
        script.write_text(
            "#!/bin/sh\n"
            f'case "$*" in info) /bin/cat {self.folder}/info ;;\n'
            f"*) /bin/cat {self.folder}/board ;; esac\nexit {status}\n"
        )
        script.chmod(0o755)

    @property
    def environ(self):
        found = {"PYTHONPATH": str(self.packages), "PYTHONDONTWRITEBYTECODE": "1"}
        return found | {"PATH": str(self.programs), "LANG": "C.UTF-8"} | self.variables

    def command(self, *arguments, user=None):
        """The command, as another user if one is given; `doctor` runs it."""
        become = f"import os; os.setuid({user}); " if user else ""
        # Another user may not be let to the files that are still to be imported.
        ours = "import vllm_balance.doctor.command; from vllm_balance.cli import main"
        program = f"{ours}; {become}raise SystemExit(main())"
        command = [sys.executable, "-S", "-c", program, "doctor", "--json"]
        return [*command, "--root", str(self.folder / "root"), *arguments]

    def doctor(self, *arguments, user=None):
        """The status and the lines of the real command; no package of ours is near."""
        done = subprocess.run(
            self.command(*arguments, user=user),
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)["lines"]
