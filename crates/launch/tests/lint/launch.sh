#!/bin/sh
# Started by hand on each of two nodes.
export NVSHMEM_REMOTE_TRANSPORT=ibrc
export NVSHMEM_IB_ENABLE_IBGDA=1
export NCCL_SOCKET_IFNAME=eth0
export NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth0

mpirun -np 2 -N 1 --bind-to none --hostfile hosts \
  -x PATH -x LD_LIBRARY_PATH \
  -x NVSHMEM_REMOTE_TRANSPORT -x NVSHMEM_IB_ENABLE_IBGDA -x NCCL_SOCKET_IFNAME \
  -x NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME \
  -x MASTER_ADDR=node-a \
  bash -c 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE python3 tests/test_low_latency.py'
