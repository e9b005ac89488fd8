/* The error of sums over simulated ranks, depending on the order of additions and on the wire type.
 *
 * Each rank has normally distributed numbers, rounded to the wire type. A reduction adds those of all ranks and rounds
 * every partial sum that a rank sends to the wire type. The true sum is computed in f64. */
#ifndef LAB_REDUCE_ERROR_H
#define LAB_REDUCE_ERROR_H

#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

enum lab_reduction {
    /* Cairn's: all contributions are gathered, added in f32 in rank order, and rounded once. */
    LAB_RANK_ORDER,
    /* Each of p parts starts at a rank of its own and is passed on p - 1 times. Patarasuk and Yuan, "Bandwidth Optimal
     * All-reduce Algorithms for Clusters of Workstations", 2009. */
    LAB_RING,
    /* Pairs at distance 1, 2, 4, ... are added: a binomial tree. Thakur, Rabenseifner, Gropp, "Optimization of
     * Collective Communication Operations in MPICH", 2005. */
    LAB_TREE,
    /* Rank 0 adds one rank after the other to what it has, in the wire's type, and sends the result to all. */
    LAB_REDUCE_BROADCAST,
    LAB_REDUCTIONS
};

/* "rank order", "ring", ... */
const char *lab_reduction_name(enum lab_reduction reduction);

struct lab_reduce_error {
    double relative; /* root of the mean square of the errors, over that of the true sums */
    double wrong;    /* share of elements that differ from the true sum rounded once to the wire type */
};

enum { LAB_MOST_RANKS = 1024 };

/* Of n elements on p in [1, LAB_MOST_RANKS] ranks, for every reduction: the same numbers for all. wire: f32, f16, bf16.
 * Errors: CAIRN_EINVAL p; CAIRN_ENOMEM. Cost: 4 n p bytes and some 5 n p additions. */
cairn_status lab_reduce_errors(cairn_dtype wire, int p, size_t n, uint64_t seed,
                               struct lab_reduce_error out[LAB_REDUCTIONS]);

/* How many times the squared error of one rounding of the sum a reduction is off by, on average, where contributions
 * are independent, with mean 0 and one variance: a partial sum of k ranks has the variance k, and its rounding an error
 * of that size. Ring and reduce + broadcast round sums of 2, 3, ... p ranks: (2 + ... + p) / p. The tree rounds sums of
 * 2^l ranks, p / 2^l times, at each of its levels: as many as it has levels, where p is a power of two (and as it
 * computes it elsewhere). Rank order rounds once, but in f32, where each of its additions rounds like the ring's. */
double lab_reduce_growth(enum lab_reduction reduction, cairn_dtype wire, int p);

#endif
