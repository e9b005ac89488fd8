/* The class of every operation under O1, with its reason, and the operations' names. Source:
 * apex/amp/lists/{functional,torch,tensor}_overrides.py at 25.04; rows it does not list follow their input. */
#include "ops.h"

#include <ctype.h>
#include <string.h>

#include "core/nearest.h"
#include "core/status.h"

#define HALF   AMP_CAST_HALF, false
#define F32    AMP_CAST_F32, false
#define WIDEST AMP_CAST_WIDEST, false
#define FOLLOW AMP_CAST_FOLLOW, false
#define BANNED AMP_CAST_BANNED, false
#define FIXED  AMP_CAST_FOLLOW, true

/* clang-format off */
static const struct cairn__amp_op_row rows[] = {
    {CAIRN__OP_LINEAR,     HALF,    "a product: fast in half, summed in f32"},
    {CAIRN__OP_MATMUL,     HALF,    "a product, as all of this family"},
    {CAIRN__OP_BMM,        HALF,    "products"},
    {CAIRN__OP_ADDMM,      HALF,    "a product; what is added to it joins the f32 sum before the one rounding"},
    {CAIRN__OP_BADDBMM,    HALF,    "as addmm"},
    {CAIRN__OP_SDPA,       HALF,    "products; its softmax is f32 inside, whatever the type"},

    {CAIRN__OP_ADD,        WIDEST,  "no better than its least exact input; mixing types would lose the wider one"},
    {CAIRN__OP_SUB,        WIDEST,  "as add"},
    {CAIRN__OP_MUL,        WIDEST,  "as add"},
    {CAIRN__OP_DIV,        WIDEST,  "as add"},
    {CAIRN__OP_POW,        F32,     "powers leave f16's range at once"},
    {CAIRN__OP_MAXIMUM,    WIDEST,  "chooses between its inputs, which a cast must not change"},
    {CAIRN__OP_MINIMUM,    WIDEST,  "as maximum"},
    {CAIRN__OP_ATAN2,      WIDEST,  "as add"},
    {CAIRN__OP_EQ,         WIDEST,  "values of different types are compared in the wider one, where both are exact"},
    {CAIRN__OP_NE,         WIDEST,  "as eq"},
    {CAIRN__OP_LT,         WIDEST,  "as eq"},
    {CAIRN__OP_LE,         WIDEST,  "as eq"},
    {CAIRN__OP_GT,         WIDEST,  "as eq"},
    {CAIRN__OP_GE,         WIDEST,  "as eq"},
    {CAIRN__OP_WHERE,      WIDEST,  "as maximum"},
    {CAIRN__OP_ADDCMUL,    WIDEST,  "as add"},
    {CAIRN__OP_ADDCDIV,    WIDEST,  "as add"},
    {CAIRN__OP_ADD_SCALAR, FOLLOW,  "as mul_scalar"},
    {CAIRN__OP_MUL_SCALAR, FOLLOW,  "one rounding; nothing is gained or lost by a cast"},
    {CAIRN__OP_POW_SCALAR, F32,     "as pow"},
    {CAIRN__OP_SCALAR_POW, F32,     "as pow"},
    {CAIRN__OP_CLAMP,      FOLLOW,  "exact in every type, but for the bounds"},
    {CAIRN__OP_NEG,        FOLLOW,  "exact in every type"},
    {CAIRN__OP_ABS,        FOLLOW,  "exact in every type"},
    {CAIRN__OP_SQUARE,     F32,     "as pow: squares overflow f16 from 256 on"},
    {CAIRN__OP_SQRT,       FOLLOW,  "halves the range; one rounding"},
    {CAIRN__OP_RSQRT,      F32,     "of a small f16 it is beyond f16's precision, and of a subnormal near its range"},
    {CAIRN__OP_RECIPROCAL, F32,     "of a small f16 it is infinite"},
    {CAIRN__OP_EXP,        F32,     "overflows f16 from 11.1 on"},
    {CAIRN__OP_EXPM1,      F32,     "as exp"},
    {CAIRN__OP_LOG,        F32,     "near 1 a half result has few digits, and what is made of it fewer"},
    {CAIRN__OP_LOG1P,      F32,     "as log"},
    {CAIRN__OP_LOG2,       F32,     "as log"},
    {CAIRN__OP_LOG10,      F32,     "as log"},
    {CAIRN__OP_SIN,        FOLLOW,  "within [-1, 1]: one rounding"},
    {CAIRN__OP_COS,        FOLLOW,  "within [-1, 1]: one rounding"},
    {CAIRN__OP_TAN,        F32,     "has poles"},
    {CAIRN__OP_ASIN,       F32,     "its slope has poles at -1 and 1"},
    {CAIRN__OP_ACOS,       F32,     "as asin"},
    {CAIRN__OP_ATAN,       FOLLOW,  "bounded, with a slope of at most 1: one rounding"},
    {CAIRN__OP_SINH,       F32,     "as exp"},
    {CAIRN__OP_COSH,       F32,     "as exp"},
    {CAIRN__OP_TANH,       FOLLOW,  "bounded: one rounding"},
    {CAIRN__OP_ERF,        FOLLOW,  "bounded: one rounding"},
    {CAIRN__OP_ERFINV,     F32,     "has poles at -1 and 1"},
    {CAIRN__OP_SIGMOID,    FOLLOW,  "bounded: one rounding"},
    {CAIRN__OP_SOFTPLUS,   F32,     "an exponential and a logarithm"},
    {CAIRN__OP_RELU,       FOLLOW,  "exact in every type"},
    {CAIRN__OP_GELU,       F32,     "as apex has it: the tail is a difference of nearly equal numbers"},
    {CAIRN__OP_GELU_TANH,  F32,     "as gelu"},
    {CAIRN__OP_SILU,       FOLLOW,  "one rounding of a function that stays below its input"},
    {CAIRN__OP_PRELU,      HALF,    "as apex has it: a product with a weight that is half in a half layer"},

    {CAIRN__OP_SUM,        F32,     "many small terms: a half result overflows or loses them"},
    {CAIRN__OP_MEAN,       F32,     "as sum (apex leaves it in the input's type since torch 1.1; many a loss is one)"},
    {CAIRN__OP_SUM_DIMS,   F32,     "as sum"},
    {CAIRN__OP_MEAN_DIMS,  F32,     "as mean"},
    {CAIRN__OP_VAR,        F32,     "a sum of squares"},
    {CAIRN__OP_STD,        F32,     "as var"},
    {CAIRN__OP_NORM,       F32,     "as var"},
    {CAIRN__OP_PROD,       F32,     "leaves the range of f16 after few factors"},
    {CAIRN__OP_CUMSUM,     F32,     "as sum"},
    {CAIRN__OP_CUMPROD,    F32,     "as prod"},
    {CAIRN__OP_AMAX,       FOLLOW,  "chooses, and computes nothing"},
    {CAIRN__OP_AMIN,       FOLLOW,  "as amax"},
    {CAIRN__OP_ARGMAX,     FOLLOW,  "as amax"},
    {CAIRN__OP_ARGMIN,     FOLLOW,  "as amax"},

    {CAIRN__OP_CONTIGUOUS, FIXED,  "moves values and computes nothing"},
    {CAIRN__OP_RESHAPE,    FIXED,  "a view: the same memory"},
    {CAIRN__OP_PERMUTE,    FIXED,  "a view: the same memory"},
    {CAIRN__OP_SLICE,      FIXED,  "a view: the same memory"},
    {CAIRN__OP_EXPAND,     FIXED,  "a view: the same memory"},
    {CAIRN__OP_CAT,        WIDEST,  "joins values: mixing types would lose the wider one"},
    {CAIRN__OP_STACK,      WIDEST,  "as cat"},
    {CAIRN__OP_DETACH,     FIXED,  "shows the same values"},
    {CAIRN__OP_CHECKPOINT, FIXED,  "each operation inside has its own class"},
    {CAIRN__OP_CUSTOM,     FOLLOW,  "the user's own: inputs come as they are"},
    {CAIRN__OP_CONV1D,     HALF,    "products: fast in half, summed in f32"},
    {CAIRN__OP_CONV2D,     HALF,    "as conv1d"},
    {CAIRN__OP_CONV_TRANSPOSE1D, HALF,    "as conv1d"},
    {CAIRN__OP_CONV_TRANSPOSE2D, HALF,    "as conv1d"},
    {CAIRN__OP_MAX_POOL2D, FOLLOW,  "chooses values and computes none"},
    {CAIRN__OP_AVG_POOL2D, FOLLOW,  "an average: no larger than its terms; sums are f32 or f64, rounded once"},
    {CAIRN__OP_ADAPTIVE_AVG_POOL2D, FOLLOW,  "as avg_pool2d"},
    {CAIRN__OP_CAST,       FIXED,  "its result has the type that the caller chose"},
    {CAIRN__OP_GUEST,      FIXED,  "another room's, which knows its types; by name:"},
    {CAIRN__AMP_ZERO_LOSS, FIXED,  "reads no value"},
    {CAIRN__AMP_SCALE_LOSS, FIXED, "a loss is f32 when it is scaled: a scale of 65536 is no f16 value"},
    {CAIRN__OP_LAYER_NORM,  F32,     "variances of halves lose what they are made of"},
    {CAIRN__OP_RMS_NORM,    F32,     "as layer_norm"},
    {CAIRN__OP_GROUP_NORM,  F32,     "as layer_norm"},
    {CAIRN__OP_BATCH_NORM,  FOLLOW,  "statistics are f32 inside, and its own weights stay so: apex leaves it to them"},
    {CAIRN__OP_SOFTMAX,     F32,     "sums of exponentials"},
    {CAIRN__OP_LOG_SOFTMAX, F32,     "as softmax; near 0 a half has no digits left"},
    {CAIRN__OP_EMBEDDING,   FOLLOW,  "moves values; its gradient is added up in f32, many terms in f64"},
    {CAIRN__OP_DROPOUT,     FOLLOW,  "one rounding"},
    {CAIRN__OP_MSE_LOSS,   F32,     "squares overflow f16 from 256 on, and the loss is where the scale goes in"},
    {CAIRN__OP_L1_LOSS,          F32,     "as mse_loss: a sum, and where the scale goes in; so all losses"},
    {CAIRN__OP_SMOOTH_L1_LOSS,   F32,     "as l1_loss"},
    {CAIRN__OP_BCE,              BANNED,  "logarithms of probabilities, which halves round to 0, 1: apex bans it too"},
    {CAIRN__OP_BCE_WITH_LOGITS,  F32,     "exponentials and logarithms"},
    {CAIRN__OP_KL_DIV,           F32,     "logarithms, and a sum of small differences"},
    {CAIRN__OP_SOFT_MARGIN_LOSS, F32,     "exponentials and logarithms"},
    {CAIRN__OP_POISSON_NLL_LOSS, F32,     "exponentials"},
    {CAIRN__OP_CROSS_ENTROPY,    F32,     "sums of exponentials"},
    {CAIRN__OP_NLL_LOSS,         F32,     "a sum of logarithms"},
};
/* clang-format on */

const struct cairn__amp_op_row *cairn__amp_op_row(int op) {
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].op == op) return &rows[i];
    }
    return NULL;
}

/* ---- names ---- */

const char *cairn__amp_op_name(int op) {
    if (op == CAIRN__AMP_SCALE_LOSS) return "scale_loss";
    return op == CAIRN__AMP_ZERO_LOSS ? "zero_loss" : cairn__op_name((enum cairn__op)op);
}

bool cairn__amp_op_named(const char *name, int *op) {
    for (int i = 0; i < CAIRN__AMP_NUM_OPS; i++) {
        if (i == CAIRN__OP_GUEST || strcmp(name, cairn__amp_op_name(i)) != 0) continue;
        *op = i;
        return true;
    }
    return false;
}

/* Names from torch, apex or Cairn's own calls, and the operation or operations that they stand for. */
static const char *const other_names[][2] = {
    {"binary_cross_entropy", "bce"},
    {"binary_cross_entropy_with_logits", "bce_with_logits"},
    {"scaled_dot_product", "scaled_dot_product_attention"},
    {"mm", "matmul"},
    {"mv", "matmul"},
    {"dot", "matmul"},
    {"addmv", "addmm"},
    {"addr", "addmm"},
    {"max", "amax"},
    {"min", "amin"},
    {"normalize", "norm' and 'div"},
    {"cosine_similarity", "norm', 'div', 'mul' and 'sum_dims"},
    {"softmin", "softmax"},
    {"flatten", "reshape"},
    {"squeeze", "reshape"},
    {"unsqueeze", "reshape"},
    {"transpose", "permute"},
    {"select", "slice"},
    {"split", "slice"},
};

/* Plausible names of users' functions that differ from one of Cairn's by a letter or two. */
/* clang-format off */
static const char *const no_slips[] = {
    "acosh", "acot", "asinh", "atanh", "celu", "erfc", "exp2", "geglu", "reglu", "relu6", "rrelu", "rsub", "selu",
    "siglu", "sign", "sinc", "sort", "l2_loss", "conv3d", "conv_transpose3d", "batch_norm2d", "layer_norm2d",
    "softmax2d", "avg_pool1d", "avg_pool3d", "max_pool1d", "max_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool3d",
};
/* clang-format on */

enum { MAX_LETTERS = CAIRN__NEAREST_MAX };

/* Normalises a name for comparison: "gelu" for "cairn_GELU_forward". */
static void plain_name(const char *name, char plain[MAX_LETTERS]) {
    size_t n = 0;
    if (strncmp(name, "cairn_", 6) == 0) name += 6;
    for (; *name && n < MAX_LETTERS - 1; name++) plain[n++] = (char)tolower((unsigned char)*name);
    plain[n] = '\0';
    if (n > 8 && strcmp(plain + n - 8, "_forward") == 0) plain[n -= 8] = '\0';
    while (n > 1 && plain[n - 1] == '_') plain[--n] = '\0';
}

/* The operation whose name is nearly this one; NULL = none. */
static const char *nearest(const char *plain) {
    struct cairn__nearest found = {.written = plain};
    for (size_t i = 0; i < sizeof(no_slips) / sizeof(no_slips[0]); i++) {
        if (strcmp(plain, no_slips[i]) == 0) return NULL;
    }
    for (int i = 0; i < CAIRN__AMP_NUM_OPS; i++) {
        if (i != CAIRN__OP_GUEST) cairn__nearest_try(&found, cairn__amp_op_name(i));
    }
    return found.name;
}

cairn_status cairn__amp_check_own_name(const char *name) {
    char plain[MAX_LETTERS];
    plain_name(name, plain);
    for (size_t i = 0; i < sizeof(other_names) / sizeof(other_names[0]); i++) {
        REQUIRE(strcmp(plain, other_names[i][0]) != 0, CAIRN_EINVAL,
                "amp_op_set_cast: '%s' is not an operation of its own; set the class of '%s'. An operation of your own "
                "needs another name",
                name, other_names[i][1]);
    }
    const char *meant = nearest(plain);
    REQUIRE(!meant, CAIRN_EINVAL,
            "amp_op_set_cast: no operation is called '%s'; did you mean '%s'? An operation of your own needs a name "
            "that is less similar",
            name, meant);
    return CAIRN_OK;
}
