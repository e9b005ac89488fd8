/* kcheck: compares every kernel row with the reference, and times the verified rows. Its parts:
 *
 *   jobs.c    what arrays a kernel takes, and how it is called
 *   row_jobs.c the same for kernels over rows, with their model
 *   map_jobs.c the same for maps, folds and dot products, with the digits of their functions
 *   fp8_jobs.c the same for fp8 and the greatest magnitude, with their model
 *   data.c    inputs: edges, seeded random bits, moderate numbers; arrays between canaries
 *   sums.c    how far long sums are from those in f64
 *   gradients.c what sums of squares, random rounding and counts do over many calls
 *   model.c   definitions that do not use Cairn's own, for the reference rows
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

/* What a kernel returns outside its arrays. */
struct outcome {
    uint32_t found;
    double f64, second; /* numbers; of what returns one, the second is 0 */
    struct cairn__counts counts;
    struct cairn__exponent_counts exponents;
};

struct job {
    int num_arrays;
    struct array array[MAX_ARRAYS];
    int may_be[2];     /* arrays that array 0 may be, 0 where none */
    int num_variants;  /* of scalars and switches */
    int plain_variant; /* what bench takes */
    bool nan_bits;     /* NaNs are compared bit by bit, as in every cast; arithmetic may choose among NaNs */
    void (*call)(const struct cairn__kernel_row *row, void *const *a, size_t n, int variant, struct outcome *out);
};

/* How to run a row. */
struct job job_of(const struct cairn__kernel_row *row);

/* The same for bench, which takes another variant: the roles are those of its arrays. */
struct job job_of_variant(const struct cairn__kernel_row *row, int variant);

/* A variant of a reduction: arrays 0 to p - 1 are the sources, arrays first_dst to first_dst + num_dsts - 1 the
 * destinations. In place where the two meet; only sums are divided. */
struct reduction {
    int p, num_dsts, first_dst;
    float divisor;
};
enum { IN_PLACE_OF_2, APART_OF_2, IN_PLACE_OF_8, APART_OF_8, UNDIVIDED_OF_2 }; /* the first of the variants */
struct reduction reduction_of(const struct cairn__kernel_row *row, int variant);

/* The variant of col_sum that only bench takes: a batch of 4096 rows. */
enum { OF_BATCH = 1 };

/* For the kinds of kernels/rows.h; and whether a reference did as defined, to n moderate numbers, with variant 0. */
struct job row_job_of(const struct cairn__kernel_row *row);
const char *row_kind_name(const struct cairn__kernel_row *row);
bool row_is_right(const struct cairn__kernel_row *row, const struct job *job, size_t n, void *const *before,
                  void *const *after, const struct outcome *out);

/* For the kinds of kernels/maps.h, likewise. */
struct job map_job_of(const struct cairn__kernel_row *row);
const char *map_group_name(const struct cairn__kernel_row *row);
bool map_is_right(const struct cairn__kernel_row *row, const struct job *job, size_t n, void *const *before,
                  void *const *after, const struct outcome *out);

/* For fp8 and the greatest magnitude, likewise, with every variant and all data. */
struct job fp8_job_of(const struct cairn__kernel_row *row);
const char *fp8_group_name(const struct cairn__kernel_row *row);
bool fp8_is_right(const struct cairn__kernel_row *row, int variant, size_t n, void *const *before, void *const *after,
                  const struct outcome *out);

/* "cast f32 f16", "adam f16 w32_f16" */
const char *group_name(const struct cairn__kernel_row *row, char *text, size_t nbytes);

/* The row that needs nothing. */
const struct cairn__kernel_row *reference_of(const struct cairn__kernel_row *row);

/* What kernels.h defines the sum of squares to be, without what it is added to. */
double model_sumsq(cairn_dtype type, const void *x, size_t n, double factor);

/* ---- data ---- */

uint64_t random_bits(uint64_t seed, uint64_t index);

enum flavour {
    MODERATE,  /* finite, of magnitude around 1, so that no sum and no product overflows */
    ONE_WRONG, /* the same with one infinity or NaN */
    ONE_GREAT, /* the same with one element that is about to overflow, at one index in all arrays */
    WILD,      /* a third edges, a third random bits, a third moderate */
    NUM_FLAVOURS,
};
void fill_array(void *x, cairn_dtype type, size_t n, enum flavour flavour, uint64_t seed);
/* Arrays that are filled from now on have other elements. */
void draw_anew(uint64_t seed);

/* True where element i of both has the same bits, or, unless nan_bits, both are NaN. */
bool same_element(cairn_dtype type, const void *a, const void *b, size_t i, bool nan_bits);

/* Sets of arrays of a job for n elements, each with canaries on both sides, misaligned by `offset` elements and
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

/* ---- checks; each returns whether all was well and prints what was not ---- */

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
void flush_to_zero(bool on); /* of subnormals, and of subnormal inputs, in this thread */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- bench ---- */

struct benching {
    bool json;
    int repeats;
    size_t n;         /* 0 = each line's own */
    const char *only; /* part of a row's name, or NULL */
    const char *command;
};
/* Times rows for which failed[index in cairn__kernel_rows] is false. Returns how many it had to refuse. */
int bench(const struct benching *how, const bool *failed);

/* One pass over the job's arrays that does nothing but move their bytes: the limit. Streams non-temporally what is
 * written (1) and what is updated too (2). Takes `elements` at a time, and leaves out what fills no vector at the
 * end. */
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
