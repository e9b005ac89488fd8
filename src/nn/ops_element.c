/* Element-wise operations. What an operation computes and the gradient of each input are maps (kernels/maps.h), so an
 * operation is a line of a table; all share one infer, one forward and one backward. The gradient of a broadcast input
 * is computed over the result's shape, in the type of arithmetic, and folded.
 *
 * add, mul_scalar, relu and cast use passes.h where types and layout allow, so a device without math has them too. */
#include <math.h>

#include "core/status.h"
#include "nn/ops.h"

/* ---- the table ---- */

enum operand { NONE, A, B, C, DY, Y };

/* The gradient of one input. */
struct side {
    enum cairn__map_fn map;
    unsigned char of[CAIRN__MAP_INPUTS]; /* enum operand */
};

/* The result's type for integer inputs: FLOATS f32; NUMBERS theirs, bool refused; ANY theirs; TRUTH bool, whatever the
 * inputs are. */
enum kind { FLOATS, NUMBERS, ANY, TRUTH };

struct formula {
    enum kind kind;
    enum cairn__map_fn map;
    double p0; /* of all maps of the line, if the operation has no numbers of its own */
    struct side sides[3];
};

#define MAP(name) CAIRN__MAP_##name
#define SIDE(map, ...)      \
    {                       \
        CAIRN__MAP_##map, { \
            __VA_ARGS__     \
        }                   \
    }
#define OP(op, kind, ...) [CAIRN__OP_##op] = {kind, __VA_ARGS__}

/* clang-format off */
static const struct formula formulas[CAIRN__NUM_OPS] = {
    OP(ADD,        ANY,     MAP(ADD),  1, {SIDE(COPY, DY), SIDE(COPY, DY)}),
    OP(SUB,        NUMBERS, MAP(ADD), -1, {SIDE(COPY, DY), SIDE(NEG, DY)}),
    OP(MUL,        ANY,     MAP(MUL),  0, {SIDE(MUL, DY, B), SIDE(MUL, DY, A)}),
    OP(DIV,        FLOATS,  MAP(DIV),  0, {SIDE(DIV, DY, B), SIDE(DIV_BACKWARD_B, DY, A, B)}),
    OP(POW,        NUMBERS, MAP(POW),  0, {SIDE(POW_BACKWARD_A, DY, A, B), SIDE(POW_BACKWARD_B, DY, A, B, Y)}),
    OP(MAXIMUM,    ANY,     MAP(MAXIMUM), 0, {SIDE(MAXIMUM_BACKWARD, DY, A, B), SIDE(MAXIMUM_BACKWARD, DY, B, A)}),
    OP(MINIMUM,    ANY,     MAP(MINIMUM), 0, {SIDE(MINIMUM_BACKWARD, DY, A, B), SIDE(MINIMUM_BACKWARD, DY, B, A)}),
    OP(ATAN2,      FLOATS,  MAP(ATAN2), 0, {SIDE(ATAN2_BACKWARD_A, DY, A, B), SIDE(ATAN2_BACKWARD_B, DY, A, B)}),
    OP(EQ,         TRUTH,   MAP(EQ), 0, {{0}}),
    OP(NE,         TRUTH,   MAP(NE), 0, {{0}}),
    OP(LT,         TRUTH,   MAP(LT), 0, {{0}}),
    OP(LE,         TRUTH,   MAP(LE), 0, {{0}}),
    OP(GT,         TRUTH,   MAP(GT), 0, {{0}}),
    OP(GE,         TRUTH,   MAP(GE), 0, {{0}}),
    OP(WHERE,      ANY,     MAP(WHERE), 0, {{0}, SIDE(MASKED, A, DY), SIDE(UNMASKED, A, DY)}),
    OP(ADDCMUL,    NUMBERS, MAP(ADDCMUL), 0,
       {SIDE(COPY, DY), SIDE(ADDCMUL_BACKWARD, DY, C), SIDE(ADDCMUL_BACKWARD, DY, B)}),
    OP(ADDCDIV,    FLOATS,  MAP(ADDCDIV), 0,
       {SIDE(COPY, DY), SIDE(ADDCDIV_BACKWARD_B, DY, C), SIDE(ADDCDIV_BACKWARD_C, DY, B, C)}),

    OP(ADD_SCALAR, NUMBERS, MAP(AFFINE), 0, {SIDE(COPY, DY)}),
    OP(MUL_SCALAR, NUMBERS, MAP(AFFINE), 0, {SIDE(AFFINE, DY)}),
    OP(POW_SCALAR, NUMBERS, MAP(POW_SCALAR), 0, {SIDE(POW_SCALAR_BACKWARD, DY, A)}),
    OP(SCALAR_POW, NUMBERS, MAP(POW_OF_SCALAR), 0, {SIDE(POW_OF_SCALAR_BACKWARD, DY, Y)}),
    OP(CLAMP,      NUMBERS, MAP(CLAMP), 0, {SIDE(CLAMP_BACKWARD, DY, A)}),

    OP(NEG,        NUMBERS, MAP(NEG), 0, {SIDE(NEG, DY)}),
    OP(ABS,        NUMBERS, MAP(ABS), 0, {SIDE(ABS_BACKWARD, DY, A)}),
    OP(SQUARE,     NUMBERS, MAP(SQUARE), 2, {SIDE(MUL_SCALED, DY, A)}),
    OP(SQRT,       FLOATS,  MAP(SQRT), 0, {SIDE(SQRT_BACKWARD, DY, Y)}),
    OP(RSQRT,      FLOATS,  MAP(RSQRT), 0, {SIDE(RSQRT_BACKWARD, DY, Y)}),
    OP(RECIPROCAL, FLOATS,  MAP(RECIPROCAL), 0, {SIDE(RECIPROCAL_BACKWARD, DY, Y)}),
    OP(EXP,        FLOATS,  MAP(EXP), 0, {SIDE(MUL, DY, Y)}),
    OP(EXPM1,      FLOATS,  MAP(EXPM1), 0, {SIDE(EXPM1_BACKWARD, DY, Y)}),
    OP(LOG,        FLOATS,  MAP(LOG), 0, {SIDE(DIV, DY, A)}),
    OP(LOG1P,      FLOATS,  MAP(LOG1P), 0, {SIDE(LOG1P_BACKWARD, DY, A)}),
    OP(LOG2,       FLOATS,  MAP(LOG2), 0.69314718055994530942 /* ln 2 */, {SIDE(LOG_BASE_BACKWARD, DY, A)}),
    OP(LOG10,      FLOATS,  MAP(LOG10), 2.30258509299404568402 /* ln 10 */, {SIDE(LOG_BASE_BACKWARD, DY, A)}),
    OP(SIN,        FLOATS,  MAP(SIN), 0, {SIDE(SIN_BACKWARD, DY, A)}),
    OP(COS,        FLOATS,  MAP(COS), 0, {SIDE(COS_BACKWARD, DY, A)}),
    OP(TAN,        FLOATS,  MAP(TAN), 0, {SIDE(TAN_BACKWARD, DY, Y)}),
    OP(ASIN,       FLOATS,  MAP(ASIN), 0, {SIDE(ASIN_BACKWARD, DY, A)}),
    OP(ACOS,       FLOATS,  MAP(ACOS), 0, {SIDE(ACOS_BACKWARD, DY, A)}),
    OP(ATAN,       FLOATS,  MAP(ATAN), 0, {SIDE(ATAN_BACKWARD, DY, A)}),
    OP(SINH,       FLOATS,  MAP(SINH), 0, {SIDE(SINH_BACKWARD, DY, A)}),
    OP(COSH,       FLOATS,  MAP(COSH), 0, {SIDE(COSH_BACKWARD, DY, A)}),
    OP(TANH,       FLOATS,  MAP(TANH), 0, {SIDE(TANH_BACKWARD, DY, Y)}),
    OP(ERF,        FLOATS,  MAP(ERF), 0, {SIDE(ERF_BACKWARD, DY, A)}),
    OP(ERFINV,     FLOATS,  MAP(ERFINV), 0, {SIDE(ERFINV_BACKWARD, DY, Y)}),
    OP(SIGMOID,    FLOATS,  MAP(SIGMOID), 0, {SIDE(SIGMOID_BACKWARD, DY, Y)}),
    OP(SOFTPLUS,   FLOATS,  MAP(SOFTPLUS), 0, {SIDE(SOFTPLUS_BACKWARD, DY, A)}),
    OP(RELU,       NUMBERS, MAP(RELU), 0, {SIDE(RELU_BACKWARD, DY, Y)}),
    OP(GELU,       FLOATS,  MAP(GELU), 0, {SIDE(GELU_BACKWARD, DY, A)}),
    OP(GELU_TANH,  FLOATS,  MAP(GELU_TANH), 0, {SIDE(GELU_TANH_BACKWARD, DY, A)}),
    OP(SILU,       FLOATS,  MAP(SILU), 0, {SIDE(SILU_BACKWARD, DY, A)}),
    OP(PRELU,      FLOATS,  MAP(PRELU), 0, {SIDE(PRELU_BACKWARD_A, DY, A, B), SIDE(PRELU_BACKWARD_B, DY, A)}),
};
/* clang-format on */

/* The numbers of the maps: the attrs, MAP_NUMBERS of them, if the operation has numbers; else own, filled from p0. */
static const double *numbers_of(const struct cairn__node *node, double own[CAIRN__MAP_NUMBERS]) {
    own[0] = formulas[node->op].p0;
    own[1] = 0;
    return node->attrs ? node->attrs : own;
}

/* ---- operands ---- */

/* v, of the i-th input's shape, broadcast to the result's. torch.prelu's weight is along dimension 1. */
static struct cairn__view shown(const struct cairn__node *node, int i, struct cairn__view v) {
    const cairn_tensor *y = node->result;
    if (node->op != CAIRN__OP_PRELU || i != 1) return cairn__view_broadcast(&v, y->ndim, y->shape);
    struct cairn__view weight = {.data = v.data, .dtype = v.dtype, .ndim = y->ndim};
    memcpy(weight.size, y->shape, sizeof(weight.size));
    if (y->ndim > 1 && cairn__view_numel(&v) > 1) weight.stride[1] = v.stride[0];
    return weight;
}

static struct cairn__view operand_view(const struct cairn__node *node, enum operand which, const void *dy) {
    if (which == DY) return cairn__dy_view(node, dy);
    if (which == Y) return cairn__tensor_view(node->result);
    return shown(node, which - A, cairn__tensor_view(node->inputs[which - A]));
}

/* ---- by passes.h ---- */

/* Whether the operation needs nothing but passes.h, forward and backward. */
static bool is_on_passes(const struct cairn__node *node) {
    const cairn_tensor *y = node->result;
    if (node->row->needs_math || (y->dtype != CAIRN_F32 && !cairn__is_half(y->dtype))) return false;
    for (int i = 0; i < node->count; i++) {
        const cairn_tensor *x = node->inputs[i];
        if (!x->is_dense || x->n != y->n || cairn__tensor_dtype(x) != y->dtype) return false;
    }
    return true;
}

static void forward_on_passes(struct cairn__tape *tape, const struct cairn__node *node) {
    const struct cairn__passes *p = cairn__passes_of(tape);
    struct cairn_device *d = tape->env->device;
    const cairn_tensor *y = node->result;
    const void *x = cairn__tensor_data(node->inputs[0]);
    if (node->op == CAIRN__OP_ADD) {
        p->add(d, y->dtype, y->data, x, cairn__tensor_data(node->inputs[1]), y->n);
    } else if (node->op == CAIRN__OP_RELU) {
        p->relu(d, y->dtype, y->data, x, y->n);
    } else {
        p->mul_scalar(d, y->dtype, y->data, x, y->n, (float)*(const double *)node->attrs);
    }
}

/* add's gradients are dy itself. */
static void slope_on_passes(struct cairn__tape *tape, const struct cairn__node *node, void *dx, const void *dy) {
    const struct cairn__passes *p = cairn__passes_of(tape);
    const cairn_tensor *y = node->result;
    if (node->op == CAIRN__OP_RELU) {
        p->relu_backward(tape->env->device, y->dtype, dx, dy, y->data, y->n); /* y is positive where x is */
    } else {
        p->mul_scalar(tape->env->device, y->dtype, dx, dy, y->n, (float)*(const double *)node->attrs);
    }
}

/* ---- types and shapes ---- */

static bool is_whole(double x) {
    return isinf(x) || x == trunc(x);
}

static cairn_status take_type(const struct cairn__node *node) {
    cairn_tensor *y = node->result;
    const enum kind kind = formulas[node->op].kind;
    const double *numbers = node->attrs;
    if (kind == TRUTH) y->dtype = CAIRN_BOOL;
    if (kind == TRUTH || cairn__is_float(y->dtype)) return CAIRN_OK;
    y->dtype = CAIRN_BOOL; /* or the widest integer type of the inputs */
    for (int i = node->op == CAIRN__OP_WHERE; i < node->count; i++) {
        const cairn_dtype t = cairn__tensor_dtype(node->inputs[i]);
        if (t == CAIRN_I64 || (t == CAIRN_I32 && y->dtype == CAIRN_BOOL)) y->dtype = t;
    }
    REQUIRE(kind != NUMBERS || y->dtype != CAIRN_BOOL, CAIRN_EINVAL, "%s: the input is bool; cast it to a number first",
            cairn__op_name(node->op));
    REQUIRE(node->op != CAIRN__OP_POW_SCALAR || !is_whole(numbers[0]) || numbers[0] >= 0, CAIRN_EINVAL,
            "pow_scalar: the exponent is %g, but x has integers; cast x to a float first", numbers[0]);
    if (kind == FLOATS || (numbers && !(is_whole(numbers[0]) && is_whole(numbers[1])))) y->dtype = CAIRN_F32;
    return CAIRN_OK;
}

static cairn_status element_infer(const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__infer_broadcast(node));
    TRY(take_type(node));
out:
    return st;
}

static cairn_status where_infer(const struct cairn__node *node) {
    const cairn_dtype condition = cairn__tensor_dtype(node->inputs[0]);
    REQUIRE(condition == CAIRN_BOOL, CAIRN_EINVAL, "where: the condition is %s; it must be bool",
            cairn_dtype_name(condition));
    for (int i = 1; i < node->count; i++) { /* the condition does not affect the result's type */
        if (cairn__is_float(cairn__tensor_dtype(node->inputs[i])))
            node->result->dtype = cairn__tensor_dtype(node->inputs[i]);
    }
    return element_infer(node);
}

static cairn_status prelu_infer(const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[0], *weight = node->inputs[1];
    char text_x[CAIRN__SHAPE_TEXT], text_weight[CAIRN__SHAPE_TEXT];
    const bool one_each = weight->ndim == 1 && x->ndim > 1 && weight->shape[0] == x->shape[1];
    REQUIRE(weight->n == 1 || one_each, CAIRN_EINVAL,
            "prelu: x is %s, but weight is %s; weight must have one element, or one for each index of dimension 1",
            cairn__shape_text(x, text_x), cairn__shape_text(weight, text_weight));
    cairn_status st = CAIRN_OK;
    TRY(cairn__infer_like_first(node));
    TRY(take_type(node));
out:
    return st;
}

/* ---- forward and backward ---- */

static cairn_status element_forward(struct cairn__tape *tape, struct cairn__node *node) {
    if (is_on_passes(node)) {
        forward_on_passes(tape, node);
        return CAIRN_OK;
    }
    cairn_status st = CAIRN_OK;
    TRY(cairn__require_math(tape, node->op));
    double own[CAIRN__MAP_NUMBERS];
    struct cairn__view x[CAIRN__MAP_INPUTS];
    for (int i = 0; i < node->count; i++) x[i] = operand_view(node, (enum operand)(A + i), NULL);
    const struct cairn__view y = cairn__tensor_view(node->result);
    cairn__math_of(tape)->map(tape->env->device, formulas[node->op].map, &y, x, numbers_of(node, own));
out:
    return st;
}

static void map_side(struct cairn__tape *tape, const struct cairn__node *node, const struct side *side,
                     const struct cairn__view *to, const void *dy) {
    double own[CAIRN__MAP_NUMBERS];
    struct cairn__view x[CAIRN__MAP_INPUTS];
    for (int i = 0; i < CAIRN__MAP_INPUTS && side->of[i] != NONE; i++)
        x[i] = operand_view(node, (enum operand)side->of[i], dy);
    cairn__math_of(tape)->map(tape->env->device, side->map, to, x, numbers_of(node, own));
}

/* The gradient of one input. A broadcast input gets the sum over the dimensions it was repeated along. */
static cairn_status side_backward(struct cairn__tape *tape, const struct cairn__node *node, int i, const void *dy) {
    cairn_tensor *x = node->inputs[i];
    const struct side *side = &formulas[node->op].sides[i];
    const bool is_whole_shape = x->n == node->result->n;
    void *dx = NULL;
    cairn_status st = CAIRN_OK;
    if (side->map == CAIRN__MAP_COPY && is_whole_shape) return cairn__tensor_grad_pass_on(tape, x, node, dy);
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    const struct cairn__view to = shown(node, i, cairn__tensor_grad_view(x, dx));
    if (is_on_passes(node)) {
        slope_on_passes(tape, node, dx, dy);
    } else if (is_whole_shape) {
        map_side(tape, node, side, &to, dy);
    } else {
        struct cairn__view wide = cairn__dy_view(node, dy);
        if (side->map != CAIRN__MAP_COPY) {
            wide.dtype = cairn__arithmetic_type(node->result->dtype);
            TRY(cairn__scratch(tape, node->result->n * cairn_dtype_nbytes(wide.dtype), &wide.data));
            map_side(tape, node, side, &wide, dy);
        }
        cairn__math_of(tape)->fold(tape->env->device, CAIRN__FOLD_SUM, &to, &wide, 1, false);
    }
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

/* Last input first: weights come after the inputs they apply to, and backward writes parameters first. */
static cairn_status element_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_status st = CAIRN_OK;
    for (int i = node->count - 1; i >= 0; i--) {
        if (cairn__wants_grad(node->inputs[i])) TRY(side_backward(tape, node, i, dy));
    }
out:
    return st;
}

/* A leaf or parameter may begin or cease to require a gradient before backward; a result never does. */
static bool element_reads(const struct cairn__node *node, int i) {
    const unsigned char which = (unsigned char)(i < node->count ? A + i : Y);
    for (int s = 0; s < node->count; s++) {
        if (!cairn__wants_grad(node->inputs[s]) && node->inputs[s]->kind == CAIRN__RESULT) continue;
        if (memchr(formulas[node->op].sides[s].of, which, CAIRN__MAP_INPUTS)) return true;
    }
    return false;
}

#define ROW(name, infer_, ...)                                            \
    static const struct cairn__op_row name = {.promotes = true,           \
                                              .strided = true,            \
                                              .infer = infer_,            \
                                              .forward = element_forward, \
                                              .reads = element_reads,     \
                                              __VA_ARGS__}
ROW(element_row, element_infer, .needs_math = true, .backward = element_backward);
ROW(element_on_passes_row, element_infer, .backward = element_backward);
ROW(comparison_row, element_infer, .needs_math = true);
ROW(where_row, where_infer, .needs_math = true, .backward = element_backward);
ROW(prelu_row, prelu_infer, .needs_math = true, .backward = element_backward);

/* ---- the calls ---- */

#define ONE(row, name, OP)                                                          \
    cairn_tensor *cairn_##name(cairn_tensor *x) {                                   \
        return cairn__apply(CAIRN__OP_##OP, &row##_row, CAIRN__INPUTS(x), NULL, 0); \
    }
#define TWO(row, name, OP)                                                             \
    cairn_tensor *cairn_##name(cairn_tensor *a, cairn_tensor *b) {                     \
        return cairn__apply(CAIRN__OP_##OP, &row##_row, CAIRN__INPUTS(a, b), NULL, 0); \
    }

TWO(element_on_passes, add, ADD)
TWO(element, sub, SUB)
TWO(element, mul, MUL)
TWO(element, div, DIV)
TWO(element, pow, POW)
TWO(element, maximum, MAXIMUM)
TWO(element, minimum, MINIMUM)
TWO(element, atan2, ATAN2)
TWO(comparison, eq, EQ)
TWO(comparison, ne, NE)
TWO(comparison, lt, LT)
TWO(comparison, le, LE)
TWO(comparison, gt, GT)
TWO(comparison, ge, GE)
TWO(prelu, prelu, PRELU)

ONE(element, neg, NEG)
ONE(element, abs, ABS)
ONE(element, square, SQUARE)
ONE(element, sqrt, SQRT)
ONE(element, rsqrt, RSQRT)
ONE(element, reciprocal, RECIPROCAL)
ONE(element, exp, EXP)
ONE(element, expm1, EXPM1)
ONE(element, log, LOG)
ONE(element, log1p, LOG1P)
ONE(element, log2, LOG2)
ONE(element, log10, LOG10)
ONE(element, sin, SIN)
ONE(element, cos, COS)
ONE(element, tan, TAN)
ONE(element, asin, ASIN)
ONE(element, acos, ACOS)
ONE(element, atan, ATAN)
ONE(element, sinh, SINH)
ONE(element, cosh, COSH)
ONE(element, tanh, TANH)
ONE(element, erf, ERF)
ONE(element, erfinv, ERFINV)
ONE(element, sigmoid, SIGMOID)
ONE(element_on_passes, relu, RELU)
ONE(element, gelu, GELU)
ONE(element, gelu_tanh, GELU_TANH)
ONE(element, silu, SILU)

static cairn_tensor *with_numbers(enum cairn__op op, const struct cairn__op_row *row, int count,
                                  cairn_tensor *const *inputs, double p0, double p1) {
    const double numbers[CAIRN__MAP_NUMBERS] = {p0, p1};
    return cairn__apply(op, row, count, inputs, numbers, sizeof(numbers));
}

cairn_tensor *cairn_where(cairn_tensor *condition, cairn_tensor *a, cairn_tensor *b) {
    return cairn__apply(CAIRN__OP_WHERE, &where_row, CAIRN__INPUTS(condition, a, b), NULL, 0);
}

cairn_tensor *cairn_addcmul(cairn_tensor *x, cairn_tensor *a, cairn_tensor *b, double value) {
    return with_numbers(CAIRN__OP_ADDCMUL, &element_row, CAIRN__INPUTS(x, a, b), value, 0);
}

cairn_tensor *cairn_addcdiv(cairn_tensor *x, cairn_tensor *a, cairn_tensor *b, double value) {
    return with_numbers(CAIRN__OP_ADDCDIV, &element_row, CAIRN__INPUTS(x, a, b), value, 0);
}

cairn_tensor *cairn_add_scalar(cairn_tensor *x, double s) {
    return with_numbers(CAIRN__OP_ADD_SCALAR, &element_row, CAIRN__INPUTS(x), 1, s);
}

/* Adding -0 changes nothing, not even -0. */
cairn_tensor *cairn_mul_scalar(cairn_tensor *x, double s) {
    return with_numbers(CAIRN__OP_MUL_SCALAR, &element_on_passes_row, CAIRN__INPUTS(x), s, -0.0);
}

cairn_tensor *cairn_pow_scalar(cairn_tensor *x, double exponent) {
    return with_numbers(CAIRN__OP_POW_SCALAR, &element_row, CAIRN__INPUTS(x), exponent, 0);
}

cairn_tensor *cairn_scalar_pow(double base, cairn_tensor *x) {
    return with_numbers(CAIRN__OP_SCALAR_POW, &element_row, CAIRN__INPUTS(x), base, 0);
}

cairn_tensor *cairn_clamp(cairn_tensor *x, double low, double high) {
    /* Kernels compare, and comparisons with NaN are false. The gradient is zero, as in torch. */
    if (isnan(low) || isnan(high)) return cairn_add_scalar(cairn_mul_scalar(x, 0), NAN);
    return with_numbers(CAIRN__OP_CLAMP, &element_row, CAIRN__INPUTS(x), low, high);
}

cairn_tensor *cairn_softplus(cairn_tensor *x, double beta, double threshold) {
    return with_numbers(CAIRN__OP_SOFTPLUS, &element_row, CAIRN__INPUTS(x), beta, threshold);
}
