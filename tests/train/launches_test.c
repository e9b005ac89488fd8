/* launches_test [--table]
 *
 * The kernels, products, copies and clears that a training step queues, as counted by the stand-in for CUDA. The counts
 * do not depend on tensor sizes as long as a list of tensors fits one launch. --table prints who queues what. Exits
 * with 77 without the stand-in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <cairn/graph.h>

#include "check.h"
#include "device/device.h"
#include "device/env.h"
#include "trainer.h"

enum { WARM_UP = 5, COUNTED = 4 };

/* ---- counting ---- */

enum kind { KERNELS, PRODUCTS, COPIES, CLEARS, KINDS };

struct counts {
    unsigned long long of[KINDS];
};

static enum kind kind_of(const char *name) {
    return strncmp(name, "a product", 9) == 0  ? PRODUCTS
           : strncmp(name, "a copy", 6) == 0   ? COPIES
           : strncmp(name, "a memset", 8) == 0 ? CLEARS
                                               : KERNELS;
}

static bool is_work(const char *name) {
    return strcmp(name, "an event") != 0 && strcmp(name, "a wait") != 0;
}

typedef void (*each_fn)(void *ctx, const char *name, unsigned long long count);

/* false: there is no stand-in. */
static bool each_queued(each_fn each, void *ctx) {
    void *standin = dlopen("libcairn_standin.so", RTLD_NOW | RTLD_NOLOAD);
    void *found = standin ? dlsym(standin, "standin_queued") : NULL;
    void (*queued)(each_fn each, void *ctx) = NULL;
    if (!found) return false;
    memcpy(&queued, &found, sizeof(found));
    queued(each, ctx);
    return true;
}

static void add_up(void *ctx, const char *name, unsigned long long count) {
    struct counts *c = ctx;
    if (is_work(name)) c->of[kind_of(name)] += count;
}

static struct counts queued_so_far(void) {
    struct counts c = {{0}};
    each_queued(add_up, &c);
    return c;
}

/* ---- trainings ---- */

static struct trainer create_quick_start(amp_opt_level level) {
    struct trainer t = {.env = NULL};
    OK(trainer_create_quick_start(&t, "cuda", amp_options(.opt_level = level, .verbosity = -1)));
    return t;
}

static struct trainer quick_start_o0(void) {
    return create_quick_start(AMP_O0);
}

static struct trainer quick_start_o2(void) {
    return create_quick_start(AMP_O2);
}

static struct trainer mlp_o2(void) {
    struct trainer t = {.env = NULL};
    OK(trainer_create_mlp(&t, "cuda", 6, 32, 16, amp_options(.opt_level = AMP_O2, .verbosity = -1)));
    return t;
}

static struct trainer create_encoder(int layers, double dropout) {
    const struct amp_options *amp = amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1);
    struct trainer t = {.env = NULL};
    OK(trainer_create_encoder(&t, "cuda", layers, 32, 2, 2, 8, dropout, amp));
    return t;
}

static struct trainer encoder_1(void) {
    return create_encoder(1, 0.1);
}

static struct trainer encoder_2(void) {
    return create_encoder(2, 0.1);
}

static struct trainer encoder_without_dropout(void) {
    return create_encoder(1, 0);
}

static const struct training {
    const char *name;
    struct trainer (*create)(void);
    struct counts called; /* of one step */
    size_t recorded;      /* all of them, in a graph */
} trainings[] = {
    {"quick start O0", quick_start_o0, {{5, 2, 0, 0}}, 8},
    {"quick start O2 f16", quick_start_o2, {{9, 2, 0, 0}}, 12},
    {"MLP of 6 layers O2 f16", mlp_o2, {{19, 17, 0, 0}}, 37},
    {"encoder of 1 layer O2 bf16", encoder_1, {{35, 18, 0, 0}}, 54},
    {"encoder of 2 layers O2 bf16", encoder_2, {{60, 37, 0, 0}}, 98},
    {"encoder of 1 layer O2 bf16, no dropout", encoder_without_dropout, {{29, 18, 0, 0}}, 48},
};
enum { TRAININGS = sizeof(trainings) / sizeof(trainings[0]) };

/* ---- the test ---- */

static struct trainer create_warm(const struct training *of) {
    struct trainer t = of->create();
    for (int i = 0; i < WARM_UP; i++) OK(trainer_step(&t));
    return t;
}

static void a_called_step_queues_no_more_than_it_did(void **state) {
    (void)state;
    static const char *const names[KINDS] = {"kernels", "products", "copies", "clears"};
    for (const struct training *of = trainings; of < trainings + TRAININGS; of++) {
        struct trainer t = create_warm(of);
        const struct counts before = queued_so_far();
        for (int i = 0; i < COUNTED; i++) OK(trainer_step(&t));
        const struct counts after = queued_so_far();
        for (int k = 0; k < KINDS; k++) {
            const unsigned long long got = after.of[k] - before.of[k];
            if (got != COUNTED * of->called.of[k])
                fail_msg("%s: %llu %s in %d steps, not %llu", of->name, got, names[k], COUNTED,
                         COUNTED * of->called.of[k]);
        }
        trainer_destroy(&t);
    }
}

static size_t recorded_nodes(const struct training *of) {
    struct trainer t = of->create();
    cairn_graph *graph = NULL;
    OK(cairn_graph_capture(t.env, trainer_step, &t, &graph));
    for (int i = 0; i <= CAIRN_GRAPH_WARMUP; i++) OK(cairn_graph_replay(graph));
    assert_true(cairn_graph_is_recorded(graph));
    const size_t nodes = t.env->device->recorded_nodes;
    cairn_graph_destroy(&graph);
    trainer_destroy(&t);
    return nodes;
}

static void a_recorded_step_has_no_more_than_it_had(void **state) {
    (void)state;
    for (const struct training *of = trainings; of < trainings + TRAININGS; of++) {
        const size_t nodes = recorded_nodes(of);
        if (nodes != of->recorded) fail_msg("%s: %zu recorded, not %zu", of->name, nodes, of->recorded);
    }
}

/* ---- the table ---- */

struct line {
    char name[160];
    unsigned long long before, queued[TRAININGS];
};

struct table {
    struct line lines[400];
    size_t count, training;
    bool begins; /* the training does: what was before it */
};

/* "void sum_columns<cairn__f16, 8>(cairn__partials*, ...)" is shown as "sum_columns<cairn__f16, 8>". */
static void shorten(const char *name, char *text, size_t nbytes) {
    int depth = 0;
    if (strncmp(name, "void ", 5) == 0) name += 5;
    size_t length = 0;
    while (name[length] && (depth > 0 || name[length] != '(')) {
        depth += (name[length] == '<') - (name[length] == '>');
        length++;
    }
    snprintf(text, nbytes, "%.*s", (int)length, name);
}

static void note(void *ctx, const char *name, unsigned long long count) {
    struct table *all = ctx;
    char text[sizeof(all->lines[0].name)];
    size_t i = 0;
    if (!is_work(name)) return;
    shorten(name, text, sizeof(text));
    while (i < all->count && strcmp(all->lines[i].name, text) != 0) i++;
    if (i == sizeof(all->lines) / sizeof(all->lines[0])) return;
    if (i == all->count) snprintf(all->lines[all->count++].name, sizeof(text), "%s", text);
    if (all->begins) all->lines[i].before = count;
    else all->lines[i].queued[all->training] = (count - all->lines[i].before) / COUNTED;
}

static void print_line(const char *name, const unsigned long long *queued) {
    for (size_t i = 0; i < TRAININGS; i++) printf("%5llu", queued[i]);
    printf("  %s\n", name);
}

static void print_table(void **state) {
    (void)state;
    static struct table all;
    unsigned long long total[TRAININGS] = {0}, recorded[TRAININGS];
    for (size_t i = 0; i < TRAININGS; i++) {
        struct trainer t = create_warm(&trainings[i]);
        all.training = i;
        all.begins = true;
        each_queued(note, &all);
        for (int k = 0; k < COUNTED; k++) OK(trainer_step(&t));
        all.begins = false;
        each_queued(note, &all);
        trainer_destroy(&t);
        recorded[i] = recorded_nodes(&trainings[i]);
        printf("%*s%zu  %s\n", 5 * (int)i + 4, "", i + 1, trainings[i].name);
    }
    for (size_t l = 0; l < all.count; l++) {
        unsigned long long any = 0;
        for (size_t i = 0; i < TRAININGS; i++) any += all.lines[l].queued[i], total[i] += all.lines[l].queued[i];
        if (any) print_line(all.lines[l].name, all.lines[l].queued);
    }
    print_line("in all", total);
    print_line("in all, of a recorded step", recorded);
}

int main(int argc, char **argv) {
    const bool shows = argc > 1 && strcmp(argv[1], "--table") == 0;
    struct trainer probe = {.env = NULL};
    const bool there =
        trainer_create_quick_start(&probe, "cuda", NULL) == CAIRN_OK && each_queued(add_up, &(struct counts){{0}});
    if (!there) printf("no stand-in for CUDA: %s\n", cairn_last_error());
    trainer_destroy(&probe);
    if (!there) return 77;
    const struct CMUnitTest table[] = {cmocka_unit_test(print_table)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_called_step_queues_no_more_than_it_did),
        cmocka_unit_test(a_recorded_step_has_no_more_than_it_had),
    };
    return shows ? cmocka_run_group_tests(table, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
