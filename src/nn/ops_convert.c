/* The operations that ops.c applies to the inputs of other operations: cast to the type that an operation computes in,
 * contiguous for operations that take dense inputs only, and detach for frozen parameters. */
#include <string.h>

#include "core/status.h"
#include "nn/ops.h"

/* ---- cast ---- */

static cairn_status cast_infer(const struct cairn__node *node) {
    const cairn_dtype to = node->result->dtype = *(const cairn_dtype *)node->attrs;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_dtype("cast", to));
    TRY(cairn__infer_like_first(node));
out:
    return st;
}

static bool is_in_passes(cairn_dtype t) {
    return t == CAIRN_F32 || cairn__is_half(t);
}

static cairn_status cast_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[0], *y = node->result;
    const cairn_dtype from = cairn__tensor_dtype(x);
    if (x->is_dense && is_in_passes(from) && is_in_passes(y->dtype)) {
        cairn__pass_cast(cairn__passes_of(tape), tape->env->device, y->data, y->dtype, cairn__tensor_data(x), from,
                         y->n);
        return CAIRN_OK;
    }
    cairn_status st = CAIRN_OK;
    TRY(cairn__require_math(tape, node->op));
    const struct cairn__view view_x = cairn__tensor_view(x), view_y = cairn__tensor_view(y);
    cairn__math_of(tape)->map(tape->env->device, CAIRN__MAP_COPY, &view_y, &view_x, NULL);
out:
    return st;
}

static cairn_status cast_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[0];
    return cairn__wants_grad(x) ? cairn__tensor_grad_pass_on(tape, x, node, dy) : CAIRN_OK;
}

static const struct cairn__op_row cast_row = {.keeps_types = true,
                                              .strided = true,
                                              .infer = cast_infer,
                                              .forward = cast_forward,
                                              .backward = cast_backward,
                                              .reads = cairn__reads_nothing};

cairn_tensor *cairn_cast(cairn_tensor *x, cairn_dtype dtype) {
    return cairn__apply(CAIRN__OP_CAST, &cast_row, CAIRN__INPUTS(x), &dtype, sizeof(dtype));
}

/* ---- contiguous ---- */

static cairn_status contiguous_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]), y = cairn__tensor_view(node->result);
    cairn__math_of(tape)->map(tape->env->device, CAIRN__MAP_COPY, &y, &x, NULL);
    return CAIRN_OK;
}

static cairn_status contiguous_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return cairn__tensor_grad_pass_on(tape, node->inputs[0], node, dy);
}

static const struct cairn__op_row contiguous_row = {.strided = true,
                                                    .needs_math = true,
                                                    .infer = cairn__infer_like_first,
                                                    .forward = contiguous_forward,
                                                    .backward = contiguous_backward,
                                                    .hands_on = true,
                                                    .reads = cairn__reads_nothing};

cairn_tensor *cairn_contiguous(cairn_tensor *x) {
    cairn__note_use(x); /* a dense x is returned itself */
    return x && x->is_dense ? x : cairn__apply(CAIRN__OP_CONTIGUOUS, &contiguous_row, CAIRN__INPUTS(x), NULL, 0);
}

/* ---- detach ---- */

static cairn_status detach_infer(const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[0];
    cairn_tensor *y = node->result;
    memcpy(y->stride, x->stride, sizeof(y->stride));
    y->n = x->n;
    y->is_dense = x->is_dense;
    y->data = cairn__tensor_data(x);
    y->loss_scale = NULL;
    return cairn__infer_like_first(node);
}

static const struct cairn__op_row detach_row = {.strided = true, .view = true, .infer = detach_infer};

cairn_tensor *cairn_detach(cairn_tensor *x) {
    return cairn__apply(CAIRN__OP_DETACH, &detach_row, CAIRN__INPUTS(x), NULL, 0);
}

/* ---- the kept cast of a parameter ---- */

/* A number that changes whenever the weights may have changed: both counts only grow. */
static uint64_t version_of(const cairn_tensor *t) {
    return t->param->version + t->env->replays;
}

static cairn_status refresh_cast(const cairn_tensor *t, struct cairn__param_cast *c, cairn_dtype dtype) {
    cairn_status st = CAIRN_OK;
    const struct cairn__param *p = t->param;
    const size_t nbytes = p->n * cairn_dtype_nbytes(dtype);
    if (!c->data || nbytes > c->nbytes) {
        void *data = NULL;
        TRY(cairn__device_alloc(t->env->device, CAIRN__HOLDS_CASTS, nbytes, &data));
        cairn__device_free(t->env->device, c->data);
        c->data = data;
        c->nbytes = nbytes;
    }
    cairn__pass_cast(t->env->device->passes, t->env->device, c->data, dtype, p->data, p->dtype, p->n);
    c->dtype = dtype;
    c->version = version_of(t);
    c->result = NULL;
out:
    return st;
}

/* Whether a live result, on this tape or around a checkpoint, shows the data of a parameter's cast. */
static bool is_shown(const struct cairn__tape *tape, const struct cairn__param_cast *c) {
    while (tape && !cairn__tape_lives(tape, c->shown)) tape = tape->outer;
    return tape != NULL;
}

/* Casts a parameter once until its weights change; the copy outlives the step, its node does not. If the weights change
 * within a step, an earlier backward may still need the copy, so the new cast is a result like any other. */
static cairn_tensor *cast_param(struct cairn__tape *tape, cairn_tensor *t, cairn_dtype dtype) {
    struct cairn__param_cast *c = &t->cast;
    const uint64_t version = version_of(t);
    /* Reuse the last result only if its graph fits: one made under no_grad would pass no gradient on, and one made
     * before the parameter was frozen would. */
    if (c->result && cairn__tape_lives(tape, c->generation) && c->result->dtype == dtype &&
        c->result_version == version && (c->result->wants_grad == cairn__wants_grad(t) || tape->no_grad.depth > 0))
        return c->result;
    const bool shown = is_shown(tape, c);
    const bool is_current = c->data && c->dtype == dtype && c->version == version;
    cairn_tensor *result = NULL;
    if (shown && !is_current) {
        result = cairn_cast(t, dtype);
    } else {
        if (!is_current && refresh_cast(t, c, dtype) != CAIRN_OK) return NULL;
        result = cairn__apply_made(CAIRN__OP_CAST, &cast_row, CAIRN__INPUTS(t), &dtype, sizeof(dtype), c->data);
        if (result && !shown) c->shown = result->generation;
    }
    if (!result) return NULL;
    c->result = result;
    c->result_version = version;
    c->generation = result->generation;
    return result;
}

cairn_tensor *cairn__prepare_input(struct cairn__tape *tape, const struct cairn__op_row *row, cairn_tensor *t,
                                   cairn_dtype dtype) {
    const cairn_dtype from = cairn__tensor_dtype(t);
    if (dtype && from != dtype && cairn__is_float(from))
        t = t->param ? cast_param(tape, t, dtype) : cairn_cast(t, dtype);
    return !t || t->is_dense || row->strided || row->view ? t : cairn_contiguous(t);
}
