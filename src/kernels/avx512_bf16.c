/* AVX512_BF16: narrowing in one instruction. It takes f32 subnormals for zeros (00400000 gives 0000, the reference
 * 0040), so this row is never chosen by itself. */
#include <immintrin.h>

#include "core/cpu.h"
#include "kernels/row_lists.h"

static void cast_f32_bf16_avx512_bf16(void *dst, const void *src, size_t n) {
    const float *x = src;
    uint16_t *h = dst;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        _mm256_storeu_si256((__m256i *)(h + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
    }
    const __mmask16 rest = (__mmask16)((1u << (n - i)) - 1);
    _mm256_mask_storeu_epi16(h + i, rest, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(rest, x + i)));
}

static const struct cairn__kernel_row rows[] = {
    {CAIRN__K_CAST, CAIRN_F32, CAIRN_BF16, CAIRN__CPU_AVX2 | CAIRN__CPU_AVX512 | CAIRN__CPU_AVX512_BF16,
     CAIRN__FLUSHES_SUBNORMALS, "cast_f32_bf16_avx512_bf16", (void (*)(void))cast_f32_bf16_avx512_bf16},
};

const struct cairn__row_list cairn__kernel_rows_avx512_bf16 = {rows, sizeof(rows) / sizeof(rows[0])};
