/* All-reduce in group memory beside the limit of the machine, for p ranks as processes.
 *
 *   allreduce-bench [ranks = 2] [rounds = 30]
 *
 * A round: every rank rewrites its buffer, a barrier, then one timed piece of work; its time is that of the slowest rank.
 * The limit is the same reduction without any agreement: each rank reads and writes its 1/p of all buffers in the best
 * of three loops (the chosen kernel, a plain and a non-temporal loop of 64-bit sums). They are interleaved in one run,
 * medians are printed, and every all-reduce is checked in full before its time counts. The barrier's latency is that of
 * 1000 in a row. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/trace.h"
#include "dist/shm/shm.h"
#include "dist/store/server.h"
#include "dist/store/store.h"

enum { MOST_RANKS = 64, MOST_ROUNDS = 1000, BARRIERS = 1000, WARM_UP = 2 };
enum { KERNEL, PLAIN, STREAMING, LOOPS };

#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "allreduce-bench: line %d: %s: %s\n", __LINE__, #condition, cairn_last_error()); \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

struct bench {
    cairn_group *group;
    const struct cairn__kernels *kernels;
    int rank, size, rounds;
    double *times; /* [size] in group memory: the ranks' times of one piece of work, us */
};

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof(*x), compare_doubles);
    return x[n / 2];
}

/* ---- data: integers whose sums are exact in f16 ---- */

static void rewrite(const struct bench *b, void *x, size_t n, cairn_dtype dtype, int round) {
    static uint16_t halves[16];
    for (int i = 0; i < 16; i++) cairn__dtype(CAIRN_F16)->from_f32(&halves[i], (float)((i + b->rank + round) % 7));
    uint16_t *h = x;
    float *f = x;
    if (dtype == CAIRN_F16) {
        for (size_t i = 0; i < n; i++) h[i] = halves[i % 16];
    } else {
        for (size_t i = 0; i < n; i++) f[i] = (float)(((int)(i % 16) + b->rank + round) % 7);
    }
}

static void check(const struct bench *b, const void *x, size_t n, cairn_dtype dtype, int round) {
    uint32_t wanted[16] = {0};
    size_t nbytes = cairn_dtype_nbytes(dtype);
    for (int i = 0; i < 16; i++) {
        int sum = 0;
        for (int r = 0; r < b->size; r++) sum += (i + r + round) % 7;
        cairn__dtype(dtype)->from_f32(&wanted[i], (float)sum);
    }
    for (size_t i = 0; i < n; i++) MUST(memcmp((const char *)x + i * nbytes, &wanted[i % 16], nbytes) == 0);
}

/* ---- the limit ---- */

static void sum_plain(uint64_t *const *x, int p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t sum = 0;
        for (int r = 0; r < p; r++) sum += x[r][i];
        for (int r = 0; r < p; r++) x[r][i] = sum;
    }
}

static void sum_plain_2(uint64_t *restrict x, uint64_t *restrict y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t sum = x[i] + y[i];
        x[i] = sum;
        y[i] = sum;
    }
}

#ifdef __SSE2__
#include <emmintrin.h>
static void sum_streaming_2(uint64_t *x, uint64_t *y, size_t n) {
    for (size_t i = 0; i + 8 <= n; i += 8) {
        for (size_t j = i; j < i + 8; j += 2) {
            __m128i sum = _mm_add_epi64(_mm_load_si128((__m128i *)(x + j)), _mm_load_si128((__m128i *)(y + j)));
            _mm_stream_si128((__m128i *)(x + j), sum);
            _mm_stream_si128((__m128i *)(y + j), sum);
        }
    }
    _mm_sfence();
}
#else
static void sum_streaming_2(uint64_t *x, uint64_t *y, size_t n) {
    sum_plain_2(x, y, n);
}
#endif

static void reduce_alone(const struct bench *b, void *x, size_t n, cairn_dtype dtype, int loop) {
    const struct cairn__shm *s = b->group->impl;
    size_t nbytes = n * cairn_dtype_nbytes(dtype) / (size_t)b->size / 64 * 64, i = 0;
    void *bufs[MOST_RANKS];
    uint32_t found = 0;
    while (s->segments[i].parts[b->rank] != x) i++;
    for (int r = 0; r < b->size; r++) bufs[r] = (char *)s->segments[i].parts[r] + nbytes * (size_t)b->rank;
    if (loop == KERNEL) {
        b->kernels->reduce[CAIRN__REDUCE_SUM][dtype](bufs, b->size, (const void *const *)bufs, b->size,
                                                     nbytes / cairn_dtype_nbytes(dtype), 1.0f, &found);
    } else if (b->size != 2) {
        sum_plain((uint64_t *const *)bufs, b->size, nbytes / 8);
    } else if (loop == PLAIN) {
        sum_plain_2(bufs[0], bufs[1], nbytes / 8);
    } else {
        sum_streaming_2(bufs[0], bufs[1], nbytes / 8);
    }
}

/* ---- timing ---- */

static double slowest(const struct bench *b, double us) {
    double worst = 0;
    b->times[b->rank] = us;
    MUST(cairn_allgather(b->group, b->times, &b->times[b->rank], 1, CAIRN_I64, NULL) == CAIRN_OK);
    for (int r = 0; r < b->size; r++) worst = b->times[r] > worst ? b->times[r] : worst;
    MUST(cairn_barrier(b->group) == CAIRN_OK);
    return worst;
}

static double us_since(uint64_t begin) {
    return (double)(cairn__now_ns() - begin) * 1e-3;
}

static double time_limit(const struct bench *b, void *x, size_t n, cairn_dtype dtype, int loop, int round) {
    rewrite(b, x, n, dtype, round);
    MUST(cairn_barrier(b->group) == CAIRN_OK);
    uint64_t begin = cairn__now_ns();
    reduce_alone(b, x, n, dtype, loop);
    return slowest(b, us_since(begin));
}

static double time_allreduce(const struct bench *b, void *x, size_t n, cairn_dtype dtype, int round) {
    rewrite(b, x, n, dtype, round);
    MUST(cairn_barrier(b->group) == CAIRN_OK);
    uint64_t begin = cairn__now_ns();
    MUST(cairn_allreduce(b->group, x, n, dtype, CAIRN_SUM, NULL) == CAIRN_OK);
    double us = slowest(b, us_since(begin));
    check(b, x, n, dtype, round);
    return us;
}

/* The non-temporal loop comes after the rest: it leaves the buffers outside every cache, which whoever is next pays for. */
static void bench_size(const struct bench *b, size_t n, cairn_dtype dtype) {
    static double allreduce[MOST_ROUNDS], limits[LOOPS][MOST_ROUNDS];
    double loops[LOOPS], limit = 1e30;
    void *x = NULL;
    MUST(cairn_group_alloc(b->group, n * cairn_dtype_nbytes(dtype), &x) == CAIRN_OK);
    for (int round = -WARM_UP; round < b->rounds; round++) {
        int at = round < 0 ? 0 : round;
        for (int loop = 0; loop < STREAMING; loop++) limits[loop][at] = time_limit(b, x, n, dtype, loop, at);
        allreduce[at] = time_allreduce(b, x, n, dtype, at);
    }
    for (int round = 0; round < b->rounds; round++)
        limits[STREAMING][round] = time_limit(b, x, n, dtype, STREAMING, round);
    for (int loop = 0; loop < LOOPS; loop++) {
        loops[loop] = median(limits[loop], b->rounds);
        limit = loops[loop] < limit ? loops[loop] : limit;
    }
    double time = median(allreduce, b->rounds);
    if (b->rank == 0)
        printf("all-reduce %-4s %9zu elements %9.1f us  limit %9.1f us  ratio %5.2f  wrong 0  (kernel alone %.1f us, "
               "plain loop %.1f us, non-temporal %.1f us)\n",
               cairn_dtype_name(dtype), n, time, limit, time / limit, loops[KERNEL], loops[PLAIN], loops[STREAMING]);
    MUST(cairn_group_free(b->group, &x) == CAIRN_OK);
}

static void bench_barrier(const struct bench *b) {
    static double times[MOST_ROUNDS];
    for (int round = 0; round < b->rounds; round++) {
        uint64_t begin = cairn__now_ns();
        for (int i = 0; i < BARRIERS; i++) MUST(cairn_barrier(b->group) == CAIRN_OK);
        times[round] = slowest(b, us_since(begin)) / BARRIERS;
    }
    if (b->rank == 0) printf("barrier %.2f us\n", median(times, b->rounds));
}

static void bench_rank(int rank, int size, int rounds, int port) {
    static const size_t sizes[] = {64 << 10, 1 << 20, 16 << 20};
    struct bench b = {.rank = rank, .size = size, .rounds = rounds};
    cairn_store *store = NULL;
    void *times = NULL;
    b.kernels = cairn__kernels_cpu(cairn__cpu_features());
    MUST(cairn_tcp_store_create("127.0.0.1", port, cairn_tcp_store_options(.timeout = 30), &store) == CAIRN_OK);
    struct cairn__group_options options = {
        .rank = rank, .size = size, .timeout = 60, .store = store, .prefix = "bench", .backend = "shm"};
    MUST(cairn__group_create(&options, &b.group) == CAIRN_OK);
    cairn_store_destroy(&store);
    MUST(cairn_group_alloc(b.group, MOST_RANKS * sizeof(double), &times) == CAIRN_OK);
    b.times = times;
    if (rank == 0)
        printf("%d ranks on %ld processors, kernels %s, median of %d rounds\n", size, sysconf(_SC_NPROCESSORS_ONLN),
               cairn__cpu_level_name(cairn__cpu_features()), rounds);
    bench_barrier(&b);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        bench_size(&b, sizes[i], CAIRN_F16);
        bench_size(&b, sizes[i], CAIRN_F32);
    }
    cairn__group_destroy(&b.group);
}

int main(int argc, char **argv) {
    int size = argc > 1 ? atoi(argv[1]) : 2, rounds = argc > 2 ? atoi(argv[2]) : 30, port = 0, failed = 0;
    struct cairn__store_server *server = NULL;
    if (size < 1 || size > MOST_RANKS || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: allreduce-bench [ranks, 1 to %d] [rounds, 1 to %d]\n", MOST_RANKS, MOST_ROUNDS);
        return 2;
    }
    MUST(cairn__store_serve(0, &server, &port) == CAIRN_OK);
    for (int r = 0; r < size; r++) {
        if (fork() > 0) continue;
        bench_rank(r, size, rounds, port);
        fflush(stdout);
        _exit(0);
    }
    for (int r = 0; r < size; r++) {
        int status = 0;
        wait(&status);
        failed |= status != 0;
    }
    cairn__store_stop(&server);
    return failed;
}
