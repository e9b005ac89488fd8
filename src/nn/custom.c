/* Operations of the user: they get and return arrays in device memory. */
#include "core/options.h"
#include "core/status.h"
#include "nn/ops.h"

/* The arrays of views that the user's functions get. A view has the size that the functions were compiled with. The
 * arrays are in host memory on any device and live as long as the node. */
struct views {
    void *x, *dx, *y, *dy;
    void **grads; /* [count] dx[i].data */
};

struct custom {
    struct cairn_custom_op op;
    void *ctx;
    cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    size_t array_nbytes; /* size of struct cairn_custom_array as the user's functions were compiled */
    struct views views;
};

static const struct custom *custom_of(const struct cairn__node *node) {
    return node->attrs;
}

static const char *own_name(const void *attrs) {
    return ((const struct custom *)attrs)->op.name;
}

static void show(const struct custom *c, void *array, int i, const cairn_tensor *t, void *data) {
    const struct cairn_custom_array own = {
        .data = data, .dtype = cairn__tensor_dtype(t), .ndim = t->ndim, .shape = t->shape, .n = t->n};
    cairn__element_write(array, c->array_nbytes, (size_t)i, &own, sizeof(own));
}

static cairn_status make_views(struct cairn__tape *tape, size_t count, size_t nbytes, struct views *out) {
    char *memory = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tape_room(tape, (2 * count + 2) * nbytes + count * sizeof(void *), (void **)&memory));
    *out = (struct views){.x = memory,
                          .dx = memory + count * nbytes,
                          .y = memory + 2 * count * nbytes,
                          .dy = memory + (2 * count + 1) * nbytes,
                          .grads = (void **)(void *)(memory + (2 * count + 2) * nbytes)};
out:
    return st;
}

static void show_values(const struct cairn__node *node) {
    const struct custom *c = custom_of(node);
    for (int i = 0; i < node->count; i++) show(c, c->views.x, i, node->inputs[i], cairn__tensor_data(node->inputs[i]));
    show(c, c->views.y, 0, node->result, node->result->data);
}

static cairn_status check_call(const struct custom *c, const char *which, cairn_status st) {
    if (st == CAIRN_OK) return CAIRN_OK;
    return cairn__fail(st, "%s: its %s returned %s", c->op.name, which, cairn_status_name(st));
}

static bool has_backward(const struct cairn_custom_op *op, const struct cairn_device *d) {
    return cairn__is_on_host(d) ? op->backward != NULL : op->backward_cuda != NULL;
}

static cairn_status infer(const struct cairn__node *node) {
    const struct custom *c = custom_of(node);
    const struct cairn_custom_op *op = &c->op;
    const struct cairn_device *d = node->result->env->device;
    node->result->dtype = c->dtype;
    node->result->ndim = c->ndim;
    memcpy(node->result->shape, c->shape, sizeof(c->shape));
    /* An op that has a backward, but none for this device, would silently train nothing. */
    REQUIRE(has_backward(op, d) || (!op->backward && !op->backward_cuda) || !node->result->wants_grad, CAIRN_ENOTSUP,
            "%s: an input requires a gradient, and there is no backward for '%s'; set %s", op->name,
            cairn_device_name(d), cairn__is_on_host(d) ? "backward" : "backward_cuda");
    node->result->wants_grad &= has_backward(op, d);
    return CAIRN_OK;
}

/* On a GPU the user's functions get the stream, with the GPU set as the calling thread's current device. */
static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct custom *c = custom_of(node);
    const struct views *v = &c->views;
    struct cairn_device *d = tape->env->device;
    show_values(node);
    const cairn_status st = cairn__is_on_host(d)
                                ? c->op.forward(c->ctx, v->y, v->x, node->count)
                                : c->op.forward_cuda(c->ctx, v->y, v->x, node->count, d->ops->stream(d));
    return check_call(c, "forward", st);
}

/* Parameters first, as in every backward: so their gradients are ready, and can be reduced, as early as possible. */
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
    const struct views *v = &c->views;
    struct cairn_device *d = tape->env->device;
    void **const grads = v->grads;
    cairn_status st = CAIRN_OK;
    show_values(node);
    show(c, v->dy, 0, node->result, (void *)(uintptr_t)dy);
    for (int i = 0; i < node->count; i++) {
        grads[i] = NULL;
        if (cairn__wants_grad(node->inputs[i])) TRY(cairn__tensor_grad_begin(tape, node->inputs[i], &grads[i]));
        show(c, v->dx, i, node->inputs[i], grads[i]);
    }
    st = cairn__is_on_host(d) ? c->op.backward(c->ctx, v->dx, v->dy, v->y, v->x, node->count)
                              : c->op.backward_cuda(c->ctx, v->dx, v->dy, v->y, v->x, node->count, d->ops->stream(d));
    TRY(check_call(c, "backward", st));
    TRY(hand_on(tape, node, grads, true));
    TRY(hand_on(tape, node, grads, false));
out:
    return st;
}

static const struct cairn__op_row row = {
    .needs_math = true, .infer = infer, .forward = forward, .backward = backward, .own_name = own_name};

static cairn_status check_forward(const struct cairn_custom_op *op, const struct cairn_device *d) {
    const bool is_on_host = cairn__is_on_host(d);
    REQUIRE(is_on_host || op->forward_cuda, CAIRN_ENOTSUP,
            "%s: its functions are given memory of the CPU, and '%s' has its own; set forward_cuda, or use device "
            "\"cpu\"",
            op->name, cairn_device_name(d));
    REQUIRE(!is_on_host || op->forward, CAIRN_ENOTSUP,
            "%s: its functions are given memory of a GPU, and '%s' has none; set forward too", op->name,
            cairn_device_name(d));
    return CAIRN_OK;
}

cairn_tensor *cairn_custom_sized(size_t array_nbytes, const struct cairn_custom_op *op, void *ctx, cairn_dtype dtype,
                                 int ndim, const int64_t *shape, cairn_tensor *const *inputs, int count) {
    struct custom c = {
        .op.struct_size = sizeof(c.op), .ctx = ctx, .dtype = dtype, .ndim = ndim, .array_nbytes = array_nbytes};
    cairn_status st = CAIRN_OK;
    TRY(cairn__element_check(array_nbytes, "cairn_custom_array"));
    TRY(cairn__options_read(&c.op, sizeof(c.op), op, "cairn_custom_op"));
    if ((!c.op.forward && !c.op.forward_cuda) || !c.op.name || !inputs || count < 1) {
        cairn__fail(CAIRN_EINVAL, "custom: name, forward and at least one input must be set");
        return NULL;
    }
    if (inputs[0]) TRY(check_forward(&c.op, inputs[0]->env->device));
    TRY(cairn__check_dtype(c.op.name, dtype));
    TRY(cairn__check_shape(c.op.name, ndim, shape));
    if (ndim > 0) memcpy(c.shape, shape, (size_t)ndim * sizeof(shape[0]));
    if (inputs[0]) TRY(make_views(cairn__tape_of(inputs[0]->env), (size_t)count, array_nbytes, &c.views));
    return cairn__apply(CAIRN__OP_CUSTOM, &row, count, inputs, &c, sizeof(c));
out:
    return NULL;
}

cairn_tensor *(cairn_custom)(const struct cairn_custom_op *op, void *ctx, cairn_dtype dtype, int ndim,
                             const int64_t *shape, cairn_tensor *const *inputs, int count) {
    return cairn_custom_sized(CAIRN__SIZE_THROUGH(struct cairn_custom_array, n), op, ctx, dtype, ndim, shape, inputs,
                              count);
}
