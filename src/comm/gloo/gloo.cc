/* gloo's TCP connections as an engine of process groups: the one C++ file of Cairn, since gloo speaks only C++. Nothing
 * throws out of here; what gloo throws becomes a status with its words.
 *
 * A group is a gloo context: a connection between every two ranks, made through Cairn's store. Of gloo's calls it uses
 * sends and receives of unbound buffers alone, all of a transfer at once, for gloo's collectives cannot be ended from
 * outside and end the whole process where two ranks' sizes differ. Here sizes are part of the slot by which gloo
 * matches a send with a receive, so that such two never meet.
 *
 * gloo can only wait for what it was given, not look at it. So a lane, a thread "cairn-gloo", waits for its transfers
 * in their order: one lane for the collectives, and for each rank that messages go to or come from one a direction,
 * begun with the first message. No lane waits for another, and gloo moves whatever was posted whether or not anybody
 * waits for it. */
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstddef>
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
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include "comm/exchange/engine.h"
extern "C" {
#include "core/status.h"
extern const struct cairn__engine_ops cairn__gloo_ops;
}

namespace {

using Clock = std::chrono::steady_clock;
using Buffer = gloo::transport::UnboundBuffer;
using milliseconds = std::chrono::milliseconds;

/* Waits end by being aborted; gloo's own timeout would close every connection. */
constexpr milliseconds FOREVER = std::chrono::hours(24 * 365);
constexpr uint64_t NEVER_SENT = 0; /* a slot */
constexpr milliseconds NAP(2);     /* other groups may have something to do */

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

/* "[pair.cc:589] Connection closed by peer" without the place. */
const char *words(const std::exception &e) {
    const char *text = e.what(), *end = *text == '[' ? strchr(text, ']') : nullptr;
    return end && end[1] == ' ' ? end + 2 : text;
}

/* Runs what may throw. */
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

/* Threads that begin meanwhile get no signals: those are the program's. */
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

/* gloo writes to connections that may be gone, which is SIGPIPE to the thread that does. */
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

/* ---- gloo's thread ---- */

/* What listens, and the thread that moves all bytes of a group. gloo lets exceptions out of it, as when a rank ends
 * while it is being connected to, and that would end the process. Here such a thread stays where it is, asleep, and
 * what it may hold stays with it. */
class Loop : gloo::transport::tcp::Handler {
  public:
    Loop(const gloo::transport::tcp::attr &attr) {
        {
            const NoSignals for_its_thread;
            device = gloo::transport::tcp::CreateDevice(attr);
        }
        static const std::terminate_handler once = before = std::set_terminate(end_thread);
        (void)once;
        mark_thread();
    }

    std::shared_ptr<gloo::transport::Device> device;
    std::atomic<bool> broken{false};
    char why[256] = ""; /* once broken */

  private:
    static std::terminate_handler before;
    static thread_local Loop *of_this_thread;

    void mark_thread() {
        auto &tcp = dynamic_cast<gloo::transport::tcp::Device &>(*device);
        const int fd = eventfd(1, EFD_CLOEXEC);
        if (fd < 0) throw std::bad_alloc();
        tcp.registerDescriptor(fd, EPOLLIN, this);
        std::unique_lock<std::mutex> guard(lock);
        marked.wait(guard, [&] { return is_marked; });
        guard.unlock();
        tcp.unregisterDescriptor(fd, this);
        close(fd);
    }

    void handleEvents(int) override {
        of_this_thread = this;
        const std::lock_guard<std::mutex> guard(lock);
        is_marked = true;
        marked.notify_all();
    }

    [[noreturn]] static void end_thread() {
        Loop *const loop = of_this_thread;
        while (!loop) before();
        try {
            std::rethrow_exception(std::current_exception());
        } catch (const std::exception &e) {
            snprintf(loop->why, sizeof(loop->why), "%s", words(e));
        } catch (...) {}
        loop->broken = true;
        for (;;) pause();
    }

    std::mutex lock;
    std::condition_variable marked;
    bool is_marked = false;
};

std::terminate_handler Loop::before;
thread_local Loop *Loop::of_this_thread;

/* A broken loop's thread holds locks for good. */
void keep_forever(const std::shared_ptr<Loop> &loop,
                  const std::shared_ptr<gloo::transport::Context> &context) noexcept {
    struct Kept {
        std::shared_ptr<Loop> loop;
        std::shared_ptr<gloo::transport::Context> context;
    };
    (void)new (std::nothrow) Kept{loop, context};
}

/* ---- meeting ---- */

/* Keys of one group in the store, until a deadline. A rank that cannot join leaves there why, so that no one waits for
 * it. */
class Meeting {
  public:
    explicit Meeting(const struct cairn__engine_options &o)
        : options(o), deadline(Clock::now() + milliseconds((int64_t)(o.timeout * 1000))) {}

    void publish(const std::vector<char> &addresses) { set(key_of(options.rank), addresses.data(), addresses.size()); }

    std::vector<char> addresses_of(int rank) {
        for (milliseconds pause(1); !has(key_of(rank)); pause = std::min(2 * pause, milliseconds(50))) {
            look();
            if (is_over()) {
                give_up(CAIRN_ETIMEOUT, "rank %d did not join the gloo group of %d ranks within %g s", rank,
                        options.size, options.timeout);
            }
            std::this_thread::sleep_for(pause);
        }
        return get(key_of(rank));
    }

    bool is_over() const { return Clock::now() > deadline; }

    /* Throws where a rank refused. */
    void look() {
        if (!has("refused")) return;
        const std::vector<char> why = get("refused");
        give_up(CAIRN_EPEER, "%.*s", (int)why.size(), why.data());
    }

    void refuse(const char *why) noexcept {
        (void)guarded(CAIRN_EINTERNAL, [&] {
            if (*why && !has("refused")) set("refused", why, strlen(why));
        });
    }

  private:
    static std::string key_of(int rank) { return std::to_string(rank); }

    std::string full(const std::string &key) const { return std::string(options.prefix) + "/gloo/" + key; }

    void set(const std::string &key, const char *value, size_t nbytes) {
        check(options.store_set(options.store, full(key).c_str(), value, nbytes));
    }

    std::vector<char> get(const std::string &key) {
        void *value = nullptr;
        size_t nbytes = 0;
        check(options.store_get(options.store, full(key).c_str(), &value, &nbytes));
        const std::unique_ptr<void, void (*)(void *)> owner(value, options.store_free);
        return std::vector<char>((char *)value, (char *)value + nbytes);
    }

    bool has(const std::string &key) {
        const std::string name = full(key);
        const char *const names[] = {name.c_str()};
        int present = 0;
        check(options.store_check(options.store, names, 1, &present));
        return present != 0;
    }

    const struct cairn__engine_options &options;
    const Clock::time_point deadline;
};

/* Connections being made, in a thread of their own, since gloo's call cannot be ended. Who gave up leaves it behind; at
 * the latest it ends with gloo's timeout. */
class Connecting {
  public:
    Connecting(const std::shared_ptr<Loop> &l, int own_rank, int num_ranks, double timeout)
        : loop(l), rank(own_rank), size(num_ranks), addresses((size_t)num_ranks) {
        context = loop->device->createContext(rank, size);
        context->setTimeout(milliseconds(1 + (int64_t)(timeout * 1000 / 5))); /* gloo takes five times this */
    }

    ~Connecting() {
        if (loop->broken) keep_forever(loop, context);
    }

    /* Where others find this rank: an address for each. */
    std::vector<char> listen() {
        std::vector<char> all;
        for (int r = 0; r < size; r++) {
            if (r == rank) continue;
            std::vector<char> one = context->createPair(r)->address().bytes();
            forget_rest(one);
            all.insert(all.end(), one.begin(), one.end());
        }
        return all;
    }

    /* gloo copies a whole sockaddr_storage, most of which nobody has written: memory of this process. */
    static void forget_rest(std::vector<char> &address) {
        sa_family_t family = AF_UNSPEC;
        if (address.size() < sizeof(sockaddr_storage)) return;
        memcpy(&family, address.data() + offsetof(sockaddr_storage, ss_family), sizeof(family));
        if (family != AF_INET && family != AF_INET6) return;
        const size_t used = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
        std::fill(address.begin() + (ptrdiff_t)used, address.begin() + (ptrdiff_t)sizeof(sockaddr_storage), '\0');
    }

    void set_address(int r, const std::vector<char> &theirs) {
        const size_t nbytes = theirs.size() / (size_t)(size - 1), at = nbytes * (size_t)(rank - (rank > r));
        addresses[(size_t)r].assign(theirs.begin() + (ptrdiff_t)at, theirs.begin() + (ptrdiff_t)(at + nbytes));
    }

    static void start(const std::shared_ptr<Connecting> &self) {
        const NoSignals for_its_thread;
        std::thread([self] { self->run(); }).detach();
    }

    /* Throws where it failed. */
    bool wait(milliseconds some_time) {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait_for(guard, some_time, [&] { return done; });
        if (failed.status != CAIRN_OK) throw failed;
        return done;
    }

    void describe(char *why, size_t nbytes, const char *gloos) const {
        snprintf(why, nbytes,
                 "rank %d cannot connect to rank %d (gloo: %s); that rank has ended, or the network or a firewall "
                 "blocks the connection: see docs/launching.md",
                 rank, (int)with, gloos);
    }

    const std::shared_ptr<Loop> loop;
    std::shared_ptr<gloo::transport::Context> context;

  private:
    void run() noexcept {
        Failed f = {CAIRN_OK, ""};
        try {
            for (; with < size; with++) {
                if (with != rank) context->getPair(with)->connect(addresses[(size_t)with]);
            }
        } catch (const std::exception &e) {
            f.status = strstr(e.what(), "imeout") ? CAIRN_ETIMEOUT : CAIRN_EPEER;
            describe(f.why, sizeof(f.why), words(e));
        } catch (...) {
            f.status = CAIRN_EINTERNAL;
        }
        const std::lock_guard<std::mutex> guard(lock);
        failed = f;
        done = true;
        changed.notify_all();
    }

    const int rank, size;
    std::atomic<int> with{0}; /* the rank that it connects to */
    std::vector<std::vector<char>> addresses;
    std::mutex lock;
    std::condition_variable changed;
    bool done = false;
    Failed failed = {CAIRN_OK, ""};
};

gloo::transport::tcp::attr place_to_listen(const struct cairn__engine_options &options) {
    gloo::transport::tcp::attr attr;
    if (*options.address) {
        attr.hostname = options.address;
    } else if (options.interface && *options.interface) {
        attr.iface = options.interface;
    } else {
        give_up(CAIRN_ESYSTEM,
                "rank %d has no address by which others reach it; name a network interface with GLOO_SOCKET_IFNAME",
                options.rank);
    }
    return attr;
}

std::shared_ptr<Loop> begin_loop(const struct cairn__engine_options &options) {
    const gloo::transport::tcp::attr attr = place_to_listen(options);
    try {
        return std::make_shared<Loop>(attr);
    } catch (const std::exception &e) {
        give_up(CAIRN_ESYSTEM, "rank %d: gloo cannot listen on %s: %s", options.rank,
                attr.hostname.empty() ? attr.iface.c_str() : attr.hostname.c_str(), words(e));
    }
}

/* Returns when all are connected, a rank has refused, or the time is over. */
void await(Connecting &connecting, Meeting &meeting, double timeout) {
    char why[512], late[64];
    snprintf(late, sizeof(late), "nothing within %g s", timeout);
    while (!connecting.wait(milliseconds(20))) {
        const bool broken = connecting.loop->broken;
        if (broken || meeting.is_over()) {
            connecting.describe(why, sizeof(why), broken ? connecting.loop->why : late);
            give_up(broken ? CAIRN_EPEER : CAIRN_ETIMEOUT, "%s", why);
        }
        meeting.look();
    }
}

/* The connections of a group. */
std::shared_ptr<Connecting> meet(const struct cairn__engine_options &options, Meeting &meeting) {
    const auto connecting =
        std::make_shared<Connecting>(begin_loop(options), options.rank, options.size, options.timeout);
    meeting.publish(connecting->listen());
    for (int r = 0; r < options.size; r++) {
        if (r != options.rank) connecting->set_address(r, meeting.addresses_of(r));
    }
    Connecting::start(connecting);
    await(*connecting, meeting, options.timeout);
    return connecting;
}

/* ---- transfers under way ---- */

/* What a lane waits for: something was sent to a rank, or received from it. */
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

/* Its transfers in their order, the buffers that they go through, and the thread that waits for them. All but the
 * buffers under the engine's lock. */
struct Lane {
    std::deque<cairn__moving *> queue;
    std::condition_variable filled;               /* it has work, or all is over */
    std::vector<std::unique_ptr<Buffer>> buffers; /* [size] of the engine; NULL where it does not go */
    std::thread thread;
    uint64_t number = 0; /* of the transfers begun */
    int waits_for = -1;  /* the rank, -1 = none */
};

} // namespace

struct cairn__engine {
    int rank, size;
    std::string address, interface; /* for groups that are made from this one */
    std::shared_ptr<Loop> loop;
    std::shared_ptr<gloo::transport::Context> context;

    std::mutex lock;
    std::condition_variable finished; /* a transfer is done, or all is over: for the caller */
    std::vector<std::unique_ptr<Lane>>
        lanes; /* collectives, then sends by rank, then recvs by rank; NULL until needed */
    std::vector<std::unique_ptr<cairn__moving>> all; /* under way, or done and not tested yet */
    bool over = false;                               /* failed, aborted or closing */
    cairn_status status = CAIRN_OK;                  /* why it is, with the words */
    char why[512] = "";
    uint64_t done = 0, seen_done = 0; /* transfers, and those that the caller knows of */

    cairn__engine(const struct cairn__engine_options &o)
        : rank(o.rank), size(o.size), address(o.address), interface(o.interface ? o.interface : "") {
        lanes.resize(1 + 2 * (size_t)size);
    }
    ~cairn__engine() { end(); }

    void join(const struct cairn__engine_options &options);
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
    void end() noexcept;
};

void cairn__engine::join(const struct cairn__engine_options &options) {
    Meeting meeting(options);
    try {
        const std::shared_ptr<Connecting> connected = meet(options, meeting);
        loop = connected->loop;
        context = connected->context;
    } catch (const Failed &f) {
        if (f.status != CAIRN_ETIMEOUT) meeting.refuse(f.why); /* others have clocks of their own */
        throw;
    }
}

/* ---- lanes ---- */

static bool is_message(const struct cairn__transfer &t) {
    return t.kind == CAIRN__MOVE_SEND || t.kind == CAIRN__MOVE_RECV;
}

/* To gloo. */
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

/* A buffer of a lane is all of memory, so that one serves every transfer. The receive without a sender is what wakes
 * its waits when the connection breaks: gloo tells waiting operations only, and none that is half done. */
void cairn__engine::begin_lane(Lane &lane, const struct cairn__transfer &t) {
    lane.buffers.resize((size_t)size);
    for (int r = 0; r < size; r++) {
        if (r == rank || (is_message(t) && r != t.peer)) continue;
        lane.buffers[(size_t)r] = context->createUnboundBuffer(nullptr, SIZE_MAX);
        try {
            lane.buffers[(size_t)r]->recv(r, NEVER_SENT, 0, 0);
        } catch (const gloo::Exception &) {
            continue; /* has left, being done; a transfer that needs it fails by itself */
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

/* false: the wait was aborted. */
bool wait(Buffer &buffer, bool is_send) {
    return is_send ? buffer.waitSend(FOREVER) : buffer.waitRecv(FOREVER);
}

/* A wait that comes too late to see a completion sees that the connection has ended since. Asked again, it looks at
 * completions first. */
bool wait_twice(Buffer &buffer, bool is_send) {
    try {
        return wait(buffer, is_send);
    } catch (const gloo::Exception &) {
        return wait(buffer, is_send);
    }
}

/* false: all is over. */
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

/* A lane's thread: until all is over. */
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
            finished.notify_all();
        }
    } catch (const std::exception &e) {
        lose(peer, e);
    } catch (...) {
        die(CAIRN_EINTERNAL, "gloo threw an unknown exception");
    }
}

void cairn__engine::lose(int peer, const std::exception &e) noexcept {
    char text[sizeof(why)];
    snprintf(text, sizeof(text), "rank %d ended, left the group or cannot be reached (gloo: %s)", peer, words(e));
    die(CAIRN_EPEER, text);
}

/* Remembers the first failure; what comes of an abort is none. */
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

/* An aborted wait that has not begun yet ends as soon as it does. */
void cairn__engine::end_waits() noexcept {
    const std::lock_guard<std::mutex> guard(lock);
    over = true;
    finished.notify_all();
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

/* Buffers go before connections: after that nothing touches the program's memory. Connections end softly, for what was
 * written to them is still on its way to ranks that need it. */
void cairn__engine::end() noexcept {
    end_waits();
    for (const std::unique_ptr<Lane> &lane : lanes) {
        if (lane && lane->thread.joinable()) lane->thread.join();
    }
    if (loop && loop->broken) {
        for (std::unique_ptr<Lane> &lane : lanes) lane.release();
        keep_forever(loop, context);
    }
    lanes.clear();
    context.reset();
    loop.reset();
}

/* ---- the caller's side ---- */

void cairn__engine::check_alive() {
    if (loop->broken) die(CAIRN_EPEER, loop->why);
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

/* Connections are reset, which those who wait for this rank notice. */
void cairn__engine::reset() noexcept {
    end_waits();
    if (loop->broken) return; /* its connections cannot be touched any more */
    (void)guarded(CAIRN_EINTERNAL, [&] {
        for (int r = 0; r < size; r++) {
            if (r != rank) context->getPair(r)->close();
        }
    });
}

/* ---- transfers ---- */

namespace {

/* The parts of one transfer, posted as they are added. */
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

/* Receives first: a send that finds its receive goes out at once. */
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
        engine->join(*options);
        *out = engine.release();
    });
}

static cairn_status derive_engine(struct cairn__engine *parent, const int *ranks,
                                  const struct cairn__engine_options *options, struct cairn__engine **out) {
    (void)ranks; /* they meet by their new numbers */
    return guarded(CAIRN_ESYSTEM, [&] {
        struct cairn__engine_options o = *options;
        o.address = parent->address.c_str();
        o.interface = parent->interface.c_str();
        std::unique_ptr<cairn__engine> engine(new cairn__engine(o));
        engine->join(o);
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
                                                  awaited};

} // extern "C"
