/* Merging the parts of a timeline. */
#ifndef CAIRN__OBSERVE_MERGE_H
#define CAIRN__OBSERVE_MERGE_H

#include "cairn/core.h"

/* Merges the parts of ranks 0 to size - 1 into path, unless one is still being written: then its writer merges them.
 * Removes the parts if all exist. Errors: as cairn_timeline_merge. */
cairn_status cairn__timeline_merge_last(const char *path, int size);

#endif
