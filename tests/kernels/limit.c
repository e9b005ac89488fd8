/* The limit a kernel's time is held against: loops that read, write and update the same arrays and compute nothing.
 * Built once per instruction set, with LIMIT as the function's name. */
#include "kcheck.h"

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512i line;
#define LOAD(p)      _mm512_load_si512(p)
#define STORE(p, v)  _mm512_store_si512(p, v)
#define STREAM(p, v) _mm512_stream_si512((void *)(p), v)
#define MIX(a, b)    _mm512_xor_si512(a, b)
#define ZERO()       _mm512_setzero_si512()
#define FENCE()      _mm_sfence()
#elif defined(__AVX2__)
#include <immintrin.h>
typedef __m256i line;
#define LOAD(p)      _mm256_load_si256(p)
#define STORE(p, v)  _mm256_store_si256(p, v)
#define STREAM(p, v) _mm256_stream_si256(p, v)
#define MIX(a, b)    _mm256_xor_si256(a, b)
#define ZERO()       _mm256_setzero_si256()
#define FENCE()      _mm_sfence()
#else
typedef uint64_t line;
#define LOAD(p)      (*(p))
#define STORE(p, v)  (*(p) = (v))
#define STREAM(p, v) (*(p) = (v))
#define MIX(a, b)    ((a) ^ (b))
#define ZERO()       0
#define FENCE()      (void)0
#endif

static volatile unsigned char kept; /* keeps the reads */

static line read_part(const line *x, size_t lines, line sum) {
    for (size_t i = 0; i < lines; i++) sum = MIX(sum, LOAD(x + i));
    return sum;
}

static void write_part(line *x, size_t lines, line value, bool stream) {
    if (stream) {
        for (size_t i = 0; i < lines; i++) STREAM(x + i, value);
    } else {
        for (size_t i = 0; i < lines; i++) STORE(x + i, value);
    }
}

static void update_part(line *x, size_t lines, line value, bool stream) {
    if (stream) {
        for (size_t i = 0; i < lines; i++) STREAM(x + i, MIX(LOAD(x + i), value));
    } else {
        for (size_t i = 0; i < lines; i++) STORE(x + i, MIX(LOAD(x + i), value));
    }
}

void LIMIT(const struct limit_stream *s, int count, size_t n, int nontemporal, size_t elements) {
    line sum = ZERO();
    const line zero = ZERO();
    for (size_t i = 0; i + elements <= n; i += elements) {
        for (int j = 0; j < count; j++) {
            line *x = (line *)(void *)(s[j].x + i * s[j].width);
            size_t lines = elements * s[j].width / sizeof(line);
            if (s[j].role == READ) sum = read_part(x, lines, sum);
            else if (s[j].role == WRITTEN) write_part(x, lines, zero, nontemporal >= 1);
            else update_part(x, lines, zero, nontemporal >= 2);
        }
    }
    FENCE();
    kept = *(unsigned char *)&sum;
}
