/* The report: one HTML page with everything in it. No script, no font and no file from elsewhere. */
#ifndef LAB_PAGE_H
#define LAB_PAGE_H

#include "result.h"

/* *page is to be freed by free. folder: where the results are, for the commands that the page shows.
 * Errors: CAIRN_ENOMEM. */
cairn_status page_make(const char *folder, const struct lab_result *results, size_t count, char **page, size_t *nbytes);

#endif
