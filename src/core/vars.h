/* The one place that reads environment variables. Every variable that Cairn reads is in the table in vars.c; reading
 * another is a bug that a test catches. */
#ifndef CAIRN__CORE_VARS_H
#define CAIRN__CORE_VARS_H

#include <stdbool.h>

#include "cairn/core.h"

/* The variable's text. NULL if it is unset or empty, or if the program has more rights than the user who started it
 * (core/trust.h), because that user controls the environment. */
const char *cairn__var(const char *name);

/* Whether process pid was started with the variable; false if this process may not read that. Linux only; false
 * elsewhere. */
bool cairn__var_in_process(int pid, const char *name);

/* A whole decimal number in [least, most]. *present: whether the variable is set; *value is written only then.
 * Errors: CAIRN_EINVAL "RANK='two' is not a whole number in [0, 65535]". */
cairn_status cairn__var_int(const char *name, long least, long most, bool *present, long *value);

/* A positive number of seconds, fractions allowed; *value keeps its default if the variable is unset.
 * Errors: CAIRN_EINVAL for anything else, NaN and infinity included. */
cairn_status cairn__var_seconds(const char *name, double *value);

/* Every variable with its meaning, for docs and for a test; ends with a NULL name. */
struct cairn__var_info {
    const char *name;
    const char *meaning;
};
extern const struct cairn__var_info cairn__vars[];

#endif
