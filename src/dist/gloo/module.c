/* What libcairn_gloo.so hands out. */
#include "device/module.h"
#include "dist/exchange/engine.h"

extern const struct cairn__engine_ops cairn__gloo_ops;

const struct cairn__module_tables cairn__module_tables = {"gloo", {{"group backend", &cairn__gloo_ops}}};
