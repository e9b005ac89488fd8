/* Deadlines and waiting by the monotonic clock, for the library and its modules: all of it is inline. */
#ifndef CAIRN__CORE_CLOCK_H
#define CAIRN__CORE_CLOCK_H

#include <time.h>

/* The monotonic clock, in seconds. */
static inline double cairn__clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* So many seconds from now, at most 1e9, for pthread_cond_timedwait on a condition with this clock. */
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

/* How long a poller has waited since something moved. Of a gap between two polls longest_gap counts at most: in a
 * longer one the process computed, or was stopped. */
struct cairn__stall {
    double seconds;
    double last_poll; /* cairn__clock_seconds; 0 = none since something moved */
};

static inline void cairn__stall_reset(struct cairn__stall *stall) {
    stall->seconds = stall->last_poll = 0;
}

/* Another poll in which nothing moved; returns the seconds that count until now. */
static inline double cairn__stall_poll(struct cairn__stall *stall, double longest_gap) {
    const double now = cairn__clock_seconds(), passed = stall->last_poll > 0 ? now - stall->last_poll : 0;
    stall->last_poll = now;
    stall->seconds += passed < longest_gap ? passed : longest_gap;
    return stall->seconds;
}

#endif
