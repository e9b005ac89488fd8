/* jobs.c and model.c for fp8 and amax. The model lists all values of a format by its definition and searches that
 * list. */
#include <math.h>

#include "core/half.h"
#include "kcheck.h"

/* Seen from outside: what one variant does. */
static const struct cairn__fp8 variants[] = {
    {.scale = 1, .inverse = 1, .saturates = true},
    {.scale = 1, .inverse = 1},
    {.scale = 3, .inverse = 0x1.555556p-2f, .saturates = true},
    {.scale = 0x1p-9f, .inverse = 0x1p9f},
    {.scale = 100, .inverse = 1},
    {.scale = 1, .inverse = 0.75f, .saturates = true, .at_random = true, .seed = 7, .stream = 3 << 16, .first = 5},
    {.scale = 0x1p-8f, .inverse = 1, .at_random = true, .seed = 0x123456789abcdef0, .stream = 9},
};
enum { NUM_VARIANTS = sizeof(variants) / sizeof(variants[0]) };

#define CALLS(kind) (*(cairn__##kind##_fn)(row->fn))

static void call_round(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)out;
    CALLS(fp8_round)(a[0], a[1], n, &variants[v]);
}
static void call_encode(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)out;
    CALLS(fp8_encode)(a[0], a[1], n, &variants[v]);
}
static void call_decode(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)out;
    CALLS(fp8_decode)(a[0], a[1], n, variants[v].inverse);
}
static void call_amax(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v;
    out->f64 = (double)CALLS(amax)(a[0], n);
}

struct job fp8_job_of(const struct cairn__kernel_row *row) {
    const struct array in = {CAIRN_F32, READ, 1}, out = {CAIRN_F32, WRITTEN, 1};
    const struct array codes_in = {CAIRN_U8, READ, 1}, codes_out = {CAIRN_U8, WRITTEN, 1};
    switch (row->kind) {
    case CAIRN__K_FP8_ROUND:
        return (struct job){2, {out, in}, {1}, NUM_VARIANTS, 0, false, call_round};
    case CAIRN__K_FP8_ENCODE:
        return (struct job){2, {codes_out, in}, {0}, NUM_VARIANTS, 0, false, call_encode};
    case CAIRN__K_FP8_DECODE:
        return (struct job){2, {out, codes_in}, {0}, NUM_VARIANTS, 0, false, call_decode};
    default:
        return (struct job){1, {in}, {0}, 1, 0, false, call_amax};
    }
}

const char *fp8_group_name(const struct cairn__kernel_row *row) {
    static const char *const names[][CAIRN__FP8_END] = {
        {"", "fp8_round e4m3", "fp8_round e5m2"},
        {"", "fp8_encode e4m3", "fp8_encode e5m2"},
        {"", "fp8_decode e4m3", "fp8_decode e5m2"},
        {"amax", "", ""},
    };
    return names[row->kind - CAIRN__K_FP8_ROUND][row->a];
}

/* ---- the model ---- */

/* Of a code without its sign, as if the exponents went on for ever: code 128 and more are beyond the format. */
static double listed(int format, int code) {
    const int fraction_bits = format == CAIRN__E4M3 ? 3 : 2, bias = format == CAIRN__E4M3 ? 7 : 15;
    const int exponent = code >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
    return exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
                         : ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

static double meaning(int format, int code) {
    const int magnitude = code & 0x7f;
    const double sign = code & 0x80 ? -1 : 1;
    if (format == CAIRN__E4M3) return magnitude == 0x7f ? NAN : sign * listed(format, magnitude);
    return magnitude > 0x7c ? NAN : magnitude == 0x7c ? sign * INFINITY : sign * listed(format, magnitude);
}

/* The codes next to |t|, at most one beyond the greatest. */
static void neighbours(int format, double t, int *below, int *above) {
    const int last = format == CAIRN__E4M3 ? 0x7f : 0x7c;
    int code = 0;
    while (code < last && listed(format, code + 1) <= t) code++;
    *below = code;
    *above = code == last || listed(format, code) == t ? code : code + 1;
}

static int limited(int format, bool saturates, int code) {
    const int greatest = format == CAIRN__E4M3 ? 0x7e : 0x7b;
    if (code <= greatest) return code;
    return saturates ? greatest : format == CAIRN__E4M3 ? 0x7f : 0x7c;
}

/* Whether code is what x becomes: to nearest, ties to the even code; at random one of its neighbours. */
static bool is_code_of(int format, const struct cairn__fp8 *how, float x, int code) {
    const float scaled = x * how->scale;
    const int sign = signbit(x) ? 0x80 : 0;
    int below, above;
    if (isnan(scaled)) return code == (0x7f | sign);
    const double t = fabs((double)scaled);
    neighbours(format, t, &below, &above);
    if (how->at_random) {
        return code == (limited(format, how->saturates, below) | sign) ||
               code == (limited(format, how->saturates, above) | sign);
    }
    const double middle = (listed(format, below) + listed(format, above)) / 2;
    const int nearest = t < middle || (t == middle && below % 2 == 0) ? below : above;
    return code == (limited(format, how->saturates, nearest) | sign);
}

static bool is_value(float got, double code, float inverse) {
    const float want = (float)code * inverse;
    return isnan(want) ? isnan(got) : cairn__f32_bits(got) == cairn__f32_bits(want);
}

static bool is_rounded(int format, const struct cairn__fp8 *how, float x, float got) {
    for (int code = 0; code < 256; code++) {
        if (is_value(got, meaning(format, code), how->inverse) && is_code_of(format, how, x, code)) return true;
    }
    return false;
}

bool fp8_is_right(const struct cairn__kernel_row *row, int variant, size_t n, void *const *before, void *const *after,
                  const struct outcome *out) {
    const struct cairn__fp8 *how = &variants[variant];
    const float *x = before[row->kind == CAIRN__K_AMAX ? 0 : 1], *values = after[0];
    const uint8_t *codes = after[0], *given = before[1];
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        bool ok = true;
        if (row->kind == CAIRN__K_FP8_ROUND) ok = is_rounded(row->a, how, x[i], values[i]);
        else if (row->kind == CAIRN__K_FP8_ENCODE) ok = is_code_of(row->a, how, x[i], codes[i]);
        else if (row->kind == CAIRN__K_FP8_DECODE) ok = is_value(values[i], meaning(row->a, given[i]), how->inverse);
        else most = fmax(most, fabs((double)x[i])); /* which takes no NaN */
        if (ok) continue;
        complain("%s: element %zu, variant %d", row->name, i, variant);
        return false;
    }
    return row->kind != CAIRN__K_AMAX || out->f64 == most;
}
