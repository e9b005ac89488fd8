/* Input values and the arrays that hold them. */
#include "kcheck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/half.h"

enum { CANARY = 64, CANARY_BYTE = 0xa5 };

/* splitmix64. Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014. */
uint64_t random_bits(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static const uint32_t f32_edges[] = {
    0x00000000, 0x80000000,             /* zeros */
    0x00000001, 0x007fffff, 0x80400000, /* subnormals; 00400000 is what VCVTNEPS2BF16 loses */
    0x00008000, 0x00008001, 0x00018000, /* ... that tie, or nearly, in bf16 */
    0x00800000, 0x7f7fffff, 0xff7fffff, /* least normal, greatest */
    0x7f800000, 0xff800000,             /* infinities */
    0x7fc00000, 0xffc12345, 0x7fc00001, /* quiet NaNs */
    0x7f800001, 0xffa54321, 0x7fbfffff, /* signalling NaNs, one whose payload is all below a half's */
    0x33000000, 0x33000001, 0x32ffffff, /* 2^-25, half of the least f16 subnormal, and its neighbours */
    0x33800000, 0x33c00000, 0x387fc000, /* 2^-24; 1.5 * 2^-24, a tie; the greatest f16 subnormal */
    0x387fe000, 0x387fdfff, 0x387fe001, /* the tie between that and 2^-14, and its neighbours */
    0x38800000, 0x477fe000,             /* least normal f16, 65504 */
    0x477fefff, 0x477ff000, 0xc77ff001, /* below 65520, 65520, above */
    0x47800000, 0x7f7f7fff, 0x7f7f8000, /* 65536; around the midpoint above the greatest bf16 */
    0x3f800000, 0xbf800000,             /* ones */
    0x3f801000, 0x3f803000, 0x3f801001, /* f16 ties: down, up, just above */
    0x3f808000, 0x3f818000, 0x3f808001, /* bf16 ties */
};
static const uint16_t half_edges[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
                                      0x7e00, 0xfe01, 0x7c01, 0xfdff, 0x3c00, 0x007f, 0x0080, 0x7f7f, 0xff7f,
                                      0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0xffbf, 0x3f80};

/* Values near a half type's overflow, by themselves and as a sum of two. */
static const uint32_t f32_great[] = {0x477fefff, 0xc77ff000, 0x477fffff, 0x7f7f7fff, 0xff7f8000, 0x7f7fffff};
static const uint16_t f16_great[] = {0x7bff, 0xfbff, 0x77ff, 0x7800, 0x4c00}; /* 65504, 32752, 32768, 16 */
static const uint16_t bf16_great[] = {0x7f7f, 0xff7f, 0x7b00,
                                      0x7f00, 0x477f, 0x4780}; /* 0x1.fep127, 2^119, 2^127, ... */
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static float moderate(uint64_t r) {
    float magnitude = (float)(r >> 40) * 0x1p-24f * 4.0f + 0x1p-10f; /* (0, 4] */
    return r & 1 ? -magnitude : magnitude;
}

static uint32_t f32_element(uint64_t r, enum flavour flavour) {
    if (flavour == MODERATE || r % 3 == 0) return cairn__f32_bits(moderate(r));
    return r % 3 == 1 ? (uint32_t)(r >> 32) : f32_edges[(r >> 32) % COUNT(f32_edges)];
}

static double f64_element(uint64_t r, enum flavour flavour) {
    double x;
    if (flavour == MODERATE || r % 3 != 1) return (double)cairn__f32_from_bits(f32_element(r, flavour));
    memcpy(&x, &r, sizeof(x));
    return x;
}

static uint16_t half_element(cairn_dtype type, uint64_t r, enum flavour flavour) {
    if (flavour == MODERATE || r % 3 == 0) {
        return type == CAIRN_F16 ? cairn__f32_to_f16(moderate(r)) : cairn__f32_to_bf16(moderate(r));
    }
    return r % 3 == 1 ? (uint16_t)(r >> 48) : half_edges[(r >> 32) % COUNT(half_edges)];
}

/* Often in the last element, which a tail must see. */
static void put_wrong(void *x, cairn_dtype type, size_t i, uint64_t r) {
    if (type == CAIRN_F32) ((uint32_t *)x)[i] = r & 1 ? 0x7f800000 : 0xffc00000;
    if (type == CAIRN_F64) ((double *)x)[i] = r & 1 ? INFINITY : NAN;
    if (type == CAIRN_F16) ((uint16_t *)x)[i] = r & 1 ? 0xfc00 : 0x7e00;
    if (type == CAIRN_BF16) ((uint16_t *)x)[i] = r & 1 ? 0xff80 : 0x7fc0;
}

static void put_great(void *x, cairn_dtype type, size_t i, uint64_t r) {
    if (type == CAIRN_F32) ((uint32_t *)x)[i] = f32_great[r % COUNT(f32_great)];
    if (type == CAIRN_F64) ((double *)x)[i] = r & 1 ? 0x1.fffffffffffffp1023 : -0x1p970;
    if (type == CAIRN_F16) ((uint16_t *)x)[i] = f16_great[r % COUNT(f16_great)];
    if (type == CAIRN_BF16) ((uint16_t *)x)[i] = bf16_great[r % COUNT(bf16_great)];
}

static void fill_elements(void *x, cairn_dtype type, size_t n, enum flavour each, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        uint64_t r = random_bits(seed, i);
        if (type == CAIRN_F32) ((uint32_t *)x)[i] = f32_element(r, each);
        else if (type == CAIRN_F64) ((double *)x)[i] = f64_element(r, each);
        else if (type == CAIRN_I32) ((uint32_t *)x)[i] = (uint32_t)r;
        else if (type == CAIRN_I64) ((uint64_t *)x)[i] = r;
        else if (type == CAIRN_U8) ((uint8_t *)x)[i] = (uint8_t)r;
        else ((uint16_t *)x)[i] = half_element(type, r, each);
    }
}

/* Drawn once per type and flavour, until draw_anew, since drawing every array took most of kcheck's time. An array is a
 * piece of this from a random position; a long array repeats it. The period is prime, so that different blocks or
 * vectors never hold the same data. */
enum { PERIOD = 65537 };

static struct {
    uint64_t seed;
    bool is_drawn[CAIRN_U8 + 1][2];
    uint64_t elements[CAIRN_U8 + 1][2][PERIOD];
} pool;

void draw_anew(uint64_t seed) {
    pool.seed = seed;
    memset(pool.is_drawn, 0, sizeof(pool.is_drawn));
}

static const void *drawn(cairn_dtype type, enum flavour each) {
    const int wild = each == WILD;
    if (!pool.is_drawn[type][wild])
        fill_elements(pool.elements[type][wild], type, PERIOD, each, random_bits(pool.seed, (uint64_t)type));
    pool.is_drawn[type][wild] = true;
    return pool.elements[type][wild];
}

void fill_array(void *x, cairn_dtype type, size_t n, enum flavour flavour, uint64_t seed) {
    const size_t width = cairn_dtype_nbytes(type), start = random_bits(seed, 0) % PERIOD;
    const char *from = drawn(type, flavour == WILD ? WILD : MODERATE);
    for (size_t i = 0, at = start, count; i < n; i += count, at = 0) {
        count = n - i < PERIOD - at ? n - i : PERIOD - at;
        memcpy((char *)x + i * width, from + at * width, count * width);
    }
    if (n == 0) return;
    if (flavour == ONE_WRONG) put_wrong(x, type, seed % 3 == 0 ? n - 1 : random_bits(seed, n) % n, seed);
    if (flavour == ONE_GREAT) put_great(x, type, n % 3 == 0 ? n - 1 : random_bits(0, n) % n, random_bits(seed, n));
}

static bool both_nan(cairn_dtype type, const void *a, const void *b, size_t i) {
    switch (type) {
    case CAIRN_F32:
        return (((const uint32_t *)a)[i] & 0x7fffffff) > 0x7f800000 &&
               (((const uint32_t *)b)[i] & 0x7fffffff) > 0x7f800000;
    case CAIRN_F64:
        return isnan(((const double *)a)[i]) && isnan(((const double *)b)[i]);
    case CAIRN_F16:
        return (((const uint16_t *)a)[i] & 0x7fff) > 0x7c00 && (((const uint16_t *)b)[i] & 0x7fff) > 0x7c00;
    case CAIRN_BF16:
        return (((const uint16_t *)a)[i] & 0x7fff) > 0x7f80 && (((const uint16_t *)b)[i] & 0x7fff) > 0x7f80;
    default:
        return false;
    }
}

bool same_element(cairn_dtype type, const void *a, const void *b, size_t i, bool nan_bits) {
    size_t width = cairn_dtype_nbytes(type);
    if (memcmp((const char *)a + i * width, (const char *)b + i * width, width) == 0) return true;
    return !nan_bits && both_nan(type, a, b, i);
}

/* Arrays have different misalignments, so that no kernel can rely on equal ones. */
struct arrays make_arrays(const struct job *job, size_t n, int offset) {
    struct arrays a = {.count = job->num_arrays};
    for (int j = 0; j < a.count; j++) {
        size_t width = cairn_dtype_nbytes(job->array[j].type);
        size_t skipped = (size_t)((offset + j * (offset > 0)) % 4) * width;
        a.nbytes[j] = n * job->array[j].times * width;
        size_t room = 2 * CANARY + skipped + a.nbytes[j];
        a.memory[j] = aligned_alloc(CANARY, (room + CANARY - 1) / CANARY * CANARY);
        if (!a.memory[j]) abort();
        memset(a.memory[j], CANARY_BYTE, CANARY + skipped);
        a.x[j] = a.memory[j] + CANARY + skipped;
        memset((char *)a.x[j] + a.nbytes[j], CANARY_BYTE, CANARY);
    }
    return a;
}

static bool untouched(const unsigned char *from, const unsigned char *to) {
    for (; from < to; from++) {
        if (*from != CANARY_BYTE) return false;
    }
    return true;
}

bool canaries_live(const struct arrays *a) {
    for (int j = 0; j < a->count; j++) {
        unsigned char *x = a->x[j], *end = x + a->nbytes[j];
        if (!untouched(a->memory[j], x) || !untouched(end, end + CANARY)) return false;
    }
    return true;
}

void free_arrays(struct arrays *a) {
    for (int j = 0; j < a->count; j++) free(a->memory[j]);
}
