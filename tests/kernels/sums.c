/* Error of long sums against the same sums in f64: within 4e-7 of the sum of absolute values, for data whose roundings
 * all go one way (constants, two of which are the worst for 16 terms), uniform and normal data, and data of both signs
 * that nearly cancels. */
#include "kcheck.h"

#include <math.h>
#include <stdlib.h>

static const double TOLERANCE = 4e-7;

enum data { TENTH, WORST_UP, WORST_DOWN, UNIFORM, NORMAL, MIXED, NUM_DATA };
static const char *const names[] = {"0.1", "1.0000004", "1.9999989", "uniform", "normal", "mixed-sign"};

static float term_of(enum data data, uint64_t seed, uint64_t i) {
    const uint64_t r = random_bits(seed, i);
    const double u = ((double)(r >> 40) + 0.5) * 0x1p-24, v = (double)(r & 0xffffff) * 0x1p-24;
    switch (data) {
    case TENTH:
        return 0.1f;
    case WORST_UP:
        return 0x1.000006p+0f;
    case WORST_DOWN:
        return 0x1.ffffeep+0f;
    case UNIFORM:
        return (float)u;
    case NORMAL:
        return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    default:
        return (float)(i % 2 ? -1000 * u : 1000 * v);
    }
}

/* Terms x and y, in a type, and what they are in f32. */
struct terms {
    cairn_dtype type;
    enum data data;
    size_t n;
    float *x, *y;
    void *x_of_type, *y_of_type;
};

static void *room(size_t nbytes) {
    void *p = malloc(nbytes);
    if (!p) abort();
    return p;
}

static void *narrowed(cairn_dtype type, float *x, size_t n) {
    const struct cairn__kernels *k = cairn__kernels_cpu(cairn__cpu_features());
    if (type == CAIRN_F32) return x;
    void *half = room(n * cairn_dtype_nbytes(type));
    k->cast[CAIRN_F32][type](half, x, n);
    k->cast[type][CAIRN_F32](x, half, n);
    return half;
}

static struct terms make_terms(cairn_dtype type, enum data data, size_t n, uint64_t seed) {
    struct terms t = {type, data, n, room(n * sizeof(float)), room(n * sizeof(float)), NULL, NULL};
    for (size_t i = 0; i < n; i++) t.x[i] = term_of(data, seed, i);
    for (size_t i = 0; i < n; i++) t.y[i] = data <= WORST_DOWN ? -0.25f : term_of(data, seed + 1, i);
    t.x_of_type = narrowed(type, t.x, n);
    t.y_of_type = narrowed(type, t.y, n);
    return t;
}

static void drop_terms(struct terms *t) {
    if (t->x_of_type != t->x) free(t->x_of_type), free(t->y_of_type);
    free(t->x), free(t->y);
}

/* Sums in extended precision: of f(x, y) and of its absolute value. */
struct exact {
    double sum, absolute;
};
typedef double (*term_fn)(double x, double y, double p);

static struct exact exact_of(const struct terms *t, size_t first, size_t step, term_fn f, double p) {
    long double sum = 0, absolute = 0;
    for (size_t i = first; i < t->n; i += step) {
        const double term = f((double)t->x[i], (double)t->y[i], p);
        sum += term;
        absolute += fabs(term);
    }
    return (struct exact){(double)sum, (double)absolute};
}

static double x_alone(double x, double y, double p) {
    (void)y;
    return x - p;
}
static double y_alone(double x, double y, double p) {
    (void)x;
    return y - p;
}
static double magnitude(double x, double y, double p) {
    (void)y, (void)p;
    return fabs(x);
}
static double square(double x, double y, double p) {
    (void)y;
    return (x - p) * (x - p);
}
static double squared_difference(double x, double y, double p) {
    (void)p;
    return (x - y) * (x - y);
}
static double product(double x, double y, double p) {
    return y * (x - p);
}

static bool is_close(const struct cairn__kernel_row *row, const struct terms *t, const char *what, double got,
                     struct exact want, double more) {
    const double error = fabs((double)(float)got - want.sum);
    if (error <= TOLERANCE * want.absolute + more) return true;
    complain("%s: %s of %zu terms, %s, is %.9g, want %.9g: %.2e of the sum of absolute values", row->name, what, t->n,
             names[t->data], got, want.sum, error / want.absolute);
    return false;
}

/* ---- one kernel each ---- */

static bool folds_are_close(const struct cairn__kernel_row *row, const struct terms *t) {
    static const term_fn terms[] = {
        [CAIRN__FOLD_SUM] = x_alone, [CAIRN__FOLD_SUM_SQUARES] = square, [CAIRN__FOLD_SUM_ABS] = magnitude};
    const double p0 = row->a == CAIRN__FOLD_SUM_SQUARES ? 0.5 : 0;
    if (row->a > CAIRN__FOLD_SUM_ABS || row->b == CAIRN_F64) return true;
    return is_close(row, t, "fold", (*(cairn__fold_kernel)row->fn)(t->x, t->n, p0),
                    exact_of(t, 0, 1, terms[row->a], p0), 0);
}

enum { COLS = 3 };

static bool columns_are_close(const struct cairn__kernel_row *row, const struct terms *t) {
    const struct terms whole = {.data = t->data, .n = t->n / COLS * COLS, .x = t->x, .y = t->y};
    float got[COLS];
    (*(cairn__col_sum_fn)row->fn)(got, t->x_of_type, t->n / COLS, COLS);
    for (size_t c = 0; c < COLS; c++) {
        if (!is_close(row, t, "a column", (double)got[c], exact_of(&whole, c, COLS, x_alone, 0), 0)) return false;
    }
    return true;
}

/* As one run, and as planes of 7 x 7. */
static struct cairn__runs runs_of(const struct terms *t, int way) {
    if (way == 0) return (struct cairn__runs){1, t->n, t->n};
    return (struct cairn__runs){t->n / 49, 49, 49};
}

static bool moments_are_close(const struct cairn__kernel_row *row, const struct terms *t) {
    for (int way = 0; way < 2; way++) {
        const struct cairn__runs runs = runs_of(t, way);
        struct terms all = *t;
        all.n = runs.count * runs.n;
        const double n = (double)all.n;
        const struct exact sum = exact_of(&all, 0, 1, x_alone, 0), squares = exact_of(&all, 0, 1, square, sum.sum / n);
        const double least = pow(0x1p-24 * sum.absolute / n, 2);
        double mean, variance;
        (*(cairn__moments_kernel)row->fn)(t->x_of_type, &runs, true, &mean, &variance);
        if (!is_close(row, t, "the mean", mean, (struct exact){sum.sum / n, sum.absolute / n}, 0)) return false;
        if (!is_close(row, t, "the variance", variance, (struct exact){squares.sum / n, squares.absolute / n}, least))
            return false;
        (*(cairn__moments_kernel)row->fn)(t->x_of_type, &runs, false, &mean, &variance);
        const struct exact power = exact_of(&all, 0, 1, square, 0);
        if (!is_close(row, t, "the power", variance, (struct exact){power.sum / n, power.absolute / n}, 0))
            return false;
    }
    return true;
}

static bool runs_sums_are_close(const struct cairn__kernel_row *row, const struct terms *t) {
    for (int way = 0; way < 2; way++) {
        const struct cairn__runs runs = runs_of(t, way);
        struct terms all = *t;
        double sums[2];
        all.n = runs.count * runs.n;
        (*(cairn__norm_runs_sums_kernel)row->fn)(t->y_of_type, t->x_of_type, &runs, 0.5, sums);
        if (!is_close(row, t, "sum(dy)", sums[0], exact_of(&all, 0, 1, y_alone, 0), 0)) return false;
        if (!is_close(row, t, "sum(dy (x - mean))", sums[1], exact_of(&all, 0, 1, product, 0.5), 0)) return false;
    }
    return true;
}

/* dx of the first element, where the row's sums over n are as great as what they are taken from. */
static bool row_gradient_is_close(const struct cairn__kernel_row *row, const struct terms *t) {
    static const float mean[] = {0}, rstd[] = {1};
    const double n = (double)t->n;
    float *dx = room(t->n * sizeof(float));
    const struct cairn__norm_rows o = {
        .dy = t->y_of_type, .x = t->x_of_type, .dx = dx, .rows = 1, .n = t->n, .mean = mean, .rstd = rstd};
    (*(cairn__norm_rows_backward_kernel)row->fn)(&o);
    const struct exact g = exact_of(t, 0, 1, y_alone, 0), gh = exact_of(t, 0, 1, product, 0);
    const double h = (double)t->x[0], dy = (double)t->y[0];
    const struct exact want = {(dy - g.sum / n) - h * (gh.sum / n),
                               fabs(dy) + g.absolute / n + fabs(h) * gh.absolute / n};
    const bool ok = is_close(row, t, "dx", (double)dx[0], want, 0);
    free(dx);
    return ok;
}

static bool softmax_gradient_is_close(const struct cairn__kernel_row *row, const struct terms *t) {
    float *dx = room(t->n * sizeof(float));
    (*(cairn__softmax_backward_kernel)row->fn)(dx, t->y_of_type, t->x_of_type, t->n);
    const struct exact sum = exact_of(t, 0, 1, product, 0);
    const double y = (double)t->x[0], dy = (double)t->y[0];
    const struct exact want = {y * (dy - sum.sum), fabs(y) * (fabs(dy) + sum.absolute)};
    const bool ok = is_close(row, t, "dx", (double)dx[0], want, 0);
    free(dx);
    return ok;
}

/* A switch of kinds. */
static bool row_is_close(const struct cairn__kernel_row *row, const struct terms *t) {
    switch (row->kind) {
    case CAIRN__K_SUM:
        return is_close(row, t, "sum", (*(cairn__sum_fn)row->fn)(t->x_of_type, t->n), exact_of(t, 0, 1, x_alone, 0), 0);
    case CAIRN__K_MSE_SUM:
        return is_close(row, t, "sum", (*(cairn__mse_sum_fn)row->fn)(t->x_of_type, t->y_of_type, t->n),
                        exact_of(t, 0, 1, squared_difference, 0), 0);
    case CAIRN__K_COL_SUM:
        return columns_are_close(row, t);
    case CAIRN__K_FOLD:
        return folds_are_close(row, t);
    case CAIRN__K_DOT:
        return is_close(row, t, "sum", (*(cairn__dot_kernel)row->fn)(t->x, t->y, t->n), exact_of(t, 0, 1, product, 0),
                        0);
    case CAIRN__K_MOMENTS:
        return moments_are_close(row, t);
    case CAIRN__K_NORM_RUNS_SUMS:
        return runs_sums_are_close(row, t);
    case CAIRN__K_NORM_ROWS_BACKWARD:
        return t->type != CAIRN_F32 || row_gradient_is_close(row, t); /* halves: dx is rounded to them */
    case CAIRN__K_SOFTMAX_BACKWARD:
        return t->type != CAIRN_F32 || softmax_gradient_is_close(row, t);
    default:
        return true;
    }
}

/* ---- the rows ---- */

static bool takes(const struct cairn__kernel_row *row, cairn_dtype type) {
    const int own = row->kind == CAIRN__K_FOLD ? row->b : row->a;
    return own == (int)type && row->kind != CAIRN__K_CAST && !(row->needs & ~cairn__cpu_features());
}

static bool sums_are_close(size_t n, bool chosen_alone, uint64_t seed) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    size_t count;
    const struct cairn__kernel_row *rows = cairn__kernel_rows(&count);
    for (int type = 0; type < 3; type++) {
        for (int data = 0; data < NUM_DATA; data++) {
            struct terms t = make_terms(types[type], (enum data)data, n, seed);
            bool ok = true;
            for (size_t r = 0; ok && r < count; r++) {
                if (!takes(&rows[r], types[type])) continue;
                if (chosen_alone &&
                    cairn__kernel_pick(rows[r].kind, rows[r].a, rows[r].b, cairn__cpu_features()) != &rows[r])
                    continue;
                ok = row_is_close(&rows[r], &t);
            }
            drop_terms(&t);
            if (!ok) return false;
        }
    }
    return true;
}

bool check_sums_at_length(const struct checking *how) {
    return sums_are_close(how->quick ? 20011 : 1000003, false, how->seed);
}

bool check_long_sums(const struct checking *how) {
    return sums_are_close(30000001, true, how->seed);
}
