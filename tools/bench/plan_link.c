#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/trace.h"
#include "plan_parts.h"

enum { OWN = 1 << 20, MAX_SIZES = 16, BLOCK = 5, LEAST_BLOCKS = 4, MAX_BLOCKS = 400, LEAST_NBYTES = 64, FACTOR = 4 };

struct cycle {
    cairn_group *group;
    uint64_t *own, *gradient; /* OWN bytes; nbytes of group memory */
    size_t nbytes;
    volatile uint64_t seen; /* keeps the compiler from removing the reads */
};

static double run(struct cycle *c, bool reduces) {
    const uint64_t begin = cairn__now_ns();
    uint64_t sum = 0;
    for (size_t i = 0; i < OWN / sizeof(*c->own); i++) c->own[i] += i;
    for (size_t i = 0; i < c->nbytes / sizeof(*c->gradient); i++) { /* memset may use non-temporal stores */
        c->gradient[i] = c->own[i % (OWN / sizeof(*c->own))] >> 60;
    }
    if (reduces) CHECK(cairn_allreduce(c->group, c->gradient, c->nbytes / 4, CAIRN_F32, CAIRN_AVG, NULL));
    for (size_t i = 0; i < c->nbytes / sizeof(*c->gradient); i++) sum += c->gradient[i];
    c->seen = sum;
    return (double)(cairn__now_ns() - begin);
}

/* The result is equal on all ranks. */
static size_t count_blocks(cairn_env *env, struct cycle *c, double seconds) {
    double ns = 0;
    for (int i = 0; i < BLOCK; i++) ns = run(c, true);
    take_slowest(env, &ns, 1);
    const double blocks = seconds * 1e9 / (2 * BLOCK * ns);
    return blocks < LEAST_BLOCKS ? LEAST_BLOCKS : blocks > MAX_BLOCKS ? MAX_BLOCKS : (size_t)blocks;
}

/* Microseconds by which a reduction makes the cycle longer. */
static double cost_of(cairn_env *env, struct cycle *c, double seconds) {
    const size_t blocks = count_blocks(env, c, seconds);
    double *ns[2], medians[2];
    for (int with = 0; with < 2; with++) {
        ns[with] = calloc(blocks * BLOCK, sizeof(double));
        if (!ns[with]) die("memory ran out");
    }
    for (size_t b = 0; b < blocks; b++) {
        for (int with = 0; with < 2; with++) {
            CHECK(cairn_barrier(c->group));
            for (size_t i = 0; i < BLOCK; i++) ns[with][b * BLOCK + i] = run(c, with);
        }
    }
    for (int with = 0; with < 2; with++) {
        medians[with] = median(ns[with], 1, blocks * BLOCK);
        free(ns[with]);
    }
    take_slowest(env, medians, 2);
    const double us = 1e-3 * (medians[1] - medians[0]);
    return us > 0.01 ? us : 0.01; /* the machine is too busy for a measurement */
}

static void write_link(const char *file, int ranks, const double *nbytes, const double *us, size_t count) {
    FILE *out = fopen(file, "w");
    if (!out) die("the link cannot be written");
    fprintf(out, "{\"format\": \"cairn-link\", \"name\": \"shm, as a step sees it\", \"ranks\": %d, \"share\": 1,\n",
            ranks);
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s{\"bytes\": %.0f, \"us\": %.3f}%s\n", i ? "  " : " \"points\": [", nbytes[i], us[i],
                i + 1 < count ? "," : "]}");
    }
    if (fclose(out) != 0) die("the link cannot be written");
}

void measure_link(cairn_env *env, double seconds, size_t most_nbytes, const char *file) {
    double nbytes[MAX_SIZES], us[MAX_SIZES];
    size_t count = 0;
    struct cycle c = {.group = cairn_env_group(env), .own = calloc(1, OWN)};
    if (!c.own) die("memory ran out");
    for (c.nbytes = LEAST_NBYTES; c.nbytes <= most_nbytes && count < MAX_SIZES; c.nbytes *= FACTOR) {
        void *memory = NULL;
        CHECK(cairn_group_alloc(c.group, c.nbytes, &memory));
        c.gradient = memory;
        nbytes[count] = (double)c.nbytes;
        us[count++] = cost_of(env, &c, seconds / 10);
        CHECK(cairn_group_free(c.group, &memory));
    }
    free(c.own);
    if (cairn_env_rank(env) == 0) write_link(file, cairn_env_size(env), nbytes, us, count);
}
