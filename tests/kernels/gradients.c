/* Properties of gradient and half-weight kernels over more than one call: sums of squares over a type's whole range,
 * the mean of stochastic rounding, counts of every value. */
#include "kcheck.h"

#include <math.h>
#include <string.h>

#include "core/half.h"
#include "kernels/element.h"

/* Calls test with every row of a kind that can run here. */
static bool each_row(enum cairn__kernel_kind kind, bool (*test)(const struct cairn__kernel_row *row, uint64_t seed),
                     uint64_t seed) {
    size_t count;
    const struct cairn__kernel_row *rows = cairn__kernel_rows(&count);
    for (size_t r = 0; r < count; r++) {
        if (rows[r].kind != kind || rows[r].needs & ~cairn__cpu_features()) continue;
        if (!test(&rows[r], seed)) return false;
    }
    return true;
}

/* ---- sums of squares ---- */

enum { SQUARES = 5 * CAIRN__SQUARES_BLOCK + 333 };

/* A finite value whose magnitude is about 2^exponent; 0 in one of eight. */
static uint16_t value_around(cairn_dtype type, int exponent, uint64_t r) {
    uint16_t half = 0;
    if (r % 8 == 0) return (uint16_t)(r & 0x8000);
    const double value = ldexp((r & 16 ? -1.0 : 1.0) * (1 + (double)(r >> 40) * 0x1p-24), exponent - (int)(r >> 8 & 3));
    cairn__dtype(type)->from_f32(&half, (float)value);
    return half;
}

/* Of a block of zeros, and of one with a single other element. */
static bool is_zero_there(size_t i, uint64_t seed) {
    const size_t block = i / CAIRN__SQUARES_BLOCK;
    return block == 3 || (block == 1 && i % CAIRN__SQUARES_BLOCK != random_bits(seed, 0) % CAIRN__SQUARES_BLOCK);
}

/* Blocks around one exponent, beside blocks around another, so that some take f64's way and some do not, and zeros. */
static bool squares_around(const struct cairn__kernel_row *row, int exponent, int other, uint64_t seed) {
    static uint16_t x[SQUARES];
    const cairn_dtype type = (cairn_dtype)row->a;

    double got = 0, flushing = 0, exact = 0;
    uint32_t found = 0;
    for (size_t i = 0; i < SQUARES; i++) {
        const uint64_t r = random_bits(seed, i);
        x[i] = value_around(type, (i / CAIRN__SQUARES_BLOCK + (r >> 20 & 7)) % 3 == 0 ? other : exponent, r);
        if (is_zero_there(i, seed + (uint64_t)exponent)) x[i] &= 0x8000;
        const double value = (double)cairn__dtype(type)->to_f32(&x[i]);
        exact += value * value;
    }
    (*(cairn__sumsq_fn)row->fn)(x, SQUARES, 0.5f, &got, &found);
    flush_to_zero(true);
    (*(cairn__sumsq_fn)row->fn)(x, SQUARES, 0.5f, &flushing, &found);
    flush_to_zero(false);
    const double want = model_sumsq(type, x, SQUARES, 0.5);
    if (got == want && got == flushing && found == 0 && fabs(got - exact / 4) <= 1.2e-6 * exact / 4) return true;
    complain("%s around 2^%d and 2^%d: %a, flushing %a, want %a, exactly %a; found %u", row->name, exponent, other, got,
             flushing, want, exact / 4, found);
    return false;
}

static bool row_squares_every_magnitude(const struct cairn__kernel_row *row, uint64_t seed) {
    const bool is_f16 = row->a == CAIRN_F16;
    const int least = is_f16 ? -24 : -133, most = is_f16 ? 14 : 126;
    if (row->a == CAIRN_F32) return true;
    for (int exponent = least; exponent <= most; exponent++) {
        if (!squares_around(row, exponent, exponent, seed)) return false;
        if (!squares_around(row, exponent, least + (exponent * 37 + 1000) % (most - least), seed)) return false;
    }
    return true;
}

bool check_squares(const struct checking *how) {
    return each_row(CAIRN__K_SUMSQ, row_squares_every_magnitude, how->seed);
}

/* ---- random rounding ---- */

static void round_at_random(const struct cairn__kernel_row *row, uint16_t *dst, const float *x, size_t n, uint64_t seed,
                            uint64_t stream, uint64_t first) {
    (*(cairn__round_stochastic_fn)row->fn)(dst, x, n, seed, stream, first);
}

static bool row_keeps_every_bf16(const struct cairn__kernel_row *row, uint64_t seed) {
    static float x[0x10000];
    static uint16_t got[0x10000];
    for (uint32_t i = 0; i < 0x10000; i++) x[i] = cairn__bf16_to_f32((uint16_t)i);
    for (uint64_t stream = 0; stream < 16; stream++) {
        round_at_random(row, got, x, 0x10000, seed, stream, 0);
        for (uint32_t i = 0; i < 0x10000; i++) {
            if (got[i] == cairn__f32_to_bf16(x[i])) continue;
            complain("%s: bf16 %04x becomes %04x", row->name, i, got[i]);
            return false;
        }
    }
    return true;
}

/* Split anywhere at multiples of 8, the bits are the same. */
static bool row_does_not_know_blocks(const struct cairn__kernel_row *row, uint64_t seed) {
    enum { N = 3001 };
    static float x[N];
    static uint16_t whole[N], parts[N];
    fill_array(x, CAIRN_F32, N, MODERATE, seed);
    round_at_random(row, whole, x, N, seed, 5, 64);
    for (size_t begin = 0, end; begin < N; begin = end) {
        end = begin + 8 * (1 + random_bits(seed, begin) % 40);
        if (end > N) end = N;
        round_at_random(row, parts + begin, x + begin, end - begin, seed, 5, 64 + begin);
    }
    if (memcmp(whole, parts, sizeof(whole)) == 0) return true;
    complain("%s: parts are rounded otherwise than the whole", row->name);
    return false;
}

/* How many of N elements, all x, go up, over streams as optimizers have them: binomial with p = what is cut off of x,
 * in units of the last place. Six of its standard deviations: 2e-9 for a fair row, and the seed is fixed. */
static bool row_is_fair(const struct cairn__kernel_row *row, uint64_t seed) {
    enum { N = 4096, STREAMS = 64 };
    static const uint32_t fractions[] = {1, 0x100, 0x4000, 0x7fff, 0x8000, 0xc000, 0xfffe, 0xffff};
    static float x[N];
    static uint16_t got[N];
    for (size_t f = 0; f < sizeof(fractions) / sizeof(fractions[0]); f++) {
        const uint16_t down = f % 2 ? 0xbf81 : 0x3f80; /* away from zero is up */
        const double p = (double)fractions[f] / 0x10000, count = (double)N * STREAMS;
        double ups = 0;
        for (size_t i = 0; i < N; i++) x[i] = cairn__f32_from_bits((uint32_t)down << 16 | fractions[f]);
        for (uint32_t s = 0; s < STREAMS; s++) {
            round_at_random(row, got, x, N, seed, (uint64_t)(s % 8) << 40 ^ (s / 8 + 1), 0);
            for (size_t i = 0; i < N; i++) {
                ups += got[i] == down || got[i] == down + 1 ? got[i] - down : INFINITY;
            }
        }
        if (fabs(ups - p * count) <= 6 * sqrt(p * (1 - p) * count)) continue;
        complain("%s: %g of %g go up, want %g", row->name, ups, count, p * count);
        return false;
    }
    return true;
}

bool check_random_rounding(const struct checking *how) {
    return each_row(CAIRN__K_ROUND_STOCHASTIC, row_keeps_every_bf16, how->seed) &&
           each_row(CAIRN__K_ROUND_STOCHASTIC, row_does_not_know_blocks, how->seed) &&
           each_row(CAIRN__K_ROUND_STOCHASTIC, row_is_fair, how->seed);
}

/* ---- counts ---- */

/* IEEE 754's classes by the fields of the bits, all 65536 of a half type; so often that no 16 bits hold a count of
 * all. */
static bool row_counts_every_half(const struct cairn__kernel_row *row, uint64_t seed) {
    (void)seed;
    enum { TIMES = 40 };
    static uint16_t x[TIMES * 0x10000];
    if (row->a == CAIRN_F32) return true;
    const bool is_f16 = row->a == CAIRN_F16;
    const uint64_t values = is_f16 ? 0x400 : 0x80; /* of one sign and exponent */
    for (uint32_t i = 0; i < TIMES * 0x10000; i++) x[i] = (uint16_t)i;
    struct cairn__counts want = {
        2, 2 * (values - 1), 2, 2 * (values - 1), is_f16 ? 15 : 127, is_f16 ? -24 : -133, is_f16 ? 65504 : 0x1.fep127};
    want.zeros *= TIMES, want.subnormals *= TIMES, want.infs *= TIMES, want.nans *= TIMES;
    struct cairn__counts got = {0, 0, 0, 0, INT32_MIN, INT32_MAX, 0};
    (*(cairn__census_fn)row->fn)(x, TIMES * 0x10000, is_f16 ? 0x1p-14f : 0x1p-126f, &got);
    if (memcmp(&got, &want, sizeof(got)) == 0) return true;
    complain("%s: %llu subnormals, exponents %d to %d, at most %g", row->name, (unsigned long long)got.subnormals,
             got.min_exponent, got.max_exponent, got.largest);
    return false;
}

/* The same by binades: of normal ones a type has as many values in each, and of f16's subnormals as many as their
 * leading bit leaves. */
static bool row_bins_every_half(const struct cairn__kernel_row *row, uint64_t seed) {
    (void)seed;
    static uint16_t x[0x10000];
    if (row->a != CAIRN_F16 && row->a != CAIRN_BF16) return true;
    const int digits = row->a == CAIRN_F16 ? 10 : 7, least = row->a == CAIRN_F16 ? -14 : -126, most = 1 - least;
    struct cairn__exponent_counts want = {.zeros = 2, .infs = 2, .nans = 2 * ((1u << digits) - 1)}, got = {0};
    for (int b = least; b <= most; b++) want.binades[b - CAIRN__LEAST_BINADE] = 2u << digits;
    for (int k = 0; k < digits; k++) want.binades[least - digits + k - CAIRN__LEAST_BINADE] = 2u << k;
    for (uint32_t i = 0; i < 0x10000; i++) x[i] = (uint16_t)i;
    (*(cairn__count_exponents_fn)row->fn)(x, 0x10000, &got);
    if (memcmp(&got, &want, sizeof(got)) == 0) return true;
    complain("%s: %llu zeros, %llu infinities, %llu NaNs, or a binade, are not as defined", row->name,
             (unsigned long long)got.zeros, (unsigned long long)got.infs, (unsigned long long)got.nans);
    return false;
}

/* 10^7 random bit patterns of f32, against frexp. */
static bool row_bins_f32_as_frexp(const struct cairn__kernel_row *row, uint64_t seed) {
    enum { N = 10000 };
    static float x[N];
    struct cairn__exponent_counts want = {0}, got = {0};
    if (row->a != CAIRN_F32) return true;
    for (uint64_t round = 0; round < 1000; round++) {
        for (size_t i = 0; i < N; i++) {
            int above;
            const double v = (double)(x[i] = cairn__f32_from_bits((uint32_t)random_bits(seed + round, i)));
            (void)frexp(v, &above);
            if (isnan(v)) want.nans++;
            else if (isinf(v)) want.infs++;
            else if (v == 0) want.zeros++;
            else want.binades[above - 1 - CAIRN__LEAST_BINADE]++;
        }
        (*(cairn__count_exponents_fn)row->fn)(x, N, &got);
    }
    if (memcmp(&got, &want, sizeof(got)) == 0) return true;
    complain("%s: counts of 10^7 f32 are not frexp's", row->name);
    return false;
}

bool check_counts(const struct checking *how) {
    return each_row(CAIRN__K_CENSUS, row_counts_every_half, how->seed) &&
           each_row(CAIRN__K_COUNT_EXPONENTS, row_bins_every_half, how->seed) &&
           each_row(CAIRN__K_COUNT_EXPONENTS, row_bins_f32_as_frexp, how->seed);
}
