/* The CPU's passes: the kernels of this processor, applied to lists and types.
 *
 * nn's elementwise kernels exist only for f32: half operands are widened and rounded in blocks that stay in the
 * first-level cache. */
#include <math.h>
#include <string.h>

#include "core/parallel.h"
#include "core/philox.h"
#include "core/status.h"
#include "device/cpu/blocks.h"
#include "device/cpu/cpu.h"
#include "device/cpu/state.h"
#include "kernels/element.h"
#include "kernels/kernels.h"

enum {
    BLOCK = 1024,   /* elements, a multiple of 8; three f32 arrays of them fit beside the halves */
    MEASURED = 256, /* likewise; short enough that the processor fetches the next block while norms are summed */
};

static const struct cairn__kernels *kernels(const struct cairn_device *d) {
    return cairn__cpu_of(d)->kernels;
}

static float value_of(const float *factor) {
    return factor ? *factor : 1.0f;
}

static void raise_flag(uint32_t *flag, uint32_t found) {
    if (flag) *flag |= found;
}

/* ---- lists ---- */

static void cast(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype to,
                 cairn_dtype from) {
    cairn__cast_fn f = kernels(d)->cast[from][to];
    for (size_t i = 0; i < count; i++) {
        if (f) {
            f(items[i].dst, items[i].x, items[i].n);
        } else if (items[i].n > 0) { /* f64 and bool as they are */
            memmove(items[i].dst, items[i].x, items[i].n * cairn_dtype_nbytes(to));
        }
    }
}

static void scale(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype to,
                  cairn_dtype from, const float *factor, uint32_t *found) {
    cairn__scale_fn f = kernels(d)->scale[from][to];
    for (size_t i = 0; i < count; i++) {
        uint32_t any = 0;
        f(items[i].dst, items[i].x, items[i].n, value_of(factor), &any);
        raise_flag(items[i].found, any), raise_flag(found, any);
    }
}

static void axpby(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype to,
                  cairn_dtype from, const float *factor, float b, uint32_t *found) {
    cairn__axpby_fn f = kernels(d)->axpby[from][to];
    for (size_t i = 0; i < count; i++) {
        uint32_t any = 0;
        f(items[i].dst, items[i].x, items[i].y, items[i].n, value_of(factor), b, &any);
        raise_flag(items[i].found, any), raise_flag(found, any);
    }
}

static void check(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                  uint32_t *found) {
    cairn__check_fn f = kernels(d)->check[dtype];
    for (size_t i = 0; i < count; i++) {
        uint32_t any = 0;
        f(items[i].x, items[i].n, &any);
        raise_flag(items[i].found, any), raise_flag(found, any);
    }
}

static void l2norm(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                   const float *factor, double *norm, double *each, uint32_t *found) {
    cairn__sumsq_fn f = kernels(d)->sumsq[dtype];
    double total = 0;
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        uint32_t any = 0;
        f(items[i].x, items[i].n, value_of(factor), &sum, &any);
        raise_flag(items[i].found, any), raise_flag(found, any);
        if (each) each[i] = sqrt(sum);
        total += sum;
    }
    *norm = sqrt(total);
}

/* Comparisons with a NaN are false, so NaNs stay. */
static void clamp(struct cairn_device *d, const struct cairn__item *items, size_t count, float limit) {
    (void)d;
    for (size_t i = 0; i < count; i++) {
        float *dst = items[i].dst;
        const float *x = items[i].x;
        for (size_t j = 0; j < items[i].n; j++) {
            const float below = x[j] > limit ? limit : x[j];
            dst[j] = below < -limit ? -limit : below;
        }
    }
}

static struct cairn__counts count_elements(struct cairn_device *d, cairn_dtype dtype, const void *x, size_t n,
                                           float least_normal) {
    struct cairn__counts counts = {.max_exponent = INT32_MIN, .min_exponent = INT32_MAX};
    kernels(d)->census[dtype](x, n, least_normal, &counts);
    return counts;
}

static void census(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                   float least_normal, struct cairn__census *out) {
    for (size_t i = 0; i < count; i++) {
        const struct cairn__counts c = count_elements(d, dtype, items[i].x, items[i].n, least_normal);
        const bool any = c.max_exponent != INT32_MIN;
        out[i] = (struct cairn__census){.zeros = c.zeros,
                                        .subnormals = c.subnormals,
                                        .infs = c.infs,
                                        .nans = c.nans,
                                        .max_exponent = any ? c.max_exponent : 0,
                                        .min_exponent = any ? c.min_exponent : 0,
                                        .largest = c.largest};
    }
}

static void count_exponents(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                            struct cairn__exponent_counts *out) {
    for (size_t i = 0; i < count; i++) {
        out[i] = (struct cairn__exponent_counts){0};
        kernels(d)->count_exponents[dtype](items[i].x, items[i].n, &out[i]);
    }
}

/* ---- a training step ---- */

static size_t block_at(size_t i, size_t n) {
    return n - i < BLOCK ? n - i : BLOCK;
}

/* One block of weights with stochastic rounding: they are updated as f32 and rounded with the random stream of their
 * parameter and update. Blocks begin at multiples of 8, as streams require. */
struct rounding {
    const struct cairn__kernels *k;
    uint64_t seed, stream;
    float wide[BLOCK];
};

static const void *grad_at(const struct cairn__optim_item *t, cairn_dtype grad, size_t i) {
    return (const char *)t->grad + i * cairn_dtype_nbytes(grad);
}

static void update_rounding(struct rounding *r, const struct cairn__optim_item *t, cairn_dtype grad,
                            cairn__update_fn update, const union cairn__update *h) {
    for (size_t i = 0; i < t->n; i += BLOCK) {
        const size_t m = block_at(i, t->n);
        uint16_t *weights = (uint16_t *)t->weights + i;
        float *state[CAIRN__MAX_STATES];
        for (int s = 0; s < CAIRN__MAX_STATES; s++) state[s] = t->state[s] ? t->state[s] + i : NULL;
        r->k->cast[CAIRN_BF16][CAIRN_F32](r->wide, weights, m);
        update(r->wide, NULL, state, grad_at(t, grad, i), m, h);
        r->k->round_stochastic(weights, r->wide, m, r->seed, r->stream, (size_t)t->eighth * 8 + i);
    }
}

/* ---- a rule over flat pieces ---- */

enum {
    FLAT = 256, /* elements of a piece, a multiple of 8: so short that the processor fetches the next one's meanwhile */
    FLAT_GRAIN = 64 * FLAT /* elements of a thread */
};

struct flat_job {
    const struct cairn__kernels *k;
    const struct cairn__optim_item *t;
    const struct cairn__optim_rule *rule;
    cairn_dtype grad;
    enum cairn__weight_mode mode;
    struct cairn__flat_scalars scalars;
    uint64_t seed, stream; /* of stochastic rounding */
};

static void *half_at(void *p, size_t i) {
    return (uint16_t *)p + i;
}

static void write_flat(const struct flat_job *job, size_t i, const float *w, size_t m) {
    const cairn_dtype type = cairn__weights_type(job->mode), half = cairn__copy_type(job->mode);
    if (half) {
        job->k->cast[CAIRN_F32][half](half_at(job->t->half, i), w, m);
    } else if (job->mode == CAIRN__W_BF16_STOCHASTIC) {
        job->k->round_stochastic(half_at(job->t->weights, i), w, m, job->seed, job->stream,
                                 (size_t)job->t->eighth * 8 + i);
    } else if (type != CAIRN_F32) {
        job->k->cast[CAIRN_F32][type](half_at(job->t->weights, i), w, m);
    }
}

static void update_pieces(void *ctx, size_t begin, size_t end) {
    const struct flat_job *job = ctx;
    const struct cairn__optim_item *t = job->t;
    const cairn_dtype type = cairn__weights_type(job->mode);
    float g[FLAT], wide[FLAT];
    for (size_t i = begin; i < end; i += FLAT) {
        const size_t m = end - i < FLAT ? end - i : FLAT;
        float *const w = type == CAIRN_F32 ? (float *)t->weights + i : wide;
        struct cairn__flat piece = {t->missed, i, m, w, g, {NULL}, &job->scalars, NULL};
        uint32_t found = 0; /* ignored: the step's guard has checked */
        for (int s = 0; s < CAIRN__MAX_STATES; s++) piece.state[s] = t->state[s] ? t->state[s] + i : NULL;
        job->k->scale[job->grad][CAIRN_F32](g, grad_at(t, job->grad, i), m, job->scalars.factor, &found);
        if (w == wide) job->k->cast[type][CAIRN_F32](wide, half_at(t->weights, i), m);
        job->rule->custom.flat(job->rule, &piece);
        write_flat(job, i, w, m);
    }
}

/* The mode for kernels that only read weights, and for norms. */
static enum cairn__weight_mode read_mode(enum cairn__weight_mode mode) {
    if (mode == CAIRN__W_BF16_STOCHASTIC) return CAIRN__W_BF16;
    return mode == CAIRN__W_F16 || mode == CAIRN__W_BF16 ? mode : CAIRN__W_F32;
}

static float factor_of(const struct cairn__optim_item *t, const struct cairn__optim_state *state) {
    return value_of(t->factor) * state->clip;
}

static double squares_of(const struct cairn__kernels *k, cairn_dtype type, const void *x, size_t n) {
    uint32_t unused = 0;
    double sum = 0;
    k->sumsq[type](x, n, 1.0f, &sum, &unused);
    return sum;
}

/* NaN or infinity if there is one, which are greater than any number. */
static double greatest_square_of(struct cairn_device *d, cairn_dtype type, const void *x, size_t n) {
    const struct cairn__counts counts = count_elements(d, type, x, n, 0);
    const double greatest = counts.nans ? (double)NAN : counts.infs ? (double)INFINITY : counts.largest;
    return greatest * greatest;
}

/* Works block by block, so that norms are computed while a block is in the cache. */
static struct cairn__squares direct(const struct cairn__kernels *k, const struct cairn__optim_item *t, cairn_dtype grad,
                                    enum cairn__weight_mode read, const union cairn__update *h) {
    const cairn_dtype type = cairn__weights_type(read);
    struct cairn__squares sums = {0};
    for (size_t at = 0; at < t->n; at += MEASURED) {
        const size_t m = t->n - at < MEASURED ? t->n - at : MEASURED;
        char *const weights = (char *)t->weights + at * cairn_dtype_nbytes(type);
        float *const arrays[] = {t->state[0] + at, t->state[1] + at, t->state[2] + at};
        k->update[CAIRN__OPTIM_LAMB][grad][read](weights, NULL, arrays, grad_at(t, grad, at), m, h);
        sums.weights += squares_of(k, type, weights, m);
        sums.grad += squares_of(k, CAIRN_F32, arrays[2], m);
    }
    return sums;
}

static void measure(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                    enum cairn__weight_mode mode, const struct cairn__optim_rule *rule,
                    const struct cairn__rates *rates, const struct cairn__optim_state *state) {
    const enum cairn__weight_mode read = read_mode(mode);
    if (state->skip) return;
    for (size_t i = 0; i < count; i++) {
        const struct cairn__optim_item *t = &items[i];
        if (rule->kind == CAIRN__OPTIM_LAMB) {
            const union cairn__update h =
                cairn__direction_of(rule, rates, cairn__update_number(state, t->missed), factor_of(t, state));
            *t->squares = direct(kernels(d), t, grad, read, &h);
        } else if (rule->kind == CAIRN__OPTIM_NOVOGRAD && rule->novograd.by_greatest) {
            t->squares->grad = greatest_square_of(d, grad, t->grad, t->n);
        } else {
            t->squares->grad = squares_of(kernels(d), grad, t->grad, t->n);
        }
        if (rule->larc.is_on) t->squares->weights = squares_of(kernels(d), cairn__weights_type(read), t->weights, t->n);
    }
}

static void update(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                   enum cairn__weight_mode mode, const struct cairn__optim_rule *rule, const struct cairn__rates *rates,
                   const struct cairn__optim_state *state) {
    if (state->skip) return;
    if (rule->kind == CAIRN__OPTIM_CUSTOM) {
        for (size_t i = 0; i < count; i++) {
            const struct cairn__optim_item *t = &items[i];
            struct flat_job job = {.k = kernels(d), .t = t, .rule = rule, .grad = grad, .mode = mode};
            job.scalars = cairn__flat_scalars_of(rates, state, t->missed, t->factor);
            job.seed = state->rounding_seed;
            job.stream = cairn__rounding_stream(t->parameter, job.scalars.update);
            cairn__parallel_for(t->n, FLAT_GRAIN, update_pieces, &job);
        }
        return;
    }
    const cairn__update_fn *const by_mode = kernels(d)->update[cairn__update_kernel(rule)][grad];
    for (size_t i = 0; i < count; i++) {
        const struct cairn__optim_item *t = &items[i];
        const int64_t number = cairn__update_number(state, t->missed);
        const float factor = factor_of(t, state);
        if (rule->kind == CAIRN__OPTIM_NOVOGRAD)
            *t->state[1] = cairn__novograd_second(&rule->novograd, number, factor, t->squares, *t->state[1]);
        const union cairn__update h = cairn__update_of(rule, rates, number, factor, t->squares, t->state[1]);
        if (mode == CAIRN__W_BF16_STOCHASTIC) {
            struct rounding r;
            r.k = kernels(d);
            r.seed = state->rounding_seed;
            r.stream = cairn__rounding_stream(t->parameter, number);
            update_rounding(&r, t, grad, by_mode[CAIRN__W_F32], &h);
        } else {
            by_mode[mode](t->weights, t->half, t->state, t->grad, t->n, &h);
        }
    }
}

static void count_up(struct cairn_device *d, int64_t *counter, const struct cairn__optim_state *state) {
    (void)d;
    if (!state || !state->skip) ++*counter;
}

static void scaler_update(struct cairn_device *d, struct cairn__scaler_state *scaler,
                          struct cairn__scaler_report *reports) {
    (void)d;
    struct cairn__scaler_report *report = cairn__scaler_update_scalars(scaler, reports);
    __atomic_store_n(&report->number, (uint64_t)scaler->updates, __ATOMIC_RELEASE);
}

static void step_end(struct cairn_device *d, const struct cairn__step_end *end) {
    for (size_t i = 0; i < end->count; i++) cairn__step_end_overflow(end, i);
    for (size_t g = 0; g < end->table.groups; g++) cairn__step_end_rates(end, g);
    for (int i = 0; i < end->num_scalers; i++) {
        if (end->scaler_reports[i]) scaler_update(d, end->scalers[i], end->scaler_reports[i]);
    }
    struct cairn__step_report *report = cairn__step_end_scalars(end);
    __atomic_store_n(&report->number, end->optim->ends, __ATOMIC_RELEASE);
}

static void average_begin(struct cairn_device *d, struct cairn__average *average,
                          const struct cairn__optim_state *state) {
    (void)d;
    cairn__average_begin(average, state);
}

static void average(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype from,
                    const struct cairn__average *average) {
    float wide[BLOCK];
    if (!average->is_due) return;
    for (const struct cairn__item *t = items; t < items + count; t++) {
        for (size_t i = 0; i < t->n; i += BLOCK) {
            const size_t m = block_at(i, t->n);
            const void *const at = (const char *)t->x + i * cairn_dtype_nbytes(from);
            const float *x = from == CAIRN_F32 ? at : wide;
            float *const dst = (float *)t->dst + i;
            if (x == wide) kernels(d)->cast[from][CAIRN_F32](wide, at, m);
            for (size_t j = 0; j < m; j++) dst[j] = cairn__lerp(dst[j], x[j], average->share);
        }
    }
}

static void renew_rates(struct cairn_device *d, const struct cairn__rate_table *table,
                        const struct cairn__optim_state *state) {
    (void)d;
    for (size_t g = 0; g < table->groups; g++)
        table->rates[g] = cairn__group_rates(&table->schedules[g], state->steps, state->skipped);
}

static void take_flags(struct cairn_device *d, const struct cairn__taken *items, size_t count, uint32_t micro_batch,
                       uint32_t *const *raises, size_t num_raises) {
    for (size_t i = 0; i < count; i++) {
        const struct cairn__taken *t = &items[i];
        struct cairn__counts counts = {0};
        if (!*t->flag) continue;
        *t->flag = 0;
        for (size_t r = 0; r < num_raises; r++) raise_flag(raises[r], 1);
        if (t->x) counts = count_elements(d, t->dtype, t->x, t->n, 0);
        cairn__note_overflow(t->to, micro_batch, t->rank, counts.infs, counts.nans);
    }
}

static void share_flag(struct cairn_device *d, uint32_t *any, uint32_t *const *into, size_t count) {
    (void)d;
    for (size_t i = 0; i < count; i++) *into[i] |= *any;
    *any = 0;
}

static void clip(struct cairn_device *d, const double *norms, size_t count, double max_norm,
                 struct cairn__optim_state *state, double *total) {
    (void)d;
    double squares = 0;
    for (size_t i = 0; i < count; i++) squares += norms[i] * norms[i];
    *total = cairn__clip_to(state, squares, max_norm);
}

static void scale_loss(struct cairn_device *d, float *dst, const float *x, const struct cairn__scaler_state *scaler,
                       struct cairn__loss_scale *cell, uint32_t *found) {
    (void)d;
    raise_flag(found, cairn__f32_nonfinite(*x));
    *cell = cairn__loss_scale_of(scaler);
    *dst = *x * cell->scale;
}

static void clear_flags(struct cairn_device *d, uint32_t *flags, size_t n) {
    (void)d;
    memset(flags, 0, n * sizeof(flags[0]));
}

static void store(struct cairn_device *d, void *dst, const void *value, size_t nbytes) {
    (void)d;
    memcpy(dst, value, nbytes);
}

/* ---- for nn: element by element ---- */

static void fill(struct cairn_device *d, cairn_dtype t, void *dst, size_t n, float value) {
    kernels(d)->fill[t](dst, n, value);
}

/* Computes 1 * a + 1 * b, which is a + b bit for bit: the kernel reads one of the halves without widening it first. */
static void add(struct cairn_device *d, cairn_dtype t, void *dst, const void *a, const void *b, size_t n) {
    const struct cairn__kernels *k = kernels(d);
    if (t == CAIRN_F32) {
        k->add(dst, a, b, n);
        return;
    }
    float wide[BLOCK];
    uint32_t unused = 0;
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t m = block_at(i, n);
        k->cast[t][CAIRN_F32](wide, (const uint16_t *)b + i, m);
        k->axpby[t][t]((uint16_t *)dst + i, (const uint16_t *)a + i, wide, m, 1.0f, 1.0f, &unused);
    }
}

static void mul_scalar(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, float s) {
    uint32_t unused = 0;
    if (t == CAIRN_F32) {
        kernels(d)->mul_scalar(dst, x, n, s);
    } else {
        kernels(d)->scale[t][t](dst, x, n, s, &unused);
    }
}

static void relu(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n) {
    const struct cairn__kernels *k = kernels(d);
    if (t == CAIRN_F32) {
        k->relu(dst, x, n);
        return;
    }
    float wide[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t m = block_at(i, n);
        k->cast[t][CAIRN_F32](wide, (const uint16_t *)x + i, m);
        k->relu(wide, wide, m);
        k->cast[CAIRN_F32][t]((uint16_t *)dst + i, wide, m);
    }
}

static void relu_backward(struct cairn_device *d, cairn_dtype t, void *dx, const void *dy, const void *x, size_t n) {
    const struct cairn__kernels *k = kernels(d);
    if (t == CAIRN_F32) {
        k->relu_backward(dx, dy, x, n);
        return;
    }
    float wide_dy[BLOCK], wide_x[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t m = block_at(i, n);
        k->cast[t][CAIRN_F32](wide_dy, (const uint16_t *)dy + i, m);
        k->cast[t][CAIRN_F32](wide_x, (const uint16_t *)x + i, m);
        k->relu_backward(wide_dy, wide_dy, wide_x, m);
        k->cast[CAIRN_F32][t]((uint16_t *)dx + i, wide_dy, m);
    }
}

static void round_to(struct cairn_device *d, cairn_dtype half, float *dst, const float *x, size_t n) {
    kernels(d)->round[half](dst, x, n);
}

/* ---- for nn: sums ---- */

static float get(cairn_dtype t, const void *x) {
    return cairn__dtype(t)->to_f32(x);
}

static void sum(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, float divisor) {
    cairn__block_put(t, dst, kernels(d)->sum[t](x, n) / (double)divisor);
}

static void spread(struct cairn_device *d, cairn_dtype t, void *dx, size_t n, const void *dy, float divisor) {
    kernels(d)->fill[t](dx, n, get(t, dy) / divisor);
}

static void mse(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, const void *y, size_t n) {
    cairn__block_put(t, dst, kernels(d)->mse_sum[t](x, y, n) / (double)n);
}

static void mse_backward(struct cairn_device *d, cairn_dtype t, cairn_dtype to, void *dx, const void *x, const void *y,
                         size_t n, float s, const void *dy) {
    const struct cairn__kernels *k = kernels(d);
    const float c = s * get(t, dy);
    if (to == CAIRN_F32) {
        k->mse_backward(dx, x, y, n, c);
        return;
    }
    float wide_x[BLOCK], wide_y[BLOCK];
    const size_t nbytes = cairn_dtype_nbytes(t);
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t m = block_at(i, n);
        k->cast[t][CAIRN_F32](wide_x, (const char *)x + i * nbytes, m);
        k->cast[t][CAIRN_F32](wide_y, (const char *)y + i * nbytes, m);
        k->mse_backward(wide_x, wide_x, wide_y, m, c);
        k->cast[CAIRN_F32][to]((uint16_t *)dx + i, wide_x, m);
    }
}

static void col_sum(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t rows, size_t cols) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    float *sums = dst;
    if (t != CAIRN_F32 && !cairn__cpu_is_ok(cpu, cairn__scratch_room(&cpu->row, cols, &sums))) return;
    cpu->kernels->col_sum[t](sums, x, rows, cols);
    if (sums != dst) cpu->kernels->cast[CAIRN_F32][t](dst, sums, cols);
}

/* ---- random numbers ---- */

static void normal(struct cairn_device *d, cairn_dtype t, void *dst, size_t n, uint64_t seed, uint64_t stream) {
    enum { AT_ONCE = 256 };
    float normals[AT_ONCE];
    for (size_t i = 0; i < n; i += AT_ONCE) {
        for (size_t j = 0; j < AT_ONCE; j += 4) {
            cairn__normal4(cairn__philox(seed, (i + j) / 4, stream), &normals[j]);
        }
        kernels(d)->cast[CAIRN_F32][t]((char *)dst + i * cairn_dtype_nbytes(t), normals,
                                       n - i < AT_ONCE ? n - i : AT_ONCE);
    }
}

/* 2u - 1 is exact and at least 2^-23 below 1, so rounding in f32 never reaches the bound. */
static void uniform(struct cairn_device *d, cairn_dtype t, void *dst, size_t n, float bound, uint64_t seed,
                    uint64_t stream) {
    const size_t nbytes = cairn_dtype_nbytes(t);
    for (size_t i = 0; i < n; i += 4) {
        const struct cairn__philox_block block = cairn__philox(seed, i / 4, stream);
        float values[4];
        for (int j = 0; j < 4; j++) values[j] = bound * (2.0f * cairn__uniform(block.word[j]) - 1.0f);
        kernels(d)->cast[CAIRN_F32][t]((char *)dst + i * nbytes, values, n - i < 4 ? n - i : 4);
    }
}

const struct cairn__passes cairn__cpu_passes = {
    .cast = cast,
    .scale = scale,
    .axpby = axpby,
    .check = check,
    .l2norm = l2norm,
    .clamp = clamp,
    .census = census,
    .count_exponents = count_exponents,
    .measure = measure,
    .update = update,
    .count_up = count_up,
    .step_end = step_end,
    .average_begin = average_begin,
    .average = average,
    .renew_rates = renew_rates,
    .take_flags = take_flags,
    .share_flag = share_flag,
    .scaler_update = scaler_update,
    .clip = clip,
    .scale_loss = scale_loss,
    .clear_flags = clear_flags,
    .store = store,
    .fill = fill,
    .add = add,
    .mul_scalar = mul_scalar,
    .relu = relu,
    .relu_backward = relu_backward,
    .sum = sum,
    .spread = spread,
    .mse = mse,
    .mse_backward = mse_backward,
    .col_sum = col_sum,
    .round = round_to,
    .normal = normal,
    .uniform = uniform,
};
