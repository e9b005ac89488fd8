/* Conversions: those of a training step's types by the kernels' casts, the rare others by core's. */
#include "device/cpu/blocks.h"

#include <string.h>

#include "core/convert.h"
#include "kernels/kernels.h"

static void convert(const struct cairn__cpu *cpu, cairn_dtype to, void *dst, cairn_dtype from, const void *src,
                    size_t n) {
    if (from == to) {
        if (dst != src) memcpy(dst, src, n * cairn_dtype_nbytes(to));
        return;
    }
    const cairn__cast_fn cast = cpu->kernels->cast[from][to];
    if (cast) {
        cast(dst, src, n);
    } else {
        cairn__convert(dst, to, src, from, n);
    }
}

const void *cairn__block_load(const struct cairn__cpu *cpu, cairn_dtype r, cairn_dtype t, const void *x, size_t n,
                              struct cairn__block *block) {
    if (r == t) return x;
    convert(cpu, r, block->room, t, x, n);
    return block->room;
}

void cairn__block_store(const struct cairn__cpu *cpu, cairn_dtype r, cairn_dtype t, void *dst, const void *values,
                        size_t n) {
    convert(cpu, t, dst, r, values, n);
}

double cairn__block_get(cairn_dtype t, const void *x) {
    double value = 0;
    cairn__convert(&value, CAIRN_F64, x, t, 1);
    return value;
}

void cairn__block_put(cairn_dtype t, void *dst, double value) {
    cairn__convert(dst, t, &value, CAIRN_F64, 1);
}
