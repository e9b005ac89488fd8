/* Operations of the user's own: arrays of the CPU's memory in, arrays out. */
#include "core/options.h"
#include "core/status.h"
#include "nn/ops.h"

struct custom {
    struct cairn_custom_op op;
    void *ctx;
    cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
};

static const struct custom *custom_of(const struct cairn__node *node) {
    return node->attrs;
}

const char *cairn__custom_name(const struct cairn__node *node) {
    return custom_of(node)->op.name;
}

static struct cairn_custom_array array_of(const cairn_tensor *t, void *data) {
    return (struct cairn_custom_array){
        .data = data, .dtype = cairn__tensor_dtype(t), .ndim = t->ndim, .shape = t->shape, .n = t->n};
}

/* The inputs, and room for as many arrays behind them. */
static cairn_status arrays_of(struct cairn__tape *tape, const struct cairn__node *node,
                              struct cairn_custom_array **out) {
    cairn_status st = cairn__scratch(tape, 2 * (size_t)node->count * sizeof(**out), (void **)out);
    for (int i = 0; st == CAIRN_OK && i < node->count; i++)
        (*out)[i] = array_of(node->inputs[i], cairn__tensor_data(node->inputs[i]));
    return st;
}

static cairn_status told(const struct custom *c, const char *which, cairn_status st) {
    if (st == CAIRN_OK) return CAIRN_OK;
    return cairn__fail(st, "%s: its %s returned %s", c->op.name, which, cairn_status_name(st));
}

static cairn_status infer(const struct cairn__node *node) {
    const struct custom *c = custom_of(node);
    node->result->dtype = c->dtype;
    node->result->ndim = c->ndim;
    memcpy(node->result->shape, c->shape, sizeof(c->shape));
    node->result->wants_grad &= c->op.backward != NULL;
    return CAIRN_OK;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct custom *c = custom_of(node);
    struct cairn_custom_array *x = NULL, y = array_of(node->result, node->result->data);
    cairn_status st = arrays_of(tape, node, &x);
    return st == CAIRN_OK ? told(c, "forward", c->op.forward(c->ctx, &y, x, node->count)) : st;
}

/* Parameters first, also here: gradients are ready in this order. */
static cairn_status hand_on(struct cairn__tape *tape, const struct cairn__node *node,
                            const struct cairn_custom_array *dx, bool params) {
    cairn_status st = CAIRN_OK;
    for (int i = 0; st == CAIRN_OK && i < node->count; i++) {
        if (dx[i].data && (node->inputs[i]->kind == CAIRN__PARAM) == params)
            st = cairn__tensor_grad_end(tape, node->inputs[i], dx[i].data);
    }
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const struct custom *c = custom_of(node);
    struct cairn_custom_array *x = NULL;
    const struct cairn_custom_array y = array_of(node->result, node->result->data),
                                    of_y = array_of(node->result, (void *)(uintptr_t)dy);
    cairn_status st = CAIRN_OK;
    TRY(arrays_of(tape, node, &x));
    struct cairn_custom_array *dx = x + node->count;
    for (int i = 0; i < node->count; i++) {
        dx[i] = array_of(node->inputs[i], NULL);
        if (cairn__wants_grad(node->inputs[i])) TRY(cairn__tensor_grad_begin(tape, node->inputs[i], &dx[i].data));
    }
    TRY(told(c, "backward", c->op.backward(c->ctx, dx, &of_y, &y, x, node->count)));
    TRY(hand_on(tape, node, dx, true));
    TRY(hand_on(tape, node, dx, false));
out:
    return st;
}

const struct cairn__op_row cairn__op_custom = {.needs_math = true,
                                               .infer = infer,
                                               .forward = forward,
                                               .backward = backward};

cairn_tensor *cairn_custom(const struct cairn_custom_op *op, void *ctx, cairn_dtype dtype, int ndim,
                           const int64_t *shape, cairn_tensor *const *inputs, int count) {
    struct custom c = {.op.struct_size = sizeof(c.op), .ctx = ctx, .dtype = dtype, .ndim = ndim};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&c.op, sizeof(c.op), op, "cairn_custom_op"));
    if (!c.op.forward || !c.op.name || !inputs || count < 1) {
        cairn__fail(CAIRN_EINVAL, "custom: the operation's name and forward and at least one input must be set");
        return NULL;
    }
    TRY(cairn__check_dtype(c.op.name, dtype));
    TRY(cairn__check_shape(c.op.name, ndim, shape));
    if (ndim > 0) memcpy(c.shape, shape, (size_t)ndim * sizeof(shape[0]));
    return cairn__apply(CAIRN__OP_CUSTOM, count, inputs, &c, sizeof(c));
out:
    return NULL;
}
