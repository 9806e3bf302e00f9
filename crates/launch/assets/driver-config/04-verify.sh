#!/usr/bin/env bash
# Shows for each node whether the loaded driver has both parameters and both modules. Run it again whenever nodes are added or
# replaced. Reads only.
#
#   ./04-verify.sh --context NAME [--resource NAME] [--node NAME]...
#
# A node in order:   <node>  ready=true/true/true params=2/2 modules=2/2
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"
options "$@"

# Without a name or a kind of GPU: all driver pods there are.
[ -z "$RESOURCE$SKU" ] || choose any
pods=$(pods_of)
[ -n "$pods" ] || fail 1 "no driver pod has the label $LABEL in $NAMESPACE"

width=0
while IFS=$BAR read -r _ node _; do [ "${#node}" -le "$width" ] || width=${#node}; done <<<"$pods"
bad='' seen=' ' count=0
while IFS=$BAR read -r pod node _ containers ready started _; do
    seen="$seen$node "
    if [ -n "$NODES" ] && [[ " $NODES " != *" $node "* ]]; then continue; fi
    count=$((count + 1))
    settle "$started" "$pod"
    look "$pod"
    printf "%-${width}s  ready=%s params=%s/2 modules=%s/2\n" "$node" "$(printf '%s' "${ready:-false}" | tr ' ' '/')" "$PARAMS" "$MODULES"
    if ! all_ready "$containers" "$ready"; then
        if [ "$(printf '%s' "$containers" | wc -w)" -lt 3 ]; then
            bad="$bad
  $node: pod $pod is $(progress "$containers" "$ready"), not 3/3: the old configuration, recycled before the patch. ./01-apply.sh, then ./03-recycle.sh --node $node"
        else
            bad="$bad
  $node: pod $pod is $(progress "$containers" "$ready"): not all containers are ready"
        fi
    elif [ "$PARAMS" != 2 ] || [ "$MODULES" != 2 ]; then
        bad="$bad
  $node: $WRONG. Restart its driver pod: ./03-recycle.sh --context $CONTEXT --node $node"
    fi
done <<<"$pods"
if [ -z "$NODES" ]; then
    # {"nvidia.com/gpu.product":"NVIDIA-H200"} -> ,nvidia.com/gpu.product=NVIDIA-H200
    selector=$(printf '%s' "${FOUND_SELECTOR:-}" | sed 's/^map//; s/[][{}"]//g; s/:/=/g; s/ /,/g')
    nodes=$(ask "nodes with GPUs" get nodes -l "nvidia.com/gpu.present=true${selector:+,$selector}" -o 'jsonpath={range .items[*]}{.metadata.name}|{.metadata.labels.nvidia\.com/gpu\.deploy\.driver}{"\n"}{end}')
    while IFS=$BAR read -r node own; do
        [ -n "$node" ] || continue
        case $own in false | pre-installed) continue ;; esac
        case $seen in *" $node "*) ;; *) bad="$bad
  $node: has GPUs and no driver pod" ;; esac
    done <<<"$nodes"
fi
[ "$count" -gt 0 ] || fail 2 "none of these nodes has a driver pod:$NODES"
if [ -n "$bad" ]; then
    fail 1 "not in order:$bad"
fi
printf '%d nodes in order.\n' "$count"
