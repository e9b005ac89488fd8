/* Aligned allocation with counters: a test checks that a steady-state training step does not change `allocations`.
 * Large blocks request huge pages, which the bandwidth-bound optimizer pass needs to reach the memory's speed. */
#include "core/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/status.h"

enum { HUGE_PAGE = 2 << 20 };

static atomic_uint_fast64_t allocations, alive;

cairn_status cairn__alloc(size_t nbytes, void **out) {
    size_t align = nbytes >= HUGE_PAGE ? HUGE_PAGE : CAIRN__ALIGN;
    REQUIRE(nbytes <= SIZE_MAX / 2, CAIRN_ENOMEM, "an allocation of %zu bytes is more than memory can hold", nbytes);
    size_t rounded = (nbytes + align - 1) / align * align;
    void *p = aligned_alloc(align, rounded ? rounded : align);
    REQUIRE(p, CAIRN_ENOMEM, "out of memory: %zu bytes could not be allocated", nbytes);
    /* A hint; refusal costs only speed. The tail, less than a huge page, stays in small ones, of which untouched ones
     * cost nothing. */
    if (align == HUGE_PAGE) (void)madvise(p, nbytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&alive, 1, memory_order_relaxed);
    *out = p;
    return CAIRN_OK;
}

cairn_status cairn__calloc(size_t count, size_t nbytes, void **out) {
    REQUIRE(nbytes == 0 || count <= SIZE_MAX / nbytes, CAIRN_ENOMEM, "out of memory: %zu elements of %zu bytes", count,
            nbytes);
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc(count * nbytes, out));
    memset(*out, 0, count * nbytes);
out:
    return st;
}

cairn_status cairn__grow(void **array, size_t *capacity, size_t want, size_t nbytes) {
    if (want <= *capacity) return CAIRN_OK;
    REQUIRE(want <= SIZE_MAX / 2, CAIRN_ENOMEM, "out of memory: %zu elements of %zu bytes", want, nbytes);
    size_t roomier = *capacity ? *capacity : 8;
    while (roomier < want) roomier *= 2;
    cairn_status st = CAIRN_OK;
    void *p = NULL;
    TRY(cairn__calloc(roomier, nbytes, &p));
    if (*array) memcpy(p, *array, *capacity * nbytes);
    cairn__free(*array);
    *array = p;
    *capacity = roomier;
out:
    return st;
}

cairn_status cairn__strdup(const char *text, char **out) {
    size_t nbytes = strlen(text) + 1;
    cairn_status st = CAIRN_OK;
    void *p = NULL;
    TRY(cairn__alloc(nbytes, &p));
    *out = memcpy(p, text, nbytes);
out:
    return st;
}

void cairn__free(void *p) {
    if (!p) return;
    atomic_fetch_sub_explicit(&alive, 1, memory_order_relaxed);
    free(p);
}

struct cairn__alloc_counters cairn__alloc_counters(void) {
    return (struct cairn__alloc_counters){.allocations = atomic_load(&allocations), .alive = atomic_load(&alive)};
}
