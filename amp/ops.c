/* The class of every operation under O1, with its reason.
 * Source: apex/amp/lists/{functional,torch,tensor}_overrides.py at 25.04; rows it does not list follow their input. */
#include "ops.h"

/* clang-format off */
static const struct cairn__amp_op_row rows[] = {
    {CAIRN__OP_LINEAR,     CAIRN__AMP_LOW,    "a product: fast in half, summed in f32"},
    {CAIRN__OP_ADD,        CAIRN__AMP_WIDEST, "no better than its least exact input; mixing types would lose the wider one"},
    {CAIRN__OP_MUL_SCALAR, CAIRN__AMP_FOLLOW, "one rounding; nothing is gained or lost by a cast"},
    {CAIRN__OP_RELU,       CAIRN__AMP_FOLLOW, "exact in every type"},
    {CAIRN__OP_SUM,        CAIRN__AMP_F32,    "many small terms: a half result overflows or loses them"},
    {CAIRN__OP_MEAN,       CAIRN__AMP_F32,    "as sum (apex leaves it in the input's type since torch 1.1; a loss is often a mean)"},
    {CAIRN__OP_SCALE_LOSS, CAIRN__AMP_FOLLOW, "a loss is f32 when it is scaled: a scale of 65536 is no f16 value"},
    {CAIRN__OP_MSE_LOSS,   CAIRN__AMP_F32,    "squares overflow f16 from 256 on, and the loss is where the scale goes in"},
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
