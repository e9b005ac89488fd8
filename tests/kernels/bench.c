/* Times kernels against loops that only move the same bytes, alternating in one run. GB/s counts each read and each
 * write once, even if a kernel passes over an array twice, as moments does. Write-allocate traffic is not counted for
 * either. */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "core/alloc.h"
#include "core/trace.h"

enum { WARM_UPS = 2, MAX_REPEATS = 101, NUM_LIMITS = 6, M = 1 << 20 };

static const struct {
    enum cairn__kernel_kind kind;
    int a, b;
    size_t n;
} lines[] = {
    {CAIRN__K_CAST, CAIRN_F32, CAIRN_F16, 16 * M},
    {CAIRN__K_CAST, CAIRN_F16, CAIRN_F32, 16 * M},
    {CAIRN__K_CAST, CAIRN_F32, CAIRN_BF16, 16 * M},
    {CAIRN__K_CAST, CAIRN_BF16, CAIRN_F32, 16 * M},
    {CAIRN__K_SCALE, CAIRN_F16, CAIRN_F32, 16 * M},
    {CAIRN__K_SCALE, CAIRN_F16, CAIRN_F16, 16 * M},
    {CAIRN__K_SCALE, CAIRN_F32, CAIRN_F32, 16 * M},
    {CAIRN__K_SCALE, CAIRN_F32, CAIRN_F16, 16 * M},
    {CAIRN__K_AXPBY, CAIRN_F16, CAIRN_F32, 16 * M},
    {CAIRN__K_AXPBY, CAIRN_F32, CAIRN_F32, 16 * M},
    {CAIRN__K_CHECK, CAIRN_F16, 0, 16 * M},
    {CAIRN__K_CHECK, CAIRN_F32, 0, 16 * M},
    {CAIRN__K_SUMSQ, CAIRN_F16, 0, 16 * M},
    {CAIRN__K_SUMSQ, CAIRN_BF16, 0, 16 * M},
    {CAIRN__K_SUMSQ, CAIRN_F32, 0, 16 * M},
    {CAIRN__K_ROUND_STOCHASTIC, 0, 0, 16 * M},
    {CAIRN__K_CENSUS, CAIRN_F16, 0, 16 * M},
    {CAIRN__K_COUNT_EXPONENTS, CAIRN_F32, 0, 16 * M},
    {CAIRN__K_COUNT_EXPONENTS, CAIRN_F16, 0, 16 * M},
    {CAIRN__K_COUNT_EXPONENTS, CAIRN_BF16, 0, 16 * M},
    {CAIRN__K_SGD, CAIRN_F16, CAIRN__W_F32_F16, 50000000},
    {CAIRN__K_SGD, CAIRN_BF16, CAIRN__W_F32_BF16, 50000000},
    {CAIRN__K_ADAM, CAIRN_F16, CAIRN__W_F32_F16, 50000000},
    {CAIRN__K_ADAM, CAIRN_BF16, CAIRN__W_F32_BF16, 50000000},
    {CAIRN__K_ADAM, CAIRN_F32, CAIRN__W_F32, 50000000},
    {CAIRN__K_LION, CAIRN_F16, CAIRN__W_F32_F16, 50000000},
    {CAIRN__K_LION, CAIRN_F32, CAIRN__W_F32, 50000000},
    {CAIRN__K_ADAGRAD, CAIRN_F16, CAIRN__W_F32_F16, 50000000},
    {CAIRN__K_ADAGRAD, CAIRN_F32, CAIRN__W_F32, 50000000},
    {CAIRN__K_LAMB, CAIRN_F16, CAIRN__W_F32, 50000000},
    {CAIRN__K_LAMB, CAIRN_F32, CAIRN__W_F32, 50000000},
    {CAIRN__K_SUM, CAIRN_F32, 0, 16 * M},
    {CAIRN__K_SUM, CAIRN_F16, 0, 16 * M},
    {CAIRN__K_MSE_SUM, CAIRN_F32, 0, 16 * M},
    {CAIRN__K_SUM_ROWS, CAIRN__FOLD_SUM, CAIRN_F32, 1000},
    {CAIRN__K_SUM_ROWS, CAIRN__FOLD_SUM, CAIRN_F32, 1024},
    {CAIRN__K_SUM_ROWS, CAIRN__FOLD_SUM_SQUARES, CAIRN_F32, 1000},
    {CAIRN__K_DRAIN, 0, 0, 1024},
    {CAIRN__K_MSE_BACKWARD, 0, 0, 16 * M},
    {CAIRN__K_MAP, CAIRN__MAP_ADD, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_ADD, CAIRN_F32, M},
    {CAIRN__K_MAP, CAIRN__MAP_MUL, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_MUL, CAIRN_F32, M},
    {CAIRN__K_MAP, CAIRN__MAP_EXP, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_EXP, CAIRN_F32, M},
    {CAIRN__K_MAP, CAIRN__MAP_LOG, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_LOG, CAIRN_F32, M},
    {CAIRN__K_MAP, CAIRN__MAP_TANH, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_TANH, CAIRN_F32, M},
    {CAIRN__K_MAP, CAIRN__MAP_SIGMOID, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_SIGMOID, CAIRN_F32, M},
    {CAIRN__K_MAP, CAIRN__MAP_SILU, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_SILU, CAIRN_F32, M},
    {CAIRN__K_MAP, CAIRN__MAP_ERF, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_ERF, CAIRN_F32, M},
    {CAIRN__K_MAP, CAIRN__MAP_GELU, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_GELU, CAIRN_F32, M},
    {CAIRN__K_MAP, CAIRN__MAP_GELU_BACKWARD, CAIRN_F32, 1024},
    {CAIRN__K_MAP, CAIRN__MAP_GELU_BACKWARD, CAIRN_F32, M},
    {CAIRN__K_FOLD, CAIRN__FOLD_SUM, CAIRN_F32, 1024},
    {CAIRN__K_FOLD, CAIRN__FOLD_SUM, CAIRN_F32, M},
    {CAIRN__K_FOLD, CAIRN__FOLD_SUM_SQUARES, CAIRN_F32, 1024},
    {CAIRN__K_FOLD, CAIRN__FOLD_SUM_SQUARES, CAIRN_F32, M},
    {CAIRN__K_FOLD, CAIRN__FOLD_MAX, CAIRN_F32, 1024},
    {CAIRN__K_FOLD, CAIRN__FOLD_MAX, CAIRN_F32, M},
    {CAIRN__K_FOLD_INTO, CAIRN__FOLD_SUM, CAIRN_F32, 1024},
    {CAIRN__K_DOT, CAIRN_F32, 0, 1024},
    {CAIRN__K_DOT, CAIRN_F32, 0, M},
    {CAIRN__K_COL_SUM, CAIRN_F32, 0, 256},
    {CAIRN__K_COL_SUM, CAIRN_F32, 0, 768},
    {CAIRN__K_MOMENTS, CAIRN_F32, 0, 7 * 7},
    {CAIRN__K_MOMENTS, CAIRN_F32, 0, 56 * 56},
    {CAIRN__K_NORM_ROWS_BACKWARD, CAIRN_F32, 0, 768},
    {CAIRN__K_NORM_RUNS_SUMS, CAIRN_F32, 0, 7 * 7},
    {CAIRN__K_NORM_RUNS_SUMS, CAIRN_F32, 0, 56 * 56},
    {CAIRN__K_FP8_ROUND, CAIRN__E4M3, 0, 16 * M},
    {CAIRN__K_FP8_ENCODE, CAIRN__E5M2, 0, 16 * M},
    {CAIRN__K_FP8_DECODE, CAIRN__E4M3, 0, 16 * M},
    {CAIRN__K_AMAX, 0, 0, 16 * M},
};

static const struct {
    enum cairn__reduction op;
    cairn_dtype type;
    size_t n;
    int variant;
} reductions[] = {
    {CAIRN__REDUCE_SUM, CAIRN_F16, 64 << 10, IN_PLACE_OF_2},  {CAIRN__REDUCE_SUM, CAIRN_F16, 16 * M, IN_PLACE_OF_2},
    {CAIRN__REDUCE_SUM, CAIRN_BF16, 16 * M, IN_PLACE_OF_2},   {CAIRN__REDUCE_SUM, CAIRN_F32, 64 << 10, IN_PLACE_OF_2},
    {CAIRN__REDUCE_SUM, CAIRN_F32, 16 * M, IN_PLACE_OF_2},    {CAIRN__REDUCE_SUM, CAIRN_F16, 64 << 10, APART_OF_2},
    {CAIRN__REDUCE_SUM, CAIRN_F16, 16 * M, APART_OF_2},       {CAIRN__REDUCE_SUM, CAIRN_F32, 64 << 10, APART_OF_2},
    {CAIRN__REDUCE_SUM, CAIRN_F32, 16 * M, APART_OF_2},       {CAIRN__REDUCE_SUM, CAIRN_F16, 16 << 10, IN_PLACE_OF_8},
    {CAIRN__REDUCE_SUM, CAIRN_F16, 4 * M, IN_PLACE_OF_8},     {CAIRN__REDUCE_SUM, CAIRN_F32, 16 << 10, IN_PLACE_OF_8},
    {CAIRN__REDUCE_SUM, CAIRN_F32, 4 * M, IN_PLACE_OF_8},     {CAIRN__REDUCE_SUM, CAIRN_F16, 16 << 10, APART_OF_8},
    {CAIRN__REDUCE_SUM, CAIRN_F16, 4 * M, APART_OF_8},        {CAIRN__REDUCE_SUM, CAIRN_F32, 4 * M, APART_OF_8},
    {CAIRN__REDUCE_MAX, CAIRN_F32, 64 << 10, IN_PLACE_OF_2},  {CAIRN__REDUCE_SUM, CAIRN_F64, 64 << 10, UNDIVIDED_OF_2},
    {CAIRN__REDUCE_SUM, CAIRN_I32, 64 << 10, UNDIVIDED_OF_2}, {CAIRN__REDUCE_SUM, CAIRN_U8, 64 << 10, UNDIVIDED_OF_2},
};

/* Plain stores, streaming of written arrays, streaming of all; each by 64 and by 512 elements at a time. */
static const struct {
    int nontemporal;
    size_t elements;
} limits[NUM_LIMITS] = {{0, 64}, {1, 64}, {2, 64}, {0, 512}, {1, 512}, {2, 512}};

static limit_fn best_limit(void) {
#if defined(__x86_64__)
    if (cairn__cpu_detect() & CAIRN__CPU_AVX512) return limit_avx512;
    if (cairn__cpu_detect() & CAIRN__CPU_AVX2) return limit_avx2;
#endif
    return limit_generic;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int count) {
    qsort(x, (size_t)count, sizeof(*x), by_value);
    return x[count / 2];
}

struct result {
    double seconds, limit, nbytes;
};

/* Number of rows or runs of n elements each; 1 for plain arrays. */
static size_t times_of(const struct job *job) {
    size_t most = 1;
    for (int j = 0; j < job->num_arrays; j++) {
        if (job->array[j].times > most) most = job->array[j].times;
    }
    return most;
}

/* A round runs the kernel and then each limit loop, each on freshly written arrays, so that moments and sums stay
 * small. */
static struct result time_row(const struct cairn__kernel_row *row, const struct job *job, void *const *x, size_t n,
                              int repeats) {
    static double times[1 + NUM_LIMITS][MAX_REPEATS];
    struct limit_stream streams[MAX_ARRAYS];
    struct result result = {0};
    limit_fn limit = best_limit();
    int count = 0;
    for (int j = 0; j < job->num_arrays; j++) {
        const struct array *array = &job->array[j];
        if (!array->role) continue;
        size_t width = cairn_dtype_nbytes(array->type) * array->times;
        streams[count++] = (struct limit_stream){array->role, width, x[j]};
        result.nbytes += (double)(n * width) * (array->role == UPDATED ? 2 : 1);
    }
    const size_t all = n * times_of(job); /* small arrays are processed many times per measurement */
    const int inner = all >= M ? 1 : (int)(4 * M / all);
    for (int t = -WARM_UPS; t < repeats; t++) {
        for (int j = 0; j < job->num_arrays; j++) {
            if (x[j]) fill_array(x[j], job->array[j].type, n < 4096 ? n : 4096, MODERATE, (uint64_t)(t + 100));
        }
        for (int what = 0; what <= NUM_LIMITS; what++) {
            struct outcome out = {0};
            uint64_t begin = cairn__now_ns();
            for (int i = 0; i < inner; i++) {
                if (what == 0) job->call(row, x, n, job->plain_variant, &out);
                else limit(streams, count, n, limits[what - 1].nontemporal, limits[what - 1].elements);
            }
            if (t >= 0) times[what][t] = (double)(cairn__now_ns() - begin) * 1e-9 / inner;
        }
    }
    result.seconds = median(times[0], repeats);
    result.limit = INFINITY;
    for (int l = 0; l < NUM_LIMITS; l++) result.limit = fmin(result.limit, median(times[1 + l], repeats));
    return result;
}

static void print_result(const struct benching *how, const struct cairn__kernel_row *row, const struct job *job,
                         size_t n, const struct result *r) {
    char group[64];
    group_name(row, group, sizeof(group));
    if (row->kind == CAIRN__K_REDUCE) {
        const struct reduction x = reduction_of(row, job->plain_variant);
        const size_t used = strlen(group);
        snprintf(group + used, sizeof(group) - used, " %d->%d%s", x.p, x.num_dsts, x.first_dst < x.p ? "" : " apart");
    } else if (times_of(job) > 1) {
        const size_t used = strlen(group);
        snprintf(group + used, sizeof(group) - used, ", %zu rows", times_of(job));
    }
    double rate = r->nbytes / r->seconds * 1e-9, limit_rate = r->nbytes / r->limit * 1e-9;
    if (how->json) {
        printf("{\"kernel\": \"%s\", \"row\": \"%s\", \"n\": %zu, \"bytes\": %.0f, \"us\": %.1f, \"gb_per_s\": %.2f, "
               "\"limit_gb_per_s\": %.2f, \"ratio\": %.3f}\n",
               group, row->name, n, r->nbytes, r->seconds * 1e6, rate, limit_rate, r->limit / r->seconds);
    } else {
        printf("  %-28s %-28s %10zu %10.1f %8.2f %8.2f %7.2f\n", group, row->name, n, r->seconds * 1e6, rate,
               limit_rate, r->limit / r->seconds);
    }
    fflush(stdout);
}

static void print_machine(const struct benching *how) {
    char model[256] = "?", line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, "model name", 10) != 0 || !strchr(line, ':')) continue;
        snprintf(model, sizeof(model), "%.200s", strchr(line, ':') + 2);
        model[strcspn(model, "\n")] = 0;
        break;
    }
    if (f) fclose(f);
    struct utsname system;
    if (uname(&system) != 0) return;
    const char *form = how->json ? "{\"machine\": \"%s\", \"system\": \"%s %s\", \"cpu_level\": \"%s\", \"compiler\": "
                                   "\"%s\", \"command\": \"%s\", \"warm_up\": %d, \"repeats\": %d, \"statistic\": "
                                   "\"median\"}\n"
                                 : "machine %s, %s %s\ncpu level %s; compiler %s\ncommand %s\nwarm-up %d, repeats %d, "
                                   "statistic median; one thread\n";
    printf(form, model, system.sysname, system.machine, cairn__cpu_level_name(cairn__cpu_features()), __VERSION__,
           how->command, WARM_UPS, how->repeats);
    if (!how->json) {
        printf("  %-28s %-28s %10s %10s %8s %8s %7s\n", "kernel", "row", "n", "us", "GB/s", "limit", "ratio");
    }
}

static bool bench_line(const struct benching *how, const struct cairn__kernel_row *row, int variant, size_t n) {
    const struct job job = job_of_variant(row, variant);
    void *x[MAX_ARRAYS] = {0};
    bool ok = true;
    for (int j = 0; ok && j < job.num_arrays; j++) {
        if (!job.array[j].role) continue;
        const size_t all = n * job.array[j].times;
        ok = cairn__alloc(all * cairn_dtype_nbytes(job.array[j].type) + CAIRN__ALIGN, &x[j]) == CAIRN_OK;
        if (ok) fill_array(x[j], job.array[j].type, all, MODERATE, (uint64_t)j);
    }
    if (ok) {
        struct result r = time_row(row, &job, x, n, how->repeats);
        print_result(how, row, &job, n, &r);
    } else {
        printf("  %s: no memory for %zu elements\n", row->name, n);
    }
    for (int j = 0; j < job.num_arrays; j++) cairn__free(x[j]);
    return ok;
}

/* Whether the row selected on this processor was timed, or was not requested. */
static bool bench_row(const struct benching *how, const bool *failed, enum cairn__kernel_kind kind, int a, int b,
                      int variant, size_t n) {
    size_t count;
    const struct cairn__kernel_row *rows = cairn__kernel_rows(&count);
    const struct cairn__kernel_row *row = cairn__kernel_pick(kind, a, b, cairn__cpu_features());
    if (how->only && !strstr(row->name, how->only)) return true;
    if (!failed[row - rows]) return bench_line(how, row, variant, how->n ? how->n : n);
    printf("  %s: not timed, it failed its check\n", row->name);
    return false;
}

int bench(const struct benching *user, const bool *failed) {
    struct benching how = *user;
    if (how.repeats < 1 || how.repeats > MAX_REPEATS) how.repeats = 9;
    int refused = 0;
    print_machine(&how);
    for (size_t l = 0; l < sizeof(lines) / sizeof(lines[0]); l++) {
        const int variant = lines[l].kind == CAIRN__K_COL_SUM ? OF_BATCH : 0;
        refused += !bench_row(&how, failed, lines[l].kind, lines[l].a, lines[l].b, variant, lines[l].n);
    }
    for (size_t l = 0; l < sizeof(reductions) / sizeof(reductions[0]); l++) {
        refused += !bench_row(&how, failed, CAIRN__K_REDUCE, reductions[l].op, (int)reductions[l].type,
                              reductions[l].variant, reductions[l].n);
    }
    return refused;
}
