/* A chain of small layers, trained in stages, or by one rank that runs a backward per micro-batch itself. */
#ifndef TESTS_PARALLEL_CHAIN_H
#define TESTS_PARALLEL_CHAIN_H

#include "../ranks.h"

#include <math.h>
#include <stdbool.h>

#include "nn/hooks.h"
#include "param/param.h"

enum { LAYERS = 8, WIDTH = 8, MAX_STEPS = 8, MAX_ROWS = 64 };

enum chain_kind { CHAIN_SGD, CHAIN_ADAM, CHAIN_LAMB, CHAIN_NOVOGRAD };

/* A training's model and options. */
struct chain {
    const char *name;
    int ranks, chunks; /* of a replica; 0 ranks = one rank without a pipeline */
    cairn_pipeline_schedule schedule;
    int n_microbatches;
    int split_size, rows, steps;
    amp_opt_level level; /* 0 = without amp */
    cairn_dtype half;
    double max_norm; /* for clipping; 0 = none */
    bool exact;      /* data are small integers, so that nothing in a step is rounded */
    enum chain_kind kind;
    bool norms, dropout;
    int frozen;       /* number of frozen layers at the start */
    bool accumulates; /* two batches per step */
    int bad_layer, bad_micro_batch,
        bad_step;      /* where a gradient is infinite: layer from 1, 0 = none, LAYERS + 1 = the loss */
    double loss_scale; /* 0 = the level's */
    float loss_factor; /* 0 = 1 */
    int replicas;      /* 0 = 1; each trains on an equal share of the rows */
    bool shards;       /* replicas shard the optimizer */
    int bad_replica;   /* replica with the infinite gradient, in the last micro-batch */
    int dp, threads;   /* without a pipeline: replicas of cairn_data_parallel (0 = none), and their threads */
    bool loss_inside;  /* the replicas' forward returns the loss */
    bool is_named;     /* layers are named by their index in the whole model */
    const struct amp_scaler_options *scaler; /* NULL = the level's */
};

/* Results: each rank writes those of its layers, and the last rank the losses. */
struct outcome {
    float weights[LAYERS][WIDTH * WIDTH], biases[LAYERS][WIDTH], means[LAYERS][WIDTH];
    float masters[LAYERS][WIDTH * WIDTH]; /* masters of weights, of the first replica; 0 without masters */
    double losses[MAX_STEPS];
    double norms[MAX_STEPS], scales[MAX_STEPS];
    int skipped[MAX_STEPS];
    int in_flight[8]; /* by rank */
};

/* A number in [-1, 1) for an index, the same on every rank. */
static inline float chain_number(uint32_t a, uint32_t b) {
    uint32_t h = a * 2654435761u ^ (b + 1) * 2246822519u;
    h ^= h >> 15;
    h *= 2654435761u;
    h ^= h >> 13;
    return (float)(h >> 8) * 0x1p-23f - 1;
}

static inline float chain_input(const struct chain *c, int step, int i, bool is_target) {
    if (c->exact) return (float)((3 * i + 5 * step + (is_target ? 1 : 0)) % 3 - 1);
    return chain_number((uint32_t)(step * 2 + is_target), (uint32_t)i);
}

/* Exact data: rows with one or two small numbers, so that sums stay small. */
static inline float chain_weight(const struct chain *c, int layer, int i) {
    if (!c->exact) return chain_number((uint32_t)layer + 77, (uint32_t)i) * 0.6f;
    const int row = i / WIDTH, column = i % WIDTH;
    if (column == (row + layer) % WIDTH) return 1;
    return column == (row + 3 * layer + 2) % WIDTH && row % 2 == 0 ? -1 : 0;
}

/* ---- layers ---- */

struct chain_layers {
    cairn_module *linear[LAYERS], *norm[LAYERS];
};

static inline char *chain_make_layer(cairn_env *env, const struct chain *c, int i, struct chain_layers *made,
                                     cairn_module **out) {
    cairn_module *parts[4];
    float weights[WIDTH * WIDTH], bias[WIDTH];
    int count = 0;
    made->linear[i] = parts[count++] = cairn_linear(env, WIDTH, WIDTH);
    EXPECT(made->linear[i]);
    cairn_param_set *set = cairn_module_params(made->linear[i]);
    cairn_param p;
    for (int k = 0; k < WIDTH * WIDTH; k++) weights[k] = chain_weight(c, i, k);
    for (int k = 0; k < WIDTH; k++) bias[k] = c->exact ? (float)(k % 2) : chain_number((uint32_t)i + 990, (uint32_t)k);
    EXPECT_OK(cairn_param_set_get(set, 0, &p));
    EXPECT_OK(cairn__device_upload(env->device, p.data, weights, sizeof(weights)));
    EXPECT_OK(cairn_param_set_get(set, 1, &p));
    EXPECT_OK(cairn__device_upload(env->device, p.data, bias, sizeof(bias)));
    for (size_t k = 0; k < 2; k++) EXPECT_OK(cairn_param_changed(set, k, 0));
    if (c->frozen > i) EXPECT_OK(cairn_module_require_grad(made->linear[i], 0));
    if (c->norms && i % 3 == 1) made->norm[i] = parts[count++] = cairn_batch_norm(env, WIDTH, 1e-5, 0.1);
    parts[count++] = cairn_activation(env, c->exact ? cairn_relu : cairn_tanh);
    if (c->dropout) parts[count++] = cairn_dropout(env, 0.25);
    *out = cairn_sequential(env, count, parts);
    EXPECT(*out);
    return NULL;
}

static inline char *chain_make_stage(cairn_env *env, const struct chain *c, int first, int count,
                                     struct chain_layers *made, cairn_module **out) {
    cairn_module *layers[LAYERS];
    const char *names[LAYERS];
    char text[LAYERS][8];
    for (int i = 0; i < count; i++) {
        PASS(chain_make_layer(env, c, first + i, made, &layers[i]));
        snprintf(text[i], sizeof(text[i]), "%d", first + i);
        names[i] = text[i];
    }
    *out = c->is_named ? cairn_sequential_named(env, count, names, layers) : cairn_sequential(env, count, layers);
    EXPECT(*out);
    return NULL;
}

static inline char *chain_read_layer(const struct chain_layers *made, int i, struct outcome *out) {
    EXPECT_OK(cairn_tensor_read(cairn_module_get(made->linear[i], "weight"), out->weights[i], WIDTH * WIDTH));
    EXPECT_OK(cairn_tensor_read(cairn_module_get(made->linear[i], "bias"), out->biases[i], WIDTH));
    if (made->norm[i])
        EXPECT_OK(cairn_tensor_read(cairn_module_get(made->norm[i], "running_mean"), out->means[i], WIDTH));
    return NULL;
}

/* ---- a planted overflow ---- */

struct chain_plant {
    struct cairn_param_set *set;
    struct cairn__grad_listener listener;
    const struct cairn__grad_listener *ddp; /* ddp's listener behind this one; NULL = none */
    struct cairn__param *param;
    int at, calls; /* at: number of the call whose gradient becomes infinite */
};

static _Thread_local struct chain_plant *chain_planted; /* this rank's plant */

static inline void chain_plant_ready(void *ctx, size_t index) {
    struct chain_plant *plant = chain_planted;
    struct cairn__param *p = plant->set->params[index];
    if (p == plant->param && plant->calls++ == plant->at) {
        struct cairn_device *d = plant->set->env->device;
        d->passes->fill(d, p->dtype, cairn__grad_memory(p->gradient), 1, INFINITY);
    }
    if (plant->ddp) plant->ddp->ready(ctx, index);
}

static inline cairn_status chain_plant_ok(void *ctx) {
    (void)ctx;
    return CAIRN_OK;
}

static inline void chain_plant_failed(void *ctx) {
    (void)ctx;
}

/* Plants an infinity in the gradient of the layer's weight, in the at-th backward from now. */
static inline void chain_plant_begin(struct chain_plant *plant, cairn_module *root, cairn_module *layer, int at) {
    plant->set = cairn_module_params(root);
    plant->at = at;
    for (size_t i = 0; i < plant->set->count; i++) {
        if (plant->set->params[i]->data == cairn__tensor_values(cairn_module_get(layer, "weight")))
            plant->param = plant->set->params[i];
    }
    plant->listener = (struct cairn__grad_listener){.ctx = plant,
                                                    .progress = chain_plant_ok,
                                                    .settle = chain_plant_ok,
                                                    .failed = chain_plant_failed};
    plant->ddp = plant->set->listener;
    if (plant->ddp) plant->listener = *plant->ddp;
    plant->listener.ready = chain_plant_ready;
    plant->set->listener = &plant->listener;
    chain_planted = plant;
}

/* ---- one rank's training ---- */

struct chain_run {
    const struct chain *c;
    struct outcome *out; /* [replicas] */
};

struct chain_rank {
    const struct chain *c;
    cairn_env *env;
    cairn_module *stages[LAYERS];
    int num_stages;
    struct chain_layers layers;
    cairn_optimizer *optimizer;
    amp_context *amp;
    cairn_pipeline *pipeline;
    cairn_grid *grid;
    cairn_data_parallel *dp;
    ddp_context *ddp[LAYERS];
    struct chain_plant plant;
    int step;
    int rank, replica; /* position in the grid */
    bool synced_early; /* whether gradients were averaged before the forward of a later micro-batch */
};

static inline cairn_tensor *chain_loss(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    struct chain_rank *r = ctx;
    if (r->grid) r->synced_early |= !cairn_module_params(r->stages[r->num_stages - 1])->unsynced;
    cairn_tensor *loss = cairn_mse_loss(output, target);
    if (r->c->loss_factor > 0) loss = cairn_mul_scalar(loss, (double)r->c->loss_factor);
    const bool is_bad =
        r->c->bad_layer == LAYERS + 1 && r->step == r->c->bad_step && micro_batch == r->c->bad_micro_batch;
    return is_bad ? cairn_add_scalar(loss, (double)INFINITY) : loss;
}

static inline struct amp_options chain_amp(const struct chain *c) {
    return *amp_options(.opt_level = c->level, .half_type = c->half, .loss_scale = c->loss_scale, .scaler = c->scaler,
                        .verbosity = -1);
}

/* Adds one set's parameters; the first call creates the optimizer. */
static inline cairn_status chain_add_set(struct chain_rank *r, cairn_param_set *set) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT;
    struct cairn_lamb_options lamb = CAIRN_LAMB_OPTIONS_INIT;
    struct cairn_novograd_options novograd = CAIRN_NOVOGRAD_OPTIONS_INIT;
    cairn_optimizer **o = &r->optimizer;
    sgd.lr = r->c->exact ? 0x1p-6 : 0.25;
    sgd.momentum = r->c->exact ? 0 : 0.9;
    adam.lr = lamb.lr = novograd.lr = 0.02;
    lamb.max_grad_norm = 0.05;
    switch (r->c->kind) {
    case CHAIN_SGD:
        return *o ? cairn_sgd_add_group(*o, set, NULL, 0, &sgd) : cairn_sgd_create(set, &sgd, o);
    case CHAIN_ADAM:
        return *o ? cairn_adam_add_group(*o, set, NULL, 0, &adam) : cairn_adam_create(set, &adam, o);
    case CHAIN_LAMB:
        return *o ? cairn_lamb_add_group(*o, set, NULL, 0, &lamb) : cairn_lamb_create(set, &lamb, o);
    default:
        return *o ? cairn_novograd_add_group(*o, set, NULL, 0, &novograd) : cairn_novograd_create(set, &novograd, o);
    }
}

static inline char *chain_make_optimizer(struct chain_rank *r) {
    for (int i = 0; i < r->num_stages; i++) EXPECT_OK(chain_add_set(r, cairn_module_params(r->stages[i])));
    if (!r->c->level) return NULL;
    const struct amp_options level = chain_amp(r->c);
    EXPECT_OK(amp_initialize_all(r->env, r->num_stages, r->stages, 1, &r->optimizer, &level, &r->amp));
    return NULL;
}

static inline int chain_micro_batches(const struct chain *c) {
    const int split = c->split_size ? c->split_size : (c->rows + c->n_microbatches - 1) / c->n_microbatches;
    return (c->rows + split - 1) / split;
}

static inline cairn_module *chain_make_copy(void *ctx, cairn_env *env, int replica) {
    const struct chain *c = ((struct chain_rank *)ctx)->c;
    struct chain_layers made = {{NULL}, {NULL}};
    cairn_module *copy = NULL;
    (void)replica;
    return chain_make_stage(env, c, 0, LAYERS, &made, &copy) ? NULL : copy;
}

static inline cairn_tensor *chain_loss_inside(void *ctx, cairn_module *module, cairn_tensor *const *inputs, int count,
                                              int replica) {
    (void)ctx, (void)count, (void)replica;
    return cairn_mse_loss(cairn_module_forward(module, inputs[0]), inputs[1]);
}

/* The first n GPUs; if there are fewer, replicas share them. NULL on the CPU. */
static inline const int *chain_device_ids(cairn_env *env, int n) {
    static int ids[MAX_ROWS];
    const int visible = cairn__device_count(env->device);
    for (int i = 0; i < n; i++) ids[i] = i % visible;
    return cairn__is_on_host(env->device) ? NULL : ids;
}

/* A replica's loss on its share of the rows. */
static inline cairn_tensor *chain_part(struct chain_rank *r, cairn_tensor *x, cairn_tensor *y, int part) {
    if (r->c->loss_inside) return cairn_data_parallel_forward_n(r->dp, (cairn_tensor *[]){x, y}, 2);
    return chain_loss(r, r->dp ? cairn_data_parallel_forward(r->dp, x) : cairn_module_forward(r->stages[0], x), y,
                      part);
}

static inline char *chain_alone(struct chain_rank *r, cairn_tensor *x, cairn_tensor *y, double *mean) {
    const struct chain *c = r->c;
    const int split = c->split_size ? c->split_size : (c->rows + c->n_microbatches - 1) / c->n_microbatches;
    *mean = 0;
    for (int first = 0; first < c->rows; first += split) {
        const int end = first + split < c->rows ? first + split : c->rows;
        const double part = (double)(end - first) / c->rows;
        cairn_tensor *loss =
            chain_part(r, cairn_slice(x, 0, first, end, 1), cairn_slice(y, 0, first, end, 1), first / split);
        *mean += part * (double)cairn_tensor_item(loss);
        loss = split >= c->rows ? loss : cairn_mul_scalar(loss, part);
        EXPECT_OK(r->amp ? amp_backward(r->amp, loss, r->optimizer) : cairn_backward(loss));
    }
    return NULL;
}

static inline char *chain_batch(struct chain_rank *r, int batch, double *mean) {
    const struct chain *c = r->c;
    const int rows = c->rows / (c->replicas ? c->replicas : 1);
    float x[MAX_ROWS * WIDTH], y[MAX_ROWS * WIDTH];
    for (int i = 0; i < rows * WIDTH; i++) {
        x[i] = chain_input(c, batch, r->replica * rows * WIDTH + i, false);
        y[i] = chain_input(c, batch, r->replica * rows * WIDTH + i, true);
    }
    cairn_tensor *input = cairn_tensor_from(r->env, CAIRN_F32, CAIRN_SHAPE(rows, WIDTH), x);
    cairn_tensor *target = cairn_tensor_from(r->env, CAIRN_F32, CAIRN_SHAPE(rows, WIDTH), y);
    EXPECT(input && target);
    if (c->ranks) {
        EXPECT_OK(cairn_pipeline_step(r->pipeline, input, target, mean));
    } else {
        PASS(chain_alone(r, input, target, mean));
    }
    cairn_tensor_destroy(&input);
    cairn_tensor_destroy(&target);
    return NULL;
}

static inline char *chain_step(struct chain_rank *r, struct outcome *out) {
    const struct chain *c = r->c;
    const int rank = r->rank;
    const bool is_last = !c->ranks || rank == c->ranks - 1;
    double mean = 0, more = 0;
    cairn_zero_grad(r->optimizer);
    PASS(chain_batch(r, 2 * r->step, &mean));
    EXPECT(!r->synced_early || chain_micro_batches(c) == 1);
    if (c->accumulates) PASS(chain_batch(r, 2 * r->step + 1, &more));
    if (c->max_norm > 0) EXPECT_OK(cairn_clip_grad_norm(r->optimizer, c->max_norm, rank ? NULL : &out->norms[r->step]));
    EXPECT_OK(cairn_step(r->optimizer));
    EXPECT_OK(cairn_env_synchronize(r->env)); /* on a GPU the step's report arrives later */
    if (is_last) out->losses[r->step] = mean + more;
    if (rank == 0) out->skipped[r->step] = cairn_optimizer_step_skipped(r->optimizer);
    EXPECT(cairn_optimizer_step_skipped(r->optimizer) == (c->bad_layer && r->step == c->bad_step));
    if (r->amp && is_last) out->scales[r->step] = amp_scaler_get_scale(amp_scaler_of(r->amp, 0));
    return NULL;
}

/* Number of layers of a stage: as equal as possible. */
static inline int chain_first_layer(const struct chain *c, int stage) {
    const int stages = c->ranks ? c->ranks * c->chunks : 1;
    return stage * LAYERS / stages;
}

static inline char *chain_make_stages(struct chain_rank *r) {
    const struct chain *c = r->c;
    r->num_stages = c->ranks ? c->chunks : 1;
    for (int i = 0; i < r->num_stages; i++) {
        const int stage = i * (c->ranks ? c->ranks : 1) + r->rank, first = chain_first_layer(c, stage);
        PASS(chain_make_stage(r->env, c, first, chain_first_layer(c, stage + 1) - first, &r->layers, &r->stages[i]));
    }
    return NULL;
}

static inline char *chain_make_replicas(struct chain_rank *r) {
    for (int i = 0; r->grid && i < r->num_stages; i++)
        EXPECT_OK(ddp_create(r->stages[i], cairn_grid_replicas(r->grid),
                             ddp_options(.shard_optimizer = r->c->shards ? CAIRN_ON : CAIRN_DEFAULT), &r->ddp[i]));
    return NULL;
}

static inline char *chain_make_copies(struct chain_rank *r) {
    const struct chain *c = r->c;
    const struct amp_options level = chain_amp(c);
    if (c->dp)
        EXPECT_OK(cairn_data_parallel_create(
            r->stages[0],
            cairn_data_parallel_options(.num_replicas = c->dp, .device_ids = chain_device_ids(r->env, c->dp),
                                        .num_threads = c->threads, .make = chain_make_copy,
                                        .forward = c->loss_inside ? chain_loss_inside : NULL, .ctx = r,
                                        .forward_returns_loss = c->loss_inside ? CAIRN_ON : CAIRN_OFF,
                                        .amp = c->level ? &level : NULL),
            &r->dp));
    return NULL;
}

static inline char *chain_plant_bad(struct chain_rank *r) {
    const struct chain *c = r->c;
    const int bad = c->bad_layer - 1;
    if (bad < 0 || bad >= LAYERS || !r->layers.linear[bad] || r->replica != c->bad_replica) return NULL;
    int chunk = 0;
    while (chunk + 1 < r->num_stages && chain_first_layer(c, (chunk + 1) * c->ranks + r->rank) <= bad) chunk++;
    chain_plant_begin(&r->plant, r->stages[chunk], r->layers.linear[bad],
                      r->grid ? c->bad_step : c->bad_step * chain_micro_batches(c) + c->bad_micro_batch);
    return NULL;
}

static inline char *chain_begin(struct chain_rank *r, cairn_env *env, const struct chain *c) {
    r->c = c;
    r->env = env;
    r->rank = cairn_env_rank(env);
    if (c->replicas) {
        EXPECT_OK(cairn_grid_create(env, c->replicas, 0, &r->grid));
        r->rank = cairn_grid_stage(r->grid);
        r->replica = cairn_grid_replica(r->grid);
    }
    PASS(chain_make_stages(r));
    PASS(chain_make_optimizer(r));
    PASS(chain_make_replicas(r));
    PASS(chain_make_copies(r));
    if (c->ranks)
        EXPECT_OK(
            cairn_pipeline_create(r->stages, r->num_stages, r->grid ? cairn_grid_stages(r->grid) : cairn_env_group(env),
                                  cairn_pipeline_options(.schedule = c->schedule, .n_microbatches = c->n_microbatches,
                                                         .split_size = c->split_size, .loss = chain_loss, .ctx = r,
                                                         .amp = r->amp, .optimizer = r->optimizer,
                                                         .ddp = r->grid ? r->ddp : NULL),
                                  &r->pipeline));
    return chain_plant_bad(r);
}

static inline void chain_end(struct chain_rank *r) {
    if (r->plant.set) r->plant.set->listener = r->plant.ddp;
    cairn_data_parallel_destroy(&r->dp);
    cairn_pipeline_destroy(&r->pipeline);
    for (int i = 0; i < LAYERS; i++) ddp_destroy(&r->ddp[i]);
    amp_destroy(&r->amp);
    cairn_optimizer_destroy(&r->optimizer);
    for (int i = 0; i < r->num_stages; i++) cairn_module_destroy(&r->stages[i]);
    cairn_grid_destroy(&r->grid);
}

/* Runs this rank's part. */
static inline char *chain_read_master(const struct chain_rank *r, int i, struct outcome *first) {
    const void *weights = cairn__tensor_values(cairn_module_get(r->layers.linear[i], "weight"));
    for (int s = 0; s < r->num_stages; s++) {
        const struct cairn_param_set *set = cairn_module_params(r->stages[s]);
        for (size_t k = 0; k < set->count; k++) {
            const struct cairn__param *p = set->params[k];
            const struct cairn__shard shard = cairn__param_shard(p);
            if (p->data != weights || !p->master || (r->replica > 0 && !p->is_sharded)) continue;
            EXPECT_OK(cairn__device_download(r->env->device, first->masters[i] + shard.first, p->master,
                                             shard.n * sizeof(float)));
        }
    }
    return NULL;
}

static inline char *chain_train(struct chain_rank *r, cairn_env *env, const struct chain_run *run) {
    PASS(chain_begin(r, env, run->c));
    struct outcome *out = &run->out[r->replica];
    for (r->step = 0; r->step < run->c->steps; r->step++) PASS(chain_step(r, out));
    for (int i = 0; i < LAYERS; i++) {
        if (!r->layers.linear[i]) continue;
        PASS(chain_read_layer(&r->layers, i, out));
        PASS(chain_read_master(r, i, &run->out[0]));
    }
    out->in_flight[r->rank] = cairn_pipeline_in_flight(r->pipeline);
    return NULL;
}

static inline char *chain_rank_main(cairn_env *env, void *ctx) {
    struct chain_rank r = {.env = env};
    char *failure = chain_train(&r, env, ctx);
    chain_end(&r);
    return failure;
}

/* Trains c. For any number of ranks each of *out [replicas] has the results of the whole model. */
static inline void chain_run(const struct chain *c, struct outcome *out) {
    struct chain_run run = {c, out};
    const int replicas = c->replicas ? c->replicas : 1;
    memset(out, 0, (size_t)replicas * sizeof(*out));
    run_ranks((c->ranks ? c->ranks : 1) * replicas, chain_rank_main, &run);
}

static inline void chain_same(const char *name, const struct outcome *a, const struct outcome *b) {
    const bool same = memcmp(a->weights, b->weights, sizeof(a->weights)) == 0 &&
                      memcmp(a->biases, b->biases, sizeof(a->biases)) == 0 &&
                      memcmp(a->means, b->means, sizeof(a->means)) == 0;
    for (int i = 0; !same && i < LAYERS * WIDTH * WIDTH; i++) {
        const float x = a->weights[i / (WIDTH * WIDTH)][i % (WIDTH * WIDTH)];
        const float y = b->weights[i / (WIDTH * WIDTH)][i % (WIDTH * WIDTH)];
        if (memcmp(&x, &y, sizeof(x)) != 0)
            fail_msg("%s: weight %d of layer %d is %a, not %a", name, i % (WIDTH * WIDTH), i / (WIDTH * WIDTH),
                     (double)x, (double)y);
    }
    if (!same) fail_msg("%s: biases or means differ", name);
    for (int i = 0; i < MAX_STEPS; i++) {
        if (fabs(a->losses[i] - b->losses[i]) > 1e-12 * fabs(b->losses[i]))
            fail_msg("%s: the loss of step %d is %.17g, not %.17g", name, i, a->losses[i], b->losses[i]);
        if (a->scales[i] != b->scales[i] || a->skipped[i] != b->skipped[i])
            fail_msg("%s: step %d ends with scale %g, skipped %d; not %g, %d", name, i, a->scales[i], a->skipped[i],
                     b->scales[i], b->skipped[i]);
    }
}

#endif
