/* The part of libcublasLt that the module uses: D = act(alpha op(A) op(B) + beta C + bias) in column-major order, for
 * each of a batch; f32 sums (f64 of f64) in the order of k, one rounding. Arguments are checked more strictly than by
 * NVIDIA: every operand lies within one device allocation and has the alignment that was passed to the heuristic, 16
 * bytes for operands of an epilogue. The workspace is overwritten. */
#include "standin/standin.h"

#include <cublasLt.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

#include "core/half.h"

namespace {

enum { OPERANDS = 4, WORKSPACE = 1 << 16 };

/* What descriptors hold. */
struct layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t step; /* from one matrix of the batch to the next */
};

struct operation {
    cublasComputeType_t compute;
    cudaDataType scale_type;
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    void *bias;
    int32_t bias_type; /* -1 = D's */
};

struct preference {
    uint64_t workspace;
    uint32_t alignment[OPERANDS]; /* of A, B, C, D */
};

/* What an algorithm was chosen for. */
struct algorithm {
    uint64_t m, n, k, workspace;
    uint32_t alignment[OPERANDS];
    int32_t batch;
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits");

/* A call; the pointers are used when its turn comes. */
struct product {
    operation op;
    layout of[OPERANDS];
    const char *at[OPERANDS];
    double alpha, beta;
    uint64_t m, n, k;
    bool bias, relu, sums_a, sums_b;
    cudaDataType bias_type;
    char *workspace;
    uint64_t workspace_used;
};

/* A descriptor of the library, as it is made here. */
template <class T, class Opaque> struct holding : Opaque { T value; };

template <class T, class Opaque> T &held(Opaque *opaque) {
    return static_cast<holding<T, Opaque> *>(opaque)->value;
}

template <class T, class Opaque> cublasStatus_t make(Opaque **out, const T &value) {
    auto *made = new holding<T, Opaque>();
    made->value = value;
    *out = made;
    return CUBLAS_STATUS_SUCCESS;
}

template <class T, class Opaque> cublasStatus_t drop(Opaque *opaque) {
    delete static_cast<holding<T, Opaque> *>(opaque);
    return CUBLAS_STATUS_SUCCESS;
}

#define REFUSE(condition, status, ...)                     \
    do {                                                   \
        if (condition) return refuse(status, __VA_ARGS__); \
    } while (0)

cublasStatus_t refuse(cublasStatus_t status, const char *why) {
    if (status == CUBLAS_STATUS_INVALID_VALUE) fprintf(stderr, "stand-in for CUDA: product: %s\n", why);
    return status;
}

/* ---- elements ---- */

size_t width_of(cudaDataType type) {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

bool is_half(cudaDataType type) {
    return type == CUDA_R_16F || type == CUDA_R_16BF;
}

double get(cudaDataType type, const char *x, uint64_t i) {
    if (type == CUDA_R_64F) return ((const double *)x)[i];
    if (type == CUDA_R_16F) return cairn__f16_to_f32(((const uint16_t *)x)[i]);
    if (type == CUDA_R_16BF) return cairn__bf16_to_f32(((const uint16_t *)x)[i]);
    return ((const float *)x)[i];
}

/* value is an f32 but for f64. */
void put(cudaDataType type, char *x, uint64_t i, double value) {
    if (type == CUDA_R_16F) ((uint16_t *)x)[i] = cairn__f32_to_f16((float)value);
    else if (type == CUDA_R_16BF) ((uint16_t *)x)[i] = cairn__f32_to_bf16((float)value);
    else if (type == CUDA_R_64F) ((double *)x)[i] = value;
    else ((float *)x)[i] = (float)value;
}

/* To 10 bits of fraction, as tensor cores read f32. */
float to_tf32(float x) {
    return cairn__f32_nonfinite(x) ? x : cairn__f32_from_bits((cairn__f32_bits(x) + 0x1000u) & ~0x1fffu);
}

/* op(X) as R, [rows, cols] column-major and dense. */
template <class R> std::vector<R> unpacked(const product &p, int operand, uint64_t rows, uint64_t cols) {
    const layout &l = p.of[operand];
    const bool trans = (operand == 0 ? p.op.trans_a : p.op.trans_b) != CUBLAS_OP_N;
    std::vector<R> x(rows * cols);
    for (uint64_t c = 0; c < cols; c++) {
        for (uint64_t r = 0; r < rows; r++) {
            const R value = (R)get(l.type, p.at[operand], trans ? c + r * (uint64_t)l.ld : r + c * (uint64_t)l.ld);
            x[r + c * rows] = p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? to_tf32((float)value) : value;
        }
    }
    return x;
}

/* ---- the product ---- */

template <class R> void write_column(const product &p, uint64_t j, const std::vector<R> &sums) {
    const layout &d = p.of[3];
    for (uint64_t i = 0; i < p.m; i++) {
        R value = (R)p.alpha * sums[i];
        if (p.beta != 0) value += (R)p.beta * (R)get(p.of[2].type, p.at[2], i + j * (uint64_t)p.of[2].ld);
        if (p.bias) value += (R)get(p.bias_type, (const char *)p.op.bias, i);
        if (p.relu && value < 0) value = 0;
        put(d.type, const_cast<char *>(p.at[3]), i + j * (uint64_t)d.ld, value);
    }
}

template <class R> void multiply_one(const product &p) {
    const std::vector<R> a = unpacked<R>(p, 0, p.m, p.k), b = unpacked<R>(p, 1, p.k, p.n);
    std::vector<R> sums(p.m);
    for (uint64_t j = 0; j < p.n; j++) {
        std::fill(sums.begin(), sums.end(), R(0));
        for (uint64_t l = 0; l < p.k; l++) {
            for (uint64_t i = 0; i < p.m; i++) sums[i] += a[i + l * p.m] * b[l + j * p.k];
        }
        write_column(p, j, sums);
    }
    for (uint64_t i = 0; p.sums_a && i < p.m; i++) {
        R sum = 0;
        for (uint64_t l = 0; l < p.k; l++) sum += a[i + l * p.m];
        put(p.bias_type, (char *)p.op.bias, i, sum);
    }
    for (uint64_t j = 0; p.sums_b && j < p.n; j++) {
        R sum = 0;
        for (uint64_t l = 0; l < p.k; l++) sum += b[l + j * p.k];
        put(p.bias_type, (char *)p.op.bias, j, sum);
    }
}

void multiply(product p) {
    if (p.workspace_used) memset(p.workspace, 0xff, p.workspace_used);
    for (int32_t i = 0; i < p.of[3].batch; i++) {
        (p.of[0].type == CUDA_R_64F ? multiply_one<double> : multiply_one<float>)(p);
        for (int o = 0; o < OPERANDS; o++) p.at[o] += p.of[o].step * (int64_t)width_of(p.of[o].type);
    }
}

/* ---- what is asked for ---- */

/* Shapes that fit together, types that the library documents for f32 arithmetic. */
cublasStatus_t describe(const operation &op, const layout of[OPERANDS], product *p) {
    p->op = op;
    memcpy(p->of, of, sizeof(p->of));
    const layout &a = of[0], &b = of[1], &c = of[2], &d = of[3];
    p->m = op.trans_a == CUBLAS_OP_N ? a.rows : a.cols;
    p->k = op.trans_a == CUBLAS_OP_N ? a.cols : a.rows;
    p->n = op.trans_b == CUBLAS_OP_N ? b.cols : b.rows;
    p->bias = op.epilogue == CUBLASLT_EPILOGUE_BIAS || op.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    p->relu = op.epilogue == CUBLASLT_EPILOGUE_RELU || op.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    p->sums_a = op.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    p->sums_b = op.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    p->bias_type = op.bias_type < 0 ? d.type : (cudaDataType)op.bias_type;
    REFUSE((op.trans_b == CUBLAS_OP_N ? b.rows : b.cols) != p->k, CUBLAS_STATUS_INVALID_VALUE,
           "op(A) and op(B) differ in k");
    REFUSE(d.rows != p->m || d.cols != p->n || c.rows != p->m || c.cols != p->n, CUBLAS_STATUS_INVALID_VALUE,
           "C or D is not [m, n]");
    REFUSE(p->m == 0 || p->n == 0 || p->k == 0, CUBLAS_STATUS_INVALID_VALUE, "an empty product");
    for (int i = 0; i < OPERANDS; i++) {
        REFUSE(of[i].ld < (int64_t)of[i].rows, CUBLAS_STATUS_INVALID_VALUE, "a leading dimension below the rows");
        REFUSE(of[i].type != CUDA_R_32F && of[i].type != CUDA_R_64F && !is_half(of[i].type),
               CUBLAS_STATUS_NOT_SUPPORTED, "type");
        REFUSE(of[i].batch != d.batch || of[i].batch < 1, CUBLAS_STATUS_INVALID_VALUE, "batches of different counts");
    }
    REFUSE(d.batch > 1 && (d.step < d.ld * (int64_t)d.cols || c.step != d.step), CUBLAS_STATUS_INVALID_VALUE,
           "results of a batch that overlap, or C is not D");
    const bool wide = a.type == CUDA_R_64F, tf32 = op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    REFUSE(op.scale_type != (wide ? CUDA_R_64F : CUDA_R_32F) || a.type != b.type || c.type != d.type,
           CUBLAS_STATUS_NOT_SUPPORTED, "types");
    REFUSE(d.type != a.type && (d.type != CUDA_R_32F || wide), CUBLAS_STATUS_NOT_SUPPORTED, "type of D");
    REFUSE(wide ? op.compute != CUBLAS_COMPUTE_64F
                : op.compute != CUBLAS_COMPUTE_32F && (!tf32 || a.type != CUDA_R_32F),
           CUBLAS_STATUS_NOT_SUPPORTED, "compute type");
    REFUSE(wide && op.epilogue != CUBLASLT_EPILOGUE_DEFAULT, CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue of f64");
    REFUSE(p->bias_type != d.type, CUBLAS_STATUS_NOT_SUPPORTED, "type of bias");
    const bool known = op.epilogue == CUBLASLT_EPILOGUE_DEFAULT || p->bias || p->relu || p->sums_a || p->sums_b;
    REFUSE(!known, CUBLAS_STATUS_NOT_SUPPORTED, "epilogue");
    return CUBLAS_STATUS_SUCCESS;
}

/* Bias gradients come with tensor cores only, which want halves in whole packs of 16 bytes. */
bool has_algorithm(const product &p, const preference &wish) {
    if (!p.sums_a && !p.sums_b) return true;
    if (!is_half(p.of[0].type) || p.m % 8 || p.n % 8 || p.k % 8) return false;
    for (uint32_t alignment : wish.alignment) {
        if (alignment % 16) return false;
    }
    return true;
}

/* The whole operand lies on the device, aligned as promised. */
cublasStatus_t check_operand(const product &p, int i, uint32_t alignment) {
    const layout &l = p.of[i];
    const uint64_t elements = (uint64_t)(l.batch - 1) * (uint64_t)l.step + (l.cols - 1) * (uint64_t)l.ld + l.rows;
    const uint64_t step = l.batch > 1 ? (uint64_t)l.step * width_of(l.type) : 0;
    REFUSE(!standin_is_device(p.at[i], elements * width_of(l.type)), CUBLAS_STATUS_INVALID_VALUE,
           "an operand that is not inside one allocation of the device");
    REFUSE((uintptr_t)p.at[i] % alignment || step % alignment, CUBLAS_STATUS_INVALID_VALUE,
           "an operand is aligned worse than the heuristic was told");
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_call(const product &p, const algorithm &chosen, uint64_t workspace_nbytes) {
    REFUSE(chosen.m != p.m || chosen.n != p.n || chosen.k != p.k || chosen.batch != p.of[3].batch,
           CUBLAS_STATUS_INVALID_VALUE, "an algorithm of another product");
    for (int i = 0; i < OPERANDS; i++) {
        const cublasStatus_t status = check_operand(p, i, chosen.alignment[i]);
        if (status) return status;
    }
    REFUSE(chosen.workspace > workspace_nbytes, CUBLAS_STATUS_INVALID_VALUE, "the workspace is too small");
    REFUSE(chosen.workspace && (!standin_is_device(p.workspace, workspace_nbytes) || (uintptr_t)p.workspace % 256),
           CUBLAS_STATUS_INVALID_VALUE, "the workspace is not device memory, or not aligned to 256");
    const uint64_t biases = p.bias || p.sums_a ? p.m : p.sums_b ? p.n : 0;
    REFUSE(biases && !standin_is_device(p.op.bias, biases * width_of(p.bias_type)), CUBLAS_STATUS_INVALID_VALUE,
           "a bias that is not inside one allocation of the device");
    if (biases && (uintptr_t)p.op.bias % 16) standin_die("an epilogue's operand, %p, is not aligned to 16", p.op.bias);
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute's value, of exactly the size it has. */
template <class T> cublasStatus_t take(T *to, const void *value, size_t nbytes) {
    REFUSE(!value || nbytes != sizeof(T), CUBLAS_STATUS_INVALID_VALUE, "the value of an attribute has another size");
    memcpy(to, value, sizeof(T));
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

/* ---- handles and descriptors ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = (cublasLtHandle_t) new int;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete (int *)handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) {
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                   : "CUBLAS_STATUS_?";
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
    return make(out, layout{type, rows, cols, ld, 1, 0});
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t nbytes) {
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return take(&held<layout>(l).batch, value, nbytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return take(&held<layout>(l).step, value, nbytes);
    default:
        standin_die("attribute %d of a matrix is not known here", attribute);
    }
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    return drop<layout>(l);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale_type) {
    return make(out, operation{compute, scale_type, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, -1});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    return drop<operation>(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t nbytes) {
    operation &op = held<operation>(desc);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return take(&op.trans_a, value, nbytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return take(&op.trans_b, value, nbytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return take(&op.epilogue, value, nbytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return take(&op.bias, value, nbytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return take(&op.bias_type, value, nbytes);
    default:
        standin_die("attribute %d of a product is not known here", attribute);
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    return make(out, preference{0, {256, 256, 256, 256}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish) {
    return drop<preference>(wish);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t nbytes) {
    preference &p = held<preference>(wish);
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return take(&p.workspace, value, nbytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return take(&p.alignment[0], value, nbytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return take(&p.alignment[1], value, nbytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return take(&p.alignment[2], value, nbytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return take(&p.alignment[3], value, nbytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return nbytes == sizeof(uint32_t) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    default:
        standin_die("preference %d of products is not known here", attribute);
    }
}

/* ---- calls ---- */

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t wish, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    const layout of[OPERANDS] = {held<layout>(a), held<layout>(b), held<layout>(c), held<layout>(d)};
    const preference &prefers = held<preference>(wish);
    product p = {};
    *found = 0;
    REFUSE(wanted < 1, CUBLAS_STATUS_INVALID_VALUE, "no algorithm is wanted");
    const cublasStatus_t status = describe(held<operation>(desc), of, &p);
    if (status) return status;
    if (!has_algorithm(p, prefers)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const algorithm chosen = {p.m,
                              p.n,
                              p.k,
                              prefers.workspace < WORKSPACE ? 0 : (uint64_t)WORKSPACE,
                              {prefers.alignment[0], prefers.alignment[1], prefers.alignment[2], prefers.alignment[3]},
                              p.of[3].batch};
    memset(&results[0], 0, sizeof(results[0]));
    memcpy(&results[0].algo, &chosen, sizeof(chosen));
    results[0].workspaceSize = chosen.workspace;
    results[0].wavesCount = 1;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_nbytes,
                              cudaStream_t stream) {
    const layout of[OPERANDS] = {held<layout>(a), held<layout>(b), held<layout>(c), held<layout>(d)};
    const void *const at[OPERANDS] = {A, B, C, D};
    REFUSE(!algo, CUBLAS_STATUS_INVALID_VALUE, "no algorithm was given");
    const algorithm &chosen = *(const algorithm *)algo;
    product p = {};
    const cublasStatus_t status = describe(held<operation>(desc), of, &p);
    if (status) return status;
    for (int i = 0; i < OPERANDS; i++) p.at[i] = (const char *)at[i];
    const bool wide = p.op.scale_type == CUDA_R_64F;
    p.alpha = wide ? *(const double *)alpha : *(const float *)alpha;
    p.beta = wide ? *(const double *)beta : *(const float *)beta;
    p.workspace = (char *)workspace;
    p.workspace_used = chosen.workspace;
    const cublasStatus_t fits = check_call(p, chosen, workspace_nbytes);
    if (fits) return fits;
    return standin_queue(stream, "a product", [p] { multiply(p); }) ? CUBLAS_STATUS_EXECUTION_FAILED
                                                                    : CUBLAS_STATUS_SUCCESS;
}
