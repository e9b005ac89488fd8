/* The names of operations. */
#include "nn/ops.h"

static const char *const names[CAIRN__NUM_OPS] = {
#define CAIRN__X(op, name) [CAIRN__OP_##op] = name,
    CAIRN__OP_LIST(CAIRN__X)
#undef CAIRN__X
};

const char *cairn__op_name(enum cairn__op op) {
    return (unsigned)op < CAIRN__NUM_OPS ? names[op] : "?";
}

const char *cairn__name_of(enum cairn__op op, const struct cairn__op_row *row, const void *attrs) {
    return row->own_name ? row->own_name(attrs) : names[op];
}

const char *cairn__node_name(const struct cairn__node *node) {
    return cairn__name_of(node->op, node->row, node->attrs);
}
