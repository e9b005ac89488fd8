/* ddp's logging data: the times of an iteration that the reducer records, and the figures derived from them. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../kept_log.h"
#include "../ranks.h"
#include "../trainer.h"
#include "cairn/ddp_logging.h"
#include "core/trace.h"
#include "ddp/times.h"

/* ---- times ---- */

static void communication_is_busy_while_any_bucket_is_on_its_way(void **state) {
    (void)state;
    struct cairn__ddp_times t = {0};
    assert_int_equal(cairn__ddp_times_make(&t, 2, 3, false), CAIRN_OK);
    cairn__ddp_times_forward_begin(&t);
    cairn__ddp_times_forward_end(&t);
    cairn__ddp_times_ready(&t, 1);
    cairn__ddp_times_launch(&t, 0, 64);
    cairn__ddp_times_launch(&t, 1, 64);
    cairn__ddp_times_ready(&t, 0);
    cairn__ddp_times_compute_end(&t);
    cairn__ddp_times_launch(&t, 2, 64);
    const uint64_t end = t.now.compute_end;
    t.buckets[0].launched = t.now.comm_begin = end - 1000;
    t.buckets[1].launched = end - 900;
    t.buckets[2].launched = end + 500; /* a gap of 300 before it */
    cairn__ddp_times_complete(&t, 0, end - 400);
    cairn__ddp_times_complete(&t, 1, end + 200);
    cairn__ddp_times_complete(&t, 2, end + 600);
    cairn__ddp_times_settled(&t);
    assert_int_equal(t.last.busy, 600 + 600 + 100);
    assert_int_equal(t.last.exposed, 200 + 100);
    const struct cairn__ddp_parts parts = cairn__ddp_times_last(&t);
    assert_int_equal(parts.comm, 1600);
    assert_int_equal(parts.overlap, 1000);
    assert_int_equal(t.num_ready, 2);
    assert_int_equal(t.ready_order[0], 1);
    assert_int_equal(t.ready_order[1], 0);
    cairn__ddp_times_free(&t);
}

static void medians_are_of_the_last_iterations_that_were_measured(void **state) {
    (void)state;
    struct cairn__ddp_times t = {0};
    assert_int_equal(cairn__ddp_times_make(&t, 2, 1, false), CAIRN_OK);
    assert_int_equal(cairn__ddp_times_median(&t).forward, 0);
    for (int i = 0; i < CAIRN__DDP_SAMPLES + 3; i++) {
        cairn__ddp_times_forward_begin(&t);
        cairn__ddp_times_forward_end(&t);
        t.now.forward_begin = t.now.forward_end - (uint64_t)(1000 + i);
        cairn__ddp_times_ready(&t, 0);
        cairn__ddp_times_compute_end(&t);
        cairn__ddp_times_settled(&t);
    }
    assert_int_equal(cairn__ddp_times_median(&t).forward, 1000 + 3 + CAIRN__DDP_SAMPLES / 2);
    assert_true(cairn__ddp_times_median_ready(&t, 0) > 0);
    assert_int_equal(cairn__ddp_times_median_ready(&t, 1), 0);
    cairn__ddp_times_free(&t);
}

static void polls_are_not_part_of_backwards_time(void **state) {
    (void)state;
    for (int watched = 0; watched < 2; watched++) {
        struct cairn__ddp_times t = {0};
        assert_int_equal(cairn__ddp_times_make(&t, 1, 1, watched), CAIRN_OK);
        cairn__ddp_times_forward_begin(&t);
        cairn__ddp_times_forward_end(&t);
        t.now.backward_begin -= 5000000;
        const uint64_t begin = cairn__ddp_times_poll_begin(&t);
        assert_int_equal(begin != 0, watched);
        cairn__ddp_times_poll_end(&t, begin ? begin - 4000000 : 0);
        cairn__ddp_times_ready(&t, 0);
        cairn__ddp_times_compute_end(&t);
        cairn__ddp_times_settled(&t);
        const struct cairn__ddp_parts parts = cairn__ddp_times_last(&t);
        const uint64_t polled = watched ? t.last.polled : 0;
        assert_true(!watched || polled >= 4000000);
        assert_int_equal(cairn__ddp_times_median(&t).backward, parts.backward > polled ? parts.backward - polled : 0);
        cairn__ddp_times_free(&t);
    }
}

static void time_of_unsynced_iterations_is_not_counted_as_outside(void **state) {
    (void)state;
    struct cairn__ddp_times t = {0};
    assert_int_equal(cairn__ddp_times_make(&t, 1, 1, false), CAIRN_OK);
    for (int reduced = 0; reduced < 2; reduced++) {
        t.last.settled = cairn__now_ns() - 1000;
        cairn__ddp_times_forward_begin(&t);
        const uint64_t outside = t.now.outside;
        assert_true(outside >= 1000);
        cairn__ddp_times_forward_end(&t);
        t.last.settled -= 5000000; /* its backward took this long */
        cairn__ddp_times_forward_begin(&t);
        cairn__ddp_times_forward_end(&t);
        cairn__ddp_times_ready(&t, 0);
        cairn__ddp_times_compute_end(&t);
        cairn__ddp_times_settled(&t);
        assert_int_equal(t.last.outside, outside);
    }
    cairn__ddp_times_free(&t);
}

/* ---- contexts ---- */

/* Three layers of 16 Ki elements, and a bucket each. */
static char *begin(struct trainer *t, cairn_env *env, const struct ddp_options *options) {
    *t = (struct trainer){.env = NULL};
    t->model =
        cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, 128, 128), cairn_activation(env, cairn_relu),
                                            cairn_linear(env, 128, 128), cairn_linear_without_bias(env, 128, 128)));
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 128));
    t->y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 128));
    EXPECT(t->model && t->x && t->y);
    EXPECT_OK(cairn_sgd_create(cairn_module_params(t->model), NULL, &t->optimizer));
    EXPECT_OK(ddp_create(t->model, cairn_env_group(env), options, &t->net));
    return NULL;
}

static char *expect_times(const struct ddp_logging_data *d) {
    EXPECT(d->forward_compute_time > 0 && d->backward_compute_time > 0 && d->backward_comm_time > 0);
    EXPECT(d->avg_forward_compute_time > 0 && d->avg_backward_compute_time > 0 && d->avg_backward_comm_time > 0);
    EXPECT(d->forward_compute_time_start + d->forward_compute_time == d->backward_compute_time_start);
    EXPECT(d->backward_compute_time_start + d->backward_compute_time == d->backward_compute_time_end);
    EXPECT(d->backward_comm_time_start + d->backward_comm_time == d->backward_comm_time_end);
    EXPECT(d->backward_comm_time_start > d->backward_compute_time_start);
    EXPECT(d->backward_compute_comm_overlap_time <= d->backward_comm_time);
    EXPECT(d->backward_comm_busy_time <= d->backward_comm_time);
    EXPECT(d->backward_exposed_comm_time <= d->backward_comm_busy_time);
    EXPECT(d->avg_backward_exposed_comm_time <= d->avg_backward_comm_busy_time && d->avg_outside_time > 0);
    return NULL;
}

static char *look_at_data(cairn_env *env, void *ctx) {
    (void)ctx;
    struct trainer t;
    PASS(begin(&t, env, ddp_options(.bucket_nbytes = 65536)));
    struct ddp_logging_data d = DDP_LOGGING_DATA_INIT;
    EXPECT_OK(ddp_get_logging_data(t.net, &d));
    EXPECT(d.iteration == 0 && d.has_rebuilt_buckets == 0 && d.avg_forward_compute_time == 0 && d.has_error == 0);
    EXPECT(strcmp(d.bucket_sizes, "65536, 66048, 66048") == 0);
    EXPECT(strcmp(d.rebuilt_bucket_sizes, "") == 0 && strcmp(d.rebuilt_per_bucket_param_indices, "") == 0);
    EXPECT(strcmp(d.module_name, "Sequential") == 0 && strcmp(d.backend_name, "shm") == 0);
    EXPECT(strcmp(d.comm_hook, "") == 0 && strcmp(d.dtypes, "f32") == 0 && strcmp(d.error, "") == 0);
    EXPECT(d.world_size == 2 && d.rank == cairn_env_rank(env) && d.bucket_cap_bytes == 65536);
    EXPECT(d.num_parameter_tensors == 5 && d.total_parameter_size_bytes == 4 * (3 * 128 * 128 + 2 * 128));
    EXPECT(d.gradient_as_bucket_view == 1 && d.find_unused_parameters == 0 && d.static_graph == 0);
    for (int i = 0; i < 3; i++) EXPECT_OK(trainer_step(&t));
    EXPECT_OK(ddp_get_logging_data(t.net, &d));
    EXPECT(d.iteration == 3 && d.has_rebuilt_buckets == 1 && d.unused_parameter_size == 0);
    EXPECT(strcmp(d.bucket_sizes, "65536, 66048, 66048") == 0);
    EXPECT(strcmp(d.rebuilt_bucket_sizes, "65536, 66048, 66048") == 0);
    EXPECT(strcmp(d.rebuilt_per_bucket_param_indices, "4, 3 2, 1 0") == 0);
    EXPECT(strcmp(d.prev_iteration_grad_ready_order_indices, "4, 3, 2, 1, 0") == 0);
    PASS(expect_times(&d));
    trainer_destroy(&t);
    return NULL;
}

static void logging_data_has_torchs_names(void **state) {
    (void)state;
    run_ranks(2, look_at_data, NULL);
}

/* Two parameters in the user's memory; a hook by name. */
static char *look_at_raw_data(cairn_env *env, void *ctx) {
    (void)ctx;
    float w[2][8] = {{0}}, g[2][8] = {{0}};
    const cairn_param params[] = {
        {.name = "a", .data = w[0], .grad = g[0], .dtype = CAIRN_F32, .ndim = 1, .shape = {8}},
        {.name = "b", .data = w[1], .grad = g[1], .dtype = CAIRN_F32, .ndim = 1, .shape = {8}}};
    cairn_param_set *set = NULL;
    ddp_context *net = NULL;
    struct ddp_logging_data d = DDP_LOGGING_DATA_INIT;
    EXPECT_OK(cairn_param_set_create(env, params, 2, &set));
    EXPECT_OK(ddp_create_params(set, cairn_env_group(env), NULL, &net));
    EXPECT_OK(ddp_register_comm_hook(net, ddp_bf16_compress_hook()));
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(ddp_grads_ready(net, 1, 1));
        EXPECT_OK(ddp_grads_ready(net, 0, 1));
        EXPECT_OK(ddp_wait(net));
        cairn_param_set_zero_grad(set);
    }
    EXPECT_OK(ddp_get_logging_data(net, &d));
    EXPECT(strcmp(d.module_name, "") == 0 && strcmp(d.comm_hook, ddp_bf16_compress_hook()->name) == 0);
    EXPECT(strcmp(d.prev_iteration_grad_ready_order_indices, "1, 0") == 0);
    EXPECT(strcmp(d.bucket_sizes, "128") == 0); /* a cache line each */
    EXPECT(d.iteration == 2 && d.gradient_as_bucket_view == 0 && d.avg_forward_compute_time == 0);
    EXPECT(d.avg_backward_compute_time > 0 && d.avg_backward_comm_time > 0 && d.avg_outside_time > 0);
    ddp_destroy(&net);
    cairn_param_set_destroy(&set);
    return NULL;
}

static void gradients_in_the_users_memory_have_times_too(void **state) {
    (void)state;
    run_ranks(2, look_at_raw_data, NULL);
}

static char *ask_wrongly(cairn_env *env, void *ctx) {
    (void)ctx;
    struct trainer t;
    PASS(begin(&t, env, NULL));
    struct ddp_logging_data d = DDP_LOGGING_DATA_INIT;
    EXPECT(ddp_get_logging_data(NULL, &d) == CAIRN_EINVAL && ddp_get_logging_data(t.net, NULL) == CAIRN_EINVAL);
    d.struct_size = 0;
    EXPECT(ddp_get_logging_data(t.net, &d) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "DDP_LOGGING_DATA_INIT"));
    d = (struct ddp_logging_data){.struct_size = offsetof(struct ddp_logging_data, comm_hook),
                                  .comm_hook = "untouched"};
    EXPECT_OK(ddp_get_logging_data(t.net, &d)); /* a caller of an older Cairn */
    EXPECT(strcmp(d.backend_name, "self") == 0 && strcmp(d.comm_hook, "untouched") == 0);
    EXPECT(ddp_write_logging_data(NULL, "/tmp/x") == CAIRN_EINVAL && ddp_write_logging_data(t.net, "") == CAIRN_EINVAL);
    EXPECT(ddp_write_logging_data(t.net, "/nowhere/at/all") == CAIRN_ESYSTEM);
    EXPECT(strstr(cairn_last_error(), "'/nowhere/at/all' could not be written: No such file or directory"));
    trainer_destroy(&t);
    return NULL;
}

static void wrong_logging_calls_are_refused(void **state) {
    (void)state;
    run_ranks(1, ask_wrongly, NULL);
}

static char *write_into_a_device(cairn_env *env, void *ctx) {
    struct trainer t;
    struct stat about;
    PASS(begin(&t, env, NULL));
    EXPECT(ddp_write_logging_data(t.net, ctx) == CAIRN_ESYSTEM);
    EXPECT(strstr(cairn_last_error(), "could not be written: No space left on device"));
    EXPECT(lstat(ctx, &about) == 0 && S_ISLNK(about.st_mode)); /* no file has taken its place */
    trainer_destroy(&t);
    return NULL;
}

static void a_device_is_written_into_and_not_replaced(void **state) {
    (void)state;
    char folder[] = "/tmp/cairn-ddp-log-XXXXXX", name[64];
    assert_non_null(mkdtemp(folder));
    snprintf(name, sizeof(name), "%s/full", folder);
    assert_int_equal(symlink("/dev/full", name), 0); /* a link alone, should it be replaced */
    run_ranks(1, write_into_a_device, name);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* Latin-1; an overlong form, a surrogate, a character cut short; and what is UTF-8. */
static const struct {
    const char *given, *written;
} names[] = {{"caf\xe9", "caf\\ufffd"},
             {"\xc0\xaf", "\\ufffd\\ufffd"},
             {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},
             {"w\xe2\x82", "w\\ufffd\\ufffd"},
             {"w\xe2\x82\xac \xf0\x9f\x98\x80", "w\xe2\x82\xac \xf0\x9f\x98\x80"},
             {"\"a\\b\"\n", "\\\"a\\\\b\\\"\\u000a"}};
enum { NAMES = sizeof(names) / sizeof(names[0]) };

static cairn_tensor *add_up(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    cairn_tensor *const *weights = context, *sum = inputs[0];
    for (int i = 0; i < NAMES; i++) sum = cairn_add(sum, weights[i]);
    return cairn_sum(sum);
}

static char *write_names(cairn_env *env, void *ctx) {
    static const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "\xff", .forward = add_up};
    cairn_tensor *weights[NAMES], *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1));
    ddp_context *net = NULL;
    cairn_module *model = cairn_module_create(env, &ops, weights);
    for (int i = 0; i < NAMES; i++)
        EXPECT(weights[i] = cairn_module_add_param(model, names[i].given, 1, (int64_t[]){1}, 0));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    EXPECT_OK(cairn_backward(ddp_forward(net, x)));
    EXPECT_OK(ddp_write_logging_data(net, ctx));
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
    return NULL;
}

static void names_that_are_not_utf8_leave_the_file_readable(void **state) {
    (void)state;
    static char text[16384];
    char path[] = "/tmp/cairn-ddp-log-XXXXXX", want[64];
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0);
    run_ranks(1, write_names, path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    assert_int_equal(fclose(file), 0);
    assert_int_equal(unlink(path), 0);
    assert_non_null(strstr(text, "\"module_name\": \"\\ufffd\""));
    for (int i = 0; i < NAMES; i++) {
        snprintf(want, sizeof(want), "{\"name\": \"%s\",", names[i].written);
        assert_non_null(strstr(text, want));
    }
}

/* ---- the log and the file ---- */

static char *train(cairn_env *env, void *ctx) {
    struct trainer t;
    const int *steps = ctx;
    PASS(begin(&t, env, NULL));
    for (int i = 0; i < *steps; i++) EXPECT_OK(trainer_step(&t));
    trainer_destroy(&t);
    return NULL;
}

static int count_in_log(const char *what) {
    int count = 0;
    for (const char *at = log_text; (at = strstr(at, what)); at++) count++;
    return count;
}

static void a_variable_of_torchs_asks_for_lines_in_the_log(void **state) {
    (void)state;
    static const struct {
        const char *word;
        int facts, times, warnings;
    } cases[] = {{"OFF", 0, 0, 0}, {"INFO", 1, 0, 0}, {"DETAIL", 1, 10, 0}, {"info", 1, 0, 0}, {"LOUD", 0, 0, 1}};
    cairn_set_log(keep_log, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        log_text[0] = '\0';
        setenv("TORCH_DISTRIBUTED_DEBUG", cases[i].word, 1);
        run_ranks(1, train, &(int){12});
        assert_int_equal(count_in_log("ddp_create: module_name: Sequential, backend_name: "), cases[i].facts);
        assert_int_equal(count_in_log("rank 0 of 1, averages in ms: forward compute "), cases[i].times);
        assert_int_equal(count_in_log("is not OFF, INFO or DETAIL"), cases[i].warnings);
    }
    unsetenv("TORCH_DISTRIBUTED_DEBUG");
    cairn_set_log(NULL, NULL);
}

static char *train_in_a_part(cairn_env *env, void *ctx) {
    struct trainer t = {0};
    cairn_group *part;
    EXPECT_OK(cairn_group_split(cairn_env_group(env), cairn_env_rank(env) > 0, 0, NULL, &part));
    t.model = cairn_linear(env, 128, 128);
    t.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 128));
    t.y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 128));
    EXPECT_OK(cairn_sgd_create(cairn_module_params(t.model), NULL, &t.optimizer));
    EXPECT_OK(ddp_create(t.model, part, NULL, &t.net));
    EXPECT_OK(trainer_step(&t));
    trainer_destroy(&t);
    cairn_group_destroy(&part);
    char path[64];
    snprintf(path, sizeof(path), "%s/%d", (const char *)ctx, cairn_env_rank(env));
    EXPECT(remove(path) == 0);
    return NULL;
}

static void every_process_has_its_file_whichever_its_group(void **state) {
    (void)state;
    char folder[] = "/tmp/cairn-ddp-log-XXXXXX", name[64];
    assert_non_null(mkdtemp(folder));
    snprintf(name, sizeof(name), "%s/%%r", folder);
    setenv("CAIRN_DDP_LOG", name, 1);
    run_ranks(3, train_in_a_part, folder);
    unsetenv("CAIRN_DDP_LOG");
    assert_int_equal(rmdir(folder), 0);
}

/* ---- events ---- */

struct events {
    pthread_mutex_t lock;
    int forward, backward, launch, bucket, wait, iteration;
    bool wrong;
};

static void count_event(void *cookie, const struct cairn__event *e) {
    struct events *n = cookie;
    const struct {
        const char *what;
        int *count;
    } kinds[] = {{"forward", &n->forward}, {"backward", &n->backward}, {"bucket_launch", &n->launch},
                 {"bucket", &n->bucket},   {"bucket_wait", &n->wait},  {"iteration", &n->iteration}};
    if (strcmp(e->room, "ddp") != 0) return;
    pthread_mutex_lock(&n->lock);
    n->wrong |= e->end_ns < e->begin_ns;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        *kinds[i].count += strcmp(e->what, kinds[i].what) == 0;
    pthread_mutex_unlock(&n->lock);
}

static void every_part_of_an_iteration_is_an_event(void **state) {
    (void)state;
    struct events n = {.lock = PTHREAD_MUTEX_INITIALIZER};
    cairn__trace_set_sink(count_event, &n);
    run_ranks(2, train, &(int){4});
    cairn__trace_set_sink(NULL, NULL);
    assert_false(n.wrong);
    assert_int_equal(n.iteration, 8);
    assert_int_equal(n.forward, 8);
    assert_int_equal(n.backward, 8);
    assert_int_equal(n.launch, 8); /* one bucket */
    assert_int_equal(n.bucket, 8);
    assert_true(n.wait <= 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communication_is_busy_while_any_bucket_is_on_its_way),
        cmocka_unit_test(medians_are_of_the_last_iterations_that_were_measured),
        cmocka_unit_test(polls_are_not_part_of_backwards_time),
        cmocka_unit_test(time_of_unsynced_iterations_is_not_counted_as_outside),
        cmocka_unit_test(logging_data_has_torchs_names),
        cmocka_unit_test(gradients_in_the_users_memory_have_times_too),
        cmocka_unit_test(wrong_logging_calls_are_refused),
        cmocka_unit_test(a_device_is_written_into_and_not_replaced),
        cmocka_unit_test(names_that_are_not_utf8_leave_the_file_readable),
        cmocka_unit_test(a_variable_of_torchs_asks_for_lines_in_the_log),
        cmocka_unit_test(every_process_has_its_file_whichever_its_group),
        cmocka_unit_test(every_part_of_an_iteration_is_an_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
