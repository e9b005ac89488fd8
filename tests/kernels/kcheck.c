/* kcheck [--seed N] [--quick] [--all-f32] [--long-sums] [--bench [--json] [--n N] [--repeats N] [--only TEXT]]
 *
 * Walks the kernel rows: checks the reference rows against independent definitions, and every other row that this
 * processor can run against the reference. With --bench it then times the rows that passed. CAIRN_CPU limits the
 * rows. */
#include "kcheck.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
/* What linking a program with -Ofast does to all its threads: subnormals are zeros. */
void flush_to_zero(bool on) {
    const unsigned both = 0x8040; /* FTZ, DAZ */
    _mm_setcsr(on ? _mm_getcsr() | both : _mm_getcsr() & ~both);
}
#else
void flush_to_zero(bool on) {
    (void)on;
}
#endif

enum {
    MAX_SMALL = 67,
    LARGE = 10007,      /* a prime */
    STREAMED = 2097169, /* a prime beyond 4 MiB of halves, where stores begin to stream */
};

void complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("    ", stdout);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

/* One size, offset, flavour and variant of one row. */
struct run {
    const struct cairn__kernel_row *row, *reference;
    struct job job;
    size_t n;
    int offset, variant, alias;
    bool flushing;
    enum flavour flavour;
    uint64_t seed;
};

/* Replaces subnormals by zeros, for the reference of an opt-in row that treats them as zeros. */
static void flush_subnormals(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof(u));
        if ((u & 0x7f800000) == 0) u &= 0x80000000;
        memcpy(&x[i], &u, sizeof(u));
    }
}

static bool same_outcome(const struct outcome *a, const struct outcome *b) {
    bool numbers = same_element(CAIRN_F64, &a->f64, &b->f64, 0, false) &&
                   same_element(CAIRN_F64, &a->second, &b->second, 0, false);
    bool counts = memcmp(&a->counts, &b->counts, sizeof(a->counts)) == 0 &&
                  memcmp(&a->exponents, &b->exponents, sizeof(a->exponents)) == 0;
    return numbers && counts && a->found == b->found;
}

static bool same_arrays(const struct run *r, const struct arrays *got, const struct arrays *want) {
    for (int j = 0; j < r->job.num_arrays; j++) {
        struct array in_place = r->job.array[j];
        if (r->alias && j == r->alias) in_place.type = r->job.array[0].type; /* it now holds results */
        const struct array *array = &in_place;
        if (r->row->promise == CAIRN__FLUSHES_SUBNORMALS && array->role == READ) continue;
        if (memcmp(got->x[j], want->x[j], got->nbytes[j]) == 0) continue;
        for (size_t i = 0; i < r->n * array->times; i++) {
            if (same_element(array->type, got->x[j], want->x[j], i, r->job.nan_bits)) continue;
            uint64_t g = 0, w = 0;
            size_t width = cairn_dtype_nbytes(array->type);
            memcpy(&g, (char *)got->x[j] + i * width, width);
            memcpy(&w, (char *)want->x[j] + i * width, width);
            complain("%s: array %d element %zu is %0*llx, want %0*llx", r->row->name, j, i, (int)width * 2,
                     (unsigned long long)g, (int)width * 2, (unsigned long long)w);
            return false;
        }
    }
    return true;
}

static bool run_once(const struct run *r) {
    struct arrays got = make_arrays(&r->job, r->n, r->offset), want = make_arrays(&r->job, r->n, 0);
    for (int j = 0; j < got.count; j++) {
        fill_array(got.x[j], r->job.array[j].type, r->n * r->job.array[j].times, r->flavour, r->seed + (uint64_t)j);
        if (got.nbytes[j]) memcpy(want.x[j], got.x[j], got.nbytes[j]);
    }
    if (r->row->promise == CAIRN__FLUSHES_SUBNORMALS) flush_subnormals(want.x[1], r->n);

    void *got_x[MAX_ARRAYS], *want_x[MAX_ARRAYS];
    memcpy(got_x, got.x, sizeof(got_x));
    memcpy(want_x, want.x, sizeof(want_x));
    if (r->alias) got_x[0] = got_x[r->alias], want_x[0] = want_x[r->alias];

    struct outcome got_out = {0}, want_out = {0};
    flush_to_zero(r->flushing);
    r->job.call(r->row, got_x, r->n, r->variant, &got_out);
    flush_to_zero(false);
    r->job.call(r->reference, want_x, r->n, r->variant, &want_out);

    bool ok = same_arrays(r, &got, &want);
    if (ok && !same_outcome(&got_out, &want_out)) {
        ok = false;
        complain("%s: found %u, result %a %a; want %u, %a %a", r->row->name, got_out.found, got_out.f64, got_out.second,
                 want_out.found, want_out.f64, want_out.second);
    }
    if (ok && !(canaries_live(&got) && canaries_live(&want))) {
        ok = false;
        complain("%s: wrote outside its arrays", r->row->name);
    }
    if (!ok) {
        complain("  with n %zu, offset %d, flavour %d, variant %d, alias %d, seed %llu", r->n, r->offset, r->flavour,
                 r->variant, r->alias, (unsigned long long)r->seed);
    }
    free_arrays(&got);
    free_arrays(&want);
    return ok;
}

/* Every variant, separate and in place, at one size. */
static bool run_size(struct run r, uint64_t seed) {
    for (r.variant = 0; r.variant < r.job.num_variants; r.variant++) {
        for (int a = 0; a <= 2; a++) {
            r.alias = a == 0 ? 0 : r.job.may_be[a - 1];
            if (a > 0 && r.alias == 0) continue;
            r.seed = random_bits(seed, (uint64_t)r.n * 64 + (uint64_t)(r.variant * 4 + a));
            if (!run_once(&r)) return false;
        }
    }
    return true;
}

/* The element order of a sum is fixed by index, so its bits are the same wherever the array begins. */
static bool alignment_does_not_matter(const struct cairn__kernel_row *row, const struct job *job, uint64_t seed) {
    struct outcome first = {0};
    for (int offset = 0; offset < 4; offset++) {
        struct arrays a = make_arrays(job, 1003, offset);
        for (int j = 0; j < a.count; j++) fill_array(a.x[j], job->array[j].type, 1003, MODERATE, seed + (uint64_t)j);
        struct outcome out = {0};
        job->call(row, a.x, 1003, 0, &out);
        free_arrays(&a);
        if (offset == 0) first = out;
        if (!same_outcome(&first, &out)) {
            complain("%s: alignment changes the sum", row->name);
            return false;
        }
    }
    return true;
}

/* Conversions, finite checks and half-type statistics do not change in a program that flushes subnormals; arithmetic
 * does. */
static bool flushing_does_not_matter(const struct cairn__kernel_row *row, uint64_t seed) {
    if (row->kind != CAIRN__K_CAST && row->kind != CAIRN__K_ROUND && row->kind != CAIRN__K_CHECK &&
        row->kind != CAIRN__K_CENSUS && row->kind != CAIRN__K_COUNT_EXPONENTS &&
        row->kind != CAIRN__K_ROUND_STOCHASTIC && (row->kind != CAIRN__K_SUMSQ || row->a == CAIRN_F32)) {
        return true;
    }
    struct run r = {.row = row, .reference = reference_of(row), .job = job_of(row), .n = LARGE, .flushing = true};
    r.flavour = WILD;
    if (run_size(r, seed)) return true;
    complain("  with FTZ and DAZ set");
    return false;
}

/* Of a size that streams, with the variant's own arrays alone. */
static bool run_streamed_reduction(struct run r, int variant, uint64_t seed) {
    r.job = job_of_variant(r.row, variant);
    for (int j = 0; j < r.job.num_arrays; j++) r.job.array[j].times = r.job.array[j].role ? 1 : 0;
    r.n = STREAMED;
    r.variant = variant;
    r.alias = 0;
    r.seed = seed;
    return run_once(&r);
}

/* There are many maps, generated from one template: fewer sizes, with the wildest data. */
static bool check_map(struct run r, const struct checking *how) {
    r.flavour = WILD;
    for (r.n = 0; r.n <= 35; r.n++) {
        r.offset = (int)r.n % 4;
        if (!run_size(r, how->seed)) return false;
    }
    r.n = LARGE / 4;
    return run_size(r, how->seed);
}

bool check_row(const struct cairn__kernel_row *row, const struct checking *how) {
    struct run r = {.row = row, .reference = reference_of(row), .job = job_of(row)};
    if (row->kind == CAIRN__K_MAP) return check_map(r, how);
    for (int flavour = 0; flavour < NUM_FLAVOURS; flavour++) {
        r.flavour = (enum flavour)flavour;
        for (r.offset = 0; r.offset < 4; r.offset++) {
            for (r.n = 0; r.n <= (how->quick ? 35 : MAX_SMALL); r.n++) {
                if (!run_size(r, how->seed + (uint64_t)r.offset)) return false;
            }
        }
        r.n = LARGE;
        r.offset = 1;
        if (!run_size(r, how->seed)) return false;
    }
    const bool may_stream =
        row->kind != CAIRN__K_REDUCE && row->kind != CAIRN__K_COL_SUM && row->kind != CAIRN__K_SUM_ROWS;
    if (!how->quick && r.job.num_arrays > 1 && r.job.array[0].times == 1 && may_stream) {
        r.n = STREAMED;
        r.variant = r.job.plain_variant;
        r.alias = 0;
        r.seed = how->seed;
        if (!run_once(&r)) return false;
    }
    if (!how->quick && row->kind == CAIRN__K_REDUCE && row->a == CAIRN__REDUCE_SUM) {
        static const int apart[] = {APART_OF_2, APART_OF_8};
        for (int k = 0; k < 2; k++) {
            if (!run_streamed_reduction(r, apart[k], how->seed)) return false;
        }
    }
    const bool sums = row->kind == CAIRN__K_SUM || row->kind == CAIRN__K_MSE_SUM || row->kind == CAIRN__K_SUMSQ;
    return !sums || alignment_does_not_matter(row, &r.job, how->seed);
}

static int passed, failures;

static void tally(const char *name, const char *group, bool ok) {
    printf("  %-4s %-36s %s\n", ok ? "ok" : "FAIL", name, group);
    fflush(stdout);
    if (ok) passed++;
    else failures++;
}

static void walk(const struct checking *how, const char *only, bool *failed) {
    size_t count;
    const struct cairn__kernel_row *rows = cairn__kernel_rows(&count);
    char group[64];
    for (size_t i = 0; i < count; i++) {
        failed[i] = true;
        if (rows[i].needs & ~cairn__cpu_features()) continue;
        if (only && !strstr(rows[i].name, only)) continue;
        if (i % 16 == 0) draw_anew(random_bits(how->seed, i));
        bool is_reference = &rows[i] == reference_of(&rows[i]);
        bool ok = is_reference ? check_reference(&rows[i], how) : check_row(&rows[i], how);
        ok = ok && flushing_does_not_matter(&rows[i], how->seed);
        failed[i] = !ok;
        tally(rows[i].name, group_name(&rows[i], group, sizeof(group)), ok);
    }
}

static int usage(const char *program) {
    fprintf(stderr,
            "usage: %s [--seed N] [--quick] [--only TEXT] [--all-f32] [--long-sums] [--bench [--json] [--n N] "
            "[--repeats N]]\n",
            program);
    return 2;
}

int main(int argc, char **argv) {
    struct checking how = {.seed = 20190717};
    struct benching bench_how = {.repeats = 9};
#ifdef __GLIBC__
    /* Keeps freed pages, since tens of thousands of arrays are allocated and freed. */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
    bool all_f32 = false, benches = false, long_sums = false;
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--seed") == 0 && has_value) how.seed = strtoull(argv[++i], NULL, 0);
        else if (strcmp(argv[i], "--only") == 0 && has_value) bench_how.only = argv[++i];
        else if (strcmp(argv[i], "--n") == 0 && has_value) bench_how.n = strtoull(argv[++i], NULL, 0);
        else if (strcmp(argv[i], "--repeats") == 0 && has_value) bench_how.repeats = atoi(argv[++i]);
        else if (strcmp(argv[i], "--quick") == 0) how.quick = true;
        else if (strcmp(argv[i], "--all-f32") == 0) all_f32 = true;
        else if (strcmp(argv[i], "--long-sums") == 0) long_sums = true;
        else if (strcmp(argv[i], "--bench") == 0) benches = true;
        else if (strcmp(argv[i], "--json") == 0) bench_how.json = true;
        else return usage(argv[0]);
    }
    char command[512] = "";
    for (int i = 0; i < argc; i++) {
        size_t used = strlen(command);
        snprintf(command + used, sizeof(command) - used, "%s%s", i ? " " : "", argv[i]);
    }
    bench_how.command = command;

    static bool failed[4096];
    printf("kcheck: seed %llu, cpu level %s\n", (unsigned long long)how.seed,
           cairn__cpu_level_name(cairn__cpu_features()));
    if (all_f32) {
        tally("every f32 narrowed by every row", "cast, round", check_all_f32());
    } else if (long_sums) {
        tally("sums of 3e7 terms", "definition", check_long_sums(&how));
    } else {
        tally("half.h against arithmetic in f64", "definition", check_half_definition(&how));
        tally("every f16 and bf16 widened and back", "definition", check_every_half(&how));
        tally("digits of the functions of f32", "definition", check_digits(&how));
        tally("pow and atan2", "definition", check_pairs(&how));
        tally("squares of every magnitude", "definition", check_squares(&how));
        tally("long sums", "definition", check_sums_at_length(&how));
        tally("random rounding of every bf16, in parts, in the mean", "definition", check_random_rounding(&how));
        tally("every f16 and bf16 counted", "definition", check_counts(&how));
        walk(&how, bench_how.only, failed);
    }
    int refused = benches ? bench(&bench_how, failed) : 0;
    printf("%d passed, %d failed\n", passed, failures);
    return failures || refused ? 1 : 0;
}
