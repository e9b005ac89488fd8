/* The class of every operation under O1. */
#ifndef CAIRN__AMP_OPS_H
#define CAIRN__AMP_OPS_H

#include "cairn/autocast.h"
#include "nn/hooks.h"

struct cairn__amp_op_row {
    enum cairn__op op;
    amp_cast cast;
    bool is_fixed; /* it computes nothing: nobody may give it another class */
    const char *reason;
};

/* The row of op; every op has one, and a test says so. */
const struct cairn__amp_op_row *cairn__amp_op_row(enum cairn__op op);

/* Whether an operation of Cairn's has this name; *op is written only then. */
bool cairn__amp_op_named(const char *name, enum cairn__op *op);

/* Whether a name that is no operation's of Cairn may be one of the user's own. CAIRN_EINVAL: it is nearly one of
 * Cairn's, or another word for it. */
cairn_status cairn__amp_check_own_name(const char *name);

#endif
