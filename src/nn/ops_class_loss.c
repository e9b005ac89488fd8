/* Losses of one class per row: cross_entropy, which works on scores and stores no probabilities, and nll_loss. */
#include "core/options.h"
#include "core/status.h"
#include "nn/ops_rows.h"

enum { X, TARGET, WEIGHT }; /* inputs; the last may be missing */

struct class_attrs {
    int reduction; /* enum cairn_reduction */
    double smoothing;
    int64_t ignore_index;
};

/* Whether shapes fit: x [N, C, d...] and target [N, d...], or x [C] and a target of one number. */
static bool target_fits(const cairn_tensor *x, const cairn_tensor *target) {
    if (x->ndim == 1) return target->n == 1 && target->ndim <= 1;
    if (target->ndim != x->ndim - 1 || target->shape[0] != x->shape[0]) return false;
    for (int d = 1; d < target->ndim; d++) {
        if (target->shape[d] != x->shape[d + 1]) return false;
    }
    return true;
}

static cairn_status infer(const struct cairn__node *node) {
    const struct class_attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X], *target = node->inputs[TARGET], *weight = node->inputs[WEIGHT];
    const char *name = cairn__op_name(node->op);
    const cairn_dtype type = cairn__tensor_dtype(target);
    char text_x[CAIRN__SHAPE_TEXT], text[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_is_float(node, X, "input"));
    REQUIRE(x->ndim >= 1, CAIRN_EINVAL, "%s: input is []; expected [N, C, ...] or [C]", name);
    REQUIRE(type == CAIRN_I64 || type == CAIRN_I32, CAIRN_EINVAL, "%s: the target is %s; expected classes, i64 or i32",
            name, cairn_dtype_name(type));
    REQUIRE(target_fits(x, target), CAIRN_EINVAL,
            "%s: input is %s, but the target is %s; expected the input's shape without the classes, its dimension %d",
            name, cairn__shape_text(x, text_x), cairn__shape_text(target, text), x->ndim > 1);
    const int64_t classes = x->shape[x->ndim > 1];
    REQUIRE(!weight || (weight->ndim == 1 && weight->shape[0] == classes), CAIRN_EINVAL,
            "%s: weight is %s, but input is %s; expected [%lld], one a class", name, cairn__shape_text(weight, text),
            cairn__shape_text(x, text_x), (long long)classes);
    TRY(cairn__check_is_float(node, WEIGHT, "weight"));
    if (a->reduction != CAIRN_NONE) return cairn__infer_scalar(node);
    node->result->ndim = target->ndim;
    memcpy(node->result->shape, target->shape, sizeof(target->shape));
out:
    return st;
}

/* node->saved, R: first the divisor of a mean, then, at TOTAL_NBYTES, for cross_entropy: the lse of its pass, which is
 * each row's greatest score and the sum of e^(x - greatest). */
enum { TOTAL_NBYTES = 64 };

static struct cairn__class_loss pass_of(const struct cairn__node *node) {
    const struct class_attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X], *target = node->inputs[TARGET], *weight = node->inputs[WEIGHT];
    return (struct cairn__class_loss){.from_logits = node->op == CAIRN__OP_CROSS_ENTROPY,
                                      .dtype = cairn__tensor_dtype(x),
                                      .rows = x->ndim > 1 ? x->shape[0] : 1,
                                      .classes = x->shape[x->ndim > 1],
                                      .inner = cairn__sizes(x, 2, x->ndim),
                                      .x = cairn__tensor_data(x),
                                      .target = cairn__tensor_data(target),
                                      .target_dtype = cairn__tensor_dtype(target),
                                      .weight = weight ? cairn__tensor_data(weight) : NULL,
                                      .ignore_index = a->ignore_index,
                                      .smoothing = a->smoothing,
                                      .each = a->reduction == CAIRN_NONE,
                                      .mean = a->reduction == CAIRN_MEAN,
                                      .total = node->saved,
                                      .lse = (char *)node->saved + TOTAL_NBYTES};
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const size_t r_nbytes = cairn_dtype_nbytes(cairn__arithmetic_type(node->result->dtype));
    const size_t rows = node->op == CAIRN__OP_CROSS_ENTROPY ? node->inputs[TARGET]->n : 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__save(tape, node, TOTAL_NBYTES + 2 * rows * r_nbytes));
    struct cairn__class_loss loss = pass_of(node);
    loss.y = node->result->data;
    cairn__math_of(tape)->class_loss(tape->env->device, &loss);
out:
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    struct cairn__class_loss loss = pass_of(node);
    loss.dy = dy;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, node->inputs[X], &loss.dx));
    cairn__math_of(tape)->class_loss_backward(tape->env->device, &loss);
    TRY(cairn__tensor_grad_end(tape, node->inputs[X], loss.dx));
out:
    return st;
}

static const struct cairn__op_row row = {.promotes = true,
                                         .needs_math = true,
                                         .optional = 1u << WEIGHT,
                                         .infer = infer,
                                         .forward = forward,
                                         .backward = backward};

static cairn_tensor *classify(enum cairn__op op, cairn_tensor *x, cairn_tensor *target,
                              const struct cairn_loss_options *options) {
    struct cairn_loss_options o = {.struct_size = sizeof(o)};
    if (cairn__loss_options_read(op, options, &o) != CAIRN_OK) return NULL;
    const struct class_attrs a = {
        .reduction = (int)o.reduction,
        .smoothing = op == CAIRN__OP_CROSS_ENTROPY ? o.label_smoothing : 0,
        .ignore_index = o.ignore_index || o.ignores_zero == CAIRN_ON ? o.ignore_index : -100,
    };
    cairn_tensor *weight = cairn__constant(o.weight);
    if (o.weight && !weight) return NULL;
    return cairn__apply(op, &row, CAIRN__INPUTS(x, target, weight), &a, sizeof(a));
}

cairn_tensor *cairn_cross_entropy(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options) {
    return classify(CAIRN__OP_CROSS_ENTROPY, x, target, options);
}

cairn_tensor *cairn_nll_loss(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options) {
    return classify(CAIRN__OP_NLL_LOSS, x, target, options);
}
