/* scaled_dot_product_attention: checks, and what forward leaves for backward: the logarithm of each row's sum. */
#include <math.h>

#include "core/options.h"
#include "core/status.h"
#include "nn/ops.h"

enum { Q, K, V, MASK }; /* inputs; the last may be missing */

struct attrs {
    bool causal;
    double dropout, scale; /* scale 0: by the size of q */
    uint64_t stream;       /* of dropout */
};

/* ---- shapes and types ---- */

static cairn_status check_shapes(const cairn_tensor *q, const cairn_tensor *k, const cairn_tensor *v) {
    static const char name[] = "scaled_dot_product_attention";
    char x[CAIRN__SHAPE_TEXT], y[CAIRN__SHAPE_TEXT], z[CAIRN__SHAPE_TEXT];
    cairn__shape_text(q, x), cairn__shape_text(k, y), cairn__shape_text(v, z);
    REQUIRE(q->ndim == 4 && k->ndim == 4 && v->ndim == 4, CAIRN_EINVAL,
            "%s: q %s, k %s, v %s; expected [B, H, T, D], [B, H, S, D], [B, H, S, E]", name, x, y, z);
    for (int d = 0; d < 2; d++) {
        REQUIRE(q->shape[d] == k->shape[d] && q->shape[d] == v->shape[d], CAIRN_EINVAL,
                "%s: q %s, k %s, v %s: sizes in dimension %d differ", name, x, y, z, d);
    }
    REQUIRE(q->shape[3] == k->shape[3], CAIRN_EINVAL, "%s: q %s x k %s: inner sizes %lld and %lld differ", name, x, y,
            (long long)q->shape[3], (long long)k->shape[3]);
    REQUIRE(k->shape[2] == v->shape[2], CAIRN_EINVAL, "%s: k %s, v %s: %lld keys but %lld values", name, y, z,
            (long long)k->shape[2], (long long)v->shape[2]);
    return CAIRN_OK;
}

static cairn_status check_mask(const cairn_tensor *mask, const cairn_tensor *q, const cairn_tensor *k) {
    if (!mask) return CAIRN_OK;
    const cairn_dtype type = cairn__tensor_dtype(mask);
    const int64_t scores[4] = {q->shape[0], q->shape[1], q->shape[2], k->shape[2]};
    char x[CAIRN__SHAPE_TEXT];
    bool fits = mask->ndim <= 4;
    for (int d = 1; fits && d <= mask->ndim; d++) {
        const int64_t size = mask->shape[mask->ndim - d];
        fits = size == 1 || size == scores[4 - d];
    }
    REQUIRE(fits, CAIRN_EINVAL,
            "scaled_dot_product_attention: mask %s does not broadcast to the scores [%lld, %lld, %lld, %lld]",
            cairn__shape_text(mask, x), (long long)scores[0], (long long)scores[1], (long long)scores[2],
            (long long)scores[3]);
    REQUIRE(type == CAIRN_BOOL || type == cairn__tensor_dtype(q), CAIRN_EINVAL,
            "scaled_dot_product_attention: mask is %s; it must be bool or %s, the type of q", cairn_dtype_name(type),
            cairn_dtype_name(cairn__tensor_dtype(q)));
    return CAIRN_OK;
}

static cairn_status infer(const struct cairn__node *node) {
    const cairn_tensor *q = node->inputs[Q], *v = node->inputs[V];
    cairn_status st = CAIRN_OK;
    for (int i = Q; i <= V; i++) {
        const cairn_dtype type = cairn__tensor_dtype(node->inputs[i]);
        REQUIRE(cairn__is_float(type) && type == node->result->dtype, CAIRN_EINVAL,
                "scaled_dot_product_attention: %c is %s; it must be a float type", "qkv"[i], cairn_dtype_name(type));
    }
    TRY(check_shapes(q, node->inputs[K], v));
    TRY(check_mask(node->inputs[MASK], q, node->inputs[K]));
    node->result->ndim = 4;
    for (int d = 0; d < 4; d++) node->result->shape[d] = d < 3 ? q->shape[d] : v->shape[3];
out:
    return st;
}

/* The mask as the operation takes it: without a gradient, and where it is a float of q's type, so that it does not
 * decide in what the product is computed. */
static cairn_tensor *prepared_mask(cairn_tensor *mask, const cairn_tensor *q) {
    if (cairn__wants_grad(mask)) mask = cairn_detach(mask);
    if (!mask || !q) return mask;
    const cairn_dtype from = cairn__tensor_dtype(mask), to = cairn__tensor_dtype(q);
    return from != to && cairn__is_float(from) && cairn__is_float(to) ? cairn_cast(mask, to) : mask;
}

/* ---- passes ---- */

static struct cairn__attention attention_of(const struct cairn__tape *tape, const struct cairn__node *node) {
    const struct attrs *a = node->attrs;
    const cairn_tensor *q = node->inputs[Q], *k = node->inputs[K], *mask = node->inputs[MASK];
    const int64_t scores[4] = {q->shape[0], q->shape[1], q->shape[2], k->shape[2]};
    const int64_t d = q->shape[3]; /* where it is 0 scores are 0 too, which no infinite scale may touch */
    struct cairn__attention p = {.q = cairn__tensor_view(q),
                                 .k = cairn__tensor_view(k),
                                 .v = cairn__tensor_view(node->inputs[V]),
                                 .y = cairn__tensor_view(node->result),
                                 .lse = node->saved,
                                 .scale = a->scale != 0 || d == 0 ? a->scale : 1 / sqrt((double)d),
                                 .causal = a->causal,
                                 .dropout = a->dropout,
                                 .seed = tape->env->seed,
                                 .stream = a->stream};
    if (mask) {
        const struct cairn__view own = cairn__tensor_view(mask);
        p.mask = cairn__view_broadcast(&own, 4, scores);
    }
    return p;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    const cairn_tensor *y = node->result;
    const size_t rows = (size_t)(y->shape[0] * y->shape[1] * y->shape[2]);
    const cairn_dtype r = cairn__arithmetic_type(y->dtype);
    if (y->wants_grad) {
        TRY(cairn__save(tape, node, rows * cairn_dtype_nbytes(r)));
    }
    const struct cairn__attention p = attention_of(tape, node);
    cairn__math_of(tape)->attention(tape->env->device, &p);
out:
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    struct cairn__attention p = attention_of(tape, node);
    struct cairn__view *const gradients[] = {&p.dq, &p.dk, &p.dv};
    cairn_status st = CAIRN_OK;
    p.dy = cairn__dy_view(node, dy);
    for (int i = Q; i <= V; i++) {
        cairn_tensor *t = node->inputs[i];
        if (!cairn__wants_grad(t)) continue;
        void *dx = NULL;
        TRY(cairn__tensor_grad_begin(tape, t, &dx));
        *gradients[i] = cairn__tensor_grad_view(t, dx);
    }
    cairn__math_of(tape)->attention_backward(tape->env->device, &p);
    for (int i = Q; i <= V; i++) {
        if (gradients[i]->data) TRY(cairn__tensor_grad_end(tape, node->inputs[i], gradients[i]->data));
    }
out:
    return st;
}

static const struct cairn__op_row row = {.promotes = true,
                                         .strided = true,
                                         .needs_math = true,
                                         .optional = 1u << MASK,
                                         .infer = infer,
                                         .forward = forward,
                                         .backward = backward};

cairn_tensor *cairn_scaled_dot_product_attention(cairn_tensor *q, cairn_tensor *k, cairn_tensor *v,
                                                 const struct cairn_attention_options *options) {
    struct cairn_attention_options o = {.struct_size = sizeof(o)};
    if (cairn__options_read(&o, sizeof(o), options, "cairn_attention_options") != CAIRN_OK) return NULL;
    if (!(o.dropout >= 0 && o.dropout < 1) || !isfinite(o.scale)) {
        cairn__fail(CAIRN_EINVAL,
                    "scaled_dot_product_attention: dropout is %g and scale %g; dropout must be from 0 to below 1, and "
                    "scale finite",
                    o.dropout, o.scale);
        return NULL;
    }
    struct attrs a = {.causal = o.causal == CAIRN_ON, .dropout = o.dropout, .scale = o.scale};
    if (o.mask) {
        o.mask = prepared_mask(o.mask, q);
        if (!o.mask) return NULL;
    }
    if (q && o.dropout > 0) a.stream = cairn__env_next_stream(q->env);
    return cairn__apply(CAIRN__OP_SDPA, &row, CAIRN__INPUTS(q, k, v, o.mask), &a, sizeof(a));
}
