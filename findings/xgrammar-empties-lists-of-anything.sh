#!/usr/bin/env bash
# A list of anything (no 'items') with a bound: of {"maxItems": 2} xgrammar leaves the empty list alone,
# and refuses {"minItems": 2} with an error. Without a bound, or with an empty 'items', all is right.
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

array = {"type": "array"}
check(
    [
        (array, '[1,"a"]', "XLO"),
        ({**array, "maxItems": 2}, "[]", "XLO"),
        ({**array, "maxItems": 2}, '[1,"a"]', "LO"),
        ({**array, "maxItems": 2, "items": {}}, '[1,"a"]', "XLO"),
        ({**array, "minItems": 2}, '[1,"a"]', "LO"),
        ({**array, "minItems": 2, "items": {}}, '[1,"a"]', "XLO"),
        ({**array, "minItems": 2, "items": {}}, "[1]", ""),
    ]
)
PYTHON
