/* suite DEVICE [required]
 *
 * The requirements on every device: memory, every pass, products, graph capture. Passes are compared with the CPU's
 * scalar reference rows and with kernels/step.h, bit for bit where device/passes.h promises it. The suite accesses
 * memory only by upload and download. Exits with 77 if the device does not exist, unless it is required.
 *
 * CAIRN_TEST_LARGE=1 in the environment adds tensors of more than 2^31 elements. With CAIRN_TEST_SHORT in it each
 * pair of types is trained by one of an optimizer's rules, and a device other than the CPU multiplies larger matrices
 * in an eighth of the ways. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "../kernels/kcheck.h"
#include "core/half.h"
#include "core/philox.h"
#include "device/device.h"

static bool is_cpu;
static struct cairn_device *device;
static const struct cairn__passes *passes;

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
static const cairn_dtype floats[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
#define EACH_FLOAT(t)   for (const cairn_dtype *t = floats; t < floats + COUNT(floats); t++)
#define EACH_PAIR(t, u) EACH_FLOAT(t) EACH_FLOAT(u)

/* ---- memory ---- */

static void *device_memory(size_t nbytes) {
    void *p = NULL;
    OK(cairn__device_alloc(device, CAIRN__HOLDS_TENSORS, nbytes, &p));
    return p;
}

static void *host_memory(size_t nbytes) {
    void *p = malloc(nbytes ? nbytes : 1);
    assert_non_null(p);
    return p;
}

/* A value in device memory. */
static void *on_device(const void *value, size_t nbytes) {
    void *p = device_memory(nbytes);
    OK(cairn__device_upload(device, p, value, nbytes));
    return p;
}

static void download(void *host, const void *p, size_t nbytes) {
    OK(cairn__device_download(device, host, p, nbytes));
}

static uint32_t flag_of(const uint32_t *p) {
    uint32_t flag;
    download(&flag, p, sizeof(flag));
    return flag;
}

/* ---- lists of tensors, on the host and on the device ----
 *
 * Sizes are 0 to 67 and a prime, with empty ones first, last and in between: more tensors than one launch takes. All
 * lie in one piece of memory with canaries before and after each; `offset` misaligns them by so many elements. */

enum {
    LIST = 72,
    LONGEST_LIST = 80,
    LONGEST_TAKING = 200,
    LARGE = 10007,
    CANARY = 64,
    CANARY_BYTE = 0xa5,
    SEED = 2024
};

static size_t size_of(size_t i) {
    return i == 0 || i == LIST - 1 ? 0 : i == LIST - 2 ? LARGE : i == 40 ? 0 : i - 1;
}

struct list {
    cairn_dtype type;
    size_t width, count, nbytes;
    size_t n[LONGEST_LIST], at[LONGEST_LIST]; /* elements; bytes from the start */
    unsigned char *host, *device;
};

static struct list make_list(cairn_dtype type, size_t count, size_t (*n)(size_t i), size_t offset, enum flavour flavour,
                             uint64_t seed) {
    struct list l = {.type = type, .width = cairn_dtype_nbytes(type), .count = count};
    for (size_t i = 0; i < count; i++) {
        l.n[i] = n(i);
        l.at[i] = l.nbytes + CANARY + offset * l.width;
        l.nbytes = (l.at[i] + l.n[i] * l.width + 2 * CANARY - 1) / CANARY * CANARY;
    }
    l.nbytes += CANARY;
    l.host = host_memory(l.nbytes);
    memset(l.host, CANARY_BYTE, l.nbytes);
    for (size_t i = 0; i < count; i++) fill_array(l.host + l.at[i], type, l.n[i], flavour, seed + i);
    l.device = on_device(l.host, l.nbytes);
    return l;
}

static void drop_list(struct list *l) {
    cairn__device_free(device, l->device);
    free(l->host);
}

static void *host_of(const struct list *l, size_t i) {
    return l->host + l->at[i];
}

static void *device_of(const struct list *l, size_t i) {
    return l->device + l->at[i];
}

/* When elements count as the same. */
enum sameness { BITS, ANY_NAN, VALUES /* zeros of either sign too */ };

static bool is_zero(const struct list *l, const void *array, size_t e) {
    return cairn__dtype(l->type)->to_f32((const unsigned char *)array + e * l->width) == 0;
}

static bool counts_as_same(const struct list *l, const void *a, const void *b, size_t e, enum sameness sameness) {
    return same_element(l->type, a, b, e, sameness == BITS) ||
           (sameness == VALUES && is_zero(l, a, e) && is_zero(l, b, e));
}

/* The device's memory is the host's, canaries byte by byte. */
static void assert_elements(const struct list *l, enum sameness sameness, const char *what) {
    unsigned char *got = host_memory(l->nbytes);
    download(got, l->device, l->nbytes);
    for (size_t i = 0; i < l->count; i++) {
        for (size_t e = 0; e < l->n[i]; e++) {
            if (counts_as_same(l, got + l->at[i], host_of(l, i), e, sameness)) continue;
            uint64_t g = 0, w = 0;
            memcpy(&g, got + l->at[i] + e * l->width, l->width);
            memcpy(&w, l->host + l->at[i] + e * l->width, l->width);
            fail_msg("%s: element %zu of %zu is %llx, want %llx", what, e, l->n[i], (unsigned long long)g,
                     (unsigned long long)w);
        }
        memcpy(got + l->at[i], host_of(l, i), l->n[i] * l->width);
    }
    for (size_t b = 0; b < l->nbytes; b++) {
        if (got[b] != l->host[b]) fail_msg("%s: byte %zu between tensors was written", what, b);
    }
    free(got);
}

static void assert_list(const struct list *l, bool nan_bits, const char *what) {
    assert_elements(l, nan_bits ? BITS : ANY_NAN, what);
}

/* "scale f16 bf16, offset 1, data 3" */
static const char *describe_case(const char *pass, cairn_dtype a, cairn_dtype b, size_t offset, int flavour) {
    static char text[128];
    snprintf(text, sizeof(text), "%s %s %s, offset %zu, data %d", pass, cairn_dtype_name(a), cairn_dtype_name(b),
             offset, flavour);
    return text;
}

/* The function of the reference row; cast back to its kind's type by the caller. */
static void (*reference(enum cairn__kernel_kind kind, int a, int b))(void) {
    const struct cairn__kernel_row *row = cairn__kernel_pick(kind, a, b, 0);
    assert_non_null(row);
    return row->fn;
}

/* Calls test with every offset and flavour of data. */
static void vary(void (*test)(size_t offset, enum flavour flavour)) {
    for (size_t offset = 0; offset < 2; offset++) {
        for (enum flavour f = MODERATE; f < NUM_FLAVOURS; f++) test(offset, f);
    }
}

/* ---- memory ---- */

static void memory_is_aligned_and_copied_both_ways(void **state) {
    (void)state;
    char text[1000], back[1000];
    for (size_t i = 0; i < sizeof(text); i++) text[i] = (char)(i * 7);
    void *a = on_device(text, sizeof(text)), *b = device_memory(sizeof(text));
    memset(text, 0, 10); /* the host's memory is free again */
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal((uintptr_t)b % 64, 0);
    OK(cairn__device_copy(device, b, a, sizeof(text)));
    download(back, b, sizeof(back));
    for (size_t i = 0; i < sizeof(text); i++) assert_int_equal(back[i], (char)(i * 7));
    OK(cairn__device_upload(device, b, NULL, 0));
    OK(cairn__device_copy(device, b, a, 0));
    cairn__device_free(device, a);
    cairn__device_free(device, b);
    cairn__device_free(device, NULL);
}

static void memory_freed_is_not_reused_before_its_time(void **state) {
    (void)state;
    enum { N = 1000 };
    float got[N];
    float *kept = device_memory(sizeof(got));
    for (int round = 0; round < 20; round++) {
        float *a = device_memory(sizeof(got));
        passes->fill(device, CAIRN_F32, a, N, (float)round);
        OK(cairn__device_copy(device, kept, a, sizeof(got)));
        cairn__device_free(device, a);
        float *b = device_memory(sizeof(got));
        passes->fill(device, CAIRN_F32, b, N, -1);
        cairn__device_free(device, b);
        download(got, kept, sizeof(got));
        for (int i = 0; i < N; i++) assert_true(got[i] == (float)round);
    }
    cairn__device_free(device, kept);
}

static void pinned_memory_belongs_to_both(void **state) {
    (void)state;
    float *p = NULL, got = 0;
    OK(cairn__device_alloc_pinned(device, 100 * sizeof(*p), (void **)&p));
    for (int i = 0; i < 100; i++) assert_true(p[i] == 0);
    passes->fill(device, CAIRN_F32, p, 50, 3);
    OK(cairn__device_synchronize(device));
    for (int i = 0; i < 100; i++) assert_true(p[i] == (i < 50 ? 3 : 0));
    p[70] = 5;
    float *d = device_memory(sizeof(*d));
    passes->mul_scalar(device, CAIRN_F32, d, p + 70, 1, 2);
    download(&got, d, sizeof(got));
    assert_true(got == 10);
    cairn__device_free(device, d);
    cairn__device_free_pinned(device, p);
}

static void device_has_a_description(void **state) {
    (void)state;
    assert_true(strlen(cairn_device_name(device)) >= 3);
    assert_non_null(strchr(cairn_device_describe(device), ','));
}

/* ---- lists: cast, scale, axpby, check, l2norm ---- */

static void fill_items(struct cairn__item *items, const struct list *dst, const struct list *x, uint32_t *found) {
    for (size_t i = 0; i < x->count; i++) {
        items[i] = (struct cairn__item){.n = x->n[i], .dst = device_of(dst, i), .x = device_of(x, i)};
        items[i].found = found ? found + 1 + i : NULL;
    }
}

static uint32_t *make_flags(void) {
    const uint32_t zeros[1 + LIST] = {0};
    return on_device(zeros, sizeof(zeros));
}

static void assert_flags(const uint32_t *flags, const uint32_t *want, const char *what) {
    uint32_t got[1 + LIST];
    download(got, flags, sizeof(got));
    for (size_t i = 0; i < 1 + LIST; i++) {
        if (got[i] != want[i]) fail_msg("%s: flag %zu is %u, want %u", what, i, got[i], want[i]);
    }
}

static void check_cast(cairn_dtype from, cairn_dtype to, size_t offset, enum flavour flavour) {
    struct cairn__item items[LIST];
    struct list x = make_list(from, LIST, size_of, offset, flavour, SEED);
    struct list dst = make_list(to, LIST, size_of, 1 - offset, MODERATE, 0);
    fill_items(items, &dst, &x, NULL);
    for (size_t i = 0; i < LIST; i++) {
        ((cairn__cast_fn)reference(CAIRN__K_CAST, from, to))(host_of(&dst, i), host_of(&x, i), x.n[i]);
    }
    passes->cast(device, items, LIST, to, from);
    assert_list(&dst, true, describe_case("cast", from, to, offset, (int)flavour));
    assert_list(&x, true, "what cast reads");
    drop_list(&x), drop_list(&dst);
}

static void check_casts(size_t offset, enum flavour flavour) {
    EACH_PAIR(from, to) check_cast(*from, *to, offset, flavour);
    check_cast(CAIRN_I32, CAIRN_I32, offset, flavour);
    check_cast(CAIRN_I64, CAIRN_I64, offset, flavour);
}

static void cast_has_the_references_bits(void **state) {
    (void)state;
    vary(check_casts);
}

/* factor: 0 = none is given. */
static void check_scale(cairn_dtype from, cairn_dtype to, size_t offset, enum flavour flavour, float factor) {
    struct cairn__item items[LIST];
    struct list x = make_list(from, LIST, size_of, offset, flavour, SEED);
    struct list other = make_list(to, LIST, size_of, offset, MODERATE, 0);
    struct list *dst = from == to && offset ? &x : &other; /* in place too */
    uint32_t *flags = make_flags(), want[1 + LIST] = {0};
    float *f = on_device(&factor, sizeof(factor));
    fill_items(items, dst, &x, flags);
    for (size_t i = 0; i < LIST; i++) {
        ((cairn__scale_fn)reference(CAIRN__K_SCALE, from, to))(host_of(dst, i), host_of(&x, i), x.n[i],
                                                               factor != 0 ? factor : 1, &want[1 + i]);
        want[0] |= want[1 + i];
    }
    passes->scale(device, items, LIST, to, from, factor != 0 ? f : NULL, flags);
    const char *what = describe_case("scale", from, to, offset, (int)flavour);
    assert_list(dst, false, what);
    assert_flags(flags, want, what);
    passes->scale(device, items, 0, to, from, f, flags);
    cairn__device_free(device, flags), cairn__device_free(device, f);
    drop_list(&x), drop_list(&other);
}

static void check_scales(size_t offset, enum flavour flavour) {
    EACH_PAIR(from, to) {
        check_scale(*from, *to, offset, flavour, 0x1p-7f);
        check_scale(*from, *to, offset, flavour, 1.7f);
        check_scale(*from, *to, offset, flavour, 0);
    }
}

static void scale_has_the_references_bits_and_flags(void **state) {
    (void)state;
    vary(check_scales);
}

static void check_axpby(cairn_dtype from, cairn_dtype to, size_t offset, enum flavour flavour) {
    const float a = 1.7f, b = -0.3f;
    struct cairn__item items[LIST];
    struct list x = make_list(from, LIST, size_of, offset, flavour, SEED);
    struct list y = make_list(CAIRN_F32, LIST, size_of, 1 - offset, flavour, SEED + 1000);
    struct list other = make_list(to, LIST, size_of, offset, MODERATE, 0);
    struct list *dst = to == CAIRN_F32 && offset ? &y : &other;
    uint32_t *flags = make_flags(), want[1 + LIST] = {0};
    float *factor = on_device(&a, sizeof(a));
    fill_items(items, dst, &x, flags);
    for (size_t i = 0; i < LIST; i++) {
        items[i].y = device_of(&y, i);
        ((cairn__axpby_fn)reference(CAIRN__K_AXPBY, from, to))(host_of(dst, i), host_of(&x, i), host_of(&y, i), x.n[i],
                                                               a, b, &want[1 + i]);
        want[0] |= want[1 + i];
    }
    passes->axpby(device, items, LIST, to, from, factor, b, flags);
    const char *what = describe_case("axpby", from, to, offset, (int)flavour);
    assert_list(dst, false, what);
    assert_flags(flags, want, what);
    cairn__device_free(device, flags), cairn__device_free(device, factor);
    drop_list(&x), drop_list(&y), drop_list(&other);
}

static void check_axpbys(size_t offset, enum flavour flavour) {
    EACH_PAIR(from, to) check_axpby(*from, *to, offset, flavour);
}

static void axpby_has_the_references_bits_and_flags(void **state) {
    (void)state;
    vary(check_axpbys);
}

static void check_checks(size_t offset, enum flavour flavour) {
    EACH_FLOAT(t) {
        struct cairn__item items[LIST];
        struct list x = make_list(*t, LIST, size_of, offset, flavour, SEED);
        uint32_t *flags = make_flags(), want[1 + LIST] = {0};
        fill_items(items, &x, &x, flags);
        for (size_t i = 0; i < LIST; i++) {
            items[i].dst = NULL;
            ((cairn__check_fn)reference(CAIRN__K_CHECK, *t, 0))(host_of(&x, i), x.n[i], &want[1 + i]);
            want[0] |= want[1 + i];
        }
        passes->check(device, items, LIST, *t, flags);
        assert_flags(flags, want, describe_case("check", *t, *t, offset, (int)flavour));
        cairn__device_free(device, flags);
        drop_list(&x);
    }
}

static void check_raises_flags_of_nonfinite_tensors(void **state) {
    (void)state;
    vary(check_checks);
}

/* One element at a time, at every place of a tensor. */
static void check_sees_every_element(void **state) {
    (void)state;
    enum { N = 67 + 1030 };
    EACH_FLOAT(t) {
        const size_t width = cairn_dtype_nbytes(*t);
        unsigned char x[N * sizeof(float)] = {0};
        const uint32_t infinity = *t == CAIRN_F32 ? 0xff800000 : *t == CAIRN_F16 ? 0xfc00 : 0xff80;
        unsigned char *p = on_device(x, N * width);
        uint32_t *flags = make_flags();
        for (size_t i = 0; i < N; i += i < 67 ? 1 : 13) {
            const struct cairn__item item = {.n = N, .x = p};
            passes->store(device, p + i * width, &infinity, width);
            passes->check(device, &item, 1, *t, flags);
            assert_int_equal(flag_of(flags), 1);
            passes->store(device, p + i * width, x, width);
            passes->clear_flags(device, flags, 1);
            passes->check(device, &item, 1, *t, flags);
            assert_int_equal(flag_of(flags), 0);
        }
        cairn__device_free(device, p), cairn__device_free(device, flags);
    }
}

/* Limits of every kind of size; NaNs and zeros keep their bits. */
static void check_clamps(size_t offset, enum flavour flavour) {
    static const float limits[] = {0, 0x1p-140f, 0.75f, 3, 0x1p127f};
    for (size_t l = 0; l < COUNT(limits); l++) {
        const float limit = limits[l];
        struct cairn__item items[LIST];
        struct list x = make_list(CAIRN_F32, LIST, size_of, offset, flavour, SEED);
        struct list other = make_list(CAIRN_F32, LIST, size_of, 0, MODERATE, 0);
        struct list *dst = offset ? &x : &other; /* in place too */
        fill_items(items, dst, &x, NULL);
        for (size_t i = 0; i < LIST; i++) {
            const float *from = host_of(&x, i);
            float *to = host_of(dst, i);
            for (size_t e = 0; e < x.n[i]; e++) to[e] = from[e] > limit ? limit : from[e] < -limit ? -limit : from[e];
        }
        passes->clamp(device, items, LIST, limit);
        assert_list(dst, true, describe_case("clamp", CAIRN_F32, CAIRN_F32, offset, (int)flavour));
        drop_list(&x), drop_list(&other);
    }
}

static void clamp_keeps_values_within_its_bounds_and_nan(void **state) {
    (void)state;
    vary(check_clamps);
}

static struct cairn__census census_of(const struct list *l, size_t i, float least_normal) {
    struct cairn__counts c = {.max_exponent = INT32_MIN, .min_exponent = INT32_MAX};
    ((cairn__census_fn)reference(CAIRN__K_CENSUS, l->type, 0))(host_of(l, i), l->n[i], least_normal, &c);
    const bool any = c.max_exponent >= c.min_exponent;
    return (struct cairn__census){
        c.zeros, c.subnormals, c.infs, c.nans, any ? c.max_exponent : 0, any ? c.min_exponent : 0, c.largest};
}

/* out stands between others, which keep what they hold. */
static void check_census(cairn_dtype t, size_t offset, enum flavour flavour, float least_normal) {
    struct cairn__item items[LIST];
    struct cairn__census want[LIST + 2], got[LIST + 2];
    struct list x = make_list(t, LIST, size_of, offset, flavour, SEED);
    memset(want, CANARY_BYTE, sizeof(want));
    struct cairn__census *out = on_device(want, sizeof(want));
    fill_items(items, &x, &x, NULL);
    for (size_t i = 0; i < LIST; i++) {
        items[i].dst = NULL;
        want[1 + i] = census_of(&x, i, least_normal);
    }
    passes->census(device, items, LIST, t, least_normal, out + 1);
    passes->census(device, items, 0, t, least_normal, NULL);
    download(got, out, sizeof(got));
    for (size_t i = 0; i < LIST + 2; i++) {
        if (memcmp(&got[i], &want[i], sizeof(got[i])) != 0) {
            fail_msg("%s: census %zu has %d zeros, %d subnormals, %d to %d; want %d, %d, %d to %d",
                     describe_case("census", t, t, offset, (int)flavour), i, (int)got[i].zeros, (int)got[i].subnormals,
                     got[i].min_exponent, got[i].max_exponent, (int)want[i].zeros, (int)want[i].subnormals,
                     want[i].min_exponent, want[i].max_exponent);
        }
    }
    cairn__device_free(device, out);
    drop_list(&x);
}

/* Likewise. Of f64, which lists here are not, each element is put in a binade of its own. */
static void check_exponents(size_t offset, enum flavour flavour) {
    EACH_FLOAT(t) {
        struct cairn__item items[LIST];
        struct cairn__exponent_counts want[LIST + 2], got[LIST + 2];
        struct list x = make_list(*t, LIST, size_of, offset, flavour, SEED);
        memset(want, CANARY_BYTE, sizeof(want));
        struct cairn__exponent_counts *out = on_device(want, sizeof(want));
        fill_items(items, &x, &x, NULL);
        for (size_t i = 0; i < LIST; i++) {
            items[i].dst = NULL;
            want[1 + i] = (struct cairn__exponent_counts){0};
            ((cairn__count_exponents_fn)reference(CAIRN__K_COUNT_EXPONENTS, *t, 0))(host_of(&x, i), x.n[i],
                                                                                    &want[1 + i]);
        }
        passes->count_exponents(device, items, LIST, *t, out + 1);
        passes->count_exponents(device, items, 0, *t, NULL);
        download(got, out, sizeof(got));
        for (size_t i = 0; i < LIST + 2; i++) {
            if (memcmp(&got[i], &want[i], sizeof(got[i])) != 0)
                fail_msg("%s: tensor %zu", describe_case("count_exponents", *t, *t, offset, (int)flavour), i);
        }
        cairn__device_free(device, out);
        drop_list(&x);
    }
}

static void exponents_are_the_references(void **state) {
    (void)state;
    vary(check_exponents);
}

static void exponents_of_f64_go_beyond_those_of_f32(void **state) {
    (void)state;
    enum { LEAST = -1074, N = 1024 - LEAST };
    double x[N + 3];
    struct cairn__exponent_counts want = {.zeros = 1, .infs = 1, .nans = 1, .below = -149 - LEAST, .above = 1024 - 128},
                                  got;
    for (int b = LEAST; b < 1024; b++) x[b - LEAST] = ldexp(b % 2 ? -1.5 : 1, b);
    for (int b = 0; b < CAIRN__BINADES; b++) want.binades[b] = 1;
    memset(&got, CANARY_BYTE, sizeof(got));
    x[N] = -0.0, x[N + 1] = -INFINITY, x[N + 2] = NAN;
    const struct cairn__item item = {.n = N + 3, .x = on_device(x, sizeof(x))};
    struct cairn__exponent_counts *out = on_device(&got, sizeof(got));
    passes->count_exponents(device, &item, 1, CAIRN_F64, out);
    download(&got, out, sizeof(got));
    assert_memory_equal(&got, &want, sizeof(want));
    cairn__device_free(device, (void *)(uintptr_t)item.x), cairn__device_free(device, out);
}

static void check_censuses(size_t offset, enum flavour flavour) {
    EACH_FLOAT(t) {
        check_census(*t, offset, flavour, 0x1p-14f);
        check_census(*t, offset, flavour, 0x1p-126f);
    }
}

static void census_has_the_references_counts(void **state) {
    (void)state;
    vary(check_censuses);
}

/* More chunks than one, and every kind of element among them. */
static void census_of_a_large_tensor_misses_nothing(void **state) {
    (void)state;
    enum { N = 300007 };
    static const uint16_t kinds[] = {0x0000, 0x8000, 0x0001, 0x7c00, 0xfc00, 0x7e01, 0x3c00, 0x7bff};
    uint16_t *x = host_memory(N * sizeof(*x));
    struct cairn__census got;
    for (size_t e = 0; e < N; e++) x[e] = kinds[e * 5 % COUNT(kinds)];
    uint16_t *p = on_device(x, N * sizeof(*x));
    struct cairn__census *out = device_memory(sizeof(*out));
    passes->census(device, &(struct cairn__item){.n = N, .x = p}, 1, CAIRN_F16, 0x1p-14f, out);
    download(&got, out, sizeof(got));
    const size_t each = N / COUNT(kinds); /* 7 are left: of all but 0x7c00, the last in turn */
    assert_int_equal(got.zeros, 2 * each + 2);
    assert_int_equal(got.subnormals, each + 1);
    assert_int_equal(got.infs, 2 * each + 1);
    assert_int_equal(got.nans, each + 1);
    assert_true(got.max_exponent == 15 && got.min_exponent == -24 && got.largest == 65504);
    cairn__device_free(device, p), cairn__device_free(device, out);
    free(x);
}

static bool close_to(double got, double want, double bound) {
    return (isnan(got) && isnan(want)) || got == want || fabs(got - want) <= bound;
}

static void check_norm(cairn_dtype t, size_t offset, enum flavour flavour, bool with_each) {
    const float factor = 0x1.8p-3f;
    struct cairn__item items[LIST];
    struct list x = make_list(t, LIST, size_of, offset, flavour, SEED);
    uint32_t *flags = make_flags(), want[1 + LIST] = {0};
    double sums[1 + LIST] = {0}, got[1 + LIST];
    double *norms = device_memory(sizeof(got));
    float *f = on_device(&factor, sizeof(factor));
    fill_items(items, &x, &x, flags);
    for (size_t i = 0; i < LIST; i++) {
        ((cairn__sumsq_fn)reference(CAIRN__K_SUMSQ, t, 0))(host_of(&x, i), x.n[i], factor, &sums[1 + i], &want[1 + i]);
        sums[0] += sums[1 + i];
        want[0] |= want[1 + i];
        items[i].found = NULL;
    }
    passes->l2norm(device, items, LIST, t, f, norms, with_each ? norms + 1 : NULL, flags);
    download(got, norms, with_each ? sizeof(got) : sizeof(got[0]));
    for (size_t i = 0; i < (with_each ? 1 + LIST : 1); i++) {
        const double norm = sqrt(sums[i]);
        if (!close_to(got[i], norm, (t == CAIRN_F32 ? 1e-12 : 1.2e-6) * norm)) /* twice, of two within 6e-7 */
            fail_msg("l2norm %s %zu: %a, want %a", describe_case("", t, t, offset, (int)flavour), i, got[i], norm);
    }
    assert_int_equal(flag_of(flags), want[0]);
    cairn__device_free(device, flags), cairn__device_free(device, norms), cairn__device_free(device, f);
    drop_list(&x);
}

static void check_norms(size_t offset, enum flavour flavour) {
    EACH_FLOAT(t) {
        check_norm(*t, offset, flavour, true);
        check_norm(*t, offset, flavour, false);
    }
}

static void l2norm_is_that_of_the_reference(void **state) {
    (void)state;
    vary(check_norms);
    double norm = -1;
    double *p = device_memory(sizeof(norm));
    passes->l2norm(device, NULL, 0, CAIRN_F32, NULL, p, NULL, NULL);
    download(&norm, p, sizeof(norm));
    assert_true(norm == 0);
    cairn__device_free(device, p);
}

/* Neither the product with the factor nor a square is ever an f32; bf16 2^127 and 2^-133 are the ends of its range. */
static void l2norm_is_finite_where_its_tensors_are(void **state) {
    (void)state;
    const float wide[] = {0x1.8p100f, 0x1p101f}, factors[] = {0x1p100f, 0x1p-127f};
    const uint16_t halves[] = {0x7f00, 0x0001};
    float *x = on_device(wide, sizeof(wide)), *f = on_device(factors, sizeof(factors));
    uint16_t *h = on_device(halves, sizeof(halves));
    uint32_t *flags = make_flags();
    double got[3], *norms = device_memory(sizeof(got));
    passes->l2norm(device, &(struct cairn__item){.n = 2, .x = x}, 1, CAIRN_F32, f, norms, NULL, flags);
    passes->l2norm(device, &(struct cairn__item){.n = 1, .x = h}, 1, CAIRN_BF16, f + 1, norms + 1, NULL, flags);
    passes->l2norm(device, &(struct cairn__item){.n = 1, .x = h + 1}, 1, CAIRN_BF16, NULL, norms + 2, NULL, flags);
    download(got, norms, sizeof(got));
    assert_true(got[0] == 2.5 * 0x1p200 && got[1] == 1 && got[2] == 0x1p-133);
    assert_int_equal(flag_of(flags), 0);
    cairn__device_free(device, x), cairn__device_free(device, f), cairn__device_free(device, h);
    cairn__device_free(device, flags), cairn__device_free(device, norms);
}

/* Of ones, between others: a square left out or taken twice is seen. */
static void check_norm_of_ones(size_t n) {
    float *x = device_memory(n * sizeof(*x));
    double got[4], *norms = device_memory(sizeof(got));
    const struct cairn__item items[3] = {{.n = 3, .x = x}, {.n = n, .x = x}, {.n = 5000, .x = x}};
    passes->fill(device, CAIRN_F32, x, n, 1);
    passes->l2norm(device, items, 3, CAIRN_F32, NULL, norms, norms + 1, NULL);
    download(got, norms, sizeof(got));
    assert_true(got[0] == sqrt((double)n + 5003));
    assert_true(got[1] == sqrt(3) && got[2] == sqrt((double)n) && got[3] == sqrt(5000));
    cairn__device_free(device, x), cairn__device_free(device, norms);
}

/* More chunks than a warp adds up. */
static void l2norm_of_a_large_tensor_is_exact_on_ones(void **state) {
    (void)state;
    check_norm_of_ones(1200007);
}

/* More than fit into as many blocks as a GPU would like. */
static void l2norm_of_a_tensor_with_larger_chunks_is_exact_on_ones(void **state) {
    (void)state;
    const char *wanted = getenv("CAIRN_TEST_LARGE");
    if (!wanted || strcmp(wanted, "1") != 0) {
        print_message("runs where CAIRN_TEST_LARGE=1\n");
        skip();
    }
    check_norm_of_ones(((size_t)1 << 26) + 1031);
    check_norm_of_ones(((size_t)1 << 28) + 1031);
}

/* ---- optimizers ---- */

/* Widened by the definition of the type, not by the rows under test. */
static float *widened(const struct list *l, size_t i) {
    float *x = host_memory(l->n[i] * sizeof(*x));
    const unsigned char *from = host_of(l, i);
    for (size_t e = 0; e < l->n[i]; e++) x[e] = cairn__dtype(l->type)->to_f32(from + e * l->width);
    return x;
}

/* A training of LIST parameters, on the host and on the device at once. */
struct training {
    cairn_dtype grad;
    enum cairn__weight_mode mode;
    struct list weights, half, state[CAIRN__MAX_STATES], grads;
    struct cairn__optim_state optim; /* the host's */
    struct cairn__rates rates;
    int64_t missed[LIST];
    float factor;
    struct cairn__optim_state *device_optim;
    struct cairn__rates *device_rates;
    int64_t *device_missed;
    float *device_factor;
    struct cairn__squares squares[LIST], *device_squares;
    float seconds[LIST], *device_seconds; /* NovoGrad's, in place of state[1] */
};

static cairn_dtype weight_type(enum cairn__weight_mode mode) {
    static const cairn_dtype types[CAIRN__NUM_STORAGE_MODES] = {
        [CAIRN__W_F16] = CAIRN_F16, [CAIRN__W_BF16] = CAIRN_BF16, [CAIRN__W_BF16_STOCHASTIC] = CAIRN_BF16};
    return types[mode] ? types[mode] : CAIRN_F32;
}

static bool has_half(enum cairn__weight_mode mode) {
    return mode == CAIRN__W_F32_F16 || mode == CAIRN__W_F32_BF16;
}

static struct list make_zeros(size_t offset) {
    struct list l = make_list(CAIRN_F32, LIST, size_of, offset, MODERATE, 0);
    for (size_t i = 0; i < LIST; i++) memset(host_of(&l, i), 0, l.n[i] * l.width);
    OK(cairn__device_upload(device, l.device, l.host, l.nbytes));
    return l;
}

static struct training make_training(cairn_dtype grad, enum cairn__weight_mode mode, size_t offset) {
    struct training t = {.grad = grad, .mode = mode, .rates = {0.01, 0.9}, .factor = 0x1p-3f};
    t.optim = (struct cairn__optim_state){.clip = 0.75f, .rounding_seed = SEED};
    const cairn_dtype half = mode == CAIRN__W_F32_F16 ? CAIRN_F16 : CAIRN_BF16;
    t.weights = make_list(weight_type(mode), LIST, size_of, offset, MODERATE, SEED);
    t.half = make_list(half, LIST, size_of, offset, MODERATE, SEED);
    t.grads = make_list(grad, LIST, size_of, 1 - offset, MODERATE, SEED);
    for (int k = 0; k < CAIRN__MAX_STATES; k++) t.state[k] = make_zeros(k == 0 ? offset : 0);
    t.device_optim = on_device(&t.optim, sizeof(t.optim));
    t.device_missed = on_device(t.missed, sizeof(t.missed));
    t.device_factor = on_device(&t.factor, sizeof(t.factor));
    t.device_rates = on_device(&t.rates, sizeof(t.rates));
    t.device_squares = on_device(t.squares, sizeof(t.squares));
    t.device_seconds = on_device(t.seconds, sizeof(t.seconds));
    return t;
}

static void drop_training(struct training *t) {
    drop_list(&t->weights), drop_list(&t->half), drop_list(&t->grads);
    for (int k = 0; k < CAIRN__MAX_STATES; k++) drop_list(&t->state[k]);
    cairn__device_free(device, t->device_optim), cairn__device_free(device, t->device_missed);
    cairn__device_free(device, t->device_factor), cairn__device_free(device, t->device_rates);
    cairn__device_free(device, t->device_squares), cairn__device_free(device, t->device_seconds);
}

/* Parameter i has no gradient in some of the steps. */
static bool is_missing(size_t i, int step) {
    return (i + (size_t)step) % 7 == 3;
}

static bool is_skipped(int step) {
    return step == 2;
}

static void new_gradients(struct training *t, int step) {
    for (size_t i = 0; i < LIST; i++) {
        fill_array(host_of(&t->grads, i), t->grad, t->grads.n[i], MODERATE, (uint64_t)(100 * step) + i);
    }
    OK(cairn__device_upload(device, t->grads.device, t->grads.host, t->grads.nbytes));
}

/* Its number, to stochastic rounding. */
static uint32_t parameter_of(size_t i) {
    return (uint32_t)(i * 1001 + 7);
}

static size_t fill_optim_items(const struct training *t, int step, struct cairn__optim_item *items) {
    size_t count = 0;
    for (size_t i = 0; i < LIST; i++) {
        if (is_missing(i, step)) continue;
        items[count++] = (struct cairn__optim_item){.n = t->weights.n[i],
                                                    .weights = device_of(&t->weights, i),
                                                    .half = has_half(t->mode) ? device_of(&t->half, i) : NULL,
                                                    .state = {device_of(&t->state[0], i), device_of(&t->state[1], i),
                                                              device_of(&t->state[2], i)},
                                                    .grad = device_of(&t->grads, i),
                                                    .factor = t->device_factor,
                                                    .missed = t->device_missed + i,
                                                    .squares = t->device_squares + i};
        if (t->mode == CAIRN__W_BF16_STOCHASTIC) items[count - 1].parameter = parameter_of(i);
    }
    return count;
}

static void assert_training(const struct training *t, const char *what) {
    int64_t missed[LIST];
    download(missed, t->device_missed, sizeof(missed));
    float seconds[LIST];
    assert_memory_equal(missed, t->missed, sizeof(missed));
    download(seconds, t->device_seconds, sizeof(seconds));
    assert_memory_equal(seconds, t->seconds, sizeof(seconds));
    assert_list(&t->weights, false, what);
    assert_list(&t->half, false, what);
    for (int k = 0; k < CAIRN__MAX_STATES; k++) assert_list(&t->state[k], false, what);
}

/* Weights that are rounded at random are widened, updated as f32 and rounded; others are updated where they are. */
static void *weights_to_update(const struct training *t, size_t i) {
    return t->mode == CAIRN__W_BF16_STOCHASTIC ? widened(&t->weights, i) : host_of(&t->weights, i);
}

static int mode_to_update(const struct training *t) {
    return t->mode == CAIRN__W_BF16_STOCHASTIC ? CAIRN__W_F32 : (int)t->mode;
}

static void weights_were_updated(const struct training *t, size_t i, void *weights, int64_t update) {
    if (t->mode != CAIRN__W_BF16_STOCHASTIC) return;
    ((cairn__round_stochastic_fn)reference(CAIRN__K_ROUND_STOCHASTIC, 0,
                                           0))(host_of(&t->weights, i), weights, t->weights.n[i], SEED,
                                               cairn__rounding_stream(parameter_of(i), update), 0);
    free(weights);
}

static double squares_of(cairn_dtype type, const void *x, size_t n) {
    const struct cairn__dtype *t = cairn__dtype(type);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += pow((double)t->to_f32((const char *)x + i * t->nbytes), 2);
    return sum;
}

/* LAMB's direction goes to state[2]. */
static void host_direct(const struct training *t, size_t i, const struct cairn__optim_rule *rule, float *const *state) {
    const int64_t update = cairn__update_number(&t->optim, &t->missed[i]);
    const union cairn__update h = cairn__direction_of(rule, &t->rates, update, t->factor * t->optim.clip);
    const int mode = t->weights.type == CAIRN_F16    ? CAIRN__W_F16
                     : t->weights.type == CAIRN_BF16 ? CAIRN__W_BF16
                                                     : CAIRN__W_F32;
    ((cairn__update_fn)reference(CAIRN__K_LAMB, t->grad, mode))(host_of(&t->weights, i), NULL, state,
                                                                host_of(&t->grads, i), t->weights.n[i], &h);
}

/* The device's sums are those of another order: beside their bound, 1.2e-6 for halves on the CPU, they are taken. */
static void assert_squares(const struct training *t, size_t i, const struct cairn__optim_rule *rule, cairn_dtype type,
                           const void *grad) {
    const double sum = squares_of(type, grad, t->grads.n[i]);
    const double weights = squares_of(t->weights.type, host_of(&t->weights, i), t->weights.n[i]);
    assert_true(fabs(t->squares[i].grad - sum) <= 1.3e-6 * sum);
    if (rule->kind != CAIRN__OPTIM_NOVOGRAD) assert_true(fabs(t->squares[i].weights - weights) <= 1.3e-6 * weights);
}

static void host_update(struct training *t, size_t i, const struct cairn__optim_rule *rule) {
    const int64_t update = cairn__update_number(&t->optim, &t->missed[i]);
    float *const state[CAIRN__MAX_STATES] = {host_of(&t->state[0], i), host_of(&t->state[1], i),
                                             host_of(&t->state[2], i)};
    const bool is_lamb = rule->kind == CAIRN__OPTIM_LAMB;
    const cairn_dtype type = is_lamb ? CAIRN_F32 : t->grad;
    const void *grad = is_lamb ? state[2] : host_of(&t->grads, i);
    const float factor = t->factor * t->optim.clip;
    if (is_lamb) host_direct(t, i, rule, state);
    if (cairn__rule_measures(rule)) assert_squares(t, i, rule, type, grad);
    if (rule->kind == CAIRN__OPTIM_NOVOGRAD)
        t->seconds[i] = cairn__novograd_second(&rule->novograd, update, factor, &t->squares[i], t->seconds[i]);
    const union cairn__update scalars =
        cairn__update_of(rule, &t->rates, update, factor, &t->squares[i], &t->seconds[i]);
    void *weights = weights_to_update(t, i);
    ((cairn__update_fn)reference((enum cairn__kernel_kind)(CAIRN__K_SGD + (int)cairn__update_kernel(rule)), type,
                                 mode_to_update(t)))(weights, host_of(&t->half, i), state, grad, t->weights.n[i],
                                                     &scalars);
    weights_were_updated(t, i, weights, update);
}

/* LAMB's update has the direction for a gradient. */
static cairn_dtype device_measure(struct training *t, struct cairn__optim_item *items, size_t count,
                                  const struct cairn__optim_rule *rule) {
    if (!cairn__rule_measures(rule)) return t->grad;
    passes->measure(device, items, count, t->grad, t->mode, rule, t->device_rates, t->device_optim);
    download(t->squares, t->device_squares, sizeof(t->squares));
    if (rule->kind != CAIRN__OPTIM_LAMB) return t->grad;
    for (size_t k = 0; k < count; k++) items[k].grad = items[k].state[2], items[k].factor = NULL;
    return CAIRN_F32;
}

/* One step, with its counting done by the device where it is the device's; the host's is done by hand. */
static void run_step(struct training *t, int step, const struct cairn__optim_rule *rule) {
    struct cairn__optim_item items[LIST];
    t->optim.skip = is_skipped(step);
    new_gradients(t, step);
    passes->store(device, t->device_optim, &t->optim, sizeof(t->optim));
    const size_t count = fill_optim_items(t, step, items);
    for (size_t k = 0; rule->kind == CAIRN__OPTIM_NOVOGRAD && k < count; k++)
        items[k].state[1] = t->device_seconds + (items[k].missed - t->device_missed);
    const cairn_dtype grad = device_measure(t, items, count, rule);
    passes->update(device, items, count, grad, t->mode, rule, t->device_rates, t->device_optim);
    for (size_t i = 0; i < LIST; i++) {
        if (is_missing(i, step)) passes->count_up(device, t->device_missed + i, t->device_optim);
    }
    if (t->optim.skip) return;
    for (size_t i = 0; i < LIST; i++) {
        if (is_missing(i, step)) t->missed[i]++;
        else host_update(t, i, rule);
    }
    t->optim.steps++;
}

static void train(cairn_dtype grad, enum cairn__weight_mode mode, const char *name,
                  const struct cairn__optim_rule *rule) {
    enum { STEPS = 5 };
    char what[64];
    snprintf(what, sizeof(what), "%s %s mode %d", name, cairn_dtype_name(grad), (int)mode);
    struct training t = make_training(grad, mode, (size_t)mode % 2);
    for (int step = 0; step < STEPS; step++) run_step(&t, step, rule);
    assert_training(&t, what);
    drop_training(&t);
}

static void train_by(const char *name, const struct cairn__optim_rule *rules, size_t count) {
    EACH_FLOAT(grad) {
        for (int mode = 0; mode < CAIRN__NUM_STORAGE_MODES; mode++) {
            for (size_t r = 0; r < count; r++) {
                if (check_is_short() && (size_t)(grad - floats + mode) % count != r) continue;
                train(*grad, (enum cairn__weight_mode)mode, name, &rules[r]);
            }
        }
    }
}

static void sgd_has_the_references_bits_over_steps(void **state) {
    (void)state;
    static const struct cairn__optim_rule rules[] = {
        {.kind = CAIRN__OPTIM_SGD},
        {.kind = CAIRN__OPTIM_SGD, .sgd = {.weight_decay = 0.1}},
        {.kind = CAIRN__OPTIM_SGD, .maximizes = true, .sgd = {.has_momentum = true, .dampening = 0.25}},
        {.kind = CAIRN__OPTIM_SGD, .sgd = {.has_momentum = true, .nesterov = true, .weight_decay = 0.01}},
        {.kind = CAIRN__OPTIM_SGD, .sgd = {.has_momentum = true, .decays_last = true, .weight_decay = 0.01}},
        {.kind = CAIRN__OPTIM_SGD,
         .larc = {.trust = 0.02, .eps = 1e-8, .is_on = true},
         .sgd = {.has_momentum = true, .weight_decay = 0.01}},
    };
    train_by("sgd", rules, COUNT(rules));
}

static void adam_has_the_references_bits_over_steps(void **state) {
    (void)state;
    static const struct cairn__optim_rule rules[] = {
        {.kind = CAIRN__OPTIM_ADAM, .adam = {.beta2 = 0.999, .eps = 1e-8}},
        {.kind = CAIRN__OPTIM_ADAM,
         .larc = {.trust = 0.5, .is_on = true, .scales = true},
         .adam = {.beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .decoupled = true}},
        {.kind = CAIRN__OPTIM_ADAM, .adam = {.beta2 = 0.5, .eps = 1e-8, .weight_decay = 0.1, .amsgrad = true}},
        {.kind = CAIRN__OPTIM_ADAM,
         .maximizes = true,
         .adam = {.beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1, .decoupled = true, .uncorrected = true}},
    };
    train_by("adam", rules, COUNT(rules));
}

static void lion_has_the_references_bits_over_steps(void **state) {
    (void)state;
    static const struct cairn__optim_rule rules[] = {
        {.kind = CAIRN__OPTIM_LION, .lion = {.beta2 = 0.99}},
        {.kind = CAIRN__OPTIM_LION, .maximizes = true, .lion = {.beta2 = 0.5, .weight_decay = 0.1}},
    };
    train_by("lion", rules, COUNT(rules));
}

static void adagrad_has_the_references_bits_over_steps(void **state) {
    (void)state;
    static const struct cairn__optim_rule rules[] = {
        {.kind = CAIRN__OPTIM_ADAGRAD, .adagrad = {.eps = 1e-10, .initial = 0.5}},
        {.kind = CAIRN__OPTIM_ADAGRAD, .adagrad = {.eps = 1e-6, .weight_decay = 0.1, .lr_decay = 0.25}},
        {.kind = CAIRN__OPTIM_ADAGRAD, .adagrad = {.eps = 1e-6, .weight_decay = 0.1, .decoupled = true}},
    };
    train_by("adagrad", rules, COUNT(rules));
}

static void lamb_has_the_references_bits_over_steps(void **state) {
    (void)state;
    static const struct cairn__optim_rule rules[] = {
        {.kind = CAIRN__OPTIM_LAMB, .lamb = {.beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01}},
        {.kind = CAIRN__OPTIM_LAMB, .maximizes = true, .lamb = {.beta2 = 0.5, .eps = 1e-6, .is_nvlamb = true}},
        {.kind = CAIRN__OPTIM_LAMB,
         .lamb = {.beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .l2 = true, .unaveraged = true}},
    };
    train_by("lamb", rules, COUNT(rules));
}

/* Where the greatest element is the norm, its square is exact. */
static void novograd_has_the_references_bits_over_steps(void **state) {
    (void)state;
    static const struct cairn__optim_rule rules[] = {
        {.kind = CAIRN__OPTIM_NOVOGRAD, .novograd = {.beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01}},
        {.kind = CAIRN__OPTIM_NOVOGRAD,
         .maximizes = true,
         .novograd = {.beta2 = 0.5, .eps = 1e-6, .weight_decay = 0.1, .decays_inside = true, .unaveraged = true}},
    };
    train_by("novograd", rules, COUNT(rules));
}

/* ---- the end of a step ---- */

/* A group with each schedule, one with all in turn and one with their product. Lengths are such that steps of a test
 * pass every corner. */
enum { KINDS = CAIRN__SCHEDULE_WARMUP_STABLE_DECAY, GROUPS = KINDS + 2 };

struct schedules {
    struct cairn__rates rates[GROUPS], used[CAIRN__REPORTS * GROUPS];
    struct cairn__group_schedule groups[GROUPS];
    struct cairn__schedule parts[KINDS];
    int64_t milestones[3];
};

/* As the host has them; the device's parts and milestones are at `there`. */
static void make_schedules(struct schedules *s, const struct schedules *there) {
    memcpy(s->milestones, (int64_t[]){3, 4, 40}, sizeof(s->milestones));
    for (int k = 0; k < KINDS; k++) {
        s->parts[k] = (struct cairn__schedule){.kind = k + 1,
                                               .warmup_curve = 1 + k % 3,
                                               .curve = 1 + k % 3,
                                               .three_phase = k % 2,
                                               .moves_momentum = k + 1 == CAIRN__SCHEDULE_ONE_CYCLE,
                                               .from = 4 * k,
                                               .warmup = k % 4,
                                               .length = 37,
                                               .decay = 11,
                                               .step_size = 7,
                                               .growth = 2,
                                               .timescale = 9,
                                               .warmup_start = 0.1,
                                               .start_factor = 0.5,
                                               .end_factor = 0.01,
                                               .end_lr = 1e-4,
                                               .cycles = 0.7,
                                               .power = 1.7,
                                               .gamma = 0.97,
                                               .pct_start = 0.3,
                                               .div_factor = 25,
                                               .final_div_factor = 1e4,
                                               .base_momentum = 0.85,
                                               .max_momentum = 0.95,
                                               .milestones = there->milestones,
                                               .num_milestones = 3};
        s->groups[k] = (struct cairn__group_schedule){.base = {0.1, 0.9},
                                                      .parts = &there->parts[k],
                                                      .count = 1,
                                                      .counts_skipped = k % 2};
    }
    s->groups[KINDS] = (struct cairn__group_schedule){.base = {0.3, 0.8}, .parts = there->parts, .count = KINDS};
    s->groups[KINDS + 1] = s->groups[KINDS];
    s->groups[KINDS + 1].is_product = 1, s->groups[KINDS + 1].origin = 2;
}

static struct cairn__rate_table table_of(struct schedules *s, struct cairn__rates *used) {
    return (struct cairn__rate_table){.rates = s->rates, .schedules = s->groups, .used = used, .groups = GROUPS};
}

/* The device's structs of a step, and the host's, which compute the same. */
struct ending {
    struct schedules schedules, *device_schedules;
    struct cairn__step_end end, model;
    struct cairn__optim_state optim;
    struct cairn__scaler_state scalers[2];
    struct cairn__scaler_state *device_scalers; /* [2] */
    struct cairn__overflow overflows[LIST];
    struct cairn__step_report reports[CAIRN__REPORTS];
    struct cairn__scaler_report scaler_reports[CAIRN__REPORTS], *device_scaler_reports;
    struct cairn__overflow names[CAIRN__REPORTS * LIST];
};

static void make_ending(struct ending *e) {
    *e = (struct ending){.optim = {.clip = 1}};
    e->scalers[0] = (struct cairn__scaler_state){.scale = 0x1p16,
                                                 .min = 1,
                                                 .max = 0x1p18,
                                                 .growth = 2,
                                                 .backoff = 0.5,
                                                 .window = 3,
                                                 .rule = CAIRN__SCALER_APEX,
                                                 .last_overflow = -1};
    e->scalers[1] = e->scalers[0];
    e->scalers[1].scale = 4, e->scalers[1].id = 1;
    e->model = (struct cairn__step_end){.optim = &e->optim,
                                        .scalers = {&e->scalers[0], &e->scalers[1]},
                                        .num_scalers = 2,
                                        .overflows = e->overflows,
                                        .count = LIST,
                                        .reports = e->reports,
                                        .names = e->names};
    e->end = e->model;
    e->end.optim = on_device(&e->optim, sizeof(e->optim));
    e->device_scalers = on_device(e->scalers, sizeof(e->scalers));
    e->end.scalers[0] = e->device_scalers, e->end.scalers[1] = e->device_scalers + 1;
    e->end.overflows = on_device(e->overflows, sizeof(e->overflows));
    OK(cairn__device_alloc_pinned(device, sizeof(e->reports), (void **)&e->end.reports));
    OK(cairn__device_alloc_pinned(device, sizeof(e->scaler_reports), (void **)&e->device_scaler_reports));
    OK(cairn__device_alloc_pinned(device, sizeof(e->names), (void **)&e->end.names));
    make_schedules(&e->schedules, &e->schedules);
    e->model.table = table_of(&e->schedules, e->schedules.used);
    e->device_schedules = device_memory(sizeof(e->schedules));
    struct schedules sent = {0};
    struct cairn__rates *used = NULL;
    make_schedules(&sent, e->device_schedules);
    OK(cairn__device_upload(device, e->device_schedules, &sent, sizeof(sent)));
    OK(cairn__device_alloc_pinned(device, sizeof(e->schedules.used), (void **)&used));
    memset(used, 0, sizeof(e->schedules.used));
    e->end.table = table_of(e->device_schedules, used);
    passes->renew_rates(device, &e->end.table, e->end.optim);
    for (size_t g = 0; g < GROUPS; g++)
        e->schedules.rates[g] = cairn__group_rates(&e->schedules.groups[g], e->optim.steps, e->optim.skipped);
}

static void drop_ending(struct ending *e) {
    cairn__device_free(device, e->end.optim), cairn__device_free(device, e->end.overflows);
    cairn__device_free(device, e->device_scalers);
    cairn__device_free(device, e->device_schedules);
    cairn__device_free_pinned(device, e->end.table.used);
    cairn__device_free_pinned(device, e->end.reports), cairn__device_free_pinned(device, e->end.names);
    cairn__device_free_pinned(device, e->device_scaler_reports);
}

/* The host's side of step_end and of scaler_update. */
static void end_step_here(const struct cairn__step_end *e) {
    for (size_t i = 0; i < e->count; i++) cairn__step_end_overflow(e, i);
    for (size_t g = 0; g < e->table.groups; g++) cairn__step_end_rates(e, g);
    struct cairn__step_report *r = cairn__step_end_scalars(e);
    r->number = e->optim->ends;
}

static void update_scaler_here(struct ending *e, int s) {
    struct cairn__scaler_report *r = cairn__scaler_update_scalars(&e->scalers[s], e->scaler_reports);
    r->number = (uint64_t)e->scalers[s].updates;
}

/* Before the step's end, by it, or not at all. */
static void update_scaler(struct ending *e, int s, int step) {
    e->end.scaler_reports[s] = step % 4 == 2 ? e->device_scaler_reports : NULL;
    if (step % 4 < 2) passes->scaler_update(device, e->device_scalers + s, e->device_scaler_reports);
    if (step % 4 < 3) update_scaler_here(e, s);
}

/* A step in which some parameters overflow, or none; the second loss is to blame in every other such step. */
static void end_step(struct ending *e, int step) {
    if (step % 5 == 1 || step > 30) {
        const uint32_t raised = 1;
        for (size_t i = (size_t)step % 9; i < LIST; i += 9) {
            e->overflows[i] = (struct cairn__overflow){(uint32_t)step, 3, (uint32_t)i, -1};
            passes->store(device, e->end.overflows + i, &e->overflows[i], sizeof(e->overflows[i]));
        }
        e->optim.skip = e->scalers[step / 5 % 2].found = 1;
        passes->store(device, &e->end.optim->skip, &raised, sizeof(raised));
        passes->store(device, &e->device_scalers[step / 5 % 2].found, &raised, sizeof(raised));
    }
    update_scaler(e, 0, step), update_scaler(e, 1, step);
    passes->step_end(device, &e->end);
    end_step_here(&e->model);
}

static void assert_reports(const struct ending *e) {
    for (int i = 0; i < CAIRN__REPORTS; i++) {
        const struct cairn__step_report *got = &e->end.reports[i], *want = &e->reports[i];
        if (memcmp(got, want, sizeof(*got)) != 0) {
            fail_msg("report %d: number %llu, scale %g, verdict %d; want number %llu, scale %g, verdict %d", i,
                     (unsigned long long)got->number, got->scale, got->verdict, (unsigned long long)want->number,
                     want->scale, want->verdict);
        }
    }
    assert_memory_equal(e->end.names, e->names, sizeof(e->names));
    assert_memory_equal(e->end.table.used, e->schedules.used, sizeof(e->schedules.used));
    assert_memory_equal(e->device_scaler_reports, e->scaler_reports, sizeof(e->scaler_reports));
}

static void assert_ending(const struct ending *e) {
    struct cairn__overflow overflows[LIST];
    struct cairn__optim_state optim;
    struct cairn__scaler_state scalers[2];
    struct cairn__rates rates[GROUPS];
    download(rates, e->end.table.rates, sizeof(rates));
    assert_memory_equal(rates, e->schedules.rates, sizeof(rates));
    download(&optim, e->end.optim, sizeof(optim));
    download(scalers, e->device_scalers, sizeof(scalers));
    download(overflows, e->end.overflows, sizeof(overflows));
    assert_memory_equal(&optim, &e->optim, sizeof(optim));
    assert_memory_equal(scalers, e->scalers, sizeof(scalers));
    assert_memory_equal(overflows, e->overflows, sizeof(overflows));
}

static void step_end_agrees_with_the_host_step_by_step(void **state) {
    (void)state;
    struct ending e;
    make_ending(&e);
    for (int step = 0; step < 60; step++) {
        end_step(&e, step);
        OK(cairn__device_synchronize(device));
        assert_reports(&e);
    }
    assert_ending(&e);
    drop_ending(&e);
}

static void unread_reports_lose_no_totals(void **state) {
    (void)state;
    struct ending e;
    make_ending(&e);
    for (int step = 0; step < 5 * CAIRN__REPORTS; step++) end_step(&e, step);
    OK(cairn__device_synchronize(device));
    assert_reports(&e);
    assert_ending(&e);
    drop_ending(&e);
}

static void step_end_works_without_scaler_and_parameters(void **state) {
    (void)state;
    struct ending e;
    make_ending(&e);
    e.end.num_scalers = e.model.num_scalers = 0;
    e.end.count = e.model.count = 0;
    passes->step_end(device, &e.end);
    end_step_here(&e.model);
    OK(cairn__device_synchronize(device));
    assert_reports(&e);
    assert_ending(&e);
    drop_ending(&e);
}

static void clear_flags_clears_the_listed_ones(void **state) {
    (void)state;
    for (size_t n = 0; n <= 67; n++) {
        uint32_t flags[70], got[70], want[70] = {0};
        for (int i = 0; i < 70; i++) flags[i] = i % 2 == 0;
        memcpy(want + n, flags + n, (70 - n) * sizeof(want[0]));
        uint32_t *p = on_device(flags, sizeof(flags));
        passes->clear_flags(device, p, n);
        download(got, p, sizeof(got));
        assert_memory_equal(got, want, sizeof(got));
        cairn__device_free(device, p);
    }
}

/* ---- flags on their way to an optimizer, scalers, clipping ---- */

/* LIST gradients of all types, of which some have a flag up; of some of these the gradient is not at hand. */
struct taking {
    struct list x[COUNT(floats)];
    struct cairn__taken items[LONGEST_TAKING];
    uint32_t *flags; /* [count + 1], any last */
    struct cairn__overflow want[LONGEST_TAKING], *to;
};

static bool is_raised(size_t i, int round) {
    return (i + (size_t)round) % 3 == 0;
}

static struct taking *make_taking(void) {
    struct taking *t = host_memory(sizeof(*t));
    const uint32_t zeros[LONGEST_TAKING + 2] = {0};
    memset(t, 0, sizeof(*t));
    for (size_t f = 0; f < COUNT(floats); f++) t->x[f] = make_list(floats[f], LIST, size_of, f % 2, WILD, SEED);
    t->flags = on_device(zeros, sizeof(zeros));
    t->to = on_device(t->want, sizeof(t->want));
    for (size_t i = 0; i < LONGEST_TAKING; i++) {
        const struct list *x = &t->x[i % COUNT(floats)];
        t->items[i] = (struct cairn__taken){.n = x->n[i % LIST],
                                            .x = i % 5 == 1 ? NULL : device_of(x, i % LIST),
                                            .dtype = x->type,
                                            .rank = (int32_t)(i % 4) - 1,
                                            .flag = t->flags + i,
                                            .to = t->to + i};
    }
    return t;
}

static void drop_taking(struct taking *t) {
    for (size_t f = 0; f < COUNT(floats); f++) drop_list(&t->x[f]);
    cairn__device_free(device, t->flags), cairn__device_free(device, t->to);
    free(t);
}

static void take_one_here(struct taking *t, size_t i, uint32_t micro_batch) {
    struct cairn__census c = {.zeros = 0};
    if (t->items[i].x) c = census_of(&t->x[i % COUNT(floats)], i % LIST, 0);
    cairn__note_overflow(&t->want[i], micro_batch, t->items[i].rank, c.infs, c.nans);
}

static void taken_flags_agree_with_the_host(void **state) {
    (void)state;
    struct taking *t = make_taking();
    uint32_t flags[LONGEST_TAKING + 2], *const raises[] = {t->flags + LONGEST_TAKING, t->flags + LONGEST_TAKING + 1};
    struct cairn__overflow got[LONGEST_TAKING];
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < LONGEST_TAKING; i++) flags[i] = is_raised(i, round);
        flags[LONGEST_TAKING] = flags[LONGEST_TAKING + 1] = 0;
        OK(cairn__device_upload(device, t->flags, flags, sizeof(flags)));
        passes->take_flags(device, t->items, LONGEST_TAKING, (uint32_t)round + 1, raises, 2);
        for (size_t i = 0; i < LONGEST_TAKING; i++) {
            if (is_raised(i, round)) take_one_here(t, i, (uint32_t)round + 1);
        }
        download(flags, t->flags, sizeof(flags));
        download(got, t->to, sizeof(got));
        for (size_t i = 0; i < LONGEST_TAKING; i++) assert_int_equal(flags[i], 0);
        assert_true(flags[LONGEST_TAKING] == 1 && flags[LONGEST_TAKING + 1] == 1);
        assert_memory_equal(got, t->want, sizeof(got));
    }
    flags[0] = flags[2] = 1; /* a short list */
    OK(cairn__device_upload(device, t->flags, flags, sizeof(flags)));
    passes->take_flags(device, t->items, 2, 5, raises, 2);
    take_one_here(t, 0, 5);
    assert_true(flag_of(t->flags) == 0 && flag_of(t->flags + 2) == 1);
    passes->clear_flags(device, t->flags, LONGEST_TAKING + 2);
    passes->take_flags(device, t->items, LONGEST_TAKING, 9, raises, 2);
    passes->take_flags(device, NULL, 0, 9, raises, 2);
    assert_true(flag_of(raises[0]) == 0 && flag_of(raises[1]) == 0);
    download(got, t->to, sizeof(got));
    assert_memory_equal(got, t->want, sizeof(got));
    drop_taking(t);
}

static void counts_of_an_overflow_are_those_of_the_first_gradient(void **state) {
    (void)state;
    const uint16_t x[4] = {0x7c00, 0x7e00, 0xfe00, 0}, clean[4] = {0};
    const uint32_t raised = 1;
    struct cairn__overflow got = {0};
    uint32_t *flag = on_device(&raised, sizeof(raised)), *any = on_device(&raised, sizeof(raised));
    void *to = on_device(&got, sizeof(got)), *p[] = {on_device(clean, sizeof(clean)), on_device(x, sizeof(x))};
    for (uint32_t i = 0; i < 3; i++) { /* nothing to be seen, then some, then they have gone into a sum */
        const struct cairn__taken taken = {4, p[i > 0], CAIRN_F16, (int32_t)i + 1, flag, to};
        passes->store(device, flag, &raised, sizeof(raised));
        passes->take_flags(device, &taken, 1, i + 3, &any, 1);
    }
    download(&got, to, sizeof(got));
    assert_true(got.micro_batch == 3 && got.rank == 1 && got.infs == 1 && got.nans == 2);
    cairn__device_free(device, flag), cairn__device_free(device, any);
    cairn__device_free(device, p[0]), cairn__device_free(device, p[1]), cairn__device_free(device, to);
}

static void a_raised_flag_is_shared_and_lowered(void **state) {
    (void)state;
    for (size_t count = 0; count <= CAIRN__SHARE_MAX; count++) {
        for (uint32_t raised = 0; raised <= 1; raised++) {
            uint32_t flags[CAIRN__SHARE_MAX + 2], got[CAIRN__SHARE_MAX + 2], *into[CAIRN__SHARE_MAX];
            for (size_t i = 0; i < COUNT(flags); i++) flags[i] = i % 4 == 0;
            uint32_t *p = on_device(flags, sizeof(flags)), *any = on_device(&raised, sizeof(raised));
            for (size_t i = 0; i < CAIRN__SHARE_MAX; i++) into[i] = p + i;
            for (size_t i = 0; i < count; i++) flags[i] |= raised;
            passes->share_flag(device, any, into, count);
            memset(into, 0, sizeof(into)); /* the host's memory is free again */
            download(got, p, sizeof(got));
            assert_memory_equal(got, flags, sizeof(got));
            assert_int_equal(flag_of(any), 0);
            cairn__device_free(device, p), cairn__device_free(device, any);
        }
    }
}

static void check_clip(const double *norms, size_t count, double max_norm, float clip) {
    struct cairn__optim_state want = {.steps = 4, .clip = clip}, got;
    double *n = on_device(norms, count * sizeof(*norms)), *total = device_memory(sizeof(*total)), got_total;
    struct cairn__optim_state *s = on_device(&want, sizeof(want));
    double squares = 0;
    for (size_t i = 0; i < count; i++) squares += norms[i] * norms[i];
    const double want_total = cairn__clip_to(&want, squares, max_norm);
    passes->clip(device, n, count, max_norm, s, total);
    download(&got, s, sizeof(got));
    download(&got_total, total, sizeof(got_total));
    assert_memory_equal(&got, &want, sizeof(got));
    assert_true(got_total == want_total);
    cairn__device_free(device, n), cairn__device_free(device, total), cairn__device_free(device, s);
}

static void clipping_has_the_hosts_bits(void **state) {
    (void)state;
    static const double norms[] = {3, 4, 0.1, 1e-30, 12345.678}, infinite[] = {1, HUGE_VAL}, nan[] = {NAN, 2};
    static const double limits[] = {0, 1e-9, 1, 5, 5.000001, 1e30};
    for (size_t l = 0; l < COUNT(limits); l++) {
        for (size_t count = 0; count <= COUNT(norms); count++) {
            check_clip(norms, count, limits[l], 1);
            check_clip(norms, count, limits[l], 0.3f);
        }
        check_clip(infinite, 2, limits[l], 0.3f);
        check_clip(nan, 2, limits[l], 0.3f);
    }
}

/* Every rule, over updates that find an overflow or do not. */
static void scalers_agree_with_the_host_update_by_update(void **state) {
    (void)state;
    for (int rule = CAIRN__SCALER_STATIC; rule <= CAIRN__SCALER_USER; rule++) {
        struct cairn__scaler_state want = {.scale = 0x1p10,
                                           .min = 1,
                                           .max = 0x1p14,
                                           .growth = 2,
                                           .backoff = 0.5,
                                           .window = 4,
                                           .last_overflow = -1,
                                           .rule = rule,
                                           .hysteresis = 2,
                                           .hysteresis_left = 2},
                                   got;
        struct cairn__scaler_state *s = on_device(&want, sizeof(want));
        struct cairn__scaler_report *reports, model[CAIRN__REPORTS] = {{0}};
        OK(cairn__device_alloc_pinned(device, sizeof(model), (void **)&reports));
        for (int update = 0; update < 60; update++) {
            want.found = random_bits(SEED, (uint64_t)update) % 5 == 0 || update > 45;
            passes->store(device, s, &want, sizeof(want)); /* whole, as a checkpoint is loaded */
            passes->scaler_update(device, s, reports);
            struct cairn__scaler_report *r = cairn__scaler_update_scalars(&want, model);
            r->number = (uint64_t)want.updates;
            download(&got, s, sizeof(got));
            assert_memory_equal(&got, &want, sizeof(got));
            assert_memory_equal(reports, model, sizeof(model));
        }
        cairn__device_free(device, s);
        cairn__device_free_pinned(device, reports);
    }
}

static void store_writes_values_of_any_length(void **state) {
    (void)state;
    unsigned char value[CAIRN__STORE_MAX], image[CAIRN__STORE_MAX + 20], got[sizeof(image)];
    for (size_t i = 0; i < sizeof(value); i++) value[i] = (unsigned char)(i * 3 + 1);
    for (size_t nbytes = 0; nbytes <= sizeof(value); nbytes++) {
        memset(image, CANARY_BYTE, sizeof(image));
        unsigned char *p = on_device(image, sizeof(image));
        memcpy(image + 4, value, nbytes);
        passes->store(device, p + 4, value, nbytes);
        download(got, p, sizeof(got));
        assert_memory_equal(got, image, sizeof(got));
        cairn__device_free(device, p);
    }
}

static void counters_count_steps_that_are_taken_or_always(void **state) {
    (void)state;
    int64_t missed = 41;
    struct cairn__optim_state optim = {.skip = 0};
    int64_t *p = on_device(&missed, sizeof(missed));
    struct cairn__optim_state *s = on_device(&optim, sizeof(optim));
    passes->count_up(device, p, s);
    passes->count_up(device, p, s);
    optim.skip = 1;
    passes->store(device, s, &optim, sizeof(optim));
    passes->count_up(device, p, s);
    download(&missed, p, sizeof(missed));
    assert_int_equal(missed, 43);
    passes->count_up(device, p, NULL);
    download(&missed, p, sizeof(missed));
    assert_int_equal(missed, 44);
    cairn__device_free(device, p), cairn__device_free(device, s);
}

static void loss_is_scaled_by_the_current_scale(void **state) {
    (void)state;
    static const double scales[] = {1, 3, 0x1p16, 0x1p24, 1e-3};
    for (size_t i = 0; i < COUNT(scales); i++) {
        const struct cairn__scaler_state scaler = {.scale = scales[i], .min = 1, .max = 1};
        const struct cairn__loss_scale want = cairn__loss_scale_of(&scaler);
        struct cairn__loss_scale got;
        const float loss = 0.7f;
        float scaled = 0;
        void *s = on_device(&scaler, sizeof(scaler)), *x = on_device(&loss, sizeof(loss));
        float *dst = device_memory(sizeof(*dst));
        struct cairn__loss_scale *cell = device_memory(sizeof(*cell));
        passes->scale_loss(device, dst, x, s, cell, NULL);
        download(&got, cell, sizeof(got));
        download(&scaled, dst, sizeof(scaled));
        assert_true(got.scale == want.scale && got.factor == want.factor && scaled == loss * want.scale);
        cairn__device_free(device, s), cairn__device_free(device, x);
        cairn__device_free(device, dst), cairn__device_free(device, cell);
    }
}

/* 3e38 is finite, though its product is not. */
static void scaled_loss_records_whether_it_was_finite(void **state) {
    (void)state;
    static const struct {
        float loss;
        uint32_t before, found;
    } rows[] = {{0.7f, 0, 0}, {3e38f, 0, 0}, {INFINITY, 0, 1}, {-INFINITY, 0, 1}, {NAN, 0, 1}, {0.7f, 1, 1}};
    const struct cairn__scaler_state scaler = {.scale = 0x1p16, .min = 1, .max = 0x1p16};
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint32_t found = 7;
        void *s = on_device(&scaler, sizeof(scaler)), *x = on_device(&rows[i].loss, sizeof(rows[i].loss));
        void *flag = on_device(&rows[i].before, sizeof(rows[i].before));
        float *dst = device_memory(sizeof(*dst));
        struct cairn__loss_scale *cell = device_memory(sizeof(*cell));
        passes->scale_loss(device, dst, x, s, cell, flag);
        download(&found, flag, sizeof(found));
        assert_int_equal(found, rows[i].found);
        cairn__device_free(device, s), cairn__device_free(device, x), cairn__device_free(device, flag);
        cairn__device_free(device, dst), cairn__device_free(device, cell);
    }
}

/* ---- for nn: one tensor at a time ---- */

/* The scalar that some of them read from the device; 0.75 is exact in every type. */
static const float SCALAR = 0.75f;

static void *make_scalar(cairn_dtype t) {
    unsigned char bits[8] = {0};
    cairn__dtype(t)->from_f32(bits, SCALAR);
    return on_device(bits, sizeof(bits));
}

/* A pass over elements: what it is in f32, and the call. `one` is the scalar in device memory. */
struct elementwise {
    const char *name;
    void (*host)(float *dst, const float *x, const float *y, size_t n);
    void (*device)(cairn_dtype t, void *dst, const void *x, const void *y, size_t n, const void *one);
    bool nan_bits;
};

static void host_fill(float *dst, const float *x, const float *y, size_t n) {
    (void)x, (void)y;
    for (size_t i = 0; i < n; i++) dst[i] = 1.7f;
}
static void device_fill(cairn_dtype t, void *dst, const void *x, const void *y, size_t n, const void *one) {
    (void)x, (void)y, (void)one;
    passes->fill(device, t, dst, n, 1.7f);
}
static void host_add(float *dst, const float *x, const float *y, size_t n) {
    ((cairn__add_fn)reference(CAIRN__K_ADD, 0, 0))(dst, x, y, n);
}
static void device_add(cairn_dtype t, void *dst, const void *x, const void *y, size_t n, const void *one) {
    (void)one;
    passes->add(device, t, dst, x, y, n);
}
static void host_mul_scalar(float *dst, const float *x, const float *y, size_t n) {
    (void)y;
    ((cairn__mul_scalar_fn)reference(CAIRN__K_MUL_SCALAR, 0, 0))(dst, x, n, 1.7f);
}
static void device_mul_scalar(cairn_dtype t, void *dst, const void *x, const void *y, size_t n, const void *one) {
    (void)y, (void)one;
    passes->mul_scalar(device, t, dst, x, n, 1.7f);
}
static void host_relu(float *dst, const float *x, const float *y, size_t n) {
    (void)y;
    ((cairn__relu_fn)reference(CAIRN__K_RELU, 0, 0))(dst, x, n);
}
static void device_relu(cairn_dtype t, void *dst, const void *x, const void *y, size_t n, const void *one) {
    (void)y, (void)one;
    passes->relu(device, t, dst, x, n);
}
static void host_relu_backward(float *dst, const float *x, const float *y, size_t n) {
    ((cairn__relu_backward_fn)reference(CAIRN__K_RELU_BACKWARD, 0, 0))(dst, y, x, n);
}
static void device_relu_backward(cairn_dtype t, void *dst, const void *x, const void *y, size_t n, const void *one) {
    (void)one;
    passes->relu_backward(device, t, dst, y, x, n);
}
static void host_spread(float *dst, const float *x, const float *y, size_t n) {
    (void)x, (void)y;
    for (size_t i = 0; i < n; i++) dst[i] = SCALAR / 7;
}
static void device_spread(cairn_dtype t, void *dst, const void *x, const void *y, size_t n, const void *one) {
    (void)x, (void)y;
    passes->spread(device, t, dst, n, one, 7);
}
static void host_mse_backward(float *dst, const float *x, const float *y, size_t n) {
    ((cairn__mse_backward_fn)reference(CAIRN__K_MSE_BACKWARD, 0, 0))(dst, x, y, n, 0.3f * SCALAR);
}
static void device_mse_backward(cairn_dtype t, void *dst, const void *x, const void *y, size_t n, const void *one) {
    passes->mse_backward(device, t, t, dst, x, y, n, 0.3f, one);
}

static const struct elementwise elementwise[] = {
    {"fill", host_fill, device_fill, true},
    {"add", host_add, device_add, false},
    {"mul_scalar", host_mul_scalar, device_mul_scalar, false},
    {"relu", host_relu, device_relu, true},
    {"relu_backward", host_relu_backward, device_relu_backward, true},
    {"spread", host_spread, device_spread, false},
    {"mse_backward", host_mse_backward, device_mse_backward, false},
};

static void apply_here(const struct elementwise *e, struct list *dst, const struct list *x, const struct list *y,
                       size_t i) {
    float *a = widened(x, i), *b = widened(y, i), *result = host_memory(x->n[i] * sizeof(*result));
    e->host(result, a, b, x->n[i]);
    ((cairn__cast_fn)reference(CAIRN__K_CAST, CAIRN_F32, dst->type))(host_of(dst, i), result, x->n[i]);
    free(a), free(b), free(result);
}

static void check_elementwise(const struct elementwise *e, cairn_dtype t, size_t offset, enum flavour flavour) {
    struct list x = make_list(t, LIST, size_of, offset, flavour, SEED);
    struct list y = make_list(t, LIST, size_of, 1 - offset, flavour, SEED + 1000);
    struct list other = make_list(t, LIST, size_of, 0, MODERATE, 0);
    struct list *dst = offset ? &x : &other; /* in place too */
    void *one = make_scalar(t);
    for (size_t i = 0; i < LIST; i++) {
        apply_here(e, dst, &x, &y, i);
        e->device(t, device_of(dst, i), device_of(&x, i), device_of(&y, i), x.n[i], one);
    }
    assert_list(dst, e->nan_bits && t == CAIRN_F32, describe_case(e->name, t, t, offset, (int)flavour));
    drop_list(&x), drop_list(&y), drop_list(&other);
    cairn__device_free(device, one);
}

/* f32 values whose gradient is written as a half, as that of a cast. */
static void check_rounded_mse(cairn_dtype to, size_t offset, enum flavour flavour) {
    struct list x = make_list(CAIRN_F32, LIST, size_of, offset, flavour, SEED);
    struct list y = make_list(CAIRN_F32, LIST, size_of, 1 - offset, flavour, SEED + 1000);
    struct list dst = make_list(to, LIST, size_of, offset, MODERATE, 0);
    void *one = make_scalar(CAIRN_F32);
    for (size_t i = 0; i < LIST; i++) {
        apply_here(&(struct elementwise){"mse_backward", host_mse_backward, NULL, false}, &dst, &x, &y, i);
        passes->mse_backward(device, CAIRN_F32, to, device_of(&dst, i), device_of(&x, i), device_of(&y, i), x.n[i],
                             0.3f, one);
    }
    assert_list(&dst, false, describe_case("mse_backward", CAIRN_F32, to, offset, (int)flavour));
    drop_list(&x), drop_list(&y), drop_list(&dst);
    cairn__device_free(device, one);
}

static void check_all_elementwise(size_t offset, enum flavour flavour) {
    check_rounded_mse(CAIRN_F16, offset, flavour);
    check_rounded_mse(CAIRN_BF16, offset, flavour);
    for (const struct elementwise *e = elementwise; e < elementwise + COUNT(elementwise); e++) {
        EACH_FLOAT(t) check_elementwise(e, *t, offset, flavour);
    }
}

static void elementwise_passes_have_the_references_bits(void **state) {
    (void)state;
    vary(check_all_elementwise);
}

static void check_round(size_t offset, enum flavour flavour) {
    for (const cairn_dtype *half = floats + 1; half < floats + COUNT(floats); half++) {
        struct list x = make_list(CAIRN_F32, LIST, size_of, offset, flavour, SEED);
        struct list dst = make_list(CAIRN_F32, LIST, size_of, 1 - offset, MODERATE, 0);
        for (size_t i = 0; i < LIST; i++) {
            ((cairn__round_fn)reference(CAIRN__K_ROUND, *half, 0))(host_of(&dst, i), host_of(&x, i), x.n[i]);
            passes->round(device, *half, device_of(&dst, i), device_of(&x, i), x.n[i]);
        }
        assert_list(&dst, true, describe_case("round", CAIRN_F32, *half, offset, (int)flavour));
        drop_list(&x), drop_list(&dst);
    }
}

static void round_has_the_references_bits(void **state) {
    (void)state;
    vary(check_round);
}

/* ---- sums ----
 *
 * Any order is right, so that a sum is held to an interval: no chain of f32 additions is longer than n / 16 + 16 on any
 * device. Whole numbers leave no interval. */

struct interval {
    double low, high;
};

/* The bounds of kernels.h and launch.h, whichever is the greater: no longer sum has a greater one. */
static struct interval interval_of(double sum, double absolute, double divisor) {
    if (!isfinite(sum)) return (struct interval){sum, sum};
    const double bound = 20 * 0x1p-24 * absolute;
    const double slack = (fabs(sum) + bound) / divisor * 0x1p-22; /* of the division, and of terms that were rounded */
    return (struct interval){(sum - bound) / divisor - slack, (sum + bound) / divisor + slack};
}

static void assert_within(cairn_dtype t, const void *p, struct interval want, const char *what) {
    unsigned char got[8] = {0}, low[8] = {0}, high[8] = {0};
    const struct cairn__dtype *type = cairn__dtype(t);
    memcpy(got, p, type->nbytes);
    type->from_f32(low, (float)want.low);
    type->from_f32(high, (float)want.high);
    const float g = type->to_f32(got), l = type->to_f32(low), h = type->to_f32(high);
    if (isnan(l) || isnan(h) ? !isnan(g) : !(g >= l && g <= h))
        fail_msg("%s: %a is outside of [%a, %a]", what, g, l, h);
}

static const size_t large_sums[] = {LARGE, 4096, 4097, 65537, 300007};
enum { SMALL_SUMS = 68, SUMS = SMALL_SUMS + COUNT(large_sums) };
static size_t size_of_sum(size_t i) {
    return i < SMALL_SUMS ? i : large_sums[i - SMALL_SUMS];
}

static void whole_numbers(struct list *l) {
    for (size_t i = 0; i < l->count; i++) {
        for (size_t e = 0; e < l->n[i]; e++) {
            cairn__dtype(l->type)->from_f32((unsigned char *)host_of(l, i) + e * l->width,
                                            (float)(random_bits(SEED, e) % 17) - 8);
        }
    }
    OK(cairn__device_upload(device, l->device, l->host, l->nbytes));
}

static void check_sum(const struct list *x, size_t i, const char *what) {
    double sum = 0, absolute = 0;
    unsigned char got[8];
    float *values = widened(x, i);
    void *dst = device_memory(sizeof(got));
    for (size_t e = 0; e < x->n[i]; e++) sum += values[e], absolute += fabs(values[e]);
    passes->sum(device, x->type, dst, device_of(x, i), x->n[i], 3);
    download(got, dst, sizeof(got));
    assert_within(x->type, got, interval_of(sum, absolute, 3), what);
    cairn__device_free(device, dst);
    free(values);
}

static void check_mse(const struct list *x, const struct list *y, size_t i, const char *what) {
    double sum = 0;
    unsigned char got[8];
    float *a = widened(x, i), *b = widened(y, i);
    void *dst = device_memory(sizeof(got));
    for (size_t e = 0; e < x->n[i]; e++) {
        const float difference = a[e] - b[e];
        sum += (double)difference * (double)difference;
    }
    passes->mse(device, x->type, dst, device_of(x, i), device_of(y, i), x->n[i]);
    download(got, dst, sizeof(got));
    assert_within(x->type, got, interval_of(sum, sum, (double)x->n[i]), what);
    cairn__device_free(device, dst);
    free(a), free(b);
}

static void check_sums(size_t offset, enum flavour flavour) {
    if (flavour == WILD || flavour == ONE_GREAT) return; /* sums that overflow do so in some orders only */
    EACH_FLOAT(t) {
        struct list x = make_list(*t, SUMS, size_of_sum, offset, flavour, SEED);
        struct list y = make_list(*t, SUMS, size_of_sum, 1 - offset, MODERATE, SEED + 1000);
        for (size_t i = 0; i < SUMS; i++) {
            check_sum(&x, i, describe_case("sum", *t, *t, offset, (int)flavour));
            check_mse(&x, &y, i, describe_case("mse", *t, *t, offset, (int)flavour));
        }
        drop_list(&x), drop_list(&y);
    }
}

static void sums_lie_within_their_bounds(void **state) {
    (void)state;
    vary(check_sums);
}

static void sums_of_whole_numbers_are_exact(void **state) {
    (void)state;
    struct list x = make_list(CAIRN_F32, SUMS, size_of_sum, 0, MODERATE, 0);
    float *dst = device_memory(sizeof(*dst)), got;
    whole_numbers(&x);
    for (size_t i = 0; i < SUMS; i++) {
        double sum = 0;
        for (size_t e = 0; e < x.n[i]; e++) sum += ((float *)host_of(&x, i))[e];
        passes->sum(device, CAIRN_F32, dst, device_of(&x, i), x.n[i], 1);
        download(&got, dst, sizeof(got));
        assert_true(got == (float)sum);
    }
    cairn__device_free(device, dst);
    drop_list(&x);
}

/* Of 2048s and a one over 2^26: just above the middle between two halves, by less than an f32 shows. Rounded to f32
 * first, it would lie on the middle, and then go down to the even one. */
static void sum_of_halves_is_rounded_once(void **state) {
    (void)state;
    enum { MOST = 33000 };
    static const struct {
        cairn_dtype type;
        size_t n; /* of 2048s */
        uint16_t twos, one, want;
    } cases[] = {{CAIRN_F16, 32768 + 16, 0x6800, 0x3c00, 0x3c01}, {CAIRN_BF16, 32768 + 128, 0x4500, 0x3f80, 0x3f81}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static uint16_t x[MOST];
        uint16_t got = 0, *dst = device_memory(sizeof(*dst));
        for (size_t e = 0; e < cases[i].n; e++) x[e] = cases[i].twos;
        x[cases[i].n] = cases[i].one;
        uint16_t *on = on_device(x, sizeof(x));
        passes->sum(device, cases[i].type, dst, on, cases[i].n + 1, 0x1p26f);
        download(&got, dst, sizeof(got));
        assert_int_equal(got, cases[i].want);
        cairn__device_free(device, on);
        cairn__device_free(device, dst);
    }
}

/* More tiles than a GPU gives blocks to. Sums of whole numbers below 2^24 are exact, so that a tile that is left out or
 * taken twice is seen. */
static void sums_of_many_tiles_are_exact(void **state) {
    (void)state;
    const size_t n = 9000011;
    float *x = host_memory(n * sizeof(*x)), *y = host_memory(n * sizeof(*y)), got;
    double sum = 0, squares = 0;
    for (size_t e = 0; e < n; e++) {
        const uint64_t bits = random_bits(SEED, e);
        x[e] = (float)(bits % 17) - 8;
        y[e] = x[e] + (float)(bits >> 32 & 1);
        sum += x[e], squares += (double)(bits >> 32 & 1);
    }
    float *a = on_device(x, n * sizeof(*x)), *b = on_device(y, n * sizeof(*y)), *dst = device_memory(sizeof(*dst));
    passes->sum(device, CAIRN_F32, dst, a, n, 1);
    download(&got, dst, sizeof(got));
    assert_true(got == (float)sum);
    passes->mse(device, CAIRN_F32, dst, a, b, n);
    download(&got, dst, sizeof(got));
    assert_true(close_to(got, squares / (double)n, 0x1p-22));
    cairn__device_free(device, a), cairn__device_free(device, b), cairn__device_free(device, dst);
    free(x), free(y);
}

/* A sum has the same bits whenever it is taken, and wherever its operand lies. */
static void sums_repeat_exactly(void **state) {
    (void)state;
    EACH_FLOAT(t) {
        struct list x[2];
        unsigned char first[8], got[8];
        void *dst = device_memory(8);
        for (size_t offset = 0; offset < 2; offset++) {
            x[offset] = make_list(*t, SUMS, size_of_sum, offset, MODERATE, SEED);
            for (int round = 0; round < 2; round++) {
                passes->sum(device, *t, dst, device_of(&x[offset], SUMS - 1), x[offset].n[SUMS - 1], 1);
                download(got, dst, cairn_dtype_nbytes(*t));
                if (offset == 0 && round == 0) memcpy(first, got, sizeof(first));
                assert_memory_equal(got, first, cairn_dtype_nbytes(*t));
            }
        }
        drop_list(&x[0]), drop_list(&x[1]);
        cairn__device_free(device, dst);
    }
}

static size_t one_size; /* of the list with a single tensor */
static size_t size_of_one(size_t i) {
    (void)i;
    return one_size;
}

static struct list make_one(cairn_dtype type, size_t n, size_t offset, enum flavour flavour, uint64_t seed) {
    one_size = n;
    return make_list(type, 1, size_of_one, offset, flavour, seed);
}

static void check_col_sum(cairn_dtype t, size_t rows, size_t cols, size_t offset) {
    struct list x = make_one(t, rows * cols, offset, MODERATE, SEED), dst = make_one(t, cols, offset, MODERATE, 0);
    unsigned char *got = host_memory(cols * dst.width);
    float *values = widened(&x, 0);
    char what[128];
    passes->col_sum(device, t, device_of(&dst, 0), device_of(&x, 0), rows, cols);
    download(got, device_of(&dst, 0), cols * dst.width);
    for (size_t c = 0; c < cols; c++) {
        double sum = 0, absolute = 0;
        for (size_t r = 0; r < rows; r++) sum += values[r * cols + c], absolute += fabs(values[r * cols + c]);
        snprintf(what, sizeof(what), "col_sum %s of [%zu, %zu], column %zu", cairn_dtype_name(t), rows, cols, c);
        assert_within(t, got + c * dst.width, interval_of(sum, absolute, 1), what);
    }
    memcpy(host_of(&dst, 0), got, cols * dst.width);
    assert_list(&dst, true, "what lies around col_sum's result");
    free(got), free(values);
    drop_list(&x), drop_list(&dst);
}

static void col_sum_lies_within_its_bound(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{0, 5}, {1, 1},   {1, 300},   {300, 1},   {2, 3},     {7, 67},   {64, 16},
                                       {5, 0}, {33, 32}, {1000, 33}, {5, 10007}, {513, 257}, {4099, 8}, {129, 1024}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        EACH_FLOAT(t) {
            check_col_sum(*t, shapes[s][0], shapes[s][1], 0);
            check_col_sum(*t, shapes[s][0], shapes[s][1], 1);
        }
    }
}

/* Constants, whose roundings all go one way, and rows beyond what groups of them have sums for. */
static void long_sums_are_as_close_as_short_ones(void **state) {
    (void)state;
    enum { ROWS = 200003, COLS = 3 };
    static const float each[COLS] = {0.1f, 0x1.000006p+0f, -0x1.ffffeep+0f};
    float *x = host_memory(sizeof(float) * ROWS * COLS), got[COLS];
    double sum = 0, absolute = 0;
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++) {
        x[i] = each[i % COLS];
        sum += x[i], absolute += fabs(x[i]);
    }
    float *a = on_device(x, sizeof(float) * ROWS * COLS), *dst = device_memory(sizeof(got));
    passes->col_sum(device, CAIRN_F32, dst, a, ROWS, COLS);
    download(got, dst, sizeof(got));
    for (size_t c = 0; c < COLS; c++) {
        const double want = ROWS * (double)each[c];
        if (!(fabs(got[c] - want) <= 4e-7 * fabs(want))) fail_msg("col_sum: %.9g, want %.9g", (double)got[c], want);
    }
    passes->sum(device, CAIRN_F32, dst, a, (size_t)ROWS * COLS, 1);
    download(got, dst, sizeof(got[0]));
    if (!(fabs(got[0] - sum) <= 4e-7 * absolute)) fail_msg("sum: %.9g, want %.9g", (double)got[0], sum);
    cairn__device_free(device, a), cairn__device_free(device, dst);
    free(x);
}

/* ---- random numbers ---- */

static void check_random(cairn_dtype t, uint64_t seed, uint64_t stream, bool normals) {
    struct list dst = make_list(t, LIST, size_of, stream % 2, MODERATE, 0);
    const float bound = 0.3f;
    for (size_t i = 0; i < LIST; i++) {
        float *values = host_memory((dst.n[i] + 4) * sizeof(*values));
        for (size_t e = 0; e < dst.n[i]; e += 4) {
            const struct cairn__philox_block block = cairn__philox(seed, e / 4, stream);
            if (normals) cairn__normal4(block, values + e);
            for (int j = 0; j < 4 && !normals; j++) {
                values[e + (size_t)j] = bound * (2.0f * cairn__uniform(block.word[j]) - 1.0f);
            }
        }
        ((cairn__cast_fn)reference(CAIRN__K_CAST, CAIRN_F32, t))(host_of(&dst, i), values, dst.n[i]);
        if (normals) passes->normal(device, t, device_of(&dst, i), dst.n[i], seed, stream);
        else passes->uniform(device, t, device_of(&dst, i), dst.n[i], bound, seed, stream);
        free(values);
    }
    assert_list(&dst, true, describe_case(normals ? "normal" : "uniform", t, t, stream % 2, 0));
    drop_list(&dst);
}

static void random_numbers_have_the_bits_of_philox(void **state) {
    (void)state;
    EACH_FLOAT(t) {
        check_random(*t, 0, 0, true), check_random(*t, 0, 0, false);
        check_random(*t, 0x123456789abcdef0, 0xfedcba9876543, true);
        check_random(*t, 0x123456789abcdef0, 0xfedcba9876543, false);
    }
}

/* ---- products ----
 *
 * Operands are small whole numbers: sums are exact in f32 whatever their order, and then rounded once. */

struct product {
    struct cairn__matmul p;
    struct list a, b, bias, c, row_sums;
};

static struct list make_whole(cairn_dtype type, int64_t n, size_t offset, uint64_t seed) {
    struct list l = make_one(type, (size_t)n, offset, MODERATE, seed);
    for (size_t e = 0; e < l.n[0]; e++) {
        const float value = (float)(random_bits(seed, e) % 9) - 4;
        cairn__dtype(type)->from_f32((unsigned char *)host_of(&l, 0) + e * l.width, value);
    }
    OK(cairn__device_upload(device, l.device, l.host, l.nbytes));
    return l;
}

/* flags: bits are trans_a, trans_b, bias, relu, row_sums, f32 result. */
static struct product make_product(const int64_t shape[3], cairn_dtype type, unsigned flags, size_t offset) {
    struct product x = {.p = {.m = shape[0], .n = shape[1], .k = shape[2], .in_type = type}};
    struct cairn__matmul *p = &x.p;
    p->trans_a = flags & 1, p->trans_b = flags & 2, p->relu = flags & 8;
    p->out_type = flags & 32 ? CAIRN_F32 : type;
    x.a = make_whole(type, p->m * p->k, offset, 1), x.b = make_whole(type, p->k * p->n, offset, 2);
    x.bias = make_whole(p->out_type, p->n, offset, 3), x.c = make_whole(p->out_type, p->m * p->n, offset, 4);
    x.row_sums = make_whole(p->out_type, p->m, offset, 5);
    p->a = device_of(&x.a, 0), p->b = device_of(&x.b, 0), p->c = device_of(&x.c, 0);
    p->bias = flags & 4 ? device_of(&x.bias, 0) : NULL;
    p->row_sums = flags & 16 ? device_of(&x.row_sums, 0) : NULL;
    return x;
}

static void drop_product(struct product *x) {
    drop_list(&x->a), drop_list(&x->b), drop_list(&x->bias), drop_list(&x->c), drop_list(&x->row_sums);
}

static void put_rounded(struct list *l, int64_t i, double value) {
    cairn__dtype(l->type)->from_f32((unsigned char *)host_of(l, 0) + (size_t)i * l->width, (float)value);
}

/* The definition in device/device.h. */
static void multiply_here(struct product *x) {
    const struct cairn__matmul *p = &x->p;
    float *a = widened(&x->a, 0), *b = widened(&x->b, 0), *bias = widened(&x->bias, 0);
    for (int64_t i = 0; i < p->m; i++) {
        double row_sum = 0;
        for (int64_t l = 0; l < p->k; l++) row_sum += (double)a[p->trans_a ? l * p->m + i : i * p->k + l];
        if (p->row_sums) put_rounded(&x->row_sums, i, row_sum);
        for (int64_t j = 0; j < p->n; j++) {
            double sum = p->bias ? bias[j] : 0;
            for (int64_t l = 0; l < p->k; l++) {
                sum += (double)a[p->trans_a ? l * p->m + i : i * p->k + l] *
                       (double)b[p->trans_b ? j * p->k + l : l * p->n + j];
            }
            put_rounded(&x->c, i * p->n + j, p->relu && sum < 0 ? 0 : sum);
        }
    }
    free(a), free(b), free(bias);
}

static void check_product(const int64_t shape[3], cairn_dtype type, unsigned flags, size_t offset) {
    char what[128];
    struct product x = make_product(shape, type, flags, offset);
    snprintf(what, sizeof(what), "product %s m %d n %d k %d, flags %x, offset %zu", cairn_dtype_name(type),
             (int)shape[0], (int)shape[1], (int)shape[2], flags, offset);
    OK(cairn__device_matmul(device, &x.p));
    multiply_here(&x);
    assert_elements(&x.c, VALUES, what); /* an engine may come to -0 */
    assert_elements(&x.row_sums, VALUES, what);
    drop_product(&x);
}

static void products_are_exact_on_whole_numbers(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{64, 16, 128}, {16, 128, 64}, {64, 64, 16}, {1, 1, 1}, {1, 7, 5},
                                        {7, 1, 5},     {3, 5, 7},     {33, 17, 65}, {8, 8, 8}, {3, 4, 0}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        EACH_FLOAT(t) {
            for (unsigned flags = 0; flags < 64; flags++) {
                if (*t == CAIRN_F32 && flags & 32) continue; /* it is f32 anyhow */
                if (check_is_short() && !is_cpu && shapes[s][0] * shapes[s][1] > 100 && flags % 8 != s) continue;
                check_product(shapes[s], *t, flags, s % 2);
                if (shapes[s][0] == 8) check_product(shapes[s], *t, flags, 1);
            }
        }
    }
}

/* The same operands, and others of the same shape, one after the other: what is kept of a shape serves them all. */
static void products_repeat_exactly(void **state) {
    (void)state;
    const int64_t shape[3] = {24, 40, 56};
    for (int round = 0; round < 3; round++) {
        EACH_FLOAT(t) {
            check_product(shape, *t, 2 | 4, 0);
            check_product(shape, *t, 1 | 16, 0);
            check_product(shape, *t, 2 | 4, 1);
        }
    }
}

/* ---- recording ---- */

/* A step whose every operand is in device memory. */
struct recorded {
    float *weights, *momentum, *grads, *scaled, *factor, *sums;
    uint16_t *half;
    uint32_t *flags;
    double *norm;
    struct cairn__rates *rates;
    int64_t *missed;
    struct ending ending;
    struct product forward;
};
enum { RECORDED = 5000, STEPS_RECORDED = 3 };

static struct recorded make_recorded(void) {
    static const int64_t shape[3] = {16, 8, 24};
    const int64_t missed = 0;
    const float factor = 0.5f;
    const struct cairn__rates rates = {0.5, 0.9};
    struct recorded r = {.weights = device_memory(RECORDED * 4), .momentum = device_memory(RECORDED * 4)};
    r.grads = device_memory(RECORDED * 4), r.scaled = device_memory(RECORDED * 4);
    r.half = device_memory(RECORDED * 2);
    r.norm = device_memory(sizeof(double)), r.sums = device_memory(sizeof(float));
    r.factor = on_device(&factor, sizeof(factor));
    r.missed = on_device(&missed, sizeof(missed));
    make_ending(&r.ending);
    r.rates = on_device(&rates, sizeof(rates));
    r.flags = make_flags();
    r.forward = make_product(shape, CAIRN_F16, 2 | 4 | 32, 0);
    passes->normal(device, CAIRN_F32, r.weights, RECORDED, 1, 1);
    passes->normal(device, CAIRN_F32, r.grads, RECORDED, 1, 2);
    passes->fill(device, CAIRN_F32, r.momentum, RECORDED, 0);
    return r;
}

static void drop_recorded(struct recorded *r) {
    void *all[] = {r->weights, r->momentum, r->grads,  r->scaled, r->half, r->norm,
                   r->sums,    r->factor,   r->missed, r->rates,  r->flags};
    for (size_t i = 0; i < COUNT(all); i++) cairn__device_free(device, all[i]);
    drop_ending(&r->ending);
    drop_product(&r->forward);
}

/* One step: gradients change with the weights, the product writes into them, the sums go through partial results. */
static void queue_step(struct recorded *r) {
    const struct cairn__optim_rule rule = {.kind = CAIRN__OPTIM_SGD, .sgd = {.has_momentum = true}};
    uint32_t *flags = r->flags;
    const struct cairn__item scale = {.n = RECORDED, .dst = r->scaled, .x = r->grads};
    const struct cairn__item mix = {.n = RECORDED, .dst = r->scaled, .x = r->weights, .y = r->scaled};
    const struct cairn__item norm = {.n = RECORDED, .x = r->scaled};
    const struct cairn__optim_item item = {.n = RECORDED,
                                           .weights = r->weights,
                                           .half = r->half,
                                           .state = {r->momentum, NULL},
                                           .grad = r->scaled,
                                           .factor = r->factor,
                                           .missed = r->missed};
    uint32_t *const skips[] = {&r->ending.end.optim->skip, &r->ending.device_scalers[0].found};
    passes->scale(device, &scale, 1, CAIRN_F32, CAIRN_F32, r->factor, flags);
    passes->axpby(device, &mix, 1, CAIRN_F32, CAIRN_F32, r->factor, -1, flags);
    r->forward.p.c = r->scaled;
    OK(cairn__device_matmul(device, &r->forward.p));
    passes->sum(device, CAIRN_F32, r->sums, r->scaled, RECORDED, 1);
    passes->l2norm(device, &norm, 1, CAIRN_F32, NULL, r->norm, NULL, flags);
    passes->update(device, &item, 1, CAIRN_F32, CAIRN__W_F32_F16, &rule, r->rates, r->ending.end.optim);
    passes->share_flag(device, flags, skips, 2);
    passes->scaler_update(device, r->ending.device_scalers, r->ending.device_scaler_reports);
    passes->step_end(device, &r->ending.end);
}

static void assert_same_memory(const void *a, const void *b, size_t nbytes, const char *what) {
    unsigned char *x = host_memory(nbytes), *y = host_memory(nbytes);
    download(x, a, nbytes);
    download(y, b, nbytes);
    if (memcmp(x, y, nbytes) != 0) fail_msg("%s differ between steps that were run and that were replayed", what);
    free(x), free(y);
}

static void assert_same_recorded(const struct recorded *a, const struct recorded *b) {
    assert_same_memory(a->weights, b->weights, RECORDED * 4, "weights");
    assert_same_memory(a->momentum, b->momentum, RECORDED * 4, "momenta");
    assert_same_memory(a->half, b->half, RECORDED * 2, "half weights");
    assert_same_memory(a->sums, b->sums, sizeof(float), "sums");
    assert_same_memory(a->norm, b->norm, sizeof(double), "norms");
    assert_same_memory(a->ending.end.optim, b->ending.end.optim, sizeof(struct cairn__optim_state), "counters");
    assert_same_memory(a->ending.device_scalers, b->ending.device_scalers, sizeof(a->ending.scalers), "scalers");
    assert_memory_equal(a->ending.end.reports, b->ending.end.reports, sizeof(a->ending.reports));
}

static void recorded_steps_equal_steps_that_are_run(void **state) {
    (void)state;
    if (!device->ops->capture_begin) {
        print_message("%s records nothing\n", cairn_device_name(device));
        skip();
    }
    void *graph = NULL;
    struct recorded run = make_recorded(), replayed = make_recorded();
    for (int step = 0; step < 1 + STEPS_RECORDED; step++) queue_step(&run);
    queue_step(&replayed); /* so that everything is chosen and allocated */
    OK(device->ops->capture_begin(device));
    device->capturing = true;
    queue_step(&replayed);
    device->capturing = false;
    OK(device->ops->capture_end(device, &graph));
    for (int step = 0; step < STEPS_RECORDED; step++) OK(device->ops->graph_launch(device, graph));
    assert_same_recorded(&run, &replayed);
    OK(cairn__device_check(device));
    device->ops->graph_free(device, graph);
    drop_recorded(&run), drop_recorded(&replayed);
}

static void recording_refuses_what_cannot_be_repeated(void **state) {
    (void)state;
    if (!device->ops->capture_begin) {
        print_message("%s records nothing\n", cairn_device_name(device));
        skip();
    }
    float x = 1;
    void *p = device_memory(sizeof(x)), *q = NULL, *graph = NULL;
    OK(device->ops->capture_begin(device));
    device->capturing = true;
    assert_int_equal(cairn__device_alloc(device, CAIRN__HOLDS_TENSORS, 4, &q), CAIRN_ESTATE);
    assert_int_equal(cairn__device_upload(device, p, &x, sizeof(x)), CAIRN_ESTATE);
    assert_int_equal(cairn__device_download(device, &x, p, sizeof(x)), CAIRN_ESTATE);
    assert_int_equal(cairn__device_synchronize(device), CAIRN_ESTATE);
    passes->fill(device, CAIRN_F32, p, 1, 5);
    device->capturing = false;
    OK(device->ops->capture_end(device, &graph)); /* the front has kept all of that away */
    OK(device->ops->graph_launch(device, graph));
    download(&x, p, sizeof(x));
    assert_true(x == 5);
    device->ops->graph_free(device, graph);
    cairn__device_free(device, p);
}

/* ---- more elements than 32 bits count ---- */

static void tensors_of_more_than_2_to_the_31_elements_work(void **state) {
    (void)state;
    const char *wanted = getenv("CAIRN_TEST_LARGE");
    const size_t n = ((size_t)1 << 31) + 1031, nbytes = n * 2;
    void *x = NULL, *y = NULL;
    if (!wanted || strcmp(wanted, "1") != 0) {
        print_message("runs where CAIRN_TEST_LARGE=1, which takes 8 GiB of the device\n");
        skip();
    }
    if (cairn__device_alloc(device, CAIRN__HOLDS_TENSORS, nbytes, &x) != CAIRN_OK ||
        cairn__device_alloc(device, CAIRN__HOLDS_TENSORS, nbytes, &y) != CAIRN_OK) {
        print_message("%s\n", cairn_last_error());
        cairn__device_free(device, x);
        skip();
    }
    const struct cairn__item items[2] = {{.n = 3, .x = x, .dst = y}, {.n = n, .x = x, .dst = y}};
    uint32_t *flags = make_flags();
    const uint16_t infinity = 0x7c00;
    uint16_t tail[64];
    passes->fill(device, CAIRN_F16, x, n, 1);
    passes->check(device, items, 2, CAIRN_F16, flags);
    assert_int_equal(flag_of(flags), 0);
    passes->store(device, (uint16_t *)x + n - 1, &infinity, sizeof(infinity));
    passes->check(device, items, 2, CAIRN_F16, flags);
    assert_int_equal(flag_of(flags), 1);
    passes->cast(device, items + 1, 1, CAIRN_BF16, CAIRN_F16);
    passes->mul_scalar(device, CAIRN_BF16, y, y, n, 2);
    download(tail, (uint16_t *)y + n - 64, sizeof(tail));
    for (int i = 0; i < 64; i++) assert_int_equal(tail[i], i == 63 ? 0x7f80 : 0x4000);
    cairn__device_free(device, x), cairn__device_free(device, y), cairn__device_free(device, flags);
}

/* ---- products of what is not a number ---- */

static void check_nan_under_relu(cairn_dtype type, unsigned flags, size_t offset) {
    static const int64_t shape[3] = {16, 24, 32};
    struct product x = make_product(shape, type, flags, offset);
    put_rounded(&x.a, 5 * shape[2] + 3, (double)NAN);
    OK(cairn__device_upload(device, x.a.device, x.a.host, x.a.nbytes));
    OK(cairn__device_matmul(device, &x.p));
    multiply_here(&x);
    struct list c = x.c;
    c.host = host_memory(c.nbytes);
    download(c.host, c.device, c.nbytes);
    float *got = widened(&c, 0), *want = widened(&x.c, 0);
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
        assert_int_equal(isnan(want[i]) != 0, i / shape[1] == 5);
        if (isnan(want[i])) assert_true(isnan(got[i]) || got[i] == 0);
        else assert_true(got[i] == want[i]);
    }
    free(got), free(want), free(c.host);
    drop_product(&x);
}

static void nan_under_a_products_relu_is_nan_or_zero(void **state) {
    (void)state;
    EACH_FLOAT(t) {
        for (size_t offset = 0; offset < 2; offset++) { /* with and without an epilogue */
            check_nan_under_relu(*t, 2 | 8, offset);
            check_nan_under_relu(*t, 2 | 4 | 8, offset);
        }
    }
}

/* ---- the walk ---- */

/* A pass that went wrong on its way to the device says so at the end of the test. */
static int nothing_went_wrong(void **state) {
    (void)state;
    if (cairn__device_synchronize(device) == CAIRN_OK && cairn__device_check(device) == CAIRN_OK) return 0;
    print_error("%s\n", cairn_last_error());
    return -1;
}

#define TEST(name) cmocka_unit_test_teardown(name, nothing_went_wrong)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(device_has_a_description),
        TEST(memory_is_aligned_and_copied_both_ways),
        TEST(memory_freed_is_not_reused_before_its_time),
        TEST(pinned_memory_belongs_to_both),
        TEST(cast_has_the_references_bits),
        TEST(scale_has_the_references_bits_and_flags),
        TEST(axpby_has_the_references_bits_and_flags),
        TEST(check_raises_flags_of_nonfinite_tensors),
        TEST(check_sees_every_element),
        TEST(exponents_are_the_references),
        TEST(exponents_of_f64_go_beyond_those_of_f32),
        TEST(clamp_keeps_values_within_its_bounds_and_nan),
        TEST(census_has_the_references_counts),
        TEST(census_of_a_large_tensor_misses_nothing),
        TEST(l2norm_is_that_of_the_reference),
        TEST(l2norm_is_finite_where_its_tensors_are),
        TEST(sgd_has_the_references_bits_over_steps),
        TEST(adam_has_the_references_bits_over_steps),
        TEST(lion_has_the_references_bits_over_steps),
        TEST(adagrad_has_the_references_bits_over_steps),
        TEST(lamb_has_the_references_bits_over_steps),
        TEST(novograd_has_the_references_bits_over_steps),
        TEST(step_end_agrees_with_the_host_step_by_step),
        TEST(unread_reports_lose_no_totals),
        TEST(step_end_works_without_scaler_and_parameters),
        TEST(clear_flags_clears_the_listed_ones),
        TEST(taken_flags_agree_with_the_host),
        TEST(counts_of_an_overflow_are_those_of_the_first_gradient),
        TEST(a_raised_flag_is_shared_and_lowered),
        TEST(clipping_has_the_hosts_bits),
        TEST(scalers_agree_with_the_host_update_by_update),
        TEST(store_writes_values_of_any_length),
        TEST(counters_count_steps_that_are_taken_or_always),
        TEST(loss_is_scaled_by_the_current_scale),
        TEST(scaled_loss_records_whether_it_was_finite),
        TEST(elementwise_passes_have_the_references_bits),
        TEST(round_has_the_references_bits),
        TEST(sums_lie_within_their_bounds),
        TEST(sums_of_whole_numbers_are_exact),
        TEST(sum_of_halves_is_rounded_once),
        TEST(sums_repeat_exactly),
        TEST(col_sum_lies_within_its_bound),
        TEST(long_sums_are_as_close_as_short_ones),
        TEST(random_numbers_have_the_bits_of_philox),
        TEST(products_are_exact_on_whole_numbers),
        TEST(products_repeat_exactly),
        TEST(recorded_steps_equal_steps_that_are_run),
        TEST(recording_refuses_what_cannot_be_repeated),
        TEST(tensors_of_more_than_2_to_the_31_elements_work),
        TEST(nan_under_a_products_relu_is_nan_or_zero),

        /* Last, since a device keeps what it has once held, and a stand-in protects all of it at every turn. */
        TEST(l2norm_of_a_large_tensor_is_exact_on_ones),
        TEST(l2norm_of_a_tensor_with_larger_chunks_is_exact_on_ones),
        TEST(sums_of_many_tiles_are_exact),
    };
    const char *name = argc > 1 ? argv[1] : "cpu";
    is_cpu = strcmp(name, "cpu") == 0;
    const bool required = argc > 2 && strcmp(argv[2], "required") == 0;
    if (cairn__device_open(name, 0, &device) != CAIRN_OK) {
        print_message("there is no %s here: %s\n", name, cairn_last_error());
        return required ? 1 : 77;
    }
    passes = device->passes;
    print_message("%s: %s\n", name, cairn_device_describe(device));
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cairn__device_close(&device);
    return failed;
}
