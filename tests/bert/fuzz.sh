#!/usr/bin/env bash
# Runs the fuzzer of this folder under libFuzzer, guided by coverage, with the address and undefined behaviour
# sanitizers. Needs clang with its runtime (Debian: clang, libclang-rt-14-dev), and utf8proc.
#
#   tests/bert/fuzz.sh [seconds, 60] [options of libFuzzer ...]
#
# Builds in build-fuzz/ (or CAIRN_FUZZ_DIR) and keeps there what it finds, and its corpus.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v "${CC:-clang}" >/dev/null || {
    echo "fuzz.sh: there is no ${CC:-clang} (Debian: clang, libclang-rt-14-dev)" >&2
    exit 1
}
seconds=${1:-60}
shift || true

work=${CAIRN_FUZZ_DIR:-build-fuzz}/tokenizer
options=(-std=c11 -g -O1 -D_GNU_SOURCE -DFUZZ_WITHOUT_DATA -fno-sanitize-recover=all -Iinclude -Isrc -Iexamples/bert)
sources=(tests/bert/fuzz_tokenizer.c examples/bert/{tokenizer,vocabulary,unicode}.c src/core/*.c)
libs=(-lutf8proc -lm -ldl -lpthread)
mkdir -p "$work/seeds" "$work/corpus"
"${CC:-clang}" "${options[@]}" "${sources[@]}" "${libs[@]}" -o "$work/driver"
"$work/driver" --seeds "$work/seeds"
"${CC:-clang}" "${options[@]}" -DFUZZ_NO_MAIN -fsanitize=fuzzer,address,undefined "${sources[@]}" "${libs[@]}" \
    -o "$work/fuzzer"
"$work/fuzzer" -max_total_time="$seconds" -max_len=4096 -timeout=20 -artifact_prefix="$work/" -print_final_stats=1 \
    "$@" "$work/corpus" "$work/seeds"
