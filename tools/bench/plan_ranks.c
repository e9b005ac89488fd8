/* The ranks that tools/cairn-bench plan starts through cairn-run: measures both the input of cairn-plan and the times
 * that it predicts.
 *
 *   bench-plan MODEL SECONDS PROFILE CAP...
 *   bench-plan link SECONDS LINK BYTES        plan_parts.h
 *
 * The model is trained once per cap by all ranks together, and once by each rank by itself ("alone"); these trainings
 * alternate, a few steps at a time. PROFILE gets the medians of the alone steps on the slower rank; rank 0 prints a
 * line for each cap: "CAP us". */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "cairn/cairn.h"
#include "core/trace.h"
#include "param/param.h"
#include "plan_parts.h"

enum { MAX_STEPS = 4000, MAX_CAPS = 8, ROUNDS = 10, WARM_UP = 3 };

_Noreturn void die(const char *why) {
    fprintf(stderr, "bench-plan: %s\n", why);
    exit(1);
}

/* ---- models ---- */

static cairn_module *mlp(cairn_env *env) {
    cairn_module *layers[11];
    for (int i = 0; i < 11; i++) {
        layers[i] = i % 2 ? cairn_activation(env, cairn_relu) : cairn_linear(env, 1024, 1024);
    }
    return cairn_sequential(env, 11, layers);
}

static cairn_module *quickstart(cairn_env *env) {
    return cairn_linear(env, 1024, 16);
}

/* 32 tokens of width 64, two layers of width 128. */
static cairn_module *transformer(cairn_env *env) {
    const struct cairn_encoder_layer_options *how = cairn_encoder_layer_options(.activation = cairn_gelu);
    return cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, 64, 128),
                                               cairn_transformer_encoder_layer(env, 128, 4, 512, how),
                                               cairn_transformer_encoder_layer(env, 128, 4, 512, how),
                                               cairn_layer_norm(env, CAIRN_SHAPE(128), 0), cairn_flatten_from(env, 1),
                                               cairn_linear(env, 32 * 128, 10)));
}

static const struct model {
    const char *name, *title;
    cairn_module *(*build)(cairn_env *env);
    int ndim;
    int64_t in[3], out[2]; /* batch first */
} models[] = {{"quickstart", "quick start: linear 1024 to 16, batch 64", quickstart, 2, {64, 1024}, {64, 16}},
              {"mlp", "MLP 6 x 1024^2, batch 128", mlp, 2, {128, 1024}, {128, 1024}},
              {"transformer", "transformer encoder, 2 layers, batch 8", transformer, 3, {8, 32, 64}, {8, 10}}};
enum { MODELS = sizeof(models) / sizeof(models[0]) };

static const struct model *model_named(const char *name) {
    for (int i = 0; i < MODELS; i++) {
        if (strcmp(name, models[i].name) == 0) return &models[i];
    }
    die("there is no such model");
}

/* ---- times ---- */

/* The parts of a step that are timed. */
enum { FORWARD, BACKWARD, OPTIMIZER, STEP, PARTS };

struct times {
    double ns[PARTS][MAX_STEPS];
    size_t count; /* number of steps; ready keeps at most MAX_STEPS of them */
};

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(const double *values, size_t stride, size_t count) {
    double *sorted = calloc(count, sizeof(*sorted));
    if (!sorted || count == 0) die("there is nothing to take a median of");
    for (size_t i = 0; i < count; i++) sorted[i] = values[i * stride];
    qsort(sorted, count, sizeof(*sorted), by_value);
    const double middle = sorted[count / 2];
    free(sorted);
    return middle;
}

/* ---- trainings ---- */

/* Listener of the alone training: records when each gradient is ready, and forwards all calls to ddp. */
struct watch {
    struct cairn__grad_listener listener;
    const struct cairn__grad_listener *inner;
    uint64_t began;
    double *ready; /* [MAX_STEPS][num_params] ns since the start of backward */
    size_t num_params, step;
};

struct training {
    cairn_module *model;
    cairn_optimizer *optimizer;
    ddp_context *ddp;
    cairn_group *group; /* a group of only this rank; NULL = all ranks */
    struct watch watch;
    struct times times;
    size_t cap;
};

static void note_ready(void *ctx, size_t index) {
    struct watch *w = ctx;
    if (w->step < MAX_STEPS) w->ready[w->step * w->num_params + index] = (double)(cairn__now_ns() - w->began);
    w->inner->ready(w->inner->ctx, index);
}

static cairn_status begin(void *ctx) {
    const struct watch *w = ctx;
    return w->inner->begin ? w->inner->begin(w->inner->ctx) : CAIRN_OK;
}

static cairn_status progress(void *ctx) {
    const struct watch *w = ctx;
    return w->inner->progress(w->inner->ctx);
}

static cairn_status settle(void *ctx) {
    const struct watch *w = ctx;
    return w->inner->settle(w->inner->ctx);
}

static void fail(void *ctx) {
    const struct watch *w = ctx;
    w->inner->failed(w->inner->ctx);
}

static void watch_gradients(struct training *t) {
    struct watch *w = &t->watch;
    struct cairn_param_set *set = cairn_module_params(t->model);
    w->num_params = set->count;
    w->ready = calloc(MAX_STEPS * set->count, sizeof(*w->ready));
    if (!w->ready) die("memory ran out");
    w->inner = set->listener;
    w->listener = (struct cairn__grad_listener){
        .ctx = w, .begin = begin, .ready = note_ready, .progress = progress, .settle = settle, .failed = fail};
    set->listener = &w->listener;
}

/* cap 0 = the alone training. */
static struct training *make_training(cairn_env *env, const struct model *m, size_t cap) {
    struct training *t = calloc(1, sizeof(*t));
    struct cairn_adam_options hyper = CAIRN_ADAM_OPTIONS_INIT;
    if (!t) die("memory ran out");
    t->cap = cap;
    t->model = m->build(env);
    if (!t->model) die(cairn_last_error());
    CHECK(cairn_adamw_create(cairn_module_params(t->model), &hyper, &t->optimizer));
    if (cap == 0) CHECK(cairn_group_split(cairn_env_group(env), cairn_env_rank(env), 0, NULL, &t->group));
    CHECK(ddp_create(t->model, t->group ? t->group : cairn_env_group(env), ddp_options(.bucket_nbytes = cap), &t->ddp));
    if (t->group) watch_gradients(t);
    return t;
}

static void end_training(struct training *t) {
    if (t->group) cairn_module_params(t->model)->listener = t->watch.inner;
    ddp_destroy(&t->ddp);
    cairn_group_destroy(&t->group);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    free(t->watch.ready);
    free(t);
}

static void step(struct training *t, cairn_tensor *x, cairn_tensor *y, bool counts) {
    const uint64_t begin = cairn__now_ns();
    cairn_zero_grad(t->optimizer);
    cairn_tensor *loss = cairn_mse_loss(ddp_forward(t->ddp, x), y);
    const uint64_t backward = cairn__now_ns();
    t->watch.began = backward;
    CHECK(cairn_backward(loss));
    const uint64_t update = cairn__now_ns();
    CHECK(cairn_step(t->optimizer));
    const uint64_t end = cairn__now_ns();
    if (!counts || t->times.count == MAX_STEPS) return;
    const double ns[PARTS] = {(double)(backward - begin), (double)(update - backward), (double)(end - update),
                              (double)(end - begin)};
    for (int part = 0; part < PARTS; part++) t->times.ns[part][t->times.count] = ns[part];
    t->watch.step = ++t->times.count;
}

/* ---- the whole ---- */

void take_slowest(cairn_env *env, double *values, size_t n) {
    CHECK(cairn_allreduce(cairn_env_group(env), values, n, CAIRN_F64, CAIRN_MAX, NULL));
}

static void write_profile(cairn_env *env, const struct model *m, const struct training *t, const char *file) {
    struct cairn_param_set *set = cairn_module_params(t->model);
    double parts[PARTS], *ready = calloc(set->count, sizeof(*ready));
    if (!ready) die("memory ran out");
    for (int part = 0; part < PARTS; part++) parts[part] = median(t->times.ns[part], 1, t->times.count);
    for (size_t i = 0; i < set->count; i++) ready[i] = median(t->watch.ready + i, set->count, t->times.count);
    take_slowest(env, parts, PARTS);
    take_slowest(env, ready, set->count);
    FILE *out = cairn_env_rank(env) == 0 ? fopen(file, "w") : NULL;
    if (cairn_env_rank(env) == 0 && !out) die("the profile cannot be written");
    for (size_t i = 0; out && i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        if (i == 0)
            fprintf(out,
                    "{\"format\": \"cairn-profile\", \"version\": 1, \"model\": \"%s\",\n\"forward_ns\": %.0f, "
                    "\"backward_ns\": %.0f, \"optimizer_ns\": %.0f,\n\"parameters\": [\n",
                    m->title, parts[FORWARD], parts[BACKWARD], parts[OPTIMIZER]);
        fprintf(out, "{\"name\": \"%s\", \"elements\": %zu, \"dtype\": \"%s\", \"ready_ns\": %.0f}%s\n", p->name, p->n,
                cairn_dtype_name(p->dtype), ready[i], i + 1 < set->count ? "," : "]}");
    }
    free(ready);
    if (out && fclose(out) != 0) die("the profile cannot be written");
}

/* Binds the rank to a processor if there are enough, as for cairn-bench's other ranks. */
static void bind_to_processor(cairn_env *env) {
    cpu_set_t all, one;
    int place = 0;
    if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < cairn_env_size(env)) return;
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (CPU_ISSET(c, &all) && place++ == cairn_env_rank(env)) CPU_SET(c, &one);
    }
    (void)sched_setaffinity(0, sizeof(one), &one);
}

/* Number of consecutive steps per training so that a round takes the given time. */
static int steps_a_round(cairn_env *env, struct training *alone, cairn_tensor *x, cairn_tensor *y, double seconds,
                         int trainings) {
    const uint64_t begin = cairn__now_ns();
    for (int i = 0; i < WARM_UP; i++) step(alone, x, y, false);
    double each = (double)(cairn__now_ns() - begin) * 1e-9 / WARM_UP;
    take_slowest(env, &each, 1);
    const double steps = seconds / (each * trainings * ROUNDS);
    return steps < 3 ? 3 : steps > MAX_STEPS / ROUNDS ? MAX_STEPS / ROUNDS : (int)steps;
}

static void train_in_turn(cairn_env *env, struct training **trainings, int count, cairn_tensor *x, cairn_tensor *y,
                          double seconds) {
    const int steps = steps_a_round(env, trainings[0], x, y, seconds, count);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < count; i++) {
            CHECK(cairn_barrier(cairn_env_group(env)));
            for (int s = 0; s < WARM_UP + steps; s++) step(trainings[i], x, y, s >= WARM_UP);
        }
    }
}

static void train(cairn_env *env, const struct model *m, double seconds, const char *profile, char **caps, int count) {
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, m->ndim, m->in), *y = cairn_randn(env, CAIRN_F32, 2, m->out);
    struct training *trainings[1 + MAX_CAPS];
    for (int i = 0; i <= count; i++) {
        trainings[i] = make_training(env, m, i ? strtoull(caps[i - 1], NULL, 10) : 0);
    }
    train_in_turn(env, trainings, 1 + count, x, y, seconds);
    write_profile(env, m, trainings[0], profile);
    for (int i = 1; i <= count; i++) {
        double ns = median(trainings[i]->times.ns[STEP], 1, trainings[i]->times.count);
        take_slowest(env, &ns, 1);
        if (cairn_env_rank(env) == 0) printf("%zu %.3f\n", trainings[i]->cap, 1e-3 * ns);
    }
    for (int i = 0; i <= count; i++) end_training(trainings[i]);
}

int main(int argc, char **argv) {
    cairn_env *env = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc < 5 || argc > 4 + MAX_CAPS) die("tools/cairn-bench plan starts this program; see --help");
    const double seconds = strtod(argv[2], NULL);
    CHECK(cairn_env_create(NULL, NULL, NULL, &env));
    bind_to_processor(env);
    if (strcmp(argv[1], "link") == 0) measure_link(env, seconds, strtoull(argv[4], NULL, 10), argv[3]);
    else train(env, model_named(argv[1]), seconds, argv[3], argv + 4, argc - 4);
    cairn_env_destroy(&env);
    return 0;
}
