/* CPU features that the operating system has enabled, and the number of processors. */
#ifndef CAIRN__CORE_CPU_H
#define CAIRN__CORE_CPU_H

enum cairn__cpu_feature {
    CAIRN__CPU_AVX2 = 1,        /* AVX2 with F16C and FMA */
    CAIRN__CPU_AVX512 = 2,      /* AVX-512 F, BW, DQ, VL */
    CAIRN__CPU_AVX512_BF16 = 4, /* bf16 dot products and VCVTNEPS2BF16 */
};

/* The features in use: those of CPUID and XCR0 less those that CAIRN_CPU removes (ref < avx2 < avx512 < avx512_bf16; an
 * unknown name is logged once as a warning and removes nothing). Fixed at the first call. Any thread. */
unsigned cairn__cpu_features(void);

/* The features of CPUID and XCR0, regardless of CAIRN_CPU. */
unsigned cairn__cpu_detect(void);

/* The highest level in a set: "ref", "avx2", "avx512" or "avx512_bf16". */
const char *cairn__cpu_level_name(unsigned features);

/* The number of processors that this process may use; at least 1. */
int cairn__num_processors(void);

/* A spin-wait hint, for loops that poll memory which another processor is about to write. */
static inline void cairn__pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
