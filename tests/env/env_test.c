/* Environments: errors, independence of two environments in one process, and rendezvous. */
#include "../kept_log.h"
#include "../ranks.h"

#include <stdatomic.h>

#include "core/alloc.h"

static void options_out_of_range_are_refused(void **state) {
    (void)state;
    cairn_env *env = NULL;
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.timeout = -1), &env), CAIRN_EINVAL);
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.device = "tpu"), &env), CAIRN_EINVAL);
    setenv("CAIRN_MODULE_PATH", "/nowhere", 1);
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.device = "cuda"), &env), CAIRN_ENOTBUILT);
    assert_non_null(strstr(cairn_last_error(), "cuda"));
    unsetenv("CAIRN_MODULE_PATH");
    assert_null(env);
}

static void variable_names_the_device_where_the_program_does_not(void **state) {
    (void)state;
    cairn_env *env = NULL;
    setenv("CAIRN_DEVICE", "tpu", 1);
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "no device is called 'tpu'"));
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.device = "cpu"), &env), CAIRN_OK);
    unsetenv("CAIRN_DEVICE");
    assert_int_equal(cairn_env_synchronize(env), CAIRN_OK);
    assert_int_equal(cairn_env_synchronize(NULL), CAIRN_EINVAL);
    cairn_env_destroy(&env);
}

static void process_that_is_alone_has_a_group_of_one(void **state) {
    (void)state;
    cairn_env *env = NULL;
    float x = 3;
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_OK);
    assert_int_equal(cairn_env_rank(env), 0);
    assert_int_equal(cairn_env_size(env), 1);
    assert_int_equal(cairn_group_size(cairn_env_group(env)), 1);
    assert_int_equal(cairn_allreduce(cairn_env_group(env), &x, 1, CAIRN_F32, CAIRN_AVG, NULL), CAIRN_OK);
    assert_true(x == 3);
    assert_string_equal(cairn_device_name(cairn_env_device(env)), "cpu");
    cairn_env_destroy(&env);
    assert_null(env);
    cairn_env_destroy(&env);
    cairn_env_destroy(NULL);
}

static float first_loss(cairn_env *env) {
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 6));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 2));
    cairn_module *model = cairn_linear(env, 6, 2);
    float loss = cairn_tensor_item(cairn_mse_loss(cairn_module_forward(model, x), y));
    cairn_module_destroy(&model);
    return loss;
}

static void two_environments_do_not_touch_each_other(void **state) {
    (void)state;
    cairn_env *a = NULL, *b = NULL;
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.seed = 1), &a), CAIRN_OK);
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.seed = 1), &b), CAIRN_OK);
    float from_a = first_loss(a), from_b = first_loss(b);
    assert_true(from_a == from_b);
    cairn_env_destroy(&a);
    cairn_manual_seed(b, 1);
    assert_true(first_loss(b) == from_b);
    cairn_manual_seed(b, 2);
    assert_true(first_loss(b) != from_b);
    cairn_env_destroy(&b);
}

static char *add_up_ranks(cairn_env *env, void *ctx) {
    int32_t sum = cairn_env_rank(env);
    int p = cairn_env_size(env);
    (void)ctx;
    EXPECT_OK(cairn_allreduce(cairn_env_group(env), &sum, 1, CAIRN_I32, CAIRN_SUM, NULL));
    EXPECT(sum == p * (p - 1) / 2);
    return NULL;
}

static void any_number_of_ranks_meets(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 8};
    for (int i = 0; i < 4; i++) run_ranks(sizes[i], add_up_ranks, NULL);
}

/* Kept with everything in it, so that the group made from its own goes on. */
static void environment_is_kept_while_a_group_made_in_it_is_alive(void **state) {
    (void)state;
    cairn_env *env = NULL;
    cairn_group *made = NULL;
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_OK);
    assert_int_equal(cairn_group_new(cairn_env_group(env), NULL, 0, NULL, &made), CAIRN_OK);
    cairn_set_log(keep_log, NULL);
    cairn_env_destroy(&env);
    assert_non_null(env);
    assert_non_null(strstr(log_text, "1 group made from the environment's"));
    assert_int_equal(cairn_barrier(made), CAIRN_OK);
    assert_int_equal(cairn_barrier(cairn_env_group(env)), CAIRN_OK);
    cairn_group_destroy(&made);
    cairn_env_destroy(&env);
    assert_null(env);
    cairn_set_log(NULL, NULL);
}

static atomic_int notices;

static void count_notices(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    if (level == CAIRN_LOG_NOTICE && strstr(message, "computing on the CPU: device 'cuda'")) notices++;
}

static char *find_cpu(cairn_env *env, void *ctx) {
    (void)ctx;
    EXPECT(strcmp(cairn_device_name(cairn_env_device(env)), "cpu") == 0);
    return NULL;
}

/* In every build alike. */
static void hide_modules(void) {
    setenv("CAIRN_MODULE_PATH", "/nowhere", 1);
}

static void several_ranks_without_gpus_compute_on_the_cpu(void **state) {
    (void)state;
    const struct cairn__launch launch = {.size = 2, .launcher = "torch"};
    cairn_env *env = NULL;
    hide_modules();
    assert_int_equal(cairn__env_create_at(&launch, cairn_env_options(.device = "cuda"), &env), CAIRN_ENOTBUILT);
    assert_non_null(strstr(cairn_last_error(), "device 'cuda' "));
    assert_null(env);
    setenv("CAIRN_DEVICE", "auto", 1);
    cairn_set_log(count_notices, NULL);
    run_ranks(2, find_cpu, NULL);
    cairn_set_log(NULL, NULL);
    unsetenv("CAIRN_DEVICE");
    unsetenv("CAIRN_MODULE_PATH");
    assert_int_equal(notices, 2); /* one a rank, of which the default sink shows rank 0's */
}

struct by_hand {
    int rank, port;
    const char *problem;
};

static void *make_environments_by_hand(void *arg) {
    struct by_hand *self = arg;
    const struct cairn__launch launch = {
        .rank = self->rank,
        .size = 2,
        .launcher = "torch",
        .meeting = {.hosts = {"127.0.0.1"}, .num_hosts = 1, .ports = {self->port}, .num_ports = 1},
        .key_prefix = "test"};
    for (int i = 0; i < 20 && !self->problem; i++) {
        cairn_env *env = NULL;
        int32_t one = 1;
        if (cairn__env_create_at(&launch, cairn_env_options(.timeout = 20), &env) != CAIRN_OK ||
            cairn_allreduce(cairn_env_group(env), &one, 1, CAIRN_I32, CAIRN_SUM, NULL) != CAIRN_OK || one != 2) {
            self->problem = strdup(cairn_last_error());
        }
        cairn_env_destroy(&env);
    }
    return NULL;
}

/* Without a launcher rank 0 hosts a store for each; a fast rank must not meet the last one's. */
static void environments_follow_each_other_without_a_launcher(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    struct by_hand ranks[2] = {{.rank = 0}, {.rank = 1}};
    pthread_t threads[2];
    int port = 0;
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK); /* a port that is free */
    cairn__store_stop(&server);
    for (int r = 0; r < 2; r++) {
        ranks[r].port = port;
        assert_int_equal(pthread_create(&threads[r], NULL, make_environments_by_hand, &ranks[r]), 0);
    }
    for (int r = 0; r < 2; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < 2; r++) {
        if (ranks[r].problem) fail_msg("rank %d: %s", r, ranks[r].problem);
    }
}

static void environment_leaves_no_memory_behind(void **state) {
    (void)state;
    uint64_t before = cairn__alloc_counters().alive;
    run_ranks(3, add_up_ranks, NULL);
    assert_int_equal(cairn__alloc_counters().alive, before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(variable_names_the_device_where_the_program_does_not),
        cmocka_unit_test(process_that_is_alone_has_a_group_of_one),
        cmocka_unit_test(two_environments_do_not_touch_each_other),
        cmocka_unit_test(environment_is_kept_while_a_group_made_in_it_is_alive),
        cmocka_unit_test(any_number_of_ranks_meets),
        cmocka_unit_test(several_ranks_without_gpus_compute_on_the_cpu),
        cmocka_unit_test(environments_follow_each_other_without_a_launcher),
        cmocka_unit_test(environment_leaves_no_memory_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
