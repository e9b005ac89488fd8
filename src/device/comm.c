/* Communication libraries come from modules, opened on demand. */
#include "device/comm.h"

#include "core/status.h"
#include "device/module.h"

cairn_status cairn__comm_find(const char *name, const struct cairn__comm_ops **out) {
    static const struct cairn__module_use use = {"group backend", "one rank, or device \"cpu\"",
                                                 sizeof(struct cairn__comm_ops)};
    const void *table = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__module_open(&use, name, &table));
    *out = table;
out:
    return st;
}
