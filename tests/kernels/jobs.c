/* The arrays and scalars of each kind of kernel, and how to call it. Variants cover the scalars and switches that
 * select code paths. */
#include <stdio.h>
#include <string.h>

#include "kcheck.h"

enum { ROWS = 7, SUMMED_ROWS = 35, BATCH_ROWS = 4096 }; /* of the matrices of bias_add and col_sum */

static const float factors[] = {0x1p-16f, 3.0f, 1.0f, 1e-30f};

#define CALLS(kind) (*(cairn__##kind##_fn)(row->fn))

static void call_cast(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v, (void)out;
    CALLS(cast)(a[0], a[1], n);
}
static void call_scale(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    CALLS(scale)(a[0], a[1], n, factors[v], &out->found);
}
static void call_axpby(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    CALLS(axpby)(a[0], a[1], a[2], n, factors[v], 1.5f, &out->found);
}
static void call_check(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v;
    CALLS(check)(a[0], n, &out->found);
}
static void call_sumsq(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    out->f64 = 0.25; /* added to, not overwritten */
    CALLS(sumsq)(a[0], n, factors[v], &out->f64, &out->found);
}
static void call_fill(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    static const uint32_t values[] = {0x3fc00000, 0x477ff000, 0xffc12345, 0x00012345}; /* 1.5, 65520, NaN, subnormal */
    float value;
    (void)out;
    memcpy(&value, &values[v], sizeof(value));
    CALLS(fill)(a[0], n, value);
}
static void call_round_stochastic(const struct cairn__kernel_row *row, void *const *a, size_t n, int v,
                                  struct outcome *out) {
    static const uint64_t cases[][3] = {{1, 2, 0}, {0x123456789abcdef0, 0xfedcba9876543, 8}, {7, 7, 0x3fffffff8}};
    (void)out;
    CALLS(round_stochastic)(a[0], a[1], n, cases[v][0], cases[v][1], cases[v][2]);
}
static void call_census(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    static const float least_normal[] = {0x1p-14f, 0x1p-126f, 0};
    out->counts = (struct cairn__counts){1, 2, 3, 4, INT32_MIN, INT32_MAX, 0}; /* added to, not overwritten */
    CALLS(census)(a[0], n, least_normal[v], &out->counts);
}
static void call_count_exponents(const struct cairn__kernel_row *row, void *const *a, size_t n, int v,
                                 struct outcome *out) {
    (void)v;
    out->exponents = (struct cairn__exponent_counts){1, 2, 3, 4, 5, {6, 7}}; /* added to, not overwritten */
    CALLS(count_exponents)(a[0], n, &out->exponents);
}

/* The last two are divided by what is no count of ranks, which integers are not. */
enum { APART = 8 };
static const struct reduction reductions[] = {
    {2, 2, 0, 2},
    {2, 1, APART, 2},
    {8, 8, 0, 8},
    {8, 1, APART, 8},
    {2, 2, 0, 1},
    {2, 2, APART, 1},
    {2, 1, 1, 2},
    {2, 2, 1, 2},
    {1, 1, 0, 1},
    {1, 1, APART, 1},
    {3, 3, 0, 3},
    {3, 2, 2, 3},
    {3, 1, APART, 1},
    {4, 4, 0, 4},
    {4, 1, APART, 4},
    {5, 5, APART, 1},
    {6, 1, 5, 6},
    {6, 4, 3, 1},
    {7, 7, 0, 7},
    {7, 1, APART, 1},
    {8, 8, APART, 1},
    {2, 2, 0, 0x1p-140f},
    {3, 1, APART, 0x1p-140f},
};
enum { NUM_REDUCTIONS = sizeof(reductions) / sizeof(reductions[0]), OF_FLOATS_ALONE = 2 };

struct reduction reduction_of(const struct cairn__kernel_row *row, int variant) {
    struct reduction r = reductions[variant];
    if (row->a != CAIRN__REDUCE_SUM) r.divisor = 1;
    return r;
}

static void call_reduce(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    const struct reduction r = reduction_of(row, v);
    CALLS(reduce)(a + r.first_dst, r.num_dsts, (const void *const *)a, r.p, n, r.divisor, &out->found);
}

static struct job reduce_job(const struct cairn__kernel_row *row, int variant) {
    const struct reduction r = reduction_of(row, variant);
    const bool is_float = cairn__dtype((cairn_dtype)row->b)->is_float;
    struct job job = {2 * APART, {{0}}, {0},        NUM_REDUCTIONS - (is_float ? 0 : OF_FLOATS_ALONE),
                      variant,   false, call_reduce};
    for (int j = 0; j < job.num_arrays; j++) {
        const int is_read = j < r.p ? READ : 0,
                  is_written = j - r.first_dst < r.num_dsts && j >= r.first_dst ? WRITTEN : 0;
        job.array[j] = (struct array){(cairn_dtype)row->b, (enum role)(is_read | is_written), 1};
    }
    return job;
}

static void call_sgd(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    struct cairn__sgd h = {.lr = 0.1f, .momentum = 0.9f, .undamped = 0.75f, .factor = 0x1p-10f};
    (void)out;
    h.momentum_on = v >= 2;
    h.first = v == 3;
    h.nesterov = v == 4;
    h.decays_last = v == 5;
    h.weight_decay = v == 1 || v >= 4 ? 0.01f : 0;
    float *const state[CAIRN__MAX_STATES] = {h.momentum_on ? a[2] : NULL};
    CALLS(update)(a[0], a[1], state, a[3], n, &(const union cairn__update){.sgd = h});
}
enum { AMSGRAD = 3 }; /* the variant of Adam */
static void call_adam(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    struct cairn__adam h = {.beta1 = 0.9f,
                            .one_minus_beta1 = 0.1f,
                            .beta2 = 0.999f,
                            .one_minus_beta2 = 0.001f,
                            .eps = 1e-8f,
                            .step_size = 0.0015f,
                            .inv_sqrt_c2 = 1.25f,
                            .factor = 0x1p-10f,
                            .lr_decay = 0.0001f};
    (void)out;
    h.decoupled = v == 0;
    h.weight_decay = v <= 1 ? 0.01f : 0;
    h.amsgrad = v == AMSGRAD;
    float *const state[CAIRN__MAX_STATES] = {a[2], a[3], h.amsgrad ? a[5] : NULL};
    CALLS(update)(a[0], a[1], state, a[4], n, &(const union cairn__update){.adam = h});
}
static void call_lion(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    struct cairn__lion h = {.beta1 = 0.9f,
                            .one_minus_beta1 = 0.1f,
                            .beta2 = 0.99f,
                            .one_minus_beta2 = 0.01f,
                            .lr = 0.0015f,
                            .factor = 0x1p-10f};
    (void)out;
    h.lr_decay = v == 0 ? 0.0001f : 0;
    CALLS(update)(a[0], a[1], (float *const[]){a[2]}, a[3], n, &(const union cairn__update){.lion = h});
}
static void call_adagrad(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    struct cairn__adagrad h = {.lr = 0.0015f, .eps = 1e-8f, .initial = 0.5f, .factor = 0x1p-10f, .lr_decay = 0.0001f};
    (void)out;
    h.decoupled = v == 0;
    h.weight_decay = v <= 1 ? 0.01f : 0;
    h.first = v == 2;
    CALLS(update)(a[0], a[1], (float *const[]){a[2]}, a[3], n, &(const union cairn__update){.adagrad = h});
}
/* Weights and the half array come back untouched. */
static void call_lamb(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    struct cairn__adam h = {.beta1 = 0.9f,
                            .one_minus_beta1 = 0.1f,
                            .beta2 = 0.999f,
                            .one_minus_beta2 = 0.001f,
                            .eps = 1e-8f,
                            .step_size = 1.5f,
                            .inv_sqrt_c2 = 1.25f,
                            .factor = 0x1p-10f};
    (void)out;
    h.decoupled = v == 0;
    h.lr_decay = h.weight_decay = v <= 1 ? 0.01f : 0;
    CALLS(update)(a[0], NULL, (float *const[]){a[1], a[2], a[4]}, a[3], n, &(const union cairn__update){.lamb = h});
}
static void call_add(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v, (void)out;
    CALLS(add)(a[0], a[1], a[2], n);
}
static void call_mul_scalar(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)out;
    CALLS(mul_scalar)(a[0], a[1], n, factors[v]);
}
static void call_relu(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v, (void)out;
    CALLS(relu)(a[0], a[1], n);
}
static void call_relu_backward(const struct cairn__kernel_row *row, void *const *a, size_t n, int v,
                               struct outcome *out) {
    (void)v, (void)out;
    CALLS(relu_backward)(a[0], a[1], a[2], n);
}
static void call_sum(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v;
    out->f64 = CALLS(sum)(a[0], n);
}
static void call_mse_sum(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v;
    out->f64 = CALLS(mse_sum)(a[0], a[1], n);
}
static void call_mse_backward(const struct cairn__kernel_row *row, void *const *a, size_t n, int v,
                              struct outcome *out) {
    (void)out;
    CALLS(mse_backward)(a[0], a[1], a[2], n, factors[v]);
}
static void call_bias_add(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v, (void)out;
    CALLS(bias_add)(a[0], a[1], ROWS, n);
}
static void call_col_sum(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)out;
    CALLS(col_sum)(a[0], a[1], v == OF_BATCH ? BATCH_ROWS : SUMMED_ROWS, n);
}
/* Rows of an array lie one behind the other; all, and a few, with a centre and without. */
static void call_sum_rows(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    const size_t rows = v & 1 ? 5 : CAIRN__SUM_ROWS, row_nbytes = n * cairn_dtype_nbytes((cairn_dtype)row->b);
    const void *x[CAIRN__SUM_ROWS];
    (void)out;
    for (size_t r = 0; r < rows; r++) x[r] = (const char *)a[1] + r * row_nbytes;
    CALLS(sum_rows)(a[0], x, rows, n, v & 2 ? a[2] : NULL);
}
static void call_drain(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v, (void)out;
    CALLS(drain)(a[0], a[1], n);
}
static void call_round(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v, (void)out;
    CALLS(round)(a[0], a[1], n);
}

static cairn_dtype param_type(int mode) {
    return mode == CAIRN__W_F16 ? CAIRN_F16 : mode == CAIRN__W_BF16 ? CAIRN_BF16 : CAIRN_F32;
}

/* The half array of modes that have none is there all the same, and must come back untouched. */
static struct array half_array(int mode) {
    return (struct array){mode == CAIRN__W_F32_BF16 ? CAIRN_BF16 : CAIRN_F16,
                          mode == CAIRN__W_F32_F16 || mode == CAIRN__W_F32_BF16 ? WRITTEN : 0, 1};
}

static int same_width(int a, int b) {
    return cairn_dtype_nbytes((cairn_dtype)a) == cairn_dtype_nbytes((cairn_dtype)b);
}

#define F32_IN \
    { CAIRN_F32, READ, 1 }
#define F32_OUT \
    { CAIRN_F32, WRITTEN, 1 }
#define F32_BOTH \
    { CAIRN_F32, UPDATED, 1 }

static struct job one_state_job(const struct cairn__kernel_row *row, int variants, int plain,
                                void (*call)(const struct cairn__kernel_row *, void *const *, size_t, int,
                                             struct outcome *)) {
    return (struct job){
        4,     {{param_type(row->b), UPDATED, 1}, half_array(row->b), F32_BOTH, {(cairn_dtype)row->a, READ, 1}},
        {0},   variants,
        plain, false,
        call};
}

/* A switch of kinds: each line is one kernel's shape. */
struct job job_of(const struct cairn__kernel_row *row) {
    const cairn_dtype a = (cairn_dtype)row->a, b = (cairn_dtype)row->b;
    const int in_place = same_width(row->a, row->b);
    switch (row->kind) {
    case CAIRN__K_CAST:
        return (struct job){2, {{b, WRITTEN, 1}, {a, READ, 1}}, {in_place}, 1, 0, true, call_cast};
    case CAIRN__K_SCALE:
        return (struct job){2, {{b, WRITTEN, 1}, {a, READ, 1}}, {in_place}, 4, 0, false, call_scale};
    case CAIRN__K_AXPBY:
        return (struct job){
            3, {{b, WRITTEN, 1}, {a, READ, 1}, F32_IN}, {in_place, b == CAIRN_F32 ? 2 : 0}, 4, 0, false, call_axpby};
    case CAIRN__K_CHECK:
        return (struct job){1, {{a, READ, 1}}, {0}, 1, 0, true, call_check};
    case CAIRN__K_SUMSQ:
        return (struct job){1, {{a, READ, 1}}, {0}, 4, 0, false, call_sumsq};
    case CAIRN__K_FILL:
        return (struct job){1, {{a, WRITTEN, 1}}, {0}, 4, 0, true, call_fill};
    case CAIRN__K_ROUND_STOCHASTIC:
        return (struct job){2, {{CAIRN_BF16, WRITTEN, 1}, F32_IN}, {0}, 3, 0, true, call_round_stochastic};
    case CAIRN__K_CENSUS:
        return (struct job){1, {{a, READ, 1}}, {0}, 3, 0, true, call_census};
    case CAIRN__K_COUNT_EXPONENTS:
        return (struct job){1, {{a, READ, 1}}, {0}, 1, 0, true, call_count_exponents};
    case CAIRN__K_REDUCE:
        return reduce_job(row, IN_PLACE_OF_2);
    case CAIRN__K_SGD:
        return one_state_job(row, 6, 2, call_sgd);
    case CAIRN__K_ADAM: /* amsgrad's greatest is last, and is left alone by the variants without */
        return (struct job){
            6,
            {{param_type(row->b), UPDATED, 1}, half_array(row->b), F32_BOTH, F32_BOTH, {a, READ, 1}, F32_BOTH},
            {0},
            4,
            0,
            false,
            call_adam};
    case CAIRN__K_LION:
        return one_state_job(row, 2, 0, call_lion);
    case CAIRN__K_ADAGRAD:
        return one_state_job(row, 4, 0, call_adagrad);
    case CAIRN__K_LAMB:
        return (struct job){5,        {{param_type(row->b), READ, 1}, F32_BOTH, F32_BOTH, {a, READ, 1}, F32_OUT},
                            {0},      3,
                            0,        false,
                            call_lamb};
    case CAIRN__K_ADD:
        return (struct job){3, {F32_OUT, F32_IN, F32_IN}, {1, 2}, 1, 0, false, call_add};
    case CAIRN__K_MUL_SCALAR:
        return (struct job){2, {F32_OUT, F32_IN}, {1}, 4, 0, false, call_mul_scalar};
    case CAIRN__K_RELU:
        return (struct job){2, {F32_OUT, F32_IN}, {1}, 1, 0, true, call_relu};
    case CAIRN__K_RELU_BACKWARD:
        return (struct job){3, {F32_OUT, F32_IN, F32_IN}, {1, 2}, 1, 0, true, call_relu_backward};
    case CAIRN__K_SUM:
        return (struct job){1, {{a, READ, 1}}, {0}, 1, 0, false, call_sum};
    case CAIRN__K_MSE_SUM:
        return (struct job){2, {{a, READ, 1}, {a, READ, 1}}, {0}, 1, 0, false, call_mse_sum};
    case CAIRN__K_COL_SUM:
        return (struct job){2, {F32_OUT, {a, READ, SUMMED_ROWS}}, {0}, 1, 0, false, call_col_sum};
    case CAIRN__K_SUM_ROWS:
        return (struct job){
            3, {{CAIRN_F64, UPDATED, 1}, {b, READ, CAIRN__SUM_ROWS}, F32_IN}, {0}, 4, 0, false, call_sum_rows};
    case CAIRN__K_DRAIN:
        return (struct job){2, {{CAIRN_F64, UPDATED, 1}, F32_BOTH}, {0}, 1, 0, false, call_drain};
    case CAIRN__K_MSE_BACKWARD:
        return (struct job){3, {F32_OUT, F32_IN, F32_IN}, {1, 2}, 4, 0, false, call_mse_backward};
    case CAIRN__K_BIAS_ADD:
        return (struct job){2, {{CAIRN_F32, UPDATED, ROWS}, F32_IN}, {0}, 1, 0, false, call_bias_add};
    case CAIRN__K_ROUND:
        return (struct job){2, {F32_OUT, F32_IN}, {1}, 1, 0, true, call_round};
    case CAIRN__K_MAP:
    case CAIRN__K_FOLD:
    case CAIRN__K_FOLD_INTO:
    case CAIRN__K_DOT:
        return map_job_of(row);
    case CAIRN__K_GREATEST:
    case CAIRN__K_SOFTMAX_BACKWARD:
    case CAIRN__K_MOMENTS:
    case CAIRN__K_NORM_ROW:
    case CAIRN__K_NORM_ROWS_BACKWARD:
    case CAIRN__K_NORM_RUNS:
    case CAIRN__K_NORM_RUNS_SUMS:
    case CAIRN__K_NORM_RUNS_BACKWARD:
    case CAIRN__K_DROPOUT:
        return row_job_of(row);
    case CAIRN__K_FP8_ROUND:
    case CAIRN__K_FP8_ENCODE:
    case CAIRN__K_FP8_DECODE:
    case CAIRN__K_AMAX:
        return fp8_job_of(row);
    }
    return (struct job){0};
}

struct job job_of_variant(const struct cairn__kernel_row *row, int variant) {
    if (row->kind == CAIRN__K_REDUCE) return reduce_job(row, variant);
    struct job job = job_of(row);
    if (row->kind == CAIRN__K_ADAM && variant != AMSGRAD) job.num_arrays--;
    if (row->kind == CAIRN__K_COL_SUM && variant == OF_BATCH) {
        job.array[1].times = BATCH_ROWS;
        job.plain_variant = OF_BATCH;
    }
    return job;
}

const char *group_name(const struct cairn__kernel_row *row, char *text, size_t nbytes) {
    static const char *const kinds[] = {"?",        "cast",
                                        "scale",    "axpby",
                                        "check",    "sumsq",
                                        "fill",     "round_stochastic",
                                        "census",   "count_exponents",
                                        "reduce",   "sgd",
                                        "adam",     "lion",
                                        "adagrad",  "lamb",
                                        "add",      "mul_scalar",
                                        "relu",     "relu_backward",
                                        "sum",      "mse_sum",
                                        "col_sum",  "sum_rows",
                                        "drain",    "mse_backward",
                                        "bias_add", "round"};
    static const char *const modes[] = {"w32", "w32_f16", "w32_bf16", "w16", "wb16"};
    const bool optimizer = row->kind >= CAIRN__K_SGD && row->kind < CAIRN__K_SGD + (int)CAIRN__NUM_OPTIMS;
    const char *b = optimizer ? modes[row->b] : row->b ? cairn_dtype_name((cairn_dtype)row->b) : "";
    if (row->kind >= CAIRN__K_MAP && row->kind <= CAIRN__K_DOT) {
        const int type = row->kind == CAIRN__K_DOT ? row->a : row->b;
        snprintf(text, nbytes, "%s %s", map_group_name(row), cairn_dtype_name((cairn_dtype)type));
        return text;
    }
    if (row->kind == CAIRN__K_REDUCE) {
        static const char *const ops[] = {"sum", "min", "max", "prod"};
        snprintf(text, nbytes, "reduce %s %s", ops[row->a], cairn_dtype_name((cairn_dtype)row->b));
        return text;
    }
    if (row->kind == CAIRN__K_SUM_ROWS) {
        static const char *const folds[] = {"sum", "sum_squares", "sum_abs"};
        snprintf(text, nbytes, "%s_rows %s", folds[row->a], cairn_dtype_name((cairn_dtype)row->b));
        return text;
    }
    if (row->kind >= CAIRN__K_FP8_ROUND) {
        snprintf(text, nbytes, "%s", fp8_group_name(row));
        return text;
    }
    const char *kind = row->kind >= CAIRN__K_GREATEST ? row_kind_name(row) : kinds[row->kind];
    snprintf(text, nbytes, "%s%s%s%s%s", kind, row->a ? " " : "", row->a ? cairn_dtype_name((cairn_dtype)row->a) : "",
             b[0] ? " " : "", b);
    return text;
}

const struct cairn__kernel_row *reference_of(const struct cairn__kernel_row *row) {
    return cairn__kernel_pick(row->kind, row->a, row->b, 0);
}
