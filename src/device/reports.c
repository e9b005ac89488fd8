/* Reading reports. What is read is acquired word by word, so that the question whether it was overtaken comes after it
 * (a fence would do, but thread sanitizers know none). */
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

/* Once report number + CAIRN__REPORTS - 1 has come, the device may be writing the next one over this one. */
bool cairn__reports_is_whole(const void *ring, size_t nbytes, uint64_t number) {
    const uint64_t before_overtaking = number + CAIRN__REPORTS - 1;
    return number_at(ring, nbytes, before_overtaking) < before_overtaking;
}

static bool look(const void *ring, size_t nbytes, uint64_t number, void *out) {
    assert(nbytes % sizeof(word) == 0);
    const word *from = slot(ring, nbytes, number);
    word *to = out;
    for (size_t i = 0; i < nbytes / sizeof(word); i++) to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
    return cairn__reports_is_whole(ring, nbytes, number);
}

void cairn__reports_last(const void *ring, size_t nbytes, void *out) {
    while (!look(ring, nbytes, cairn__reports_newest(ring, nbytes), out)) continue;
}

bool cairn__reports_next(const void *ring, size_t nbytes, uint64_t *told, void *out) {
    while (number_at(ring, nbytes, *told + 1) > *told) {
        if (look(ring, nbytes, *told + 1, out)) {
            ++*told;
            return true;
        }
        *told = cairn__reports_newest(ring, nbytes) - (CAIRN__REPORTS - 1);
    }
    return false;
}
