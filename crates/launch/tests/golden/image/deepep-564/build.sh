#!/usr/bin/env bash
# Builds the image deepep-564 as TAG (default deepep:sm90-nvshmem365-564). `./build.sh --help` prints README.txt beside it: what to give it and what to expect.
#
#   ./build.sh [more arguments of the build, such as --build-arg MAX_JOBS=4]
set -euo pipefail
cd "$(dirname "$0")"

case "${1:-}" in
    -h | --help) exec cat README.txt ;;
esac

tag=${TAG:-deepep:sm90-nvshmem365-564}
binary=${EXPERTRAIL_BINARY:-$(command -v expertrail || true)}
if [ -z "$binary" ] || [ ! -x "$binary" ]; then
    echo "error: no expertrail binary${binary:+ at $binary}: name it with EXPERTRAIL_BINARY=... (./build.sh --help)" >&2
    exit 2
fi
if [ ! "$binary" -ef expertrail ]; then
    cp "$binary" expertrail
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
exec "$engine" build -f Containerfile -t "$tag" "$@" .
