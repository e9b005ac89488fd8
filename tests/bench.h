/* Shared by device benchmarks: exit without a figure when a result is wrong, and the median over rounds. */
#ifndef TESTS_BENCH_H
#define TESTS_BENCH_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "cairn/core.h"

enum { SKIP = 77, ROUNDS = 7 };

/* Ends the program without a figure. */
static inline void require(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "benchmark: %s\n", what);
    exit(1);
}

static inline void done(cairn_status status) {
    require(status == CAIRN_OK, cairn_last_error());
}

static inline int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median of ROUNDS values; sorts them in place. */
static inline double median(double *values) {
    qsort(values, ROUNDS, sizeof(values[0]), by_value);
    return values[ROUNDS / 2];
}

#endif
