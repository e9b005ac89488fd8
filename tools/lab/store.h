/* Results as files: FOLDER/NAME/TABLE.csv for each table, and FOLDER/NAME/result.json for the rest. The description is
 * removed first and written last, so that where it is, everything is; each file is whole or absent. */
#ifndef LAB_STORE_H
#define LAB_STORE_H

#include "result.h"

/* Makes the folder. The same result gives the same bytes. Errors: CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status store_write(const char *folder, const struct lab_result *result);

/* Whether FOLDER/NAME has a description. */
bool store_has(const char *folder, const char *name);

/* Errors: CAIRN_EINVAL, with file and place, for what store_write has not written; CAIRN_ESYSTEM, CAIRN_ENOMEM. Free
 * the result also then. */
cairn_status store_read(const char *folder, const char *name, struct lab_result *out);

/* All of text, as a file that is whole or absent. */
cairn_status store_write_text(const char *path, const char *text, size_t nbytes);

/* The names of complete results in the folder, sorted: *names[count], each to be freed and the array, by cairn__free.
 * A folder that does not exist has none. */
cairn_status store_list(const char *folder, char ***names, size_t *count);

enum { STORE_PATH_NBYTES = 4096 };

/* "FOLDER/NAME". Errors: CAIRN_EINVAL too long. */
cairn_status store_path(char path[STORE_PATH_NBYTES], const char *folder, const char *name);

#endif
