/* result.json: all of a result but the rows of its tables. */
#ifndef LAB_DESCRIPTION_H
#define LAB_DESCRIPTION_H

#include "result.h"

/* *text is to be freed by free. Errors: CAIRN_ENOMEM. */
cairn_status description_make(const struct lab_result *result, char **text);

/* Tables have no rows yet. file: for messages. Errors: CAIRN_EINVAL, CAIRN_ENOMEM; free the result also then. */
cairn_status description_read(const char *file, const char *text, struct lab_result *out);

#endif
