/* Lower bound for a kernel's time: loops that read, write and update the same arrays and compute nothing. They write
 * values that they have read, because some machines stream zeros 1.5 times as fast as other values, and no kernel
 * writes zeros. Built once per instruction set, with LIMIT as the function's name. */
#include "kcheck.h"

#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512i line;
#define LOAD(p)      _mm512_load_si512(p)
#define STORE(p, v)  _mm512_store_si512(p, v)
#define STREAM(p, v) _mm512_stream_si512((void *)(p), v)
#define MIX(a, b)    _mm512_xor_si512(a, b)
#define FENCE()      _mm_sfence()
#elif defined(__AVX2__)
#include <immintrin.h>
typedef __m256i line;
#define LOAD(p)      _mm256_load_si256(p)
#define STORE(p, v)  _mm256_store_si256(p, v)
#define STREAM(p, v) _mm256_stream_si256(p, v)
#define MIX(a, b)    _mm256_xor_si256(a, b)
#define FENCE()      _mm_sfence()
#else
typedef uint64_t line;
#define LOAD(p)      (*(p))
#define STORE(p, v)  (*(p) = (v))
#define STREAM(p, v) (*(p) = (v))
#define MIX(a, b)    ((a) ^ (b))
#define FENCE()      (void)0
#endif

static volatile unsigned char kept;          /* keeps the reads */
static volatile unsigned char unknown_to_cc; /* zero: updates leave the data as it is, which a compiler may not know */

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
    const uint64_t words[2][8] = {{unknown_to_cc}, {1, 2, 3, 5, 7, 11, 13, 17}};
    line zero, sum;
    memcpy(&zero, words[0], sizeof(zero));
    memcpy(&sum, words[1], sizeof(sum));
    for (size_t i = 0; i < n; i += elements) {
        const size_t part = n - i < elements ? n - i : elements;
        for (int j = 0; j < count; j++) {
            line *x = (line *)(void *)(s[j].x + i * s[j].width);
            size_t lines = part * s[j].width / sizeof(line);
            if (s[j].role == READ) sum = read_part(x, lines, sum);
            else if (s[j].role == WRITTEN) write_part(x, lines, sum, nontemporal >= 1);
            else update_part(x, lines, zero, nontemporal >= 2);
        }
    }
    FENCE();
    kept = *(unsigned char *)&sum;
}
