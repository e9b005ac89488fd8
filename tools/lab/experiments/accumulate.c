/* Sums that are rounded after every addition: where they stop growing, and how f32 and stochastic rounding help. */
#include <math.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/philox.h"
#include "core/status.h"
#include "kernels/kernels.h"
#include "../experiment.h"
#include "../rounded_sum.h"

static const struct lab_option options[] = {{"terms", "1048576", "how many numbers are added", .kind = LAB_WHOLE,
                                             .least = 2, .most = 1 << 24},
                                            {"runs", "4096", "sums by stochastic rounding, of which the mean is taken",
                                             .kind = LAB_WHOLE, .least = 16, .most = 1 << 20},
                                            {0}};

/* The type and rounding of a running sum. */
static const struct keeper {
    const char *name;
    cairn_dtype dtype; /* 0 = Cairn's kernel for f16 arrays, which adds in f32 and f64 */
    enum lab_rounding rounding;
} keepers[] = {{"f16", CAIRN_F16, LAB_NEAREST},
               {"bf16", CAIRN_BF16, LAB_NEAREST},
               {"bf16 stochastic", CAIRN_BF16, LAB_STOCHASTIC},
               {"f32", CAIRN_F32, LAB_NEAREST},
               {"f16 array in f32 blocks", 0, LAB_NEAREST}};

/* The numbers are exact in f16, so that every keeper adds the same ones. */
static void fill(uint16_t *x, size_t n, bool equal, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        const struct cairn__philox_block block = cairn__philox(seed, i / 4, 0);
        x[i] = cairn__f32_to_f16(equal ? 0.1f : cairn__uniform(block.word[i % 4]));
    }
}

/* Adds rows with relative errors after 2, 4, 8, ... terms; returns the sum of all terms. */
static double put_errors(struct lab_table *table, const struct keeper *keeper, const char *data, const uint16_t *x,
                         size_t n, uint64_t seed) {
    const struct cairn__kernels *kernels = cairn__kernels_cpu(cairn__cpu_features());
    struct lab_sum sum = {.dtype = keeper->dtype, .rounding = keeper->rounding, .seed = seed};
    double exact = 0, kept = 0;
    for (size_t i = 0; i < n; i++) {
        const float term = cairn__f16_to_f32(x[i]);
        const size_t terms = i + 1;
        exact += (double)term;
        if (keeper->dtype) lab_sum_add(&sum, term);
        if (terms < 2 || ((terms & i) != 0 && terms != n)) continue;
        kept = keeper->dtype ? (double)sum.value : kernels->sum[CAIRN_F16](x, terms);
        lab_put(table, (double)terms);
        lab_put_text(table, keeper->name);
        lab_put_text(table, data);
        lab_put(table, kept);
        lab_put(table, exact);
        lab_put(table, fabs(kept - exact) / exact);
    }
    return kept;
}

static void check_closed_forms(struct lab_run *run) {
    const struct lab_sum f16 = {.dtype = CAIRN_F16, .rounding = LAB_NEAREST};
    const struct lab_sum bf16 = {.dtype = CAIRN_BF16, .rounding = LAB_NEAREST};
    const struct lab_sum stochastic = {.dtype = CAIRN_BF16, .rounding = LAB_STOCHASTIC, .seed = lab_seed(run)};
    const size_t runs = (size_t)lab_whole(run, "runs");
    const double ones = (double)lab_sum_equal(f16, 0, 1, 5000), tenths = (double)lab_sum_equal(f16, 0, 0.1f, 20000);
    const double small = (double)lab_sum_equal(bf16, 1, 0.001f, 1000);
    const double allowed = 4 * 0.084 / sqrt((double)runs);
    const struct lab_moments m = lab_sum_moments(stochastic, 1, 0.001f, 1000, runs);
    lab_check(run, ones == 2048,
              "5000 ones added in f16 are %g: from 2048 on neighbours are 2 apart, and 2049 is a tie", ones);
    lab_check(run, tenths == 256,
              "20000 x 0.1 added in f16 are %g: there neighbours are 1/4 apart, and 0.1 is less "
              "than half of that",
              tenths);
    lab_check(run, small == 1, "1 + 1000 x 0.001 in bf16 by nearest is %g", small);
    lab_check(run, fabs(m.mean - 2) <= allowed,
              "by stochastic rounding it is %.4f in the mean of %zu runs, within %.4f of 2; one run is off by %.4f "
              "(standard deviation)",
              m.mean, runs, allowed, m.deviation);
}

static cairn_status run(struct lab_run *run) {
    enum { KEEPERS = sizeof(keepers) / sizeof(keepers[0]) };
    const size_t n = (size_t)lab_whole(run, "terms");
    struct lab_table *errors = lab_table(run, "errors", "Errors of sums by how they are kept",
                                         (struct lab_column[]){{"terms", ""},
                                                               {"sum in", NULL},
                                                               {"data", NULL},
                                                               {"sum", ""},
                                                               {"true sum", ""},
                                                               {"relative error", ""}},
                                         6);
    double kept[2][KEEPERS];
    uint16_t *x = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc(n * sizeof(*x), (void **)&x));
    for (size_t d = 0; d < 2; d++) {
        fill(x, n, d == 0, lab_seed(run));
        for (size_t k = 0; k < KEEPERS; k++) {
            lab_progress(run, (double)(d * KEEPERS + k) / (2 * KEEPERS), "%zu terms in %s", n, keepers[k].name);
            kept[d][k] = put_errors(errors, &keepers[k], d == 0 ? "0.1" : "uniform in [0, 1)", x, n, lab_seed(run));
        }
    }
    lab_picture(run, &(struct lab_picture){.name = "errors",
                                           .title = "A sum in a half type stops growing",
                                           .table = "errors",
                                           .form = LAB_LINES,
                                           .x = "terms",
                                           .y = "relative error",
                                           .by = "sum in",
                                           .panel = "data",
                                           .x_log = 2,
                                           .y_log = 10});
    check_closed_forms(run);
    if (n >= 1 << 17) { /* enough terms for the f16 sum to have stopped growing */
        lab_check(run, kept[1][0] == 2048,
                  "the f16 sum of %zu uniform numbers stays at %g: none of them is above half "
                  "of 2",
                  n, kept[1][0]);
        lab_check(run, kept[1][1] == 256, "the bf16 sum of the same stays at %g", kept[1][1]);
    }
out:
    cairn__free(x);
    return st;
}

const struct lab_experiment lab_accumulate = {
    .name = "accumulate",
    .question = "How long can a sum be that is kept in a half type?",
    .method = "Adds 0.1 again and again, and uniform numbers, all of f16, to sums that are rounded after each addition "
              "to f16, to bf16 (to nearest, and at random by the numbers of Cairn's optimizers) and to f32; and by "
              "Cairn's sum of an f16 array. f64 says what they should be.",
    .expected = "A term of less than half the distance of neighbours at the sum is lost: 5000 ones in f16 are 2048, "
                "20000 x 0.1 are 256, and 1 + 1000 x 0.001 in bf16 stays 1. At random it is 2 in the mean, within four "
                "standard errors, 4 x 0.084 / sqrt(runs). In f32 errors stay below the parts that f16 has.",
    .source = "Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.3; Croci et al., Stochastic "
              "Rounding: Implementation, Error Analysis and Applications, R. Soc. Open Sci. 2022, section 4",
    .options = options,
    .run = run,
};
