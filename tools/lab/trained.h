/* Converts what a training recorded with CAIRN_LAB=folder to a result that the report draws: scalars, exponents of
 * gradients and activations over the steps, what each loss scale would lose and skip, and findings in words. */
#ifndef LAB_TRAINED_H
#define LAB_TRAINED_H

#include "result.h"

#define TRAINED_NAME "recorded" /* of the result */

bool trained_is_in(const char *folder);

/* The result must be freed also after a failure. Errors: those of record_read. */
cairn_status trained_read(const char *folder, struct lab_result *out);

#endif
