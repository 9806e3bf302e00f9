#!/usr/bin/env bash
# Run bringup: engine deepep (intranode, internode), 2 nodes of 8 ranks, profile crusoe-b200.
# Start it on any host that reaches the others: ssh.sh [--copy]. Outputs go to $EXPERTRAIL_OUT, else to out-TIME beside this file.
# Written by `expertrail render ssh`: change run.toml and render again rather than this file.
# Note: no interface is named for the bootstrap: NCCL, Gloo and NVSHMEM each look for one. Where they find one that other nodes do not reach, set network.interface to that of the route between the nodes (on a node: ip route get ADDRESS-OF-ANOTHER)
# shellcheck disable=SC2015,SC2016,SC2029,SC2034,SC2054,SC2317,SC2329
set -uo pipefail

run_id=bringup timeout_s=1200
fail() {
    echo "expertrail: $2" >&2
    exit "$1"
}

dir=$(cd -- "$(dirname -- "$0")" && pwd)
cd "$dir" && grep -q '"id": "bringup"' run.json || fail 4 "$dir has no run.json of bringup: start ssh.sh in its own directory"
# Where the files of the run lie on the hosts, and the binary.
directory=$dir binary=expertrail
hosts=()
while read -r host _; do
    case $host in
        '' | '#'*) ;;
        HOST[0-9]*) fail 2 "hostfile still has the placeholder $host: put the names of your 2 hosts there, the first has rank 0" ;;
        *) hosts+=("$host") ;;
    esac
done <"$dir/hostfile"
[ "${#hosts[@]}" = 2 ] || fail 2 "hostfile has ${#hosts[@]} hosts and the run is for 2: name each once; for another number set nodes in run.toml and render again"
MASTER_ADDR=${hosts[0]}
# A new one for each start: outputs of two never mix.
out=${EXPERTRAIL_OUT:-$dir/out-$(date +%Y%m%d-%H%M%S)}
[ ! -e "$out/logs" ] || fail 2 "$out has the outputs of an earlier start: set EXPERTRAIL_OUT to another directory"
mkdir -p "$out/logs" && out=$(cd -- "$out" && pwd) || fail 4 "cannot write $out"
ssh=(-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15)
copied=(run.json deepep_bench.py)

stopped=0 stopped_at=0 first=0 summary=() running=() halts=()

# quoted TEXT: as one word of the shell at the other end.
quoted() {
    printf "'%s'" "${1//\'/\'\\\'\'}"
}

# on HOST COMMAND: runs it there.
on() {
    ssh "${ssh[@]}" "$1" "$2"
}

# halt SIGNAL SECONDS: sends the workers of this step a signal; a host that does not answer in time is given up. Only a worker that has these
# outputs among its arguments gets it: another process may have its number by now.
halt() {
    local node command
    for node in "${running[@]}"; do
        [ -e "$out/codes/$node" ] && continue
        # shellcheck disable=SC2016 # expanded there
        command='pid=$(cat "$2/worker-$1.pid") && tr "\0" "\n" <"/proc/$pid/cmdline" | grep -qxF -e "$2" && kill -'$1' "$pid"'
        timeout "$2" ssh "${ssh[@]}" "${hosts[node]}" "sh -c $(quoted "$command") sh $node $(quoted "$remote_out")" </dev/null >/dev/null 2>&1 &
        halts+=("$!")
    done
}

# The workers first: words may go to a reader that is gone.
stop() {
    halt TERM 20
    [ "$stopped" != 0 ] || stopped_at=$SECONDS
    stopped=130
    echo "expertrail: told to stop after $SECONDS s; stopping the workers on all hosts" >&2
}

# leave: whatever ends this script, no worker stays because nobody told it.
leave() {
    local code=$?
    trap '' TERM INT HUP
    halts=()
    halt TERM 5
    [ "${#halts[@]}" = 0 ] || wait "${halts[@]}"
    exit "$code"
}
trap stop TERM INT HUP
trap leave EXIT
# Not ignored but caught: what this starts gets the signal as usual.
trap : PIPE

# node STEP NODE: the worker of one node. Lines are marked with the node; files in the log are kept in the log and not shown.
node() {
    local step=$1 node=$2 code words=''
    local word
    for word in "$step" "$node" "$MASTER_ADDR" "$directory" "$remote_out" "$binary"; do
        words+=" $(quoted "$word")"
    done
    on "${hosts[node]}" "exec sh -s --$words" <"$dir/node.sh" 2>&1 | tee "$out/logs/$step-node$node.log" |
        sed -u -e '/^::expertrail-file /d' -e "s/^/[node $node] /"
    code=${PIPESTATUS[0]}
    [ "$code" != 255 ] || echo "[node $node] ssh to ${hosts[node]} failed or was cut" >&2
    echo "$code" >"$out/codes/$node"
}

# phase STEP NODES: one worker on each of the first so many hosts, all at once. After the first failure the others have 30 s to say what they
# saw; nothing runs longer than the run may take.
phase() {
    local step=$1 nodes=$2 node code began=$SECONDS failed='' failed_at=0 done_count told=0
    [ "$stopped" = 0 ] || return 0
    echo "=== step $step"
    rm -rf "$out/codes"
    mkdir -p "$out/codes"
    running=()
    for ((node = 0; node < nodes; node++)); do
        running+=("$node")
        node "$step" "$node" &
    done
    while :; do
        done_count=0
        for node in "${running[@]}"; do
            [ -s "$out/codes/$node" ] || continue
            done_count=$((done_count + 1))
            code=$(cat "$out/codes/$node")
            if [ "$code" != 0 ] && [ -z "$failed" ]; then
                failed=$node failed_at=$SECONDS
                [ "$first" != 0 ] || first=$code
            fi
        done
        [ "$done_count" -lt "$nodes" ] || break
        if [ "$told" = 0 ] && [ -n "$failed" ] && [ $((SECONDS - failed_at)) -ge 30 ]; then
            echo "expertrail: node $failed failed 30 s ago; stopping the others" >&2
            told=1
            halt TERM 20
        fi
        # The workers have this deadline too; here it counts for those that do not answer.
        if [ "$stopped" = 0 ] && [ "$SECONDS" -ge $((timeout_s + 30)) ]; then
            echo "expertrail: the run's $timeout_s s are over; stopping the workers on all hosts" >&2
            stopped=124 stopped_at=$SECONDS
            halt TERM 20
        fi
        # One that does not even stop is killed, its ranks with it, and left behind rather than waited for.
        if [ "$stopped" != 0 ] && [ $((SECONDS - stopped_at)) -ge 60 ]; then
            halts=()
            halt KILL 5
            [ "${#halts[@]}" = 0 ] || wait "${halts[@]}"
            sleep 1
            for node in "${running[@]}"; do
                [ -e "$out/codes/$node" ] || echo "expertrail: left behind on ${hosts[node]}" >&2
            done
            break
        fi
        sleep 0.2
    done
    for node in "${running[@]}"; do
        code=$(cat "$out/codes/$node" 2>/dev/null)
        summary+=("step $step: node $node (${hosts[node]}): exit code ${code:-unknown}")
    done
    summary+=("step $step took $((SECONDS - began)) s${failed:+; the first failure is that of node $failed}")
    running=()
}

finish() {
    rm -rf "$out/codes"
    printf '%s\n' "=== end of $run_id" "${summary[@]}" "outputs: $out"
    [ "$stopped" = 0 ] || exit "$stopped"
    exit "$first"
}

remote_out=$directory/${out##*/}
case ${1:-} in
    '') ;;
    --copy)
        source=${EXPERTRAIL_BINARY:-$(command -v "$binary" || command -v expertrail)} || fail 4 "no expertrail on this host to copy: set EXPERTRAIL_BINARY to its path"
        binary=$directory/expertrail
        for host in "${hosts[@]}"; do
            on "$host" "mkdir -p $(quoted "$directory")" </dev/null || fail 4 "cannot make $directory on $host: ssh $host must work without a question"
            scp -q "${ssh[@]}" "${copied[@]}" "$host:$directory/" || fail 4 "cannot copy the files of the run to $host:$directory"
            scp -q "${ssh[@]}" "$source" "$host:$binary.new" && on "$host" "mv $(quoted "$binary.new") $(quoted "$binary")" </dev/null ||
                fail 4 "cannot copy $source to $host:$binary"
            echo "copied to $host:$directory"
        done
        ;;
    *) fail 2 "usage: ssh.sh [--copy]" ;;
esac
echo "run $run_id on ${hosts[*]}, outputs in $out"

phase preflight 2
# preflight = "report": what it found is in the logs; the run goes on. A host that cannot be reached ends it.
[ "$first" != 255 ] || finish
first=0
phase deepep 2
finish
