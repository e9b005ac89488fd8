/* A rank of plain MPI for tools/cairn-bench: the speed of a program that calls MPI directly. MPI has no reductions of
 * half types; this program adds them as a user-defined operation with Cairn's kernel, which rounds each partial sum.
 *
 *   mpirun -n 2 bench-mpi SOCKET */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "kernels/kernels.h"
#include "worker.h"

static const struct cairn__kernels *kernels;
static MPI_Op sum_f16, sum_bf16;
static char why[MPI_MAX_ERROR_STRING] = "out of memory";

static void sum_halves(void *in, void *inout, size_t n, cairn_dtype dtype) {
    const void *const sources[] = {in, inout};
    void *const destinations[] = {inout};
    uint32_t found = 0;
    kernels->reduce[CAIRN__REDUCE_SUM][dtype](destinations, 1, sources, 2, n, 1.0f, &found);
}

static void add_f16(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    sum_halves(in, inout, (size_t)*n, CAIRN_F16);
}

static void add_bf16(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    sum_halves(in, inout, (size_t)*n, CAIRN_BF16);
}

static MPI_Datatype type_of(const struct bench_call *c) {
    return c->dtype == CAIRN_F32 ? MPI_FLOAT : MPI_UINT16_T;
}

static MPI_Op op_of(const struct bench_call *c) {
    if (c->dtype == CAIRN_F32) return MPI_SUM;
    return c->dtype == CAIRN_F16 ? sum_f16 : sum_bf16;
}

static int reduce(const struct bench_call *c, const void *source, void *destination) {
    const void *from = c->in_place && c->rank == 0 ? MPI_IN_PLACE : source;
    return MPI_Reduce(from, destination, (int)c->n, type_of(c), op_of(c), 0, MPI_COMM_WORLD);
}

/* In place, MPI reads the whole array from the receive buffer and writes the result to its beginning. */
static int reduce_scatter(const struct bench_call *c, const void *source, void *destination) {
    return MPI_Reduce_scatter_block(source, destination, (int)c->n, type_of(c), op_of(c), MPI_COMM_WORLD);
}

static int send_and_receive(const struct bench_call *c, const void *source, void *destination) {
    const int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;
    return MPI_Sendrecv(source, (int)c->n, type_of(c), next, 0, destination, (int)c->n, type_of(c), before, 0,
                        MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int call(const struct bench_call *c, const void *source, void *destination) {
    const int n = (int)c->n;
    const MPI_Datatype type = type_of(c);
    const void *from = c->in_place ? MPI_IN_PLACE : source;
    switch (c->collective) {
    case BENCH_ALLREDUCE:
        return MPI_Allreduce(from, destination, n, type, op_of(c), MPI_COMM_WORLD);
    case BENCH_REDUCE:
        return reduce(c, source, destination);
    case BENCH_BROADCAST:
        return MPI_Bcast(destination, n, type, 0, MPI_COMM_WORLD);
    case BENCH_ALLGATHER:
        return MPI_Allgather(from, n, type, destination, n, type, MPI_COMM_WORLD);
    case BENCH_REDUCE_SCATTER:
        return reduce_scatter(c, source, destination);
    case BENCH_ALLTOALL:
        return MPI_Alltoall(source, n, type, destination, n, type, MPI_COMM_WORLD);
    case BENCH_SENDRECV:
        return send_and_receive(c, source, destination);
    default:
        return MPI_Barrier(MPI_COMM_WORLD);
    }
}

static bool went(int status) {
    int length;
    if (status != MPI_SUCCESS) MPI_Error_string(status, why, &length);
    return status == MPI_SUCCESS;
}

static bool run(const struct bench_call *c, const char *variant, const void *source, void *destination) {
    (void)variant;
    return went(call(c, source, destination));
}

static bool barrier(void) {
    return went(MPI_Barrier(MPI_COMM_WORLD));
}

static void *alloc(size_t nbytes, bool group) {
    (void)group;
    return aligned_alloc(64, (nbytes + 63) / 64 * 64);
}

static void release(void *memory, bool group) {
    (void)group;
    free(memory);
}

static const char *error(void) {
    return why;
}

static const char *lacks(const struct bench_call *c) {
    if (c->in_place && c->collective == BENCH_REDUCE_SCATTER) return "in place MPI puts the result elsewhere";
    return c->n > INT32_MAX ? "MPI counts elements in an int" : NULL;
}

int main(int argc, char **argv) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    if (argc != 2) {
        fprintf(stderr, "usage: tools/cairn-bench allreduce, which starts this program\n");
        return 2;
    }
    struct bench_side side = {.name = "mpi",
                              .what = version,
                              .lacks = lacks,
                              .alloc = alloc,
                              .free = release,
                              .run = run,
                              .barrier = barrier,
                              .error = error};
    MPI_Init(NULL, NULL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &side.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &side.size);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    MPI_Op_create(add_f16, 1, &sum_f16);
    MPI_Op_create(add_bf16, 1, &sum_bf16);
    kernels = cairn__kernels_cpu(cairn__cpu_features());
    int code = bench_serve(&side, argv[1]);
    MPI_Finalize();
    return code;
}
