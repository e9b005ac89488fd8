/* Views, the copies made where there is no view, and joining.
 *
 * A view shows its input's memory with other sizes and strides, so its forward only computes those. Gradients are
 * always dense: backward views the input's gradient with the same other strides and copies dy into it, unless the order
 * of elements is the same. */
#include "core/status.h"
#include "nn/ops.h"

/* ---- common ---- */

static void copy_view(struct cairn__tape *tape, struct cairn__view dst, struct cairn__view x) {
    cairn__math_of(tape)->map(tape->env->device, CAIRN__MAP_COPY, &dst, &x, NULL);
}

/* An f64 zero is filled as a pair of f32 zeros. */
static void set_zero(struct cairn__tape *tape, cairn_dtype dtype, void *dst, size_t n) {
    const bool is_wide = dtype == CAIRN_F64;
    cairn__passes_of(tape)->fill(tape->env->device, is_wide ? CAIRN_F32 : dtype, dst, is_wide ? 2 * n : n, 0.0f);
}

/* Makes the result, whose ndim, shape and stride are set, show the first input's memory from element `offset` on. */
static void show(const struct cairn__node *node, int64_t offset) {
    const cairn_tensor *x = node->inputs[0];
    cairn_tensor *y = node->result;
    const size_t nbytes = cairn_dtype_nbytes(y->dtype);
    cairn__tensor_take_strides(y);
    y->data = cairn__tensor_data(x);
    if (y->n > 0) y->data = (char *)y->data + (size_t)offset * nbytes;
}

/* ---- reshape ---- */

static cairn_status hand_on_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return cairn__tensor_grad_pass_on(tape, node->inputs[0], node, dy);
}

struct shape {
    int ndim;
    int64_t size[CAIRN_MAX_DIMS];
};

/* *n: the product of want's sizes except -1, whose index is *free_dim (-1: there is none). */
static cairn_status count_sizes(const struct shape *want, int *free_dim, size_t *n) {
    *free_dim = -1;
    *n = 1;
    for (int d = 0; d < want->ndim; d++) {
        if (want->size[d] == -1) {
            REQUIRE(*free_dim < 0, CAIRN_EINVAL, "reshape: dimensions %d and %d are both -1; only one may be",
                    *free_dim, d);
            *free_dim = d;
            continue;
        }
        REQUIRE(want->size[d] >= 0, CAIRN_EINVAL, "reshape: size %lld in dimension %d", (long long)want->size[d], d);
        REQUIRE(want->size[d] == 0 || *n <= (size_t)INT64_MAX / (size_t)want->size[d], CAIRN_EINVAL,
                "reshape: size %lld in dimension %d", (long long)want->size[d], d);
        *n *= (size_t)want->size[d];
    }
    return CAIRN_OK;
}

/* Replaces -1 in want; the sizes must hold as many elements as x. */
static cairn_status fit_shape(const cairn_tensor *x, struct shape *want) {
    char from[CAIRN__SHAPE_TEXT], to[CAIRN__SHAPE_TEXT];
    int free_dim = -1;
    size_t n = 0;
    cairn_status st = CAIRN_OK;
    TRY(count_sizes(want, &free_dim, &n));
    cairn__sizes_text(want->ndim, want->size, to);
    if (free_dim >= 0) {
        REQUIRE(n > 0 && x->n % n == 0, CAIRN_EINVAL, "reshape: %s to %s: %zu elements leave no size for -1",
                cairn__shape_text(x, from), to, x->n);
        want->size[free_dim] = (int64_t)(x->n / n);
        n = x->n;
    }
    REQUIRE(n == x->n, CAIRN_EINVAL, "reshape: %s to %s: %zu elements are not %zu", cairn__shape_text(x, from), to,
            x->n, n);
    TRY(cairn__check_shape("reshape", want->ndim, want->size));
out:
    return st;
}

/* Finds strides that show x with the sizes of `to`, which hold as many elements; false if there are none. From the last
 * dimension of x backwards, neighbouring dimensions are merged into a run while each continues where the next one ends.
 * A run has one stride, and a group of sizes of `to` must fill it exactly. */
static bool view_strides(const cairn_tensor *x, const struct shape *to, int64_t *stride) {
    int d = to->ndim - 1;
    int64_t base = x->ndim > 0 ? x->stride[x->ndim - 1] : 1, run = 1;
    if (x->n == 0 || x->ndim == 0) { /* dense ones */
        for (int64_t next = 1; d >= 0; d--) {
            stride[d] = next;
            next *= to->size[d] > 0 ? to->size[d] : 1;
        }
        return true;
    }
    for (int from = x->ndim - 1; from >= 0; from--) {
        run *= x->shape[from];
        if (from > 0 && (x->shape[from - 1] == 1 || x->stride[from - 1] == run * base)) continue;
        int64_t filled = 1;
        for (; d >= 0 && (filled < run || to->size[d] == 1); d--) {
            stride[d] = filled * base;
            filled *= to->size[d];
        }
        if (filled != run) return false;
        if (from > 0) base = x->stride[from - 1];
        run = 1;
    }
    return true;
}

static cairn_status reshape_infer(const struct cairn__node *node) {
    struct shape want = *(const struct shape *)node->attrs;
    cairn_tensor *y = node->result;
    cairn_status st = CAIRN_OK;
    TRY(fit_shape(node->inputs[0], &want));
    REQUIRE(view_strides(node->inputs[0], &want, y->stride), CAIRN_EINTERNAL, "reshape: there is no such view");
    y->ndim = want.ndim;
    memcpy(y->shape, want.size, sizeof(y->shape));
    show(node, 0);
out:
    return st;
}

static const struct cairn__op_row reshape_row = {
    .strided = true, .view = true, .infer = reshape_infer, .backward = hand_on_backward, .hands_on = true};

static cairn_tensor *reshape(cairn_tensor *x, const struct shape *want) {
    struct shape fitted = *want;
    int64_t stride[CAIRN_MAX_DIMS];
    const cairn_env *env = x ? x->env : NULL;
    const size_t mark = cairn__inside_begin(env);
    /* Sizes that do not fit are left to infer, because cairn__apply first reports what is wrong with x itself. */
    if (x && !x->is_dense && fit_shape(x, &fitted) == CAIRN_OK && !view_strides(x, &fitted, stride))
        x = cairn_contiguous(x);
    x = cairn__apply(CAIRN__OP_RESHAPE, &reshape_row, CAIRN__INPUTS(x), want, sizeof(*want));
    return cairn__inside_end(env, mark, x);
}

/* Returns false on error, with the last error set. */
static bool make_shape(const char *what, int ndim, const int64_t *size, struct shape *out) {
    *out = (struct shape){.ndim = ndim};
    if (ndim > 0 && ndim <= CAIRN_MAX_DIMS && !size) {
        cairn__fail(CAIRN_EINVAL, "%s: shape is NULL", what);
        return false;
    }
    if (ndim < 0 || ndim > CAIRN_MAX_DIMS) {
        cairn__fail(CAIRN_EINVAL, "%s: %d dimensions; 0 to %d are allowed", what, ndim, CAIRN_MAX_DIMS);
        return false;
    }
    for (int d = 0; d < ndim; d++) out->size[d] = size[d];
    return true;
}

cairn_tensor *cairn_reshape(cairn_tensor *x, int ndim, const int64_t *shape) {
    struct shape want = {0};
    if (x && !make_shape("reshape", ndim, shape, &want)) return NULL;
    return reshape(x, &want);
}

/* *out: x's sizes; *dim: counted from the front of `dims` dimensions. Returns false on error, with the last error
 * set. */
static bool shape_around(const char *what, const cairn_tensor *x, int dims, int *dim, struct shape *out) {
    *out = (struct shape){.ndim = x->ndim};
    memcpy(out->size, x->shape, sizeof(out->size));
    if (*dim < -dims || *dim >= dims) {
        cairn__fail(CAIRN_EINVAL, "%s: dimension %d of a tensor with %d dimensions", what, *dim, x->ndim);
        return false;
    }
    if (*dim < 0) *dim += dims;
    return true;
}

/* Replaces count sizes at `at` by one. */
static void replace_sizes(struct shape *s, int at, int count, int64_t size) {
    memmove(s->size + at + 1, s->size + at + count, (size_t)(s->ndim - at - count) * sizeof(s->size[0]));
    s->size[at] = size;
    s->ndim += 1 - count;
}

cairn_tensor *cairn_flatten(cairn_tensor *x, int first_dim, int last_dim) {
    struct shape want = {0};
    if (!x) return reshape(x, &want);
    const int dims = x->ndim > 0 ? x->ndim : 1; /* no dimension becomes one */
    if (!shape_around("flatten", x, dims, &first_dim, &want) || !shape_around("flatten", x, dims, &last_dim, &want))
        return NULL;
    if (first_dim > last_dim) {
        cairn__fail(CAIRN_EINVAL, "flatten: the first dimension, %d, is after the last, %d", first_dim, last_dim);
        return NULL;
    }
    int64_t size = 1;
    for (int d = first_dim; d <= last_dim && d < x->ndim; d++) size *= x->shape[d];
    replace_sizes(&want, first_dim, x->ndim > 0 ? last_dim - first_dim + 1 : 0, size);
    return reshape(x, &want);
}

cairn_tensor *cairn_squeeze(cairn_tensor *x, int dim) {
    struct shape want = {0};
    if (!x) return reshape(x, &want);
    const int dims = x->ndim > 0 ? x->ndim : 1;
    if (!shape_around("squeeze", x, dims, &dim, &want)) return NULL;
    if (x->ndim == 0 || want.size[dim] != 1) return reshape(x, &want);
    memmove(want.size + dim, want.size + dim + 1, (size_t)(want.ndim - dim - 1) * sizeof(want.size[0]));
    want.ndim--;
    return reshape(x, &want);
}

cairn_tensor *cairn_unsqueeze(cairn_tensor *x, int dim) {
    struct shape want = {0};
    if (!x) return reshape(x, &want);
    if (x->ndim == CAIRN_MAX_DIMS) {
        cairn__fail(CAIRN_EINVAL, "unsqueeze: the tensor has %d dimensions, and no more are allowed", x->ndim);
        return NULL;
    }
    if (!shape_around("unsqueeze", x, x->ndim + 1, &dim, &want)) return NULL;
    replace_sizes(&want, dim, 0, 1);
    return reshape(x, &want);
}

/* ---- permute ---- */

struct order {
    const char *name; /* of the public call */
    int ndim;
    int dims[CAIRN_MAX_DIMS];
};

static cairn_status permute_infer(const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    const struct order *order = node->attrs;
    const cairn_tensor *x = node->inputs[0];
    cairn_tensor *y = node->result;
    unsigned seen = 0;
    REQUIRE(order->ndim == x->ndim, CAIRN_EINVAL, "%s: an order of %d dimensions for a tensor with %d", order->name,
            order->ndim, x->ndim);
    for (int d = 0; d < x->ndim; d++) {
        int from = 0;
        TRY(cairn__dim_of(node->op, x->ndim, order->dims[d], &from));
        REQUIRE((seen >> from & 1) == 0, CAIRN_EINVAL, "%s: dimension %d is named twice", order->name, from);
        seen |= 1u << from;
        y->shape[d] = x->shape[from];
        y->stride[d] = x->stride[from];
    }
    y->ndim = x->ndim;
    show(node, 0);
out:
    return st;
}

static cairn_status permute_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const struct order *order = node->attrs;
    cairn_tensor *x = node->inputs[0];
    void *dx = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    const struct cairn__view whole = cairn__tensor_grad_view(x, dx);
    struct cairn__view permuted = whole;
    for (int d = 0; d < x->ndim; d++) {
        const int from = order->dims[d] < 0 ? order->dims[d] + x->ndim : order->dims[d];
        permuted.size[d] = whole.size[from];
        permuted.stride[d] = whole.stride[from];
    }
    copy_view(tape, permuted, cairn__dy_view(node, dy));
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

static const struct cairn__op_row permute_row = {
    .strided = true, .view = true, .needs_math = true, .infer = permute_infer, .backward = permute_backward};

cairn_tensor *cairn_permute(cairn_tensor *x, int ndim, const int *dims) {
    struct order order = {.name = "permute", .ndim = ndim};
    if (x && ndim > 0 && ndim <= CAIRN_MAX_DIMS && !dims) {
        cairn__fail(CAIRN_EINVAL, "permute: dims is NULL");
        return NULL;
    }
    if (x && (ndim < 0 || ndim > CAIRN_MAX_DIMS)) {
        cairn__fail(CAIRN_EINVAL, "permute: an order of %d dimensions for a tensor with %d", ndim, x->ndim);
        return NULL;
    }
    for (int d = 0; x && d < ndim; d++) order.dims[d] = dims[d];
    return cairn__apply(CAIRN__OP_PERMUTE, &permute_row, CAIRN__INPUTS(x), &order, sizeof(order));
}

cairn_tensor *cairn_transpose(cairn_tensor *x, int dim0, int dim1) {
    struct order order = {.name = "transpose"};
    struct shape unused;
    if (x) {
        const int dims = x->ndim > 0 ? x->ndim : 1;
        if (!shape_around("transpose", x, dims, &dim0, &unused) || !shape_around("transpose", x, dims, &dim1, &unused))
            return NULL;
        order.ndim = x->ndim;
        for (int d = 0; d < x->ndim; d++) order.dims[d] = d == dim0 ? dim1 : d == dim1 ? dim0 : d;
    }
    return cairn__apply(CAIRN__OP_PERMUTE, &permute_row, CAIRN__INPUTS(x), &order, sizeof(order));
}

/* ---- slice, select ---- */

struct range {
    int dim;
    int64_t start, end, step;
    bool selects; /* one element, start; the dimension is removed */
};

/* Normalises r: everything counted from the front and clipped to the dimension's size. */
static cairn_status fit_range(const struct cairn__node *node, struct range *r) {
    const cairn_tensor *x = node->inputs[0];
    const char *name = r->selects ? "select" : "slice";
    char shape[CAIRN__SHAPE_TEXT];
    REQUIRE(r->dim >= -x->ndim && r->dim < x->ndim, CAIRN_EINVAL, "%s: dimension %d of a tensor with %d dimensions",
            name, r->dim, x->ndim);
    if (r->dim < 0) r->dim += x->ndim;
    const int64_t size = x->shape[r->dim];
    REQUIRE(!r->selects || (r->start >= -size && r->start < size), CAIRN_EINVAL,
            "select: %s: index %lld in dimension %d of size %lld", cairn__shape_text(x, shape), (long long)r->start,
            r->dim, (long long)size);
    REQUIRE(r->step >= 1, CAIRN_EINVAL, "slice: a step of %lld; it must be positive", (long long)r->step);
    if (r->start < 0) r->start = r->start < -size ? 0 : r->start + size;
    if (r->selects) r->end = r->start + 1;
    if (r->end < 0) r->end = r->end < -size ? 0 : r->end + size;
    if (r->end > size) r->end = size;
    if (r->start > r->end) r->start = r->end;
    return CAIRN_OK;
}

/* The part of whole that a normalised range selects. *offset: that of its first element. */
static struct cairn__view part_of(const struct cairn__view *whole, const struct range *r, int64_t *offset) {
    struct cairn__view part = *whole;
    const int64_t length = r->end - r->start;
    *offset = r->start * whole->stride[r->dim];
    part.size[r->dim] = length / r->step + (length % r->step != 0);
    /* With one element the stride is never used; leaving it unmultiplied cannot overflow. */
    if (part.size[r->dim] > 1) part.stride[r->dim] *= r->step;
    if (r->selects) {
        for (int d = r->dim; d + 1 < whole->ndim; d++) {
            part.size[d] = whole->size[d + 1];
            part.stride[d] = whole->stride[d + 1];
        }
        part.ndim--;
    }
    return part;
}

static struct cairn__view moved(struct cairn__view v, int64_t offset) {
    if (cairn__view_numel(&v) > 0) v.data = (char *)v.data + (size_t)offset * cairn_dtype_nbytes(v.dtype);
    return v;
}

static cairn_status slice_infer(const struct cairn__node *node) {
    struct range r = *(const struct range *)node->attrs;
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]);
    int64_t offset = 0;
    cairn_status st = CAIRN_OK;
    TRY(fit_range(node, &r));
    const struct cairn__view part = part_of(&x, &r, &offset);
    node->result->ndim = part.ndim;
    memcpy(node->result->shape, part.size, sizeof(part.size));
    memcpy(node->result->stride, part.stride, sizeof(part.stride));
    show(node, offset);
out:
    return st;
}

/* Of the parts of a split, the first one walked writes the whole gradient; the others add to their parts of it. */
static cairn_status slice_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    static const double sum[CAIRN__MAP_NUMBERS] = {1};
    struct range r = *(const struct range *)node->attrs;
    cairn_tensor *x = node->inputs[0];
    int64_t offset = 0;
    cairn_status st = CAIRN_OK;
    TRY(fit_range(node, &r));
    void *so_far = cairn__tensor_grad_so_far(tape, x), *dx = so_far;
    if (!so_far) TRY(cairn__tensor_grad_begin(tape, x, &dx));
    const struct cairn__view whole = cairn__tensor_grad_view(x, dx);
    struct cairn__view part = part_of(&whole, &r, &offset);
    part = moved(part, offset);
    const struct cairn__view given[] = {part, cairn__dy_view(node, dy)};
    if (so_far) {
        cairn__math_of(tape)->map(tape->env->device, CAIRN__MAP_ADD, &part, given, sum);
        return CAIRN_OK;
    }
    if (node->result->n < x->n) set_zero(tape, whole.dtype, dx, x->n);
    copy_view(tape, part, given[1]);
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

static const struct cairn__op_row slice_row = {
    .strided = true, .view = true, .needs_math = true, .infer = slice_infer, .backward = slice_backward};

cairn_tensor *cairn_slice(cairn_tensor *x, int dim, int64_t start, int64_t end, int64_t step) {
    const struct range r = {.dim = dim, .start = start, .end = end, .step = step};
    return cairn__apply(CAIRN__OP_SLICE, &slice_row, CAIRN__INPUTS(x), &r, sizeof(r));
}

cairn_tensor *cairn_select(cairn_tensor *x, int dim, int64_t index) {
    const struct range r = {.dim = dim, .start = index, .step = 1, .selects = true};
    return cairn__apply(CAIRN__OP_SLICE, &slice_row, CAIRN__INPUTS(x), &r, sizeof(r));
}

/* ---- expand ---- */

static cairn_status expand_infer(const struct cairn__node *node) {
    const struct shape *want = node->attrs;
    const cairn_tensor *x = node->inputs[0];
    cairn_tensor *y = node->result;
    const int more = want->ndim - x->ndim;
    char from[CAIRN__SHAPE_TEXT], to[CAIRN__SHAPE_TEXT];
    cairn__shape_text(x, from);
    cairn__sizes_text(want->ndim, want->size, to);
    REQUIRE(more >= 0, CAIRN_EINVAL, "expand: %s to %s: dimensions can only be added", from, to);
    for (int d = 0; d < want->ndim; d++) {
        const int64_t own = d < more ? 1 : x->shape[d - more];
        REQUIRE(d >= more || want->size[d] != -1, CAIRN_EINVAL,
                "expand: %s to %s: -1 keeps a size, and the new dimension %d has none to keep", from, to, d);
        const int64_t size = want->size[d] == -1 && d >= more ? own : want->size[d];
        REQUIRE(size >= 0 && (size == own || own == 1), CAIRN_EINVAL,
                "expand: %s to %s: size %lld in dimension %d becomes %lld, but only 1 can be repeated", from, to,
                (long long)own, d, (long long)want->size[d]);
        y->shape[d] = size;
        y->stride[d] = d >= more && size == own ? x->stride[d - more] : 0;
    }
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_shape("expand", want->ndim, y->shape));
    y->ndim = want->ndim;
    show(node, 0);
out:
    return st;
}

static cairn_status expand_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[0];
    const cairn_tensor *y = node->result;
    void *dx = NULL;
    if (x->n == y->n) return cairn__tensor_grad_pass_on(tape, x, node, dy);
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    const struct cairn__view own = cairn__tensor_grad_view(x, dx), all = cairn__dy_view(node, dy);
    const struct cairn__view sums = cairn__view_broadcast(&own, y->ndim, y->shape);
    if (y->n == 0) {
        set_zero(tape, own.dtype, dx, x->n);
    } else {
        cairn__math_of(tape)->fold(tape->env->device, CAIRN__FOLD_SUM, &sums, &all, 1.0, false);
    }
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

static const struct cairn__op_row expand_row = {
    .strided = true, .view = true, .needs_math = true, .infer = expand_infer, .backward = expand_backward};

cairn_tensor *cairn_expand(cairn_tensor *x, int ndim, const int64_t *shape) {
    struct shape want = {0};
    if (x && !make_shape("expand", ndim, shape, &want)) return NULL;
    return cairn__apply(CAIRN__OP_EXPAND, &expand_row, CAIRN__INPUTS(x), &want, sizeof(want));
}

/* ---- cat, stack ---- */

/* Float types are equal by now; others are checked here. */
static cairn_status check_types(const struct cairn__node *node) {
    for (int i = 1; i < node->count; i++) {
        REQUIRE(cairn__tensor_dtype(node->inputs[i]) == cairn__tensor_dtype(node->inputs[0]), CAIRN_EINVAL,
                "%s: input 0 is %s but input %d is %s; cast one of them", cairn__op_name(node->op),
                cairn_dtype_name(cairn__tensor_dtype(node->inputs[0])), i,
                cairn_dtype_name(cairn__tensor_dtype(node->inputs[i])));
    }
    return CAIRN_OK;
}

static cairn_status cat_infer(const struct cairn__node *node) {
    const cairn_tensor *first = node->inputs[0];
    cairn_tensor *y = node->result;
    char a[CAIRN__SHAPE_TEXT], b[CAIRN__SHAPE_TEXT];
    int dim = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_types(node));
    TRY(cairn__dim_of(node->op, first->ndim, *(const int *)node->attrs, &dim));
    y->ndim = first->ndim;
    memcpy(y->shape, first->shape, sizeof(y->shape));
    for (int i = 1; i < node->count; i++) {
        const cairn_tensor *x = node->inputs[i];
        REQUIRE(x->ndim == first->ndim, CAIRN_EINVAL, "cat: %s and %s differ in their number of dimensions",
                cairn__shape_text(first, a), cairn__shape_text(x, b));
        for (int d = 0; d < x->ndim; d++) {
            REQUIRE(d == dim || x->shape[d] == first->shape[d], CAIRN_EINVAL,
                    "cat: %s and %s along dimension %d: sizes %lld and %lld differ in dimension %d",
                    cairn__shape_text(first, a), cairn__shape_text(x, b), dim, (long long)first->shape[d],
                    (long long)x->shape[d], d);
        }
        REQUIRE(x->shape[dim] <= INT64_MAX - y->shape[dim], CAIRN_EINVAL,
                "cat: the sizes add up to more than can be counted");
        y->shape[dim] += x->shape[dim];
    }
    TRY(cairn__check_shape("cat", y->ndim, y->shape));
out:
    return st;
}

static cairn_status stack_infer(const struct cairn__node *node) {
    const cairn_tensor *first = node->inputs[0];
    cairn_tensor *y = node->result;
    char a[CAIRN__SHAPE_TEXT], b[CAIRN__SHAPE_TEXT];
    struct shape shape = {.ndim = first->ndim};
    int dim = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_types(node));
    REQUIRE(first->ndim < CAIRN_MAX_DIMS, CAIRN_EINVAL,
            "stack: the tensors have %d dimensions, and no more are allowed", first->ndim);
    TRY(cairn__dim_of(node->op, first->ndim + 1, *(const int *)node->attrs, &dim));
    for (int i = 1; i < node->count; i++) {
        REQUIRE(cairn__same_shape(node->inputs[i], first), CAIRN_EINVAL, "stack: shapes %s and %s differ",
                cairn__shape_text(first, a), cairn__shape_text(node->inputs[i], b));
    }
    memcpy(shape.size, first->shape, sizeof(shape.size));
    replace_sizes(&shape, dim, 0, node->count);
    y->ndim = shape.ndim;
    memcpy(y->shape, shape.size, sizeof(y->shape));
    TRY(cairn__check_shape("stack", y->ndim, y->shape));
out:
    return st;
}

/* The part of whole, a dense view of the result's shape, that input i occupies. *start: its index along the dimension;
 * advanced to the next input's. */
static struct cairn__view place_of(const struct cairn__node *node, const struct cairn__view *whole, int i,
                                   int64_t *start) {
    const int given = *(const int *)node->attrs, dim = given < 0 ? given + node->result->ndim : given;
    const bool stacks = node->op == CAIRN__OP_STACK;
    const int64_t length = stacks ? 1 : node->inputs[i]->shape[dim];
    const struct range r = {.dim = dim, .start = *start, .end = *start + length, .step = 1, .selects = stacks};
    int64_t offset = 0;
    const struct cairn__view part = part_of(whole, &r, &offset);
    *start += length;
    return moved(part, offset);
}

static cairn_status join_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct cairn__view whole = cairn__tensor_view(node->result);
    int64_t start = 0;
    for (int i = 0; i < node->count; i++) {
        const struct cairn__view place = place_of(node, &whole, i, &start);
        copy_view(tape, place, cairn__tensor_view(node->inputs[i]));
    }
    return CAIRN_OK;
}

/* Parameters come first. */
static cairn_status join_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const struct cairn__view whole = cairn__dy_view(node, dy);
    cairn_status st = CAIRN_OK;
    for (int others = 0; others < 2; others++) {
        int64_t start = 0;
        for (int i = 0; i < node->count; i++) {
            cairn_tensor *x = node->inputs[i];
            const struct cairn__view place = place_of(node, &whole, i, &start);
            void *dx = NULL;
            if (!cairn__wants_grad(x) || (x->param == NULL) != (others == 1)) continue;
            TRY(cairn__tensor_grad_begin(tape, x, &dx));
            copy_view(tape, cairn__tensor_grad_view(x, dx), place);
            TRY(cairn__tensor_grad_end(tape, x, dx));
        }
    }
out:
    return st;
}

static const struct cairn__op_row cat_row = {.promotes = true,
                                             .strided = true,
                                             .needs_math = true,
                                             .infer = cat_infer,
                                             .forward = join_forward,
                                             .backward = join_backward,
                                             .reads = cairn__reads_nothing};

static const struct cairn__op_row stack_row = {.promotes = true,
                                               .strided = true,
                                               .needs_math = true,
                                               .infer = stack_infer,
                                               .forward = join_forward,
                                               .backward = join_backward,
                                               .reads = cairn__reads_nothing};

static cairn_tensor *join(enum cairn__op op, const struct cairn__op_row *row, int count, cairn_tensor *const *tensors,
                          int dim) {
    if (count < 1 || !tensors) {
        cairn__fail(CAIRN_EINVAL, "%s: %d tensors; there must be at least one", cairn__op_name(op), count);
        return NULL;
    }
    return cairn__apply(op, row, count, tensors, &dim, sizeof(dim));
}

cairn_tensor *cairn_cat(int count, cairn_tensor *const *tensors, int dim) {
    return join(CAIRN__OP_CAT, &cat_row, count, tensors, dim);
}

cairn_tensor *cairn_stack(int count, cairn_tensor *const *tensors, int dim) {
    return join(CAIRN__OP_STACK, &stack_row, count, tensors, dim);
}

/* ---- split ---- */

cairn_status cairn_split(cairn_tensor *x, int64_t size, int dim, cairn_tensor **parts, int count) {
    if (!x && cairn__last_status() != CAIRN_OK) return cairn__last_status();
    REQUIRE(x && parts, CAIRN_EINVAL, "split: tensor and parts must be set");
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_check(x, "split"));
    REQUIRE(dim >= -x->ndim && dim < x->ndim, CAIRN_EINVAL, "split: dimension %d of a tensor with %d dimensions", dim,
            x->ndim);
    if (dim < 0) dim += x->ndim;
    const int64_t whole = x->shape[dim];
    REQUIRE(size >= 1, CAIRN_EINVAL, "split: parts of size %lld; it must be positive", (long long)size);
    const int64_t needed = whole == 0 ? 1 : whole / size + (whole % size != 0);
    REQUIRE(count == needed, CAIRN_EINVAL, "split: size %lld in parts of %lld gives %lld parts, not %d",
            (long long)whole, (long long)size, (long long)needed, count);
    for (int i = 0; i < count; i++) {
        const int64_t start = i * size, left = whole - start;
        parts[i] = cairn_slice(x, dim, start, left < size ? whole : start + size, 1);
        if (!parts[i]) return cairn__last_status();
    }
out:
    return st;
}
