/* Drives an optimizer with the schedules described on stdin, for test_schedules.py. A line of input is
 *
 *     [sgd | adam] [graph] STEPS BASE_LR NAME VALUE ... [| NAME VALUE ...]*
 *
 * where names are fields of cairn_schedule_options, milestones are written "3,5,8", and parts are separated by bars.
 * Random steps are skipped; the learning rate and the momentum of each step that is taken are printed, all on one line.
 * "plateau" in place of STEPS takes options of cairn_plateau_options, a bar, and metrics: the base rate after each
 * metric is printed. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "scheduled.h"

#define MUST_BE_OK(call)                                            \
    do {                                                            \
        if ((call) != CAIRN_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, cairn_last_error()); \
            exit(1);                                                \
        }                                                           \
    } while (0)

enum type { COUNT, REAL, CHOICE, LIST };

struct field {
    const char *name;
    size_t offset;
    enum type type;
};

#define FIELD(owner, name, type) \
    { #name, offsetof(struct owner, name), type }

static const struct field of_schedule[] = {
#define S(name, type) FIELD(cairn_schedule_options, name, type)
    S(kind, CHOICE),
    S(count_skipped, CHOICE),
    S(first_step, COUNT),
    S(warmup_steps, COUNT),
    S(warmup_start, REAL),
    S(warmup_curve, CHOICE),
    S(total_steps, COUNT),
    S(start_factor, REAL),
    S(end_factor, REAL),
    S(end_lr, REAL),
    S(cycles, REAL),
    S(cycle_steps, COUNT),
    S(cycle_growth, COUNT),
    S(power, REAL),
    S(gamma, REAL),
    S(step_size, COUNT),
    S(milestones, LIST),
    S(decay_steps, COUNT),
    S(decay_curve, CHOICE),
    S(timescale, COUNT),
    S(pct_start, REAL),
    S(div_factor, REAL),
    S(final_div_factor, REAL),
    S(three_phase, CHOICE),
    S(cycle_momentum, CHOICE),
    S(base_momentum, REAL),
    S(max_momentum, REAL),
    {NULL, 0, COUNT}};

static const struct field of_plateau[] = {
#define P(name, type) FIELD(cairn_plateau_options, name, type)
    P(factor, REAL),    P(threshold, REAL),  P(min_lr, REAL),        P(eps, REAL),    P(patience, COUNT),
    P(cooldown, COUNT), P(maximize, CHOICE), P(is_absolute, CHOICE), {NULL, 0, COUNT}};

static void set(void *options, const struct field *fields, const char *name, char *value, int64_t *list) {
    const struct field *f = fields;
    while (f->name && strcmp(f->name, name) != 0) f++;
    if (!f->name) {
        fprintf(stderr, "there is no field %s\n", name);
        exit(1);
    }
    char *at = (char *)options + f->offset;
    if (f->type == COUNT) *(int64_t *)(void *)at = strtoll(value, NULL, 10);
    if (f->type == REAL) *(double *)(void *)at = strtod(value, NULL);
    if (f->type == CHOICE) *(int *)(void *)at = (int)strtol(value, NULL, 10);
    if (f->type != LIST) return;
    struct cairn_schedule_options *o = options;
    o->milestones = list;
    for (char *save, *one = strtok_r(value, ",", &save); one; one = strtok_r(NULL, ",", &save))
        list[o->num_milestones++] = strtoll(one, NULL, 10);
}

/* The words up to a bar, or to the end of the line. */
static void read_options(void *options, const struct field *fields, int64_t *list) {
    char *name;
    while ((name = strtok(NULL, " \n")) && strcmp(name, "|") != 0)
        set(options, fields, name, strtok(NULL, " \n"), list);
}

enum { MAX_PARTS = 8, MAX_MILESTONES = 32 };

static void make_optimizer(struct scheduled *s, cairn_env *env, bool adam, double lr) {
    struct cairn_adam_options of_adam = CAIRN_ADAM_OPTIONS_INIT;
    struct cairn_sgd_options of_sgd = CAIRN_SGD_OPTIONS_INIT;
    of_adam.lr = of_sgd.lr = lr;
    of_sgd.momentum = 0.9;
    MUST_BE_OK(scheduled_make_set(s, env));
    if (adam) {
        MUST_BE_OK(cairn_adam_create(s->set, &of_adam, &s->optimizer));
    } else {
        MUST_BE_OK(cairn_sgd_create(s->set, &of_sgd, &s->optimizer));
    }
}

static void run_schedule(struct scheduled *s, int64_t steps) {
    static int64_t lists[MAX_PARTS + 1][MAX_MILESTONES];
    struct cairn_schedule_options whole = {.struct_size = sizeof(whole)}, parts[MAX_PARTS];
    const struct cairn_schedule_options *of_whole[MAX_PARTS];
    read_options(&whole, of_schedule, lists[MAX_PARTS]);
    if (whole.kind == CAIRN_SCHEDULE_SEQUENCE || whole.kind == CAIRN_SCHEDULE_PRODUCT) {
        for (; whole.num_parts < MAX_PARTS; whole.num_parts++) {
            struct cairn_schedule_options *part = &parts[whole.num_parts];
            *part = (struct cairn_schedule_options){.struct_size = sizeof(whole)};
            read_options(part, of_schedule, lists[whole.num_parts]);
            if (!part->kind) break;
            of_whole[whole.num_parts] = part;
        }
        whole.parts = of_whole;
    }
    MUST_BE_OK(cairn_optimizer_set_schedule(s->optimizer, &whole));
    for (int64_t taken = 0; taken < steps;) {
        MUST_BE_OK(scheduled_step(s, scheduled_draws_skip(s)));
        if (cairn_optimizer_step_skipped(s->optimizer)) continue;
        taken++;
        printf("%.17g %.17g ", cairn_optimizer_step_lr(s->optimizer, 0),
               cairn_optimizer_step_momentum(s->optimizer, 0));
    }
    printf("skipped %" PRId64 " recorded %d\n", cairn_optimizer_skipped(s->optimizer),
           cairn_graph_is_recorded(s->graph));
}

static void run_plateau(struct scheduled *s) {
    struct cairn_plateau_options o = CAIRN_PLATEAU_OPTIONS_INIT;
    read_options(&o, of_plateau, NULL);
    MUST_BE_OK(cairn_optimizer_set_plateau(s->optimizer, &o));
    for (char *metric; (metric = strtok(NULL, " \n"));) {
        int reduced = 0;
        MUST_BE_OK(cairn_optimizer_report_metric(s->optimizer, strtod(metric, NULL), &reduced));
        printf("%.17g %d ", cairn_optimizer_group_lr(s->optimizer, 0), reduced);
    }
    printf("\n");
}

int main(void) {
    static char line[1 << 16];
    cairn_env *env = NULL;
    MUST_BE_OK(cairn_env_create(NULL, NULL, NULL, &env));
    while (fgets(line, sizeof(line), stdin)) {
        struct scheduled s;
        const bool adam = strcmp(strtok(line, " \n"), "adam") == 0;
        char *word = strtok(NULL, " \n");
        const bool graph = strcmp(word, "graph") == 0;
        if (graph) word = strtok(NULL, " \n");
        make_optimizer(&s, env, adam, strtod(strtok(NULL, " \n"), NULL));
        if (graph) MUST_BE_OK(cairn_graph_capture(env, scheduled_step_of, &s, &s.graph));
        if (strcmp(word, "plateau") == 0) {
            run_plateau(&s);
        } else {
            run_schedule(&s, strtoll(word, NULL, 10));
        }
        scheduled_end(&s);
    }
    cairn_env_destroy(&env);
    return 0;
}
