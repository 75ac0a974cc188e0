#!/bin/sh
# The wheel and what its image needs beside it, in /opt/vllm:
# install-python.sh TARGET WHEEL CONSTRAINTS.
set -eu
target=$1
wheel=$2
constraints=$3
here=$(dirname "$0")
share=/opt/vllm/share/vllm-balance
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

python3 -m venv /opt/vllm
python=/opt/vllm/bin/python
"$python" -m pip install --quiet --constraint "$constraints" \
    --requirement "$here/requirements-$target.txt" "$wheel"

# On x86_64 another requirement brings triton, which overwrites files of triton-ascend;
# 310P has neither.
if [ "$target" = ascend ]; then
    triton=$("$python" -m pip freeze | grep '^triton-ascend==')
    "$python" -m pip uninstall --quiet --yes triton triton-ascend
    case $(/opt/vllm/bin/vllm-balance info --json) in
        *'"_310P"'*) ;;
        *) "$python" -m pip install --quiet --no-deps "$triton" ;;
    esac
fi

/opt/vllm/bin/vllm-balance verify

mkdir -p "$share"
"$python" "$here/licences.py" "$share/licences"
# The program that lists the packages is not one of them.
python3 -m venv /tmp/sbom
/tmp/sbom/bin/python -m pip install --quiet --requirement "$here/requirements-sbom.txt"
/tmp/sbom/bin/cyclonedx-py environment --output-reproducible --gather-license-texts \
    --output-format JSON --output-file "$share/sbom.cdx.json" "$python"
"$python" "$here/sbom.py" "$share/sbom.cdx.json"
