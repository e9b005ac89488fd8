/* Losses. Sums are those of kernels.h, with one division and one rounding.
 *
 * Most losses compare x with a target element by element and differ only in the functions (struct kind). mse_loss of
 * dense tensors of one shape has passes of its own, which every device has. */
#include "core/options.h"
#include "core/status.h"
#include "nn/ops_rows.h"

/* ---- element by element ---- */

enum { X, TARGET, WEIGHT, POS_WEIGHT }; /* inputs; the last two may be missing */

struct loss_attrs {
    int reduction; /* enum cairn_reduction */
    double beta;
    bool log_target, batch_mean;
};

/* Functions of maps.h: the loss of x and the target, and its gradients from dy, x and the target, times p0. */
struct kind {
    enum cairn__map_fn f, dx, dtarget;
    double sign;         /* of dtarget's p0 */
    bool target_is_like; /* dtarget is dx with x and target exchanged */
};

static const struct kind mse = {CAIRN__MAP_SQUARED_DIFFERENCE, CAIRN__MAP_SQUARED_DIFFERENCE_BACKWARD,
                                CAIRN__MAP_SQUARED_DIFFERENCE_BACKWARD, -1, false};
static const struct kind l1 = {CAIRN__MAP_ABS_DIFFERENCE, CAIRN__MAP_ABS_DIFFERENCE_BACKWARD,
                               CAIRN__MAP_ABS_DIFFERENCE_BACKWARD, -1, false};
static const struct kind smooth_l1 = {CAIRN__MAP_SMOOTH_L1, CAIRN__MAP_SMOOTH_L1_BACKWARD,
                                      CAIRN__MAP_SMOOTH_L1_BACKWARD, -1, false};
static const struct kind bce = {CAIRN__MAP_BCE, CAIRN__MAP_BCE_BACKWARD_X, CAIRN__MAP_BCE_BACKWARD_Y, 1, false};
static const struct kind bce_with_logits = {CAIRN__MAP_BCE_WITH_LOGITS, CAIRN__MAP_BCE_WITH_LOGITS_BACKWARD_X,
                                            CAIRN__MAP_BCE_WITH_LOGITS_BACKWARD_Y, 1, false};
static const struct kind bce_weighing_positives = {CAIRN__MAP_BCE_POSITIVES, CAIRN__MAP_BCE_POSITIVES_BACKWARD_X,
                                                   CAIRN__MAP_BCE_POSITIVES_BACKWARD_Y, 1, false};
static const struct kind kl_div = {CAIRN__MAP_KL_DIV, CAIRN__MAP_KL_DIV_BACKWARD_X, CAIRN__MAP_KL_DIV_BACKWARD_Y, 1,
                                   false};
static const struct kind kl_div_log = {CAIRN__MAP_KL_DIV_LOG, CAIRN__MAP_KL_DIV_LOG_BACKWARD_X,
                                       CAIRN__MAP_KL_DIV_LOG_BACKWARD_Y, 1, false};
static const struct kind soft_margin = {CAIRN__MAP_SOFT_MARGIN, CAIRN__MAP_SOFT_MARGIN_BACKWARD,
                                        CAIRN__MAP_SOFT_MARGIN_BACKWARD, 1, true};
/* d/dtarget (e^x - target x) = -x, as of bce_with_logits */
static const struct kind poisson = {CAIRN__MAP_POISSON_NLL, CAIRN__MAP_POISSON_NLL_BACKWARD,
                                    CAIRN__MAP_BCE_WITH_LOGITS_BACKWARD_Y, 1, false};

static const struct kind *kind_of(const struct cairn__node *node) {
    const struct loss_attrs *a = node->attrs;
    switch ((int)node->op) {
    case CAIRN__OP_L1_LOSS:
        return &l1;
    case CAIRN__OP_SMOOTH_L1_LOSS:
        return &smooth_l1;
    case CAIRN__OP_BCE:
        return &bce;
    case CAIRN__OP_BCE_WITH_LOGITS:
        return node->inputs[POS_WEIGHT] ? &bce_weighing_positives : &bce_with_logits;
    case CAIRN__OP_KL_DIV:
        return a->log_target ? &kl_div_log : &kl_div;
    case CAIRN__OP_SOFT_MARGIN_LOSS:
        return &soft_margin;
    case CAIRN__OP_POISSON_NLL_LOSS:
        return &poisson;
    default:
        return &mse;
    }
}

/* The shape that all inputs broadcast to; infer has checked that they do. */
struct shape {
    int ndim;
    int64_t size[CAIRN_MAX_DIMS];
    size_t n;
};

static struct shape shape_of(const struct cairn__node *node) {
    struct shape s = {.n = 1};
    for (int i = 0; i < node->count; i++) {
        if (node->inputs[i] && node->inputs[i]->ndim > s.ndim) s.ndim = node->inputs[i]->ndim;
    }
    for (int d = 1; d <= s.ndim; d++) {
        s.size[s.ndim - d] = 1;
        for (int i = 0; i < node->count; i++) {
            const cairn_tensor *x = node->inputs[i];
            if (x && d <= x->ndim && x->shape[x->ndim - d] != 1) s.size[s.ndim - d] = x->shape[x->ndim - d];
        }
        s.n *= (size_t)s.size[s.ndim - d];
    }
    return s;
}

static struct cairn__view shown(const cairn_tensor *t, const struct shape *s) {
    const struct cairn__view v = cairn__tensor_view(t);
    return cairn__view_broadcast(&v, s->ndim, s->size);
}

static cairn_status scratch_view(struct cairn__tape *tape, const struct cairn__node *node, const struct shape *s,
                                 struct cairn__view *out) {
    const cairn_dtype r = cairn__arithmetic_type(node->result->dtype);
    void *room = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__scratch(tape, s->n * cairn_dtype_nbytes(r), &room));
    *out = cairn__view_dense(room, r, s->ndim, s->size);
out:
    return st;
}

static double divisor_of(const struct cairn__node *node, const struct shape *s) {
    const struct loss_attrs *a = node->attrs;
    if (a->batch_mean) return s->ndim ? (double)s->size[0] : 1;
    return a->reduction == CAIRN_MEAN ? (double)s->n : 1;
}

/* Whether the passes that every device has can compute it. */
static bool is_plain_mse(const struct cairn__node *node) {
    const struct loss_attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X], *y = node->inputs[TARGET];
    return node->op == CAIRN__OP_MSE_LOSS && a->reduction == CAIRN_MEAN && cairn__same_shape(x, y) && x->is_dense &&
           y->is_dense && node->result->dtype != CAIRN_F64;
}

static cairn_status infer(const struct cairn__node *node) {
    const struct loss_attrs *a = node->attrs;
    const cairn_env *env = node->inputs[X]->env;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_is_float(node, X, "input"));
    TRY(cairn__check_is_float(node, TARGET, "the target"));
    TRY(cairn__infer_broadcast(node));
    REQUIRE(env->device->math || is_plain_mse(node), CAIRN_ENOTSUP,
            "%s: '%s' computes the mean over dense tensors of one shape alone; use device \"cpu\"",
            cairn__op_name(node->op), cairn_device_name(env->device));
    if (a->reduction != CAIRN_NONE) TRY(cairn__infer_scalar(node));
out:
    return st;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    const struct loss_attrs *a = node->attrs;
    const struct cairn__math *math = cairn__math_of(tape);
    struct cairn_device *d = tape->env->device;
    const cairn_tensor *x = node->inputs[X], *target = node->inputs[TARGET];
    if (is_plain_mse(node)) {
        cairn__passes_of(tape)->mse(d, node->result->dtype, node->result->data, cairn__tensor_data(x),
                                    cairn__tensor_data(target), x->n);
        return CAIRN_OK;
    }
    const struct shape s = shape_of(node);
    const struct cairn__view result = cairn__tensor_view(node->result);
    struct cairn__view in[3] = {shown(x, &s), shown(target, &s)};
    if (node->inputs[POS_WEIGHT]) in[2] = shown(node->inputs[POS_WEIGHT], &s);
    enum cairn__map_fn f = kind_of(node)->f;
    if (node->inputs[WEIGHT]) {
        struct cairn__view each;
        TRY(scratch_view(tape, node, &s, &each));
        math->map(d, f, &each, in, (const double[]){1, a->beta});
        f = CAIRN__MAP_MUL;
        in[0] = each;
        in[1] = shown(node->inputs[WEIGHT], &s);
    }
    if (a->reduction == CAIRN_NONE) {
        math->map(d, f, &result, in, (const double[]){1, a->beta});
    } else {
        math->map_sum(d, f, &result, in, (const double[]){1, a->beta}, divisor_of(node, &s));
    }
out:
    return st;
}

/* ---- gradients ---- */

/* dy broadcast to the whole shape, times the weight. */
static cairn_status weighted_dy(struct cairn__tape *tape, const struct cairn__node *node, const struct shape *s,
                                const void *dy, struct cairn__view *out) {
    const struct cairn__view v = cairn__dy_view(node, dy);
    struct cairn__view in[2] = {cairn__view_broadcast(&v, s->ndim, s->size)};
    cairn_status st = CAIRN_OK;
    *out = in[0];
    if (!node->inputs[WEIGHT]) return CAIRN_OK;
    in[1] = shown(node->inputs[WEIGHT], s);
    TRY(scratch_view(tape, node, s, out));
    cairn__math_of(tape)->map(tape->env->device, CAIRN__MAP_MUL, out, in, NULL);
out:
    return st;
}

/* The gradient of one side. A broadcast input gets the sum over the dimensions it was repeated along. */
static cairn_status side_backward(struct cairn__tape *tape, const struct cairn__node *node, int side, const void *dy,
                                  void *dx) {
    const struct kind *kind = kind_of(node);
    const struct loss_attrs *a = node->attrs;
    const struct cairn__math *math = cairn__math_of(tape);
    const struct shape s = shape_of(node);
    const struct cairn__view dst = cairn__tensor_grad_view(node->inputs[side], dx);
    struct cairn__view in[4], each = dst;
    cairn_status st = CAIRN_OK;
    const bool exchanged = side == TARGET && kind->target_is_like;
    const double p0 = (side == TARGET ? kind->sign : 1) / divisor_of(node, &s);
    TRY(weighted_dy(tape, node, &s, dy, &in[0]));
    in[1] = shown(node->inputs[exchanged ? TARGET : X], &s);
    in[2] = shown(node->inputs[exchanged ? X : TARGET], &s);
    if (node->inputs[POS_WEIGHT]) in[3] = shown(node->inputs[POS_WEIGHT], &s);
    const bool is_whole = node->inputs[side]->n == s.n;
    if (is_whole) {
        each = cairn__view_dense(dx, dst.dtype, s.ndim, s.size);
    } else {
        TRY(scratch_view(tape, node, &s, &each));
    }
    math->map(tape->env->device, side == X ? kind->dx : kind->dtarget, &each, in, (const double[]){p0, a->beta});
    if (!is_whole) {
        const struct cairn__view folded = cairn__view_broadcast(&dst, s.ndim, s.size);
        math->fold(tape->env->device, CAIRN__FOLD_SUM, &folded, &each, 1, false);
    }
out:
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_status st = CAIRN_OK;
    for (int side = X; side <= TARGET; side++) {
        cairn_tensor *t = node->inputs[side];
        void *dx = NULL;
        if (!cairn__wants_grad(t)) continue;
        if (is_plain_mse(node)) {
            /* d/dx mean((x-y)^2) = 2/n (x-y), and the opposite for y. The factors come first: (2/n * dy) * (x-y). */
            const float s = 2.0f / (float)t->n;
            cairn_dtype to = CAIRN_F32;
            TRY(cairn__tensor_grad_begin_rounded(tape, t, &dx, &to));
            cairn__passes_of(tape)->mse_backward(tape->env->device, node->result->dtype, to, dx,
                                                 cairn__tensor_data(node->inputs[X]),
                                                 cairn__tensor_data(node->inputs[TARGET]), t->n, side == X ? s : -s,
                                                 dy);
        } else {
            TRY(cairn__tensor_grad_begin(tape, t, &dx));
            TRY(side_backward(tape, node, side, dy, dx));
        }
        TRY(cairn__tensor_grad_end(tape, t, dx));
    }
out:
    return st;
}

static const struct cairn__op_row row = {.promotes = true,
                                         .strided = true,
                                         .optional = 1u << WEIGHT | 1u << POS_WEIGHT,
                                         .infer = infer,
                                         .forward = forward,
                                         .backward = backward};

/* ---- options ---- */

cairn_status cairn__loss_options_read(enum cairn__op op, const struct cairn_loss_options *given,
                                      struct cairn_loss_options *out) {
    *out = (struct cairn_loss_options){.struct_size = sizeof(*out)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(out, sizeof(*out), given, "cairn_loss_options"));
    if (!out->reduction) out->reduction = CAIRN_MEAN;
    REQUIRE(out->reduction >= CAIRN_MEAN && out->reduction <= CAIRN_NONE, CAIRN_EINVAL,
            "%s: reduction is %d; CAIRN_MEAN, CAIRN_SUM_ALL and CAIRN_NONE are allowed", cairn__op_name(op),
            (int)out->reduction);
    REQUIRE(out->beta >= 0, CAIRN_EINVAL, "%s: beta is %g; it must be above 0", cairn__op_name(op), out->beta);
    REQUIRE(out->label_smoothing >= 0 && out->label_smoothing <= 1, CAIRN_EINVAL,
            "%s: label_smoothing is %g; it must be from 0 to 1", cairn__op_name(op), out->label_smoothing);
    if (out->beta == 0) out->beta = 1;
out:
    return st;
}

/* t as a constant; NULL if it is missing. *ok becomes false if that fails. */
static cairn_tensor *optional(cairn_tensor *t, bool *ok) {
    cairn_tensor *constant = cairn__constant(t);
    if (t && !constant) *ok = false;
    return constant;
}

static cairn_tensor *compare(enum cairn__op op, cairn_tensor *x, cairn_tensor *target, bool weighs,
                             bool weighs_positives, const struct cairn_loss_options *options) {
    struct cairn_loss_options o;
    bool ok = true;
    if (cairn__loss_options_read(op, options, &o) != CAIRN_OK) return NULL;
    const struct loss_attrs a = {.reduction = o.batch_mean == CAIRN_ON && op == CAIRN__OP_KL_DIV ? (int)CAIRN_SUM_ALL
                                                                                                 : (int)o.reduction,
                                 .beta = o.beta,
                                 .log_target = o.log_target == CAIRN_ON,
                                 .batch_mean = o.batch_mean == CAIRN_ON && op == CAIRN__OP_KL_DIV};
    cairn_tensor *weight = weighs ? optional(o.weight, &ok) : NULL;
    cairn_tensor *positives = weighs_positives ? optional(o.pos_weight, &ok) : NULL;
    return ok ? cairn__apply(op, &row, CAIRN__INPUTS(x, target, weight, positives), &a, sizeof(a)) : NULL;
}

cairn_tensor *cairn_mse_loss_with(cairn_tensor *x, cairn_tensor *y, const struct cairn_loss_options *options) {
    return compare(CAIRN__OP_MSE_LOSS, x, y, false, false, options);
}

cairn_tensor *cairn_mse_loss(cairn_tensor *x, cairn_tensor *y) {
    return cairn_mse_loss_with(x, y, NULL);
}

cairn_tensor *cairn_l1_loss(cairn_tensor *x, cairn_tensor *y, const struct cairn_loss_options *options) {
    return compare(CAIRN__OP_L1_LOSS, x, y, false, false, options);
}

cairn_tensor *cairn_smooth_l1_loss(cairn_tensor *x, cairn_tensor *y, const struct cairn_loss_options *options) {
    return compare(CAIRN__OP_SMOOTH_L1_LOSS, x, y, false, false, options);
}

cairn_tensor *cairn_bce_with_logits(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options) {
    return compare(CAIRN__OP_BCE_WITH_LOGITS, x, target, true, true, options);
}

cairn_tensor *cairn_bce(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options) {
    return compare(CAIRN__OP_BCE, x, target, true, false, options);
}

cairn_tensor *cairn_kl_div(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options) {
    return compare(CAIRN__OP_KL_DIV, x, target, false, false, options);
}

cairn_tensor *cairn_soft_margin_loss(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options) {
    return compare(CAIRN__OP_SOFT_MARGIN_LOSS, x, target, false, false, options);
}

cairn_tensor *cairn_poisson_nll_loss(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options) {
    return compare(CAIRN__OP_POISSON_NLL_LOSS, x, target, false, false, options);
}

/* ---- the check of a loss ---- */

cairn_status cairn__loss_check(cairn_tensor *loss, uint32_t *found) {
    const cairn_dtype dtype = cairn__tensor_dtype(loss);
    const bool is_looked_at = dtype == CAIRN_F32 || cairn__is_half(dtype);
    if (loss->n != 1 || cairn__tensor_check(loss, "backward") != CAIRN_OK) return CAIRN_OK;
    if (!is_looked_at && !(loss = cairn_cast(loss, CAIRN_F32))) return cairn__last_status();
    const struct cairn__item item = {.n = 1, .x = cairn__tensor_data(loss), .found = found};
    cairn__passes_of(cairn__tape_of(loss->env))->check(loss->env->device, &item, 1, cairn__tensor_dtype(loss), NULL);
    return CAIRN_OK;
}
