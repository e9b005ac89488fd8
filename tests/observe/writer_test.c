/* Events of the program and of Cairn, as writers receive them. */
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../ranks.h"
#include "core/log.h"
#include "core/trace.h"

enum { THREADS = 4, EACH = 2000 };

struct heard {
    int spans, counters, scalars, histograms;
    struct cairn_event last;
    char name[64];
    double buckets;
};

static void hear(void *ctx, const struct cairn_event *e) {
    struct heard *h = ctx;
    h->spans += e->kind == CAIRN_EVENT_SPAN;
    h->counters += e->kind == CAIRN_EVENT_COUNTER;
    h->scalars += e->kind == CAIRN_EVENT_SCALAR;
    h->histograms += e->kind == CAIRN_EVENT_HISTOGRAM;
    h->last = *e;
    snprintf(h->name, sizeof(h->name), "%s/%s", e->room, e->name);
    if (e->histogram) h->buckets = e->histogram->counts[1];
    cairn_counter_set("inner", 1); /* dropped */
}

static void every_kind_of_event_reaches_every_writer(void **state) {
    (void)state;
    struct heard a = {0}, b = {0};
    cairn_writer *first = NULL, *second = NULL;
    assert_int_equal(cairn_observe_is_on(), 0);
    assert_true(cairn_span_begin() == 0);
    cairn_span_end("before", 1, 0);
    cairn_scalar_record("before", 1, 1);
    OK(cairn_writer_create(hear, &a, &first));
    OK(cairn_writer_create(hear, &b, &second));
    assert_int_equal(cairn_observe_is_on(), 1);
    const uint64_t begin = cairn_span_begin();
    assert_true(begin > 0);
    cairn_span_end("augment", 7, begin);
    assert_string_equal(a.name, "user/augment");
    assert_true(a.last.index == 7 && a.last.begin_ns == begin && a.last.end_ns >= begin && a.last.rank == -1);
    cairn_counter_set("queue", 2.5);
    assert_true(a.counters == 1 && a.last.value == 2.5);
    cairn_scalar_record("loss", 9, 0.25);
    assert_true(b.scalars == 1 && b.last.index == 9 && b.last.value == 0.25 && b.last.end_ns > 0);
    OK(cairn_histogram_record("g", 3,
                              cairn_histogram(.num_buckets = 2, .limits = (double[]){0, 1}, .counts = (double[]){4, 5},
                                              .count = 9)));
    assert_true(a.histograms == 1 && b.histograms == 1 && a.buckets == 5);
    cairn_writer_destroy(&first);
    assert_null(first);
    cairn_counter_set("queue", 3);
    assert_true(a.counters == 1 && b.counters == 2 && a.spans == 1 && b.spans == 1);
    OK(cairn_writer_flush(second));
    cairn_writer_destroy(&second);
    assert_int_equal(cairn_observe_is_on(), 0);
}

static void wrong_arguments_are_refused_with_messages(void **state) {
    (void)state;
    struct heard a = {0};
    cairn_writer *w = NULL;
    REFUSED(cairn_writer_create(NULL, NULL, &w), CAIRN_EINVAL, "fn and out must be set");
    REFUSED(cairn_writer_flush(NULL), CAIRN_EINVAL, "writer is NULL");
    OK(cairn_histogram_record("unheard", 0, NULL)); /* nobody listens */
    OK(cairn_writer_create(hear, &a, &w));
    REFUSED(cairn_histogram_record("g", 0, NULL), CAIRN_EINVAL, "name and histogram must be set");
    REFUSED(cairn_histogram_record("g", 0, cairn_histogram(.num_buckets = 1)), CAIRN_EINVAL, "no limits or no counts");
    REFUSED(cairn_histogram_record("g", 0,
                                   cairn_histogram(.num_buckets = 2, .limits = (double[]){1, 1},
                                                   .counts = (double[]){0, 0})),
            CAIRN_EINVAL, "must grow, but [1] is 1 behind 1");
    assert_int_equal(a.histograms, 0);
    cairn_writer_destroy(&w);
    cairn_writer_destroy(&w);
    cairn_writer_destroy(NULL);
}

static void *send_many(void *arg) {
    (void)arg;
    for (int i = 0; i < EACH; i++) cairn_span_end("work", i, cairn_span_begin());
    return NULL;
}

static void no_event_of_several_threads_is_lost(void **state) {
    (void)state;
    struct heard a = {0}, brief = {0};
    cairn_writer *w = NULL, *other = NULL;
    pthread_t threads[THREADS];
    OK(cairn_writer_create(hear, &a, &w));
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, send_many, NULL), 0);
    for (int i = 0; i < 50; i++) { /* writers come and go meanwhile */
        OK(cairn_writer_create(hear, &brief, &other));
        cairn_writer_destroy(&other);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(a.spans, THREADS * EACH);
    cairn_writer_destroy(&w);
}

static void a_child_of_fork_has_no_writers(void **state) {
    (void)state;
    struct heard a = {0};
    cairn_writer *w = NULL;
    OK(cairn_writer_create(hear, &a, &w));
    const pid_t child = fork();
    if (child == 0) {
        const int on = cairn_observe_is_on();
        cairn_writer_destroy(&w);
        _exit(on);
    }
    int how = -1;
    assert_true(waitpid(child, &how, 0) == child && WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    assert_int_equal(cairn_observe_is_on(), 1);
    cairn_writer_destroy(&w);
}

static void a_writer_too_many_is_refused(void **state) {
    (void)state;
    static cairn_writer *all[CAIRN__SINKS];
    struct heard a = {0};
    cairn_writer *w = NULL;
    for (int i = 0; i < CAIRN__SINKS; i++) OK(cairn_writer_create(hear, &a, &all[i]));
    REFUSED(cairn_writer_create(hear, &a, &w), CAIRN_ESTATE, "256 writers");
    assert_null(w);
    for (int i = 0; i < CAIRN__SINKS; i++) cairn_writer_destroy(&all[i]);
}

/* ---- what rooms send ---- */

struct seen {
    int forward, backward, step, scale, lr, skipped, norm;
};

static void look(void *ctx, const struct cairn_event *e) {
    struct seen *s = ctx;
    s->forward += strcmp(e->name, "forward") == 0;
    s->backward += strcmp(e->name, "backward") == 0;
    s->step += strcmp(e->name, "optimizer_step") == 0 && e->end_ns > e->begin_ns;
    s->scale += strcmp(e->name, "loss_scale") == 0 && e->kind == CAIRN_EVENT_SCALAR && e->value == 128;
    s->lr += strcmp(e->name, "lr") == 0 && fabs(e->value - 0.01) < 1e-12;
    s->skipped += strcmp(e->name, "skipped") == 0 && e->value == 0;
    s->norm += strcmp(e->name, "grad_norm") == 0 && e->value > 0;
}

static void a_step_sends_its_spans_and_scalars(void **state) {
    (void)state;
    struct seen seen = {0};
    cairn_writer *w = NULL;
    cairn_env *env = NULL;
    cairn_module *net = NULL;
    cairn_optimizer *optimizer = NULL;
    amp_context *amp = NULL;
    double norm = 0;
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.seed = 1), &env));
    net = cairn_linear(env, 4, 2);
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    sgd.lr = 0.01;
    OK(cairn_sgd_create(cairn_module_params(net), &sgd, &optimizer));
    OK(amp_initialize(env, net, optimizer, amp_options(.opt_level = AMP_O2, .loss_scale = 128), &amp));
    OK(cairn_writer_create(look, &seen, &w));
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(3, 4));
    cairn_tensor *y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(3, 2));
    cairn_zero_grad(optimizer);
    OK(amp_backward(amp, cairn_mse_loss(cairn_module_forward(net, x), y), optimizer));
    OK(cairn_clip_grad_norm(optimizer, 1, &norm));
    OK(cairn_step(optimizer));
    assert_true(seen.forward == 1 && seen.backward == 1 && seen.step == 1);
    assert_true(seen.scale == 1 && seen.lr == 1 && seen.skipped == 1 && seen.norm == 1);
    cairn_writer_destroy(&w);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&optimizer);
    cairn_module_destroy(&net);
    cairn_env_destroy(&env);
}

static cairn_status read_index(void *self, int64_t index, struct cairn_random *random, cairn_fields *example) {
    (void)self, (void)random;
    return cairn_fields_add_i64(example, index);
}

static void note_reader(void *ctx, const struct cairn_event *e) {
    int *rank = ctx;
    if (strcmp(e->name, "read") == 0) *rank = e->rank;
}

static void reading_ahead_belongs_to_the_rank_that_made_the_loader(void **state) {
    (void)state;
    int rank = -2;
    cairn_env *env = NULL;
    cairn_dataset *dataset = NULL;
    cairn_sampler *sampler = NULL;
    cairn_loader *loader = NULL;
    cairn_writer *w = NULL;
    const struct cairn_batch *batch = NULL;
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    OK(cairn_dataset_create(&rank, 4, cairn_dataset_functions(.read = read_index), &dataset));
    OK(cairn_distributed_sampler_create(4, 0, 1, NULL, &sampler));
    OK(cairn_writer_create(note_reader, &rank, &w));
    cairn__log_set_thread_rank(5);
    OK(cairn_loader_create(env, dataset, sampler, 2, cairn_loader_options(.workers = 1), &loader));
    OK(cairn_loader_next(loader, &batch));
    cairn__log_set_thread_rank(CAIRN__LOG_RANK_OF_PROCESS);
    cairn_writer_destroy(&w);
    assert_int_equal(rank, 5);
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
    cairn_env_destroy(&env);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_event_reaches_every_writer),
        cmocka_unit_test(wrong_arguments_are_refused_with_messages),
        cmocka_unit_test(no_event_of_several_threads_is_lost),
        cmocka_unit_test(a_child_of_fork_has_no_writers),
        cmocka_unit_test(a_writer_too_many_is_refused),
        cmocka_unit_test(reading_ahead_belongs_to_the_rank_that_made_the_loader),
        cmocka_unit_test(a_step_sends_its_spans_and_scalars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
