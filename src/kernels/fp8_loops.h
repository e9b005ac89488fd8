/* fp8 and the greatest magnitude: plain loops over core/fp8.h, of which the compiler makes vectors. A template, which
 * maps_ref.c, maps_avx2.c, ... include with ISA and NEEDS defined, behind map_loops.h. Rounding at random is scalar:
 * most of its time is Philox's. */
#include "core/fp8.h"
#include "core/philox.h"

#define INLINE static inline __attribute__((always_inline))

/* Iterations are independent, though dst may be x. */
#if defined(__clang__)
#define ALONE _Pragma("clang loop vectorize(assume_safety)")
#else
#define ALONE _Pragma("GCC ivdep")
#endif

INLINE void NAMED(fp8_round)(int format, bool saturates, float *dst, const float *x, size_t n,
                             const struct cairn__fp8 *how) {
    const float scale = how->scale, inverse = how->inverse;
    ALONE for (size_t i = 0; i < n; i++) dst[i] = cairn__fp8_value(format, saturates, false, x[i] * scale, 0) * inverse;
}

INLINE void NAMED(fp8_encode)(int format, bool saturates, uint8_t *dst, const float *x, size_t n,
                              const struct cairn__fp8 *how) {
    const float scale = how->scale;
    ALONE for (size_t i = 0; i < n; i++) dst[i] =
        cairn__fp8_code(format, cairn__fp8_value(format, saturates, false, x[i] * scale, 0));
}

INLINE float NAMED(fp8_random_value)(int format, const struct cairn__fp8 *how, float x, size_t i) {
    const uint64_t e = how->first + i;
    const uint32_t random = cairn__philox(how->seed, e / 4, how->stream).word[e % 4];
    return cairn__fp8_value(format, how->saturates, true, x * how->scale, random);
}

#define MAKE_FP8(format, FORMAT)                                                                                    \
    static void NAMED(fp8_round_##format)(float *dst, const float *x, size_t n, const struct cairn__fp8 *how) {     \
        if (how->at_random) {                                                                                       \
            for (size_t i = 0; i < n; i++) dst[i] = NAMED(fp8_random_value)(FORMAT, how, x[i], i) * how->inverse;   \
        } else if (how->saturates) {                                                                                \
            NAMED(fp8_round)(FORMAT, true, dst, x, n, how);                                                         \
        } else {                                                                                                    \
            NAMED(fp8_round)(FORMAT, false, dst, x, n, how);                                                        \
        }                                                                                                           \
    }                                                                                                               \
    static void NAMED(fp8_encode_##format)(uint8_t * dst, const float *x, size_t n, const struct cairn__fp8 *how) { \
        if (how->at_random) {                                                                                       \
            for (size_t i = 0; i < n; i++)                                                                          \
                dst[i] = cairn__fp8_code(FORMAT, NAMED(fp8_random_value)(FORMAT, how, x[i], i));                    \
        } else if (how->saturates) {                                                                                \
            NAMED(fp8_encode)(FORMAT, true, dst, x, n, how);                                                        \
        } else {                                                                                                    \
            NAMED(fp8_encode)(FORMAT, false, dst, x, n, how);                                                       \
        }                                                                                                           \
    }                                                                                                               \
    static void NAMED(fp8_decode_##format)(float *dst, const uint8_t *x, size_t n, float inverse) {                 \
        for (size_t i = 0; i < n; i++) dst[i] = cairn__fp8_decode(FORMAT, x[i]) * inverse;                          \
    }
MAKE_FP8(e4m3, CAIRN__E4M3)
MAKE_FP8(e5m2, CAIRN__E5M2)

/* Magnitudes compare as their bits do. */
static float NAMED(amax)(const float *x, size_t n) {
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t magnitude = (int32_t)(cairn__f32_bits(x[i]) & 0x7fffffffu);
        const int32_t counted = magnitude > 0x7f800000 ? 0 : magnitude;
        most = counted > most ? counted : most;
    }
    return cairn__f32_from_bits((uint32_t)most);
}

#define FP8_ROW(kind, name, format, FORMAT) MAP_ROW(kind, FORMAT, 0, name##_##format)
#define FP8_ROWS_OF(format, FORMAT)                 \
    FP8_ROW(FP8_ROUND, fp8_round, format, FORMAT)   \
    FP8_ROW(FP8_ENCODE, fp8_encode, format, FORMAT) \
    FP8_ROW(FP8_DECODE, fp8_decode, format, FORMAT)
#define FP8_ROWS FP8_ROWS_OF(e4m3, CAIRN__E4M3) FP8_ROWS_OF(e5m2, CAIRN__E5M2) MAP_ROW(AMAX, 0, 0, amax)
