#include "reduce_error.h"

#include <math.h>

#include "core/alloc.h"
#include "core/philox.h"
#include "core/status.h"
#include "rounded_sum.h"

const char *lab_reduction_name(enum lab_reduction reduction) {
    static const char *const names[] = {
        [LAB_RANK_ORDER] = "rank order",
        [LAB_RING] = "ring",
        [LAB_TREE] = "tree",
        [LAB_REDUCE_BROADCAST] = "reduce + broadcast",
    };
    return names[reduction];
}

/* ---- one element: x[r] is rank r's ---- */

static float add_in_rank_order(cairn_dtype wire, const float *x, int p) {
    float sum = x[0];
    for (int r = 1; r < p; r++) sum += x[r];
    return lab_round(wire, sum);
}

static float add_from(cairn_dtype wire, const float *x, int p, int first) {
    float sum = x[first];
    for (int hop = 1; hop < p; hop++) sum = lab_round(wire, sum + x[(first + hop) % p]);
    return sum;
}

static float add_in_tree(cairn_dtype wire, const float *x, int p) {
    float sums[LAB_MOST_RANKS];
    for (int r = 0; r < p; r++) sums[r] = x[r];
    for (int distance = 1; distance < p; distance *= 2) {
        for (int r = 0; r + distance < p; r += 2 * distance) sums[r] = lab_round(wire, sums[r] + sums[r + distance]);
    }
    return sums[0];
}

/* Returns the sum of element i of n; a ring starts it at a rank that depends on i. */
static float reduce(enum lab_reduction reduction, cairn_dtype wire, const float *x, int p, size_t i, size_t n) {
    switch (reduction) {
    case LAB_RANK_ORDER:
        return add_in_rank_order(wire, x, p);
    case LAB_RING:
        return add_from(wire, x, p, (int)(i * (size_t)p / n));
    case LAB_TREE:
        return add_in_tree(wire, x, p);
    default:
        return add_from(wire, x, p, 0);
    }
}

/* ---- all of them ---- */

static float from_wire(cairn_dtype wire, double x) {
    return lab_round(wire, (float)x);
}

static void fill(cairn_dtype wire, float *x, int p, size_t n, uint64_t seed) {
    for (int r = 0; r < p; r++) {
        float four[4] = {0};
        for (size_t i = 0; i < n; i++) {
            if (i % 4 == 0) cairn__normal4(cairn__philox(seed, i / 4, (uint64_t)r), four);
            x[i * (size_t)p + (size_t)r] = lab_round(wire, four[i % 4]);
        }
    }
}

static double true_sum(const float *x, int p) {
    double sum = 0;
    for (int r = 0; r < p; r++) sum += (double)x[r];
    return sum;
}

cairn_status lab_reduce_errors(cairn_dtype wire, int p, size_t n, uint64_t seed,
                               struct lab_reduce_error out[LAB_REDUCTIONS]) {
    REQUIRE(p >= 1 && p <= LAB_MOST_RANKS, CAIRN_EINVAL, "%d simulated ranks; there are 1 to %d", p, LAB_MOST_RANKS);
    double squares[LAB_REDUCTIONS] = {0}, of_sums = 0;
    size_t wrong[LAB_REDUCTIONS] = {0};
    float *x = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc((size_t)p * n * sizeof(*x), (void **)&x));
    fill(wire, x, p, n, seed);
    for (size_t i = 0; i < n; i++) {
        const float *of = x + i * (size_t)p;
        const double sum = true_sum(of, p);
        of_sums += sum * sum;
        for (int k = 0; k < LAB_REDUCTIONS; k++) {
            const float got = reduce((enum lab_reduction)k, wire, of, p, i, n);
            squares[k] += ((double)got - sum) * ((double)got - sum);
            wrong[k] += got != from_wire(wire, sum);
        }
    }
    for (int k = 0; k < LAB_REDUCTIONS; k++) {
        out[k].relative = of_sums > 0 ? sqrt(squares[k] / of_sums) : 0;
        out[k].wrong = n ? (double)wrong[k] / (double)n : 0;
    }
out:
    cairn__free(x);
    return st;
}

static double tree_growth(int p) {
    double growth = 0;
    for (int distance = 1; distance < p; distance *= 2) {
        for (int r = 0; r + distance < p; r += 2 * distance) growth += r + 2 * distance < p ? 2 * distance : p - r;
    }
    return growth / p;
}

double lab_reduce_growth(enum lab_reduction reduction, cairn_dtype wire, int p) {
    if (reduction == LAB_TREE) return tree_growth(p);
    if (reduction == LAB_RANK_ORDER && wire != CAIRN_F32) return p > 1;
    return ((double)p * (p + 1) / 2 - 1) / p;
}
