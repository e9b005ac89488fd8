/* One run of a case: creates the leaves, applies the operation, and runs backward from given output weights. */
#include "case_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "nn/tensor.h"

/* An input, and the position of its elements in its leaf: offset + sum of index * stride. */
struct placed {
    cairn_tensor *leaf;
    int64_t offset, stride[CASE_DIMS];
    bool is_strided;
};

static bool say(char why[CASE_WHY], const char *what) {
    snprintf(why, CASE_WHY, "%s: %s", what, cairn_last_error());
    return false;
}

/* ---- comparing ---- */

struct limit case_limit(const struct op_case *c, cairn_dtype type) {
    static const struct limit limits[CAIRN__DTYPE_END] = {[CAIRN_F32] = {1.3e-6, 1e-5},
                                                          [CAIRN_F16] = {1e-3, 1e-3},
                                                          [CAIRN_BF16] = {1.6e-2, 1.6e-2},
                                                          [CAIRN_F64] = {0, 0}};
    const double more = c->tolerance > 0 ? c->tolerance : 1;
    return (struct limit){limits[type].relative * more, limits[type].absolute * more};
}

bool case_is_near(double got, double want, struct limit limit) {
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) != 0 : got == want;
    return fabs(got - want) <= limit.absolute + limit.relative * fabs(want);
}

/* ---- inputs ---- */

static cairn_tensor *leaf_of(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, const double *values,
                             size_t n) {
    void *data = case_room(n, 8);
    cairn__convert(data, dtype, values, CAIRN_F64, n);
    cairn_tensor *t = cairn_tensor_from(env, dtype, ndim, shape, data);
    cairn__free(data);
    return t;
}

static int64_t at(const struct placed *p, const struct case_array *a, size_t i) {
    int64_t place = p->offset;
    for (int d = a->ndim - 1; d >= 0; d--) {
        place += (int64_t)(i % (size_t)a->shape[d]) * p->stride[d];
        i /= (size_t)a->shape[d];
    }
    return place;
}

/* The leaf has the input's dimensions in reverse order, the last one 2 + twice as long: the input is every second
 * element from index 1 on, transposed. The other elements are NaN (-1) and must not be read. */
static void place_strided(cairn_env *env, const struct case_array *a, struct placed *p) {
    int64_t shape[CASE_DIMS], stride = 1;
    const int last = a->ndim - 1;
    size_t n = 1;
    for (int d = last; d >= 0; d--) {
        shape[d] = d == last ? 2 * a->shape[0] + 2 : a->shape[last - d];
        p->stride[last - d] = d == last ? 2 : stride;
        stride *= shape[d];
        n *= (size_t)shape[d];
    }
    p->offset = 1;
    p->is_strided = true;
    double *values = case_room(n, sizeof(double));
    for (size_t i = 0; i < n; i++) values[i] = a->dtype == CAIRN_I64 || a->dtype == CAIRN_BOOL ? -1 : NAN;
    for (size_t i = 0; i < a->n; i++) values[at(p, a, i)] = a->values[i];
    p->leaf = leaf_of(env, a->dtype, a->ndim, shape, values, n);
    cairn__free(values);
}

static void place_dense(cairn_env *env, const struct case_array *a, struct placed *p) {
    int64_t stride = 1;
    for (int d = a->ndim - 1; d >= 0; d--) {
        p->stride[d] = stride;
        stride *= a->shape[d];
    }
    p->leaf = leaf_of(env, a->dtype, a->ndim, a->shape, a->values, a->n);
}

static cairn_tensor *show(const struct placed *p, const struct case_array *a) {
    int order[CASE_DIMS];
    if (!p->is_strided) return p->leaf;
    for (int d = 0; d < a->ndim; d++) order[d] = a->ndim - 1 - d;
    return cairn_permute(cairn_slice(p->leaf, -1, 1, 1 + 2 * a->shape[0], 2), a->ndim, order);
}

static bool place_inputs(cairn_env *env, const struct op_case *c, const struct case_array *inputs,
                         const struct case_how *how, struct placed *placed, cairn_tensor **in, char why[CASE_WHY]) {
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (!inputs[i].values) continue;
        if (how->layout == STRIDED && inputs[i].ndim > 0) {
            place_strided(env, &inputs[i], &placed[i]);
        } else {
            place_dense(env, &inputs[i], &placed[i]);
        }
        if (!placed[i].leaf) return say(why, "input");
        if (case_wants(c, i) && how->wanted >> i & 1 && cairn_tensor_require_grad(placed[i].leaf) != CAIRN_OK)
            return say(why, "require_grad");
        in[i] = show(&placed[i], &inputs[i]);
        if (!in[i]) return say(why, "view of an input");
    }
    return true;
}

/* ---- results ---- */

static bool read_result(const cairn_tensor *t, struct case_array *a, char why[CASE_WHY]) {
    *a = (struct case_array){.ndim = cairn_tensor_ndim(t), .n = cairn_tensor_numel(t), .dtype = cairn_tensor_dtype(t)};
    a->values = case_room(a->n, sizeof(double));
    if (a->ndim > CASE_DIMS) return say(why, "a result of too many dimensions");
    for (int d = 0; d < a->ndim; d++) a->shape[d] = cairn_tensor_size(t, d);
    return cairn_tensor_read_as(t, CAIRN_F64, a->values, a->n) == CAIRN_OK || say(why, "read");
}

static bool walk_back(cairn_env *env, cairn_tensor *y, struct case_result *out, char why[CASE_WHY]) {
    out->dy = out->y;
    out->dy.values = case_room(out->dy.n, sizeof(double));
    for (size_t i = 0; i < out->dy.n; i++) out->dy.values[i] = case_weight(i);
    cairn_tensor *dy = leaf_of(env, out->dy.dtype, out->dy.ndim, out->dy.shape, out->dy.values, out->dy.n);
    const cairn_status st = cairn_backward_with(y, cairn_backward_options(.grad = dy));
    cairn_tensor_destroy(&dy);
    return st == CAIRN_OK || say(why, "backward");
}

/* The gradient of the visible elements; the others must have none. */
static bool read_gradient(const struct placed *p, const struct case_array *input, struct case_array *grad,
                          char why[CASE_WHY]) {
    const size_t n = cairn_tensor_numel(p->leaf);
    size_t all = 0, shown = 0;
    double *values = case_room(n, sizeof(double));
    *grad = *input;
    grad->values = case_room(input->n, sizeof(double));
    const bool is_read = cairn_tensor_read_grad(p->leaf, values, n) == CAIRN_OK || say(why, "read_grad");
    for (size_t i = 0; i < input->n; i++) {
        grad->values[i] = values[at(p, input, i)];
        shown += grad->values[i] != 0;
    }
    for (size_t i = 0; i < n; i++) all += values[i] != 0;
    cairn__free(values);
    if (all != shown) snprintf(why, CASE_WHY, "a gradient where nothing was shown");
    return is_read && all == shown;
}

static bool run(cairn_env *env, const struct op_case *c, const struct case_array *inputs, const struct case_how *how,
                struct placed *placed, struct case_result *out, char why[CASE_WHY]) {
    cairn_tensor *in[CASE_INPUTS] = {NULL};
    if (!place_inputs(env, c, inputs, how, placed, in, why)) return false;
    env->next_stream = 1000; /* the same random numbers in every run */
    cairn_tensor *y = c->build(in);
    if (!y) return say(why, "forward");
    if (!read_result(y, &out->y, why)) return false;
    if (!y->wants_grad) return true;
    if (!walk_back(env, y, out, why)) return false;
    for (int i = 0; i < CASE_INPUTS; i++) {
        out->has_grad[i] = placed[i].leaf && placed[i].leaf->has_grad;
        if (out->has_grad[i] && !read_gradient(&placed[i], &inputs[i], &out->grads[i], why)) return false;
    }
    return true;
}

bool case_run(cairn_env *env, const struct op_case *c, const struct case_array inputs[CASE_INPUTS],
              const struct case_how *how, struct case_result *out, char why[CASE_WHY]) {
    struct placed placed[CASE_INPUTS] = {{.leaf = NULL}};
    memset(out, 0, sizeof(*out));
    const bool is_run = run(env, c, inputs, how, placed, out, why);
    for (int i = 0; i < CASE_INPUTS; i++) cairn_tensor_destroy(&placed[i].leaf);
    env->begin_step(env);
    return is_run;
}

void case_result_free(struct case_result *result) {
    case_arrays_free(&result->y, 1);
    case_arrays_free(&result->dy, 1);
    case_arrays_free(result->grads, CASE_INPUTS);
}

/* ---- differences ---- */

/* Sum of w * (y(x + h) - y(x - h)): subtracts first, so that unchanged elements cancel exactly. */
static bool moved_loss(cairn_env *env, const struct op_case *c, cairn_tensor **in, cairn_tensor *leaf, double *x,
                       size_t element, size_t n, double step, double *y, size_t outputs, char why[CASE_WHY]) {
    const double kept = x[element];
    x[element] = kept + step;
    cairn_status st = cairn_tensor_write(leaf, x, n);
    x[element] = kept;
    if (st != CAIRN_OK) return say(why, "write");
    env->next_stream = 1000;
    cairn_no_grad_begin(env);
    cairn_tensor *result = c->build(in);
    st = result ? cairn_tensor_read_as(result, CAIRN_F64, y, outputs) : CAIRN_EINVAL;
    if (st != CAIRN_OK) say(why, "forward, moved");
    return cairn_no_grad_end(env) == CAIRN_OK && st == CAIRN_OK;
}

static bool difference(cairn_env *env, const struct op_case *c, cairn_tensor **in, cairn_tensor *leaf,
                       const struct case_array *a, size_t element, size_t outputs, double *quotient,
                       char why[CASE_WHY]) {
    const double x = a->values[element], h = 1e-5 * fmax(1, fabs(x));
    const volatile double above = x + h, below = x - h;
    double *high = case_room(outputs, sizeof(double)), *low = case_room(outputs, sizeof(double));
    long double sum = 0;
    const bool is_made = moved_loss(env, c, in, leaf, a->values, element, a->n, above - x, high, outputs, why) &&
                         moved_loss(env, c, in, leaf, a->values, element, a->n, below - x, low, outputs, why);
    for (size_t i = 0; is_made && i < outputs; i++) sum += (long double)case_weight(i) * (high[i] - low[i]);
    *quotient = (double)(sum / ((long double)above - below));
    cairn__free(high);
    cairn__free(low);
    return is_made;
}

bool case_differences(cairn_env *env, const struct op_case *c, const struct case_array inputs[CASE_INPUTS], int input,
                      const size_t *elements, size_t count, size_t outputs, double *quotients, char why[CASE_WHY]) {
    const struct case_how how = {.type = CAIRN_F64, .layout = DENSE};
    struct placed placed[CASE_INPUTS] = {{.leaf = NULL}};
    cairn_tensor *in[CASE_INPUTS] = {NULL};
    bool is_made = place_inputs(env, c, inputs, &how, placed, in, why);
    for (size_t i = 0; is_made && i < count; i++) {
        is_made = difference(env, c, in, placed[input].leaf, &inputs[input], elements[i], outputs, &quotients[i], why);
    }
    for (int i = 0; i < CASE_INPUTS; i++) cairn_tensor_destroy(&placed[i].leaf);
    env->begin_step(env);
    return is_made;
}
