/* The calls that move arrays. Their arguments are checked here, by a table, and nowhere below. */
#include "comm/front.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "core/status.h"

/* What a call moves; the same for all ranks, except for root's part. */
struct shape {
    enum { NONE = 0, ONE, EACH } dst, src; /* arrays of n, or of n for each rank */
    bool reduces;
    const char *other;  /* what the call's other rank is called; NULL = none */
    const char *advice; /* for the message if dst and src overlap and must not */
};

static const struct shape shapes[] = {
    [CAIRN__ALLREDUCE] = {ONE, ONE, .reduces = true, .advice = "src must be dst, or not overlap it"},
    [CAIRN__REDUCE] = {ONE, ONE, .reduces = true, .other = "root", .advice = "src must be dst, or not overlap it"},
    [CAIRN__BROADCAST] = {ONE, NONE, .other = "root"},
    [CAIRN__ALLGATHER] = {EACH, ONE, .advice = "src must be dst + rank * n, or not overlap dst"},
    [CAIRN__REDUCE_SCATTER] = {ONE, EACH, .reduces = true, .advice = "dst must be src + rank * n, or not overlap src"},
    [CAIRN__ALLTOALL] = {EACH, EACH, .advice = "they must not overlap"},
    [CAIRN__SEND] = {NONE, ONE, .other = "the receiving rank"},
    [CAIRN__RECV] = {ONE, NONE, .other = "the sending rank"},
};

struct arguments {
    enum cairn__call_kind kind;
    void *dst;
    const void *src;
    size_t n;
    cairn_dtype dtype;
    cairn_redop op;
    int root; /* as that of struct cairn__call */
    struct cairn__nonfinite *nonfinite;
};

/* An array of this call; nbytes 0 where there is none. */
struct array {
    const char *name;
    const void *x;
    size_t copies, nbytes;
};

/* ---- checks ---- */

static cairn_status check_array(const cairn_group *group, const struct arguments *a, const struct array *array) {
    const struct cairn__dtype *type = cairn__dtype(a->dtype);
    const char *what = cairn__call_name(a->kind);
    if (array->copies == 0) return CAIRN_OK;
    REQUIRE(a->n <= SIZE_MAX / 2 / type->nbytes / array->copies, CAIRN_EINVAL,
            "%s: %s of %zu times %zu %s is more than memory can hold", what, array->name, array->copies, a->n,
            type->name);
    REQUIRE(array->x || a->n == 0, CAIRN_EINVAL, "%s: %s of %zu %s is NULL", what, array->name, array->copies * a->n,
            type->name);
    REQUIRE(a->n == 0 || (uintptr_t)array->x % type->nbytes == 0, CAIRN_EINVAL, "%s: %s at %p is not aligned for %s",
            what, array->name, array->x, type->name);
    REQUIRE(!group->device || a->n == 0 || cairn__device_reaches(group->device, array->x), CAIRN_EINVAL,
            "%s: %s at %p is not memory of the group's device (%s)", what, array->name, array->x,
            group->device->ops->name);
    return CAIRN_OK;
}

/* The one way in which dst and src may share memory. */
static bool in_place(const cairn_group *group, const struct arguments *a) {
    const size_t part = (size_t)group->rank * a->n * cairn_dtype_nbytes(a->dtype);
    switch (a->kind) {
    case CAIRN__ALLGATHER:
        return (uintptr_t)a->src == (uintptr_t)a->dst + part;
    case CAIRN__REDUCE_SCATTER:
        return (uintptr_t)a->dst == (uintptr_t)a->src + part;
    case CAIRN__ALLTOALL:
        return false;
    default:
        return a->dst == a->src;
    }
}

static bool overlap(const struct array *a, const struct array *b) {
    const uintptr_t x = (uintptr_t)a->x, y = (uintptr_t)b->x;
    return a->nbytes > 0 && b->nbytes > 0 && x < y + b->nbytes && y < x + a->nbytes;
}

static struct array array_of(const cairn_group *group, const struct arguments *a, bool is_dst) {
    const struct shape *shape = &shapes[a->kind];
    const int many = is_dst ? shape->dst : shape->src;
    const bool idle = is_dst && a->kind == CAIRN__REDUCE && group->rank != a->root;
    const size_t copies = many == NONE || idle ? 0 : many == EACH ? (size_t)group->size : 1;
    const bool alone = shape->dst == NONE || shape->src == NONE || a->dst == a->src;
    return (struct array){.name = alone    ? "the array"
                                  : is_dst ? "dst"
                                           : "src",
                          .x = is_dst ? a->dst : a->src,
                          .copies = copies,
                          .nbytes = copies * a->n * cairn_dtype_nbytes(a->dtype)};
}

static cairn_status check(const cairn_group *group, const struct arguments *a) {
    const char *what = cairn__call_name(a->kind), *other = shapes[a->kind].other;
    const bool is_message = a->kind == CAIRN__SEND || a->kind == CAIRN__RECV;
    cairn_status st = CAIRN_OK;
    REQUIRE(!other || (a->root >= 0 && a->root < group->size), CAIRN_EINVAL,
            "%s: %s %d is not in a group of %d; ranks are 0 to %d", what, other, a->root, group->size, group->size - 1);
    REQUIRE(!is_message || a->root != group->rank, CAIRN_EINVAL, "%s: rank %d is this rank itself; copy instead", what,
            a->root);
    REQUIRE(cairn__dtype(a->dtype) && a->dtype != CAIRN_BOOL, CAIRN_EINVAL,
            "%s: %d (%s) is not an element type of groups; use CAIRN_F64, F32, F16, BF16, I64, I32 or U8", what,
            (int)a->dtype, cairn_dtype_name(a->dtype));
    REQUIRE(!shapes[a->kind].reduces || (a->op >= CAIRN_SUM && a->op <= CAIRN_PROD), CAIRN_EINVAL,
            "%s: %d is not a reduction; use CAIRN_SUM, CAIRN_AVG, CAIRN_MIN, CAIRN_MAX or CAIRN_PROD", what,
            (int)a->op);
    const struct array dst = array_of(group, a, true), src = array_of(group, a, false);
    TRY(check_array(group, a, &src));
    TRY(check_array(group, a, &dst));
    REQUIRE(!overlap(&dst, &src) || in_place(group, a), CAIRN_EINVAL, "%s: src overlaps dst; %s", what,
            shapes[a->kind].advice);
out:
    return st;
}

static cairn_status run(cairn_group *group, const struct arguments *a, cairn_work **work) {
    REQUIRE(group, CAIRN_EINVAL, "%s: the group is NULL", cairn__call_name(a->kind));
    cairn_status st = CAIRN_OK;
    TRY(check(group, a));
    const bool idle = a->kind == CAIRN__REDUCE && group->rank != a->root;
    const bool is_root = a->kind == CAIRN__BROADCAST && group->rank == a->root;
    const struct cairn__request request = {.call = {.n = a->n,
                                                    .root = a->root,
                                                    .kind = (uint8_t)a->kind,
                                                    .dtype = (uint8_t)a->dtype,
                                                    .redop = (uint8_t)a->op},
                                           .dst = idle ? NULL : a->dst,
                                           .src = is_root ? a->dst : a->src,
                                           .nonfinite = a->nonfinite};
    TRY(cairn__group_post(group, &request, work));
out:
    return st;
}

/* ---- the calls ---- */

cairn_status cairn_allreduce(cairn_group *group, void *x, size_t n, cairn_dtype dtype, cairn_redop op,
                             cairn_work **work) {
    return cairn_allreduce_into(group, x, x, n, dtype, op, work);
}

cairn_status cairn_allreduce_into(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                  cairn_redop op, cairn_work **work) {
    return run(group, &(struct arguments){CAIRN__ALLREDUCE, dst, src, n, dtype, op, 0, NULL}, work);
}

cairn_status cairn__group_average(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int divisor,
                                  struct cairn__nonfinite *nonfinite, cairn_work **work) {
    const int over = divisor == group->size ? 0 : divisor;
    const cairn_redop op = divisor ? CAIRN_AVG : CAIRN_SUM;
    return run(group, &(struct arguments){CAIRN__ALLREDUCE, x, x, n, dtype, op, over, nonfinite}, work);
}

cairn_status cairn__group_average_slice(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int divisor,
                                        struct cairn__nonfinite *nonfinite, cairn_work **work) {
    const int over = !group || divisor == group->size ? 0 : divisor;
    const cairn_redop op = divisor ? CAIRN_AVG : CAIRN_SUM;
    char *const own = group && x ? (char *)x + (size_t)group->rank * n * cairn_dtype_nbytes(dtype) : x;
    return run(group, &(struct arguments){CAIRN__REDUCE_SCATTER, own, x, n, dtype, op, over, nonfinite}, work);
}

cairn_status cairn_reduce(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype, cairn_redop op,
                          int root, cairn_work **work) {
    return run(group, &(struct arguments){CAIRN__REDUCE, dst, src, n, dtype, op, root, NULL}, work);
}

cairn_status cairn_broadcast(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int root, cairn_work **work) {
    return run(group, &(struct arguments){CAIRN__BROADCAST, x, NULL, n, dtype, 0, root, NULL}, work);
}

cairn_status cairn_allgather(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                             cairn_work **work) {
    return run(group, &(struct arguments){CAIRN__ALLGATHER, dst, src, n, dtype, 0, 0, NULL}, work);
}

cairn_status cairn_reduce_scatter(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                  cairn_redop op, cairn_work **work) {
    return run(group, &(struct arguments){CAIRN__REDUCE_SCATTER, dst, src, n, dtype, op, 0, NULL}, work);
}

cairn_status cairn_alltoall(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                            cairn_work **work) {
    return run(group, &(struct arguments){CAIRN__ALLTOALL, dst, src, n, dtype, 0, 0, NULL}, work);
}

cairn_status cairn_send(cairn_group *group, const void *x, size_t n, cairn_dtype dtype, int to, cairn_work **work) {
    return run(group, &(struct arguments){CAIRN__SEND, NULL, x, n, dtype, 0, to, NULL}, work);
}

cairn_status cairn_recv(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int from, cairn_work **work) {
    return run(group, &(struct arguments){CAIRN__RECV, x, NULL, n, dtype, 0, from, NULL}, work);
}

cairn_status cairn_barrier(cairn_group *group) {
    REQUIRE(group, CAIRN_EINVAL, "barrier: the group is NULL");
    return cairn__group_post(group, &(struct cairn__request){.call = {.kind = CAIRN__BARRIER}}, NULL);
}

cairn_status cairn__group_exchange(cairn_group *group, void *all, const void *mine, size_t nbytes) {
    if (!group->backend->exchange) return cairn_allgather(group, all, mine, nbytes, CAIRN_U8, NULL);
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_check_alive(group));
    st = group->backend->exchange(group, all, mine, nbytes);
    TRY(st == CAIRN_ENOMEM ? cairn__group_kill(group, st) /* the others wait */
                           : cairn__group_kill_if_deadly(group, &group->last, st));
out:
    return st;
}

union word {
    uint64_t tag;
    double value;
};

/* Every rank adds up by itself, which saves a second message. */
cairn_status cairn__group_sum(cairn_group *group, double *values, size_t n, uint64_t tag, int *odd) {
    const size_t p = (size_t)cairn_group_size(group), words = n + 1;
    cairn_status st = CAIRN_OK;
    union word *all = NULL;
    *odd = -1;
    TRY(cairn__alloc((p + 1) * words * sizeof(*all), (void **)&all));
    union word *const mine = all + p * words;
    mine[n].tag = tag;
    for (size_t i = 0; i < n; i++) mine[i].value = values[i];
    TRY(cairn__group_exchange(group, all, mine, words * sizeof(*all)));
    for (size_t r = p; r-- > 1;) {
        if (all[r * words + n].tag != all[n].tag) *odd = (int)r;
    }
    for (size_t i = 0; *odd < 0 && i < n; i++) {
        values[i] = all[i].value;
        for (size_t r = 1; r < p; r++) values[i] += all[r * words + i].value;
    }
out:
    cairn__free(all);
    return st;
}
