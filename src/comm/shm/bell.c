/* The bell: the futex on which the ranks of a family sleep, and which publishers ring only while some rank sleeps.
 *
 * A sleeper counts itself in, reads the event count, makes one more step and then sleeps on that count; a publisher
 * stores first and reads the number of sleepers after. Both orders are sequentially consistent, so one of them sees the
 * other. Sleeps are short all the same, because no rank wakes those that wait for one that died: they learn it from its
 * socket. */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/shm/shm.h"

enum { SLEEP_NS = 10000000 };

void cairn__shm_notify(struct cairn__shm *s) {
    if (atomic_load(&s->bell->sleepers) == 0) return;
    atomic_fetch_add(&s->bell->events, 1);
    syscall(SYS_futex, &s->bell->events, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void cairn__shm_sleep(struct cairn__shm *s, uint32_t seen) {
    const struct timespec limit = {.tv_nsec = SLEEP_NS};
    syscall(SYS_futex, &s->bell->events, FUTEX_WAIT, seen, &limit, NULL, 0);
}
