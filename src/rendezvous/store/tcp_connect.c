/* Finding a store's server: tries all places in rounds until one of them is the store or the time is over.
 *
 * At each address up to two greetings, each on a connection of its own:
 *   1. VALIDATE and GETNUMKEYS four times, in one send: answered by 2.2 and later. (PING would do from 2.5 on; some
 *      servers before it do not answer.) 1.13 to 2.1 read a SET whose key has 0x070707073C85F7CE bytes, fail to
 *      allocate that and close the connection unharmed; with fewer bytes they would wait for the rest and serve no
 *      other client.
 *   2. GETNUMKEYS in the numbers of 1.13, then 7 with a key: WATCH_KEY answers 3 in 1.13 and 2.0, in 2.1 it is
 *      DELETE_KEY and answers 0 in eight bytes.
 * Where there is a secret there is one greeting: the proof (proof.h), then VALIDATE and the counts, since only Cairn's
 * servers know it. The last answer of each place is kept for the error message. */
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/descriptors.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/vars.h"
#include "rendezvous/address.h"
#include "rendezvous/owner.h"
#include "rendezvous/store/proof.h"
#include "rendezvous/store/tcp.h"

enum { FIRST_PAUSE_MS = 10, LAST_PAUSE_MS = 1000, LAST_COUNT_PAUSE_MS = 100, MAX_KEYS = 1 << 30 };

/* Seconds for a step, doubled every round. With several places the first step is short, so that none of them uses up
 * the time of the others. */
static const double FIRST_PATIENCE = 2.0, FIRST_OF_MANY = 0.25, LAST_PATIENCE = 30.0;

/* In increasing order of what they tell the user. */
enum outcome { NOTHING, NO_HOST, NOT_YET, NO_CONNECTION, SILENCE, HUNG_UP, NO_STORE, NOT_OURS, JOINED };

struct finding {
    enum outcome outcome;
    char text[160];
};

enum greeting { PROOF, NEW, OLD, NUM_GREETINGS };

enum { COUNTS = 4, WATCH_KEY = 7, WATCHED = 3 };

struct search {
    struct cairn__tcp_store *s;
    const struct cairn__store_places *places;
    struct finding *findings; /* [places] */
    uint64_t deadline;
    double patience;
    bool greetings[NUM_GREETINGS];
    bool told; /* CAIRN_STORE_DIALECT sets the dialect */
    enum cairn__store_dialect dialect;
};

/* ---- one greeting ---- */

static void set_step(struct search *w) {
    const double left = cairn__ms_left(w->deadline) * 1e-3;
    cairn__stream_set_deadline(&w->s->stream, left < w->patience ? left : w->patience);
}

/* Whether the socket is connected to itself: the kernel may give a port without a listener to the very socket that
 * connects to that port. */
static bool is_itself(int fd) {
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t nhere = sizeof(here), nthere = sizeof(there);
    return getsockname(fd, (struct sockaddr *)&here, &nhere) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &nthere) == 0 && nhere == nthere &&
           memcmp(&here, &there, nhere) == 0;
}

/* Returns a connected socket, or -1 with errno. */
static int dial(const struct addrinfo *a, uint64_t deadline) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return -1;
    int cause = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (cause == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t length = sizeof(cause);
        int got;
        do got = poll(&p, 1, cairn__ms_left(deadline));
        while (got < 0 && errno == EINTR);
        if (got == 0) cause = ETIMEDOUT;
        if (got < 0) cause = errno;
        if (got > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &length);
    }
    if (cause == 0 && is_itself(fd)) cause = ECONNREFUSED;
    if (cause == 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        return fd;
    }
    close(fd);
    errno = cause;
    return -1;
}

/* Reads until there are `want` bytes, the connection ends, or the time of the step is over. *hung_up: it ended. */
static size_t collect(struct cairn__stream *s, uint8_t *bytes, size_t want, bool *hung_up) {
    size_t nbytes = 0;
    bool readable = true;
    *hung_up = false;
    while (nbytes < want && readable && !*hung_up) {
        if (cairn__stream_await(s, &readable) != CAIRN_OK || !readable) break;
        ssize_t got = recv(s->fd, bytes + nbytes, want - nbytes, 0);
        if (got > 0) nbytes += (size_t)got;
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) *hung_up = true;
    }
    return nbytes;
}

/* Returns NOTHING if both ends are proven and the greeting can continue. */
static enum outcome prove(struct search *w, int port, struct finding *f) {
    struct cairn__stream *s = &w->s->stream;
    struct cairn__proof p;
    uint8_t first[CAIRN__PROOF_FIRST], second[CAIRN__PROOF_SECOND], third[CAIRN__PROOF_THIRD];
    bool hung_up = false;
    if (cairn__proof_begin(&p, port, first) != CAIRN_OK) return NOT_YET;
    if (cairn__put_op(s, first[0]) != CAIRN_OK || cairn__put(s, first + 1, sizeof(first) - 1) != CAIRN_OK)
        return NOT_YET;
    cairn__stream_send(s); /* if this fails, reading fails too */
    const size_t nbytes = s->fd >= 0 ? collect(s, second, sizeof(second), &hung_up) : 0;
    if (nbytes == sizeof(second) && cairn__proof_answer(&p, w->places->secret, second, third)) {
        (void)(cairn__put_op(s, third[0]) == CAIRN_OK && cairn__put(s, third + 1, sizeof(third) - 1) == CAIRN_OK &&
               cairn__stream_send(s) == CAIRN_OK);
        return NOTHING;
    }
    snprintf(f->text, sizeof(f->text), "%s",
             nbytes == sizeof(second) ? "a store that does not know the job's secret"
             : hung_up || s->fd < 0   ? "a program that closes the connection when it is to prove the job's secret"
                                      : "a program that does not answer when it is to prove the job's secret");
    return nbytes == sizeof(second) ? NOT_OURS : hung_up || s->fd < 0 ? HUNG_UP : SILENCE;
}

static cairn_status put_greeting(struct cairn__stream *s, enum greeting greeting) {
    const uint32_t magic = STORE_MAGIC;
    uint8_t counts[COUNTS];
    cairn_status st = CAIRN_OK;
    if (greeting == OLD) return cairn__put_op(s, cairn__store_number(CAIRN__STORE_1_13, STORE_GETNUMKEYS));
    memset(counts, STORE_GETNUMKEYS, sizeof(counts));
    TRY(cairn__put_op(s, STORE_VALIDATE));
    TRY(cairn__put(s, &magic, sizeof(magic)));
    TRY(cairn__put(s, counts, sizeof(counts)));
out:
    return st;
}

static bool are_counts(const uint8_t *bytes, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i += sizeof(int64_t)) {
        int64_t count;
        memcpy(&count, bytes + i, sizeof(count));
        if (count < 0 || count >= MAX_KEYS) return false;
    }
    return true;
}

static enum outcome describe_stranger(struct cairn__stream *s, const uint8_t *begin, size_t nbytes, char *text,
                                      size_t room) {
    char shown[33] = "";
    uint8_t bytes[sizeof(shown) - 1];
    memcpy(bytes, begin, nbytes);
    if (s->fd >= 0) {
        ssize_t more = recv(s->fd, bytes + nbytes, sizeof(bytes) - nbytes, MSG_DONTWAIT);
        if (more > 0) nbytes += (size_t)more;
    }
    for (size_t i = 0; i < nbytes; i++) shown[i] = isprint(bytes[i]) ? (char)bytes[i] : '.';
    snprintf(text, room, "a program that is not a store and answers '%s'", shown);
    return NO_STORE;
}

static enum outcome describe_nothing(bool hung_up, char *text, size_t room) {
    snprintf(text, room, "%s",
             hung_up ? "a program that closes the connection after every request of a store's client, as Cairn's does "
                       "that has a job secret"
                     : "a program that accepts the connection and sends nothing");
    return hung_up ? HUNG_UP : SILENCE;
}

static enum outcome ask_dialect(struct search *w, struct finding *f) {
    struct cairn__stream *s = &w->s->stream;
    uint8_t answer[sizeof(int64_t)] = {0};
    bool hung_up = false;
    set_step(w);
    if (cairn__put_op(s, WATCH_KEY) != CAIRN_OK || cairn__put_key(s, "cairn/dialect") != CAIRN_OK) return NOT_YET;
    if (cairn__stream_send(s) == CAIRN_OK) {
        const size_t nbytes = collect(s, answer, 1, &hung_up);
        const bool watched = nbytes == 1 && answer[0] == WATCHED;
        w->s->dialect = watched ? CAIRN__STORE_1_13 : CAIRN__STORE_2_1;
        if (watched) return JOINED;
        if (nbytes == 1 && answer[0] == 0 && collect(s, answer + 1, 7, &hung_up) == 7) return JOINED;
    }
    return describe_nothing(hung_up || s->fd < 0, f->text, sizeof(f->text));
}

/* Returns JOINED if the server answered and the dialect is known. */
static enum outcome greet(struct search *w, const struct addrinfo *a, enum greeting greeting, struct finding *f) {
    struct cairn__stream *s = &w->s->stream;
    uint8_t reply[sizeof(int64_t) * COUNTS] = {0};
    char room[128];
    bool hung_up = false;
    set_step(w);
    s->fd = dial(a, s->deadline);
    if (s->fd < 0) {
        snprintf(f->text, sizeof(f->text), "%s", strerror_r(errno, room, sizeof(room)));
        return NO_CONNECTION;
    }
    set_step(w);
    if (greeting == PROOF) {
        const enum outcome outcome = prove(w, cairn__address_port(a->ai_addr), f);
        if (outcome != NOTHING) return outcome;
    }
    if (put_greeting(s, greeting) != CAIRN_OK) return NOT_YET;
    cairn__stream_send(s); /* if this fails, reading fails too */
    const size_t one = sizeof(int64_t), all = greeting == OLD ? one : COUNTS * one;
    size_t nbytes = s->fd >= 0 ? collect(s, reply, one, &hung_up) : 0;
    if (nbytes == 0) return describe_nothing(hung_up || s->fd < 0, f->text, sizeof(f->text));
    if (nbytes == one && are_counts(reply, one)) nbytes += collect(s, reply + one, all - one, &hung_up);
    if (nbytes < all || !are_counts(reply, all)) return describe_stranger(s, reply, nbytes, f->text, sizeof(f->text));
    w->s->dialect = w->told ? w->dialect : CAIRN__STORE_2_2;
    return greeting != OLD || w->told ? JOINED : ask_dialect(w, f);
}

/* ---- one address ---- */

/* A server that another user runs on this machine is not the job's, whatever it answers. */
static bool is_trusted(const struct search *w, struct finding *f) {
    char who[64];
    unsigned uid = 0;
    const enum cairn__owner owner =
        cairn__store_is_open() ? CAIRN__OWNER_SAME : cairn__owner_of_peer(-1, w->s->stream.fd, &uid);
    if (owner == CAIRN__OWNER_SAME || owner == CAIRN__OWNER_AWAY || w->places->secret) return true;
    cairn__owner_describe(uid, who, sizeof(who));
    snprintf(f->text, sizeof(f->text), "%s",
             owner == CAIRN__OWNER_OTHER ? who
                                         : "a program whose user the kernel does not tell (see docs/security.md)");
    return false;
}

static bool has_proof(struct search *w, struct finding *f) {
    const char *proof = w->places->proof;
    int present = 0;
    if (!proof) return true;
    w->s->base.timeout = w->patience;
    if (w->s->base.ops->check(&w->s->base, &proof, 1, &present) == CAIRN_OK && present) return true;
    snprintf(f->text, sizeof(f->text), "another job's store (it has no key '%.80s')", proof);
    return false;
}

/* torch's rank 0 that hosts the store counts its clients in this key, which has no "/". */
static cairn_status add_clients(struct cairn__tcp_store *store, int64_t delta, double seconds, int64_t *joined) {
    struct cairn__stream *s = &store->stream;
    cairn_status st = CAIRN_OK;
    cairn__stream_set_deadline(s, seconds);
    TRY(cairn__put_op(s, cairn__store_number(store->dialect, STORE_ADD)));
    TRY(cairn__put_vector(s, "init/", 5));
    TRY(cairn__put(s, &delta, sizeof(delta)));
    TRY(cairn__stream_send(s));
    TRY(cairn__stream_receive(s, joined, sizeof(*joined)));
out:
    return st;
}

static bool count_itself(struct search *w, struct finding *f) {
    int64_t joined = 0;
    if (add_clients(w->s, 1, w->patience, &joined) == CAIRN_OK) return true;
    snprintf(f->text, sizeof(f->text), "%.150s", cairn_last_error());
    return false;
}

static enum outcome try_address(struct search *w, const struct addrinfo *a, struct finding *f) {
    struct cairn__stream *s = &w->s->stream;
    enum outcome outcome = HUNG_UP;
    for (int g = 0; g < NUM_GREETINGS && outcome == HUNG_UP; g++) {
        if (!w->greetings[g]) continue;
        outcome = greet(w, a, (enum greeting)g, f);
        if (outcome == JOINED && (!is_trusted(w, f) || !has_proof(w, f))) outcome = NOT_OURS;
        if (outcome == JOINED && !count_itself(w, f)) outcome = HUNG_UP;
        if (outcome != JOINED) cairn__stream_break(s, CAIRN_OK);
    }
    return outcome;
}

/* ---- rounds over the places ---- */

static int num_places(const struct cairn__store_places *p) {
    return p->num_hosts * p->num_ports;
}

static void name_place(const struct cairn__store_places *p, int place, char *name, size_t nbytes) {
    const char *host = p->hosts[place / p->num_ports];
    snprintf(name, nbytes, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, p->ports[place % p->num_ports]);
}

/* On failure returns NULL, with the reason in f. */
static struct addrinfo *resolve(const struct cairn__store_places *p, int place, struct finding *f) {
    char service[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    snprintf(service, sizeof(service), "%d", p->ports[place % p->num_ports]);
    const int failed = getaddrinfo(p->hosts[place / p->num_ports], service, &hints, &list);
    if (!failed) return list;
    f->outcome = failed == EAI_AGAIN ? NOT_YET : NO_HOST;
    snprintf(f->text, sizeof(f->text), "the host has no address (%s)", gai_strerror(failed));
    return NULL;
}

static bool try_place(struct search *w, int place) {
    struct finding found = {.outcome = NOTHING};
    name_place(w->places, place, w->s->stream.name, sizeof(w->s->stream.name));
    struct addrinfo *list = resolve(w->places, place, &found);
    for (const struct addrinfo *a = list; a && found.outcome != JOINED; a = a->ai_next) {
        struct finding f = {.outcome = NOTHING};
        f.outcome = try_address(w, a, &f);
        if (f.outcome >= found.outcome) found = f;
    }
    if (list) freeaddrinfo(list);
    /* An outcome that was cut off by the deadline tells less than an earlier one. */
    struct finding *kept = &w->findings[place];
    const bool cut_off = cairn__ms_left(w->deadline) == 0 && found.outcome <= SILENCE;
    if (!cut_off || kept->outcome == NOTHING) *kept = found;
    return found.outcome == JOINED;
}

static bool no_host_exists(const struct search *w) {
    for (int i = 0; i < num_places(w->places); i++) {
        if (w->findings[i].outcome != NO_HOST) return false;
    }
    return true;
}

/* "Connection refused at a:1, a:2; another job's store (...) at a:3" */
static void list_findings(const struct search *w, char *text, size_t room) {
    const int n = num_places(w->places);
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n && used < room; i++) {
        bool first = true;
        for (int j = 0; j < i && first; j++) first = strcmp(w->findings[i].text, w->findings[j].text) != 0;
        for (int j = i; j < n && first && used < room; j++) {
            char name[300];
            if (strcmp(w->findings[i].text, w->findings[j].text) != 0) continue;
            name_place(w->places, j, name, sizeof(name));
            used += (size_t)snprintf(text + used, room - used, "%s%s%s",
                                     j > i  ? ", "
                                     : used ? "; "
                                            : "",
                                     j > i ? "" : w->findings[i].text, j > i ? "" : " at ");
            if (used < room) used += (size_t)snprintf(text + used, room - used, "%s", name);
        }
    }
}

static cairn_status fail_search(const struct search *w, double timeout) {
    const struct finding *first = &w->findings[0];
    const int n = num_places(w->places);
    char name[300], list[600];
    name_place(w->places, 0, name, sizeof(name));
    REQUIRE(!no_host_exists(w), CAIRN_EINVAL, "the store's host '%s' has no address: %s; check MASTER_ADDR",
            w->places->hosts[0], first->text);
    if (n == 1) {
        return cairn__fail(CAIRN_ETIMEOUT,
                           "no store answered at %s within %g s: %s; is rank 0 running, and are MASTER_ADDR and "
                           "MASTER_PORT the same for every rank?",
                           name, timeout, first->text[0] ? first->text : "the time was too short to try");
    }
    list_findings(w, list, sizeof(list));
    return cairn__fail(CAIRN_ETIMEOUT,
                       "the job's store was found at none of %d places within %g s: %s; is rank 0 running? To name one "
                       "place, set MASTER_ADDR and MASTER_PORT alike for every rank",
                       n, timeout, list);
}

static cairn_status search(struct search *w, double timeout) {
    const int n = num_places(w->places);
    const double share = timeout / (4 * n);
    int pause_ms = FIRST_PAUSE_MS;
    w->patience = n == 1 ? FIRST_PATIENCE : share < FIRST_OF_MANY ? share : FIRST_OF_MANY;
    for (;; w->patience *= w->patience < LAST_PATIENCE ? 2 : 1) {
        for (int i = 0; i < n; i++) {
            if (try_place(w, i)) return CAIRN_OK;
            if (cairn__ms_left(w->deadline) == 0) break;
        }
        const int left = cairn__ms_left(w->deadline);
        if (left == 0 || no_host_exists(w)) return fail_search(w, timeout);
        poll(NULL, 0, pause_ms < left ? pause_ms : left);
        pause_ms = pause_ms * 2 < LAST_PAUSE_MS ? pause_ms * 2 : LAST_PAUSE_MS;
    }
}

/* ---- interface ---- */

static cairn_status choose_greetings(struct search *w) {
    static const struct {
        const char *name;
        enum cairn__store_dialect dialect;
    } dialects[] = {{"1.13", CAIRN__STORE_1_13}, {"2.1", CAIRN__STORE_2_1}, {"2.2", CAIRN__STORE_2_2}};
    const char *told = cairn__var("CAIRN_STORE_DIALECT");
    w->greetings[PROOF] = w->places->secret != NULL;
    if (w->places->secret) return CAIRN_OK;
    w->greetings[NEW] = w->greetings[OLD] = !told;
    for (size_t i = 0; told && i < sizeof(dialects) / sizeof(dialects[0]); i++) {
        if (strcmp(told, dialects[i].name) != 0) continue;
        w->told = true;
        w->dialect = dialects[i].dialect;
        w->greetings[w->dialect == CAIRN__STORE_2_2 ? NEW : OLD] = true;
    }
    REQUIRE(!told || w->told, CAIRN_EINVAL,
            "CAIRN_STORE_DIALECT='%s' in the environment is none of 1.13, 2.1 and 2.2; unset it to detect the server's",
            told);
    return CAIRN_OK;
}

static cairn_status check_places(const struct cairn__store_places *p) {
    REQUIRE(p->num_hosts > 0 && p->num_ports > 0, CAIRN_EINVAL, "the store has no address");
    for (int i = 0; i < p->num_hosts; i++) {
        REQUIRE(p->hosts[i] && p->hosts[i][0], CAIRN_EINVAL, "the store has no host; set MASTER_ADDR");
    }
    for (int i = 0; i < p->num_ports; i++) {
        REQUIRE(p->ports[i] > 0 && p->ports[i] <= 65535, CAIRN_EINVAL,
                "%d is not a port; set MASTER_PORT to one in [1, 65535]", p->ports[i]);
    }
    return CAIRN_OK;
}

static cairn_status connect_to(struct cairn__tcp_store *s, const struct cairn__store_places *places, double timeout) {
    struct search w = {.s = s, .places = places};
    cairn_status st = CAIRN_OK;
    TRY(check_places(places));
    TRY(cairn__check_descriptors(2, "a connection to the store")); /* the second one temporarily */
    TRY(choose_greetings(&w));
    TRY(cairn__calloc((size_t)num_places(places), sizeof(*w.findings), (void **)&w.findings));
    cairn__stream_set_deadline(&s->stream, timeout);
    w.deadline = s->stream.deadline;
    st = search(&w, timeout);
out:
    cairn__free(w.findings);
    s->base.timeout = timeout;
    return st;
}

cairn_status cairn__store_connect(const struct cairn__store_places *places, double timeout, cairn_store **out) {
    struct cairn__tcp_store *s = NULL;
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    cairn_store *made = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(timeout > 0, CAIRN_EINVAL, "the store's timeout is %g s; it must be positive", timeout);
    TRY(cairn__tcp_store_make(timeout, &s));
    made = &s->base;
    TRY(connect_to(s, places, timeout));
    if (getpeername(s->stream.fd, (struct sockaddr *)&address, &length) == 0)
        s->base.port = cairn__address_port((const struct sockaddr *)&address);
    *out = made;
    return CAIRN_OK;
out:
    cairn_store_destroy(&made);
    return st;
}

cairn_status cairn__store_connect_here(const struct cairn__store_door *door, int port, double timeout,
                                       cairn_store **out) {
    const char *const everywhere[] = {"127.0.0.1", "::1"}, *const one[] = {door->address};
    const bool is_one = door->address && door->address[0];
    const struct cairn__store_places places = {.hosts = is_one ? one : everywhere,
                                               .num_hosts = is_one || !door->address ? 1 : 2,
                                               .ports = &port,
                                               .num_ports = 1,
                                               .secret = door->secret};
    return cairn__store_connect(&places, timeout, out);
}

static cairn_status await_workers(struct cairn__tcp_store *s, int world_size, double timeout) {
    cairn__stream_set_deadline(&s->stream, timeout);
    const uint64_t deadline = s->stream.deadline;
    for (int pause = FIRST_PAUSE_MS;; pause = pause < LAST_COUNT_PAUSE_MS ? pause * 2 : pause) {
        int64_t joined = 0;
        cairn_status st = add_clients(s, 0, LAST_PATIENCE, &joined); /* 0: read only */
        if (st != CAIRN_OK || joined >= world_size) return st;
        const int left = cairn__ms_left(deadline);
        REQUIRE(left > 0, CAIRN_ETIMEOUT,
                "%lld of %d clients joined the store at port %d within %g s; were all started, with this port?",
                (long long)joined, world_size, s->base.port, timeout);
        poll(NULL, 0, pause < left ? pause : left);
    }
}

/* The arguments of cairn_tcp_store_create. */
struct wish {
    const char *host;
    int port, world_size;
    double timeout;
    struct cairn__secret *secret;
};

static cairn_status serve(const struct wish *w, cairn_store **out) {
    char address[64];
    int port = w->port;
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL;
    cairn_status st = CAIRN_OK;
    cairn__address_to_listen(w->host ? w->host : "", false, address, sizeof(address));
    const struct cairn__store_door door = {.port = port,
                                           .address = address,
                                           .secret = w->secret,
                                           .is_open = cairn__store_is_open()};
    TRY(cairn__store_serve_at(&door, &server, &port));
    TRY(cairn__store_connect_here(&door, port, w->timeout, &store));
    ((struct cairn__tcp_store *)store)->server = server;
    server = NULL;
    if (w->world_size > 0) TRY(await_workers((struct cairn__tcp_store *)store, w->world_size, w->timeout));
    *out = store;
    return CAIRN_OK;
out:
    cairn_store_destroy(&store);
    cairn__store_stop(&server);
    return st;
}

static cairn_status join(const struct wish *w, cairn_store **out) {
    const struct cairn__store_places places = {
        .hosts = &w->host, .num_hosts = 1, .ports = &w->port, .num_ports = 1, .secret = w->secret};
    return cairn__store_connect(&places, w->timeout, out);
}

cairn_status cairn_tcp_store_create(const char *host, int port, const struct cairn_tcp_store_options *options,
                                    cairn_store **out) {
    struct cairn_tcp_store_options o = {.struct_size = sizeof(o)};
    struct wish w = {.host = host, .port = port};
    cairn_status st = CAIRN_OK;
    REQUIRE(out, CAIRN_EINVAL, "cairn_tcp_store_create: out is NULL");
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_tcp_store_options"));
    REQUIRE(o.is_server <= CAIRN_OFF, CAIRN_EINVAL,
            "cairn_tcp_store_options.is_server is %d; it must be CAIRN_ON or CAIRN_OFF", (int)o.is_server);
    REQUIRE(o.world_size >= 0, CAIRN_EINVAL, "cairn_tcp_store_options.world_size is %d; it cannot be negative",
            o.world_size);
    w.world_size = o.world_size;
    TRY(cairn__store_timeout(o.timeout, &w.timeout));
    if (o.secret) TRY(cairn__secret_from(o.secret, o.secret_nbytes, "cairn_tcp_store_options.secret", &w.secret));
    st = o.is_server == CAIRN_ON ? serve(&w, out) : join(&w, out);
    if (st == CAIRN_OK && o.is_server == CAIRN_ON) {
        ((struct cairn__tcp_store *)*out)->secret = w.secret;
        w.secret = NULL;
    }
out:
    cairn__secret_destroy(&w.secret);
    return st;
}
