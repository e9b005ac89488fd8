/* A complete training program on NumPy files: sharded data, gradient accumulation, clipping, parameter groups, warm-up
 * and cosine schedule, freezing the first layer, evaluation across ranks, progress, checkpoints. docs/training.md
 * explains it and shows how to make the files.
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

enum { BATCH = 64, MICRO = 2, HIDDEN = 128 }; /* BATCH: examples per micro-batch, over all ranks */

struct options {
    const char *folder;
    struct amp_options amp;
    int classes, epochs;
};

struct part { /* one part of the data: train or test */
    cairn_dataset *dataset;
    cairn_sampler *sampler;
    cairn_loader *loader;
};

struct trainer {
    cairn_env *env;
    struct part train, test;
    cairn_module *model;
    cairn_optimizer *adamw;
    amp_context *amp;
    ddp_context *net;
    cairn_progress *progress;
    struct checkpoint checkpoint;
    int64_t features, rows; /* rows: this rank's examples in a micro-batch */
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

/* Training data is shuffled, with equally many examples on each rank; evaluation sees each example once over all
 * ranks. */
static void open_part(struct trainer *t, const struct options *o, struct part *p, const char *name) {
    const int is_train = p == &t->train, rank = cairn_env_rank(t->env), size = cairn_env_size(t->env);
    char x[4096], y[4096];
    cairn_npy *inputs;
    snprintf(x, sizeof(x), "%s/%s_x.npy", o->folder, name);
    snprintf(y, sizeof(y), "%s/%s_y.npy", o->folder, name);
    CAIRN_CHECK(cairn_npy_open(x, &inputs));
    CAIRN_CHECK(cairn_npy_expect(inputs, CAIRN_F32, CAIRN_SHAPE(-1, is_train ? -1 : t->features)));
    t->features = cairn_npy_size(inputs, 1);
    cairn_npy_destroy(&inputs);
    CAIRN_CHECK(cairn_npy_dataset_create((const char *const[]){x, y}, 2, &p->dataset));
    CAIRN_CHECK(cairn_distributed_sampler_create(cairn_dataset_count(p->dataset), rank, size,
                                                 cairn_sampler_options(.shuffle = is_train ? CAIRN_ON : CAIRN_OFF,
                                                                       .pad = is_train ? CAIRN_ON : CAIRN_OFF),
                                                 &p->sampler));
    CAIRN_CHECK(cairn_loader_create(t->env, p->dataset, p->sampler, (size_t)t->rows, cairn_loader_options(.workers = 1),
                                    &p->loader));
}

static void close_part(struct part *p) {
    cairn_loader_destroy(&p->loader);
    cairn_sampler_destroy(&p->sampler);
    cairn_dataset_destroy(&p->dataset);
}

static void begin(struct trainer *t, const struct options *o, int64_t total_steps) {
    struct cairn_adam_options matrices = CAIRN_ADAMW_OPTIONS_INIT, others = matrices;
    matrices.lr = others.lr = 2e-3;
    matrices.weight_decay = 0.01, others.weight_decay = 0; /* no decay for biases and normalisation */
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

/* One step of MICRO micro-batches; only the last backward reduces gradients. Returns 0 at the end of the epoch. */
static int step(struct trainer *t) {
    const struct cairn_batch *batch;
    cairn_tensor *loss = NULL;
    if (cairn_sampler_length(t->train.sampler) - cairn_sampler_position(t->train.sampler) < MICRO * t->rows) return 0;
    cairn_zero_grad(t->adamw);
    for (int m = 0; m < MICRO; m++) {
        if (m > 0) CAIRN_CHECK(cairn_release_results(t->env)); /* a step needs one micro-batch's memory */
        CAIRN_CHECK(cairn_loader_next(t->train.loader, &batch));
        CAIRN_CHECK(ddp_no_sync(t->net, m + 1 < MICRO));
        loss = cairn_cross_entropy(ddp_forward(t->net, batch->tensors[0]), batch->tensors[1], NULL);
        loss = cairn_mul_scalar(loss, 1.0 / MICRO);
        CAIRN_CHECK(amp_backward(t->amp, loss, t->adamw));
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
static double evaluate(struct trainer *t) {
    const struct cairn_batch *batch;
    cairn_metric *accuracy;
    CAIRN_CHECK(cairn_accuracy_create(1, NULL, &accuracy));
    CAIRN_CHECK(ddp_broadcast_buffers(t->net)); /* this model has none; batch norm's running statistics are buffers */
    cairn_module_train(t->model, 0);
    for (;;) {
        CAIRN_CHECK(cairn_loader_next(t->test.loader, &batch));
        if (!batch) break;
        cairn_no_grad_begin(t->env);
        CAIRN_CHECK(cairn_metric_update(accuracy, ddp_forward(t->net, batch->tensors[0]), batch->tensors[1]));
        CAIRN_CHECK(cairn_no_grad_end(t->env)); /* also releases the batch's results */
    }
    cairn_module_train(t->model, 1);
    CAIRN_CHECK(cairn_metrics_reduce(&accuracy, 1, cairn_env_group(t->env)));
    const double value = cairn_metric_value(accuracy);
    cairn_metric_destroy(&accuracy);
    return value;
}

int main(int argc, char **argv) {
    struct trainer t = {0};
    struct options o = {.amp = *amp_options(.opt_level = AMP_O1), .classes = 10, .epochs = 20};
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &t.env));
    parse(argc, argv, &o, &t.checkpoint);
    t.rows = BATCH / cairn_env_size(t.env);
    if (t.rows == 0) die("more ranks than examples of a batch");
    open_part(&t, &o, &t.train, "train");
    open_part(&t, &o, &t.test, "test");

    cairn_sampler *sampler = t.train.sampler;
    const int64_t steps = o.epochs * (cairn_sampler_length(sampler) / (MICRO * t.rows));
    begin(&t, &o, steps);
    checkpoint_begin(&t.checkpoint, t.env, t.model, t.adamw, t.amp, t.net, sampler);
    checkpoint_resume(&t.checkpoint); /* resumes within the epoch if the checkpoint was saved there */
    CAIRN_CHECK(cairn_progress_create(t.env, steps, cairn_progress_options(.done = t.checkpoint.steps), &t.progress));
    for (int64_t epoch = cairn_sampler_epoch(sampler); epoch < o.epochs; epoch++) {
        if (epoch > 0 && epoch == o.epochs / 2) /* train only the later layers from here on */
            CAIRN_CHECK(cairn_param_set_require_grad(cairn_module_params(t.model), "0.*", CAIRN_OFF));
        while (step(&t)) checkpoint_step(&t.checkpoint);
        CAIRN_CHECK(cairn_sampler_set_epoch(sampler, epoch + 1));
    }
    cairn_progress_destroy(&t.progress);
    checkpoint_end(&t.checkpoint);
    const double accuracy = evaluate(&t);
    if (cairn_env_rank(t.env) == 0) printf("test accuracy = %.2f %%\n", 100 * accuracy);

    ddp_destroy(&t.net);
    amp_destroy(&t.amp);
    cairn_optimizer_destroy(&t.adamw);
    cairn_module_destroy(&t.model);
    close_part(&t.test);
    close_part(&t.train);
    cairn_env_destroy(&t.env);
    return 0;
}
