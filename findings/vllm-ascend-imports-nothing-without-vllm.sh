#!/usr/bin/env bash
# vllm-ascend 0.23.0 requires pip, wheel, cmake and pandas-stubs, but not vllm, without which nothing
# of it can be imported: neither its version nor the module that says for which chip it was built.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install -qq --no-deps --only-binary :all: vllm-ascend==0.23.0

env/bin/python - <<'PYTHON'
import importlib
import importlib.metadata
import re
import sys

metadata = importlib.metadata.metadata("vllm-ascend")
required = {
    re.match(r"[\w.-]+", line)[0].replace("_", "-").lower()
    for line in metadata.get_all("Requires-Dist")
}
print(f"vllm-ascend {metadata['Version']}, Python {sys.version.split()[0]}")
print(f"requires {len(required)} distributions, vllm among them: {'vllm' in required}")
asked = {"pip", "wheel", "cmake", "pandas-stubs"}
print(f"of {', '.join(sorted(asked))} it requires {', '.join(sorted(asked & required))}")
missing = []
for name in ("vllm_ascend", "vllm_ascend._version", "vllm_ascend._build_info", "vllm_ascend.envs"):
    try:
        importlib.import_module(name)
        missing.append(None)
    except ModuleNotFoundError as error:
        missing.append(error.name)
    print(f"import {name}: no module {missing[-1]}")
raise SystemExit(not ("vllm" not in required and asked <= required and set(missing) == {"vllm"}))
PYTHON
