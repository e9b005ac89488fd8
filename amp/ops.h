/* The class of every operation under O1. */
#ifndef CAIRN__AMP_OPS_H
#define CAIRN__AMP_OPS_H

#include "cairn/autocast.h"
#include "nn/hooks.h"

/* Operations that other rooms add to nn's (enum cairn__op), where they are all CAIRN__OP_GUEST. */
enum {
    CAIRN__AMP_SCALE_LOSS = CAIRN__NUM_OPS,
    CAIRN__AMP_ZERO_LOSS, /* ddp's */
    CAIRN__AMP_NUM_OPS
};

struct cairn__amp_op_row {
    int op;
    amp_cast cast;
    bool is_fixed; /* computes nothing, so its class cannot be changed */
    const char *reason;
};

/* The row of op. Every op has one; a test checks that. */
const struct cairn__amp_op_row *cairn__amp_op_row(int op);

/* "linear" */
const char *cairn__amp_op_name(int op);

/* Whether an operation of Cairn has this name; *op is written only then. */
bool cairn__amp_op_named(const char *name, int *op);

/* Checks a name that no operation of Cairn has, for an operation of the user's. Errors: CAIRN_EINVAL it is nearly the
 * name of one of Cairn's, or a synonym of it. */
cairn_status cairn__amp_check_own_name(const char *name);

#endif
