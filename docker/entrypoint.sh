#!/bin/bash
# Sets up CANN and jemalloc, looks for driver and devices, says in one sentence what is
# missing, and becomes the command.
set -euo pipefail
root=${VLLM_BALANCE_ROOT:-} # where the tests put another root
ascend=$root/usr/local/Ascend
missing=()

# The vendor's scripts read variables that are not set.
load() {
    if [[ -r $1 ]]; then
        set +eu
        # shellcheck source=/dev/null
        source "$@"
        set -eu
    elif [[ -e $1 ]]; then
        missing+=("$1 cannot be read by user $(id -u) (let others read it)")
    else
        missing+=("there is no $1 (use a base image with CANN and its nnal)")
    fi
}

look_for_driver() {
    local folders=("$ascend"/driver/lib64{,/common,/driver})
    if [[ -z $(find "${folders[@]}" -maxdepth 1 -name libascend_hal.so 2>/dev/null) ]]; then
        missing+=("there is no libascend_hal.so below $ascend/driver (mount the host's driver: -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro)")
    fi
    local IFS=:
    export LD_LIBRARY_PATH="${folders[*]}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

look_for_devices() {
    local numbered=("$root"/dev/davinci[0-9]*) device
    [[ -e ${numbered[0]} ]] || numbered=("$root/dev/davinci0")
    for device in "$root"/dev/{davinci_manager,devmm_svm,hisi_hdc} "${numbered[0]}"; do
        if [[ ! -e $device ]]; then
            missing+=("there is no $device (pass --device $device, or use the vendor's container runtime)")
        elif [[ ! -r $device || ! -w $device ]]; then
            missing+=("user $(id -u) may not open $device (add its group: --group-add $(stat -c %g "$device"))")
        fi
    done
}

preload_jemalloc() {
    local library
    for library in "$root"/usr/lib/*-linux-gnu/libjemalloc.so.2 "$root"/usr/lib64/libjemalloc.so.2; do
        if [[ -e $library ]]; then
            export LD_PRELOAD=$library${LD_PRELOAD:+:$LD_PRELOAD}
            return
        fi
    done
    missing+=("there is no libjemalloc.so.2 (install jemalloc)")
}

if [[ $VLLM_BALANCE_IMAGE == ascend ]]; then
    load "$ascend/ascend-toolkit/set_env.sh"
    load "$ascend/nnal/atb/set_env.sh" "--cxx_abi=${ATB_CXX_ABI:-1}"
    compiler=${ASCEND_HOME_PATH:-}/share/info/ascendnpu-ir/bin/set_env.sh
    if [[ -r $compiler ]]; then load "$compiler"; fi # not in every release of CANN
    look_for_driver
    look_for_devices
fi
preload_jemalloc

# `vllm-balance info` and `verify` need no device.
if [[ ${#missing[@]} -gt 0 && ${1:-} != vllm-balance ]]; then
    printf -v all '%s; ' "${missing[@]}"
    printf 'vllm-balance: cannot start: %s\n' "${all%; }" >&2
    exit 1
fi
exec "$@"
