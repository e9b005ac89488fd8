/* kcheck: compares every kernel row with the reference, and times the verified rows. Its parts:
 *
 *   jobs.c    the arrays and scalars of each kind of kernel, and its call
 *   row_jobs.c the same for kernels over rows, with their model
 *   map_jobs.c the same for maps, folds and dot products, with the accuracy of their functions
 *   fp8_jobs.c the same for fp8 and amax, with their model
 *   data.c    inputs: edges, seeded random bits, moderate numbers; arrays between canaries
 *   sums.c    the error of long sums against f64
 *   gradients.c sums of squares, stochastic rounding and counts over many calls
 *   model.c   independent definitions that check the reference rows
 *   bench.c   timing against limit.c, loops that only move the same bytes
 *   kcheck.c  options, the walk over the rows, the tally */
#ifndef KCHECK_H
#define KCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/cpu.h"
#include "core/dtype.h"
#include "kernels/kernels.h"

enum role { READ = 1, WRITTEN = 2, UPDATED = 3 };
enum { MAX_ARRAYS = 16 };

struct array {
    cairn_dtype type;
    enum role role;
    size_t times; /* elements per n */
};

/* Values that a kernel returns besides its arrays. */
struct outcome {
    uint32_t found;
    double f64, second; /* returned numbers; second = 0 if there is one */
    struct cairn__counts counts;
    struct cairn__exponent_counts exponents;
};

struct job {
    int num_arrays;
    struct array array[MAX_ARRAYS];
    int may_be[2];     /* arrays that array 0 may alias; 0 = none */
    int num_variants;  /* of scalars and switches */
    int plain_variant; /* the variant that bench uses */
    bool nan_bits;     /* compare NaNs bit by bit, as in casts; arithmetic may return any NaN */
    void (*call)(const struct cairn__kernel_row *row, void *const *a, size_t n, int variant, struct outcome *out);
};

/* How to run a row. */
struct job job_of(const struct cairn__kernel_row *row);

/* The same for bench, which uses another variant, with the roles of that variant's arrays. */
struct job job_of_variant(const struct cairn__kernel_row *row, int variant);

/* A variant of a reduction: arrays 0 to p - 1 are the sources, arrays first_dst to first_dst + num_dsts - 1 the
 * destinations. It is in place if these overlap; only sums are divided. */
struct reduction {
    int p, num_dsts, first_dst;
    float divisor;
};
enum { IN_PLACE_OF_2, APART_OF_2, IN_PLACE_OF_8, APART_OF_8, UNDIVIDED_OF_2 }; /* the first of the variants */
struct reduction reduction_of(const struct cairn__kernel_row *row, int variant);

/* The variant of col_sum that only bench uses: a batch of 4096 rows. */
enum { OF_BATCH = 1 };

/* For the kinds of kernels/rows.h; and whether a reference row gives the defined results on n moderate numbers, with
 * variant 0. */
struct job row_job_of(const struct cairn__kernel_row *row);
const char *row_kind_name(const struct cairn__kernel_row *row);
bool row_is_right(const struct cairn__kernel_row *row, const struct job *job, size_t n, void *const *before,
                  void *const *after, const struct outcome *out);

/* For the kinds of kernels/maps.h, likewise. */
struct job map_job_of(const struct cairn__kernel_row *row);
const char *map_group_name(const struct cairn__kernel_row *row);
bool map_is_right(const struct cairn__kernel_row *row, const struct job *job, size_t n, void *const *before,
                  void *const *after, const struct outcome *out);

/* For fp8 and amax, likewise, with every variant and all data. */
struct job fp8_job_of(const struct cairn__kernel_row *row);
const char *fp8_group_name(const struct cairn__kernel_row *row);
bool fp8_is_right(const struct cairn__kernel_row *row, int variant, size_t n, void *const *before, void *const *after,
                  const struct outcome *out);

/* "cast f32 f16", "adam f16 w32_f16" */
const char *group_name(const struct cairn__kernel_row *row, char *text, size_t nbytes);

/* The row without CPU requirements. */
const struct cairn__kernel_row *reference_of(const struct cairn__kernel_row *row);

/* The sum of squares as kernels.h defines it, without the initial value. */
double model_sumsq(cairn_dtype type, const void *x, size_t n, double factor);

/* ---- data ---- */

uint64_t random_bits(uint64_t seed, uint64_t index);

enum flavour {
    MODERATE,  /* finite, of magnitude around 1, so that no sum and no product overflows */
    ONE_WRONG, /* the same with one infinity or NaN */
    ONE_GREAT, /* the same with one element close to overflow, at the same index in all arrays */
    WILD,      /* a third edges, a third random bits, a third moderate */
    NUM_FLAVOURS,
};
void fill_array(void *x, cairn_dtype type, size_t n, enum flavour flavour, uint64_t seed);
/* Changes the elements of arrays that are filled from now on. */
void draw_anew(uint64_t seed);

/* Whether element i has the same bits in both arrays or, unless nan_bits, is NaN in both. */
bool same_element(cairn_dtype type, const void *a, const void *b, size_t i, bool nan_bits);

/* Allocates a job's arrays for n elements, each with canaries on both sides, misaligned by `offset` elements and
 * more. */
struct arrays {
    int count;
    void *x[MAX_ARRAYS];
    unsigned char *memory[MAX_ARRAYS];
    size_t nbytes[MAX_ARRAYS];
};
struct arrays make_arrays(const struct job *job, size_t n, int offset);
bool canaries_live(const struct arrays *a);
void free_arrays(struct arrays *a);

/* ---- checks; each returns whether it passed and prints what failed ---- */

struct checking {
    uint64_t seed;
    bool quick;
};
bool check_row(const struct cairn__kernel_row *row, const struct checking *how);
bool check_reference(const struct cairn__kernel_row *row, const struct checking *how);
bool check_half_definition(const struct checking *how);
bool check_every_half(const struct checking *how);
bool check_digits(const struct checking *how);
bool check_pairs(const struct checking *how);
bool check_squares(const struct checking *how);
bool check_sums_at_length(const struct checking *how);
bool check_long_sums(const struct checking *how);
bool check_random_rounding(const struct checking *how);
bool check_counts(const struct checking *how);
bool check_all_f32(void);
void flush_to_zero(bool on); /* subnormal results and inputs, in this thread */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- bench ---- */

struct benching {
    bool json;
    int repeats;
    size_t n;         /* 0 = each line's own */
    const char *only; /* part of a row's name, or NULL */
    const char *command;
};
/* Times rows for which failed[index in cairn__kernel_rows] is false. Returns the number of rows that it refused to
 * time. */
int bench(const struct benching *how, const bool *failed);

/* The limit: one pass over the job's arrays that only moves their bytes. Uses non-temporal stores for arrays that are
 * written (1), or also for those that are updated (2). Moves `elements` at a time, and omits an incomplete vector at
 * the end. */
struct limit_stream {
    enum role role;
    size_t width; /* bytes per element of n */
    unsigned char *x;
};
typedef void (*limit_fn)(const struct limit_stream *s, int count, size_t n, int nontemporal, size_t elements);
void limit_generic(const struct limit_stream *s, int count, size_t n, int nontemporal, size_t elements);
void limit_avx2(const struct limit_stream *s, int count, size_t n, int nontemporal, size_t elements);
void limit_avx512(const struct limit_stream *s, int count, size_t n, int nontemporal, size_t elements);

#endif
