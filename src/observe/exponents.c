/* Counts of exponents: of memory and tensors, what a format would lose, and as a histogram. */
#include "observe/exponents.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/options.h"
#include "core/status.h"
#include "nn/hooks.h"

static_assert((int)CAIRN_LEAST_BINADE == (int)CAIRN__LEAST_BINADE && (int)CAIRN_NUM_BINADES == (int)CAIRN__BINADES,
              "the passes' counts are the user's");

/* ---- counting ---- */

enum { AT_ONCE = 64 }; /* blocks in one pass when only every n-th is counted */

static void add(struct cairn_exponents *into, const struct cairn__exponent_counts *c) {
    into->zeros += c->zeros;
    into->infs += c->infs;
    into->nans += c->nans;
    into->below += c->below;
    into->above += c->above;
    for (int b = 0; b < CAIRN_NUM_BINADES; b++) into->binades[b] += c->binades[b];
}

static bool is_float(cairn_dtype t) {
    return t == CAIRN_F64 || t == CAIRN_F32 || cairn__is_half(t);
}

/* Lists the next items, at most AT_ONCE, from element *at on. */
static size_t list_blocks(const void *x, size_t n, cairn_dtype dtype, size_t every, size_t *at,
                          struct cairn__item items[AT_ONCE]) {
    const size_t whole = every == 1 ? n : CAIRN_EXPONENTS_BLOCK, width = cairn_dtype_nbytes(dtype);
    size_t count = 0;
    for (; *at < n && count < AT_ONCE; count++) {
        const size_t left = n - *at, stride = every > SIZE_MAX / whole ? SIZE_MAX : whole * every;
        items[count] = (struct cairn__item){.n = left < whole ? left : whole, .x = (const char *)x + *at * width};
        *at += left < stride ? left : stride;
    }
    return count;
}

cairn_status cairn__exponents_count(struct cairn_device *device, const void *x, size_t n, cairn_dtype dtype,
                                    size_t every, struct cairn_exponents *counts) {
    struct cairn__exponent_counts *there = NULL, *here = NULL;
    struct cairn__item items[AT_ONCE];
    const size_t most = every == 1 ? 1 : AT_ONCE;
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_alloc(device, CAIRN__HOLDS_SCRATCH, most * sizeof(*there), (void **)&there));
    TRY(cairn__alloc(most * sizeof(*here), (void **)&here));
    for (size_t at = 0, count; (count = list_blocks(x, n, dtype, every, &at, items)) > 0;) {
        device->passes->count_exponents(device, items, count, dtype, there);
        TRY(cairn__device_download(device, here, there, count * sizeof(*here)));
        for (size_t i = 0; i < count; i++) add(counts, &here[i]);
    }
    st = cairn__device_check(device);
out:
    cairn__free(here);
    cairn__device_free(device, there);
    return st;
}

cairn_status cairn__exponents_check_memory(const char *what, const cairn_env *env, const void *x, size_t n,
                                           cairn_dtype dtype) {
    REQUIRE(x || n == 0, CAIRN_EINVAL, "%s is NULL, but there are %zu elements", what, n);
    REQUIRE(n <= SIZE_MAX / cairn_dtype_nbytes(dtype), CAIRN_EINVAL, "%s: %zu elements are more than memory can hold",
            what, n);
    REQUIRE((uintptr_t)x % cairn_dtype_nbytes(dtype) == 0, CAIRN_EINVAL, "%s at %p is not aligned for %s", what, x,
            cairn_dtype_name(dtype));
    REQUIRE(n == 0 || cairn__device_reaches(env->device, x), CAIRN_EINVAL,
            "%s is host memory, but the environment computes on %s; pass memory of that device", what,
            env->device->ops->name);
    return CAIRN_OK;
}

/* Keeps the caller's struct_size. */
static void write(const struct cairn_exponents *own, struct cairn_exponents *given) {
    const size_t size = given->struct_size, nbytes = size < sizeof(*own) ? size : sizeof(*own);
    memcpy((char *)given + sizeof(size), (const char *)own + sizeof(size), nbytes - sizeof(size));
}

cairn_status cairn__exponents_read(const char *call, const struct cairn_exponents *given, struct cairn_exponents *own) {
    memset(own, 0, sizeof(*own));
    own->struct_size = sizeof(*own);
    REQUIRE(given, CAIRN_EINVAL, "%s: counts must be set", call);
    return cairn__options_read(own, sizeof(*own), given, "cairn_exponents");
}

cairn_status cairn_exponents_count(cairn_env *env, const void *x, size_t n, cairn_dtype dtype,
                                   const struct cairn_exponents_options *options, struct cairn_exponents *counts) {
    struct cairn_exponents_options o = {.struct_size = sizeof(o)};
    struct cairn_exponents own;
    cairn_status st = CAIRN_OK;
    TRY(cairn__exponents_read("cairn_exponents_count", counts, &own));
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_exponents_options"));
    REQUIRE(env, CAIRN_EINVAL, "cairn_exponents_count: env is NULL");
    REQUIRE(is_float(dtype), CAIRN_EINVAL, "cairn_exponents_count: dtype is %d (%s); it must be f32, f16, bf16 or f64",
            (int)dtype, cairn_dtype_name(dtype));
    TRY(cairn__exponents_check_memory("cairn_exponents_count: x", env, x, n, dtype));
    TRY(cairn__device_refuse_recording(env->device, "cairn_exponents_count waits for its counts; call it between "
                                                    "replays"));
    TRY(cairn__exponents_count(env->device, x, n, dtype, o.every ? o.every : 1, &own));
    write(&own, counts);
out:
    return st;
}

/* A view's dense copy is freed at the end of no_grad. */
cairn_status cairn_exponents_count_tensor(cairn_tensor *t, const struct cairn_exponents_options *options,
                                          struct cairn_exponents *counts) {
    REQUIRE(t, CAIRN_EINVAL, "cairn_exponents_count_tensor: the tensor is NULL");
    const cairn_dtype dtype = cairn_tensor_dtype(t);
    REQUIRE(dtype, CAIRN_ESTATE, "cairn_exponents_count_tensor: the tensor is a result of an earlier step");
    REQUIRE(is_float(dtype), CAIRN_EINVAL, "cairn_exponents_count_tensor: the tensor is %s, which has no exponents",
            cairn_dtype_name(dtype));
    cairn_env *env = cairn__tensor_env(t);
    cairn_status st = CAIRN_OK;
    cairn_no_grad_begin(env);
    cairn_tensor *dense = cairn_contiguous(t);
    st = dense ? cairn_exponents_count(env, cairn__tensor_values(dense), cairn_tensor_numel(t), dtype, options, counts)
               : cairn__last_status();
    cairn_no_grad_end(env);
    return st;
}

cairn_status cairn_exponents_add(struct cairn_exponents *into, const struct cairn_exponents *counts) {
    struct cairn_exponents a, b;
    cairn_status st = CAIRN_OK;
    TRY(cairn__exponents_read("cairn_exponents_add", into, &a));
    TRY(cairn__exponents_read("cairn_exponents_add", counts, &b));
    a.zeros += b.zeros, a.infs += b.infs, a.nans += b.nans, a.below += b.below, a.above += b.above;
    for (int i = 0; i < CAIRN_NUM_BINADES; i++) a.binades[i] += b.binades[i];
    write(&a, into);
out:
    return st;
}

/* ---- evaluating counts ---- */

static uint64_t in_binades(const struct cairn_exponents *e) {
    uint64_t sum = 0;
    for (int b = 0; b < CAIRN_NUM_BINADES; b++) sum += e->binades[b];
    return sum;
}

uint64_t cairn_exponents_total(const struct cairn_exponents *counts) {
    struct cairn_exponents e;
    if (!counts || cairn__exponents_read("cairn_exponents_total", counts, &e) != CAIRN_OK) return 0;
    return e.zeros + e.infs + e.nans + e.below + e.above + in_binades(&e);
}

int cairn_exponents_greatest(const struct cairn_exponents *counts, int *binade) {
    struct cairn_exponents e;
    if (!counts || cairn__exponents_read("cairn_exponents_greatest", counts, &e) != CAIRN_OK) return 0;
    for (int b = CAIRN_NUM_BINADES - 1; b >= 0; b--) {
        if (!e.binades[b]) continue;
        if (binade) *binade = CAIRN_LEAST_BINADE + b;
        return 1;
    }
    return 0;
}

/* Classifies magnitudes [low, high) of one count by the effect of rounding. */
static void lose(const struct cairn_number_range *range, double low, double high, double share,
                 struct cairn_exponents_loss *loss) {
    if (high <= range->half) loss->to_zero += share;
    if (low <= range->half) loss->to_zero_at_most += share;
    if (low >= range->overflow) loss->to_inf += share;
    if (high > range->overflow) loss->to_inf_at_most += share;
}

cairn_status cairn_exponents_lose(const struct cairn_exponents *counts, double scale,
                                  const struct cairn_number_range *range, struct cairn_exponents_loss *out) {
    struct cairn_exponents e;
    struct cairn_exponents_loss loss = {0, 0, 0, 0};
    cairn_status st = CAIRN_OK;
    TRY(cairn__exponents_read("cairn_exponents_lose", counts, &e));
    REQUIRE(range && out, CAIRN_EINVAL, "cairn_exponents_lose: range and out must be set");
    REQUIRE(scale > 0 && isfinite(scale), CAIRN_EINVAL,
            "cairn_exponents_lose: scale is %g; it must be above 0 and finite", scale);
    REQUIRE(range->half >= 0 && range->overflow > range->half, CAIRN_EINVAL,
            "cairn_exponents_lose: the range is from %g to %g; half must be at least 0 and overflow above it",
            range->half, range->overflow);
    const double all = (double)(in_binades(&e) + e.below + e.above);
    if (all > 0) {
        for (int b = 0; b < CAIRN_NUM_BINADES; b++) {
            const double low = ldexp(scale, CAIRN_LEAST_BINADE + b);
            if (e.binades[b]) lose(range, low, 2 * low, (double)e.binades[b] / all, &loss);
        }
        if (e.below) lose(range, 0, ldexp(scale, CAIRN_LEAST_BINADE), (double)e.below / all, &loss);
        if (e.above) lose(range, ldexp(scale, 128), INFINITY, (double)e.above / all, &loss);
    }
    *out = loss;
out:
    return st;
}

/* ---- as a histogram ---- */

static void put_bucket(struct cairn_histogram *h, struct cairn_exponents_buckets *room, double limit, double count) {
    room->limits[h->num_buckets] = limit;
    room->counts[h->num_buckets++] = count;
    h->count += count;
}

/* Adds a count whose elements are estimated as `middle`. */
static void put_magnitudes(struct cairn_histogram *h, struct cairn_exponents_buckets *room, double low, double limit,
                           uint64_t count, double middle) {
    if (count && h->max == 0 && h->num_zeros == 0) h->min = low;
    if (count) h->max = limit;
    put_bucket(h, room, limit, (double)count);
    h->sum += (double)count * middle;
    h->sum_squares += (double)count * middle * middle;
}

cairn_status cairn_exponents_histogram(const struct cairn_exponents *counts, double scale,
                                       struct cairn_exponents_buckets *buckets, struct cairn_histogram *out) {
    struct cairn_exponents e;
    struct cairn_histogram h = *cairn_histogram(.limits = buckets ? buckets->limits : NULL, .exponents = counts);
    int first = 0, last = CAIRN_NUM_BINADES - 1;
    cairn_status st = CAIRN_OK;
    TRY(cairn__exponents_read("cairn_exponents_histogram", counts, &e));
    REQUIRE(buckets && out, CAIRN_EINVAL, "cairn_exponents_histogram: buckets and out must be set");
    REQUIRE(out->struct_size >= sizeof(out->struct_size), CAIRN_EINVAL,
            "cairn_exponents_histogram: struct_size of out is %zu; begin with *cairn_histogram()", out->struct_size);
    REQUIRE(scale > 0 && isfinite(scale), CAIRN_EINVAL,
            "cairn_exponents_histogram: scale is %g; it must be above 0 and finite", scale);
    h.counts = buckets->counts;
    h.scale = scale;
    h.num_zeros = (double)e.zeros, h.num_infs = (double)e.infs, h.num_nans = (double)e.nans;
    put_bucket(&h, buckets, 0, h.num_zeros);
    if (e.below) put_magnitudes(&h, buckets, 0, ldexp(1, CAIRN_LEAST_BINADE), e.below, 0);
    while (first <= last && !e.binades[first]) first++;
    while (last > first && !e.binades[last]) last--;
    for (int b = first; b <= last; b++) {
        const double low = ldexp(1, CAIRN_LEAST_BINADE + b);
        put_magnitudes(&h, buckets, low, 2 * low, e.binades[b], 1.5 * low);
    }
    if (e.above) put_magnitudes(&h, buckets, ldexp(1, 128), DBL_MAX, e.above, ldexp(1, 128));
    h.struct_size = out->struct_size;
    memcpy(out, &h, out->struct_size < sizeof(h) ? out->struct_size : sizeof(h));
out:
    return st;
}
