/* Throughput of counting exponents in elements per second of thread time, for typical and worst-case data, against a
 * loop that only reads the same memory. Prints nothing unless the counts equal the reference's.
 *
 *     exponents_bench [elements]
 * */
#include <math.h>
#include <string.h>
#include <time.h>

#include "../bench.h"
#include "core/alloc.h"
#include "kcheck.h"

enum pattern { NORMAL, SPREAD, EQUAL, HALF_ZEROS, NUM_PATTERNS };
static const char *const pattern_names[] = {"normal", "28 exponents", "all equal", "half zeros"};

/* A sum of four uniforms is about normal. */
static float value_of(enum pattern pattern, size_t i) {
    const uint64_t r = random_bits(7, i);
    const uint32_t sum =
        (uint32_t)(r & 0xffff) + (uint32_t)(r >> 16 & 0xffff) + (uint32_t)(r >> 32 & 0xffff) + (uint32_t)(r >> 48);
    const float normal = ((float)sum - 131070) * 0x1p-15f;
    if (pattern == EQUAL) return 1;
    if (pattern == HALF_ZEROS && random_bits(8, i) & 1) return 0;
    return pattern == SPREAD ? ldexpf(normal, (int)(random_bits(9, i) % 28) - 14) : normal;
}

static void read_only(const void *x, size_t nbytes) {
    const struct limit_stream stream = {READ, 1, (unsigned char *)(uintptr_t)x};
#if defined(__x86_64__)
    const unsigned has = cairn__cpu_features();
    (has & CAIRN__CPU_AVX512 ? limit_avx512
     : has & CAIRN__CPU_AVX2 ? limit_avx2
                             : limit_generic)(&stream, 1, nbytes, 0, 4096);
#else
    limit_generic(&stream, 1, nbytes, 0, 4096);
#endif
}

/* Of this thread: what others do to the machine's memory counts, and waiting for a processor does not. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static void bench_one(cairn_dtype type, enum pattern pattern, void *x, size_t n) {
    const cairn__count_exponents_fn count = cairn__kernels_cpu(cairn__cpu_features())->count_exponents[type];
    const size_t width = cairn_dtype_nbytes(type);
    double counting[ROUNDS], reading[ROUNDS];
    struct cairn__exponent_counts want = {0};
    for (size_t i = 0; i < n; i++) cairn__dtype(type)->from_f32((char *)x + i * width, value_of(pattern, i));
    cairn__kernels_cpu(0)->count_exponents[type](x, n, &want);
    for (int r = -1; r < ROUNDS; r++) {
        struct cairn__exponent_counts got = {0};
        const double begin = now();
        count(x, n, &got);
        const double counted = now();
        read_only(x, n * width);
        const double end = now();
        require(memcmp(&got, &want, sizeof(got)) == 0, "counts are not those of the reference");
        if (r < 0) continue;
        counting[r] = counted - begin, reading[r] = end - counted;
    }
    printf("  %-5s %-13s %8.2f %10.2f\n", cairn_dtype_name(type), pattern_names[pattern], (double)n / median(counting),
           (double)n / median(reading));
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    const size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : (size_t)1 << 24;
    void *x = NULL;
    require(n > 0, "usage: exponents_bench [elements]");
    done(cairn__alloc(n * sizeof(float), &x));
    printf("command %s %zu; cpu level %s, compiler %s; time of one thread, warm-up 1, median of %d; G elements/s\n",
           argv[0], n, cairn__cpu_level_name(cairn__cpu_features()), __VERSION__, (int)ROUNDS);
    printf("  %-5s %-13s %8s %10s\n", "type", "data", "counted", "only read");
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (int p = 0; p < NUM_PATTERNS; p++) bench_one(types[t], (enum pattern)p, x, n);
    }
    cairn__free(x);
    return 0;
}
