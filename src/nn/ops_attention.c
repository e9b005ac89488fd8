/* scaled_dot_product_attention. Forward saves the logarithm of each row's sum for backward. A second row does the same
 * for heads that lie side by side, as the product before it writes them, without views in between. */
#include <math.h>

#include "core/options.h"
#include "core/status.h"
#include "nn/ops.h"

enum { Q, K, V, MASK };                      /* inputs; MASK may be missing */
enum { OF_HEADS, MASK_OF_HEADS, PARTS = 3 }; /* with heads side by side: [B, T, PARTS * heads * D] of q, k and v */

struct attrs {
    bool causal;
    double dropout, scale; /* scale 0: 1 / sqrt(D) */
    uint64_t stream;       /* dropout's random stream */
    int64_t heads;         /* number of heads side by side */
};

/* ---- shapes and types ---- */

static cairn_status check_mask(const cairn_tensor *mask, const int64_t scores[4], cairn_dtype of_q) {
    if (!mask) return CAIRN_OK;
    const cairn_dtype type = cairn__tensor_dtype(mask);
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
    REQUIRE(type == CAIRN_BOOL || type == of_q, CAIRN_EINVAL,
            "scaled_dot_product_attention: mask is %s; it must be bool or %s, the type of q", cairn_dtype_name(type),
            cairn_dtype_name(of_q));
    return CAIRN_OK;
}

static cairn_status infer(const struct cairn__node *node) {
    static const char name[] = "scaled_dot_product_attention";
    const cairn_tensor *q = node->inputs[Q], *k = node->inputs[K], *v = node->inputs[V];
    char x[CAIRN__SHAPE_TEXT], y[CAIRN__SHAPE_TEXT], z[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    for (int i = Q; i <= V; i++) {
        const cairn_dtype type = cairn__tensor_dtype(node->inputs[i]);
        REQUIRE(cairn__is_float(type) && type == node->result->dtype, CAIRN_EINVAL,
                "%s: %c is %s; it must be a float type", name, "qkv"[i], cairn_dtype_name(type));
    }
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
    TRY(check_mask(node->inputs[MASK], (const int64_t[]){q->shape[0], q->shape[1], q->shape[2], k->shape[2]},
                   cairn__tensor_dtype(q)));
    node->result->ndim = 4;
    for (int d = 0; d < 4; d++) node->result->shape[d] = d < 3 ? q->shape[d] : v->shape[3];
out:
    return st;
}

static cairn_status infer_of_heads(const struct cairn__node *node) {
    const struct attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[OF_HEADS];
    const cairn_dtype type = cairn__tensor_dtype(x);
    const int64_t B = x->shape[0], T = x->shape[1];
    char shape[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    REQUIRE(cairn__is_float(type), CAIRN_EINVAL, "scaled_dot_product_attention: x is %s; it must be a float type",
            cairn_dtype_name(type));
    REQUIRE(x->ndim == 3 && x->shape[2] % (PARTS * a->heads) == 0, CAIRN_EINVAL,
            "scaled_dot_product_attention: x is %s; expected [B, T, 3 * %lld * D]", cairn__shape_text(x, shape),
            (long long)a->heads);
    TRY(check_mask(node->inputs[MASK_OF_HEADS], (const int64_t[]){B, a->heads, T, T}, type));
    node->result->ndim = 3;
    node->result->shape[0] = B, node->result->shape[1] = T, node->result->shape[2] = x->shape[2] / PARTS;
out:
    return st;
}

/* The mask, detached; a float mask is cast to q's type, so that it does not affect the type that the product is
 * computed in. */
static cairn_tensor *prepared_mask(cairn_tensor *mask, const cairn_tensor *q) {
    if (cairn__wants_grad(mask)) mask = cairn_detach(mask);
    if (!mask || !q) return mask;
    const cairn_dtype from = cairn__tensor_dtype(mask), to = cairn__tensor_dtype(q);
    return from != to && cairn__is_float(from) && cairn__is_float(to) ? cairn_cast(mask, to) : mask;
}

/* ---- passes ---- */

/* One of `parts` parts that lie side by side in data [B, T, parts * heads * D], viewed as [B, heads, T, D]. */
static struct cairn__view heads_of(const struct cairn__node *node, const void *data, int64_t part, int64_t parts) {
    const struct attrs *a = node->attrs;
    const cairn_tensor *y = node->result;
    const int64_t B = y->shape[0], T = y->shape[1], width = y->shape[2], row = parts * width, D = width / a->heads;
    char *first = (char *)(uintptr_t)data;
    if (first && y->n > 0) first += (size_t)(part * width) * cairn_dtype_nbytes(y->dtype);
    return (struct cairn__view){first, y->dtype, 4, {B, a->heads, T, D}, {T * row, D, row, 1}};
}

/* The pass without its operands. */
static struct cairn__attention attention_of(const struct cairn__tape *tape, const struct cairn__node *node,
                                            const cairn_tensor *mask, const int64_t scores[4], int64_t d) {
    const struct attrs *a = node->attrs;
    struct cairn__attention p = {.lse = node->saved,
                                 /* with d = 0 scores are 0; an infinite scale would make them NaN */
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

static struct cairn__attention attention_of_inputs(const struct cairn__tape *tape, const struct cairn__node *node) {
    const cairn_tensor *q = node->inputs[Q], *k = node->inputs[K];
    const int64_t scores[4] = {q->shape[0], q->shape[1], q->shape[2], k->shape[2]};
    struct cairn__attention p = attention_of(tape, node, node->inputs[MASK], scores, q->shape[3]);
    p.q = cairn__tensor_view(q), p.k = cairn__tensor_view(k), p.v = cairn__tensor_view(node->inputs[V]);
    p.y = cairn__tensor_view(node->result);
    return p;
}

static struct cairn__attention attention_of_heads(const struct cairn__tape *tape, const struct cairn__node *node) {
    const void *x = cairn__tensor_data(node->inputs[OF_HEADS]);
    const struct cairn__view q = heads_of(node, x, Q, PARTS);
    const int64_t scores[4] = {q.size[0], q.size[1], q.size[2], q.size[2]};
    struct cairn__attention p = attention_of(tape, node, node->inputs[MASK_OF_HEADS], scores, q.size[3]);
    p.q = q, p.k = heads_of(node, x, K, PARTS), p.v = heads_of(node, x, V, PARTS);
    p.y = heads_of(node, node->result->data, 0, 1);
    return p;
}

static cairn_status save_rows(struct cairn__tape *tape, struct cairn__node *node, size_t rows) {
    const cairn_dtype r = cairn__arithmetic_type(node->result->dtype);
    return node->result->wants_grad ? cairn__save(tape, node, rows * cairn_dtype_nbytes(r)) : CAIRN_OK;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    const cairn_tensor *y = node->result;
    TRY(save_rows(tape, node, (size_t)(y->shape[0] * y->shape[1] * y->shape[2])));
    const struct cairn__attention p = attention_of_inputs(tape, node);
    cairn__math_of(tape)->attention(tape->env->device, &p);
out:
    return st;
}

static cairn_status forward_of_heads(struct cairn__tape *tape, struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    const cairn_tensor *y = node->result;
    TRY(save_rows(tape, node, (size_t)(y->shape[0] * ((const struct attrs *)node->attrs)->heads * y->shape[1])));
    const struct cairn__attention p = attention_of_heads(tape, node);
    cairn__math_of(tape)->attention(tape->env->device, &p);
out:
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    struct cairn__attention p = attention_of_inputs(tape, node);
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

/* The three gradients together are the input's. */
static cairn_status backward_of_heads(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    struct cairn__attention p = attention_of_heads(tape, node);
    cairn_tensor *x = node->inputs[OF_HEADS];
    cairn_status st = CAIRN_OK;
    void *dx = NULL;
    if (!cairn__wants_grad(x)) return CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    p.dy = heads_of(node, dy, 0, 1);
    p.dq = heads_of(node, dx, Q, PARTS), p.dk = heads_of(node, dx, K, PARTS), p.dv = heads_of(node, dx, V, PARTS);
    cairn__math_of(tape)->attention_backward(tape->env->device, &p);
    TRY(cairn__tensor_grad_end(tape, x, dx));
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

static const struct cairn__op_row row_of_heads = {.promotes = true,
                                                  .needs_math = true,
                                                  .optional = 1u << MASK_OF_HEADS,
                                                  .infer = infer_of_heads,
                                                  .forward = forward_of_heads,
                                                  .backward = backward_of_heads};

/* ---- the calls ---- */

/* *mask: the options' mask, prepared, or NULL. Returns false on error, with the last error set. */
static bool read_options(const struct cairn_attention_options *options, cairn_tensor *q, struct attrs *a,
                         cairn_tensor **mask) {
    struct cairn_attention_options o = {.struct_size = sizeof(o)};
    if (cairn__options_read(&o, sizeof(o), options, "cairn_attention_options") != CAIRN_OK) return false;
    if (!(o.dropout >= 0 && o.dropout < 1) || !isfinite(o.scale)) {
        cairn__fail(CAIRN_EINVAL,
                    "scaled_dot_product_attention: dropout is %g and scale %g; dropout must be from 0 to below 1, and "
                    "scale finite",
                    o.dropout, o.scale);
        return false;
    }
    *a = (struct attrs){.causal = o.causal == CAIRN_ON, .dropout = o.dropout, .scale = o.scale};
    *mask = o.mask ? prepared_mask(o.mask, q) : NULL;
    if (o.mask && !*mask) return false;
    if (q && o.dropout > 0) a->stream = cairn__env_next_stream(q->env);
    return true;
}

cairn_tensor *cairn_scaled_dot_product_attention(cairn_tensor *q, cairn_tensor *k, cairn_tensor *v,
                                                 const struct cairn_attention_options *options) {
    cairn_tensor *mask = NULL;
    struct attrs a;
    if (!read_options(options, q, &a, &mask)) return NULL;
    return cairn__apply(CAIRN__OP_SDPA, &row, CAIRN__INPUTS(q, k, v, mask), &a, sizeof(a));
}

cairn_tensor *cairn__attention_of_heads(cairn_tensor *x, int64_t heads, const struct cairn_attention_options *options) {
    cairn_tensor *mask = NULL;
    struct attrs a;
    if (!read_options(options, x, &a, &mask)) return NULL;
    a.heads = heads;
    return cairn__apply(CAIRN__OP_SDPA, &row_of_heads, CAIRN__INPUTS(x, mask), &a, sizeof(a));
}
