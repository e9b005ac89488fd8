/* Applies every operation: checks the inputs, chooses the type, casts, infers, computes, records. */
#include "nn/backward.h"

#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

void cairn__set_op_hook(cairn_env *env, const struct cairn__op_hook *hook) {
    cairn__tape_of(env)->main->hook = *hook;
}

void *cairn__op_hook_ctx(const cairn_env *env) {
    return cairn__tape_of(env)->main->hook.ctx;
}

/* ---- infer functions shared by several rows ---- */

cairn_status cairn__infer_like_first(const struct cairn__node *node) {
    cairn_tensor *y = node->result;
    y->ndim = node->inputs[0]->ndim;
    memcpy(y->shape, node->inputs[0]->shape, sizeof(y->shape));
    return CAIRN_OK;
}

cairn_status cairn__infer_scalar(const struct cairn__node *node) {
    node->result->ndim = 0;
    return CAIRN_OK;
}

cairn_status cairn__dim_of(enum cairn__op op, int ndim, int dim, int *out) {
    REQUIRE(dim >= -ndim && dim < ndim, CAIRN_EINVAL, "%s: dimension %d of a tensor with %d dimensions",
            cairn__op_name(op), dim, ndim);
    *out = dim < 0 ? dim + ndim : dim;
    return CAIRN_OK;
}

struct cairn__view cairn__view_broadcast(const struct cairn__view *v, int ndim, const int64_t *shape) {
    struct cairn__view b = {.data = v->data, .dtype = v->dtype, .ndim = ndim};
    const int more = ndim - v->ndim;
    for (int d = 0; d < ndim; d++) {
        const bool is_own = d >= more && v->size[d - more] == shape[d];
        b.size[d] = shape[d];
        b.stride[d] = is_own ? v->stride[d - more] : 0;
    }
    return b;
}

/* Sizes are aligned at the last dimension; a size of 1 is repeated. */
cairn_status cairn__infer_broadcast(const struct cairn__node *node) {
    cairn_tensor *y = node->result;
    char text_a[CAIRN__SHAPE_TEXT], text_b[CAIRN__SHAPE_TEXT];
    y->ndim = 0;
    for (int i = 0; i < node->count; i++) {
        if (node->inputs[i] && node->inputs[i]->ndim > y->ndim) y->ndim = node->inputs[i]->ndim;
    }
    for (int d = 1; d <= y->ndim; d++) {
        const cairn_tensor *from = NULL; /* the input that set the size */
        int64_t size = 1;
        for (int i = 0; i < node->count; i++) {
            const cairn_tensor *x = node->inputs[i];
            if (!x || d > x->ndim || x->shape[x->ndim - d] == 1) continue;
            REQUIRE(!from || x->shape[x->ndim - d] == size, CAIRN_EINVAL,
                    "%s: %s and %s do not broadcast: sizes %lld and %lld in dimension %d", cairn__node_name(node),
                    cairn__shape_text(from, text_a), cairn__shape_text(x, text_b), (long long)size,
                    (long long)x->shape[x->ndim - d], -d);
            from = x;
            size = x->shape[x->ndim - d];
        }
        y->shape[y->ndim - d] = size;
    }
    return CAIRN_OK;
}

/* ---- the type of an operation ---- */

/* The widest of f16 and bf16 is f32: neither holds the other's values. */
static cairn_dtype widest(const cairn_dtype *types, int count) {
    cairn_dtype wide = types[0];
    for (int i = 1; i < count; i++) {
        if (types[i] == wide) continue;
        wide = types[i] == CAIRN_F64 || wide == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
    }
    return wide;
}

/* *out: the type that float inputs are cast to, chosen by the op hook or else by the row; 0 = no cast. A view computes
 * nothing, so the hook is not called for it. */
static cairn_status choose_type(struct cairn__tape *tape, const struct cairn__node *node, cairn_tensor *const *inputs,
                                cairn_dtype *out) {
    const struct cairn__op_hook *hook = &tape->main->hook;
    cairn_dtype *types = NULL;
    int floats = 0;
    *out = (cairn_dtype)0;
    if (node->row->keeps_types) return CAIRN_OK;
    const bool in_place = tape->in_place && cairn__is_float(cairn__tensor_dtype(inputs[0]));
    tape->in_place = false; /* in_place is about this operation, not about casts of its inputs */
    cairn_status st = CAIRN_OK;
    TRY(cairn__tape_room(tape, (size_t)node->count * sizeof(types[0]), (void **)&types));
    for (int i = 0; i < node->count; i++) {
        if (inputs[i] && cairn__is_float(cairn__tensor_dtype(inputs[i])))
            types[floats++] = cairn__tensor_dtype(inputs[i]);
    }
    if (floats == 0) return CAIRN_OK;
    if (hook->compute_type && !node->row->view) {
        const struct cairn__op_question question = {
            .op = node->op, .name = cairn__node_name(node), .inputs = types, .count = floats, .in_place = in_place};
        TRY(hook->compute_type(hook->ctx, &question, out));
    }
    if (!*out && node->row->promotes) *out = widest(types, floats);
out:
    return st;
}

/* ---- applying ---- */

cairn_status cairn__require_math(const struct cairn__tape *tape, enum cairn__op op) {
    REQUIRE(tape->env->device->math, CAIRN_ENOTSUP, "%s: '%s' does not compute it yet; use device \"cpu\"",
            cairn__op_name(op), cairn_device_name(tape->env->device));
    return CAIRN_OK;
}

/* A NULL input makes the result NULL and keeps the error that made the input NULL. *env: the first tensor's. */
static cairn_status check_inputs(enum cairn__op op, const struct cairn__op_row *row, const char *name, int count,
                                 cairn_tensor *const *inputs, cairn_env **env) {
    cairn_status st = CAIRN_OK;
    *env = NULL;
    for (int i = 0; i < count; i++) {
        if (inputs[i]) {
            if (!*env) *env = inputs[i]->env;
        } else if (i >= 32 || (row->optional >> i & 1) == 0) {
            const cairn_status earlier = cairn__last_status();
            return earlier != CAIRN_OK ? earlier : cairn__fail(CAIRN_EINVAL, "%s: input %d is NULL", name, i);
        }
    }
    REQUIRE(*env, CAIRN_EINVAL, "%s: no input is given", name);
    for (int i = 0; i < count; i++) {
        if (!inputs[i]) continue;
        TRY(cairn__tensor_check(inputs[i], name));
        REQUIRE(inputs[i]->env == *env, CAIRN_EINVAL, "%s: the tensors belong to different environments", name);
        REQUIRE(cairn__is_at_hand(inputs[i]) || !cairn__tape_of(*env)->outer, CAIRN_ESTATE,
                "%s: the tensor was made outside the checkpoint; pass it as one of the checkpoint's inputs", name);
        REQUIRE(cairn__is_at_hand(inputs[i]), CAIRN_ESTATE,
                "%s: the tensor was made on another tape, inside a captured graph or outside of it; use a copy "
                "(cairn_tensor_keep)",
                name);
    }
    if (row->needs_math) TRY(cairn__require_math(cairn__tape_of(*env), op));
out:
    return st;
}

/* A result inherits the loss scale of its inputs, so that backward can pass it to every parameter set it reaches. The
 * check for different scales compares cells, since only the device knows the scales. */
static cairn_status inherit_scale(const struct cairn__node *node) {
    const cairn_tensor *first = NULL;
    for (int i = 0; i < node->count; i++) {
        const cairn_tensor *x = node->inputs[i];
        if (!cairn__wants_grad(x)) continue;
        if (!first) first = x;
        REQUIRE(x->loss_scale == first->loss_scale, CAIRN_EINVAL,
                "%s: one input is a scaled loss and another is not, or was scaled by another call; combine losses "
                "before scaling",
                cairn__node_name(node));
    }
    node->result->loss_scale = first ? first->loss_scale : NULL;
    return CAIRN_OK;
}

/* The type that a result has before infer: its first float input's. */
static cairn_dtype first_type(const struct cairn__node *node) {
    const cairn_tensor *first = NULL;
    for (int i = 0; i < node->count; i++) {
        const cairn_tensor *x = node->inputs[i];
        if (x && cairn__is_float(cairn__tensor_dtype(x))) return cairn__tensor_dtype(x);
        if (x && !first) first = x;
    }
    return cairn__tensor_dtype(first);
}

/* Detaches frozen parameters: if one is thawed before backward, it must get no gradient from this graph, which has not
 * kept what that gradient needs. A checkpoint's function gets its inputs undetached in both runs. */
static cairn_status detach_frozen(struct cairn__node *node) {
    for (int i = 0; i < node->count; i++) {
        const cairn_tensor *x = node->inputs[i];
        if (!x || !x->param || cairn__wants_grad(x)) continue;
        node->inputs[i] = cairn_detach(node->inputs[i]);
        if (!node->inputs[i]) return cairn__last_status();
    }
    return CAIRN_OK;
}

static cairn_status take_inputs(struct cairn__tape *tape, struct cairn__node *node, cairn_tensor *const *inputs) {
    cairn_dtype type;
    cairn_status st = CAIRN_OK;
    TRY(choose_type(tape, node, inputs, &type));
    for (int i = 0; i < node->count; i++) {
        if (!inputs[i]) continue;
        node->inputs[i] = cairn__prepare_input(tape, node->row, inputs[i], type);
        if (!node->inputs[i]) return cairn__last_status();
        node->result->wants_grad |= cairn__wants_grad(node->inputs[i]);
    }
    node->result->wants_grad &= node->row->backward != NULL && tape->no_grad.depth == 0;
    node->result->dtype = first_type(node);
    if (node->result->wants_grad && node->op != CAIRN__OP_CHECKPOINT) TRY(detach_frozen(node));
out:
    return st;
}

/* Broadcasting small inputs can make a result too large for any memory, and for size_t. */
static cairn_status check_size(const struct cairn__node *node) {
    const cairn_tensor *y = node->result;
    char text[CAIRN__SHAPE_TEXT];
    size_t n = 1;
    for (int d = 0; d < y->ndim; d++) {
        if (y->shape[d] == 0) continue; /* strides must fit even where a size is 0 */
        REQUIRE(n <= (size_t)INT64_MAX / 16 / (size_t)y->shape[d], CAIRN_EINVAL,
                "%s: the result %s has more elements than memory can hold", cairn__node_name(node),
                cairn__shape_text(y, text));
        n *= (size_t)y->shape[d];
    }
    return CAIRN_OK;
}

cairn_status cairn__scratch(struct cairn__tape *tape, size_t nbytes, void **out) {
    return cairn__arena_alloc(&tape->scratch, nbytes, out);
}

cairn_status cairn__save(struct cairn__tape *tape, struct cairn__node *node, size_t nbytes) {
    node->saved_nbytes = nbytes;
    return cairn__tape_take(tape, nbytes, &node->saved);
}

static cairn_status compute(struct cairn__tape *tape, struct cairn__node *node, void *made) {
    cairn_tensor *y = node->result;
    if (node->row->view) return CAIRN_OK;
    if (made) {
        y->data = made; /* a parameter's kept cast, never written from here on */
        return CAIRN_OK;
    }
    cairn_status st = CAIRN_OK;
    TRY(cairn__tape_take(tape, y->n * cairn_dtype_nbytes(y->dtype), &y->data));
    y->owns_data = true;
    const struct cairn__arena_mark mark = cairn__arena_mark(&tape->scratch);
    st = node->row->forward(tape, node);
    cairn__arena_release(&tape->scratch, mark);
out:
    return st;
}

cairn_tensor *cairn__apply_made(enum cairn__op op, const struct cairn__op_row *row, int count,
                                cairn_tensor *const *inputs, const void *attrs, size_t attrs_nbytes, void *made) {
    cairn_status st = CAIRN_OK;
    struct cairn__node *node = NULL;
    cairn_env *env = NULL;
    cairn_tensor *instead = NULL;
    TRY(check_inputs(op, row, cairn__name_of(op, row, attrs), count, inputs, &env));
    struct cairn__tape *tape = cairn__tape_of(env);
    const struct cairn__op_hook *hook = &tape->main->hook;
    if (hook->replace && !row->keeps_types && !row->view) TRY(hook->replace(hook->ctx, op, count, inputs, &instead));
    if (instead) return instead;
    for (int i = 0; i < count; i++) cairn__note_use(inputs[i]);
    TRY(cairn__tape_new_node(tape, count, attrs, attrs_nbytes, &node));
    TRY(cairn__tape_new_result(tape, &node->result));
    node->op = op;
    node->row = row;
    TRY(take_inputs(tape, node, inputs));
    TRY(inherit_scale(node));
    TRY(row->infer(node));
    TRY(check_size(node));
    cairn_tensor *y = node->result;
    y->wants_grad &= cairn__is_float(y->dtype);
    if (!row->view) cairn__tensor_lay_out(y);
    if (row->view || made) y->shows = node->inputs[0]->kind == CAIRN__PARAM ? node->inputs[0] : node->inputs[0]->shows;
    TRY(compute(tape, node, made));
    TRY(cairn__check_result(tape, node));
    if (y->wants_grad) {
        TRY(cairn__tape_record(tape, node));
        y->node = node;
    }
    cairn__note_readers(node, inputs);
    return y;
out:
    return NULL;
}

cairn_tensor *cairn__apply(enum cairn__op op, const struct cairn__op_row *row, int count, cairn_tensor *const *inputs,
                           const void *attrs, size_t attrs_nbytes) {
    return cairn__apply_made(op, row, count, inputs, attrs, attrs_nbytes, NULL);
}
