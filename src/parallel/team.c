/* The replicas' threads, and how the program's thread waits for them. The replicas are ranks of cairn_spawn_threads,
 * which a separate thread calls, because the program's thread continues while they run. */
#include <stdio.h>

#include "core/cpu.h"
#include "core/status.h"
#include "parallel/data_parallel.h"

enum { POLLS = 2000 };

void cairn__team_tell(struct cairn_data_parallel *dp) {
    pthread_mutex_lock(&dp->lock);
    pthread_cond_broadcast(&dp->changed);
    pthread_mutex_unlock(&dp->lock);
}

void cairn__team_await(struct cairn_data_parallel *dp, bool (*is)(const void *what), const void *what) {
    for (int i = 0; i < POLLS; i++) {
        if (is(what)) return;
        cairn__pause();
    }
    pthread_mutex_lock(&dp->lock);
    while (!is(what)) pthread_cond_wait(&dp->changed, &dp->lock);
    pthread_mutex_unlock(&dp->lock);
}

/* ---- work ---- */

/* Does not test is_gone, which is set before the status is written. */
static bool has_done(const void *what) {
    const struct cairn__replica *r = what;
    return atomic_load(&r->done) == atomic_load(&r->posted) || atomic_load(&r->dp->has_ended);
}

static void post(struct cairn__replica *r, cairn_status (*work)(struct cairn__replica *r)) {
    if (atomic_load(&r->is_gone)) return;
    r->work = work;
    r->status = CAIRN_OK;
    atomic_fetch_add(&r->posted, 1);
}

/* The status of the first replica that failed. */
static cairn_status outcome(const struct cairn_data_parallel *dp, int used) {
    for (int i = 0; i < used; i++) {
        const struct cairn__replica *r = &dp->replicas[i];
        if (r->status != CAIRN_OK) return cairn__fail(r->status, "replica %d: %s", i, r->why);
    }
    REQUIRE(!atomic_load(&dp->has_ended), CAIRN_EPEER, "%s",
            dp->why[0] ? dp->why : "the threads of the replicas have ended; destroy cairn_data_parallel");
    return CAIRN_OK;
}

cairn_status cairn__team_run(struct cairn_data_parallel *dp, int used, cairn_status (*work)(struct cairn__replica *r)) {
    if (atomic_load(&dp->has_ended)) return outcome(dp, 0);
    for (int i = 0; i < used; i++) post(&dp->replicas[i], work);
    cairn__team_tell(dp);
    for (int i = 0; i < used; i++) cairn__team_await(dp, has_done, &dp->replicas[i]);
    return outcome(dp, used);
}

cairn_status cairn__team_go(const struct cairn_data_parallel *dp, int used) {
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < used; i++) TRY(cairn__device_wait_for(dp->replicas[i].env->device, dp->env->device));
out:
    return st;
}

cairn_status cairn__team_come_back(const struct cairn_data_parallel *dp, int used) {
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < used; i++) TRY(cairn__device_wait_for(dp->env->device, dp->replicas[i].env->device));
out:
    return st;
}

/* ---- threads ---- */

static void *spawn(void *of) {
    struct cairn_data_parallel *dp = of;
    const cairn_status st = cairn_spawn_threads(cairn__replica_run, dp, dp->num_replicas,
                                                cairn_spawn_threads_options(.num_threads = dp->options.num_threads));
    if (st != CAIRN_OK) snprintf(dp->why, sizeof(dp->why), "%s", cairn_last_error());
    atomic_store(&dp->has_ended, true);
    cairn__team_tell(dp);
    return NULL;
}

/* A replica's start counts as its first job. */
cairn_status cairn__team_start(struct cairn_data_parallel *dp) {
    for (int i = 0; i < dp->num_replicas; i++) atomic_store(&dp->replicas[i].posted, 1);
    const int failed = pthread_create(&dp->spawner, NULL, spawn, dp);
    if (failed) return cairn__fail_errno(failed, "cairn_data_parallel_create: a thread could not be started");
    dp->has_spawner = true;
    for (int i = 0; i < dp->num_replicas; i++) cairn__team_await(dp, has_done, &dp->replicas[i]);
    const cairn_status st = outcome(dp, dp->num_replicas);
    if (st != CAIRN_OK) cairn__fail_in("cairn_data_parallel_create");
    return st;
}

void cairn__team_stop(struct cairn_data_parallel *dp) {
    if (!dp->has_spawner) return;
    for (int i = 0; i < dp->num_replicas && !atomic_load(&dp->has_ended); i++) post(&dp->replicas[i], NULL);
    cairn__team_tell(dp);
    (void)pthread_join(dp->spawner, NULL);
    for (int i = 0; i < dp->num_replicas; i++) cairn__replica_end(&dp->replicas[i]);
}
