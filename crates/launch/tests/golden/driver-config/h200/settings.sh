# shellcheck shell=bash disable=SC2034
# Settings of the scripts in this folder, as rendered. Those in ${...} can be given in the environment, too.
RENDERED_CONTEXT=
NAMESPACE=nvidia-gpu-operator
KIND=nvidiadrivers.nvidia.com
SPEC=.spec
SELECTOR=.spec.nodeSelector
LABEL=app.kubernetes.io/component=nvidia-driver
CONFIG_MAP=nvidia-kernel-params
GDRCOPY_REPOSITORY=nvcr.io/nvidia/cloud-native
GDRCOPY_IMAGE=gdrdrv
GDRCOPY_VERSION=v2.5.1
CONTEXT=${CONTEXT:-} # which cluster; no script takes the current context by itself
RESOURCE=${RESOURCE:-} # driver resource; empty: chosen by STATUS and SKU
SKU=${SKU:-h200} # kind of GPU, as in the name or selector of the resource; empty: any
QUALIFICATION=${QUALIFICATION:-'burn-?in|qualif|acceptance'} # how tests are known that must never be deleted
SETTLE=${SETTLE:-60} # seconds that module loaders need after their start
WAIT=${WAIT:-900} # seconds to wait for one node's driver pod
POLL=${POLL:-5} # seconds between looks
