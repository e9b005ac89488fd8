/* Post-local SGD. Gradients are integers and learning rates powers of two, so that every weight is exact. */
#include "../failing_alloc.h"
#include "../on_gpu.h"
#include "../state_in_memory.h"
#include "comm/group_backend.h"
#include "core/trace.h"
#include "given_grads.h"

enum { START = 2 };

struct training {
    cairn_module *model;
    struct cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
    ddp_context *net;
    struct given_inputs x;
};

static const struct amp_scaler_options scaler = {.struct_size = sizeof(struct amp_scaler_options),
                                                 .init_scale = 64,
                                                 .min_scale = 1,
                                                 .growth_interval = 1000};

static char *begin_training(cairn_env *env, amp_opt_level level, cairn_group *subgroup, struct training *t) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    sgd.lr = 0x1p-4;
    *t = (struct training){.model = make_given(env)};
    EXPECT(t->model);
    t->set = cairn_module_params(t->model);
    PASS(make_given_inputs(env, &t->x));
    EXPECT_OK(cairn_sgd_create(t->set, &sgd, &t->sgd));
    EXPECT_OK(
        amp_initialize(env, t->model, t->sgd,
                       amp_options(.opt_level = level, .loss_scale = AMP_DYNAMIC, .scaler = &scaler, .verbosity = -1),
                       &t->amp));
    EXPECT_OK(ddp_create(t->model, cairn_env_group(env), NULL, &t->net));
    EXPECT_OK(ddp_post_local_sgd_register(t->net, ddp_post_local_sgd_options(.start_localSGD_iter = START,
                                                                             .subgroup = subgroup)));
    return NULL;
}

static void end_training(struct training *t) {
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_module_destroy(&t->model);
    end_given_inputs(&t->x);
}

/* Of one rank: whole numbers from -2 to 2, times rank + 1. */
static float number(int rank, int step, size_t i) {
    return (float)((rank + 1) * ((int)((i + (size_t)step) % 5) - 2));
}

static char *run_step(struct training *t, int rank, int step) {
    struct given_values g;
    for (int k = 0; k < GIVEN; k++) {
        for (size_t i = 0; i < given_n(k); i++) g.of[k][i] = number(rank, step, i);
        EXPECT_OK(cairn_tensor_write(t->x.of[k], g.of[k], (int64_t)given_n(k)));
    }
    cairn_zero_grad(t->sgd);
    EXPECT_OK(amp_backward(t->amp, ddp_forward_n(t->net, t->x.of, GIVEN), t->sgd));
    EXPECT_OK(cairn_step(t->sgd));
    return NULL;
}

static char *read_weight(cairn_env *env, const struct training *t, int k, bool master, float *out) {
    const struct cairn__param *p = t->set->params[k];
    char raw[GIVEN_MOST * sizeof(float)];
    const cairn_dtype dtype = master && p->master ? CAIRN_F32 : p->dtype;
    EXPECT_OK(cairn__device_download(env->device, raw, master && p->master ? (void *)p->master : p->data,
                                     p->n * cairn_dtype_nbytes(dtype)));
    for (size_t i = 0; i < p->n; i++) out[i] = cairn__dtype(dtype)->to_f32(raw + i * cairn_dtype_nbytes(dtype));
    return NULL;
}

/* Weights are w[i]; half ones are rounded from masters. */
static char *expect_weights(cairn_env *env, const struct training *t, int k, const double *w) {
    float master[GIVEN_MOST], weight[GIVEN_MOST];
    const cairn_dtype dtype = t->set->params[k]->dtype;
    PASS(read_weight(env, t, k, true, master));
    PASS(read_weight(env, t, k, false, weight));
    for (size_t i = 0; i < given_n(k); i++) {
        EXPECT(master[i] == (float)w[i]);
        char narrow[4];
        cairn__dtype(dtype)->from_f32(narrow, master[i]);
        EXPECT(weight[i] == cairn__dtype(dtype)->to_f32(narrow));
    }
    return NULL;
}

/* ---- gradients ---- */

/* The ranks that this one averages with in a step. */
struct among {
    int first, end;
};

static struct among among_of(int rank, int p, int step, int per) {
    if (step < START) return (struct among){0, p};
    const int first = rank / per * per;
    return (struct among){first, first + per < p ? first + per : p};
}

static double average_of(struct among a, int step, size_t i) {
    double sum = 0;
    for (int r = a.first; r < a.end; r++) sum += number(r, step, i);
    return sum / (a.end - a.first);
}

struct local {
    int per; /* ranks of a subgroup; 1 = none */
    amp_opt_level level;
};

/* Every rank knows what weights all ranks have. */
static char *train_locally(cairn_env *env, void *ctx) {
    const struct local *local = ctx;
    const int rank = cairn_env_rank(env), p = cairn_env_size(env);
    struct training t;
    cairn_group *subgroup = NULL;
    double w[4][GIVEN_MOST] = {{0}};
    if (local->per > 1) EXPECT_OK(cairn_group_split(cairn_env_group(env), rank / local->per, rank, NULL, &subgroup));
    PASS(begin_training(env, local->level, subgroup, &t));
    for (int step = 0; step < 9; step++) {
        PASS(run_step(&t, rank, step));
        for (int r = 0; r < p; r++) {
            for (size_t i = 0; i < GIVEN_MOST; i++)
                w[r][i] -= 0x1p-4 * average_of(among_of(r, p, step, local->per), step, i);
        }
        PASS(expect_weights(env, &t, 1, w[rank]));
        EXPECT(t.set->ranks_differ == (step >= START));
        EXPECT_OK(ddp_weights_average(t.net, step, ddp_weights_average_options(.period = 3, .warmup_steps = 4)));
        for (size_t i = 0; step >= 4 && (step - 4) % 3 == 0 && i < GIVEN_MOST; i++) {
            double sum = 0;
            for (int r = 0; r < p; r++) sum += w[r][i];
            for (int r = 0; r < p; r++) w[r][i] = sum / p;
        }
        PASS(expect_weights(env, &t, 1, w[rank]));
        PASS(expect_weights(env, &t, 3, w[rank]));
    }
    end_training(&t);
    cairn_group_destroy(&subgroup);
    return NULL;
}

static void ranks_go_their_own_ways_until_weights_are_averaged(void **state) {
    (void)state;
    struct local locals[] = {{1, AMP_O0}, {1, AMP_O2}, {2, AMP_O0}, {2, AMP_O2}};
    for (int i = 0; i < 4; i++) {
        run_ranks(2, train_locally, &locals[i]);
        run_ranks(4, train_locally, &locals[i]);
    }
}

/* Half weights without masters are averaged in f32 and rounded once. */
static char *average_halves(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    PASS(begin_training(env, AMP_O3, NULL, &t));
    for (int step = 0; step < 4; step++) PASS(run_step(&t, cairn_env_rank(env), step));
    float before[GIVEN_MOST], after[GIVEN_MOST];
    double sums[GIVEN_MOST];
    PASS(read_weight(env, &t, 0, false, before));
    for (size_t i = 0; i < given_n(0); i++) sums[i] = before[i];
    EXPECT_OK(env->sum(env, sums, given_n(0)));
    EXPECT_OK(ddp_weights_average(t.net, 0, NULL));
    PASS(read_weight(env, &t, 0, false, after));
    for (size_t i = 0; i < given_n(0); i++) {
        char narrow[4];
        cairn__dtype(t.set->params[0]->dtype)->from_f32(narrow, (float)(sums[i] / cairn_env_size(env)));
        EXPECT(after[i] == cairn__dtype(t.set->params[0]->dtype)->to_f32(narrow));
    }
    end_training(&t);
    return NULL;
}

static void half_weights_without_masters_are_rounded_once(void **state) {
    (void)state;
    run_ranks(2, average_halves, NULL);
}

/* Machines average often, all seldom. */
static char *average_by_levels(cairn_env *env, void *ctx) {
    const int rank = cairn_env_rank(env);
    struct training t;
    cairn_group *machine = NULL;
    float w[GIVEN_MOST];
    (void)ctx;
    EXPECT_OK(cairn_group_split(cairn_env_group(env), rank / 2, rank, NULL, &machine));
    PASS(begin_training(env, AMP_O0, NULL, &t));
    for (int step = 0; step < 8; step++) {
        PASS(run_step(&t, rank, step));
        EXPECT_OK(ddp_weights_average(t.net, step, ddp_weights_average_options(.period = 2, .group = machine)));
        EXPECT_OK(ddp_weights_average(t.net, step, ddp_weights_average_options(.period = 6, .warmup_steps = 6)));
        PASS(read_weight(env, &t, 1, true, w));
        float all[4 * GIVEN_MOST];
        EXPECT_OK(cairn__group_exchange(cairn_env_group(env), all, w, sizeof(w)));
        const bool is_one = step < START || step == 6, is_pair = is_one || step % 2 == 0;
        for (int r = 0; r < 4; r++) {
            const bool same = memcmp(w, all + r * GIVEN_MOST, given_n(1) * sizeof(float)) == 0;
            EXPECT(same == (is_one || r == rank || (is_pair && r / 2 == rank / 2)));
        }
    }
    end_training(&t);
    cairn_group_destroy(&machine);
    return NULL;
}

static void two_groups_with_two_periods_are_a_hierarchy(void **state) {
    (void)state;
    run_ranks(4, average_by_levels, NULL);
}

/* ---- overflow ---- */

static char *overflow_alone(cairn_env *env, void *ctx) {
    const int rank = cairn_env_rank(env);
    struct training t;
    (void)ctx;
    PASS(begin_training(env, AMP_O2, NULL, &t));
    for (int step = 0; step < 6; step++) {
        PASS(run_step(&t, rank, step));
        EXPECT_OK(ddp_weights_average(t.net, step, ddp_weights_average_options(.period = 2)));
    }
    struct given_values g = {{{0}}};
    if (rank == 1) g.of[0][5] = 3000; /* times 64 is infinite in f16 */
    for (int k = 0; k < GIVEN; k++) EXPECT_OK(cairn_tensor_write(t.x.of[k], g.of[k], (int64_t)given_n(k)));
    cairn_zero_grad(t.sgd);
    EXPECT_OK(amp_backward(t.amp, ddp_forward_n(t.net, t.x.of, GIVEN), t.sgd));
    EXPECT_OK(cairn_step(t.sgd));
    EXPECT(cairn_optimizer_skipped(t.sgd) == (rank == 1));
    EXPECT(amp_scaler_get_scale(amp_scaler_of(t.amp, 0)) == (rank == 1 ? 32 : 64));
    EXPECT_OK(ddp_weights_average(t.net, 0, NULL));
    PASS(run_step(&t, rank, 7));
    EXPECT_OK(ddp_weights_average(t.net, 1, NULL));
    float w[GIVEN_MOST], all[3 * GIVEN_MOST];
    PASS(read_weight(env, &t, 1, true, w));
    EXPECT_OK(cairn__group_exchange(cairn_env_group(env), all, w, sizeof(w)));
    EXPECT(memcmp(w, all, given_n(1) * sizeof(float)) == 0);
    end_training(&t);
    return NULL;
}

static void a_rank_skips_its_own_overflow_alone(void **state) {
    (void)state;
    run_ranks(3, overflow_alone, NULL);
}

/* ---- state ---- */

static char *go_on(cairn_env *env, void *ctx) {
    const int rank = cairn_env_rank(env);
    struct training t, u;
    struct kept_state kept = {.count = 0};
    float got[GIVEN_MOST], want[GIVEN_MOST];
    (void)ctx;
    PASS(begin_training(env, AMP_O2, NULL, &t));
    for (int step = 0; step < 5; step++) PASS(run_step(&t, rank, step));
    cairn_zero_grad(t.sgd);
    const cairn_stateful of[] = {cairn_module_stateful(t.model), cairn_optimizer_stateful(t.sgd), amp_stateful(t.amp),
                                 ddp_stateful(t.net)};
    PASS(keep_state(&kept, of, 4));
    PASS(begin_training(env, AMP_O2, NULL, &u));
    const cairn_stateful into[] = {cairn_module_stateful(u.model), cairn_optimizer_stateful(u.sgd), amp_stateful(u.amp),
                                   ddp_stateful(u.net)};
    PASS(bring_back(&kept, into, 4));
    for (int step = 5; step < 8; step++) {
        PASS(run_step(&t, rank, step));
        PASS(run_step(&u, rank, step));
        PASS(read_weight(env, &t, 1, true, want));
        PASS(read_weight(env, &u, 1, true, got));
        EXPECT(memcmp(got, want, given_n(1) * sizeof(float)) == 0);
    }
    drop_state(&kept);
    end_training(&t);
    end_training(&u);
    return NULL;
}

static void a_loaded_training_stays_local(void **state) {
    (void)state;
    run_ranks(2, go_on, NULL);
}

/* ---- getting it wrong ---- */

static char *register_wrongly(cairn_env *env, void *ctx) {
    const int rank = cairn_env_rank(env);
    ddp_context *net = NULL;
    cairn_group *subgroup = NULL;
    cairn_module *model = make_given(env);
    (void)ctx;
    EXPECT_OK(cairn_group_split(cairn_env_group(env), rank, 0, NULL, &subgroup));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    EXPECT(ddp_post_local_sgd_register(NULL, NULL) == CAIRN_EINVAL);
    EXPECT(ddp_post_local_sgd_register(net, ddp_post_local_sgd_options(.start_localSGD_iter = -1)) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "start_localSGD_iter is -1; it must be positive, or 0 for 100"));
    EXPECT(ddp_post_local_sgd_register(net, ddp_post_local_sgd_options(.start_localSGD_iter = rank + 1)) ==
           CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "start_localSGD_iter is 1 on rank 0 but 2 on rank 1"));
    EXPECT(ddp_post_local_sgd_register(net, ddp_post_local_sgd_options(.subgroup = rank ? subgroup : NULL)) ==
           CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "subgroup is NULL on rank 0 but set on rank 1"));
    EXPECT_OK(ddp_post_local_sgd_register(net, NULL));
    EXPECT(ddp_post_local_sgd_register(net, NULL) == CAIRN_ESTATE);
    EXPECT(ddp_powersgd_register(net, NULL) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "has a hook already ('post_local_sgd')"));
    EXPECT(ddp_weights_average(NULL, 0, NULL) == CAIRN_EINVAL);
    EXPECT(ddp_weights_average(net, -1, NULL) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "step is -1; count steps from 0"));
    EXPECT(ddp_weights_average(net, 0, ddp_weights_average_options(.period = -2)) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "period = -2"));
    EXPECT_OK(ddp_weights_average(net, 0, NULL));
    ddp_destroy(&net);
    cairn_group_destroy(&subgroup);
    cairn_module_destroy(&model);
    return NULL;
}

static void wrong_options_fail_with_a_message_on_every_rank(void **state) {
    (void)state;
    run_ranks(2, register_wrongly, NULL);
}

static char *leave_early(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    PASS(begin_training(env, AMP_O0, NULL, &t));
    for (int step = 0; step < 4; step++) PASS(run_step(&t, cairn_env_rank(env), step));
    if (cairn_env_rank(env) != 1) {
        EXPECT(ddp_weights_average(t.net, 4, NULL) == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), "rank 1"));
    }
    end_training(&t);
    return NULL;
}

static void a_rank_that_leaves_before_an_average_is_named(void **state) {
    (void)state;
    NOT_ON_A_GPU("there ranks notice by the timeout");
    run_ranks(3, leave_early, NULL);
}

/* Works of a group that are not in use. */
static int free_works_of(const cairn_group *group) {
    int count = 0;
    for (const struct cairn_work *w = group->free_works; w; w = w->next_free) count++;
    return count;
}

/* Rank 1 fails to allocate: first the list of works, then works. The test holds all of the group's but two, so that the
 * third average allocates more. */
static char *average_without_memory(cairn_env *env, void *ctx) {
    enum { MOST = 256 };
    cairn_status st = CAIRN_ENOMEM;
    (void)ctx;
    for (int at = 1; st != CAIRN_OK; at++) {
        struct training t;
        cairn_group *group = NULL;
        cairn_work *held[MOST];
        int32_t numbers[MOST] = {0};
        int count = 0;
        PASS(begin_training(env, AMP_O0, NULL, &t));
        EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, NULL, &group));
        const int works = free_works_of(group);
        const bool tells_why = strcmp(cairn_group_backend(group), "gloo") != 0; /* an exchange names the rank alone */
        const bool knows_why = tells_why || cairn_env_rank(env) == 1;
        for (; works - count > 2; count++)
            EXPECT_OK(cairn_allreduce(group, &numbers[count], 1, CAIRN_I32, CAIRN_SUM, &held[count]));
        EXPECT_OK(cairn_barrier(cairn_env_group(env)));
        if (cairn_env_rank(env) == 1) fail_in = at;
        st = ddp_weights_average(t.net, 0, ddp_weights_average_options(.group = group));
        fail_in = 0;
        EXPECT(st == CAIRN_OK ? at > 2 : st == (cairn_env_rank(env) == 1 ? CAIRN_ENOMEM : CAIRN_EPEER));
        EXPECT(st == CAIRN_OK || strstr(cairn_last_error(), knows_why ? "memory" : "rank 1"));
        EXPECT((free_works_of(group) + count) % works == 0);
        while (count > 0) (void)cairn_work_wait(&held[--count]);
        cairn_group_destroy(&group);
        end_training(&t);
    }
    return NULL;
}

static void a_rank_without_memory_fails_the_average_on_all_at_once(void **state) {
    (void)state;
    NOT_ON_A_GPU("there ranks notice by the timeout");
    run_ranks(2, average_without_memory, NULL);
}

/* Rank 1 alone has a number that is out of range, or averages in place of its weights. */
static char *refuse_one_alone(cairn_env *env, void *ctx) {
    static const char *const sentences[] = {"step is -4; count steps from 0", "period = -2", "cairn_averages_restore"};
    const bool is_it = cairn_env_rank(env) == 1;
    struct training t;
    cairn_averages *averages = NULL;
    (void)ctx;
    PASS(begin_training(env, AMP_O0, NULL, &t));
    if (is_it) EXPECT_OK(cairn_averages_create(cairn_module_stateful(t.model), NULL, &averages));
    for (int k = 0; k < 3; k++) {
        PASS(run_step(&t, cairn_env_rank(env), k));
        if (is_it) EXPECT_OK(cairn_averages_update(averages, t.sgd));
        if (is_it && k == 2) EXPECT_OK(cairn_averages_apply(averages));
        const uint64_t begin_ns = cairn__now_ns();
        const cairn_status st = ddp_weights_average(t.net, is_it && k == 0 ? -4 : 4,
                                                    ddp_weights_average_options(.period = is_it && k == 1 ? -2 : 2));
        EXPECT(st == (is_it ? k == 2 ? CAIRN_ESTATE : CAIRN_EINVAL : CAIRN_EPEER));
        EXPECT_SAYS(sentences[k]);
        EXPECT(is_it || strstr(cairn_last_error(), "it failed on rank 1: "));
        EXPECT((double)(cairn__now_ns() - begin_ns) * 1e-9 < 20);
        if (is_it && k == 2) EXPECT_OK(cairn_averages_restore(averages));
        EXPECT_OK(ddp_weights_average(t.net, 4, NULL)); /* the group lives */
    }
    cairn_averages_destroy(&averages);
    end_training(&t);
    return NULL;
}

static void an_average_refused_on_one_rank_fails_on_all_at_once(void **state) {
    (void)state;
    for (int p = 2; p <= 3; p++) run_ranks(p, refuse_one_alone, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_go_their_own_ways_until_weights_are_averaged),
        cmocka_unit_test(half_weights_without_masters_are_rounded_once),
        cmocka_unit_test(two_groups_with_two_periods_are_a_hierarchy),
        cmocka_unit_test(a_rank_skips_its_own_overflow_alone),
        cmocka_unit_test(a_loaded_training_stays_local),
        cmocka_unit_test(wrong_options_fail_with_a_message_on_every_rank),
        cmocka_unit_test(a_rank_that_leaves_before_an_average_is_named),
        cmocka_unit_test(a_rank_without_memory_fails_the_average_on_all_at_once),
        cmocka_unit_test(an_average_refused_on_one_rank_fails_on_all_at_once),
    };
    cairn_set_log(log_nothing, NULL); /* of steps that are skipped */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
