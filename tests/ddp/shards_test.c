/* Sharded optimizers (ddp_options.shard_optimizer): at every level weights, masters and moments have the same bits as a
 * training in which every rank updates everything; unsupported combinations fail with a message. With CAIRN_TEST_SHORT
 * in the environment half of the optimizers and levels are tried on a number of ranks, and the other half on the
 * next. */
#include <math.h>

#include "../mlp.h"
#include "../on_gpu.h"
#include "../ranks.h"
#include "core/philox.h"
#include "optim/optim.h"

enum { IN = 21, HIDDEN = 19, OUT = 5, ROWS = 6, STEPS = 7, MAX_VALUES = 4 * (IN + OUT + 2) * (HIDDEN + 1) };

enum kind {
    SGD,
    ADAM,
    LION,
    OWN,
    NUM_KINDS,
    LAMB = NUM_KINDS,
    NOVOGRAD,
    LARC,
    ALL_KINDS /* by norms */,
    MUON = ALL_KINDS
};

static const struct level {
    amp_opt_level level; /* 0 = no amp */
    cairn_dtype half;
    bool stochastic;
} levels[] = {{0, 0, false},
              {AMP_O0, 0, false},
              {AMP_O1, CAIRN_F16, false},
              {AMP_O1, CAIRN_BF16, false},
              {AMP_O2, CAIRN_F16, false},
              {AMP_O2, CAIRN_BF16, false},
              {AMP_O3, CAIRN_F16, false},
              {AMP_O3, CAIRN_BF16, false},
              {AMP_O3, CAIRN_BF16, true}};
enum { NUM_LEVELS = sizeof(levels) / sizeof(levels[0]) };

struct setup {
    enum kind kind;
    struct level level;
    bool shards, late; /* late: the optimizer is made after ddp */
    bool clips, accumulates, unsynced, overflows, uses_some;
    size_t bucket_nbytes;
    amp_scaler_kind scaler; /* 0 = a static scale */
};

struct training {
    cairn_env *env;
    const struct setup *s;
    cairn_module *model;
    struct cairn_param_set *set;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *net;
};

/* An update that goes by an element's place in its parameter. */
static void update_own(void *ctx, const struct cairn_custom_update *u) {
    (void)ctx;
    for (size_t i = 0; i < u->n; i++) {
        u->states[0][i] = 0.5f * u->states[0][i] + u->grad[i];
        u->weights[i] -= (float)u->scalars->lr * (u->states[0][i] + (float)((u->offset + i) % 7 + u->size % 3));
    }
}

static const struct cairn_custom_optimizer own = {.struct_size = sizeof(own),
                                                  .name = "own",
                                                  .update = update_own,
                                                  .states = {"sum"}};

static cairn_status make_optimizer(struct training *t) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT;
    struct cairn_lion_options lion = CAIRN_LION_OPTIONS_INIT;
    sgd.lr = 0.05, sgd.momentum = 0.9, adam.lr = lion.lr = 0.01;
    if (t->s->kind == SGD) return cairn_sgd_create(t->set, &sgd, &t->optimizer);
    if (t->s->kind == ADAM) return cairn_adam_create(t->set, &adam, &t->optimizer);
    if (t->s->kind == MUON) return cairn_muon_create(t->set, NULL, NULL, &t->optimizer);
    if (t->s->kind == OWN) return cairn_custom_optimizer_create(t->set, &own, NULL, &t->optimizer);
    if (t->s->kind == LAMB) return cairn_lamb_create(t->set, NULL, &t->optimizer);
    if (t->s->kind == NOVOGRAD) return cairn_novograd_create(t->set, NULL, &t->optimizer);
    if (t->s->kind == LARC) {
        const cairn_status st = cairn_sgd_create(t->set, &sgd, &t->optimizer);
        return st == CAIRN_OK
                   ? cairn_optimizer_set_larc(t->optimizer, &(struct cairn_larc_options)CAIRN_LARC_OPTIONS_INIT)
                   : st;
    }
    return cairn_lion_create(t->set, &lion, &t->optimizer);
}

static char *begin(struct training *t, cairn_env *env, const struct setup *s) {
    const struct level *l = &s->level;
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler), .kind = s->scaler, .init_scale = 256};
    *t = (struct training){.env = env, .s = s, .model = make_mlp(env, IN, HIDDEN, OUT)};
    EXPECT(t->model != NULL);
    t->set = cairn_module_params(t->model);
    for (size_t i = 0; i < t->set->count; i++) { /* the same in both trainings */
        float *const w = t->set->params[i]->data;
        for (size_t e = 0; e < t->set->params[i]->n; e++) w[e] = (float)((i * 7 + e * 13) % 61) / 122 - 0.25f;
    }
    if (!s->late) EXPECT_OK(make_optimizer(t));
    if (l->level)
        EXPECT_OK(amp_initialize(env, t->model, t->optimizer,
                                 amp_options(.opt_level = l->level, .half_type = l->half, .verbosity = -1,
                                             .stochastic_rounding = l->stochastic ? CAIRN_ON : CAIRN_DEFAULT,
                                             .loss_scale = l->level == AMP_O0 || s->scaler ? 0 : 128,
                                             .scaler = s->scaler ? &scaler : NULL),
                                 &t->amp));
    EXPECT_OK(ddp_create(t->model, cairn_env_group(env),
                         ddp_options(.bucket_nbytes = s->bucket_nbytes,
                                     .find_unused_parameters = s->uses_some ? CAIRN_ON : CAIRN_DEFAULT,
                                     .shard_optimizer = s->shards ? CAIRN_ON : CAIRN_DEFAULT),
                         &t->net));
    if (s->late) EXPECT_OK(make_optimizer(t));
    return NULL;
}

static void end(struct training *t) {
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
}

static cairn_tensor *make_loss(struct training *t, int step) {
    static _Thread_local float x[ROWS * IN + 4], y[ROWS * OUT + 4];
    const uint64_t which = (uint64_t)(step * 16 + cairn_env_rank(t->env));
    for (uint64_t i = 0; 4 * i < ROWS * IN; i++) cairn__normal4(cairn__philox(5, i, 2 * which), x + 4 * i);
    for (uint64_t i = 0; 4 * i < ROWS * OUT; i++) cairn__normal4(cairn__philox(5, i, 2 * which + 1), y + 4 * i);
    if (t->s->overflows && step == 3 && cairn_env_rank(t->env) == 0) x[1] = INFINITY;
    cairn_tensor *xs = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN), x);
    cairn_tensor *ys = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT), y);
    return cairn_mse_loss(ddp_forward(t->net, xs), ys);
}

static char *backward(struct training *t, int step) {
    cairn_tensor *loss = make_loss(t, step);
    EXPECT_OK(t->amp ? amp_backward(t->amp, loss, t->optimizer) : cairn_backward(loss));
    return NULL;
}

static char *train_step(struct training *t, int step) {
    cairn_zero_grad(t->optimizer);
    if (t->s->unsynced) {
        EXPECT_OK(ddp_no_sync(t->net, 1));
        PASS(backward(t, step + 100));
        EXPECT_OK(ddp_no_sync(t->net, 0));
    }
    if (t->s->accumulates) PASS(backward(t, step + 200));
    PASS(backward(t, step));
    if (t->s->clips) EXPECT_OK(cairn_clip_grad_norm(t->optimizer, 0.1, NULL));
    EXPECT_OK(cairn_step(t->optimizer));
    return NULL;
}

/* ---- all values that a training ends with ---- */

struct values {
    size_t n;
    float at[MAX_VALUES];
    size_t nbytes; /* of weights as they are stored */
    _Alignas(float) char weights[4 * MAX_VALUES];
};

static void take_floats(struct values *v, const float *from, size_t n) {
    for (size_t i = 0; from && i < n; i++) v->at[v->n++] = from[i];
}

static void take_weights(struct values *v, const struct training *t) {
    v->nbytes = 0;
    for (size_t i = 0; i < t->set->count; i++) {
        const struct cairn__param *p = t->set->params[i];
        const size_t nbytes = p->n * cairn_dtype_nbytes(p->dtype);
        memcpy(v->weights + v->nbytes, p->data, nbytes);
        v->nbytes += nbytes;
    }
}

/* Masters and moments, when they are whole. */
static void take_arrays(struct values *v, const struct training *t) {
    v->n = 0;
    for (size_t i = 0; i < t->set->count; i++) {
        const struct cairn__param *p = t->set->params[i];
        for (int k = 0; k < CAIRN__PARAM_ARRAYS; k++) take_floats(v, cairn__param_array(p, k), p->n);
    }
}

static char *expect_same_values(const struct values *a, const struct values *b) {
    EXPECT(a->nbytes == b->nbytes && memcmp(a->weights, b->weights, a->nbytes) == 0);
    EXPECT(a->n == b->n && memcmp(a->at, b->at, a->n * sizeof(a->at[0])) == 0);
    return NULL;
}

static char *train(cairn_env *env, const struct setup *s, struct values *out) {
    struct training t;
    PASS(begin(&t, env, s));
    for (int step = 0; step < STEPS; step++) PASS(train_step(&t, step));
    EXPECT(s->scaler || s->overflows == (cairn_optimizer_skipped(t.optimizer) > 0));
    take_weights(out, &t);
    ddp_destroy(&t.net); /* which makes all whole */
    EXPECT(t.net == NULL);
    take_arrays(out, &t);
    end(&t);
    return NULL;
}

/* Squares are added in f32 within blocks of 256 elements, which begin elsewhere in shards: a norm is within 1e-6. */
static char *expect_close(const struct values *a, const struct values *b) {
    float largest = 0;
    EXPECT(a->n == b->n);
    for (size_t i = 0; i < a->n; i++) largest = fmaxf(largest, fabsf(a->at[i]));
    for (size_t i = 0; i < a->n; i++) EXPECT(fabsf(a->at[i] - b->at[i]) <= 1e-6f * largest);
    return NULL;
}

static char *expect_equal(cairn_env *env, const struct setup *s) {
    struct setup with = *s;
    struct values *v = calloc(2, sizeof(*v));
    EXPECT(v != NULL);
    with.shards = true;
    PASS(train(env, s, &v[0]));
    PASS(train(env, &with, &v[1]));
    PASS(s->clips || s->kind >= NUM_KINDS ? expect_close(&v[0], &v[1]) : expect_same_values(&v[0], &v[1]));
    free(v);
    return NULL;
}

/* ---- equal bits ---- */

/* Kinds and levels; without is_exact within what norms allow, with sums of gradients and overflows. */
struct walk {
    enum kind first, end;
    bool is_exact, clips;
};

static char *walk(cairn_env *env, void *ctx) {
    const struct walk *w = ctx;
    for (enum kind kind = w->first; kind < w->end; kind++) {
        if (kind == OWN && is_on_gpu()) continue; /* its update is the host's */
        for (int l = 0; l < NUM_LEVELS; l++) {
            const struct setup s = {.kind = kind,
                                    .level = levels[l],
                                    .clips = w->clips,
                                    .accumulates = !w->is_exact && l % 2 == 1,
                                    .overflows = !w->is_exact && levels[l].level == AMP_O2,
                                    .bucket_nbytes = !w->is_exact ? 500
                                                     : l % 2      ? 600
                                                                  : 0};
            if (check_is_short() && ((int)kind + l + cairn_env_size(env)) % 2) continue;
            if (!w->is_exact && levels[l].level == AMP_O3) continue; /* whose weights round the last bit up */
            PASS(expect_equal(env, &s));
        }
    }
    return NULL;
}

static void bits_are_those_without_shards_at_every_level(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) run_ranks(p, walk, &(struct walk){SGD, NUM_KINDS, .is_exact = true});
}

static char *train_other_ways(cairn_env *env, void *ctx) {
    (void)ctx;
    const struct level o2 = {AMP_O2, CAIRN_F16, false}, none = {0, 0, false};
    const struct setup cases[] = {{.kind = ADAM, .level = none, .late = true, .bucket_nbytes = 1},
                                  {.kind = ADAM, .level = o2, .accumulates = true},
                                  {.kind = SGD, .level = none, .accumulates = true, .bucket_nbytes = 300},
                                  {.kind = ADAM, .level = o2, .unsynced = true},
                                  {.kind = LION, .level = o2, .unsynced = true, .accumulates = true},
                                  {.kind = SGD, .level = o2, .overflows = true, .bucket_nbytes = 300},
                                  {.kind = ADAM, .level = o2, .overflows = true, .accumulates = true},
                                  {.kind = LION, .level = o2, .uses_some = true},
                                  {.kind = SGD, .level = o2, .scaler = AMP_SCALER_LOGMAX},
                                  {.kind = ADAM, .level = o2, .scaler = AMP_SCALER_HISTOGRAM, .accumulates = true},
                                  {.kind = ADAM, .level = o2, .scaler = AMP_SCALER_APEX, .overflows = true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) PASS(expect_equal(env, &cases[i]));
    return NULL;
}

static void bits_are_those_without_shards_however_gradients_come(void **state) {
    (void)state;
    for (int p = 2; p <= 4; p++) run_ranks(p, train_other_ways, NULL);
}

static void clipping_is_by_the_norm_of_all_shards(void **state) {
    (void)state;
    for (int p = 2; p <= 4; p++) run_ranks(p, walk, &(struct walk){SGD, NUM_KINDS, .clips = true});
}

static void rates_are_by_norms_of_all_shards(void **state) {
    (void)state;
    for (int p = 2; p <= 4; p++) run_ranks(p, walk, &(struct walk){NUM_KINDS, ALL_KINDS, .clips = false});
}

/* ---- the user reads ---- */

static char *read_norms(cairn_env *env, void *ctx) {
    double norms[2][4], total[2];
    (void)ctx;
    for (int k = 0; k < 2; k++) {
        const struct setup s = {.kind = ADAM, .level = {AMP_O2, CAIRN_F16, false}, .shards = k == 1};
        struct training t;
        PASS(begin(&t, env, &s));
        PASS(backward(&t, 0));
        EXPECT_OK(cairn_grad_norms(t.optimizer, norms[k], 4, &total[k]));
        EXPECT_OK(cairn_clip_grad_value(t.optimizer, 0.01));
        EXPECT_OK(cairn_step(t.optimizer));
        end(&t);
    }
    for (int i = 0; i < 4; i++) EXPECT(fabs(norms[0][i] - norms[1][i]) <= 1e-6 * norms[0][i]);
    EXPECT(fabs(total[0] - total[1]) <= 1e-6 * total[0]);
    return NULL;
}

static void norms_are_those_of_whole_gradients(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) run_ranks(p, read_norms, NULL);
}

/* ---- memory ---- */

/* What this rank's device holds of weights, masters and states. */
static _Thread_local struct {
    const struct cairn__device_ops *ops; /* of the device, without counting */
    struct {
        const void *at;
        size_t nbytes;
    } blocks[256];
    size_t nbytes;
} held;

static cairn_status alloc_counted(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out) {
    const cairn_status st = held.ops->alloc(d, holder, nbytes, out);
    if (st != CAIRN_OK || (holder != CAIRN__HOLDS_PARAMS && holder != CAIRN__HOLDS_OPTIM)) return st;
    for (size_t i = 0; i < 256; i++) {
        if (held.blocks[i].at) continue;
        held.blocks[i].at = *out;
        held.blocks[i].nbytes = nbytes;
        held.nbytes += nbytes;
        break;
    }
    return st;
}

static void free_counted(struct cairn_device *d, void *memory) {
    for (size_t i = 0; memory && i < 256; i++) {
        if (held.blocks[i].at != memory) continue;
        held.blocks[i].at = NULL;
        held.nbytes -= held.blocks[i].nbytes;
    }
    held.ops->free(d, memory);
}

/* The bytes, and how many elements the rank updates. */
static char *measure(cairn_env *env, bool shards, size_t *nbytes, size_t *mine, size_t *all) {
    const struct setup s = {.kind = ADAM, .level = {AMP_O2, CAIRN_F16, false}, .shards = shards};
    struct training t;
    const size_t before = held.nbytes;
    PASS(begin(&t, env, &s));
    *nbytes = held.nbytes - before;
    *mine = *all = 0;
    for (size_t i = 0; i < t.set->count; i++) {
        *mine += cairn__param_shard(t.set->params[i]).n;
        *all += t.set->params[i]->n;
    }
    EXPECT(!shards || *mine <= *all / (size_t)cairn_env_size(env) + 32 * (t.set->count + 1));
    end(&t);
    EXPECT(held.nbytes == before);
    return NULL;
}

/* Master and two moments of what other ranks update. */
static char *expect_a_share(cairn_env *env, void *ctx) {
    size_t nbytes[2], mine, all;
    (void)ctx;
    struct cairn__device_ops counting = *env->device->ops;
    memset(&held, 0, sizeof(held));
    held.ops = env->device->ops;
    counting.alloc = alloc_counted;
    counting.free = free_counted;
    env->device->ops = &counting;
    PASS(measure(env, false, &nbytes[0], &mine, &all));
    PASS(measure(env, true, &nbytes[1], &mine, &all));
    env->device->ops = held.ops;
    EXPECT(mine < all && nbytes[0] - nbytes[1] >= 12 * (all - mine));
    return NULL;
}

static void a_rank_has_its_share_of_the_state(void **state) {
    (void)state;
    for (int p = 2; p <= 4; p++) run_ranks(p, expect_a_share, NULL);
}

/* ---- refusals ---- */

static char *expect_refusals(cairn_env *env, void *ctx) {
    const struct setup s = {.kind = ADAM, .level = {AMP_O2, CAIRN_F16, false}, .shards = true};
    struct training t;
    cairn_param masters[4];
    cairn_averages *averages = NULL;
    (void)ctx;
    PASS(begin(&t, env, &s));
    EXPECT_REFUSED(cairn_averages_create(cairn_param_set_stateful(t.set), NULL, &averages), CAIRN_ENOTSUP,
                   "shard_optimizer");
    EXPECT_REFUSED(cairn_optimizer_masters(t.optimizer, masters, 4), CAIRN_ENOTSUP, "shard_optimizer");
    EXPECT(cairn_param_master(t.set, 0) == NULL);
    EXPECT_REFUSED(cairn_param_changed(t.set, 0, 1), CAIRN_ENOTSUP, "shard_optimizer");
    EXPECT_REFUSED(cairn_param_require_grad(t.set, 0, 0), CAIRN_ENOTSUP, "shard_optimizer");
    EXPECT_REFUSED(ddp_register_comm_hook(t.net, ddp_noop_hook()), CAIRN_ENOTSUP, "shard_optimizer");
    EXPECT_OK(ddp_no_sync(t.net, 1));
    PASS(backward(&t, 0));
    EXPECT_REFUSED(cairn_step(t.optimizer), CAIRN_ESTATE, "unsynced");
    EXPECT_OK(ddp_no_sync(t.net, 0));
    PASS(train_step(&t, 1));
    end(&t);
    return NULL;
}

static char *step_whole_matrices(cairn_env *env, void *ctx) {
    const struct setup s = {.kind = MUON, .level = {AMP_O2, CAIRN_F16, false}, .shards = true};
    struct training t;
    (void)ctx;
    PASS(begin(&t, env, &s));
    PASS(backward(&t, 0));
    EXPECT_REFUSED(cairn_step(t.optimizer), CAIRN_ENOTSUP, "Muon: ranks share the update of parameter");
    end(&t);
    return NULL;
}

/* The group of AdamW comes before Muon's, and is not updated either. */
static char *step_matrices_behind_others(cairn_env *env, void *ctx) {
    const struct setup s = {.kind = ADAM, .shards = true};
    const cairn_group_rule rules[] = {{.names = "*.bias", .adam = &(struct cairn_adam_options)CAIRN_ADAMW_OPTIONS_INIT},
                                      {.names = "*"}};
    struct training t;
    struct values before, after;
    (void)ctx;
    PASS(begin(&t, env, &s));
    cairn_optimizer_destroy(&t.optimizer);
    EXPECT_OK(cairn_muon_create_grouped(t.set, rules, 2, &t.optimizer));
    PASS(backward(&t, 0));
    before = after = (struct values){0};
    take_weights(&before, &t);
    for (int k = 0; k < 2; k++) EXPECT_REFUSED(cairn_step(t.optimizer), CAIRN_ENOTSUP, "shard_optimizer");
    take_weights(&after, &t);
    EXPECT(before.nbytes > 0 && memcmp(before.weights, after.weights, before.nbytes) == 0);
    EXPECT(cairn_optimizer_steps(t.optimizer) == 0);
    end(&t);
    return NULL;
}

static void a_step_that_is_refused_updates_no_group(void **state) {
    (void)state;
    for (int p = 2; p <= 3; p++) run_ranks(p, step_matrices_behind_others, NULL);
}

static char *step_by_a_greatest_nan(cairn_env *env, void *ctx) {
    const struct setup s = {.kind = ADAM, .shards = true};
    struct cairn_novograd_options by_greatest = CAIRN_NOVOGRAD_OPTIONS_INIT;
    struct training t;
    (void)ctx;
    by_greatest.max_norm = CAIRN_ON;
    PASS(begin(&t, env, &s));
    cairn_optimizer_destroy(&t.optimizer);
    EXPECT_OK(cairn_novograd_create(t.set, &by_greatest, &t.optimizer));
    PASS(backward(&t, 0));
    const struct cairn__param *p = t.set->params[0];
    if (cairn_env_rank(env) == 0) ((float *)cairn__grad_memory(p->gradient))[cairn__param_shard(p).first] = NAN;
    EXPECT_OK(cairn_step(t.optimizer));
    for (size_t i = 0; i < p->n; i++) EXPECT(isnan(((float *)p->data)[i]));
    end(&t);
    return NULL;
}

static void a_nan_is_the_greatest_of_all_shards(void **state) {
    (void)state;
    run_ranks(2, step_by_a_greatest_nan, NULL);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    run_ranks(2, expect_refusals, NULL);
    run_ranks(2, step_whole_matrices, NULL);
}

static char *create_with_wire(cairn_env *env, void *ctx) {
    cairn_module *model = make_mlp(env, IN, HIDDEN, OUT);
    ddp_context *net = NULL;
    (void)ctx;
    EXPECT_REFUSED(ddp_create(model, cairn_env_group(env), ddp_options(.shard_optimizer = CAIRN_ON, .wire = CAIRN_BF16),
                              &net),
                   CAIRN_ENOTSUP, "wire");
    EXPECT_REFUSED(ddp_reducer_create(model, cairn_env_group(env), ddp_options(.shard_optimizer = CAIRN_ON), &net),
                   CAIRN_ENOTSUP, "ddp_reducer_create");
    EXPECT_REFUSED(ddp_create(model, cairn_env_group(env),
                              ddp_options(.shard_optimizer = cairn_env_rank(env) ? CAIRN_ON : CAIRN_OFF), &net),
                   CAIRN_EPEER, "shard_optimizer");
    cairn_module_destroy(&model);
    return NULL;
}

static void options_that_contradict_are_refused(void **state) {
    (void)state;
    run_ranks(2, create_with_wire, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_without_shards_at_every_level),
        cmocka_unit_test(bits_are_those_without_shards_however_gradients_come),
        cmocka_unit_test(clipping_is_by_the_norm_of_all_shards),
        cmocka_unit_test(rates_are_by_norms_of_all_shards),
        cmocka_unit_test(norms_are_those_of_whole_gradients),
        cmocka_unit_test(a_rank_has_its_share_of_the_state),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_step_that_is_refused_updates_no_group),
        cmocka_unit_test(a_nan_is_the_greatest_of_all_shards),
        cmocka_unit_test(options_that_contradict_are_refused),
    };
    cairn_set_log(log_nothing, NULL); /* of steps that are skipped */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
