/* Checkpoints trade time for memory.
 *
 * Forward: the function runs on a tape of its own, whose memory the next checkpoint reuses. Its result is copied out.
 * Of its graph only a list is kept: which outside tensors it reaches, and how often. Backward uses the list to count
 * contributions.
 *
 * Backward: at the checkpoint's node the function runs again, with the random streams and the choice of types of the
 * first run. The graph of that run is walked in place of the node. Its contributions go to the outside tensors one by
 * one, in the same order as without the checkpoint, so sums are the same bits and a parameter is ready once, after its
 * last use anywhere. (O1's cast of a parameter is not shared with the tape outside: the gradients of the two casts are
 * added in the parameter's type.)
 */
#include "core/status.h"
#include "nn/backward.h"

struct checkpoint {
    cairn_checkpoint_fn fn;
    void *ctx;
    uint64_t seed, stream;    /* the state of the random numbers before the function ran */
    uint64_t policy;          /* the op hook's, likewise */
    uint64_t trail;           /* hash of the operations it recorded */
    size_t recorded;          /* their number */
    struct cairn__tape *tape; /* the tape it ran on; used only while the node is being made */
    cairn_tensor *made;       /* the function's result; likewise */
};

static const struct checkpoint *checkpoint_of(const struct cairn__node *node) {
    return node->attrs;
}

/* ---- running the function ---- */

/* *out: t on the checkpoint's tape. Leaves and parameters may be used on any tape. */
static cairn_status bring_in(struct cairn__tape *inner, cairn_tensor *t, cairn_tensor **out) {
    *out = t;
    if (t->kind != CAIRN__RESULT) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tape_new_result(inner, out));
    cairn_tensor *x = *out;
    x->dtype = t->dtype;
    x->ndim = t->ndim;
    memcpy(x->shape, t->shape, sizeof(x->shape));
    memcpy(x->stride, t->stride, sizeof(x->stride));
    x->n = t->n;
    x->is_dense = t->is_dense;
    x->data = t->data;
    x->wants_grad = cairn__wants_grad(t);
    x->loss_scale = t->loss_scale;
    x->stands_for = cairn__tensor_grad_target(t);
    x->shows = t->shows;
out:
    return st;
}

static cairn_status check_made(const struct cairn__tape *inner, const cairn_tensor *made) {
    REQUIRE(!inner->refused_step, CAIRN_ESTATE,
            "checkpoint: the function called cairn_zero_grad, which would end its own step; no step was begun");
    if (!made && cairn__last_status() != CAIRN_OK) return cairn__last_status();
    REQUIRE(made, CAIRN_EINVAL, "checkpoint: the function returned NULL");
    REQUIRE(inner->no_grad.depth == 0, CAIRN_ESTATE,
            "checkpoint: the function returned between cairn_no_grad_begin and cairn_no_grad_end");
    REQUIRE(made->env == inner->env, CAIRN_EINVAL, "checkpoint: the function's result belongs to another environment");
    REQUIRE(
        made->kind != CAIRN__RESULT || made->tape == inner, CAIRN_ESTATE,
        "checkpoint: the function returned a tensor that was made outside the checkpoint and is not among its inputs");
    return cairn__tensor_check(made, "checkpoint");
}

/* Runs the function on tape's inner tape, and counts the outside tensors that its graph reaches. */
static cairn_status run(struct cairn__tape *tape, const struct checkpoint *c, int count, cairn_tensor *const *inputs,
                        struct cairn__tape **inner, cairn_tensor **made) {
    cairn_env *env = tape->env;
    cairn_status st = CAIRN_OK;
    cairn_tensor **inside = NULL;
    TRY(cairn__tape_enter(tape, inner));
    TRY(cairn__tape_room(*inner, (size_t)count * sizeof(inside[0]), (void **)&inside));
    for (int i = 0; i < count; i++) TRY(bring_in(*inner, inputs[i], &inside[i]));
    struct cairn__tape *const beside = cairn__tape_of(env);
    env->places[CAIRN__PLACE_OF_NN].at = *inner;
    *made = c->fn(c->ctx, inside, count);
    st = check_made(*inner, *made);
    if (st == CAIRN_OK && !(*made)->is_dense) {
        *made = cairn_contiguous(*made);
        if (!*made) st = cairn__last_status();
    }
    env->places[CAIRN__PLACE_OF_NN].at = beside;
    if (st == CAIRN_OK) st = cairn__backward_mark(*inner, *made);
out:
    return st;
}

static cairn_status run_again(struct cairn__tape *tape, const struct cairn__node *node, struct cairn__tape **inner,
                              cairn_tensor **made) {
    const struct checkpoint *c = checkpoint_of(node);
    cairn_env *env = tape->env;
    const struct cairn__op_hook *hook = &tape->main->hook;
    const uint64_t seed = env->seed, stream = env->next_stream;
    int scope = 0;
    cairn_status st = hook->resume ? hook->resume(hook->ctx, c->policy, &scope) : CAIRN_OK;
    if (st != CAIRN_OK) return st;
    env->seed = c->seed;
    env->next_stream = c->stream;
    st = run(tape, c, node->count, node->inputs, inner, made);
    env->seed = seed;
    env->next_stream = stream;
    if (hook->leave) hook->leave(hook->ctx, scope);
    return st;
}

/* ---- the operation ---- */

static cairn_status infer(const struct cairn__node *node) {
    const cairn_tensor *made = checkpoint_of(node)->made;
    cairn_tensor *y = node->result;
    y->dtype = cairn__tensor_dtype(made);
    y->ndim = made->ndim;
    memcpy(y->shape, made->shape, sizeof(y->shape));
    y->wants_grad = made->wants_grad;
    y->loss_scale = made->loss_scale;
    return CAIRN_OK;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct checkpoint *c = checkpoint_of(node);
    const cairn_tensor *y = node->result;
    struct cairn__uses *outside = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tape_room(tape, (c->tape->num_outside + 1) * sizeof(outside[0]), (void **)&outside));
    if (c->tape->num_outside > 0) memcpy(outside, c->tape->outside, c->tape->num_outside * sizeof(outside[0]));
    node->outside = outside;
    node->num_outside = c->tape->num_outside;
    TRY(cairn__device_copy(tape->env->device, y->data, cairn__tensor_data(c->made),
                           y->n * cairn_dtype_nbytes(y->dtype)));
out:
    return st;
}

static cairn_status check_same(const struct cairn__node *node, const struct cairn__tape *inner,
                               const cairn_tensor *made) {
    const cairn_tensor *y = node->result;
    char first[CAIRN__SHAPE_TEXT], again[CAIRN__SHAPE_TEXT];
    REQUIRE(
        cairn__same_shape(made, y) && cairn__tensor_dtype(made) == y->dtype, CAIRN_ESTATE,
        "checkpoint: the function gave %s of %s in forward and %s of %s in backward; it must do the same both times",
        cairn__shape_text(y, first), cairn_dtype_name(y->dtype), cairn__shape_text(made, again),
        cairn_dtype_name(cairn__tensor_dtype(made)));
    bool same = inner->num_outside == node->num_outside;
    for (size_t i = 0; same && i < node->num_outside; i++) {
        same = inner->outside[i].tensor == node->outside[i].tensor && inner->outside[i].count == node->outside[i].count;
    }
    REQUIRE(same, CAIRN_ESTATE,
            "checkpoint: the function used tensors in backward that it did not use in forward, or in another way; it "
            "must do the same both times");
    const struct checkpoint *c = checkpoint_of(node);
    REQUIRE(inner->count == c->recorded, CAIRN_ESTATE,
            "checkpoint: the function recorded %zu operations in forward and %zu in backward; it must do the same both "
            "times",
            c->recorded, inner->count);
    REQUIRE(inner->trail == c->trail, CAIRN_ESTATE,
            "checkpoint: the function recorded different operations or shapes in backward than in forward; it must do "
            "the same both times");
    return CAIRN_OK;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_status st = CAIRN_OK;
    struct cairn__tape *inner = NULL;
    cairn_tensor *made = NULL;
    TRY(run_again(tape, node, &inner, &made));
    TRY(check_same(node, inner, made));
    TRY(cairn__tensor_grad_pass_on(inner, made, node, dy));
    TRY(cairn__backward_walk(inner, made));
out:
    if (inner) cairn__tape_leave(inner);
    return st;
}

static const struct cairn__op_row row = {.strided = true, .infer = infer, .forward = forward, .backward = backward};

static cairn_status check_inputs(cairn_checkpoint_fn fn, cairn_tensor *const *inputs, int count) {
    cairn_status st = CAIRN_OK;
    REQUIRE(fn && inputs && count > 0, CAIRN_EINVAL, "checkpoint: the function and at least one input must be set");
    for (int i = 0; i < count; i++) {
        if (!inputs[i] && cairn__last_status() != CAIRN_OK) return cairn__last_status();
        REQUIRE(inputs[i], CAIRN_EINVAL, "checkpoint: input %d is NULL", i);
        REQUIRE(inputs[i]->env == inputs[0]->env, CAIRN_EINVAL,
                "checkpoint: the tensors belong to different environments");
        REQUIRE(cairn__is_at_hand(inputs[i]), CAIRN_ESTATE, "checkpoint: input %d was made on another tape", i);
        TRY(cairn__tensor_check(inputs[i], "checkpoint"));
    }
out:
    return st;
}

cairn_tensor *cairn_checkpoint(cairn_checkpoint_fn fn, void *ctx, cairn_tensor *const *inputs, int count) {
    if (check_inputs(fn, inputs, count) != CAIRN_OK) return NULL;
    cairn_env *env = inputs[0]->env;
    if (cairn__tape_of(env)->no_grad.depth > 0) { /* nothing is recorded, so there is nothing to save */
        const size_t mark = cairn__inside_begin(env);
        return cairn__inside_end(env, mark, fn(ctx, inputs, count));
    }
    const struct cairn__op_hook *hook = &cairn__tape_of(env)->main->hook;
    struct checkpoint c = {.fn = fn,
                           .ctx = ctx,
                           .seed = env->seed,
                           .stream = env->next_stream,
                           .policy = hook->policy ? hook->policy(hook->ctx) : 0};
    cairn_tensor *y = NULL;
    if (run(cairn__tape_of(env), &c, count, inputs, &c.tape, &c.made) == CAIRN_OK) {
        c.trail = c.tape->trail;
        c.recorded = c.tape->count;
        y = cairn__apply(CAIRN__OP_CHECKPOINT, &row, count, inputs, &c, sizeof(c));
    }
    if (c.tape) cairn__tape_leave(c.tape);
    return y;
}
