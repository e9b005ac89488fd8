/* Memory bandwidth and product throughput of a device: each pass against the device's own copy, timed alternately in
 * one run, and products in TFLOP/s. Results are checked before they are timed; a wrong one ends the run without a
 * figure.
 *
 *     cuda-bench [device [elements [size]]]       cuda, 256 Mi elements, products of 8192
 *
 * Prints "name = value unit", medians of ROUNDS rounds, each long enough for the clock. A pass counts the bytes that it
 * must read and write. The memory in use is several times any GPU's L2. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/alloc.h"
#include "core/half.h"
#include "core/trace.h"
#include "device/device.h"

enum { SLICE = 1024, MAX_JOBS = 16 };

static const double LONG_ENOUGH = 0.02; /* seconds of one timing */
static const float FACTOR = 1.0f / 1024, BIAS = 0.5f;
static const struct cairn__rates RATES = {1e-3, 0.9};

/* ---- what is timed ---- */

struct bench {
    struct cairn_device *d;
    size_t n;
    float *x, *y, *m, *v;    /* [n] f32 */
    uint16_t *half, *weight; /* [n] f16 */
    float *factor;
    uint32_t *found;
    double *norm;
    int64_t *missed;
    struct cairn__rates *rates;
    struct cairn__optim_state *state;
    struct cairn__matmul product; /* of the job that is running */
};

struct job {
    char name[64];
    double work; /* bytes, or floating point operations */
    const char *unit;
    void (*queue)(struct bench *b);
    struct cairn__matmul product;
    bool tf32;
    double took[ROUNDS];
};

static double timed(struct bench *b, const struct job *job, int times) {
    b->product = job->product;
    b->d->tf32 = job->tf32;
    done(cairn__device_synchronize(b->d));
    const uint64_t begin = cairn__now_ns();
    for (int i = 0; i < times; i++) job->queue(b);
    done(cairn__device_synchronize(b->d));
    return (double)(cairn__now_ns() - begin) * 1e-9 / times;
}

/* Jobs in turn, so that a clock that changes does so for all. */
static void run(struct bench *b, struct job *jobs, size_t count) {
    int times[MAX_JOBS];
    for (size_t i = 0; i < count; i++) {
        timed(b, &jobs[i], 2); /* the first choice of a product's algorithm is not what is timed */
        const double fits = LONG_ENOUGH / timed(b, &jobs[i], 2);
        times[i] = fits < 1 ? 1 : fits > 10000 ? 10000 : (int)fits;
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < count; i++) jobs[i].took[round] = timed(b, &jobs[i], times[i]);
    }
    for (size_t i = 0; i < count; i++) {
        printf("%s = %.2f %s\n", jobs[i].name, jobs[i].work / median(jobs[i].took), jobs[i].unit);
    }
    fflush(stdout);
}

static void *device_memory(struct bench *b, size_t nbytes) {
    void *p = NULL;
    done(cairn__device_alloc(b->d, CAIRN__HOLDS_TENSORS, nbytes, &p));
    return p;
}

static void *host_memory(size_t nbytes) {
    void *p = NULL;
    done(cairn__alloc(nbytes, &p));
    return p;
}

/* ---- passes over memory ---- */

static void copy(struct bench *b) {
    done(cairn__device_copy(b->d, b->y, b->x, b->n * sizeof(float)));
}

static void cast(struct bench *b) {
    cairn__pass_cast(b->d->passes, b->d, b->half, CAIRN_F16, b->x, CAIRN_F32, b->n);
}

static void unscale(struct bench *b) {
    const struct cairn__item item = {.n = b->n, .dst = b->y, .x = b->half};
    b->d->passes->scale(b->d, &item, 1, CAIRN_F32, CAIRN_F16, b->factor, b->found);
}

static void l2norm(struct bench *b) {
    const struct cairn__item item = {.n = b->n, .x = b->y};
    b->d->passes->l2norm(b->d, &item, 1, CAIRN_F32, b->factor, b->norm, NULL, b->found);
}

static const struct cairn__optim_rule RULE = {
    .kind = CAIRN__OPTIM_ADAM, .adam = {.beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .decoupled = true}};

static void adamw(struct bench *b) {
    const struct cairn__optim_item item = {.n = b->n,
                                           .weights = b->x,
                                           .half = b->weight,
                                           .state = {b->m, b->v},
                                           .grad = b->half,
                                           .factor = b->factor,
                                           .missed = b->missed};
    b->d->passes->update(b->d, &item, 1, CAIRN_F16, CAIRN__W_F32_F16, &RULE, b->rates, b->state);
}

/* ---- that they are right ---- */

/* The first, a middle and the last elements. */
static size_t slice_at(const struct bench *b, int which) {
    return which == 0 ? 0 : which == 1 ? b->n / 2 - 3 : b->n - SLICE;
}

static void slice(struct bench *b, int which, void *host, const void *array, size_t size) {
    const size_t at = slice_at(b, which);
    done(cairn__device_download(b->d, host, (const char *)array + at * size, SLICE * size));
}

static uint32_t take_found(struct bench *b) {
    uint32_t found;
    done(cairn__device_download(b->d, &found, b->found, sizeof(found)));
    b->d->passes->clear_flags(b->d, b->found, 1);
    return found;
}

static void check_cast_and_unscale(struct bench *b) {
    float x[SLICE], y[SLICE];
    uint16_t half[SLICE];
    cast(b);
    unscale(b);
    for (int which = 0; which < 3; which++) {
        slice(b, which, x, b->x, sizeof(float)), slice(b, which, y, b->y, sizeof(float));
        slice(b, which, half, b->half, sizeof(uint16_t));
        for (int i = 0; i < SLICE; i++) {
            require(half[i] == cairn__f32_to_f16(x[i]), "cast f32 f16 is wrong");
            require(y[i] == cairn__f16_to_f32(half[i]) * FACTOR, "unscale f16 f32 is wrong");
        }
    }
    require(take_found(b) == 0, "unscale found what is not there");
    const uint16_t infinite = 0x7c00, zero = 0;
    done(cairn__device_upload(b->d, b->half + b->n / 2, &infinite, sizeof(infinite)));
    unscale(b);
    require(take_found(b) == 1, "unscale overlooked an infinity");
    done(cairn__device_upload(b->d, b->half + b->n / 2, &zero, sizeof(zero)));
}

static void check_norm(struct bench *b) {
    b->d->passes->fill(b->d, CAIRN_F32, b->y, b->n, 0.5f);
    l2norm(b);
    double norm;
    done(cairn__device_download(b->d, &norm, b->norm, sizeof(norm)));
    require(norm == sqrt((double)b->n) * 0.5 * FACTOR, "l2norm is wrong"); /* every square and sum is exact */
}

static void check_adamw(struct bench *b) {
    static float w[3][SLICE], m[SLICE], v[SLICE], new_w[SLICE], new_m[SLICE], new_v[SLICE];
    static uint16_t grad[3][SLICE], half[SLICE], new_half[SLICE];
    for (int i = 0; i < 3; i++) slice(b, i, w[i], b->x, sizeof(float)), slice(b, i, grad[i], b->half, sizeof(uint16_t));
    b->d->passes->fill(b->d, CAIRN_F32, b->m, b->n, 0.0f);
    b->d->passes->fill(b->d, CAIRN_F32, b->v, b->n, 0.0f);
    adamw(b);
    const union cairn__update h = cairn__update_of(&RULE, &RATES, 1, FACTOR, NULL, NULL);
    float *const state[CAIRN__MAX_STATES] = {m, v};
    for (int i = 0; i < 3; i++) {
        memset(m, 0, sizeof(m)), memset(v, 0, sizeof(v));
        cairn__kernels_cpu(0)->update[CAIRN__OPTIM_ADAM][CAIRN_F16][CAIRN__W_F32_F16](w[i], half, state, grad[i], SLICE,
                                                                                      &h);
        slice(b, i, new_w, b->x, sizeof(float)), slice(b, i, new_half, b->weight, sizeof(uint16_t));
        slice(b, i, new_m, b->m, sizeof(float)), slice(b, i, new_v, b->v, sizeof(float));
        require(!memcmp(w[i], new_w, sizeof(new_w)) && !memcmp(half, new_half, sizeof(half)), "adamw's weights");
        require(!memcmp(m, new_m, sizeof(m)) && !memcmp(v, new_v, sizeof(v)), "adamw's moments");
    }
}

static void make_memory(struct bench *b) {
    const struct cairn__optim_state state = {.clip = 1};
    const int64_t none = 0;
    float **arrays[] = {&b->x, &b->y, &b->m, &b->v};
    for (int i = 0; i < 4; i++) *arrays[i] = device_memory(b, b->n * sizeof(float));
    b->half = device_memory(b, b->n * sizeof(uint16_t)), b->weight = device_memory(b, b->n * sizeof(uint16_t));
    b->factor = device_memory(b, sizeof(float)), b->found = device_memory(b, sizeof(uint32_t));
    b->norm = device_memory(b, sizeof(double)), b->missed = device_memory(b, sizeof(int64_t));
    b->state = device_memory(b, sizeof(state)), b->rates = device_memory(b, sizeof(RATES));
    b->d->passes->store(b->d, b->factor, &FACTOR, sizeof(FACTOR));
    b->d->passes->store(b->d, b->missed, &none, sizeof(none));
    b->d->passes->store(b->d, b->state, &state, sizeof(state));
    b->d->passes->store(b->d, b->rates, &RATES, sizeof(RATES));
    b->d->passes->clear_flags(b->d, b->found, 1);
    b->d->passes->normal(b->d, CAIRN_F32, b->x, b->n, 1, 0);
}

static void bench_passes(struct bench *b) {
    const double n = (double)b->n;
    struct job jobs[] = {
        {.name = "copy", .work = 8 * n, .unit = "GB/s", .queue = copy},
        {.name = "cast f32 f16", .work = 6 * n, .unit = "GB/s", .queue = cast},
        {.name = "unscale f16 f32", .work = 6 * n, .unit = "GB/s", .queue = unscale},
        {.name = "l2norm f32", .work = 4 * n, .unit = "GB/s", .queue = l2norm},
        {.name = "adamw f16 masters", .work = 28 * n, .unit = "GB/s", .queue = adamw},
    };
    const size_t count = sizeof(jobs) / sizeof(jobs[0]);
    make_memory(b);
    check_cast_and_unscale(b);
    check_norm(b);
    check_adamw(b);
    for (size_t i = 0; i < count; i++) jobs[i].work *= 1e-9;
    run(b, jobs, count);
    void *all[] = {b->x,      b->y,     b->m,    b->v,      b->half,  b->weight,
                   b->factor, b->found, b->norm, b->missed, b->state, b->rates};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) cairn__device_free(b->d, all[i]);
}

/* ---- products ---- */

static void multiply(struct bench *b) {
    done(cairn__device_matmul(b->d, &b->product));
}

static double element(const void *array, cairn_dtype t, int64_t i) {
    const struct cairn__dtype *type = cairn__dtype(t);
    return (double)type->to_f32((const char *)array + (size_t)i * type->nbytes);
}

/* What rounding C may do, relative. */
static double rounding(cairn_dtype t) {
    return t == CAIRN_F32 ? 0x1p-24 : t == CAIRN_F16 ? 0x1p-11 : 0x1p-8;
}

/* op(A)'s rows, some of them; a is A on the host. */
static void check_row_sums(struct bench *b, const struct job *job, const void *a) {
    const struct cairn__matmul *p = &job->product;
    const size_t nbytes = (size_t)p->m * cairn__dtype(p->out_type)->nbytes;
    void *sums = host_memory(nbytes);
    done(cairn__device_download(b->d, sums, p->row_sums, nbytes));
    for (int64_t e = 0; e < 16; e++) {
        const int64_t row = e * 7919 % p->m;
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < p->k; i++) {
            const double term = element(a, p->in_type, p->trans_a ? i * p->m + row : row * p->k + i);
            sum += term, magnitude += fabs(term);
        }
        const double bound = magnitude * (double)p->k * 0x1p-24 + fabs(sum) * rounding(p->out_type);
        require(fabs(element(sums, p->out_type, row) - sum) <= bound, job->name);
    }
    cairn__free(sums);
}

/* Some entries beside their sums in double. f32 sums of k terms err by k * 2^-24 of the sum of magnitudes at most
 * (Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2), tf32 operands by 2^-11 each. */
static void check_product(struct bench *b, const struct job *job) {
    const struct cairn__matmul *p = &job->product;
    const size_t size = cairn__dtype(p->in_type)->nbytes, all = (size_t)p->m * (size_t)p->n * size;
    void *hosts[3];
    const void *arrays[3] = {p->a, p->b, p->c};
    b->product = *p, b->d->tf32 = job->tf32;
    multiply(b);
    for (int i = 0; i < 3; i++) {
        hosts[i] = host_memory(all);
        done(cairn__device_download(b->d, hosts[i], arrays[i], all));
    }
    for (int64_t e = 0; e < 64; e++) {
        const int64_t row = e * 7919 % p->m, col = e * 104729 % p->n;
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < p->k; i++) {
            const double term = element(hosts[0], p->in_type, p->trans_a ? i * p->m + row : row * p->k + i) *
                                element(hosts[1], p->in_type, p->trans_b ? col * p->k + i : i * p->n + col);
            sum += term, magnitude += fabs(term);
        }
        if (p->bias) sum += BIAS, magnitude += BIAS;
        if (p->relu) sum = fmax(sum, 0);
        const double got = element(hosts[2], p->out_type, row * p->n + col);
        const double bound = magnitude * ((double)p->k * 0x1p-24 + (job->tf32 ? 0x1p-10 : 0));
        require(fabs(got - sum) <= bound + fabs(sum) * rounding(p->out_type), job->name);
    }
    if (p->row_sums) check_row_sums(b, job, hosts[0]);
    for (int i = 0; i < 3; i++) cairn__free(hosts[i]);
}

struct shape {
    const char *name; /* as torch.nn.Linear has them: y = x W^T, dx = dy W, dW = dy^T x */
    bool trans_a, trans_b;
    bool bias, relu, row_sums; /* in the product's epilogue; row_sums of dy^T are the bias's gradient */
};

/* Square products all: m = n = k, one memory for every type. */
static void add_job(struct job *job, const struct bench *b, const char *type, const struct shape *shape, int64_t size,
                    cairn_dtype t, bool tf32) {
    *job = (struct job){.work = 2e-12 * (double)size * (double)size * (double)size,
                        .unit = "TFLOP/s",
                        .queue = multiply,
                        .tf32 = tf32,
                        .product = {.m = size,
                                    .n = size,
                                    .k = size,
                                    .trans_a = shape->trans_a,
                                    .trans_b = shape->trans_b,
                                    .in_type = t,
                                    .out_type = t,
                                    .a = b->x,
                                    .b = b->y,
                                    .bias = shape->bias ? b->v : NULL,
                                    .relu = shape->relu,
                                    .row_sums = shape->row_sums ? b->v : NULL,
                                    .c = b->m}};
    snprintf(job->name, sizeof(job->name), "product %s %lld %s", type, (long long)size, shape->name);
}

static void bench_type(struct bench *b, const char *name, cairn_dtype t, bool tf32, int64_t size) {
    static const struct shape shapes[] = {{.name = "y", .trans_b = true},
                                          {.name = "dx"},
                                          {.name = "dw", .trans_a = true},
                                          {.name = "y bias", .trans_b = true, .bias = true},
                                          {.name = "y bias relu", .trans_b = true, .bias = true, .relu = true},
                                          {.name = "dw row sums", .trans_a = true, .row_sums = true}};
    enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };
    struct job jobs[1 + SHAPES];
    add_job(&jobs[0], b, name, &shapes[0], size, t, tf32);
    for (int i = 0; i < SHAPES; i++) add_job(&jobs[1 + i], b, name, &shapes[i], size / 2, t, tf32);
    const size_t n = (size_t)size * (size_t)size;
    b->d->passes->normal(b->d, t, b->x, n, 2, 0);
    b->d->passes->normal(b->d, t, b->y, n, 2, 1 << 16);
    for (int i = 0; i < 1 + SHAPES; i++) {
        b->d->passes->fill(b->d, t, b->v, (size_t)size, BIAS);
        check_product(b, &jobs[i]);
    }
    run(b, jobs, 1 + SHAPES);
}

static void bench_products(struct bench *b, int64_t size) {
    float **arrays[] = {&b->x, &b->y, &b->m};
    for (int i = 0; i < 3; i++) *arrays[i] = device_memory(b, (size_t)size * (size_t)size * sizeof(float));
    b->v = device_memory(b, (size_t)size * sizeof(float));
    bench_type(b, "f32", CAIRN_F32, false, size);
    bench_type(b, "tf32", CAIRN_F32, true, size);
    bench_type(b, "f16", CAIRN_F16, false, size);
    bench_type(b, "bf16", CAIRN_BF16, false, size);
    for (int i = 0; i < 3; i++) cairn__device_free(b->d, *arrays[i]);
    cairn__device_free(b->d, b->v);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "cuda";
    struct bench b = {.n = argc > 2 ? strtoull(argv[2], NULL, 10) : (size_t)256 << 20};
    const long long size = argc > 3 ? strtoll(argv[3], NULL, 10) : 8192;
    require(b.n >= 2 * SLICE && size >= 2 && size % 2 == 0, "from 2048 elements; products of an even size");
    if (cairn__device_open(name, 0, &b.d) != CAIRN_OK) {
        printf("no %s: %s\n", name, cairn_last_error());
        return SKIP;
    }
    printf("%s\n%zu elements; medians of %d rounds of at least %.0f ms\n", cairn_device_describe(b.d), b.n, ROUNDS,
           LONG_ENOUGH * 1e3);
    bench_passes(&b);
    bench_products(&b, size);
    cairn__device_close(&b.d);
    return 0;
}
