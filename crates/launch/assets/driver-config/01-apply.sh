#!/usr/bin/env bash
# Gives the driver both parameters: the ConfigMap, then ONE merge patch of the driver resource with all three settings. A part of
# them would leave the driver inconsistent, and IBGDA would fail when a job runs. Running driver pods keep what they have until
# 03-recycle.sh.
#
#   ./01-apply.sh --context NAME [--resource NAME] [--not-ready]         shows what it would do
#   ./01-apply.sh --context NAME [--resource NAME] [--not-ready] --yes   does it
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=settings.sh
. "$HERE/settings.sh"
# shellcheck source=lib.sh
. "$HERE/lib.sh"
options "$@"

# lost_lines TEXT: lines of the ConfigMap there is that this folder's nvidia.conf does not have.
lost_lines() {
    local line key value entry ours
    ours=$(tr -d '" \t' <"$HERE/nvidia.conf")
    while IFS= read -r line; do
        line=$(printf '%s' "$line" | tr -d '" \t\r')
        case $line in '' | '#'*) continue ;; esac
        key=${line%%=*} value=${line#*=}
        case $key in
            NVreg_EnableStreamMemOPs) ;;
            NVreg_RegistryDwords)
                while IFS= read -r entry; do
                    case $entry in '' | PeerMappingOverride=*) continue ;; esac
                    grep -qE "^NVreg_RegistryDwords=(.*;)?$(printf '%s' "$entry" | sed 's/[][\.*^$+?(){}|/]/\\&/g')(;|\$)" <<<"$ours" || printf '    NVreg_RegistryDwords entry %s\n' "$entry"
                done <<<"$(printf '%s' "$value" | tr ';' '\n')"
                ;;
            *) grep -qxF -- "$line" <<<"$ours" || printf '    %s\n' "$line" ;;
        esac
    done <<<"$1"
}

choose ready
now=$(settings_of)
wanted=$(wanted_settings)
config_now=$(printf '%s' "$now" | cut -d "$BAR" -f 5)
if [ -n "$config_now" ] && [ "$config_now" != "$CONFIG_MAP" ]; then
    fail 1 "$RESOURCE names the ConfigMap $config_now already, these files were rendered for $CONFIG_MAP. Reuse it: expertrail render driver-config --kube --context $CONTEXT keeps its name and its other lines."
fi
text_now=$(ask "ConfigMap $CONFIG_MAP" -n "$NAMESPACE" get configmap "$CONFIG_MAP" --ignore-not-found -o 'jsonpath={.data.nvidia\.conf}')
lost=$(lost_lines "$text_now")
[ -z "$lost" ] || fail 1 "the ConfigMap $CONFIG_MAP has what nvidia.conf here does not:
$lost
  Render these files again with --kube: then they keep it."

same_text=no same_spec=no
[ "$text_now" != "$(cat "$HERE/nvidia.conf")" ] || same_text=yes
[ "$now" != "$wanted" ] || same_spec=yes

server=$(ask "the kubeconfig" config view --minify -o 'jsonpath={.clusters[0].cluster.server}')
printf 'context    %s (%s)\nnamespace  %s\nresource   %s %s\n\n' "$CONTEXT" "$server" "$NAMESPACE" "$KIND" "$RESOURCE"
if [ $same_text = yes ] && [ $same_spec = yes ]; then
    echo "unchanged: the ConfigMap and the three settings are as they should be. Next: ./02-before-recycling.sh, if pods are older than that."
    exit 0
fi
if [ $same_text = yes ]; then
    printf 'ConfigMap %s: as it should be\n' "$CONFIG_MAP"
else
    printf 'ConfigMap %s, key nvidia.conf, now:\n%s\nthen:\n%s\n' "$CONFIG_MAP" "$(indent <<<"${text_now:-(none)}")" "$(indent <"$HERE/nvidia.conf")"
fi
printf '\nsettings: gdrcopy enabled|repository|image|version|kernelModuleConfig|rdma\n    now   %s\n    then  %s\n' "$now" "$wanted"
# With automatic upgrades the operator itself recycles driver pods as soon as the resource changes.
upgrades=$(kube get clusterpolicies.nvidia.com -o 'jsonpath={.items[*].spec.driver.upgradePolicy.autoUpgrade}' 2>/dev/null || true)
case " $upgrades " in
    *' true '*) printf '\nWARNING: upgradePolicy.autoUpgrade of the ClusterPolicy is true: the operator may drain nodes and restart driver pods by itself as soon as this is applied. Run ./02-before-recycling.sh first.\n' ;;
esac
[ "$YES" = yes ] || fail 3 "nothing was changed; run it again with --yes"

kube apply -f "$HERE/configmap.yaml" || fail 1 "the ConfigMap was not applied; nothing else was changed"
kube patch "$KIND" "$RESOURCE" --type=merge --patch-file "$HERE/patch.json" ||
    fail 1 "the ConfigMap is applied, the patch of $RESOURCE is not: run this again before any driver pod restarts"
now=$(settings_of)
[ "$now" = "$wanted" ] || fail 1 "$RESOURCE does not show what was patched: now $now, wanted $wanted. Something sets it back (Helm, a GitOps controller)?"
text_now=$(ask "ConfigMap $CONFIG_MAP" -n "$NAMESPACE" get configmap "$CONFIG_MAP" -o 'jsonpath={.data.nvidia\.conf}')
[ "$text_now" = "$(cat "$HERE/nvidia.conf")" ] || fail 1 "the ConfigMap $CONFIG_MAP does not show what was applied: something sets it back"
echo
echo "applied and read back. Running driver pods still have the old configuration (OnDelete). Next: ./02-before-recycling.sh, then ./03-recycle.sh"
