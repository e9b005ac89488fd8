/* result.json: a result without the rows of its tables. */
#ifndef LAB_DESCRIPTION_H
#define LAB_DESCRIPTION_H

#include "result.h"

/* Free *text with free. Errors: CAIRN_ENOMEM. */
cairn_status description_make(const struct lab_result *result, char **text);

/* Reads a description; tables have no rows yet. file: for messages. Errors: CAIRN_EINVAL, CAIRN_ENOMEM; the result must
 * be freed also after an error. */
cairn_status description_read(const char *file, const char *text, struct lab_result *out);

#endif
