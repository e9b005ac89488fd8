/* Trains a ResNet on a folder of pictures by class, FOLDER/train/CLASS and FOLDER/val/CLASS, on any number of ranks, at
 * any opt level, from random or pre-trained weights: docs/pictures.md, "A training".
 *
 *     make_pictures textures
 *     cairn-run --nproc_per_node 2 resnet_train textures --width 8 --size 32 --epochs 8
 *     cairn-run --nproc_per_node 8 resnet_train imagenet --depth 50 --opt-level O1 --half bf16 --checkpoint runs/a
 *
 * Hyperparameters are those of torchvision's references/classification: SGD with momentum 0.9 and weight decay 1e-4,
 * and a learning rate of 0.1 for a batch of 256 over all ranks, scaled in proportion to the batch. The schedule is a
 * cosine, where torchvision's lowers the rate in steps. */
#include <cairn/cairn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../checkpoint.h"
#include "resnet.h"

struct options {
    const char *folder, *weights, *save;
    struct amp_options amp;
    struct resnet_options net;
    int64_t size, batch; /* batch: per rank */
    int epochs, workers;
    double lr, least_scale; /* lr: for a batch of 256; least_scale: smallest fraction of the area in a crop */
};

struct part { /* one part of the data: train or val */
    cairn_picture_folder *folder;
    cairn_dataset *dataset;
    cairn_sampler *sampler;
    cairn_loader *loader;
};

struct trainer {
    cairn_env *env;
    struct part train, val;
    cairn_module *model;
    cairn_optimizer *sgd;
    amp_context *amp;
    ddp_context *net;
    cairn_progress *progress;
    struct checkpoint checkpoint;
};

static void die(const char *why) {
    fprintf(stderr, "resnet_train: %s\n", why);
    exit(1);
}

/* ---- options ---- */

static int parse_number(struct options *o, const char *name, const char *value) {
    const double v = atof(value);
    if (v <= 0) return 0;
    if (strcmp(name, "--depth") == 0 && resnet_is_depth(atoi(value))) o->net.depth = atoi(value);
    else if (strcmp(name, "--width") == 0) o->net.width = atoi(value);
    else if (strcmp(name, "--size") == 0) o->size = atoi(value);
    else if (strcmp(name, "--batch") == 0) o->batch = atoi(value);
    else if (strcmp(name, "--epochs") == 0) o->epochs = atoi(value);
    else if (strcmp(name, "--lr") == 0) o->lr = v;
    else if (strcmp(name, "--min-scale") == 0) o->least_scale = v;
    else return 0;
    return 1;
}

static void parse(int argc, char **argv, struct options *o, struct checkpoint *checkpoint) {
    static const char usage[] =
        "usage: FOLDER [--opt-level O0..O3] [--half f16|bf16] [--depth 18|34|50|101|152] [--width CHANNELS] "
        "[--size PIXELS] [--batch PICTURES, of a rank] [--epochs N] [--lr RATE, for a batch of 256] "
        "[--min-scale PART, above 0] [--workers N] [--weights FILE] [--save FILE] [--checkpoint FOLDER] "
        "[--save-every STEPS]";
    if (argc < 2 || argv[1][0] == '-') die(usage);
    o->folder = argv[1];
    for (int i = 2; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--opt-level") == 0) {
            CAIRN_CHECK(amp_opt_level_parse(value, &o->amp.opt_level));
        } else if (strcmp(name, "--half") == 0) {
            CAIRN_CHECK(amp_half_type_parse(value, &o->amp.half_type));
        } else if (strcmp(name, "--workers") == 0 && atoi(value) >= 0) {
            o->workers = atoi(value);
        } else if (strcmp(name, "--weights") == 0 && *value) {
            o->weights = value;
        } else if (strcmp(name, "--save") == 0 && *value) {
            o->save = value;
        } else if (!parse_number(o, name, value) && !checkpoint_option(checkpoint, name, value)) {
            die(usage);
        }
    }
}

/* ---- data ---- */

/* Training crops, flips and shuffles, and drops the last batch; evaluation sees each picture once over all ranks. */
static void open_part(struct trainer *t, const struct options *o, struct part *p, const char *name,
                      const cairn_picture_folder *same_classes_as) {
    const int is_train = p == &t->train;
    const int rank = cairn_env_rank(t->env), size = cairn_env_size(t->env);
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", o->folder, name);
    CAIRN_CHECK(cairn_picture_folder_create(path, cairn_picture_folder_options(.same_classes_as = same_classes_as),
                                            &p->folder));
    CAIRN_CHECK(cairn_picture_dataset_create(p->folder,
                                             cairn_picture_transform(.augment = is_train ? CAIRN_ON : CAIRN_OFF,
                                                                     .size = o->size, .scale = {o->least_scale, 1}),
                                             &p->dataset));
    CAIRN_CHECK(cairn_distributed_sampler_create(cairn_dataset_count(p->dataset), rank, size,
                                                 cairn_sampler_options(.shuffle = is_train ? CAIRN_ON : CAIRN_OFF,
                                                                       .pad = is_train ? CAIRN_ON : CAIRN_OFF),
                                                 &p->sampler));
    CAIRN_CHECK(
        cairn_loader_create(t->env, p->dataset, p->sampler, (size_t)o->batch,
                            cairn_loader_options(.workers = o->workers, .drop_last = is_train ? CAIRN_ON : CAIRN_OFF),
                            &p->loader));
    if (is_train && cairn_loader_length(p->loader) == 0) die("a rank has fewer pictures than a batch: lower --batch");
}

static void close_part(struct part *p) {
    cairn_loader_destroy(&p->loader);
    cairn_sampler_destroy(&p->sampler);
    cairn_dataset_destroy(&p->dataset);
    cairn_picture_folder_destroy(&p->folder);
}

/* ---- training ---- */

/* If the file has another number of classes, fc keeps its random initialization. */
static void load_weights(struct trainer *t, const char *path) {
    struct cairn_weights_report report = CAIRN_WEIGHTS_REPORT_INIT;
    CAIRN_CHECK(cairn_module_load(t->model, path, cairn_weights_options(.strict = CAIRN_OFF), &report));
    if (cairn_env_rank(t->env) == 0) printf("%s: %zu tensors loaded\n%s\n", path, report.loaded, report.text);
}

static void begin(struct trainer *t, struct options *o, int64_t total_steps) {
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = o->lr * (double)(o->batch * cairn_env_size(t->env)) / 256;
    hyper.momentum = 0.9, hyper.weight_decay = 1e-4;
    o->net.classes = cairn_picture_folder_num_classes(t->train.folder);
    t->model = resnet_create(t->env, &o->net);
    if (!t->model) die(cairn_last_error());
    if (o->weights) load_weights(t, o->weights);
    CAIRN_CHECK(cairn_sgd_create(cairn_module_params(t->model), &hyper, &t->sgd));
    CAIRN_CHECK(cairn_optimizer_set_schedule(t->sgd, cairn_cosine_schedule(.warmup_steps = total_steps / 20,
                                                                           .total_steps = total_steps)));
    CAIRN_CHECK(amp_initialize(t->env, t->model, t->sgd, &o->amp, &t->amp));
    CAIRN_CHECK(ddp_create(t->model, cairn_env_group(t->env), NULL, &t->net));
}

/* Returns 0 at the end of the epoch. */
static int step(struct trainer *t) {
    const struct cairn_batch *batch;
    cairn_zero_grad(t->sgd);
    CAIRN_CHECK(cairn_loader_next(t->train.loader, &batch));
    if (!batch) return 0;
    cairn_tensor *loss = cairn_cross_entropy(ddp_forward(t->net, batch->tensors[0]), batch->tensors[1], NULL);
    CAIRN_CHECK(amp_backward(t->amp, loss, t->sgd));
    CAIRN_CHECK(cairn_step(t->sgd));
    if (cairn_progress_step(t->progress))
        cairn_progress_show(t->progress, cairn_progress_values(.loss = (double)cairn_tensor_item(loss),
                                                               .lr = cairn_optimizer_step_lr(t->sgd, 0),
                                                               .scale = amp_scaler_get_scale(amp_scaler_of(t->amp, 0)),
                                                               .skipped = cairn_optimizer_skipped(t->sgd)));
    return 1;
}

/* Accuracy over all ranks, each picture once. */
static double evaluate(struct trainer *t) {
    const struct cairn_batch *batch;
    cairn_metric *accuracy;
    CAIRN_CHECK(cairn_accuracy_create(1, NULL, &accuracy));
    CAIRN_CHECK(ddp_broadcast_buffers(t->net)); /* all ranks evaluate with rank 0's running statistics */
    CAIRN_CHECK(cairn_sampler_set_epoch(t->val.sampler, 0));
    cairn_module_train(t->model, 0);
    for (;;) {
        CAIRN_CHECK(cairn_loader_next(t->val.loader, &batch));
        if (!batch) break;
        cairn_no_grad_begin(t->env);
        CAIRN_CHECK(cairn_metric_update(accuracy, ddp_forward(t->net, batch->tensors[0]), batch->tensors[1]));
        CAIRN_CHECK(cairn_no_grad_end(t->env));
    }
    cairn_module_train(t->model, 1);
    CAIRN_CHECK(cairn_metrics_reduce(&accuracy, 1, cairn_env_group(t->env)));
    const double value = cairn_metric_value(accuracy);
    cairn_metric_destroy(&accuracy);
    return value;
}

static void train(struct trainer *t, const struct options *o, int64_t total_steps) {
    checkpoint_begin(&t->checkpoint, t->env, t->model, t->sgd, t->amp, t->net, t->train.sampler);
    checkpoint_resume(&t->checkpoint); /* resumes within the epoch if the checkpoint was saved there */
    CAIRN_CHECK(
        cairn_progress_create(t->env, total_steps, cairn_progress_options(.done = t->checkpoint.steps), &t->progress));
    for (int64_t epoch = cairn_sampler_epoch(t->train.sampler); epoch < o->epochs; epoch++) {
        while (step(t)) checkpoint_step(&t->checkpoint);
        CAIRN_CHECK(cairn_sampler_set_epoch(t->train.sampler, epoch + 1));
    }
    cairn_progress_destroy(&t->progress);
    checkpoint_end(&t->checkpoint);
}

int main(int argc, char **argv) {
    struct trainer t = {0};
    struct options o = {.amp = *amp_options(.opt_level = AMP_O1),
                        .net = {.depth = 18},
                        .size = 224,
                        .batch = 32,
                        .epochs = 90,
                        .workers = 2,
                        .lr = 0.1,
                        .least_scale = 0.08};
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &t.env));
    parse(argc, argv, &o, &t.checkpoint);
    open_part(&t, &o, &t.train, "train", NULL);
    open_part(&t, &o, &t.val, "val", t.train.folder);
    const int64_t steps = o.epochs * cairn_loader_length(t.train.loader);
    begin(&t, &o, steps);
    train(&t, &o, steps);
    const double accuracy = evaluate(&t);
    if (cairn_env_rank(t.env) == 0) {
        printf("validation accuracy = %.2f %%\n", 100 * accuracy);
        if (o.save) CAIRN_CHECK(cairn_module_save(t.model, o.save, NULL));
    }

    ddp_destroy(&t.net);
    amp_destroy(&t.amp);
    cairn_optimizer_destroy(&t.sgd);
    cairn_module_destroy(&t.model);
    close_part(&t.val);
    close_part(&t.train);
    cairn_env_destroy(&t.env);
    return 0;
}
