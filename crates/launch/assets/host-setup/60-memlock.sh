#!/usr/bin/env bash
# Lifts the limit of locked memory: for logins, for the container runtime, for slurmd.
#
# RDMA registers memory that must not move. Daemons have limits of their own, which what they start inherits: they must be restarted
# (the runtime: 70-runtime-restart.sh; slurmd: drain the node with scontrol, systemctl restart slurmd, resume).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"

LIMITS=/etc/security/limits.d/90-expertrail-memlock.conf

# `*` does not mean root in this file.
limits_text() { printf '* soft memlock unlimited\n* hard memlock unlimited\nroot soft memlock unlimited\nroot hard memlock unlimited\n'; }

# units: those of the daemons that this machine has.
units() {
    local unit
    for unit in "$RUNTIME" slurmd; do
        if has_unit "$unit"; then printf '%s\n' "$unit"; fi
    done
}

apply_it() {
    local unit before
    put "$LIMITS" "$(limits_text)"
    while IFS= read -r unit; do
        [ -n "$unit" ] || continue
        before=$CHANGED CHANGED=no
        put "$(memlock_path "$unit")" "$(memlock_text)"
        if [ $CHANGED = yes ]; then
            live systemctl daemon-reload || fail 1 "systemctl daemon-reload failed"
            say "$unit keeps its old limit until it is restarted, with the node drained"
        else
            CHANGED=$before
        fi
    done <<<"$(units)"
}

verify_it() {
    local unit limit
    limits_text | holds "$LIMITS" || bad "$LIMITS does not lift the limit: run $ME.sh apply"
    limit=$(ulimit -l)
    [ "$limit" = unlimited ] || bad "ulimit -l is $limit in this shell: log in again (the file is read at login)"
    while IFS= read -r unit; do
        [ -z "$unit" ] || unit_limit "$unit"
    done <<<"$(units)"
}

main "$@"
