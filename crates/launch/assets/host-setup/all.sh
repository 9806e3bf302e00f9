#!/usr/bin/env bash
# Runs the numbered scripts in order. 70-runtime-restart.sh drains a node, so `apply` leaves it to you; `verify` includes it.
#
#   ./all.sh apply    stops at the first that fails
#   ./all.sh verify   runs all, and names those that fail
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
action=${1:-}
case $action in
    apply | verify) ;;
    *)
        echo "usage: $0 apply|verify" >&2
        exit 2
        ;;
esac
failed=''
for script in "$HERE"/[0-9][0-9]-*.sh; do
    name=${script##*/}
    if [ "$action" = apply ] && [ "$name" = 70-runtime-restart.sh ]; then
        echo "all: 70-runtime-restart.sh is left out: it drains the node. Run it by itself, with --yes."
        continue
    fi
    code=0
    "$script" "$action" || code=$?
    [ "$code" = 0 ] && continue
    if [ "$action" = apply ]; then
        echo "all: $name ended with exit code $code; the scripts after it were not run" >&2
        exit "$code"
    fi
    failed="$failed $name"
    # A failure weighs more than what could not be looked at.
    if [ -z "${worst:-}" ] || [ "$code" = 1 ]; then worst=$code; fi
done
if [ -n "$failed" ]; then
    echo "all: not in order:$failed" >&2
    exit "$worst"
fi
if [ "$action" = apply ]; then
    echo "all: applied. Stop and start the machine, then: $0 verify"
else
    echo "all: ok"
fi
