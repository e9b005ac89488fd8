/* CPU features. A level counts only where the one below it does, so that "up to level" is a prefix of one table. */
#include "core/cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/log.h"
#include "core/vars.h"

static const struct {
    const char *name;
    unsigned features; /* every feature up to this level */
} levels[] = {
    {"ref", 0},
    {"avx2", CAIRN__CPU_AVX2},
    {"avx512", CAIRN__CPU_AVX2 | CAIRN__CPU_AVX512},
    {"avx512_bf16", CAIRN__CPU_AVX2 | CAIRN__CPU_AVX512 | CAIRN__CPU_AVX512_BF16},
};
enum { NUM_LEVELS = sizeof(levels) / sizeof(levels[0]) };

#if defined(__x86_64__)
#include <cpuid.h>

/* Which register files the system saves on a context switch; without that a feature in CPUID cannot be used. */
static uint64_t enabled_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

unsigned cairn__cpu_detect(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if ((c & (fma | osxsave | avx | f16c)) != (fma | osxsave | avx | f16c)) return 0;
    uint64_t state = enabled_state();
    if ((state & 0x6) != 0x6) return 0; /* XMM and YMM */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 5)) return 0;
    unsigned found = CAIRN__CPU_AVX2;
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if ((b & avx512) != avx512 || (state & 0xe6) != 0xe6) return found;
    found |= CAIRN__CPU_AVX512;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5)) found |= CAIRN__CPU_AVX512_BF16;
    return found;
}
#else
unsigned cairn__cpu_detect(void) {
    return 0;
}
#endif

/* What CAIRN_CPU leaves of the features. */
static unsigned capped(unsigned found) {
    const char *cap = cairn__var("CAIRN_CPU");
    if (!cap) return found;
    for (int i = 0; i < NUM_LEVELS; i++) {
        if (strcmp(cap, levels[i].name) == 0) return found & levels[i].features;
    }
    cairn__log(CAIRN_LOG_WARNING, "CAIRN_CPU='%s' is none of ref, avx2, avx512, avx512_bf16 and is ignored", cap);
    return found;
}

unsigned cairn__cpu_features(void) {
    static atomic_uint cached; /* features + 1; 0 = not detected yet. Two threads may both detect the same. */
    unsigned known = atomic_load_explicit(&cached, memory_order_relaxed);
    if (known == 0) {
        known = capped(cairn__cpu_detect()) + 1;
        atomic_store_explicit(&cached, known, memory_order_relaxed);
    }
    return known - 1;
}

const char *cairn__cpu_level_name(unsigned features) {
    for (int i = NUM_LEVELS - 1; i > 0; i--) {
        if ((features & levels[i].features) == levels[i].features) return levels[i].name;
    }
    return levels[0].name;
}

int cairn__num_processors(void) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    return sched_getaffinity(0, sizeof(mine), &mine) == 0 ? CPU_COUNT(&mine) : 1;
}
