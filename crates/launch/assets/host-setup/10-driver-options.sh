#!/usr/bin/env bash
# Gives the driver EnableStreamMemOPs and PeerMappingOverride, loads nvidia_peermem at boot, and puts both into the initramfs.
#
# The driver reads its options when it is loaded, so the machine must be stopped and started afterwards. Until then verify says
# "configured but not active".
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"

FILE=/etc/modprobe.d/zz-nvidia-expertrail.conf
MODULES=/etc/modules-load.d/expertrail-gpudirect.conf

# `options nvidia` must be in front: a line with the parameters alone is no option of anything, and modprobe ignores it.
options_text() {
    printf '# Written by %s. Read after all others, so that its values stand.\n' 10-driver-options.sh
    printf 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;%s"\n' "${DWORDS:+${DWORDS%;};}"
}

modules_text() { printf 'nvidia_peermem\n'; }

# others: what other files set, a line each: file|line|kind|text. kind: naked (no `options nvidia`), wrong (another value of ours),
# more (entries of RegistryDwords that ours would hide; those in DWORDS are in ours).
others() {
    local file
    for file in "$ROOT"/etc/modprobe.d/*.conf "$ROOT"/run/modprobe.d/*.conf "$ROOT"/usr/lib/modprobe.d/*.conf "$ROOT"/lib/modprobe.d/*.conf; do
        [ -f "$file" ] && [ "$file" != "$ROOT$FILE" ] || continue
        awk -v file="${file#"$ROOT"}" -v kept=";$DWORDS;" '
            { line = $0; sub(/^[ \t]+/, "", line) }
            line ~ /^#/ { next }
            line ~ /^NVreg_/ { print file "|" NR "|naked|" line; next }
            line !~ /^options[ \t]+nvidia[ \t]/ { next }
            {
                if (match(line, /NVreg_EnableStreamMemOPs=[^ \t]*/)) {
                    value = substr(line, RSTART + 25, RLENGTH - 25)
                    if (value != "1") print file "|" NR "|wrong|" line
                }
                if (match(line, /NVreg_RegistryDwords=("[^"]*"|[^ \t]*)/)) {
                    value = substr(line, RSTART + 21, RLENGTH - 21)
                    gsub(/"/, "", value)
                    count = split(value, entries, ";")
                    for (i = 1; i <= count; i++) {
                        gsub(/[ \t]/, "", entries[i])
                        if (entries[i] == "" || entries[i] == "PeerMappingOverride=1" || index(kept, ";" entries[i] ";")) continue
                        print file "|" NR "|" (entries[i] ~ /^PeerMappingOverride=/ ? "wrong" : "more") "|" line
                    }
                }
            }' "$file"
    done
}

refresh_initramfs() {
    local sum
    sum=$(cat "$ROOT$FILE" "$ROOT$MODULES" | cksum)
    if stamped initramfs "$sum"; then
        say "unchanged initramfs"
        return 0
    fi
    # A driver that is loaded from the initramfs reads the copy of the options that is in there.
    if have update-initramfs; then
        live update-initramfs -u -k all || fail 1 "update-initramfs failed: the driver would start with the old options"
    elif have dracut; then
        live dracut -f --regenerate-all || fail 1 "dracut failed: the driver would start with the old options"
    else
        fail 3 "there is neither update-initramfs nor dracut on this machine: make its initramfs anew by its own means, the options are in $FILE"
    fi
    stamp initramfs "$sum"
    CHANGED=yes
    say "made the initramfs anew"
}

apply_it() {
    local found file line kind text
    found=$(others)
    while IFS='|' read -r file line kind text; do
        case $kind in
            naked) say "WARNING: $file:$line has no \`options nvidia\` in front, so modprobe ignores it: $text" ;;
            wrong) fail 1 "$file:$line sets another value: $text. Take that out (of two values the last one read counts), then run this again." ;;
            more) fail 1 "$file:$line has other RegistryDwords: $text. The driver takes one value, that of $FILE: set DWORDS in settings.sh to the entries that must stay (\`;\` between them), then run this again." ;;
        esac
    done <<<"$found"
    put "$FILE" "$(options_text)"
    put "$MODULES" "$(modules_text)"
    refresh_initramfs
    [ $CHANGED = no ] || say "NOW STOP AND START THE MACHINE (a virtual machine: stop and start it at the provider): the driver reads its options when it is loaded."
}

verify_it() {
    local file line kind text params=$ROOT/proc/driver/nvidia/params missing
    options_text | holds "$FILE" || bad "$FILE does not have the options: run $ME.sh apply"
    modules_text | holds "$MODULES" || bad "$MODULES does not name nvidia_peermem: run $ME.sh apply"
    while IFS='|' read -r file line kind text; do
        case $kind in wrong | more) bad "$file:$line sets other values: $text" ;; esac
    done <<<"$(others)"
    if [ ! -r "$params" ]; then
        bad "/proc/driver/nvidia/params is not there: no NVIDIA driver is loaded"
        return 0
    fi
    # Whole values: EnableStreamMemOPs: 10 is not 1.
    missing=$(awk '
        $1 == "EnableStreamMemOPs:" { stream = ($2 == "1" && NF == 2) }
        $1 == "RegistryDwords:" {
            sub(/^[^"]*"/, ""); sub(/".*$/, "")
            count = split($0, entries, ";")
            for (i = 1; i <= count; i++) {
                gsub(/[ \t]/, "", entries[i])
                if (entries[i] ~ /^PeerMappingOverride=/) peer = (entries[i] == "PeerMappingOverride=1" || entries[i] == "PeerMappingOverride=0x1")
            }
        }
        END { if (!stream) print "EnableStreamMemOPs"; if (!peer) print "PeerMappingOverride" }' "$params" | xargs)
    [ -z "$missing" ] || bad "configured but not active: $missing. The loaded driver has the old options: stop and start the machine. If it stays so, the initramfs has an old copy."
    grep -q '^nvidia_peermem ' "$ROOT/proc/modules" 2>/dev/null || bad "the module nvidia_peermem is not loaded: modprobe nvidia_peermem says why"
}

main "$@"
