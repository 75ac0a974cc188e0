#!/usr/bin/env bash
# The format 'date': llguidance knows how long months are; the others take the 31st of April.
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

date = {"type": "string", "format": "date"}
check(
    [
        (date, '"2024-04-30"', "XLO"),
        (date, '"2024-04-31"', "XO"),
        (date, '"2024-02-30"', "XO"),
        (date, '"2023-02-29"', "XLO"),  # 2023 was no leap year: of the year nobody asks
        (date, '"2024-13-01"', ""),
    ]
)
PYTHON
