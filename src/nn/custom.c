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
    size_t array_nbytes; /* of struct cairn_custom_array, as the user's functions have it */
};

/* What the user's functions are given: arrays whose elements have the size that they were compiled with. */
struct views {
    void *x, *dx, *y, *dy;
    void **grads; /* [count] dx[i].data */
};

static const struct custom *custom_of(const struct cairn__node *node) {
    return node->attrs;
}

static const char *own_name(const void *attrs) {
    return ((const struct custom *)attrs)->op.name;
}

static struct cairn_custom_array array_of(const cairn_tensor *t, void *data) {
    return (struct cairn_custom_array){
        .data = data, .dtype = cairn__tensor_dtype(t), .ndim = t->ndim, .shape = t->shape, .n = t->n};
}

static void show(const struct custom *c, void *array, int i, const cairn_tensor *t, void *data) {
    const struct cairn_custom_array own = array_of(t, data);
    cairn__element_write(array, c->array_nbytes, (size_t)i, &own, sizeof(own));
}

/* Inputs and result are filled in; of the gradients there is room. */
static cairn_status views_of(struct cairn__tape *tape, const struct cairn__node *node, struct views *out) {
    const struct custom *c = custom_of(node);
    const size_t count = (size_t)node->count, nbytes = c->array_nbytes;
    char *memory = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__scratch(tape, (2 * count + 2) * nbytes + count * sizeof(void *), (void **)&memory));
    *out = (struct views){.x = memory,
                          .dx = memory + count * nbytes,
                          .y = memory + 2 * count * nbytes,
                          .dy = memory + (2 * count + 1) * nbytes,
                          .grads = (void **)(void *)(memory + (2 * count + 2) * nbytes)};
    for (int i = 0; i < node->count; i++) show(c, out->x, i, node->inputs[i], cairn__tensor_data(node->inputs[i]));
    show(c, out->y, 0, node->result, node->result->data);
out:
    return st;
}

static cairn_status check_call(const struct custom *c, const char *which, cairn_status st) {
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
    struct views v;
    cairn_status st = CAIRN_OK;
    TRY(views_of(tape, node, &v));
    TRY(check_call(c, "forward", c->op.forward(c->ctx, v.y, v.x, node->count)));
out:
    return st;
}

/* Parameters first, also here: gradients are ready in this order. */
static cairn_status hand_on(struct cairn__tape *tape, const struct cairn__node *node, void *const *grads, bool params) {
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < node->count; i++) {
        if (grads[i] && (node->inputs[i]->kind == CAIRN__PARAM) == params)
            TRY(cairn__tensor_grad_end(tape, node->inputs[i], grads[i]));
    }
out:
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const struct custom *c = custom_of(node);
    struct views v;
    cairn_status st = CAIRN_OK;
    TRY(views_of(tape, node, &v));
    show(c, v.dy, 0, node->result, (void *)(uintptr_t)dy);
    for (int i = 0; i < node->count; i++) {
        v.grads[i] = NULL;
        if (cairn__wants_grad(node->inputs[i])) TRY(cairn__tensor_grad_begin(tape, node->inputs[i], &v.grads[i]));
        show(c, v.dx, i, node->inputs[i], v.grads[i]);
    }
    TRY(check_call(c, "backward", c->op.backward(c->ctx, v.dx, v.dy, v.y, v.x, node->count)));
    TRY(hand_on(tape, node, v.grads, true));
    TRY(hand_on(tape, node, v.grads, false));
out:
    return st;
}

static const struct cairn__op_row row = {
    .needs_math = true, .infer = infer, .forward = forward, .backward = backward, .own_name = own_name};

static cairn_status check_memory(const char *name, const struct cairn_device *device) {
    REQUIRE(cairn__is_on_host(device), CAIRN_ENOTSUP,
            "%s: its functions are given memory of the CPU, and '%s' has its own; use device \"cpu\"", name,
            cairn_device_name(device));
    return CAIRN_OK;
}

cairn_tensor *cairn_custom_sized(size_t array_nbytes, const struct cairn_custom_op *op, void *ctx, cairn_dtype dtype,
                                 int ndim, const int64_t *shape, cairn_tensor *const *inputs, int count) {
    struct custom c = {
        .op.struct_size = sizeof(c.op), .ctx = ctx, .dtype = dtype, .ndim = ndim, .array_nbytes = array_nbytes};
    cairn_status st = CAIRN_OK;
    TRY(cairn__element_check(array_nbytes, "cairn_custom_array"));
    TRY(cairn__options_read(&c.op, sizeof(c.op), op, "cairn_custom_op"));
    if (!c.op.forward || !c.op.name || !inputs || count < 1) {
        cairn__fail(CAIRN_EINVAL, "custom: name, forward and at least one input must be set");
        return NULL;
    }
    if (inputs[0]) TRY(check_memory(c.op.name, inputs[0]->env->device));
    TRY(cairn__check_dtype(c.op.name, dtype));
    TRY(cairn__check_shape(c.op.name, ndim, shape));
    if (ndim > 0) memcpy(c.shape, shape, (size_t)ndim * sizeof(shape[0]));
    return cairn__apply(CAIRN__OP_CUSTOM, &row, count, inputs, &c, sizeof(c));
out:
    return NULL;
}

cairn_tensor *(cairn_custom)(const struct cairn_custom_op *op, void *ctx, cairn_dtype dtype, int ndim,
                             const int64_t *shape, cairn_tensor *const *inputs, int count) {
    return cairn_custom_sized(CAIRN__SIZE_THROUGH(struct cairn_custom_array, n), op, ctx, dtype, ndim, shape, inputs,
                              count);
}
