/* The state that ddp saves, from which rank weights, buffers and moments are saved, and resumed trainings on 1 to 3
 * ranks.
 *
 * With CAIRN_TEST_SHORT in the environment each training has half the steps and is loaded behind one number of them
 * instead of three, another on each number of ranks; of the trainings that other numbers of ranks go on with, half are
 * tried. */
#include "../ranks.h"
#include "../resume_gan.h"
#include "../state/folder.h"

/* The distance of the cases that are tried. */
static size_t stride(void) {
    return check_is_short() ? 2 : 1;
}

static char *resume_on_a_rank(cairn_env *env, void *ctx) {
    struct resume_case c = *(const struct resume_case *)ctx;
    const int one = (cairn_env_size(env) + (resume_folder != NULL)) % 3;
    if (check_is_short()) c.at = 9, c.steps = 20;
    return check_is_short() ? resumes(env, &c, 1, &one) : resumes(env, &c, 3, (const int[]){0, 1, 2});
}

static void trainings_of_ranks_go_on_to_the_bit(void **state) {
    (void)state;
    const struct ddp_options *small = ddp_options(.bucket_nbytes = 128, .first_bucket_nbytes = 64);
    const struct ddp_options *ignoring =
        ddp_options(.ignored = (const char *[]){"0.weight", "1.running_mean"}, .num_ignored = 2);
    const struct ddp_options *shards = ddp_options(.bucket_nbytes = 128, .shard_optimizer = CAIRN_ON);
    const struct ddp_options *own_buffers = ddp_options(.broadcast_buffers = CAIRN_OFF, .bucket_nbytes = 128);
    const struct amp_scaler_options *apex = amp_scaler_options(.kind = AMP_SCALER_APEX, .init_scale = 64);
    struct resume_case cases[] = {
        {.name = "f32", .by = BY_ADAM, .ddp = small, .statistics = true, .dropout = true},
        {.name = "O1",
         .by = BY_SGD_MOMENTUM,
         .level = AMP_O1,
         .scaler = apex,
         .ddp = small,
         .statistics = true,
         .overflows = 6},
        {.name = "O2", .by = BY_ADAM, .level = AMP_O2, .scaler = apex, .ddp = small, .dropout = true, .overflows = 6},
        {.name = "O3",
         .by = BY_SGD_MOMENTUM,
         .level = AMP_O3,
         .half = CAIRN_BF16,
         .scaler = apex,
         .ddp = small,
         .accumulates = true},
        {.name = "frozen", .by = BY_ADAM, .ddp = small, .freezes = true, .plateau = true},
        {.name = "ignored", .by = BY_ADAM, .ddp = ignoring, .statistics = true},
        {.name = "ignored, clipped", .by = BY_SGD_MOMENTUM, .ddp = ignoring, .statistics = true, .clips = true},
        {.name = "local SGD", .by = BY_SGD_MOMENTUM, .ddp = small, .statistics = true, .is_local = true},
        {.name = "local steps at O2",
         .by = BY_ADAM,
         .level = AMP_O2,
         .scaler = apex,
         .ddp = small,
         .dropout = true,
         .overflows = 6,
         .is_local = true},
        {.name = "noop hook", .by = BY_ADAM, .ddp = small, .hook = ddp_noop_hook()},
        {.name = "bf16 hook",
         .by = BY_ADAM,
         .level = AMP_O1,
         .scaler = apex,
         .ddp = small,
         .hook = ddp_bf16_compress_hook()},
        {.name = "shards", .by = BY_ADAM, .ddp = shards, .statistics = true, .clips = true},
        {.name = "shards at O2",
         .by = BY_ADAM,
         .level = AMP_O2,
         .scaler = apex,
         .ddp = shards,
         .dropout = true,
         .accumulates = true,
         .no_sync = true,
         .overflows = 6},
        {.name = "shards of rounded weights",
         .by = BY_SGD_MOMENTUM,
         .level = AMP_O3,
         .half = CAIRN_BF16,
         .scaler = apex,
         .stochastic = true,
         .ddp = shards},
        {.name = "own buffers of ranks", .by = BY_SGD_MOMENTUM, .ddp = own_buffers, .statistics = true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int p = 1; p <= 3; p++) run_ranks(p, resume_on_a_rank, &cases[i]);
    }
}

static int first_seed = 1, num_seeds = 12;

static char *resume_by_chance(cairn_env *env, void *ctx) {
    (void)ctx;
    for (int seed = first_seed; seed < first_seed + num_seeds; seed++) {
        struct random_case r;
        draw_case(&r, (uint64_t)seed, cairn_env_size(env));
        PASS(resumes(env, &r.c, 1, (const int[]){seed % 3}));
        PASS(gan_resumes_by_chance(env, seed));
    }
    return NULL;
}

static void trainings_by_chance_go_on_to_the_bit(void **state) {
    (void)state;
    for (int p = 1; p <= 3; p++) run_ranks(p, resume_by_chance, NULL);
}

/* ---- whose ---- */

static char *expect_owner(const struct kept_state *kept, size_t object, const char *name,
                          enum cairn__entry_owner owner) {
    const struct cairn__entry *e = cairn__entries_find(&kept->objects[object].entries, name);
    if (!e || e->owner != owner) return FAILURE(name);
    return NULL;
}

static char *expect_owners(cairn_env *env, void *ctx) {
    const bool alone = cairn_env_size(env) == 1;
    const enum cairn__entry_owner shared = CAIRN__ENTRY_SHARED, own = alone ? shared : CAIRN__ENTRY_RANK;
    const enum cairn__entry_owner or_first = alone ? shared : CAIRN__ENTRY_RANK_OR_FIRST;
    const struct resume_case c = {.name = "owners",
                                  .by = BY_SGD_MOMENTUM,
                                  .level = AMP_O2,
                                  .statistics = true,
                                  .ddp = ddp_options(.ignored = (const char *[]){"0.weight", "1.running_var"},
                                                     .num_ignored = 2)};
    struct resume_run r;
    struct kept_state kept = {.count = 0};
    (void)ctx;
    PASS(resume_begin(&r, env, &c, 0));
    PASS(keep_state(&kept, r.parts, r.num_parts));
    PASS(expect_owner(&kept, 0, "0.weight", own));
    PASS(expect_owner(&kept, 0, "0.bias", shared));
    PASS(expect_owner(&kept, 0, "1.running_mean", shared));
    PASS(expect_owner(&kept, 0, "1.running_var", or_first));
    PASS(expect_owner(&kept, 0, "requires_grad", own));
    PASS(expect_owner(&kept, 1, "momentum.0.weight", own));
    PASS(expect_owner(&kept, 1, "momentum.0.bias", shared));
    PASS(expect_owner(&kept, 1, "steps", own)); /* a rank could skip alone */
    PASS(expect_owner(&kept, 3, "loss_scaler0.scale", own));
    ddp_destroy(&r.ddp);
    r.num_parts = 4;
    PASS(keep_state(&kept, r.parts, r.num_parts));
    PASS(expect_owner(&kept, 0, "0.bias", own));
    PASS(expect_owner(&kept, 0, "1.running_mean", own));
    EXPECT_OK(ddp_create(r.net, cairn_env_group(env), ddp_options(.broadcast_buffers = CAIRN_OFF), &r.ddp));
    PASS(keep_state(&kept, r.parts, r.num_parts));
    PASS(expect_owner(&kept, 0, "0.weight", shared));
    PASS(expect_owner(&kept, 0, "1.running_mean", or_first));
    PASS(expect_owner(&kept, 1, "steps", shared));
    PASS(expect_owner(&kept, 3, "loss_scaler0.scale", shared));
    drop_state(&kept);
    resume_end(&r);
    return NULL;
}

/* Whose the weights, a moment and the scale are. */
static char *expect_all_owned(const struct resume_run *r, enum cairn__entry_owner owner) {
    struct kept_state kept = {.count = 0};
    if (cairn_env_size(r->env) == 1) owner = CAIRN__ENTRY_SHARED;
    PASS(keep_state(&kept, r->parts, r->num_parts));
    PASS(expect_owner(&kept, 0, "0.weight", owner));
    PASS(expect_owner(&kept, 1, "momentum.0.bias", owner));
    PASS(expect_owner(&kept, 1, "steps", owner));
    PASS(expect_owner(&kept, 3, "loss_scaler0.scale", owner));
    const bool is_said = cairn__entries_find(&kept.objects[0].entries, "ranks_differ") != NULL;
    EXPECT(is_said == (owner == CAIRN__ENTRY_RANK));
    drop_state(&kept);
    return NULL;
}

/* Micro-batches, and unsynced gradients that no step takes, leave weights shared; a step that takes them does not, and
 * no averages after it change that. */
static char *expect_owners_after_steps(cairn_env *env, void *ctx) {
    const struct ddp_options how = *ddp_options(.bucket_nbytes = 128);
    struct resume_case c = {.name = "owners after steps",
                            .by = BY_SGD_MOMENTUM,
                            .level = AMP_O2,
                            .half = CAIRN_BF16,
                            .accumulates = true,
                            .no_sync = true,
                            .clips = true,
                            .ddp = &how};
    struct resume_run r;
    float loss;
    (void)ctx;
    PASS(resume_begin(&r, env, &c, 0));
    for (int i = 0; i < 3; i++) PASS(resume_step(&r, i, &loss));
    PASS(expect_all_owned(&r, CAIRN__ENTRY_SHARED));
    PASS(resume_backward(&r, false, false, false, &loss));
    cairn_zero_grad(r.optimizer);
    PASS(resume_step(&r, 3, &loss));
    PASS(expect_all_owned(&r, CAIRN__ENTRY_SHARED));
    PASS(resume_backward(&r, false, false, false, &loss));
    EXPECT_OK(cairn_step(r.optimizer));
    PASS(expect_all_owned(&r, CAIRN__ENTRY_RANK));
    for (int i = 0; i < 3; i++) PASS(resume_step(&r, i, &loss));
    PASS(expect_all_owned(&r, CAIRN__ENTRY_RANK));
    resume_end(&r);
    return NULL;
}

static char *expect_owners_under_the_noop_hook(cairn_env *env, void *ctx) {
    const struct ddp_options how = *ddp_options(.bucket_nbytes = 128);
    const struct resume_case c = {.name = "owners under the noop hook",
                                  .by = BY_SGD_MOMENTUM,
                                  .level = AMP_O1,
                                  .half = CAIRN_BF16,
                                  .ddp = &how,
                                  .hook = ddp_noop_hook()};
    struct resume_run r;
    float loss;
    (void)ctx;
    PASS(resume_begin(&r, env, &c, 0));
    PASS(resume_register_hook(&r));
    PASS(expect_all_owned(&r, CAIRN__ENTRY_SHARED));
    PASS(resume_step(&r, 0, &loss));
    PASS(expect_all_owned(&r, CAIRN__ENTRY_RANK));
    resume_end(&r);
    return NULL;
}

static void weights_after_local_steps_differ_by_rank(void **state) {
    (void)state;
    for (int p = 1; p <= 2; p++) {
        run_ranks(p, expect_owners_after_steps, NULL);
        run_ranks(p, expect_owners_under_the_noop_hook, NULL);
    }
}

static void what_ranks_average_is_shared_and_the_rest_each_ranks_own(void **state) {
    (void)state;
    run_ranks(1, expect_owners, NULL);
    run_ranks(2, expect_owners, NULL);
}

/* ---- buckets ---- */

static char *same_buckets(const ddp_context *a, size_t *params, int *count, bool first) {
    if (first) *count = ddp_bucket_count(a);
    EXPECT(ddp_bucket_count(a) == *count);
    for (int b = 0; b < *count; b++) {
        struct ddp_bucket bucket = DDP_BUCKET_INIT;
        EXPECT_OK(ddp_bucket_get(a, b, &bucket));
        if (first) params[b] = bucket.params[0] * 1000 + bucket.n;
        EXPECT(params[b] == bucket.params[0] * 1000 + bucket.n);
    }
    return NULL;
}

struct turned {
    cairn_module *layers[3], *net;
    bool is_straight; /* else the last layer comes first, other than buckets are planned at first */
    ddp_context *ddp;
    cairn_tensor *x;
};

static cairn_tensor *forward_turned(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct turned *t = context;
    cairn_tensor *y = inputs[0];
    (void)module, (void)count;
    for (int k = 0; k < 3; k++) y = cairn_module_forward(t->layers[t->is_straight ? k : 2 - k], y);
    return y;
}

static char *begin_turned(struct turned *t, cairn_env *env, bool is_straight) {
    static const struct cairn_module_ops ops = {.struct_size = sizeof(ops),
                                                .name = "Turned",
                                                .forward = forward_turned};
    *t = (struct turned){.is_straight = is_straight};
    t->net = cairn_module_create(env, &ops, t);
    for (int k = 0; k < 3; k++) {
        const char name[] = {(char)('a' + k), '\0'};
        t->layers[k] = cairn_module_add_child(t->net, name, cairn_linear(env, 4, 4));
        EXPECT(t->layers[k]);
    }
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(2, 4));
    EXPECT_OK(
        ddp_create(t->net, cairn_env_group(env), ddp_options(.bucket_nbytes = 64, .first_bucket_nbytes = 64), &t->ddp));
    return NULL;
}

static void end_turned(struct turned *t) {
    ddp_destroy(&t->ddp);
    cairn_module_destroy(&t->net);
    cairn_tensor_destroy(&t->x);
}

static char *train_turned(struct turned *t, int times) {
    for (int i = 0; i < times; i++) {
        EXPECT_OK(cairn_backward(cairn_mean(ddp_forward(t->ddp, t->x))));
        cairn_module_zero_grad(t->net);
    }
    return NULL;
}

/* before: backwards that were made when the state was kept; after: those of the new context before the load. */
static char *buckets_come_back(cairn_env *env, int before, int after) {
    struct turned t, u;
    struct kept_state kept = {.count = 0};
    size_t params[16];
    int count = 0;
    PASS(begin_turned(&t, env, false));
    PASS(train_turned(&t, before));
    const cairn_stateful of = ddp_stateful(t.ddp);
    PASS(keep_state(&kept, &of, 1));
    PASS(train_turned(&t, 1));
    PASS(same_buckets(t.ddp, params, &count, true));
    end_turned(&t);
    PASS(begin_turned(&u, env, true));
    PASS(train_turned(&u, after));
    const cairn_stateful of_u = ddp_stateful(u.ddp);
    PASS(bring_back(&kept, &of_u, 1));
    EXPECT(ddp_forward(u.ddp, u.x));
    PASS(same_buckets(u.ddp, params, &count, false));
    end_turned(&u);
    drop_state(&kept);
    return NULL;
}

static char *all_buckets_come_back(cairn_env *env, void *ctx) {
    (void)ctx;
    for (int before = 1; before <= 3; before++) {
        for (int after = 0; after <= 3; after++) PASS(buckets_come_back(env, before, after));
    }
    return NULL;
}

static void the_first_backward_after_a_load_has_the_same_buckets(void **state) {
    (void)state;
    run_ranks(2, all_buckets_come_back, NULL);
}

static char *refuse_orders(cairn_env *env, void *ctx) {
    struct turned t;
    struct kept_state kept = {.count = 0};
    (void)ctx;
    PASS(begin_turned(&t, env, false));
    const cairn_stateful of = ddp_stateful(t.ddp);
    PASS(train_turned(&t, 2));
    PASS(keep_state(&kept, &of, 1));
    ((int64_t *)kept.objects[0].bytes[0])[1] = 1 << 20; /* no parameter: buckets are planned as without the state */
    PASS(bring_back(&kept, &of, 1));
    PASS(train_turned(&t, 2));
    cairn__entries_find(&kept.objects[0].entries, "backwards")->number.i64 = -1;
    char *said = bring_back(&kept, &of, 1);
    EXPECT(said && strstr(said, "backwards is -1"));
    free(said);
    drop_state(&kept);
    end_turned(&t);
    return NULL;
}

static void an_order_of_no_parameters_is_passed_over(void **state) {
    (void)state;
    run_ranks(2, refuse_orders, NULL);
}

/* The load tells of backwards, and none of them was this context's. */
static char *register_after_a_load(cairn_env *env, void *ctx) {
    struct turned t;
    struct kept_state kept = {.count = 0};
    (void)ctx;
    PASS(begin_turned(&t, env, false));
    cairn_stateful of = ddp_stateful(t.ddp);
    PASS(train_turned(&t, 2));
    PASS(keep_state(&kept, &of, 1));
    end_turned(&t);
    PASS(begin_turned(&t, env, false));
    of = ddp_stateful(t.ddp);
    PASS(bring_back(&kept, &of, 1));
    EXPECT_OK(ddp_register_comm_hook(t.ddp, ddp_bf16_compress_hook()));
    PASS(train_turned(&t, 1));
    end_turned(&t);
    PASS(begin_turned(&t, env, false));
    PASS(train_turned(&t, 1));
    EXPECT(ddp_register_comm_hook(t.ddp, ddp_bf16_compress_hook()) == CAIRN_ESTATE);
    EXPECT_SAYS("a backward has run already");
    end_turned(&t);
    drop_state(&kept);
    return NULL;
}

static void a_hook_can_be_registered_after_a_load(void **state) {
    (void)state;
    run_ranks(1, register_after_a_load, NULL);
    run_ranks(2, register_after_a_load, NULL);
}

/* ---- buffers of the user's own ---- */

enum { OWN = 12 };

struct own_case {
    const char *name;
    enum resume_by by;
    amp_opt_level level;
    cairn_dtype half;
    int accumulates; /* 1: two declarations a step; 2: the first under ddp_no_sync */
    int before;      /* steps before the load */
};

struct own {
    const struct own_case *c;
    cairn_param_set *set;
    cairn_optimizer *by;
    amp_context *amp;
    ddp_context *ddp;
    float w[2][OWN], g[2][OWN];
    cairn_stateful parts[4];
};

static char *begin_own(struct own *t, cairn_env *env, const struct own_case *c) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    sgd.lr = 0.05;
    sgd.momentum = c->by == BY_SGD_MOMENTUM ? 0.9 : 0;
    memset(t, 0, sizeof(*t));
    t->c = c;
    for (int i = 0; i < OWN; i++) t->w[0][i] = (float)i / 7, t->w[1][i] = 1 - (float)i / 3;
    const cairn_param given[] = {
        {.name = "a", .data = t->w[0], .grad = t->g[0], .dtype = CAIRN_F32, .ndim = 1, .shape = {OWN}},
        {.name = "b", .data = t->w[1], .grad = t->g[1], .dtype = CAIRN_F32, .ndim = 1, .shape = {OWN}}};
    EXPECT_OK(cairn_param_set_create(env, given, 2, &t->set));
    EXPECT_OK(c->by <= BY_SGD_MOMENTUM ? cairn_sgd_create(t->set, &sgd, &t->by)
              : c->by == BY_ADAM       ? cairn_adam_create(t->set, NULL, &t->by)
                                       : cairn_adamw_create(t->set, NULL, &t->by));
    EXPECT_OK(amp_initialize_params(env, t->set, t->by,
                                    amp_options(.opt_level = c->level, .half_type = c->half, .verbosity = -1,
                                                .scaler = amp_scaler_options(.kind = AMP_SCALER_APEX, .init_scale = 64,
                                                                             .growth_interval = 5)),
                                    &t->amp));
    EXPECT_OK(ddp_create_params(t->set, cairn_env_group(env),
                                ddp_options(.bucket_nbytes = 32, .first_bucket_nbytes = 32), &t->ddp));
    t->parts[0] = cairn_param_set_stateful(t->set);
    t->parts[1] = cairn_optimizer_stateful(t->by);
    t->parts[2] = amp_stateful(t->amp);
    t->parts[3] = ddp_stateful(t->ddp);
    return NULL;
}

static void end_own(struct own *t) {
    ddp_destroy(&t->ddp);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->by);
    cairn_param_set_destroy(&t->set);
}

static char *refused(const struct own *t, const char *words) {
    for (int o = 0; o < 4; o++) {
        struct cairn__entries entries = {.env = state_env(&t->parts[o])};
        const cairn_status st = t->parts[o].ops->list(t->parts[o].object, &entries);
        cairn__entries_clear(&entries);
        EXPECT(st == CAIRN_ESTATE);
        EXPECT_SAYS(words);
    }
    return NULL;
}

static char *declare_own(struct own *t, cairn_env *env, int step, bool refuses) {
    const double scale = amp_next_scale(t->amp);
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < OWN; i++)
            t->g[p][i] = (float)(scale * ((double)t->w[p][i] - sin(step + i + 3 * cairn_env_rank(env))));
    }
    if ((step == RESUME_AT - 1 || step == RESUME_AT) && cairn_env_rank(env) == 0) t->g[1][2] = INFINITY;
    EXPECT_OK(ddp_grads_ready(t->ddp, 1, 1));
    if (refuses) PASS(refused(t, "gradients are being averaged: call ddp_wait"));
    EXPECT_OK(ddp_grads_ready(t->ddp, 0, 1));
    EXPECT_OK(ddp_wait(t->ddp));
    return NULL;
}

/* Infinite on one rank alone just before and just after the state is kept. */
static char *step_own(struct own *t, cairn_env *env, int step, bool refuses) {
    const int how = t->c->accumulates;
    if (how == 2) EXPECT_OK(ddp_no_sync(t->ddp, 1));
    if (how) PASS(declare_own(t, env, step, false));
    if (how == 2) EXPECT_OK(ddp_no_sync(t->ddp, 0));
    if (how == 1) EXPECT_OK(cairn_grads_taken(t->set, 0, 2));
    PASS(declare_own(t, env, step, refuses));
    EXPECT_OK(cairn_step(t->by));
    EXPECT(cairn_optimizer_step_skipped(t->by) == (step == RESUME_AT - 1 || step == RESUME_AT));
    return NULL;
}

static char *resume_own(cairn_env *env, void *ctx) {
    struct own whole, rest;
    struct kept_state at = {.count = 0}, want = {.count = 0}, got = {.count = 0};
    const struct own_case *c = ctx;
    check_as_rank_of(c->name, cairn_env_rank(env));
    PASS(begin_own(&whole, env, c));
    for (int i = 0; i < RESUME_STEPS; i++) {
        if (i == RESUME_AT) PASS(keep_state(&at, whole.parts, 4));
        PASS(step_own(&whole, env, i, i == 3));
    }
    PASS(keep_state(&want, whole.parts, 4));
    end_own(&whole); /* whose weights are the test's */
    PASS(begin_own(&rest, env, c));
    for (int i = 0; i < c->before; i++) PASS(step_own(&rest, env, i, false));
    PASS(bring_back(&at, rest.parts, 4));
    for (int i = RESUME_AT; i < RESUME_STEPS; i++) PASS(step_own(&rest, env, i, false));
    PASS(keep_state(&got, rest.parts, 4));
    PASS(same_states(&want, &got));
    EXPECT(memcmp(whole.w, rest.w, sizeof(whole.w)) == 0);
    end_own(&rest);
    drop_state(&at);
    drop_state(&want);
    drop_state(&got);
    return NULL;
}

static void buffers_of_the_users_own_go_on_to_the_bit(void **state) {
    (void)state;
    static const struct own_case cases[] = {{"Adam at O2", BY_ADAM, AMP_O2, CAIRN_F16, 0, 0},
                                            {"Adam at O2, after 1", BY_ADAM, AMP_O2, CAIRN_F16, 0, 1},
                                            {"Adam at O2, after 2", BY_ADAM, AMP_O2, CAIRN_F16, 0, 2},
                                            {"SGD at O0", BY_SGD_ALONE, AMP_O0, 0, 0, 0},
                                            {"momentum at O0", BY_SGD_MOMENTUM, AMP_O0, 0, 2, 1},
                                            {"AdamW at O1", BY_ADAMW, AMP_O1, CAIRN_F16, 1, 0},
                                            {"Adam at O1", BY_ADAM, AMP_O1, CAIRN_BF16, 0, 2},
                                            {"momentum at O2", BY_SGD_MOMENTUM, AMP_O2, CAIRN_BF16, 1, 1},
                                            {"SGD at O2", BY_SGD_ALONE, AMP_O2, CAIRN_F16, 2, 0},
                                            {"momentum at O3", BY_SGD_MOMENTUM, AMP_O3, CAIRN_BF16, 0, 1},
                                            {"Adam at O3", BY_ADAM, AMP_O3, CAIRN_F16, 2, 0},
                                            {"SGD at O3", BY_SGD_ALONE, AMP_O3, CAIRN_F16, 1, 2}};
    for (int p = 1; p <= 3; p++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) run_ranks(p, resume_own, (void *)&cases[i]);
    }
}

/* ---- other ranks ---- */

static const struct ddp_options one_rank_too = {.struct_size = sizeof(struct ddp_options)};
static const struct resume_case shared_cases[] = {
    {.name = "Adam at O2, groups", .by = BY_ADAM, .level = AMP_O2, .groups = true, .ddp = &one_rank_too},
    {.name = "f32, statistics, dropout",
     .by = BY_SGD_MOMENTUM,
     .statistics = true,
     .dropout = true,
     .plateau = true,
     .ddp = &one_rank_too},
    {.name = "O0, SGD", .by = BY_SGD_ALONE, .level = AMP_O0, .clips = true, .ddp = &one_rank_too},
    {.name = "O1, AdamW", .by = BY_ADAMW, .level = AMP_O1, .half = CAIRN_F16, .ddp = &one_rank_too},
    {.name = "O1 bf16, statistics",
     .by = BY_ADAM,
     .level = AMP_O1,
     .half = CAIRN_BF16,
     .statistics = true,
     .accumulates = true,
     .no_sync = true,
     .ddp = &one_rank_too},
    {.name = "O2 bf16, statistics over ranks",
     .by = BY_SGD_MOMENTUM,
     .level = AMP_O2,
     .half = CAIRN_BF16,
     .statistics = true,
     .sync_batch_norm = true,
     .ddp = &one_rank_too},
    {.name = "O3 f16, dropout",
     .by = BY_SGD_MOMENTUM,
     .level = AMP_O3,
     .half = CAIRN_F16,
     .dropout = true,
     .groups = true,
     .ddp = &one_rank_too},
    {.name = "O3 bf16, stochastic",
     .by = BY_ADAM,
     .level = AMP_O3,
     .half = CAIRN_BF16,
     .stochastic = true,
     .ddp = &one_rank_too}};
static const struct cairn_schedule_options cosine = {.struct_size = sizeof(cosine),
                                                     .kind = CAIRN_SCHEDULE_COSINE,
                                                     .total_steps = 50,
                                                     .warmup_steps = 20};
static struct resume_case shared_case; /* one of these, with a schedule */
enum { SHARED_STEPS = 3 };             /* so that the sampler's position divides for 1, 3 and 4 ranks */

static char *train_and_save(cairn_env *env, void *ctx) {
    struct resume_run r;
    float loss;
    PASS(resume_begin(&r, env, &shared_case, 0));
    for (int i = 0; i < SHARED_STEPS; i++) PASS(resume_step(&r, i, &loss));
    PASS(save_to_files(&r, ctx, SHARED_STEPS));
    resume_end(&r);
    return NULL;
}

/* What was loaded is saved again, as another step. */
static char *load_and_save(cairn_env *env, void *ctx) {
    struct resume_run r;
    float loss;
    PASS(resume_begin(&r, env, &shared_case, SHARED_STEPS));
    PASS(load_from_files(&r, ctx, SHARED_STEPS));
    EXPECT(cairn_optimizer_steps(r.optimizer) == SHARED_STEPS);
    char path[256];
    snprintf(path, sizeof(path), "%s/again", (const char *)ctx);
    PASS(save_to_files(&r, path, cairn_env_size(env)));
    PASS(resume_step(&r, SHARED_STEPS, &loss)); /* and it goes on */
    EXPECT(isfinite(loss));
    resume_end(&r);
    return NULL;
}

static size_t read_shared(const char *step, char *text, size_t room) {
    char name[128];
    snprintf(name, sizeof(name), "%s/shared.safetensors", step);
    FILE *f = fopen(in_folder(name), "rb");
    assert_non_null(f);
    const size_t n = fread(text, 1, room, f);
    assert_true(n > 0 && n < room);
    fclose(f);
    return n;
}

/* -Dstate=disabled leaves checkpoints out. */
static bool has_files(void) {
    return cairn_state_create(NULL, NULL) != CAIRN_ENOTBUILT;
}

static void a_state_of_two_ranks_loads_on_one_three_and_four(void **state) {
    static char saved[1 << 16], again[1 << 16];
    (void)state;
    if (!has_files()) {
        print_message("%s\n", cairn_last_error());
        skip();
    }
    for (size_t i = 0; i < sizeof(shared_cases) / sizeof(shared_cases[0]); i += stride()) {
        shared_case = shared_cases[i];
        if (i % 2 == 0) shared_case.schedule = &cosine;
        check_as(shared_case.name);
        assert_int_equal(make_folder(NULL), 0);
        run_ranks(2, train_and_save, folder);
        const size_t n = read_shared("step-00000003", saved, sizeof(saved));
        for (int q = 1; q <= 4; q++) {
            char step[64];
            run_ranks(q, load_and_save, folder);
            snprintf(step, sizeof(step), "again/step-%08d", q);
            if (q == 2) continue;
            assert_int_equal(read_shared(step, again, sizeof(again)), n);
            assert_memory_equal(saved, again, n);
        }
        assert_int_equal(remove_folder(NULL), 0);
    }
}

/* ---- shards ---- */

static const struct ddp_options plain = {.struct_size = sizeof(plain), .find_unused_parameters = CAIRN_ON};
static const struct ddp_options sharded = {.struct_size = sizeof(sharded),
                                           .find_unused_parameters = CAIRN_ON,
                                           .shard_optimizer = CAIRN_ON,
                                           .bucket_nbytes = 128};

/* Loads from one folder and saves in another what it has loaded. */
struct passing_on {
    const struct ddp_options *ddp;
    char from[128], to[128];
};

static char *pass_on(cairn_env *env, void *ctx) {
    const struct passing_on *way = ctx;
    struct resume_case c = shared_case;
    struct resume_run r;
    c.ddp = way->ddp;
    PASS(resume_begin(&r, env, &c, SHARED_STEPS));
    if (way->from[0]) {
        PASS(load_from_files(&r, way->from, SHARED_STEPS));
    } else {
        float loss;
        for (int i = 0; i < SHARED_STEPS; i++) PASS(resume_step(&r, i, &loss));
    }
    PASS(save_to_files(&r, way->to, SHARED_STEPS));
    resume_end(&r);
    return NULL;
}

static void pass_on_over(int ranks, const struct ddp_options *ddp, const char *from, const char *to) {
    struct passing_on way = {.ddp = ddp};
    if (from) snprintf(way.from, sizeof(way.from), "%s/%s", folder, from);
    snprintf(way.to, sizeof(way.to), "%s/%s", folder, to);
    run_ranks(ranks, pass_on, &way);
}

static void shards_of_any_ranks_load_on_any_others_and_whole(void **state) {
    static char saved[1 << 16], again[1 << 16];
    (void)state;
    if (!has_files()) {
        print_message("%s\n", cairn_last_error());
        skip();
    }
    for (size_t i = stride() - 1; i < sizeof(shared_cases) / sizeof(shared_cases[0]); i += stride()) {
        shared_case = shared_cases[i];
        check_as(shared_case.name);
        assert_int_equal(make_folder(NULL), 0);
        pass_on_over(2, &plain, NULL, "plain");
        pass_on_over(2, &sharded, NULL, "sharded");
        const size_t n = read_shared("plain/step-00000003", saved, sizeof(saved));
        for (int q = 1; q <= 4; q++) {
            char other[32], same[32], back[96];
            snprintf(other, sizeof(other), "other-%d", q);
            snprintf(same, sizeof(same), "same-%d", q);
            pass_on_over(q, &sharded, q % 2 ? "sharded" : "plain", other);
            pass_on_over(5 - q, &plain, other, same);
            snprintf(back, sizeof(back), "%s/step-00000003", same);
            assert_int_equal(read_shared(back, again, sizeof(again)), n);
            assert_memory_equal(saved, again, n);
        }
        assert_int_equal(remove_folder(NULL), 0);
    }
}

/* An average over ranks of equal halves is each of them, whatever the number of ranks: their sum is exact in f32. That
 * of three equal f32 is not always: what has some goes on alike on one and two ranks. Dropout differs
 * between ranks. */
static const struct amp_scaler_options apex = {.struct_size = sizeof(apex),
                                               .kind = AMP_SCALER_APEX,
                                               .init_scale = 64,
                                               .growth_interval = 4};
static const struct resume_case same_data_cases[] = {
    {.name = "f32, statistics",
     .by = BY_ADAM,
     .statistics = true,
     .ddp = &one_rank_too,
     .schedule = &cosine,
     .same_data = true},
    {.name = "O0, clips",
     .by = BY_SGD_MOMENTUM,
     .level = AMP_O0,
     .clips = true,
     .ddp = &one_rank_too,
     .same_data = true},
    {.name = "O1 f16, statistics",
     .by = BY_ADAMW,
     .level = AMP_O1,
     .half = CAIRN_F16,
     .scaler = &apex,
     .overflows = 6,
     .statistics = true,
     .ddp = &one_rank_too,
     .same_data = true},
    {.name = "O1 bf16, groups",
     .by = BY_SGD_MOMENTUM,
     .level = AMP_O1,
     .half = CAIRN_BF16,
     .groups = true,
     .freezes = true,
     .ddp = &one_rank_too,
     .same_data = true},
    {.name = "O2 bf16, statistics",
     .by = BY_ADAM,
     .level = AMP_O2,
     .half = CAIRN_BF16,
     .statistics = true,
     .schedule = &cosine,
     .ddp = &one_rank_too,
     .same_data = true},
    {.name = "O3 f16",
     .by = BY_ADAM,
     .level = AMP_O3,
     .half = CAIRN_F16,
     .scaler = &apex,
     .schedule = &cosine,
     .ddp = &one_rank_too,
     .same_data = true},
    {.name = "O2 f16",
     .by = BY_ADAM,
     .level = AMP_O2,
     .scaler = &apex,
     .overflows = 6,
     .ddp = &one_rank_too,
     .same_data = true},
    {.name = "O3 bf16",
     .by = BY_SGD_MOMENTUM,
     .level = AMP_O3,
     .half = CAIRN_BF16,
     .accumulates = true,
     .ddp = &one_rank_too,
     .same_data = true},
};

static char *begin_with_same_data(cairn_env *env, void *ctx) {
    const struct resume_case *c = ctx;
    struct resume_run r;
    float loss;
    PASS(resume_begin(&r, env, c, 0));
    for (int i = 0; i < RESUME_AT; i++) PASS(resume_step(&r, i, &loss));
    PASS(save_to_files(&r, folder, RESUME_AT));
    resume_end(&r);
    return NULL;
}

/* The state at the end is a checkpoint in a folder of its own. */
static char *go_on_with_same_data(cairn_env *env, void *ctx) {
    const struct resume_case *c = ctx;
    struct resume_run r;
    float loss;
    char path[256];
    PASS(resume_begin(&r, env, c, RESUME_AT));
    PASS(load_from_files(&r, folder, RESUME_AT));
    for (int i = RESUME_AT; i < RESUME_STEPS; i++) PASS(resume_step(&r, i, &loss));
    snprintf(path, sizeof(path), "%s/ends", folder);
    PASS(save_to_files(&r, path, cairn_env_size(env)));
    resume_end(&r);
    return NULL;
}

static void trainings_of_two_ranks_go_on_alike_on_one_three_and_four(void **state) {
    static char two[1 << 16], other[1 << 16];
    (void)state;
    if (!has_files()) {
        print_message("%s\n", cairn_last_error());
        skip();
    }
    for (size_t i = 0; i < sizeof(same_data_cases) / sizeof(same_data_cases[0]); i += stride()) {
        struct resume_case c = same_data_cases[i];
        check_as(c.name);
        assert_int_equal(make_folder(NULL), 0);
        run_ranks(2, begin_with_same_data, &c);
        const int most = c.level >= AMP_O2 && !c.statistics ? 4 : 2;
        for (int q = 1; q <= most; q++) run_ranks(q, go_on_with_same_data, &c);
        const size_t n = read_shared("ends/step-00000002", two, sizeof(two));
        for (int q = 1; q <= most; q++) {
            char step[64];
            snprintf(step, sizeof(step), "ends/step-%08d", q);
            assert_int_equal(read_shared(step, other, sizeof(other)), n);
            if (memcmp(two, other, n) != 0) fail_msg("%s, on %d ranks", c.name, q);
        }
        assert_int_equal(remove_folder(NULL), 0);
    }
}

static int with_files(void **state) {
    (void)state;
    if (make_folder(NULL) != 0) return -1;
    resume_folder = has_files() ? folder : NULL;
    return 0;
}

static int with_files_of_some(void **state) {
    (void)state;
    if (make_folder(NULL) != 0) return -1;
    resume_folder_of_some = has_files() ? folder : NULL;
    return 0;
}

static int without_files(void **state) {
    resume_folder = resume_folder_of_some = NULL;
    return remove_folder(state);
}

/* usage: ddp_state_test [random SEEDS [FIRST]]: 12 seeds without, 2 with CAIRN_TEST_SHORT in the environment */
int main(int argc, char **argv) {
    const struct CMUnitTest by_chance[] = {
        cmocka_unit_test_setup_teardown(trainings_by_chance_go_on_to_the_bit, with_files_of_some, without_files)};
    cairn_set_log(log_nothing, NULL); /* of steps that are skipped */
    if (check_is_short()) num_seeds = 2;
    if (argc > 2 && strcmp(argv[1], "random") == 0) {
        num_seeds = atoi(argv[2]);
        if (argc > 3) first_seed = atoi(argv[3]);
        return cmocka_run_group_tests(by_chance, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trainings_of_ranks_go_on_to_the_bit),
        cmocka_unit_test_setup_teardown(trainings_of_ranks_go_on_to_the_bit, with_files, without_files),
        by_chance[0],
        cmocka_unit_test(a_state_of_two_ranks_loads_on_one_three_and_four),
        cmocka_unit_test(shards_of_any_ranks_load_on_any_others_and_whole),
        cmocka_unit_test(trainings_of_two_ranks_go_on_alike_on_one_three_and_four),
        cmocka_unit_test(what_ranks_average_is_shared_and_the_rest_each_ranks_own),
        cmocka_unit_test(weights_after_local_steps_differ_by_rank),
        cmocka_unit_test(the_first_backward_after_a_load_has_the_same_buckets),
        cmocka_unit_test(a_hook_can_be_registered_after_a_load),
        cmocka_unit_test(an_order_of_no_parameters_is_passed_over),
        cmocka_unit_test(buffers_of_the_users_own_go_on_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
