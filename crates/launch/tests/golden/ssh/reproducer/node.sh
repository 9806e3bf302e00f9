#!/bin/sh
# Run bringup: engine command (python3 -m nemo_automodel.recipes.llm.benchmark --benchmark.json_output_path /tmp/summary-{node}.json), 16 nodes of 8 ranks, profile nebius-h100.
# The part of one node; ssh.sh hands it to a shell there: STEP NODE MASTER DIRECTORY OUTPUTS BINARY.
# Written by `expertrail render ssh`: change run.toml and render again rather than this file.
# Note: no interface is named for the bootstrap: NCCL, Gloo and NVSHMEM each look for one. Where they find one that other nodes do not reach, set network.interface to that of the route between the nodes (on a node: ip route get ADDRESS-OF-ANOTHER)
# shellcheck disable=SC2015,SC2016,SC2029,SC2034,SC2054,SC2317,SC2329
set -u
step=$1 node=$2 MASTER_ADDR=$3 files=$4 out=$5 binary=$6
cd "$files" && mkdir -p "$out" || { echo "expertrail: no $files on $(hostname): ssh.sh --copy makes it" >&2; exit 4; }
command -v "$binary" >/dev/null || { echo "expertrail: no $binary on $(hostname): ssh.sh --copy brings it, or set hosts.binary to its path" >&2; exit 4; }
# By this the processes of one start are told from those of another.
export EXPERTRAIL_OUT="$out"
# ssh.sh stops the worker by this number: the shell becomes the worker.
echo "$$" >"$out/worker-$node.pid"

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

case $step in
preflight)
    exec "$binary" worker preflight \
        --nodes 16 \
        --out "$out" \
        --preflight report \
        --for deepep-ibgda \
        --frames \
        --node-rank "$node"
    ;;
command)
    # command: 128 ranks; RANK and WORLD_SIZE count ranks; each rank gets its NIC in its own process.
    exec "$binary" worker node \
        --run-id bringup \
        --nodes 16 \
        --ranks-per-node 8 \
        --contract ranks \
        --master "$MASTER_ADDR" \
        --master-port 29400 \
        --pins mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1 \
        --out "$out" \
        --preflight off \
        --for deepep-ibgda \
        --timeout 1800 \
        --collect '/tmp/summary-{node}.json' \
        --frames \
        --require-hca-active \
        --node-rank "$node" \
        -- python3 -m nemo_automodel.recipes.llm.benchmark --benchmark.json_output_path '/tmp/summary-{node}.json'
    ;;
*)
    echo "expertrail: no step $step in this run" >&2
    exit 2
    ;;
esac
