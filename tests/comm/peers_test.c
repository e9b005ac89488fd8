/* Ranks as threads that meet in a hash store and choose a backend: peers, missing ranks, intruders. The test sets each
 * rank's machine name and the backends of its build. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/group_backend.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/vars.h"
#include "rendezvous/address.h"
#include "rendezvous/store/server.h"
#include "rendezvous/store/store.h"

enum { MAX_RANKS = 8 };

/* ---- what the test stands in for ---- */

static _Thread_local const char *host; /* NULL = this machine's */
static _Thread_local unsigned lacks;   /* bit i: row i */
static atomic_int probes;

const char *__real_cairn__var(const char *name);
const char *__wrap_cairn__var(const char *name);
const char *__wrap_cairn__var(const char *name) {
    return host && strcmp(name, "CAIRN_HOST_ID") == 0 ? host : __real_cairn__var(name);
}

cairn_status __wrap_cairn__backend_probe(int row, const struct cairn__group_create_options *options);
cairn_status __wrap_cairn__backend_probe(int row, const struct cairn__group_create_options *options) {
    atomic_fetch_add(&probes, 1);
    if (!(lacks >> row & 1u)) return CAIRN_OK;
    return cairn__fail(CAIRN_ENOTBUILT, "rank %d has no %s", options->rank, cairn__backends[row]->name);
}

static const struct cairn__device_ops gpu_ops = {.name = "cuda"};
static struct cairn_device gpu = {.ops = &gpu_ops};

/* ---- ranks as threads ---- */

struct rank {
    struct cairn__group_create_options options;
    const char *host;
    unsigned lacks;
    bool chooses;

    struct cairn__peers peers;
    const struct cairn__group_backend *backend;
    cairn_status status;
    char error[1024];
    double took;
    pthread_t thread;
};

static void *meet(void *argument) {
    struct rank *r = argument;
    const uint64_t begin = cairn__now_ns();
    host = r->host;
    lacks = r->lacks;
    r->status = cairn__backend_meet(&r->options, &r->peers);
    if (r->status == CAIRN_OK && r->chooses) r->status = cairn__backend_choose(&r->options, &r->peers, &r->backend);
    snprintf(r->error, sizeof(r->error), "%s", r->status == CAIRN_OK ? "" : cairn_last_error());
    r->took = (double)(cairn__now_ns() - begin) * 1e-9;
    return NULL;
}

static cairn_store *make_store(void) {
    cairn_store *store = NULL;
    assert_int_equal(cairn_hash_store_create(20, &store), CAIRN_OK);
    return store;
}

static void fill(struct rank *ranks, int p, cairn_store *store) {
    for (int r = 0; r < p; r++) {
        ranks[r] = (struct rank){0};
        ranks[r].options =
            (struct cairn__group_create_options){.rank = r, .size = p, .timeout = 60, .store = store, .prefix = "test"};
    }
}

static void run(struct rank *ranks, int p) {
    for (int r = 0; r < p; r++) assert_int_equal(pthread_create(&ranks[r].thread, NULL, meet, &ranks[r]), 0);
    for (int r = 0; r < p; r++) pthread_join(ranks[r].thread, NULL);
}

static void end(struct rank *ranks, int p) {
    for (int r = 0; r < p; r++) cairn__peers_end(&ranks[r].peers);
}

static void expect(const struct rank *r, cairn_status status, const char *sentence) {
    if (r->status != status || !strstr(r->error, sentence))
        fail_msg("rank %d: %d '%s', expected %d '%s'", r->options.rank, (int)r->status, r->error, (int)status,
                 sentence);
}

/* ---- who they are ---- */

static void ranks_that_meet_know_each_other(void **state) {
    (void)state;
    for (int p = 1; p <= MAX_RANKS; p = p < 3 ? p + 1 : p + 5) {
        struct rank ranks[MAX_RANKS];
        cairn_store *store = make_store();
        fill(ranks, p, store);
        ranks[p - 1].options.is_mpi = true;
        ranks[0].options.device = &gpu;
        run(ranks, p);
        for (int r = 0; r < p; r++) {
            const struct cairn__peers *peers = &ranks[r].peers;
            expect(&ranks[r], CAIRN_OK, "");
            assert_int_equal(peers->rank, r);
            assert_int_equal(peers->size, p);
            assert_true(cairn__peers_share_host(peers));
            for (int other = 0; other < p; other++) {
                const struct cairn__peer *peer = &peers->all[other];
                assert_int_equal(peer->pid, getpid());
                assert_string_equal(peer->wanted, "auto");
                assert_string_equal(peer->address, "");
                assert_string_equal(peer->host, ranks[0].peers.all[0].host);
                assert_string_equal(peer->name, ranks[0].peers.all[0].name);
                assert_string_equal(peer->socket, ranks[other].peers.all[other].socket);
                assert_int_equal(peer->is_mpi, other == p - 1);
                assert_int_equal(peer->on_gpu, other == 0);
            }
        }
        end(ranks, p);
        cairn_store_destroy(&store);
    }
}

static void a_single_rank_needs_no_store(void **state) {
    (void)state;
    struct rank one[1];
    fill(one, 1, NULL);
    one[0].options.prefix = NULL;
    one[0].chooses = true;
    run(one, 1);
    expect(&one[0], CAIRN_OK, "");
    assert_ptr_equal(one[0].backend, &cairn__group_self);
    assert_true(cairn__peers_share_host(&one[0].peers));
    end(one, 1);
}

static void sockets_take_connections_until_the_meeting_ends(void **state) {
    (void)state;
    struct rank ranks[2];
    cairn_store *store = make_store();
    fill(ranks, 2, store);
    run(ranks, 2);
    int fd = cairn__peers_dial(&ranks[0].peers, 1);
    assert_true(fd >= 0);
    close(fd);
    cairn__peers_end(&ranks[1].peers);
    assert_int_equal(cairn__peers_dial(&ranks[0].peers, 1), -1);
    assert_int_equal(errno, ECONNREFUSED);
    end(ranks, 2);
    cairn_store_destroy(&store);
}

static void hosts_are_compared(void **state) {
    (void)state;
    struct rank ranks[3];
    for (int other = 0; other < 4; other++) {
        cairn_store *store = make_store();
        fill(ranks, 3, store);
        for (int r = 0; r < 3; r++) ranks[r].host = r == other ? "machine B, rack 2" : " machine A";
        run(ranks, 3);
        for (int r = 0; r < 3; r++) {
            expect(&ranks[r], CAIRN_OK, "");
            assert_int_equal(cairn__peers_share_host(&ranks[r].peers), other == 3);
            if (other < 3) assert_string_equal(ranks[r].peers.all[other].host, "machine B, rack 2");
        }
        end(ranks, 3);
        cairn_store_destroy(&store);
    }
}

/* ---- a store that counts ---- */

struct counting_store {
    cairn_store base;
    cairn_store *inner;
    int sets, gets, others;
};

static struct counting_store *counting(cairn_store *s) {
    return (struct counting_store *)s;
}

static cairn_status count_set(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    counting(s)->sets++;
    return cairn_store_set(counting(s)->inner, key, value, nbytes);
}

static cairn_status count_get(cairn_store *s, const char *key, void **value, size_t *nbytes) {
    counting(s)->gets++;
    return cairn_store_get(counting(s)->inner, key, value, nbytes);
}

static cairn_status count_check(cairn_store *s, const char *const *keys, size_t n, int *present) {
    return cairn_store_check(counting(s)->inner, keys, n, present);
}

static cairn_status count_add(cairn_store *s, const char *key, int64_t delta, int64_t *sum) {
    counting(s)->others++;
    return cairn_store_add(counting(s)->inner, key, delta, sum);
}

static const struct cairn__store_ops counting_ops = {
    .name = "counting", .set = count_set, .get = count_get, .check = count_check, .add = count_add};

/* Starting a job is measured in milliseconds. */
static void ranks_of_one_machine_write_once_and_read_each_other_once(void **state) {
    (void)state;
    struct rank ranks[4];
    struct counting_store stores[4];
    cairn_store *store = make_store();
    fill(ranks, 4, store);
    atomic_store(&probes, 0);
    for (int r = 0; r < 4; r++) {
        stores[r] = (struct counting_store){.base = {.ops = &counting_ops, .timeout = 20}, .inner = store};
        ranks[r].options.store = &stores[r].base;
        ranks[r].chooses = true;
    }
    run(ranks, 4);
    for (int r = 0; r < 4; r++) {
        expect(&ranks[r], CAIRN_OK, "");
        assert_ptr_equal(ranks[r].backend, &cairn__group_shm);
        assert_int_equal(stores[r].sets, 1);
        assert_int_equal(stores[r].gets, 3);
        assert_int_equal(stores[r].others, 0);
    }
    assert_int_equal(atomic_load(&probes), 0); /* no module is opened */
    end(ranks, 4);
    cairn_store_destroy(&store);
}

/* ---- who stays away, and who should not be there ---- */

static void missing_ranks_are_named_after_the_time_for_meeting(void **state) {
    (void)state;
    struct rank ranks[4];
    cairn_store *store = make_store();
    fill(ranks, 4, store);
    ranks[1].options.meeting_timeout = 0.3;
    run(ranks + 1, 1);
    expect(&ranks[1], CAIRN_ETIMEOUT,
           "rank 1 waited 0.3 s for ranks 0, 2, 3, which did not join; was every rank started");
    end(ranks + 1, 1);
    cairn_store_destroy(&store);
    store = make_store();
    fill(ranks, 4, store);
    for (int r = 0; r < 3; r++) ranks[r].options.timeout = 2;
    run(ranks, 3);
    for (int r = 0; r < 3; r++) expect(&ranks[r], CAIRN_ETIMEOUT, "waited 2 s for rank 3, which did not join");
    end(ranks, 3);
    cairn_store_destroy(&store);
}

static void different_world_sizes_are_refused_on_every_rank(void **state) {
    (void)state;
    struct rank ranks[3];
    cairn_store *store = make_store();
    fill(ranks, 3, store);
    ranks[2].options.size = 4;
    run(ranks, 3);
    expect(&ranks[0], CAIRN_EPEER, "rank 2 has a world size of 4, rank 0 of 3; set WORLD_SIZE to the same number");
    expect(&ranks[1], CAIRN_EPEER, "rank 2 has a world size of 4, rank 1 of 3; set WORLD_SIZE to the same number");
    expect(&ranks[2], CAIRN_EPEER, "rank 0 has a world size of 3, rank 2 of 4; set WORLD_SIZE to the same number");
    end(ranks, 3);
    cairn_store_destroy(&store);
}

static void facts_of_another_version_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"2 77 cairn-0123 vm boot net:[1]", "cairn-peer-2 2 77 0 0 auto - s vm h", "",
                                        "cairn-peer-1 2 77 0 0 auto - s", "\n\n\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct rank ranks[2];
        cairn_store *store = make_store();
        fill(ranks, 2, store);
        assert_int_equal(cairn_store_set(store, "test/peers/1", texts[i], strlen(texts[i])), CAIRN_OK);
        assert_int_equal(cairn_store_set(store, "test/peers/refused", "1", 1), CAIRN_OK); /* it knows, and left */
        run(ranks, 1);
        expect(&ranks[0], CAIRN_EPEER,
               "which this version of Cairn does not understand; run one version on every rank");
        expect(&ranks[0], CAIRN_EPEER, "rank 1 wrote '");
        end(ranks, 1);
        cairn_store_destroy(&store);
    }
}

static void rank_0_waits_until_all_ranks_have_the_error(void **state) {
    (void)state;
    struct rank ranks[2];
    cairn_store *store = make_store();
    fill(ranks, 2, store);
    const char text[] = "cairn-peer-1 3 77 0 0 auto - s vm h";
    assert_int_equal(cairn_store_set(store, "test/peers/1", text, strlen(text)), CAIRN_OK);
    run(ranks, 1);
    expect(&ranks[0], CAIRN_EPEER, "rank 1 has a world size of 3, rank 0 of 2");
    assert_true(ranks[0].took >= 1.9);
    end(ranks, 1);
    cairn_store_destroy(&store);
}

/* Text of a rank of this machine, whose socket is closed. */
static void pretend_dead(cairn_store *store, const char *key, int size) {
    struct rank me[1];
    char text[600];
    fill(me, 1, NULL);
    run(me, 1);
    const struct cairn__peer *p = &me[0].peers.all[0];
    snprintf(text, sizeof(text), "cairn-peer-1 %d 99 0 0 auto - cairn-nobody-is-here %s %s", size, p->name, p->host);
    assert_int_equal(cairn_store_set(store, key, text, strlen(text)), CAIRN_OK);
    end(me, 1);
}

static void a_rank_that_ended_is_named_while_others_are_awaited(void **state) {
    (void)state;
    struct rank ranks[4];
    cairn_store *store = make_store();
    fill(ranks, 4, store);
    pretend_dead(store, "test/peers/1", 4);
    run(ranks, 1); /* and 2 and 3 do not come */
    expect(&ranks[0], CAIRN_EPEER, "rank 1 (pid 99) ended while rank 0 waited for it to join the group");
    assert_true(ranks[0].took < 20);
    end(ranks, 1);
    cairn_store_destroy(&store);
}

static void lost_store_is_reported_with_the_awaited_rank(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL;
    struct rank ranks[3];
    int port = 0;
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    assert_int_equal(cairn_tcp_store_create("127.0.0.1", port, cairn_tcp_store_options(.timeout = 60), &store),
                     CAIRN_OK);
    fill(ranks, 3, store);
    assert_int_equal(pthread_create(&ranks[1].thread, NULL, meet, &ranks[1]), 0);
    while (true) { /* until it has said who it is */
        cairn_store *other = NULL;
        const char *key = "test/peers/1";
        assert_int_equal(cairn_tcp_store_create("127.0.0.1", port, cairn_tcp_store_options(.timeout = 60), &other),
                         CAIRN_OK);
        const cairn_status st = cairn_store_wait(other, &key, 1);
        cairn_store_destroy(&other);
        if (st == CAIRN_OK) break;
    }
    cairn__store_stop(&server);
    pthread_join(ranks[1].thread, NULL);
    expect(&ranks[1], CAIRN_EPEER, "rank 1 was waiting for rank 0");
    assert_true(ranks[1].took < 20);
    end(ranks + 1, 1);
    cairn_store_destroy(&store);
}

/* A hash store that loses one kind of request, as if its host had been stopped in between. */

static cairn_status lose_set(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    (void)s, (void)value, (void)nbytes;
    return cairn__fail(CAIRN_ETIMEOUT, "no answer for '%s'", key);
}

static cairn_status lose_get(cairn_store *s, const char *key, void **value, size_t *nbytes) {
    (void)s, (void)value, (void)nbytes;
    return cairn__fail(CAIRN_ETIMEOUT, "no answer for '%s'", key);
}

static cairn_status lose_check(cairn_store *s, const char *const *keys, size_t n, int *present) {
    (void)s, (void)n, (void)present;
    return cairn__fail(CAIRN_ETIMEOUT, "no answer for '%s'", keys[0]);
}

static void rank_names_the_one_that_hosts_the_store_whichever_request_is_lost(void **state) {
    (void)state;
    static const char *const doing[] = {"publishing who it is", "waiting for rank 0", "waiting for rank 0"};
    for (int i = 0; i < 3; i++) {
        cairn_store *store = make_store();
        const struct cairn__store_ops *const whole = store->ops;
        struct cairn__store_ops ops = *whole;
        struct rank ranks[2];
        char sentence[200];
        ops.set = i == 0 ? lose_set : ops.set;
        ops.check = i == 1 ? lose_check : ops.check;
        ops.get = i == 2 ? lose_get : ops.get;
        store->ops = &ops;
        assert_int_equal(cairn_store_set(store, "test/peers/0", "", 0), i == 0 ? CAIRN_ETIMEOUT : CAIRN_OK);
        fill(ranks, 2, store);
        ranks[1].options.rank_0_serves = true;
        meet(&ranks[1]);
        snprintf(sentence, sizeof(sentence),
                 "rank 0 hosts it: it ended, is stopped, or its machine cannot be reached, while rank 1 was %s",
                 doing[i]);
        expect(&ranks[1], CAIRN_ETIMEOUT, sentence);
        end(ranks + 1, 1);
        store->ops = whole;
        cairn_store_destroy(&store);
    }
}

/* ---- exchanges ---- */

struct heard {
    int n;
    char text[MAX_RANKS][40];
};

static cairn_status hear(void *ctx, int rank, const char *text) {
    struct heard *h = ctx;
    if (rank != h->n++) return cairn__fail(CAIRN_EINTERNAL, "out of order");
    snprintf(h->text[rank], sizeof(h->text[rank]), "%s", text);
    return CAIRN_OK;
}

static void *meet_and_talk(void *argument) {
    struct rank *r = argument;
    struct heard heard = {0};
    char text[40], want[40];
    meet(r);
    for (int round = 0; round < 3 && r->status == CAIRN_OK; round++) {
        char topic[20];
        heard.n = 0;
        snprintf(topic, sizeof(topic), "topic %d", round);
        snprintf(text, sizeof(text), "rank %d, round %d", r->options.rank, round);
        r->status = cairn__peers_exchange(&r->peers, topic, text, hear, &heard);
        if (heard.n != r->options.size) r->status = CAIRN_EINTERNAL;
        for (int other = 0; other < heard.n; other++) {
            snprintf(want, sizeof(want), "rank %d, round %d", other, round);
            if (strcmp(heard.text[other], want) != 0) r->status = CAIRN_EINTERNAL;
        }
    }
    return NULL;
}

static void texts_of_all_ranks_reach_every_rank_in_rank_order(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) {
        struct rank ranks[4];
        cairn_store *store = make_store();
        fill(ranks, p, store);
        for (int r = 0; r < p; r++)
            assert_int_equal(pthread_create(&ranks[r].thread, NULL, meet_and_talk, &ranks[r]), 0);
        for (int r = 0; r < p; r++) {
            pthread_join(ranks[r].thread, NULL);
            expect(&ranks[r], CAIRN_OK, "");
        }
        end(ranks, p);
        cairn_store_destroy(&store);
    }
}

/* ---- the choice ---- */

enum { MPI = 1 << CAIRN__BACKEND_MPI, GLOO = 1 << CAIRN__BACKEND_GLOO, NCCL = 1 << CAIRN__BACKEND_NCCL };

struct one {
    const char *wanted, *host;
    unsigned lacks;
    bool is_mpi, on_gpu;
};

#define HERE(...) \
    { .host = "A", __VA_ARGS__ }
#define THERE(...) \
    { .host = "B", __VA_ARGS__ }

static const struct {
    const char *name;
    struct one ranks[3];
    const char *backend; /* or NULL with: */
    cairn_status status;
    const char *sentence;
} choices[] = {
    {"auto on one machine", {HERE(), HERE(), HERE()}, "shm", 0, NULL},
    {"auto by its name", {HERE(.wanted = "auto"), HERE(), HERE()}, "shm", 0, NULL},
    {"on one machine under mpirun", {HERE(.is_mpi = true), HERE(.is_mpi = true), HERE(.is_mpi = true)}, "shm", 0, NULL},
    {"two machines under mpirun", {HERE(.is_mpi = true), HERE(.is_mpi = true), THERE(.is_mpi = true)}, "mpi", 0, NULL},
    {"one not under mpirun", {HERE(.is_mpi = true), HERE(), THERE(.is_mpi = true)}, "gloo", 0, NULL},
    {"two machines", {HERE(), THERE(), HERE()}, "gloo", 0, NULL},
    {"one without mpi's module",
     {HERE(.is_mpi = true), HERE(.is_mpi = true, .lacks = MPI), THERE(.is_mpi = true)},
     "gloo",
     0,
     NULL},
    {"two machines and no gloo",
     {HERE(), THERE(.lacks = GLOO), HERE()},
     NULL,
     CAIRN_ENOTBUILT,
     ": mpi needs every rank started by an MPI launcher; gloo cannot be used by rank 1 on "},
    {"their names",
     {HERE(), HERE(), THERE(.lacks = MPI | GLOO | NCCL)},
     NULL,
     CAIRN_ENOTBUILT,
     " ('A') and rank 2 on "},
    {"why not", {HERE(), THERE(.lacks = GLOO), HERE()}, NULL, CAIRN_ENOTBUILT, ": rank 1 has no gloo"},
    {"neither module",
     {HERE(.is_mpi = true), THERE(.is_mpi = true, .lacks = MPI | GLOO | NCCL),
      HERE(.is_mpi = true, .lacks = MPI | GLOO | NCCL)},
     NULL,
     CAIRN_ENOTBUILT,
     ": rank 1 has no mpi; gloo cannot be used by rank 1 on "},
    {"wishes differ",
     {HERE(.wanted = "gloo"), HERE(.wanted = "gloo"), HERE(.wanted = "shm")},
     NULL,
     CAIRN_EINVAL,
     "rank 0 has the group backend 'gloo' and rank 2 'shm'; set CAIRN_BACKEND"},
    {"one has no wish",
     {HERE(), HERE(.wanted = "shm"), HERE()},
     NULL,
     CAIRN_EINVAL,
     "rank 0 has the group backend 'auto' and rank 1 'shm'"},
    {"shm", {HERE(.wanted = "shm"), HERE(.wanted = "shm"), HERE(.wanted = "shm")}, "shm", 0, NULL},
    {"shm for two machines",
     {HERE(.wanted = "shm"), HERE(.wanted = "shm"), THERE(.wanted = "shm")},
     NULL,
     CAIRN_ENOTSUP,
     "shm groups join the ranks of one machine and network namespace"},
    {"gloo on one machine", {HERE(.wanted = "gloo"), HERE(.wanted = "gloo"), HERE(.wanted = "gloo")}, "gloo", 0, NULL},
    {"mpi by hand", {HERE(.wanted = "mpi"), HERE(.wanted = "mpi"), THERE(.wanted = "mpi")}, "mpi", 0, NULL},
    {"gloo that one lacks",
     {HERE(.wanted = "gloo"), HERE(.wanted = "gloo"), HERE(.wanted = "gloo", .lacks = MPI | GLOO | NCCL)},
     NULL,
     CAIRN_ENOTBUILT,
     "the group backend gloo cannot be used by rank 2 on "},
    {"GPUs", {HERE(.on_gpu = true), THERE(.on_gpu = true), HERE(.on_gpu = true)}, "nccl", 0, NULL},
    {"GPUs and no NCCL",
     {HERE(.on_gpu = true), HERE(.on_gpu = true, .lacks = MPI | GLOO | NCCL), HERE(.on_gpu = true)},
     NULL,
     CAIRN_ENOTBUILT,
     "the group backend nccl cannot be used by rank 1 on "},
    {"a GPU and a CPU",
     {HERE(.on_gpu = true), HERE(), HERE(.on_gpu = true)},
     NULL,
     CAIRN_EINVAL,
     "rank 0 computes on a GPU and rank 1 on the CPU"},
    {"nccl on CPUs",
     {HERE(.wanted = "nccl"), HERE(.wanted = "nccl"), HERE(.wanted = "nccl")},
     NULL,
     CAIRN_EINVAL,
     "'nccl' needs ranks on GPUs, and these compute on the CPU"},
    {"gloo on GPUs",
     {HERE(.wanted = "gloo", .on_gpu = true), HERE(.wanted = "gloo", .on_gpu = true),
      HERE(.wanted = "gloo", .on_gpu = true)},
     NULL,
     CAIRN_EINVAL,
     "'gloo' needs ranks on the CPU, and these compute on GPUs"},
};

static void every_rank_makes_the_same_choice(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        struct rank ranks[3];
        cairn_store *store = make_store();
        fill(ranks, 3, store);
        for (int r = 0; r < 3; r++) {
            const struct one *one = &choices[i].ranks[r];
            ranks[r].host = one->host;
            ranks[r].lacks = one->lacks;
            ranks[r].chooses = true;
            ranks[r].options.is_mpi = one->is_mpi;
            ranks[r].options.backend = one->wanted;
            ranks[r].options.device = one->on_gpu ? &gpu : NULL;
            ranks[r].options.interface = "lo";
        }
        run(ranks, 3);
        for (int r = 0; r < 3; r++) {
            if (!choices[i].backend) {
                expect(&ranks[r], choices[i].status, choices[i].sentence);
                assert_string_equal(ranks[r].error, ranks[0].error);
            } else if (ranks[r].status != CAIRN_OK || strcmp(ranks[r].backend->name, choices[i].backend) != 0) {
                fail_msg("%s: rank %d: '%s'", choices[i].name, r, ranks[r].error);
            }
        }
        end(ranks, 3);
        cairn_store_destroy(&store);
    }
}

static void single_rank_takes_the_backend_that_is_set(void **state) {
    (void)state;
    static const struct {
        const char *wanted;
        bool on_gpu;
        unsigned lacks;
        const char *backend;
        cairn_status status;
    } cases[] = {{NULL, false, 0, "self", CAIRN_OK},       {NULL, true, 0, "self", CAIRN_OK},
                 {"shm", false, 0, "shm", CAIRN_OK},       {"gloo", false, 0, "gloo", CAIRN_OK},
                 {"nccl", true, 0, "nccl", CAIRN_OK},      {"gloo", false, GLOO, NULL, CAIRN_ENOTBUILT},
                 {"nccl", false, 0, NULL, CAIRN_EINVAL},   {"shm", true, 0, NULL, CAIRN_EINVAL},
                 {"carrier", false, 0, NULL, CAIRN_EINVAL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rank one[1];
        fill(one, 1, NULL);
        one[0].options.backend = cases[i].wanted;
        one[0].options.device = cases[i].on_gpu ? &gpu : NULL;
        one[0].lacks = cases[i].lacks;
        one[0].chooses = true;
        run(one, 1);
        expect(&one[0], cases[i].status, "");
        if (cases[i].backend) assert_string_equal(one[0].backend->name, cases[i].backend);
        end(one, 1);
    }
}

/* ---- addresses ---- */

static void interface_is_given_by_name_or_address(void **state) {
    (void)state;
    char address[64];
    static const char *const good[] = {"lo", "lo,eth7", "127.0.0.1"}, *const bad[] = {"no-such-if", "",   ",",
                                                                                      "0.0.0.0",    "::", "192.0.2.77",
                                                                                      "localhost"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(cairn__address_of_interface(good[i], address, sizeof(address)), CAIRN_OK);
        assert_string_equal(address, "127.0.0.1");
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (cairn__address_of_interface(bad[i], address, sizeof(address)) != CAIRN_EINVAL) fail_msg("'%s'", bad[i]);
        assert_non_null(strstr(cairn_last_error(), "', neither an active network interface of this machine nor"));
        assert_non_null(strstr(cairn_last_error(), "lo (127.0.0.1)"));
    }
}

static void address_towards_another_is_found(void **state) {
    (void)state;
    char address[64];
    cairn__address_towards("127.0.0.1", address, sizeof(address));
    assert_string_equal(address, "127.0.0.1");
    cairn__address_towards("no address", address, sizeof(address));
    assert_string_equal(address, "");
    assert_true(cairn__address_is_loopback("127.0.0.5") && cairn__address_is_loopback("::1"));
    assert_false(cairn__address_is_loopback("10.127.0.1") || cairn__address_is_loopback(""));
    cairn__address_of_name(address, sizeof(address));
    assert_false(cairn__address_is_loopback(address));
}

static void run_gloo(struct rank *ranks, int p) {
    for (int r = 0; r < p; r++) {
        ranks[r].options.backend = "gloo";
        ranks[r].chooses = true;
    }
    run(ranks, p);
}

static void ranks_of_one_machine_talk_over_loopback(void **state) {
    (void)state;
    struct rank ranks[2];
    cairn_store *store = make_store();
    fill(ranks, 2, store);
    run_gloo(ranks, 2);
    for (int r = 0; r < 2; r++) {
        expect(&ranks[r], CAIRN_OK, "");
        for (int other = 0; other < 2; other++) assert_string_equal(ranks[r].peers.all[other].address, "127.0.0.1");
    }
    end(ranks, 2);
    cairn_store_destroy(&store);
}

static void machines_that_reach_one_store_over_loopback_share_it(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    cairn_store *stores[2] = {NULL, NULL};
    struct rank ranks[2];
    int port = 0;
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    fill(ranks, 2, NULL);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(cairn_tcp_store_create("127.0.0.1", port, cairn_tcp_store_options(.timeout = 20), &stores[r]),
                         CAIRN_OK);
        ranks[r].options.store = stores[r];
        ranks[r].host = r ? "B" : "A";
    }
    run_gloo(ranks, 2);
    for (int r = 0; r < 2; r++) {
        expect(&ranks[r], CAIRN_OK, "");
        assert_string_equal(ranks[r].peers.all[1 - r].address, "127.0.0.1");
        cairn_store_destroy(&stores[r]);
    }
    end(ranks, 2);
    cairn__store_stop(&server);
}

/* The other is far away and known to be at 127.0.0.1, as it says. */
static void rank_beside_the_store_takes_its_address_towards_the_others(void **state) {
    (void)state;
    struct rank ranks[2];
    cairn_store *store = make_store();
    static const char who[] = "cairn-peer-1 2 77 0 0 gloo 127.0.0.1 s far machine C", can[] = "127.0.0.1\n0 ";
    assert_int_equal(cairn_store_set(store, "test/peers/1", who, strlen(who)), CAIRN_OK);
    assert_int_equal(cairn_store_set(store, "test/peers/can/1", can, strlen(can)), CAIRN_OK);
    fill(ranks, 2, store);
    run_gloo(ranks, 1);
    expect(&ranks[0], CAIRN_OK, "");
    assert_string_equal(ranks[0].peers.all[0].address, "127.0.0.1");
    end(ranks, 1);
    cairn_store_destroy(&store);
}

static void wrong_interface_of_one_rank_is_an_error_on_all(void **state) {
    (void)state;
    struct rank ranks[3];
    cairn_store *store = make_store();
    fill(ranks, 3, store);
    ranks[1].options.interface = "eth77";
    run_gloo(ranks, 3);
    for (int r = 0; r < 3; r++) {
        expect(&ranks[r], CAIRN_EINVAL, "the group backend gloo cannot be used by rank 1 on ");
        expect(&ranks[r], CAIRN_EINVAL, ": GLOO_SOCKET_IFNAME is 'eth77', neither");
    }
    end(ranks, 3);
    cairn_store_destroy(&store);
}

static void ranks_that_share_memory_ignore_the_interface(void **state) {
    (void)state;
    struct rank ranks[2];
    cairn_store *store = make_store();
    fill(ranks, 2, store);
    for (int r = 0; r < 2; r++) {
        ranks[r].options.interface = "eth77";
        ranks[r].chooses = true;
    }
    run(ranks, 2);
    for (int r = 0; r < 2; r++) expect(&ranks[r], CAIRN_OK, "");
    end(ranks, 2);
    cairn_store_destroy(&store);
}

static void stores_return_the_local_address_of_their_connection(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL, *behind = NULL, *hash = make_store();
    char address[64];
    int port = 0;
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    assert_int_equal(cairn_tcp_store_create("127.0.0.1", port, NULL, &store), CAIRN_OK);
    assert_int_equal(cairn_prefix_store_create("x", store, &behind), CAIRN_OK);
    cairn__store_local_address(store, address, sizeof(address));
    assert_string_equal(address, "127.0.0.1");
    cairn__store_local_address(behind, address, sizeof(address));
    assert_string_equal(address, "127.0.0.1");
    cairn__store_local_address(hash, address, sizeof(address));
    assert_string_equal(address, "");
    assert_true(cairn_store_set_timeout(behind, 30) == CAIRN_OK && cairn__store_hurry(behind, 1.5) == 30);
    assert_true(store->timeout == 1.5 && cairn__store_hurry(store, 3) == 1.5 && store->timeout == 1.5);
    assert_true(cairn__store_hurry(hash, 1) == 0 && hash->timeout == 20);
    cairn_store_destroy(&behind);
    cairn_store_destroy(&store);
    cairn_store_destroy(&hash);
    cairn__store_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_meet_know_each_other),
        cmocka_unit_test(a_single_rank_needs_no_store),
        cmocka_unit_test(sockets_take_connections_until_the_meeting_ends),
        cmocka_unit_test(hosts_are_compared),
        cmocka_unit_test(ranks_of_one_machine_write_once_and_read_each_other_once),
        cmocka_unit_test(missing_ranks_are_named_after_the_time_for_meeting),
        cmocka_unit_test(different_world_sizes_are_refused_on_every_rank),
        cmocka_unit_test(facts_of_another_version_are_refused),
        cmocka_unit_test(rank_0_waits_until_all_ranks_have_the_error),
        cmocka_unit_test(a_rank_that_ended_is_named_while_others_are_awaited),
        cmocka_unit_test(lost_store_is_reported_with_the_awaited_rank),
        cmocka_unit_test(rank_names_the_one_that_hosts_the_store_whichever_request_is_lost),
        cmocka_unit_test(texts_of_all_ranks_reach_every_rank_in_rank_order),
        cmocka_unit_test(every_rank_makes_the_same_choice),
        cmocka_unit_test(single_rank_takes_the_backend_that_is_set),
        cmocka_unit_test(interface_is_given_by_name_or_address),
        cmocka_unit_test(address_towards_another_is_found),
        cmocka_unit_test(ranks_of_one_machine_talk_over_loopback),
        cmocka_unit_test(machines_that_reach_one_store_over_loopback_share_it),
        cmocka_unit_test(rank_beside_the_store_takes_its_address_towards_the_others),
        cmocka_unit_test(wrong_interface_of_one_rank_is_an_error_on_all),
        cmocka_unit_test(ranks_that_share_memory_ignore_the_interface),
        cmocka_unit_test(stores_return_the_local_address_of_their_connection),
    };
    return cmocka_run_group_tests_name("peers", tests, NULL, NULL);
}
