/* Groups of ranks with a GPU each: every collective is one call of the device's communication library, on a stream of
 * its own. A wait makes the device's stream wait and returns. Only barriers and words of the host make the host wait
 * for the device.
 *
 * Sends and receives are held until the rank waits, posts a collective or makes progress, and are then launched as one:
 * otherwise ranks that first send to each other and then receive would wait for each other.
 *
 * Halves are averaged by multiplying them by an exact power of two before the sum, so that the sum does not overflow.
 * If the number of ranks is not a power of two, the device's stream multiplies the sum by the remaining factor, in f32
 * with one rounding. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "comm/nccl/link.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/vars.h"
#include "rendezvous/store/store.h"

enum { REASON_NBYTES = 300, ID_NBYTES = 1 + sizeof(struct cairn__comm_id), FIRST_PAUSE_MS = 1, LAST_PAUSE_MS = 50 };

/* What ranks exchange about a call in order to compare it. */
struct words {
    struct cairn__call call;
    uint32_t found;
};

struct nccl {
    struct cairn__link link;
    bool check;
    int halvings;        /* 2^-halvings <= 1 / p */
    struct words *words; /* [size] */
    void *staging;       /* in device memory, for words of the host */
    size_t staging_nbytes;
    void *word;         /* in device memory: barriers add it up */
    cairn_work **works; /* posted and not done, in order; held ones are last */
    size_t num_works, capacity, num_held;
    void **blocks; /* group memory; NULL if freed */
    size_t num_blocks, blocks_capacity;
};

static struct nccl *nccl_of(const cairn_group *group) {
    return group->impl;
}

/* ---- launches ---- */

/* A work's state is the number of its launch; NULL while the work is held. */
static uint64_t number_of(const cairn_work *work) {
    return (uint64_t)(uintptr_t)work->state;
}

static bool is_average_of_halves(const struct cairn__call *call) {
    return call->redop == CAIRN_AVG && cairn__is_half((cairn_dtype)call->dtype);
}

/* NCCL's own average divides by the number of all ranks; other divisors need a sum. */
static bool is_average_of_some(const struct cairn__call *call) {
    const bool may_be = call->kind == CAIRN__ALLREDUCE || call->kind == CAIRN__REDUCE_SCATTER;
    return may_be && call->redop == CAIRN_AVG && call->divisor > 0;
}

/* The factor that remains to be applied after NCCL's reduction. */
static float rest_of(const struct nccl *x, const struct cairn__call *call) {
    const float divisor = (float)cairn__call_divisor(call, x->link.group->size);
    if (is_average_of_halves(call)) return (float)(1 << x->halvings) / divisor;
    return is_average_of_some(call) ? 1 / divisor : 1;
}

static struct cairn__comm_reduction reduction_of(const struct nccl *x, const struct cairn__call *call) {
    static const enum cairn__comm_op ops[] = {[CAIRN_SUM] = CAIRN__COMM_SUM,
                                              [CAIRN_AVG] = CAIRN__COMM_AVG,
                                              [CAIRN_MIN] = CAIRN__COMM_MIN,
                                              [CAIRN_MAX] = CAIRN__COMM_MAX,
                                              [CAIRN_PROD] = CAIRN__COMM_PROD};
    if (is_average_of_halves(call)) return (struct cairn__comm_reduction){CAIRN__COMM_SUM, x->halvings};
    if (is_average_of_some(call)) return (struct cairn__comm_reduction){CAIRN__COMM_SUM, 0};
    return (struct cairn__comm_reduction){ops[call->redop], 0};
}

static cairn_status queue_barrier(struct cairn__link *link, void *word) {
    static const struct cairn__comm_reduction sum = {CAIRN__COMM_SUM, 0};
    return link->ops->all_reduce(link->comm, word, word, 1, CAIRN_I32, &sum);
}

/* ctx: the work */
static cairn_status queue_collective(struct cairn__link *link, void *ctx) {
    const struct cairn__request *r = &((const cairn_work *)ctx)->request;
    const struct cairn__call *call = &r->call;
    const struct nccl *x = nccl_of(link->group);
    const struct cairn__comm_ops *ops = link->ops;
    const struct cairn__comm_reduction how = reduction_of(x, call);
    const cairn_dtype dtype = (cairn_dtype)call->dtype;
    const size_t n = (size_t)call->n;
    switch (call->kind) {
    case CAIRN__ALLREDUCE:
        return ops->all_reduce(link->comm, r->dst, r->src, n, dtype, &how);
    case CAIRN__REDUCE:
        return ops->reduce(link->comm, r->dst, r->src, n, dtype, &how, call->root);
    case CAIRN__BROADCAST:
        return ops->broadcast(link->comm, r->dst, n, dtype, call->root);
    case CAIRN__ALLGATHER:
        return ops->all_gather(link->comm, r->dst, r->src, n, dtype);
    case CAIRN__REDUCE_SCATTER:
        return ops->reduce_scatter(link->comm, r->dst, r->src, n, dtype, &how);
    case CAIRN__ALLTOALL:
        return ops->all_to_all(link->comm, r->dst, r->src, n, dtype);
    default:
        return queue_barrier(link, x->word);
    }
}

static cairn_status queue_held(struct cairn__link *link, void *ctx) {
    const struct nccl *x = ctx;
    cairn_status st = link->ops->group_begin(link->comm);
    if (st != CAIRN_OK) return st;
    for (size_t i = x->num_works - x->num_held; i < x->num_works && st == CAIRN_OK; i++) {
        const struct cairn__request *r = &x->works[i]->request;
        const cairn_dtype dtype = (cairn_dtype)r->call.dtype;
        const size_t n = (size_t)r->call.n;
        st = r->call.kind == CAIRN__SEND ? link->ops->send(link->comm, r->src, n, dtype, r->call.peer)
                                         : link->ops->recv(link->comm, r->dst, n, dtype, r->call.peer);
    }
    const cairn_status ended = link->ops->group_end(link->comm);
    return st == CAIRN_OK ? ended : st;
}

/* ---- works ---- */

static cairn_status keep(struct nccl *x, cairn_work *work) {
    cairn_status st = cairn__grow((void **)&x->works, &x->capacity, x->num_works + 1, sizeof(*x->works));
    if (st == CAIRN_OK) x->works[x->num_works++] = work;
    return st;
}

static void forget(struct nccl *x, const cairn_work *work) {
    size_t i = 0;
    while (i < x->num_works && x->works[i] != work) i++;
    if (i == x->num_works) return;
    x->num_works--;
    memmove(&x->works[i], &x->works[i + 1], (x->num_works - i) * sizeof(*x->works));
}

/* Called once the work's launch has run, or the device's stream waits for it. */
static void finish(struct nccl *x, cairn_work *work) {
    const struct cairn__request *r = &work->request;
    struct cairn_device *d = x->link.group->device;
    const float rest = rest_of(x, &r->call);
    if (rest != 1 && r->dst)
        d->passes->mul_scalar(d, (cairn_dtype)r->call.dtype, r->dst, r->dst, (size_t)r->call.n, rest);
    cairn__work_complete(work, 0);
}

static cairn_status launch_held(struct nccl *x) {
    uint64_t number = 0;
    if (x->num_held == 0) return CAIRN_OK;
    cairn_work *const *held = &x->works[x->num_works - x->num_held];
    cairn_status st = CAIRN_OK;
    TRY(cairn__link_launch(&x->link, &held[0]->request.call, queue_held, x, &number));
    for (size_t i = 0; i < x->num_held; i++) held[i]->state = (void *)(uintptr_t)number;
    x->num_held = 0;
out:
    return st;
}

/* While a graph is recorded, its works are joined and there is nothing to poll. */
static cairn_status progress(cairn_group *group) {
    struct nccl *x = nccl_of(group);
    uint64_t passed = 0;
    size_t kept = 0;
    cairn_status st = CAIRN_OK;
    TRY(launch_held(x));
    TRY(cairn__link_poll(&x->link, &passed));
    if (group->device->capturing) return CAIRN_OK;
    for (size_t i = 0; i < x->num_works; i++) {
        cairn_work *work = x->works[i];
        const bool is_through = work->state && number_of(work) <= passed;
        if (is_through) finish(x, work);
        if (!is_through) x->works[kept++] = work;
    }
    x->num_works = kept;
out:
    return st;
}

static cairn_status wait(cairn_group *group, cairn_work *work) {
    struct nccl *x = nccl_of(group);
    cairn_status st = CAIRN_OK;
    uint64_t passed = 0;
    TRY(launch_held(x));
    cairn__family_progress_others(group);
    TRY(cairn__link_poll(&x->link, &passed));
    if (work->request.call.kind == CAIRN__BARRIER) {
        TRY(cairn__link_wait(&x->link, number_of(work)));
    } else {
        TRY(cairn__link_join(&x->link, number_of(work)));
    }
    if (work->done) return CAIRN_OK; /* another group's wait has completed this work */
    forget(x, work);
    finish(x, work);
out:
    return st;
}

/* ---- words of the host ---- */

struct gathering {
    char *all; /* in device memory */
    size_t nbytes;
};

static cairn_status queue_gather(struct cairn__link *link, void *ctx) {
    const struct gathering *g = ctx;
    const char *mine = g->all + (size_t)link->group->rank * g->nbytes;
    return link->ops->all_gather(link->comm, g->all, mine, g->nbytes, CAIRN_U8);
}

static cairn_status make_staging(struct nccl *x, size_t nbytes) {
    struct cairn_device *d = x->link.group->device;
    if (nbytes <= x->staging_nbytes) return CAIRN_OK;
    cairn__device_free(d, x->staging);
    x->staging = NULL;
    x->staging_nbytes = 0;
    const cairn_status st = cairn__device_alloc(d, CAIRN__HOLDS_SCRATCH, nbytes, &x->staging);
    if (st == CAIRN_OK) x->staging_nbytes = nbytes;
    return st;
}

/* call is the purpose, for messages. */
static cairn_status gather(struct nccl *x, const struct cairn__call *call, void *all, const void *mine, size_t nbytes) {
    cairn_group *group = x->link.group;
    struct cairn_device *d = group->device;
    cairn_status st = CAIRN_OK;
    uint64_t number = 0;
    if (nbytes == 0) return CAIRN_OK;
    TRY(cairn__device_refuse_recording(
        d, "ranks exchange data of the host here; make groups before the graph is captured"));
    TRY(launch_held(x));
    TRY(make_staging(x, (size_t)group->size * nbytes));
    struct gathering g = {x->staging, nbytes};
    TRY(cairn__device_upload(d, g.all + (size_t)group->rank * nbytes, mine, nbytes));
    TRY(cairn__link_launch(&x->link, call, queue_gather, &g, &number));
    TRY(cairn__link_wait(&x->link, number));
    TRY(cairn__device_download(d, all, g.all, (size_t)group->size * nbytes));
out:
    return st;
}

static cairn_status exchange(cairn_group *group, void *all, const void *mine, size_t nbytes) {
    const struct cairn__call call = {.number = ++group->next_number,
                                     .n = nbytes,
                                     .kind = CAIRN__ALLGATHER,
                                     .dtype = CAIRN_U8};
    group->last = call;
    return gather(nccl_of(group), &call, all, mine, nbytes);
}

/* Exchanges and compares the ranks' calls; *found gets the OR of all ranks' values. */
static cairn_status exchange_calls(struct nccl *x, const struct cairn__call *call, uint32_t *found) {
    const struct words mine = {*call, *found};
    cairn_status st = CAIRN_OK;
    TRY(gather(x, call, x->words, &mine, sizeof(mine)));
    for (int r = 0; r < x->link.group->size; r++) {
        if (!cairn__calls_agree(&x->words[0].call, &x->words[r].call))
            return cairn__fail_mismatch(x->link.group, 0, &x->words[0].call, r, &x->words[r].call);
        *found |= x->words[r].found;
    }
out:
    return st;
}

/* ---- posting ---- */

static cairn_status post_collective(struct nccl *x, cairn_work *work) {
    const struct cairn__call *call = &work->request.call;
    cairn_status st = CAIRN_OK;
    uint64_t number = 0;
    uint32_t found = 0;
    TRY(launch_held(x));
    if (x->check && !x->link.group->device->capturing) TRY(exchange_calls(x, call, &found));
    if (call->n == 0 && call->kind != CAIRN__BARRIER) {
        cairn__work_complete(work, 0);
        return CAIRN_OK;
    }
    TRY(keep(x, work));
    st = cairn__link_launch(&x->link, call, queue_collective, work, &number);
    work->state = (void *)(uintptr_t)number;
    if (st != CAIRN_OK) forget(x, work);
out:
    return st;
}

static cairn_status post(cairn_group *group, cairn_work *work) {
    struct nccl *x = nccl_of(group);
    const struct cairn__call *call = &work->request.call;
    cairn_status st = CAIRN_OK;
    if (call->kind == CAIRN__BARRIER)
        TRY(cairn__device_refuse_recording(group->device, "a barrier waits for the device; leave it out"));
    if (!cairn__call_is_message(call)) {
        TRY(post_collective(x, work));
    } else if (call->n > 0) { /* held: launched together with the next work that is not held */
        TRY(keep(x, work));
        x->num_held++;
    } else {
        cairn__work_complete(work, 0);
    }
out:
    return st;
}

/* ---- meeting ---- */

struct meeting {
    const struct cairn__peers *peers;
    char (*places)[40];
};

static cairn_status take_place(void *ctx, int rank, const char *text) {
    const struct meeting *m = ctx;
    snprintf(m->places[rank], sizeof(m->places[rank]), "%s", text);
    return CAIRN_OK;
}

static cairn_status check_places(const struct meeting *m) {
    const struct cairn__peer *all = m->peers->all;
    for (int a = 0; a < m->peers->size; a++) {
        for (int b = a + 1; b < m->peers->size; b++) {
            if (strcmp(m->places[a], m->places[b]) != 0 || strcmp(all[a].host, all[b].host) != 0) continue;
            return cairn__fail(
                CAIRN_EINVAL,
                "ranks %d and %d compute on one GPU, %s of %s, and NCCL needs a GPU for each rank; start at most as "
                "many ranks as the machine has GPUs, with device \"cuda\", which gives each its own",
                a, b, m->places[a], all[a].name);
        }
    }
    return CAIRN_OK;
}

/* NCCL would report this error, too, but later and less helpfully. */
static cairn_status meet_places(struct nccl *x, struct cairn__peers *peers) {
    struct meeting m = {.peers = peers};
    char place[40];
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc((size_t)peers->size, sizeof(*m.places), (void **)&m.places));
    TRY(x->link.ops->place(x->link.group->device, place, sizeof(place)));
    TRY(cairn__peers_exchange(peers, "gpu", place, take_place, &m));
    st = check_places(&m);
    if (st != CAIRN_OK) st = cairn__peers_refuse(peers, st);
out:
    cairn__free(m.places);
    return st;
}

static void write_key(const cairn_group *group, char *key, size_t nbytes) {
    snprintf(key, nbytes, "%s/nccl/%lld", group->family->prefix, (long long)group->index);
}

/* Publishes rank 0's id, or the reason why there is none. */
static cairn_status publish_id(const struct nccl *x, struct cairn__comm_id *id) {
    const cairn_group *group = x->link.group;
    char key[300], value[ID_NBYTES + REASON_NBYTES];
    size_t nbytes = ID_NBYTES;
    const cairn_status made = x->link.ops->unique_id(id);
    value[0] = 'i';
    memcpy(value + 1, id, sizeof(*id));
    if (made != CAIRN_OK)
        nbytes = (size_t)snprintf(value, sizeof(value), "e%.*s", REASON_NBYTES, cairn_last_error()) + 1;
    write_key(group, key, sizeof(key));
    const cairn_status set = group->size > 1 ? cairn_store_set(group->family->store, key, value, nbytes) : CAIRN_OK;
    return made != CAIRN_OK ? cairn__fail(made, "%s", value + 1) : set;
}

static cairn_status fail_without_id(const cairn_group *group, double timeout) {
    char rank[80], first[80];
    cairn__group_name_rank(group, group->rank, rank, sizeof(rank));
    cairn__group_name_rank(group, 0, first, sizeof(first));
    return cairn__fail(CAIRN_ETIMEOUT, "%s waited %g s for the id of NCCL's communicator, which %s writes to the store",
                       rank, timeout, first);
}

static cairn_status wait_for_key(const cairn_group *group, const char *key, double timeout) {
    const uint64_t end = cairn__now_ns() + (uint64_t)(timeout * 1e9);
    for (int pause = FIRST_PAUSE_MS;; pause = pause * 2 < LAST_PAUSE_MS ? pause * 2 : LAST_PAUSE_MS) {
        int present = 0;
        cairn_status st = cairn_store_check(group->family->store, &key, 1, &present);
        if (st == CAIRN_OK && !present) st = cairn__group_was_aborted(group);
        if (st != CAIRN_OK || present) return st;
        if (cairn__now_ns() > end) return fail_without_id(group, timeout);
        nanosleep(&(struct timespec){.tv_nsec = pause * 1000000L}, NULL);
    }
}

static cairn_status fetch_id(const cairn_group *group, double timeout, struct cairn__comm_id *id) {
    char key[300];
    void *value = NULL;
    size_t nbytes = 0;
    cairn_status st = CAIRN_OK;
    write_key(group, key, sizeof(key));
    TRY(wait_for_key(group, key, timeout));
    TRY(cairn_store_get(group->family->store, key, &value, &nbytes));
    const char *text = value;
    if (nbytes == ID_NBYTES && text[0] == 'i') {
        memcpy(id, text + 1, sizeof(*id));
    } else {
        st = cairn__fail(CAIRN_EPEER, "rank 0 of the group failed: %s", nbytes > 1 ? text + 1 : "");
    }
out:
    cairn_store_free(value);
    return st;
}

/* ---- creation ---- */

static cairn_status make(cairn_group *group, const struct cairn__comm_ops *ops, struct nccl **out) {
    struct cairn_device *d = group->device;
    struct nccl *x = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*x), (void **)&x));
    group->impl = x;
    cairn__link_begin(&x->link, group, ops);
    while (1 << x->halvings < group->size) x->halvings++;
    TRY(cairn__calloc((size_t)group->size, sizeof(*x->words), (void **)&x->words));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, sizeof(int32_t), &x->word));
    d->passes->store(d, x->word, &(int32_t){0}, sizeof(int32_t));
    *out = x;
out:
    return st;
}

static cairn_status connect(struct nccl *x, double timeout) {
    const cairn_group *group = x->link.group;
    struct cairn__comm_id id;
    cairn_status st = CAIRN_OK;
    TRY(group->rank == 0 ? publish_id(x, &id) : fetch_id(group, timeout, &id));
    TRY(cairn__link_open(&x->link, &id, timeout));
    /* All ranks have read the id by now. */
    if (group->rank == 0 && group->size > 1 && cairn__store_forgets(group->family->store)) {
        char key[300];
        write_key(group, key, sizeof(key));
        (void)cairn_store_delete(group->family->store, key, NULL);
    }
out:
    return st;
}

/* A word from every rank shows that all have arrived. If one rank checks calls (CAIRN_CHECK), all do. */
static cairn_status greet(struct nccl *x) {
    bool present = false;
    long value = 0;
    uint32_t found = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__var_int("CAIRN_CHECK", 0, 1, &present, &value));
    found = present && value == 1;
    TRY(exchange_calls(x, &(struct cairn__call){.kind = CAIRN__AGREE}, &found));
    x->check = found != 0;
out:
    return st;
}

static cairn_status create(cairn_group *group, const struct cairn__group_create_options *options,
                           struct cairn__peers *peers) {
    const struct cairn__comm_ops *ops = NULL;
    struct nccl *x = NULL;
    cairn_status st = CAIRN_OK;
    const double timeout = options->meeting_timeout > 0 ? options->meeting_timeout : group->timeout;
    TRY(cairn__comm_find("nccl", &ops));
    TRY(make(group, ops, &x));
    if (group->size > 1) TRY(meet_places(x, peers));
    TRY(connect(x, timeout));
    TRY(greet(x));
out:
    return st;
}

static cairn_status derive(cairn_group *group, cairn_group *parent) {
    struct nccl *x = NULL;
    cairn_status st = CAIRN_OK;
    TRY(make(group, nccl_of(parent)->link.ops, &x));
    x->check = nccl_of(parent)->check;
    TRY(connect(x, group->timeout));
out:
    return st;
}

static cairn_status probe(const struct cairn__group_create_options *options) {
    const struct cairn__comm_ops *ops = NULL;
    (void)options;
    return cairn__comm_find("nccl", &ops);
}

/* ---- the end ---- */

static void destroy(cairn_group *group) {
    struct nccl *x = nccl_of(group);
    if (!x) return;
    cairn__link_end(&x->link); /* this also frees all group memory */
    cairn__device_free(group->device, x->staging);
    cairn__device_free(group->device, x->word);
    cairn__free(x->words);
    cairn__free(x->works);
    cairn__free(x->blocks);
    cairn__free(x);
    group->impl = NULL;
}

static void give_up(cairn_group *group, const char *cause) {
    (void)cause; /* the front writes it into the store */
    if (group->impl) cairn__link_abort(&nccl_of(group)->link);
}

/* ---- group memory ---- */

static cairn_status make_block(struct nccl *x, size_t nbytes) {
    struct cairn_device *d = x->link.group->device;
    const size_t words = nbytes / sizeof(float) + 1;
    void **block = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&x->blocks, &x->blocks_capacity, x->num_blocks + 1, sizeof(*x->blocks)));
    block = &x->blocks[x->num_blocks];
    *block = NULL;
    TRY(cairn__link_alloc(&x->link, words * sizeof(float), block));
    d->passes->fill(d, CAIRN_F32, *block, words, 0.0f);
out:
    return st;
}

static void free_block(struct nccl *x, void **block) {
    if (*block) cairn__link_free(&x->link, *block);
    *block = NULL;
}

static struct cairn__call memory_call(cairn_group *group, enum cairn__call_kind kind, size_t n) {
    group->last = (struct cairn__call){.number = ++group->next_number, .n = n, .kind = (uint8_t)kind};
    return group->last;
}

/* If one rank has no memory, no rank gets any. */
static cairn_status alloc(cairn_group *group, size_t nbytes, void **out) {
    struct nccl *x = nccl_of(group);
    char reason[REASON_NBYTES];
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(group->device, "make group memory before the graph is captured"));
    const cairn_status own = make_block(x, nbytes);
    uint32_t failed = own != CAIRN_OK;
    snprintf(reason, sizeof(reason), "%s", cairn_last_error());
    const struct cairn__call call = memory_call(group, CAIRN__ALLOC, nbytes);
    st = exchange_calls(x, &call, &failed);
    if (st == CAIRN_OK && !failed) {
        *out = x->blocks[x->num_blocks++];
        return CAIRN_OK;
    }
    if (own == CAIRN_OK) free_block(x, &x->blocks[x->num_blocks]);
    TRY(st);
    if (own != CAIRN_OK) return cairn__fail(own, "%s", reason);
    st = cairn__fail(CAIRN_ENOMEM, "another rank could not allocate %zu bytes of group memory", nbytes);
out:
    return st;
}

static cairn_status release(cairn_group *group, void *memory) {
    struct nccl *x = nccl_of(group);
    size_t i = 0;
    uint32_t found = 0;
    cairn_status st = CAIRN_OK;
    while (i < x->num_blocks && x->blocks[i] != memory) i++;
    REQUIRE(i < x->num_blocks, CAIRN_EINVAL, "%p is not memory of this group; pass what cairn_group_alloc returned",
            memory);
    TRY(cairn__device_refuse_recording(group->device, "free group memory before the graph is captured"));
    const struct cairn__call call = memory_call(group, CAIRN__FREE, i + 1);
    TRY(exchange_calls(x, &call, &found));
    free_block(x, &x->blocks[i]);
out:
    return st;
}

const struct cairn__group_backend cairn__group_nccl = {
    .name = "nccl",
    .checks_results = false,
    .keeps_store = true,
    .probe = probe,
    .create = create,
    .derive = derive,
    .destroy = destroy,
    .alloc = alloc,
    .free = release,
    .post = post,
    .progress = progress,
    .wait = wait,
    .give_up = give_up,
    .exchange = exchange,
};
