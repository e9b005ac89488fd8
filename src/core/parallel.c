/* Thread pools: one for the process, and one for each thread that is a rank.
 *
 * A pool runs one job at a time, that of the caller that holds `in_use`; other callers do their work alone. A worker
 * that finds a job open counts itself in and checks again that a job is open (it may be a later one, which is fine). It
 * takes pieces from a counter until there are none, and counts itself out. The caller takes pieces too. When none is
 * left, it closes the job and waits for the workers that counted themselves in, never for a sleeping one. Workers poll
 * for a job for a while (SPINS) before they sleep, since a training step has hundreds of passes in a row.
 *
 * A fork child has none of its parent's threads: it begins without a pool. */
#include "core/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/log.h"
#include "core/status.h"
#include "core/subnormals.h"
#include "core/vars.h"

enum { MAX_THREADS = 1024, SPINS = 2000, SPINS_OF_CALLER = 10000 };

struct pool {
    struct pool *after;     /* in `pools` */
    atomic_int wanted;      /* number of threads; 0 = neither set nor read from the environment yet */
    int log_rank;           /* log rank of the thread that owns the pool */
    pthread_mutex_t in_use; /* held by the caller of a job, and while the pool is created or destroyed */
    pthread_t workers[MAX_THREADS - 1];
    int count; /* number of workers; guarded by in_use */

    /* The job; written while it is closed and `in` is 0. */
    size_t n, grain, pieces;
    cairn__parallel_body body;
    void *ctx;
    atomic_size_t next;       /* the next piece to take */
    atomic_uint_fast64_t job; /* the job's number: odd while the job is open */
    atomic_int in;            /* number of workers that may read the job */

    pthread_mutex_t lock; /* of sleep */
    pthread_cond_t wake;
    atomic_int asleep;
    atomic_bool quit;
};

static struct pool process_pool = {.log_rank = CAIRN__LOG_RANK_OF_PROCESS,
                                   .in_use = PTHREAD_MUTEX_INITIALIZER,
                                   .lock = PTHREAD_MUTEX_INITIALIZER,
                                   .wake = PTHREAD_COND_INITIALIZER};
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER; /* of the list; taken before any in_use */
static struct pool *pools = &process_pool;

static _Thread_local struct pool *own; /* the pool that this thread owns or works for; NULL = the process's */
static _Thread_local bool inside_body; /* this thread is running a piece */

static struct pool *my_pool(void) {
    return own ? own : &process_pool;
}

/* ---- the work ---- */

static void do_pieces(struct pool *pool) {
    inside_body = true;
    for (size_t i; (i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->pieces;) {
        const size_t begin = i * pool->grain;
        pool->body(pool->ctx, begin, pool->n - begin < pool->grain ? pool->n : begin + pool->grain);
    }
    inside_body = false;
}

static bool is_new(struct pool *pool, uint_fast64_t done) {
    const uint_fast64_t job = atomic_load(&pool->job);
    return (job % 2 == 1 && job != done) || atomic_load(&pool->quit);
}

static void wait_for_job(struct pool *pool, uint_fast64_t done) {
    for (int i = 0; i < SPINS; i++) {
        if (is_new(pool, done)) return;
        cairn__pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->asleep, 1); /* before is_new reads the job; the caller opens the job before it reads this */
    while (!is_new(pool, done)) pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->asleep, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *work(void *of) {
    struct pool *pool = own = of;
    (void)pthread_setname_np(pthread_self(), "cairn-pool");
    (void)cairn__keep_subnormals();
    cairn__log_set_thread_rank(pool->log_rank);
    for (uint_fast64_t done = 0; !atomic_load(&pool->quit);) {
        wait_for_job(pool, done);
        atomic_fetch_add(&pool->in, 1);
        const uint_fast64_t job = atomic_load(&pool->job);
        if (job % 2 == 1) do_pieces(pool), done = job;
        atomic_fetch_sub(&pool->in, 1);
    }
    return NULL;
}

static void wake_workers(struct pool *pool) {
    if (atomic_load(&pool->asleep) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static void run_job(struct pool *pool, size_t n, size_t grain, cairn__parallel_body body, void *ctx) {
    pool->n = n, pool->grain = grain, pool->pieces = (n - 1) / grain + 1, pool->body = body, pool->ctx = ctx;
    atomic_store(&pool->next, 0);
    atomic_fetch_add(&pool->job, 1);
    wake_workers(pool);
    do_pieces(pool);
    atomic_fetch_add(&pool->job, 1);
    for (int i = 0; atomic_load(&pool->in) > 0; i++) {
        if (i < SPINS_OF_CALLER) {
            cairn__pause();
        } else {
            sched_yield(); /* more threads than processors */
        }
    }
}

/* ---- the workers; in_use is held ---- */

static void end_workers(struct pool *pool) {
    atomic_store(&pool->quit, true);
    wake_workers(pool);
    for (int i = 0; i < pool->count; i++) pthread_join(pool->workers[i], NULL);
    atomic_store(&pool->quit, false);
    pool->count = 0;
}

static void hold_pools(void) {
    pthread_mutex_lock(&pools_lock);
    for (struct pool *p = pools; p; p = p->after) pthread_mutex_lock(&p->in_use);
}

static void let_pools_go(void) {
    for (struct pool *p = pools; p; p = p->after) pthread_mutex_unlock(&p->in_use);
    pthread_mutex_unlock(&pools_lock);
}

/* Runs in a fork child. The forking thread held all pools, so no job was open, and the child has no other thread. */
static void forget_workers(void) {
    for (struct pool *p = pools; p; p = p->after) {
        pthread_mutex_init(&p->lock, NULL);
        pthread_cond_init(&p->wake, NULL);
        p->count = 0;
        atomic_store(&p->in, 0);
        atomic_store(&p->asleep, 0);
    }
    let_pools_go();
}

static pthread_once_t handlers = PTHREAD_ONCE_INIT;

static void set_handlers(void) {
    (void)pthread_atfork(hold_pools, let_pools_go, forget_workers);
}

/* Runs when the process ends or the library is unloaded. */
__attribute__((destructor)) static void end_pool(void) {
    if (pthread_mutex_trylock(&process_pool.in_use) != 0)
        return; /* exit() in a job: its threads end with the process */
    end_workers(&process_pool);
    pthread_mutex_unlock(&process_pool.in_use);
}

/* Workers block all signals, so that signals reach the user's threads. */
static void make_workers(struct pool *pool, int count) {
    sigset_t all, before;
    if (pool->count == count) return;
    pthread_once(&handlers, set_handlers);
    end_workers(pool);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    while (pool->count < count && failed == 0) {
        failed = pthread_create(&pool->workers[pool->count], NULL, work, pool);
        if (failed == 0) pool->count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed == 0) return;
    cairn__log(CAIRN_LOG_WARNING, "only %d of %d threads could be started: %s", 1 + pool->count, 1 + count,
               strerror(failed));
    atomic_store(&pool->wanted, 1 + pool->count);
}

/* ---- how many ---- */

/* "4", or "4,2" for nested teams, of which the first number counts. */
int cairn__num_threads_of_environment(void) {
    const char *text = cairn__var("OMP_NUM_THREADS");
    if (!text) return 1;
    char *end = NULL;
    const long n = strtol(text, &end, 10);
    if (n >= 1 && n <= MAX_THREADS && (*end == '\0' || *end == ',')) return (int)n;
    cairn__log(CAIRN_LOG_WARNING, "OMP_NUM_THREADS='%s' is not a number of threads in [1, %d]; one is used", text,
               MAX_THREADS);
    return 1;
}

int cairn__num_threads(void) {
    struct pool *pool = my_pool();
    int n = atomic_load_explicit(&pool->wanted, memory_order_relaxed);
    if (n > 0) return n;
    int unset = 0;
    n = cairn__num_threads_of_environment();
    return atomic_compare_exchange_strong(&pool->wanted, &unset, n) ? n : unset;
}

int cairn_num_threads(void) {
    return cairn__num_threads();
}

cairn_status cairn_set_num_threads(int n) {
    REQUIRE(n >= 1 && n <= MAX_THREADS, CAIRN_EINVAL, "cairn_set_num_threads: %d threads; 1 to %d are allowed", n,
            MAX_THREADS);
    REQUIRE(!inside_body, CAIRN_ESTATE, "cairn_set_num_threads: called by a thread of the pool");
    atomic_store(&my_pool()->wanted, n);
    return CAIRN_OK;
}

/* ---- a rank's own ---- */

cairn_status cairn__parallel_enter(int threads) {
    struct pool *pool = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*pool), (void **)&pool));
    pthread_mutex_init(&pool->in_use, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    atomic_store(&pool->wanted, threads);
    pool->log_rank = cairn__log_thread_rank();
    pthread_mutex_lock(&pools_lock);
    pool->after = pools;
    pools = pool;
    pthread_mutex_unlock(&pools_lock);
    own = pool;
out:
    return st;
}

void cairn__parallel_leave(void) {
    struct pool *pool = own, **at = &pools;
    if (!pool) return;
    own = NULL;
    pthread_mutex_lock(&pools_lock);
    while (*at != pool) at = &(*at)->after;
    *at = pool->after;
    pthread_mutex_unlock(&pools_lock);
    end_workers(pool);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->in_use);
    cairn__free(pool);
}

/* ---- the loop ---- */

void cairn__parallel_for(size_t n, size_t grain, cairn__parallel_body body, void *ctx) {
    struct pool *pool = my_pool();
    const int threads = n > grain ? cairn__num_threads() : 1;
    if (threads > 1 && !inside_body && pthread_mutex_trylock(&pool->in_use) == 0) {
        make_workers(pool, threads - 1);
        run_job(pool, n, grain, body, ctx);
        pthread_mutex_unlock(&pool->in_use);
        return;
    }
    for (size_t begin = 0; begin < n; begin += grain) body(ctx, begin, n - begin < grain ? n : begin + grain);
}
