#!/usr/bin/env bash
# Installs NVSHMEM's package of the CUDA toolkit's major version, and lets the dynamic linker find it.
#
# A package of another major loads and fails later, and so does a second copy that the linker finds first.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"

LINKER=/etc/ld.so.conf.d/expertrail-nvshmem.conf

# version_of PACKAGE: its version, or nothing.
version_of() {
    live "$PYTHON" -c 'import sys
from importlib import metadata
try:
    print(metadata.version(sys.argv[1]))
except metadata.PackageNotFoundError:
    pass' "$1"
}

# folder: where the package has its libraries.
folder() {
    live "$PYTHON" -c 'import importlib.util, os, sys
spec = importlib.util.find_spec("nvidia.nvshmem") if importlib.util.find_spec("nvidia") else None
places = list(spec.submodule_search_locations or []) if spec else []
sys.stdout.write(os.path.join(places[0], "lib") if places else "")'
}

apply_it() {
    local major package other version lib wanted
    major=$(cuda_major)
    package=nvidia-nvshmem-cu$major
    need "$PYTHON" "give PYTHON= of the Python that jobs use"
    for other in 11 12 13 14; do
        if [ "$other" != "$major" ] && [ -n "$(version_of "nvidia-nvshmem-cu$other")" ]; then
            fail 1 "nvidia-nvshmem-cu$other is installed, CUDA is $major: both write the same files. Uninstall it first: $PYTHON -m pip uninstall nvidia-nvshmem-cu$other"
        fi
    done
    version=$(version_of "$package")
    if [ -n "$version" ] && { [ -z "$NVSHMEM_PIN" ] || [ "$version" = "$NVSHMEM_PIN" ]; }; then
        say "unchanged $package $version"
    else
        wanted=$package${NVSHMEM_PIN:+==$NVSHMEM_PIN}
        live "$PYTHON" -m pip install --quiet "$wanted" ||
            fail 1 "pip did not install $wanted (where it says externally managed: give PYTHON= of a virtual environment)"
        CHANGED=yes
        say "installed $wanted"
    fi
    lib=$(folder)
    [ -n "$lib" ] || fail 1 "$package is installed, but $PYTHON finds no module nvidia.nvshmem"
    put "$LINKER" "$lib"
    if ! stamped nvshmem-linker "$lib"; then
        need ldconfig "it belongs to the C library"
        live ldconfig || fail 1 "ldconfig failed"
        stamp nvshmem-linker "$lib"
        CHANGED=yes
    fi
}

verify_it() {
    local major package version lib found first other path
    major=$(cuda_major)
    package=nvidia-nvshmem-cu$major
    need "$PYTHON" "give PYTHON= of the Python that jobs use"
    version=$(version_of "$package")
    [ -n "$version" ] || bad "$package is not installed for $PYTHON (CUDA is $major): run $ME.sh apply"
    if [ -n "$version" ] && [ -n "$NVSHMEM_PIN" ] && [ "$version" != "$NVSHMEM_PIN" ]; then
        bad "$package is $version, wanted $NVSHMEM_PIN"
    fi
    for other in 11 12 13 14; do
        [ "$other" = "$major" ] || [ -z "$(version_of "nvidia-nvshmem-cu$other")" ] || bad "nvidia-nvshmem-cu$other is installed as well, CUDA is $major"
    done
    lib=$(folder)
    if [ -z "$lib" ] || [ ! -e "$ROOT$lib/libnvshmem_host.so.3" ]; then
        bad "there is no libnvshmem_host.so.3 in ${lib:-any folder of $PYTHON}"
        return 0
    fi
    need ldconfig "it belongs to the C library"
    found=$(live ldconfig -p | sed -n 's/^[[:space:]]*libnvshmem_host\.so\.3 .*=> //p')
    first=${found%%$'\n'*}
    if [ -z "$first" ]; then
        bad "the dynamic linker does not find libnvshmem_host.so.3: $LINKER must name $lib, then ldconfig"
    elif [ "$first" != "$lib/libnvshmem_host.so.3" ]; then
        bad "the dynamic linker finds another copy first: $first, not $lib/libnvshmem_host.so.3"
    fi
    # LD_LIBRARY_PATH comes before the linker's cache.
    while IFS= read -r path; do
        if [ -n "$path" ] && [ "$path" != "$lib" ] && [ -e "$ROOT$path/libnvshmem_host.so.3" ]; then
            bad "LD_LIBRARY_PATH has another copy in front: $path/libnvshmem_host.so.3"
        fi
        [ "$path" != "$lib" ] || break
    done <<<"$(printf '%s' "${LD_LIBRARY_PATH:-}" | tr ':' '\n')"
    say "$package $version in $lib"
}

main "$@"
