#!/usr/bin/env bash
# Run bringup: engine command (python3 -m nemo_automodel.recipes.llm.benchmark --benchmark.json_output_path /tmp/summary-{node}.json), 16 nodes of 8 ranks, profile nebius-h100.
# Start it on one host; Open MPI 4 and 5. Outputs go to $EXPERTRAIL_OUT, else to out-TIME beside this file.
# Written by `expertrail render mpirun`: change run.toml and render again rather than this file.
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
hosts=()
while read -r host _; do
    case $host in
        '' | '#'*) ;;
        HOST[0-9]*) fail 2 "hostfile still has the placeholder $host: put the names of your 16 hosts there, the first has rank 0" ;;
        *) hosts+=("$host") ;;
    esac
done <"$dir/hostfile"
[ "${#hosts[@]}" = 16 ] || fail 2 "hostfile has ${#hosts[@]} hosts and the run is for 16: name each once; for another number set nodes in run.toml and render again"
MASTER_ADDR=${hosts[0]}
# A new one for each start: outputs of two never mix.
out=${EXPERTRAIL_OUT:-$dir/out-$(date +%Y%m%d-%H%M%S)}
[ ! -e "$out/logs" ] || fail 2 "$out has the outputs of an earlier start: set EXPERTRAIL_OUT to another directory"
mkdir -p "$out/logs" && out=$(cd -- "$out" && pwd) || fail 4 "cannot write $out"
host_out=$out

command -v mpirun >/dev/null || fail 4 "no mpirun on this host: install Open MPI, or set hosts.mpirun to its path"
echo "run $run_id on ${hosts[*]}, rendezvous $MASTER_ADDR, port 29400, outputs in $out"

# Processes that mpirun starts over ssh inherit nothing: every variable is named. No list of HCAs among them: each rank gets its own, in its
# process.
mpi=(mpirun --hostfile "$dir/hostfile" --bind-to none --tag-output -x PATH)
[ -z "${LD_LIBRARY_PATH:-}" ] || mpi+=(-x LD_LIBRARY_PATH)
[ -z "${LD_PRELOAD:-}" ] || mpi+=(-x LD_PRELOAD)
# Open MPI refuses root unless asked.
[ "$(id -u)" != 0 ] || mpi+=(--allow-run-as-root)
mpi+=(-x NVSHMEM_HCA_OFFSET=0) # GPU N uses mlx5_(N+0): profile or facts
mpi+=(-x NVSHMEM_IB_ENABLE_IBGDA=1) # GPUs post to the NIC themselves
mpi+=(-x NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1) # the rails, without the frontend (nebius-h100); with = a name means itself alone
mpi+=(-x UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1) # the rails, without the frontend (nebius-h100)
mpi+=(-x NCCL_IB_DISABLE=0) # never fall back to sockets unseen
mpi+=(-x NCCL_NVLS_ENABLE=1) # NVLink SHARP within the node
mpi+=(-x UCX_MEMTYPE_CACHE=n) # guide
mpi+=(-x NVSHMEM_BOOTSTRAP=UID) # no MPI needed
mpi+=(-x NVSHMEM_ENABLE_NIC_PE_MAPPING=1) # without it NVSHMEM ignores the list of HCAs
mpi+=(-x NVSHMEM_REMOTE_TRANSPORT=ibrc) # host transport, beside IBGDA: walk through the host set-up
mpi+=(-x NVSHMEM_IBGDA_NIC_HANDLER=gpu) # missing driver parameters fail instead of slowing down: walk through the host set-up
mpi+=(-x 'NOTE=it'\''s $HOME; "quoted"') # [env] of run.toml

# kept LOG COMMAND...: its output here and in a log; no longer than the run may take in all. 124 is then its exit code.
kept() {
    local log=$1 left=$((1800 - SECONDS))
    shift
    [ "$left" -gt 0 ] || left=1
    exec timeout --kill-after=30 "$left" "$@" > >(tee -a "$out/logs/$log.log") 2>&1
}

step preflight kept preflight "${mpi[@]}" -np 16 --map-by ppr:1:node \
    "$binary" worker preflight \
    --nodes 16 \
    --out "$out" \
    --preflight report \
    --for deepep-ibgda
# preflight = "report": what it found is in the outputs; the run goes on.
[ "$first" = 0 ] || echo "the preflight itself ended with exit code $first: the run goes on"
first=0

# command: 128 ranks; RANK and WORLD_SIZE count ranks; each rank gets its NIC in its own process.
ranks command kept command "${mpi[@]}" -np 128 --map-by ppr:8:node \
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
# Files outside the outputs, from each node.
"${mpi[@]}" -np 16 --map-by ppr:1:node \
    sh -c 'to=$2/collected/node-$OMPI_COMM_WORLD_RANK; mkdir -p "$to"; for file in /tmp/summary-$OMPI_COMM_WORLD_RANK.json; do if [ -f "$file" ]; then cp -- "$file" "$to"; else echo "node $OMPI_COMM_WORLD_RANK: $file is not collected: no such file"; fi; done' sh "$files" "$out"

finish
