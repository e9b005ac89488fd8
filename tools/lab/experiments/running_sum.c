/* Adds many numbers to a sum that is rounded after each addition: where the sum stops growing. */
#include <math.h>

#include "core/half.h"
#include "../experiment.h"

static const struct lab_option options[] = {{"terms", "20000", "how many numbers are added", .kind = LAB_WHOLE,
                                             .least = 1, .most = 1 << 24},
                                            {0}};

/* Rounds as storing in that type does. */
static float to_f16(float x) {
    return cairn__f16_to_f32(cairn__f32_to_f16(x));
}

static float to_bf16(float x) {
    return cairn__bf16_to_f32(cairn__f32_to_bf16(x));
}

static float to_f32(float x) {
    return x;
}

static const struct type {
    const char *name;
    float (*round)(float x);
} f16 = {"f16", to_f16}, bf16 = {"bf16", to_bf16}, f32 = {"f32", to_f32};

/* begin + n x term, both rounded to the type first. */
static float sum_of(const struct type *type, float begin, float term, int64_t n) {
    float sum = type->round(begin);
    const float rounded = type->round(term);
    for (int64_t i = 0; i < n; i++) sum = type->round(sum + rounded);
    return sum;
}

/* Rows at every power of two and at the end. */
static void put_course(struct lab_table *table, const struct type *type, int64_t terms) {
    const float term = type->round(0.1f);
    float sum = 0;
    int64_t next = 1;
    for (int64_t i = 1; i <= terms; i++) {
        sum = type->round(sum + term);
        if (i != next && i != terms) continue;
        if (i == next) next *= 2;
        lab_put(table, (double)i);
        lab_put(table, sum);
        lab_put_text(table, type->name);
    }
}

static cairn_status run(struct lab_run *run) {
    const int64_t terms = lab_whole(run, "terms");
    const struct type *const types[] = {&f16, &bf16, &f32};
    struct lab_table *sums = lab_table(run, "sums", "Running sums of 0.1",
                                       (struct lab_column[]){{"terms", ""}, {"sum", ""}, {"type", NULL}}, 3);
    for (size_t t = 0; t < 3; t++) {
        lab_progress(run, (double)t / 3, "%lld x 0.1 in %s", (long long)terms, types[t]->name);
        put_course(sums, types[t], terms);
    }
    lab_picture(run, &(struct lab_picture){.name = "sums",
                                           .title = "A running sum of 0.1 by the type of the sum",
                                           .table = "sums",
                                           .form = LAB_LINES,
                                           .x = "terms",
                                           .y = "sum",
                                           .by = "type",
                                           .x_log = 2,
                                           .y_log = 2});
    const double ones = sum_of(&f16, 0, 1, 5000), tenths = sum_of(&f16, 0, 0.1f, 20000);
    const double small = sum_of(&bf16, 1, 0.001f, 1000);
    lab_check(run, ones == 2048, "5000 ones added in f16 are %g: from 2048 on, neighbours are 2 apart", ones);
    lab_check(run, tenths == 256, "20000 x 0.1 added in f16 are %g instead of 2000", tenths);
    lab_check(run, small == 1, "1 + 1000 x 0.001 in bf16 is %g: 0.001 is less than half of 2^-7", small);
    return CAIRN_OK;
}

const struct lab_experiment lab_running_sum = {
    .name = "running-sum",
    .question = "Where does a sum in a half type stop growing?",
    .method = "Adds the same number again and again to a sum that is rounded to its type after each addition, in f16, "
              "bf16 and f32.",
    .expected = "A term below half the distance of neighbours at the sum is lost: 5000 ones in f16 give 2048, "
                "20000 x 0.1 give 256, and 1 + 1000 x 0.001 in bf16 stays 1.",
    .source = "IEEE 754-2019, section 4.3.1; Micikevicius et al. 2018, Mixed Precision Training, section 3.3 "
              "(arithmetic precision)",
    .options = options,
    .run = run,
};
