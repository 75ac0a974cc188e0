#!/bin/sh
# What a stage of the image needs from the system: install-system.sh build|run TARGET.
# Knows apt (Debian, Ubuntu) and dnf (openEuler).
set -eu
stage=$1
target=$2

# The bases with CANN bring their own Python and compilers; triton-ascend compiles its
# launchers with clang when it runs.
if command -v apt-get >/dev/null; then
    case $stage-$target in
        build-reference) packages='python3 python3-venv' ;;
        build-ascend) packages='g++ gcc' ;;
        run-reference) packages='libjemalloc2 python3' ;;
        run-ascend) packages='clang-15 g++ gcc libibverbs1 libjemalloc2 libnuma1 numactl' ;;
    esac
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q -q
    # shellcheck disable=SC2086 # a list
    apt-get install -q -q --yes --no-install-recommends $packages
    rm -rf /var/lib/apt/lists/*
else
    case $stage-$target in
        build-reference) packages='python3 python3-pip' ;;
        build-ascend) packages='gcc gcc-c++' ;;
        run-reference) packages='jemalloc python3' ;;
        run-ascend) packages='clang gcc gcc-c++ jemalloc libibverbs numactl numactl-libs' ;;
    esac
    # shellcheck disable=SC2086 # a list
    dnf install --assumeyes --setopt=install_weak_deps=False $packages
    dnf clean all
fi

[ "$stage" = run ] || exit 0

# Debian and Ubuntu call it by its version.
for program in clang clang++; do
    versioned=$(command -v "$program-15" || true)
    [ -z "$versioned" ] || ln -sf "$versioned" "/usr/local/bin/$program"
done

# The driver gives the devices to user and group 1000, and HCCL needs the user to have
# a name. Some bases have a user 1000 already.
getent group 1000 >/dev/null || groupadd --gid 1000 vllm
useradd --non-unique --uid 1000 --gid 1000 --create-home --home-dir /home/vllm vllm
