/* dropout. Backward draws the dropped elements again from forward's random stream; no mask is stored. */
#include "core/status.h"
#include "nn/ops_rows.h"

struct dropout_attrs {
    double p;
    uint64_t seed, stream;
};

static cairn_status infer(const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_is_float(node, 0, "input"));
    TRY(cairn__infer_like_first(node));
out:
    return st;
}

static void drop(struct cairn__tape *tape, const struct cairn__node *node, void *dst, const void *x) {
    const struct dropout_attrs *a = node->attrs;
    cairn__math_of(tape)->dropout(tape->env->device, node->result->dtype, dst, x, node->result->n, a->p, a->seed,
                                  a->stream);
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    drop(tape, node, node->result->data, cairn__tensor_data(node->inputs[0]));
    return CAIRN_OK;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[0];
    void *dx = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    drop(tape, node, dx, dy);
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

static const struct cairn__op_row row = {
    .needs_math = true, .infer = infer, .forward = forward, .backward = backward, .reads = cairn__reads_nothing};

cairn_tensor *cairn_dropout_forward(cairn_tensor *x, double p, int training) {
    if (!(p >= 0 && p <= 1)) {
        cairn__fail(CAIRN_EINVAL, "dropout: p is %g; it must be from 0 to 1", p);
        return NULL;
    }
    cairn__note_use(x); /* without dropout x itself is returned */
    if (x && (!training || p == 0)) return cairn__tensor_check(x, "dropout") == CAIRN_OK ? x : NULL;
    struct dropout_attrs a = {.p = p};
    if (x) {
        if (cairn__tensor_check(x, "dropout") != CAIRN_OK) return NULL;
        a.seed = x->env->seed;
        a.stream = cairn__env_next_stream(x->env);
    }
    return cairn__apply(CAIRN__OP_DROPOUT, &row, CAIRN__INPUTS(x), &a, sizeof(a));
}
