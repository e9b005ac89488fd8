/* Cost and savings of a sharded optimizer (ddp_options.shard_optimizer): a backward that writes zero gradients, their
 * reduction, and the step, alternately with and without sharding; and the bytes of masters and moments per rank.
 *
 * usage: cairn-run --nproc_per_node 2 shards-bench [MILLIONS of parameters [TURNS [OPTIMIZER]]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/cairn.h"
#include "core/trace.h"
#include "param/param.h"

enum { WIDTH = 2048, MOST_LAYERS = 200, MOST_TURNS = 1000 };

static void must(cairn_status status) {
    if (status == CAIRN_OK) return;
    fprintf(stderr, "shards-bench: %s\n", cairn_last_error());
    exit(1);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct training {
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *ddp;
    double ms[MOST_TURNS];
};

enum kind { SGD, MOMENTUM, ADAM, LION, NUM_KINDS };
static const char *const kind_names[] = {"SGD", "momentum", "Adam", "Lion"};

static cairn_status make_optimizer(enum kind kind, cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    sgd.lr = 0.01;
    sgd.momentum = kind == MOMENTUM ? 0.9 : 0;
    if (kind == ADAM) return cairn_adam_create(set, NULL, out);
    if (kind == LION) return cairn_lion_create(set, NULL, out);
    return cairn_sgd_create(set, &sgd, out);
}

static void begin(struct training *t, cairn_env *env, enum kind kind, amp_opt_level level, int count, bool shards) {
    cairn_module *layers[MOST_LAYERS];
    for (int i = 0; i < count; i++) layers[i] = cairn_linear(env, WIDTH, WIDTH);
    t->model = cairn_sequential(env, (size_t)count, layers);
    must(t->model ? CAIRN_OK : CAIRN_EINTERNAL);
    must(make_optimizer(kind, cairn_module_params(t->model), &t->optimizer));
    must(amp_initialize(env, t->model, t->optimizer, amp_options(.opt_level = level, .verbosity = -1), &t->amp));
    must(ddp_create(t->model, cairn_env_group(env), ddp_options(.shard_optimizer = shards ? CAIRN_ON : CAIRN_OFF),
                    &t->ddp));
}

static void end(struct training *t) {
    cairn_module *model = t->model;
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer); /* before its state would become whole */
    ddp_destroy(&t->ddp);
    cairn_module_destroy(&model);
}

static void step(struct training *t, cairn_env *env, int turn) {
    must(cairn_barrier(cairn_env_group(env)));
    const uint64_t begin_ns = cairn__now_ns();
    cairn_zero_grad(t->optimizer);
    must(amp_backward(t->amp, ddp_zero_loss(t->ddp), t->optimizer));
    must(cairn_step(t->optimizer));
    must(cairn_barrier(cairn_env_group(env)));
    t->ms[turn] = (double)(cairn__now_ns() - begin_ns) / 1e6;
}

/* Masters and moments. */
static size_t state_nbytes(const struct training *t) {
    const struct cairn_param_set *set = cairn_module_params(t->model);
    size_t nbytes = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        for (int k = 0; k < CAIRN__PARAM_ARRAYS; k++)
            nbytes += cairn__param_array(p, k) ? cairn__param_shard(p).n * sizeof(float) : 0;
    }
    return nbytes;
}

static void compare(cairn_env *env, enum kind kind, amp_opt_level level, int count, int turns) {
    static struct training t[2];
    for (int k = 0; k < 2; k++) begin(&t[k], env, kind, level, count, k == 1);
    for (int turn = -2; turn < turns; turn++) {
        for (int k = 0; k < 2; k++) step(&t[k], env, turn < 0 ? 0 : turn);
    }
    const double mb[2] = {(double)state_nbytes(&t[0]) / 1e6, (double)state_nbytes(&t[1]) / 1e6};
    for (int k = 0; k < 2; k++) qsort(t[k].ms, (size_t)turns, sizeof(double), by_value);
    const double middle[2] = {t[0].ms[turns / 2], t[1].ms[turns / 2]}, least[2] = {t[0].ms[0], t[1].ms[0]};
    if (cairn_env_rank(env) == 0)
        printf("O%d %-8s  step %7.1f ms, shared %7.1f ms: %.2f times; least %7.1f, %7.1f: %.2f; state %.1f, %.1f MB\n",
               (int)level - (int)AMP_O0, kind_names[kind], middle[0], middle[1], middle[1] / middle[0], least[0],
               least[1], least[1] / least[0], mb[0], mb[1]);
    fflush(stdout);
    for (int k = 0; k < 2; k++) end(&t[k]);
}

int main(int argc, char **argv) {
    const int count = (argc > 1 ? atoi(argv[1]) : 100) * 1000000 / (WIDTH * WIDTH) + 1;
    const int turns = argc > 2 ? atoi(argv[2]) : 11;
    cairn_env *env = NULL;
    if (count < 1 || count > MOST_LAYERS || turns < 1 || turns > MOST_TURNS) {
        fprintf(stderr, "usage: shards-bench [MILLIONS of parameters [TURNS [SGD|momentum|Adam|Lion]]]\n");
        return 1;
    }
    must(cairn_env_create(&argc, &argv, NULL, &env));
    if (cairn_env_rank(env) == 0)
        printf("%d layers of %d x %d, %.1f M parameters, %d ranks on %s, medians and least of %d turns\n", count, WIDTH,
               WIDTH, count * (WIDTH * (double)WIDTH + WIDTH) / 1e6, cairn_env_size(env),
               cairn_group_backend(cairn_env_group(env)), turns);
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        if (argc > 3 && strcmp(argv[3], kind_names[kind]) != 0) continue;
        compare(env, (enum kind)kind, AMP_O2, count, turns);
        compare(env, (enum kind)kind, AMP_O0, count, turns);
    }
    cairn_env_destroy(&env);
    return 0;
}
