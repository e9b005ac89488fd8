/* Products by cuBLASLt. The algorithm is the first one of cuBLASLt's heuristic that works. It is chosen once for each
 * key (product_plan.h) and kept with its descriptors. Split-K reductions stay f32: cuBLASLt's other schemes, which add
 * up in the type of the result, are excluded.
 *
 * If cuBLASLt has no algorithm with the epilogue (which is remembered too), or the epilogue's operand is not aligned as
 * cuBLASLt requires, the bare product is followed by passes. With a bias and a half result the product is written to
 * f32 scratch first, so that there is one rounding. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/log.h"
#include "core/status.h"
#include "device/cuda/cache.h"
#include "device/cuda/cuda.h"
#include "device/cuda/math_table.h"
#include "device/cuda/product_plan.h"

enum {
    CANDIDATES = 8,
    HOPPER = 90,
    WORKSPACE_HOPPER = 32 << 20, /* what NVIDIA's cuBLAS takes for itself: cuBLAS guide, section 2.1.4 */
    WORKSPACE = 4 << 20,
};

struct entry {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulAlgo_t algo;
    bool made;       /* all of the above */
    bool chosen;     /* algo */
    bool impossible; /* no algorithm */
};

/* Why a product needed an extra pass. */
enum fallback {
    FALLBACK_BIAS,     /* the bias is not aligned (CAIRN__PRODUCT_EXTRA_ALIGN) */
    FALLBACK_ROW_SUMS, /* nor are the row sums */
    FALLBACK_EPILOGUE, /* cuBLASLt has no algorithm with the epilogue */
    FALLBACKS,
};

struct cairn__products {
    cublasLtHandle_t lt;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    size_t workspace_nbytes;
    uint64_t count, fallbacks[FALLBACKS]; /* of cairn__cuda_matmul */
    struct cairn__product_index index;
    struct entry entries[CAIRN__PRODUCTS];
};

static cairn_status call_failed(const struct cairn__cuda *c, const char *doing, cublasStatus_t status) {
    return cairn__fail(status == CUBLAS_STATUS_ALLOC_FAILED ? CAIRN_ENOMEM : CAIRN_EDEVICE, "%s: cuBLASLt, %s: %s",
                       c->name, doing, cublasLtGetStatusName(status));
}

#define TRY_LT(c, doing, call)                                             \
    do {                                                                   \
        const cublasStatus_t lt_ = (call);                                 \
        if (lt_ != CUBLAS_STATUS_SUCCESS) TRY(call_failed(c, doing, lt_)); \
    } while (0)

size_t cairn__products_version(void) {
    return cublasLtGetVersion();
}

/* ---- what is kept of a product ---- */

static const cublasLtEpilogue_t epilogues[] = {
    [CAIRN__EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,    [CAIRN__EPILOGUE_RELU] = CUBLASLT_EPILOGUE_RELU,
    [CAIRN__EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,       [CAIRN__EPILOGUE_BIAS_RELU] = CUBLASLT_EPILOGUE_RELU_BIAS,
    [CAIRN__EPILOGUE_ROW_SUMS] = CUBLASLT_EPILOGUE_BGRADB,
};

static void drop_entry(struct entry *e) {
    if (e->op) cublasLtMatmulDescDestroy(e->op);
    if (e->first) cublasLtMatrixLayoutDestroy(e->first);
    if (e->second) cublasLtMatrixLayoutDestroy(e->second);
    if (e->out) cublasLtMatrixLayoutDestroy(e->out);
    *e = (struct entry){.op = NULL};
}

#define SET(op, attribute, value) \
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value))

static cudaDataType data_type(unsigned type) {
    switch (type) {
    case CAIRN_F16:
        return CUDA_R_16F;
    case CAIRN_BF16:
        return CUDA_R_16BF;
    case CAIRN_F64:
        return CUDA_R_64F;
    default:
        return CUDA_R_32F;
    }
}

/* Matrices in memory, `step` from one of the batch to the next: the transpose of what is multiplied has rows and
 * columns exchanged. */
struct matrices {
    unsigned type;
    uint64_t rows, cols;
    bool trans;
    int64_t ld, step;
};

static cublasStatus_t make_layout(cublasLtMatrixLayout_t *out, const struct matrices *m, uint64_t batch) {
    const int32_t count = (int32_t)batch;
    cublasStatus_t status = cublasLtMatrixLayoutCreate(out, data_type(m->type), m->trans ? m->cols : m->rows,
                                                       m->trans ? m->rows : m->cols, m->ld);
    if (status || batch == 1) return status;
    status = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count));
    if (status) return status;
    return cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m->step,
                                            sizeof(m->step));
}

static cublasComputeType_t compute_type(const struct cairn__product_key *k) {
    if (k->in_type == CAIRN_F64) return CUBLAS_COMPUTE_64F;
    return k->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static cairn_status make_entry(const struct cairn__cuda *c, const struct cairn__product_key *k, struct entry *e) {
    static const char doing[] = "describing a matrix", doing_op[] = "describing a product";
    const cublasOperation_t first = k->trans_first ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = k->trans_second ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType scale = k->in_type == CAIRN_F64 ? CUDA_R_64F : CUDA_R_32F;
    const struct matrices in_first = {k->in_type, k->rows, k->inner, k->trans_first, k->ld_first, k->step_first};
    const struct matrices in_second = {k->in_type, k->inner, k->cols, k->trans_second, k->ld_second, k->step_second};
    const struct matrices in_out = {k->out_type, k->rows, k->cols, false, k->ld_out, k->step_out};
    cairn_status st = CAIRN_OK;
    TRY_LT(c, doing_op, cublasLtMatmulDescCreate(&e->op, compute_type(k), scale));
    TRY_LT(c, doing_op, SET(e->op, TRANSA, first));
    TRY_LT(c, doing_op, SET(e->op, TRANSB, second));
    TRY_LT(c, doing_op, SET(e->op, EPILOGUE, epilogues[k->epilogue]));
    TRY_LT(c, doing, make_layout(&e->first, &in_first, k->batch));
    TRY_LT(c, doing, make_layout(&e->second, &in_second, k->batch));
    TRY_LT(c, doing, make_layout(&e->out, &in_out, k->batch));
    e->made = true;
out:
    return st;
}

static cairn_status set_preference(const struct cairn__cuda *c, cublasLtMatmulPreference_t preference,
                                   const struct cairn__product_key *k) {
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t value;
    } preferences[] = {
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, k->align_first},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, k->align_second},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, k->align_out},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, k->align_out},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
    };
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < sizeof(preferences) / sizeof(preferences[0]); i++) {
        TRY_LT(c, "choosing an algorithm",
               cublasLtMatmulPreferenceSetAttribute(preference, preferences[i].attribute, &preferences[i].value,
                                                    sizeof(preferences[i].value)));
    }
out:
    return st;
}

/* ---- running one ---- */

static cublasStatus_t run(const struct cairn__cuda *c, const struct entry *e, const cublasLtMatmulAlgo_t *algo,
                          const struct cairn__product_plan *plan) {
    const struct cairn__products *ps = c->products;
    const double alpha = plan->alpha, beta = plan->key.accumulate;
    const float alpha_f32 = (float)alpha, beta_f32 = (float)beta;
    const bool wide = plan->key.in_type == CAIRN_F64;
    return cublasLtMatmul(ps->lt, e->op, wide ? (const void *)&alpha : &alpha_f32, plan->first, e->first, plan->second,
                          e->second, wide ? (const void *)&beta : &beta_f32, plan->out, e->out, plan->out, e->out, algo,
                          ps->workspace, ps->workspace_nbytes, c->stream);
}

/* cuBLASLt has no algorithm, or does not support the combination. Other statuses are failures, perhaps transient. */
static bool cannot(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

/* The first run of a product: runs the first candidate that cuBLASLt accepts. */
static cairn_status choose_and_run(const struct cairn__cuda *c, struct entry *e,
                                   const struct cairn__product_plan *plan) {
    cairn_status st = CAIRN_OK;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    int count = 0;
    TRY(set_preference(c, c->products->preference, &plan->key));
    const cublasStatus_t listed =
        cublasLtMatmulAlgoGetHeuristic(c->products->lt, e->op, e->first, e->second, e->out, e->out,
                                       c->products->preference, CANDIDATES, results, &count);
    if (cannot(listed)) count = 0;
    else TRY_LT(c, "choosing an algorithm", listed);
    for (int i = 0; i < count && !e->chosen; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
        const cublasStatus_t status = run(c, e, &results[i].algo, plan);
        if (cannot(status)) continue;
        TRY_LT(c, "multiplying", status);
        e->algo = results[i].algo;
        e->chosen = true;
    }
    e->impossible = !e->chosen;
out:
    return st;
}

/* *done = false: cuBLASLt does not support the product with this epilogue. */
static cairn_status try_plan(const struct cairn__cuda *c, const struct cairn__product_plan *plan, bool *done) {
    cairn_status st = CAIRN_OK;
    bool found = false;
    struct entry *e = &c->products->entries[cairn__product_find(&c->products->index, &plan->key, &found)];
    if (!found || !e->made) { /* not made: creating the descriptors failed the last time */
        drop_entry(e);
        TRY(make_entry(c, &plan->key, e));
    }
    if (e->impossible) goto out;
    if (plan->extra) TRY_LT(c, "describing a product", SET(e->op, BIAS_POINTER, plan->extra));
    if (e->chosen) {
        TRY_LT(c, "multiplying", run(c, e, &e->algo, plan));
    } else {
        TRY(choose_and_run(c, e, plan));
    }
out:
    *done = st == CAIRN_OK && e->chosen;
    return st;
}

/* ---- what cuBLASLt does not do ---- */

/* Row sums of a [k, m] in memory are sums of columns; of an [m, k] they are sums of rows, one by one, which no gradient
 * needs. */
static cairn_status sum_rows(struct cairn_device *d, const struct cairn__matmul *p) {
    const size_t m = (size_t)p->m, k = (size_t)p->k, nbytes = cairn_dtype_nbytes(p->out_type);
    const char *a = p->a;
    cairn_status st = CAIRN_OK;
    if (p->in_type != p->out_type) {
        void *wide = NULL;
        TRY(cairn__cuda_take_room(d, CAIRN__ROOM_OPERAND, m * k * sizeof(float), &wide));
        cairn__pass_cast(d->passes, d, wide, CAIRN_F32, p->a, p->in_type, m * k);
        a = wide;
    }
    if (p->trans_a) {
        d->passes->col_sum(d, p->out_type, p->row_sums, a, k, m);
    } else {
        for (size_t i = 0; i < m; i++)
            d->passes->sum(d, p->out_type, (char *)p->row_sums + i * nbytes, a + i * k * nbytes, k, 1);
    }
out:
    return st;
}

static cairn_status finish(struct cairn_device *d, const struct cairn__matmul *p, const struct cairn__matmul *bare) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    cairn_status st = CAIRN_OK;
    if (p->bias || p->relu) {
        TRY_CUDA(c, "adding a bias",
                 cairn__launch_bias_add(c->stream, p->out_type, p->c, bare->out_type, bare->c, p->bias, (size_t)p->m,
                                        (size_t)p->n, p->relu));
    }
    if (p->row_sums) TRY(sum_rows(d, p));
out:
    return st;
}

static cairn_status product_and_passes(struct cairn_device *d, const struct cairn__matmul *p) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    cairn_status st = CAIRN_OK;
    struct cairn__product_plan plan;
    bool done = false;
    struct cairn__matmul bare = *p;
    bare.relu = false;
    bare.bias = NULL;
    bare.row_sums = NULL;
    if (p->bias && cairn__is_half(p->out_type)) {
        TRY(cairn__cuda_take_room(d, CAIRN__ROOM_PRODUCT, (size_t)(p->m * p->n) * sizeof(float), &bare.c));
        bare.out_type = CAIRN_F32;
    }
    cairn__product_plan(&bare, d->tf32, &plan);
    TRY(try_plan(c, &plan, &done));
    REQUIRE(done, CAIRN_EDEVICE,
            "%s: cuBLASLt has no algorithm for a product of %s [%lld, %lld] and [%lld, %lld] into %s", c->name,
            cairn_dtype_name(bare.in_type), (long long)bare.m, (long long)bare.k, (long long)bare.k, (long long)bare.n,
            cairn_dtype_name(bare.out_type));
    TRY(finish(d, p, &bare));
out:
    return st;
}

/* k = 0: the product is 0, and so are its row sums. */
static cairn_status empty_product(struct cairn_device *d, const struct cairn__matmul *p) {
    const struct cairn__cuda *c = cairn__cuda_of(d);
    const size_t nbytes = cairn_dtype_nbytes(p->out_type);
    cairn_status st = CAIRN_OK;
    struct cairn__matmul rest = *p;
    TRY_CUDA(c, "clearing a product", cudaMemsetAsync(p->c, 0, (size_t)(p->m * p->n) * nbytes, c->stream));
    if (p->row_sums) {
        TRY_CUDA(c, "clearing row sums", cudaMemsetAsync(p->row_sums, 0, (size_t)p->m * nbytes, c->stream));
    }
    rest.row_sums = NULL;
    TRY(finish(d, &rest, p));
out:
    return st;
}

static void fell_back(const struct cairn__cuda *c, const struct cairn__matmul *p, enum fallback kind) {
    static const char *const why[] = {
        [FALLBACK_BIAS] = "the bias is not aligned to 16 bytes, and is added by a pass",
        [FALLBACK_ROW_SUMS] = "the row sums are not aligned to 16 bytes, and are added up by a pass",
        [FALLBACK_EPILOGUE] = "cuBLASLt has no algorithm with the epilogue, which passes compute",
    };
    if (c->products->fallbacks[kind]++ > 0) return;
    cairn__log(CAIRN_LOG_DEBUG, "%s: a product of %s [%lld, %lld] and [%lld, %lld] takes longer than it could: %s",
               c->name, cairn_dtype_name(p->in_type), (long long)p->m, (long long)p->k, (long long)p->k,
               (long long)p->n, why[kind]);
}

cairn_status cairn__cuda_matmul(struct cairn_device *d, const struct cairn__matmul *p) {
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    struct cairn__product_plan plan;
    bool done = false;
    cairn_status st = CAIRN_OK;
    if (p->k == 0) return empty_product(d, p);
    cairn__product_plan(p, d->tf32, &plan);
    c->products->count++;
    if (!plan.bias) TRY(try_plan(c, &plan, &done));
    if (!done) {
        if (plan.bias) fell_back(c, p, FALLBACK_BIAS);
        else if (plan.key.epilogue != CAIRN__EPILOGUE_NONE) fell_back(c, p, FALLBACK_EPILOGUE);
        TRY(product_and_passes(d, p));
    } else if (plan.row_sums) {
        if (!p->bias && !p->relu) fell_back(c, p, FALLBACK_ROW_SUMS);
        TRY(sum_rows(d, p));
    }
out:
    return st;
}

/* ---- batches ---- */

cairn_status cairn__products_batch(struct cairn_device *d, const struct cairn__batch *b) {
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    struct cairn__product_plan plan;
    bool done = false;
    cairn_status st = CAIRN_OK;
    cairn__product_plan_batch(b, d->tf32, &plan);
    TRY(try_plan(c, &plan, &done));
    REQUIRE(done, CAIRN_EDEVICE,
            "%s: cuBLASLt has no algorithm for %lld products of %s [%lld, %lld] and [%lld, %lld] into %s", c->name,
            (long long)b->batch, cairn_dtype_name(b->in_type), (long long)b->m, (long long)b->k, (long long)b->k,
            (long long)b->n, cairn_dtype_name(b->out_type));
out:
    return st;
}

/* ---- creating and destroying ---- */

cairn_status cairn__products_create(struct cairn_device *d, struct cairn__products **out) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    cairn_status st = CAIRN_OK;
    struct cairn__products *ps = NULL;
    uint64_t nbytes = c->arch >= HOPPER ? WORKSPACE_HOPPER : WORKSPACE;
    TRY(cairn__calloc(1, sizeof(*ps), (void **)&ps));
    *out = ps; /* half-made ones are destroyed with the device */
    TRY_LT(c, "starting", cublasLtCreate(&ps->lt));
    TRY(cairn__cache_alloc(c->cache, CAIRN__HOLDS_SCRATCH, nbytes, &ps->workspace));
    ps->workspace_nbytes = nbytes;
    TRY_LT(c, "starting", cublasLtMatmulPreferenceCreate(&ps->preference));
    TRY_LT(c, "starting",
           cublasLtMatmulPreferenceSetAttribute(ps->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &nbytes,
                                                sizeof(nbytes)));
out:
    return st;
}

/* tools/gpu-check reads it. */
static void log_fallbacks(const struct cairn__products *ps) {
    if (ps->count == 0) return;
    cairn__log(CAIRN_LOG_DEBUG,
               "products: %llu; a pass more took %llu with a bias and %llu with row sums that are not aligned to 16 "
               "bytes, and %llu whose epilogue cuBLASLt does not have",
               (unsigned long long)ps->count, (unsigned long long)ps->fallbacks[FALLBACK_BIAS],
               (unsigned long long)ps->fallbacks[FALLBACK_ROW_SUMS],
               (unsigned long long)ps->fallbacks[FALLBACK_EPILOGUE]);
}

/* Its memory on the device goes with the cache. */
void cairn__products_destroy(struct cairn__products **products) {
    struct cairn__products *ps = *products;
    if (!ps) return;
    log_fallbacks(ps);
    for (int i = 0; i < CAIRN__PRODUCTS; i++) drop_entry(&ps->entries[i]);
    if (ps->preference) cublasLtMatmulPreferenceDestroy(ps->preference);
    if (ps->lt) cublasLtDestroy(ps->lt);
    cairn__free(ps);
    *products = NULL;
}
