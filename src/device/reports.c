/* Reading reports. Words are loaded with acquire order, so that the check for an overwrite is ordered after them (a
 * fence would do too, but thread sanitizers do not support fences). */
#include "device/reports.h"

#include <assert.h>

#include "kernels/step.h"

typedef uint64_t __attribute__((may_alias)) word;

static const word *slot(const void *ring, size_t nbytes, uint64_t number) {
    return (const word *)((const char *)ring + number % CAIRN__REPORTS * nbytes);
}

static uint64_t number_at(const void *ring, size_t nbytes, uint64_t number) {
    return __atomic_load_n(slot(ring, nbytes, number), __ATOMIC_ACQUIRE);
}

uint64_t cairn__reports_newest(const void *ring, size_t nbytes) {
    uint64_t last = 0;
    for (uint64_t i = 0; i < CAIRN__REPORTS; i++) {
        const uint64_t number = number_at(ring, nbytes, i);
        if (number > last) last = number;
    }
    return last;
}

/* Once report number + CAIRN__REPORTS - 1 is there, the device may be overwriting this one with the next. */
bool cairn__reports_is_whole(const void *ring, size_t nbytes, uint64_t number) {
    const uint64_t before_overtaking = number + CAIRN__REPORTS - 1;
    return number_at(ring, nbytes, before_overtaking) < before_overtaking;
}

static bool copy_report(const void *ring, size_t nbytes, uint64_t number, void *out) {
    assert(nbytes % sizeof(word) == 0);
    const word *from = slot(ring, nbytes, number);
    word *to = out;
    for (size_t i = 0; i < nbytes / sizeof(word); i++) to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
    return cairn__reports_is_whole(ring, nbytes, number);
}

void cairn__reports_last(const void *ring, size_t nbytes, void *out) {
    while (!copy_report(ring, nbytes, cairn__reports_newest(ring, nbytes), out)) continue;
}

bool cairn__reports_next(const void *ring, size_t nbytes, uint64_t *seen, void *out) {
    while (number_at(ring, nbytes, *seen + 1) > *seen) {
        if (copy_report(ring, nbytes, *seen + 1, out)) {
            ++*seen;
            return true;
        }
        *seen = cairn__reports_newest(ring, nbytes) - (CAIRN__REPORTS - 1);
    }
    return false;
}
