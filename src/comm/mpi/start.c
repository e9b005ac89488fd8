/* MPI_Init, which waits for all ranks for as long as it takes: so it runs in a thread of its own, and the rank waits
 * for that thread with a deadline. A thread that is late stays in MPI_Init, and nothing else is done with MPI. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "comm/mpi/module.h"
#include "core/status.h"

enum { PAUSE_NS = 50000000 };

static struct {
    pthread_mutex_t mutex; /* of all that follows */
    pthread_cond_t changed;
    bool begun, ended;
    int error, level;
} start = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *run(void *unused) {
    int level = 0;
    const int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    pthread_mutex_lock(&start.mutex);
    start.ended = true;
    start.error = error;
    start.level = level;
    pthread_cond_signal(&start.changed);
    pthread_mutex_unlock(&start.mutex);
    return unused;
}

static bool has_ended(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PAUSE_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&start.mutex);
    if (!start.ended) (void)pthread_cond_timedwait(&start.changed, &start.mutex, &until);
    const bool ended = start.ended;
    pthread_mutex_unlock(&start.mutex);
    return ended;
}

cairn_status cairn__mpi_start(struct cairn__mpi_watch *watch, int *level) {
    pthread_t thread;
    cairn_status st = CAIRN_OK;
    REQUIRE(!start.begun, CAIRN_ETIMEOUT, "MPI_Init has not returned in this process, which cannot start MPI again");
    const int error = pthread_create(&thread, NULL, run, NULL);
    if (error != 0) return cairn__fail(CAIRN_ESYSTEM, "no thread can be started for MPI_Init: %s", strerror(error));
    start.begun = true;
    (void)pthread_detach(thread);
    while (!has_ended()) TRY(cairn__mpi_watch_look(watch, "MPI_Init"));
    TRY(cairn__mpi_check(start.error, "start"));
    *level = start.level;
out:
    return st;
}
