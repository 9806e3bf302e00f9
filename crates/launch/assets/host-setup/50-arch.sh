#!/usr/bin/env bash
# Sets TORCH_CUDA_ARCH_LIST for logins: 9.0 for Hopper, 10.0 for Blackwell.
#
# Code for another architecture builds and then ends in "no kernel image is available" or "named symbol not found".
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"

PROFILE=/etc/profile.d/expertrail-arch.sh

# capabilities: what the GPUs of this machine are, each once.
capabilities() {
    have nvidia-smi || return 0
    live nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | xargs || true
}

# wanted: the architecture that is set, or that of the GPUs.
wanted() {
    local found
    found=${ARCH:-$(capabilities)}
    case $found in
        '') fail 3 "nvidia-smi names no GPU on this machine: give ARCH=9.0 (Hopper) or ARCH=10.0 (Blackwell)" ;;
        *' '*) fail 1 "this machine has GPUs of several kinds ($found): give ARCH= of those that jobs use" ;;
    esac
    printf '%s' "$found"
}

profile_text() { printf "export TORCH_CUDA_ARCH_LIST='%s'\n" "$1"; }

apply_it() {
    local arch
    arch=$(wanted)
    put "$PROFILE" "$(profile_text "$arch")"
}

verify_it() {
    local arch found
    arch=$(wanted)
    profile_text "$arch" | holds "$PROFILE" || bad "$PROFILE does not set TORCH_CUDA_ARCH_LIST=$arch: run $ME.sh apply"
    found=$(capabilities)
    case " $found " in
        '  ') say "no nvidia-smi here, or no GPU: $arch was not compared with the GPUs" ;;
        *" $arch "*) ;;
        *) bad "TORCH_CUDA_ARCH_LIST is $arch, the GPUs are $found" ;;
    esac
    [ -z "${TORCH_CUDA_ARCH_LIST:-}" ] || [ "$TORCH_CUDA_ARCH_LIST" = "$arch" ] ||
        bad "TORCH_CUDA_ARCH_LIST is $TORCH_CUDA_ARCH_LIST in this shell, not $arch: log in again, or see what sets it"
}

main "$@"
