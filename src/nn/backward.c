/* Backward: from the loss down the tape.
 *
 * First pass: mark what the loss depends on and count, for every tensor in it, how many contributions its gradient will
 * get. It changes nothing, so that a graph that may not be walked is refused whole. Second pass: the marked nodes, last
 * made first, which is an order in which every gradient is complete before it is handed on.
 *
 * The gradient of a result is kept as f32 but *rounded to the result's storage type*: where torch would hold an f16
 * gradient this holds f16 values, and what overflows there (beyond 65504, before the loss scale went down) is inf here.
 * Several contributions are each rounded, and so is their sum. A leaf's gradient is f32: each contribution is rounded
 * to the leaf's type, the sum is not. A parameter's gradient is written once, at its last use, to the slot that
 * src/param gives: used once, a product lands in an f32 slot directly, or is cast into a half slot (one rounding); used
 * several times, f32 contributions are summed in f32 first, rounded once. */
#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
#include "nn/ops.h"

static const struct cairn__kernels *kernels(const struct cairn__tape *tape) {
    return tape->env->device->kernels;
}

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
    tape->backward++;
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

/* The f32 parameter whose cast t is, where nothing else contributes to it: what is written for t may then be written
 * into the parameter's slot, and the cast's own backward finds it in place. */
static struct cairn__param *param_behind(const cairn_tensor *t) {
    if (!t->node || t->node->op != CAIRN__OP_CAST) return NULL;
    const cairn_tensor *source = t->node->inputs[0];
    const bool is_direct = source->param && source->param->dtype == CAIRN_F32 && source->uses == 1;
    return is_direct ? source->param : NULL;
}

static cairn_status new_buffer(struct cairn__tape *tape, const cairn_tensor *t, float **out) {
    return cairn__arena_alloc(&tape->grads, t->n * sizeof(float), (void **)out);
}

static cairn_status leaf_buffer(cairn_tensor *t, float **out) {
    if (!t->grad) {
        cairn_status st = cairn__device_alloc(t->env->device, t->n * sizeof(float), (void **)&t->grad);
        if (st != CAIRN_OK) return st;
    }
    *out = t->grad;
    return CAIRN_OK;
}

cairn_status cairn__grad_begin(struct cairn__tape *tape, cairn_tensor *t, float **dx) {
    if (t->kind == CAIRN__LEAF) return t->has_grad ? new_buffer(tape, t, dx) : leaf_buffer(t, dx);
    struct cairn__param *p = NULL;
    if (t->param && t->uses == 1 && t->param->dtype == CAIRN_F32) p = t->param;
    if (!t->param && !t->sum) p = param_behind(t);
    return p ? cairn__param_grad_slot(p, (void **)dx) : new_buffer(tape, t, dx);
}

static void round_to(const struct cairn__tape *tape, cairn_dtype dtype, float *dx, size_t n) {
    if (cairn__is_half(dtype)) kernels(tape)->round[dtype](dx, dx, n);
}

static cairn_status end_leaf(struct cairn__tape *tape, cairn_tensor *t, float *dx) {
    round_to(tape, t->dtype, dx, t->n);
    if (t->has_grad) kernels(tape)->add(t->grad, t->grad, dx, t->n);
    t->has_grad = true;
    return CAIRN_OK;
}

static cairn_status end_param(struct cairn__tape *tape, cairn_tensor *t, float *dx) {
    struct cairn__param *p = t->param;
    if (t->sum) {
        kernels(tape)->add(t->sum, t->sum, dx, t->n);
    } else {
        t->sum = dx;
    }
    if (++t->arrived < t->uses) return CAIRN_OK;
    void *slot = NULL;
    cairn_status st = CAIRN_OK;
    if (t->uses == 1 && p->dtype == CAIRN_F32) {
        slot = dx;
    } else {
        st = cairn__param_grad_slot(p, &slot);
    }
    if (st != CAIRN_OK) return st;
    if (slot != t->sum) kernels(tape)->cast[CAIRN_F32][p->dtype](slot, t->sum, t->n);
    cairn__param_grad_ready(p);
    return CAIRN_OK;
}

static cairn_status end_result(struct cairn__tape *tape, cairn_tensor *t, float *dx) {
    round_to(tape, t->dtype, dx, t->n);
    if (t->sum) {
        kernels(tape)->add(t->sum, t->sum, dx, t->n);
        round_to(tape, t->dtype, t->sum, t->n);
    } else {
        t->sum = dx;
    }
    return CAIRN_OK;
}

cairn_status cairn__grad_end(struct cairn__tape *tape, cairn_tensor *t, float *dx) {
    if (t->kind == CAIRN__LEAF) return end_leaf(tape, t, dx);
    return t->kind == CAIRN__PARAM ? end_param(tape, t, dx) : end_result(tape, t, dx);
}

/* ---- second pass ---- */

static cairn_status seed(struct cairn__tape *tape, cairn_tensor *loss) {
    float *one = NULL;
    cairn_status st = cairn__grad_begin(tape, loss, &one);
    if (st != CAIRN_OK) return st;
    one[0] = 1.0f;
    return cairn__grad_end(tape, loss, one);
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
    for (size_t i = 0; st != CAIRN_OK && i < tape->num_sets; i++) cairn__param_set_abort(tape->sets[i]);
    return st;
}

static cairn_status walk(struct cairn__tape *tape, cairn_tensor *loss) {
    const float factor = (float)(1.0 / (loss->loss_scale ? loss->loss_scale : 1.0));
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
