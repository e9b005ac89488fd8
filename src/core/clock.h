/* Deadlines and waits by the monotonic clock. All functions are inline, so that modules can use them too. */
#ifndef CAIRN__CORE_CLOCK_H
#define CAIRN__CORE_CLOCK_H

#include <time.h>

/* The monotonic clock, in seconds. */
static inline double cairn__clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The time `seconds` (at most 1e9) from now, for pthread_cond_timedwait on a condition that uses this clock. */
static inline struct timespec cairn__clock_in(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const double given = !(seconds > 0) ? 0 : seconds < 1e9 ? seconds : 1e9;
    const time_t whole = (time_t)given;
    t.tv_sec += whole;
    t.tv_nsec += (long)((given - (double)whole) * 1e9);
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

/* Measures how long a poller has waited since the last progress. A gap between two polls counts as at most longest_gap:
 * in a longer one the process was computing, or stopped. */
struct cairn__stall {
    double seconds;
    double last_poll; /* cairn__clock_seconds; 0 = no poll since the last progress */
};

static inline void cairn__stall_reset(struct cairn__stall *stall) {
    stall->seconds = stall->last_poll = 0;
}

/* Notes a poll without progress. Returns the seconds waited so far. */
static inline double cairn__stall_poll(struct cairn__stall *stall, double longest_gap) {
    const double now = cairn__clock_seconds(), passed = stall->last_poll > 0 ? now - stall->last_poll : 0;
    stall->last_poll = now;
    stall->seconds += passed < longest_gap ? passed : longest_gap;
    return stall->seconds;
}

#endif
