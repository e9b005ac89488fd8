/* Backward: from the loss down the tape.
 *
 * First pass: mark what the loss depends on and count, for every tensor in it, how many contributions its gradient will
 * get. It changes nothing, so that a graph that may not be walked is refused whole. Second pass: the marked nodes, last
 * made first, which is an order in which every gradient is complete before it is handed on.
 *
 * A contribution to a tensor's gradient is written in the tensor's own type: an f16 tensor has f16 gradients, and what
 * overflows there (beyond 65504, before the loss scale went down) is infinite. The gradient of a result is added up in
 * that type, as torch does. A leaf's gradient is f32: contributions have the leaf's type, their sum is not rounded. A
 * parameter's gradient is written once, at its last use, to the slot that src/param gives: used once, it is computed
 * there; used several times, contributions are summed in f32 and rounded once. */
#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
#include "nn/ops.h"

/* ---- first pass ---- */

static cairn_status remember_set(struct cairn__tape *tape, struct cairn_param_set *set) {
    for (size_t i = 0; i < tape->num_sets; i++) {
        if (tape->sets[i] == set) return CAIRN_OK;
    }
    cairn_status st =
        cairn__grow((void **)&tape->sets, &tape->sets_capacity, tape->num_sets + 1, sizeof(tape->sets[0]));
    if (st == CAIRN_OK) tape->sets[tape->num_sets++] = set;
    return st;
}

/* One more contribution will reach t. *pending counts marked nodes that the pass has not come to. */
static cairn_status reach(struct cairn__tape *tape, cairn_tensor *t, size_t *pending) {
    if (!cairn__wants_grad(t)) return CAIRN_OK;
    if (t->reached != tape->backward) {
        t->reached = tape->backward;
        t->uses = t->arrived = 0;
        t->sum = NULL;
        if (t->node) {
            REQUIRE(!t->node->consumed, CAIRN_ESTATE,
                    "backward: an earlier backward has consumed this graph (its %s); compute the loss again",
                    cairn__op_name(t->node->op));
            t->node->reached = tape->backward;
            (*pending)++;
        }
        if (t->param) {
            cairn_status st = remember_set(tape, t->param->set);
            if (st != CAIRN_OK) return st;
        }
    }
    t->uses++;
    return CAIRN_OK;
}

static cairn_status mark(struct cairn__tape *tape, cairn_tensor *loss) {
    size_t pending = 0;
    tape->backward = ++tape->main->last_backward;
    tape->num_sets = 0;
    cairn_status st = reach(tape, loss, &pending);
    for (size_t i = loss->node ? loss->node->index + 1 : 0; st == CAIRN_OK && pending > 0; i--) {
        const struct cairn__node *node = tape->nodes[i - 1];
        if (node->reached != tape->backward) continue;
        pending--;
        for (int j = 0; st == CAIRN_OK && j < node->count; j++) st = reach(tape, node->inputs[j], &pending);
    }
    return st;
}

/* ---- where gradients go ---- */

static cairn_status new_buffer(struct cairn__tape *tape, const cairn_tensor *t, cairn_dtype dtype, void **out) {
    return cairn__arena_alloc(&tape->grads, t->n * cairn_dtype_nbytes(dtype), out);
}

static cairn_status make_leaf_grad(cairn_tensor *t) {
    if (t->grad) return CAIRN_OK;
    return cairn__device_alloc(t->env->device, CAIRN__HOLDS_GRADS, t->n * sizeof(float), (void **)&t->grad);
}

/* The first contribution to an f32 leaf is its gradient. */
static cairn_status begin_leaf(struct cairn__tape *tape, cairn_tensor *t, void **dx) {
    cairn_status st = make_leaf_grad(t);
    if (st != CAIRN_OK) return st;
    if (t->has_grad || t->dtype != CAIRN_F32) return new_buffer(tape, t, t->dtype, dx);
    *dx = t->grad;
    return CAIRN_OK;
}

cairn_status cairn__grad_begin(struct cairn__tape *tape, cairn_tensor *t, void **dx) {
    if (t->kind == CAIRN__LEAF) return begin_leaf(tape, t, dx);
    if (t->kind == CAIRN__PARAM && t->uses == 1) return cairn__param_grad_slot(t->param, dx);
    return new_buffer(tape, t, cairn__tensor_dtype(t), dx);
}

/* dst = round(x + y), y in f32. */
static void add_wide(struct cairn__tape *tape, void *dst, cairn_dtype to, const void *x, cairn_dtype from,
                     const float *y, size_t n) {
    const struct cairn__item item = {.n = n, .dst = dst, .x = x, .y = y};
    cairn__passes_of(tape)->axpby(tape->env->device, &item, 1, to, from, NULL, 1.0f, NULL);
}

static void copy_to(struct cairn__tape *tape, void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n) {
    cairn__pass_cast(cairn__passes_of(tape), tape->env->device, dst, to, x, from, n);
}

static cairn_status end_leaf(struct cairn__tape *tape, cairn_tensor *t, const void *dx) {
    if (t->has_grad) {
        add_wide(tape, t->grad, CAIRN_F32, dx, t->dtype, t->grad, t->n);
    } else if (dx != t->grad) {
        copy_to(tape, t->grad, CAIRN_F32, dx, t->dtype, t->n);
    }
    t->has_grad = true;
    return CAIRN_OK;
}

/* The first of several contributions becomes the f32 sum, the last one brings it to the slot. */
static cairn_status add_to_param(struct cairn__tape *tape, cairn_tensor *t, void *dx) {
    const cairn_dtype dtype = t->param->dtype;
    void *slot = NULL;
    cairn_status st = CAIRN_OK;
    if (t->arrived == t->uses) {
        TRY(cairn__param_grad_slot(t->param, &slot));
        add_wide(tape, slot, dtype, dx, dtype, t->sum, t->n);
    } else if (t->sum) {
        add_wide(tape, t->sum, CAIRN_F32, dx, dtype, t->sum, t->n);
    } else if (dtype == CAIRN_F32) {
        t->sum = dx;
    } else {
        TRY(new_buffer(tape, t, CAIRN_F32, &t->sum));
        copy_to(tape, t->sum, CAIRN_F32, dx, dtype, t->n);
    }
out:
    return st;
}

static cairn_status end_param(struct cairn__tape *tape, cairn_tensor *t, void *dx) {
    t->arrived++;
    cairn_status st = t->uses > 1 ? add_to_param(tape, t, dx) : CAIRN_OK;
    if (st == CAIRN_OK && t->arrived == t->uses) cairn__param_grad_ready(t->param);
    return st;
}

static cairn_status end_result(struct cairn__tape *tape, cairn_tensor *t, void *dx) {
    if (t->sum) {
        cairn__passes_of(tape)->add(tape->env->device, t->dtype, t->sum, t->sum, dx, t->n);
    } else {
        t->sum = dx;
    }
    return CAIRN_OK;
}

cairn_status cairn__grad_end(struct cairn__tape *tape, cairn_tensor *t, void *dx) {
    if (t->kind == CAIRN__LEAF) return end_leaf(tape, t, dx);
    return t->kind == CAIRN__PARAM ? end_param(tape, t, dx) : end_result(tape, t, dx);
}

/* ---- second pass ---- */

/* Nothing in the graph comes after the loss, so nothing is added to the constant that a result starts from. */
static cairn_status seed(struct cairn__tape *tape, cairn_tensor *loss) {
    const cairn_dtype dtype = cairn__tensor_dtype(loss);
    void *dx = cairn__tape_one(tape, dtype);
    if (loss->kind == CAIRN__RESULT) return cairn__grad_end(tape, loss, dx);
    cairn_status st = cairn__grad_begin(tape, loss, &dx);
    if (st != CAIRN_OK) return st;
    copy_to(tape, dx, dtype, cairn__tape_one(tape, dtype), dtype, 1);
    return cairn__grad_end(tape, loss, dx);
}

static cairn_status walk_node(struct cairn__tape *tape, struct cairn__node *node) {
    node->consumed =
        node->op != CAIRN__OP_CAST; /* a cast saves nothing, and the losses of a step share a parameter's */
    cairn_status st = cairn__op_row(node->op)->backward(tape, node, node->result->sum);
    for (size_t i = 0; st == CAIRN_OK && i < tape->num_sets; i++) st = cairn__param_set_progress(tape->sets[i]);
    return st;
}

/* Every set hears of the end: that it may settle, or that nothing more comes. */
static cairn_status end_walk(struct cairn__tape *tape, cairn_status st) {
    for (size_t i = 0; st == CAIRN_OK && i < tape->num_sets; i++) st = cairn__param_set_settle(tape->sets[i]);
    if (st == CAIRN_OK) st = cairn__device_check(tape->env->device);
    for (size_t i = 0; st != CAIRN_OK && i < tape->num_sets; i++) cairn__param_set_abort(tape->sets[i]);
    return st;
}

static cairn_status walk(struct cairn__tape *tape, cairn_tensor *loss) {
    const float *factor = loss->loss_scale ? &loss->loss_scale->factor : NULL;
    for (size_t i = 0; i < tape->num_sets; i++) tape->sets[i]->factor = factor;
    cairn__arena_release(&tape->grads, (struct cairn__arena_mark){0, 0});
    cairn_status st = seed(tape, loss);
    for (size_t i = loss->node ? loss->node->index + 1 : 0; st == CAIRN_OK && i > 0; i--) {
        if (tape->nodes[i - 1]->reached == tape->backward) st = walk_node(tape, tape->nodes[i - 1]);
    }
    return end_walk(tape, st);
}

static cairn_status check_loss(const cairn_tensor *loss) {
    char shape[CAIRN__SHAPE_TEXT];
    cairn_status st = cairn__tensor_check(loss, "backward");
    if (st != CAIRN_OK) return st;
    REQUIRE(cairn__is_at_hand(loss), CAIRN_ESTATE,
            "backward: the loss was made by another step, a graph's or what runs beside it");
    REQUIRE(loss->n == 1, CAIRN_EINVAL, "backward: the loss must be one element, not %s",
            cairn__shape_text(loss, shape));
    REQUIRE(cairn__wants_grad(loss), CAIRN_EINVAL, "backward: nothing that the loss depends on wants a gradient");
    return CAIRN_OK;
}

cairn_status cairn_backward(cairn_tensor *loss) {
    if (!loss && cairn__last_status() != CAIRN_OK) return cairn__last_status();
    REQUIRE(loss, CAIRN_EINVAL, "backward: the loss is NULL");
    cairn_status st = CAIRN_OK;
    struct cairn__tape *tape = loss->env->tape;
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    TRY(check_loss(loss));
    TRY(mark(tape, loss));
    TRY(walk(tape, loss));
    cairn__trace("nn", "backward", (int64_t)tape->backward, 0, begin_ns);
out:
    return st;
}
