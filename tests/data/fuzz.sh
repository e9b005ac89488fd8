#!/usr/bin/env bash
# Runs the fuzzers of this folder under libFuzzer, guided by coverage, with the address and undefined behaviour
# sanitizers. Needs clang with its runtime (Debian: clang, libclang-rt-14-dev), libjpeg and libpng, whose own code is as
# the system has it.
#
#   tests/data/fuzz.sh [seconds, 60] [fuzzer ..., all] [-- options of libFuzzer]
#
# Builds in build-fuzz/ (or CAIRN_FUZZ_DIR) and keeps there what it finds, and its corpora.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v "${CC:-clang}" >/dev/null || {
    echo "fuzz.sh: there is no ${CC:-clang} (Debian: clang, libclang-rt-14-dev)" >&2
    exit 1
}
seconds=${1:-60}
shift || true
names=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    names+=("$1")
    shift
done
[ $# -eq 0 ] || shift
[ ${#names[@]} -gt 0 ] || names=(pictures)

work=${CAIRN_FUZZ_DIR:-build-fuzz}
options=(-std=c11 -g -O1 -D_GNU_SOURCE -fno-sanitize-recover=all -Iinclude -Isrc)
sources=(src/data/pictures/{picture,read,jpeg,png}.c src/data/file.c src/core/*.c)
libs=(-ljpeg -lpng -lz -lm -ldl -lpthread)
for name in "${names[@]}"; do
    mkdir -p "$work/$name/seeds" "$work/$name/corpus"
    "${CC:-clang}" "${options[@]}" "tests/data/fuzz_$name.c" "${sources[@]}" "${libs[@]}" -o "$work/$name/driver"
    "$work/$name/driver" --seeds "$work/$name/seeds"
    "${CC:-clang}" "${options[@]}" -DFUZZ_NO_MAIN -fsanitize=fuzzer,address,undefined "tests/data/fuzz_$name.c" \
        "${sources[@]}" "${libs[@]}" -o "$work/$name/fuzzer"
    "$work/$name/fuzzer" -max_total_time="$seconds" -max_len=4096 -timeout=20 -artifact_prefix="$work/$name/" \
        -print_final_stats=1 "$@" "$work/$name/corpus" "$work/$name/seeds"
done
