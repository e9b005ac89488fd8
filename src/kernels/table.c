/* Chooses the row for every slot of a table: rows are data, in order of preference, and the first row whose features
 * the CPU has wins. */
#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "core/cpu.h"
#include "kernels/row_lists.h"

/* Best first; the reference, which needs nothing, comes last. */
static const struct cairn__row_list *const lists[] = {
/* clang-format off */
#if defined(__x86_64__)
    &cairn__kernel_rows_avx512_bf16,
    &cairn__kernel_rows_avx512,
    &cairn__kernel_rows_avx2,
    &cairn__kernel_rows_maps_avx512,
    &cairn__kernel_rows_maps_avx2,
    &cairn__kernel_rows_of_rows_avx512,
    &cairn__kernel_rows_of_rows_avx2,
#endif
    &cairn__kernel_rows_ref,
    &cairn__kernel_rows_maps_ref,
    &cairn__kernel_rows_of_rows_ref,
    /* clang-format on */
};

enum {
    NUM_LISTS = sizeof(lists) / sizeof(lists[0]),
    ROOM_FOR_ROWS = 2048,
    NUM_FEATURE_SETS = 2 * CAIRN__CPU_AVX512_BF16, /* features are bits, this the highest */
};

/* Written once, by build, and only read after that. */
static pthread_once_t built = PTHREAD_ONCE_INIT;
static struct cairn__kernel_row all_rows[ROOM_FOR_ROWS];
static size_t num_rows;
static struct cairn__kernels tables[NUM_FEATURE_SETS];

static bool may_run(const struct cairn__kernel_row *row, unsigned features) {
    return (row->needs & ~features) == 0 && row->promise == CAIRN__BITEXACT;
}

/* A switch over all slots: each kind has a function type of its own. */
static void set_slot(struct cairn__kernels *k, const struct cairn__kernel_row *row) {
    void (*fn)(void) = row->fn;
    int a = row->a, b = row->b;
    switch (row->kind) {
    case CAIRN__K_CAST:
        k->cast[a][b] = (cairn__cast_fn)fn;
        break;
    case CAIRN__K_SCALE:
        k->scale[a][b] = (cairn__scale_fn)fn;
        break;
    case CAIRN__K_AXPBY:
        k->axpby[a][b] = (cairn__axpby_fn)fn;
        break;
    case CAIRN__K_CHECK:
        k->check[a] = (cairn__check_fn)fn;
        break;
    case CAIRN__K_SUMSQ:
        k->sumsq[a] = (cairn__sumsq_fn)fn;
        break;
    case CAIRN__K_FILL:
        k->fill[a] = (cairn__fill_fn)fn;
        break;
    case CAIRN__K_ROUND_STOCHASTIC:
        k->round_stochastic = (cairn__round_stochastic_fn)fn;
        break;
    case CAIRN__K_CENSUS:
        k->census[a] = (cairn__census_fn)fn;
        break;
    case CAIRN__K_COUNT_EXPONENTS:
        k->count_exponents[a] = (cairn__count_exponents_fn)fn;
        break;
    case CAIRN__K_REDUCE:
        k->reduce[a][b] = (cairn__reduce_fn)fn;
        break;
    case CAIRN__K_SGD:
    case CAIRN__K_ADAM:
    case CAIRN__K_LION:
    case CAIRN__K_ADAGRAD:
    case CAIRN__K_LAMB:
        k->update[row->kind - CAIRN__K_SGD][a][b] = (cairn__update_fn)fn;
        break;
    case CAIRN__K_ADD:
        k->add = (cairn__add_fn)fn;
        break;
    case CAIRN__K_MUL_SCALAR:
        k->mul_scalar = (cairn__mul_scalar_fn)fn;
        break;
    case CAIRN__K_RELU:
        k->relu = (cairn__relu_fn)fn;
        break;
    case CAIRN__K_RELU_BACKWARD:
        k->relu_backward = (cairn__relu_backward_fn)fn;
        break;
    case CAIRN__K_SUM:
        k->sum[a] = (cairn__sum_fn)fn;
        break;
    case CAIRN__K_MSE_SUM:
        k->mse_sum[a] = (cairn__mse_sum_fn)fn;
        break;
    case CAIRN__K_COL_SUM:
        k->col_sum[a] = (cairn__col_sum_fn)fn;
        break;
    case CAIRN__K_SUM_ROWS:
        k->sum_rows[a][b] = (cairn__sum_rows_fn)fn;
        break;
    case CAIRN__K_DRAIN:
        k->drain = (cairn__drain_fn)fn;
        break;
    case CAIRN__K_MSE_BACKWARD:
        k->mse_backward = (cairn__mse_backward_fn)fn;
        break;
    case CAIRN__K_BIAS_ADD:
        k->bias_add = (cairn__bias_add_fn)fn;
        break;
    case CAIRN__K_ROUND:
        k->round[a] = (cairn__round_fn)fn;
        break;
    case CAIRN__K_MAP:
        k->map[a][b] = (cairn__map_kernel)fn;
        break;
    case CAIRN__K_FOLD:
        k->fold[a][b] = (cairn__fold_kernel)fn;
        break;
    case CAIRN__K_FOLD_INTO:
        k->fold_into[a][b] = (cairn__fold_into_kernel)fn;
        break;
    case CAIRN__K_DOT:
        k->dot[a] = (cairn__dot_kernel)fn;
        break;
    case CAIRN__K_GREATEST:
        k->greatest[a] = (cairn__greatest_kernel)fn;
        break;
    case CAIRN__K_SOFTMAX_BACKWARD:
        k->softmax_backward[a] = (cairn__softmax_backward_kernel)fn;
        break;
    case CAIRN__K_MOMENTS:
        k->moments[a] = (cairn__moments_kernel)fn;
        break;
    case CAIRN__K_NORM_ROW:
        k->norm_row[a] = (cairn__norm_row_kernel)fn;
        break;
    case CAIRN__K_NORM_ROWS_BACKWARD:
        k->norm_rows_backward[a] = (cairn__norm_rows_backward_kernel)fn;
        break;
    case CAIRN__K_NORM_RUNS:
        k->norm_runs[a] = (cairn__norm_runs_kernel)fn;
        break;
    case CAIRN__K_NORM_RUNS_SUMS:
        k->norm_runs_sums[a] = (cairn__norm_runs_sums_kernel)fn;
        break;
    case CAIRN__K_NORM_RUNS_BACKWARD:
        k->norm_runs_backward[a] = (cairn__norm_runs_backward_kernel)fn;
        break;
    case CAIRN__K_DROPOUT:
        k->dropout[a] = (cairn__dropout_kernel)fn;
        break;
    case CAIRN__K_FP8_ROUND:
        k->fp8_round[a] = (cairn__fp8_round_fn)fn;
        break;
    case CAIRN__K_FP8_ENCODE:
        k->fp8_encode[a] = (cairn__fp8_encode_fn)fn;
        break;
    case CAIRN__K_FP8_DECODE:
        k->fp8_decode[a] = (cairn__fp8_decode_fn)fn;
        break;
    case CAIRN__K_AMAX:
        k->amax = (cairn__amax_fn)fn;
        break;
    }
}

/* Rows are set from the last to the first, so that the best is set last and stays. */
static void build(void) {
    for (int l = 0; l < NUM_LISTS; l++) {
        assert(num_rows + lists[l]->count <= ROOM_FOR_ROWS);
        memcpy(all_rows + num_rows, lists[l]->rows, lists[l]->count * sizeof(all_rows[0]));
        num_rows += lists[l]->count;
    }
    for (unsigned features = 0; features < NUM_FEATURE_SETS; features++) {
        for (size_t r = num_rows; r-- > 0;) {
            if (may_run(&all_rows[r], features)) set_slot(&tables[features], &all_rows[r]);
        }
    }
}

const struct cairn__kernel_row *cairn__kernel_rows(size_t *count) {
    pthread_once(&built, build);
    *count = num_rows;
    return all_rows;
}

const struct cairn__kernel_row *cairn__kernel_pick(enum cairn__kernel_kind kind, int a, int b, unsigned features) {
    pthread_once(&built, build);
    for (const struct cairn__kernel_row *row = all_rows; row < all_rows + num_rows; row++) {
        if (row->kind == kind && row->a == a && row->b == b && may_run(row, features)) return row;
    }
    return NULL;
}

const struct cairn__kernels *cairn__kernels_cpu(unsigned features) {
    pthread_once(&built, build);
    return &tables[features % NUM_FEATURE_SETS];
}
