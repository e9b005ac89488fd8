/* The one way through which every operation goes: look at the inputs, choose the type, cast, infer, compute, record. */
#include "nn/ops.h"

#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

static const struct cairn__op_row *const rows[CAIRN__NUM_OPS] = {
    [CAIRN__OP_LINEAR] = &cairn__op_linear,
    [CAIRN__OP_ADD] = &cairn__op_add,
    [CAIRN__OP_MUL_SCALAR] = &cairn__op_mul_scalar,
    [CAIRN__OP_RELU] = &cairn__op_relu,
    [CAIRN__OP_SUM] = &cairn__op_sum,
    [CAIRN__OP_MEAN] = &cairn__op_mean,
    [CAIRN__OP_MSE_LOSS] = &cairn__op_mse_loss,
    [CAIRN__OP_CAST] = &cairn__op_cast,
    [CAIRN__OP_SCALE_LOSS] = &cairn__op_scale_loss,
};

static const char *const names[CAIRN__NUM_OPS] = {
#define CAIRN__X(op, name) [op] = name,
    CAIRN__OP_LIST(CAIRN__X)
#undef CAIRN__X
};

const struct cairn__op_row *cairn__op_row(enum cairn__op op) {
    return rows[op];
}

const char *cairn__op_name(enum cairn__op op) {
    return (unsigned)op < CAIRN__NUM_OPS ? names[op] : "?";
}

cairn_status cairn__set_op_hook(cairn_env *env, const struct cairn__op_hook *hook) {
    REQUIRE(!env->tape->main->hook.compute_type, CAIRN_ESTATE,
            "this environment's operations have a cast policy already; end its context or use another environment");
    env->tape->main->hook = *hook;
    return CAIRN_OK;
}

void cairn__clear_op_hook(cairn_env *env) {
    env->tape->main->hook = (struct cairn__op_hook){.compute_type = NULL};
}

/* ---- shapes that several rows share ---- */

static cairn_status take_shape(cairn_tensor *result, const cairn_tensor *like) {
    result->ndim = like->ndim;
    memcpy(result->shape, like->shape, sizeof(result->shape));
    return CAIRN_OK;
}

cairn_status cairn__infer_like_first(const struct cairn__node *node) {
    return take_shape(node->result, node->inputs[0]);
}

cairn_status cairn__infer_scalar(const struct cairn__node *node) {
    node->result->ndim = 0;
    return CAIRN_OK;
}

cairn_status cairn__infer_equal_shapes(const struct cairn__node *node) {
    char a[CAIRN__SHAPE_TEXT], b[CAIRN__SHAPE_TEXT];
    REQUIRE(cairn__same_shape(node->inputs[0], node->inputs[1]), CAIRN_EINVAL, "%s: shapes %s and %s differ",
            cairn__op_name(node->op), cairn__shape_text(node->inputs[0], a), cairn__shape_text(node->inputs[1], b));
    return take_shape(node->result, node->inputs[0]);
}

/* ---- the type of an operation ---- */

static cairn_dtype widest(const cairn_dtype *types, int count) {
    for (int i = 1; i < count; i++) {
        if (types[i] != types[0]) return CAIRN_F32; /* f16 and bf16 hold each other's values only there */
    }
    return types[0];
}

/* 0 = the inputs' own. */
static cairn_dtype choose_type(struct cairn__tape *tape, enum cairn__op op, const struct cairn__op_args *args) {
    cairn_dtype types[CAIRN__MAX_INPUTS], chosen = (cairn_dtype)0;
    if (op == CAIRN__OP_CAST || op == CAIRN__OP_SCALE_LOSS) return chosen;
    for (int i = 0; i < args->count; i++) types[i] = cairn__tensor_dtype(args->inputs[i]);
    const struct cairn__op_hook *hook = &tape->main->hook;
    if (hook->compute_type) chosen = hook->compute_type(hook->ctx, op, types, args->count);
    return chosen || !rows[op]->promotes ? chosen : widest(types, args->count);
}

/* Changes whenever the weights may have: both counts only grow. */
static uint64_t version_of(const cairn_tensor *t) {
    return t->param->version + t->env->replays;
}

static cairn_status refresh_cast(const cairn_tensor *t, struct cairn__param_cast *c, cairn_dtype dtype) {
    const struct cairn__param *p = t->param;
    const size_t nbytes = p->n * cairn_dtype_nbytes(dtype);
    if (!c->data || nbytes > c->nbytes) {
        void *data = NULL;
        cairn_status st = cairn__device_alloc(t->env->device, CAIRN__HOLDS_CASTS, nbytes, &data);
        if (st != CAIRN_OK) return st;
        cairn__device_free(t->env->device, c->data);
        c->data = data;
        c->nbytes = nbytes;
    }
    cairn__pass_cast(t->env->device->passes, t->env->device, c->data, dtype, p->data, p->dtype, p->n);
    c->dtype = dtype;
    c->version = version_of(t);
    c->result = NULL;
    return CAIRN_OK;
}

/* A parameter is cast once until its weights change; the copy outlives the step, its node does not. Where weights change
 * within a step, a backward may still wait for the copy as it is, and the new one is a result like any other. */
static cairn_tensor *cast_param(struct cairn__tape *tape, cairn_tensor *t, cairn_dtype dtype) {
    struct cairn__param_cast *c = &t->cast;
    const uint64_t version = version_of(t);
    const bool is_of_step = c->result && c->generation == tape->generation;
    if (is_of_step && c->result->dtype == dtype && c->result_version == version) return c->result;
    cairn_tensor *result = NULL;
    if (is_of_step) {
        result = cairn_cast(t, dtype);
    } else {
        const bool is_current = c->data && c->dtype == dtype && c->version == version;
        if (!is_current && refresh_cast(t, c, dtype) != CAIRN_OK) return NULL;
        result = cairn__apply(CAIRN__OP_CAST,
                              &(struct cairn__op_args){.count = 1, .inputs = {t}, .dtype = dtype, .data = c->data});
    }
    if (!result) return NULL;
    c->result = result;
    c->result_version = version;
    c->generation = tape->generation;
    return result;
}

static cairn_tensor *in_type(struct cairn__tape *tape, cairn_tensor *t, cairn_dtype dtype) {
    if (!dtype || cairn__tensor_dtype(t) == dtype) return t;
    return t->param ? cast_param(tape, t, dtype) : cairn_cast(t, dtype);
}

/* ---- applying ---- */

static cairn_status check_inputs(enum cairn__op op, const struct cairn__op_args *args) {
    for (int i = 0; i < args->count; i++) {
        cairn_status st = cairn__tensor_check(args->inputs[i], names[op]);
        if (st != CAIRN_OK) return st;
        REQUIRE(args->inputs[i]->env == args->inputs[0]->env, CAIRN_EINVAL,
                "%s: the tensors belong to different environments", names[op]);
        REQUIRE(cairn__is_at_hand(args->inputs[i]), CAIRN_ESTATE,
                "%s: the tensor was made by another step, a graph's or what runs beside it; cairn_tensor_keep makes a "
                "copy for all",
                names[op]);
    }
    return CAIRN_OK;
}

/* The scale of a loss goes with it, so that backward can tell every parameter it reaches. What is scaled is told by the
 * cell: the scales themselves are known on the device alone. */
static cairn_status inherit_scale(const struct cairn__node *node) {
    const cairn_tensor *first = NULL;
    for (int i = 0; i < node->count; i++) {
        const cairn_tensor *x = node->inputs[i];
        if (!x->wants_grad) continue;
        if (!first) first = x;
        REQUIRE(
            x->loss_scale == first->loss_scale, CAIRN_EINVAL,
            "%s: one input is a scaled loss and another is not, or is scaled by another call; combine losses first, "
            "then scale",
            names[node->op]);
    }
    node->result->loss_scale = first ? first->loss_scale : NULL;
    return CAIRN_OK;
}

static cairn_status make_node(struct cairn__tape *tape, enum cairn__op op, const struct cairn__op_args *args,
                              struct cairn__node **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__node *node = NULL;
    TRY(cairn__tape_new_node(tape, &node));
    TRY(cairn__tape_new_result(tape, &node->result));
    node->op = op;
    node->scalar = (float)args->scalar;
    node->scaler = args->scaler;
    node->cell = args->cell;
    node->count = args->count;
    const cairn_dtype type = choose_type(tape, op, args);
    for (int i = 0; i < args->count; i++) {
        node->inputs[i] = in_type(tape, args->inputs[i], type);
        if (!node->inputs[i]) return cairn__last_status();
        node->result->wants_grad |= node->inputs[i]->wants_grad;
    }
    TRY(inherit_scale(node));
    node->result->dtype = op == CAIRN__OP_CAST ? args->dtype : cairn__tensor_dtype(node->inputs[0]);
    TRY(rows[op]->infer(node));
    node->result->n = 1;
    for (int d = 0; d < node->result->ndim; d++) node->result->n *= (size_t)node->result->shape[d];
    *out = node;
out:
    return st;
}

static cairn_status compute(struct cairn__tape *tape, struct cairn__node *node, const void *made) {
    cairn_tensor *y = node->result;
    if (made) {
        y->data = (void *)(uintptr_t)made; /* a parameter's kept cast: read only from here on */
        return CAIRN_OK;
    }
    cairn_status st = cairn__arena_alloc(&tape->values, y->n * cairn_dtype_nbytes(y->dtype), &y->data);
    return st == CAIRN_OK ? rows[node->op]->forward(tape, node) : st;
}

cairn_tensor *cairn__apply(enum cairn__op op, const struct cairn__op_args *args) {
    cairn_status st = CAIRN_OK;
    struct cairn__node *node = NULL;
    for (int i = 0; i < args->count; i++) {
        if (args->inputs[i]) continue;
        if (cairn__last_status() == CAIRN_OK) (void)cairn__fail(CAIRN_EINVAL, "%s: input %d is NULL", names[op], i);
        return NULL;
    }
    struct cairn__tape *tape = args->inputs[0]->env->tape;
    TRY(check_inputs(op, args));
    TRY(make_node(tape, op, args, &node));
    TRY(compute(tape, node, args->data));
    if (!node->result->wants_grad) return node->result;
    TRY(cairn__tape_record(tape, node));
    node->result->node = node;
    return node->result;
out:
    return NULL;
}
