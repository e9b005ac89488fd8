/* A rank that repeatedly creates and destroys environments and groups and prints what they leave behind.
 *
 * usage: cycles COUNT [PORT]
 *
 * PORT: ranks meet at a store that rank 0 opens there; without it, at the launcher's store at MASTER_PORT. After the
 * first cycle, half-way and at the end each rank prints "rank 0 after 50: 81920 bytes, 12288 KiB, 5 files, 9 keys":
 * allocated, address space, open, in the store. */
#include <dirent.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../check.h"
#include "cairn/dist.h"
#include "cairn/env.h"
#include "cairn/store.h"

static int rank_of_launcher(void) {
    const char *torch = getenv("RANK"), *mpi = getenv("OMPI_COMM_WORLD_RANK");
    return torch ? atoi(torch) : mpi ? atoi(mpi) : 0;
}

static cairn_store *join_store(int rank, int port, bool is_own) {
    cairn_store *store = NULL;
    const struct cairn_tcp_store_options *how =
        cairn_tcp_store_options(.is_server = is_own && rank == 0 ? CAIRN_ON : CAIRN_OFF);
    MUST(cairn_tcp_store_create("127.0.0.1", port, how, &store) == CAIRN_OK);
    return store;
}

static void cycle(cairn_store *own) {
    cairn_env *env = NULL;
    cairn_group *group = NULL;
    float x = 1;
    MUST(cairn_env_create(NULL, NULL, cairn_env_options(.store = own), &env) == CAIRN_OK);
    MUST(cairn_allreduce(cairn_env_group(env), &x, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_OK);
    MUST(cairn_group_new(cairn_env_group(env), NULL, 0, NULL, &group) == CAIRN_OK);
    MUST(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_OK);
    cairn_group_destroy(&group);
    cairn_env_destroy(&env);
}

static int count_files(void) {
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    MUST(folder);
    while (readdir(folder)) n++;
    closedir(folder);
    return n - 3; /* ".", ".." and the folder */
}

static long address_space(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    MUST(f && fscanf(f, "%ld", &pages) == 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Waits until all ranks have called it equally often. leaves: this rank does not wait. */
static void meet(cairn_store *store, int size, bool leaves) {
    static int64_t met;
    int64_t here = 0;
    MUST(cairn_store_add(store, "cycles", 1, &here) == CAIRN_OK);
    met += size;
    while (here < met && !leaves) MUST(cairn_store_add(store, "cycles", 0, &here) == CAIRN_OK);
}

/* Between two meetings, so that no key is under way. */
static void tell(cairn_store *store, int rank, int size, int done) {
    int64_t keys = 0;
    meet(store, size, false);
    MUST(cairn_store_num_keys(store, &keys) == CAIRN_OK);
    const struct mallinfo2 m = mallinfo2();
    printf("rank %d after %d: %zu bytes, %ld KiB, %d files, %lld keys\n", rank, done, m.uordblks + m.hblkhd,
           address_space(), count_files(), (long long)keys);
    fflush(stdout);
    meet(store, size, false);
}

int main(int argc, char **argv) {
    const char *torch = getenv("WORLD_SIZE"), *mpi = getenv("OMPI_COMM_WORLD_SIZE"), *port = getenv("MASTER_PORT");
    const int count = argc > 1 ? atoi(argv[1]) : 0, rank = rank_of_launcher(), size = torch ? atoi(torch) : atoi(mpi);
    const bool is_own = argc > 2;
    cairn_store *store = join_store(rank, atoi(is_own ? argv[2] : port), is_own);
    for (int i = 1; i <= count; i++) {
        cycle(is_own ? store : NULL);
        if (i == 1 || i == count / 2 || i == count) tell(store, rank, size, i);
    }
    meet(store, size, rank != 0); /* its store ends with rank 0 */
    cairn_store_destroy(&store);
    return 0;
}
