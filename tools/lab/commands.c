#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "experiments.h"
#include "page.h"
#include "run.h"
#include "store.h"
#include "trained.h"
#include "../common/say.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/nearest.h"
#include "core/status.h"

static const char USUAL_FOLDER[] = "lab";

static int failed(void) {
    refuse("%s", cairn_last_error());
    return FAILED;
}

/* Returns NULL after a message that suggests the nearest name. */
static const struct lab_experiment *find_experiment(const char *name) {
    struct cairn__nearest nearest = {.written = name};
    for (size_t i = 0; i < lab_num_experiments; i++) {
        if (strcmp(lab_experiments[i]->name, name) == 0) return lab_experiments[i];
        cairn__nearest_try(&nearest, lab_experiments[i]->name);
    }
    cairn__nearest_try(&nearest, "all");
    if (nearest.name) refuse("there is no experiment '%s'; did you mean '%s'?", name, nearest.name);
    else refuse("there is no experiment '%s'; cairn-lab list shows them", name);
    return NULL;
}

/* ---- list ---- */

static void show_options(const struct lab_experiment *e) {
    size_t count;
    const struct lab_option *options = run_options(e, &count);
    for (size_t i = 0; i < count; i++) {
        const struct lab_option *o = &options[i];
        printf("  --%-16s %s", o->name, o->meaning);
        if (o->choices) printf(" (%s)", o->choices);
        if (o->kind != LAB_TEXT) printf(" (%.15g to %.15g)", o->least, o->most);
        printf("; %s\n", o->usual[0] ? o->usual : "none");
    }
    printf("  --%-16s %s; 1\n", "seed", "all random numbers follow from it");
}

static void show(const struct lab_experiment *e) {
    printf("%s: %s\n\nmethod: %s\nexpected: %s\nsource: %s\n", e->name, e->question, e->method, e->expected, e->source);
    if (e->has_times) printf("It measures times, which differ from run to run.\n");
    printf("\noptions:\n");
    show_options(e);
}

int command_list(int argc, char **argv) {
    if (argc > 2) {
        refuse("list takes one name at most");
        return WRONG_USE;
    }
    const struct lab_experiment *e = argc == 2 ? find_experiment(argv[1]) : NULL;
    if (argc == 2 && !e) return WRONG_USE;
    for (size_t i = 0; !e && i < lab_num_experiments; i++)
        printf("%-24s %s\n", lab_experiments[i]->name, lab_experiments[i]->question);
    if (e) show(e);
    return fflush(stdout) == 0 ? 0 : FAILED;
}

/* ---- run ---- */

struct request {
    const char *folder;
    bool again;
    struct lab_run *runs; /* [count]; without results yet */
    size_t count;
};

static bool is_all(const char *name) {
    return strcmp(name, "all") == 0;
}

/* Sets an option of all runs, given as "--name=value" or "--name value". Returns false after a message. */
static bool set_option(struct request *q, int argc, char **argv, int *i) {
    char name[64];
    const char *written = argv[*i] + 2, *value = strchr(written, '=');
    const size_t n = value ? (size_t)(value - written) : strlen(written);
    if (n >= sizeof(name)) return refuse("there is no option %s", argv[*i]);
    memcpy(name, written, n);
    name[n] = '\0';
    if (strcmp(name, "again") == 0 && !value) return q->again = true;
    if (value) value++;
    else if (++*i < argc) value = argv[*i];
    /* An unknown option is reported before a missing value. */
    if (strcmp(name, "out") == 0) q->folder = value;
    for (size_t r = 0; r < q->count && strcmp(name, "out") != 0; r++) {
        if (!run_set(&q->runs[r], name, value ? value : "")) return false;
    }
    return (value && value[0]) || refuse("--%s needs a value", name);
}

static bool add_runs(struct request *q, const char *name) {
    const struct lab_experiment *one = is_all(name) ? NULL : find_experiment(name);
    if (!is_all(name) && !one) return false;
    q->count = one ? 1 : lab_num_experiments;
    q->runs = must(calloc(q->count, sizeof(*q->runs)));
    for (size_t i = 0; i < q->count; i++) run_init(&q->runs[i], one ? one : lab_experiments[i]);
    return true;
}

static bool read_request(struct request *q, int argc, char **argv) {
    int name = 0;
    *q = (struct request){.folder = USUAL_FOLDER};
    for (int i = 1; i < argc; i++) { /* find the experiment's name first: options are looked up in its list */
        if (argv[i][0] == '-') {
            i += strcmp(argv[i], "--again") != 0 && !strchr(argv[i], '=');
            continue;
        }
        if (name) return refuse("run takes one name, or all; there are '%s' and '%s'", argv[name], argv[i]);
        name = i;
    }
    if (!name) return refuse("the name of an experiment is missing: cairn-lab run NAME; cairn-lab list shows them");
    if (!add_runs(q, argv[name])) return false;
    for (int i = 1; i < argc; i++) {
        if (i == name) continue;
        if (strncmp(argv[i], "--", 2) != 0) return refuse("%s is not an option; they begin with --", argv[i]);
        if (!set_option(q, argc, argv, &i)) return false;
    }
    return true;
}

/* Whether the folder already has this run, and whether its expectations held. An unreadable result counts as
 * missing. */
static bool is_complete(const char *folder, const struct lab_run *run, bool *holds) {
    struct lab_result stored;
    if (!store_has(folder, run->experiment->name)) return false;
    const bool is = store_read(folder, run->experiment->name, &stored) == CAIRN_OK && run_is_of(run, &stored);
    *holds = result_holds(&stored);
    result_free(&stored);
    return is;
}

static void print_findings(const struct lab_result *r) {
    static const char *const words[] = {
        [LAB_SAYS] = "", [LAB_HOLDS] = "as expected: ", [LAB_FAILS] = "NOT AS EXPECTED: "};
    for (size_t i = 0; i < r->num_findings; i++) printf("  %s%s\n", words[r->findings[i].verdict], r->findings[i].text);
}

/* Exit code. */
static int run_one(const struct request *q, struct lab_run *run) {
    const char *name = run->experiment->name;
    bool holds;
    if (!q->again && is_complete(q->folder, run, &holds)) {
        printf("%s is complete in %s/%s%s; --again runs it again\n", name, q->folder, name,
               holds ? "" : ", and NOT AS EXPECTED");
        return holds ? 0 : FAILED;
    }
    const double begin = cairn__clock_seconds();
    printf("%s: %s\n", name, run->experiment->question);
    fflush(stdout);
    cairn_status st = run_start(run);
    if (st == CAIRN_OK) st = store_write(q->folder, &run->result);
    holds = result_holds(&run->result);
    if (st == CAIRN_OK) {
        print_findings(&run->result);
        printf("  %.1f s; %s/%s\n", cairn__clock_seconds() - begin, q->folder, name);
    } else {
        refuse("%s: %s", name, cairn_last_error());
    }
    fflush(stdout);
    result_free(&run->result);
    return st == CAIRN_OK && holds ? 0 : FAILED;
}

int command_run(int argc, char **argv) {
    struct request q;
    int code = 0;
    if (!read_request(&q, argc, argv)) {
        free(q.runs);
        return WRONG_USE;
    }
    for (size_t i = 0; i < q.count; i++) {
        if (run_one(&q, &q.runs[i]) != 0) code = FAILED;
    }
    free(q.runs);
    return code;
}

/* ---- report ---- */

static size_t place_of(const char *name) {
    size_t i = 0;
    while (i < lab_num_experiments && strcmp(lab_experiments[i]->name, name) != 0) i++;
    return i;
}

/* Sorts in the order of `list`; unknown names come last. */
static int compare_results(const void *a, const void *b) {
    const char *x = ((const struct lab_result *)a)->name, *y = ((const struct lab_result *)b)->name;
    const size_t p = place_of(x), q = place_of(y);
    return p != q ? (p > q) - (p < q) : strcmp(x, y);
}

static cairn_status read_results(const char *folder, struct lab_result **results, size_t *count) {
    char **names = NULL;
    size_t found = 0;
    cairn_status st = CAIRN_OK;
    const bool is_recorded = trained_is_in(folder);
    *results = NULL;
    *count = 0;
    TRY(store_list(folder, &names, &found));
    REQUIRE(
        found > 0 || is_recorded, CAIRN_EINVAL,
        "%s holds no results; cairn-lab run NAME --out %s makes some, and CAIRN_LAB=%s has a training record itself",
        folder, folder, folder);
    TRY(cairn__calloc(found + 1, sizeof(**results), (void **)results));
    for (size_t i = 0; i < found; i++) {
        if (is_recorded && strcmp(names[i], TRAINED_NAME) == 0) continue; /* left by an earlier report */
        ++*count;                                                         /* also after a failure, for freeing */
        TRY(store_read(folder, names[i], &(*results)[*count - 1]));
    }
    if (*count > 1) qsort(*results, *count, sizeof(**results), compare_results);
    if (is_recorded) {
        ++*count;
        TRY(trained_read(folder, &(*results)[*count - 1]));
        TRY(store_write(folder, &(*results)[*count - 1]));
    }
out:
    for (size_t i = 0; i < found; i++) cairn__free(names[i]);
    cairn__free(names);
    return st;
}

static cairn_status report(const char *folder, char path[STORE_PATH_NBYTES]) {
    struct lab_result *results = NULL;
    size_t count = 0, nbytes = 0;
    char *page = NULL;
    cairn_status st = CAIRN_OK;
    TRY(read_results(folder, &results, &count));
    TRY(store_path(path, folder, "report.html"));
    TRY(page_make(folder, results, count, &page, &nbytes));
    TRY(store_write_text(path, page, nbytes));
out:
    for (size_t i = 0; i < count; i++) result_free(&results[i]);
    cairn__free(results);
    free(page);
    return st;
}

int command_report(int argc, char **argv) {
    char path[STORE_PATH_NBYTES];
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
        refuse("report takes the folder of the results, and no options: cairn-lab report [FOLDER]");
        return WRONG_USE;
    }
    if (report(argc == 2 ? argv[1] : USUAL_FOLDER, path) != CAIRN_OK) return failed();
    printf("%s\n", path);
    return fflush(stdout) == 0 ? 0 : FAILED;
}
