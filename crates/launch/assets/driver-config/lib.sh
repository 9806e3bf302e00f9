# shellcheck shell=bash
# shellcheck disable=SC2034,SC2153 # names in capitals come from settings.sh, or are for the scripts that read this
# What the scripts of this folder share. It is read by them and does nothing by itself.
#
# Exit codes: 0 done or right, 1 something is wrong or in the way, 2 usage, 3 nothing was changed (no --yes), 4 no access.

# One separator that no name of Kubernetes has. A tab would do worse: `read` joins neighbouring tabs, and an empty field is lost.
BAR='|'

fail() {
    local code=$1
    shift
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit "$code"
}

lower() { printf '%s' "$1" | tr '[:upper:]' '[:lower:]'; }

# options ARGUMENT...: sets YES, NOT_READY, CONTEXT, RESOURCE and NODES.
options() {
    YES=no NOT_READY=no NODES=''
    while [ $# -gt 0 ]; do
        case $1 in
            --yes) YES=yes ;;
            --not-ready) NOT_READY=yes ;;
            --context | --resource | --node)
                [ $# -ge 2 ] || fail 2 "$1 needs a value"
                case $1 in
                    --context) CONTEXT=$2 ;;
                    --resource) RESOURCE=$2 ;;
                    --node) NODES="$NODES $2" ;;
                esac
                shift
                ;;
            *) fail 2 "unknown argument $1: known are --context NAME, --resource NAME, --node NAME, --not-ready, --yes" ;;
        esac
        shift
    done
    [ -n "$CONTEXT" ] || fail 2 "no context: give --context NAME (see kubectl config get-contexts). The current one is never taken by itself."
    if [ -n "$RENDERED_CONTEXT" ] && [ "$CONTEXT" != "$RENDERED_CONTEXT" ]; then
        fail 2 "these files were rendered for context $RENDERED_CONTEXT, not $CONTEXT: render them again for the other cluster"
    fi
    command -v kubectl >/dev/null || fail 4 "kubectl is not on PATH: install it, or run this where it is"
}

# Without input: it would take that of the loop it is called in.
kube() { kubectl --context "$CONTEXT" "$@" </dev/null; }

indent() {
    local line
    while IFS= read -r line; do printf '    %s\n' "$line"; done
}

# ask WHAT ARGUMENT...: kubectl's answer; WHAT says in the message what could not be read.
ask() {
    local what=$1 answer
    shift
    answer=$(kube "$@") || fail 4 "cannot read $what in context $CONTEXT (kubectl said why above)"
    # The newline that $( ) takes away is the last line's end; `while read` needs it.
    [ -z "$answer" ] || printf '%s\n' "$answer"
}

# fits_sku TEXT: whether TEXT names the kind of GPU that is wanted. h20 is not h200, and b200 is not gb200.
fits_sku() {
    [[ $(lower "$1") =~ (^|[^a-z0-9])$(lower "$SKU")([^0-9]|$) ]]
}

# choose ready|any: sets RESOURCE, FOUND_STATE and FOUND_SELECTOR to those of the driver resource that is meant. Where that is not
# exactly one, lists them and refuses.
choose() {
    local state_wanted=$1 all name state config selector mark count=0 named=no found='' listing=''
    [ "$NOT_READY" = no ] || state_wanted=any
    all=$(ask "driver resources ($KIND)" get "$KIND" -o "jsonpath={range .items[*]}{.metadata.name}|{.status.state}|{$SPEC.kernelModuleConfig.name}|{$SELECTOR}{\"\\n\"}{end}") || exit $?
    [ -n "$all" ] || fail 1 "the cluster has no $KIND: see whether the GPU Operator manages drivers here (expertrail check --kube), or use the files for a host"
    while IFS=$BAR read -r name state config selector; do
        mark=''
        if [ -n "$RESOURCE" ]; then
            [ "$name" != "$RESOURCE" ] || { named=yes found=$name count=1 mark='<- named' FOUND_STATE=$state FOUND_SELECTOR=$selector; }
        elif { [ -z "$SKU" ] || fits_sku "$name $selector"; } && { [ "$state_wanted" = any ] || [ "$(lower "$state")" = ready ]; }; then
            # A name may promise what the selector does not: nodes go by the selector.
            if [ -n "$SKU" ] && [[ $selector == *nvidia.com/gpu.product* ]] && ! fits_sku "$selector"; then
                mark="<- its name fits $SKU, its selector does not"
            else
                found=$name count=$((count + 1)) mark='<- fits' FOUND_STATE=$state FOUND_SELECTOR=$selector
            fi
        fi
        listing="$listing$(printf '\n  %-24s STATUS %-10s kernelModuleConfig %-24s %s %s' "$name" "${state:-none}" "${config:-none}" "$selector" "$mark")"
    done <<<"$all"
    if [ -n "$RESOURCE" ] && [ "$named" = no ]; then
        fail 1 "there is no $KIND $RESOURCE; there are:$listing"
    fi
    case $count in
        1) RESOURCE=$found ;;
        0) fail 1 "no $KIND fits (kind of GPU: ${SKU:-any}; STATUS: $state_wanted). After a patch it may be notReady until its pods are recycled: --not-ready allows that. Or name the one that backs your nodes with --resource:$listing" ;;
        *) fail 1 "$count of these fit (kind of GPU: ${SKU:-any}). Name the one that backs your nodes with --resource:$listing" ;;
    esac
    if [ "$state_wanted" = ready ] && [ "$(lower "${FOUND_STATE:-}")" != ready ]; then
        fail 1 "the STATUS of $RESOURCE is ${FOUND_STATE:-none}, not ready: it may back no node, or its pods fail. Find out first; --not-ready patches it all the same."
    fi
}

# settings_of: what the driver resource says now, in the order of wanted_settings.
settings_of() {
    ask "$KIND $RESOURCE" get "$KIND" "$RESOURCE" -o "jsonpath={.spec.gdrcopy.enabled}|{.spec.gdrcopy.repository}|{.spec.gdrcopy.image}|{.spec.gdrcopy.version}|{$SPEC.kernelModuleConfig.name}|{$SPEC.rdma.enabled}"
}

wanted_settings() {
    printf 'true|%s|%s|%s|%s|true' "$GDRCOPY_REPOSITORY" "$GDRCOPY_IMAGE" "$GDRCOPY_VERSION" "$CONFIG_MAP"
}

# sets_of: the DaemonSets of the driver resource, a line each: name and the names of their containers.
sets_of() {
    local all name owner containers
    all=$(ask "DaemonSets in $NAMESPACE" -n "$NAMESPACE" get daemonsets -o "jsonpath={range .items[*]}{.metadata.name}|{.metadata.ownerReferences[*].name}|{.spec.template.spec.containers[*].name}{\"\\n\"}{end}") || exit $?
    while IFS=$BAR read -r name owner containers; do
        if [ "$owner" = "$RESOURCE" ] && [[ " $containers " == *' nvidia-driver-ctr '* ]]; then
            printf '%s|%s\n' "$name" "$containers"
        fi
    done <<<"$all"
}

# pods_of [NODE]: driver pods, a line each:
# name|node|uid|containers|ready|started|init containers that wait|deleted at|owner
# Where RESOURCE is set and its DaemonSets are known, only theirs.
pods_of() {
    local node=${1:-} all line owner sets=''
    local path='{range .items[*]}{.metadata.name}|{.spec.nodeName}|{.metadata.uid}|{.spec.containers[*].name}|{.status.containerStatuses[*].ready}|{.status.containerStatuses[*].state.running.startedAt}|{.status.initContainerStatuses[*].state.waiting.reason}|{.metadata.deletionTimestamp}|{.metadata.ownerReferences[*].name}{"\n"}{end}'
    if [ -n "$node" ]; then
        all=$(ask "driver pods" -n "$NAMESPACE" get pods -l "$LABEL" --field-selector "spec.nodeName=$node" -o "jsonpath=$path") || exit $?
    else
        all=$(ask "driver pods" -n "$NAMESPACE" get pods -l "$LABEL" -o "jsonpath=$path") || exit $?
    fi
    [ -z "$RESOURCE" ] || sets=$(sets_of) || exit $?
    while IFS= read -r line; do
        owner=${line##*"$BAR"}
        if [ -n "$line" ] && { [ -z "$sets" ] || [[ $'\n'$sets == *$'\n'"$owner|"* ]]; }; then
            printf '%s\n' "$line"
        fi
    done <<<"$all"
}

# workloads NODE: what stands in the way of a driver reload on the node, a line each: kind|namespace/name|what it is.
#   qualification  a burn-in or acceptance test: the node's record, never to be deleted
#   gpu            uses GPUs
#   emptydir       has scratch data: a drain refuses it
#   bare           no controller would make it again: a drain refuses it
# Pods of DaemonSets and finished pods do not stop a drain.
workloads() {
    local all space name phase owner scratch claims mirror labels limits kind
    all=$(ask "pods on $1" get pods --all-namespaces --field-selector "spec.nodeName=$1" -o 'jsonpath={range .items[*]}{.metadata.namespace}|{.metadata.name}|{.status.phase}|{.metadata.ownerReferences[*].kind}|{.spec.volumes[*].emptyDir}|{.spec.resourceClaims[*].name}|{.metadata.annotations.kubernetes\.io/config\.mirror}|{.metadata.labels}|{.spec.containers[*].resources.limits} {.spec.initContainers[*].resources.limits}{"\n"}{end}') || exit $?
    while IFS=$BAR read -r space name phase owner scratch claims mirror labels limits; do
        case $phase in '' | Succeeded | Failed) continue ;; esac
        [ -z "$mirror" ] || continue
        kind=''
        if [[ $limits =~ nvidia\.com/(gpu(\.shared)?|mig-[a-z0-9.]+)\"?:\"?[1-9] ]] || [ -n "$claims" ]; then
            kind=gpu
        elif [ "$owner" = DaemonSet ]; then
            continue
        elif [ -n "$scratch" ]; then
            kind=emptydir
        elif [ -z "$owner" ]; then
            kind=bare
        fi
        [ -n "$kind" ] || continue
        if [[ $(lower "$space/$name $labels") =~ $QUALIFICATION ]]; then kind=qualification; fi
        printf '%s|%s/%s|%s, %s\n' "$kind" "$space" "$name" "${owner:-no controller}" "$phase"
    done <<<"$all"
}

# explain KIND: what to do about it.
explain() {
    case $1 in
        qualification) printf 'a qualification test: NEVER delete it, it is the acceptance record of the node; wait until it has ended' ;;
        gpu) printf 'uses GPUs: wait until it has ended, or stop the job' ;;
        emptydir) printf 'has an emptyDir: the drain refuses it. Cordon the node, delete this pod so that its controller makes it elsewhere, uncordon after 3/3' ;;
        bare) printf 'no controller would make it again: the drain refuses it. Ask its owner' ;;
    esac
}

# epoch TIME: seconds since 1970 of a time as Kubernetes writes it (`date -d` is GNU only).
epoch() {
    local t=$1 y m d
    y=$((10#${t:0:4})) m=$((10#${t:5:2})) d=$((10#${t:8:2}))
    if [ "$m" -gt 2 ]; then m=$((m - 3)); else m=$((m + 9)) y=$((y - 1)); fi
    printf '%d' $((((365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + d - 1 - 719468) * 24 + 10#${t:11:2}) * 3600 + 10#${t:14:2} * 60 + 10#${t:17:2}))
}

# settle TIMES: the loader containers need SETTLE seconds after their start before modules are there; waits what is left of that.
settle() {
    local time age rest=0 now
    now=$(date +%s)
    for time in $1; do
        age=$((now - $(epoch "$time")))
        # A clock that is behind the cluster's must not make this wait for ever.
        [ "$age" -ge 0 ] || age=0
        [ $((SETTLE - age)) -le "$rest" ] || rest=$((SETTLE - age))
    done
    if [ "$rest" -gt 0 ]; then
        printf 'a container of %s started less than %d s ago: waiting %d s for its modules\n' "$2" "$SETTLE" "$rest"
        sleep "$rest"
    fi
}

# look POD: sets PARAMS and MODULES to how many of two are right, or to ?, and WRONG to what is not.
look() {
    local text
    PARAMS='?' MODULES='?' WRONG=''
    if ! text=$(kube -n "$NAMESPACE" exec "$1" -c nvidia-driver-ctr -- cat /proc/driver/nvidia/params 2>/dev/null); then
        WRONG="/proc/driver/nvidia/params cannot be read in pod $1"
        return
    fi
    # Whole values: `EnableStreamMemOPs: 10` is not 1. Of RegistryDwords the entry alone counts, wherever it stands.
    PARAMS=$(printf '%s\n' "$text" | awk '
        $1 == "EnableStreamMemOPs:" { stream = ($2 == "1" && NF == 2) }
        $1 == "RegistryDwords:" {
            sub(/^[^"]*"/, ""); sub(/".*$/, "")
            count = split($0, entries, ";")
            for (i = 1; i <= count; i++) {
                gsub(/[ \t]/, "", entries[i])
                if (entries[i] ~ /^PeerMappingOverride=/) peer = (entries[i] == "PeerMappingOverride=1" || entries[i] == "PeerMappingOverride=0x1")
            }
        }
        END { print stream + peer, (stream ? "" : "EnableStreamMemOPs"), (peer ? "" : "PeerMappingOverride") }')
    case ${PARAMS%% *} in 2) ;; *) WRONG="not active in the loaded driver: $(printf '%s' "${PARAMS#* }" | xargs)" ;; esac
    PARAMS=${PARAMS%% *}
    if ! text=$(kube -n "$NAMESPACE" exec "$1" -c nvidia-driver-ctr -- cat /proc/modules 2>/dev/null); then
        WRONG="${WRONG:+$WRONG; }/proc/modules cannot be read in pod $1"
        return
    fi
    MODULES=$(printf '%s\n' "$text" | awk '
        $1 == "nvidia_peermem" { peermem = 1 }
        $1 == "gdrdrv" { gdrdrv = 1 }
        END { print peermem + gdrdrv, (peermem ? "" : "nvidia_peermem"), (gdrdrv ? "" : "gdrdrv") }')
    case ${MODULES%% *} in 2) ;; *) WRONG="${WRONG:+$WRONG; }not loaded: $(printf '%s' "${MODULES#* }" | xargs)" ;; esac
    MODULES=${MODULES%% *}
}

# all_ready CONTAINERS READY: three containers, all of them ready. Fewer are an old configuration.
all_ready() {
    local containers ready
    containers=$(printf '%s' "$1" | wc -w) ready=$(printf '%s\n' "$2" | tr ' ' '\n' | grep -cx true || true)
    [ "$containers" -ge 3 ] && [ "$ready" -eq "$containers" ]
}

# progress CONTAINERS READY: `2/3`.
progress() {
    printf '%d/%d' "$(printf '%s\n' "$2" | tr ' ' '\n' | grep -cx true || true)" "$(printf '%s' "$1" | wc -w)"
}
