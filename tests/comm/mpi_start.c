/* A rank of mpirun in which a signal comes while it starts MPI.
 *
 * usage: mpi_start RANK SIGNAL MS
 *
 * MS milliseconds after the rank's call of MPI_Init_thread the signal comes. Every rank creates an environment, adds
 * up a number, and says why it could not. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cairn/dist.h"
#include "cairn/env.h"

static struct {
    int rank, signal;
    long ms;
} fault;

static void *strike(void *unused) {
    nanosleep(&(struct timespec){.tv_sec = fault.ms / 1000, .tv_nsec = fault.ms % 1000 * 1000000}, NULL);
    kill(getpid(), fault.signal);
    return unused;
}

/* Takes the library's place. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    pthread_t thread;
    if (rank && atoi(rank) == fault.rank) {
        fprintf(stderr, "rank %s, pid %d, in MPI_Init\n", rank, (int)getpid());
        if (fault.ms == 0) strike(NULL);
        if (pthread_create(&thread, NULL, strike, NULL) != 0) return MPI_ERR_OTHER;
        (void)pthread_detach(thread);
    }
    return PMPI_Init_thread(argc, argv, required, provided);
}

int main(int argc, char **argv) {
    cairn_env *env = NULL;
    float x = 1;
    if (argc != 4) return 2;
    fault.rank = atoi(argv[1]);
    fault.signal = atoi(argv[2]);
    fault.ms = atol(argv[3]);
    cairn_status st = cairn_env_create(NULL, NULL, NULL, &env);
    while (st == CAIRN_OK) st = cairn_allreduce(cairn_env_group(env), &x, 1, CAIRN_F32, CAIRN_AVG, NULL);
    fprintf(stderr, "CAIRN_%s: %s\n", cairn_status_name(st), cairn_last_error());
    cairn_env_destroy(&env);
    return 1;
}
