#!/usr/bin/env bash
# OPTIONAL. Lets the driver manager itself evict GPU pods and pods with scratch data while it reloads a driver. Only for clusters
# where system pods with an emptyDir keep landing on GPU nodes.
#
# WARNING: a forced drain discards the local scratch data of every pod it evicts, on every later driver reload, unasked. It evicts
# qualification tests as well: they are the acceptance record of a node.
#
#   ./optional-drain-override.sh --context NAME [--resource NAME]         shows what it would do
#   ./optional-drain-override.sh --context NAME [--resource NAME] --yes   does it
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"
options "$@"
choose any
now=$(ask "$KIND $RESOURCE" get "$KIND" "$RESOURCE" -o "jsonpath={range $SPEC.manager.env[*]}{.name}{\"\\n\"}{end}")
# A merge patch replaces a list whole.
while IFS= read -r name; do
    [ -z "$name" ] || grep -q "\"$name\"" "$HERE/drain-override.json" ||
        fail 1 "$RESOURCE has manager.env $name, which the patch would remove. Render these files again with --kube: then it stays."
done <<<"$now"
printf 'WARNING: from then on every driver reload of %s evicts GPU pods and discards the scratch data (emptyDir) of evicted pods, qualification tests included.\n\n%s\n' "$RESOURCE" "$(cat "$HERE/drain-override.json")"
[ "$YES" = yes ] || fail 3 "nothing was changed; run it again with --yes"
kube patch "$KIND" "$RESOURCE" --type=merge --patch-file "$HERE/drain-override.json" || fail 1 "the patch was refused"
