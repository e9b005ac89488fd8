#include "training.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/hash.h"

static double clock_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

double bench_now_us(void) {
    return clock_us(CLOCK_MONOTONIC);
}

double bench_cpu_us(void) {
    return clock_us(CLOCK_PROCESS_CPUTIME_ID);
}

float bench_value(uint32_t stream, size_t i) {
    const uint32_t bits = ((uint32_t)i + 1) * 2654435761u + stream * 40503u * 65537u;
    return (float)(bits >> 8) * 0x1p-24f - 0.5f;
}

size_t bench_numel(const cairn_param *p) {
    size_t n = 1;
    for (int d = 0; d < p->ndim; d++) n *= (size_t)p->shape[d];
    return n;
}

static bool write_f32(FILE *file, const void *values, cairn_dtype dtype, size_t n) {
    if (dtype == CAIRN_F32) return fwrite(values, sizeof(float), n, file) == n;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)values)[i] << 16; /* bf16 */
        if (fwrite(&bits, sizeof(bits), 1, file) != 1) return false;
    }
    return true;
}

bool bench_save(cairn_module *model, const char *folder, const char *what) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, what);
    FILE *file = fopen(path, "wb");
    bool fine = file != NULL;
    cairn_param_set *set = cairn_module_params(model);
    for (size_t i = 0; fine && i < cairn_param_set_count(set); i++) {
        cairn_param p;
        fine = cairn_param_set_get(set, i, &p) == CAIRN_OK;
        if (fine && strcmp(what, "weights") == 0)
            fine = write_f32(file, cairn_param_master(set, i), CAIRN_F32, bench_numel(&p));
        else if (fine) fine = write_f32(file, p.grad, p.dtype, bench_numel(&p));
    }
    if (file && fclose(file) != 0) fine = false;
    if (!fine) fprintf(stderr, "%s cannot be written\n", path);
    return fine;
}

cairn_status bench_hash_weights(cairn_module *model, uint64_t *hash) {
    cairn_param_set *set = cairn_module_params(model);
    *hash = CAIRN__HASH_START;
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        cairn_status st = cairn_param_set_get(set, i, &p);
        if (st != CAIRN_OK) return st;
        const size_t nbytes = bench_numel(&p) * cairn_dtype_nbytes(p.dtype);
        for (size_t k = 0; k + 4 <= nbytes; k += 4) {
            uint32_t word;
            memcpy(&word, (const char *)p.data + k, 4);
            *hash = cairn__hash_word(*hash, word);
        }
    }
    return CAIRN_OK;
}
