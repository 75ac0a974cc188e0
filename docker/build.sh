#!/bin/sh
# Build one container image from one finished wheel in dist/; docs/install.md explains it.
#   OS=openeuler BASE=… ENGINE=podman docker/build.sh dist/….whl [OPTIONS OF THE ENGINE]
set -eu
cd "$(dirname "$0")/.."
fail() {
    echo "error: $1" >&2
    exit 1
}

wheel=${1-}
case $wheel in
dist/*.whl) shift ;;
*) fail "WHEEL: expected a wheel in dist/, which the build of the image sees, found '$wheel'; copy it there" ;;
esac
record=$(python3 -c '
import json, sys, zipfile
found = json.load(zipfile.ZipFile(sys.argv[1]).open("vllm_balance/build.json"))
commit = (found["commit"] or "unknown") + "-dirty" * bool(found["dirty"])
version = found["distributions"]["vllm"]
print(found["target"], found["device"], found["arch"], commit, version)
' "$wheel" 2>&1) || fail "$wheel: expected a wheel that this project built, found ${record##*
}; make one with make wheel"
read -r target device arch revision version <<EOF
$record
EOF

engine=${ENGINE-}
for found in docker podman buildah; do
    [ -n "$engine" ] || ! command -v $found >/dev/null || engine=$found
done
[ -n "$engine" ] || fail "ENGINE: expected docker, podman or buildah on PATH, found none; install one"

constraints=docker/constraints-ascend.txt
[ "$target" = ascend ] || constraints=tests/constraints.txt
if [ -n "${BASE-}" ]; then
    base=$BASE system=custom
elif [ "$target" = reference ]; then
    base=debian:bookworm-slim system=bookworm
else
    # Upstream's own file for the chip: CANN and nnal, without the driver of the host.
    case $device in
    A3) file=Dockerfile.a3 ;;
    _310P) file=Dockerfile.310p ;;
    A5) file=Dockerfile.a5 ;;
    *) file=Dockerfile ;;
    esac
    case ${OS:-ubuntu} in
    ubuntu) ;;
    openeuler) file=$file.openEuler ;;
    *) fail "OS: expected ubuntu or openeuler, found '$OS'; choose one of them" ;;
    esac
    ascend=$(sed -n '/^\[vllm_ascend\]/,/^filename/s/^version = "\(.*\)"/\1/p' upstream.toml)
    file=build/pristine/vllm-ascend-$ascend/$file
    base=$(sed -n 's/^FROM \([^ ]*-py3\.[0-9]*\)$/\1/p' "$file" | head -n 1)
    [ -n "$base" ] || fail "$file: expected a line FROM …-SYSTEM-py3.N that names the base image, found none; run make vendor, or name it with BASE"
    python=cp3${base##*-py3.}
    case $wheel in
    *-"$python"-*) ;;
    *) fail "$wheel: expected a wheel for $python, the Python of the base image $base; make such a wheel, or name another base with BASE" ;;
    esac
    system=${base%-py3.*}
    system=${system##*-}
fi

case $arch in
x86_64) set -- --platform linux/amd64 "$@" ;;
aarch64) set -- --platform linux/arm64 "$@" ;;
esac
# The other format has no health check.
[ "$engine" = docker ] || set -- --format docker "$@"
name=vllm-balance:$(echo "$version" | tr + -)-$system
"$engine" build --file docker/Dockerfile --tag "$name" \
    --build-arg "BASE=$base" --build-arg "TARGET=$target" --build-arg "WHEEL=$wheel" \
    --build-arg "CONSTRAINTS=$constraints" --build-arg "VERSION=$version" \
    --build-arg "REVISION=$revision" "$@" .
echo "$name"
