/* The GPU as a device. Everything is queued on one stream: our own, which does not wait for the legacy default stream,
 * or the user's. Only download, synchronize and free_pinned wait for it; allocating driver memory or returning it may
 * wait too. An upload waits for at most one earlier upload (staging.c).
 *
 * A failure on the GPU surfaces in a later call. Calls that have a status return it. Passes, which have none, keep it
 * in `failed`, which check, synchronize and download return. */
#include "device/cuda/cuda.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "device/cuda/cache.h"
#include "device/cuda/convs.h"
#include "device/cuda/math_table.h"

enum { LEAST_ARCH = 80 }; /* bf16 and tf32 products, and what the kernels are compiled for */

/* ---- errors ---- */

/* Errors with advice; other errors have only their name and NVIDIA's text. */
static const struct {
    cudaError_t error;
    cairn_status status;
    const char *advice;
} known_errors[] = {
#define LOST "; this process has lost the GPU: start the program again"
    {cudaErrorMemoryAllocation, CAIRN_ENOMEM, ""},
    {cudaErrorNoKernelImageForDevice, CAIRN_EDEVICE,
     "; this build of Cairn has no code for that GPU: build it with a toolkit that knows it"},
    {cudaErrorStreamCaptureUnsupported, CAIRN_ESTATE, "; the step did something that no graph can record"},
    {cudaErrorStreamCaptureInvalidated, CAIRN_ESTATE, "; the step did something that no graph can record"},
    {cudaErrorStreamCaptureUnjoined, CAIRN_ESTATE,
     "; the step left work on a stream of its own: make Cairn's stream wait for it"},
    {cudaErrorStreamCaptureIsolation, CAIRN_ESTATE, "; the step waits for work from outside of the recording"},
    {cudaErrorStreamCaptureImplicit, CAIRN_ESTATE, "; the step used the legacy default stream"},
    {cudaErrorIllegalAddress, CAIRN_EDEVICE, "; compute-sanitizer shows where" LOST},
    {cudaErrorMisalignedAddress, CAIRN_EDEVICE, "; compute-sanitizer shows where" LOST},
    {cudaErrorLaunchFailure, CAIRN_EDEVICE, "; compute-sanitizer shows where" LOST},
    {cudaErrorIllegalInstruction, CAIRN_EDEVICE, LOST},
    {cudaErrorHardwareStackError, CAIRN_EDEVICE, LOST},
    {cudaErrorECCUncorrectable, CAIRN_EDEVICE, "; the GPU's memory is faulty: reset or replace it"},
    {cudaErrorDevicesUnavailable, CAIRN_EDEVICE, "; another process uses it exclusively"},
    {cudaErrorSystemNotReady, CAIRN_EDEVICE,
     "; a service of the driver does not run, on machines with NVSwitch most likely nvidia-fabricmanager: start it"},
    {cudaErrorUnsupportedPtxVersion, CAIRN_EDEVICE,
     "; the driver is older than the toolkit that Cairn was built with: update the driver"},
    {cudaErrorCompatNotSupportedOnDevice, CAIRN_EDEVICE,
     "; this GPU does not support the libraries of cuda-compat: update the driver, or take them off LD_LIBRARY_PATH"},
    {cudaErrorInvalidResourceHandle, CAIRN_EDEVICE, "; does the stream belong to this GPU, and is it still alive?"},
#undef LOST
};

static cairn_status describe_error(char *text, size_t nbytes, const char *name, const char *doing, int error) {
    const char *advice = "";
    cairn_status st = CAIRN_EDEVICE;
    for (size_t i = 0; i < sizeof(known_errors) / sizeof(known_errors[0]); i++) {
        if ((int)known_errors[i].error != error) continue;
        advice = known_errors[i].advice;
        st = known_errors[i].status;
    }
    snprintf(text, nbytes, "%s: %s: %s, %s%s", name, doing, cudaGetErrorName((cudaError_t)error),
             cudaGetErrorString((cudaError_t)error), advice);
    return st;
}

cairn_status cairn__cuda_call_failed(const struct cairn__cuda *c, const char *doing, int error) {
    char text[512];
    const cairn_status st = describe_error(text, sizeof(text), c->name, doing, error);
    (void)cudaGetLastError(); /* else the user's own next check would find it */
    return cairn__fail(st, "%s", text);
}

void cairn__cuda_fail(struct cairn__cuda *c, const char *what, int error) {
    (void)cudaGetLastError();
    if (c->failed == CAIRN_OK) c->failed = describe_error(c->failure, sizeof(c->failure), c->name, what, error);
}

bool cairn__cuda_refused(struct cairn_device *d, const char *pass, const char *complaint) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    if (complaint && c->failed == CAIRN_OK) {
        c->failed = CAIRN_EINTERNAL;
        snprintf(c->failure, sizeof(c->failure), "%s on the GPU: %s", pass, complaint);
    }
    return complaint != NULL;
}

void cairn__cuda_queued(struct cairn_device *d, const char *pass, int error) {
    if (error) cairn__cuda_fail(cairn__cuda_of(d), pass, error);
}

void cairn__cuda_kept(struct cairn_device *d, cairn_status status) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    if (status == CAIRN_OK || c->failed != CAIRN_OK) return;
    c->failed = status;
    snprintf(c->failure, sizeof(c->failure), "%s", cairn_last_error());
}

static cairn_status take_faults(const struct cairn__cuda *c) {
    volatile struct cairn__cuda_faults *faults = c->faults;
    const bool index = faults->index != 0, target = faults->target != 0;
    faults->index = faults->target = 0;
    REQUIRE(!index, CAIRN_EINVAL,
            "embedding: on %s an index was outside of the table, and its row was taken as zeros; on device \"cpu\" the "
            "message names it",
            c->name);
    REQUIRE(!target, CAIRN_EINVAL,
            "cross_entropy or nll_loss: on %s a target was neither a class nor ignore_index, and its row counted for "
            "nothing; on device \"cpu\" the message names it",
            c->name);
    return CAIRN_OK;
}

static cairn_status cuda_check(struct cairn_device *d) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    const cairn_status st = c->failed;
    c->failed = CAIRN_OK;
    return st == CAIRN_OK ? take_faults(c) : cairn__fail(st, "%s", c->failure);
}

struct cairn__cuda *cairn__cuda_enter(struct cairn_device *d) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    int now = -1;
    if (cudaGetDevice(&now) != cudaSuccess || now != c->ordinal) (void)cudaSetDevice(c->ordinal);
    return c;
}

/* A recording that the program made would fail at calls that allocate, wait, or use another stream. */
static cairn_status refuse_recording(const struct cairn__cuda *c, struct CUstream_st *stream, const char *what) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cairn_status st = CAIRN_OK;
    TRY_CUDA(c, what, cudaStreamIsCapturing(stream, &status));
    REQUIRE(status == cudaStreamCaptureStatusNone, CAIRN_ESTATE,
            "%s: %s: the program is recording the stream, and this cannot be recorded; cairn_graph_capture records a "
            "step that has run before",
            c->name, what);
out:
    return st;
}

/* ---- opening ---- */

/* Without a driver the runtime's own error is that the driver is too old. */
static cairn_status check_driver(int *driver) {
    int runtime = 0;
    *driver = 0;
    (void)cudaDriverGetVersion(driver);
    (void)cudaRuntimeGetVersion(&runtime);
    REQUIRE(*driver > 0, CAIRN_EDEVICE,
            "there is no NVIDIA driver on this machine, so no GPU can be used; use \"cpu\"");
    REQUIRE(*driver / 1000 >= runtime / 1000, CAIRN_EDEVICE,
            "the NVIDIA driver is too old: it knows CUDA %d.%d, and Cairn was built with CUDA %d.%d; update the driver",
            *driver / 1000, *driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return CAIRN_OK;
}

static cairn_status check_ordinal(const struct cairn__cuda *c) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    REQUIRE(error != cudaErrorNoDevice, CAIRN_EDEVICE,
            "there is a driver but no GPU on this machine, or CUDA_VISIBLE_DEVICES hides it; use \"cpu\"");
    if (error != cudaSuccess) return cairn__cuda_call_failed(c, "looking for GPUs", (int)error);
    REQUIRE(c->ordinal >= 0 && c->ordinal < count, CAIRN_EDEVICE,
            "%s is not there: this machine shows %d GPU%s (CUDA_VISIBLE_DEVICES may hide some)", c->name, count,
            count == 1 ? "" : "s");
    return CAIRN_OK;
}

static cairn_status check_architecture(struct cairn__cuda *c, int driver) {
    cairn_status st = CAIRN_OK;
    struct cudaDeviceProp p;
    TRY_CUDA(c, "reading its properties", cudaGetDeviceProperties(&p, c->ordinal));
    c->arch = p.major * 10 + p.minor;
    REQUIRE(c->arch >= LEAST_ARCH, CAIRN_ENOTSUP, "%s is a %s of compute capability %d.%d; Cairn needs %d.%d or later",
            c->name, p.name, p.major, p.minor, LEAST_ARCH / 10, LEAST_ARCH % 10);
    const size_t lt = cairn__products_version();
    snprintf(c->text, sizeof(c->text), "%s, sm_%d, %.1f GiB, driver %d.%d, cuBLASLt %zu.%zu", p.name, c->arch,
             (double)p.totalGlobalMem / (1 << 30), driver / 1000, driver % 1000 / 10, lt / 10000, lt % 10000 / 100);
out:
    return st;
}

/* ---- the cache's segments ---- */

static cairn_status take_segment(void *cookie, size_t nbytes, void **out) {
    static const char doing[] = "allocating memory";
    const struct cairn__cuda *c = cookie;
    cairn_status st = CAIRN_OK;
    TRY(refuse_recording(c, c->stream, doing));
    const cudaError_t error = cudaMalloc(out, nbytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return CAIRN_ENOMEM; /* the cache writes the message */
    }
    TRY_CUDA(c, doing, error);
out:
    return st;
}

static void give_segment_back(void *cookie, void *p) {
    (void)cookie;
    (void)cudaFree(p);
}

static void ask_for_room(void *cookie, size_t *available, size_t *total) {
    (void)cookie;
    (void)cudaMemGetInfo(available, total);
}

static void cuda_close(struct cairn_device *d) {
    struct cairn__cuda *c = d->state;
    if (!c) return;
    cairn__cuda_enter(d);
    if (c->failed != CAIRN_OK) cairn__log(CAIRN_LOG_ERROR, "%s", c->failure);
    if (c->own) (void)cudaStreamSynchronize(c->stream);
    cairn__convs_destroy(&c->convs);
    cairn__products_destroy(&c->products);
    cairn__staging_destroy(&c->staging);
    cairn__cache_destroy(&c->cache);
    if (c->hand_over) (void)cudaEventDestroy(c->hand_over);
    if (c->own) (void)cudaStreamDestroy(c->own);
    if (c->faults) (void)cudaFreeHost(c->faults);
    cairn__free(c);
    d->state = NULL;
}

static cairn_status cuda_open(struct cairn_device *d, int ordinal) {
    cairn_status st = CAIRN_OK;
    int driver = 0;
    void *partials = NULL;
    struct cairn__cuda *c = NULL;
    TRY(cairn__calloc(1, sizeof(*c), (void **)&c));
    c->ordinal = ordinal;
    snprintf(c->name, sizeof(c->name), "cuda:%d", ordinal);
    d->passes = &cairn__cuda_passes;
    d->math = &cairn__cuda_math;
    TRY(check_driver(&driver));
    TRY(check_ordinal(c));
    TRY(check_architecture(c, driver));
    d->state = c; /* from here on cuda_close closes */
    TRY_CUDA(c, "starting", cudaSetDevice(ordinal));
    TRY_CUDA(c, "making a stream", cudaStreamCreateWithFlags(&c->own, cudaStreamNonBlocking));
    TRY_CUDA(c, "making an event", cudaEventCreateWithFlags(&c->hand_over, cudaEventDisableTiming));
    c->stream = c->own;
    TRY_CUDA(c, "pinning memory of the host",
             cudaHostAlloc((void **)&c->faults, sizeof(*c->faults), cudaHostAllocMapped | cudaHostAllocPortable));
    memset(c->faults, 0, sizeof(*c->faults));
    TRY(cairn__cache_create(&(struct cairn__cache_source){c->name, c, take_segment, give_segment_back, ask_for_room},
                            &c->cache));
    TRY(cairn__cache_alloc(c->cache, CAIRN__HOLDS_SCRATCH, CAIRN__CUDA_PARTIALS, &partials));
    c->partials = partials;
    TRY_CUDA(c, "clearing memory", cudaMemsetAsync(partials, 0, CAIRN__CUDA_PARTIALS, c->stream));
    TRY(cairn__products_create(d, &c->products));
    return CAIRN_OK;
out:
    if (d->state) cuda_close(d);
    else cairn__free(c);
    return st;
}

/* ---- memory ---- */

static cairn_status cuda_alloc(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out) {
    return cairn__cache_alloc(cairn__cuda_enter(d)->cache, holder, nbytes, out);
}

static void cuda_free(struct cairn_device *d, void *p) {
    cairn__cache_free(cairn__cuda_of(d)->cache, p);
}

/* Under one address for host and device, since both have one space of addresses on every GPU that we take. */
static cairn_status cuda_alloc_pinned(struct cairn_device *d, size_t nbytes, void **out) {
    static const char doing[] = "pinning memory of the host";
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    void *p = NULL;
    nbytes += nbytes == 0;
    TRY(refuse_recording(c, c->stream, doing));
    TRY_CUDA(c, doing, cudaHostAlloc(&p, nbytes, cudaHostAllocMapped | cudaHostAllocPortable));
    memset(p, 0, nbytes);
    *out = p;
out:
    return st;
}

static void cuda_free_pinned(struct cairn_device *d, void *p) {
    (void)cudaStreamSynchronize(cairn__cuda_enter(d)->stream);
    (void)cudaFreeHost(p);
}

/* Also between GPUs: all have one address space. */
static cairn_status cuda_copy(struct cairn_device *d, void *dst, const void *src, size_t nbytes) {
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    TRY_CUDA(c, "copying memory", cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDeviceToDevice, c->stream));
out:
    return st;
}

static cairn_status cuda_upload(struct cairn_device *d, void *dst, const void *host, size_t nbytes) {
    struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    TRY(refuse_recording(c, c->stream, "copying from the host"));
    TRY(cairn__cuda_stage(c, dst, host, nbytes));
out:
    return st;
}

static cairn_status cuda_upload_pinned(struct cairn_device *d, void *dst, const void *host, size_t nbytes,
                                       uint64_t *ticket) {
    struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    TRY(refuse_recording(c, c->stream, "copying from the host"));
    TRY(cairn__cuda_stage_pinned(c, dst, host, nbytes, ticket));
out:
    return st;
}

static cairn_status cuda_wait_upload(struct cairn_device *d, uint64_t ticket) {
    return cairn__cuda_await_pinned(cairn__cuda_enter(d), ticket);
}

static cairn_status cuda_synchronize(struct cairn_device *d) {
    static const char doing[] = "waiting for the GPU";
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    TRY(cuda_check(d)); /* the first failure, not an error that followed from it */
    TRY(refuse_recording(c, c->stream, doing));
    TRY_CUDA(c, doing, cudaStreamSynchronize(c->stream));
    TRY(take_faults(c));
out:
    return st;
}

static cairn_status cuda_download(struct cairn_device *d, void *host, const void *src, size_t nbytes) {
    static const char doing[] = "copying to the host";
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    TRY(cuda_check(d));
    TRY(refuse_recording(c, c->stream, doing));
    TRY_CUDA(c, doing, cudaMemcpyAsync(host, src, nbytes, cudaMemcpyDeviceToHost, c->stream));
    TRY_CUDA(c, doing, cudaStreamSynchronize(c->stream));
    TRY(take_faults(c));
out:
    return st;
}

static const char *cuda_describe(const struct cairn_device *d) {
    return ((const struct cairn__cuda *)d->state)->text;
}

/* Memory that the driver knows: a GPU's, managed, or pinned. */
static bool cuda_reaches(struct cairn_device *d, const void *p) {
    struct cudaPointerAttributes attributes;
    cairn__cuda_enter(d);
    if (cudaPointerGetAttributes(&attributes, p) == cudaSuccess) return attributes.type != cudaMemoryTypeUnregistered;
    (void)cudaGetLastError();
    return false;
}

/* ---- graphs ---- */

/* Thread-local: other threads of the program may use CUDA meanwhile. */
static cairn_status cuda_capture_begin(struct cairn_device *d) {
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    TRY(cuda_check(d));
    REQUIRE(
        c->stream && c->stream != cudaStreamLegacy, CAIRN_ESTATE,
        "CUDA's legacy default stream cannot be recorded; give cairn_cuda_set_stream one that cudaStreamCreate made");
    TRY_CUDA(c, "beginning to record", cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));
out:
    return st;
}

static cairn_status cuda_capture_end(struct cairn_device *d, void **out) {
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const cudaError_t ended = cudaStreamEndCapture(c->stream, &graph);
    (void)cudaGetLastError();
    TRY(cuda_check(d)); /* the error of a pass that failed says more */
    TRY_CUDA(c, "recording", ended);
    TRY_CUDA(c, "counting what was recorded", cudaGraphGetNodes(graph, NULL, &d->recorded_nodes));
    TRY_CUDA(c, "making a graph of the recording", cudaGraphInstantiate(&exec, graph, 0));
    TRY_CUDA(c, "uploading a graph", cudaGraphUpload(exec, c->stream));
    *out = exec;
    exec = NULL;
out:
    if (exec) (void)cudaGraphExecDestroy(exec);
    if (graph) (void)cudaGraphDestroy(graph);
    if (st != CAIRN_OK) *out = NULL;
    return st;
}

static cairn_status cuda_graph_launch(struct cairn_device *d, void *graph) {
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    TRY_CUDA(c, "launching a recorded step", cudaGraphLaunch(graph, c->stream));
out:
    return st;
}

static void cuda_graph_free(struct cairn_device *d, void *graph) {
    cairn__cuda_enter(d);
    (void)cudaGraphExecDestroy(graph);
}

/* ---- streams ---- */

static void *cuda_stream(struct cairn_device *d) {
    return cairn__cuda_enter(d)->stream;
}

/* The new stream waits for the old one, so that memory freed there can be reused at once. Recording the event on the
 * new stream fails for a stream of another GPU, which could wait for it. */
static cairn_status cuda_set_stream(struct cairn_device *d, void *stream) {
    static const char leaving[] = "leaving a stream", changing[] = "changing to another stream";
    struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    if (stream == c->stream) return CAIRN_OK;
    TRY(refuse_recording(c, c->stream, leaving));
    TRY(refuse_recording(c, stream, changing));
    TRY_CUDA(c, changing, cudaEventRecord(c->hand_over, stream));
    TRY_CUDA(c, leaving, cudaEventRecord(c->hand_over, c->stream));
    TRY_CUDA(c, changing, cudaStreamWaitEvent(stream, c->hand_over, 0));
    c->stream = stream;
out:
    return st;
}

/* ---- several GPUs ---- */

static int cuda_count(struct cairn_device *d) {
    int count = 1;
    (void)d;
    if (cudaGetDeviceCount(&count) != cudaSuccess) (void)cudaGetLastError();
    return count;
}

/* Where that fails the driver takes copies through memory of the host. */
static void cuda_connect(struct cairn_device *d, const struct cairn_device *other) {
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    int can = 0;
    if (c->ordinal == other->ordinal) return;
    if (cudaDeviceCanAccessPeer(&can, c->ordinal, other->ordinal) == cudaSuccess && can)
        (void)cudaDeviceEnablePeerAccess(other->ordinal, 0); /* or it is enabled already */
    (void)cudaGetLastError();
}

/* The event may be recorded again at once: a wait refers to the last recording before the wait was queued. */
static cairn_status cuda_wait_for(struct cairn_device *d, struct cairn_device *other) {
    static const char doing[] = "letting a GPU wait for another";
    const struct cairn__cuda *o = cairn__cuda_enter(other);
    cairn_status st = CAIRN_OK;
    TRY(refuse_recording(o, o->stream, doing));
    TRY_CUDA(o, doing, cudaEventRecord(o->hand_over, o->stream));
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    TRY(refuse_recording(c, c->stream, doing));
    TRY_CUDA(c, doing, cudaStreamWaitEvent(c->stream, o->hand_over, 0));
out:
    return st;
}

const struct cairn__device_ops cairn__cuda_ops = {
    .size = sizeof(struct cairn__device_ops),
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_pinned = cuda_alloc_pinned,
    .free_pinned = cuda_free_pinned,
    .copy = cuda_copy,
    .upload = cuda_upload,
    .upload_pinned = cuda_upload_pinned,
    .wait_upload = cuda_wait_upload,
    .download = cuda_download,
    .synchronize = cuda_synchronize,
    .check = cuda_check,
    .matmul = cairn__cuda_matmul,
    .describe = cuda_describe,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .reaches = cuda_reaches,
    .stream = cuda_stream,
    .set_stream = cuda_set_stream,
    .count = cuda_count,
    .connect = cuda_connect,
    .wait_for = cuda_wait_for,
};
