/* A program that uses MPI itself, next to a group of Cairn.
 *
 * usage: mpi_user beside | single | serialized | turned | other-size | after-finalize | twice | forgets |
 *        forgets-work | leaves | singleton | stops-0 | stops-1
 *
 * beside          calls MPI_Init and MPI_Finalize, and keeps its own receives for any tag in flight
 * single          the same with MPI_THREAD_SINGLE, and aborts the group from another thread
 * serialized      the same with MPI_THREAD_SERIALIZED, from the thread that made the group, while another waits
 * turned          Cairn's ranks are in the reverse order of MPI's
 * other-size      Cairn is configured with one rank less than MPI has
 * after-finalize  creates an environment after MPI_Finalize
 * twice           creates a second environment after destroying the first
 * forgets         returns from main without cairn_env_destroy
 * forgets-work    the same during a receive
 * leaves          rank 1 destroys its environment while rank 0 waits for it
 * stops-0, -1     the rank is stopped (SIGSTOP) when all are about to destroy their environments
 * singleton       calls MPI_Init, possibly without an MPI launcher */
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../check.h"
#include "cairn/dist.h"
#include "cairn/env.h"

/* Told to cairn_env_create by what torch's launchers tell; NULL: as the launcher says. */
static void tell(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

static void tell_ranks(int rank, int size) {
    tell("RANK", rank);
    tell("WORLD_SIZE", size);
    tell("LOCAL_RANK", rank);
    tell("LOCAL_WORLD_SIZE", size);
}

static void check_sum(cairn_env *env) {
    cairn_group *group = cairn_env_group(env);
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    float x[100], all[100];
    for (int i = 0; i < 100; i++) x[i] = (float)(rank + i);
    MUST(cairn_allreduce(group, x, 100, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_OK);
    for (int i = 0; i < 100; i++) MUST(x[i] == (float)(p * (p - 1) / 2 + p * i));
    all[0] = (float)rank;
    MUST(cairn_allgather(group, all, (float[]){(float)rank}, 1, CAIRN_F32, NULL) == CAIRN_OK);
    for (int r = 0; r < p; r++) MUST(all[r] == (float)r);
}

static void train(void) {
    cairn_env *env = NULL;
    MUST(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK);
    MUST(strcmp(cairn_group_backend(cairn_env_group(env)), "mpi") == 0);
    check_sum(env);
    cairn_env_destroy(&env);
}

static void beside(int rank, int size) {
    int mine = rank, came = -1;
    MPI_Request request;
    cairn_env *env = NULL;
    MPI_Irecv(&came, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
    MUST(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK);
    check_sum(env);
    MUST(came == -1);
    MUST(cairn_barrier(cairn_env_group(env)) == CAIRN_OK);
    MPI_Send(&mine, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MUST(came == (rank + size - 1) % size);
    check_sum(env);
    cairn_env_destroy(&env);
}

static void *give_up(void *group) {
    cairn_group_abort(group);
    return NULL;
}

static void abort_from_another_thread(int rank) {
    pthread_t thread;
    cairn_env *env = NULL;
    float x = 0;
    MUST(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK);
    check_sum(env);
    if (rank == 0) MUST(pthread_create(&thread, NULL, give_up, cairn_env_group(env)) == 0);
    /* Is never sent. */
    const cairn_status st = cairn_recv(cairn_env_group(env), &x, 1, CAIRN_F32, rank == 0, NULL);
    MUST(st == (rank == 0 ? CAIRN_ESTATE : CAIRN_EPEER));
    if (rank == 0) pthread_join(thread, NULL);
    fprintf(stderr, "rank %d: %s\n", rank, cairn_last_error());
    cairn_env_destroy(&env);
}

struct wait {
    cairn_group *group;
    atomic_bool begun;
    char told[512];
};

static void *wait_in_vain(void *argument) {
    struct wait *w = argument;
    float x = 0;
    atomic_store(&w->begun, true);
    MUST(cairn_recv(w->group, &x, 1, CAIRN_F32, 1, NULL) == CAIRN_ESTATE);
    snprintf(w->told, sizeof(w->told), "%s", cairn_last_error());
    return NULL;
}

static void abort_while_another_thread_waits(int rank) {
    pthread_t thread;
    cairn_env *env = NULL;
    float x = 0;
    MUST(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK);
    struct wait w = {.group = cairn_env_group(env)};
    if (rank == 0) {
        MUST(pthread_create(&thread, NULL, wait_in_vain, &w) == 0);
        while (!atomic_load(&w.begun)) sched_yield();
        cairn_group_abort(w.group);
        pthread_join(thread, NULL);
    } else {
        MUST(cairn_recv(w.group, &x, 1, CAIRN_F32, 0, NULL) == CAIRN_EPEER);
    }
    fprintf(stderr, "rank %d: %s\n", rank, rank == 0 ? w.told : cairn_last_error());
    cairn_env_destroy(&env);
}

static void refuse(void) {
    cairn_env *env = NULL;
    MUST(cairn_env_create(NULL, NULL, NULL, &env) != CAIRN_OK);
    fprintf(stderr, "%s\n", cairn_last_error());
}

static void leave(void) {
    cairn_env *env = NULL;
    MUST(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK);
    check_sum(env);
    if (cairn_group_rank(cairn_env_group(env)) == 0) {
        MUST(cairn_barrier(cairn_env_group(env)) == CAIRN_EPEER);
        fprintf(stderr, "rank 0: %s\n", cairn_last_error());
    }
    cairn_env_destroy(&env);
}

static void forget(bool in_the_midst) {
    static float x;
    cairn_env *env = NULL;
    cairn_work *work = NULL;
    MUST(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK);
    check_sum(env);
    if (!in_the_midst) return;
    const int rank = cairn_group_rank(cairn_env_group(env));
    MUST(cairn_recv(cairn_env_group(env), &x, 1, CAIRN_F32, rank == 0, &work) == CAIRN_OK);
}

static void stop(int rank) {
    cairn_env *env = NULL;
    MUST(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK);
    check_sum(env);
    if (cairn_env_rank(env) == rank) {
        printf("%d\n", (int)getpid());
        fflush(stdout);
        raise(SIGSTOP);
    }
    cairn_env_destroy(&env);
}

static void start_alone(void) {
    cairn_env *env = NULL;
    const cairn_status st = cairn_env_create(NULL, NULL, NULL, &env);
    if (st != CAIRN_OK) {
        fprintf(stderr, "%s\n", cairn_last_error());
        exit(1);
    }
    check_sum(env);
    printf("rank %d of %d: %s\n", cairn_env_rank(env), cairn_env_size(env), cairn_group_backend(cairn_env_group(env)));
    cairn_env_destroy(&env);
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    int rank = 0, size = 0, level = 0;
    if (strcmp(what, "twice") == 0) {
        train();
        train();
        return 0;
    }
    if (strncmp(what, "forgets", 7) == 0) return forget(what[7] != '\0'), 0;
    if (strcmp(what, "leaves") == 0) return leave(), 0;
    if (strncmp(what, "stops-", 6) == 0) return stop(atoi(what + 6)), 0;
    if (strcmp(what, "single") == 0) {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
    } else if (strcmp(what, "serialized") == 0) {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
    } else {
        MPI_Init(&argc, &argv);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(what, "beside") == 0) beside(rank, size);
    if (strcmp(what, "singleton") == 0) start_alone();
    if (strcmp(what, "single") == 0) abort_from_another_thread(rank);
    if (strcmp(what, "serialized") == 0) abort_while_another_thread_waits(rank);
    if (strcmp(what, "turned") == 0) {
        tell_ranks(size - 1 - rank, size);
        train();
    }
    if (strcmp(what, "other-size") == 0 && rank < size - 1) {
        tell_ranks(rank, size - 1);
        refuse();
    }
    MPI_Finalize();
    if (strcmp(what, "after-finalize") == 0) refuse();
    return 0;
}
