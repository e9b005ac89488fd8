/* The cost of events: disabled, and 100 per step of an MLP with all three kinds of file written at once. Steps with and
 * without writers alternate, so that other load affects both. Also the extra processor time of a step whose exponents
 * are recorded.
 *
 *     observe_bench FOLDER [--steps 20] [--limit 0.01]     fails if 100 events cost a larger share of a step
 *
 * With CAIRN_TEST_SHORT in the environment it takes 9 steps of each kind where --steps does not say otherwise. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../check.h"
#include "cairn/cairn.h"

enum { LAYERS = 6, WIDTH = 1024, BATCH = 128, EVENTS = 100, MANY = 2000, ROUNDS = 101, MOST = 400 };

static double time_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) {
    return time_of(CLOCK_MONOTONIC);
}

static void take(cairn_status st, const char *what) {
    if (st == CAIRN_OK) return;
    fprintf(stderr, "%s: %s\n", what, cairn_last_error());
    exit(1);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof(values[0]), compare);
    return values[n / 2];
}

struct training {
    cairn_module *model;
    cairn_optimizer *sgd;
    cairn_tensor *x, *y;
};

static struct training make(cairn_env *env) {
    cairn_module *layers[2 * LAYERS];
    struct training t;
    for (int i = 0; i < LAYERS; i++) {
        layers[2 * i] = cairn_linear(env, WIDTH, WIDTH);
        layers[2 * i + 1] = cairn_activation(env, cairn_relu);
    }
    t.model = cairn_sequential(env, 2 * LAYERS, layers);
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 1e-3;
    take(cairn_sgd_create(cairn_module_params(t.model), &hyper, &t.sgd), "cairn_sgd_create");
    t.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
    t.y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
    return t;
}

/* Half of the events are spans, a quarter counters and a quarter scalars. */
static void send(int64_t step, int n) {
    for (int i = 0; i < n; i += 4) {
        cairn_span_end("part", step, cairn_span_begin());
        cairn_span_end("other part", step, cairn_span_begin());
        cairn_counter_set("queue", (double)i);
        cairn_scalar_record("loss", step, 0.123456789 * (double)i);
    }
}

static double step_seconds(const struct training *t, int64_t step) {
    const double begin = now();
    cairn_zero_grad(t->sgd);
    take(cairn_backward(cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y)), "cairn_backward");
    take(cairn_step(t->sgd), "cairn_step");
    send(step, EVENTS);
    return now() - begin;
}

/* Of the process, whoever else uses the machine. */
static double processor_seconds(const struct training *t, int64_t step) {
    const double begin = time_of(CLOCK_PROCESS_CPUTIME_ID);
    step_seconds(t, step);
    return time_of(CLOCK_PROCESS_CPUTIME_ID) - begin;
}

static double recorded_seconds(cairn_env *env, const char *folder, const struct training *t, int64_t step) {
    cairn_writer *lab = NULL;
    cairn_recorder *recorder = NULL;
    take(cairn_lab_create(env, folder, &lab), "cairn_lab_create");
    take(cairn_recorder_create(env, cairn_recorder_options(.every = 1), &recorder), "cairn_recorder_create");
    const double seconds = processor_seconds(t, step);
    cairn_recorder_destroy(&recorder);
    cairn_writer_destroy(&lab);
    return seconds;
}

/* The median of rounds, so that what else the machine does falls into some of them. */
static double event_seconds(void) {
    double rounds[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        const double begin = now();
        send(r, MANY);
        rounds[r] = (now() - begin) / MANY;
    }
    return median(rounds, ROUNDS);
}

static void open_writers(cairn_env *env, const char *folder, cairn_writer *writers[3]) {
    char path[3000];
    snprintf(path, sizeof(path), "%s/t.json", folder);
    take(cairn_timeline_create(env, path, &writers[0]), "cairn_timeline_create");
    snprintf(path, sizeof(path), "%s/s.csv", folder);
    take(cairn_csv_create(env, path, &writers[1]), "cairn_csv_create");
    take(cairn_tensorboard_create(env, folder, &writers[2]), "cairn_tensorboard_create");
}

/* With what was written into it. */
static void remove_folder(const char *folder) {
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) (void)unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    (void)rmdir(folder);
}

static void close_writers(cairn_writer *writers[3]) {
    for (int i = 0; i < 3; i++) cairn_writer_destroy(&writers[i]);
}

int main(int argc, char **argv) {
    static double off[MOST], on[MOST], plain[MOST], recorded[MOST];
    cairn_env *env = NULL;
    cairn_writer *writers[3] = {NULL, NULL, NULL};
    double limit = 1;
    int steps = check_is_short() ? 9 : 20;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--steps") == 0) steps = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--limit") == 0) limit = atof(argv[i + 1]);
    }
    if (argc < 2 || steps < 1 || steps > MOST) {
        fprintf(stderr, "usage: observe_bench FOLDER [--steps 1..%d] [--limit SHARE]\n", MOST);
        return 2;
    }
    char folder[2000];
    snprintf(folder, sizeof(folder), "%s/observe_bench.XXXXXX", argv[1]);
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    take(cairn_env_create(NULL, NULL, NULL, &env), "cairn_env_create");
    struct training t = make(env);
    step_seconds(&t, 0);
    for (int i = 0; i < steps; i++) {
        off[i] = step_seconds(&t, i);
        open_writers(env, folder, writers);
        on[i] = step_seconds(&t, i);
        close_writers(writers);
        plain[i] = processor_seconds(&t, i);
        recorded[i] = recorded_seconds(env, folder, &t, i);
    }
    const double without = median(off, steps), with = median(on, steps);
    const double idle = event_seconds();
    open_writers(env, folder, writers);
    const double each = event_seconds();
    close_writers(writers);
    remove_folder(folder);
    const double share = EVENTS * each / without;
    printf("an event: off %.2f ns, to a timeline, TensorBoard and CSV %.0f ns (median of %d rounds)\n", idle * 1e9,
           each * 1e9, ROUNDS);
    printf("a step of the MLP %dx%d, batch %d: off %.2f ms, with %d events %.2f ms (medians of %d, taking turns)\n",
           LAYERS, WIDTH, BATCH, without * 1e3, EVENTS, with * 1e3, steps);
    printf("%d events are %.3f %% of a step\n", EVENTS, share * 100);
    const double processor = median(plain, steps), recording = median(recorded, steps);
    printf("processor time of a step: %.2f ms, recorded %.2f ms, %.1f %% more (medians of %d, taking turns)\n",
           processor * 1e3, recording * 1e3, (recording / processor - 1) * 100, steps);
    cairn_optimizer_destroy(&t.sgd);
    cairn_module_destroy(&t.model);
    cairn_env_destroy(&env);
    if (share <= limit) return 0;
    fprintf(stderr, "that is more than %.3f %%\n", limit * 100);
    return 1;
}
