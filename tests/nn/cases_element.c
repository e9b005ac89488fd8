/* Cases of elementwise operations. Every unary operation runs on the same four shapes, every binary one on the same
 * seven, which broadcast in both directions and to empty results. */
#include <math.h>

#include "op_cases.h"

/* ---- one input: call, operation, values, PyTorch ---- */

/* clang-format off */
#define ONE_LIST(X)                                                    \
    X(neg, NEG, NORMAL, "-a")                                          \
    X(abs, ABS, AWAY, "torch.abs(a)")                                  \
    X(square, SQUARE, NORMAL, "torch.square(a)")                       \
    X(sqrt, SQRT, POSITIVE, "torch.sqrt(a)")                           \
    X(rsqrt, RSQRT, POSITIVE, "torch.rsqrt(a)")                        \
    X(reciprocal, RECIPROCAL, AWAY, "torch.reciprocal(a)")             \
    X(exp, EXP, NORMAL, "torch.exp(a)")                                \
    X(expm1, EXPM1, NORMAL, "torch.expm1(a)")                          \
    X(log, LOG, POSITIVE, "torch.log(a)")                              \
    X(log1p, LOG1P, UNIT, "torch.log1p(a)")                            \
    X(log2, LOG2, POSITIVE, "torch.log2(a)")                           \
    X(log10, LOG10, POSITIVE, "torch.log10(a)")                        \
    X(sin, SIN, NORMAL, "torch.sin(a)")                                \
    X(cos, COS, NORMAL, "torch.cos(a)")                                \
    X(tan, TAN, UNIT, "torch.tan(a)")                                  \
    X(asin, ASIN, UNIT, "torch.asin(a)")                               \
    X(acos, ACOS, UNIT, "torch.acos(a)")                               \
    X(atan, ATAN, NORMAL, "torch.atan(a)")                             \
    X(sinh, SINH, NORMAL, "torch.sinh(a)")                             \
    X(cosh, COSH, NORMAL, "torch.cosh(a)")                             \
    X(tanh, TANH, NORMAL, "torch.tanh(a)")                             \
    X(erf, ERF, NORMAL, "torch.erf(a)")                                \
    X(erfinv, ERFINV, UNIT, "torch.erfinv(a)")                         \
    X(sigmoid, SIGMOID, NORMAL, "torch.sigmoid(a)")                    \
    X(relu, RELU, AWAY, "F.relu(a)")                                   \
    X(gelu, GELU, NORMAL, "F.gelu(a)")                                 \
    X(gelu_tanh, GELU_TANH, NORMAL, "F.gelu(a, approximate='tanh')")   \
    X(silu, SILU, NORMAL, "F.silu(a)")                                 \
    X(add_two, ADD_SCALAR, NORMAL, "a + 2")                            \
    X(mul_three, MUL_SCALAR, NORMAL, "a * -3")                         \
    X(cubed, POW_SCALAR, NORMAL, "torch.pow(a, 3)")                    \
    X(to_a_fraction, POW_SCALAR, POSITIVE, "torch.pow(a, -1.7)")       \
    X(to_zero, POW_SCALAR, NORMAL, "torch.pow(a, 0)")                  \
    X(power_of_two, SCALAR_POW, NORMAL, "torch.pow(2, a)")             \
    X(clamped, CLAMP, DISTINCT, "torch.clamp(a, -1.0625, 0.6875)")     \
    X(clamped_above, CLAMP, DISTINCT, "torch.clamp(a, max=0.6875)")    \
    X(softplus_1, SOFTPLUS, NORMAL, "F.softplus(a)")                   \
    X(softplus_4, SOFTPLUS, AWAY, "F.softplus(a, 4.0, 1.5)")           \
    X(to_f64, CAST, NORMAL, "a.to(torch.float64)")
/* clang-format on */

#define cairn_add_two(x)       cairn_add_scalar(x, 2)
#define cairn_mul_three(x)     cairn_mul_scalar(x, -3)
#define cairn_cubed(x)         cairn_pow_scalar(x, 3)
#define cairn_to_a_fraction(x) cairn_pow_scalar(x, -1.7)
#define cairn_to_zero(x)       cairn_pow_scalar(x, 0)
#define cairn_power_of_two(x)  cairn_scalar_pow(2, x)
#define cairn_clamped(x)       cairn_clamp(x, -1.0625, 0.6875)
#define cairn_clamped_above(x) cairn_clamp(x, -INFINITY, 0.6875)
#define cairn_softplus_1(x)    cairn_softplus(x, 1, 20)
#define cairn_softplus_4(x)    cairn_softplus(x, 4, 1.5)
#define cairn_to_f64(x)        cairn_cast(x, CAIRN_F64)

#define BUILD_ONE(call, op, values, torch)                     \
    static cairn_tensor *one_##call(cairn_tensor *const *in) { \
        return cairn_##call(in[0]);                            \
    }
ONE_LIST(BUILD_ONE)

#define CASES_ONE(call, op, values, torch)                                      \
    CASE(#call, op, one_##call, torch, IN_AS("3 5", values)),                   \
        CASE(#call " of one", op, one_##call, torch, IN_AS("", values)),        \
        CASE(#call " of nothing", op, one_##call, torch, IN_AS("3 0", values)), \
        CASE(#call " of a row", op, one_##call, torch, IN_AS("67", values)),

/* ---- two inputs: call, operation, values of each, PyTorch ---- */

/* clang-format off */
#define TWO_LIST(X)                                                        \
    X(add, ADD, NORMAL, NORMAL, "torch.add(a, b)")                         \
    X(sub, SUB, NORMAL, NORMAL, "torch.sub(a, b)")                         \
    X(mul, MUL, NORMAL, NORMAL, "torch.mul(a, b)")                         \
    X(div, DIV, NORMAL, AWAY, "torch.div(a, b)")                           \
    X(pow, POW, POSITIVE, NORMAL, "torch.pow(a, b)")                       \
    X(maximum, MAXIMUM, NORMAL, NORMAL, "torch.maximum(a, b)")             \
    X(minimum, MINIMUM, NORMAL, NORMAL, "torch.minimum(a, b)")             \
    X(atan2, ATAN2, AWAY, AWAY, "torch.atan2(a, b)")
#define COMPARISON_LIST(X)                                                 \
    X(eq, EQ, SIGNS, SIGNS, "torch.eq(a, b)")                              \
    X(ne, NE, SIGNS, SIGNS, "torch.ne(a, b)")                              \
    X(lt, LT, SIGNS, SIGNS, "torch.lt(a, b)")                              \
    X(le, LE, SIGNS, SIGNS, "torch.le(a, b)")                              \
    X(gt, GT, SIGNS, SIGNS, "torch.gt(a, b)")                              \
    X(ge, GE, SIGNS, SIGNS, "torch.ge(a, b)")
/* clang-format on */

#define BUILD_TWO(call, op, left, right, torch)                \
    static cairn_tensor *two_##call(cairn_tensor *const *in) { \
        return cairn_##call(in[0], in[1]);                     \
    }
TWO_LIST(BUILD_TWO)
COMPARISON_LIST(BUILD_TWO)

#define CASES_TWO(call, op, left, right, torch)                                                                   \
    CASE(#call, op, two_##call, torch, IN_AS("3 5", left), IN_AS("3 5", right)),                                  \
        CASE(#call " of one", op, two_##call, torch, IN_AS("", left), IN_AS("", right)),                          \
        CASE(#call " broadcasts a row", op, two_##call, torch, IN_AS("2 3 5", left), IN_AS("5", right)),          \
        CASE(#call " broadcasts to the right", op, two_##call, torch, IN_AS("3 1", left), IN_AS("2 3 7", right)), \
        CASE(#call " broadcasts both", op, two_##call, torch, IN_AS("4 1 3", left), IN_AS("5 1", right)),         \
        CASE(#call " with one number", op, two_##call, torch, IN_AS("", left), IN_AS("3 3", right)),              \
        CASE(#call " to nothing", op, two_##call, torch, IN_AS("3 1", left), IN_AS("3 0", right)),

#define CASE_OF_TRUTH(title, op_, call, torch_, ...)                                                         \
    {                                                                                                        \
        .name = (title), .op = CAIRN__OP_##op_, .build = (call), .torch = (torch_), .inputs = {__VA_ARGS__}, \
        .no_differences = true                                                                               \
    }
#define CASES_COMPARISON(call, op, left, right, torch)                                                             \
    CASE_OF_TRUTH(#call, op, two_##call, torch, IN_AS("3 5", left), IN_AS("3 5", right)),                          \
        CASE_OF_TRUTH(#call " of one", op, two_##call, torch, IN_AS("", left), IN_AS("", right)),                  \
        CASE_OF_TRUTH(#call " broadcasts both", op, two_##call, torch, IN_AS("4 1 3", left), IN_AS("5 1", right)), \
        CASE_OF_TRUTH(#call " of nothing", op, two_##call, torch, IN_AS("0", left), IN_AS("1", right)),

/* ---- more inputs, and other types ---- */

static cairn_tensor *maximum_of_itself(cairn_tensor *const *in) {
    return cairn_maximum(in[0], in[0]);
}
static cairn_tensor *minimum_of_itself(cairn_tensor *const *in) {
    return cairn_minimum(in[0], in[0]);
}
static cairn_tensor *mul_by_itself(cairn_tensor *const *in) {
    return cairn_mul(in[0], in[0]);
}
static cairn_tensor *transposed_sum(cairn_tensor *const *in) {
    return cairn_add(cairn_transpose(in[0], 0, 1), in[1]);
}
static cairn_tensor *expanded_product(cairn_tensor *const *in) {
    return cairn_mul(cairn_expand(in[0], CAIRN_SHAPE(4, -1)), in[1]);
}
static cairn_tensor *where(cairn_tensor *const *in) {
    return cairn_where(in[0], in[1], in[2]);
}
static cairn_tensor *where_positive(cairn_tensor *const *in) {
    return cairn_where(cairn_gt(in[0], in[1]), in[0], in[1]);
}
static cairn_tensor *addcmul(cairn_tensor *const *in) {
    return cairn_addcmul(in[0], in[1], in[2], -0.75);
}
static cairn_tensor *addcdiv(cairn_tensor *const *in) {
    return cairn_addcdiv(in[0], in[1], in[2], 0.5);
}
static cairn_tensor *prelu(cairn_tensor *const *in) {
    return cairn_prelu(in[0], in[1]);
}
static cairn_tensor *cast_to_f16(cairn_tensor *const *in) {
    return cairn_cast(in[0], CAIRN_F16);
}
static cairn_tensor *cast_to_i64(cairn_tensor *const *in) {
    return cairn_cast(in[0], CAIRN_I64);
}
static cairn_tensor *cast_to_i32(cairn_tensor *const *in) {
    return cairn_cast(in[0], CAIRN_I32);
}
static cairn_tensor *cast_to_bool(cairn_tensor *const *in) {
    return cairn_cast(in[0], CAIRN_BOOL);
}
static cairn_tensor *cast_to_f32(cairn_tensor *const *in) {
    return cairn_cast(in[0], CAIRN_F32);
}
static cairn_tensor *cast_there_and_back(cairn_tensor *const *in) {
    return cairn_cast(cairn_cast(in[0], CAIRN_F64), CAIRN_F32);
}

static const struct op_case cases[] = {
    ONE_LIST(CASES_ONE) TWO_LIST(CASES_TWO) COMPARISON_LIST(CASES_COMPARISON)

        CASE("maximum of equals shares", MAXIMUM, maximum_of_itself, "torch.maximum(a, a)", IN("3 5")),
    CASE("minimum of equals shares", MINIMUM, minimum_of_itself, "torch.minimum(a, a)", IN("3 5")),
    CASE("mul by itself", MUL, mul_by_itself, "a * a", IN("3 5")),
    CASE("add of a transposed", ADD, transposed_sum, "a.t() + b", IN("33 70"), IN("70 33")),
    CASE("add of many", ADD, two_add, "a + b", IN("50 70"), IN("70")),
    CASE("mul of many by a column", MUL, two_mul, "a * b", IN("12 300"), IN("12 1")),
    CASE("mul of an expanded", MUL, expanded_product, "a.expand(4, -1) * b", IN("5"), IN("4 5")),
    CASE("add of integers and floats", ADD, two_add, "a + b", IN("3 5"), {.shape = "5", .values = CLASSES, .limit = 9}),
    CASE("mul by a mask", MUL, two_mul, "a * b", IN("3 5"), IN_AS("3 5", MASK)),
    CASE_OF_TRUTH("add of integers", ADD, two_add, "a + b", {.shape = "3 5", .values = CLASSES, .limit = 9},
                  {.shape = "5", .values = CLASSES, .limit = 7}),
    CASE_OF_TRUTH("div of integers", DIV, two_div, "a / b", {.shape = "3 5", .values = CLASSES, .limit = 9},
                  IN_AS("5", SIGNS)),

    CASE("where", WHERE, where, "torch.where(a, b, c)", IN_AS("3 5", MASK), IN("3 5"), IN("3 5")),
    CASE("where of one", WHERE, where, "torch.where(a, b, c)", IN_AS("", MASK), IN(""), IN("")),
    CASE("where broadcasts all", WHERE, where, "torch.where(a, b, c)", IN_AS("2 1 1", MASK), IN("3 1"), IN("7")),
    CASE("where of nothing", WHERE, where, "torch.where(a, b, c)", IN_AS("0 1", MASK), IN("3"), IN("1")),
    CASE("where one is greater", WHERE, where_positive, "torch.where(a > b, a, b)", IN("3 5"), IN("5")),

    CASE("addcmul", ADDCMUL, addcmul, "torch.addcmul(a, b, c, value=-0.75)", IN("3 5"), IN("3 5"), IN("3 5")),
    CASE("addcmul of one", ADDCMUL, addcmul, "torch.addcmul(a, b, c, value=-0.75)", IN(""), IN(""), IN("")),
    CASE("addcmul broadcasts", ADDCMUL, addcmul, "torch.addcmul(a, b, c, value=-0.75)", IN("5"), IN("2 3 1"),
         IN("3 5")),
    CASE("addcmul of nothing", ADDCMUL, addcmul, "torch.addcmul(a, b, c, value=-0.75)", IN("0"), IN("1"), IN("0")),
    CASE("addcdiv", ADDCDIV, addcdiv, "torch.addcdiv(a, b, c, value=0.5)", IN("3 5"), IN("3 5"), IN_AS("3 5", AWAY)),
    CASE("addcdiv of one", ADDCDIV, addcdiv, "torch.addcdiv(a, b, c, value=0.5)", IN(""), IN(""), IN_AS("", AWAY)),
    CASE("addcdiv broadcasts", ADDCDIV, addcdiv, "torch.addcdiv(a, b, c, value=0.5)", IN("5"), IN("2 3 1"),
         IN_AS("3 5", AWAY)),
    CASE("addcdiv of nothing", ADDCDIV, addcdiv, "torch.addcdiv(a, b, c, value=0.5)", IN("0"), IN("1"),
         IN_AS("0", AWAY)),

    CASE("prelu", PRELU, prelu, "F.prelu(a, b)", IN_AS("4 3", AWAY), IN("3")),
    CASE("prelu of images", PRELU, prelu, "F.prelu(a, b)", IN_AS("2 3 5 2", AWAY), IN("3")),
    CASE("prelu with one weight", PRELU, prelu, "F.prelu(a, b)", IN_AS("7", AWAY), IN("1")),
    CASE("prelu of one", PRELU, prelu, "F.prelu(a, b)", IN_AS("", AWAY), IN("1")),
    CASE("prelu of nothing", PRELU, prelu, "F.prelu(a, b)", IN_AS("0 3", AWAY), IN("3")),

    CASE_OF_TRUTH("cast to f16", CAST, cast_to_f16, "a.to(torch.float16)", IN("3 5")),
    CASE_OF_TRUTH("cast to i64 truncates", CAST, cast_to_i64, "a.to(torch.int64)", IN_AS("3 5", DISTINCT)),
    CASE_OF_TRUTH("cast to i32 of one", CAST, cast_to_i32, "a.to(torch.int32)", IN_AS("", DISTINCT)),
    CASE_OF_TRUTH("cast to bool", CAST, cast_to_bool, "a.to(torch.bool)", IN("3 5")),
    CASE_OF_TRUTH("cast of integers", CAST, cast_to_f32, "a.to(torch.float32)",
                  {.shape = "3 5", .values = CLASSES, .limit = 1000}),
    CASE_OF_TRUTH("cast of a mask", CAST, cast_to_f32, "a.to(torch.float32)", IN_AS("3 5", MASK)),
    CASE_OF_TRUTH("cast there and back", CAST, cast_there_and_back, "a.to(torch.float64).to(torch.float32)", IN("7")),
};

const struct op_cases cases_element = OP_CASES(cases);
