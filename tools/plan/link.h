/* The time of an all-reduce: a link, an algorithm, a number of ranks.
 *
 * The time of an all-reduce of n bytes over p ranks has a part that every message pays and a part that the bytes pay,
 *
 *     T(n, p) = L(p) alpha + B(p) n beta
 *
 * alpha: seconds a message takes however short it is; beta: seconds a byte takes on one rank's link, each way at once.
 * With m = ceil(log2 p), and every rank sending and receiving at the same time:
 *
 *                          L(p)                    B(p)              how
 *     ring                 2 (p-1)                 2 (p-1) / p       reduce-scatter, all-gather: p-1 steps of n/p bytes
 *     tree                 2 m                     2 m               reduce, broadcast on a binomial tree: m steps of n
 *     halving-doubling     2 m                     2 (2^m-1) / 2^m   reduce-scatter of n/2, n/4, ...; all-gather back
 *     all-to-all           2 (1 + (p-2) o/alpha)   2 (p-1) / p       Cairn's exchange: p-1 messages of n/p bytes under
 *                                                                    way at once, o after one another; sums; an
 *                                                                    all-gather alike
 *
 * With o = alpha (where nobody has measured o) the exchange is a pairwise one and costs what a ring costs.
 * Halving-doubling for a p that is no power of two is given the next power's cost, without the step that folds the odd
 * ranks in and out (up to n bytes each way): a lower bound there. Additions are neglected, but for what measured times
 * have of them. L and B grow with p, so that more ranks are never faster.
 *
 * A table of measured times, T0(n) of p0 ranks, replaces alpha and beta: between its points log T0 is linear in log n;
 * below the first one T0 stays, as alpha does; above the last one grows by the beta of the line through (0, first) and
 * the last. Points that fall are averaged with their neighbours first (pool adjacent violators), since more bytes are
 * never faster. Other numbers of ranks get
 *     L(p)/L(p0) T0(0) + B(p)/B(p0) (T0(n) - T0(0)), which is T0(n) itself at p0.
 *
 * Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1),
 * 2005 (binomial trees section 4.2 and 4.4, pairwise exchange 4.3, all-reduce 4.5); Rabenseifner, "Optimization of
 * Collective Reduction Operations", ICCS 2004 (halving-doubling); Patarasuk, Yuan, "Bandwidth optimal all-reduce
 * algorithms for clusters of workstations", JPDC 69(2), 2009 (ring; 2 (p-1)/p n is the least a rank must move);
 * Alexandrov et al., "LogGP", 1995 (o). */
#ifndef PLAN_LINK_H
#define PLAN_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum algorithm { RING = 1, TREE, HALVING_DOUBLING, ALL_TO_ALL };

enum { MAX_RANKS = 16384 };

struct point {
    double nbytes, ns;
};

struct link {
    char *name;
    double alpha_ns, beta_ns; /* of a message; of a byte */
    double overlap_cost;      /* o / alpha */
    double share;             /* part of a reduction's time that it takes of the rank's own processor, in [0, 1] */
    struct point *points;     /* [count] of an all-reduce over `ranks`, bytes rising; none = alpha and beta count */
    size_t count;
    int ranks;
};

/* Ranks, in nodes where there are several of them. */
struct network {
    struct link link; /* of a rank; of a node, which its ranks share, where node_ranks > 1 */
    struct link node; /* within a node */
    enum algorithm algorithm;
    int node_ranks; /* 1 = there are no nodes */
};

/* A preset's name, or a file: a link (docs/planning.md) or what cairn-bench allreduce --json wrote. False after a
 * message. */
bool link_read(const char *name, struct link *out);
void link_free(struct link *l);

/* Time in ns of an all-reduce of nbytes; 0 for one rank. Never decreases with nbytes or p. */
double link_allreduce_ns(const struct link *l, enum algorithm a, double nbytes, int p);

/* The same over nodes, of elements of width bytes: a reduce-scatter within each, an all-reduce between them over one
 * link a node, an all-gather within. Between nodes Cairn's exchange sends f32 sums and gathers elements: of halves half
 * as many bytes again. */
double network_allreduce_ns(const struct network *net, double nbytes, size_t width, int p);

/* The processor's share, weighted by each link's part of the time. */
double network_share(const struct network *net, double nbytes, size_t width, int p);

/* "ring" ...; 0 = unknown. */
enum algorithm algorithm_named(const char *name);
const char *algorithm_name(enum algorithm a);

void link_print_presets(FILE *out);

#endif
