#include "calls.h"

#include <stdint.h>
#include <string.h>

#include "core/dtype.h"

enum { PERIOD = 1021, VALUES = 5, ROOT = 0 };

/* One period of the data; arrays repeat it. */
struct pattern {
    size_t width; /* bytes of an element */
    uint8_t bytes[PERIOD * sizeof(double)];
};

const char *bench_name(enum bench_collective collective) {
    static const char *const names[] = {
        [BENCH_ALLREDUCE] = "allreduce",           [BENCH_REDUCE] = "reduce",     [BENCH_BROADCAST] = "broadcast",
        [BENCH_ALLGATHER] = "allgather",           [BENCH_ALLTOALL] = "alltoall", [BENCH_SENDRECV] = "sendrecv",
        [BENCH_REDUCE_SCATTER] = "reduce_scatter", [BENCH_BARRIER] = "barrier",
    };
    return names[collective];
}

enum bench_collective bench_find(const char *name) {
    int c = 0;
    while (c < BENCH_COLLECTIVES && strcmp(bench_name((enum bench_collective)c), name) != 0) c++;
    return (enum bench_collective)c;
}

bool bench_has_place(enum bench_collective collective, bool in_place) {
    if (collective == BENCH_BROADCAST) return in_place;
    return !in_place || collective < BENCH_ALLTOALL;
}

/* ---- places ---- */

size_t bench_source_elements(const struct bench_call *call) {
    const bool parts = call->collective == BENCH_REDUCE_SCATTER || call->collective == BENCH_ALLTOALL;
    return parts ? call->n * (size_t)call->size : call->n;
}

size_t bench_destination_elements(const struct bench_call *call) {
    const bool parts = call->collective == BENCH_ALLGATHER || call->collective == BENCH_ALLTOALL;
    return parts ? call->n * (size_t)call->size : call->n;
}

void bench_place(const struct bench_call *call, void *first, void *second, void **source, void **destination) {
    const size_t own = (size_t)call->rank * call->n * cairn_dtype_nbytes(call->dtype);
    *source = first;
    *destination = call->in_place ? first : second;
    if (call->in_place && call->collective == BENCH_ALLGATHER) *source = (char *)first + own;
    if (call->in_place && call->collective == BENCH_REDUCE_SCATTER) *destination = (char *)first + own;
}

/* ---- patterns ---- */

static int value(size_t i, int rank, unsigned round, int part) {
    uint32_t x = (uint32_t)i + PERIOD * (uint32_t)rank + 65537u * (uint32_t)part + 1048583u * round;
    x *= 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (int)(x % VALUES);
}

static void set(struct pattern *p, size_t i, double number, cairn_dtype dtype) {
    cairn__dtype(dtype)->from_f32(p->bytes + i * p->width, (float)number);
}

static void make_pattern(struct pattern *p, cairn_dtype dtype, int rank, unsigned round, int part) {
    p->width = cairn_dtype_nbytes(dtype);
    for (size_t i = 0; i < PERIOD; i++) set(p, i, value(i, rank, round, part), dtype);
}

/* In place, each further call reduces the results of the previous one: on all ranks (all-reduce), or on this rank
 * together with the other ranks' unchanged data. */
static double sum_of_calls(const struct bench_call *call, int sum, int own) {
    const unsigned more = call->in_place && call->calls > 1 ? call->calls - 1 : 0;
    double result = sum;
    for (unsigned k = 0; k < more; k++)
        result = call->collective == BENCH_ALLREDUCE ? result * call->size : result + (sum - own);
    return result;
}

static void make_sum(struct pattern *p, const struct bench_call *call, unsigned round) {
    p->width = cairn_dtype_nbytes(call->dtype);
    for (size_t i = 0; i < PERIOD; i++) {
        int sum = 0;
        for (int r = 0; r < call->size; r++) sum += value(i, r, round, 0);
        set(p, i, sum_of_calls(call, sum, value(i, call->rank, round, 0)), call->dtype);
    }
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static void fill(void *x, size_t n, const struct pattern *p) {
    for (size_t i = 0; i < n; i += PERIOD) memcpy((char *)x + i * p->width, p->bytes, least(PERIOD, n - i) * p->width);
}

static size_t count_in_run(const char *x, const uint8_t *wanted, size_t n, size_t width) {
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += memcmp(x + i * width, wanted + i * width, width) != 0;
    return wrong;
}

/* Counts the elements of x that differ from the repeated pattern, in which x[0] is element `first`. */
static size_t count(const void *x, size_t n, size_t first, const struct pattern *p) {
    size_t wrong = 0, run;
    for (size_t i = 0; i < n; i += run) {
        const size_t at = (first + i) % PERIOD;
        const char *begin = (const char *)x + i * p->width;
        run = least(PERIOD - at, n - i);
        if (memcmp(begin, p->bytes + at * p->width, run * p->width) == 0) continue;
        wrong += count_in_run(begin, p->bytes + at * p->width, run, p->width);
    }
    return wrong;
}

/* ---- data of a round ---- */

static void prepare_source(const struct bench_call *call, unsigned round, void *source) {
    struct pattern p;
    const size_t nbytes = call->n * cairn_dtype_nbytes(call->dtype);
    const int parts = call->collective == BENCH_ALLTOALL ? call->size : 1;
    for (int part = 0; part < parts; part++) {
        make_pattern(&p, call->dtype, call->rank, round, part);
        fill((char *)source + (size_t)part * nbytes, parts > 1 ? call->n : bench_source_elements(call), &p);
    }
}

void bench_prepare(const struct bench_call *call, unsigned round, void *source, void *destination) {
    const bool within = call->in_place && call->collective == BENCH_REDUCE_SCATTER;
    if (!within)
        memset(destination, 0xff, bench_destination_elements(call) * cairn_dtype_nbytes(call->dtype)); /* NaNs */
    prepare_source(call, round, source);
}

static size_t wrong_parts(const struct bench_call *call, unsigned round, const void *x, bool sent) {
    struct pattern p;
    size_t wrong = 0;
    for (int part = 0; part < call->size; part++) {
        const char *begin = (const char *)x + (size_t)part * call->n * cairn_dtype_nbytes(call->dtype);
        if (call->collective == BENCH_ALLGATHER) make_pattern(&p, call->dtype, part, round, 0);
        else make_pattern(&p, call->dtype, sent ? call->rank : part, round, sent ? part : call->rank);
        wrong += count(begin, call->n, 0, &p);
    }
    return wrong;
}

static size_t wrong_result(const struct bench_call *call, unsigned round, const void *x) {
    struct pattern p;
    const int from = call->collective == BENCH_BROADCAST ? ROOT : (call->rank + call->size - 1) % call->size;
    if (call->collective == BENCH_ALLGATHER || call->collective == BENCH_ALLTOALL)
        return wrong_parts(call, round, x, false);
    if (call->collective == BENCH_REDUCE && call->rank != ROOT) return 0;
    if (call->collective == BENCH_BROADCAST || call->collective == BENCH_SENDRECV) {
        make_pattern(&p, call->dtype, from, round, 0);
        return count(x, call->n, 0, &p);
    }
    make_sum(&p, call, round);
    return count(x, call->n, call->collective == BENCH_REDUCE_SCATTER ? (size_t)call->rank * call->n : 0, &p);
}

static size_t wrong_source(const struct bench_call *call, unsigned round, const void *x) {
    struct pattern p;
    if (call->collective == BENCH_ALLTOALL) return wrong_parts(call, round, x, true);
    make_pattern(&p, call->dtype, call->rank, round, 0);
    return count(x, bench_source_elements(call), 0, &p);
}

size_t bench_count_wrong(const struct bench_call *call, unsigned round, const void *source, const void *destination) {
    if (call->collective == BENCH_BARRIER) return 0;
    return wrong_result(call, round, destination) + (call->in_place ? 0 : wrong_source(call, round, source));
}
