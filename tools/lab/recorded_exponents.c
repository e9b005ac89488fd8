/* Exponents over the steps as heat maps, and those of parameters as a table too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "binades.h"
#include "recorded.h"
#include "core/alloc.h"

enum { MOST_COLUMNS = 60 }; /* columns of a panel; if there are more steps, a column sums several */

enum tensor_kind recorded_gradients(const struct record *record) {
    for (size_t i = 0; i < record->num_tensors; i++) {
        if (record->tensors[i].kind == GRAD_BEFORE) return GRAD_BEFORE;
    }
    return GRAD;
}

/* ---- which tensors ---- */

struct ranked {
    const struct tensor_record *tensor;
    double lost;
    size_t place; /* index in the record */
};

static int compare_ranked(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->lost != y->lost) return x->lost < y->lost ? 1 : -1;
    return (x->place > y->place) - (x->place < y->place);
}

cairn_status recorded_worst(const struct record *record, enum tensor_kind kind, const struct tensor_record ***out,
                            size_t *count) {
    struct ranked *ranked = NULL;
    cairn_status st = cairn__calloc(record->num_tensors, sizeof(*ranked), (void **)&ranked);
    *out = NULL;
    *count = 0;
    for (size_t i = 0; st == CAIRN_OK && i < record->num_tensors; i++) {
        struct binades b;
        if (record->tensors[i].kind != kind) continue;
        binades_of(&record->tensors[i], &b);
        ranked[*count] = (struct ranked){&record->tensors[i], binades_percent(&b, LEAST_BINADE, F16_ZERO), i};
        ++*count;
    }
    if (st == CAIRN_OK && *count > 0) st = cairn__calloc(*count, sizeof(**out), (void **)out);
    if (st == CAIRN_OK && *count > 1) qsort(ranked, *count, sizeof(*ranked), compare_ranked);
    for (size_t i = 0; st == CAIRN_OK && i < *count; i++) (*out)[i] = ranked[i].tensor;
    cairn__free(ranked);
    return st;
}

/* ---- heat maps ---- */

static void put_binades(struct lab_table *table, const char *name, double step, const struct binades *b) {
    for (int i = 0; i < NUM_BINADES; i++) {
        if (b->at[i] == 0) continue;
        lab_put_text(table, name);
        lab_put(table, step);
        lab_put(table, i + LEAST_BINADE);
        lab_put(table, 100 * b->at[i] / b->sum);
    }
}

static int compare_steps(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The distinct steps of a tensor, sorted; free them with cairn__free. */
static cairn_status list_steps(const struct tensor_record *t, int64_t **out, size_t *count) {
    const cairn_status st = cairn__calloc(t->count, sizeof(**out), (void **)out);
    *count = 0;
    if (st != CAIRN_OK) return st;
    for (size_t i = 0; i < t->count; i++) (*out)[i] = t->at[i].step;
    qsort(*out, t->count, sizeof(**out), compare_steps);
    for (size_t i = 0; i < t->count; i++) {
        if (*count == 0 || (*out)[*count - 1] != (*out)[i]) (*out)[(*count)++] = (*out)[i];
    }
    return st;
}

/* If there are many steps, several share a column. The list has all records of one rank, then those of the next rank,
 * so the records of one step are adjacent only within a rank. */
static void put_tensor(struct lab_result *r, struct lab_table *table, const struct tensor_record *t) {
    int64_t *steps = NULL;
    size_t count = 0;
    if (r->failed == CAIRN_OK) r->failed = list_steps(t, &steps, &count);
    const size_t each = (count + MOST_COLUMNS - 1) / MOST_COLUMNS;
    for (size_t begin = 0; r->failed == CAIRN_OK && begin < count; begin += each) {
        const int64_t first = steps[begin], last = steps[begin + each <= count ? begin + each - 1 : count - 1];
        struct binades sum = {.count = 0};
        for (size_t i = 0; i < t->count; i++) {
            const bool is_other = t->kind == GRAD && t->at[i].rank != t->at[0].rank;
            if (t->at[i].step >= first && t->at[i].step <= last && !is_other) binades_add(&sum, &t->at[i]);
        }
        put_binades(table, t->name, (double)first, &sum);
    }
    cairn__free(steps);
}

static void add_heat(struct lab_result *r, const struct record *record, enum tensor_kind kind, const char *name,
                     const char *what, const char *of) {
    const struct tensor_record **worst = NULL;
    size_t count;
    char title[200];
    if (r->failed == CAIRN_OK) r->failed = recorded_worst(record, kind, &worst, &count);
    if (r->failed != CAIRN_OK || count == 0) return;
    const size_t shown = count < MOST_PANELS ? count : MOST_PANELS;
    if (shown < count)
        snprintf(title, sizeof(title), "%s by binade over the steps: the %zu of %zu %ss with most below f16's range",
                 what, shown, count, of);
    else snprintf(title, sizeof(title), "%s by binade over the steps", what);
    struct lab_table *table = result_add_table(
        r, name, title,
        (struct lab_column[]){{of, NULL}, {"step", ""}, {"magnitude", "2^k"}, {"share of elements", "%"}}, 4);
    for (size_t i = 0; i < shown; i++) put_tensor(r, table, worst[i]);
    struct lab_picture p = {.name = name,
                            .title = title,
                            .table = name,
                            .form = LAB_HEAT,
                            .x = "step",
                            .y = "magnitude",
                            .value = "share of elements",
                            .panel = of,
                            .y_power = true,
                            .value_log = 10,
                            .marks = {{"f16's largest binade, 2^15", 15, true},
                                      {"f16's smallest normal number, 2^-14", -14, true},
                                      {"f16's smallest number, 2^-24", -24, true}}};
    result_add_picture(r, &p);
    cairn__free(worst);
}

void recorded_exponents(struct lab_result *r, const struct record *record) {
    const bool has_before = recorded_gradients(record) == GRAD_BEFORE;
    add_heat(r, record, GRAD, "gradients", has_before ? "Gradients after the reduction" : "Gradients", "parameter");
    if (has_before) add_heat(r, record, GRAD_BEFORE, "gradients-before", "Gradients before the reduction", "parameter");
    add_heat(r, record, ACTIVATION_GRAD, "activation-gradients", "Gradients of activations", "module");
    add_heat(r, record, ACTIVATION, "activations", "Activations", "module");
}
