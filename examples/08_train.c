/* A whole training from NumPy's files: each rank's share of the data, accumulation, clipping, groups, warm-up, cosine,
 * freezing of the first layer, evaluation over ranks, progress, checkpoints: docs/training.md, which makes the files.
 *
 *     ./08_train FOLDER --opt-level O2 --half bf16
 *     cairn-run --nproc_per_node 2 --max-restarts 3 ./08_train FOLDER --checkpoint runs/a
 *
 * FOLDER has train_x.npy and test_x.npy, f32 [examples, features], and train_y.npy and test_y.npy, i64 [examples]. */
#include <cairn/cairn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"

enum { BATCH = 64, MICRO = 2, HIDDEN = 128 }; /* BATCH examples a micro-batch, over all ranks */

struct options {
    const char *folder;
    struct amp_options amp;
    int classes, epochs;
};

struct data {
    cairn_npy *x, *y;
};

struct trainer {
    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *adamw;
    amp_context *amp;
    ddp_context *net;
    cairn_progress *progress;
    struct checkpoint checkpoint;
    int64_t features, rows, y[BATCH]; /* rows: of this rank's part of a micro-batch; y, x: one of them */
    float *x;
};

static void die(const char *why) {
    fprintf(stderr, "08_train: %s\n", why);
    exit(1);
}

static void parse(int argc, char **argv, struct options *o, struct checkpoint *checkpoint) {
    static const char usage[] = "usage: FOLDER [--opt-level O0..O3] [--half f16|bf16] [--classes N, from 2] "
                                "[--epochs N] [--checkpoint FOLDER] [--save-every STEPS]";
    if (argc < 2) die(usage);
    o->folder = argv[1];
    for (int i = 2; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--opt-level") == 0) {
            CAIRN_CHECK(amp_opt_level_parse(value, &o->amp.opt_level));
        } else if (strcmp(name, "--half") == 0) {
            CAIRN_CHECK(amp_half_type_parse(value, &o->amp.half_type));
        } else if (strcmp(name, "--classes") == 0 && atoi(value) > 1) {
            o->classes = atoi(value);
        } else if (strcmp(name, "--epochs") == 0 && atoi(value) > 0) {
            o->epochs = atoi(value);
        } else if (!checkpoint_option(checkpoint, name, value)) {
            die(usage);
        }
    }
}

static cairn_npy *open_array(const struct options *o, const char *name) {
    char path[4096];
    cairn_npy *array;
    snprintf(path, sizeof(path), "%s/%s.npy", o->folder, name);
    CAIRN_CHECK(cairn_npy_open(path, &array));
    return array;
}

/* features -1: any number. */
static struct data open_data(const struct options *o, const char *x, const char *y, int64_t features) {
    struct data d = {open_array(o, x), open_array(o, y)};
    CAIRN_CHECK(cairn_npy_expect(d.x, CAIRN_F32, CAIRN_SHAPE(-1, features)));
    CAIRN_CHECK(cairn_npy_expect(d.y, CAIRN_I64, CAIRN_SHAPE(cairn_npy_size(d.x, 0)))); /* as many as inputs */
    return d;
}

/* The n examples of batch, as new tensors that the caller destroys. */
static void read_batch(struct trainer *t, const struct data *d, const int64_t *batch, size_t n, cairn_tensor **x,
                       cairn_tensor **y) {
    CAIRN_CHECK(cairn_npy_read_rows(d->x, batch, n, t->x, n * (size_t)t->features * sizeof(float)));
    CAIRN_CHECK(cairn_npy_read_rows(d->y, batch, n, t->y, n * sizeof(int64_t)));
    *x = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE((int64_t)n, t->features), t->x);
    *y = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE((int64_t)n), t->y);
}

static void begin(struct trainer *t, const struct options *o, int64_t total_steps) {
    struct cairn_adam_options matrices = CAIRN_ADAMW_OPTIONS_INIT, others = matrices;
    matrices.lr = others.lr = 2e-3;
    matrices.weight_decay = 0.01, others.weight_decay = 0; /* biases and normalisation */
    const cairn_group_rule rules[] = {{.are = CAIRN_PARAMS_MATRICES, .adam = &matrices}, {.adam = &others}};
    t->model = cairn_sequential(
        t->env, CAIRN_MODULES(cairn_linear(t->env, t->features, HIDDEN), cairn_activation(t->env, cairn_relu), /**/
                              cairn_layer_norm(t->env, CAIRN_SHAPE(HIDDEN), 1e-5), cairn_linear(t->env, HIDDEN, HIDDEN),
                              cairn_activation(t->env, cairn_relu), cairn_linear(t->env, HIDDEN, o->classes)));
    if (!t->model) die(cairn_last_error());
    CAIRN_CHECK(cairn_adamw_create_grouped(cairn_module_params(t->model), rules, 2, &t->adamw));
    CAIRN_CHECK(cairn_optimizer_set_schedule(t->adamw, cairn_cosine_schedule(.warmup_steps = total_steps / 10,
                                                                             .total_steps = total_steps)));
    CAIRN_CHECK(amp_initialize(t->env, t->model, t->adamw, &o->amp, &t->amp));
    CAIRN_CHECK(ddp_create(t->model, cairn_env_group(t->env), NULL, &t->net));
}

/* One step of MICRO micro-batches; only the last one's backward exchanges gradients. 0: the epoch has no such step. */
static int step(struct trainer *t, const struct data *d, cairn_sampler *sampler) {
    int64_t batch[BATCH];
    cairn_tensor *x, *y, *loss = NULL;
    if (cairn_sampler_length(sampler) - cairn_sampler_position(sampler) < MICRO * t->rows) return 0;
    cairn_zero_grad(t->adamw);
    for (int m = 0; m < MICRO; m++) {
        read_batch(t, d, batch, cairn_sampler_next(sampler, batch, (size_t)t->rows), &x, &y);
        if (m > 0) CAIRN_CHECK(cairn_release_results(t->env)); /* so that a step takes the memory of one micro-batch */
        CAIRN_CHECK(ddp_no_sync(t->net, m + 1 < MICRO));
        loss = cairn_mul_scalar(cairn_cross_entropy(ddp_forward(t->net, x), y, NULL), 1.0 / MICRO);
        CAIRN_CHECK(amp_backward(t->amp, loss, t->adamw));
        cairn_tensor_destroy(&x), cairn_tensor_destroy(&y);
    }
    CAIRN_CHECK(cairn_clip_grad_norm(t->adamw, 1.0, NULL));
    CAIRN_CHECK(cairn_step(t->adamw));
    if (cairn_progress_step(t->progress))
        cairn_progress_show(t->progress, cairn_progress_values(.loss = MICRO * (double)cairn_tensor_item(loss),
                                                               .lr = cairn_optimizer_step_lr(t->adamw, 0),
                                                               .scale = amp_scaler_get_scale(amp_scaler_of(t->amp, 0)),
                                                               .skipped = cairn_optimizer_skipped(t->adamw)));
    return 1;
}

/* Accuracy over all ranks, each example once, whatever the number of ranks. */
static double evaluate(struct trainer *t, const struct data *d) {
    int64_t batch[BATCH];
    cairn_sampler *sampler;
    cairn_metric *accuracy;
    CAIRN_CHECK(
        cairn_distributed_sampler_create(cairn_npy_size(d->x, 0), cairn_env_rank(t->env), cairn_env_size(t->env),
                                         cairn_sampler_options(.shuffle = CAIRN_OFF, .pad = CAIRN_OFF), &sampler));
    CAIRN_CHECK(cairn_accuracy_create(1, NULL, &accuracy));
    CAIRN_CHECK(ddp_broadcast_buffers(t->net)); /* none in this model; with batch norm its running statistics */
    cairn_module_train(t->model, 0);
    for (size_t n; (n = cairn_sampler_next(sampler, batch, (size_t)t->rows)) > 0;) {
        cairn_tensor *x, *y;
        read_batch(t, d, batch, n, &x, &y);
        cairn_no_grad_begin(t->env);
        CAIRN_CHECK(cairn_metric_update(accuracy, ddp_forward(t->net, x), y));
        CAIRN_CHECK(cairn_no_grad_end(t->env)); /* which gives the batch's results back */
        cairn_tensor_destroy(&x), cairn_tensor_destroy(&y);
    }
    cairn_module_train(t->model, 1);
    CAIRN_CHECK(cairn_metrics_reduce(&accuracy, 1, cairn_env_group(t->env)));
    const double value = cairn_metric_value(accuracy);
    cairn_metric_destroy(&accuracy);
    cairn_sampler_destroy(&sampler);
    return value;
}

int main(int argc, char **argv) {
    struct trainer t = {0};
    struct options o = {.amp = *amp_options(.opt_level = AMP_O1), .classes = 10, .epochs = 20};
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &t.env));
    parse(argc, argv, &o, &t.checkpoint);
    const int rank = cairn_env_rank(t.env), size = cairn_env_size(t.env);
    struct data data[2] = {open_data(&o, "train_x", "train_y", -1)};
    t.features = cairn_npy_size(data[0].x, 1);
    data[1] = open_data(&o, "test_x", "test_y", t.features);
    t.rows = BATCH / size;
    t.x = malloc(BATCH * (size_t)t.features * sizeof(float));
    if (size > BATCH || !t.x) die("more ranks than examples of a batch, or no memory");

    cairn_sampler *sampler;
    CAIRN_CHECK(cairn_distributed_sampler_create(cairn_npy_size(data[0].x, 0), rank, size, NULL, &sampler));
    const int64_t steps = o.epochs * (cairn_sampler_length(sampler) / (MICRO * t.rows));
    begin(&t, &o, steps);
    checkpoint_begin(&t.checkpoint, t.env, t.model, t.adamw, t.amp, t.net, sampler);
    checkpoint_resume(&t.checkpoint); /* in the middle of an epoch, where it was saved there */
    CAIRN_CHECK(cairn_progress_create(t.env, steps, cairn_progress_options(.done = t.checkpoint.steps), &t.progress));
    for (int64_t epoch = cairn_sampler_epoch(sampler); epoch < o.epochs; epoch++) {
        if (epoch > 0 && epoch == o.epochs / 2) /* the first layer has learnt what it will */
            CAIRN_CHECK(cairn_param_set_require_grad(cairn_module_params(t.model), "0.*", CAIRN_OFF));
        while (step(&t, &data[0], sampler)) checkpoint_step(&t.checkpoint);
        CAIRN_CHECK(cairn_sampler_set_epoch(sampler, epoch + 1));
    }
    cairn_progress_destroy(&t.progress);
    checkpoint_end(&t.checkpoint);
    const double accuracy = evaluate(&t, &data[1]);
    if (rank == 0) printf("test accuracy = %.2f %%\n", 100 * accuracy);

    cairn_sampler_destroy(&sampler);
    ddp_destroy(&t.net);
    amp_destroy(&t.amp);
    cairn_optimizer_destroy(&t.adamw);
    cairn_module_destroy(&t.model);
    for (int i = 0; i < 2; i++) cairn_npy_destroy(&data[i].x), cairn_npy_destroy(&data[i].y);
    free(t.x);
    cairn_env_destroy(&t.env);
    return 0;
}
