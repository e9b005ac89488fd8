/* cuDNN as a table of functions: its convolutions, types and errors.
 *
 * Of its two interfaces this is the older one, whose convolutions are a call each; cuDNN 9 has it still, though its
 * header calls it deprecated, and the graphs that are to follow it take some fifteen descriptors for the same. Its
 * algorithms are an implicit product for each part, which cuDNN documents as repeating exactly on one kind of GPU:
 * IMPLICIT_PRECOMP_GEMM forward, ALGO_1 for gradients of data and of weights. The faster ones add by atomics (ALGO_0 of
 * both, and ALGO_3), or transform (Winograd, FFT), with larger errors than products have.
 * Source: https://docs.nvidia.com/deeplearning/cudnn/latest/developer/misc.html, "Reproducibility (Determinism)".
 *
 * Sums are f32: the convolution's type, whatever that of the arrays is. f32 arrays go without tensor cores unless tf32
 * allows them (CUDNN_FMA_MATH). */
#include <cudnn.h>

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/status.h"
#include "device/cuda/convs.h"
#include "device/module.h"

#if CUDNN_MAJOR < 9
#error "Cairn needs cuDNN 9 or later"
#endif

enum { LEAST_VERSION = 90000 };

struct cairn__conv_handle {
    cudnnHandle_t cudnn;
    cudnnActivationDescriptor_t identity; /* the call that adds a bias requires an activation */
};

struct cairn__conv_plan {
    cudnnTensorDescriptor_t src, dst, bias;
    cudnnFilterDescriptor_t weights;
    cudnnConvolutionDescriptor_t conv;
    enum cairn__conv_part part;
};

/* ---- errors ---- */

static cairn_status failed(const char *doing, cudnnStatus_t error) {
    char detail[300] = "";
    cudnnGetLastErrorString(detail, sizeof(detail));
    for (char *at = detail; *at; at++) {
        if (*at == '\n') *at = ' ';
    }
    /* Where cuDNN lacks something im2col does without: arguments that it takes, memory of its own, the libraries of its
     * engines, which it opens when it first wants them. */
    const bool has_failed = (int)CUDNN_STATUS_CATEGORY((int)error) == CUDNN_STATUS_EXECUTION_FAILED;
    return cairn__fail(has_failed ? CAIRN_EDEVICE : CAIRN_ENOTSUP, "%s: cuDNN says %s%s%s", doing,
                       cudnnGetErrorString(error), detail[0] ? ": " : "", detail);
}

#define TRY_CUDNN(doing, call)                                          \
    do {                                                                \
        const cudnnStatus_t error_ = (call);                            \
        if (error_ != CUDNN_STATUS_SUCCESS) TRY(failed(doing, error_)); \
    } while (0)

/* ---- the handle ---- */

static void cudnn_close(struct cairn__conv_handle **handle) {
    struct cairn__conv_handle *h = *handle;
    if (!h) return;
    if (h->identity) cudnnDestroyActivationDescriptor(h->identity);
    if (h->cudnn) cudnnDestroy(h->cudnn);
    cairn__free(h);
    *handle = NULL;
}

/* Replicas are threads, but only one thread at a time may make cuDNN's first handle. */
static cudnnStatus_t create_handle(cudnnHandle_t *out) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    const cudnnStatus_t status = cudnnCreate(out);
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}

static cairn_status cudnn_open(struct cairn__conv_handle **out, char *version, size_t nbytes) {
    static const char doing[] = "starting cuDNN";
    const size_t v = cudnnGetVersion();
    struct cairn__conv_handle *h = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(v >= LEAST_VERSION, CAIRN_ENOTSUP, "cuDNN is too old: it is version %zu, and %d is the oldest that will do",
            v, LEAST_VERSION);
    snprintf(version, nbytes, "cuDNN %zu.%zu.%zu", v / 10000, v % 10000 / 100, v % 100);
    TRY(cairn__calloc(1, sizeof(*h), (void **)&h));
    TRY_CUDNN(doing, create_handle(&h->cudnn));
    TRY_CUDNN(doing, cudnnCreateActivationDescriptor(&h->identity));
    TRY_CUDNN(doing, cudnnSetActivationDescriptor(h->identity, CUDNN_ACTIVATION_IDENTITY, CUDNN_PROPAGATE_NAN, 0));
    *out = h;
    return CAIRN_OK;
out:
    cudnn_close(&h);
    return st;
}

/* ---- plans ---- */

/* cuDNN's sizes are ints, and so are its kernels' offsets. */
static bool is_small(const struct cairn__conv_key *k) {
    const double arrays[] = {(double)k->n * (double)k->c * (double)k->h * (double)k->w,
                             (double)k->k * (double)k->c * (double)k->r * (double)k->s,
                             (double)k->n * (double)k->k * (double)k->p * (double)k->q};
    bool small = true;
    for (int i = 0; i < 3; i++) small &= arrays[i] <= INT_MAX;
    for (int i = 0; i < 2; i++)
        small &= k->stride[i] <= INT_MAX && k->padding[i] <= INT_MAX && k->dilation[i] <= INT_MAX;
    return small;
}

static void cudnn_drop(struct cairn__conv_plan **plan) {
    struct cairn__conv_plan *p = *plan;
    if (!p) return;
    if (p->src) cudnnDestroyTensorDescriptor(p->src);
    if (p->dst) cudnnDestroyTensorDescriptor(p->dst);
    if (p->bias) cudnnDestroyTensorDescriptor(p->bias);
    if (p->weights) cudnnDestroyFilterDescriptor(p->weights);
    if (p->conv) cudnnDestroyConvolutionDescriptor(p->conv);
    cairn__free(p);
    *plan = NULL;
}

static cudnnStatus_t make_tensor(cudnnTensorDescriptor_t *out, cudnnDataType_t type, int64_t n, int64_t c, int64_t h,
                                 int64_t w) {
    const cudnnStatus_t status = cudnnCreateTensorDescriptor(out);
    return status ? status : cudnnSetTensor4dDescriptor(*out, CUDNN_TENSOR_NCHW, type, (int)n, (int)c, (int)h, (int)w);
}

static cairn_status describe(struct cairn__conv_plan *p, const struct cairn__conv_key *k) {
    static const char doing[] = "describing a convolution";
    const cudnnDataType_t type = k->type == CAIRN_F16    ? CUDNN_DATA_HALF
                                 : k->type == CAIRN_BF16 ? CUDNN_DATA_BFLOAT16
                                                         : CUDNN_DATA_FLOAT;
    const cudnnMathType_t math = k->type != CAIRN_F32 ? CUDNN_TENSOR_OP_MATH
                                 : k->tf32            ? CUDNN_DEFAULT_MATH
                                                      : CUDNN_FMA_MATH;
    cairn_status st = CAIRN_OK;
    TRY_CUDNN(doing, make_tensor(&p->src, type, k->n, k->c, k->h, k->w));
    TRY_CUDNN(doing, make_tensor(&p->dst, type, k->n, k->k, k->p, k->q));
    if (k->bias) TRY_CUDNN(doing, make_tensor(&p->bias, type, 1, k->k, 1, 1));
    TRY_CUDNN(doing, cudnnCreateFilterDescriptor(&p->weights));
    TRY_CUDNN(doing, cudnnSetFilter4dDescriptor(p->weights, type, CUDNN_TENSOR_NCHW, (int)k->k, (int)(k->c / k->groups),
                                                (int)k->r, (int)k->s));
    TRY_CUDNN(doing, cudnnCreateConvolutionDescriptor(&p->conv));
    TRY_CUDNN(doing, cudnnSetConvolution2dDescriptor(p->conv, (int)k->padding[0], (int)k->padding[1], (int)k->stride[0],
                                                     (int)k->stride[1], (int)k->dilation[0], (int)k->dilation[1],
                                                     CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    TRY_CUDNN(doing, cudnnSetConvolutionGroupCount(p->conv, (int)k->groups));
    TRY_CUDNN(doing, cudnnSetConvolutionMathType(p->conv, math));
out:
    return st;
}

static const cudnnConvolutionFwdAlgo_t forward = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
static const cudnnConvolutionBwdDataAlgo_t backward_data = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
static const cudnnConvolutionBwdFilterAlgo_t backward_filter = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

static cudnnStatus_t ask_workspace(cudnnHandle_t h, const struct cairn__conv_plan *p, size_t *nbytes) {
    switch (p->part) {
    case CAIRN__CONV_SRC:
        return cudnnGetConvolutionBackwardDataWorkspaceSize(h, p->weights, p->dst, p->conv, p->src, backward_data,
                                                            nbytes);
    case CAIRN__CONV_WEIGHTS:
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(h, p->src, p->dst, p->conv, p->weights, backward_filter,
                                                              nbytes);
    default:
        return cudnnGetConvolutionForwardWorkspaceSize(h, p->src, p->weights, p->conv, p->dst, forward, nbytes);
    }
}

static cairn_status cudnn_plan(struct cairn__conv_handle *handle, const struct cairn__conv_key *k,
                               struct cairn__conv_plan **out, size_t *workspace) {
    struct cairn__conv_plan *p = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(is_small(k), CAIRN_ENOTSUP, "an array has more elements than cuDNN counts");
    REQUIRE(!k->bias || k->part == CAIRN__CONV_DST, CAIRN_ENOTSUP,
            "cuDNN adds no bias to what a transposed convolution computes");
    TRY(cairn__calloc(1, sizeof(*p), (void **)&p));
    p->part = (enum cairn__conv_part)k->part;
    TRY(describe(p, k));
    TRY_CUDNN("choosing an algorithm", ask_workspace(handle->cudnn, p, workspace));
    *out = p;
    return CAIRN_OK;
out:
    cudnn_drop(&p);
    return st;
}

/* ---- running one ---- */

static cudnnStatus_t run(const struct cairn__conv_handle *h, const struct cairn__conv_plan *p,
                         const struct cairn__conv_arrays *a, void *workspace, size_t nbytes) {
    const float one = 1, zero = 0;
    switch (p->part) {
    case CAIRN__CONV_SRC:
        return cudnnConvolutionBackwardData(h->cudnn, &one, p->weights, a->weights, p->dst, a->dst, p->conv,
                                            backward_data, workspace, nbytes, &zero, p->src, a->src);
    case CAIRN__CONV_WEIGHTS:
        return cudnnConvolutionBackwardFilter(h->cudnn, &one, p->src, a->src, p->dst, a->dst, p->conv, backward_filter,
                                              workspace, nbytes, &zero, p->weights, a->weights);
    default:
        break;
    }
    if (!p->bias) {
        return cudnnConvolutionForward(h->cudnn, &one, p->src, a->src, p->weights, a->weights, p->conv, forward,
                                       workspace, nbytes, &zero, p->dst, a->dst);
    }
    /* Its z, which a factor of 0 leaves out, may be what it writes. */
    return cudnnConvolutionBiasActivationForward(h->cudnn, &one, p->src, a->src, p->weights, a->weights, p->conv,
                                                 forward, workspace, nbytes, &zero, p->dst, a->dst, p->bias, a->bias,
                                                 h->identity, p->dst, a->dst);
}

static cairn_status cudnn_run(struct cairn__conv_handle *h, const struct cairn__conv_plan *p,
                              struct CUstream_st *stream, const struct cairn__conv_arrays *arrays, void *workspace,
                              size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY_CUDNN("changing to a stream", cudnnSetStream(h->cudnn, stream));
    TRY_CUDNN("a convolution", run(h, p, arrays, workspace, nbytes));
out:
    return st;
}

static const struct cairn__conv_library table = {
    .size = sizeof(struct cairn__conv_library),
    .open = cudnn_open,
    .close = cudnn_close,
    .plan = cudnn_plan,
    .drop = cudnn_drop,
    .run = cudnn_run,
};

const struct cairn__module_tables cairn__module_tables = {.name = "cudnn", .all = {{CAIRN__CONV_LIBRARY, &table}}};
