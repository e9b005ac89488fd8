/* jobs.c and model.c for the kernels over rows (kernels/rows.h). */
#include <math.h>
#include <string.h>

#include "core/half.h"
#include "core/philox.h"
#include "kcheck.h"

enum { RUNS = 35, ROWS = 3 }; /* several blocks of a sum: one takes 16 runs where they are small */

static const double MEAN = -0.25, RSTD = 1.5, SHIFT = 0.75;

#define CALLS(kind) (*(cairn__##kind##_kernel)(row->fn))

static struct cairn__runs runs_of(size_t n) {
    return (struct cairn__runs){RUNS, n, n};
}

static void call_greatest(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v;
    out->f64 = CALLS(greatest)(a[0], n);
}
static void call_softmax_backward(const struct cairn__kernel_row *row, void *const *a, size_t n, int v,
                                  struct outcome *out) {
    (void)v, (void)out;
    CALLS(softmax_backward)(a[0], a[1], a[2], n);
}
static void call_moments(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    const struct cairn__runs runs = runs_of(n);
    CALLS(moments)(a[0], &runs, v == 0, &out->f64, &out->second);
}
static void call_norm_row(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)out;
    CALLS(norm_row)(a[0], a[1], v & 1 ? NULL : a[2], v & 2 ? NULL : a[3], n, MEAN, RSTD);
}
static void call_norm_rows_backward(const struct cairn__kernel_row *row, void *const *a, size_t n, int v,
                                    struct outcome *out) {
    (void)out;
    double wide_mean[ROWS], wide_rstd[ROWS];
    float mean[ROWS], rstd[ROWS];
    for (int i = 0; i < ROWS; i++) {
        mean[i] = (float)(wide_mean[i] = MEAN * (1 + i));
        rstd[i] = (float)(wide_rstd[i] = RSTD / (1 + i));
    }
    const bool wide = row->a == CAIRN_F64;
    const struct cairn__norm_rows rows = {.dx = v == 3 ? NULL : a[0],
                                          .dy = a[1],
                                          .x = a[2],
                                          .weight = v == 1 ? NULL : a[3],
                                          .dweight = v == 2 ? NULL : a[4],
                                          .dbias = v == 2 ? NULL : a[5],
                                          .rows = ROWS,
                                          .n = n,
                                          .mean = v == 2 ? NULL
                                                  : wide ? (const void *)wide_mean
                                                         : mean,
                                          .rstd = wide ? (const void *)wide_rstd : rstd};
    CALLS(norm_rows_backward)(&rows);
}
static void call_norm_runs(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    const struct cairn__runs runs = runs_of(n);
    (void)v, (void)out;
    CALLS(norm_runs)(a[0], a[1], &runs, MEAN, RSTD, SHIFT);
}
static void call_norm_runs_sums(const struct cairn__kernel_row *row, void *const *a, size_t n, int v,
                                struct outcome *out) {
    const struct cairn__runs runs = runs_of(n);
    double sums[2];
    (void)v;
    CALLS(norm_runs_sums)(a[0], a[1], &runs, MEAN, sums);
    out->f64 = sums[0];
    out->second = sums[1];
}
static void call_norm_runs_backward(const struct cairn__kernel_row *row, void *const *a, size_t n, int v,
                                    struct outcome *out) {
    const struct cairn__runs runs = runs_of(n);
    (void)v, (void)out;
    CALLS(norm_runs_backward)(a[0], a[1], a[2], &runs, MEAN, RSTD, SHIFT, -0.5);
}

static struct cairn__dropout dropout_of(int v) {
    static const uint64_t first[] = {0, 3, 64 * 5, ((uint64_t)1 << 34) - 7};
    return (struct cairn__dropout){7, (uint64_t)5 << 40 | 9, first[v], v == 2 ? 1u << 24 : 3000000, 1.25};
}
static void call_dropout(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    const struct cairn__dropout how = dropout_of(v);
    (void)out;
    CALLS(dropout)(a[0], a[1], n, &how);
}

/* A switch of 9 kinds: each line is one kernel's shape. */
struct job row_job_of(const struct cairn__kernel_row *row) {
    const cairn_dtype t = (cairn_dtype)row->a, r = t == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
    const struct array in = {t, READ, 1}, out = {t, WRITTEN, 1}, wide = {r, READ, 1}, sums = {r, UPDATED, 1};
    const struct array in_runs = {t, READ, RUNS}, out_runs = {t, WRITTEN, RUNS};
    const struct array in_rows = {t, READ, ROWS}, out_rows = {t, WRITTEN, ROWS};
    switch (row->kind) {
    case CAIRN__K_GREATEST:
        return (struct job){1, {in}, {0}, 1, 0, false, call_greatest};
    case CAIRN__K_SOFTMAX_BACKWARD:
        return (struct job){3, {out, in, in}, {1, 2}, 1, 0, false, call_softmax_backward};
    case CAIRN__K_MOMENTS:
        return (struct job){1, {in_runs}, {0}, 2, 0, false, call_moments};
    case CAIRN__K_NORM_ROW:
        return (struct job){4, {out, in, wide, wide}, {1}, 4, 0, false, call_norm_row};
    case CAIRN__K_NORM_ROWS_BACKWARD:
        return (
            struct job){6, {out_rows, in_rows, in_rows, wide, sums, sums}, {1}, 4, 0, false, call_norm_rows_backward};
    case CAIRN__K_NORM_RUNS:
        return (struct job){2, {out_runs, in_runs}, {1}, 1, 0, false, call_norm_runs};
    case CAIRN__K_NORM_RUNS_SUMS:
        return (struct job){2, {in_runs, in_runs}, {0}, 1, 0, false, call_norm_runs_sums};
    case CAIRN__K_NORM_RUNS_BACKWARD:
        return (struct job){3, {out_runs, in_runs, in_runs}, {1}, 1, 0, false, call_norm_runs_backward};
    case CAIRN__K_DROPOUT:
        return (struct job){2, {out, in}, {1}, 4, 0, false, call_dropout};
    default:
        return (struct job){0};
    }
}

const char *row_kind_name(const struct cairn__kernel_row *row) {
    static const char *const names[] = {"greatest",       "softmax_backward",   "moments",
                                        "norm_row",       "norm_rows_backward", "norm_runs",
                                        "norm_runs_sums", "norm_runs_backward", "dropout"};
    return names[row->kind - CAIRN__K_GREATEST];
}

/* ---- definitions of their own, in double ---- */

static double at(const struct array *array, void *const *a, int j, size_t i) {
    if (array[j].type == CAIRN_F64) return ((const double *)a[j])[i];
    if (array[j].type == CAIRN_F32) return ((const float *)a[j])[i];
    const uint16_t h = ((const uint16_t *)a[j])[i];
    return array[j].type == CAIRN_F16 ? cairn__f16_to_f32(h) : cairn__bf16_to_f32(h);
}

/* sum_i f(i)^... of elements of arrays p and q (q < 0: of p alone), each less its centre. */
static double sum_of(const struct job *job, void *const *a, int p, double less_p, int q, double less_q, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (at(job->array, a, p, i) - less_p) * (q < 0 ? 1 : at(job->array, a, q, i) - less_q);
    return sum;
}

/* What element i of array 0 should be. */
static double want_at(const struct cairn__kernel_row *row, const struct job *job, void *const *b, size_t n, size_t i) {
#define AT(j) at(job->array, b, j, i)
    const struct cairn__dropout how = dropout_of(0);
    switch (row->kind) {
    case CAIRN__K_SOFTMAX_BACKWARD:
        return AT(2) * (AT(1) - sum_of(job, b, 1, 0, 2, 0, n));
    case CAIRN__K_NORM_ROW:
        return (AT(1) - MEAN) * RSTD * AT(2) + AT(3);
    case CAIRN__K_NORM_ROWS_BACKWARD: {
        const size_t r = i / n, first = r * n;
        const double mean = MEAN * (double)(1 + r), rstd = RSTD / (double)(1 + r);
        double g = 0, gh = 0;
        for (size_t j = 0; j < n; j++) {
            const double gj = at(job->array, b, 1, first + j) * at(job->array, b, 3, j);
            g += gj / (double)n;
            gh += gj * (at(job->array, b, 2, first + j) - mean) * rstd / (double)n;
        }
        return (AT(1) * at(job->array, b, 3, i - first) - g - (AT(2) - mean) * rstd * gh) * rstd;
    }
    case CAIRN__K_NORM_RUNS:
        return (AT(1) - MEAN) * RSTD + SHIFT;
    case CAIRN__K_NORM_RUNS_BACKWARD:
        return AT(1) * RSTD + (AT(2) - MEAN) * SHIFT - 0.5;
    default: /* dropout */
        return cairn__philox(how.seed, i / 4, how.stream).word[i % 4] >> 8 >= how.least ? AT(1) * how.scale : 0;
    }
#undef AT
}

static bool near(double got, double want, double tolerance) {
    return fabs(got - want) <= tolerance * (1 + fabs(want));
}

bool row_is_right(const struct cairn__kernel_row *row, const struct job *job, size_t n, void *const *before,
                  void *const *after, const struct outcome *out) {
    const double tolerance = row->a == CAIRN_F16 ? 0x1p-10 : row->a == CAIRN_BF16 ? 0x1p-7 : 1e-4;
    const size_t all = RUNS * n;
    if (row->kind == CAIRN__K_GREATEST) {
        double most = -INFINITY;
        for (size_t i = 0; i < n; i++) most = fmax(most, at(job->array, before, 0, i));
        return out->f64 == most;
    }
    if (row->kind == CAIRN__K_MOMENTS) {
        const double mean = sum_of(job, before, 0, 0, -1, 0, all) / (double)all;
        return near(out->f64, mean, 1e-5) &&
               near(out->second, sum_of(job, before, 0, mean, 0, mean, all) / (double)all, 1e-5);
    }
    if (row->kind == CAIRN__K_NORM_RUNS_SUMS) {
        return near(out->f64, sum_of(job, before, 0, 0, -1, 0, all), 1e-4) &&
               near(out->second, sum_of(job, before, 0, 0, 1, MEAN, all), 1e-4);
    }
    for (size_t i = 0; i < n * job->array[0].times; i++) {
        if (!near(at(job->array, after, 0, i), want_at(row, job, before, n, i), tolerance)) return false;
    }
    return true;
}
