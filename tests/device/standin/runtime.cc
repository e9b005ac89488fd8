/* The part of libcudart that the module uses. A stream is a queue whose work runs when the host waits for it, so that a
 * program gets the ordering that CUDA guarantees and no more. Calls that the real runtime refuses during stream capture
 * fail here, too, and invalidate the capture. */
#include "standin/standin.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

struct item {
    std::string name;
    std::function<void()> work;
    std::function<bool()> ready; /* none = always */
    std::shared_ptr<void> kept;  /* of a graph's item */
    bool everywhere;             /* it touches other GPUs' memory, too */
};

/* One record of an event; a wait for it may outlive the event. */
struct mark {
    cudaStream_t stream = NULL;
    bool passed = true, captured = false;
};

enum { QUEUED_AT_MOST = 1000 };

} // namespace

struct CUgraph_st {
    std::vector<item> items;
};

struct CUgraphExec_st : CUgraph_st {};

struct CUevent_st {
    std::shared_ptr<mark> at = std::make_shared<mark>(); /* the last one */
};

struct CUstream_st {
    int device = 0;
    bool blocking = true; /* takes turns with the default stream */
    std::deque<item> queue;
    std::unique_ptr<CUgraph_st> capture;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id owner;      /* of the capture */
    bool broken = false;        /* the capture is */
    cudaStream_t joined = NULL; /* the stream whose capture this one is in, since it waited for an event there */
    bool unjoined = false;      /* and has recorded what that stream has not waited for */
};

namespace {

struct {
    std::recursive_mutex lock;
    std::vector<cudaStream_t> streams;
    CUstream_st legacy;
    unsigned long long waits = 0;
    std::map<std::string, unsigned long long> queued; /* how often, by name */
    long long begun = 0;                              /* items of any queue */
    cudaError_t failed = cudaSuccess;                 /* one of them has, and all that comes after it does */
} runtime;

thread_local int current;
thread_local cudaError_t last = cudaSuccess;

#define LOCK std::lock_guard<std::recursive_mutex> hold(runtime.lock)

cudaError_t say(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

cudaStream_t stream_of(cudaStream_t stream) {
    return stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread ? &runtime.legacy : stream;
}

/* ---- queues ---- */

bool lazy() {
    static const bool is = standin_env("CAIRN_STANDIN_LAZY", 1) != 0;
    return is;
}

bool holds_up() {
    static const bool does = standin_env("CAIRN_STANDIN_HOLD", 0) != 0;
    return does;
}

/* false: nothing is there, or it waits for something. */
bool run_one(cudaStream_t s) {
    if (s->queue.empty()) return false;
    if (!runtime.failed && s->queue.front().ready && !s->queue.front().ready()) return false;
    const item first = std::move(s->queue.front());
    s->queue.pop_front();
    static const long long fails = standin_env("CAIRN_STANDIN_FAIL", 0);
    if (++runtime.begun == fails) runtime.failed = cudaErrorIllegalAddress;
    if (runtime.failed) return true;
    standin_open open(first.name, first.everywhere ? (int)STANDIN_EVERY_GPU : s->device);
    first.work();
    return true;
}

/* Lets other threads run while this one waits for what they do. It yields 20 times, which is quick if they are about to
 * do it, and then sleeps, which leaves them the processor. The caller holds the lock. */
class patience {
    int turns = 0;

  public:
    void let_go() {
        runtime.lock.unlock();
        if (turns++ < 20) sched_yield();
        else usleep(50);
        runtime.lock.lock();
    }
};

/* For a host that waits. What s waits for may stand in a stream that no host waits for. */
void run_or_let_go(cudaStream_t s, patience &others) {
    if (run_one(s)) return;
    const std::vector<cudaStream_t> streams = runtime.streams;
    for (cudaStream_t other : streams) {
        if (run_one(other)) return;
    }
    others.let_go();
}

void drain(cudaStream_t s) {
    if (s->queue.empty()) return;
    {
        standin_open open("the device", s->device); /* once for all of them */
        while (run_one(s)) {}
    }
    for (patience others; !s->queue.empty();) run_or_let_go(s, others);
}

/* Of the thread's GPU. */
void drain_all() {
    drain(&runtime.legacy);
    const std::vector<cudaStream_t> streams = runtime.streams; /* others may come and go meanwhile */
    for (cudaStream_t s : streams) {
        if (s->device == current) drain(s);
    }
}

/* Where the device has failed, nothing is left to wait for. */
bool has_passed(const mark &m) {
    while (!m.passed && run_one(m.stream)) {}
    return m.passed || m.stream->queue.empty();
}

void wait_for(const mark &m) {
    for (patience others; !has_passed(m);) run_or_let_go(m.stream, others);
}

/* The stream whose capture takes what is queued on s; NULL = it is not captured. */
cudaStream_t origin_of(cudaStream_t s) {
    return s->joined ? s->joined : s->capture ? s : NULL;
}

/* The default stream and those that are not cudaStreamNonBlocking run in the order of the calls. */
void take_turns(cudaStream_t s) {
    if (s == &runtime.legacy) {
        for (cudaStream_t other : runtime.streams) {
            if (other->blocking) drain(other);
        }
    } else if (s->blocking) {
        drain(&runtime.legacy);
    }
}

cudaError_t queue(cudaStream_t s, std::string name, std::function<void()> work, std::function<bool()> ready = {},
                  std::shared_ptr<void> kept = {}, bool everywhere = false) {
    if (runtime.failed) return runtime.failed;
    if (s->device != current) return cudaErrorInvalidResourceHandle;
    const cudaStream_t origin = origin_of(s);
    if (origin && origin->broken) return cudaErrorStreamCaptureInvalidated;
    if (origin) {
        origin->capture->items.push_back(
            {std::move(name), std::move(work), std::move(ready), std::move(kept), everywhere});
        s->unjoined = s != origin;
        return cudaSuccess;
    }
    take_turns(s);
    runtime.queued[name]++;
    s->queue.push_back({std::move(name), std::move(work), std::move(ready), {}, everywhere});
    while (s->queue.size() > (lazy() ? QUEUED_AT_MOST : 0) && run_one(s)) {}
    return runtime.failed;
}

/* ---- what a capture forbids ---- */

cudaError_t broken(cudaStream_t s, cudaError_t why) {
    s->broken = true;
    return why;
}

/* For calls that wait, or that CUDA calls unsafe: refused while anything is captured, in any mode but the relaxed, and
 * in the thread's where it is another thread's. */
cudaError_t unsafe() {
    cudaError_t error = runtime.failed;
    for (cudaStream_t s : runtime.streams) {
        const bool elsewhere = s->mode == cudaStreamCaptureModeThreadLocal && s->owner != std::this_thread::get_id();
        if (s->capture && s->mode != cudaStreamCaptureModeRelaxed && !elsewhere)
            error = broken(s, cudaErrorStreamCaptureUnsupported);
    }
    return error;
}

/* The same, counted. */
cudaError_t waits() {
    runtime.waits++;
    return unsafe();
}

#define TRY(call)                                      \
    do {                                               \
        const cudaError_t error_ = (call);             \
        if (error_ != cudaSuccess) return say(error_); \
    } while (0)

/* ---- GPUs ---- */

std::string driver() {
    const char *said = getenv("CAIRN_STANDIN_DRIVER");
    return said ? said : "";
}

cudaError_t count_gpus(int *count) {
    *count = 0;
    if (driver() != "") return cudaErrorInsufficientDriver;
    *count = (int)standin_env("CAIRN_STANDIN_GPUS", 1);
    if (*count > STANDIN_GPUS) standin_die("CAIRN_STANDIN_GPUS is %d; %d can be had", *count, (int)STANDIN_GPUS);
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t check_gpu(int device) {
    int count;
    const cudaError_t error = count_gpus(&count);
    return error ? error : device < 0 || device >= count ? cudaErrorInvalidDevice : cudaSuccess;
}

int capability() {
    return (int)standin_env("CAIRN_STANDIN_CC", 90);
}

/* ---- copies ---- */

/* Whether p is on the side of a copy that its kind says. */
cudaError_t check_side(const void *p, size_t nbytes, bool device, const char *what) {
    if (device ? standin_is_device(p, nbytes) || standin_is_pinned(p, nbytes) : !standin_in_range(p))
        return cudaSuccess;
    fprintf(stderr, "stand-in for CUDA: %s of a copy of %zu bytes, %p, is not %s\n", what, nbytes, p,
            device ? "inside one allocation of the device" : "the host's");
    return cudaErrorInvalidValue;
}

cudaError_t check_copy(void *dst, const void *src, size_t nbytes, cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return cudaSuccess;
    TRY(check_side(dst, nbytes, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice, "the destination"));
    return check_side(src, nbytes, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice, "the source");
}

/* Between GPUs, too, whichever of them has the stream. */
bool crosses(const void *dst, const void *src, cudaStream_t s) {
    const int to = standin_owner(dst), from = standin_owner(src);
    return (to >= 0 && to != s->device) || (from >= 0 && from != s->device);
}

/* Memory of the host that is not pinned is read before the call returns, and written before it returns. */
cudaError_t copy(void *dst, const void *src, size_t nbytes, cudaMemcpyKind kind, cudaStream_t s) {
    if (nbytes == 0) return cudaSuccess;
    TRY(check_copy(dst, src, nbytes, kind));
    const bool reads_host = !standin_in_range(src) && !standin_is_pinned(src, nbytes);
    const bool writes_host = !standin_in_range(dst) && !standin_is_pinned(dst, nbytes);
    if (s->capture && (reads_host || writes_host)) return broken(s, cudaErrorStreamCaptureUnsupported);
    if (reads_host) {
        const std::string kept((const char *)src, nbytes);
        return queue(s, "a copy from the host", [=] { memcpy(dst, kept.data(), nbytes); });
    }
    TRY(queue(
        s, "a copy", [=] { memmove(dst, src, nbytes); }, {}, {}, crosses(dst, src, s)));
    if (writes_host) runtime.waits++, drain(s);
    return runtime.failed;
}

} // namespace

cudaError_t standin_queue(cudaStream_t stream, std::string name, std::function<void()> work) {
    LOCK;
    return say(queue(stream_of(stream), std::move(name), std::move(work)));
}

cudaError_t standin_queue_when(cudaStream_t stream, std::string name, std::function<bool()> ready,
                               std::function<void()> work, std::shared_ptr<void> kept) {
    LOCK;
    return say(queue(stream_of(stream), std::move(name), std::move(work), std::move(ready), std::move(kept)));
}

standin_guard::standin_guard() {
    runtime.lock.lock();
}

standin_guard::~standin_guard() {
    runtime.lock.unlock();
}

void standin_guard::let_go() {
    runtime.lock.unlock();
    usleep(50);
    runtime.lock.lock();
}

unsigned long long standin_waits(void) {
    LOCK;
    return runtime.waits;
}

void standin_queued(void (*each)(void *ctx, const char *name, unsigned long long count), void *ctx) {
    LOCK;
    for (const auto &of : runtime.queued) each(ctx, of.first.c_str(), of.second);
}

/* ---- GPUs and errors ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    return say(count_gpus(count));
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = driver() == "none" ? 0 : driver() == "old" ? 11040 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    TRY(check_gpu(device));
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}

/* As on a machine without links: copies go all the same. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 0;
    TRY(check_gpu(device));
    TRY(check_gpu(peer));
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
    return say(cudaErrorPeerAccessUnsupported);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    LOCK;
    TRY(check_gpu(device));
    size_t free_bytes;
    memset(properties, 0, sizeof(*properties));
    snprintf(properties->name, sizeof(properties->name), "a stand-in on the CPU");
    properties->major = capability() / 10;
    properties->minor = capability() % 10;
    properties->multiProcessorCount = 2;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    standin_memory_info(&free_bytes, &properties->totalGlobalMem);
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define NAME(code) \
    case code:     \
        return #code;
        NAME(cudaSuccess)
        NAME(cudaErrorInvalidValue)
        NAME(cudaErrorMemoryAllocation)
        NAME(cudaErrorInvalidConfiguration)
        NAME(cudaErrorInsufficientDriver)
        NAME(cudaErrorNoDevice)
        NAME(cudaErrorInvalidDevice)
        NAME(cudaErrorInvalidResourceHandle)
        NAME(cudaErrorPeerAccessUnsupported)
        NAME(cudaErrorIllegalState)
        NAME(cudaErrorNotReady)
        NAME(cudaErrorStreamCaptureUnsupported)
        NAME(cudaErrorStreamCaptureInvalidated)
        NAME(cudaErrorStreamCaptureImplicit)
        NAME(cudaErrorStreamCaptureIsolation)
        NAME(cudaErrorStreamCaptureUnjoined)
        NAME(cudaErrorCapturedEvent)
        NAME(cudaErrorIllegalAddress)
#undef NAME
    default:
        return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t error) {
    return cudaGetErrorName(error);
}

cudaError_t standin_error(cudaError_t error) {
    return say(error);
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **p, size_t nbytes) {
    LOCK;
    TRY(waits());
    TRY(check_gpu(current));
    *p = nbytes ? standin_device_alloc(nbytes, current) : NULL;
    return say(*p || !nbytes ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *p) {
    LOCK;
    TRY(waits());
    drain_all();
    return say(!p || standin_device_free(p) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **p, size_t nbytes, unsigned) {
    LOCK;
    TRY(waits());
    *p = nbytes ? standin_pinned_alloc(nbytes) : NULL;
    return say(*p || !nbytes ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *p) {
    LOCK;
    TRY(waits());
    drain_all();
    return say(!p || standin_pinned_free(p) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p) {
    LOCK;
    memset(attributes, 0, sizeof(*attributes));
    attributes->type = standin_is_device(p, 1)   ? cudaMemoryTypeDevice
                       : standin_is_pinned(p, 1) ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    LOCK;
    TRY(check_gpu(current));
    standin_memory_info(free_bytes, total_bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, cudaMemcpyKind kind, cudaStream_t stream) {
    LOCK;
    return say(copy(dst, src, nbytes, kind, stream_of(stream)));
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t nbytes, cudaMemcpyKind kind) {
    LOCK;
    TRY(waits());
    TRY(copy(dst, src, nbytes, kind, &runtime.legacy));
    drain(&runtime.legacy);
    return say(runtime.failed);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t nbytes, cudaStream_t stream) {
    LOCK;
    TRY(check_side(p, nbytes, true, "the destination"));
    return say(queue(stream_of(stream), "a memset", [=] { memset(p, value, nbytes); }));
}

cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    LOCK;
    if (width > pitch) return say(cudaErrorInvalidValue);
    if (height == 0) return cudaSuccess;
    TRY(check_side(p, (height - 1) * pitch + width, true, "the destination"));
    return say(queue(stream_of(stream), "a memset of rows", [=] {
        for (size_t i = 0; i < height; i++) memset((char *)p + i * pitch, value, width);
    }));
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    LOCK;
    TRY(check_gpu(current));
    *stream = new CUstream_st;
    (*stream)->device = current;
    (*stream)->blocking = !(flags & cudaStreamNonBlocking);
    runtime.streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int nbytes, int device) {
    TRY(check_gpu(device));
    snprintf(text, (size_t)nbytes, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    LOCK;
    drain(stream);
    for (size_t i = 0; i < runtime.streams.size(); i++) {
        if (runtime.streams[i] == stream) runtime.streams.erase(runtime.streams.begin() + (long)i);
    }
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    LOCK;
    TRY(waits());
    take_turns(stream_of(stream));
    drain(stream_of(stream));
    return say(runtime.failed);
}

cudaError_t cudaDeviceSynchronize(void) {
    LOCK;
    TRY(waits());
    drain_all();
    return say(runtime.failed);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    LOCK;
    cudaStream_t s = stream_of(stream);
    const std::shared_ptr<mark> at = event->at;
    if (at->captured && origin_of(at->stream) && !s->capture) s->joined = origin_of(at->stream);
    if (origin_of(s) && at->captured && origin_of(at->stream) == origin_of(s)) {
        if (at->stream != s) at->stream->unjoined = false;
        return cudaSuccess;
    }
    if (origin_of(s) || at->captured) return say(broken(s, cudaErrorStreamCaptureIsolation));
    const int was = current;
    current = s->device; /* streams wait for events of other GPUs, too */
    const cudaError_t error = queue(
        s, "a wait", [] {}, [at] { return has_passed(*at); });
    current = was;
    if (error == cudaSuccess && holds_up()) {
        wait_for(*at);
        while (run_one(s)) {}
    }
    return say(error);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    TRY(check_gpu(current));
    *event = new CUevent_st;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    LOCK;
    const auto at = event->at = std::make_shared<mark>();
    at->stream = stream_of(stream);
    at->captured = origin_of(at->stream) != NULL;
    if (at->captured) return cudaSuccess;
    at->passed = false;
    return say(queue(at->stream, "an event", [at] { at->passed = true; }));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    LOCK;
    TRY(unsafe());
    const mark &m = *event->at;
    if (m.captured) return say(cudaErrorCapturedEvent);
    if (!m.passed) run_one(m.stream); /* time goes by */
    return runtime.failed ? say(runtime.failed) : m.passed ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    LOCK;
    TRY(waits());
    if (event->at->captured) return say(cudaErrorCapturedEvent);
    wait_for(*event->at);
    return say(runtime.failed);
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    LOCK;
    cudaStream_t s = stream_of(stream);
    if (s == &runtime.legacy) return say(cudaErrorStreamCaptureUnsupported);
    if (s->capture) return say(cudaErrorIllegalState);
    s->capture = std::make_unique<CUgraph_st>();
    s->mode = mode;
    s->owner = std::this_thread::get_id();
    s->broken = false;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    LOCK;
    cudaStream_t s = stream_of(stream);
    for (cudaStream_t other : runtime.streams) {
        if (s == &runtime.legacy && other->blocking && other->capture) return say(cudaErrorStreamCaptureImplicit);
    }
    const cudaStream_t origin = origin_of(s);
    *status = !origin           ? cudaStreamCaptureStatusNone
              : !origin->broken ? cudaStreamCaptureStatusActive
                                : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    LOCK;
    cudaStream_t s = stream_of(stream);
    *graph = NULL;
    if (!s->capture) return say(cudaErrorIllegalState);
    const std::unique_ptr<CUgraph_st> captured = std::move(s->capture);
    bool unjoined = false;
    for (cudaStream_t other : runtime.streams) {
        if (other->joined != s) continue;
        unjoined = unjoined || other->unjoined;
        other->joined = NULL;
        other->unjoined = false;
    }
    if (unjoined) return say(cudaErrorStreamCaptureUnjoined);
    if (s->broken) return say(cudaErrorStreamCaptureInvalidated);
    *graph = new CUgraph_st(*captured);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    if (nodes) return say(cudaErrorInvalidValue); /* only the number is wanted here */
    *count = graph->items.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    *exec = new CUgraphExec_st;
    (*exec)->items = graph->items;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    LOCK;
    for (const item &i : exec->items) TRY(queue(stream_of(stream), i.name, i.work, i.ready, {}, i.everywhere));
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return cudaSuccess;
}
