#!/bin/sh
# Run bringup: engine expertrail (intranode), 2 nodes of 8 ranks, profile crusoe-h200.
# The part of one node; ssh.sh hands it to a shell there: STEP NODE MASTER DIRECTORY OUTPUTS BINARY.
# Written by `expertrail render ssh`: change run.toml and render again rather than this file.
# shellcheck disable=SC2015,SC2016,SC2029,SC2034,SC2054,SC2317,SC2329
set -u
step=$1 node=$2 MASTER_ADDR=$3 files=$4 out=$5 binary=$6
cd "$files" && mkdir -p "$out" || { echo "expertrail: no $files on $(hostname): ssh.sh --copy makes it" >&2; exit 4; }
command -v "$binary" >/dev/null || { echo "expertrail: no $binary on $(hostname): ssh.sh --copy brings it, or set hosts.binary to its path" >&2; exit 4; }
# By this the processes of one start are told from those of another.
export EXPERTRAIL_OUT="$out"
# ssh.sh stops the worker by this number: the shell becomes the worker.
echo "$$" >"$out/worker-$node.pid"

case $step in
preflight)
    exec "$binary" worker preflight \
        --nodes 2 \
        --out "$out" \
        --preflight report \
        --for expertrail \
        --frames \
        --node-rank "$node"
    ;;
intranode)
    # intranode: 16 ranks; RANK and WORLD_SIZE count ranks.
    exec "$binary" worker node \
        --run-id bringup \
        --nodes 2 \
        --ranks-per-node 8 \
        --contract ranks \
        --master "$MASTER_ADDR" \
        --master-port 29400 \
        --out "$out" \
        --preflight off \
        --for expertrail \
        --timeout 1200 \
        --collect "$out"/result-intranode.json \
        --frames \
        --node-rank "$node" \
        -- "$binary" bench --launched --scope node --preset guide-intranode --json "$out"/result-intranode.json
    ;;
*)
    echo "expertrail: no step $step in this run" >&2
    exit 2
    ;;
esac
