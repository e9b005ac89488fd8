/* A product in cuBLASLt's terms. Pure logic, no CUDA calls.
 *
 * cuBLASLt's matrices are column-major, ours are row-major. A row-major matrix is its transpose in column-major order,
 * so cuBLASLt computes C^T = op(B)^T op(A)^T, with B as first operand. Its bias of one value per row is then our bias
 * of one value per column, and its sums of the second operand over the inner dimension (BGRADB) are our sums of op(A)'s
 * rows. */
#ifndef CAIRN__DEVICE_CUDA_PRODUCT_PLAN_H
#define CAIRN__DEVICE_CUDA_PRODUCT_PLAN_H

#include "device/cuda/key_index.h"
#include "device/device.h"

/* What cuBLASLt does in addition to the product. */
enum cairn__epilogue {
    CAIRN__EPILOGUE_NONE,
    CAIRN__EPILOGUE_RELU,
    CAIRN__EPILOGUE_BIAS,
    CAIRN__EPILOGUE_BIAS_RELU,
    CAIRN__EPILOGUE_ROW_SUMS,
};

/* Everything an algorithm depends on. Set as a whole and compared as bytes: no padding. */
struct cairn__product_key {
    uint64_t rows, cols, inner;                /* out[rows, cols] = op(first)[rows, inner] op(second)[inner, cols] */
    int64_t ld_first, ld_second, ld_out;       /* from one column to the next, in elements */
    uint64_t batch;                            /* products, of matrices at steps from one to the next, in elements; */
    int64_t step_first, step_second, step_out; /* 0 = all share one, and where the batch is 1 */
    uint8_t trans_first, trans_second;         /* 1: the matrix in memory is the transpose of what is multiplied */
    uint8_t in_type, out_type;                 /* cairn_dtype; bias and row sums have out_type */
    uint8_t epilogue;                          /* enum cairn__epilogue */
    uint8_t tf32;
    uint16_t align_first, align_second, align_out,
        align_extra;    /* largest powers of two, at most 256, of every matrix */
    uint8_t accumulate; /* out is read, and added to */
    uint8_t unused;
};

struct cairn__product_plan {
    struct cairn__product_key key;
    const void *first, *second;
    void *out;
    double alpha;  /* factor of the product, before the epilogue */
    void *extra;   /* the epilogue's operand: the bias, or the destination of row sums; NULL = none */
    bool bias;     /* bias, and relu after it, are left to passes */
    bool row_sums; /* row sums are left to passes: there is one epilogue, which bias and relu share */
};

/* Bytes: the alignment at which cuBLASLt is known to accept a bias or row sums. Its header documents none, and its
 * preferences cover only the alignments of A, B, C and D. So its heuristic may choose a kernel that reads a bias 16
 * bytes at a time: such kernels have faulted with "misaligned address" on an A100 (marian-nmt/marian-dev#778) and, with
 * CUDA 13.3, on an sm_75 (pytorch/pytorch#194497). Other kernels accept less, but there is no way to tell which kernel
 * a product gets, and a fault ends the process's use of the GPU. Operands of lower alignment are left to passes, which
 * product.c logs and counts. */
enum { CAIRN__PRODUCT_EXTRA_ALIGN = 16 };

/* No size of p is 0. */
void cairn__product_plan(const struct cairn__matmul *p, bool tf32, struct cairn__product_plan *out);

/* The same of a batch (math_table.h). No size of b is 0. */
struct cairn__batch;
void cairn__product_plan_batch(const struct cairn__batch *b, bool tf32, struct cairn__product_plan *out);

enum { CAIRN__PRODUCTS = CAIRN__INDEX_PLACES };

struct cairn__product_index {
    struct cairn__product_key keys[CAIRN__PRODUCTS];
    struct cairn__key_index index;
};

/* The key's place. *found: whether it had one already; if not, the caller replaces the content. */
size_t cairn__product_find(struct cairn__product_index *index, const struct cairn__product_key *key, bool *found);

#endif
