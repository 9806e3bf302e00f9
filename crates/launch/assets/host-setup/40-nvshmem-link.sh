#!/usr/bin/env bash
# Sets NVSHMEM_DIR and NVSHMEM_HOME for logins, and links libnvshmem_host.so to the library that the package has.
#
# DeepEP's set-up reads NVSHMEM_DIR; documents and other programs say NVSHMEM_HOME. The package has libnvshmem_host.so.3 only, and
# the linker looks for the name without the number.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"

PROFILE=/etc/profile.d/expertrail-nvshmem.sh

# folder: where the package is.
folder() {
    live "$PYTHON" -c 'import importlib.util, sys
spec = importlib.util.find_spec("nvidia.nvshmem") if importlib.util.find_spec("nvidia") else None
places = list(spec.submodule_search_locations or []) if spec else []
sys.stdout.write(places[0] if places else "")'
}

profile_text() { printf "export NVSHMEM_DIR='%s'\nexport NVSHMEM_HOME='%s'\n" "$1" "$1"; }

apply_it() {
    local home link
    need "$PYTHON" "give PYTHON= of the Python that jobs use"
    home=$(folder)
    [ -n "$home" ] || fail 1 "$PYTHON has no NVSHMEM: run 30-nvshmem.sh apply first"
    [ -e "$ROOT$home/lib/libnvshmem_host.so.3" ] || fail 1 "there is no $home/lib/libnvshmem_host.so.3: another version of NVSHMEM?"
    put "$PROFILE" "$(profile_text "$home")"
    link=$ROOT$home/lib/libnvshmem_host.so
    if [ "$(readlink "$link" 2>/dev/null || true)" = libnvshmem_host.so.3 ]; then
        say "unchanged $home/lib/libnvshmem_host.so"
    elif [ -e "$link" ] && [ ! -L "$link" ]; then
        fail 1 "$home/lib/libnvshmem_host.so is a file of its own: it is not replaced. See which package has it."
    else
        ln -sfn libnvshmem_host.so.3 "$link" || fail 4 "cannot make $link"
        CHANGED=yes
        say "linked $home/lib/libnvshmem_host.so -> libnvshmem_host.so.3"
    fi
}

verify_it() {
    local home name value
    need "$PYTHON" "give PYTHON= of the Python that jobs use"
    home=$(folder)
    if [ -z "$home" ]; then
        bad "$PYTHON has no NVSHMEM: run 30-nvshmem.sh apply first"
        return 0
    fi
    profile_text "$home" | holds "$PROFILE" || bad "$PROFILE does not set NVSHMEM_DIR and NVSHMEM_HOME to $home: run $ME.sh apply"
    [ "$(readlink "$ROOT$home/lib/libnvshmem_host.so" 2>/dev/null || true)" = libnvshmem_host.so.3 ] ||
        bad "$home/lib/libnvshmem_host.so is no link to libnvshmem_host.so.3: run $ME.sh apply"
    [ -e "$ROOT$home/lib/libnvshmem_host.so" ] || bad "$home/lib/libnvshmem_host.so leads nowhere"
    for name in NVSHMEM_DIR NVSHMEM_HOME; do
        value=${!name:-}
        [ -z "$value" ] || [ "$value" = "$home" ] || bad "$name is $value in this shell, not $home: log in again, or see what sets it"
    done
}

main "$@"
