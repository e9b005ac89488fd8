/* Backward: walks the tape from the loss, in two passes.
 *
 * The first pass marks what the loss depends on and counts the contributions that each tensor's gradient will get. It
 * changes no gradient, so a graph that may not be walked is refused as a whole. The second pass walks the marked nodes,
 * last made first: in this order every gradient is complete before its node propagates it. gradient.c does the
 * arithmetic of gradients. */
#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "nn/backward.h"
#include "nn/watched.h"

/* ---- first pass ---- */

static cairn_status remember_set(struct cairn__tape *tape, struct cairn_param_set *set) {
    for (size_t i = 0; i < tape->num_sets; i++) {
        if (tape->sets[i] == set) return CAIRN_OK;
    }
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&tape->sets, &tape->sets_capacity, tape->num_sets + 1, sizeof(tape->sets[0])));
    tape->sets[tape->num_sets++] = set;
out:
    return st;
}

static cairn_status list_outside(struct cairn__tape *tape, cairn_tensor *t, int count) {
    for (size_t i = 0; i < tape->num_outside; i++) {
        if (tape->outside[i].tensor != t) continue;
        tape->outside[i].count += count;
        return CAIRN_OK;
    }
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&tape->outside, &tape->outside_capacity, tape->num_outside + 1, sizeof(tape->outside[0])));
    tape->outside[tape->num_outside++] = (struct cairn__uses){t, count};
out:
    return st;
}

static cairn_status reach_first(struct cairn__tape *tape, cairn_tensor *t, size_t *pending) {
    t->reached = tape->backward;
    t->uses = t->arrived = 0;
    t->sum = NULL;
    t->is_rounded = false;
    if (t->node) {
        REQUIRE(!t->node->consumed, CAIRN_ESTATE,
                "backward: an earlier backward has consumed this graph (its %s); compute the loss again, or give "
                "retain_graph to cairn_backward_with before",
                cairn__node_name(t->node));
        t->node->reached = tape->backward;
        (*pending)++;
    }
    if (!t->param) return CAIRN_OK;
    t->param->reached = tape->backward;
    return remember_set(tape, t->param->set);
}

/* Adds `count` to the contributions that t will get. *pending: marked nodes that the pass has not visited. */
static cairn_status reach(struct cairn__tape *tape, cairn_tensor *t, int count, size_t *pending) {
    if (!cairn__wants_grad(t)) {
        /* A parameter may have been frozen since the operation was called. Its set still takes part: on another rank
         * the loss may reach other parameters of the set, and that rank would wait. */
        const bool has_others = t && t->param && cairn__param_set_any_requires_grad(t->param->set);
        return has_others ? remember_set(tape, t->param->set) : CAIRN_OK;
    }
    t = cairn__tensor_grad_target(t);
    /* The graph around a checkpoint counts the contributions of the checkpoint's graph: the mark on the checkpoint's
     * own tape only lists which tensors outside it reaches. */
    if (tape->outer && (t->kind != CAIRN__RESULT || t->tape != tape)) return list_outside(tape, t, count);
    cairn_status st = t->reached != tape->backward ? reach_first(tape, t, pending) : CAIRN_OK;
    t->uses += count;
    return st;
}

static cairn_status reach_from(struct cairn__tape *tape, const struct cairn__node *node, size_t *pending) {
    cairn_status st = CAIRN_OK;
    bool ended = false;
    for (int i = 0; i < node->count; i++) ended |= node->inputs[i] && cairn__shows_ended(node->inputs[i]);
    for (size_t i = 0; i < node->num_outside; i++) ended |= cairn__shows_ended(node->outside[i].tensor);
    REQUIRE(!ended, CAIRN_ESTATE, "backward: a module whose parameters this graph used (in its %s) has been destroyed",
            cairn__node_name(node));
    for (size_t i = 0; i < node->num_outside; i++)
        TRY(reach(tape, node->outside[i].tensor, node->outside[i].count, pending));
    for (int i = 0; !node->outside && i < node->count; i++) TRY(reach(tape, node->inputs[i], 1, pending));
out:
    return st;
}

cairn_status cairn__backward_mark(struct cairn__tape *tape, cairn_tensor *from) {
    cairn_status st = CAIRN_OK;
    size_t pending = 0;
    tape->backward = ++tape->main->last_backward;
    tape->num_sets = tape->num_outside = 0;
    TRY(reach(tape, from, 1, &pending));
    for (size_t i = from->node ? from->node->index + 1 : 0; pending > 0; i--) {
        const struct cairn__node *node = tape->nodes[i - 1];
        if (node->reached != tape->backward) continue;
        pending--;
        TRY(reach_from(tape, node, &pending));
    }
out:
    return st;
}

/* ---- second pass ---- */

/* Sets the first gradient: the constant 1, or the user's tensor. If the loss is a result, it may share that memory:
 * nothing in the graph comes after the loss, so nothing is added to its gradient. */
static cairn_status seed(struct cairn__tape *tape, cairn_tensor *loss, const cairn_tensor *grad) {
    const cairn_dtype dtype = cairn__tensor_dtype(loss);
    void *from = grad ? cairn__tensor_data(grad) : cairn__tape_one(tape, dtype), *dx = NULL;
    if (loss->kind == CAIRN__RESULT) return cairn__tensor_grad_end(tape, loss, from);
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, loss, &dx));
    TRY(cairn__device_copy(tape->env->device, dx, from, loss->n * cairn_dtype_nbytes(dtype)));
    TRY(cairn__tensor_grad_end(tape, loss, dx));
out:
    return st;
}

static cairn_status walk_node(struct cairn__tape *tape, struct cairn__node *node) {
    struct cairn__tape *root = tape->root;
    void *dy = node->result->sum;
    REQUIRE(dy, CAIRN_EINTERNAL, "backward: no gradient came to the result of %s", cairn__node_name(node));
    root->walked = node;
    /* Casts and views save nothing and may be walked again: the losses of a step share a parameter's cast. */
    node->consumed = !root->retain && node->op != CAIRN__OP_CAST && !node->row->view;
    const struct cairn__arena_mark mark = cairn__arena_mark(&tape->scratch);
    cairn_status st = cairn__check_sum(tape, node);
    if (node->result->watched) cairn__show_gradient(tape, node->result, dy);
    if (st == CAIRN_OK) st = node->row->backward(tape, node, dy);
    cairn__arena_release(&tape->scratch, mark);
    node->result->sum = NULL;
    cairn__tensor_grad_pool_drop(&root->grads, dy);
    if (st == CAIRN_OK && !root->retain) cairn__note_walked(node);
    for (size_t i = 0; st == CAIRN_OK && i < root->num_sets; i++) st = cairn__param_set_progress(root->sets[i]);
    return st;
}

cairn_status cairn__backward_walk(struct cairn__tape *tape, const cairn_tensor *from) {
    cairn_status st = CAIRN_OK;
    for (size_t i = from->node ? from->node->index + 1 : 0; i > 0; i--) {
        if (tape->nodes[i - 1]->reached == tape->backward) TRY(walk_node(tape, tape->nodes[i - 1]));
    }
out:
    return st;
}

/* Sorts sets by creation. Ranks wait for each other set by set, and their graphs may reach the sets in different
 * orders. */
static void order_sets(struct cairn__tape *tape) {
    size_t ordered = 0;
    for (struct cairn_param_set *set = cairn__last_set(tape->env); set; set = set->next) {
        for (size_t i = ordered; i < tape->num_sets; i++) {
            if (tape->sets[i] != set) continue;
            tape->sets[i] = tape->sets[ordered];
            tape->sets[ordered++] = set;
        }
    }
}

/* Every set begins its backward before any gradient is written, and every set ends it: complete or aborted. */
static cairn_status walk(struct cairn__tape *tape, cairn_tensor *loss, const cairn_tensor *grad,
                         const struct cairn__loss_scale *scale) {
    cairn_status st = CAIRN_OK;
    cairn__tensor_grad_pool_begin(&tape->grads);
    tape->walking = true;
    tape->walked = NULL;
    tape->scale = scale;
    tape->lets_infinities = false;
    order_sets(tape);
    for (size_t i = 0; i < tape->num_sets; i++)
        TRY(cairn__param_set_begin_backward(tape->sets[i], tape->backward, scale));
    TRY(seed(tape, loss, grad));
    TRY(cairn__backward_walk(tape, loss));
    tape->walking = false;
    for (size_t i = 0; i < tape->num_sets; i++) TRY(cairn__param_set_settle(tape->sets[i]));
    TRY(cairn__tensor_failure(loss));
out:
    tape->walking = false;
    for (size_t i = 0; st != CAIRN_OK && i < tape->num_sets; i++) cairn__param_set_abort(tape->sets[i]);
    return st;
}

/* ---- the calls ---- */

static cairn_status check_loss(const cairn_tensor *loss, bool one_element) {
    char shape[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_check(loss, "backward"));
    REQUIRE(cairn__is_at_hand(loss), CAIRN_ESTATE,
            "backward: the loss was made by another step, a graph's or what runs beside it");
    REQUIRE(!cairn__tape_of(loss->env)->root->walking && !cairn__tape_of(loss->env)->outer, CAIRN_ESTATE,
            "backward: called within a checkpoint or another backward");
    REQUIRE(!one_element || loss->n == 1, CAIRN_EINVAL, "backward: the loss must be one element, not %s",
            cairn__shape_text(loss, shape));
out:
    return st;
}

/* A loss without a gradient is an error: there is nothing to walk. Other ranks may be walking their graphs, which may
 * reach any set, so each set first takes part in what ranks agree on; its error, which all ranks return, has
 * precedence. */
static cairn_status check_wants_grad(const cairn_tensor *loss) {
    cairn_status st = CAIRN_OK;
    if (cairn__wants_grad(loss)) return CAIRN_OK;
    for (struct cairn_param_set *set = cairn__last_set(loss->env); set; set = set->next) {
        const cairn_status missed = cairn__param_set_no_gradient(set);
        if (missed != CAIRN_OK) st = missed;
    }
    REQUIRE(st != CAIRN_OK, CAIRN_EINVAL, "backward: nothing that the loss depends on requires a gradient");
    return st;
}

/* *out: the user's gradient, dense and in the loss's type. It lives until the step ends. */
static cairn_status take_grad(const cairn_tensor *loss, cairn_tensor *grad, cairn_tensor **out) {
    char of_grad[CAIRN__SHAPE_TEXT], of_loss[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    *out = NULL;
    if (!grad) return CAIRN_OK;
    TRY(cairn__tensor_check(grad, "backward"));
    REQUIRE(grad->env == loss->env, CAIRN_EINVAL, "backward: the tensors belong to different environments");
    REQUIRE(cairn__same_shape(grad, loss), CAIRN_EINVAL, "backward: the gradient is %s, but the tensor is %s",
            cairn__shape_text(grad, of_grad), cairn__shape_text(loss, of_loss));
    REQUIRE(cairn__is_float(cairn__tensor_dtype(grad)), CAIRN_EINVAL,
            "backward: the gradient is %s; it must be a float", cairn_dtype_name(cairn__tensor_dtype(grad)));
    cairn__note_use(grad);
    if (cairn__tensor_dtype(grad) != cairn__tensor_dtype(loss)) grad = cairn_cast(grad, cairn__tensor_dtype(loss));
    *out = cairn_contiguous(grad);
    if (!*out) return cairn__last_status();
out:
    return st;
}

static cairn_status backward_from(cairn_tensor *tensor, cairn_tensor *given, bool retain,
                                  const struct cairn__loss_scale *scale) {
    cairn_status st = CAIRN_OK;
    cairn_tensor *grad = NULL;
    struct cairn__tape *tape = cairn__tape_of(tensor->env);
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    TRY(check_loss(tensor, given == NULL));
    TRY(check_wants_grad(tensor));
    TRY(take_grad(tensor, given, &grad));
    tape->retain = retain;
    TRY(cairn__backward_mark(tape, tensor));
    TRY(walk(tape, tensor, grad, scale));
    cairn__trace("nn", "backward", (int64_t)tape->backward, 0, begin_ns);
out:
    return st;
}

cairn_status cairn_backward_with(cairn_tensor *tensor, const struct cairn_backward_options *options) {
    if (!tensor && cairn__last_status() != CAIRN_OK) return cairn__last_status();
    REQUIRE(tensor, CAIRN_EINVAL, "backward: the loss is NULL");
    struct cairn_backward_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_backward_options"));
    st = backward_from(tensor, o.grad, o.retain_graph == CAIRN_ON, tensor->loss_scale);
out:
    return st;
}

cairn_status cairn__backward_scaled(cairn_tensor *tensor, cairn_tensor *grad, bool retain,
                                    const struct cairn__loss_scale *scale) {
    if (!tensor && cairn__last_status() != CAIRN_OK) return cairn__last_status();
    REQUIRE(tensor && grad, CAIRN_EINVAL, "backward: the tensor and its gradient must be set");
    REQUIRE(!tensor->loss_scale, CAIRN_ESTATE,
            "backward: the tensor was made from a scaled loss; a gradient is given for what comes before the loss");
    return backward_from(tensor, grad, retain, scale);
}

cairn_status cairn__backward_reaches(cairn_tensor *tensor, uint64_t *backward) {
    struct cairn__tape *tape = cairn__tape_of(tensor->env);
    cairn_status st = CAIRN_OK;
    TRY(cairn__backward_mark(tape, tensor));
    *backward = tape->backward;
out:
    return st;
}

cairn_status cairn_backward(cairn_tensor *loss) {
    return cairn_backward_with(loss, NULL);
}
