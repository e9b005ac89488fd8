/* The bits of the processors' control registers that flush subnormal numbers, operands or results. */
#include "core/subnormals.h"

#include <stdint.h>

#if defined(__SSE__)
#include <xmmintrin.h>

enum { DENORMALS_ARE_ZERO = 0x40, FLUSH_TO_ZERO = 0x8000 };

bool cairn__keep_subnormals(void) {
    const unsigned modes = _mm_getcsr(), flush = DENORMALS_ARE_ZERO | FLUSH_TO_ZERO;
    if (!(modes & flush)) return false;
    _mm_setcsr(modes & ~flush);
    return true;
}
#elif defined(__aarch64__)
/* FIZ, which Arm has from v8.7 on, FZ16 and FZ. */
static const uint64_t flush = UINT64_C(1) << 0 | UINT64_C(1) << 19 | UINT64_C(1) << 24;

bool cairn__keep_subnormals(void) {
    uint64_t modes;
    __asm__ volatile("mrs %0, fpcr" : "=r"(modes));
    if (!(modes & flush)) return false;
    __asm__ volatile("msr fpcr, %0" : : "r"(modes & ~flush));
    return true;
}
#else
bool cairn__keep_subnormals(void) {
    return false;
}
#endif
