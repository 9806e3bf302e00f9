#!/usr/bin/env bash
# Builds one fuzz target and runs it for a while, on stable Rust with nothing but gcc as linker:
#   fuzz/run.sh TARGET SECONDS [libFuzzer arguments]
# Findings land in fuzz/artifacts/TARGET; the corpus grows in fuzz/corpus/TARGET (neither is committed).
# Seeds in fuzz/seeds/TARGET, if there, are read as well. Exit code 0: nothing found.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: $0 TARGET SECONDS [libFuzzer arguments]" >&2
    exit 2
fi
name=$1
seconds=$2
shift 2
cd "$(dirname "$0")"

# Coverage comes from LLVM's pass itself: cargo-fuzz's way to it needs nightly.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1"
# Naming the target keeps the flags away from build scripts and procedural macros, which could not link.
triple=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="$flags" cargo build --release --quiet --target "$triple" --bin "$name" \
    --target-dir "${FUZZ_TARGET_DIR:-target}"

corpus=corpus/$name
artifacts=artifacts/$name/
mkdir -p "$corpus" "$artifacts"
seeds=()
if [ -d "seeds/$name" ]; then
    seeds+=("seeds/$name")
fi
"${FUZZ_TARGET_DIR:-target}/$triple/release/$name" "$corpus" ${seeds[@]+"${seeds[@]}"} \
    -max_total_time="$seconds" -artifact_prefix="$artifacts" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 "$@"
