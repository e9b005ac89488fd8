/* Row-major products in column-major terms. */
#include "device/cuda/product_plan.h"

#include <assert.h>
#include <string.h>

#include "core/dtype.h"
#include "device/cuda/math_table.h"

static_assert(sizeof(struct cairn__product_key) == 10 * 8 + 6 + 4 * 2 + 2, "keys are compared as bytes: no padding");

static uint16_t alignment(const void *p) {
    const uintptr_t address = (uintptr_t)p | 256;
    return (uint16_t)(address & -address);
}

/* NULL does not fit. */
static bool fits(const void *extra) {
    return extra && (uintptr_t)extra % CAIRN__PRODUCT_EXTRA_ALIGN == 0;
}

static enum cairn__epilogue choose(const struct cairn__matmul *p) {
    if (fits(p->bias)) return p->relu ? CAIRN__EPILOGUE_BIAS_RELU : CAIRN__EPILOGUE_BIAS;
    if (p->bias) return CAIRN__EPILOGUE_NONE;
    if (p->relu) return CAIRN__EPILOGUE_RELU;
    return fits(p->row_sums) ? CAIRN__EPILOGUE_ROW_SUMS : CAIRN__EPILOGUE_NONE;
}

void cairn__product_plan(const struct cairn__matmul *p, bool tf32, struct cairn__product_plan *out) {
    const enum cairn__epilogue epilogue = choose(p);
    const bool biased = epilogue == CAIRN__EPILOGUE_BIAS || epilogue == CAIRN__EPILOGUE_BIAS_RELU;
    const bool summed = epilogue == CAIRN__EPILOGUE_ROW_SUMS;
    memset(out, 0, sizeof(*out));
    out->first = p->b;
    out->second = p->a;
    out->out = p->c;
    out->alpha = 1;
    /* cuBLASLt takes the bias as a pointer to what may be written, and does not write it. */
    out->extra = biased ? (void *)(uintptr_t)p->bias : summed ? p->row_sums : NULL;
    out->bias = p->bias && !biased;
    out->row_sums = p->row_sums && !summed;
    out->key = (struct cairn__product_key){
        .rows = (uint64_t)p->n,
        .cols = (uint64_t)p->m,
        .inner = (uint64_t)p->k,
        .ld_first = p->trans_b ? p->k : p->n,
        .ld_second = p->trans_a ? p->m : p->k,
        .ld_out = p->n,
        .batch = 1,
        .trans_first = p->trans_b,
        .trans_second = p->trans_a,
        .in_type = (uint8_t)p->in_type,
        .out_type = (uint8_t)p->out_type,
        .epilogue = (uint8_t)epilogue,
        .tf32 = tf32 && p->in_type == CAIRN_F32,
        .align_first = alignment(out->first),
        .align_second = alignment(out->second),
        .align_out = alignment(out->out),
        .align_extra = alignment(out->extra),
    };
}

/* The alignment of every matrix at p, if matrices are `step` elements apart. */
static uint16_t batch_alignment(const void *p, int64_t step, cairn_dtype type) {
    return alignment((const void *)((uintptr_t)p | (uintptr_t)step * cairn_dtype_nbytes(type)));
}

void cairn__product_plan_batch(const struct cairn__batch *b, bool tf32, struct cairn__product_plan *out) {
    const bool many = b->batch > 1;
    const int64_t step_a = many ? b->step_a : 0, step_b = many ? b->step_b : 0, step_c = many ? b->step_c : 0;
    memset(out, 0, sizeof(*out));
    out->first = b->b;
    out->second = b->a;
    out->out = b->c;
    out->alpha = b->alpha;
    out->key = (struct cairn__product_key){
        .rows = (uint64_t)b->n,
        .cols = (uint64_t)b->m,
        .inner = (uint64_t)b->k,
        .ld_first = b->ldb,
        .ld_second = b->lda,
        .ld_out = b->ldc,
        .batch = (uint64_t)b->batch,
        .step_first = step_b,
        .step_second = step_a,
        .step_out = step_c,
        .trans_first = b->trans_b,
        .trans_second = b->trans_a,
        .in_type = (uint8_t)b->in_type,
        .out_type = (uint8_t)b->out_type,
        .epilogue = CAIRN__EPILOGUE_NONE,
        .tf32 = tf32 && b->in_type == CAIRN_F32,
        .align_first = batch_alignment(b->b, step_b, b->in_type),
        .align_second = batch_alignment(b->a, step_a, b->in_type),
        .align_out = batch_alignment(b->c, step_c, b->out_type),
        .align_extra = alignment(NULL),
        .accumulate = b->accumulate,
    };
}

size_t cairn__product_find(struct cairn__product_index *index, const struct cairn__product_key *key, bool *found) {
    return cairn__index_find(&index->index, index->keys, key, sizeof(*key), found);
}
