/* Operations of other rooms: their common row, and the part of nn that they may use (hooks.h). */
#include <string.h>

#include "core/status.h"
#include "nn/module.h"
#include "nn/ops.h"

static const struct cairn__guest_op *op_of(const void *attrs) {
    return ((const struct cairn__guest *)attrs)->op;
}

static const char *own_name(const void *attrs) {
    return op_of(attrs)->name;
}

static cairn_status infer(const struct cairn__node *node) {
    return op_of(node->attrs)->infer(node);
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    return op_of(node->attrs)->forward(tape, node);
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return op_of(node->attrs)->backward(tape, node, dy);
}

static bool reads(const struct cairn__node *node, int i) {
    (void)i;
    return !op_of(node->attrs)->reads_nothing;
}

static const struct cairn__op_row row = {
    .infer = infer, .forward = forward, .backward = backward, .reads = reads, .own_name = own_name};
static const struct cairn__op_row row_that_keeps_types = {.keeps_types = true,
                                                          .infer = infer,
                                                          .forward = forward,
                                                          .backward = backward,
                                                          .reads = reads,
                                                          .own_name = own_name};

cairn_tensor *cairn__apply_guest(const struct cairn__guest *attrs, size_t nbytes, int count,
                                 cairn_tensor *const *inputs) {
    const struct cairn__op_row *own = attrs->op->keeps_types ? &row_that_keeps_types : &row;
    return cairn__apply(CAIRN__OP_GUEST, own, count, inputs, attrs, nbytes);
}

/* ---- what they may use ---- */

const void *cairn__node_attrs(const struct cairn__node *node) {
    return node->attrs;
}

int cairn__node_count(const struct cairn__node *node) {
    return node->count;
}

cairn_tensor *cairn__node_input(const struct cairn__node *node, int i) {
    return node->inputs[i];
}

cairn_tensor *cairn__node_result(const struct cairn__node *node) {
    return node->result;
}

struct cairn_device *cairn__node_device(const struct cairn__node *node) {
    return node->inputs[0]->env->device;
}

cairn_status cairn__infer_scalar_of(const struct cairn__node *node, cairn_dtype dtype) {
    node->result->dtype = dtype;
    return cairn__infer_scalar(node);
}

cairn_status cairn__infer_as(const struct cairn__node *node, cairn_dtype dtype, int ndim, const int64_t *shape) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_dtype(cairn__node_name(node), dtype));
    TRY(cairn__check_shape(cairn__node_name(node), ndim, shape));
    node->result->dtype = dtype;
    node->result->ndim = ndim;
    if (ndim > 0) memcpy(node->result->shape, shape, (size_t)ndim * sizeof(shape[0]));
out:
    return st;
}

const struct cairn__loss_scale *cairn__tensor_loss_scale(const cairn_tensor *t) {
    return t->loss_scale;
}

void cairn__node_set_loss_scale(const struct cairn__node *node, const struct cairn__loss_scale *cell) {
    node->result->loss_scale = cell;
}

void *cairn__tensor_values(const cairn_tensor *t) {
    return cairn__tensor_data(t);
}

const struct cairn__param *cairn__tensor_param(const cairn_tensor *t) {
    const cairn_tensor *shown = t->param || !t->shows ? t : t->shows;
    return shown->param;
}

bool cairn__tensor_wants_grad(const cairn_tensor *t) {
    return cairn__wants_grad(t);
}

bool cairn__backward_starts_at(const struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const cairn_tensor *x = node->inputs[0];
    return dy == cairn__tape_one(tape, CAIRN_F32) && x->kind == CAIRN__RESULT && x->uses == 1;
}

bool cairn__backward_retains(const struct cairn__tape *tape) {
    return tape->root->retain;
}

const void *cairn__leaf_grad(const cairn_tensor *leaf) {
    return leaf->has_grad ? leaf->grad : NULL;
}

uint64_t cairn__results_number(const cairn_env *env) {
    return cairn__tape_of(env)->root->generation;
}

static void list_handles(const cairn_module *m, cairn_tensor **list, size_t count) {
    for (size_t i = 0; i < m->num_handles; i++) list[count - 1 - m->handles[i]->param->index] = m->handles[i];
    for (size_t i = 0; i < m->num_children; i++) list_handles(m->children[i], list, count);
}

cairn_status cairn__module_handles(const cairn_module *root, cairn_tensor ***out, size_t *count) {
    cairn_status st = CAIRN_OK;
    *count = root->params->count;
    TRY(cairn__tape_room(cairn__tape_of(root->env), *count * sizeof(**out), (void **)out));
    list_handles(root, *out, *count);
out:
    return st;
}
