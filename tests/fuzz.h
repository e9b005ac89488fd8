/* A main function that turns a libFuzzer target into a program of its own, for builds without libFuzzer:
 *
 *   fuzz_x --seconds 10 --seed 1    mutates its seeds; the same seed gives the same inputs. Half as long with
 *                                   CAIRN_TEST_SHORT in the environment
 *   fuzz_x --seeds DIR              writes the seeds there, for libFuzzer
 *   fuzz_x FILE ...                 runs these inputs
 *
 * The including file defines LLVMFuzzerTestOneInput and fuzz_seed. For libFuzzer compile it with FUZZ_NO_MAIN (fuzz.sh
 * in the same folder). A failing input is printed in hex. */
#ifndef CAIRN_TESTS_FUZZ_H
#define CAIRN_TESTS_FUZZ_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

/* Writes the i-th seed, at most FUZZ_MAX bytes, and returns its length; 0 = no more seeds. */
static size_t fuzz_seed(int i, uint8_t *out);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

enum { FUZZ_MAX = 4096 };

#define FUZZ_CHECK(condition)                                                       \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

#ifndef FUZZ_NO_MAIN

static uint8_t fuzz_input[2 * FUZZ_MAX];
static size_t fuzz_nbytes;
static uint64_t fuzz_state;

static uint32_t fuzz_random(uint32_t below) {
    fuzz_state ^= fuzz_state << 13;
    fuzz_state ^= fuzz_state >> 7;
    fuzz_state ^= fuzz_state << 17;
    return (uint32_t)(fuzz_state >> 16) % below;
}

static void fuzz_show(int number) {
    static const char digits[] = "0123456789abcdef";
    char pair[2];
    ssize_t ignored = write(2, "input: ", 7);
    for (size_t i = 0; i < fuzz_nbytes; i++) {
        pair[0] = digits[fuzz_input[i] >> 4];
        pair[1] = digits[fuzz_input[i] & 15];
        ignored = write(2, pair, 2);
    }
    ignored = write(2, "\n", 1);
    (void)ignored;
    signal(number, SIG_DFL);
    raise(number);
}

static void fuzz_insert(size_t at, const uint8_t *bytes, size_t n) {
    if (fuzz_nbytes + n > FUZZ_MAX) return;
    memmove(fuzz_input + at + n, fuzz_input + at, fuzz_nbytes - at);
    memcpy(fuzz_input + at, bytes, n);
    fuzz_nbytes += n;
}

static void fuzz_mutate(int num_seeds) {
    static const uint64_t numbers[] = {
        0,       1,       2,        8,          255,       256,        8192,     8193,           131072,         131073,
        8388608, 8388609, 67108864, UINT32_MAX, INT64_MAX, UINT64_MAX, 1u << 31, UINT64_MAX - 7, 0x3C85F7CE00ull};
    static uint8_t other[FUZZ_MAX];
    const size_t at = fuzz_nbytes ? fuzz_random((uint32_t)fuzz_nbytes) : 0;
    const size_t rest = fuzz_nbytes - at;
    switch (fuzz_random(8)) {
    case 0:
        if (rest) fuzz_input[at] = (uint8_t)fuzz_random(256);
        break;
    case 1:
        if (rest) fuzz_input[at] ^= (uint8_t)(1u << fuzz_random(8));
        break;
    case 2:
        if (rest >= 8) memcpy(fuzz_input + at, &numbers[fuzz_random(sizeof(numbers) / sizeof(numbers[0]))], 8);
        break;
    case 3: {
        const size_t n = rest ? fuzz_random((uint32_t)(rest < 32 ? rest : 32)) : 0;
        memmove(fuzz_input + at, fuzz_input + at + n, rest - n);
        fuzz_nbytes -= n;
        break;
    }
    case 4: {
        const size_t n = rest ? fuzz_random((uint32_t)(rest < 64 ? rest : 64)) : 0;
        memcpy(other, fuzz_input + at, n);
        fuzz_insert(fuzz_nbytes ? fuzz_random((uint32_t)fuzz_nbytes) : 0, other, n);
        break;
    }
    case 5: {
        const uint8_t byte = (uint8_t)fuzz_random(32);
        fuzz_insert(at, &byte, 1);
        break;
    }
    default: { /* a piece of another seed */
        const size_t have = fuzz_seed((int)fuzz_random((uint32_t)num_seeds), other);
        const size_t from = have ? fuzz_random((uint32_t)have) : 0, most = have - from < 256 ? have - from : 256;
        fuzz_insert(at, other + from, most ? 1 + fuzz_random((uint32_t)most) : 0);
        break;
    }
    }
}

static int fuzz_count_seeds(void) {
    int n = 0;
    while (fuzz_seed(n, fuzz_input) > 0) n++;
    return n;
}

static int fuzz_for(double seconds, uint64_t seed) {
    const int num_seeds = fuzz_count_seeds();
    struct timespec begin, now;
    unsigned long inputs = 0;
    double passed = 0;
    fuzz_state = seed * 0x9E3779B97F4A7C15ull + 1;
    for (int i = 0; i < num_seeds; i++) {
        fuzz_nbytes = fuzz_seed(i, fuzz_input);
        LLVMFuzzerTestOneInput(fuzz_input, fuzz_nbytes);
    }
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (; passed < seconds; inputs++) {
        fuzz_nbytes = fuzz_seed((int)fuzz_random((uint32_t)num_seeds), fuzz_input);
        for (uint32_t n = fuzz_random(1u << fuzz_random(6)); n > 0; n--) fuzz_mutate(num_seeds);
        LLVMFuzzerTestOneInput(fuzz_input, fuzz_nbytes);
        clock_gettime(CLOCK_MONOTONIC, &now);
        passed = (double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) * 1e-9;
    }
    printf("%lu inputs in %.1f s, seed %llu\n", inputs, passed, (unsigned long long)seed);
    return 0;
}

static int fuzz_write_seeds(const char *folder) {
    for (int i = 0; (fuzz_nbytes = fuzz_seed(i, fuzz_input)) > 0; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/seed-%02d", folder, i);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(fuzz_input, 1, fuzz_nbytes, f) != fuzz_nbytes || fclose(f) != 0) {
            perror(path);
            return 1;
        }
    }
    return 0;
}

static int fuzz_replay(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    fuzz_nbytes = fread(fuzz_input, 1, sizeof(fuzz_input), f);
    fclose(f);
    LLVMFuzzerTestOneInput(fuzz_input, fuzz_nbytes);
    return 0;
}

int main(int argc, char **argv) {
    double seconds = 2;
    uint64_t seed = 1;
    int replayed = 0;
    signal(SIGABRT, fuzz_show);
    signal(SIGSEGV, fuzz_show);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            seconds = atof(argv[++i]);
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            return fuzz_write_seeds(argv[++i]);
        } else {
            if (fuzz_replay(argv[i]) != 0) return 1;
            replayed++;
        }
    }
    if (check_is_short()) seconds /= 2;
    return replayed ? 0 : fuzz_for(seconds, seed);
}

#endif
#endif
