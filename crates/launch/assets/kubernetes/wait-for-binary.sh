#!/bin/sh
# Init container of a pod whose image lacks the binary `expertrail`: waits until somebody has copied it into the volume.
# `expertrail launch` writes FOLDER/expertrail and then FOLDER/ready, which is empty or holds the SHA-256 of the binary.
set -u
folder=${EXPERTRAIL_FOLDER:-/opt/expertrail}
most=${EXPERTRAIL_COPY_S:-900}
# The first process of a container gets no signal that it has no handler for.
trap 'exit 143' TERM INT

waited=0
while [ ! -e "$folder/ready" ]; do
    if [ "$waited" -ge "$most" ]; then
        echo "nobody has copied the binary into this pod within $most s: start the run with \`expertrail launch\`, which does it, or copy it" \
            "as README.txt of the rendered directory says" >&2
        exit 3
    fi
    if [ $((waited % 30)) -eq 0 ]; then
        echo "waiting for the binary to be copied into $folder ($waited s of at most $most s)"
    fi
    sleep 1
    waited=$((waited + 1))
done

wanted=$(cat "$folder/ready")
wanted=${wanted%% *}
if [ -n "$wanted" ] && command -v sha256sum >/dev/null 2>&1; then
    found=$(sha256sum <"$folder/expertrail")
    found=${found%% *}
    if [ "$found" != "$wanted" ]; then
        echo "the binary in $folder has SHA-256 $found, and $wanted was sent: the copy broke off; start the run again" >&2
        exit 3
    fi
fi
chmod 755 "$folder/expertrail"
if ! version=$("$folder/expertrail" --version 2>&1); then
    echo "the binary does not start in this image ($version): it needs glibc 2.28 or newer and the processor that it was built for" >&2
    exit 3
fi
echo "binary in place: $version"
