/* The front of process groups: arguments are checked here and nowhere below, works come from a pool, and the first
 * failure that kills a group is kept and repeated.
 *
 * The pool grows by chunks when more works are held than ever before, so a training step that posts what the last one
 * posted allocates nothing. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/trace.h"
#include "dist/group_backend.h"

enum { WORKS_PER_CHUNK = 64, MAX_TIMEOUT = 1000000000 /* s; fits in 64 bits of ns */ };

struct cairn__work_chunk {
    struct cairn__work_chunk *next;
    struct cairn_work works[WORKS_PER_CHUNK];
};

/* ---- backends ---- */

/* Best first for "auto"; those without a table were not built. */
static const struct {
    const char *name, *option;
    const struct cairn__group_backend *backend;
} backends[] = {
    {"self", NULL, &cairn__group_self},
    {"shm", NULL, &cairn__group_shm},
    {"mpi", "mpi", NULL},
    {"gloo", "gloo", NULL},
    {"nccl", "cuda", NULL},
};

static cairn_status choose_backend(const char *name, int size, const struct cairn__group_backend **out) {
    bool any = !name || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        const bool alone = backends[i].backend == &cairn__group_self;
        if (any ? alone && size > 1 : strcmp(name, backends[i].name) != 0) continue;
        REQUIRE(backends[i].backend, CAIRN_ENOTBUILT,
                "the group backend '%s' is not in this build (meson option '%s'); use \"shm\" for ranks of one machine",
                backends[i].name, backends[i].option);
        *out = backends[i].backend;
        return CAIRN_OK;
    }
    return cairn__fail(CAIRN_EINVAL, "there is no group backend '%s'; choose auto, self, shm, mpi, gloo or nccl", name);
}

const char *cairn__collective_name(enum cairn__collective kind) {
    static const char *const names[] = {
        [CAIRN__ALLREDUCE] = "all-reduce",   [CAIRN__BROADCAST] = "broadcast",
        [CAIRN__ALLGATHER] = "all-gather",   [CAIRN__BARRIER] = "barrier",
        [CAIRN__ALLOC] = "group allocation", [CAIRN__FREE] = "cairn_group_free (or ddp_destroy)",
        [CAIRN__AGREE] = "agreement",
    };
    return (size_t)kind < sizeof(names) / sizeof(names[0]) && names[kind] ? names[kind] : "unknown collective";
}

/* ---- life and death ---- */

static cairn_status repeat_cause(const cairn_group *group) {
    return cairn__fail(group->dead, "the group is dead and can only be destroyed; its first failure was: %s",
                       group->cause);
}

/* Passes status on; the first deadly one stays with the group and is told to the peers. */
static cairn_status settle(cairn_group *group, cairn_status status) {
    if ((status != CAIRN_EPEER && status != CAIRN_ETIMEOUT) || group->dead != CAIRN_OK) return status;
    group->dead = status;
    snprintf(group->cause, sizeof(group->cause), "%s", cairn_last_error());
    group->backend->give_up(group, group->cause);
    return status;
}

static cairn_status check_options(const struct cairn__group_options *o) {
    REQUIRE(o, CAIRN_EINVAL, "a group needs options");
    REQUIRE(o->size >= 1 && o->size <= CAIRN__MAX_RANKS, CAIRN_EINVAL, "a group of %d ranks; it can have 1 to %d",
            o->size, CAIRN__MAX_RANKS);
    REQUIRE(o->rank >= 0 && o->rank < o->size, CAIRN_EINVAL, "rank %d is not in a group of %d; ranks are 0 to %d",
            o->rank, o->size, o->size - 1);
    REQUIRE(o->timeout > 0, CAIRN_EINVAL, "a group's timeout is %g s; it must be positive", o->timeout);
    REQUIRE(o->size == 1 || !o->backend || strcmp(o->backend, "self") != 0, CAIRN_EINVAL,
            "the group backend 'self' is for one rank, not %d; use auto", o->size);
    REQUIRE(o->size == 1 || (o->store && o->prefix), CAIRN_EINVAL,
            "a group of %d ranks needs a store and a key prefix to find each other", o->size);
    return CAIRN_OK;
}

static cairn_status add_works(cairn_group *group) {
    struct cairn__work_chunk *chunk = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*chunk), (void **)&chunk);
    if (st != CAIRN_OK) return st;
    chunk->next = group->chunks;
    group->chunks = chunk;
    for (int i = 0; i < WORKS_PER_CHUNK; i++) {
        chunk->works[i].group = group;
        chunk->works[i].next_free = group->free_works;
        group->free_works = &chunk->works[i];
    }
    return CAIRN_OK;
}

cairn_status cairn__group_create(const struct cairn__group_options *options, cairn_group **out) {
    const struct cairn__group_backend *backend = NULL;
    cairn_group *group = NULL;
    cairn_status st = CAIRN_OK;
    TRY(check_options(options));
    TRY(choose_backend(options->backend, options->size, &backend));
    TRY(cairn__calloc(1, sizeof(*group), (void **)&group));
    group->backend = backend;
    group->rank = options->rank;
    group->size = options->size;
    group->timeout = options->timeout < MAX_TIMEOUT ? options->timeout : MAX_TIMEOUT;
    group->device = options->device;
    TRY(add_works(group));
    TRY(backend->create(group, options));
    *out = group;
    return CAIRN_OK;
out:
    cairn__group_destroy(&group);
    return st;
}

void cairn__group_destroy(cairn_group **group) {
    cairn_group *g = *group;
    if (!g) return;
    g->backend->destroy(g);
    while (g->chunks) {
        struct cairn__work_chunk *next = g->chunks->next;
        cairn__free(g->chunks);
        g->chunks = next;
    }
    cairn__free(g);
    *group = NULL;
}

int cairn_group_rank(const cairn_group *group) {
    return group ? group->rank : 0;
}

int cairn_group_size(const cairn_group *group) {
    return group ? group->size : 1;
}

const char *cairn_group_backend(const cairn_group *group) {
    return group ? group->backend->name : "";
}

struct cairn_device *cairn__group_device(const cairn_group *group) {
    return group->device;
}

bool cairn__group_looks(const cairn_group *group) {
    return group->backend->looks;
}

/* ---- works ---- */

static cairn_status take_work(cairn_group *group, const struct cairn__request *request, cairn_work **out) {
    if (!group->free_works) {
        cairn_status st = add_works(group);
        if (st != CAIRN_OK) return st;
    }
    cairn_work *work = group->free_works;
    group->free_works = work->next_free;
    work->request = *request;
    work->number = ++group->next_number;
    work->begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    work->done = false;
    work->found = 0;
    *out = work;
    return CAIRN_OK;
}

static void return_work(cairn_work *work) {
    work->next_free = work->group->free_works;
    work->group->free_works = work;
}

void cairn__work_complete(cairn_work *work, uint32_t found) {
    const struct cairn__request *r = &work->request;
    work->found = found;
    work->done = true;
    if (work->begin_ns) {
        int64_t nbytes = (int64_t)(r->n * cairn_dtype_nbytes(r->dtype));
        cairn__trace("dist", cairn__collective_name(r->kind), (int64_t)work->number, nbytes, work->begin_ns);
    }
}

static cairn_status post(cairn_group *group, const struct cairn__request *request, cairn_work **out) {
    if (group->dead != CAIRN_OK) return repeat_cause(group);
    cairn_work *work = NULL;
    cairn_status st = take_work(group, request, &work);
    if (st != CAIRN_OK) return st;
    st = settle(group, group->backend->post(group, work));
    if (st != CAIRN_OK) {
        return_work(work);
    } else {
        *out = work;
    }
    return st;
}

static cairn_status wait(cairn_work *work) {
    if (work->done) return CAIRN_OK;
    cairn_group *group = work->group;
    return group->dead != CAIRN_OK ? repeat_cause(group) : settle(group, group->backend->wait(group, work));
}

static cairn_status post_or_run(cairn_group *group, const struct cairn__request *request, cairn_work **out) {
    cairn_work *work = NULL;
    cairn_status st = post(group, request, &work);
    if (st != CAIRN_OK) return st;
    if (!out) return cairn_work_wait(&work);
    *out = work;
    return CAIRN_OK;
}

cairn_status cairn__group_run(cairn_group *group, const struct cairn__request *request, uint32_t *found) {
    cairn_work *work = NULL;
    cairn_status st = post(group, request, &work);
    if (st != CAIRN_OK) return st;
    return cairn__work_finish(&work, found);
}

cairn_status cairn__group_progress(cairn_group *group) {
    if (group->dead != CAIRN_OK) return repeat_cause(group);
    return settle(group, group->backend->progress(group));
}

cairn_status cairn_work_test(cairn_work *work, int *done) {
    REQUIRE(work && done, CAIRN_EINVAL, "cairn_work_test needs a work and a place for its answer");
    cairn_status st = work->done ? CAIRN_OK : cairn__group_progress(work->group);
    *done = work->done;
    return work->done ? CAIRN_OK : st;
}

cairn_status cairn_work_wait(cairn_work **work) {
    return cairn__work_finish(work, NULL);
}

cairn_status cairn__work_finish(cairn_work **work, uint32_t *found) {
    REQUIRE(work, CAIRN_EINVAL, "cairn_work_wait needs the address of a work");
    cairn_work *w = *work;
    if (!w) return CAIRN_OK;
    cairn_status st = wait(w);
    if (st == CAIRN_OK && found) *found |= w->found != 0;
    return_work(w);
    *work = NULL;
    return st;
}

/* ---- collectives ---- */

static cairn_status check_array(const char *what, const void *x, size_t n, size_t copies, cairn_dtype dtype) {
    const struct cairn__dtype *type = cairn__dtype(dtype);
    REQUIRE(type && dtype != CAIRN_F64 && dtype != CAIRN_BOOL, CAIRN_EINVAL,
            "%s: %d (%s) is no element type that groups know; use CAIRN_F32, F16, BF16, I32 or I64", what, (int)dtype,
            cairn_dtype_name(dtype));
    REQUIRE(x || n == 0, CAIRN_EINVAL, "%s: the array of %zu %s is NULL", what, n, type->name);
    REQUIRE((uintptr_t)x % type->nbytes == 0, CAIRN_EINVAL, "%s: the array at %p is not aligned for %s", what, x,
            type->name);
    REQUIRE(n <= SIZE_MAX / 2 / type->nbytes / copies, CAIRN_EINVAL, "%s: %zu %s are more than memory can hold", what,
            n, type->name);
    return CAIRN_OK;
}

cairn_status cairn_allreduce(cairn_group *group, void *x, size_t n, cairn_dtype dtype, cairn_redop op,
                             cairn_work **work) {
    REQUIRE(group, CAIRN_EINVAL, "all-reduce: the group is NULL");
    REQUIRE(op == CAIRN_SUM || op == CAIRN_AVG, CAIRN_EINVAL,
            "all-reduce: %d is no operation; use CAIRN_SUM or CAIRN_AVG", (int)op);
    cairn_status st = check_array("all-reduce", x, n, 1, dtype);
    if (st != CAIRN_OK) return st;
    struct cairn__request r = {.kind = CAIRN__ALLREDUCE, .x = x, .src = x, .n = n, .dtype = dtype, .redop = op};
    return post_or_run(group, &r, work);
}

cairn_status cairn_broadcast(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int root, cairn_work **work) {
    REQUIRE(group, CAIRN_EINVAL, "broadcast: the group is NULL");
    REQUIRE(root >= 0 && root < group->size, CAIRN_EINVAL,
            "broadcast: root %d is not in a group of %d; ranks are 0 to %d", root, group->size, group->size - 1);
    cairn_status st = check_array("broadcast", x, n, 1, dtype);
    if (st != CAIRN_OK) return st;
    struct cairn__request r = {.kind = CAIRN__BROADCAST, .x = x, .src = x, .n = n, .dtype = dtype, .root = root};
    return post_or_run(group, &r, work);
}

static bool overlap(const char *a, size_t na, const char *b, size_t nb) {
    return na && nb && a < b + nb && b < a + na;
}

cairn_status cairn_allgather(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                             cairn_work **work) {
    REQUIRE(group, CAIRN_EINVAL, "all-gather: the group is NULL");
    size_t p = (size_t)group->size;
    cairn_status st = check_array("all-gather", dst, n, p, dtype);
    if (st == CAIRN_OK) st = check_array("all-gather", src, n, p, dtype);
    if (st != CAIRN_OK) return st;
    size_t nbytes = n * cairn_dtype_nbytes(dtype);
    const char *own = (const char *)dst + (size_t)group->rank * nbytes;
    REQUIRE(src == own || !overlap(dst, p * nbytes, src, nbytes), CAIRN_EINVAL,
            "all-gather: src overlaps dst; it may only be dst + rank * n, or be elsewhere");
    struct cairn__request r = {.kind = CAIRN__ALLGATHER, .x = dst, .src = src, .n = n, .dtype = dtype};
    return post_or_run(group, &r, work);
}

cairn_status cairn_barrier(cairn_group *group) {
    REQUIRE(group, CAIRN_EINVAL, "barrier: the group is NULL");
    return post_or_run(group, &(struct cairn__request){.kind = CAIRN__BARRIER}, NULL);
}

/* ---- group memory ---- */

cairn_status cairn_group_alloc(cairn_group *group, size_t nbytes, void **out) {
    REQUIRE(group && out, CAIRN_EINVAL, "cairn_group_alloc needs a group and a place for the address");
    if (group->dead != CAIRN_OK) return repeat_cause(group);
    REQUIRE(nbytes <= SIZE_MAX / 2, CAIRN_ENOMEM, "group memory of %zu bytes is more than memory can hold", nbytes);
    return settle(group, group->backend->alloc(group, nbytes, out));
}

cairn_status cairn_group_free(cairn_group *group, void **memory) {
    REQUIRE(group && memory, CAIRN_EINVAL, "cairn_group_free needs a group and the address of the memory's address");
    if (!*memory) return CAIRN_OK;
    if (group->dead != CAIRN_OK) return repeat_cause(group);
    cairn_status st = settle(group, group->backend->free(group, *memory));
    if (st == CAIRN_OK) *memory = NULL;
    return st;
}
