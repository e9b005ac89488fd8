/* The part of libcudnn that the module uses: 2-D convolutions of NCHW arrays and their gradients, with f32 sums in the
 * order of channels and taps and one rounding. Returns an error where cuDNN does (unset objects, mismatched types or
 * sizes, too little workspace), and aborts on requests that Cairn must never make: an algorithm with atomic adds,
 * arrays outside device memory. The workspace is overwritten. */
#include "standin/standin.h"

#include <cudnn.h>

#include <atomic>
#include <stdio.h>
#include <string.h>
#include <vector>

#include "core/half.h"

struct cudnnContext {
    cudaStream_t stream;
    void *memory; /* its own, of the device */
};

struct cudnnTensorStruct {
    bool set;
    cudnnDataType_t type;
    int size[4];
};

struct cudnnFilterStruct {
    bool set;
    cudnnDataType_t type;
    int size[4];
};

struct cudnnActivationStruct {
    bool set;
    cudnnActivationMode_t mode;
};

struct cudnnConvolutionStruct {
    bool set;
    int padding[2], stride[2], dilation[2], groups;
    cudnnMathType_t math;
};

namespace {

std::atomic<unsigned long long> convolutions;

/* One of the three products, of arrays that are used when its turn comes. */
struct problem {
    int n, c, h, w, k, r, s, p, q;
    cudnnDataType_t type;
    cudnnConvolutionStruct how;
    char *src, *weights, *dst;
    const char *bias;
    char *workspace;
    size_t workspace_nbytes;
};

cudnnStatus_t refuse(cudnnStatus_t status, const char *why) {
    fprintf(stderr, "stand-in for CUDA: a convolution: %s\n", why);
    return status;
}

#define REFUSE(condition, status, why)             \
    do {                                           \
        if (condition) return refuse(status, why); \
    } while (0)

#define TRY(call)                                            \
    do {                                                     \
        const cudnnStatus_t status_ = (call);                \
        if (status_ != CUDNN_STATUS_SUCCESS) return status_; \
    } while (0)

bool mode_is(const char *word) {
    const char *mode = getenv("CAIRN_STANDIN_CUDNN");
    return mode && strcmp(mode, word) == 0;
}

/* ---- elements ---- */

size_t width_of(cudnnDataType_t type) {
    return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

float get(cudnnDataType_t type, const char *x, size_t i) {
    if (type == CUDNN_DATA_HALF) return cairn__f16_to_f32(((const uint16_t *)x)[i]);
    if (type == CUDNN_DATA_BFLOAT16) return cairn__bf16_to_f32(((const uint16_t *)x)[i]);
    return ((const float *)x)[i];
}

void put(cudnnDataType_t type, char *x, size_t i, float value) {
    if (type == CUDNN_DATA_HALF) ((uint16_t *)x)[i] = cairn__f32_to_f16(value);
    else if (type == CUDNN_DATA_BFLOAT16) ((uint16_t *)x)[i] = cairn__f32_to_bf16(value);
    else ((float *)x)[i] = value;
}

/* An operand, as its products read it: tensor cores read f32 to 10 bits of fraction. */
std::vector<float> read(const problem &p, const char *x, size_t n) {
    const bool tf32 = p.type == CUDNN_DATA_FLOAT && p.how.math != CUDNN_FMA_MATH;
    std::vector<float> out(n);
    for (size_t i = 0; i < n; i++) {
        const float value = get(p.type, x, i);
        out[i] = !tf32 || cairn__f32_nonfinite(value)
                     ? value
                     : cairn__f32_from_bits((cairn__f32_bits(value) + 0x1000u) & ~0x1fffu);
    }
    return out;
}

void write(const problem &p, char *x, const std::vector<float> &values) {
    for (size_t i = 0; i < values.size(); i++) put(p.type, x, i, values[i]);
}

/* ---- the three products ---- */

size_t src_count(const problem &p) {
    return (size_t)p.n * p.c * p.h * p.w;
}

size_t weights_count(const problem &p) {
    return (size_t)p.k * (p.c / p.how.groups) * p.r * p.s;
}

size_t dst_count(const problem &p) {
    return (size_t)p.n * p.k * p.p * p.q;
}

/* Calls f(place in src, in weights, in dst) for each term of all sums: images, dst's channels, src's, taps, pixels. */
template <class F> void for_each_term(const problem &p, F f) {
    const int of = p.c / p.how.groups, ko = p.k / p.how.groups;
    for (int n = 0; n < p.n; n++)
        for (int k = 0; k < p.k; k++)
            for (int c = 0; c < of; c++)
                for (int t = 0; t < p.r * p.s; t++)
                    for (int i = 0; i < p.p * p.q; i++) {
                        const int y = i / p.q * p.how.stride[0] - p.how.padding[0] + t / p.s * p.how.dilation[0];
                        const int x = i % p.q * p.how.stride[1] - p.how.padding[1] + t % p.s * p.how.dilation[1];
                        if (y < 0 || y >= p.h || x < 0 || x >= p.w) continue;
                        const size_t channel = (size_t)n * p.c + k / ko * of + c;
                        f((channel * p.h + y) * p.w + x, ((size_t)k * of + c) * p.r * p.s + t,
                          ((size_t)n * p.k + k) * p.p * p.q + i);
                    }
}

void scribble(const problem &p) {
    if (p.workspace_nbytes) memset(p.workspace, 0xff, p.workspace_nbytes);
}

void write_dst(const problem &p) {
    const std::vector<float> x = read(p, p.src, src_count(p)), w = read(p, p.weights, weights_count(p));
    std::vector<float> y(dst_count(p));
    scribble(p);
    for_each_term(p, [&](size_t src, size_t weight, size_t dst) { y[dst] += x[src] * w[weight]; });
    for (size_t i = 0; p.bias && i < y.size(); i++) y[i] += get(p.type, p.bias, i / (p.p * p.q) % p.k);
    write(p, p.dst, y);
}

void write_src(const problem &p) {
    const std::vector<float> y = read(p, p.dst, dst_count(p)), w = read(p, p.weights, weights_count(p));
    std::vector<float> x(src_count(p));
    scribble(p);
    for_each_term(p, [&](size_t src, size_t weight, size_t dst) { x[src] += y[dst] * w[weight]; });
    write(p, p.src, x);
}

void write_weights(const problem &p) {
    const std::vector<float> x = read(p, p.src, src_count(p)), y = read(p, p.dst, dst_count(p));
    std::vector<float> w(weights_count(p));
    scribble(p);
    for_each_term(p, [&](size_t src, size_t weight, size_t dst) { w[weight] += y[dst] * x[src]; });
    write(p, p.weights, w);
}

/* ---- what is asked for ---- */

int reach(int size, int padding, int taps, int dilation, int stride) {
    return (size + 2 * padding - (dilation * (taps - 1) + 1)) / stride + 1;
}

/* Objects that are set, and fit together. */
cudnnStatus_t describe(cudnnTensorDescriptor_t src, cudnnFilterDescriptor_t weights, cudnnConvolutionDescriptor_t conv,
                       cudnnTensorDescriptor_t dst, problem *p) {
    REFUSE(!src || !weights || !conv || !dst, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an object is NULL");
    REFUSE(!src->set || !weights->set || !conv->set || !dst->set, CUDNN_STATUS_BAD_PARAM, "an object is not set");
    REFUSE(src->type != weights->type || src->type != dst->type, CUDNN_STATUS_BAD_PARAM, "types that differ");
    *p = problem();
    p->n = src->size[0], p->c = src->size[1], p->h = src->size[2], p->w = src->size[3];
    p->k = weights->size[0], p->r = weights->size[2], p->s = weights->size[3];
    p->p = dst->size[2], p->q = dst->size[3];
    p->type = src->type;
    p->how = *conv;
    const int g = conv->groups;
    REFUSE(p->c % g || p->k % g || weights->size[1] != p->c / g, CUDNN_STATUS_BAD_PARAM, "channels of groups");
    REFUSE(dst->size[0] != p->n || dst->size[1] != p->k, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "images or channels");
    REFUSE(p->p != reach(p->h, conv->padding[0], p->r, conv->dilation[0], conv->stride[0]) ||
               p->q != reach(p->w, conv->padding[1], p->s, conv->dilation[1], conv->stride[1]),
           CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "the planes of the result");
    REFUSE(p->type == CUDNN_DATA_FLOAT && conv->math == CUDNN_TENSOR_OP_MATH, CUDNN_STATUS_BAD_PARAM,
           "f32 on tensor cores, as if they took it");
    if (mode_is("refuse")) return CUDNN_STATUS_NOT_SUPPORTED_SHAPE;
    if (mode_is("no-engines")) return CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED;
    return CUDNN_STATUS_SUCCESS;
}

/* Of every algorithm. */
size_t workspace_of(const problem &) {
    return (size_t)standin_env("CAIRN_STANDIN_CUDNN_WORKSPACE", 4096);
}

void check_array(const char *what, const void *x, size_t n, cudnnDataType_t type) {
    if (!standin_is_device(x, n * width_of(type))) standin_die("cuDNN: %s is not one array of the device", what);
    if ((uintptr_t)x % 16) standin_die("cuDNN: %s, %p, is not aligned to 16", what, x);
}

cudnnStatus_t start(cudnnHandle_t handle, const char *name, const void *alpha, const void *beta, problem p,
                    void *workspace, size_t nbytes, void (*compute)(const problem &)) {
    if (!handle) standin_die("cuDNN: a call without a handle");
    if (*(const float *)alpha != 1 || *(const float *)beta != 0) standin_die("cuDNN: factors other than 1 and 0");
    check_array("src", p.src, src_count(p), p.type);
    check_array("weights", p.weights, weights_count(p), p.type);
    check_array("dst", p.dst, dst_count(p), p.type);
    p.workspace = (char *)workspace;
    p.workspace_nbytes = workspace_of(p);
    REFUSE(nbytes < p.workspace_nbytes, CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "the workspace is too small");
    if (nbytes && !standin_is_device(workspace, nbytes)) standin_die("cuDNN: the workspace is not on the device");
    if (mode_is("refuse-late")) return CUDNN_STATUS_NOT_SUPPORTED;
    if (mode_is("no-memory")) return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    if (mode_is("fail")) return CUDNN_STATUS_EXECUTION_FAILED;
    convolutions++;
    return standin_queue(handle->stream, name, [p, compute] { compute(p); }) ? CUDNN_STATUS_EXECUTION_FAILED
                                                                             : CUDNN_STATUS_SUCCESS;
}

template <class T> cudnnStatus_t make(T **out) {
    *out = new T();
    return CUDNN_STATUS_SUCCESS;
}

template <class T> cudnnStatus_t drop(T *object) {
    delete object;
    return CUDNN_STATUS_SUCCESS;
}

bool is_known(cudnnDataType_t type) {
    return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16;
}

template <class T> cudnnStatus_t set(T *object, cudnnDataType_t type, int a, int b, int c, int d) {
    REFUSE(!object, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an object is NULL");
    REFUSE(!is_known(type), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a type");
    REFUSE(a < 1 || b < 1 || c < 1 || d < 1, CUDNN_STATUS_BAD_PARAM, "a size below 1");
    *object = T{true, type, {a, b, c, d}};
    return CUDNN_STATUS_SUCCESS;
}

#define ONLY(algorithm, wanted) \
    if ((algorithm) != (wanted)) standin_die("cuDNN: algorithm %d does not repeat exactly", (int)(algorithm))

} // namespace

/* Queued so far, recorded ones too. */
extern "C" unsigned long long standin_convolutions(void);

unsigned long long standin_convolutions(void) {
    return convolutions;
}

/* ---- facts, handles and objects ---- */

size_t cudnnGetVersion(void) {
    return mode_is("old") ? 8907 : CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    switch (CUDNN_STATUS_CATEGORY((int)status)) {
    case CUDNN_STATUS_BAD_PARAM:
        return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
        return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR:
        return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_EXECUTION_FAILED:
        return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
        return "CUDNN_STATUS_NOT_INITIALIZED";
    }
}

void cudnnGetLastErrorString(char *message, size_t nbytes) {
    snprintf(message, nbytes, "%s", "it is\na stand-in");
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    if (mode_is("none")) return CUDNN_STATUS_NOT_INITIALIZED;
    make(handle);
    if (cudaMalloc(&(*handle)->memory, 1024) == cudaSuccess) return CUDNN_STATUS_SUCCESS;
    drop(*handle);
    return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    cudaFree(handle->memory);
    return drop(handle);
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out) {
    return make(out);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t object) {
    return drop(object);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t object, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
    REFUSE(format != CUDNN_TENSOR_NCHW, CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "a layout");
    return set(object, type, n, c, h, w);
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *out) {
    return make(out);
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t object) {
    return drop(object);
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t object, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
    REFUSE(format != CUDNN_TENSOR_NCHW, CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "a layout");
    return set(object, type, k, c, h, w);
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *out) {
    return make(out);
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t object) {
    return drop(object);
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t object, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t, double) {
    *object = cudnnActivationStruct{true, mode};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *out) {
    return make(out);
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t object) {
    return drop(object);
}

/* Begins it anew, which cuDNN does not: groups and the kind of arithmetic come after it. */
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t object, int pad_h, int pad_w, int u, int v,
                                              int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
    REFUSE(!object, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an object is NULL");
    REFUSE(pad_h < 0 || pad_w < 0 || u < 1 || v < 1 || dilation_h < 1 || dilation_w < 1, CUDNN_STATUS_BAD_PARAM,
           "padding, stride or dilation");
    REFUSE(mode != CUDNN_CROSS_CORRELATION, CUDNN_STATUS_NOT_SUPPORTED, "kernels that are turned round");
    REFUSE(compute != CUDNN_DATA_FLOAT, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums that are not f32");
    *object = cudnnConvolutionStruct{true, {pad_h, pad_w}, {u, v}, {dilation_h, dilation_w}, 1, CUDNN_DEFAULT_MATH};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t object, int groups) {
    REFUSE(!object || !object->set || groups < 1, CUDNN_STATUS_BAD_PARAM, "groups");
    object->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t object, cudnnMathType_t math) {
    REFUSE(!object || !object->set, CUDNN_STATUS_BAD_PARAM, "the kind of arithmetic");
    object->math = math;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- workspaces ---- */

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                                      cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algorithm,
                                                      size_t *nbytes) {
    problem p;
    ONLY(algorithm, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
    TRY(describe(x, w, conv, y, &p));
    *nbytes = workspace_of(p);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t conv,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t *nbytes) {
    problem p;
    ONLY(algorithm, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
    TRY(describe(dx, w, conv, dy, &p));
    *nbytes = workspace_of(p);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t
cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
                                               cudnnConvolutionDescriptor_t conv, cudnnFilterDescriptor_t dw,
                                               cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *nbytes) {
    problem p;
    ONLY(algorithm, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
    TRY(describe(x, dw, conv, dy, &p));
    *nbytes = workspace_of(p);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- convolutions ---- */

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_of,
                                      const void *x, cudnnFilterDescriptor_t w_of, const void *w,
                                      cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algorithm,
                                      void *workspace, size_t nbytes, const void *beta, cudnnTensorDescriptor_t y_of,
                                      void *y) {
    problem p;
    ONLY(algorithm, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
    TRY(describe(x_of, w_of, conv, y_of, &p));
    p.src = (char *)x, p.weights = (char *)w, p.dst = (char *)y;
    return start(handle, "cuDNN, forward", alpha, beta, p, workspace, nbytes, write_dst);
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, cudnnTensorDescriptor_t x_of, const void *x, cudnnFilterDescriptor_t w_of,
    const void *w, cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algorithm, void *workspace,
    size_t nbytes, const void *alpha2, cudnnTensorDescriptor_t z_of, const void *z, cudnnTensorDescriptor_t bias_of,
    const void *bias, cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_of, void *y) {
    problem p;
    /* the one that it has without an activation */
    ONLY(algorithm, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
    TRY(describe(x_of, w_of, conv, y_of, &p));
    REFUSE(!activation || !activation->set || activation->mode != CUDNN_ACTIVATION_IDENTITY, CUDNN_STATUS_NOT_SUPPORTED,
           "an activation");
    REFUSE(!bias_of || !bias_of->set || bias_of->type != p.type || bias_of->size[0] != 1 || bias_of->size[1] != p.k ||
               bias_of->size[2] != 1 || bias_of->size[3] != 1,
           CUDNN_STATUS_BAD_PARAM, "a bias that is not [1, k, 1, 1]");
    REFUSE(!z_of || !z || memcmp(z_of->size, y_of->size, sizeof(z_of->size)) != 0, CUDNN_STATUS_BAD_PARAM, "z");
    p.src = (char *)x, p.weights = (char *)w, p.dst = (char *)y, p.bias = (const char *)bias;
    check_array("bias", bias, p.k, p.type);
    return start(handle, "cuDNN, forward with a bias", alpha1, alpha2, p, workspace, nbytes, write_dst);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w_of,
                                           const void *w, cudnnTensorDescriptor_t dy_of, const void *dy,
                                           cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void *workspace, size_t nbytes, const void *beta,
                                           cudnnTensorDescriptor_t dx_of, void *dx) {
    problem p;
    ONLY(algorithm, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
    TRY(describe(dx_of, w_of, conv, dy_of, &p));
    p.src = (char *)dx, p.weights = (char *)w, p.dst = (char *)dy;
    return start(handle, "cuDNN, gradient of data", alpha, beta, p, workspace, nbytes, write_src);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_of,
                                             const void *x, cudnnTensorDescriptor_t dy_of, const void *dy,
                                             cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace, size_t nbytes,
                                             const void *beta, cudnnFilterDescriptor_t dw_of, void *dw) {
    problem p;
    ONLY(algorithm, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
    TRY(describe(x_of, dw_of, conv, dy_of, &p));
    p.src = (char *)x, p.weights = (char *)dw, p.dst = (char *)dy;
    return start(handle, "cuDNN, gradient of weights", alpha, beta, p, workspace, nbytes, write_weights);
}
