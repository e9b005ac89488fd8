/* The class of every operation under O1. */
#ifndef CAIRN__AMP_OPS_H
#define CAIRN__AMP_OPS_H

#include "nn/hooks.h"

enum amp__op_class {
    AMP__LOW = 1, /* inputs are cast to the half type */
    AMP__F32,     /* inputs are cast to f32 */
    AMP__WIDEST,  /* inputs are cast to the widest type among them */
    AMP__FOLLOW,  /* runs in its input's type */
};

struct amp__op_row {
    enum cairn__op op;
    enum amp__op_class op_class;
    const char *reason;
};

/* The row of op; every op but the cast itself has one, and a test says so. */
const struct amp__op_row *amp__op_row(enum cairn__op op);

/* What op computes in, given its inputs' types (0 = as it is). */
cairn_dtype amp__compute_type(enum cairn__op op, cairn_dtype half_type, const cairn_dtype *inputs, int count);

#endif
