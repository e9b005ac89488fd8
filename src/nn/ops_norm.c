/* Normalisations: layer_norm, rms_norm, group_norm, batch_norm. Weights may be f32 with a half input (apex keeps batch
 * norms so), so inputs of different types are allowed.
 *
 * Backward reads x and the saved mean and 1 / deviation of each group. */
#include "core/status.h"
#include "nn/ops_rows.h"

enum { X, WEIGHT, BIAS, MEAN, VARIANCE }; /* inputs; the last two are batch_norm's running statistics */

struct norm_attrs {
    int ndims;      /* layer, RMS */
    int64_t groups; /* group */
    double eps, momentum;
    bool training; /* batch; */
    struct cairn__stats_exchange exchange;
};

/* Whether the input is only a share of the batch that statistics are computed over. */
static bool is_share(const struct norm_attrs *a) {
    return a->training && a->exchange.shares > 1;
}

/* Statistics, R: [groups] means, then [groups] of 1 / deviation. */
struct stats {
    size_t groups;
    cairn_dtype r;
    char *mean, *rstd;
};

/* ---- shapes ---- */

static cairn_status check_types(const struct cairn__node *node) {
    static const char *const names[] = {"input", "weight", "bias"};
    cairn_status st = CAIRN_OK;
    const cairn_tensor *x = node->inputs[X];
    TRY(cairn__check_is_float(node, X, names[X]));
    const cairn_dtype type = cairn__tensor_dtype(x);
    for (int i = WEIGHT; i < node->count && i <= BIAS; i++) {
        const cairn_tensor *p = node->inputs[i];
        if (!p) continue;
        const cairn_dtype affine = cairn__tensor_dtype(p);
        REQUIRE(affine == type || (affine == CAIRN_F32 && cairn__is_half(type)), CAIRN_EINVAL,
                "%s: input is %s but %s is %s; it must have the input's type, or be f32 where the input is half",
                cairn__op_name(node->op), cairn_dtype_name(type), names[i], cairn_dtype_name(affine));
    }
    const cairn_tensor *w = node->inputs[WEIGHT], *b = node->count > BIAS ? node->inputs[BIAS] : NULL;
    REQUIRE(!w || !b || cairn__tensor_dtype(w) == cairn__tensor_dtype(b), CAIRN_EINVAL,
            "%s: weight is %s but bias is %s; they must have the same type", cairn__op_name(node->op),
            cairn_dtype_name(cairn__tensor_dtype(w)), cairn_dtype_name(cairn__tensor_dtype(b)));
out:
    return st;
}

static cairn_status check_eps(const struct cairn__node *node, double eps) {
    REQUIRE(eps >= 0, CAIRN_EINVAL, "%s: eps is %g; it must be at least 0", cairn__op_name(node->op), eps);
    return CAIRN_OK;
}

/* Checks that input i, if present, has the shape of x's last ndims dimensions. */
static cairn_status check_last_dims(const struct cairn__node *node, int i, const char *what, int ndims) {
    const cairn_tensor *x = node->inputs[X], *p = i < node->count ? node->inputs[i] : NULL;
    char text_x[CAIRN__SHAPE_TEXT], text_p[CAIRN__SHAPE_TEXT];
    if (!p) return CAIRN_OK;
    bool fits = p->ndim == ndims;
    for (int d = 0; fits && d < ndims; d++) fits = p->shape[d] == x->shape[x->ndim - ndims + d];
    REQUIRE(fits, CAIRN_EINVAL, "%s: %s is %s, which is not the last %d dimension%s of %s", cairn__op_name(node->op),
            what, cairn__shape_text(p, text_p), ndims, ndims == 1 ? "" : "s", cairn__shape_text(x, text_x));
    return CAIRN_OK;
}

static cairn_status infer_rows(const struct cairn__node *node) {
    const struct norm_attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X];
    char text[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    REQUIRE(a->ndims >= 1 && a->ndims <= x->ndim, CAIRN_EINVAL, "%s: over the last %d dimensions of %s",
            cairn__op_name(node->op), a->ndims, cairn__shape_text(x, text));
    TRY(check_eps(node, a->eps));
    TRY(check_types(node));
    TRY(check_last_dims(node, WEIGHT, "weight", a->ndims));
    TRY(check_last_dims(node, BIAS, "bias", a->ndims));
    TRY(cairn__infer_like_first(node));
out:
    return st;
}

/* Checks that input i, if present, is [C] for x [N, C, ...]. */
static cairn_status check_channels(const struct cairn__node *node, int i, const char *what) {
    const cairn_tensor *x = node->inputs[X], *p = i < node->count ? node->inputs[i] : NULL;
    char text_x[CAIRN__SHAPE_TEXT], text_p[CAIRN__SHAPE_TEXT];
    REQUIRE(!p || (p->ndim == 1 && p->shape[0] == x->shape[1]), CAIRN_EINVAL,
            "%s: %s is %s, but input is %s; expected [%lld], one for each of dimension 1", cairn__op_name(node->op),
            what, cairn__shape_text(p, text_p), cairn__shape_text(x, text_x), (long long)x->shape[1]);
    return CAIRN_OK;
}

static cairn_status infer_channels(const struct cairn__node *node) {
    const struct norm_attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X];
    char text[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    REQUIRE(x->ndim >= 2, CAIRN_EINVAL, "%s: input is %s; expected [N, C, ...]", cairn__op_name(node->op),
            cairn__shape_text(x, text));
    TRY(check_eps(node, a->eps));
    TRY(check_types(node));
    TRY(check_channels(node, WEIGHT, "weight"));
    TRY(check_channels(node, BIAS, "bias"));
    TRY(cairn__infer_like_first(node));
out:
    return st;
}

static cairn_status infer_groups(const struct cairn__node *node) {
    const struct norm_attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X];
    char text[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    TRY(infer_channels(node));
    REQUIRE(a->groups >= 1 && x->shape[1] % a->groups == 0, CAIRN_EINVAL,
            "group_norm: the %lld channels of %s cannot be divided into %lld groups", (long long)x->shape[1],
            cairn__shape_text(x, text), (long long)a->groups);
out:
    return st;
}

static cairn_status check_running(const struct cairn__node *node, int i, const char *what) {
    const cairn_tensor *p = node->inputs[i];
    if (!p) return CAIRN_OK;
    const cairn_dtype type = cairn__tensor_dtype(p);
    REQUIRE(type == CAIRN_F32 || type == CAIRN_F64, CAIRN_EINVAL, "batch_norm: %s is %s; it must be f32", what,
            cairn_dtype_name(type));
    return check_channels(node, i, what);
}

static cairn_status infer_batch(const struct cairn__node *node) {
    const struct norm_attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X];
    char text[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    TRY(infer_channels(node));
    TRY(check_running(node, MEAN, "running_mean"));
    TRY(check_running(node, VARIANCE, "running_var"));
    REQUIRE(!node->inputs[MEAN] == !node->inputs[VARIANCE], CAIRN_EINVAL,
            "batch_norm: only one of running_mean and running_var is set; set both or neither");
    REQUIRE(!node->inputs[MEAN] ||
                cairn__tensor_dtype(node->inputs[MEAN]) == cairn__tensor_dtype(node->inputs[VARIANCE]),
            CAIRN_EINVAL, "batch_norm: running_mean and running_var have different types");
    REQUIRE(a->training || node->inputs[MEAN], CAIRN_EINVAL,
            "batch_norm: running_mean and running_var are NULL; evaluation needs both");
    REQUIRE(!a->training || is_share(a) || x->shape[0] * cairn__sizes(x, 2, x->ndim) != 1, CAIRN_EINVAL,
            "batch_norm: training needs more than one value for each channel, but input is %s",
            cairn__shape_text(x, text));
out:
    return st;
}

/* ---- the pass ---- */

static struct cairn__norm pass_of(const struct cairn__node *node) {
    const struct norm_attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT];
    const cairn_tensor *b = node->count > BIAS ? node->inputs[BIAS] : NULL;
    struct cairn__norm norm = {.dtype = cairn__tensor_dtype(x), .inner = 1, .per = 1, .eps = a->eps};
    norm.affine_dtype = w ? cairn__tensor_dtype(w) : b ? cairn__tensor_dtype(b) : norm.dtype;
    norm.x = cairn__tensor_data(x);
    norm.weight = w ? cairn__tensor_data(w) : NULL;
    norm.bias = b ? cairn__tensor_data(b) : NULL;
    if (node->op == CAIRN__OP_LAYER_NORM || node->op == CAIRN__OP_RMS_NORM) {
        norm.kind = node->op == CAIRN__OP_RMS_NORM ? CAIRN__NORM_RMS : CAIRN__NORM_ROWS;
        norm.outer = cairn__sizes(x, 0, x->ndim - a->ndims);
        norm.channels = cairn__sizes(x, x->ndim - a->ndims, x->ndim);
        return norm;
    }
    norm.kind = node->op == CAIRN__OP_GROUP_NORM ? CAIRN__NORM_GROUPS : CAIRN__NORM_CHANNELS;
    norm.outer = x->shape[0];
    norm.channels = x->shape[1];
    norm.inner = cairn__sizes(x, 2, x->ndim);
    if (node->op == CAIRN__OP_GROUP_NORM) norm.per = a->groups;
    norm.given_stats = node->op == CAIRN__OP_BATCH_NORM && !a->training;
    norm.share = is_share(a) ? CAIRN__NORM_TELLS : CAIRN__NORM_ALONE;
    return norm;
}

static struct stats stats_of(const struct cairn__node *node, const struct cairn__norm *norm) {
    struct stats s = {.r = cairn__arithmetic_type(norm->dtype), .mean = node->saved};
    if (norm->outer * norm->channels * norm->inner > 0 || norm->share != CAIRN__NORM_ALONE)
        s.groups = (size_t)(norm->kind == CAIRN__NORM_CHANNELS ? norm->channels : norm->outer * norm->per);
    if (s.mean) s.rstd = s.mean + s.groups * cairn_dtype_nbytes(s.r);
    return s;
}

static cairn_status save_stats(struct cairn__tape *tape, struct cairn__node *node, struct cairn__norm *norm) {
    const struct stats sizes = stats_of(node, norm);
    cairn_status st = CAIRN_OK;
    TRY(cairn__save(tape, node, 2 * sizes.groups * cairn_dtype_nbytes(sizes.r)));
    const struct stats s = stats_of(node, norm);
    norm->mean = s.mean;
    norm->rstd = s.rstd;
out:
    return st;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    struct cairn__norm norm = pass_of(node);
    norm.y = node->result->data;
    cairn_status st = CAIRN_OK;
    TRY(save_stats(tape, node, &norm));
    cairn__math_of(tape)->norm(tape->env->device, &norm);
out:
    return st;
}

/* Writes the running statistics to mean and rstd (1 / deviation), in R. */
static void take_running(struct cairn__tape *tape, const struct cairn__node *node, const struct cairn__norm *norm) {
    const struct cairn__math *math = cairn__math_of(tape);
    const struct stats s = stats_of(node, norm);
    const int64_t n = (int64_t)s.groups;
    const struct cairn__view mean = cairn__view_dense(s.mean, s.r, 1, &n), rstd = cairn__view_dense(s.rstd, s.r, 1, &n);
    const struct cairn__view running[] = {cairn__tensor_view(node->inputs[MEAN]),
                                          cairn__tensor_view(node->inputs[VARIANCE])};
    math->map(tape->env->device, CAIRN__MAP_COPY, &mean, &running[0], NULL);
    math->map(tape->env->device, CAIRN__MAP_AFFINE, &rstd, &running[1], (const double[]){1, norm->eps});
    math->map(tape->env->device, CAIRN__MAP_RSQRT, &rstd, &rstd, NULL);
}

/* ---- shares of a batch ---- */

static size_t count_shared(const struct cairn__norm *norm) {
    return 1 + 2 * (size_t)norm->channels;
}

static cairn_status room_for(struct cairn__tape *tape, size_t count, double **out) {
    void *room = NULL;
    cairn_status st = cairn__scratch(tape, count * sizeof(**out), &room);
    *out = room;
    return st;
}

static cairn_status merge_stats(struct cairn__tape *tape, const struct norm_attrs *a, struct cairn__norm *norm) {
    const struct cairn__stats_exchange *e = &a->exchange;
    cairn_status st = CAIRN_OK;
    double *all = NULL;
    TRY(room_for(tape, count_shared(norm), &norm->shared));
    TRY(room_for(tape, (size_t)e->shares * count_shared(norm), &all));
    cairn__math_of(tape)->norm(tape->env->device, norm);
    TRY(e->merge(e->ctx, norm->shared, all, (size_t)norm->channels, (double)norm->outer * (double)norm->inner));
    norm->share = CAIRN__NORM_TAKES;
out:
    return st;
}

static cairn_status batch_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct norm_attrs *a = node->attrs;
    const struct cairn__math *math = cairn__math_of(tape);
    struct cairn__norm norm = pass_of(node);
    cairn_tensor *mean = node->inputs[MEAN], *var = node->inputs[VARIANCE];
    const bool updates = a->training && mean && (node->result->n > 0 || is_share(a));
    cairn_status st = CAIRN_OK;
    norm.y = node->result->data;
    TRY(save_stats(tape, node, &norm));
    if (!a->training) take_running(tape, node, &norm);
    if (updates) TRY(cairn__scratch(tape, (size_t)norm.channels * sizeof(double), &norm.variance));
    if (is_share(a)) TRY(merge_stats(tape, a, &norm));
    math->norm(tape->env->device, &norm);
    if (updates) {
        math->batch_stats(tape->env->device, cairn__tensor_dtype(mean), cairn__tensor_data(mean),
                          cairn__tensor_data(var), &norm, a->momentum);
    }
out:
    return st;
}

/* ---- gradients ---- */

/* dweight and dbias are this share's; dx needs the sums over all shares. */
static cairn_status share_backward(struct cairn__tape *tape, const struct norm_attrs *a,
                                   const struct cairn__norm *norm) {
    struct cairn__norm tells = *norm, takes = *norm;
    cairn_status st = CAIRN_OK;
    TRY(room_for(tape, count_shared(norm), &tells.shared));
    tells.dx = NULL;
    cairn__math_of(tape)->norm_backward(tape->env->device, &tells);
    TRY(a->exchange.sum(a->exchange.ctx, tells.shared, count_shared(norm)));
    takes.shared = tells.shared;
    takes.share = CAIRN__NORM_TAKES;
    takes.dweight = takes.dbias = NULL;
    cairn__math_of(tape)->norm_backward(tape->env->device, &takes);
out:
    return st;
}

/* If x wants no gradient, the sums are not exchanged: nothing would read them. */
static cairn_status norm_backward(struct cairn__tape *tape, const struct cairn__node *node, struct cairn__norm *norm,
                                  bool has_dx) {
    if (norm->share != CAIRN__NORM_ALONE && has_dx) return share_backward(tape, node->attrs, norm);
    norm->share = CAIRN__NORM_ALONE;
    cairn__math_of(tape)->norm_backward(tape->env->device, norm);
    return CAIRN_OK;
}

/* The gradients of inputs `first` to `last`, in one pass. */
static cairn_status backward_of(struct cairn__tape *tape, const struct cairn__node *node, const void *dy, int first,
                                int last) {
    struct cairn__norm norm = pass_of(node);
    void **const out[] = {&norm.dx, &norm.dweight, &norm.dbias};
    const struct stats s = stats_of(node, &norm);
    cairn_status st = CAIRN_OK;
    norm.mean = s.mean;
    norm.rstd = s.rstd;
    norm.dy = dy;
    for (int i = last; i >= first; i--) {
        if (cairn__wants_grad(node->inputs[i])) TRY(cairn__tensor_grad_begin(tape, node->inputs[i], out[i]));
    }
    TRY(norm_backward(tape, node, &norm, first == X && cairn__wants_grad(node->inputs[X])));
    for (int i = last; i >= first; i--) {
        if (cairn__wants_grad(node->inputs[i])) TRY(cairn__tensor_grad_end(tape, node->inputs[i], *out[i]));
    }
out:
    return st;
}

/* A tensor that is passed as two inputs gets its contributions one after the other. */
static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT];
    const int last = node->count > BIAS ? BIAS : WEIGHT;
    const cairn_tensor *b = last == BIAS ? node->inputs[BIAS] : NULL;
    if (x != w && x != b && (w != b || !w)) return backward_of(tape, node, dy, X, last);
    cairn_status st = CAIRN_OK;
    for (int i = last; i >= X; i--) {
        if (cairn__wants_grad(node->inputs[i])) TRY(backward_of(tape, node, dy, i, i));
    }
out:
    return st;
}

enum { AFFINE_OPTIONAL = 1u << WEIGHT | 1u << BIAS };

static const struct cairn__op_row rows_row = {.needs_math = true,
                                              .optional = AFFINE_OPTIONAL,
                                              .infer = infer_rows,
                                              .forward = forward,
                                              .backward = backward,
                                              .reads = cairn__reads_inputs};
static const struct cairn__op_row groups_row = {.needs_math = true,
                                                .optional = AFFINE_OPTIONAL,
                                                .infer = infer_groups,
                                                .forward = forward,
                                                .backward = backward,
                                                .reads = cairn__reads_inputs};
static const struct cairn__op_row batch_row = {.needs_math = true,
                                               .optional = AFFINE_OPTIONAL | 1u << MEAN | 1u << VARIANCE,
                                               .infer = infer_batch,
                                               .forward = batch_forward,
                                               .backward = backward,
                                               .reads = cairn__reads_inputs};

/* ---- the calls ---- */

cairn_tensor *cairn_layer_norm_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias, int ndims,
                                       double eps) {
    const struct norm_attrs a = {.ndims = ndims, .eps = eps};
    return cairn__apply(CAIRN__OP_LAYER_NORM, &rows_row, CAIRN__INPUTS(x, weight, bias), &a, sizeof(a));
}

cairn_tensor *cairn_rms_norm_forward(cairn_tensor *x, cairn_tensor *weight, int ndims, double eps) {
    const struct norm_attrs a = {.ndims = ndims, .eps = eps};
    return cairn__apply(CAIRN__OP_RMS_NORM, &rows_row, CAIRN__INPUTS(x, weight), &a, sizeof(a));
}

cairn_tensor *cairn_group_norm_forward(cairn_tensor *x, int64_t groups, cairn_tensor *weight, cairn_tensor *bias,
                                       double eps) {
    const struct norm_attrs a = {.groups = groups, .eps = eps};
    return cairn__apply(CAIRN__OP_GROUP_NORM, &groups_row, CAIRN__INPUTS(x, weight, bias), &a, sizeof(a));
}

/* The running statistics are written in place; strided ones would be copied first and the copy written. */
static cairn_status check_is_dense(const cairn_tensor *running, const char *what) {
    REQUIRE(!running || running->is_dense, CAIRN_EINVAL,
            "batch_norm: %s has gaps; it must be dense, since it is written in place", what);
    return CAIRN_OK;
}

cairn_tensor *cairn__batch_norm_over(cairn_tensor *x, cairn_tensor *running_mean, cairn_tensor *running_var,
                                     cairn_tensor *weight, cairn_tensor *bias, int training, double momentum,
                                     double eps, const struct cairn__stats_exchange *exchange) {
    const struct norm_attrs a = {.eps = eps, .momentum = momentum, .training = training != 0, .exchange = *exchange};
    if (check_is_dense(running_mean, "running_mean") != CAIRN_OK) return NULL;
    if (check_is_dense(running_var, "running_var") != CAIRN_OK) return NULL;
    cairn_tensor *mean = cairn__constant(running_mean), *var = cairn__constant(running_var);
    if ((running_mean && !mean) || (running_var && !var)) return NULL;
    return cairn__apply(CAIRN__OP_BATCH_NORM, &batch_row, CAIRN__INPUTS(x, weight, bias, mean, var), &a, sizeof(a));
}

cairn_tensor *cairn_batch_norm_forward(cairn_tensor *x, cairn_tensor *running_mean, cairn_tensor *running_var,
                                       cairn_tensor *weight, cairn_tensor *bias, int training, double momentum,
                                       double eps) {
    const struct cairn__stats_exchange none = {.shares = 0};
    return cairn__batch_norm_over(x, running_mean, running_var, weight, bias, training, momentum, eps, &none);
}
