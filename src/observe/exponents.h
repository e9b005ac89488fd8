/* Exponents, for the recorder and for twins. */
#ifndef CAIRN__OBSERVE_EXPONENTS_H
#define CAIRN__OBSERVE_EXPONENTS_H

#include "cairn/exponents.h"
#include "device/env.h"

/* cairn_exponents_count for a dense float array in device memory. Not while a graph is recorded. */
cairn_status cairn__exponents_count(struct cairn_device *device, const void *x, size_t n, cairn_dtype dtype,
                                    size_t every, struct cairn_exponents *counts);

/* Checks that env's device may read x [n] of dtype. what: the call and the argument. Errors: CAIRN_EINVAL. */
cairn_status cairn__exponents_check_memory(const char *what, const cairn_env *env, const void *x, size_t n,
                                           cairn_dtype dtype);

/* Reads the fields of a caller's struct into Cairn's own. */
cairn_status cairn__exponents_read(const char *call, const struct cairn_exponents *given, struct cairn_exponents *own);

#endif
