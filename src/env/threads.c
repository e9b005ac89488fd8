/* Ranks as threads of one process.
 *
 * A thread has its launch facts in a thread-local pointer. The ranks of a call meet in a hash store of that call, or,
 * if this process is itself one of several ranks, at the launcher's place, together with the threads of all processes.
 *
 * A thread cannot be ended from outside. So a rank that fails ends what the others wait for: the groups of its live
 * environments, and, for ranks that have no group yet, their search for each other, which calls cairn__thread_check.
 * Other waits end by their timeouts. */
#include "env/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/cpu.h"
#include "core/descriptors.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/options.h"
#include "core/parallel.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/vars.h"
#include "device/env.h"
#include "env/error_file.h"

enum { CAUSE_NBYTES = 1100, MAX_THREADS = 1024 };

/* A live environment that has taken the place of a thread's rank. */
struct place {
    cairn_env *env;
    struct rank *rank;
    struct place *next;
};

struct rank {
    struct job *job;
    struct cairn__launch launch;
    pthread_t thread;
    int code;
    bool has_returned, has_failed, is_consequence; /* is_consequence: it failed because another rank had */
    uint64_t failed_ns;
    char cause[CAUSE_NBYTES];
};

struct job {
    int (*fn)(int rank, void *argument);
    void *argument;
    int n, started, num_threads;
    unsigned forks;
    cairn_store *store; /* NULL: the ranks meet at the launcher's place */
    struct rank *ranks;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { JOB_WAITS, JOB_RUNS, JOB_IS_OFF } state; /* guarded by lock */
    _Atomic(const struct rank *) first;             /* the first rank that failed */
};

static _Thread_local struct rank *me;

static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static struct place *places;

/* ---- for cairn_env_create ---- */

static bool is_rank(void) {
    return me && me->job->forks == cairn__forks();
}

bool cairn__thread_launch(const struct cairn__launch **launch, cairn_store **store) {
    if (!is_rank()) return false;
    *launch = &me->launch;
    *store = me->job->store;
    return true;
}

cairn_status cairn__thread_check(void) {
    const struct rank *first = is_rank() ? atomic_load(&me->job->first) : NULL;
    if (!first) return CAIRN_OK;
    return cairn__fail(CAIRN_EPEER, "rank %d (thread) failed: %s", first->launch.rank, first->cause);
}

cairn_status cairn__thread_adopt(cairn_env *env) {
    struct place *p = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*p), (void **)&p));
    *p = (struct place){.env = env, .rank = me};
    pthread_mutex_lock(&places_lock);
    p->next = places;
    places = p;
    pthread_mutex_unlock(&places_lock);
out:
    return st;
}

/* Removes and returns the first place of env or of rank; NULL = there is none. */
static struct place *take_place(const struct cairn_env *env, const struct rank *rank) {
    pthread_mutex_lock(&places_lock);
    struct place **at = &places;
    while (*at && (*at)->env != env && (*at)->rank != rank) at = &(*at)->next;
    struct place *p = *at;
    if (p) *at = p->next;
    pthread_mutex_unlock(&places_lock);
    return p;
}

void cairn__thread_disown(const cairn_env *env) {
    static const struct rank none;
    cairn__free(take_place(env, &none));
}

/* ---- a rank ---- */

static void describe_end(struct rank *r, bool has_env) {
    const char *error = cairn_last_error();
    if (!r->has_returned) {
        snprintf(r->cause, sizeof(r->cause), "its thread ended before its function returned (pthread_exit)");
    } else if (r->code == 0) {
        snprintf(r->cause, sizeof(r->cause),
                 "its function returned while its environment was alive; call cairn_env_destroy in it");
    } else if (error[0]) {
        snprintf(r->cause, sizeof(r->cause), "returned %d: CAIRN_%s: %s", r->code,
                 cairn_status_name(cairn__last_status()), error);
    } else {
        snprintf(r->cause, sizeof(r->cause), "returned %d, and no call of Cairn had failed", r->code);
    }
    r->is_consequence = r->has_returned && r->code && cairn__last_status() == CAIRN_EPEER;
    r->has_failed = !r->has_returned || r->code || has_env;
    r->failed_ns = cairn__now_ns();
}

/* Runs in the rank's thread, also if that ends by pthread_exit. Ends the groups of the rank's environments but keeps
 * the environments: the program may still hold objects of them. */
static void end_rank(void *at) {
    struct rank *r = at;
    const struct rank *none = NULL;
    struct place *left = take_place(NULL, r);
    describe_end(r, left != NULL);
    if (r->has_failed) (void)atomic_compare_exchange_strong(&r->job->first, &none, r);
    for (; left; left = take_place(NULL, r)) {
        cairn__group_kill_family(left->env->places[CAIRN__PLACE_OF_COMM].at, cairn__fail(CAIRN_EPEER, "%s", r->cause));
        cairn__free(left);
    }
    cairn__parallel_leave();
}

static bool may_run(struct job *job) {
    pthread_mutex_lock(&job->lock);
    while (job->state == JOB_WAITS) pthread_cond_wait(&job->changed, &job->lock);
    const bool runs = job->state == JOB_RUNS;
    pthread_mutex_unlock(&job->lock);
    return runs;
}

static void *be_rank(void *at) {
    struct rank *r = at;
    (void)pthread_setname_np(pthread_self(), "cairn-rank");
    if (!may_run(r->job)) return NULL;
    me = r;
    cairn__log_set_thread_rank(r->launch.rank);
    pthread_cleanup_push(end_rank, r);
    if (cairn__parallel_enter(r->job->num_threads) != CAIRN_OK) {
        r->code = 1;
    } else {
        r->code = r->job->fn(r->launch.rank, r->job->argument);
    }
    r->has_returned = true;
    pthread_cleanup_pop(1);
    return NULL;
}

/* ---- the call ---- */

static cairn_status check(const struct job *job, const struct cairn_spawn_threads_options *o) {
    REQUIRE(job->fn, CAIRN_EINVAL, "cairn_spawn_threads: fn is NULL");
    REQUIRE(job->n >= 1 && job->n <= CAIRN__MAX_RANKS, CAIRN_EINVAL,
            "cairn_spawn_threads: %d ranks; 1 to %d are allowed", job->n, CAIRN__MAX_RANKS);
    REQUIRE(o->num_threads >= 0 && o->num_threads <= MAX_THREADS, CAIRN_EINVAL,
            "cairn_spawn_threads_options.num_threads is %d; it can be 1 to %d, or 0", o->num_threads, MAX_THREADS);
    REQUIRE(!me, CAIRN_ESTATE, "cairn_spawn_threads: called by a rank that is a thread itself");
    return CAIRN_OK;
}

/* Makes the launch facts of rank i of this process's n. Processes with different numbers of threads do not meet,
 * because their keys differ. */
static cairn_status make_launch(const struct cairn__launch *process, int n, int i, struct cairn__launch *out) {
    *out = *process;
    out->is_thread = n > 1;
    out->is_mpi = process->is_mpi && n == 1;
    out->rank = process->rank * n + i;
    out->size = process->size * n;
    out->local_rank = process->local_rank * n + i;
    out->local_size = process->local_size * n;
    if (process->size == 1) {
        out->launcher = "threads";
        out->local_size = n;
        out->variables[0] = '\0';
        return CAIRN_OK;
    }
    REQUIRE(out->size <= CAIRN__MAX_RANKS, CAIRN_EINVAL,
            "cairn_spawn_threads: %d ranks in each of %d processes are %d; 1 to %d are allowed", n, process->size,
            out->size, CAIRN__MAX_RANKS);
    const size_t used = strlen(out->variables), length = strlen(out->key_prefix);
    snprintf(out->variables + used, sizeof(out->variables) - used, "; %d threads a process", n);
    const int more = snprintf(out->key_prefix + length, sizeof(out->key_prefix) - length, "/%d-threads", n);
    REQUIRE(more > 0 && length + (size_t)more < sizeof(out->key_prefix), CAIRN_EINVAL,
            "the run id has %zu characters; choose one (--rdzv_id) of at most 90", length);
    return CAIRN_OK;
}

/* OMP_NUM_THREADS applies to each rank. Without it the ranks share the processors that this process may use, together
 * with the other processes of this machine. */
static int share_of_processors(const struct cairn__launch *process, int n) {
    if (cairn__var("OMP_NUM_THREADS")) return cairn__num_threads_of_environment();
    const int share = cairn__num_processors() / (n * (process->local_size > 1 ? process->local_size : 1));
    return share < 1 ? 1 : share > MAX_THREADS ? MAX_THREADS : share;
}

static cairn_status open_job(struct job *job, const struct cairn_spawn_threads_options *o) {
    struct cairn__launch process;
    char what[64];
    cairn_status st = CAIRN_OK;
    TRY(cairn__launch_read(&(struct cairn__launch_told){0}, NULL, NULL, &process));
    job->num_threads = o->num_threads > 0 ? o->num_threads : share_of_processors(&process, job->n);
    TRY(cairn__calloc((size_t)job->n, sizeof(*job->ranks), (void **)&job->ranks));
    for (int i = 0; i < job->n; i++) {
        job->ranks[i].job = job;
        TRY(make_launch(&process, job->n, i, &job->ranks[i].launch));
    }
    if (process.size > 1) {
        cairn__log_set_rank(process.rank); /* for messages of Cairn's other threads */
    } else {
        snprintf(what, sizeof(what), "cairn_spawn_threads of %d ranks", job->n);
        TRY(cairn__check_descriptors(job->n * (3 + job->n), what)); /* per rank: a socket, one per peer, spares */
        TRY(cairn_hash_store_create(0, &job->store));
    }
out:
    return st;
}

/* Starts all ranks, or runs none. */
static cairn_status start_ranks(struct job *job) {
    int failed = 0;
    for (; job->started < job->n; job->started++) {
        struct rank *r = &job->ranks[job->started];
        failed = pthread_create(&r->thread, NULL, be_rank, r);
        if (failed) break;
    }
    pthread_mutex_lock(&job->lock);
    job->state = failed ? JOB_IS_OFF : JOB_RUNS;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    if (!failed) return CAIRN_OK;
    return cairn__fail_errno(failed, "cairn_spawn_threads: the thread of rank %d of %d could not be started",
                             job->ranks[job->started].launch.rank, job->ranks[0].launch.size);
}

/* A rank that failed by itself is reported before those that failed because another had; among equals, the earlier
 * one. */
static cairn_status report(const struct job *job) {
    const struct rank *first = NULL;
    for (int i = 0; i < job->n; i++) {
        const struct rank *r = &job->ranks[i];
        if (!r->has_failed) continue;
        const bool is_cause = first && first->is_consequence && !r->is_consequence;
        const bool is_alike = first && first->is_consequence == r->is_consequence;
        if (!first || is_cause || (is_alike && r->failed_ns < first->failed_ns)) first = r;
    }
    if (!first) return CAIRN_OK;
    return cairn__fail(CAIRN_EPEER, "cairn_spawn_threads: rank %d of %d (thread) failed first: %s", first->launch.rank,
                       first->launch.size, first->cause);
}

cairn_status cairn_spawn_threads(int (*fn)(int rank, void *argument), void *argument, int n,
                                 const struct cairn_spawn_threads_options *options) {
    cairn_status st = CAIRN_OK;
    struct cairn_spawn_threads_options o = {.struct_size = sizeof(o)};
    struct job job = {.fn = fn, .argument = argument, .n = n, .forks = cairn__forks()};
    pthread_mutex_init(&job.lock, NULL);
    pthread_cond_init(&job.changed, NULL);
    cairn__error_file_install(CAIRN_DEFAULT);
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_spawn_threads_options"));
    TRY(check(&job, &o));
    TRY(open_job(&job, &o));
    st = start_ranks(&job);
    for (int i = 0; i < job.started; i++) (void)pthread_join(job.ranks[i].thread, NULL);
    if (st == CAIRN_OK) st = report(&job);
out:
    cairn_store_destroy(&job.store);
    cairn__free(job.ranks);
    pthread_cond_destroy(&job.changed);
    pthread_mutex_destroy(&job.lock);
    return st;
}
