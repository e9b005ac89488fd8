/* Exponents, for the recorder. */
#ifndef CAIRN__OBSERVE_EXPONENTS_H
#define CAIRN__OBSERVE_EXPONENTS_H

#include "cairn/exponents.h"
#include "device/env.h"

/* cairn_exponents_count of a dense float array of the device's memory. Not while a graph is recorded. */
cairn_status cairn__exponents_count(struct cairn_device *device, const void *x, size_t n, cairn_dtype dtype,
                                    size_t every, struct cairn_exponents *counts);

/* The fields of a caller's struct, and back. */
cairn_status cairn__exponents_read(const char *call, const struct cairn_exponents *given, struct cairn_exponents *own);

#endif
