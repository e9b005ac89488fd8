/* A rank of data-parallel training for tools/cairn-bench ddp, or an independent training:
 *
 *   bench-ddp SOCKET cairn FILE     meets the other ranks in FILE and averages gradients
 *   bench-ddp SOCKET noop FILE      the same without communication: the upper bound for training
 *   bench-ddp SOCKET lockstep FILE  no communication, but the ranks wait for each other before each update
 *   bench-ddp SOCKET alone RANK     the same model and data, without a group
 *
 * It connects to the socket and sleeps in read() while other sides run. Protocol, in lines:
 *   rank   hello <side> <rank> <what it is>
 *   bench  start <mlp|quickstart> <f32|bf16> <bucket_nbytes> <steps> <folder>
 *                                                       a fresh model, and so many steps. Rank 0 of "cairn" puts into
 *                                                       the folder what PyTorch compares with, as f32: "gradients" of
 *                                                       the first step and "weights" after the last; "-": nothing
 *   rank   ok <loss of the first step>; of PyTorch also two relative differences, of gradients and of how far weights
 *          have moved
 *   bench  steps <n>                                    one step that brings the ranks together, then n that are timed
 *   rank   ok <us of a step> <last loss> <hash of the weights>, or: failed <why>, and the rank ends
 *   bench  end
 * Weights and data are what ddp_torch.py makes, so that losses can be compared. */
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "cairn/cairn.h"
#include "training.h"
#include "worker.h"

enum { MLP_BATCH = 128, MLP_WIDTH = 1024, MLP_LAYERS = 6, QUICK_BATCH = 64, QUICK_IN = 1024, QUICK_OUT = 16 };

struct training {
    cairn_env *env;
    const char *side;
    bool connected, sends_nothing, waits;
    int rank;
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *ddp;
    cairn_tensor *x, *y;
};

/* ---- weights and data ---- */

static cairn_tensor *leaf(cairn_env *env, uint32_t stream, int64_t rows, int64_t columns) {
    const size_t n = (size_t)(rows * columns);
    float *values = malloc(n * sizeof(*values));
    if (!values) return NULL;
    for (size_t i = 0; i < n; i++) values[i] = 2.0f * bench_value(stream, i);
    cairn_tensor *t = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, columns), values);
    free(values);
    return t;
}

/* A weight [out, in] preserves the variance of its input: uniform with variance 2 / in. Biases are small. */
static cairn_status fill_weights(cairn_param_set *set) {
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        cairn_status st = cairn_param_set_get(set, i, &p);
        if (st != CAIRN_OK) return st;
        const float scale = p.ndim == 2 ? sqrtf(24.0f / (float)p.shape[1]) : 0.1f;
        for (size_t k = 0; k < bench_numel(&p); k++) ((float *)p.data)[k] = bench_value((uint32_t)i, k) * scale;
    }
    return CAIRN_OK;
}

/* ---- models ---- */

static cairn_module *make_mlp(cairn_env *env) {
    cairn_module *layers[2 * MLP_LAYERS - 1];
    for (int i = 0; i < MLP_LAYERS; i++) {
        layers[2 * i] = cairn_linear(env, MLP_WIDTH, MLP_WIDTH);
        if (i + 1 < MLP_LAYERS) layers[2 * i + 1] = cairn_activation(env, cairn_relu);
    }
    return cairn_sequential(env, 2 * MLP_LAYERS - 1, layers);
}

static cairn_status make_model(struct training *t, bool is_mlp) {
    const int64_t batch = is_mlp ? MLP_BATCH : QUICK_BATCH, in = is_mlp ? MLP_WIDTH : QUICK_IN,
                  out = is_mlp ? MLP_WIDTH : QUICK_OUT;
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adamw = CAIRN_ADAMW_OPTIONS_INIT;
    adamw.lr = 1e-4;
    t->model = is_mlp ? make_mlp(t->env) : cairn_linear(t->env, in, out);
    t->x = leaf(t->env, 100 + 2 * (uint32_t)t->rank, batch, in);
    t->y = leaf(t->env, 101 + 2 * (uint32_t)t->rank, batch, out);
    if (!t->model || !t->x || !t->y) return CAIRN_ENOMEM;
    cairn_param_set *set = cairn_module_params(t->model);
    cairn_status st = fill_weights(set);
    if (st != CAIRN_OK) return st;
    return is_mlp ? cairn_adamw_create(set, &adamw, &t->optimizer) : cairn_sgd_create(set, &sgd, &t->optimizer);
}

static void tear_down(struct training *t) {
    ddp_destroy(&t->ddp);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
}

static cairn_status set_up(struct training *t, const char *model, const char *type, size_t bucket_nbytes) {
    const bool half = strcmp(type, "bf16") == 0;
    tear_down(t);
    cairn_status st = make_model(t, strcmp(model, "mlp") == 0);
    if (st == CAIRN_OK)
        st = amp_initialize(t->env, t->model, t->optimizer,
                            amp_options(.opt_level = half ? AMP_O2 : AMP_O0, .half_type = CAIRN_BF16, .verbosity = -1),
                            &t->amp);
    if (st == CAIRN_OK && t->connected)
        st = ddp_create(t->model, cairn_env_group(t->env), ddp_options(.bucket_nbytes = bucket_nbytes), &t->ddp);
    if (st == CAIRN_OK && t->sends_nothing) st = ddp_register_comm_hook(t->ddp, ddp_noop_hook());
    return st;
}

/* ---- steps ---- */

static cairn_status backward(struct training *t, cairn_tensor **loss) {
    cairn_zero_grad(t->optimizer);
    *loss = cairn_mse_loss(t->ddp ? ddp_forward(t->ddp, t->x) : cairn_module_forward(t->model, t->x), t->y);
    return amp_backward(t->amp, *loss, t->optimizer);
}

static cairn_status update(struct training *t) {
    cairn_status st = t->waits ? cairn_barrier(cairn_env_group(t->env)) : CAIRN_OK;
    return st == CAIRN_OK ? cairn_step(t->optimizer) : st;
}

static cairn_status step(struct training *t, cairn_tensor **loss) {
    cairn_status st = backward(t, loss);
    return st == CAIRN_OK ? update(t) : st;
}

/* Writes the data that PyTorch compares with, if this rank has to. */
static bool save(const struct training *t, const char *folder, const char *what) {
    if (t->rank != 0 || strcmp(t->side, "cairn") != 0 || strcmp(folder, "-") == 0) return true;
    return bench_save(t->model, folder, what);
}

static cairn_status start(struct training *t, const char *model, const char *type, size_t bucket_nbytes, long steps,
                          const char *folder, FILE *bench) {
    cairn_tensor *loss = NULL;
    cairn_status st = set_up(t, model, type, bucket_nbytes);
    if (st == CAIRN_OK) st = backward(t, &loss);
    if (st != CAIRN_OK) return st;
    const double first = (double)cairn_tensor_item(loss);
    if (!save(t, folder, "gradients")) return CAIRN_ESYSTEM;
    st = update(t);
    for (long i = 1; st == CAIRN_OK && i < steps; i++) st = step(t, &loss);
    if (st == CAIRN_OK && !save(t, folder, "weights")) return CAIRN_ESYSTEM;
    if (st == CAIRN_OK) fprintf(bench, "ok %.9g\n", first);
    return st;
}

static cairn_status time_steps(struct training *t, long n, FILE *bench) {
    cairn_tensor *loss = NULL;
    uint64_t hash = 0;
    cairn_status st = step(t, &loss);
    const double begin = bench_now_us();
    for (long i = 0; st == CAIRN_OK && i < n; i++) st = step(t, &loss);
    const double us = (bench_now_us() - begin) / (double)n;
    if (st == CAIRN_OK) st = bench_hash_weights(t->model, &hash);
    if (st == CAIRN_OK)
        fprintf(bench, "ok %.3f %.9g %016llx\n", us, (double)cairn_tensor_item(loss), (unsigned long long)hash);
    return st;
}

/* ---- the socket ---- */

/* Returns whether to continue. */
static bool answer(void *ctx, const char *line, FILE *bench) {
    struct training *t = ctx;
    char model[16], type[8], folder[3072];
    long n = 0;
    size_t bucket_nbytes = 0;
    cairn_status st = CAIRN_EINVAL;
    if (sscanf(line, "start %15s %7s %zu %ld %3071[^\n]", model, type, &bucket_nbytes, &n, folder) == 5)
        st = start(t, model, type, bucket_nbytes, n, folder, bench);
    else if (sscanf(line, "steps %ld", &n) == 1 && n > 0 && t->model) st = time_steps(t, n, bench);
    if (st != CAIRN_OK) fprintf(bench, "failed %s\n", cairn_last_error());
    return st == CAIRN_OK;
}

static int serve(struct training *t, const char *socket_path) {
    char what[64];
    snprintf(what, sizeof(what), "%s of Cairn %d.%d.%d",
             t->connected ? cairn_group_backend(cairn_env_group(t->env)) : "one rank", CAIRN_VERSION_MAJOR,
             CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH);
    return bench_talk("bench-ddp", t->side, t->rank, what, socket_path, answer, t);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: tools/cairn-bench ddp, which starts this program; see --help\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct training t = {.side = argv[2], .connected = strcmp(argv[2], "alone") != 0};
    t.waits = strcmp(t.side, "lockstep") == 0;
    t.sends_nothing = t.waits || strcmp(t.side, "noop") == 0;
    char url[512];
    snprintf(url, sizeof(url), "file://%s", argv[3]);
    if (cairn_env_create(NULL, NULL, cairn_env_options(.init_method = t.connected ? url : NULL), &t.env) != CAIRN_OK) {
        fprintf(stderr, "bench-ddp: %s\n", cairn_last_error());
        return 1;
    }
    t.rank = t.connected ? cairn_env_rank(t.env) : atoi(argv[3]);
    int code = serve(&t, argv[1]);
    tear_down(&t);
    cairn_env_destroy(&t.env);
    return code;
}
