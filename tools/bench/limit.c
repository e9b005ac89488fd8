#include "limit.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/cpu.h"
#include "kernels/kernels.h"
#include "worker.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, SPINS = 2000, LINE = 64 };

/* At the start of the shared file; the ranks' arrays follow at offset HUGE_PAGE. */
struct header {
    _Atomic unsigned arrived, generation;
};

static struct {
    int rank, size, memory;
    const struct cairn__kernels *kernels;
    struct header *header;
    char *room; /* space for the arrays, plus a huge page for alignment */
    size_t mapped;
    char *arrays; /* [size] of stride bytes each */
    size_t stride;
    char why[128];
} limit;

static const char *error(void) {
    return limit.why;
}

/* ---- memory ---- */

static bool map_arrays(void) {
    limit.room = mmap(NULL, limit.mapped + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (limit.room == MAP_FAILED) return false;
    limit.arrays = limit.room + (HUGE_PAGE - (uintptr_t)limit.room % HUGE_PAGE) % HUGE_PAGE;
    return mmap(limit.arrays, limit.mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, limit.memory, HUGE_PAGE) !=
           MAP_FAILED;
}

/* Rank 0 sizes the file; all ranks map the same size. */
static void *alloc(size_t nbytes, bool group) {
    (void)group;
    const size_t page = nbytes < HUGE_PAGE ? PAGE : HUGE_PAGE;
    limit.stride = (nbytes + page - 1) / page * page;
    limit.mapped = limit.stride * (size_t)limit.size;
    if (ftruncate(limit.memory, (off_t)(HUGE_PAGE + limit.mapped)) == 0 && map_arrays()) {
        char *own = limit.arrays + (size_t)limit.rank * limit.stride;
        memset(own, 0, limit.stride);
        if (page == HUGE_PAGE) (void)madvise(own, limit.stride, MADV_COLLAPSE); /* huge pages, as in group memory */
        return own;
    }
    snprintf(limit.why, sizeof(limit.why), "%s", strerror(errno));
    return NULL;
}

static void release(void *memory, bool group) {
    (void)memory;
    (void)group;
    munmap(limit.room, limit.mapped + HUGE_PAGE);
}

/* ---- the loops ---- */

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

static void sum_words(void *const *bufs, const char *variant, size_t n) {
    if (limit.size != 2) sum_plain((uint64_t *const *)bufs, limit.size, n);
    else if (strcmp(variant, "plain") == 0) sum_plain_2(bufs[0], bufs[1], n);
    else sum_streaming_2(bufs[0], bufs[1], n);
}

/* Parts are whole cache lines; the last rank's part has the remainder. */
static bool run(const struct bench_call *c, const char *variant, const void *source, void *destination) {
    const size_t width = cairn_dtype_nbytes(c->dtype), part = c->n * width / (size_t)c->size / LINE * LINE;
    const size_t begin = part * (size_t)c->rank, end = c->rank + 1 < c->size ? begin + part : c->n * width;
    void *bufs[BENCH_MOST_RANKS];
    uint32_t found = 0;
    (void)source;
    (void)destination;
    for (int r = 0; r < c->size; r++) bufs[r] = limit.arrays + (size_t)r * limit.stride + begin;
    if (strcmp(variant, "kernel") != 0) sum_words(bufs, variant, (end - begin) / sizeof(uint64_t));
    else
        limit.kernels->reduce[CAIRN__REDUCE_SUM][c->dtype](bufs, c->size, (const void *const *)bufs, c->size,
                                                           (end - begin) / width, 1.0f, &found);
    return true;
}

static bool barrier(void) {
    const unsigned generation = atomic_load(&limit.header->generation);
    if (atomic_fetch_add(&limit.header->arrived, 1) + 1 == (unsigned)limit.size) {
        atomic_store(&limit.header->arrived, 0);
        atomic_store(&limit.header->generation, generation + 1);
        return true;
    }
    for (int i = 0; atomic_load(&limit.header->generation) == generation; i++) {
        if (i > SPINS) sched_yield();
    }
    return true;
}

/* Barrier: the timed loop does not wait for other ranks' parts. */
static bool settle(const char *variant) {
    barrier();
    return strcmp(variant, "kernel") == 0;
}

static const char *lacks(const struct bench_call *c) {
    if (c->collective != BENCH_ALLREDUCE || !c->in_place) return "the limit is that of an all-reduce in place";
    return c->n * cairn_dtype_nbytes(c->dtype) < (size_t)(LINE * c->size)
               ? "there is less than a cache line for each rank"
               : NULL;
}

int bench_limit_serve(const char *socket_path, int memory) {
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
    limit.rank = rank ? atoi(rank) : 0;
    limit.size = size ? atoi(size) : 1;
    limit.memory = memory;
    limit.kernels = cairn__kernels_cpu(cairn__cpu_features());
    limit.header = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (limit.header == MAP_FAILED) {
        fprintf(stderr, "bench-collectives: the shared memory cannot be mapped: %s\n", strerror(errno));
        return 1;
    }
    struct bench_side side = {.name = "limit",
                              .rank = limit.rank,
                              .size = limit.size,
                              .lacks = lacks,
                              .alloc = alloc,
                              .free = release,
                              .run = run,
                              .settle = settle,
                              .barrier = barrier,
                              .error = error};
    side.what = cairn__cpu_level_name(cairn__cpu_features());
    return bench_serve(&side, socket_path);
}
