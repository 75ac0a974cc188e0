"""Compiles the emulated device against the installed torch and torch_npu."""

from __future__ import annotations

import hashlib
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from emulator import stubs

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native"
PYTHON = HERE / "python"

LINKED_TO_CUDA = (
    "torch_cpu",
    "torch_cuda",
    "c10_cuda",
    "torch_python",
    "torch_cuda_linalg",
    "torch",
    "torch_nvshmem",
    "caffe2_nvrtc",
    "shm",
    "torch_global_deps",
)
OPENED = ("libopapi.so", "libruntime.so", "libmsprofiler.so", "libatb.so")
"""Libraries of CANN that are opened at run time and not linked."""

MODULE = "emulated_aten"

CANN = "9.1.0"
"""The version that the emulated CANN says to have."""


def sources() -> Iterator[str]:
    """What the compiled parts depend on, as hashes."""
    for path in sorted([*NATIVE.iterdir(), HERE / "stubs.py", HERE / "native.py"]):
        yield hashlib.sha256(path.read_bytes()).hexdigest()


def build(packages: Path, out: Path) -> None:
    """Compile everything.

    Args:
        packages: the site-packages with torch, torch_npu and the Ascend wheel.
        out: a folder that is made; gets `cuda/`, `cann/` and `emulated_aten`.
    """
    torch, npu, plugin = (packages / n for n in ("torch", "torch_npu", "vllm_ascend"))
    includes = [
        npu / "include/third_party/acl/inc",
        npu / "include/third_party/hccl/inc",
    ]
    includes.append(npu / "include")
    refusing = [
        *_stubs(
            out / "cuda",
            stubs.Stubs(
                consumers=[torch / "lib" / f"lib{name}.so" for name in LINKED_TO_CUDA],
                present=[torch / "lib/libc10.so"],
                library_sources={"libcudart.so.12": NATIVE / "no_cuda.c"},
                nodes={"libnvshmem_host.so.3": "NVSHMEM"},
            ),
        ),
        *_stubs(
            out / "cann",
            stubs.Stubs(
                consumers=[
                    *sorted((npu / "lib").glob("lib*.so")),
                    *sorted(npu.glob("_C*.so")),
                    *sorted(plugin.glob("*.so")),
                ],
                present=sorted((torch / "lib").glob("*.so")),
                sources=[
                    *(
                        NATIVE / f"{n}.cpp"
                        for n in ("device", "streams", "graphs", "hccl")
                    ),
                    NATIVE / "switches.c",
                ],
                includes=includes,
                extra=OPENED,
            ),
        ),
    ]
    (out / "refusing.txt").write_text("".join(f"{name}\n" for name in refusing))
    _module(out, torch, includes, npu)


def write_run(folder: Path, environment: Path, native: Path) -> None:
    """Write `folder/run`, which runs a command with the emulated device.

    Args:
        folder: where to.
        environment: the virtual environment of its programs.
        native: what `build` has compiled.
    """
    cann = native / "cann-home"
    for name in ("bin", "opp", "runtime", "compiler"):
        (cann / name).mkdir(parents=True, exist_ok=True)
    # triton-ascend asks CANN's compiler for its target; the interpreter runs kernels.
    bisheng = cann / "bin/bisheng"
    bisheng.write_text("#!/bin/sh\necho hiipu64\n")
    bisheng.chmod(0o755)
    (cann / "ascend_toolkit_install.info").write_text(f"version={CANN}\n")
    run = folder / "run"
    run.write_text(
        "#!/bin/sh\n"
        f'export LD_LIBRARY_PATH="{native}/cuda:{native}/cann"\n'
        f'export PATH="{environment}/bin:{cann}/bin:$PATH"\n'
        f'export PYTHONPATH="{PYTHON}:{native}"\n'
        f'export ASCEND_HOME_PATH="{cann}" ASCEND_OPP_PATH="{cann}/opp"\n'
        "# Queued kernels would race those that run at once.\n"
        "export TASK_QUEUE_ENABLE=0 TRITON_INTERPRET=1 EMULATED_NPU=emulated_cann\n"
        'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"\n'
        "# Else each process compiles torch and vLLM from source anew.\n"
        "unset PYTHONDONTWRITEBYTECODE\n"
        'exec "$@"\n'
    )
    run.chmod(0o755)


def _stubs(out: Path, what: stubs.Stubs) -> list[str]:
    out.mkdir(parents=True)
    return stubs.make(what, out, f"emulated_{out.name}")


def _module(out: Path, torch: Path, includes: list[Path], npu: Path) -> None:
    library = out / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    folders = [*includes, torch / "include", torch / "include/torch/csrc/api/include"]
    folders += [Path(sysconfig.get_paths()["include"]), NATIVE]
    command = ["g++", "-O1", "-w", "-std=c++17", "-shared", "-fPIC"]
    command += [f"-DTORCH_EXTENSION_NAME={MODULE}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    command += [str(NATIVE / "aten.cpp"), "-o", str(library)]
    command += [f"-I{folder}" for folder in folders]
    command += [f"-L{torch / 'lib'}", f"-L{npu / 'lib'}", f"-L{out / 'cann'}"]
    command += ["-ltorch_cpu", "-ltorch_python", "-lc10", "-ltorch_npu"]
    command += ["-lemulated_cann", "-Wl,--allow-shlib-undefined"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"error: aten.cpp does not compile: {result.stderr[:3000]}")
