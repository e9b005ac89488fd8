/* matmul, bmm, addmm, baddbmm:
 *     y = a b                  da = dy b^T           db = a^T dy
 *     y = beta x + alpha a b   da = alpha dy b^T     db = alpha a^T dy     dx = beta dy
 * with gradients summed over repeated dimensions. Everything is a product of views: transposed and repeated operands
 * are read in place, without copies. */
#include "core/status.h"
#include "nn/ops.h"

struct factors {
    double beta, alpha;
};

/* The index of a: addmm and baddbmm have x before the two factors. */
static int left_of(const struct cairn__node *node) {
    return node->count - 2;
}

static bool adds(const struct cairn__node *node) {
    return node->count == 3;
}

/* Whether the factors are vectors and the product is their outer one, as in torch.addr; matmul has the inner one. */
static bool is_outer(const struct cairn__node *node) {
    const int left = left_of(node);
    return adds(node) && node->inputs[left]->ndim == 1 && node->inputs[left + 1]->ndim == 1;
}

/* ---- as matrices ---- */

/* v, of the i-th input's shape, viewed as [..., rows, columns]; a vector is one row or one column. */
static struct cairn__view as_matrix(const struct cairn__node *node, int i, const struct cairn__view *v) {
    struct cairn__view m = {.data = v->data, .dtype = v->dtype, .ndim = 2, .size = {1, 1}};
    if (v->ndim > 1) return *v;
    const int along = (i == left_of(node)) != is_outer(node);
    m.size[along] = v->size[0];
    m.stride[along] = v->stride[0];
    return m;
}

static struct cairn__view matrix_of(const struct cairn__node *node, int i) {
    const struct cairn__view v = cairn__tensor_view(node->inputs[i]);
    return as_matrix(node, i, &v);
}

/* The shape [..., m, n] of the product, including the dimensions of size 1 that vectors add. */
struct shape {
    int ndim;
    int64_t size[CAIRN_MAX_DIMS];
};

static struct shape product_shape(const struct cairn__view *a, const struct cairn__view *b) {
    struct shape s = {.ndim = a->ndim > b->ndim ? a->ndim : b->ndim};
    for (int d = 1; d <= s.ndim; d++) {
        const int64_t in_a = d <= a->ndim ? a->size[a->ndim - d] : 1, in_b = d <= b->ndim ? b->size[b->ndim - d] : 1;
        s.size[s.ndim - d] = in_a == 1 ? in_b : in_a;
    }
    s.size[s.ndim - 2] = a->size[a->ndim - 2];
    s.size[s.ndim - 1] = b->size[b->ndim - 1];
    return s;
}

/* m repeated over the batch of s. */
static struct cairn__view over_batch(const struct cairn__view *m, const struct shape *s) {
    struct shape own = *s;
    own.size[s->ndim - 2] = m->size[m->ndim - 2];
    own.size[s->ndim - 1] = m->size[m->ndim - 1];
    return cairn__view_broadcast(m, own.ndim, own.size);
}

static struct cairn__view transposed(struct cairn__view v) {
    const int i = v.ndim - 2, j = v.ndim - 1;
    const int64_t size = v.size[i], stride = v.stride[i];
    v.size[i] = v.size[j], v.stride[i] = v.stride[j];
    v.size[j] = size, v.stride[j] = stride;
    return v;
}

/* ---- shapes and types ---- */

static cairn_status check_dims(const struct cairn__node *node, const cairn_tensor *a, const cairn_tensor *b) {
    const char *name = cairn__op_name(node->op);
    char x[CAIRN__SHAPE_TEXT], y[CAIRN__SHAPE_TEXT];
    cairn__shape_text(a, x), cairn__shape_text(b, y);
    switch ((int)node->op) {
    case CAIRN__OP_BMM:
    case CAIRN__OP_BADDBMM:
        REQUIRE(a->ndim == 3 && b->ndim == 3, CAIRN_EINVAL, "%s: %s x %s: both must have three dimensions", name, x, y);
        break;
    case CAIRN__OP_ADDMM:
        REQUIRE((a->ndim == 2 && (b->ndim == 2 || b->ndim == 1)) || (a->ndim == 1 && b->ndim == 1), CAIRN_EINVAL,
                "%s: %s x %s; expected two matrices, a matrix and a vector, or two vectors", name, x, y);
        break;
    default:
        REQUIRE(a->ndim > 0 && b->ndim > 0, CAIRN_EINVAL, "%s: %s x %s: both must have at least one dimension", name, x,
                y);
    }
    return CAIRN_OK;
}

static cairn_status check_types(const struct cairn__node *node) {
    const cairn_dtype type = node->result->dtype;
    for (int i = 0; i < node->count; i++) {
        const cairn_dtype own = cairn__tensor_dtype(node->inputs[i]);
        REQUIRE(cairn__is_float(own) && own == type, CAIRN_EINVAL, "%s: input %d is %s; it must be a float type",
                cairn__op_name(node->op), i, cairn_dtype_name(own));
    }
    return CAIRN_OK;
}

static cairn_status check_sizes(const struct cairn__node *node, const cairn_tensor *a, const cairn_tensor *b,
                                const struct cairn__view *ma, const struct cairn__view *mb) {
    const char *name = cairn__op_name(node->op);
    char x[CAIRN__SHAPE_TEXT], y[CAIRN__SHAPE_TEXT];
    const int64_t ka = ma->size[ma->ndim - 1], kb = mb->size[mb->ndim - 2];
    cairn__shape_text(a, x), cairn__shape_text(b, y);
    REQUIRE(ka == kb, CAIRN_EINVAL, "%s: %s x %s: inner sizes %lld and %lld differ", name, x, y, (long long)ka,
            (long long)kb);
    const bool broadcasts = node->op == CAIRN__OP_MATMUL;
    for (int d = 3; d <= ma->ndim && d <= mb->ndim; d++) {
        const int64_t in_a = ma->size[ma->ndim - d], in_b = mb->size[mb->ndim - d];
        REQUIRE(in_a == in_b || (broadcasts && (in_a == 1 || in_b == 1)), CAIRN_EINVAL,
                "%s: %s x %s: batch sizes %lld and %lld in dimension %d differ", name, x, y, (long long)in_a,
                (long long)in_b, -d);
    }
    return CAIRN_OK;
}

/* The result's shape is that of the product without the dimensions that vectors lack. */
static cairn_status set_shape(const struct cairn__node *node, const struct shape *s) {
    const cairn_tensor *a = node->inputs[left_of(node)], *b = node->inputs[left_of(node) + 1];
    char x[CAIRN__SHAPE_TEXT], z[CAIRN__SHAPE_TEXT];
    cairn_tensor *y = node->result;
    size_t n = 1;
    y->ndim = 0;
    for (int d = 0; d < s->ndim; d++) {
        const bool is_missing =
            !is_outer(node) && ((d == s->ndim - 2 && a->ndim == 1) || (d == s->ndim - 1 && b->ndim == 1));
        if (!is_missing) y->shape[y->ndim++] = s->size[d];
        REQUIRE(s->size[d] == 0 || n <= (size_t)INT64_MAX / 16 / (size_t)s->size[d], CAIRN_EINVAL,
                "%s: %s x %s: the result would have more elements than can be counted", cairn__op_name(node->op),
                cairn__shape_text(a, x), cairn__shape_text(b, z));
        n *= (size_t)s->size[d];
    }
    return CAIRN_OK;
}

static cairn_status check_added(const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[0], *y = node->result;
    char text_x[CAIRN__SHAPE_TEXT], text_y[CAIRN__SHAPE_TEXT];
    bool fits = x->ndim <= y->ndim;
    for (int d = 1; fits && d <= x->ndim; d++) {
        fits = x->shape[x->ndim - d] == 1 || x->shape[x->ndim - d] == y->shape[y->ndim - d];
    }
    REQUIRE(fits, CAIRN_EINVAL, "%s: %s does not broadcast to %s, the shape of the product", cairn__op_name(node->op),
            cairn__shape_text(x, text_x), cairn__shape_text(y, text_y));
    return CAIRN_OK;
}

static cairn_status infer(const struct cairn__node *node) {
    const int left = left_of(node);
    const cairn_tensor *a = node->inputs[left], *b = node->inputs[left + 1];
    cairn_status st = CAIRN_OK;
    TRY(check_dims(node, a, b));
    TRY(check_types(node));
    const struct cairn__view ma = matrix_of(node, left), mb = matrix_of(node, left + 1);
    TRY(check_sizes(node, a, b, &ma, &mb));
    const struct shape s = product_shape(&ma, &mb);
    TRY(set_shape(node, &s));
    if (adds(node)) TRY(check_added(node));
out:
    return st;
}

/* ---- forward ---- */

static void multiply(struct cairn__tape *tape, const struct cairn__node *node, void *out, cairn_dtype type) {
    const struct cairn__view a = matrix_of(node, left_of(node)), b = matrix_of(node, left_of(node) + 1);
    const struct shape s = product_shape(&a, &b);
    const struct cairn__view c = cairn__view_dense(out, type, s.ndim, s.size);
    const struct cairn__view over_a = over_batch(&a, &s), over_b = over_batch(&b, &s);
    cairn__math_of(tape)->product(tape->env->device, &c, &over_a, &over_b);
}

static cairn_status matmul_forward(struct cairn__tape *tape, struct cairn__node *node) {
    multiply(tape, node, node->result->data, node->result->dtype);
    return CAIRN_OK;
}

/* dst = p0 * x */
static void scale(struct cairn__tape *tape, const struct cairn__view *dst, const struct cairn__view *x, double p0) {
    const double numbers[CAIRN__MAP_NUMBERS] = {p0, 0};
    cairn__math_of(tape)->map(tape->env->device, CAIRN__MAP_AFFINE, dst, x, numbers);
}

/* *out: memory for n elements of type R: dst itself if it has that type, else scratch. */
static cairn_status room_of(struct cairn__tape *tape, cairn_dtype dtype, void *dst, size_t n, void **out) {
    const cairn_dtype r = cairn__arithmetic_type(dtype);
    *out = dst;
    return dtype == r ? CAIRN_OK : cairn__scratch(tape, n * cairn_dtype_nbytes(r), out);
}

/* Computes in R and rounds once. With beta = 0, x is not read. */
static cairn_status addmm_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct factors *f = node->attrs;
    const cairn_tensor *y = node->result;
    const cairn_dtype r = cairn__arithmetic_type(y->dtype);
    const struct cairn__view to = cairn__tensor_view(y), own = cairn__tensor_view(node->inputs[0]);
    struct cairn__view operands[2] = {cairn__view_broadcast(&own, y->ndim, y->shape)};
    const double alpha[CAIRN__MAP_NUMBERS] = {f->alpha, 0};
    cairn_status st = CAIRN_OK;
    void *product = NULL, *scaled = NULL;
    TRY(room_of(tape, y->dtype, y->data, y->n, &product));
    multiply(tape, node, product, r);
    operands[1] = cairn__view_dense(product, r, y->ndim, y->shape);
    if (f->beta == 0) {
        scale(tape, &to, &operands[1], f->alpha);
        return CAIRN_OK;
    }
    if (f->beta != 1) {
        TRY(cairn__scratch(tape, y->n * cairn_dtype_nbytes(r), &scaled));
        const struct cairn__view wide = cairn__view_dense(scaled, r, y->ndim, y->shape);
        scale(tape, &wide, &operands[0], f->beta);
        operands[0] = wide;
    }
    cairn__math_of(tape)->map(tape->env->device, CAIRN__MAP_ADD, &to, operands, alpha);
out:
    return st;
}

/* ---- backward ---- */

/* Writes the i-th input's gradient to dx: c = a b, with both factors broadcast over the batch. */
static cairn_status product_into(struct cairn__tape *tape, const struct cairn__node *node, int i, void *dx,
                                 const struct cairn__view *a, const struct cairn__view *b, const struct shape *s) {
    cairn_status st = CAIRN_OK;
    const double alpha = adds(node) ? ((const struct factors *)node->attrs)->alpha : 1;
    const cairn_tensor *t = node->inputs[i];
    const struct cairn__view to = cairn__tensor_grad_view(t, dx);
    struct cairn__view made = to;
    if (alpha != 1) {
        TRY(room_of(tape, to.dtype, dx, t->n, &made.data));
        made.dtype = cairn__arithmetic_type(to.dtype);
    }
    const struct cairn__view matrix = as_matrix(node, i, &made), c = over_batch(&matrix, s);
    cairn__math_of(tape)->product(tape->env->device, &c, a, b);
    if (alpha != 1) scale(tape, &to, &made, alpha);
out:
    return st;
}

static cairn_status factor_gradient(struct cairn__tape *tape, const struct cairn__node *node, int i, const void *dy,
                                    void *dx) {
    const int left = left_of(node);
    const struct cairn__view a = matrix_of(node, left), b = matrix_of(node, left + 1);
    const struct shape s = product_shape(&a, &b);
    const struct cairn__view out = cairn__view_dense((void *)(uintptr_t)dy, node->result->dtype, s.ndim, s.size);
    const struct cairn__view a_t = transposed(over_batch(&a, &s)), b_t = transposed(over_batch(&b, &s));
    return i == left ? product_into(tape, node, i, dx, &out, &b_t, &s)
                     : product_into(tape, node, i, dx, &a_t, &out, &s);
}

/* Writes x's gradient: beta dy, summed in R over repeated dimensions. */
static cairn_status added_gradient(struct cairn__tape *tape, const struct cairn__node *node, const void *dy, void *dx) {
    cairn_status st = CAIRN_OK;
    const double beta = ((const struct factors *)node->attrs)->beta;
    const cairn_tensor *x = node->inputs[0], *y = node->result;
    struct cairn__view from = cairn__dy_view(node, dy);
    const struct cairn__view own = cairn__tensor_grad_view(x, dx), to = cairn__view_broadcast(&own, y->ndim, y->shape);
    if (x->n == y->n) {
        scale(tape, &to, &from, beta);
        return CAIRN_OK;
    }
    if (beta != 1) {
        const cairn_dtype r = cairn__arithmetic_type(y->dtype);
        void *scaled = NULL;
        TRY(cairn__scratch(tape, y->n * cairn_dtype_nbytes(r), &scaled));
        const struct cairn__view made = cairn__view_dense(scaled, r, y->ndim, y->shape);
        scale(tape, &made, &from, beta);
        from = made;
    }
    cairn__math_of(tape)->fold(tape->env->device, CAIRN__FOLD_SUM, &to, &from, 1, false);
out:
    return st;
}

static cairn_status gradient(struct cairn__tape *tape, const struct cairn__node *node, int i, const void *dy) {
    cairn_status st = CAIRN_OK;
    void *dx = NULL;
    TRY(cairn__tensor_grad_begin(tape, node->inputs[i], &dx));
    TRY(i < left_of(node) ? added_gradient(tape, node, dy, dx) : factor_gradient(tape, node, i, dy, dx));
    TRY(cairn__tensor_grad_end(tape, node->inputs[i], dx));
out:
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_status st = CAIRN_OK;
    for (int parameters = 1; parameters >= 0; parameters--) {
        for (int i = 0; i < node->count; i++) {
            const cairn_tensor *t = node->inputs[i];
            if (cairn__wants_grad(t) && (t->param != NULL) == (parameters == 1)) TRY(gradient(tape, node, i, dy));
        }
    }
out:
    return st;
}

/* ---- rows ---- */

#define ROW(forward_)                                                                                 \
    {                                                                                                 \
        .promotes = true, .strided = true, .needs_math = true, .infer = infer, .forward = (forward_), \
        .backward = backward, .reads = cairn__reads_inputs                                            \
    }
static const struct cairn__op_row product_row = ROW(matmul_forward);
static const struct cairn__op_row added_row = ROW(addmm_forward);

cairn_tensor *cairn_matmul(cairn_tensor *a, cairn_tensor *b) {
    return cairn__apply(CAIRN__OP_MATMUL, &product_row, CAIRN__INPUTS(a, b), NULL, 0);
}

cairn_tensor *cairn_bmm(cairn_tensor *a, cairn_tensor *b) {
    return cairn__apply(CAIRN__OP_BMM, &product_row, CAIRN__INPUTS(a, b), NULL, 0);
}

cairn_tensor *cairn_addmm(cairn_tensor *x, cairn_tensor *a, cairn_tensor *b, double beta, double alpha) {
    const struct factors f = {beta, alpha};
    return cairn__apply(CAIRN__OP_ADDMM, &added_row, CAIRN__INPUTS(x, a, b), &f, sizeof(f));
}

cairn_tensor *cairn_baddbmm(cairn_tensor *x, cairn_tensor *a, cairn_tensor *b, double beta, double alpha) {
    const struct factors f = {beta, alpha};
    return cairn__apply(CAIRN__OP_BADDBMM, &added_row, CAIRN__INPUTS(x, a, b), &f, sizeof(f));
}
