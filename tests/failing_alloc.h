/* Allocations that fail: the test's aligned_alloc stands in front of the C library's, which cairn__alloc calls. Include
 * in one file of a program. */
#ifndef TESTS_FAILING_ALLOC_H
#define TESTS_FAILING_ALLOC_H

#include <stdlib.h>

static _Thread_local int fail_in; /* this thread's fail_in-th allocation from now on fails, counted down; 0 = none */

void *aligned_alloc(size_t align, size_t nbytes);

void *aligned_alloc(size_t align, size_t nbytes) {
    void *p = NULL;
    if (fail_in > 0 && --fail_in == 0) return NULL;
    return posix_memalign(&p, align, nbytes) == 0 ? p : NULL;
}

#endif
