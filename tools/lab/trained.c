#include "trained.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recorded.h"
#include "../common/say.h"
#include "core/alloc.h"

bool trained_is_in(const char *folder) {
    return record_is_in(folder);
}

void recorded_say(struct lab_result *r, const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) must(NULL);
    va_end(args);
    result_add_finding(r, LAB_SAYS, text);
    free(text);
}

/* ---- scalars ---- */

/* "observe" and "loss" become "observe-loss"; characters other than letters and digits become "-". */
static void name_scalar(const struct scalar_record *s, size_t index, char name[128]) {
    snprintf(name, 100, "%s-%s", s->room, s->name);
    for (char *c = name; *c; c++) {
        const bool is_plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!is_plain) *c = '-';
    }
    const size_t n = strlen(name);
    snprintf(name + n, 128 - n, "-%zu", index); /* two names may differ only in characters that became "-" */
}

static bool is_of_twin(const struct scalar_record *s) {
    return strncmp(s->name, "lost_to_zero/", strlen("lost_to_zero/")) == 0 ||
           strncmp(s->name, "lost_to_inf/", strlen("lost_to_inf/")) == 0;
}

/* Adds a table, and a picture of it if is_drawn. */
static void add_scalar(struct lab_result *r, const struct scalar_record *s, size_t index, bool is_drawn) {
    char name[128], title[300];
    double least = HUGE_VAL, most = 0;
    name_scalar(s, index, name);
    snprintf(title, sizeof(title), "%s (%s)", s->name, s->room);
    const char *y = strcmp(s->name, "step") == 0 ? "value" : s->name;
    struct lab_table *t = result_add_table(r, name, title, (struct lab_column[]){{"step", ""}, {y, ""}}, 2);
    for (size_t i = 0; i < s->count; i++) {
        lab_put(t, (double)s->steps[i]);
        lab_put(t, s->values[i]);
        if (isfinite(s->values[i])) least = fmin(least, s->values[i]), most = fmax(most, s->values[i]);
    }
    const bool is_scale = strcmp(s->name, "loss_scale") == 0;
    struct lab_picture p = {.name = name, .title = title, .table = name, .form = LAB_LINES, .x = "step", .y = y};
    p.y_log = is_scale && least > 0 ? 2 : least > 0 && most > 100 * least ? 10 : 0;
    if (is_drawn) result_add_picture(r, &p);
}

static int rank_scalar(const struct scalar_record *s) {
    static const char *const first[] = {"loss", "loss_scale", "skipped", "grad_norm", "lr"};
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
        if (strcmp(s->name, first[i]) == 0) return (int)i;
    }
    return (int)(sizeof(first) / sizeof(first[0]));
}

static void say_skipped(struct lab_result *r, const struct scalar_record *skipped) {
    const int64_t step = skipped->steps[skipped->count - 1];
    const double count = skipped->values[skipped->count - 1];
    if (count > 0)
        recorded_say(r, "Until step %" PRId64 " the optimizer skipped %g %s because gradients were not finite.", step,
                     count, count == 1 ? "step" : "steps");
    else recorded_say(r, "Until step %" PRId64 " the optimizer skipped no step.", step);
}

static void say_scalars(struct lab_result *r, const struct record *record) {
    const struct scalar_record *loss = NULL, *skipped = record_scalar(record, "optim", "skipped");
    const struct scalar_record *scale = record_scalar(record, "optim", "loss_scale");
    for (size_t i = 0; i < record->num_scalars && !loss; i++) {
        if (strcmp(record->scalars[i].name, "loss") == 0) loss = &record->scalars[i];
    }
    if (loss && loss->count > 1)
        recorded_say(r, "The loss is %.4g at step %" PRId64 " and %.4g at step %" PRId64 ".", loss->values[0],
                     loss->steps[0], loss->values[loss->count - 1], loss->steps[loss->count - 1]);
    if (scale)
        recorded_say(r, "The loss scale begins at %g and ends at %g.", scale->values[0],
                     scale->values[scale->count - 1]);
    if (skipped) say_skipped(r, skipped);
}

/* ---- the f32 twin ---- */

static double most_value(const struct scalar_record *s) {
    double most = 0;
    for (size_t i = 0; i < s->count; i++) most = fmax(most, s->values[i]);
    return most;
}

static int compare_most(const void *a, const void *b) {
    const double x = most_value(*(const struct scalar_record *const *)a);
    const double y = most_value(*(const struct scalar_record *const *)b);
    return (x < y) - (x > y);
}

/* What half gradients lost relative to those of an f32 twin: for each parameter, the most at any step. */
static void add_twin(struct lab_result *r, const struct record *record) {
    static const char *const kinds[] = {"lost_to_zero/", "lost_to_inf/"};
    static const char *const words[] = {"to 0", "to infinity or NaN"};
    const struct scalar_record **found = must(calloc(record->num_scalars + 1, sizeof(*found)));
    size_t count = 0;
    for (size_t i = 0; i < record->num_scalars; i++) {
        if (is_of_twin(&record->scalars[i])) found[count++] = &record->scalars[i];
    }
    if (count > 0) {
        qsort(found, count, sizeof(*found), compare_most);
        struct lab_table *t =
            result_add_table(r, "twin", "Gradients lost against an f32 twin, the most at one step",
                             (struct lab_column[]){{"parameter", NULL}, {"lost", NULL}, {"share of elements", "%"}}, 3);
        for (size_t i = 0; i < count && i < 2 * MOST_PANELS; i++) {
            const int kind = strncmp(found[i]->name, kinds[1], strlen(kinds[1])) == 0;
            lab_put_text(t, found[i]->name + strlen(kinds[kind]));
            lab_put_text(t, words[kind]);
            lab_put(t, 100 * most_value(found[i]));
        }
        result_add_picture(r, &(struct lab_picture){.name = "twin",
                                                    .title = "Gradients lost against an f32 twin, the most at one step",
                                                    .table = "twin",
                                                    .form = LAB_BARS,
                                                    .x = "parameter",
                                                    .y = "share of elements",
                                                    .by = "lost"});
        recorded_say(r, "Against an f32 twin %.3g %% of the elements of one gradient were lost at most: %s.",
                     100 * most_value(found[0]), found[0]->name);
    }
    free(found);
}

void recorded_scalars(struct lab_result *r, const struct record *record) {
    size_t drawn = 0; /* a program may have hundreds of scalars; only tables are written for the rest */
    for (int rank = 0; rank <= 5; rank++) {
        for (size_t i = 0; i < record->num_scalars; i++) {
            const struct scalar_record *s = &record->scalars[i];
            if (s->count > 0 && !is_of_twin(s) && rank_scalar(s) == rank) add_scalar(r, s, i, drawn++ < MOST_PANELS);
        }
    }
    say_scalars(r, record);
    add_twin(r, record);
}

/* ---- all of it ---- */

static const char METHOD[] =
    "The training counted, every so many steps, how many elements of each gradient and activation lie in each binade "
    "[2^k, 2^(k+1)). Gradients are shown by their true magnitude, which is the stored one divided by the loss scale. "
    "Shares are of the elements that are not 0: what had become 0 already when it was stored is not among them, so "
    "for a training in f16 the shares at scales above its own are too small. An element becomes 0 in f16 below 2^-25 "
    "and loses digits below 2^-14, and a step overflows whose largest gradient times the scale is 65520 or more; by "
    "binades that is from 2^16 on.";

cairn_status trained_read(const char *folder, struct lab_result *out) {
    struct record record;
    char question[300];
    cairn_status st = record_read(folder, &record);
    *out = (struct lab_result){0};
    if (st == CAIRN_OK) {
        snprintf(question, sizeof(question), "What %.200s recorded", folder);
        st = result_init(out, TRAINED_NAME, question, METHOD, NULL,
                         "Micikevicius et al. 2018, Mixed Precision Training, figures 2 and 3");
    }
    if (st == CAIRN_OK) {
        for (size_t i = 0; i < record.num_facts; i++)
            result_add_setting(out, record.facts[i].name, record.facts[i].value);
        if (record.num_scalars + record.num_tensors == 0)
            recorded_say(out, "Nothing was recorded: no step was taken, or the program ended before one.");
        recorded_scalars(out, &record);
        recorded_scales(out, &record);
        recorded_parameters(out, &record);
        recorded_exponents(out, &record);
        st = result_check(out);
    }
    record_free(&record);
    return st;
}
