/* Makes allocations fail: replaces the C library's aligned_alloc, which cairn__alloc calls. Include it in one file of a
 * program only. */
#ifndef TESTS_FAILING_ALLOC_H
#define TESTS_FAILING_ALLOC_H

#include <stdlib.h>

static _Thread_local int fail_in; /* counts down; the allocation that reaches 0 fails; 0 = none fails */

void *aligned_alloc(size_t align, size_t nbytes);

void *aligned_alloc(size_t align, size_t nbytes) {
    void *p = NULL;
    if (fail_in > 0 && --fail_in == 0) return NULL;
    return posix_memalign(&p, align, nbytes) == 0 ? p : NULL;
}

#endif
