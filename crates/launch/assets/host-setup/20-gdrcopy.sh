#!/usr/bin/env bash
# Builds GDRCopy's packages against this machine's CUDA and driver, installs them, and loads gdrdrv now and at boot.
#
# verify wants /dev/gdrdrv, a module that was built for the driver that runs, and a run of gdrcopy_sanity without a failure.
# shellcheck disable=SC2016 # words in single quotes are expanded by the program that gets them
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"

MODULES=/etc/modules-load.d/expertrail-gdrdrv.conf

modules_text() { printf 'gdrdrv\n'; }

# installed PACKAGE: its version, or nothing.
installed() {
    if have dpkg-query; then
        live dpkg-query -W -f '${Status}|${Version}\n' "$1" 2>/dev/null | sed -n 's/^install ok installed|//p' || true
    elif have rpm; then
        live rpm -q --qf '%{VERSION}\n' "$1" 2>/dev/null || true
    fi
}

# new_enough VERSION: 2.5 or newer (the debs of v2.5.1 call themselves 2.5 or 2.5.1).
new_enough() {
    local major minor rest
    IFS=. read -r major minor rest <<<"${1#v}"
    minor=${minor%%[!0-9]*}
    case $major$minor in '' | *[!0-9]*) return 1 ;; esac
    [ "$major" -gt 2 ] || { [ "$major" -eq 2 ] && [ "${minor:-0}" -ge 5 ]; }
}

# missing_packages: those of the four that are not there in a version that will do.
missing_packages() {
    local package
    if have dpkg-query; then set -- gdrdrv-dkms libgdrapi gdrcopy-tests gdrcopy; else set -- gdrcopy gdrcopy-kmod; fi
    for package in "$@"; do
        new_enough "$(installed "$package")" || printf '%s ' "$package"
    done
}

# fetch FOLDER: the source of the tag, and that it is the commit it must be.
fetch() {
    local commit known
    need git "install git"
    live git clone --quiet --depth 1 --branch "$GDRCOPY_TAG" "$GDRCOPY_URL" "$1" ||
        fail 1 "git cannot clone $GDRCOPY_TAG of $GDRCOPY_URL: no way to the network from here? Give GDRCOPY_URL= of a mirror."
    commit=$(live git -C "$1" rev-parse HEAD) || fail 1 "git cannot tell the commit of $GDRCOPY_TAG"
    # A branch of that name would do for `clone`; only the tag is meant.
    [ "$(live git -C "$1" describe --tags --exact-match HEAD 2>/dev/null)" = "$GDRCOPY_TAG" ] ||
        fail 1 "what was cloned (commit $commit) is not the tag $GDRCOPY_TAG"
    known=${GDRCOPY_COMMIT:-$(cat "$ROOT$STATE/gdrcopy-$GDRCOPY_TAG" 2>/dev/null || true)}
    if [ -n "$known" ] && [ "$known" != "$commit" ]; then
        fail 1 "$GDRCOPY_TAG is commit $commit, it must be $known: the tag was moved, or the mirror is another. Nothing was built."
    fi
    [ -n "$known" ] || say "no commit was given for $GDRCOPY_TAG: built from $commit, and held to it from now on (GDRCOPY_COMMIT=$commit)"
    stamp "gdrcopy-$GDRCOPY_TAG" "$commit"
}

build() {
    local folder=$STATE/build missing file pattern source
    say "to be installed: $1"
    cuda_major >/dev/null
    source=$(inner "$folder/gdrcopy")
    # What an earlier attempt left: a clone into a folder that is there fails.
    if ! { rm -rf "$ROOT$STATE/build" && mkdir -p "$ROOT$folder"; }; then fail 4 "cannot make $folder anew"; fi
    fetch "$source"
    if have dpkg; then
        need debuild "apt-get install build-essential devscripts debhelper fakeroot pkg-config dkms"
        live env "CUDA=$CUDA" sh -c 'cd "$1/packages" && ./build-deb-packages.sh' sh "$source" ||
            fail 1 "build-deb-packages.sh failed; its folder is $folder"
        set --
        # In this order: gdrcopy needs the other three.
        for pattern in gdrdrv-dkms_ libgdrapi_ gdrcopy-tests_ gdrcopy_; do
            file=$(find "$ROOT$folder/gdrcopy/packages" -name "$pattern*.deb" | sort | head -n 1)
            [ -n "$file" ] || fail 1 "build-deb-packages.sh made no $pattern*.deb in $folder"
            set -- "$@" "$(inner "${file#"$ROOT"}")"
        done
        live dpkg -i "$@" || fail 1 "dpkg did not install $*; apt-get install -f gets what they depend on"
    elif have rpm; then
        need rpmbuild "dnf install rpm-build make dkms"
        live env "CUDA=$CUDA" sh -c 'cd "$1/packages" && ./build-rpm-packages.sh' sh "$source" ||
            fail 1 "build-rpm-packages.sh failed; its folder is $folder"
        live sh -c 'cd "$1/packages" && rpm -Uvh gdrcopy-kmod-*.rpm gdrcopy-[0-9]*.rpm' sh "$source" || fail 1 "rpm did not install GDRCopy"
    else
        fail 3 "there is neither dpkg nor rpm on this machine: build $GDRCOPY_TAG by hand"
    fi
    rm -rf "$ROOT$STATE/build"
    missing=$(missing_packages)
    [ -z "$missing" ] || fail 1 "still not installed: $missing"
    CHANGED=yes
    say "built and installed $GDRCOPY_TAG"
}

apply_it() {
    local missing
    missing=$(missing_packages)
    if [ -z "$missing" ]; then say "unchanged packages"; else build "$missing"; fi
    put "$MODULES" "$(modules_text)"
    if [ ! -c "$ROOT/dev/gdrdrv" ]; then
        need modprobe "install kmod"
        live modprobe gdrdrv || fail 1 "modprobe gdrdrv failed: see dmesg, and dkms status for whether it was built for this kernel"
        CHANGED=yes
    fi
}

verify_it() {
    local missing line output status=0 total passed failed waived
    missing=$(missing_packages)
    [ -z "$missing" ] || bad "not installed in version 2.5 or newer: $missing(run $ME.sh apply)"
    modules_text | holds "$MODULES" || bad "$MODULES does not name gdrdrv: run $ME.sh apply"
    if [ ! -e "$ROOT/dev/gdrdrv" ]; then
        bad "/dev/gdrdrv is not there: modprobe gdrdrv says why"
        return 0
    fi
    [ -c "$ROOT/dev/gdrdrv" ] || bad "/dev/gdrdrv is no character device: remove it and load gdrdrv again"
    # Built for the proprietary driver it loads beside the open one, and every pin fails.
    if grep -q 'Open Kernel Module' "$ROOT/proc/driver/nvidia/version" 2>/dev/null && have modinfo; then
        case $(live modinfo -F depends gdrdrv 2>/dev/null || true) in
            *nv-p2p-dummy*) bad "gdrdrv was built for the proprietary driver, the open one runs: build it again with the driver installed" ;;
        esac
    fi
    if ! have gdrcopy_sanity; then
        bad "there is no gdrcopy_sanity: the package gdrcopy-tests has it"
        return 0
    fi
    output=$(live gdrcopy_sanity 2>&1) || status=$?
    line=$(printf '%s\n' "$output" | sed -n 's/^Total: \([0-9]*\), Passed: \([0-9]*\), Failed: \([0-9]*\), Waived: \([0-9]*\).*/\1 \2 \3 \4/p' | tail -n 1)
    if [ -z "$line" ]; then
        bad "gdrcopy_sanity (exit code $status) printed no summary; its last line: $(printf '%s\n' "$output" | tail -n 1)"
        return 0
    fi
    read -r total passed failed waived <<<"$line"
    say "gdrcopy_sanity: Total: $total, Passed: $passed, Failed: $failed, Waived: $waived"
    if [ "$failed" -gt 0 ] || [ "$status" -ne 0 ] || [ "$passed" -eq 0 ] || [ $((passed + waived)) -ne "$total" ]; then
        bad "gdrcopy_sanity: $failed of $total failed, $passed passed, exit code $status"
    fi
}

main "$@"
