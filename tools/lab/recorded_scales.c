/* The gradients that f16 would lose and the steps it would skip at each loss scale, the parameters that lose most, and
 * the reduction. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "binades.h"
#include "recorded.h"
#include "core/alloc.h"

enum { MOST_SCALE = 24 }; /* exponent of the largest scale drawn, 2^24, apex's maximum */

/* ---- steps that overflow ---- */

/* The smallest exponent of a scale at which a recorded step overflows. */
struct step_limit {
    int64_t step;
    int limit;
};

struct limits {
    struct step_limit *at; /* sorted by step */
    size_t count, room;
};

/* The exponent of the smallest scale at which this record overflows. If it did overflow, that is the scale of the
 * training. False for a record of zeros. */
static bool limit_of(const struct exponents *e, int *limit) {
    int most;
    const bool overflowed = e->inf + e->nan > 0;
    if (overflowed) *limit = e->shift;
    else if (exponents_most(e, &most)) *limit = F16_OVERFLOW - most;
    else return false;
    return true;
}

static int compare_limits(const void *a, const void *b) {
    const struct step_limit *x = a, *y = b;
    if (x->step != y->step) return (x->step > y->step) - (x->step < y->step);
    return (x->limit > y->limit) - (x->limit < y->limit);
}

static bool is_gradient(enum tensor_kind kind) {
    return kind != ACTIVATION;
}

/* The limit of each step that has gradients: the smallest one over its tensors and ranks. */
static cairn_status find_limits(const struct record *record, struct limits *l) {
    cairn_status st = CAIRN_OK;
    size_t n = 0;
    *l = (struct limits){0};
    for (size_t t = 0; t < record->num_tensors; t++) {
        const struct tensor_record *tensor = &record->tensors[t];
        for (size_t i = 0; is_gradient(tensor->kind) && i < tensor->count; i++) {
            int limit = 1000; /* a step of zeros overflows at no scale */
            limit_of(&tensor->at[i], &limit);
            st = cairn__grow((void **)&l->at, &l->room, l->count + 1, sizeof(*l->at));
            if (st != CAIRN_OK) return st;
            l->at[l->count++] = (struct step_limit){tensor->at[i].step, limit};
        }
    }
    if (l->count > 1) qsort(l->at, l->count, sizeof(*l->at), compare_limits);
    for (size_t i = 0; i < l->count; i++) {
        if (n == 0 || l->at[n - 1].step != l->at[i].step) l->at[n++] = l->at[i];
    }
    l->count = n;
    return st;
}

/* The percentage of steps that overflow at a scale of 2^k. */
static double skipped_percent(const struct limits *l, int k) {
    size_t skipped = 0;
    for (size_t i = 0; i < l->count; i++) skipped += l->at[i].limit <= k;
    return l->count ? 100 * (double)skipped / (double)l->count : 0;
}

/* ---- scales ---- */

static void sum_gradients(const struct record *record, enum tensor_kind kind, struct binades *sum) {
    *sum = (struct binades){.count = 0};
    for (size_t t = 0; t < record->num_tensors; t++) {
        const struct tensor_record *tensor = &record->tensors[t];
        if (tensor->kind != kind) continue;
        for (size_t i = 0; i < tensor->count; i++) {
            if (kind != GRAD || tensor->at[i].rank == tensor->at[0].rank) binades_add(sum, &tensor->at[i]);
        }
    }
}

static double lost_percent(const struct binades *b, int k) {
    return binades_percent(b, LEAST_BINADE, F16_ZERO - k);
}

static void put_scale(struct lab_table *t, int k, const char *what, double percent) {
    lab_put(t, k);
    lab_put_text(t, what);
    lab_put(t, percent);
}

static void say_scales(struct lab_result *r, const struct binades *sum, const struct limits *limits) {
    int cliff = 1000;
    for (size_t i = 0; i < limits->count; i++) cliff = limits->at[i].limit < cliff ? limits->at[i].limit : cliff;
    if (limits->count == 0 || sum->sum == 0) return;
    if (cliff > MOST_SCALE) {
        recorded_say(r,
                     "Up to a loss scale of 2^%d no recorded step overflows f16; at 2^%d f16 makes %.3g %% of the "
                     "gradients 0.",
                     MOST_SCALE, MOST_SCALE, lost_percent(sum, MOST_SCALE));
        return;
    }
    recorded_say(r,
                 "A loss scale of 2^%d would make %.3g %% of the gradients 0 in f16 and skip no recorded step; at 2^%d "
                 "it skips %.3g %% of the steps.",
                 cliff - 1, lost_percent(sum, cliff - 1), cliff, skipped_percent(limits, cliff));
}

static void say_type(struct lab_result *r, const struct record *record) {
    const char *half = record_fact(record, "half");
    if (half && strcmp(half, "bf16") == 0)
        recorded_say(r, "The training's half type is bf16, whose range is that of f32: it needs no loss scale. What is "
                        "said of f16 below is what f16 would do.");
}

void recorded_scales(struct lab_result *r, const struct record *record) {
    struct limits limits = {0};
    struct binades sum;
    sum_gradients(record, recorded_gradients(record), &sum);
    if (r->failed == CAIRN_OK) r->failed = find_limits(record, &limits);
    if (r->failed == CAIRN_OK && limits.count > 0) {
        struct lab_table *t =
            result_add_table(r, "scales", "What f16 would lose and skip at each loss scale",
                             (struct lab_column[]){{"loss scale", "2^k"}, {"what", NULL}, {"share", "%"}}, 3);
        for (int k = 0; k <= MOST_SCALE; k++) {
            put_scale(t, k, "gradients that become 0", lost_percent(&sum, k));
            put_scale(t, k, "gradients that lose digits", binades_percent(&sum, F16_ZERO - k, F16_NORMAL - k));
            put_scale(t, k, "steps that overflow", skipped_percent(&limits, k));
        }
        result_add_picture(r, &(struct lab_picture){.name = "scales",
                                                    .title = "What f16 would lose and skip at each loss scale",
                                                    .table = "scales",
                                                    .form = LAB_LINES,
                                                    .x = "loss scale",
                                                    .y = "share",
                                                    .by = "what",
                                                    .x_power = true});
        say_type(r, record);
        say_scales(r, &sum, &limits);
    }
    cairn__free(limits.at);
}

/* ---- parameters ---- */

static void put_parameter(struct lab_table *t, const struct tensor_record *p) {
    struct binades b;
    int least = 0, most = 0;
    binades_of(p, &b);
    const bool has = binades_range(&b, &least, &most);
    lab_put_text(t, p->name);
    lab_put_text(t, p->type ? p->type : "");
    lab_put(t, b.count > 0 ? 100 * b.zero / b.count : 0);
    lab_put(t, binades_percent(&b, LEAST_BINADE, F16_ZERO));
    lab_put(t, binades_percent(&b, F16_ZERO, F16_NORMAL));
    lab_put(t, has ? least : NAN);
    lab_put(t, has ? most : NAN);
    lab_put(t, b.inf);
    lab_put(t, b.nan);
}

/* Reports where overflows begin: the records with an infinity or a NaN at the first step that has any. */
static void say_overflow(struct lab_result *r, const struct record *record) {
    const struct tensor_record *where = NULL;
    const struct exponents *first = NULL;
    size_t others = 0;
    for (size_t t = 0; t < record->num_tensors; t++) {
        for (size_t i = 0; i < record->tensors[t].count; i++) {
            const struct exponents *e = &record->tensors[t].at[i];
            if (e->inf + e->nan == 0) continue;
            if (first && e->step == first->step) others += &record->tensors[t] != where;
            if (first && e->step >= first->step) continue;
            first = e;
            where = &record->tensors[t];
            others = 0;
        }
    }
    static const char *const kinds[NUM_KINDS] = {[GRAD] = "the gradient",
                                                 [GRAD_BEFORE] = "the gradient before reduction",
                                                 [ACTIVATION] = "the activation",
                                                 [ACTIVATION_GRAD] = "the activation's gradient"};
    if (first)
        recorded_say(r,
                     "The first recorded overflow is at step %" PRId64
                     " on rank %d, at a loss scale of %g: %s of %s has "
                     "%g infinities and %g NaN%s.",
                     first->step, first->rank, first->scale, kinds[where->kind], where->name, first->inf, first->nan,
                     others ? ", and others have some at that step" : "");
}

static void add_worst(struct lab_result *r, const struct tensor_record *const *worst, size_t count) {
    struct binades b;
    struct lab_table *t =
        result_add_table(r, "below-range", "Gradients below f16's range, by parameter",
                         (struct lab_column[]){{"parameter", NULL}, {"become 0 without a loss scale", "%"}}, 2);
    for (size_t i = 0; i < count && i < MOST_PANELS; i++) {
        binades_of(worst[i], &b);
        lab_put_text(t, worst[i]->name);
        lab_put(t, lost_percent(&b, 0));
    }
    result_add_picture(r, &(struct lab_picture){.name = "below-range",
                                                .title = "Gradients below f16's range, by parameter",
                                                .table = "below-range",
                                                .form = LAB_BARS,
                                                .x = "parameter",
                                                .y = "become 0 without a loss scale"});
    binades_of(worst[0], &b);
    if (lost_percent(&b, 0) > 0)
        recorded_say(r,
                     "%.3g %% of the gradients of %s are below f16's range: without a loss scale they become 0. No "
                     "other parameter has a larger share.",
                     lost_percent(&b, 0), worst[0]->name);
    else recorded_say(r, "No recorded gradient is below f16's range, which ends at 2^-25.");
}

static void add_reduction(struct lab_result *r, const struct record *record) {
    static const enum tensor_kind kinds[] = {GRAD_BEFORE, GRAD};
    static const char *const when[] = {"before, on all ranks", "after"};
    struct binades sums[2];
    struct lab_table *t =
        result_add_table(r, "reduction", "Gradients before and after the reduction",
                         (struct lab_column[]){{"magnitude", "2^k"}, {"when", NULL}, {"share of elements", "%"}}, 3);
    for (size_t k = 0; k < 2; k++) {
        sum_gradients(record, kinds[k], &sums[k]);
        for (int i = 0; i < NUM_BINADES; i++) {
            if (sums[k].at[i] == 0) continue;
            lab_put(t, i + LEAST_BINADE);
            lab_put_text(t, when[k]);
            lab_put(t, 100 * sums[k].at[i] / sums[k].sum);
        }
    }
    result_add_picture(r, &(struct lab_picture){.name = "reduction",
                                                .title = "Gradients before and after the reduction",
                                                .table = "reduction",
                                                .form = LAB_LINES,
                                                .x = "magnitude",
                                                .y = "share of elements",
                                                .by = "when",
                                                .x_power = true});
    recorded_say(r, "Before the reduction %.3g %% of the gradients are below f16's range, after it %.3g %%.",
                 lost_percent(&sums[0], 0), lost_percent(&sums[1], 0));
}

void recorded_parameters(struct lab_result *r, const struct record *record) {
    const struct tensor_record **worst = NULL;
    size_t count = 0;
    const enum tensor_kind kind = recorded_gradients(record);
    if (r->failed == CAIRN_OK) r->failed = recorded_worst(record, kind, &worst, &count);
    if (r->failed == CAIRN_OK && count > 0) {
        add_worst(r, worst, count);
        struct lab_table *t =
            result_add_table(r, "parameters", "All parameters: their gradients over all recorded steps",
                             (struct lab_column[]){{"parameter", NULL},
                                                   {"type", NULL},
                                                   {"zeros", "%"},
                                                   {"become 0 in f16", "%"},
                                                   {"lose digits in f16", "%"},
                                                   {"least binade", "2^k"},
                                                   {"largest binade", "2^k"},
                                                   {"infinities", ""},
                                                   {"NaNs", ""}},
                             9);
        for (size_t i = 0; i < count; i++) put_parameter(t, worst[i]);
    }
    if (r->failed == CAIRN_OK && kind == GRAD_BEFORE) add_reduction(r, record);
    if (r->failed == CAIRN_OK) say_overflow(r, record);
    cairn__free(worst);
}
