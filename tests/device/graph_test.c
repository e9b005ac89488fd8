/* Graphs on a device that only logs calls: what is run, captured and launched, and in which order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "cairn/graph.h"
#include "cairn/interop_cuda.h"
#include "core/alloc.h"
#include "core/status.h"
#include "device/env.h"

static struct fake {
    int runs, begins, ends, launches, frees, reads, pinned_frees;
    cairn_status begin, end, launch, read, step;
    bool captured_in_step;
    uint64_t replays_in_step;
    bool refused;  /* the step does what cannot be recorded, and does not look at the status */
    bool needs;    /* the step needs `needed` beside memory, twice */
    int unstepped; /* what the step leaves behind */
    bool leaves;   /* and whether it is still to be resolved */
    int steps_begun, tapes_ended;
    char tapes[2];
    void *results; /* in use */
    void *stream;
    char recording;                         /* its address is the graph */
    int draws;                              /* random streams that the step takes */
    uint64_t behind;                        /* first_stream, the last of them */
    struct cairn__random_base base;         /* the graph's device memory */
    const struct cairn__random_base *given; /* where the step found it */
    int allocs, stores;
} fake;

static void *const MAIN = &fake.tapes[0];
static void *const FORKED = &fake.tapes[1];
static struct cairn_device device;
static cairn_env env;

static cairn_status fake_begin(struct cairn_device *d) {
    (void)d;
    fake.begins++;
    return fake.begin == CAIRN_OK ? CAIRN_OK : cairn__fail(fake.begin, "begin broke");
}

static cairn_status fake_end(struct cairn_device *d, void **graph) {
    (void)d;
    fake.ends++;
    if (fake.end != CAIRN_OK) return cairn__fail(fake.end, "end broke");
    *graph = &fake.recording;
    return CAIRN_OK;
}

static cairn_status fake_launch(struct cairn_device *d, void *graph) {
    (void)d;
    assert_ptr_equal(graph, &fake.recording);
    fake.launches++;
    return fake.launch;
}

static void fake_free(struct cairn_device *d, void *graph) {
    (void)d;
    assert_ptr_equal(graph, &fake.recording);
    fake.frees++;
}

static void fake_free_pinned(struct cairn_device *d, void *p) {
    (void)d, (void)p;
    fake.pinned_frees++;
}

static void *fake_stream(struct cairn_device *d) {
    (void)d;
    return fake.stream;
}

static cairn_status fake_set_stream(struct cairn_device *d, void *stream) {
    (void)d;
    fake.stream = stream;
    return CAIRN_OK;
}

static cairn_status fake_alloc(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out) {
    (void)d, (void)holder;
    assert_int_equal(nbytes, sizeof(fake.base));
    *out = &fake.base;
    fake.allocs++;
    return CAIRN_OK;
}

static void fake_give_back(struct cairn_device *d, void *p) {
    (void)d;
    if (!p) return;
    assert_ptr_equal(p, &fake.base);
    fake.allocs--;
}

static void fake_store(struct cairn_device *d, void *dst, const void *value, size_t nbytes) {
    (void)d;
    assert_ptr_equal(dst, &fake.base);
    memcpy(dst, value, nbytes);
    fake.stores++;
}

static const struct cairn__passes passes = {.store = fake_store};
static const struct cairn__device_ops with_graphs = {.name = "fake",
                                                     .alloc = fake_alloc,
                                                     .free = fake_give_back,
                                                     .free_pinned = fake_free_pinned,
                                                     .capture_begin = fake_begin,
                                                     .capture_end = fake_end,
                                                     .graph_launch = fake_launch,
                                                     .graph_free = fake_free,
                                                     .stream = fake_stream,
                                                     .set_stream = fake_set_stream};
static const struct cairn__device_ops without_graphs = {.name = "plain"};

/* Somebody who has to look at gradients before they are forgotten. */
static struct looker {
    struct cairn__unresolved unresolved;
    int looks;
    bool in_a_recording;
    cairn_status finds;
} looker;

static cairn_status look(struct cairn__unresolved *unresolved) {
    assert_ptr_equal(unresolved, &looker.unresolved);
    looker.looks++;
    looker.in_a_recording = device.capturing;
    return looker.finds == CAIRN_OK ? CAIRN_OK : cairn__fail(looker.finds, "looking broke");
}

/* What a recording needs. */
static struct {
    struct cairn__recorded recorded;
    int checks;
    cairn_status finds;
} needed;

static cairn_status check_needed(struct cairn__recorded *recorded) {
    assert_ptr_equal(recorded, &needed.recorded);
    needed.checks++;
    return needed.finds == CAIRN_OK ? CAIRN_OK : cairn__fail(needed.finds, "what it needs broke");
}

static cairn_status step(void *user) {
    assert_ptr_equal(user, &fake);
    assert_null(env.unresolved);
    if (fake.leaves) cairn__env_list_unresolved(&env, &looker.unresolved);
    fake.runs++;
    fake.replays_in_step = env.replays;
    assert_ptr_equal(fake.results, FORKED);
    if (fake.refused) (void)cairn__device_refuse_recording(&device, "advice");
    for (int i = 0; i < 2 && fake.needs; i++)
        assert_int_equal(cairn__device_note_recorded(&device, &needed.recorded), CAIRN_OK);
    fake.given = device.random_base;
    for (int i = 0; i < fake.draws; i++) fake.behind = cairn__env_next_stream(&env) - device.first_stream;
    env.unstepped += fake.unstepped;
    fake.captured_in_step = device.capturing;
    return fake.step == CAIRN_OK ? CAIRN_OK : cairn__fail(fake.step, "step broke");
}

static cairn_status read_reports(struct cairn__report_reader *reader) {
    (void)reader;
    fake.reads++;
    return fake.read;
}

static bool begin_step(cairn_env *e) {
    (void)e;
    assert_ptr_equal(fake.results, MAIN);
    fake.steps_begun++;
    return true;
}

static cairn_status fork_results(cairn_env *e, void **out) {
    (void)e;
    *out = FORKED;
    return CAIRN_OK;
}

static void *use_results(cairn_env *e, void *results) {
    void *const before = fake.results;
    (void)e;
    fake.results = results;
    return before;
}

static void end_results(void *results) {
    assert_ptr_equal(results, FORKED);
    fake.tapes_ended++;
}

static int reset(void **state) {
    static struct cairn__report_reader readers[2] = {{read_reports, &readers[1]}, {read_reports, NULL}};
    (void)state;
    fake = (struct fake){.results = MAIN};
    looker = (struct looker){.unresolved = {.resolve = look}};
    needed.recorded = (struct cairn__recorded){.check = check_needed};
    needed.checks = 0;
    needed.finds = CAIRN_OK;
    device = (struct cairn_device){.ops = &with_graphs, .passes = &passes, .ordinal = 2};
    env = (cairn_env){.device = &device,
                      .readers = readers,
                      .begin_step = begin_step,
                      .fork_results = fork_results,
                      .use_results = use_results,
                      .end_results = end_results};
    return 0;
}

static cairn_graph *new_graph(void) {
    cairn_graph *graph = NULL;
    assert_int_equal(cairn_graph_capture(&env, step, &fake, &graph), CAIRN_OK);
    return graph;
}

static cairn_graph *warm_graph(void) {
    cairn_graph *graph = new_graph();
    for (int i = 0; i < CAIRN_GRAPH_WARMUP; i++) assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    return graph;
}

static void end_graph(cairn_graph *graph) {
    const uint64_t alive = cairn__alloc_counters().alive;
    cairn_graph_destroy(&graph);
    assert_null(graph);
    assert_int_equal(cairn__alloc_counters().alive, alive - 1);
    assert_int_equal(fake.allocs, 0);
}

static void capture_does_not_run_the_step(void **state) {
    (void)state;
    cairn_graph *graph = new_graph();
    assert_int_equal(fake.runs + fake.begins + fake.launches, 0);
    assert_int_equal(cairn_graph_is_recorded(graph), 0);
    end_graph(graph);
    assert_int_equal(fake.frees, 0);
}

static void missing_arguments_are_refused(void **state) {
    (void)state;
    cairn_graph *graph = NULL;
    assert_int_equal(cairn_graph_capture(NULL, step, NULL, &graph), CAIRN_EINVAL);
    assert_int_equal(cairn_graph_capture(&env, NULL, NULL, &graph), CAIRN_EINVAL);
    assert_int_equal(cairn_graph_capture(&env, step, NULL, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_graph_replay(NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_graph_is_recorded(NULL), 0);
    cairn_graph_destroy(&graph);
    cairn_graph_destroy(NULL);
}

static void first_replays_run_the_step_and_the_next_records_and_launches(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    assert_int_equal(fake.runs, CAIRN_GRAPH_WARMUP);
    assert_int_equal(fake.begins + fake.launches, 0);
    assert_false(fake.captured_in_step);

    assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_int_equal(fake.runs, CAIRN_GRAPH_WARMUP + 1);
    assert_true(fake.captured_in_step);
    assert_false(device.capturing);
    assert_int_equal(fake.begins, 1);
    assert_int_equal(fake.ends, 1);
    assert_int_equal(fake.launches, 1);
    assert_int_equal(cairn_graph_is_recorded(graph), 1);
    end_graph(graph);
    assert_int_equal(fake.frees, 1);
}

/* A cast of weights is made where its key, which holds env.replays, is new. */
static void casts_are_made_in_a_recording_and_again_after_it(void **state) {
    (void)state;
    for (int broken = 0; broken <= 1; broken++) {
        reset(NULL);
        cairn_graph *graph = warm_graph();
        const uint64_t before = env.replays;
        fake.end = broken ? CAIRN_EDEVICE : CAIRN_OK;
        assert_int_equal(cairn_graph_replay(graph), fake.end);
        assert_true(fake.replays_in_step > before);
        assert_true(env.replays > fake.replays_in_step);
        end_graph(graph);
    }
}

static void refusal_that_the_step_ignores_still_fails_the_recording(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    fake.refused = true;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(), "a graph is being recorded on fake: advice");
    assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_int_equal(cairn_graph_is_recorded(graph) + fake.launches, 0);
    end_graph(graph);
}

static void what_a_recording_needs_is_asked_before_every_launch(void **state) {
    (void)state;
    fake.needs = true;
    cairn_graph *graphs[2] = {warm_graph(), warm_graph()};
    assert_int_equal(needed.recorded.graphs, 0);
    for (int i = 0; i < 2; i++) assert_int_equal(cairn_graph_replay(graphs[i]), CAIRN_OK);
    assert_int_equal(needed.recorded.graphs, 2);
    assert_int_equal(cairn_graph_replay(graphs[0]), CAIRN_OK);
    assert_int_equal(needed.checks, 1);
    assert_int_equal(fake.launches, 3);
    needed.finds = CAIRN_EPEER;
    const int steps_begun = fake.steps_begun;
    assert_int_equal(cairn_graph_replay(graphs[0]), CAIRN_EPEER);
    assert_string_equal(cairn_last_error(), "what it needs broke");
    assert_int_equal(fake.launches, 3);
    assert_int_equal(fake.steps_begun, steps_begun);
    for (int i = 0; i < 2; i++) cairn_graph_destroy(&graphs[i]);
    assert_int_equal(needed.recorded.graphs, 0);
}

static void recording_that_fails_needs_nothing(void **state) {
    (void)state;
    for (int at_end = 0; at_end <= 1; at_end++) {
        reset(NULL);
        cairn_graph *graph = warm_graph();
        fake.needs = true;
        fake.refused = !at_end;
        fake.end = at_end ? CAIRN_EDEVICE : CAIRN_OK;
        assert_true(cairn_graph_replay(graph) != CAIRN_OK);
        assert_int_equal(needed.recorded.graphs, 0);
        assert_int_equal(cairn_graph_replay(graph), CAIRN_OK); /* calls the step */
        assert_int_equal(needed.recorded.graphs + needed.checks, 0);
        end_graph(graph);
    }
}

static void step_with_half_a_scaled_loss_is_not_recorded(void **state) {
    (void)state;
    for (int left = -1; left <= 1; left += 2) {
        reset(NULL);
        cairn_graph *graph = warm_graph();
        fake.unstepped = left;
        assert_int_equal(cairn_graph_replay(graph), CAIRN_ESTATE);
        assert_non_null(strstr(cairn_last_error(), "both a scaled loss and its cairn_step, or neither"));
        end_graph(graph);
    }
}

static void step_has_a_tape_of_its_own_and_every_replay_begins_a_step_beside_it(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    for (int i = 0; i < 3; i++) assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_ptr_equal(fake.results, MAIN);
    assert_int_equal(fake.steps_begun, CAIRN_GRAPH_WARMUP + 3);
    assert_int_equal(env.graphs, 1);
    end_graph(graph);
    assert_int_equal(fake.tapes_ended, 1);
    assert_int_equal(env.graphs, 0);
}

static void recorded_step_is_only_launched(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    for (int i = 1; i <= 10; i++) {
        const uint64_t before = env.replays;
        assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
        assert_int_equal(fake.launches, i);
        assert_true(env.replays > before);
    }
    assert_int_equal(fake.runs, CAIRN_GRAPH_WARMUP + 1);
    assert_int_equal(fake.begins, 1);
    end_graph(graph);
}

/* Streams 10 to 12 when it is recorded, the first three times 1 to 9. */
static void launches_draw_from_the_streams_of_the_environment(void **state) {
    (void)state;
    env.stream_rank = 5;
    env.next_stream = 1;
    fake.draws = 3;
    cairn_graph *graph = warm_graph();
    assert_null(fake.given);
    for (uint64_t at = 10; at < 40; at += 3) {
        env.seed = at;
        assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
        assert_int_equal(env.next_stream, at + 3);
        assert_int_equal(fake.base.seed, at);
        assert_int_equal(fake.base.stream, at << 16 | 5);
    }
    assert_ptr_equal(fake.given, &fake.base);
    assert_null(device.random_base);
    assert_int_equal(fake.behind, 2 << 16);
    fake.launch = CAIRN_EDEVICE;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_EDEVICE);
    assert_int_equal(env.next_stream, 40);
    end_graph(graph);
}

static void launches_that_draw_nothing_store_nothing(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    for (int i = 0; i < 3; i++) assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_int_equal(fake.stores, 0);
    end_graph(graph);
}

static void recording_that_fails_draws_nothing(void **state) {
    (void)state;
    for (int at_end = 0; at_end <= 1; at_end++) {
        reset(NULL);
        env.next_stream = 0;
        fake.draws = 2;
        cairn_graph *graph = warm_graph();
        fake.refused = !at_end;
        fake.end = at_end ? CAIRN_EDEVICE : CAIRN_OK;
        assert_true(cairn_graph_replay(graph) != CAIRN_OK);
        assert_int_equal(env.next_stream, 2 * CAIRN_GRAPH_WARMUP);
        assert_null(device.random_base);
        assert_int_equal(cairn_graph_replay(graph), CAIRN_OK); /* calls the step */
        assert_int_equal(env.next_stream, 2 * CAIRN_GRAPH_WARMUP + 2);
        end_graph(graph);
    }
}

static void every_report_reader_is_called_after_a_launch(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    assert_int_equal(fake.reads, 0);
    assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_int_equal(fake.reads, 2);
    fake.read = CAIRN_ENUMERIC;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_ENUMERIC);
    assert_int_equal(fake.reads, 4);
    assert_int_equal(cairn_graph_is_recorded(graph), 1);
    end_graph(graph);
}

static void step_that_fails_in_the_recording_is_an_error_and_then_run(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    fake.step = CAIRN_ESTATE;
    fake.end = CAIRN_EDEVICE;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(), "step broke");
    assert_false(device.capturing);
    assert_int_equal(fake.ends, 1);

    fake.step = CAIRN_OK;
    for (int i = 0; i < 5; i++) assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_int_equal(fake.runs, CAIRN_GRAPH_WARMUP + 1 + 5);
    assert_int_equal(fake.begins, 1);
    assert_int_equal(fake.launches, 0);
    assert_int_equal(cairn_graph_is_recorded(graph), 0);
    end_graph(graph);
}

static void recording_of_a_failed_step_is_freed(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    fake.step = CAIRN_EINVAL;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_EINVAL);
    assert_int_equal(fake.frees, 1);
    end_graph(graph);
    assert_int_equal(fake.frees, 1);
}

static void recording_that_cannot_begin_or_end_is_an_error(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    fake.begin = CAIRN_ESTATE;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_ESTATE);
    assert_int_equal(fake.runs, CAIRN_GRAPH_WARMUP);
    assert_int_equal(fake.ends, 0);
    assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_int_equal(fake.runs, CAIRN_GRAPH_WARMUP + 1);
    end_graph(graph);

    reset(NULL);
    graph = warm_graph();
    fake.end = CAIRN_EDEVICE;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_EDEVICE);
    assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_int_equal(fake.launches + fake.frees, 0);
    end_graph(graph);
}

static void failed_warm_up_is_an_error_and_does_not_count(void **state) {
    (void)state;
    cairn_graph *graph = new_graph();
    fake.step = CAIRN_ENUMERIC;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_ENUMERIC);
    fake.step = CAIRN_OK;
    for (int i = 0; i < CAIRN_GRAPH_WARMUP; i++) {
        assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
        assert_int_equal(cairn_graph_is_recorded(graph), 0);
    }
    assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_int_equal(cairn_graph_is_recorded(graph), 1);
    end_graph(graph);
}

/* Gradients from beside the graph, which its step is about to forget. */
static void every_replay_first_resolves_pending_gradients(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    for (int i = 1; i <= 3; i++) { /* recorded by the first */
        cairn__env_list_unresolved(&env, &looker.unresolved);
        assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
        assert_int_equal(looker.looks, i);
        assert_false(looker.in_a_recording);
    }
    cairn__env_list_unresolved(&env, &looker.unresolved);
    looker.finds = CAIRN_ENOMEM;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_ENOMEM);
    assert_int_equal(fake.launches, 3);
    end_graph(graph);
}

/* Nobody looks after a recording at gradients that were recorded and not made. */
static void gradients_that_a_recorded_step_leaves_pending_are_resolved_in_it(void **state) {
    (void)state;
    for (int broken = 0; broken <= 1; broken++) {
        reset(NULL);
        cairn_graph *graph = warm_graph();
        fake.leaves = true;
        fake.step = broken ? CAIRN_EINVAL : CAIRN_OK;
        assert_int_equal(cairn_graph_replay(graph), fake.step);
        assert_null(env.unresolved);
        assert_int_equal(looker.looks, 1);
        assert_true(looker.in_a_recording);
        end_graph(graph);
    }
}

static void failed_launch_is_an_error_and_reads_no_reports(void **state) {
    (void)state;
    cairn_graph *graph = warm_graph();
    fake.launch = CAIRN_EDEVICE;
    assert_int_equal(cairn_graph_replay(graph), CAIRN_EDEVICE);
    assert_int_equal(fake.reads, 0);
    end_graph(graph);
}

static void device_without_graphs_runs_the_step(void **state) {
    (void)state;
    device.ops = &without_graphs;
    cairn_graph *graph = new_graph();
    for (int i = 0; i < 10; i++) assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
    assert_int_equal(fake.runs, 10);
    assert_int_equal(env.replays, 0);
    assert_int_equal(cairn_graph_is_recorded(graph), 0);
    end_graph(graph);
}

static cairn_graph *own;

static cairn_status replay_itself(void *user) {
    cairn_graph *const before = own;
    *(cairn_status *)user = cairn_graph_replay(own);
    cairn_graph_destroy(&own);
    assert_ptr_equal(own, before);
    return CAIRN_OK;
}

static void step_may_neither_replay_nor_destroy_its_graph(void **state) {
    (void)state;
    cairn_status inner = CAIRN_OK;
    assert_int_equal(cairn_graph_capture(&env, replay_itself, &inner, &own), CAIRN_OK);
    assert_int_equal(cairn_graph_replay(own), CAIRN_OK);
    assert_int_equal(inner, CAIRN_ESTATE);
    end_graph(own);
}

/* ---- what the front refuses while a graph is recorded ---- */

static void recording_refuses_what_replays_cannot_repeat(void **state) {
    (void)state;
    char byte = 0;
    void *p = NULL;
    device.capturing = true;
    assert_int_equal(cairn__device_alloc(&device, CAIRN__HOLDS_TENSORS, 1, &p), CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "a graph is being recorded on fake: the step allocates memory"));
    assert_int_equal(cairn__device_alloc_pinned(&device, 1, &p), CAIRN_ESTATE);
    assert_int_equal(cairn__device_upload(&device, &byte, &byte, 1), CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "write between replays"));
    assert_int_equal(cairn__device_download(&device, &byte, &byte, 1), CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "read it between replays"));
    assert_int_equal(cairn__device_synchronize(&device), CAIRN_ESTATE);
    assert_int_equal(cairn_cuda_set_stream(&env, &byte), CAIRN_ESTATE);
    assert_null(fake.stream);
    cairn__device_free_pinned(&device, &byte);
    assert_int_equal(fake.pinned_frees, 0);
    device.capturing = false;
    cairn__device_free_pinned(&device, &byte);
    assert_int_equal(fake.pinned_frees, 1);
}

static void stream_is_set_and_returned(void **state) {
    (void)state;
    char stream;
    assert_int_equal(cairn_cuda_set_stream(&env, &stream), CAIRN_OK);
    assert_ptr_equal(cairn_cuda_stream(&env), &stream);
    assert_int_equal(cairn_cuda_ordinal(&env), 2);
}

static void device_without_streams_refuses_them(void **state) {
    (void)state;
    device.ops = &without_graphs;
    assert_null(cairn_cuda_stream(&env));
    assert_string_equal(cairn_last_error(),
                        "cairn_cuda_stream: the environment computes on plain, which has no stream");
    assert_int_equal(cairn_cuda_set_stream(&env, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_cuda_set_stream(NULL, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_cuda_ordinal(&env), -1);
    assert_int_equal(cairn_cuda_ordinal(NULL), -1);
}

#define TEST(f) cmocka_unit_test_setup(f, reset)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(capture_does_not_run_the_step),
        TEST(missing_arguments_are_refused),
        TEST(first_replays_run_the_step_and_the_next_records_and_launches),
        TEST(casts_are_made_in_a_recording_and_again_after_it),
        TEST(refusal_that_the_step_ignores_still_fails_the_recording),
        TEST(what_a_recording_needs_is_asked_before_every_launch),
        TEST(recording_that_fails_needs_nothing),
        TEST(step_with_half_a_scaled_loss_is_not_recorded),
        TEST(step_has_a_tape_of_its_own_and_every_replay_begins_a_step_beside_it),
        TEST(recorded_step_is_only_launched),
        TEST(launches_draw_from_the_streams_of_the_environment),
        TEST(launches_that_draw_nothing_store_nothing),
        TEST(recording_that_fails_draws_nothing),
        TEST(every_report_reader_is_called_after_a_launch),
        TEST(step_that_fails_in_the_recording_is_an_error_and_then_run),
        TEST(recording_of_a_failed_step_is_freed),
        TEST(recording_that_cannot_begin_or_end_is_an_error),
        TEST(failed_warm_up_is_an_error_and_does_not_count),
        TEST(every_replay_first_resolves_pending_gradients),
        TEST(gradients_that_a_recorded_step_leaves_pending_are_resolved_in_it),
        TEST(failed_launch_is_an_error_and_reads_no_reports),
        TEST(device_without_graphs_runs_the_step),
        TEST(step_may_neither_replay_nor_destroy_its_graph),
        TEST(recording_refuses_what_replays_cannot_repeat),
        TEST(stream_is_set_and_returned),
        TEST(device_without_streams_refuses_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
