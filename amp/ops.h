/* The class of every operation under O1. */
#ifndef CAIRN__AMP_OPS_H
#define CAIRN__AMP_OPS_H

#include "cairn/autocast.h"
#include "nn/hooks.h"

/* Beside nn's (enum cairn__op) those that rooms bring to it, which are CAIRN__OP_GUEST there. */
enum {
    CAIRN__AMP_SCALE_LOSS = CAIRN__NUM_OPS,
    CAIRN__AMP_ZERO_LOSS, /* ddp's */
    CAIRN__AMP_NUM_OPS
};

struct cairn__amp_op_row {
    int op;
    amp_cast cast;
    bool is_fixed; /* it computes nothing: its class cannot be changed */
    const char *reason;
};

/* The row of op; every op has one, and a test says so. */
const struct cairn__amp_op_row *cairn__amp_op_row(int op);

/* "linear" */
const char *cairn__amp_op_name(int op);

/* Whether an operation of Cairn's has this name; *op is written only then. */
bool cairn__amp_op_named(const char *name, int *op);

/* Whether a name that is no operation's of Cairn may be one of the user's own. CAIRN_EINVAL: it is nearly one of
 * Cairn's, or another word for it. */
cairn_status cairn__amp_check_own_name(const char *name);

#endif
