#!/usr/bin/env bash
# A pattern without anchors: llguidance searches, as JSON Schema says; the others match all.
set -euo pipefail
findings=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

python3 -m venv env
env/bin/pip install -qq apache-tvm-ffi==0.1.15.post2 pydantic==2.14.4 numpy llguidance==1.9.1 outlines-core==0.2.14
env/bin/pip install -qq --no-deps xgrammar==0.2.9
PYTHONPATH=$findings env/bin/python - <<'PYTHON'
from back_ends import check

pattern = {"type": "string", "pattern": "v[0-9]+"}
check(
    [
        (pattern, '"v12"', "XLO"),
        (pattern, '"v12-beta"', "L"),
        (pattern, '"release v12"', "L"),
        ({**pattern, "pattern": "^v[0-9]+$"}, '"v12-beta"', ""),
        ({**pattern, "pattern": "^(a|b)$"}, '"a"', "XLO"),
    ]
)
PYTHON
