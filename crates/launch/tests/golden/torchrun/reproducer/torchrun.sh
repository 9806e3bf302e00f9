#!/usr/bin/env bash
# Run bringup: engine command (python3 -m nemo_automodel.recipes.llm.benchmark --benchmark.json_output_path /tmp/summary-{node}.json), 16 nodes of 8 ranks, profile nebius-h100.
# Start it once on each node. Outputs go to $EXPERTRAIL_OUT, else to out/ beside this file.
# Written by `expertrail render torchrun`: change run.toml and render again rather than this file.
# Note: no interface is named for the bootstrap: NCCL, Gloo and NVSHMEM each look for one. Where they find one that other nodes do not reach, set network.interface to that of the route between the nodes (on a node: ip route get ADDRESS-OF-ANOTHER)
# shellcheck disable=SC2015,SC2016,SC2029,SC2034,SC2054,SC2317,SC2329
set -uo pipefail

run_id=bringup
fail() {
    echo "expertrail: $2" >&2
    exit "$1"
}

pid='' stopped=0 first=0 summary=()
stop() {
    # What runs first: words may go to a reader that is gone.
    [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null
    stopped=130
    [ "$SECONDS" -lt 1800 ] || stopped=124
    echo "expertrail: told to stop after $SECONDS s; stopping what runs" >&2
}
trap stop TERM INT HUP
# Not ignored but caught: what this starts gets the signal as usual.
trap : PIPE

# step NAME COMMAND...: runs one command to its end and keeps its exit code. In the background, because a shell acts on a signal only
# between commands.
step() {
    local name=$1 code started=$SECONDS
    shift
    [ "$stopped" = 0 ] || return 1
    echo "=== step $name"
    "$@" &
    pid=$!
    wait "$pid"
    code=$?
    # A signal ends the wait, not the step.
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid"
        code=$?
    done
    pid=''
    # Ranks that were stopped at the time limit have codes of their own, and those say nothing.
    [ "$code" = 0 ] || [ "$SECONDS" -lt 1800 ] || [ "$stopped" != 0 ] || stopped=124
    summary+=("step $name: exit code $code after $((SECONDS - started)) s")
    [ "$first" != 0 ] || first=$code
    return "$code"
}

# first_exit: code and rank of the process that was the first to fail, of those that said how they ended. Others were stopped because of it,
# and a launcher gives the highest code of all, or its own.
first_exit() {
    cat "$host_out"/exit/*.json 2>/dev/null | tr -d '",' | awk '
        $1 == "code:" { code = $2 }
        $1 == "rank:" { rank = $2 }
        $1 == "seconds:" { seconds = $2 + 0 }
        $1 == "signal:" { signal = $2 }
        $1 == "}" {
            if (code == "null") code = signal == "null" ? 0 : 128 + signal
            if (code != 0 && (first == "" || seconds < least)) { first = code; least = seconds; who = rank }
        }
        END { if (first != "") print first, who }'
}

# ranks NAME COMMAND...: a step of ranks; the exit code that is kept is that of the rank which failed first.
ranks() {
    local name=$1 code='' who='' before=$first
    if ! step "$@"; then
        read -r code who < <(first_exit)
        if [ -n "$code" ]; then
            [ "$before" != 0 ] || first=$code
            summary+=("step $name: the first to fail was rank $who, with exit code $code")
        fi
        echo "step $name failed: see: expertrail diagnose $host_out/logs"
    fi
}

# finish: says how each step ended; ends with the first failure's exit code, 124 at the time limit, 130 when stopped before.
finish() {
    printf '%s\n' "=== end of $run_id" "${summary[@]}" "outputs: $host_out"
    [ "$stopped" = 0 ] || exit "$stopped"
    exit "$first"
}

dir=$(cd -- "$(dirname -- "$0")" && pwd)
cd "$dir" && grep -q '"id": "bringup"' run.json || fail 4 "$dir has no run.json of bringup: the files of the run must lie there"
files=$dir binary=expertrail
[ -n "${MASTER_ADDR:-}" ] || fail 2 "set MASTER_ADDR to an address of the first node that all nodes reach (or hosts.names in run.toml)"
case ${NODE_RANK:-} in
    '' | *[!0-9]*) fail 2 "nothing tells which node this is: set NODE_RANK, 0 to 15, another on each node" ;;
esac
[ "$NODE_RANK" -le 15 ] || fail 2 "NODE_RANK=$NODE_RANK: the run has 16 nodes, numbered from 0"
out=${EXPERTRAIL_OUT:-$dir/out}
mkdir -p "$out/logs" && out=$(cd -- "$out" && pwd) || fail 4 "cannot write $out"
host_out=$out
# Exit codes of an earlier start would be read as those of this one.
mkdir "$out/started-node$NODE_RANK" 2>/dev/null || fail 2 "$out has the outputs of an earlier start: move it away, or set EXPERTRAIL_OUT to another directory"
echo "node $NODE_RANK of run $run_id, rendezvous $MASTER_ADDR, outputs in $out"

# Variables of all ranks. No list of HCAs among them: each rank gets its own, in its process.
export NVSHMEM_HCA_OFFSET=0 # GPU N uses mlx5_(N+0): profile or facts
export NVSHMEM_IB_ENABLE_IBGDA=1 # GPUs post to the NIC themselves
export NCCL_IB_HCA='=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1' # the rails, without the frontend (nebius-h100); with = a name means itself alone
export UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1 # the rails, without the frontend (nebius-h100)
export NCCL_IB_DISABLE=0 # never fall back to sockets unseen
export NCCL_NVLS_ENABLE=1 # NVLink SHARP within the node
export UCX_MEMTYPE_CACHE=n # guide
export NVSHMEM_BOOTSTRAP=UID # no MPI needed
export NVSHMEM_ENABLE_NIC_PE_MAPPING=1 # without it NVSHMEM ignores the list of HCAs
export NVSHMEM_REMOTE_TRANSPORT=ibrc # host transport, beside IBGDA: walk through the host set-up
export NVSHMEM_IBGDA_NIC_HANDLER=gpu # missing driver parameters fail instead of slowing down: walk through the host set-up
export NOTE='it'\''s $HOME; "quoted"' # [env] of run.toml

command -v torchrun >/dev/null || fail 4 "no torchrun on this node: activate the environment that has PyTorch"
command -v "$binary" >/dev/null || fail 4 "no $binary on this node: install expertrail here, or set hosts.binary to its path"

# kept LOG COMMAND...: its output here and in a log; no longer than the run may take in all. 124 is then its exit code.
kept() {
    local log=$1 left=$((1800 - SECONDS))
    shift
    [ "$left" -gt 0 ] || left=1
    exec timeout --kill-after=30 "$left" "$@" > >(tee -a "$out/logs/$log-node$NODE_RANK.log") 2>&1
}

step preflight kept preflight "$binary" worker preflight \
    --nodes 16 \
    --out "$out" \
    --preflight report \
    --for deepep-ibgda \
    --node-rank "$NODE_RANK"
# preflight = "report": what it found is in the outputs; the run goes on.
[ "$first" = 0 ] || echo "the preflight itself ended with exit code $first: the run goes on"
first=0

# command: 128 ranks; RANK and WORLD_SIZE count ranks; each rank gets its NIC in its own process.
# A static rendezvous, not c10d: that one numbers nodes in the order in which they come, and NODE_RANK would mean nothing.
# 900 s for all nodes to come, as long as a first pull of an image may take. --no-python: each rank goes through the worker,
# which gives it its NIC before its program starts.
ranks command kept command torchrun \
    --nnodes=16 --nproc_per_node=8 --node_rank="$NODE_RANK" \
    --master_addr="$MASTER_ADDR" --master_port=29400 --rdzv_id="$run_id" --rdzv_conf=timeout=900 \
    --log_dir="$out/logs/command-ranks-node$NODE_RANK" --tee=3 --no-python -- \
    "$binary" worker rank \
    --run-id bringup \
    --ranks-per-node 8 \
    --contract ranks \
    --master "$MASTER_ADDR" \
    --master-port 29400 \
    --pins mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1 \
    --record "$out" \
    --require-hca-active \
    -- python3 -m nemo_automodel.recipes.llm.benchmark --benchmark.json_output_path '/tmp/summary-{node}.json'
# Files outside the outputs.
export NODE_RANK
sh -c 'to=$2/collected/node-$NODE_RANK; mkdir -p "$to"; for file in /tmp/summary-$NODE_RANK.json; do if [ -f "$file" ]; then cp -- "$file" "$to"; else echo "node $NODE_RANK: $file is not collected: no such file"; fi; done' sh "$files" "$out"

finish
