/* The class of every operation under O1, with its reason.
 * Source: apex/amp/lists/{functional,torch,tensor}_overrides.py at 25.04; rows it does not list follow their input. */
#include "ops.h"

/* clang-format off */
static const struct cairn__amp_op_row rows[] = {
    {CAIRN__OP_LINEAR,     CAIRN__AMP_LOW,    "a product: fast in half, summed in f32"},
    {CAIRN__OP_MATMUL,     CAIRN__AMP_LOW,    "a product, as all of this family"},
    {CAIRN__OP_BMM,        CAIRN__AMP_LOW,    "products"},
    {CAIRN__OP_ADDMM,      CAIRN__AMP_LOW,    "a product; what is added to it joins the f32 sum before the one rounding"},
    {CAIRN__OP_BADDBMM,    CAIRN__AMP_LOW,    "as addmm"},

    {CAIRN__OP_ADD,        CAIRN__AMP_WIDEST, "no better than its least exact input; mixing types would lose the wider one"},
    {CAIRN__OP_SUB,        CAIRN__AMP_WIDEST, "as add"},
    {CAIRN__OP_MUL,        CAIRN__AMP_WIDEST, "as add"},
    {CAIRN__OP_DIV,        CAIRN__AMP_WIDEST, "as add"},
    {CAIRN__OP_POW,        CAIRN__AMP_F32,    "powers leave f16's range at once"},
    {CAIRN__OP_MAXIMUM,    CAIRN__AMP_WIDEST, "chooses between its inputs, which a cast must not change"},
    {CAIRN__OP_MINIMUM,    CAIRN__AMP_WIDEST, "as maximum"},
    {CAIRN__OP_ATAN2,      CAIRN__AMP_WIDEST, "as add"},
    {CAIRN__OP_EQ,         CAIRN__AMP_WIDEST, "values of different types are compared in the wider one, where both are exact"},
    {CAIRN__OP_NE,         CAIRN__AMP_WIDEST, "as eq"},
    {CAIRN__OP_LT,         CAIRN__AMP_WIDEST, "as eq"},
    {CAIRN__OP_LE,         CAIRN__AMP_WIDEST, "as eq"},
    {CAIRN__OP_GT,         CAIRN__AMP_WIDEST, "as eq"},
    {CAIRN__OP_GE,         CAIRN__AMP_WIDEST, "as eq"},
    {CAIRN__OP_WHERE,      CAIRN__AMP_WIDEST, "as maximum"},
    {CAIRN__OP_ADDCMUL,    CAIRN__AMP_WIDEST, "as add"},
    {CAIRN__OP_ADDCDIV,    CAIRN__AMP_WIDEST, "as add"},
    {CAIRN__OP_ADD_SCALAR, CAIRN__AMP_FOLLOW, "as mul_scalar"},
    {CAIRN__OP_MUL_SCALAR, CAIRN__AMP_FOLLOW, "one rounding; nothing is gained or lost by a cast"},
    {CAIRN__OP_POW_SCALAR, CAIRN__AMP_F32,    "as pow"},
    {CAIRN__OP_SCALAR_POW, CAIRN__AMP_F32,    "as pow"},
    {CAIRN__OP_CLAMP,      CAIRN__AMP_FOLLOW, "exact in every type, but for the bounds"},
    {CAIRN__OP_NEG,        CAIRN__AMP_FOLLOW, "exact in every type"},
    {CAIRN__OP_ABS,        CAIRN__AMP_FOLLOW, "exact in every type"},
    {CAIRN__OP_SQUARE,     CAIRN__AMP_F32,    "as pow: squares overflow f16 from 256 on"},
    {CAIRN__OP_SQRT,       CAIRN__AMP_FOLLOW, "halves the range; one rounding"},
    {CAIRN__OP_RSQRT,      CAIRN__AMP_F32,    "of a small f16 it is beyond f16's precision, and of a subnormal near its range"},
    {CAIRN__OP_RECIPROCAL, CAIRN__AMP_F32,    "of a small f16 it is infinite"},
    {CAIRN__OP_EXP,        CAIRN__AMP_F32,    "overflows f16 from 11.1 on"},
    {CAIRN__OP_EXPM1,      CAIRN__AMP_F32,    "as exp"},
    {CAIRN__OP_LOG,        CAIRN__AMP_F32,    "near 1 a half result has few digits, and what is made of it fewer"},
    {CAIRN__OP_LOG1P,      CAIRN__AMP_F32,    "as log"},
    {CAIRN__OP_LOG2,       CAIRN__AMP_F32,    "as log"},
    {CAIRN__OP_LOG10,      CAIRN__AMP_F32,    "as log"},
    {CAIRN__OP_SIN,        CAIRN__AMP_FOLLOW, "within [-1, 1]: one rounding"},
    {CAIRN__OP_COS,        CAIRN__AMP_FOLLOW, "within [-1, 1]: one rounding"},
    {CAIRN__OP_TAN,        CAIRN__AMP_F32,    "has poles"},
    {CAIRN__OP_ASIN,       CAIRN__AMP_F32,    "its slope has poles at -1 and 1"},
    {CAIRN__OP_ACOS,       CAIRN__AMP_F32,    "as asin"},
    {CAIRN__OP_ATAN,       CAIRN__AMP_FOLLOW, "bounded, with a slope of at most 1: one rounding"},
    {CAIRN__OP_SINH,       CAIRN__AMP_F32,    "as exp"},
    {CAIRN__OP_COSH,       CAIRN__AMP_F32,    "as exp"},
    {CAIRN__OP_TANH,       CAIRN__AMP_FOLLOW, "bounded: one rounding"},
    {CAIRN__OP_ERF,        CAIRN__AMP_FOLLOW, "bounded: one rounding"},
    {CAIRN__OP_ERFINV,     CAIRN__AMP_F32,    "has poles at -1 and 1"},
    {CAIRN__OP_SIGMOID,    CAIRN__AMP_FOLLOW, "bounded: one rounding"},
    {CAIRN__OP_SOFTPLUS,   CAIRN__AMP_F32,    "an exponential and a logarithm"},
    {CAIRN__OP_RELU,       CAIRN__AMP_FOLLOW, "exact in every type"},
    {CAIRN__OP_GELU,       CAIRN__AMP_F32,    "as apex has it: the tail is a difference of nearly equal numbers"},
    {CAIRN__OP_GELU_TANH,  CAIRN__AMP_F32,    "as gelu"},
    {CAIRN__OP_SILU,       CAIRN__AMP_FOLLOW, "one rounding of a function that stays below its input"},
    {CAIRN__OP_PRELU,      CAIRN__AMP_LOW,    "as apex has it: a product with a weight that is half in a half layer"},

    {CAIRN__OP_SUM,        CAIRN__AMP_F32,    "many small terms: a half result overflows or loses them"},
    {CAIRN__OP_MEAN,       CAIRN__AMP_F32,    "as sum (apex leaves it in the input's type since torch 1.1; a loss is often a mean)"},
    {CAIRN__OP_SUM_DIMS,   CAIRN__AMP_F32,    "as sum"},
    {CAIRN__OP_MEAN_DIMS,  CAIRN__AMP_F32,    "as mean"},
    {CAIRN__OP_VAR,        CAIRN__AMP_F32,    "a sum of squares"},
    {CAIRN__OP_STD,        CAIRN__AMP_F32,    "as var"},
    {CAIRN__OP_NORM,       CAIRN__AMP_F32,    "as var"},
    {CAIRN__OP_PROD,       CAIRN__AMP_F32,    "leaves the range of f16 after few factors"},
    {CAIRN__OP_CUMSUM,     CAIRN__AMP_F32,    "as sum"},
    {CAIRN__OP_CUMPROD,    CAIRN__AMP_F32,    "as prod"},
    {CAIRN__OP_AMAX,       CAIRN__AMP_FOLLOW, "chooses, and computes nothing"},
    {CAIRN__OP_AMIN,       CAIRN__AMP_FOLLOW, "as amax"},
    {CAIRN__OP_ARGMAX,     CAIRN__AMP_FOLLOW, "as amax"},
    {CAIRN__OP_ARGMIN,     CAIRN__AMP_FOLLOW, "as amax"},

    {CAIRN__OP_CONTIGUOUS, CAIRN__AMP_FOLLOW, "moves values and computes nothing"},
    {CAIRN__OP_RESHAPE,    CAIRN__AMP_FOLLOW, "a view: the same memory"},
    {CAIRN__OP_PERMUTE,    CAIRN__AMP_FOLLOW, "a view: the same memory"},
    {CAIRN__OP_SLICE,      CAIRN__AMP_FOLLOW, "a view: the same memory"},
    {CAIRN__OP_EXPAND,     CAIRN__AMP_FOLLOW, "a view: the same memory"},
    {CAIRN__OP_CAT,        CAIRN__AMP_WIDEST, "joins values: mixing types would lose the wider one"},
    {CAIRN__OP_STACK,      CAIRN__AMP_WIDEST, "as cat"},
    {CAIRN__OP_DETACH,     CAIRN__AMP_FOLLOW, "shows the same values"},
    {CAIRN__OP_CHECKPOINT, CAIRN__AMP_FOLLOW, "the operations inside are asked each"},
    {CAIRN__OP_CUSTOM,     CAIRN__AMP_FOLLOW, "the user's own: inputs come as they are"},
    {CAIRN__OP_SCALE_LOSS, CAIRN__AMP_FOLLOW, "a loss is f32 when it is scaled: a scale of 65536 is no f16 value"},
    {CAIRN__OP_LAYER_NORM,  CAIRN__AMP_F32,   "variances of halves lose what they are made of"},
    {CAIRN__OP_RMS_NORM,    CAIRN__AMP_F32,   "as layer_norm"},
    {CAIRN__OP_GROUP_NORM,  CAIRN__AMP_F32,   "as layer_norm"},
    {CAIRN__OP_BATCH_NORM,  CAIRN__AMP_FOLLOW, "statistics are f32 inside, and its own weights stay so: apex leaves it to them"},
    {CAIRN__OP_SOFTMAX,     CAIRN__AMP_F32,   "sums of exponentials"},
    {CAIRN__OP_LOG_SOFTMAX, CAIRN__AMP_F32,   "as softmax; near 0 a half has no digits left"},
    {CAIRN__OP_EMBEDDING,   CAIRN__AMP_FOLLOW, "moves values; its gradient is added up in f32"},
    {CAIRN__OP_DROPOUT,     CAIRN__AMP_FOLLOW, "one rounding"},
    {CAIRN__OP_MSE_LOSS,   CAIRN__AMP_F32,    "squares overflow f16 from 256 on, and the loss is where the scale goes in"},
    {CAIRN__OP_L1_LOSS,          CAIRN__AMP_F32, "as mse_loss: a sum, and where the scale goes in; so all losses"},
    {CAIRN__OP_SMOOTH_L1_LOSS,   CAIRN__AMP_F32, "as l1_loss"},
    {CAIRN__OP_BCE,              CAIRN__AMP_F32, "logarithms of probabilities, which halves round to 0 and 1: apex bans it in half"},
    {CAIRN__OP_BCE_WITH_LOGITS,  CAIRN__AMP_F32, "exponentials and logarithms"},
    {CAIRN__OP_KL_DIV,           CAIRN__AMP_F32, "logarithms, and a sum of small differences"},
    {CAIRN__OP_SOFT_MARGIN_LOSS, CAIRN__AMP_F32, "exponentials and logarithms"},
    {CAIRN__OP_POISSON_NLL_LOSS, CAIRN__AMP_F32, "exponentials"},
    {CAIRN__OP_CROSS_ENTROPY,    CAIRN__AMP_F32, "sums of exponentials"},
    {CAIRN__OP_NLL_LOSS,         CAIRN__AMP_F32, "a sum of logarithms"},
};
/* clang-format on */

const struct cairn__amp_op_row *cairn__amp_op_row(enum cairn__op op) {
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].op == op) return &rows[i];
    }
    return 0;
}

cairn_dtype cairn__amp_compute_type(enum cairn__op op, cairn_dtype half_type) {
    const struct cairn__amp_op_row *row = cairn__amp_op_row(op);
    if (row && row->op_class == CAIRN__AMP_LOW) return half_type;
    if (row && row->op_class == CAIRN__AMP_F32) return CAIRN_F32;
    return (cairn_dtype)0;
}
