#!/usr/bin/env bash
# An 'allOf' of two objects: xgrammar asks for nothing of either, and says so in a warning alone.
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

a = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
b = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
check(
    [
        ({"allOf": [a]}, '{"a":1}', "XLO"),
        ({"allOf": [a]}, "{}", ""),
        ({"allOf": [a, b]}, '{"a":1,"b":2}', "XL"),
        ({"allOf": [a, b]}, "{}", "X"),
        ({"allOf": [a, b]}, '{"a":"text"}', "X"),
        ({"allOf": [a, b]}, "5", "X"),
    ]
)
PYTHON
