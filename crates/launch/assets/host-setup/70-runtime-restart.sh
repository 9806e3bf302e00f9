#!/usr/bin/env bash
# Restarts the container runtime with unlimited locked memory: drain, drop-in, restart, uncordon. Only with --yes.
#
#   ./70-runtime-restart.sh apply --yes [--node NAME]   on the node, with a kubectl that may drain it (CONTEXT= names its context)
#   ./70-runtime-restart.sh apply --yes --drained       on the node, when somebody has drained it from elsewhere
#   ./70-runtime-restart.sh verify [--node NAME]
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"

NODE_DRAIN_TIMEOUT=${NODE_DRAIN_TIMEOUT:-600}

kube() { live kubectl ${CONTEXT:+--context "$CONTEXT"} "$@"; }

# node_name: the node that this machine is.
node_name() {
    [ -n "$NODE" ] || NODE=$(live hostname) || fail 3 "hostname fails: give --node NAME"
}

needed() {
    local unit_before=$REASONS wrong
    unit_limit "$RUNTIME"
    wrong=$REASONS REASONS=$unit_before
    [ -n "$wrong" ]
}

restart() {
    put "$(memlock_path "$RUNTIME")" "$(memlock_text)"
    live systemctl daemon-reload || fail 1 "systemctl daemon-reload failed; the node is still drained"
    live systemctl restart "$RUNTIME.service" || fail 1 "$RUNTIME did not restart; the node is still drained. See journalctl -u $RUNTIME"
    CHANGED=yes
    say "restarted $RUNTIME"
    ! needed || fail 1 "$RUNTIME was restarted and still has another limit; the node is still drained. See ./60-memlock.sh verify"
}

apply_it() {
    local cordoned dry tests
    need systemctl "this machine does not run systemd; set the limit in what starts $RUNTIME"
    has_unit "$RUNTIME" || fail 1 "systemd knows no $RUNTIME.service: give RUNTIME= of the container runtime"
    if ! needed; then return 0; fi
    if [ "$DRAINED" = yes ]; then
        [ "$YES" = yes ] || fail 3 "would restart $RUNTIME on a node that was drained elsewhere; nothing was changed. Run it again with --yes."
        restart
        say "the node can be uncordoned now"
        return 0
    fi
    need kubectl "drain the node from elsewhere, then run this with --drained"
    node_name
    cordoned=$(kube get node "$NODE" -o 'jsonpath={.spec.unschedulable}') || fail 4 "kubectl cannot read node $NODE: wrong name (--node), or no access"
    if [ "$YES" != yes ]; then
        say "would drain $NODE, write $(memlock_path "$RUNTIME"), restart $RUNTIME, and uncordon $NODE. The drain would say:"
        dry=$(kube drain "$NODE" --ignore-daemonsets --dry-run=client 2>&1) || true
        printf '%s\n' "$dry"
        fail 3 "nothing was changed. Run it again with --yes when the node may be emptied."
    fi
    tests=$(kube get pods --all-namespaces --field-selector "spec.nodeName=$NODE,status.phase=Running" -o 'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{"\n"}{end}') ||
        fail 4 "kubectl cannot list the pods on $NODE"
    tests=$(printf '%s\n' "$tests" | grep -iE 'burn-?in|qualif|acceptance' || true)
    [ -z "$tests" ] || fail 1 "a qualification test runs on $NODE, which a drain would end: $tests. Wait until it is over."
    # No --force and no --delete-emptydir-data: what a drain refuses is for a person to decide.
    if ! kube drain "$NODE" --ignore-daemonsets --timeout="${NODE_DRAIN_TIMEOUT}s"; then
        if [ "$cordoned" = true ]; then
            fail 1 "the drain of $NODE was refused; the runtime was not restarted. The node stays cordoned, as it was."
        fi
        kube uncordon "$NODE" || fail 1 "the drain of $NODE was refused and the node is still cordoned: kubectl uncordon $NODE"
        fail 1 "the drain of $NODE was refused (see above); the runtime was not restarted, the node takes pods again"
    fi
    trap 'say "stopped: $NODE is still cordoned. When $RUNTIME runs: kubectl uncordon $NODE" >&2; exit 130' INT TERM
    restart
    trap - INT TERM
    if [ "$cordoned" = true ]; then
        say "$NODE was cordoned before and stays so"
    else
        kube uncordon "$NODE" || fail 1 "$RUNTIME is restarted, but $NODE is still cordoned: kubectl uncordon $NODE"
    fi
}

verify_it() {
    local answer
    need systemctl "this machine does not run systemd"
    has_unit "$RUNTIME" || fail 1 "systemd knows no $RUNTIME.service: give RUNTIME= of the container runtime"
    unit_limit "$RUNTIME"
    if [ "$(live systemctl is-active "$RUNTIME.service" 2>/dev/null || true)" != active ]; then bad "$RUNTIME does not run"; fi
    have kubectl || { say "no kubectl here: whether the node takes pods was not looked at"; return 0; }
    node_name
    if answer=$(kube get node "$NODE" -o 'jsonpath={.spec.unschedulable}|{.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null); then
        case $answer in
            true*) bad "node $NODE is cordoned: kubectl uncordon $NODE" ;;
            *'|True') ;;
            *) bad "node $NODE is not Ready" ;;
        esac
    else
        say "kubectl cannot read node $NODE: whether it takes pods was not looked at"
    fi
}

main "$@"
