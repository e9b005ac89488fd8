/* The tables that libcairn_gloo.so exports. */
#include "comm/exchange/engine.h"
#include "device/module.h"

extern const struct cairn__engine_ops cairn__gloo_ops;

const struct cairn__module_tables cairn__module_tables = {"gloo", {{"group backend", &cairn__gloo_ops}}};
