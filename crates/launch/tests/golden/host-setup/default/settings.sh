# shellcheck shell=bash disable=SC2034
# Settings of the scripts in this folder, as rendered. Each can be given in the environment, too.
CUDA=${CUDA:-/usr/local/cuda} # folder of the CUDA toolkit
PYTHON=${PYTHON:-python3} # Python that jobs use; a virtual environment's, where the system's is closed
NVSHMEM_PIN=${NVSHMEM_PIN:-3.4.5} # version of NVSHMEM; empty: the newest
ARCH=${ARCH:-} # 9.0 Hopper, 10.0 Blackwell; empty: what nvidia-smi says
GDRCOPY_TAG=${GDRCOPY_TAG:-v2.5.1} # version of GDRCopy
GDRCOPY_COMMIT=${GDRCOPY_COMMIT:-} # commit that the tag must be
GDRCOPY_URL=${GDRCOPY_URL:-https://github.com/NVIDIA/gdrcopy.git} # where it is cloned from
DWORDS=${DWORDS:-} # entries of RegistryDwords that must stay beside ours, `;` between them
RUNTIME=${RUNTIME:-containerd} # systemd unit of the container runtime
