/* A training step that is captured once and then replayed: one graph launch per step on a GPU; on the CPU a replay
 * calls the step function. The model learns to copy input i to output i, from batches in host memory. Each rank has its
 * own batches.
 *
 *     CAIRN_DEVICE=cuda ./04_graph        cairn-run --nproc_per_node 2 ./04_graph */
#include <cairn/cairn.h>

#include <stdio.h>
#include <stdlib.h>

enum { N = 64, D_IN = 1024, D_OUT = 16, BATCHES = 16, STEPS = 500, READ_EVERY = 50 };

static float inputs[BATCHES][N][D_IN], targets[BATCHES][N][D_OUT];

static const double first_lr = 0.2;

struct trainer {
    ddp_context *net;
    amp_context *amp;
    cairn_optimizer *sgd;
    cairn_tensor *x, *y, *loss;
};

static void die(const char *why) {
    fprintf(stderr, "04_graph: %s\n", why);
    exit(1);
}

/* Uniform in -1 to 1. */
static void make_batches(int rank) {
    srand(1 + (unsigned)rank);
    for (int b = 0; b < BATCHES; b++) {
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < D_IN; i++) inputs[b][n][i] = 2 * ((float)rand() / (float)RAND_MAX) - 1;
            for (int i = 0; i < D_OUT; i++) targets[b][n][i] = inputs[b][n][i];
        }
    }
}

/* The captured step. It only queues work, on tensors that exist before the capture. */
static cairn_status step(void *user) {
    struct trainer *t = user;
    cairn_zero_grad(t->sgd);
    t->loss = cairn_mse_loss(ddp_forward(t->net, t->x), t->y);
    cairn_status st = amp_backward(t->amp, t->loss, t->sgd);
    return st == CAIRN_OK ? cairn_step(t->sgd) : st;
}

int main(int argc, char **argv) {
    cairn_env *env;
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &env));
    struct trainer t;
    cairn_module *model = cairn_linear(env, D_IN, D_OUT);
    CAIRN_CHECK(cairn_sgd_create(cairn_module_params(model), NULL, &t.sgd));
    CAIRN_CHECK(amp_initialize(env, model, t.sgd, amp_options(.opt_level = AMP_O2), &t.amp));
    CAIRN_CHECK(ddp_create(model, cairn_env_group(env), NULL, &t.net));

    make_batches(cairn_env_rank(env));
    t.x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, D_IN), inputs[0]);
    t.y = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, D_OUT), targets[0]);
    if (!t.x || !t.y) die(cairn_last_error());
    cairn_graph *graph;
    CAIRN_CHECK(cairn_graph_capture(env, step, &t, &graph));

    for (int i = 0; i < STEPS; i++) { /* a graph stores addresses: values may change between replays */
        CAIRN_CHECK(cairn_tensor_write(t.x, inputs[i % BATCHES], N * D_IN));
        CAIRN_CHECK(cairn_tensor_write(t.y, targets[i % BATCHES], N * D_OUT));
        CAIRN_CHECK(cairn_optimizer_set_lr(t.sgd, first_lr * (STEPS - i) / STEPS));
        CAIRN_CHECK(cairn_graph_replay(graph));
        if ((i + 1) % READ_EVERY) continue; /* reading a loss waits for the device */
        float loss = cairn_tensor_item(t.loss);
        if (cairn_env_rank(env) == 0) printf("step %d  lr %.4f  loss %.6f\n", i + 1, cairn_optimizer_lr(t.sgd), loss);
    }
    if (cairn_env_rank(env) == 0) printf("recorded = %s\n", cairn_graph_is_recorded(graph) ? "yes" : "no");
    cairn_graph_destroy(&graph);
    ddp_destroy(&t.net);
    amp_destroy(&t.amp);
    cairn_optimizer_destroy(&t.sgd);
    cairn_module_destroy(&model);
    cairn_env_destroy(&env);
    return 0;
}
