#!/usr/bin/env bash
# Shows what would stand in the way of a driver reload, for each node that has a driver pod. Reads only. While a driver pod is
# recycled its node is cordoned and drained: a GPU workload blocks that, and the pod stays in Init:CrashLoopBackOff.
#
#   ./02-before-recycling.sh --context NAME [--resource NAME] [--node NAME]...
#
# Exit code 0: nothing is in the way. 1: something is.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"
options "$@"
choose any
pods=$(pods_of)
[ -n "$pods" ] || fail 1 "no driver pod has the label $LABEL in $NAMESPACE: see whether the driver is the operator's here"

busy=0 total=0
while IFS=$BAR read -r pod node _; do
    if [ -n "$NODES" ] && [[ " $NODES " != *" $node "* ]]; then continue; fi
    total=$((total + 1))
    found=$(workloads "$node")
    printf '%s  driver pod %s\n' "$node" "$pod"
    if [ -z "$found" ]; then
        echo "    nothing in the way"
        continue
    fi
    busy=$((busy + 1))
    while IFS=$BAR read -r kind name what; do
        printf '    %-13s  %s (%s)\n                   %s\n' "$kind" "$name" "$what" "$(explain "$kind")"
    done <<<"$found"
done <<<"$pods"
[ "$total" -gt 0 ] || fail 2 "none of these nodes has a driver pod:$NODES"
printf '\n%d of %d nodes have something in the way.\n' "$busy" "$total"
if [ "$busy" -gt 0 ]; then
    echo "Clear one node, recycle it to 3/3, then the next: what is moved off a node may land on another that is to be drained."
    exit 1
fi
echo "Next: ./03-recycle.sh"
