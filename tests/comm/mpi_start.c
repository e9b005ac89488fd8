/* A rank of mpirun that receives a signal while it initializes MPI.
 *
 * usage: mpi_start RANK SIGNAL MS [copy | late | fail]
 *
 * The signal arrives MS milliseconds after rank RANK has called MPI_Init_thread. Every rank creates an environment,
 * sums a number over ranks, and prints why if it cannot.
 *
 * copy  the signal arrives when the rank duplicates MPI_COMM_WORLD instead; ranks that fail exit with 0
 * late  no signal: the rank's MPI_Init takes MS milliseconds, and a rank that fails tries again once it has returned
 * fail  no signal: MPI_Init fails on every rank */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cairn/dist.h"
#include "cairn/env.h"

static struct {
    int rank, signal;
    long ms;
    bool copy, late, fail;
} fault;

static void rest(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void *strike(void *unused) {
    rest(fault.ms);
    kill(getpid(), fault.signal);
    return unused;
}

static bool is_struck(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return rank && atoi(rank) == fault.rank;
}

/* Takes the library's place. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    pthread_t thread;
    if (fault.fail) return MPI_ERR_OTHER;
    if (is_struck() && !fault.copy) {
        fprintf(stderr, "rank %d, pid %d, in MPI_Init\n", fault.rank, (int)getpid());
        if (fault.ms == 0 || fault.late) strike(NULL);
        if (pthread_create(&thread, NULL, strike, NULL) != 0) return MPI_ERR_OTHER;
        (void)pthread_detach(thread);
    }
    return PMPI_Init_thread(argc, argv, required, provided);
}

/* Likewise. */
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request) {
    if (is_struck() && fault.copy) strike(NULL);
    return PMPI_Comm_idup(comm, copy, request);
}

static void await_mpi(void) {
    int is_initialized = 0;
    while (!is_initialized) {
        rest(10);
        MPI_Initialized(&is_initialized);
    }
}

static void train(void) {
    cairn_env *env = NULL;
    float x = 1;
    cairn_status st = cairn_env_create(NULL, NULL, NULL, &env);
    while (st == CAIRN_OK) st = cairn_allreduce(cairn_env_group(env), &x, 1, CAIRN_F32, CAIRN_AVG, NULL);
    fprintf(stderr, "CAIRN_%s: %s\n", cairn_status_name(st), cairn_last_error());
    cairn_env_destroy(&env);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    fault.rank = atoi(argv[1]);
    fault.signal = atoi(argv[2]);
    fault.ms = atol(argv[3]);
    fault.copy = argc == 5 && strcmp(argv[4], "copy") == 0;
    fault.late = argc == 5 && strcmp(argv[4], "late") == 0;
    fault.fail = argc == 5 && strcmp(argv[4], "fail") == 0;
    train();
    if (fault.late) {
        await_mpi();
        train();
    }
    return fault.copy ? 0 : 1;
}
