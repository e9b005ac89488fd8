#include "rows.h"

#include "device/cuda/launch.h"

/* The compiler looks whether there is such a launcher; the linker, where passes.c calls it. */
#define TWIN(kind, a, b, name) \
    {CAIRN__K_##kind, a, b, sizeof(&cairn__launch_##name) ? "cairn__launch_" #name : NULL, NULL},
#define PART_OF(kind, name) \
    {CAIRN__K_##kind, 0, 0, NULL, sizeof(&cairn__launch_##name) ? "part of cairn__launch_" #name : NULL},

/* clang-format off */
#define EACH_FLOAT(X, kind, name) X(kind, CAIRN_F32, 0, name) X(kind, CAIRN_F16, 0, name) X(kind, CAIRN_BF16, 0, name)
#define TO_EACH_FLOAT(kind, from, name)                                                          \
    TWIN(kind, from, CAIRN_F32, name) TWIN(kind, from, CAIRN_F16, name) TWIN(kind, from, CAIRN_BF16, name)
#define EACH_PAIR(kind, name)                                                                    \
    TO_EACH_FLOAT(kind, CAIRN_F32, name) TO_EACH_FLOAT(kind, CAIRN_F16, name) TO_EACH_FLOAT(kind, CAIRN_BF16, name)
#define EACH_MODE(kind, grad, name)                                                              \
    TWIN(kind, grad, CAIRN__W_F32, name) TWIN(kind, grad, CAIRN__W_F32_F16, name)                \
    TWIN(kind, grad, CAIRN__W_F32_BF16, name) TWIN(kind, grad, CAIRN__W_F16, name)               \
    TWIN(kind, grad, CAIRN__W_BF16, name)
#define EACH_GRAD_AND_MODE(kind, name)                                                           \
    EACH_MODE(kind, CAIRN_F32, name) EACH_MODE(kind, CAIRN_F16, name) EACH_MODE(kind, CAIRN_BF16, name)
#define EACH_READ_MODE(kind, grad, name) \
    TWIN(kind, grad, CAIRN__W_F32, name) TWIN(kind, grad, CAIRN__W_F16, name) TWIN(kind, grad, CAIRN__W_BF16, name)
#define EACH_GRAD_AND_READ_MODE(kind, name)                                                      \
    EACH_READ_MODE(kind, CAIRN_F32, name) EACH_READ_MODE(kind, CAIRN_F16, name) EACH_READ_MODE(kind, CAIRN_BF16, name)

static const struct cairn__cuda_row rows[] = {
    TWIN(CAST, CAIRN_F32, CAIRN_F32, copy)
    TWIN(CAST, CAIRN_F16, CAIRN_F16, copy)
    TWIN(CAST, CAIRN_BF16, CAIRN_BF16, copy)
    TWIN(CAST, CAIRN_I32, CAIRN_I32, copy)
    TWIN(CAST, CAIRN_I64, CAIRN_I64, copy)
    TWIN(CAST, CAIRN_F32, CAIRN_F16, cast)
    TWIN(CAST, CAIRN_F32, CAIRN_BF16, cast)
    TWIN(CAST, CAIRN_F16, CAIRN_F32, cast)
    TWIN(CAST, CAIRN_F16, CAIRN_BF16, cast)
    TWIN(CAST, CAIRN_BF16, CAIRN_F32, cast)
    TWIN(CAST, CAIRN_BF16, CAIRN_F16, cast)
    EACH_PAIR(SCALE, scale)
    EACH_PAIR(AXPBY, axpby)
    EACH_FLOAT(TWIN, CHECK, check)
    EACH_FLOAT(TWIN, SUMSQ, l2norm)
    EACH_FLOAT(TWIN, CENSUS, census)
    EACH_FLOAT(TWIN, COUNT_EXPONENTS, count_exponents)
    TWIN(COUNT_EXPONENTS, CAIRN_F64, 0, count_exponents)
    PART_OF(ROUND_STOCHASTIC, update)
    EACH_FLOAT(TWIN, FILL, fill)
    EACH_GRAD_AND_MODE(SGD, update)
    EACH_GRAD_AND_MODE(ADAM, update)
    EACH_GRAD_AND_MODE(LION, update)
    EACH_GRAD_AND_MODE(ADAGRAD, update)
    EACH_GRAD_AND_READ_MODE(LAMB, direction)
    TWIN(ROUND, CAIRN_F16, 0, round)
    TWIN(ROUND, CAIRN_BF16, 0, round)
    TWIN(ADD, 0, 0, add)
    TWIN(MUL_SCALAR, 0, 0, mul_scalar)
    TWIN(RELU, 0, 0, relu)
    TWIN(RELU_BACKWARD, 0, 0, relu_backward)
    EACH_FLOAT(TWIN, SUM, sum)
    EACH_FLOAT(TWIN, MSE_SUM, mse)
    EACH_FLOAT(TWIN, COL_SUM, col_sum)
    PART_OF(DRAIN, col_sum)
    TWIN(MSE_BACKWARD, 0, 0, mse_backward)
    TWIN(BIAS_ADD, 0, 0, bias_add)
};
/* clang-format on */

const struct cairn__cuda_row *cairn__cuda_rows(size_t *count) {
    *count = sizeof(rows) / sizeof(rows[0]);
    return rows;
}

/* Reasons of whole kinds. */
static const char on_the_cpu_alone[] = "operations of nn beyond the training step run on the CPU alone";
static const char fp8_on_the_cpu_alone[] = "fp8 is emulated on the CPU alone";
static const struct cairn__cuda_row kinds[] = {
    {CAIRN__K_REDUCE, 0, 0, NULL, "ranks' memory is combined by the group's backend, on GPUs NCCL"},
    {CAIRN__K_SUM_ROWS, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_MAP, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_FOLD, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_FOLD_INTO, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_DOT, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_GREATEST, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_SOFTMAX_BACKWARD, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_MOMENTS, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_NORM_ROW, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_NORM_ROWS_BACKWARD, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_NORM_RUNS, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_NORM_RUNS_SUMS, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_NORM_RUNS_BACKWARD, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_DROPOUT, 0, 0, NULL, on_the_cpu_alone},
    {CAIRN__K_FP8_ROUND, 0, 0, NULL, fp8_on_the_cpu_alone},
    {CAIRN__K_FP8_ENCODE, 0, 0, NULL, fp8_on_the_cpu_alone},
    {CAIRN__K_FP8_DECODE, 0, 0, NULL, fp8_on_the_cpu_alone},
    {CAIRN__K_AMAX, 0, 0, NULL, fp8_on_the_cpu_alone},
};

const struct cairn__cuda_row *cairn__cuda_row(enum cairn__kernel_kind kind, int a, int b) {
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i].kind == kind) return &kinds[i];
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].kind == kind && rows[i].a == a && rows[i].b == b) return &rows[i];
    }
    return NULL;
}
