/* Calls MPI_Init, which waits for all ranks without a time limit: a thread of its own makes the call, and the rank
 * waits for that thread with a deadline. A late thread stays in MPI_Init, or returns when the rank no longer waits:
 * this process then makes no group over MPI, and does not finalize it.
 *
 * MPI requires that the thread that called MPI_Init calls MPI_Finalize, but that thread has ended by then. From
 * MPI_THREAD_SERIALIZED on, Open MPI accepts MPI_Finalize from any thread, as it does all other calls; below that level
 * no other thread may call MPI at all. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "comm/mpi/module.h"
#include "core/status.h"

static const double PAUSE = 0.05; /* s */

static struct {
    bool begun, is_late; /* used only by the caller's thread */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ended;
    int error, level; /* constant once `ended` is set */
} start = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *run(void *unused) {
    int level = 0;
    const int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    pthread_mutex_lock(&start.mutex);
    start.error = error;
    start.level = level;
    start.ended = true;
    pthread_cond_signal(&start.changed);
    pthread_mutex_unlock(&start.mutex);
    return unused;
}

static int create_thread(void) {
    pthread_t thread;
    pthread_condattr_t clock;
    sigset_t all, before;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&start.changed, &clock);
    pthread_condattr_destroy(&clock);
    sigfillset(&all); /* threads that MPI starts inherit the mask, so signals go to the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        (void)pthread_detach(thread);
    } else {
        pthread_cond_destroy(&start.changed);
    }
    return error;
}

static bool has_ended(void) {
    const struct timespec until = cairn__clock_in(PAUSE);
    pthread_mutex_lock(&start.mutex);
    if (!start.ended) (void)pthread_cond_timedwait(&start.changed, &start.mutex, &until);
    const bool ended = start.ended;
    pthread_mutex_unlock(&start.mutex);
    return ended;
}

cairn_status cairn__mpi_check_start(void) {
    if (!start.begun) return CAIRN_OK;
    REQUIRE(!start.is_late, CAIRN_ETIMEOUT,
            "MPI_Init did not return in time in this process, which cannot start MPI again");
    /* Without MPI's own message: Open MPI ends a process that requests it before a successful start. */
    REQUIRE(start.error == MPI_SUCCESS, CAIRN_EPEER,
            "MPI_Init failed in this process with error %d, and cannot be called again", start.error);
    REQUIRE(start.level >= MPI_THREAD_SERIALIZED, CAIRN_ENOTSUP,
            "this MPI allows calls from the thread of MPI_Init alone (level %d), which Cairn starts for it; call "
            "MPI_Init before cairn_env_create",
            start.level);
    return CAIRN_OK;
}

cairn_status cairn__mpi_start(struct cairn__mpi_watch *watch, int *level) {
    cairn_status st = CAIRN_OK;
    const int error = create_thread();
    if (error != 0) return cairn__fail(CAIRN_ESYSTEM, "no thread can be started for MPI_Init: %s", strerror(error));
    start.begun = true;
    start.is_late = true;
    while (!has_ended()) TRY(cairn__mpi_watch_look(watch, "MPI_Init"));
    start.is_late = false;
    TRY(cairn__mpi_check_start());
    *level = start.level;
out:
    return st;
}
