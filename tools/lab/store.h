/* Results as files: FOLDER/NAME/TABLE.csv for each table, and FOLDER/NAME/result.json for the rest. The description is
 * removed first and written last, so that a result with a description is complete; each file is written atomically. */
#ifndef LAB_STORE_H
#define LAB_STORE_H

#include "result.h"

/* Creates the folder. The same result gives the same bytes. Errors: CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status store_write(const char *folder, const struct lab_result *result);

/* Whether FOLDER/NAME has a description. */
bool store_has(const char *folder, const char *name);

/* Errors: CAIRN_EINVAL, with file and position, for content that store_write does not write; CAIRN_ESYSTEM,
 * CAIRN_ENOMEM. The result must be freed also after an error. */
cairn_status store_read(const char *folder, const char *name, struct lab_result *out);

/* Writes text to a file atomically. */
cairn_status store_write_text(const char *path, const char *text, size_t nbytes);

/* Lists the names of complete results in the folder, sorted. Free each of *names [count] and the array with
 * cairn__free. A missing folder has no results. */
cairn_status store_list(const char *folder, char ***names, size_t *count);

enum { STORE_PATH_NBYTES = 4096 };

/* "FOLDER/NAME". Errors: CAIRN_EINVAL too long. */
cairn_status store_path(char path[STORE_PATH_NBYTES], const char *folder, const char *name);

#endif
