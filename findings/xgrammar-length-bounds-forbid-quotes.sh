#!/usr/bin/env bash
# A string whose length is bounded, by xgrammar: no quote, backslash or new line can be in it.
set -euo pipefail
findings=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

python3 -m venv env
env/bin/pip install -qq apache-tvm-ffi==0.1.15.post2 pydantic==2.14.4 numpy llguidance==1.9.1 outlines-core==0.2.14
env/bin/pip install -qq --no-deps xgrammar==0.2.9
PYTHONPATH=$findings env/bin/python - <<'PYTHON'
import json

from back_ends import check

texts = ("two words", 'say "x"', "two\nlines", "back\\slash")
cases = [({"type": "string"}, json.dumps(text), "XLO") for text in texts]
for bound in ({"minLength": 1}, {"maxLength": 40}):
    for text in texts:
        expected = "XLO" if text == "two words" else "LO"
        cases.append(({"type": "string", **bound}, json.dumps(text), expected))
check(cases)
PYTHON
