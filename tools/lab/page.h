/* The report: one self-contained HTML page, without scripts, fonts or external files. */
#ifndef LAB_PAGE_H
#define LAB_PAGE_H

#include "result.h"

/* Free *page with free. folder: the results' folder, for the commands that the page shows.
 * Errors: CAIRN_ENOMEM. */
cairn_status page_make(const char *folder, const struct lab_result *results, size_t count, char **page, size_t *nbytes);

#endif
