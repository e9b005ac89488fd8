/* Memory allocation: aligned, counted, and checked for overflow of sizes. */
#ifndef CAIRN__CORE_ALLOC_H
#define CAIRN__CORE_ALLOC_H

#include "cairn/core.h"

enum { CAIRN__ALIGN = 64 };

/* 64-byte aligned memory, contents undefined; 0 bytes give a valid pointer. Free with cairn__free.
 * Errors: CAIRN_ENOMEM with the size. */
cairn_status cairn__alloc(size_t nbytes, void **out);

/* As cairn__alloc, for count elements of nbytes each, zeroed. */
cairn_status cairn__calloc(size_t count, size_t nbytes, void **out);

/* Makes room for `want` elements of nbytes each in *array (a T**), whose room is *capacity. Grows by doubling and keeps
 * the contents. */
cairn_status cairn__grow(void **array, size_t *capacity, size_t want, size_t nbytes);

/* A copy of text. */
cairn_status cairn__strdup(const char *text, char **out);

void cairn__free(void *p);

/* The number of allocations made by this process so far, by any function above, and how many are alive. Any thread. */
struct cairn__alloc_counters {
    uint64_t allocations;
    uint64_t alive;
};
struct cairn__alloc_counters cairn__alloc_counters(void);

#endif
