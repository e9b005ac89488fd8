/* The part of libnccl that libcairn_nccl.so uses, for ranks as threads with one GPU each. Communicators are
 * non-blocking, and the stand-in checks which calls are allowed while they work. Collectives that ranks launch in
 * different orders wait forever. As in NCCL, a communicator is only destroyed once no graph that captured it is
 * left. */
#include "standin/standin.h"

#include <nccl.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "core/half.h"

namespace {

enum kind { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER };

/* A rank's part of a collective. */
struct part {
    const void *src;
    void *dst;
};

struct collective {
    kind what;
    size_t n;
    ncclDataType_t type;
    ncclRedOp_t op;
    float factor; /* of every term */
    int root;
    std::vector<part> parts;
    size_t arrived = 0;
};

struct message {
    bool sends, done = false;
    int peer;
    void *x;
    size_t nbytes;
};

struct world {
    int size, joined = 0;
    std::vector<int> devices;
    std::map<long, std::shared_ptr<collective>> collectives;      /* by their number */
    std::map<std::pair<int, int>, std::deque<message *>> waiting; /* by sender and receiver; all of one kind */
};

/* What queued work knows of a communicator, which may be gone. */
struct end {
    std::shared_ptr<world> ranks;
    int rank;
    long arrived = 0;          /* collectives that have begun */
    long fails = 0, hangs = 0; /* which collective does; 0 = none */
    bool aborted = false;
    ncclResult_t failed = ncclSuccess;
    std::shared_ptr<void> in_graphs = std::make_shared<char>(); /* each item of a graph has it too */
};

std::map<std::string, std::shared_ptr<world>> worlds;
int next_id;
thread_local int depth;       /* of groups */
thread_local ncclComm_t last; /* that was called in the group */

} // namespace

struct ncclComm {
    std::shared_ptr<end> here;
    int busy = 0;           /* looks until the last call is through */
    bool finalized = false; /* the proxy has stopped */
    std::vector<float> factors;
    std::shared_ptr<std::vector<message>> group = std::make_shared<std::vector<message>>();
    cudaStream_t stream = NULL;
};

namespace {

/* ---- numbers ---- */

size_t size_of(ncclDataType_t type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}

double load(const void *x, size_t i, ncclDataType_t type) {
    switch (type) {
    case ncclFloat16:
        return cairn__f16_to_f32(((const uint16_t *)x)[i]);
    case ncclBfloat16:
        return cairn__bf16_to_f32(((const uint16_t *)x)[i]);
    case ncclFloat64:
        return ((const double *)x)[i];
    default:
        return ((const float *)x)[i];
    }
}

void store(void *x, size_t i, ncclDataType_t type, double value) {
    switch (type) {
    case ncclFloat16:
        ((uint16_t *)x)[i] = cairn__f32_to_f16((float)value);
        break;
    case ncclBfloat16:
        ((uint16_t *)x)[i] = cairn__f32_to_bf16((float)value);
        break;
    case ncclFloat64:
        ((double *)x)[i] = value;
        break;
    default:
        ((float *)x)[i] = (float)value;
    }
}

bool is_float(ncclDataType_t type) {
    return type >= ncclFloat16;
}

int64_t load_integer(const void *x, size_t i, ncclDataType_t type) {
    if (type == ncclInt64) return ((const int64_t *)x)[i];
    return type == ncclInt32 ? ((const int32_t *)x)[i] : ((const uint8_t *)x)[i];
}

void store_integer(void *x, size_t i, ncclDataType_t type, int64_t value) {
    if (type == ncclInt64) ((int64_t *)x)[i] = value;
    else if (type == ncclInt32) ((int32_t *)x)[i] = (int32_t)value;
    else ((uint8_t *)x)[i] = (uint8_t)value;
}

template <typename T> T combine(T a, T b, ncclRedOp_t op) {
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return a > b ? a : b;
    case ncclMin:
        return a < b ? a : b;
    default:
        return a + b;
    }
}

/* One after the other, each sum rounded to the type. */
void combine_floats(const collective &c, size_t i, void *out, size_t to) {
    const size_t p = c.parts.size();
    double sum = 0;
    for (size_t r = 0; r < p; r++) {
        const double x = load(c.parts[r].src, i, c.type) * c.factor;
        store(out, to, c.type, r ? combine(sum, x, c.op) : x);
        sum = load(out, to, c.type);
    }
    if (c.op == ncclAvg) store(out, to, c.type, sum / (double)p);
}

void combine_integers(const collective &c, size_t i, void *out, size_t to) {
    const size_t p = c.parts.size();
    uint64_t sum = (uint64_t)load_integer(c.parts[0].src, i, c.type);
    for (size_t r = 1; r < p; r++) {
        const int64_t x = load_integer(c.parts[r].src, i, c.type);
        const bool compares = c.op == ncclMax || c.op == ncclMin;
        sum = compares ? (uint64_t)combine((int64_t)sum, x, c.op) : combine(sum, (uint64_t)x, c.op);
    }
    store_integer(out, to, c.type, (int64_t)sum);
    if (c.op == ncclAvg) store_integer(out, to, c.type, load_integer(out, to, c.type) / (int64_t)p);
}

/* n elements from `first` on. */
std::string reduce(const collective &c, size_t first, size_t n) {
    std::string result(n * size_of(c.type), '\0');
    for (size_t i = 0; i < n; i++) {
        if (is_float(c.type)) combine_floats(c, first + i, &result[0], i);
        else combine_integers(c, first + i, &result[0], i);
    }
    return result;
}

/* The last rank that comes does it all. */
void perform(const collective &c) {
    standin_open open("a collective");
    const size_t p = c.parts.size(), nbytes = c.n * size_of(c.type);
    std::string all;
    if (c.what == BROADCAST) all.assign((const char *)c.parts[(size_t)c.root].src, nbytes);
    if (c.what == ALLREDUCE || c.what == REDUCE) all = reduce(c, 0, c.n);
    if (c.what == REDUCE_SCATTER) all = reduce(c, 0, p * c.n);
    for (size_t r = 0; c.what == ALLGATHER && r < p; r++) all.append((const char *)c.parts[r].src, nbytes);
    for (size_t r = 0; r < p; r++) {
        if (c.what == REDUCE && (int)r != c.root) continue;
        if (c.what == REDUCE_SCATTER) memcpy(c.parts[r].dst, &all[r * nbytes], nbytes);
        else memcpy(c.parts[r].dst, all.data(), all.size());
    }
}

/* ---- launching ---- */

ncclResult_t say(cudaError_t error) {
    return error ? ncclUnhandledCudaError : ncclSuccess;
}

/* Calls are for communicators that are through with the last one. */
ncclResult_t check(ncclComm_t comm, const char *call) {
    if (comm->busy || comm->here->ranks->joined < comm->here->ranks->size)
        standin_die("%s is called while the communicator is at work", call);
    return comm->here->failed;
}

bool is_in_graphs(ncclComm_t comm) {
    return comm->here->in_graphs.use_count() > 1;
}

ncclResult_t in_progress(ncclComm_t comm) {
    comm->busy = 2;
    return ncclInProgress;
}

/* What a collective that is queued, once or by every replay of a graph, goes through. */
struct attempt {
    std::shared_ptr<collective> joined;
};

bool arrive(end &here, attempt &a, const collective &mine, part own) {
    const long number = ++here.arrived;
    if (number == here.fails) here.failed = ncclRemoteError;
    std::shared_ptr<collective> &c = here.ranks->collectives[number];
    if (!c) {
        c = std::make_shared<collective>(mine);
        c->parts.resize((size_t)here.ranks->size);
    }
    if (c->what != mine.what || c->n != mine.n || c->type != mine.type) here.hangs = number;
    a.joined = c;
    if (number == here.hangs || number == here.fails) return false;
    c->parts[(size_t)here.rank] = own;
    if (++c->arrived < c->parts.size()) return false;
    perform(*c);
    here.ranks->collectives.erase(number);
    return true;
}

ncclResult_t launch(ncclComm_t comm, cudaStream_t stream, collective mine, part own) {
    standin_guard hold;
    const ncclResult_t error = check(comm, "a collective");
    if (error) return error;
    const std::shared_ptr<end> here = comm->here;
    if (mine.op >= ncclNumOps) {
        mine.factor = comm->factors[(size_t)mine.op - ncclNumOps];
        mine.op = ncclSum;
    }
    const auto a = std::make_shared<attempt>();
    const auto ready = [here, a, mine, own] {
        if (here->aborted) return true;
        if (!a->joined) return arrive(*here, *a, mine, own);
        return a->joined->arrived == a->joined->parts.size();
    };
    const cudaError_t queued = standin_queue_when(
        stream, "a collective", ready, [a] { a->joined = NULL; }, here->in_graphs);
    return queued ? say(queued) : in_progress(comm);
}

/* A pair's other half, if it waits. */
bool meet(world &w, int rank, message *m) {
    std::deque<message *> &queue = w.waiting[m->sends ? std::make_pair(rank, m->peer) : std::make_pair(m->peer, rank)];
    if (queue.empty() || queue.front()->sends == m->sends) {
        queue.push_back(m);
        return false;
    }
    message *other = queue.front();
    queue.pop_front();
    standin_open open("a message");
    memcpy(m->sends ? other->x : m->x, m->sends ? m->x : other->x, m->nbytes);
    return m->done = other->done = true;
}

/* Of an end that was aborted. */
void forget_messages(end &here) {
    for (auto &at : here.ranks->waiting) {
        std::deque<message *> &queue = at.second;
        const bool sends = at.first.first == here.rank;
        if (!sends && at.first.second != here.rank) continue;
        if (!queue.empty() && queue.front()->sends == sends) queue.clear();
    }
}

ncclResult_t launch_messages(ncclComm_t comm) {
    const std::shared_ptr<end> here = comm->here;
    const auto group = comm->group;
    comm->group = std::make_shared<std::vector<message>>();
    const auto begun = std::make_shared<bool>(false);
    const auto ready = [here, group, begun] {
        if (here->aborted) return true;
        for (message &m : *group) {
            if (!*begun) meet(*here->ranks, here->rank, &m);
        }
        *begun = true;
        for (const message &m : *group) {
            if (!m.done) return false;
        }
        return true;
    };
    const auto again = [group, begun] {
        *begun = false;
        for (message &m : *group) m.done = false;
    };
    const cudaError_t queued = standin_queue_when(comm->stream, "messages", ready, again, here->in_graphs);
    return queued ? say(queued) : in_progress(comm);
}

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, bool sends, void *x, size_t nbytes, int peer) {
    standin_guard hold;
    const ncclResult_t error = check(comm, "a message");
    if (error) return error;
    message m;
    m.sends = sends;
    m.peer = peer;
    m.x = x;
    m.nbytes = nbytes;
    comm->group->push_back(m);
    comm->stream = stream;
    last = comm;
    if (depth == 0) return launch_messages(comm);
    return ncclSuccess;
}

} // namespace

/* ---- life ---- */

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    standin_guard hold;
    memset(id, 0, sizeof(*id));
    snprintf(id->internal, sizeof(id->internal), "%d", ++next_id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    standin_guard hold;
    int device = 0;
    if (config->blocking != 0 || rank < 0 || rank >= size) return ncclInvalidArgument;
    std::shared_ptr<world> &w = worlds[id.internal];
    if (!w) {
        w = std::make_shared<world>();
        w->size = size;
    }
    (void)cudaGetDevice(&device);
    for (int other : w->devices) {
        if (other == device) return ncclInvalidUsage;
    }
    w->devices.push_back(device);
    w->joined++;
    *comm = new ncclComm;
    (*comm)->here = std::make_shared<end>();
    (*comm)->here->ranks = w;
    (*comm)->here->rank = rank;
    if (rank == 1) (*comm)->here->fails = (long)standin_env("CAIRN_STANDIN_NCCL_FAIL", 0);
    if (rank == 1) (*comm)->here->hangs = (long)standin_env("CAIRN_STANDIN_NCCL_HANG", 0);
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    standin_guard hold;
    const bool busy = comm->busy > 0 || comm->here->ranks->joined < comm->here->ranks->size ||
                      (comm->finalized && is_in_graphs(comm));
    if (comm->busy > 0) comm->busy--;
    *state = comm->here->failed ? comm->here->failed : busy ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    standin_guard hold;
    const ncclResult_t error = check(comm, "ncclCommFinalize");
    comm->finalized = true;
    return error ? error : in_progress(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    standin_guard hold;
    while (is_in_graphs(comm)) hold.let_go();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    standin_guard hold;
    comm->here->aborted = true;
    forget_messages(*comm->here);
    while (is_in_graphs(comm)) hold.let_go();
    delete comm;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError    ? "remote process exited or there was a network error"
           : result == ncclInvalidUsage ? "invalid usage"
                                        : "an error of the stand-in";
}

const char *ncclGetLastError(ncclComm_t) {
    return "the stand-in's\nlast words";
}

/* ---- memory ---- */

ncclResult_t ncclMemAlloc(void **p, size_t nbytes) {
    return say(cudaMalloc(p, nbytes));
}

ncclResult_t ncclMemFree(void *p) {
    return say(cudaFree(p));
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t nbytes, void **handle) {
    standin_guard hold;
    *handle = p;
    return standin_is_device(p, nbytes) ? check(comm, "ncclCommRegister") : ncclInvalidArgument;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    standin_guard hold;
    if (comm->finalized) standin_die("ncclCommDeregister is called after ncclCommFinalize, which has ended the proxy");
    return handle ? check(comm, "ncclCommDeregister") : ncclInvalidArgument;
}

/* ---- operations ---- */

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t,
                                      ncclComm_t comm) {
    standin_guard hold;
    *op = (ncclRedOp_t)(ncclNumOps + (int)comm->factors.size());
    comm->factors.push_back((float)load(scalar, 0, type));
    return check(comm, "ncclRedOpCreatePreMulSum");
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    standin_guard hold;
    return (size_t)op < ncclNumOps + comm->factors.size() ? check(comm, "ncclRedOpDestroy") : ncclInvalidArgument;
}

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
    return launch(comm, stream, {ALLREDUCE, n, type, op, 1, 0, {}}, {src, dst});
}

ncclResult_t ncclReduce(const void *src, void *dst, size_t n, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return launch(comm, stream, {REDUCE, n, type, op, 1, root, {}}, {src, dst});
}

ncclResult_t ncclBroadcast(const void *src, void *dst, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return launch(comm, stream, {BROADCAST, n, type, ncclSum, 1, root, {}}, {src, dst});
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return launch(comm, stream, {ALLGATHER, n, type, ncclSum, 1, 0, {}}, {src, dst});
}

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return launch(comm, stream, {REDUCE_SCATTER, n, type, op, 1, 0, {}}, {src, dst});
}

/* ---- messages ---- */

ncclResult_t ncclGroupStart(void) {
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    standin_guard hold;
    if (--depth > 0 || !last) return ncclSuccess;
    const ncclComm_t comm = last;
    last = NULL;
    return launch_messages(comm);
}

ncclResult_t ncclSend(const void *x, size_t n, ncclDataType_t type, int to, ncclComm_t comm, cudaStream_t stream) {
    return add(comm, stream, true, const_cast<void *>(x), n * size_of(type), to);
}

ncclResult_t ncclRecv(void *x, size_t n, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t stream) {
    return add(comm, stream, false, x, n * size_of(type), from);
}
