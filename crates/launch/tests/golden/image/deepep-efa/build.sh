#!/usr/bin/env bash
# Builds the image deepep-efa. It copies the binary of expertrail into this folder first: EXPERTRAIL_BINARY names it (default: the
# expertrail on PATH), built for glibc 2.28 by scripts/build-release of the checkout.
#
#   ./build.sh [more arguments of the build, such as --build-arg MAX_JOBS=4]
#
# TAG names the image (default deepep:efa1.48.0). To keep it in a registry, give TAG the registry's whole name:
#   Docker Hub, GHCR, ECR    HOST/OWNER/NAME:TAG, as the registry shows it
#   Crusoe (CCR)             registry.REGION.ccr.crusoecloudcompute.com/REPOSITORY.PROJECT/IMAGE:TAG, PROJECT being the first 8 characters
#                            of the project's id; user: the account's e-mail, password: a registry token
# A cluster pulls from a private one with `pull_secret = "deepep-pull"` in run.toml, a secret of type docker-registry in the namespace.
set -euo pipefail
cd "$(dirname "$0")"

tag=${TAG:-deepep:efa1.48.0}
binary=${EXPERTRAIL_BINARY:-$(command -v expertrail || true)}
if [ -z "$binary" ] || [ ! -x "$binary" ]; then
    echo "error: no expertrail binary${binary:+ at $binary}: name it with EXPERTRAIL_BINARY=..." >&2
    exit 2
fi
if [ ! "$binary" -ef expertrail ]; then
    cp "$binary" expertrail
fi
if [ -z "${SETUP_SHA256:-}" ]; then
    echo "error: SETUP_SHA256 is not set: it is the sha256 of the setup_deepep_efa.sh that you have read (see Containerfile)" >&2
    exit 2
fi
if command -v docker > /dev/null; then
    engine=docker
elif command -v podman > /dev/null; then
    engine=podman
else
    echo "error: neither docker nor podman is on PATH" >&2
    exit 4
fi
# RUN --mount needs BuildKit; podman has it in any case.
export DOCKER_BUILDKIT=1
exec "$engine" build -f Containerfile -t "$tag" --build-arg "SETUP_SHA256=$SETUP_SHA256" "$@" .
