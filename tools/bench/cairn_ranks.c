/* A rank of Cairn, or of the limit, for tools/cairn-bench, which passes rank and size in the launchers' variables and
 * these arguments:
 *
 *   bench-collectives SOCKET cairn FILE           meets the other ranks in FILE ("-": as the launcher says)
 *   bench-collectives SOCKET limit DESCRIPTOR     shares the memory of DESCRIPTOR with the other ranks */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "cairn/cairn.h"
#include "limit.h"
#include "worker.h"

static cairn_group *group;

static cairn_status send_and_receive(const struct bench_call *c, const void *source, void *destination) {
    cairn_work *sent = NULL, *received = NULL;
    const int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;
    cairn_status st = cairn_send(group, source, c->n, c->dtype, next, &sent);
    if (st == CAIRN_OK) st = cairn_recv(group, destination, c->n, c->dtype, before, &received);
    if (st == CAIRN_OK) st = cairn_work_wait(&received);
    return st == CAIRN_OK ? cairn_work_wait(&sent) : st;
}

static cairn_status call(const struct bench_call *c, const void *source, void *destination) {
    switch (c->collective) {
    case BENCH_ALLREDUCE:
        if (c->in_place) return cairn_allreduce(group, destination, c->n, c->dtype, CAIRN_SUM, NULL);
        return cairn_allreduce_into(group, destination, source, c->n, c->dtype, CAIRN_SUM, NULL);
    case BENCH_REDUCE:
        return cairn_reduce(group, destination, source, c->n, c->dtype, CAIRN_SUM, 0, NULL);
    case BENCH_BROADCAST:
        return cairn_broadcast(group, destination, c->n, c->dtype, 0, NULL);
    case BENCH_ALLGATHER:
        return cairn_allgather(group, destination, source, c->n, c->dtype, NULL);
    case BENCH_REDUCE_SCATTER:
        return cairn_reduce_scatter(group, destination, source, c->n, c->dtype, CAIRN_SUM, NULL);
    case BENCH_ALLTOALL:
        return cairn_alltoall(group, destination, source, c->n, c->dtype, NULL);
    case BENCH_SENDRECV:
        return send_and_receive(c, source, destination);
    default:
        return cairn_barrier(group);
    }
}

static bool run(const struct bench_call *c, const char *variant, const void *source, void *destination) {
    (void)variant;
    return call(c, source, destination) == CAIRN_OK;
}

static bool barrier(void) {
    return cairn_barrier(group) == CAIRN_OK;
}

static void *alloc(size_t nbytes, bool of_group) {
    void *memory = NULL;
    if (!of_group) return aligned_alloc(64, (nbytes + 63) / 64 * 64);
    return cairn_group_alloc(group, nbytes, &memory) == CAIRN_OK ? memory : NULL;
}

static void release(void *memory, bool of_group) {
    if (!of_group) free(memory);
    else if (cairn_group_free(group, &memory) != CAIRN_OK) fprintf(stderr, "%s\n", cairn_last_error());
}

static const char *lacks(const struct bench_call *c) {
    return c->collective == BENCH_SENDRECV && c->size < 2 ? "one rank has no peer to send to" : NULL;
}

static int serve_cairn(const char *socket_path, const char *file) {
    struct bench_side side = {.name = "cairn",
                              .lacks = lacks,
                              .alloc = alloc,
                              .free = release,
                              .run = run,
                              .barrier = barrier,
                              .error = cairn_last_error};
    cairn_env *env = NULL;
    char url[512], what[128];
    snprintf(url, sizeof(url), "file://%s", file);
    const char *method = strcmp(file, "-") == 0 ? NULL : url;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.init_method = method), &env) != CAIRN_OK) {
        fprintf(stderr, "bench-collectives: %s\n", cairn_last_error());
        return 1;
    }
    group = cairn_env_group(env);
    side.rank = cairn_group_rank(group);
    side.size = cairn_group_size(group);
    snprintf(what, sizeof(what), "%s of Cairn %d.%d.%d", cairn_group_backend(group), CAIRN_VERSION_MAJOR,
             CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH);
    side.what = what;
    int code = bench_serve(&side, socket_path);
    cairn_env_destroy(&env);
    return code;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: tools/cairn-bench allreduce, which starts this program; see --help\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (strcmp(argv[2], "limit") == 0) return bench_limit_serve(argv[1], atoi(argv[3]));
    return serve_cairn(argv[1], argv[3]);
}
