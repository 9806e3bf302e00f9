#!/usr/bin/env bash
# Recycles driver pods one node at a time, so that they load the driver with the new configuration. A node that is in order already
# is left alone, so it can be run again after it stopped. Nodes that join later need none of this.
#
#   ./03-recycle.sh --context NAME [--resource NAME] [--node NAME]...         shows what it would do
#   ./03-recycle.sh --context NAME [--resource NAME] [--node NAME]... --yes   does it
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"
options "$@"
choose any

now=$(settings_of)
[ "$now" = "$(wanted_settings)" ] ||
    fail 1 "$RESOURCE is not patched (now $now): pods recycled before the patch come up 1/1 with the old configuration. Run ./01-apply.sh first."
# The patch changes the resource; the operator then changes the DaemonSet. A pod made in between is an old one.
sets=$(sets_of)
while IFS=$BAR read -r name containers; do
    [ -n "$name" ] || continue
    for wanted in nvidia-peermem-ctr nvidia-gdrcopy-ctr; do
        [[ " $containers " == *" $wanted "* ]] ||
            fail 1 "the DaemonSet $name has no container $wanted yet: the operator has not taken up the patch. Wait a minute, see its log, and run this again."
    done
done <<<"$sets"
overrides=$(ask "$KIND $RESOURCE" get "$KIND" "$RESOURCE" -o "jsonpath={range $SPEC.manager.env[*]}{.name}={.value} {end}")

# stuck POD: why its first container does not come up.
stuck() {
    local log
    log=$(kube -n "$NAMESPACE" logs "$1" -c k8s-driver-manager --previous --tail=40 2>/dev/null || true)
    indent <<<"$log"
    case $log in
        *'cannot delete Pods with local storage'* | *'drained from the node'*)
            echo "  The drain is blocked by the pods named above. Tests that end by themselves: wait, the pod tries again. Pods with an emptyDir that never end:"
            echo "  kubectl --context $CONTEXT cordon $2; delete the pod, so that its controller makes it elsewhere; uncordon after 3/3. Never delete a qualification test."
            echo "  For good: ./optional-drain-override.sh (it discards scratch data)."
            ;;
    esac
}

# wait_for NODE OLD_UID: waits for a new driver pod with all containers ready. 1/1 is named at once: waiting does not make it 3/3.
wait_for() {
    local node=$1 old=$2 rest=$WAIT all line pod uid containers ready started waiting shown='' state
    while :; do
        all=$(pods_of "$node")
        line=$(awk -F'|' -v old="$old" '$3 != old && $8 == "" && !found++' <<<"$all")
        IFS=$BAR read -r pod _ uid containers ready started waiting _ <<<"$line"
        if [ -n "${uid:-}" ]; then
            state="$pod $(progress "$containers" "$ready")${waiting:+ Init:$waiting}"
            [ "$state" = "$shown" ] || printf '    %s\n' "$state"
            shown=$state
            if [ "$(printf '%s' "$containers" | wc -w)" -lt 3 ]; then
                fail 1 "$node: the new pod $pod has $(printf '%s' "$containers" | wc -w) container(s) and goes 0/1 -> 1/1: the old configuration, it was made before the patch reached its DaemonSet. See ./01-apply.sh, then run this again."
            fi
            if all_ready "$containers" "$ready"; then
                settle "$started" "$pod"
                look "$pod"
                [ "$PARAMS" = 2 ] && [ "$MODULES" = 2 ] || fail 1 "$node: pod $pod is ready, but params=$PARAMS/2 modules=$MODULES/2 ($WRONG)"
                return 0
            fi
            case $waiting in
                *CrashLoopBackOff*)
                    stuck "$pod" "$node"
                    fail 1 "$node: pod $pod is in Init:CrashLoopBackOff. The nodes after it were not touched."
                    ;;
            esac
        fi
        if [ "$rest" -le 0 ]; then
            fail 1 "$node: no driver pod with 3/3 after $WAIT s (${shown:-no new pod}). The nodes after it were not touched. See kubectl --context $CONTEXT -n $NAMESPACE describe pod ${pod:-}"
        fi
        sleep "$POLL"
        rest=$((rest - (POLL > 0 ? POLL : 1)))
    done
}

pods=$(pods_of)
[ -n "$pods" ] || fail 1 "no driver pod has the label $LABEL in $NAMESPACE"
todo=0 done=0 count=0
while IFS=$BAR read -r pod node uid containers ready _; do
    if [ -n "$NODES" ] && [[ " $NODES " != *" $node "* ]]; then continue; fi
    count=$((count + 1))
    if all_ready "$containers" "$ready"; then
        look "$pod"
        if [ "$PARAMS" = 2 ] && [ "$MODULES" = 2 ]; then
            printf '%s  in order already: pod %s\n' "$node" "$pod"
            continue
        fi
    fi
    found=$(workloads "$node")
    # With the override the driver manager evicts pods with scratch data itself. GPU workloads stay a reason to refuse.
    if [[ " $overrides" == *' DRAIN_DELETE_EMPTYDIR_DATA=true '* ]]; then found=$(printf '%s\n' "$found" | grep -v '^emptydir|' || true); fi
    if [[ " $overrides" == *' DRAIN_USE_FORCE=true '* ]]; then found=$(printf '%s\n' "$found" | grep -v '^bare|' || true); fi
    if [ -n "$found" ]; then
        while IFS=$BAR read -r kind name what; do printf '%s  %-13s  %s (%s): %s\n' "$node" "$kind" "$name" "$what" "$(explain "$kind")" >&2; done <<<"$found"
        fail 1 "$node is not free: its driver pod was not recycled, nor those of the nodes after it ($done recycled)"
    fi
    todo=$((todo + 1))
    if [ "$YES" = no ]; then
        printf '%s  would delete pod %s and wait for 3/3\n' "$node" "$pod"
        continue
    fi
    printf '%s  deleting pod %s\n' "$node" "$pod"
    kube -n "$NAMESPACE" delete pod "$pod" --wait=true --timeout="${WAIT}s" || fail 1 "$node: pod $pod was not deleted"
    wait_for "$node" "$uid"
    done=$((done + 1))
    cordoned=$(ask "node $node" get node "$node" -o 'jsonpath={.spec.unschedulable}')
    [ "$cordoned" != true ] || printf '%s  is still cordoned; if that was the driver manager: kubectl --context %s uncordon %s\n' "$node" "$CONTEXT" "$node"
    printf '%s  3/3, params=2/2 modules=2/2\n' "$node"
done <<<"$pods"
[ "$count" -gt 0 ] || fail 2 "none of these nodes has a driver pod:$NODES"
[ "$YES" = yes ] || [ "$todo" = 0 ] || fail 3 "nothing was changed; run it again with --yes"
printf '%d recycled. Next: ./04-verify.sh\n' "$done"
