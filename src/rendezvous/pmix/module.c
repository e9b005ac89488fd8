/* PMIx in this process: rank 0 puts a job's secret there, and the launcher's daemons give it to the other ranks.
 *
 * PMIx is opened once and closed when the process ends: Open MPI and Slurm consider a rank that closes it finished, and
 * MPI_Init would fail after that. PMIx counts how often it is opened, so MPI may open it before or after. PMIx_Init has
 * no time limit and may never return if the launcher is stopped or gone; so a thread calls it, and the caller that
 * waits for the thread gives up at its deadline. */
#include <errno.h>
#include <math.h>
#include <pmix.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/status.h"
#include "device/module.h"
#include "rendezvous/pmix/channel.h"

#define KEY "cairn.job-secret"
#define INSTEAD                                                                                        \
    "CAIRN_JOB_SECRET_FILE on every rank takes PMIx's place, and CAIRN_INSECURE=1 trusts the network " \
    "(docs/security.md)"

enum { NBYTES = CAIRN__PMIX_SECRET_NBYTES, PAUSE_NS = 20000000 };
static const double MAX_SECONDS = 1e6;

/* One per process, because PMIx is global. */
static struct {
    atomic_int times_open;
    pid_t begun_by;          /* the process in which a thread has called PMIx_Init; 0 = none has */
    _Atomic pid_t opened_by; /* the process in which that succeeded; 0 = it did not */
    bool closes;             /* a handler closes PMIx when the process ends */
} process;

/* A call that the thread serves; the caller may have given up before the thread is done. */
struct call {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int rank, seconds;
    bool is_open; /* this process has opened PMIx */
    bool is_done, is_abandoned;
    pmix_status_t error;
    uint8_t secret[NBYTES];
};

/* ---- in the thread ---- */

static bool is_given_up(struct call *c) {
    pthread_mutex_lock(&c->mutex);
    const bool is_abandoned = c->is_abandoned;
    pthread_mutex_unlock(&c->mutex);
    return is_abandoned;
}

static pmix_status_t get(const pmix_proc_t *from, const char *how, const void *value, pmix_data_type_t type,
                         uint8_t *secret) {
    pmix_value_t *got = NULL;
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, how, value, type);
    pmix_status_t error = PMIx_Get(from, KEY, &info, 1, &got);
    if (error != PMIX_SUCCESS) return error;
    if (got->type == PMIX_BYTE_OBJECT && got->data.bo.size == NBYTES) {
        memcpy(secret, got->data.bo.bytes, NBYTES);
        explicit_bzero(got->data.bo.bytes, NBYTES);
    } else {
        error = PMIX_ERR_BAD_PARAM;
    }
    PMIX_VALUE_RELEASE(got);
    return error;
}

static pmix_status_t put(uint8_t *secret) {
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = (char *)secret, .size = NBYTES}};
    const pmix_status_t error = PMIx_Put(PMIX_GLOBAL, KEY, &value); /* PMIx_Put copies value */
    return error == PMIX_SUCCESS ? PMIx_Commit() : error;
}

/* The server sometimes finds nothing if rank 0 has not put the secret yet, and does not wait, so this tries again. The
 * caller has the deadline. */
static pmix_status_t get_from_rank_0(struct call *c, const pmix_proc_t *first, uint8_t *secret) {
    pmix_status_t error;
    while ((error = get(first, PMIX_TIMEOUT, &c->seconds, PMIX_INT, secret)) == PMIX_ERR_NOT_FOUND && !is_given_up(c))
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    return error;
}

/* Rank 0 has put a secret already if this is its second environment. */
static pmix_status_t share(struct call *c, const pmix_proc_t *me, uint8_t *secret) {
    const bool yes = true;
    pmix_proc_t first;
    PMIX_LOAD_PROCID(&first, me->nspace, 0);
    if (c->rank != 0) return get_from_rank_0(c, &first, secret);
    if (get(&first, PMIX_OPTIONAL, &yes, PMIX_BOOL, secret) == PMIX_SUCCESS) return PMIX_SUCCESS;
    if (getrandom(secret, NBYTES, 0) != NBYTES) return PMIX_ERR_OUT_OF_RESOURCE;
    return put(secret);
}

static void free_call(struct call *c) {
    explicit_bzero(c->secret, sizeof(c->secret));
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mutex);
    cairn__free(c);
}

/* Returns true if the caller has given up. */
static bool note(struct call *c, bool is_open, bool is_done, pmix_status_t error) {
    pthread_mutex_lock(&c->mutex);
    c->is_open = is_open;
    c->is_done = is_done;
    c->error = error;
    const bool is_abandoned = c->is_abandoned;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    return is_abandoned;
}

static void *run(void *arg) {
    struct call *c = arg;
    pmix_proc_t me;
    pmix_status_t error = PMIx_Init(&me, NULL, 0);
    if (error == PMIX_SUCCESS) {
        atomic_store(&process.opened_by, getpid());
        atomic_fetch_add(&process.times_open, 1);
    }
    bool is_abandoned = note(c, error == PMIX_SUCCESS, error != PMIX_SUCCESS, error);
    if (error == PMIX_SUCCESS && !is_abandoned) is_abandoned = note(c, true, true, share(c, &me, c->secret));
    if (is_abandoned) free_call(c);
    return NULL;
}

/* ---- the caller ---- */

/* mpirun considers a rank that ends without closing PMIx failed. */
static void close_pmix(int exit_code, void *unused) {
    (void)exit_code, (void)unused;
    if (process.opened_by != getpid()) return;
    while (atomic_fetch_sub(&process.times_open, 1) > 0) (void)PMIx_Finalize(NULL, 0);
}

static cairn_status prepare(void) {
    REQUIRE(process.begun_by == 0 || process.begun_by == getpid(), CAIRN_ESTATE,
            "PMIx was opened by process %d before it forked this one, which cannot use it; " INSTEAD,
            (int)process.begun_by);
    process.begun_by = getpid();
    if (process.closes) return CAIRN_OK;
    REQUIRE(on_exit(close_pmix, NULL) == 0, CAIRN_ENOMEM, "out of memory: no handler for the end of the process");
    process.closes = true;
    return CAIRN_OK;
}

static cairn_status create_call(int rank, double timeout, struct call **out) {
    cairn_status st = CAIRN_OK;
    pthread_condattr_t clock;
    TRY(cairn__calloc(1, sizeof(**out), (void **)out));
    pthread_mutex_init(&(*out)->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&(*out)->changed, &clock);
    pthread_condattr_destroy(&clock);
    (*out)->rank = rank;
    (*out)->seconds = (int)ceil(timeout);
out:
    return st;
}

static cairn_status start(struct call *c) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all); /* the program's handlers run in its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, run, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return cairn__fail(CAIRN_ESYSTEM, "no thread could be started that speaks with PMIx: %s", strerror(error));
    pthread_detach(thread);
    return CAIRN_OK;
}

/* Returns the result of the thread, or fails with what is wrong. To be called with the call's mutex held. */
static cairn_status judge(const struct call *c, double timeout) {
    REQUIRE(c->is_open || c->is_done, CAIRN_ETIMEOUT,
            "the launcher's PMIx server did not answer within %g s; is mpirun or slurmstepd stopped? " INSTEAD,
            timeout);
    REQUIRE(c->is_open, CAIRN_EPEER, "PMIx cannot be opened: %s; " INSTEAD, PMIx_Error_string(c->error));
    REQUIRE(c->is_done && c->error != PMIX_ERR_TIMEOUT, CAIRN_ETIMEOUT,
            "rank 0 shared no secret through PMIx within %g s; is it running, with libcairn_pmix.so beside its "
            "Cairn? " INSTEAD,
            timeout);
    REQUIRE(c->error == PMIX_SUCCESS, CAIRN_EPEER, "PMIx cannot share the job's secret: %s; " INSTEAD,
            PMIx_Error_string(c->error));
    return CAIRN_OK;
}

static cairn_status share_secret(int rank, double timeout, uint8_t secret[NBYTES]) {
    struct call *c = NULL;
    cairn_status st = CAIRN_OK;
    timeout = fmin(timeout, MAX_SECONDS);
    TRY(prepare());
    TRY(create_call(rank, timeout, &c));
    st = start(c);
    if (st != CAIRN_OK) {
        free_call(c);
        return st;
    }
    const struct timespec end = cairn__clock_in(timeout);
    pthread_mutex_lock(&c->mutex);
    while (!c->is_done && pthread_cond_timedwait(&c->changed, &c->mutex, &end) != ETIMEDOUT) continue;
    st = judge(c, timeout);
    if (st == CAIRN_OK) memcpy(secret, c->secret, NBYTES);
    c->is_abandoned = !c->is_done;
    const bool is_mine = c->is_done;
    pthread_mutex_unlock(&c->mutex);
    if (is_mine) free_call(c);
out:
    return st;
}

static const struct cairn__pmix table = {.nbytes = sizeof(struct cairn__pmix), .share = share_secret};

const struct cairn__module_tables cairn__module_tables = {.name = "pmix", .all = {{"launcher's channel", &table}}};
