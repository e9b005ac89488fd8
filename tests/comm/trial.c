#include "trial.h"

#include <stdint.h>
#include <string.h>

#include "core/dtype.h"

enum { PERIOD = 251, MARGIN = 64, CANARY = 0xa5 };

const cairn_dtype trial_types[NUM_TYPES] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_I32,
                                            CAIRN_I64, CAIRN_F64, CAIRN_U8};
const cairn_redop trial_ops[NUM_OPS] = {CAIRN_SUM, CAIRN_AVG, CAIRN_MIN, CAIRN_MAX, CAIRN_PROD};

static const char *const kind_names[NUM_KINDS] = {
    [ALLREDUCE] = "all-reduce", [ALLREDUCE_INTO] = "all-reduce into",
    [REDUCE] = "reduce",        [BROADCAST] = "broadcast",
    [ALLGATHER] = "all-gather", [REDUCE_SCATTER] = "reduce-scatter",
    [ALLTOALL] = "all-to-all",  [MESSAGE] = "message",
};

bool trial_combines(enum trial_kind kind) {
    return kind == ALLREDUCE || kind == ALLREDUCE_INTO || kind == REDUCE || kind == REDUCE_SCATTER;
}

bool trial_has_choice(enum trial_kind kind) {
    return kind == ALLREDUCE_INTO || kind == REDUCE || kind == REDUCE_SCATTER || kind == ALLGATHER;
}

/* Knuth's multiplier; the upper bits are the random ones. */
unsigned random_below(unsigned *random, unsigned end) {
    *random = *random * 1664525u + 1013904223u;
    return (unsigned)((uint64_t)(*random >> 4) * end >> 28);
}

struct trial trial_random(unsigned *random, int p, size_t most) {
    struct trial t = {.kind = (enum trial_kind)random_below(random, NUM_KINDS)};
    if (p == 1 && t.kind == MESSAGE) t.kind = ALLREDUCE;
    t.dtype = trial_types[random_below(random, NUM_TYPES)];
    t.op = trial_ops[random_below(random, NUM_OPS)];
    t.n = random_below(random, (unsigned)(most > 300 && random_below(random, 4) ? 300 : most) + 1);
    t.root = (int)random_below(random, (unsigned)p);
    t.to = p == 1 ? 0 : (t.root + 1 + (int)random_below(random, (unsigned)p - 1)) % p;
    t.salt = random_below(random, 1000);
    t.in_place = trial_has_choice(t.kind) && random_below(random, 2);
    t.placement = (int)random_below(random, NUM_PLACEMENTS);
    return t;
}

/* ---- numbers ---- */

void put_value(void *x, size_t i, cairn_dtype dtype, double value) {
    char *at = (char *)x + i * cairn_dtype_nbytes(dtype);
    switch (dtype) {
    case CAIRN_F64:
        memcpy(at, &value, sizeof(value));
        break;
    case CAIRN_I32:
        memcpy(at, &(int32_t){(int32_t)value}, sizeof(int32_t));
        break;
    case CAIRN_I64:
        memcpy(at, &(int64_t){(int64_t)value}, sizeof(int64_t));
        break;
    case CAIRN_U8:
        *(uint8_t *)at = (uint8_t)(int)value;
        break; /* 256 wraps around */
    default:
        cairn__dtype(dtype)->from_f32(at, (float)value);
    }
}

bool is_value(const void *x, size_t i, cairn_dtype dtype, double value) {
    uint64_t wanted = 0;
    put_value(&wanted, 0, dtype, value);
    size_t nbytes = cairn_dtype_nbytes(dtype);
    return memcmp((const char *)x + i * nbytes, &wanted, nbytes) == 0;
}

/* A rank's input at an index, modulo PERIOD. */
static int value_of(const struct trial *t, int rank, size_t i) {
    unsigned h = (unsigned)i * 2654435761u + (unsigned)rank * 40503u + t->salt * 69069u;
    h = (h ^ h >> 15) * 2246822519u;
    h ^= h >> 13;
    const bool is_signed = t->dtype != CAIRN_U8;
    if (!trial_combines(t->kind)) return (int)(h % 251) - (is_signed ? 125 : 0);
    if (t->op != CAIRN_PROD) return (int)(h % 11) - (is_signed ? 5 : 0);
    return (int)(h % 2 + 1) * (is_signed && h & 2 ? -1 : 1);
}

static double combined(const struct trial *t, int p, size_t i) {
    int result = value_of(t, 0, i);
    for (int r = 1; r < p; r++) {
        int v = value_of(t, r, i);
        switch (t->op) {
        case CAIRN_MIN:
            result = v < result ? v : result;
            break;
        case CAIRN_MAX:
            result = v > result ? v : result;
            break;
        case CAIRN_PROD:
            result *= v;
            break;
        default:
            result += v;
        }
    }
    if (t->op != CAIRN_AVG) return result;
    return cairn__dtype(t->dtype)->is_float ? (double)result / p : result / p;
}

struct pattern {
    size_t size; /* of an element */
    uint8_t bytes[PERIOD * sizeof(uint64_t)];
};

/* The rank's input; for rank -1 the combination of all p ranks' inputs. */
static struct pattern pattern_of(const struct trial *t, int rank, int p) {
    struct pattern pattern = {.size = cairn_dtype_nbytes(t->dtype)};
    for (size_t i = 0; i < PERIOD; i++) {
        put_value(pattern.bytes, i, t->dtype, rank < 0 ? combined(t, p, i) : value_of(t, rank, i));
    }
    return pattern;
}

static const uint8_t *pattern_at(const struct pattern *pattern, size_t i) {
    return pattern->bytes + i % PERIOD * pattern->size;
}

/* Fills x [n] with the numbers from index `first` on. */
static void lay(char *x, size_t n, const struct pattern *pattern, size_t first) {
    size_t size = pattern->size, done = n < PERIOD ? n : PERIOD;
    for (size_t i = 0; i < done; i++) memcpy(x + i * size, pattern_at(pattern, first + i), size);
    while (done < n) {
        size_t more = done < n - done ? done : n - done;
        memcpy(x + done * size, x, more * size);
        done += more;
    }
}

static bool holds(const char *x, size_t n, const struct pattern *pattern, size_t first) {
    size_t size = pattern->size, some = n < PERIOD ? n : PERIOD;
    for (size_t i = 0; i < some; i++) {
        if (memcmp(x + i * size, pattern_at(pattern, first + i), size) != 0) return false;
    }
    return n == some || memcmp(x, x + PERIOD * size, (n - PERIOD) * size) == 0;
}

static bool is_untouched(const char *x, size_t nbytes) {
    return nbytes == 0 || ((uint8_t)x[0] == CANARY && memcmp(x, x + 1, nbytes - 1) == 0);
}

/* ---- memory ---- */

size_t room_for(size_t nbytes) {
    return (nbytes + 63) / 64 * 64 + 4 * (size_t)MARGIN;
}

char *room_open(cairn_group *group, struct room *room, int desks, size_t nbytes) {
    room->nbytes = 2 * (size_t)desks * room_for(nbytes);
    EXPECT_OK(cairn_group_alloc(group, room->nbytes, &room->registered));
    EXPECT((uintptr_t)room->registered % 64 == 0);
    EXPECT(memcmp(room->registered, (char[64]){0}, 64) == 0);
    EXPECT(memcmp(room->registered, (char *)room->registered + 64, room->nbytes - 64) == 0);
    EXPECT(posix_memalign((void **)&room->ordinary, 64, room->nbytes) == 0);
    return NULL;
}

char *room_close(cairn_group *group, struct room *room) {
    free(room->ordinary);
    EXPECT_OK(cairn_group_free(group, &room->registered));
    EXPECT(room->registered == NULL);
    return NULL;
}

/* The placement of a trial's two arrays. */
enum memory { REGISTERED, ORDINARY, BY_RANK };
static const struct {
    enum memory memory;
    int shift; /* in elements */
} placements[NUM_PLACEMENTS][2] = {
    {{REGISTERED, 0}, {REGISTERED, 0}},
    {{REGISTERED, 1}, {ORDINARY, 0}},
    {{ORDINARY, 1}, {REGISTERED, 1}},
    {{BY_RANK, 0}, {BY_RANK, 1}},
};

/* Array `which` of the trial with its canaries. */
static void place(struct trial *t, int which, const struct room *room, size_t at, size_t n, int rank) {
    const enum memory memory = placements[t->placement][which].memory;
    const bool registered = memory == REGISTERED || (memory == BY_RANK && rank % 2 == which);
    const size_t size = cairn_dtype_nbytes(t->dtype);
    struct array *a = &t->arrays[which];
    a->x = (registered ? (char *)room->registered : room->ordinary) + at + MARGIN +
           (size_t)placements[t->placement][which].shift * size;
    a->nbytes = n * size;
    memset(a->x - MARGIN, CANARY, a->nbytes + 2 * (size_t)MARGIN);
}

static bool canaries_live(const struct array *a) {
    return !a->x || (is_untouched(a->x - MARGIN, MARGIN) && is_untouched(a->x + a->nbytes, MARGIN));
}

/* ---- one trial ---- */

static bool shares_array(const struct trial *t) {
    return t->in_place || t->kind == ALLREDUCE || t->kind == BROADCAST || t->kind == MESSAGE;
}

static size_t src_parts(const struct trial *t, int p) {
    return t->kind == REDUCE_SCATTER || t->kind == ALLTOALL ? (size_t)p : 1;
}

static size_t dst_parts(const struct trial *t, int p) {
    return t->kind == ALLGATHER || t->kind == ALLTOALL ? (size_t)p : 1;
}

static bool brings(const struct trial *t, int rank) {
    return (t->kind != BROADCAST && t->kind != MESSAGE) || rank == t->root;
}

void trial_begin(cairn_group *group, struct trial *t, const struct room *room, int desk, int desks) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const size_t half = room->nbytes / (size_t)desks / 2, at = (size_t)desk * 2 * half, ns = t->n * src_parts(t, p),
                 nd = t->n * dst_parts(t, p), part = (size_t)rank * t->n * cairn_dtype_nbytes(t->dtype);
    memset(t->arrays, 0, sizeof(t->arrays));
    if (shares_array(t)) {
        place(t, 0, room, at, ns > nd ? ns : nd, rank);
        t->dst = t->arrays[0].x + (ns > nd ? part : 0);
        t->src = t->arrays[0].x + (nd > ns ? part : 0);
    } else {
        place(t, 0, room, at, nd, rank);
        place(t, 1, room, at + half, ns, rank);
        t->dst = t->arrays[0].x;
        t->src = t->arrays[1].x;
    }
    if (!brings(t, rank)) return;
    const struct pattern mine = pattern_of(t, rank, p);
    lay(t->src, ns, &mine, 0);
}

cairn_status trial_post(cairn_group *channel, struct trial *t, cairn_work **work) {
    const int rank = cairn_group_rank(channel);
    void *dst = t->dst;
    switch (t->kind) {
    case ALLREDUCE:
        return cairn_allreduce(channel, dst, t->n, t->dtype, t->op, work);
    case ALLREDUCE_INTO:
        return cairn_allreduce_into(channel, dst, t->src, t->n, t->dtype, t->op, work);
    case REDUCE:
        if (rank != t->root && t->salt % 2) dst = NULL;
        return cairn_reduce(channel, dst, t->src, t->n, t->dtype, t->op, t->root, work);
    case BROADCAST:
        return cairn_broadcast(channel, dst, t->n, t->dtype, t->root, work);
    case ALLGATHER:
        return cairn_allgather(channel, dst, t->src, t->n, t->dtype, work);
    case REDUCE_SCATTER:
        return cairn_reduce_scatter(channel, dst, t->src, t->n, t->dtype, t->op, work);
    case ALLTOALL:
        return cairn_alltoall(channel, dst, t->src, t->n, t->dtype, work);
    default:
        if (rank == t->root) return cairn_send(channel, dst, t->n, t->dtype, t->to, work);
        return rank == t->to ? cairn_recv(channel, dst, t->n, t->dtype, t->root, work) : CAIRN_OK;
    }
}

/* Parts received from every rank: each sent its numbers from index `first` on. */
static bool holds_parts(const struct trial *t, int p, size_t first) {
    for (int r = 0; r < p; r++) {
        const struct pattern theirs = pattern_of(t, r, p);
        if (!holds(t->dst + (size_t)r * t->n * theirs.size, t->n, &theirs, first)) return false;
    }
    return true;
}

static bool result_is_right(const struct trial *t, int rank, int p) {
    const size_t n = t->n;
    if (t->kind == ALLGATHER) return holds_parts(t, p, 0);
    if (t->kind == ALLTOALL) return holds_parts(t, p, (size_t)rank * n);
    const bool gets =
        (t->kind != REDUCE || rank == t->root) && (t->kind != MESSAGE || rank == t->root || rank == t->to);
    if (!gets) return (t->kind == REDUCE && t->in_place) || is_untouched(t->dst, t->arrays[0].nbytes);
    const struct pattern wanted = pattern_of(t, trial_combines(t->kind) ? -1 : t->root, p);
    return holds(t->dst, n, &wanted, t->kind == REDUCE_SCATTER ? (size_t)rank * n : 0);
}

/* Checks the whole source, or in place the part that the result does not overwrite. */
static bool source_is_kept(const struct trial *t, int rank, int p) {
    const struct pattern mine = pattern_of(t, rank, p);
    const bool shares = shares_array(t);
    if (shares && t->kind == REDUCE) return rank == t->root || holds(t->src, t->n, &mine, 0);
    if (shares && t->kind != REDUCE_SCATTER) return true;
    for (size_t k = 0; k < src_parts(t, p); k++) {
        if (shares && k == (size_t)rank) continue;
        if (!holds(t->src + k * t->n * mine.size, t->n, &mine, k * t->n)) return false;
    }
    return true;
}

char *trial_check(cairn_group *group, const struct trial *t) {
    const int rank = cairn_group_rank(group), p = cairn_group_size(group);
    const char *wrong = !result_is_right(t, rank, p)                                     ? "the result is wrong"
                        : !source_is_kept(t, rank, p)                                    ? "the source changed"
                        : !canaries_live(&t->arrays[0]) || !canaries_live(&t->arrays[1]) ? "the surroundings changed"
                                                                                         : NULL;
    if (!wrong) return NULL;
    char what[300];
    snprintf(what, sizeof(what), "%s of %zu %s, op %d, root %d to %d, salt %u, in place %d, placement %d: %s",
             kind_names[t->kind], t->n, cairn_dtype_name(t->dtype), (int)t->op, t->root, t->to, t->salt, t->in_place,
             t->placement, wrong);
    return FAILURE(what);
}

char *trial_run(cairn_group *group, struct trial t, const struct room *room) {
    trial_begin(group, &t, room, 0, 1);
    cairn_status st = trial_post(group, &t, NULL);
    if (st != CAIRN_OK) return FAILURE(kind_names[t.kind]);
    return trial_check(group, &t);
}
