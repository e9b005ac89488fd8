/* NCCL as a table of functions: its calls, types and errors. Communicators are non-blocking, so that connecting and
 * launching can be aborted. Needs NCCL 2.19, the first with ncclMemAlloc, or later. */
#include <nccl.h>

#include <cuda_runtime_api.h>

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/log.h"
#include "core/status.h"
#include "device/comm.h"
#include "device/device.h"
#include "device/module.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 19, 1)
#error "Cairn needs NCCL 2.19 or later"
#endif

_Static_assert(sizeof(ncclUniqueId) == sizeof(struct cairn__comm_id), "an id of NCCL travels as it is");

struct block {
    void *memory;
    void *handle; /* NULL = NCCL did not register it */
};

struct cairn__comm {
    struct cairn_device *device;
    ncclComm_t nccl;     /* written by NCCL before connecting is over */
    atomic_bool is_gone; /* aborted: nccl must not be used */
    int rank, size;
    cudaStream_t stream;
    cudaEvent_t ahead; /* records the position of the device's stream */
    cudaEvent_t marks[CAIRN__COMM_MARKS];
    struct {
        ncclRedOp_t op;
        int halvings; /* 0 = not made */
    } halved[2];      /* of f16 and bf16 */
    struct block *blocks;
    size_t num_blocks, capacity;
};

/* ---- errors ---- */

struct meaning {
    const char *name;
    cairn_status status;
    const char *advice;
};

static const struct meaning meanings[] = {
    [ncclSuccess] = {"ncclSuccess", CAIRN_EINTERNAL, ""},
    [ncclUnhandledCudaError] = {"ncclUnhandledCudaError", CAIRN_EDEVICE,
                                "NCCL_DEBUG=WARN shows which call of CUDA failed"},
    [ncclSystemError] =
        {"ncclSystemError", CAIRN_EPEER,
         "a connection or a call of the system failed, perhaps since another rank ended; NCCL_DEBUG=WARN "
         "shows which, and NCCL_SOCKET_IFNAME names the network interface to use"},
    [ncclInternalError] = {"ncclInternalError", CAIRN_EINTERNAL, "NCCL_DEBUG=WARN shows more"},
    [ncclInvalidArgument] = {"ncclInvalidArgument", CAIRN_EINVAL, "NCCL_DEBUG=WARN shows which argument"},
    [ncclInvalidUsage] = {"ncclInvalidUsage", CAIRN_EINVAL,
                          "every rank needs a GPU of its own, and all ranks the same NCCL; NCCL_DEBUG=WARN shows more"},
    [ncclRemoteError] = {"ncclRemoteError", CAIRN_EPEER, "another rank ended or failed"},
};

static bool is_alive(const struct cairn__comm *c) {
    return c && c->nccl && !atomic_load(&c->is_gone);
}

static cairn_status nccl_failed(const struct cairn__comm *c, const char *doing, ncclResult_t error) {
    static const struct meaning unknown = {"an unknown error", CAIRN_EINTERNAL, "NCCL_DEBUG=WARN shows more"};
    const bool known = (size_t)error < sizeof(meanings) / sizeof(meanings[0]);
    const struct meaning *m = known ? &meanings[error] : &unknown;
    char detail[300] = "";
    const char *last = ncclGetLastError(is_alive(c) ? c->nccl : NULL);
    snprintf(detail, sizeof(detail), "%s", last ? last : "");
    for (char *at = detail; *at; at++) {
        if (*at == '\n') *at = ' ';
    }
    return cairn__fail(m->status, "%s: NCCL says %s (%s)%s%s; %s", doing, m->name, ncclGetErrorString(error),
                       detail[0] ? ": " : "", detail, m->advice);
}

static cairn_status nccl(const struct cairn__comm *c, const char *doing, ncclResult_t result) {
    return result == ncclSuccess || result == ncclInProgress ? CAIRN_OK : nccl_failed(c, doing, result);
}

static cairn_status cuda(const char *doing, cudaError_t error) {
    if (error == cudaSuccess) return CAIRN_OK;
    (void)cudaGetLastError();
    return cairn__fail(CAIRN_EDEVICE, "%s: CUDA says %s (%s)", doing, cudaGetErrorName(error),
                       cudaGetErrorString(error));
}

/* Makes the device the thread's current one, as NCCL requires. */
static void enter(const struct cairn_device *d) {
    (void)cudaSetDevice(d->ordinal);
}

/* Enters; fails after an abort. */
static cairn_status begin(const struct cairn__comm *c) {
    enter(c->device);
    REQUIRE(is_alive(c), CAIRN_EPEER, "the communicator of NCCL was aborted");
    return CAIRN_OK;
}

/* ---- facts ---- */

static void comm_version(char *text, size_t nbytes) {
    int version = 0;
    (void)ncclGetVersion(&version);
    snprintf(text, nbytes, "NCCL %d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
}

static cairn_status comm_place(struct cairn_device *d, char *text, size_t nbytes) {
    enter(d);
    return cuda("reading a GPU's bus id", cudaDeviceGetPCIBusId(text, (int)nbytes, d->ordinal));
}

static cairn_status comm_unique_id(struct cairn__comm_id *out) {
    ncclUniqueId id;
    cairn_status st = CAIRN_OK;
    TRY(nccl(NULL, "making a communicator's id", ncclGetUniqueId(&id)));
    memcpy(out, &id, sizeof(*out));
out:
    return st;
}

/* ---- life ---- */

static cairn_status comm_init(struct cairn_device *d, const struct cairn__comm_id *given, int rank, int size,
                              struct cairn__comm **out) {
    struct cairn__comm *c = NULL;
    ncclUniqueId id;
    int least = 0, greatest = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*c), (void **)&c));
    *out = c;
    c->device = d;
    c->rank = rank;
    c->size = size;
    enter(d);
    TRY(cuda("reading stream priorities", cudaDeviceGetStreamPriorityRange(&least, &greatest)));
    TRY(cuda("making a stream", cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, greatest)));
    TRY(cuda("making an event", cudaEventCreateWithFlags(&c->ahead, cudaEventDisableTiming)));
    for (int i = 0; i < CAIRN__COMM_MARKS; i++) {
        TRY(cuda("making an event", cudaEventCreateWithFlags(&c->marks[i], cudaEventDisableTiming)));
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    memcpy(&id, given, sizeof(id));
    TRY(nccl(c, "connecting the ranks", ncclCommInitRankConfig(&c->nccl, size, id, rank, &config)));
out:
    return st;
}

static cairn_status comm_state(struct cairn__comm *c, bool *busy) {
    ncclResult_t state = ncclSuccess;
    cairn_status st = CAIRN_OK;
    TRY(begin(c));
    TRY(nccl(c, "reading NCCL's state", ncclCommGetAsyncError(c->nccl, &state)));
    *busy = state == ncclInProgress;
    TRY(nccl(c, "what was queued failed", state));
out:
    return st;
}

/* NCCL's proxy, which releases memory of other GPUs, ends with finalize. */
static void deregister(struct cairn__comm *c, struct block *b) {
    if (b->handle && is_alive(c)) (void)ncclCommDeregister(c->nccl, b->handle);
    b->handle = NULL;
}

static void comm_finalize(struct cairn__comm *c) {
    if (begin(c) != CAIRN_OK) return;
    for (size_t i = 0; i < c->num_blocks; i++) deregister(c, &c->blocks[i]);
    for (size_t i = 0; i < 2; i++) {
        if (c->halved[i].halvings) (void)ncclRedOpDestroy(c->halved[i].op, c->nccl);
        c->halved[i].halvings = 0;
    }
    (void)ncclCommFinalize(c->nccl);
}

static void comm_abort(struct cairn__comm *c) {
    enter(c->device);
    if (c->nccl && !atomic_exchange(&c->is_gone, true)) (void)ncclCommAbort(c->nccl);
}

static void free_block(struct cairn__comm *c, struct block *b) {
    deregister(c, b);
    (void)ncclMemFree(b->memory);
}

static void wait_for_all(struct cairn__comm *c) {
    (void)cudaStreamSynchronize((cudaStream_t)c->device->ops->stream(c->device));
    if (c->stream) (void)cudaStreamSynchronize(c->stream);
    (void)cudaGetLastError();
}

static void comm_close(struct cairn__comm **comm) {
    struct cairn__comm *c = *comm;
    bool busy = false;
    if (!c) return;
    enter(c->device);
    if (is_alive(c) && (comm_state(c, &busy) != CAIRN_OK || busy)) comm_abort(c);
    if (c->num_blocks > 0) wait_for_all(c);
    for (size_t i = 0; i < c->num_blocks; i++) free_block(c, &c->blocks[i]);
    if (is_alive(c)) (void)ncclCommDestroy(c->nccl);
    for (int i = 0; i < CAIRN__COMM_MARKS; i++) {
        if (c->marks[i]) (void)cudaEventDestroy(c->marks[i]);
    }
    if (c->ahead) (void)cudaEventDestroy(c->ahead);
    if (c->stream) (void)cudaStreamDestroy(c->stream);
    cairn__free(c->blocks);
    cairn__free(c);
    *comm = NULL;
}

/* ---- memory ---- */

/* Whether NCCL registers the memory depends on the links between the GPUs; where it does not, it copies. */
static cairn_status comm_alloc(struct cairn__comm *c, size_t nbytes, void **out) {
    struct block b = {NULL, NULL};
    cairn_status st = CAIRN_OK;
    TRY(begin(c));
    TRY(cairn__grow((void **)&c->blocks, &c->capacity, c->num_blocks + 1, sizeof(*c->blocks)));
    const ncclResult_t result = ncclMemAlloc(&b.memory, nbytes);
    if (result != ncclSuccess) {
        (void)cudaGetLastError();
        return cairn__fail(CAIRN_ENOMEM, "NCCL cannot allocate %zu bytes of group memory on GPU %d: %s", nbytes,
                           c->device->ordinal, ncclGetErrorString(result));
    }
    if (ncclCommRegister(c->nccl, b.memory, nbytes, &b.handle) != ncclSuccess) {
        b.handle = NULL;
        cairn__log(CAIRN_LOG_DEBUG, "NCCL does not register %zu bytes of group memory: %s", nbytes,
                   ncclGetLastError(c->nccl));
    }
    c->blocks[c->num_blocks++] = b;
    *out = b.memory;
out:
    return st;
}

static void comm_free(struct cairn__comm *c, void *memory) {
    enter(c->device);
    wait_for_all(c);
    for (size_t i = 0; i < c->num_blocks; i++) {
        if (c->blocks[i].memory != memory) continue;
        free_block(c, &c->blocks[i]);
        c->blocks[i] = c->blocks[--c->num_blocks];
        return;
    }
}

/* ---- types and operations ---- */

static ncclDataType_t type_of(cairn_dtype dtype) {
    switch (dtype) {
    case CAIRN_F64:
        return ncclFloat64;
    case CAIRN_F16:
        return ncclFloat16;
    case CAIRN_BF16:
        return ncclBfloat16;
    case CAIRN_I64:
        return ncclInt64;
    case CAIRN_I32:
        return ncclInt32;
    case CAIRN_U8:
        return ncclUint8;
    default:
        return ncclFloat32;
    }
}

/* Made once for each half type: the number of halvings is the group's. */
static cairn_status halved_sum(struct cairn__comm *c, cairn_dtype dtype, int halvings, ncclRedOp_t *op) {
    const int i = dtype == CAIRN_BF16;
    /* The bits of 2^-halvings, a normal number in both half types: a group has less than 2^14 ranks. */
    uint16_t scalar = (uint16_t)(dtype == CAIRN_F16 ? (15 - halvings) << 10 : (127 - halvings) << 7);
    cairn_status st = CAIRN_OK;
    if (c->halved[i].halvings != halvings) {
        TRY(nccl(c, "making a sum of scaled terms",
                 ncclRedOpCreatePreMulSum(&c->halved[i].op, &scalar, type_of(dtype), ncclScalarHostImmediate,
                                          c->nccl)));
        c->halved[i].halvings = halvings;
    }
    *op = c->halved[i].op;
out:
    return st;
}

static cairn_status op_of(struct cairn__comm *c, cairn_dtype dtype, const struct cairn__comm_reduction *how,
                          ncclRedOp_t *op) {
    static const ncclRedOp_t ops[] = {[CAIRN__COMM_SUM] = ncclSum,
                                      [CAIRN__COMM_AVG] = ncclAvg,
                                      [CAIRN__COMM_MIN] = ncclMin,
                                      [CAIRN__COMM_MAX] = ncclMax,
                                      [CAIRN__COMM_PROD] = ncclProd};
    cairn_status st = CAIRN_OK;
    TRY(begin(c));
    *op = ops[how->op];
    if (how->halvings > 0) TRY(halved_sum(c, dtype, how->halvings, op));
out:
    return st;
}

/* ---- collectives ---- */

static cairn_status comm_group_begin(struct cairn__comm *c) {
    cairn_status st = CAIRN_OK;
    TRY(begin(c));
    TRY(nccl(c, "beginning a group", ncclGroupStart()));
out:
    return st;
}

static cairn_status comm_group_end(struct cairn__comm *c) {
    return nccl(c, "launching a group", ncclGroupEnd());
}

static cairn_status comm_all_reduce(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                    const struct cairn__comm_reduction *how) {
    ncclRedOp_t op = ncclSum;
    cairn_status st = CAIRN_OK;
    TRY(op_of(c, dtype, how, &op));
    TRY(nccl(c, "all-reduce", ncclAllReduce(src, dst, n, type_of(dtype), op, c->nccl, c->stream)));
out:
    return st;
}

static cairn_status comm_reduce(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                const struct cairn__comm_reduction *how, int root) {
    ncclRedOp_t op = ncclSum;
    cairn_status st = CAIRN_OK;
    TRY(op_of(c, dtype, how, &op));
    TRY(nccl(c, "reduce", ncclReduce(src, dst, n, type_of(dtype), op, root, c->nccl, c->stream)));
out:
    return st;
}

static cairn_status comm_broadcast(struct cairn__comm *c, void *x, size_t n, cairn_dtype dtype, int root) {
    cairn_status st = CAIRN_OK;
    TRY(begin(c));
    TRY(nccl(c, "broadcast", ncclBroadcast(x, x, n, type_of(dtype), root, c->nccl, c->stream)));
out:
    return st;
}

static cairn_status comm_all_gather(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype) {
    cairn_status st = CAIRN_OK;
    TRY(begin(c));
    TRY(nccl(c, "all-gather", ncclAllGather(src, dst, n, type_of(dtype), c->nccl, c->stream)));
out:
    return st;
}

static cairn_status comm_reduce_scatter(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                        const struct cairn__comm_reduction *how) {
    ncclRedOp_t op = ncclSum;
    cairn_status st = CAIRN_OK;
    TRY(op_of(c, dtype, how, &op));
    TRY(nccl(c, "reduce-scatter", ncclReduceScatter(src, dst, n, type_of(dtype), op, c->nccl, c->stream)));
out:
    return st;
}

static cairn_status comm_send(struct cairn__comm *c, const void *x, size_t n, cairn_dtype dtype, int to) {
    cairn_status st = CAIRN_OK;
    TRY(begin(c));
    TRY(nccl(c, "send", ncclSend(x, n, type_of(dtype), to, c->nccl, c->stream)));
out:
    return st;
}

static cairn_status comm_recv(struct cairn__comm *c, void *x, size_t n, cairn_dtype dtype, int from) {
    cairn_status st = CAIRN_OK;
    TRY(begin(c));
    TRY(nccl(c, "receive", ncclRecv(x, n, type_of(dtype), from, c->nccl, c->stream)));
out:
    return st;
}

/* Pairs, launched as one: NCCL has a call for it from 2.28 on, which is the same. */
static cairn_status comm_all_to_all(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype) {
    const size_t part = n * cairn__dtype(dtype)->nbytes;
    bool begun = false;
    cairn_status st = CAIRN_OK;
    TRY(comm_group_begin(c));
    begun = true;
    for (int r = 0; r < c->size; r++) {
        TRY(comm_send(c, (const char *)src + (size_t)r * part, n, dtype, r));
        TRY(comm_recv(c, (char *)dst + (size_t)r * part, n, dtype, r));
    }
out:
    if (begun) {
        const cairn_status ended = comm_group_end(c);
        if (st == CAIRN_OK) st = ended;
    }
    return st;
}

/* ---- order ---- */

static cudaStream_t device_stream(const struct cairn__comm *c) {
    return (cudaStream_t)c->device->ops->stream(c->device);
}

static cairn_status comm_follow(struct cairn__comm *c) {
    cairn_status st = CAIRN_OK;
    TRY(begin(c));
    TRY(cuda("marking the device's stream", cudaEventRecord(c->ahead, device_stream(c))));
    TRY(cuda("following the device's stream", cudaStreamWaitEvent(c->stream, c->ahead, 0)));
out:
    return st;
}

static cairn_status comm_mark(struct cairn__comm *c, int mark) {
    enter(c->device);
    return cuda("marking the communication stream", cudaEventRecord(c->marks[mark], c->stream));
}

static cairn_status comm_await(struct cairn__comm *c, int mark) {
    enter(c->device);
    return cuda("waiting for the communication stream", cudaStreamWaitEvent(device_stream(c), c->marks[mark], 0));
}

static cairn_status comm_passed(struct cairn__comm *c, int mark, bool *passed) {
    enter(c->device);
    const cudaError_t error = cudaEventQuery(c->marks[mark]);
    *passed = error == cudaSuccess;
    if (error == cudaErrorNotReady) (void)cudaGetLastError();
    return error == cudaErrorNotReady ? CAIRN_OK : cuda("looking at the communication stream", error);
}

static const struct cairn__comm_ops table = {
    .size = sizeof(struct cairn__comm_ops),
    .name = "nccl",
    .version = comm_version,
    .place = comm_place,
    .unique_id = comm_unique_id,
    .init = comm_init,
    .state = comm_state,
    .finalize = comm_finalize,
    .abort = comm_abort,
    .close = comm_close,
    .alloc = comm_alloc,
    .free = comm_free,
    .group_begin = comm_group_begin,
    .group_end = comm_group_end,
    .all_reduce = comm_all_reduce,
    .reduce = comm_reduce,
    .broadcast = comm_broadcast,
    .all_gather = comm_all_gather,
    .reduce_scatter = comm_reduce_scatter,
    .all_to_all = comm_all_to_all,
    .send = comm_send,
    .recv = comm_recv,
    .follow = comm_follow,
    .mark = comm_mark,
    .await = comm_await,
    .passed = comm_passed,
};

const struct cairn__module_tables cairn__module_tables = {.name = "nccl", .all = {{"group backend", &table}}};
