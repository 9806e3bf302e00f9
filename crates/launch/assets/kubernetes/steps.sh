first=0 # exit code of the first step that failed
child=
stopped=
# The shell is the container's first process: without a handler it would ignore the end of the pod, and the ranks with it.
trap 'stopped=yes; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT

# step NAME COMMAND...: runs one step of this node.
step() {
    name=$1
    shift
    [ -z "$stopped" ] || return 0
    echo "=== step $name on node $NODE_RANK ==="
    "$@" &
    child=$!
    [ -z "$stopped" ] || kill -TERM "$child" 2>/dev/null
    wait "$child"
    code=$?
    # A signal ends the wait, not the step.
    if [ -n "$stopped" ] && kill -0 "$child" 2>/dev/null; then
        wait "$child"
        code=$?
    fi
    child=
    echo "=== step $name on node $NODE_RANK: exit code $code ==="
    [ "$first" -ne 0 ] || first=$code
}

# Ends the pod with the first failure's exit code.
finish() {
    if [ -n "$stopped" ] && [ "$first" -eq 0 ]; then
        first=130
    fi
    hold=${EXPERTRAIL_HOLD_S:-30}
    if [ "$first" -ne 0 ] && [ -z "$stopped" ] && [ "$nodes" -gt 1 ] && [ "$hold" -gt 0 ]; then
        # Once one pod has failed, the Job controller deletes the others while they run, and their logs go with them.
        echo "=== node $NODE_RANK failed with exit code $first; it stays for $hold s, so that the other nodes can end and be read ==="
        sleep "$hold" &
        child=$!
        wait "$child"
    fi
    exit "$first"
}
