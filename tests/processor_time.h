/* Time that other programs of the machine do not lengthen. */
#ifndef TESTS_PROCESSOR_TIME_H
#define TESTS_PROCESSOR_TIME_H

#include <time.h>

/* Processor time of all threads of this process. */
static inline double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
