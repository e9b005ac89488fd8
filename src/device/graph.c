/* Graphs: a step that runs directly a few times, is then recorded once, and launched from then on.
 *
 * The step runs on a tape of its own, so that nothing else uses the recorded addresses and its results stay. Recording
 * runs nothing on the device, so the replay that records also launches. A failed recording has changed nothing on the
 * device. The graph then never records again, since the step would fail the same way, and runs the step directly, as on
 * a device without graphs.
 *
 * Passes that draw random numbers are recorded with the distance of their stream from the step's first one. A launch
 * reads its first stream from device memory, and takes as many streams from the environment as the step did. */
#include "cairn/graph.h"

#include <stdio.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "device/env.h"

enum mode { WARMING, RECORDED, AS_IS };

struct cairn_graph {
    cairn_env *env;
    cairn_graph_step step;
    void *user;
    void *results; /* storage of the step's results */
    enum mode mode;
    int runs;                             /* successful runs while warming */
    bool running;                         /* inside step */
    void *recording;                      /* the device's own */
    struct cairn__recorded_list recorded; /* resources that the recording needs */
    struct cairn__random_base *random;    /* device memory: the random stream that a launch begins with */
    uint64_t streams;                     /* number of random streams per launch */
};

static cairn_status run(struct cairn_graph *g) {
    void *const beside = g->env->use_results(g->env, g->results);
    g->running = true;
    const cairn_status st = g->step(g->user);
    g->running = false;
    (void)g->env->use_results(g->env, beside);
    return st;
}

static void forget_recorded(struct cairn_graph *g) {
    for (size_t i = 0; i < g->recorded.count; i++) g->recorded.all[i]->graphs--;
    cairn__free(g->recorded.all);
    g->recorded = (struct cairn__recorded_list){NULL, 0, 0};
}

static cairn_status launch(struct cairn_graph *g) {
    struct cairn_device *d = g->env->device;
    cairn_status st = CAIRN_OK;
    if (g->streams > 0) {
        const struct cairn__random_base now = {g->env->seed, cairn__env_stream(g->env)};
        d->passes->store(d, g->random, &now, sizeof(now));
    }
    TRY(d->ops->graph_launch(d, g->recording));
    g->env->next_stream += g->streams;
    g->env->replays++;
    TRY(cairn__env_read_reports(g->env));
out:
    return st;
}

/* Ends a recording that failed; the step's error stays the last error. */
static cairn_status give_up(struct cairn_device *d, cairn_status st) {
    char said[1024];
    void *rest = NULL;
    snprintf(said, sizeof(said), "%s", cairn_last_error());
    if (d->ops->capture_end(d, &rest) == CAIRN_OK) d->ops->graph_free(d, rest);
    cairn__log(CAIRN_LOG_NOTICE, "a graph cannot be recorded, so its replays call its step: %s", said);
    return cairn__fail(st, "%s", said);
}

static cairn_status record(struct cairn_graph *g) {
    struct cairn_device *d = g->env->device;
    g->mode = AS_IS;   /* unless the recording succeeds */
    g->env->replays++; /* makes casts of weights stale: the recording would leave out current ones */
    cairn_status st = CAIRN_OK;
    TRY(d->ops->capture_begin(d));
    const int unstepped = g->env->unstepped;
    const uint64_t first = g->env->next_stream;
    d->capturing = true;
    d->recorded = &g->recorded;
    d->random_base = g->random;
    d->first_stream = cairn__env_stream(g->env);
    d->refusal[0] = '\0';
    st = run(g);
    const cairn_status resolved = cairn__env_resolve(g->env); /* is recorded too: the gradients are not computed yet */
    d->capturing = false;
    d->recorded = NULL;
    d->random_base = NULL;
    g->streams = g->env->next_stream - first;
    g->env->next_stream = first; /* the recording has drawn nothing; the launch will */
    if (st == CAIRN_OK) st = resolved;
    if (st == CAIRN_OK && d->refusal[0]) st = cairn__fail(CAIRN_ESTATE, "%s", d->refusal);
    if (st == CAIRN_OK && g->env->unstepped != unstepped) {
        st = cairn__fail(CAIRN_ESTATE, "a graph's step must contain both a scaled loss and its cairn_step, or neither");
    }
    g->env->replays++; /* recorded casts have not run, so they are stale */
    TRY(st == CAIRN_OK ? CAIRN_OK : give_up(d, st));
    TRY(d->ops->capture_end(d, &g->recording));
    g->mode = RECORDED;
    return CAIRN_OK;
out:
    forget_recorded(g);
    return st;
}

cairn_status cairn_graph_capture(cairn_env *env, cairn_graph_step step, void *user, cairn_graph **out) {
    REQUIRE(env && step && out, CAIRN_EINVAL, "cairn_graph_capture: env, step or out is NULL");
    cairn_status st = CAIRN_OK;
    struct cairn_graph *g = NULL;
    TRY(cairn__calloc(1, sizeof(*g), (void **)&g));
    g->env = env;
    g->step = step;
    g->user = user;
    g->mode = env->device->ops->capture_begin ? WARMING : AS_IS;
    if (g->mode == WARMING)
        TRY(cairn__device_alloc(env->device, CAIRN__HOLDS_STATE, sizeof(*g->random), (void **)&g->random));
    TRY(env->fork_results(env, &g->results));
    env->graphs++;
    *out = g;
    return CAIRN_OK;
out:
    if (g) cairn__device_free(env->device, g->random);
    cairn__free(g);
    return st;
}

cairn_status cairn_graph_replay(cairn_graph *g) {
    REQUIRE(g, CAIRN_EINVAL, "cairn_graph_replay: graph is NULL");
    REQUIRE(!g->running && !g->env->device->capturing, CAIRN_ESTATE,
            "cairn_graph_replay was called by the step of a graph; a step may not replay one");
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < g->recorded.count; i++) { /* a launch does not notice a failed resource */
        struct cairn__recorded *recorded = g->recorded.all[i];
        TRY(recorded->check(recorded));
    }
    TRY(cairn__env_resolve(g->env)); /* a launch overwrites gradients, checked or not */
    g->env->begin_step(g->env);      /* also ends results made outside the graph */
    if (g->mode == WARMING && g->runs == CAIRN_GRAPH_WARMUP) TRY(record(g));
    if (g->mode == RECORDED) return launch(g);
    st = run(g);
    if (g->mode == WARMING && st == CAIRN_OK) g->runs++; /* a run that failed may not have allocated everything */
out:
    return st;
}

int cairn_graph_is_recorded(const cairn_graph *graph) {
    return graph && graph->mode == RECORDED;
}

void cairn_graph_destroy(cairn_graph **graph) {
    if (!graph || !*graph) return;
    struct cairn_graph *g = *graph;
    if (g->running) {
        cairn__log(CAIRN_LOG_ERROR, "cairn_graph_destroy was called by the graph's own step, so the graph is kept");
        return;
    }
    if (g->recording) g->env->device->ops->graph_free(g->env->device, g->recording);
    forget_recorded(g);
    cairn__device_free(g->env->device, g->random);
    g->env->end_results(g->results);
    g->env->graphs--;
    cairn__free(g);
    *graph = NULL;
}
