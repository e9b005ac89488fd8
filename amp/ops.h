/* The class of every operation under O1. */
#ifndef CAIRN__AMP_OPS_H
#define CAIRN__AMP_OPS_H

#include "nn/hooks.h"

enum cairn__amp_op_class {
    CAIRN__AMP_LOW = 1, /* inputs are cast to the half type */
    CAIRN__AMP_F32,     /* inputs are cast to f32 */
    CAIRN__AMP_WIDEST,  /* the widest type among its inputs, which is nn's own rule */
    CAIRN__AMP_FOLLOW,  /* runs in its input's type */
};

struct cairn__amp_op_row {
    enum cairn__op op;
    enum cairn__amp_op_class op_class;
    const char *reason;
};

/* The row of op; every op but the cast itself has one, and a test says so. */
const struct cairn__amp_op_row *cairn__amp_op_row(enum cairn__op op);

/* What op computes in; 0 = nn's own rule: the input's type, or the widest of several. */
cairn_dtype cairn__amp_compute_type(enum cairn__op op, cairn_dtype half_type);

#endif
