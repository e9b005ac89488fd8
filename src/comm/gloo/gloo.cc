/* gloo's TCP connections as an engine of process groups: the one C++ file of Cairn, because gloo has only a C++
 * interface. No exception leaves this file; an exception of gloo becomes a status with its message.
 *
 * A group is a gloo context over connections between every two ranks. libcairn makes these connections
 * (comm/exchange/links.h), because gloo would accept whoever connects first as a rank. Of gloo's calls this engine uses
 * only sends and receives of unbound buffers, and posts all of a transfer at once: gloo's collectives cannot be ended
 * from outside, and end the whole process if two ranks' sizes differ. Here the size is part of the slot by which gloo
 * matches a send with a receive, so sends and receives of different sizes never match.
 *
 * gloo can only wait for an operation, not test it. So a lane, a thread "cairn-gloo", waits for its transfers in their
 * order. There is one lane for the collectives, and one for each rank and direction of messages, started with the first
 * message. No lane waits for another, and gloo moves posted operations whether or not a lane waits for them. */
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include "comm/exchange/engine.h"
extern "C" {
#include "core/status.h"
extern const struct cairn__engine_ops cairn__gloo_ops;
}

namespace {

using Buffer = gloo::transport::UnboundBuffer;
using milliseconds = std::chrono::milliseconds;

/* Waits end by being aborted; gloo's own timeout would close every connection. */
constexpr milliseconds FOREVER = std::chrono::hours(24 * 365);
constexpr uint64_t NEVER_SENT = 0; /* a slot that no send has */
constexpr size_t SPARE = 1024;     /* bytes added to the size of a Pair */
constexpr char GONE[] = "rank %d ended, left the group or cannot be reached (gloo: %s)";
constexpr milliseconds NAP(2); /* short, because other groups may have something to do */

struct Failed {
    cairn_status status;
    char why[512]; /* "" = libcairn's last error has it */
};

void check(cairn_status status) {
    if (status != CAIRN_OK) throw Failed{status, ""};
}

[[noreturn]] __attribute__((format(printf, 2, 3))) void give_up(cairn_status status, const char *format, ...) {
    Failed failed = {status, ""};
    va_list args;
    va_start(args, format);
    vsnprintf(failed.why, sizeof(failed.why), format, args);
    va_end(args);
    throw failed;
}

/* The message without the place in front: without "[pair.cc:589]" in "[pair.cc:589] Connection closed by peer". */
const char *words(const std::exception &e) {
    const char *text = e.what(), *end = *text == '[' ? strchr(text, ']') : nullptr;
    return end && end[1] == ' ' ? end + 2 : text;
}

/* Runs code that may throw, and turns exceptions into a status. */
template <typename F> cairn_status guarded(cairn_status otherwise, F body) noexcept {
    try {
        body();
        return CAIRN_OK;
    } catch (const Failed &f) {
        return *f.why ? cairn__fail(f.status, "%s", f.why) : f.status;
    } catch (const std::bad_alloc &) {
        return cairn__fail(CAIRN_ENOMEM, "no memory for a gloo group");
    } catch (const std::exception &e) {
        return cairn__fail(otherwise, "gloo: %s", words(e));
    } catch (...) {
        return cairn__fail(CAIRN_EINTERNAL, "gloo threw an unknown exception");
    }
}

/* While it lives, new threads start with all signals blocked: those are the program's. */
class NoSignals {
  public:
    NoSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }

  private:
    sigset_t before;
};

/* Blocks SIGPIPE while it lives: gloo writes to connections that may be gone, which raises it in the writing thread. */
class NoPipeSignal {
  public:
    NoPipeSignal() {
        sigset_t pending;
        sigpending(&pending);
        was_pending = sigismember(&pending, SIGPIPE) == 1;
        sigemptyset(&pipe);
        sigaddset(&pipe, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe, &before);
    }
    ~NoPipeSignal() {
        const struct timespec now = {0, 0};
        if (!was_pending) sigtimedwait(&pipe, nullptr, &now);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

  private:
    sigset_t pipe, before;
    bool was_pending;
};

/* Waits for a lock by the monotonic clock if the C library can, because the realtime clock may be set meanwhile. */
#ifdef HAS_CLOCKLOCK
constexpr clockid_t LOCK_CLOCK = CLOCK_MONOTONIC;
int lock_until(pthread_mutex_t *mutex, const struct timespec *until) {
    return pthread_mutex_clocklock(mutex, LOCK_CLOCK, until);
}
#else
constexpr clockid_t LOCK_CLOCK = CLOCK_REALTIME;
int lock_until(pthread_mutex_t *mutex, const struct timespec *until) {
    return pthread_mutex_timedlock(mutex, until);
}
#endif

/* ---- connections ---- */

/* A pair over a connection that libcairn has made, and whose other end has proven itself. A pair of gloo's own takes
 * the first connection to a listening socket of its own; here that socket is closed at once.
 *
 * gloo lets exceptions escape from its thread, which would end the process. Here an exception ends the connection. */
class Pair : public gloo::transport::tcp::Pair {
  public:
    using gloo::transport::tcp::Pair::Pair;

    /* gloo's headers may give Pair a smaller size than the library uses (lacking/gloo/common/memory.h). */
    static void *operator new(size_t nbytes) { return ::operator new(nbytes + SPARE); }
    static void operator delete(void *p) { ::operator delete(p); }

    ~Pair() override {
        const std::lock_guard<std::mutex> guard(m_);
        if (state_ != CLOSED) changeState(CLOSED); /* waits until gloo's thread has left this pair */
    }

    /* Takes over fd. Returns false if a stranger connected to gloo's own socket before it was closed; throws if the
     * connection has ended already. In both cases fd stays the caller's. */
    bool adopt(int fd) {
        const std::lock_guard<std::mutex> guard(m_);
        if (state_ != LISTENING) return false;
        device_->registerDescriptor(fd_, 0, this); /* a child of fork may hold it open */
        ::close(fd_);
        fd_ = fd;
        try {
            handleConnected();
        } catch (...) {
            fd_ = -1; /* else gloo would ask its thread to forget fd_, which it does not know, and end the process */
            state_ = CLOSED;
            throw;
        }
        return true;
    }

    bool has_ended() {
        const std::lock_guard<std::mutex> guard(m_);
        return state_ == CLOSED;
    }

    void handleEvents(int events) override {
        wait_for_lock();
        try {
            gloo::transport::tcp::Pair::handleEvents(events);
        } catch (...) {
            end_by(std::current_exception());
        }
    }

  private:
    /* If another thread has the lock, gloo's handler returns at once and its loop gets the same event again, so it
     * would take the processor from the holder. The holder may itself wait until gloo's thread has left this pair, in
     * order to close it, so this waits for 1 ms at most. */
    void wait_for_lock() noexcept {
        constexpr long MOST_NS = 1000000, SECOND_NS = 1000000000;
        std::unique_lock<std::mutex> guard(m_, std::try_to_lock);
        if (guard) return;
        struct timespec until;
        clock_gettime(LOCK_CLOCK, &until);
        until.tv_nsec += MOST_NS;
        until.tv_sec += until.tv_nsec / SECOND_NS;
        until.tv_nsec %= SECOND_NS;
        if (lock_until(m_.native_handle(), &until) == 0) m_.unlock();
    }

    /* Another thread may hold the lock for a moment, or, while it closes this pair, until gloo's thread has left it.
     * So this tries for a while before it drops the exception: no event comes again for bytes that were read. */
    void end_by(const std::exception_ptr &e) noexcept {
        std::unique_lock<std::mutex> guard(m_, std::try_to_lock);
        for (int tries = 0; !guard && tries < 1000; tries++) {
            usleep(100);
            (void)guard.try_lock();
        }
        if (!guard || state_ == CLOSED) return;
        try {
            signalException(e); /* unless there was one before */
        } catch (...) {
            changeState(CLOSED);
        }
    }
};

class Context : public gloo::transport::tcp::Context {
  public:
    Context(const std::shared_ptr<gloo::transport::tcp::Device> &d, int own_rank, int num_ranks)
        : gloo::transport::tcp::Context(d, own_rank, num_ranks) {}

    void adopt(int r, int &fd) {
        for (int tries = 0; fd >= 0; tries++) {
            std::unique_ptr<Pair> pair(new Pair(this, device_.get(), r, getTimeout()));
            if (was_adopted(*pair, r, fd)) {
                fd = -1;
                pairs_[(size_t)r] = std::move(pair);
            } else if (tries == 100) {
                give_up(CAIRN_EPEER, "rank %d: strangers connect to each socket of gloo as soon as it is there", rank);
            }
        }
    }

    static bool was_adopted(Pair &pair, int r, int fd) {
        try {
            return pair.adopt(fd);
        } catch (const std::exception &e) {
            give_up(CAIRN_EPEER, GONE, r, words(e));
        }
    }

    bool has_left(int r) { return r != rank && static_cast<Pair *>(getPair(r).get())->has_ended(); }
};

/* Owns a group's connections until gloo has adopted them. */
class Links {
  public:
    explicit Links(const struct cairn__engine_options &options) : fds((size_t)options.size, -1) {
        check(options.make_links(&options, fds.data()));
    }
    Links(const Links &) = delete;
    Links &operator=(const Links &) = delete;
    ~Links() {
        for (const int fd : fds) {
            if (fd >= 0) close(fd);
        }
    }

    std::vector<int> fds;
};

/* Starts the thread that moves all bytes of a group. The listening sockets of its pairs, which are not used, accept
 * only connections within this machine. */
std::shared_ptr<gloo::transport::tcp::Device> begin_device(int rank) {
    const NoSignals for_its_thread;
    try {
        return std::dynamic_pointer_cast<gloo::transport::tcp::Device>(
            gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1")));
    } catch (const std::exception &e) {
        give_up(CAIRN_ESYSTEM, "rank %d: gloo cannot begin at 127.0.0.1, which the interface 'lo' has: %s", rank,
                words(e));
    }
}

std::shared_ptr<Context> meet(const struct cairn__engine_options &options) {
    Links links(options);
    const auto context = std::make_shared<Context>(begin_device(options.rank), options.rank, options.size);
    context->setTimeout(milliseconds(1 + (int64_t)(options.timeout * 1000)));
    for (int r = 0; r < options.size; r++) {
        if (r != options.rank) context->adopt(r, links.fds[(size_t)r]);
    }
    return context;
}

/* ---- transfers under way ---- */

/* One operation for which a lane waits: a send to a rank, or a receive from it. */
struct Part {
    int peer;
    bool is_send;
};

uint64_t mixed(uint64_t hash, uint64_t value) {
    hash ^= value;
    hash *= 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

} // namespace

struct cairn__moving {
    std::vector<Part> parts;
    bool done = false;
};

namespace {

/* A lane: its transfers in order, the buffers for them, and the thread that waits for them. The engine's lock guards
 * everything except the buffers. */
struct Lane {
    std::deque<cairn__moving *> queue;
    std::condition_variable filled;               /* it has work, or the engine is over */
    std::vector<std::unique_ptr<Buffer>> buffers; /* [size] of the engine; NULL for ranks that the lane does not use */
    std::thread thread;
    uint64_t number = 0; /* of transfers begun */
    int waits_for = -1;  /* the rank, -1 = none */
};

} // namespace

struct cairn__engine {
    int rank, size;
    std::string address, interface; /* for groups that are made from this one */
    std::shared_ptr<Context> context;

    std::mutex lock;
    std::condition_variable finished; /* for the caller: a transfer is done, or the engine is over */
    std::vector<std::unique_ptr<Lane>>
        lanes; /* collectives, then sends by rank, then recvs by rank; NULL until needed */
    std::vector<std::unique_ptr<cairn__moving>> all; /* in flight, or done and not tested yet */
    bool over = false;                               /* failed, aborted or closing */
    cairn_status status = CAIRN_OK;                  /* why it is over, with the message in `why` */
    char why[512] = "";
    uint64_t done = 0, seen_done = 0; /* transfers, and how many of them rest() has seen */
    void (*wake)(void *ctx) = nullptr;
    void *wake_ctx = nullptr;

    cairn__engine(const struct cairn__engine_options &o)
        : rank(o.rank), size(o.size), address(o.address), interface(o.interface ? o.interface : "") {
        lanes.resize(1 + 2 * (size_t)size);
    }
    ~cairn__engine() { end(); }

    Lane &lane_of(const struct cairn__transfer &t);
    void begin_lane(Lane &lane, const struct cairn__transfer &t);
    void run(Lane &lane) noexcept;
    bool await(Lane &lane, const Part &part);
    void give(Buffer &buffer, const Part &part, uint64_t slot, size_t at, size_t nbytes);
    void lose(int peer, const std::exception &e) noexcept;
    void die(cairn_status status, const char *text) noexcept;
    void check_alive();
    bool forget_if_done(const cairn__moving *moving);
    void rest();
    int awaited();
    void reset() noexcept;
    void end_waits() noexcept;
    void wake_all() noexcept;
    void end() noexcept;
};

/* ---- lanes ---- */

static bool is_message(const struct cairn__transfer &t) {
    return t.kind == CAIRN__MOVE_SEND || t.kind == CAIRN__MOVE_RECV;
}

/* Passes the operation to gloo. */
void cairn__engine::give(Buffer &buffer, const Part &part, uint64_t slot, size_t at, size_t nbytes) {
    try {
        if (part.is_send) {
            buffer.send(part.peer, slot, at, nbytes);
        } else {
            buffer.recv(part.peer, slot, at, nbytes);
        }
    } catch (const std::exception &e) {
        lose(part.peer, e);
        check_alive();
    }
}

/* A lane's buffer spans all memory, so one buffer serves every transfer. The receive that no send matches wakes the
 * lane's waits if the connection breaks: gloo notifies only waiting operations, and none that is in progress. */
void cairn__engine::begin_lane(Lane &lane, const struct cairn__transfer &t) {
    lane.buffers.resize((size_t)size);
    for (int r = 0; r < size; r++) {
        if (r == rank || (is_message(t) && r != t.peer)) continue;
        lane.buffers[(size_t)r] = context->createUnboundBuffer(nullptr, SIZE_MAX);
        try {
            lane.buffers[(size_t)r]->recv(r, NEVER_SENT, 0, 0);
        } catch (const gloo::Exception &) {
            continue; /* the rank has left because it is done; a transfer that needs it fails by itself */
        }
    }
    const NoSignals for_its_thread;
    lane.thread = std::thread([this, &lane] { run(lane); });
}

Lane &cairn__engine::lane_of(const struct cairn__transfer &t) {
    const size_t messages = 1 + (t.kind == CAIRN__MOVE_SEND ? 0 : (size_t)size) + (size_t)t.peer;
    const size_t i = is_message(t) ? messages : 0;
    if (!lanes[i]) {
        std::unique_ptr<Lane> lane(new Lane);
        begin_lane(*lane, t);
        const std::lock_guard<std::mutex> guard(lock);
        lanes[i] = std::move(lane);
    }
    return *lanes[i];
}

/* Returns false if the wait was aborted. */
bool wait(Buffer &buffer, bool is_send) {
    return is_send ? buffer.waitSend(FOREVER) : buffer.waitRecv(FOREVER);
}

/* A wait that begins after the completion of its operation may find that the connection has ended since, and throw. A
 * second wait looks at completions first. */
bool wait_twice(Buffer &buffer, bool is_send) {
    try {
        return wait(buffer, is_send);
    } catch (const std::exception &) {
        return wait(buffer, is_send);
    }
}

/* Returns false if the engine is over. */
bool cairn__engine::await(Lane &lane, const Part &part) {
    Buffer &buffer = *lane.buffers[(size_t)part.peer];
    {
        const std::lock_guard<std::mutex> guard(lock);
        lane.waits_for = part.peer;
    }
    for (;;) {
        const bool got = wait_twice(buffer, part.is_send);
        const std::lock_guard<std::mutex> guard(lock);
        if (over || got) return !over;
    }
}

/* The thread of a lane; returns when the engine is over. */
void cairn__engine::run(Lane &lane) noexcept {
    pthread_setname_np(pthread_self(), "cairn-gloo");
    int peer = 0;
    try {
        for (;;) {
            cairn__moving *moving;
            {
                std::unique_lock<std::mutex> guard(lock);
                lane.waits_for = -1;
                lane.filled.wait(guard, [&] { return over || !lane.queue.empty(); });
                if (over) return;
                moving = lane.queue.front();
            }
            for (const Part &part : moving->parts) {
                peer = part.peer;
                if (!await(lane, part)) return;
            }
            const std::lock_guard<std::mutex> guard(lock);
            lane.queue.pop_front();
            moving->done = true;
            done++;
            wake_all();
        }
    } catch (const std::exception &e) {
        lose(peer, e);
    } catch (...) {
        die(CAIRN_EINTERNAL, "gloo threw an unknown exception");
    }
}

void cairn__engine::lose(int peer, const std::exception &e) noexcept {
    char text[sizeof(why)];
    snprintf(text, sizeof(text), GONE, peer, words(e));
    die(CAIRN_EPEER, text);
}

/* Remembers the first failure; an error after an abort is no failure. */
void cairn__engine::die(cairn_status st, const char *text) noexcept {
    {
        const std::lock_guard<std::mutex> guard(lock);
        if (status == CAIRN_OK && !over) {
            status = st;
            snprintf(why, sizeof(why), "%s", text);
        }
    }
    end_waits();
}

/* To be called with the lock held. */
void cairn__engine::wake_all() noexcept {
    finished.notify_all();
    if (wake) wake(wake_ctx);
}

/* Aborts all waits. A wait that has not begun yet is aborted as soon as it begins. */
void cairn__engine::end_waits() noexcept {
    const std::lock_guard<std::mutex> guard(lock);
    over = true;
    wake_all();
    for (const std::unique_ptr<Lane> &lane : lanes) {
        if (!lane) continue;
        lane->filled.notify_all();
        for (const std::unique_ptr<Buffer> &buffer : lane->buffers) {
            if (!buffer) continue;
            buffer->abortWaitSend();
            buffer->abortWaitRecv();
        }
    }
}

/* Ends buffers before connections: after that nothing touches the program's memory. Connections end softly, because
 * written data may still be in flight to ranks that need it. */
void cairn__engine::end() noexcept {
    end_waits();
    for (const std::unique_ptr<Lane> &lane : lanes) {
        if (lane && lane->thread.joinable()) lane->thread.join();
    }
    lanes.clear();
    context.reset();
}

/* ---- the caller's side ---- */

void cairn__engine::check_alive() {
    const std::lock_guard<std::mutex> guard(lock);
    if (status != CAIRN_OK) give_up(status, "%s", why);
    if (over) give_up(CAIRN_ESTATE, "the gloo group was aborted");
}

bool cairn__engine::forget_if_done(const cairn__moving *moving) {
    const std::lock_guard<std::mutex> guard(lock);
    if (!moving->done) return false;
    const auto is_it = [&](const std::unique_ptr<cairn__moving> &m) { return m.get() == moving; };
    all.erase(std::find_if(all.begin(), all.end(), is_it));
    return true;
}

void cairn__engine::rest() {
    std::unique_lock<std::mutex> guard(lock);
    finished.wait_for(guard, NAP, [&] { return over || done != seen_done; });
    seen_done = done;
}

int cairn__engine::awaited() {
    const std::lock_guard<std::mutex> guard(lock);
    for (const std::unique_ptr<Lane> &lane : lanes) {
        if (lane && lane->waits_for >= 0) return lane->waits_for;
    }
    return -1;
}

/* Resets the connections, which ranks that wait for this one notice. */
void cairn__engine::reset() noexcept {
    end_waits();
    (void)guarded(CAIRN_EINTERNAL, [&] {
        for (int r = 0; r < size; r++) {
            if (r != rank) context->getPair(r)->close();
        }
    });
}

/* ---- transfers ---- */

namespace {

/* Posts the parts of one transfer as they are added. */
class Posting {
  public:
    Posting(cairn__engine &e, Lane &l, const struct cairn__transfer &t, cairn__moving &m)
        : engine(e), lane(l), moving(m), seed(mixed(mixed(1, is_message(t) ? CAIRN__MOVE_SEND : t.kind), ++l.number)) {}

    void send(int to, const void *src, size_t nbytes) { add(to, true, (size_t)(uintptr_t)src, nbytes); }
    void recv(int from, void *dst, size_t nbytes) { add(from, false, (size_t)(uintptr_t)dst, nbytes); }

  private:
    void add(int peer, bool is_send, size_t at, size_t nbytes) {
        if (nbytes == 0) return;
        Buffer &buffer = *lane.buffers[(size_t)peer];
        const uint64_t slot = mixed(seed, nbytes) | 1; /* not NEVER_SENT */
        moving.parts.push_back({peer, is_send});
        engine.give(buffer, moving.parts.back(), slot, at, nbytes);
    }

    cairn__engine &engine;
    Lane &lane;
    cairn__moving &moving;
    const uint64_t seed;
};

/* Receives first: a send whose receive is posted goes out at once. */
void post_alltoall(const cairn__engine &e, const struct cairn__transfer &t, Posting &posting) {
    char *dst = (char *)t.dst;
    const char *src = (const char *)t.src;
    const size_t own = std::min(t.dst_nbytes[e.rank], t.src_nbytes[e.rank]);
    if (own) memmove(dst + t.dst_at[e.rank], src + t.src_at[e.rank], own);
    for (int i = 1; i < e.size; i++) {
        const int r = (e.rank + i) % e.size;
        posting.recv(r, dst + t.dst_at[r], t.dst_nbytes[r]);
    }
    for (int i = 1; i < e.size; i++) {
        const int r = (e.rank + i) % e.size;
        posting.send(r, src + t.src_at[r], t.src_nbytes[r]);
    }
}

void post_allgather(const cairn__engine &e, const struct cairn__transfer &t, Posting &posting) {
    char *dst = (char *)t.dst;
    for (int i = 1; i < e.size; i++) {
        const int r = (e.rank + i) % e.size;
        posting.recv(r, dst + t.dst_at[r], t.dst_nbytes[r]);
    }
    for (int i = 1; i < e.size; i++) {
        posting.send((e.rank + i) % e.size, dst + t.dst_at[e.rank], t.dst_nbytes[e.rank]);
    }
}

void post_broadcast(const cairn__engine &e, const struct cairn__transfer &t, Posting &posting) {
    if (t.peer != e.rank) return posting.recv(t.peer, t.dst, t.nbytes);
    for (int i = 1; i < e.size; i++) posting.send((e.rank + i) % e.size, t.dst, t.nbytes);
}

void post(const cairn__engine &e, const struct cairn__transfer &t, Posting &posting) {
    switch (t.kind) {
    case CAIRN__MOVE_ALLTOALL:
        return post_alltoall(e, t, posting);
    case CAIRN__MOVE_ALLGATHER:
        return post_allgather(e, t, posting);
    case CAIRN__MOVE_BROADCAST:
        return post_broadcast(e, t, posting);
    case CAIRN__MOVE_SEND:
        return posting.send(t.peer, t.src, t.nbytes);
    case CAIRN__MOVE_RECV:
        return posting.recv(t.peer, t.dst, t.nbytes);
    }
}

} // namespace

/* ---- the table ---- */

extern "C" {

static cairn_status probe(bool launched) {
    (void)launched;
    return CAIRN_OK;
}

static cairn_status open_engine(const struct cairn__engine_options *options, struct cairn__engine **out) {
    return guarded(CAIRN_ESYSTEM, [&] {
        std::unique_ptr<cairn__engine> engine(new cairn__engine(*options));
        engine->context = meet(*options);
        *out = engine.release();
    });
}

static bool has_left(struct cairn__engine *parent, int rank) {
    return parent->context->has_left(rank);
}

static cairn_status derive_engine(struct cairn__engine *parent, const int *ranks,
                                  const struct cairn__engine_options *options, struct cairn__engine **out) {
    return guarded(CAIRN_ESYSTEM, [&] {
        struct cairn__engine_options o = *options; /* the ranks meet by their new numbers */
        o.has_left = has_left;
        o.parent = parent;
        o.parent_ranks = ranks;
        o.address = parent->address.c_str();
        o.interface = parent->interface.c_str();
        std::unique_ptr<cairn__engine> engine(new cairn__engine(o));
        engine->context = meet(o);
        *out = engine.release();
    });
}

static bool close_engine(struct cairn__engine **engine) {
    delete *engine;
    *engine = nullptr;
    return true;
}

static cairn_status start(struct cairn__engine *engine, const struct cairn__transfer *transfer,
                          struct cairn__moving **out) {
    const NoPipeSignal quiet;
    return guarded(CAIRN_ESYSTEM, [&] {
        engine->check_alive();
        engine->all.reserve(engine->all.size() + 1);
        std::unique_ptr<cairn__moving> moving(new cairn__moving);
        Lane &lane = engine->lane_of(*transfer);
        Posting posting(*engine, lane, *transfer, *moving);
        post(*engine, *transfer, posting);
        const std::lock_guard<std::mutex> guard(engine->lock);
        lane.queue.push_back(moving.get());
        lane.filled.notify_all();
        *out = moving.get();
        engine->all.push_back(std::move(moving));
    });
}

static cairn_status test(struct cairn__engine *engine, struct cairn__moving *moving, bool *done) {
    return guarded(CAIRN_EINTERNAL, [&] {
        *done = engine->forget_if_done(moving);
        if (!*done) engine->check_alive();
    });
}

static void rest(struct cairn__engine *engine, int idle) {
    if (idle < 2) {
        std::this_thread::yield();
    } else {
        engine->rest();
    }
}

static int awaited(struct cairn__engine *engine) {
    return engine->awaited();
}

static void abort_engine(struct cairn__engine *engine) {
    engine->reset();
}

static void set_wake(struct cairn__engine *engine, void (*wake)(void *ctx), void *ctx) {
    const std::lock_guard<std::mutex> guard(engine->lock);
    engine->wake = wake;
    engine->wake_ctx = ctx;
}

const struct cairn__engine_ops cairn__gloo_ops = {sizeof(struct cairn__engine_ops),
                                                  "gloo",
                                                  probe,
                                                  open_engine,
                                                  derive_engine,
                                                  close_engine,
                                                  start,
                                                  test,
                                                  rest,
                                                  abort_engine,
                                                  awaited,
                                                  set_wake};

} // extern "C"
