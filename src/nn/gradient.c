/* Accumulates gradients in backward.
 *
 * A contribution to a tensor's gradient is written in the tensor's own type: an f16 tensor has f16 gradients, which
 * become infinite where they overflow (beyond 65504, until the loss scale goes down). An exception is an f32 cast of a
 * half result: its only contribution may be written in the half type, to which the cast would round it anyway.
 *   - A result: contributions are summed in its type, as in torch.
 *   - A leaf: contributions have the leaf's type; their sum is f32 (f64 for f64) and not rounded.
 *   - A parameter: the gradient is written once, at the parameter's last use, to the slot that src/param provides. With
 *     one use it is computed there; with several, contributions are summed in f32 and rounded once.
 *
 * Contributions are in the pool's memory (grad_pool.h). Memory that several tensors hold (cairn__tensor_grad_pass_on)
 * is never written. */
#include "core/status.h"
#include "nn/backward.h"

static cairn_status new_buffer(struct cairn__tape *tape, const cairn_tensor *t, cairn_dtype dtype, void **out) {
    return cairn__tensor_grad_pool_take(&tape->root->grads, t->n * cairn_dtype_nbytes(dtype), out);
}

static void drop(struct cairn__tape *tape, const void *dx) {
    cairn__tensor_grad_pool_drop(&tape->root->grads, dx);
}

static bool is_held_once(const struct cairn__tape *tape, const void *dx) {
    return cairn__tensor_grad_pool_holders(&tape->root->grads, dx) == 1;
}

/* ---- arithmetic ---- */

/* dst = x + y, all of one type; dst may be x or y. */
static void add(struct cairn__tape *tape, cairn_dtype dtype, void *dst, void *x, void *y, size_t n) {
    struct cairn_device *d = tape->env->device;
    if (dtype != CAIRN_F64) {
        d->passes->add(d, dtype, dst, x, y, n);
        return;
    }
    const int64_t size = (int64_t)n;
    const struct cairn__view to = cairn__view_dense(dst, dtype, 1, &size);
    const struct cairn__view from[] = {cairn__view_dense(x, dtype, 1, &size), cairn__view_dense(y, dtype, 1, &size)};
    const double numbers[CAIRN__MAP_NUMBERS] = {1};
    d->math->map(d, CAIRN__MAP_ADD, &to, from, numbers);
}

/* dst = round(x + y), y in f32. */
static void add_wide(struct cairn__tape *tape, void *dst, cairn_dtype to, const void *x, cairn_dtype from,
                     const float *y, size_t n) {
    const struct cairn__item item = {.n = n, .dst = dst, .x = x, .y = y};
    cairn__passes_of(tape)->axpby(tape->env->device, &item, 1, to, from, NULL, 1.0f, NULL);
}

/* dst = round(x) */
static void copy_to(struct cairn__tape *tape, void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n) {
    struct cairn_device *d = tape->env->device;
    if (from != CAIRN_F64 && to != CAIRN_F64) {
        cairn__pass_cast(d->passes, d, dst, to, x, from, n);
        return;
    }
    const int64_t size = (int64_t)n;
    const struct cairn__view y = cairn__view_dense(dst, to, 1, &size),
                             a = cairn__view_dense((void *)(uintptr_t)x, from, 1, &size);
    d->math->map(d, CAIRN__MAP_COPY, &y, &a, NULL);
}

/* ---- leaves ---- */

/* The only contribution to an f32 or f64 leaf is computed directly in its gradient. */
static cairn_status begin_leaf(struct cairn__tape *tape, cairn_tensor *t, void **dx) {
    const size_t nbytes = t->n * cairn_dtype_nbytes(cairn__arithmetic_type(t->dtype));
    cairn_status st = CAIRN_OK;
    if (!t->grad) TRY(cairn__device_alloc(t->env->device, CAIRN__HOLDS_GRADS, nbytes, &t->grad));
    if (t->has_grad || t->uses > 1 || cairn__is_half(t->dtype)) return new_buffer(tape, t, t->dtype, dx);
    *dx = t->grad;
out:
    return st;
}

static cairn_status end_leaf(struct cairn__tape *tape, cairn_tensor *t, void *dx) {
    const cairn_dtype dtype = cairn__arithmetic_type(t->dtype);
    if (!t->has_grad) {
        if (dx != t->grad) copy_to(tape, t->grad, dtype, dx, t->dtype, t->n);
    } else if (t->dtype == CAIRN_F64) {
        add(tape, CAIRN_F64, t->grad, dx, t->grad, t->n);
    } else {
        add_wide(tape, t->grad, CAIRN_F32, dx, t->dtype, t->grad, t->n);
    }
    t->has_grad = true;
    drop(tape, dx);
    return cairn__check_total(tape, t, dtype, t->grad);
}

/* ---- parameters ---- */

/* The first of several contributions becomes the f32 sum; the last one adds to it and writes the slot. */
static cairn_status add_to_param(struct cairn__tape *tape, cairn_tensor *t, void *dx) {
    const cairn_dtype dtype = t->param->dtype;
    void *slot = NULL;
    cairn_status st = CAIRN_OK;
    if (!t->sum && dtype == CAIRN_F32) {
        t->sum = dx;
        return CAIRN_OK;
    }
    if (t->arrived == t->uses) {
        TRY(cairn__grad_begin_write(t->param->gradient, &slot));
        add_wide(tape, slot, dtype, dx, dtype, t->sum, t->n);
        drop(tape, t->sum);
        t->sum = NULL;
        TRY(cairn__check_total(tape, t, dtype, slot));
    } else if (t->sum) {
        add_wide(tape, t->sum, CAIRN_F32, dx, dtype, t->sum, t->n);
    } else {
        TRY(new_buffer(tape, t, CAIRN_F32, &t->sum));
        copy_to(tape, t->sum, CAIRN_F32, dx, dtype, t->n);
    }
    drop(tape, dx);
out:
    return st;
}

static cairn_status end_param(struct cairn__tape *tape, cairn_tensor *t, void *dx) {
    cairn_status st = CAIRN_OK;
    t->arrived++;
    if (t->uses > 1) TRY(add_to_param(tape, t, dx));
    if (t->arrived == t->uses) cairn__param_grad_ready(t->param);
out:
    return st;
}

/* ---- results ---- */

/* Adds dx to the sum, in the one of the two buffers that has no other holder; in a third if both have. */
static cairn_status add_to_result(struct cairn__tape *tape, cairn_tensor *t, void *dx) {
    cairn_status st = CAIRN_OK;
    void *sum = is_held_once(tape, t->sum) ? t->sum : is_held_once(tape, dx) ? dx : NULL;
    if (!sum) {
        TRY(new_buffer(tape, t, t->dtype, &sum));
    }
    add(tape, t->dtype, sum, t->sum, dx, t->n);
    if (sum != t->sum) drop(tape, t->sum);
    if (sum != dx) drop(tape, dx);
    t->sum = sum;
out:
    return st;
}

/* ---- the three together ---- */

/* The tensor in whose memory t's gradient can be computed: the parameter or leaf that t views, if views pass the
 * gradient on unchanged and nothing else contributes to it; else t. */
static cairn_tensor *last_target(const struct cairn__tape *tape, cairn_tensor *t) {
    cairn_tensor *last = cairn__tensor_grad_target(t);
    while (last->kind == CAIRN__RESULT && last->uses == 1 && last->node && last->node->reached == tape->backward &&
           last->node->count == 1 && last->node->row->hands_on)
        last = cairn__tensor_grad_target(last->node->inputs[0]);
    return last->uses == 1 && last->reached == tape->backward && last->kind != CAIRN__RESULT
               ? last
               : cairn__tensor_grad_target(t);
}

cairn_status cairn__tensor_grad_begin(struct cairn__tape *tape, cairn_tensor *t, void **dx) {
    t = last_target(tape, t);
    if (t->kind == CAIRN__LEAF) return begin_leaf(tape, t, dx);
    if (t->kind == CAIRN__PARAM && t->uses == 1) return cairn__grad_begin_write(t->param->gradient, dx);
    return new_buffer(tape, t, cairn__tensor_dtype(t), dx);
}

/* Whether t is an f32 cast of a half result and nothing but the cast reads t's gradient. */
static bool is_only_rounded(const struct cairn__tape *tape, const cairn_tensor *t) {
    const struct cairn__node *node = t->node;
    const cairn_tensor *x = node && node->op == CAIRN__OP_CAST ? node->inputs[0] : NULL;
    return x && x->kind == CAIRN__RESULT && cairn__is_half(x->dtype) && t->dtype == CAIRN_F32 && t->uses == 1 &&
           node->reached == tape->backward && !t->watched && !cairn__looks_for_anomalies(tape);
}

cairn_status cairn__tensor_grad_begin_rounded(struct cairn__tape *tape, cairn_tensor *t, void **dx,
                                              cairn_dtype *dtype) {
    t->is_rounded = !t->stands_for && is_only_rounded(tape, t);
    *dtype = t->is_rounded ? t->node->inputs[0]->dtype : cairn__tensor_dtype(t);
    return t->is_rounded ? new_buffer(tape, t, *dtype, dx) : cairn__tensor_grad_begin(tape, t, dx);
}

cairn_status cairn__tensor_grad_end(struct cairn__tape *tape, cairn_tensor *t, void *dx) {
    t = cairn__tensor_grad_target(t);
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_contribution(tape, t, dx));
    if (t->kind == CAIRN__PARAM) return end_param(tape, t, dx);
    if (t->kind == CAIRN__LEAF) return end_leaf(tape, t, dx);
    if (t->sum) return add_to_result(tape, t, dx);
    t->sum = dx;
out:
    return st;
}

void *cairn__tensor_grad_so_far(struct cairn__tape *tape, cairn_tensor *t) {
    t = cairn__tensor_grad_target(t);
    return t->kind == CAIRN__RESULT && t->sum && is_held_once(tape, t->sum) ? t->sum : NULL;
}

cairn_status cairn__tensor_grad_pass_on(struct cairn__tape *tape, cairn_tensor *t, const struct cairn__node *node,
                                        const void *dy) {
    const cairn_dtype to = cairn__tensor_dtype(t), from = node->result->is_rounded ? to : node->result->dtype;
    struct cairn__tensor_grad_pool *pool = &tape->root->grads;
    void *dx = NULL;
    if (cairn__tensor_grad_target(t)->kind == CAIRN__RESULT && from == to) {
        cairn__tensor_grad_pool_hold(pool, dy); /* no effect if dy is the user's memory or a last target's */
        return cairn__tensor_grad_end(tape, t, (void *)(uintptr_t)dy);
    }
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, t, &dx));
    if (dx != dy) copy_to(tape, dx, to, dy, from, t->n);
    TRY(cairn__tensor_grad_end(tape, t, dx));
out:
    return st;
}
