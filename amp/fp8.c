/* fp8 codes and values of arrays in host memory. Half types are converted through f32, a block at a time. */
#include "cairn/fp8.h"

#include <math.h>
#include <stdatomic.h>

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/options.h"
#include "core/parallel.h"
#include "core/status.h"
#include "fp8.h"

enum { BLOCK = 1024, GRAIN = 32 * BLOCK };

static const struct cairn__kernels *kernels(void) {
    return cairn__kernels_cpu(cairn__cpu_features());
}

float cairn_fp8_max(cairn_fp8_format format) {
    return format == CAIRN_FP8_E4M3 || format == CAIRN_FP8_E5M2 ? cairn__fp8_max((int)format) : NAN;
}

/* ---- arguments ---- */

static cairn_status check_arrays(const char *call, const void *a, const void *b, cairn_dtype dtype, size_t n) {
    REQUIRE(n == 0 || (a && b), CAIRN_EINVAL, "%s: an array is NULL", call);
    REQUIRE(dtype == CAIRN_F32 || cairn__is_half(dtype), CAIRN_EINVAL, "%s: dtype is %s; it must be f32, f16 or bf16",
            call, cairn_dtype_name(dtype));
    return CAIRN_OK;
}

static cairn_status check_switch(const char *call, const char *name, cairn_switch value) {
    REQUIRE(value == CAIRN_DEFAULT || value == CAIRN_ON || value == CAIRN_OFF, CAIRN_EINVAL,
            "%s: %s is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", call, name, (int)value);
    return CAIRN_OK;
}

static cairn_status read_options(const char *call, const struct cairn_fp8_options *options, int *format,
                                 struct cairn__fp8 *how) {
    struct cairn_fp8_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_fp8_options"));
    const float scale = o.scale != 0 ? o.scale : 1;
    REQUIRE((int)o.format == 0 || !isnan(cairn_fp8_max(o.format)), CAIRN_EINVAL,
            "%s: format is %d; it must be CAIRN_FP8_E4M3 or CAIRN_FP8_E5M2", call, (int)o.format);
    REQUIRE(scale > 0 && isfinite(scale) && isfinite(1 / scale), CAIRN_EINVAL,
            "%s: scale is %g; it must be above 0, finite, and 1 / scale too", call, (double)scale);
    TRY(check_switch(call, "saturate", o.saturate));
    TRY(check_switch(call, "stochastic_rounding", o.stochastic_rounding));
    *format = o.format ? (int)o.format : CAIRN__E4M3;
    *how = (struct cairn__fp8){.scale = scale,
                               .inverse = 1 / scale,
                               .saturates = o.saturate != CAIRN_OFF,
                               .at_random = o.stochastic_rounding == CAIRN_ON,
                               .seed = o.seed,
                               .stream = o.stream};
out:
    return st;
}

/* ---- passes ---- */

static size_t block_at(size_t i, size_t n) {
    return n - i < BLOCK ? n - i : BLOCK;
}

static const void *at(const void *x, cairn_dtype dtype, size_t i) {
    return (const char *)x + i * cairn_dtype_nbytes(dtype);
}

/* ---- in pieces, for the pool's threads ---- */

struct round_pass {
    int format;
    void *dst;
    cairn_dtype to;
    const void *x;
    cairn_dtype from;
    const struct cairn__fp8 *how;
};

static void round_piece(void *ctx, size_t begin, size_t end) {
    const struct round_pass *p = ctx;
    const struct cairn__kernels *k = kernels();
    struct cairn__fp8 part = *p->how;
    float wide[BLOCK];
    part.first += begin;
    for (size_t i = begin; i < end; i += BLOCK, part.first += BLOCK) {
        const size_t m = block_at(i, end);
        float *rounded = p->to == CAIRN_F32 ? (float *)p->dst + i : wide;
        if (p->from != CAIRN_F32) k->cast[p->from][CAIRN_F32](rounded, at(p->x, p->from, i), m);
        k->fp8_round[p->format](rounded, p->from == CAIRN_F32 ? (const float *)p->x + i : rounded, m, &part);
        if (p->to != CAIRN_F32) k->cast[CAIRN_F32][p->to]((char *)p->dst + i * cairn_dtype_nbytes(p->to), rounded, m);
    }
}

void cairn__fp8_round(int format, void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n,
                      const struct cairn__fp8 *how) {
    struct round_pass p = {format, dst, to, x, from, how};
    cairn__parallel_for(n, GRAIN, round_piece, &p);
}

struct amax_pass {
    const void *x;
    cairn_dtype dtype;
    _Atomic uint32_t most; /* bits of a float, which compare as magnitudes do */
};

static void amax_piece(void *ctx, size_t begin, size_t end) {
    struct amax_pass *p = ctx;
    const struct cairn__kernels *k = kernels();
    float wide[BLOCK], most = 0;
    for (size_t i = begin; i < end; i += BLOCK) {
        const size_t m = block_at(i, end);
        if (p->dtype != CAIRN_F32) k->cast[p->dtype][CAIRN_F32](wide, at(p->x, p->dtype, i), m);
        most = fmaxf(most, k->amax(p->dtype == CAIRN_F32 ? (const float *)p->x + i : wide, m));
    }
    const uint32_t own = cairn__f32_bits(most);
    uint32_t other = atomic_load(&p->most);
    while (other < own && !atomic_compare_exchange_weak(&p->most, &other, own)) continue;
}

float cairn__fp8_amax(const void *x, cairn_dtype dtype, size_t n) {
    struct amax_pass p = {.x = x, .dtype = dtype};
    cairn__parallel_for(n, GRAIN, amax_piece, &p);
    return cairn__f32_from_bits(p.most);
}

/* ---- the calls ---- */

cairn_status cairn_fp8_encode(uint8_t *codes, const void *x, cairn_dtype dtype, size_t n,
                              const struct cairn_fp8_options *options) {
    const struct cairn__kernels *k = kernels();
    struct cairn__fp8 how;
    float wide[BLOCK];
    int format = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_arrays("cairn_fp8_encode", codes, x, dtype, n));
    TRY(read_options("cairn_fp8_encode", options, &format, &how));
    for (size_t i = 0; i < n; i += BLOCK, how.first += BLOCK) {
        const size_t m = block_at(i, n);
        if (dtype != CAIRN_F32) k->cast[dtype][CAIRN_F32](wide, at(x, dtype, i), m);
        k->fp8_encode[format](codes + i, dtype == CAIRN_F32 ? (const float *)x + i : wide, m, &how);
    }
out:
    return st;
}

cairn_status cairn_fp8_decode(void *x, cairn_dtype dtype, const uint8_t *codes, size_t n,
                              const struct cairn_fp8_options *options) {
    const struct cairn__kernels *k = kernels();
    struct cairn__fp8 how;
    float wide[BLOCK];
    int format = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_arrays("cairn_fp8_decode", x, codes, dtype, n));
    TRY(read_options("cairn_fp8_decode", options, &format, &how));
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t m = block_at(i, n);
        k->fp8_decode[format](wide, codes + i, m, how.inverse);
        k->cast[CAIRN_F32][dtype]((char *)x + i * cairn_dtype_nbytes(dtype), wide, m);
    }
out:
    return st;
}

cairn_status cairn_fp8_round(void *dst, const void *x, cairn_dtype dtype, size_t n,
                             const struct cairn_fp8_options *options) {
    struct cairn__fp8 how;
    int format = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_arrays("cairn_fp8_round", dst, x, dtype, n));
    TRY(read_options("cairn_fp8_round", options, &format, &how));
    cairn__fp8_round(format, dst, dtype, x, dtype, n, &how);
out:
    return st;
}

cairn_status cairn_fp8_amax(const void *x, cairn_dtype dtype, size_t n, float *amax) {
    cairn_status st = CAIRN_OK;
    TRY(check_arrays("cairn_fp8_amax", x, x, dtype, n));
    REQUIRE(amax, CAIRN_EINVAL, "cairn_fp8_amax: amax is NULL");
    *amax = cairn__fp8_amax(x, dtype, n);
out:
    return st;
}
