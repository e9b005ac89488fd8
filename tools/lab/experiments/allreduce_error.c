/* How the order of additions over ranks and the type that is sent change the error of a sum. */
#include <math.h>

#include "core/status.h"
#include "../experiment.h"
#include "../reduce_error.h"

static const struct lab_option options[] = {{"ranks", "1024", "simulated: 2, 4, 8, ... up to this", .kind = LAB_WHOLE,
                                             .least = 2, .most = LAB_MOST_RANKS},
                                            {"elements", "2048", "of each rank's array", .kind = LAB_WHOLE,
                                             .least = 1024, .most = 1 << 20},
                                            {0}};

/* Allowed relative difference between measured and predicted growth. The largest relative error of one rounding in f16
 * itself varies between 2^-12 and 2^-11, depending on where the number lies between two powers of two. */
static const double allowed = 0.25;

static void put(struct lab_table *table, cairn_dtype wire, int p, const struct lab_reduce_error *e, double one) {
    for (int k = 0; k < LAB_REDUCTIONS; k++) {
        lab_put(table, p);
        lab_put_text(table, lab_reduction_name((enum lab_reduction)k));
        lab_put_text(table, cairn_dtype_name(wire));
        lab_put(table, e[k].relative);
        lab_put(table, one * sqrt(lab_reduce_growth((enum lab_reduction)k, wire, p)));
        lab_put(table, 100 * e[k].wrong);
    }
}

/* Checks the largest number of ranks. one: the error of one rounding, as measured with two ranks. */
static void check(struct lab_run *run, cairn_dtype wire, int p, const struct lab_reduce_error *e, double one) {
    for (int k = 0; k < LAB_REDUCTIONS; k++) {
        const double growth = sqrt(lab_reduce_growth((enum lab_reduction)k, wire, p)), is = e[k].relative / one;
        lab_check(run, fabs(is / growth - 1) < allowed,
                  "%s over %d ranks in %s: the error is %.2f times that of one rounding; %.2f were predicted",
                  lab_reduction_name((enum lab_reduction)k), p, cairn_dtype_name(wire), is, growth);
    }
}

static cairn_status run(struct lab_run *run) {
    static const cairn_dtype wires[] = {CAIRN_F16, CAIRN_BF16, CAIRN_F32};
    const int most = (int)lab_whole(run, "ranks");
    struct lab_table *errors = lab_table(run, "errors", "Relative errors of sums over ranks",
                                         (struct lab_column[]){{"ranks", ""},
                                                               {"order", NULL},
                                                               {"wire", NULL},
                                                               {"relative error", ""},
                                                               {"predicted", ""},
                                                               {"not the nearest", "%"}},
                                         6);
    struct lab_reduce_error e[LAB_REDUCTIONS];
    cairn_status st = CAIRN_OK;
    for (size_t w = 0; w < 3; w++) {
        double one = 0;
        int last = 2;
        for (int p = 2; p <= most; p *= 2) {
            lab_progress(run, ((double)w + (double)p / most) / 3, "%d ranks in %s", p, cairn_dtype_name(wires[w]));
            TRY(lab_reduce_errors(wires[w], p, (size_t)lab_whole(run, "elements"), lab_seed(run), e));
            if (p == 2) one = e[LAB_RANK_ORDER].relative;
            put(errors, wires[w], p, e, one);
            last = p;
        }
        check(run, wires[w], last, e, one);
    }
    lab_picture(run, &(struct lab_picture){.name = "errors",
                                           .title = "Error of an all-reduce by order and wire type",
                                           .table = "errors",
                                           .form = LAB_LINES,
                                           .x = "ranks",
                                           .y = "relative error",
                                           .by = "order",
                                           .panel = "wire",
                                           .x_log = 2,
                                           .y_log = 10});
out:
    return st;
}

const struct lab_experiment lab_allreduce_error = {
    .name = "allreduce-error",
    .question = "How much of a gradient does the order of an all-reduce lose?",
    .method = "Normal numbers on 2 to 1024 simulated ranks, rounded to the type that travels, are added by a ring, a "
              "binomial tree, a reduction at one rank that a broadcast follows, all of which round each partial sum to "
              "that type, and in rank order in f32 with one rounding, as Cairn does. f64 says what the sums are.",
    .expected = "Partial sums of k ranks have the variance k and are rounded relative to that, so ring and reduce + "
                "broadcast are off by sqrt((2 + ... + p) / p) times one rounding, a tree by sqrt(log2 p) times, and "
                "rank order in f32 by one. In f32 rank order rounds as often as the ring.",
    .source = "Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 4.2 and 4.3; for the orders see "
              "tools/lab/reduce_error.h",
    .options = options,
    .run = run,
};
