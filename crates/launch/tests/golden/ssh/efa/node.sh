#!/bin/sh
# Run bringup: engine deepep (intranode, internode, low-latency), 2 nodes of 8 ranks, profile aws-p5en.
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

# Variables of all ranks. No list of HCAs among them: each rank gets its own, in its process.
export FI_PROVIDER=efa # libfabric's provider
export NVSHMEM_REMOTE_TRANSPORT=libfabric # EFA has no IBGDA
export NVSHMEM_LIBFABRIC_PROVIDER=efa # NVSHMEM's libfabric transport
export NVSHMEM_NETDEVS_POLICY=EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE # each rank takes the NIC under its PCIe switch
export NVIDIA_GDRCOPY=enabled # the container runtime hands in /dev/gdrdrv
export NCCL_SOCKET_IFNAME=^docker,lo,veth # interface that nodes meet over, never a rail

case $step in
preflight)
    exec "$binary" worker preflight \
        --nodes 2 \
        --out "$out" \
        --preflight report \
        --for deepep-efa \
        --frames \
        --node-rank "$node"
    ;;
intranode)
    # intranode: one process on 1 node, which starts its 8 ranks itself; RANK and WORLD_SIZE count nodes.
    exec "$binary" worker node \
        --run-id bringup \
        --nodes 1 \
        --ranks-per-node 8 \
        --contract nodes \
        --master "$MASTER_ADDR" \
        --master-port 29400 \
        --out "$out" \
        --preflight off \
        --for deepep-efa \
        --timeout 1200 \
        --frames \
        --node-rank "$node" \
        -- python3 /DeepEP/tests/test_intranode.py
    ;;
internode)
    # internode: one process on each of 2 nodes, which starts its 8 ranks itself; RANK and WORLD_SIZE count nodes.
    exec "$binary" worker node \
        --run-id bringup \
        --nodes 2 \
        --ranks-per-node 8 \
        --contract nodes \
        --master "$MASTER_ADDR" \
        --master-port 29400 \
        --out "$out" \
        --preflight off \
        --for deepep-efa \
        --timeout 1200 \
        --frames \
        --node-rank "$node" \
        -- python3 /DeepEP/tests/test_internode.py
    ;;
low-latency)
    # low-latency: one process on each of 2 nodes, which starts its 8 ranks itself; RANK and WORLD_SIZE count nodes.
    exec "$binary" worker node \
        --run-id bringup \
        --nodes 2 \
        --ranks-per-node 8 \
        --contract nodes \
        --master "$MASTER_ADDR" \
        --master-port 29400 \
        --out "$out" \
        --preflight off \
        --for deepep-efa \
        --timeout 1200 \
        --frames \
        --node-rank "$node" \
        -- python3 /DeepEP/tests/test_low_latency.py
    ;;
*)
    echo "expertrail: no step $step in this run" >&2
    exit 2
    ;;
esac
