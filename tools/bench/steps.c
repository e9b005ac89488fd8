#include "steps.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "training.h"
#include "worker.h"

/* ---- one training ---- */

static void tear_down(struct bench_training *t) {
    ddp_destroy(&t->ddp);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    for (int i = 0; i < BENCH_MOST_INPUTS; i++) cairn_tensor_destroy(&t->inputs[i]);
    cairn_tensor_destroy(&t->labels);
    free(t->operands);
    t->operands = NULL;
}

static cairn_status set_up(struct bench_training *t, const char *type, const char *level, double dropout) {
    struct amp_options amp = *amp_options(.verbosity = -1);
    tear_down(t);
    t->type = strcmp(type, "f16") == 0 ? CAIRN_F16 : strcmp(type, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32;
    if (t->type != CAIRN_F32) amp.half_type = t->type;
    cairn_status st = amp_opt_level_parse(level, &amp.opt_level);
    if (st == CAIRN_OK && !(t->model = t->of->create(t->env, t->size, dropout))) st = CAIRN_ENOMEM;
    if (st == CAIRN_OK && !t->of->make_batch(t)) st = CAIRN_ENOMEM;
    if (st == CAIRN_OK) st = t->of->fill_weights(cairn_module_params(t->model));
    if (st == CAIRN_OK) st = t->of->create_optimizer(cairn_module_params(t->model), &t->optimizer);
    if (st == CAIRN_OK) st = amp_initialize(t->env, t->model, t->optimizer, &amp, &t->amp);
    if (st == CAIRN_OK && cairn_env_size(t->env) > 1) st = ddp_create(t->model, cairn_env_group(t->env), NULL, &t->ddp);
    return st;
}

static cairn_status backward(struct bench_training *t, cairn_tensor **loss) {
    cairn_zero_grad(t->optimizer);
    const int n = t->of->num_inputs;
    cairn_tensor *scores =
        t->ddp ? ddp_forward_n(t->ddp, t->inputs, n) : cairn_module_forward_n(t->model, t->inputs, n);
    *loss = cairn_cross_entropy(scores, t->labels, NULL);
    return amp_backward(t->amp, *loss, t->optimizer);
}

static cairn_status update(struct bench_training *t) {
    const double most = t->of->max_norm;
    cairn_status st = most > 0 ? cairn_clip_grad_norm(t->optimizer, most, NULL) : CAIRN_OK;
    return st == CAIRN_OK ? cairn_step(t->optimizer) : st;
}

static cairn_status step(struct bench_training *t, cairn_tensor **loss) {
    cairn_status st = backward(t, loss);
    return st == CAIRN_OK ? update(t) : st;
}

static bool save(const struct bench_training *t, const char *folder, const char *what) {
    return t->rank != 0 || strcmp(folder, "-") == 0 || bench_save(t->model, folder, what);
}

static cairn_status start(struct bench_training *t, const char *type, const char *level, double dropout, long steps,
                          const char *folder, FILE *bench) {
    cairn_tensor *loss = NULL;
    cairn_status st = set_up(t, type, level, dropout);
    if (st != CAIRN_OK) return st;
    cairn_module_train(t->model, !t->of->drops);
    st = backward(t, &loss);
    if (st != CAIRN_OK) return st;
    const double first = (double)cairn_tensor_item(loss);
    if (!save(t, folder, "gradients")) return CAIRN_ESYSTEM;
    st = update(t);
    for (long i = 1; st == CAIRN_OK && i < steps; i++) st = step(t, &loss);
    if (st == CAIRN_OK && !save(t, folder, "weights")) return CAIRN_ESYSTEM;
    cairn_module_train(t->model, 1);
    if (st == CAIRN_OK) fprintf(bench, "ok %.9g\n", first);
    return st;
}

static cairn_status time_steps(struct bench_training *t, long n, FILE *bench) {
    cairn_tensor *loss = NULL;
    uint64_t hash = 0;
    cairn_status st = step(t, &loss);
    const double begin = bench_now_us(), begin_cpu = bench_cpu_us();
    for (long i = 0; st == CAIRN_OK && i < n; i++) st = step(t, &loss);
    const double us = (bench_now_us() - begin) / (double)n, cpu = (bench_cpu_us() - begin_cpu) / (double)n;
    if (st == CAIRN_OK) st = bench_hash_weights(t->model, &hash);
    if (st == CAIRN_OK)
        fprintf(bench, "ok %.3f %.3f %.9g %016llx\n", us, cpu, (double)cairn_tensor_item(loss),
                (unsigned long long)hash);
    return st;
}

static cairn_status time_products(struct bench_training *t, long n, FILE *bench) {
    cairn_status st = t->of->products(t);
    const double begin = bench_now_us(), begin_cpu = bench_cpu_us();
    for (long i = 0; st == CAIRN_OK && i < n; i++) st = t->of->products(t);
    if (st == CAIRN_OK)
        fprintf(bench, "ok %.3f %.3f\n", (bench_now_us() - begin) / (double)n,
                (bench_cpu_us() - begin_cpu) / (double)n);
    return st;
}

/* ---- the socket ---- */

static cairn_status tell_peak(FILE *bench) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[128];
    long kib = -1;
    while (status && fgets(line, sizeof(line), status)) {
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtol(line + 6, NULL, 10);
    }
    if (status) fclose(status);
    fprintf(bench, "ok %ld\n", kib);
    return CAIRN_OK;
}

/* Returns whether to continue. */
static bool answer(void *ctx, const char *line, FILE *bench) {
    struct bench_training *t = ctx;
    char type[8], level[8], folder[3072];
    long n = 0;
    double dropout = 0;
    int size = 0;
    cairn_status st = CAIRN_EINVAL;
    if (sscanf(line, "start %d %7s %7s %lf %ld %3071[^\n]", &size, type, level, &dropout, &n, folder) == 6) {
        t->size = size;
        st = start(t, type, level, dropout, n, folder, bench);
    } else if (sscanf(line, "steps %ld", &n) == 1 && n > 0 && t->model) {
        st = time_steps(t, n, bench);
    } else if (sscanf(line, "products %ld", &n) == 1 && n > 0 && t->model && t->of->products) {
        st = time_products(t, n, bench);
    } else if (strncmp(line, "peak", 4) == 0) {
        st = tell_peak(bench);
    }
    if (st != CAIRN_OK) fprintf(bench, "failed %s\n", cairn_last_error());
    return st == CAIRN_OK;
}

static int serve(struct bench_training *t, const char *socket_path) {
    char what[64];
    snprintf(what, sizeof(what), "%s of Cairn %d.%d.%d",
             cairn_env_size(t->env) > 1 ? cairn_group_backend(cairn_env_group(t->env)) : "one rank",
             CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH);
    return bench_talk(t->of->program, t->side, t->rank, what, socket_path, answer, t);
}

int bench_train(const struct bench_model *model, int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "%s is a part of tools/cairn-bench, which starts it; see its --help\n", model->program);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct bench_training t = {.of = model, .side = argv[2]};
    const char *size = getenv("WORLD_SIZE");
    char url[512];
    snprintf(url, sizeof(url), "file://%s", argv[3]);
    const bool alone = !size || strcmp(size, "1") == 0;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.init_method = alone ? NULL : url), &t.env) != CAIRN_OK) {
        fprintf(stderr, "%s: %s\n", model->program, cairn_last_error());
        return 1;
    }
    t.rank = cairn_env_rank(t.env);
    int code = serve(&t, argv[1]);
    tear_down(&t);
    cairn_env_destroy(&t.env);
    return code;
}
