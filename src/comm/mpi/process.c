/* MPI in this process: which code initializes and finalizes it, and the one communicator. There is one state per
 * process, because MPI is global. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "comm/mpi/module.h"
#include "core/log.h"
#include "core/status.h"

enum { SPINS = 200, YIELDS = 2000, NAP_NS = 100000 };

static struct {
    bool has_comm;
    MPI_Comm comm;
    int next_tag, last_tag; /* last_tag: MPI's upper bound */
    int level;
    struct cairn__engine *engines, *ended;
    bool died;
    pid_t initialized_by; /* 0 = not by Cairn */
} process;

cairn_status cairn__mpi_check(int error, const char *format, ...) {
    char doing[160], text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    va_list args;
    if (error == MPI_SUCCESS) return CAIRN_OK;
    va_start(args, format);
    vsnprintf(doing, sizeof(doing), format, args);
    va_end(args);
    (void)MPI_Error_string(error, text, &length);
    return cairn__fail(CAIRN_EPEER, "MPI cannot %s: %s", doing, text);
}

/* ---- is there an MPI ---- */

bool cairn__mpi_is_over(void) {
    int finalized = 0;
    (void)MPI_Finalized(&finalized);
    return finalized != 0;
}

static bool is_initialized(void) {
    int initialized = 0;
    (void)MPI_Initialized(&initialized);
    return initialized != 0;
}

cairn_status cairn__mpi_probe(bool launched) {
    REQUIRE(!cairn__mpi_is_over(), CAIRN_ENOTSUP,
            "group backend 'mpi': this process has called MPI_Finalize; make groups before it, or use another backend");
    REQUIRE(launched || is_initialized(), CAIRN_ENOTSUP,
            "group backend 'mpi': no MPI launcher started this process; start it with mpirun, or srun --mpi=pmix, or "
            "use another backend");
    return CAIRN_OK;
}

/* ---- beginning and end ---- */

/* A rank that failed does not finalize: that would wait for the other ranks, which wait for this one. The launcher
 * notices that it did not finalize and ends the job. Groups that are still alive leave first, so that ranks waiting in
 * them fail. */
static void finalize(int exit_code, void *unused) {
    (void)unused;
    if (exit_code != 0 || getpid() != process.initialized_by || cairn__mpi_is_over()) return;
    for (struct cairn__engine *e = process.engines; e; e = e->next) {
        if (!cairn__mpi_part(e)) process.died = true;
    }
    if (process.died) {
        cairn__log(CAIRN_LOG_WARNING, "MPI_Finalize is not called, since a group died or ended during a call; mpirun "
                                      "will report an improper exit");
        return;
    }
    cairn__mpi_await_others();
    (void)MPI_Finalize();
}

static cairn_status initialize(struct cairn__mpi_watch *watch) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__mpi_check_start());
    if (is_initialized()) return cairn__mpi_check(MPI_Query_thread(&process.level), "query the thread level");
    TRY(cairn__mpi_start(watch, &process.level));
    process.initialized_by = getpid();
    REQUIRE(on_exit(finalize, NULL) == 0, CAIRN_ENOMEM, "out of memory: no handler for the end of the process");
out:
    return st;
}

/* ---- the communicator ---- */

/* Compares the number of ranks of the environment with that of MPI_COMM_WORLD, which the launcher may have started
 * differently. */
static cairn_status check_world(int size) {
    int there = 0;
    cairn_status st = cairn__mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &there), "count its processes");
    if (st != CAIRN_OK) return st;
    REQUIRE(there != 1 || size == 1, CAIRN_EINVAL,
            "there are %d ranks, but MPI counts this process alone: its launcher does not belong to this MPI; use this "
            "MPI's mpirun, or srun --mpi=pmix",
            size);
    REQUIRE(there == size, CAIRN_EINVAL,
            "MPI_COMM_WORLD has %d processes, but the environment %d ranks; start as many with mpirun -np", there,
            size);
    return CAIRN_OK;
}

/* Copies MPI_COMM_WORLD. An error is returned instead of ending the process; the user's error handler is restored. */
static int duplicate(MPI_Comm *out, MPI_Request *request) {
    MPI_Errhandler users;
    int error = MPI_Comm_get_errhandler(MPI_COMM_WORLD, &users);
    if (error != MPI_SUCCESS) return error;
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    error = MPI_Comm_idup(MPI_COMM_WORLD, out, request);
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, users);
    (void)MPI_Errhandler_free(&users);
    return error;
}

static cairn_status make_comm(struct cairn__mpi_watch *watch) {
    cairn_status st = CAIRN_OK;
    MPI_Request request;
    int *bound = NULL, has_bound = 0;
    TRY(cairn__mpi_check(duplicate(&process.comm, &request), "copy MPI_COMM_WORLD"));
    TRY(cairn__mpi_wait_watched(&request, watch, "the copying of MPI_COMM_WORLD"));
    TRY(cairn__mpi_check(MPI_Comm_set_errhandler(process.comm, MPI_ERRORS_RETURN), "return errors"));
    TRY(cairn__mpi_check(MPI_Comm_get_attr(process.comm, MPI_TAG_UB, &bound, &has_bound), "query the largest tag"));
    process.last_tag = has_bound ? *bound : 32767; /* the smallest bound that the standard allows */
    process.has_comm = true;
out:
    return st;
}

cairn_status cairn__mpi_enter(struct cairn__mpi_watch *watch, MPI_Comm *comm) {
    const int size = watch->options->size;
    cairn_status st = CAIRN_OK;
    TRY(cairn__mpi_probe(true));
    if (!process.has_comm) {
        TRY(initialize(watch));
        st = check_world(size);
        if (st == CAIRN_OK) st = make_comm(watch);
        if (st != CAIRN_OK) cairn__mpi_mourn(); /* MPI_Finalize would wait for ranks that may be missing */
        TRY(st);
    }
    TRY(check_world(size));
    *comm = process.comm;
out:
    return st;
}

void cairn__mpi_join(struct cairn__engine *engine) {
    engine->next = process.engines;
    process.engines = engine;
}

void cairn__mpi_leave(struct cairn__engine *engine) {
    struct cairn__engine **at = &process.engines;
    while (*at && *at != engine) at = &(*at)->next;
    if (*at) *at = engine->next;
}

struct cairn__engine **cairn__mpi_ended(void) {
    return &process.ended;
}

void cairn__mpi_mourn(void) {
    process.died = true;
}

bool cairn__mpi_any_thread(void) {
    return process.level == MPI_THREAD_MULTIPLE;
}

int cairn__mpi_next_tag(void) {
    return process.next_tag;
}

cairn_status cairn__mpi_take_tags(int first) {
    REQUIRE(first <= process.last_tag - TAGS, CAIRN_ENOTSUP,
            "this process has made %d groups, and its MPI has no tags for more", process.last_tag / TAGS);
    process.next_tag = first + TAGS;
    return CAIRN_OK;
}

/* ---- waiting ---- */

void cairn__mpi_rest(int idle) {
    if (idle < SPINS) return;
    if (idle < YIELDS) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

cairn_status cairn__mpi_wait(MPI_Request *requests, int count, const struct cairn__engine_options *o,
                             const char *what) {
    const double begin = cairn__clock_seconds();
    int done = 0;
    for (int idle = 0;; idle++) {
        cairn_status st = cairn__mpi_check(MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE), "get %s", what);
        if (st != CAIRN_OK || done) return st;
        REQUIRE(cairn__clock_seconds() - begin < o->timeout, CAIRN_ETIMEOUT,
                "waited %g s for %s, and other ranks did not join; raise %s if they are only slow", o->timeout, what,
                o->timeout_name);
        cairn__mpi_rest(idle);
    }
}

cairn_status cairn__mpi_wait_watched(MPI_Request *request, struct cairn__mpi_watch *watch, const char *what) {
    int done = 0;
    cairn_status st = CAIRN_OK;
    for (int idle = 0;; idle++) {
        TRY(cairn__mpi_check(MPI_Test(request, &done, MPI_STATUS_IGNORE), "get through %s", what));
        if (done) break;
        TRY(cairn__mpi_watch_look(watch, what));
        cairn__mpi_rest(idle);
    }
out:
    return st;
}
