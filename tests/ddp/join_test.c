/* Uneven inputs: whichever rank runs out first, all ranks have equal bits after every step, and these are the bits that
 * one process computes from all batches. */
#include <math.h>

#include "../kept_log.h"
#include "../mlp.h"
#include "../on_gpu.h"
#include "../plant.h"
#include "../ranks.h"
#include "comm/group.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "core/philox.h"
#include "core/trace.h"
#include "optim/optim.h"

struct training {
    cairn_module *model;
    struct cairn_param_set *set;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *net;
    struct plant plant;
};

static const struct amp_options plain = {.struct_size = sizeof(plain), .opt_level = AMP_O0, .verbosity = -1};

/* sgd_lr 0: AdamW. */
static char *begin(struct training *t, cairn_env *env, cairn_module *model, const struct amp_options *amp,
                   const struct ddp_options *ddp, double sgd_lr) {
    struct cairn_adam_options adamw = CAIRN_ADAMW_OPTIONS_INIT;
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    adamw.lr = 0.01;
    sgd.lr = sgd_lr;
    EXPECT(model != NULL);
    *t = (struct training){.model = model, .set = cairn_module_params(model)};
    if (sgd_lr > 0) EXPECT_OK(cairn_sgd_create(t->set, &sgd, &t->optimizer));
    else EXPECT_OK(cairn_adamw_create(t->set, &adamw, &t->optimizer));
    EXPECT_OK(amp_initialize(env, model, t->optimizer, amp, &t->amp));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp, &t->net));
    plant_install(&t->plant, t->set);
    return NULL;
}

static void end(struct training *t) {
    plant_remove(&t->plant);
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
}

/* ---- equal bits ---- */

static char *expect_same(cairn_env *env, const char *what, const void *mine, size_t nbytes) {
    const size_t p = (size_t)cairn_env_size(env);
    char *all = malloc(p * nbytes + 1);
    cairn_status st = cairn__group_exchange(cairn_env_group(env), all, mine, nbytes);
    bool same = st == CAIRN_OK;
    for (size_t r = 1; r < p && same; r++) same = memcmp(all, all + r * nbytes, nbytes) == 0;
    free(all);
    return same ? NULL : FAILURE(what);
}

static char *expect_same_params(cairn_env *env, const struct training *t) {
    for (size_t i = 0; i < t->set->count; i++) {
        const struct cairn__param *p = t->set->params[i];
        PASS(expect_same(env, "weights differ", p->data, p->n * cairn_dtype_nbytes(p->dtype)));
        if (p->master) PASS(expect_same(env, "masters differ", p->master, p->n * sizeof(float)));
        for (int s = 0; s < CAIRN__MAX_STATES && t->optimizer->arrays.moments[i].array[s]; s++)
            PASS(expect_same(env, "moments differ", t->optimizer->arrays.moments[i].array[s], p->n * sizeof(float)));
    }
    return NULL;
}

/* What decides about the steps to come. */
static char *expect_same_state(cairn_env *env, const struct training *t) {
    char scalers[1024] = "";
    const int64_t counts[] = {cairn_optimizer_steps(t->optimizer), cairn_optimizer_skipped(t->optimizer)};
    EXPECT(amp_state_dict(t->amp, scalers, sizeof(scalers)) < (int)sizeof(scalers));
    PASS(expect_same(env, "scalers differ", scalers, sizeof(scalers)));
    PASS(expect_same(env, "counts of steps differ", counts, sizeof(counts)));
    return expect_same(env, "counts of missed steps differ", t->optimizer->arrays.missed,
                       t->set->count * sizeof(t->optimizer->arrays.missed[0]));
}

/* ---- steps ---- */

static char *apply(struct training *t, cairn_tensor *loss) {
    EXPECT_OK(amp_backward(t->amp, loss, t->optimizer));
    EXPECT_OK(cairn_step(t->optimizer));
    return NULL;
}

/* x NULL: this rank has no input. */
static char *step(struct training *t, cairn_tensor *x, cairn_tensor *y) {
    cairn_zero_grad(t->optimizer);
    return apply(t, x ? cairn_mse_loss(ddp_forward(t->net, x), y) : ddp_zero_loss(t->net));
}

static char *joined_step(struct training *t, cairn_env *env, cairn_tensor *x, cairn_tensor *y, int want_active) {
    int active = -1;
    EXPECT_OK(ddp_join(t->net, x != NULL, &active));
    EXPECT(active == want_active);
    PASS(step(t, x, y));
    PASS(expect_same_params(env, t));
    return expect_same_state(env, t);
}

/* ---- every level ---- */

enum { IN = 24, HIDDEN = 17, OUT = 5, ROWS = 8, FEWEST = 2, OVERFLOWS = 2 };

static const struct amp_options levels[] = {
    {.opt_level = AMP_O0},
    {.opt_level = AMP_O1},
    {.opt_level = AMP_O1, .half_type = CAIRN_BF16},
    {.opt_level = AMP_O2},
    {.opt_level = AMP_O2, .half_type = CAIRN_BF16},
    {.opt_level = AMP_O3},
    {.opt_level = AMP_O3, .half_type = CAIRN_BF16},
};
enum { NUM_LEVELS = sizeof(levels) / sizeof(levels[0]) };

/* The scale grows after every two steps, so that a rank that missed one would be seen to. */
static struct amp_options level_options(int level) {
    static const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler),
                                                     .init_scale = 1024,
                                                     .growth_interval = 2};
    struct amp_options o = levels[level];
    o.struct_size = sizeof(o);
    o.verbosity = -1;
    o.loss_scale = AMP_DYNAMIC;
    o.scaler = &scaler;
    return o;
}

struct uneven {
    struct amp_options amp;
    bool from_the_last;
};

/* Rank r has r + FEWEST batches, or as many counted from the last rank. */
static int batches_of(const cairn_env *env, bool from_the_last) {
    const int r = cairn_env_rank(env), last = cairn_env_size(env) - 1;
    return FEWEST + (from_the_last ? last - r : r);
}

static int active_in(const cairn_env *env, int step_) {
    const int p = cairn_env_size(env);
    return step_ < FEWEST ? p : FEWEST + p - 1 - step_;
}

/* The rank with most input overflows twice: while all have some, and when it is the last that has. */
static bool overflows(const cairn_env *env, int step_, int batches) {
    return batches == FEWEST + cairn_env_size(env) - 1 && (step_ == 1 || step_ == batches - 1);
}

struct batch {
    cairn_tensor *x, *y;
};

static struct batch draw_batch(cairn_env *env) {
    cairn_manual_seed(env, 100 + (uint64_t)cairn_env_rank(env));
    return (struct batch){cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN)),
                          cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT))};
}

static char *run_out(struct training *t, cairn_env *env, const struct uneven *u, struct batch b) {
    const int batches = batches_of(env, u->from_the_last);
    int steps = 0, active = -1;
    for (; active_in(env, steps) > 0; steps++) {
        t->plant.target = overflows(env, steps, batches) ? 2 : -1;
        t->plant.value = INFINITY;
        PASS(joined_step(t, env, steps < batches ? b.x : NULL, b.y, active_in(env, steps)));
    }
    EXPECT_OK(ddp_join(t->net, 0, &active));
    EXPECT(active == 0);
    EXPECT(cairn_optimizer_skipped(t->optimizer) == OVERFLOWS);
    EXPECT(cairn_optimizer_steps(t->optimizer) == steps - OVERFLOWS);
    return NULL;
}

/* The same with losses that are multiplied by 0 where there is no input, and nobody asked. */
static char *go_on_with_nothing(struct training *t, cairn_env *env, const struct uneven *u, struct batch b) {
    const int batches = batches_of(env, u->from_the_last);
    for (int s = 0; active_in(env, s) > 0; s++) {
        t->plant.target = overflows(env, s, batches) ? 2 : -1;
        t->plant.value = INFINITY;
        cairn_zero_grad(t->optimizer);
        cairn_tensor *loss = cairn_mse_loss(ddp_forward(t->net, b.x), b.y);
        PASS(apply(t, s < batches ? loss : cairn_mul_scalar(loss, 0)));
    }
    return NULL;
}

/* What training has made, in one piece of memory. */
struct snapshot {
    char *bytes;
    size_t nbytes;
    double scale;
};

static void append(struct snapshot *s, const void *x, size_t nbytes) {
    if (!x) return;
    s->bytes = realloc(s->bytes, s->nbytes + nbytes);
    memcpy(s->bytes + s->nbytes, x, nbytes);
    s->nbytes += nbytes;
}

static struct snapshot snapshot_of(const struct training *t) {
    struct snapshot s = {.scale = amp_next_scale(t->amp)};
    for (size_t i = 0; i < t->set->count; i++) {
        const struct cairn__param *p = t->set->params[i];
        append(&s, p->data, p->n * cairn_dtype_nbytes(p->dtype));
        append(&s, p->master, p->n * sizeof(float));
        for (int k = 0; k < CAIRN__MAX_STATES; k++)
            append(&s, t->optimizer->arrays.moments[i].array[k], p->n * sizeof(float));
    }
    return s;
}

/* Some of the ways in which gradients travel, by the number of ranks. */
static const struct ddp_options ways[] = {
    {.bucket_nbytes = 256},
    {.message_size = 1, .gradient_as_bucket_view = CAIRN_OFF},
    {.wire = CAIRN_F32, .join_divide_by_initial_world_size = CAIRN_ON},
    {.delay_allreduce = CAIRN_ON},
};

static char *train_unevenly(cairn_env *env, void *ctx) {
    const struct uneven *u = ctx;
    struct ddp_options way = ways[cairn_env_size(env) - 2];
    way.struct_size = sizeof(way);
    const struct batch b = draw_batch(env);
    struct snapshot made[2];
    for (int joined = 0; joined < 2; joined++) {
        struct training t;
        cairn_manual_seed(env, 5);
        PASS(begin(&t, env, make_mlp(env, IN, HIDDEN, OUT), &u->amp, &way, 0));
        PASS((joined ? run_out : go_on_with_nothing)(&t, env, u, b));
        made[joined] = snapshot_of(&t);
        end(&t);
    }
    EXPECT(made[0].nbytes == made[1].nbytes && made[0].scale == made[1].scale);
    EXPECT(memcmp(made[0].bytes, made[1].bytes, made[0].nbytes) == 0);
    free(made[0].bytes);
    free(made[1].bytes);
    return NULL;
}

static void uneven_ranks_hold_equal_bits_and_those_of_gradients_of_zero(void **state) {
    (void)state;
    for (int level = 0; level < NUM_LEVELS; level++) {
        for (int p = 2; p <= 5; p++)
            run_ranks(p, train_unevenly, &(struct uneven){level_options(level), (level + p) % 2 == 0});
    }
}

/* ---- against one process ---- */

enum { WIDTH = 8, OUTS = 4, FEW_ROWS = 2, EXACT_STEPS = 3, RANKS = 4 };
static const int exact_batches[RANKS] = {2, 1, 3, 1}; /* of which 4, 2 and 1 ranks have one */

struct exact {
    cairn_switch by_all;
    float weight[OUTS * WIDTH], bias[OUTS]; /* rank 0's */
};

/* Small integers: with lr 1/4 and divisors that are powers of two every value of three steps has under 24 bits. */
static float exact_number(int stream, int i) {
    return (float)(cairn__philox(5, (uint64_t)i, (uint64_t)stream).word[0] % 5) - 2.0f;
}

static float exact_x(int rank, int step_, int i) {
    return exact_number(10 + RANKS * step_ + rank, i);
}
static float exact_y(int rank, int step_, int i) {
    return exact_number(40 + RANKS * step_ + rank, i);
}

static void exact_model(double *weight, double *bias, bool by_all) {
    for (int i = 0; i < OUTS * WIDTH; i++) weight[i] = (double)exact_number(3, i);
    for (int i = 0; i < OUTS; i++) bias[i] = (double)exact_number(4, i);
    for (int s = 0; s < EXACT_STEPS; s++) {
        double dw[OUTS * WIDTH] = {0}, db[OUTS] = {0};
        int active = 0;
        for (int r = 0; r < RANKS; r++) {
            if (s >= exact_batches[r]) continue;
            active++;
            for (int e = 0; e < FEW_ROWS * OUTS; e++) {
                const int row = e / OUTS, o = e % OUTS;
                double out = bias[o];
                for (int i = 0; i < WIDTH; i++) out += weight[o * WIDTH + i] * (double)exact_x(r, s, row * WIDTH + i);
                const double dy = 2.0 / (FEW_ROWS * OUTS) * (out - (double)exact_y(r, s, e));
                for (int i = 0; i < WIDTH; i++) dw[o * WIDTH + i] += dy * (double)exact_x(r, s, row * WIDTH + i);
                db[o] += dy;
            }
        }
        const double rate = 0.25 / (by_all ? RANKS : active);
        for (int i = 0; i < OUTS * WIDTH; i++) weight[i] -= rate * dw[i];
        for (int i = 0; i < OUTS; i++) bias[i] -= rate * db[i];
    }
}

static char *train_exactly(cairn_env *env, void *ctx) {
    struct exact *e = ctx;
    struct training t;
    const int rank = cairn_env_rank(env);
    float xs[FEW_ROWS * WIDTH], ys[FEW_ROWS * OUTS];
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(FEW_ROWS, WIDTH));
    cairn_tensor *y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(FEW_ROWS, OUTS));
    cairn_module *model = cairn_linear(env, WIDTH, OUTS);
    struct cairn_param_set *set = cairn_module_params(model);
    for (int i = 0; i < OUTS * WIDTH; i++) ((float *)set->params[0]->data)[i] = exact_number(3, i);
    for (int i = 0; i < OUTS; i++) ((float *)set->params[1]->data)[i] = exact_number(4, i);
    PASS(begin(&t, env, model, &plain, ddp_options(.join_divide_by_initial_world_size = e->by_all), 0.25));
    for (int s = 0; s < EXACT_STEPS; s++) {
        for (int i = 0; i < FEW_ROWS * WIDTH; i++) xs[i] = exact_x(rank, s, i);
        for (int i = 0; i < FEW_ROWS * OUTS; i++) ys[i] = exact_y(rank, s, i);
        EXPECT_OK(cairn_tensor_write(x, xs, FEW_ROWS * WIDTH));
        EXPECT_OK(cairn_tensor_write(y, ys, FEW_ROWS * OUTS));
        PASS(joined_step(&t, env, s < exact_batches[rank] ? x : NULL, y, RANKS >> s));
    }
    if (rank == 0) {
        memcpy(e->weight, set->params[0]->data, sizeof(e->weight));
        memcpy(e->bias, set->params[1]->data, sizeof(e->bias));
    }
    end(&t);
    return NULL;
}

static void averages_are_those_of_one_process(void **state) {
    (void)state;
    static const cairn_switch switches[] = {CAIRN_DEFAULT, CAIRN_ON, CAIRN_OFF};
    for (int i = 0; i < 3; i++) {
        struct exact e = {.by_all = switches[i]};
        double weight[OUTS * WIDTH], bias[OUTS];
        run_ranks(RANKS, train_exactly, &e);
        exact_model(weight, bias, switches[i] != CAIRN_OFF);
        for (int k = 0; k < OUTS * WIDTH; k++) assert_true((double)e.weight[k] == weight[k]);
        for (int k = 0; k < OUTS; k++) assert_true((double)e.bias[k] == bias[k]);
    }
}

/* 40000 in f16 on the one of five ranks that has input: a sum of quotients, or a quotient of a sum that had overflowed,
 * would not be 40000. */
static char *average_large_halves(cairn_env *env, void *ctx) {
    (void)ctx;
    struct training t;
    int active;
    const struct amp_options o2 = {.struct_size = sizeof(o2), .opt_level = AMP_O2, .loss_scale = 1, .verbosity = -1};
    const struct ddp_options by_active = *ddp_options(.join_divide_by_initial_world_size = CAIRN_OFF);
    PASS(begin(&t, env, cairn_linear(env, 3, 2), &o2, &by_active, 0.25));
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1, 3)),
                 *y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1, 2));
    for (int with = 1; with <= cairn_env_size(env); with++) {
        const bool have = cairn_env_rank(env) < with;
        t.plant.target = have ? -2 : -1;
        t.plant.all = true;
        t.plant.value = 40000;
        cairn_zero_grad(t.optimizer);
        EXPECT_OK(ddp_join(t.net, have, &active));
        EXPECT(active == with);
        cairn_tensor *loss = have ? cairn_mse_loss(ddp_forward(t.net, x), y) : ddp_zero_loss(t.net);
        EXPECT_OK(amp_backward(t.amp, loss, t.optimizer));
        for (size_t i = 0; i < t.set->count; i++) {
            const uint16_t *grad = cairn__grad_memory(t.set->params[i]->gradient);
            for (size_t k = 0; k < t.set->params[i]->n; k++) EXPECT(grad[k] == 0x78e2);
        }
    }
    end(&t);
    return NULL;
}

static void averages_over_those_with_input_are_rounded_once(void **state) {
    (void)state;
    run_ranks(5, average_large_halves, NULL);
}

/* ---- other ways ---- */

/* Rank r has input in the steps whose bit r is set. */
static char *come_and_go(cairn_env *env, void *ctx) {
    static const int steps[] = {6, 5, 1, 6, 2, 7};
    struct training t;
    const struct batch b = draw_batch(env);
    const struct amp_options o2 = level_options(3);
    PASS(begin(&t, env, make_mlp(env, IN, HIDDEN, OUT), &o2, ctx, 0));
    for (size_t s = 0; s < sizeof(steps) / sizeof(steps[0]); s++) {
        const bool have = steps[s] >> cairn_env_rank(env) & 1;
        PASS(joined_step(&t, env, have ? b.x : NULL, b.y, __builtin_popcount((unsigned)steps[s])));
    }
    end(&t);
    return NULL;
}

static void a_rank_may_have_input_again(void **state) {
    (void)state;
    run_ranks(3, come_and_go, NULL);
    run_ranks(3, come_and_go, ddp_options(.static_graph = CAIRN_ON));
}

static char *end_early(cairn_env *env, void *ctx) {
    struct training t;
    int active = -1;
    (void)ctx;
    const struct batch b = draw_batch(env);
    PASS(begin(&t, env, make_mlp(env, IN, HIDDEN, OUT), &plain,
               ddp_options(.join_throw_on_early_termination = CAIRN_ON), 0));
    PASS(joined_step(&t, env, b.x, b.y, 3));
    EXPECT(ddp_join(t.net, cairn_env_rank(env) != 1, &active) == CAIRN_ESTATE);
    EXPECT(active == -1);
    EXPECT(strcmp(cairn_last_error(), "ddp_join: rank 1 has no input left, 2 of 3 ranks have some, and "
                                      "ddp_options.join_throw_on_early_termination is on") == 0);
    PASS(joined_step(&t, env, b.x, b.y, 3)); /* nothing else is wrong */
    EXPECT_OK(ddp_join(t.net, 0, &active));
    EXPECT(active == 0);
    end(&t);
    return NULL;
}

static void early_ends_fail_on_every_rank_with_throw_on_early_termination(void **state) {
    (void)state;
    run_ranks(3, end_early, NULL);
}

/* Running statistics of the only rank with input, before its forward changes them. */
static char *statistics_from(cairn_env *env, struct training *t, struct batch b, int root) {
    char before[256], all[3 * 256];
    const bool have = cairn_env_rank(env) == root;
    int active;
    cairn_tensor *mean = cairn_module_buffer(t->model, 0, NULL);
    const size_t nbytes = cairn_tensor_numel(mean) * sizeof(float);
    EXPECT_OK(ddp_join(t->net, have, &active));
    memcpy(before, cairn__tensor_memory(mean), nbytes);
    cairn_zero_grad(t->optimizer);
    cairn_tensor *loss = have ? cairn_mse_loss(ddp_forward(t->net, b.x), b.y) : ddp_zero_loss(t->net);
    if (!have) memcpy(before, cairn__tensor_memory(mean), nbytes);
    EXPECT_OK(cairn__group_exchange(cairn_env_group(env), all, before, nbytes));
    for (int r = 0; r < 3; r++) EXPECT(memcmp(all + (size_t)r * nbytes, all + (size_t)root * nbytes, nbytes) == 0);
    return apply(t, loss);
}

static char *send_statistics(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    const struct batch b = draw_batch(env);
    cairn_module *model =
        cairn_sequential(env, CAIRN_MODULES(cairn_batch_norm(env, IN, 1e-5, 0.1), cairn_linear(env, IN, OUT)));
    PASS(begin(&t, env, model, &plain, NULL, 0));
    PASS(joined_step(&t, env, b.x, b.y, 3));
    PASS(statistics_from(env, &t, b, 1));
    PASS(statistics_from(env, &t, b, 1));
    PASS(statistics_from(env, &t, b, 2));
    PASS(statistics_from(env, &t, b, 0));
    end(&t);
    return NULL;
}

static void buffers_come_from_the_lowest_rank_with_input(void **state) {
    (void)state;
    run_ranks(3, send_statistics, NULL);
}

/* A module that leaves its second layer out on ranks that are not `uses`. */
struct branches {
    cairn_tensor *w1, *w2;
    int uses;
};

static cairn_tensor *branches_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct branches *b = context;
    (void)module, (void)count;
    cairn_tensor *y = cairn_linear_forward(inputs[0], b->w1, NULL);
    return b->uses ? cairn_add(y, cairn_linear_forward(inputs[0], b->w2, NULL)) : y;
}

static const struct cairn__module_kind branches_kind = {.name = "Branches", .forward = branches_forward};

struct reach {
    int level;
    cairn_switch skips;
};

static char *leave_out(cairn_env *env, void *ctx) {
    const struct reach *r = ctx;
    const bool halves = r->level > 0;
    const int64_t shape[] = {OUT, IN};
    struct training t;
    struct amp_options amp = level_options(r->level);
    float kept[OUT * IN], moment[OUT * IN];
    cairn_module *model = NULL;
    const struct batch b = draw_batch(env);
    EXPECT_OK(cairn__module_create(env, &branches_kind, sizeof(struct branches), &model));
    struct branches *branches = cairn__module_context(model);
    EXPECT_OK(cairn__module_add_param(model, "w1", 2, shape, false, &branches->w1));
    EXPECT_OK(cairn__module_add_param(model, "w2", 2, shape, false, &branches->w2));
    for (int i = 0; i < 2; i++) cairn__param_init_uniform(cairn_module_params(model)->params[i], 0.5f);
    PASS(begin(&t, env, model, &amp,
               ddp_options(.find_unused_parameters = CAIRN_ON, .skip_all_reduce_unused_params = r->skips), 0));
    for (int s = 0; s < 4; s++) {
        const bool have = cairn_env_rank(env) > 0;
        const struct cairn__param *p = t.set->params[1];
        const float *weight = halves ? p->master : p->data;
        branches->uses = s % 2 == 0 && cairn_env_rank(env) == 2;
        memcpy(kept, weight, sizeof(kept));
        if (s > 0) memcpy(moment, t.optimizer->arrays.moments[1].array[0], sizeof(moment));
        PASS(joined_step(&t, env, have ? b.x : NULL, b.y, 2));
        EXPECT((memcmp(kept, weight, sizeof(kept)) == 0) == (s % 2 == 1));
        if (s > 0)
            EXPECT((memcmp(moment, t.optimizer->arrays.moments[1].array[0], sizeof(moment)) == 0) == (s % 2 == 1));
    }
    end(&t);
    return NULL;
}

static void parameters_that_no_batch_reaches_keep_their_bits(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++)
        run_ranks(3, leave_out, &(struct reach){way & 1 ? 3 : 0, way & 2 ? CAIRN_ON : CAIRN_OFF});
}

/* Two batches a step, of which rank 1 has the first alone in the second step. */
static char *accumulate(cairn_env *env, void *ctx) {
    struct training t;
    int active;
    (void)ctx;
    const struct batch b = draw_batch(env);
    const struct amp_options o2 = level_options(3);
    PASS(begin(&t, env, make_mlp(env, IN, HIDDEN, OUT), &o2, NULL, 0));
    for (int s = 0; s < 3; s++) {
        cairn_zero_grad(t.optimizer);
        for (int k = 0; k < 2; k++) {
            const bool have = s != 1 || k == 0 || cairn_env_rank(env) != 1;
            EXPECT_OK(ddp_no_sync(t.net, k == 0));
            EXPECT_OK(ddp_join(t.net, have, &active));
            EXPECT(active == (s == 1 && k == 1 ? 1 : 2));
            cairn_tensor *loss = have ? cairn_mse_loss(ddp_forward(t.net, b.x), b.y) : ddp_zero_loss(t.net);
            EXPECT_OK(amp_backward_with(t.amp, loss,
                                        amp_loss_options(.num_optimizers = 1, .optimizers = &t.optimizer,
                                                         .delay_unscale = k == 0 ? CAIRN_ON : CAIRN_OFF)));
        }
        EXPECT_OK(cairn_step(t.optimizer));
        PASS(expect_same_params(env, &t));
        PASS(expect_same_state(env, &t));
    }
    EXPECT(cairn_optimizer_steps(t.optimizer) == 3);
    end(&t);
    return NULL;
}

static void ranks_may_run_out_while_they_accumulate(void **state) {
    (void)state;
    run_ranks(2, accumulate, NULL);
}

/* ---- gradients in the user's memory ---- */

enum { RAW = 40 };
static const int raw_batches[] = {1, 3, 2}; /* so that divisors are 3, 2 and 1 */

/* Thirds come back: every rank brings the same. */
static float raw_gradient(int step_, int i) {
    return (float)(((step_ + 1) * i) % 7 - 3);
}

/* Zeros that are declared, or none declared at all where that is allowed. */
static char *train_own_memory(cairn_env *env, void *ctx) {
    const bool declares = ctx == NULL;
    const struct ddp_options ddp = *ddp_options(.join_divide_by_initial_world_size = CAIRN_OFF,
                                                .find_unused_parameters = declares ? CAIRN_OFF : CAIRN_ON);
    float w[RAW] = {0}, g[RAW], want[RAW] = {0};
    cairn_param params[] = {{.name = "a", .data = w, .grad = g, .dtype = CAIRN_F32, .ndim = 1, .shape = {RAW / 4}},
                            {.name = "b",
                             .data = w + RAW / 4,
                             .grad = g + RAW / 4,
                             .dtype = CAIRN_F32,
                             .ndim = 1,
                             .shape = {RAW - RAW / 4}}};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    struct training t = {0};
    int active;
    hyper.lr = 0.25;
    EXPECT_OK(cairn_param_set_create(env, params, 2, &t.set));
    EXPECT_OK(cairn_sgd_create(t.set, &hyper, &t.optimizer));
    EXPECT_OK(amp_initialize_params(env, t.set, t.optimizer,
                                    amp_options(.opt_level = AMP_O0, .loss_scale = AMP_DYNAMIC, .verbosity = -1),
                                    &t.amp));
    EXPECT_OK(ddp_create_params(t.set, cairn_env_group(env), &ddp, &t.net));
    EXPECT(ddp_zero_loss(t.net) == NULL);
    EXPECT(strstr(cairn_last_error(), "write zeros to their gradients and declare them (ddp_grads_ready)") != NULL);
    for (int s = 0; s < 3; s++) {
        const bool have = s < raw_batches[cairn_env_rank(env)];
        EXPECT_OK(ddp_join(t.net, have, &active));
        EXPECT(active == 3 - s);
        const float scale = (float)amp_next_scale(t.amp);
        for (int i = 0; i < RAW; i++) g[i] = have ? scale * raw_gradient(s, i) : 0;
        if (have || declares) EXPECT_OK(ddp_grads_ready(t.net, 0, 1));
        if (have || declares) EXPECT(ddp_join(t.net, have, &active) == CAIRN_ESTATE);
        if (have || declares) EXPECT_OK(ddp_grads_ready(t.net, 1, 1));
        EXPECT_OK(ddp_wait(t.net));
        EXPECT_OK(cairn_step(t.optimizer));
        for (int i = 0; i < RAW; i++) want[i] -= 0.25f * raw_gradient(s, i);
        EXPECT(memcmp(w, want, sizeof(w)) == 0);
        PASS(expect_same_state(env, &t));
    }
    EXPECT(cairn_optimizer_steps(t.optimizer) == 3);
    ddp_destroy(&t.net);
    amp_destroy(&t.amp);
    cairn_optimizer_destroy(&t.optimizer);
    cairn_param_set_destroy(&t.set);
    return NULL;
}

static void own_memory_joins_with_zeros_or_nothing(void **state) {
    (void)state;
    NOT_ON_A_GPU("these buffers are the host's");
    run_ranks(3, train_own_memory, NULL);
    run_ranks(3, train_own_memory, "declares nothing");
}

/* Rank 1 has one batch less, and no rank calls ddp_join: the others add up their losses with it. */
static char *destroy_early(cairn_env *env, void *ctx) {
    struct training t;
    float loss = 1;
    (void)ctx;
    const struct batch b = draw_batch(env);
    PASS(begin(&t, env, make_mlp(env, IN, HIDDEN, OUT), &plain, NULL, 0));
    PASS(joined_step(&t, env, b.x, b.y, cairn_env_size(env)));
    if (cairn_env_rank(env) != 1) {
        EXPECT(cairn_allreduce(cairn_env_group(env), &loss, 1, CAIRN_F32, CAIRN_AVG, NULL) == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), "; rank 1 ended early: every rank must take the same number of steps"));
        EXPECT(strstr(cairn_last_error(), "to the average") || strstr(cairn_last_error(), "f32 to average"));
    }
    end(&t);
    return NULL;
}

static void a_rank_that_destroys_early_ends_the_others_at_once(void **state) {
    (void)state;
    NOT_ON_A_GPU("collectives are queued, and fail later");
    for (int p = 2; p <= 4; p++) {
        const uint64_t begin_ns = cairn__now_ns();
        log_text[0] = '\0';
        run_ranks(p, destroy_early, NULL);
        assert_true(cairn__now_ns() - begin_ns < UINT64_C(20000000000)); /* the timeout is 60 s */
        assert_non_null(strstr(log_text, "ddp_destroy: "));
        assert_non_null(strstr(log_text, "cairn_group_free (or ddp_destroy) number"));
        assert_non_null(strstr(log_text, "; rank 1 ended early: every rank must take the same number of steps"));
    }
}

static char *ask_wrongly(cairn_env *env, void *ctx) {
    struct training t;
    int active = -1;
    (void)ctx;
    PASS(begin(&t, env, make_mlp(env, IN, HIDDEN, OUT), &plain, NULL, 0));
    EXPECT(ddp_join(NULL, 1, &active) == CAIRN_EINVAL);
    EXPECT(ddp_join(t.net, 1, NULL) == CAIRN_EINVAL);
    EXPECT(strcmp(cairn_last_error(), "ddp_join: ddp and active must be set") == 0);
    EXPECT(ddp_zero_loss(NULL) == NULL);
    EXPECT(strcmp(cairn_last_error(), "ddp_zero_loss: ddp is NULL") == 0);
    EXPECT_OK(ddp_join(t.net, -5, &active)); /* not 0 */
    EXPECT(active == 1);
    end(&t);
    return NULL;
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    run_ranks(1, ask_wrongly, NULL);
}

int main(void) {
    cairn_set_log(keep_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uneven_ranks_hold_equal_bits_and_those_of_gradients_of_zero),
        cmocka_unit_test(averages_are_those_of_one_process),
        cmocka_unit_test(averages_over_those_with_input_are_rounded_once),
        cmocka_unit_test(a_rank_may_have_input_again),
        cmocka_unit_test(early_ends_fail_on_every_rank_with_throw_on_early_termination),
        cmocka_unit_test(buffers_come_from_the_lowest_rank_with_input),
        cmocka_unit_test(parameters_that_no_batch_reaches_keep_their_bits),
        cmocka_unit_test(ranks_may_run_out_while_they_accumulate),
        cmocka_unit_test(own_memory_joins_with_zeros_or_nothing),
        cmocka_unit_test(a_rank_that_destroys_early_ends_the_others_at_once),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
