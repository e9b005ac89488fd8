/* Times a step of cairn_data_parallel with two replicas in two threads against one thread with the whole batch, ddp
 * over two thread ranks with half the batch each, and two independent trainings of half the batch.
 *
 *     build/tests/parallel/data-parallel-bench [mlp layers width rows]
 *     build/tests/parallel/data-parallel-bench bert [layers rows length]
 *     build/tests/parallel/data-parallel-bench times ...    prints lines for tools/bench-replicas:
 *
 *     time <round> alone|replicas|ddp|independent <ns of a step>
 *
 * Prints medians over rounds that measure all variants one after the other, after comparing their losses. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "../bench.h"
#include "cairn/cairn.h"
#include "core/trace.h"
#ifdef WITH_BERT
#include "../../examples/bert/model.h"
#endif

enum { RANKS = 2, WAYS = 4 };
enum way { ALONE, REPLICAS, DDP, INDEPENDENT };

/* What is trained. */
static bool is_bert;
static int layers = 4, width = 1024, rows = 256, length = 128, steps = 5;

static cairn_module *make_mlp(cairn_env *env) {
    cairn_module *parts[64];
    int count = 0;
    require(layers >= 1 && layers <= 32, "1 to 32 layers");
    for (int i = 0; i < layers; i++) {
        parts[count++] = cairn_linear(env, width, width);
        parts[count++] = cairn_activation(env, cairn_relu);
    }
    return cairn_sequential(env, count, parts);
}

#ifdef WITH_BERT
/* bert-base-cased's sizes, without dropout. */
static cairn_module *make_bert(cairn_env *env) {
    const struct bert_config base = {.vocab_size = 28996,
                                     .hidden_size = 768,
                                     .num_hidden_layers = layers,
                                     .num_attention_heads = 12,
                                     .intermediate_size = 3072,
                                     .max_position_embeddings = 512,
                                     .type_vocab_size = 2,
                                     .classifier_dropout = -1,
                                     .layer_norm_eps = 1e-12,
                                     .initializer_range = 0.02,
                                     .hidden_act = "gelu",
                                     .activation = cairn_gelu,
                                     .num_labels = 3};
    return bert_create(env, &base, NULL);
}
#endif

static cairn_module *make_model(cairn_env *env) {
    cairn_module *model = NULL;
#ifdef WITH_BERT
    if (is_bert) model = make_bert(env);
#endif
    if (!is_bert) model = make_mlp(env);
    require(model != NULL, cairn_last_error());
    return model;
}

static cairn_module *make_replica(void *ctx, cairn_env *env, int replica) {
    (void)ctx, (void)replica;
    return make_model(env);
}

/* A model that is trained in one way. */
struct training {
    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *optimizer;
    cairn_data_parallel *replicas; /* NULL = none */
    ddp_context *ddp;              /* likewise */
    cairn_tensor *x, *y;
};

static void make_batch(struct training *t, int n) {
    const int64_t columns = is_bert ? length : width;
    const size_t count = (size_t)n * (size_t)columns;
    int64_t *ids = malloc(count * sizeof(*ids));
    require(ids != NULL, "out of memory");
    for (size_t i = 0; i < count; i++) ids[i] = (int64_t)(i * 2654435761u % 28000);
    if (is_bert) {
        t->x = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(n, columns), ids);
        for (int i = 0; i < n; i++) ids[i] = i % 3;
        t->y = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(n), ids);
    } else {
        t->x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(n, columns));
        t->y = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(n, columns));
    }
    free(ids);
    require(t->x && t->y, cairn_last_error());
}

static void begin(struct training *t, cairn_env *env, int n) {
    struct cairn_adam_options hyper = CAIRN_ADAM_OPTIONS_INIT;
    hyper.lr = 1e-5;
    t->env = env;
    t->model = make_model(env);
    done(cairn_adam_create(cairn_module_params(t->model), &hyper, &t->optimizer));
    make_batch(t, n);
}

static void end(struct training *t) {
    cairn_data_parallel_destroy(&t->replicas);
    ddp_destroy(&t->ddp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
}

static cairn_tensor *loss_of(const struct training *t, bool over_replicas) {
    cairn_tensor *inputs[3] = {t->x, NULL, NULL}, *y = NULL;
    const int count = is_bert ? 3 : 1;
    if (over_replicas) {
        y = cairn_data_parallel_forward_n(t->replicas, inputs, count);
    } else if (t->ddp) {
        y = ddp_forward_n(t->ddp, inputs, count);
    } else {
        y = cairn_module_forward_n(t->model, inputs, count);
    }
    return is_bert ? cairn_cross_entropy(y, t->y, NULL) : cairn_mse_loss(y, t->y);
}

/* Seconds of a step. */
static double train(const struct training *t, bool over_replicas) {
    const double begin_s = 1e-9 * (double)cairn__now_ns();
    for (int i = 0; i < steps; i++) {
        cairn_zero_grad(t->optimizer);
        done(cairn_backward(loss_of(t, over_replicas)));
        done(cairn_step(t->optimizer));
    }
    return (1e-9 * (double)cairn__now_ns() - begin_s) / steps;
}

/* ---- the threads: ranks, the first of which also trains alone and over replicas meanwhile ---- */

static pthread_barrier_t turn;
static double times[WAYS][ROUNDS];

static void compare_losses(const struct training *t) {
    const float alone = cairn_tensor_item(loss_of(t, false)), over = cairn_tensor_item(loss_of(t, true));
    require(fabsf(alone - over) <= 1e-5f * fabsf(alone), "the replicas' loss is another than the model's");
    done(cairn_release_results(t->env));
}

/* What torch does before every forward: all weights to a replica, by one thread. */
static double sending;

static size_t nbytes_of(const cairn_param *p) {
    size_t n = sizeof(float);
    for (int d = 0; d < p->ndim; d++) n *= (size_t)p->shape[d];
    return n;
}

static void measure_sending(const struct training *t) {
    cairn_param_set *set = cairn_module_params(t->model);
    const size_t count = cairn_param_set_count(set);
    cairn_param *params = calloc(count, sizeof(*params));
    double seconds[ROUNDS];
    size_t total = 0;
    require(params != NULL, "out of memory");
    for (size_t i = 0; i < count; i++) {
        done(cairn_param_set_get(set, i, &params[i]));
        total += nbytes_of(&params[i]);
    }
    char *copy = malloc(total);
    require(copy != NULL, "out of memory");
    for (int round = -1; round < ROUNDS; round++) {
        const double begin_s = 1e-9 * (double)cairn__now_ns();
        char *to = copy;
        for (size_t i = 0; i < count; i++) {
            memcpy(to, params[i].data, nbytes_of(&params[i]));
            to += nbytes_of(&params[i]);
        }
        if (round >= 0) seconds[round] = 1e-9 * (double)cairn__now_ns() - begin_s;
    }
    sending = median(seconds);
    free(copy);
    free(params);
}

/* All threads of this process are the way's: one, or both. */
static void measure_alone(struct training *t, int round) {
    for (int way = ALONE; t->env && way <= REPLICAS; way++) {
        done(cairn_set_num_threads(way == REPLICAS ? RANKS : 1));
        const double seconds = train(t, way == REPLICAS);
        if (round >= 0) times[way][round] = seconds;
        done(cairn_set_num_threads(1));
    }
    pthread_barrier_wait(&turn); /* without polling */
}

static void measure_ranks(const struct training *t, enum way way, int round) {
    done(cairn_barrier(cairn_env_group(t->env)));
    const double begin_s = 1e-9 * (double)cairn__now_ns();
    (void)train(t, false);
    done(cairn_barrier(cairn_env_group(t->env)));
    if (round >= 0 && cairn_env_rank(t->env) == 0)
        times[way][round] = (1e-9 * (double)cairn__now_ns() - begin_s) / steps;
}

static int run_rank(int rank, void *ctx) {
    struct training alone = {.env = NULL}, ddp = {.env = NULL}, independent = {.env = NULL};
    cairn_env *env = NULL, *own = NULL;
    (void)ctx;
    done(cairn_env_create(NULL, NULL, cairn_env_options(.device = "cpu"), &env));
    if (rank == 0) {
        done(cairn_env_create(NULL, NULL,
                              cairn_env_options(.device = "cpu", .world_size = 1, .rank = 0, .backend = "self"), &own));
        begin(&alone, own, rows);
        done(cairn_data_parallel_create(alone.model,
                                        cairn_data_parallel_options(.num_replicas = RANKS, .num_threads = 1,
                                                                    .make = make_replica),
                                        &alone.replicas));
        compare_losses(&alone);
        measure_sending(&alone);
    }
    begin(&ddp, env, rows / RANKS);
    done(ddp_create(ddp.model, cairn_env_group(env), NULL, &ddp.ddp));
    begin(&independent, env, rows / RANKS);
    for (int round = -1; round < ROUNDS; round++) {
        measure_alone(&alone, round);
        measure_ranks(&ddp, DDP, round);
        measure_ranks(&independent, INDEPENDENT, round);
    }
    end(&independent);
    end(&ddp);
    end(&alone);
    cairn_env_destroy(&own);
    cairn_env_destroy(&env);
    return 0;
}

static void report(void) {
    double m[WAYS];
    for (int way = 0; way < WAYS; way++) m[way] = 1e3 * median(times[way]);
    printf("one thread, %d rows              %10.2f ms\n", rows, m[ALONE]);
    printf("two replicas of one thread       %10.2f ms   %.2f times as fast\n", m[REPLICAS], m[ALONE] / m[REPLICAS]);
    printf("ddp over two threads             %10.2f ms   %.2f times as fast, %.2f of the replicas' time\n", m[DDP],
           m[ALONE] / m[DDP], m[DDP] / m[REPLICAS]);
    printf("weights, copied to one replica   %10.2f ms   they are shared instead\n", 1e3 * sending);
    printf("two trainings of half the rows   %10.2f ms   %.2f times: the replicas reach %.0f %% of it\n",
           m[INDEPENDENT], m[ALONE] / m[INDEPENDENT], 100 * m[INDEPENDENT] / m[REPLICAS]);
}

static void print_rounds(void) {
    static const char *const names[WAYS] = {"alone", "replicas", "ddp", "independent"};
    for (int round = 0; round < ROUNDS; round++) {
        for (int way = 0; way < WAYS; way++) printf("time %d %s %.0f\n", round, names[way], 1e9 * times[way][round]);
    }
}

static void read_sizes(int argc, char **argv, int at, int **sizes, int count) {
    for (int i = 0; i < count && at + i < argc; i++) {
        *sizes[i] = atoi(argv[at + i]);
        require(*sizes[i] > 0, "sizes are whole numbers above 0");
    }
    require(argc <= at + count, "usage: data-parallel-bench [times] [mlp layers width rows | bert layers rows length]");
}

int main(int argc, char **argv) {
    const bool for_programs = argc > 1 && strcmp(argv[1], "times") == 0;
    if (for_programs) argc--, argv++;
    is_bert = argc > 1 && strcmp(argv[1], "bert") == 0;
    if (is_bert) layers = 12, rows = 16, steps = 1;
#ifndef WITH_BERT
    require(!is_bert, "this build has no jansson, and so no BERT");
#endif
    read_sizes(argc, argv, 2, is_bert ? (int *[]){&layers, &rows, &length} : (int *[]){&layers, &width, &rows}, 3);
    require(argc < 2 || is_bert || strcmp(argv[1], "mlp") == 0, "the models are mlp and bert");
    pthread_barrier_init(&turn, NULL, RANKS);
    done(cairn_spawn_threads(run_rank, NULL, RANKS, cairn_spawn_threads_options(.num_threads = 1)));
    pthread_barrier_destroy(&turn);
    (for_programs ? print_rounds : report)();
    return 0;
}
