/* A product through fp8, composed of three operations:
 *
 *     fp8_cast(x), fp8_cast(w)     f32 values that are those of the codes, times 1 / scale
 *     the product, in f32          of values as they are: nothing is lost but what its sums round
 *     fp8_result(product, bias)    the bias is added, and the sum rounded to the half type once
 *
 * Backward: fp8_result computes the bias's gradient from the unrounded dy, and passes dy, cast through fp8, to the
 * product, whose two gradients multiply it with the operands of forward. fp8_cast passes its gradient on unchanged, as
 * if it had not rounded. Transformer Engine's Linear does the same, but multiplies codes, and multiplies their sums by
 * both 1 / scale afterwards; here each operand is multiplied by 1 / scale before the product. */
#include "fp8_products.h"

#include <math.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/status.h"
#include "device/env.h"
#include "fp8.h"

/* What a cast does, in both directions. */
struct cast {
    struct cairn__guest guest;
    const struct cairn__fp8_recipe *recipe;
    struct cairn__fp8_scale *scale; /* NULL: the current amax decides */
    int format;
    bool at_random, notes;
    uint64_t seed, stream;
    cairn_dtype half; /* result type of fp8_result */
};

/* dst, f32, = x through fp8. dst may be x, f32. */
static void cast_values(const struct cast *c, float *dst, const void *x, cairn_dtype dtype, size_t n) {
    const float amax = c->recipe->scaling == CAIRN_FP8_UNSCALED ? 0 : cairn__fp8_amax(x, dtype, n);
    const float scale = c->scale ? c->scale->scale : cairn__fp8_current_scale(c->format, c->recipe, amax);
    const struct cairn__fp8 how = {.scale = scale,
                                   .inverse = 1 / scale,
                                   .saturates = c->recipe->saturates,
                                   .at_random = c->at_random,
                                   .seed = c->seed,
                                   .stream = c->stream};
    cairn__fp8_round(c->format, dst, CAIRN_F32, x, dtype, n, &how);
    if (c->scale && c->notes) cairn__fp8_scale_note(c->scale, amax);
}

static size_t numel(const cairn_tensor *t) {
    return (size_t)cairn_tensor_numel(t);
}

static cairn_status infer_as_first(const struct cairn__node *node, cairn_dtype dtype) {
    const cairn_tensor *x = cairn__node_input(node, 0);
    int64_t shape[CAIRN_MAX_DIMS] = {0};
    for (int d = 0; d < cairn_tensor_ndim(x); d++) shape[d] = cairn_tensor_size(x, d);
    return cairn__infer_as(node, dtype, cairn_tensor_ndim(x), shape);
}

/* ---- fp8_cast ---- */

static cairn_status cast_infer(const struct cairn__node *node) {
    return infer_as_first(node, CAIRN_F32);
}

static cairn_status cast_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const cairn_tensor *x = cairn__node_input(node, 0);
    (void)tape;
    cast_values(cairn__node_attrs(node), cairn__tensor_values(cairn__node_result(node)), cairn__tensor_values(x),
                cairn_tensor_dtype(x), numel(x));
    return CAIRN_OK;
}

static cairn_status cast_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = cairn__node_input(node, 0);
    struct cairn_device *d = cairn__node_device(node);
    void *dx = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    cairn__pass_cast(d->passes, d, dx, cairn_tensor_dtype(x), dy, CAIRN_F32, numel(x));
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

static const struct cairn__guest_op fp8_cast = {.name = "fp8_cast",
                                                .keeps_types = true,
                                                .reads_nothing = true,
                                                .infer = cast_infer,
                                                .forward = cast_forward,
                                                .backward = cast_backward};

/* ---- fp8_result ---- */

enum { PRODUCT, BIAS, BLOCK = 1024 };

static cairn_tensor *bias_of(const struct cairn__node *node) {
    return cairn__node_count(node) > BIAS ? cairn__node_input(node, BIAS) : NULL;
}

static cairn_status result_infer(const struct cairn__node *node) {
    return infer_as_first(node, ((const struct cast *)cairn__node_attrs(node))->half);
}

/* Adds the bias a block at a time, which needs no array for the f32 sums. */
static cairn_status result_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const cairn_tensor *x = cairn__node_input(node, PRODUCT), *bias = bias_of(node), *result = cairn__node_result(node);
    struct cairn_device *d = cairn__node_device(node);
    const cairn_dtype half = cairn_tensor_dtype(result);
    const size_t n = numel(x), cols = bias ? numel(bias) : 1;
    const float *product = cairn__tensor_values(x);
    uint16_t *y = cairn__tensor_values(result);
    (void)tape;
    if (!bias) cairn__pass_cast(d->passes, d, y, half, product, CAIRN_F32, n);
    for (size_t i = 0; bias && i < n;) {
        float sums[BLOCK];
        const size_t col = i % cols, left = cols - col, m = left < BLOCK ? left : BLOCK;
        d->passes->add(d, CAIRN_F32, sums, product + i, (const float *)cairn__tensor_values(bias) + col, m);
        cairn__pass_cast(d->passes, d, y + i, half, sums, CAIRN_F32, m);
        i += m;
    }
    return CAIRN_OK;
}

/* Widens dy into the memory of the product's gradient, or, if only the bias is trained, into temporary memory. */
static cairn_status result_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *product = cairn__node_input(node, PRODUCT), *bias = bias_of(node);
    struct cairn_device *d = cairn__node_device(node);
    const bool goes_on = cairn__tensor_wants_grad(product), has_bias = bias && cairn__tensor_wants_grad(bias);
    const size_t n = numel(product), cols = has_bias ? numel(bias) : 0;
    void *wide = NULL, *own = NULL, *db = NULL;
    cairn_status st = CAIRN_OK;
    if (goes_on) TRY(cairn__tensor_grad_begin(tape, product, &wide));
    if (!goes_on) TRY(cairn__alloc(n * sizeof(float) + 1, &own));
    if (!goes_on) wide = own;
    cairn__pass_cast(d->passes, d, wide, CAIRN_F32, dy, cairn_tensor_dtype(cairn__node_result(node)), n);
    if (has_bias) {
        TRY(cairn__tensor_grad_begin(tape, bias, &db));
        d->passes->col_sum(d, CAIRN_F32, db, wide, cols ? n / cols : 0, cols);
        TRY(cairn__tensor_grad_end(tape, bias, db));
    }
    if (goes_on) {
        cast_values(cairn__node_attrs(node), wide, wide, CAIRN_F32, n);
        TRY(cairn__tensor_grad_end(tape, product, wide));
    }
out:
    cairn__free(own);
    return st;
}

static const struct cairn__guest_op fp8_result = {.name = "fp8_result",
                                                  .keeps_types = true,
                                                  .reads_nothing = true,
                                                  .infer = result_infer,
                                                  .forward = result_forward,
                                                  .backward = result_backward};

/* ---- the product ---- */

static bool is_castable(const cairn_tensor *t) {
    const cairn_dtype dtype = cairn_tensor_dtype(t);
    return dtype == CAIRN_F32 || cairn__is_half(dtype);
}

bool cairn__fp8_can_cast(const struct cairn__fp8_operation *o) {
    return is_castable(o->operands[0]) && is_castable(o->operands[1]) && (!o->bias || is_castable(o->bias));
}

static struct cast describe(const struct cairn__fp8_operation *o, const struct cairn__guest_op *guest, int format,
                            struct cairn__fp8_scale *scale, bool at_random) {
    cairn_env *env = cairn__tensor_env(o->operands[0]);
    return (struct cast){.guest = {guest},
                         .recipe = o->recipe,
                         .scale = scale,
                         .format = format,
                         .at_random = at_random,
                         .notes = cairn__records(env),
                         .seed = env->seed,
                         .stream = at_random ? cairn__env_next_stream(env) : 0,
                         .half = o->half};
}

static cairn_tensor *operand(const struct cairn__fp8_operation *o, int i) {
    const struct cast c = describe(o, &fp8_cast, o->recipe->forward, o->scales[i], o->recipe->stochastic_inputs);
    cairn_tensor *x = o->operands[i];
    return cairn__apply_guest(&c.guest, sizeof(c), 1, &x);
}

static cairn_tensor *multiply(const struct cairn__fp8_operation *o) {
    cairn_tensor *a = operand(o, 0), *b = operand(o, 1);
    if (!a || !b) return NULL;
    if (o->op == CAIRN__OP_LINEAR) return cairn_linear_forward(a, b, NULL);
    return o->op == CAIRN__OP_BMM ? cairn_bmm(a, b) : cairn_matmul(a, b);
}

/* cairn_linear_forward, which would check this, is called without the bias. */
static cairn_status check_bias(const cairn_tensor *product, const cairn_tensor *bias) {
    char a[CAIRN__SHAPE_TEXT], b[CAIRN__SHAPE_TEXT];
    REQUIRE(cairn_tensor_ndim(bias) == 1 && cairn_tensor_size(bias, 0) == cairn_tensor_size(product, -1), CAIRN_EINVAL,
            "linear: bias is %s, but the product is %s", cairn__shape_text(bias, a), cairn__shape_text(product, b));
    return CAIRN_OK;
}

static cairn_tensor *finish(const struct cairn__fp8_operation *o, cairn_tensor *product) {
    const struct cast c =
        describe(o, &fp8_result, o->recipe->backward, o->of_gradient, o->recipe->stochastic_gradients);
    cairn_tensor *inputs[] = {product, o->bias};
    if (!product) return NULL;
    if (o->bias && check_bias(product, o->bias) != CAIRN_OK) return NULL;
    if (o->bias && cairn_tensor_dtype(o->bias) != CAIRN_F32) inputs[BIAS] = cairn_cast(o->bias, CAIRN_F32);
    return cairn__apply_guest(&c.guest, sizeof(c), o->bias ? 2 : 1, inputs);
}

cairn_tensor *cairn__fp8_apply(const struct cairn__fp8_operation *o) {
    const cairn_env *env = cairn__tensor_env(o->operands[0]);
    const size_t mark = cairn__inside_begin(env);
    cairn_tensor *const y = finish(o, multiply(o));
    return cairn__inside_end(env, mark, y);
}
