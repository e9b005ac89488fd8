#!/bin/sh
# The generic path on another processor: core, kernels and kcheck built for aarch64, without a warning, and kcheck run
# where an emulator is there. Usage: aarch64.sh SOURCE_ROOT BUILD_DIR. Exit 77 = skipped.
set -eu
root=$1
out=$2/aarch64
cc=${AARCH64_CC:-aarch64-linux-gnu-gcc}

if ! command -v "$cc" >/dev/null; then
    echo "skipped: there is no $cc here (Debian: gcc-aarch64-linux-gnu)"
    exit 77
fi

mkdir -p "$out"
for level in -O2 -O3; do
    # Files of x86-64's instruction sets are all that is left out.
    "$cc" -std=c11 "$level" -Wall -Wextra -Wpedantic -Wundef -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror \
        -D_GNU_SOURCE -DLIMIT=limit_generic -ffp-contract=off -fno-tree-slp-vectorize -fno-math-errno -static -pthread \
        -I"$root/include" -I"$root/src" -o "$out/kcheck" \
        "$root"/src/core/*.c \
        "$root"/src/kernels/ref.c "$root"/src/kernels/maps_ref.c "$root"/src/kernels/ref_rows.c \
        "$root"/src/kernels/table.c \
        "$root"/tests/kernels/kcheck.c "$root"/tests/kernels/jobs.c "$root"/tests/kernels/row_jobs.c \
        "$root"/tests/kernels/map_jobs.c "$root"/tests/kernels/fp8_jobs.c \
        "$root"/tests/kernels/data.c "$root"/tests/kernels/gradients.c "$root"/tests/kernels/sums.c \
        "$root"/tests/kernels/model.c "$root"/tests/kernels/bench.c "$root"/tests/kernels/limit.c \
        -lm
    echo "built with $level"
    if command -v qemu-aarch64 >/dev/null; then
        qemu-aarch64 "$out/kcheck" --quick
    else
        echo "built only: there is no qemu-aarch64 here to run it (Debian: qemu-user)"
    fi
done
