#include "comm/exchange/links.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"
#include "rendezvous/address.h"
#include "rendezvous/store/proof.h"
#include "rendezvous/store/store.h"

enum {
    MAX_GUESTS = 64, /* not recognised as ranks yet; one more closes the oldest */
    BACKLOG = 1024,
    LONGEST_PAUSE_MS = 20, /* between two looks into the store */
    GRACE_MS = 500,        /* the last data of a rank may arrive later than the end of its connection in the parent */
    MS = 1000000,          /* ns */
};

static const uint8_t WELCOME = 1;

/* What a rank publishes in the store. */
struct record {
    uint32_t port;
    char address[64];
    uint8_t key[CAIRN__SECRET_NBYTES]; /* only rank 0's is set */
};

struct greeting {
    uint32_t rank;
    uint8_t key[CAIRN__SECRET_NBYTES]; /* 0 if a proof came before the greeting */
};

/* A connection to a lower rank. */
struct link {
    enum { UNKNOWN, KNOWN, CONNECTING, ASKED, GREETED, DONE } state;
    int fd;
    struct record there;
    struct cairn__proof proof;
    uint8_t bytes[CAIRN__PROOF_SECOND];
    size_t nbytes;
    uint64_t not_before; /* time of the next attempt */
    bool met_a_stranger;
};

/* A program that has connected to this rank. */
struct guest {
    int fd;
    bool is_proven, has_ended;
    struct cairn__proof proof;
    struct greeting greeting;
    size_t nbytes; /* of the greeting, received so far */
    char from[64];
};

struct meeting {
    const struct cairn__engine_options *o;
    uint64_t deadline, next_look, pause;
    int listener;
    struct record here;
    uint8_t key[CAIRN__SECRET_NBYTES];
    bool has_key, has_proofs;
    struct cairn__secret *secret;
    struct link *links;              /* [rank] */
    struct guest guests[MAX_GUESTS]; /* the oldest first */
    int num_guests;
    struct pollfd *polls;
    int *fds;          /* [size] */
    char stranger[64]; /* address of the first stranger */
    uint64_t gone_at;  /* when a missing rank was first seen to have left the parent; 0 = none has */
};

/* ---- the store ---- */

static void name_key(const struct meeting *m, const char *what, char *key, size_t nbytes) {
    snprintf(key, nbytes, "%s/gloo/%s", m->o->prefix, what);
}

static cairn_status has(const struct meeting *m, const char *what, bool *has_it) {
    char key[400];
    const char *const keys[] = {key};
    int present = 0;
    name_key(m, what, key, sizeof(key));
    const cairn_status st = m->o->store_check(m->o->store, keys, 1, &present);
    *has_it = present != 0;
    return st;
}

static cairn_status set(const struct meeting *m, const char *what, const void *value, size_t nbytes) {
    char key[400];
    name_key(m, what, key, sizeof(key));
    return m->o->store_set(m->o->store, key, value, nbytes);
}

/* Reads at most nbytes; *got is how many. */
static cairn_status get(const struct meeting *m, const char *what, void *out, size_t nbytes, size_t *got) {
    char key[400];
    void *value = NULL;
    cairn_status st = CAIRN_OK;
    name_key(m, what, key, sizeof(key));
    TRY(m->o->store_get(m->o->store, key, &value, got));
    if (*got > nbytes) *got = nbytes;
    memcpy(out, value, *got);
    m->o->store_free(value);
out:
    return st;
}

/* Reads another rank's refusal; "" = none. */
static cairn_status read_refusal(const struct meeting *m, char *why, size_t nbytes) {
    bool refused = false;
    size_t got = 0;
    cairn_status st = CAIRN_OK;
    *why = '\0';
    TRY(has(m, "refused", &refused));
    if (!refused) return CAIRN_OK;
    TRY(get(m, "refused", why, nbytes - 1, &got));
    why[got] = '\0';
out:
    return st;
}

static cairn_status fail_if_refused(const struct meeting *m) {
    char why[512];
    cairn_status st = CAIRN_OK;
    TRY(read_refusal(m, why, sizeof(why)));
    if (*why) st = cairn__fail(CAIRN_EPEER, "%s", why);
out:
    return st;
}

/* Replaces the last error by another rank's refusal, if there is one and the store still answers. */
static void prefer_refusal(const struct meeting *m) {
    char own[512], theirs[512];
    snprintf(own, sizeof(own), "%s", cairn_last_error());
    const bool is_refused = read_refusal(m, theirs, sizeof(theirs)) == CAIRN_OK && *theirs;
    (void)cairn__fail(CAIRN_EPEER, "%s", is_refused ? theirs : own);
}

/* Publishes the last error unless another rank has published one, so that the other ranks do not wait for a rank that
 * cannot join. */
static void refuse(const struct meeting *m) {
    char why[512];
    bool refused = false;
    snprintf(why, sizeof(why), "%s", cairn_last_error());
    if (has(m, "refused", &refused) == CAIRN_OK && !refused) (void)set(m, "refused", why, strlen(why));
}

static cairn_status take_key(struct meeting *m, const uint8_t *key) {
    memcpy(m->key, key, sizeof(m->key));
    m->has_key = true;
    return m->has_proofs ? cairn__secret_from(key, sizeof(m->key), "a group's key", &m->secret) : CAIRN_OK;
}

static cairn_status read_record(struct meeting *m, int rank, bool *found) {
    char name[16];
    size_t nbytes = 0;
    struct link *link = &m->links[rank];
    cairn_status st = CAIRN_OK;
    *found = false;
    snprintf(name, sizeof(name), "%d", rank);
    TRY(has(m, name, found));
    if (!*found) return CAIRN_OK;
    TRY(get(m, name, &link->there, sizeof(link->there), &nbytes));
    REQUIRE(nbytes == sizeof(link->there), CAIRN_EPEER,
            "rank %d left %zu bytes for a gloo group, want %zu: its Cairn is another version", rank, nbytes,
            sizeof(link->there));
    link->there.address[sizeof(link->there.address) - 1] = '\0';
    link->state = KNOWN;
    if (rank == 0) TRY(take_key(m, link->there.key));
out:
    return st;
}

/* Looks in the store for lower ranks that have not been seen, one after the other. */
static cairn_status look(struct meeting *m) {
    bool found = true;
    cairn_status st = CAIRN_OK;
    if (cairn__now_ns() < m->next_look) return CAIRN_OK;
    for (int r = 0; r < m->o->rank && found; r++) {
        if (m->links[r].state != UNKNOWN) continue;
        TRY(read_record(m, r, &found));
        if (found) m->pause = MS;
    }
    if (m->pause > MS) TRY(fail_if_refused(m));
    m->next_look = cairn__now_ns() + m->pause;
    m->pause = m->pause < LONGEST_PAUSE_MS * MS / 2 ? 2 * m->pause : LONGEST_PAUSE_MS * (uint64_t)MS;
out:
    return st;
}

/* ---- sockets ---- */

static struct addrinfo *parse(const char *address, unsigned port) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char digits[16];
    snprintf(digits, sizeof(digits), "%u", port);
    return getaddrinfo(address, digits, &hints, &list) == 0 ? list : NULL;
}

static uint32_t port_of(int fd) {
    struct sockaddr_storage s = {0};
    socklen_t nbytes = sizeof(s);
    return getsockname(fd, (struct sockaddr *)&s, &nbytes) == 0
               ? (uint32_t)cairn__address_port((const struct sockaddr *)&s)
               : 0;
}

static cairn_status listen_at(struct meeting *m) {
    const struct cairn__engine_options *o = m->o;
    cairn_status st = CAIRN_OK;
    if (*o->address) {
        snprintf(m->here.address, sizeof(m->here.address), "%s", o->address);
    } else {
        REQUIRE(o->interface && *o->interface, CAIRN_ESYSTEM,
                "rank %d has no address by which others reach it; name a network interface with GLOO_SOCKET_IFNAME",
                o->rank);
        TRY(cairn__address_of_interface(o->interface, m->here.address, sizeof(m->here.address)));
    }
    struct addrinfo *a = parse(m->here.address, 0);
    m->listener = a ? socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1;
    if (!a) errno = EINVAL;
    if (m->listener < 0 || bind(m->listener, a->ai_addr, a->ai_addrlen) != 0 || listen(m->listener, BACKLOG) != 0)
        st = cairn__fail_errno(errno, "rank %d: gloo cannot listen on %s", o->rank, m->here.address);
    if (a) freeaddrinfo(a);
    if (st == CAIRN_OK) m->here.port = port_of(m->listener);
out:
    return st;
}

/* One send suffices: messages of the handshake fit into any socket's buffer. */
static bool send_all(int fd, const void *bytes, size_t nbytes) {
    return send(fd, bytes, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)nbytes;
}

/* Adds the bytes that have arrived, up to `want`. Returns false if the connection has ended. */
static bool receive(int fd, void *bytes, size_t want, size_t *nbytes) {
    const ssize_t n = recv(fd, (uint8_t *)bytes + *nbytes, want - *nbytes, MSG_DONTWAIT);
    if (n > 0) *nbytes += (size_t)n;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* ---- to lower ranks ---- */

static cairn_status fail_to_connect(const struct meeting *m, int rank, const char *why) {
    const struct link *link = &m->links[rank];
    return cairn__fail(
        CAIRN_EPEER,
        "rank %d cannot connect to rank %d at %s port %u (gloo: %s); that rank has ended, or the network "
        "or a firewall blocks the connection: see docs/launching.md",
        m->o->rank, rank, link->there.address, (unsigned)link->there.port, why);
}

static cairn_status begin_link(struct meeting *m, int rank) {
    struct link *link = &m->links[rank];
    if (cairn__now_ns() < link->not_before) return CAIRN_OK;
    struct addrinfo *a = parse(link->there.address, link->there.port);
    int error = EINVAL;
    if (a) {
        link->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        const bool is_made = link->fd >= 0;
        error = is_made && (connect(link->fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS) ? 0 : errno;
        freeaddrinfo(a);
    }
    if (error != 0) return fail_to_connect(m, rank, strerror(error));
    link->state = CONNECTING;
    return CAIRN_OK;
}

/* Closes the connection, which is made again. */
static void spoil(struct link *link) {
    close(link->fd);
    link->fd = -1;
    link->nbytes = 0;
    link->state = KNOWN;
    link->not_before = cairn__now_ns() + 5 * (uint64_t)MS;
}

static void greet(struct meeting *m, struct link *link, const uint8_t *proof, size_t nbytes) {
    uint8_t bytes[CAIRN__PROOF_THIRD + sizeof(struct greeting)];
    struct greeting greeting = {.rank = (uint32_t)m->o->rank};
    if (!m->has_proofs) memcpy(greeting.key, m->key, sizeof(greeting.key));
    if (nbytes) memcpy(bytes, proof, nbytes);
    memcpy(bytes + nbytes, &greeting, sizeof(greeting));
    link->nbytes = 0;
    link->state = GREETED;
    if (!send_all(link->fd, bytes, nbytes + sizeof(greeting))) spoil(link);
}

static cairn_status ask(struct meeting *m, int rank) {
    struct link *link = &m->links[rank];
    uint8_t first[CAIRN__PROOF_FIRST];
    int error = 0;
    socklen_t nbytes = sizeof(error);
    cairn_status st = CAIRN_OK;
    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &nbytes) != 0) error = errno;
    if (error != 0) return fail_to_connect(m, rank, strerror(error));
    if (!m->has_proofs) {
        greet(m, link, NULL, 0);
        return CAIRN_OK;
    }
    TRY(cairn__proof_begin(&link->proof, (int)link->there.port, first));
    link->state = ASKED;
    if (!send_all(link->fd, first, sizeof(first))) spoil(link);
out:
    return st;
}

static void answer(struct meeting *m, struct link *link) {
    uint8_t third[CAIRN__PROOF_THIRD];
    if (!receive(link->fd, link->bytes, sizeof(link->bytes), &link->nbytes)) {
        spoil(link);
    } else if (link->nbytes == sizeof(link->bytes)) {
        if (cairn__proof_answer(&link->proof, m->secret, link->bytes, third)) {
            greet(m, link, third, sizeof(third));
        } else {
            link->met_a_stranger = true;
            spoil(link);
        }
    }
}

static void end_link(struct meeting *m, int rank) {
    struct link *link = &m->links[rank];
    if (!receive(link->fd, link->bytes, sizeof(WELCOME), &link->nbytes)) {
        spoil(link);
    } else if (link->nbytes == sizeof(WELCOME)) {
        m->fds[rank] = link->fd;
        link->fd = -1;
        link->state = DONE;
    }
}

static cairn_status step_link(struct meeting *m, int rank) {
    struct link *link = &m->links[rank];
    switch (link->state) {
    case CONNECTING:
        return ask(m, rank);
    case ASKED:
        answer(m, link);
        return CAIRN_OK;
    case GREETED:
        end_link(m, rank);
        return CAIRN_OK;
    default:
        return CAIRN_OK;
    }
}

/* ---- from higher ranks ---- */

static void forget_guest(struct meeting *m, int i) {
    m->num_guests--;
    memmove(&m->guests[i], &m->guests[i + 1], (size_t)(m->num_guests - i) * sizeof(m->guests[0]));
}

/* Logs the first guest that is wrong; one whose connection merely ends may be a rank that dies. */
static void send_away(struct meeting *m, int i, bool is_wrong) {
    const struct guest *g = &m->guests[i];
    if (is_wrong && !g->has_ended && !*m->stranger) {
        snprintf(m->stranger, sizeof(m->stranger), "%s", g->from);
        cairn__log(CAIRN_LOG_WARNING,
                   "%s connected to port %u, where a gloo group meets, and did not prove that it belongs to it; it is "
                   "sent away, and the group goes on to meet",
                   m->stranger, (unsigned)m->here.port);
    }
    close(g->fd);
    forget_guest(m, i);
}

static bool accept_one(struct meeting *m) {
    struct sockaddr_storage from = {0};
    socklen_t nbytes = sizeof(from);
    const int fd = accept4(m->listener, (struct sockaddr *)&from, &nbytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if ((errno == EMFILE || errno == ENFILE) && m->num_guests > 0) send_away(m, 0, false);
        return false;
    }
    if (m->num_guests == MAX_GUESTS) send_away(m, 0, true);
    struct guest *g = &m->guests[m->num_guests++];
    *g = (struct guest){.fd = fd, .is_proven = !m->has_proofs, .proof = {.port = (int)m->here.port}};
    cairn__address_write(&from, g->from, sizeof(g->from));
    return true;
}

static bool receive_from(struct guest *g, void *bytes, size_t want, size_t *nbytes) {
    g->has_ended = !receive(g->fd, bytes, want, nbytes);
    return !g->has_ended;
}

static enum cairn__proof_verdict take_proof(struct meeting *m, struct guest *g) {
    uint8_t bytes[CAIRN__PROOF_FIRST], second[CAIRN__PROOF_SECOND];
    const size_t want = (g->proof.state == CAIRN__PROOF_BEGINS ? CAIRN__PROOF_FIRST : CAIRN__PROOF_THIRD);
    size_t nbytes = 0;
    if (!receive_from(g, bytes, want - g->proof.nbytes, &nbytes)) return CAIRN__PROOF_REFUSED;
    const uint8_t *data = bytes;
    const enum cairn__proof_verdict verdict = cairn__proof_take(&g->proof, m->secret, &data, &nbytes, second);
    if (verdict == CAIRN__PROOF_REPLY && !send_all(g->fd, second, sizeof(second))) return CAIRN__PROOF_REFUSED;
    return verdict;
}

/* Compares in constant time. */
static bool is_key(const struct meeting *m, const uint8_t *key) {
    uint8_t differs = 0;
    for (size_t i = 0; i < sizeof(m->key); i++) differs |= (uint8_t)(m->key[i] ^ key[i]);
    return differs == 0;
}

static bool is_awaited(const struct meeting *m, const struct greeting *g) {
    return g->rank > (uint32_t)m->o->rank && g->rank < (uint32_t)m->o->size && m->fds[g->rank] < 0 &&
           (m->has_proofs || is_key(m, g->key));
}

/* Returns false if the guest is to be sent away. */
static bool take_greeting(struct meeting *m, int i) {
    struct guest *g = &m->guests[i];
    if (!receive_from(g, &g->greeting, sizeof(g->greeting), &g->nbytes)) return false;
    if (g->nbytes < sizeof(g->greeting)) return true;
    if (!is_awaited(m, &g->greeting) || !send_all(g->fd, &WELCOME, sizeof(WELCOME))) return false;
    m->fds[g->greeting.rank] = g->fd;
    forget_guest(m, i);
    return true;
}

static void step_guest(struct meeting *m, int i) {
    struct guest *g = &m->guests[i];
    if (!g->is_proven) {
        const enum cairn__proof_verdict verdict = take_proof(m, g);
        if (verdict == CAIRN__PROOF_REFUSED) send_away(m, i, true);
        if (verdict != CAIRN__PROOF_PROVEN) return;
        g->is_proven = true;
    }
    if (!take_greeting(m, i)) send_away(m, i, true);
}

/* ---- all at once ---- */

/* The first rank without a connection; this rank's own number if there is none. */
static int first_missing(const struct meeting *m) {
    int r = 0;
    while (r < m->o->size && (r == m->o->rank || m->fds[r] >= 0)) r++;
    return r < m->o->size ? r : m->o->rank;
}

static cairn_status fail_late(const struct meeting *m) {
    const int rank = first_missing(m);
    char name[16], why[160];
    bool joined = false;
    cairn_status st = CAIRN_OK;
    TRY(fail_if_refused(m));
    snprintf(name, sizeof(name), "%d", rank);
    TRY(has(m, name, &joined));
    if (!joined)
        return cairn__fail(CAIRN_ETIMEOUT, "rank %d did not join the gloo group of %d ranks within %g s", rank,
                           m->o->size, m->o->timeout);
    if (rank < m->o->rank && m->links[rank].met_a_stranger) {
        snprintf(why, sizeof(why), "what answers there does not know the group's key");
    } else if (*m->stranger) {
        snprintf(why, sizeof(why), "nothing within %g s, but a stranger from %s", m->o->timeout, m->stranger);
    } else {
        snprintf(why, sizeof(why), "nothing within %g s", m->o->timeout);
    }
    if (rank < m->o->rank) {
        (void)fail_to_connect(m, rank, why);
        return CAIRN_ETIMEOUT;
    }
    st = cairn__fail(CAIRN_ETIMEOUT,
                     "rank %d cannot connect to rank %d at %s port %u (gloo: %s); that rank has ended, or the network "
                     "or a firewall blocks the connection: see docs/launching.md",
                     rank, m->o->rank, m->here.address, (unsigned)m->here.port, why);
out:
    return st;
}

/* Fails for a missing rank that has left the parent: it will not join. */
static cairn_status check_missing(struct meeting *m) {
    const struct cairn__engine_options *o = m->o;
    const uint64_t now = cairn__now_ns();
    int r = 0;
    if (!o->has_left) return CAIRN_OK;
    while (r < o->size && (r == o->rank || m->fds[r] >= 0 || !o->has_left(o->parent, o->parent_ranks[r]))) r++;
    if (r == o->size) m->gone_at = 0;
    else if (m->gone_at == 0) m->gone_at = now;
    else if (now - m->gone_at > GRACE_MS * (uint64_t)MS)
        return cairn__fail(CAIRN_EPEER, "rank %d ended, or left, before it had joined the gloo group of %d ranks", r,
                           o->size);
    return CAIRN_OK;
}

static int gather_polls(struct meeting *m) {
    int n = 0;
    /* without the key this rank could not tell ranks from strangers */
    m->polls[n++] = (struct pollfd){.fd = m->has_key ? m->listener : -1, .events = POLLIN};
    for (int i = 0; i < m->num_guests; i++) m->polls[n++] = (struct pollfd){.fd = m->guests[i].fd, .events = POLLIN};
    for (int r = 0; r < m->o->rank; r++) {
        m->polls[n++] =
            (struct pollfd){.fd = m->links[r].fd, .events = m->links[r].state == CONNECTING ? POLLOUT : POLLIN};
    }
    return n;
}

/* Goes through guests backwards, because removing one moves the later ones up. */
static cairn_status step_all(struct meeting *m) {
    const int guests = m->num_guests;
    cairn_status st = CAIRN_OK;
    for (int r = 0; r < m->o->rank; r++) {
        if (m->polls[1 + guests + r].revents) TRY(step_link(m, r));
    }
    for (int i = guests - 1; i >= 0; i--) {
        if (m->polls[1 + i].revents) step_guest(m, i);
    }
    if (m->polls[0].revents) {
        for (int i = 0; i < MAX_GUESTS && accept_one(m);) i++;
    }
out:
    return st;
}

static cairn_status meet(struct meeting *m) {
    cairn_status st = CAIRN_OK;
    while (first_missing(m) != m->o->rank) {
        TRY(look(m));
        TRY(check_missing(m));
        for (int r = 0; r < m->o->rank && m->has_key; r++) {
            if (m->links[r].state == KNOWN) TRY(begin_link(m, r));
        }
        const int n = gather_polls(m);
        const uint64_t now = cairn__now_ns();
        if (now >= m->deadline) TRY(fail_late(m));
        const uint64_t pause = m->next_look > now ? m->next_look - now : 0;
        if (poll(m->polls, (nfds_t)n, (int)((pause + MS - 1) / MS)) > 0) TRY(step_all(m));
    }
out:
    return st;
}

static cairn_status join(struct meeting *m) {
    uint8_t key[CAIRN__SECRET_NBYTES];
    char name[16];
    cairn_status st = CAIRN_OK;
    TRY(listen_at(m));
    if (m->o->rank == 0) {
        if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key))
            return cairn__fail_errno(errno, "no random numbers");
        memcpy(m->here.key, key, sizeof(key));
        TRY(take_key(m, key));
    }
    snprintf(name, sizeof(name), "%d", m->o->rank);
    TRY(set(m, name, &m->here, sizeof(m->here)));
    TRY(meet(m));
out:
    return st;
}

static void close_one(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void end(struct meeting *m, bool failed) {
    for (int i = 0; i < m->num_guests; i++) close_one(&m->guests[i].fd);
    for (int r = 0; r < m->o->size && m->links; r++) close_one(&m->links[r].fd);
    for (int r = 0; r < m->o->size && failed; r++) close_one(&m->fds[r]);
    close_one(&m->listener);
    cairn__secret_destroy(&m->secret);
    cairn__free(m->links);
    cairn__free(m->polls);
    cairn__free(m);
}

cairn_status cairn__links_make(const struct cairn__engine_options *options, int *fds) {
    struct meeting *m = NULL;
    cairn_status st = CAIRN_OK;
    for (int r = 0; r < options->size; r++) fds[r] = -1;
    TRY(cairn__calloc(1, sizeof(*m), (void **)&m));
    m->o = options;
    m->fds = fds;
    m->listener = -1;
    m->pause = MS;
    m->deadline = cairn__now_ns() + (uint64_t)(options->timeout * 1e9);
    m->has_proofs = cairn__secret_is_built();
    TRY(cairn__calloc((size_t)options->size, sizeof(*m->links), (void **)&m->links));
    for (int r = 0; r < options->size; r++) m->links[r].fd = -1;
    TRY(cairn__calloc((size_t)(1 + MAX_GUESTS + options->size), sizeof(*m->polls), (void **)&m->polls));
    TRY(join(m));
out:
    /* Another rank's refusal says more than a connection that broke. A rank that timed out does not publish that: the
     * others have clocks of their own. */
    if (m && st == CAIRN_EPEER) prefer_refusal(m);
    if (m && st != CAIRN_OK && st != CAIRN_ETIMEOUT) refuse(m);
    if (m) end(m, st != CAIRN_OK);
    return st;
}

void cairn__links_forget(const struct cairn__engine_options *options) {
    const struct meeting m = {.o = options};
    char name[16], key[400];
    if (!cairn__store_forgets(options->store)) return;
    snprintf(name, sizeof(name), "%d", options->rank);
    name_key(&m, name, key, sizeof(key));
    (void)cairn_store_delete(options->store, key, NULL);
}
