#include "comm/exchange/machine.h"

#include <stdio.h>
#include <string.h>

#include "comm/front.h"
#include "comm/shm/shm.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/trace.h"

enum {
    BLOCK_ELEMENTS = 512 << 10,
    SLICE_ELEMENTS = 64, /* slices begin at multiples of this: whole cache lines of every type */
    BOUNCES = 4,         /* per rank: two blocks in transfer, one being staged, one being taken */
    BOUNCE_NBYTES = BLOCK_ELEMENTS * sizeof(float),
    LOOK_NS = 20000000,
    NOT_OWNER = -1,
};

/* One rank's lane, in memory that it shares with the other ranks of its machine, aligned like group memory; only that
 * rank writes it. Blocks are counted over all calls of the group. */
struct lane {
    alignas(CAIRN__ALIGN) atomic_uint_fast64_t staged;
    alignas(CAIRN__ALIGN) atomic_uint_fast64_t gathered;
    alignas(CAIRN__ALIGN) atomic_uint_fast64_t taken;
    struct cairn__call call; /* the call whose blocks `staged` counts */
    struct shm_place array;  /* place of the array in group memory; segment 0: the elements are in bounces */
    alignas(CAIRN__ALIGN) char bounces[BOUNCES][BOUNCE_NBYTES];
};

struct exchange_machine {
    struct exchange *x;
    cairn_group *group; /* of shm: the ranks of this machine */
    struct cairn__shm *shm;
    int number, count, position; /* the machine's in the layout; of its ranks; of this rank among them */
    const int *ranks;            /* [count] the ranks' numbers in the exchange's group */
    int owners, owned;           /* owners on each machine; the slice that this rank owns, or NOT_OWNER */
    struct lane *mine, **lanes;  /* [count] */
    const float **partials;      /* [machines] scratch */
    uint64_t before;             /* blocks of earlier calls */
    bool begun;                  /* the call at the head is published in the lane */
    bool in_place;
    int awaited; /* position of the rank that this one waits for; -1 = none */
    uint64_t next_look;
};

static const struct exchange_layout *layout_of(const struct exchange *x) {
    return &x->layout;
}

/* ---- making ---- */

/* Makes the group of shm for the environment's group, in a family of this machine's ranks. */
static cairn_status meet(struct exchange_machine *m, const struct cairn__group_create_options *options,
                         const struct cairn__peers *whole) {
    struct cairn__group_create_options o = *options;
    struct cairn__peers here = *whole;
    cairn_status st = CAIRN_OK;
    o.rank = here.rank = m->position;
    o.size = here.size = m->count;
    o.store = NULL;
    here.all = NULL;
    TRY(cairn__calloc((size_t)m->count, sizeof(*here.all), (void **)&here.all));
    for (int i = 0; i < m->count; i++) here.all[i] = whole->all[m->ranks[i]];
    TRY(cairn__family_make(&o, &m->group));
    m->group->backend = &cairn__group_shm;
    TRY(cairn__group_shm.create(m->group, &o, &here));
out:
    cairn__free(here.all);
    return st;
}

static int position_of(const struct exchange_machine *m, int rank) {
    for (int i = 0; i < m->count; i++) {
        if (m->ranks[i] == rank) return i;
    }
    return -1;
}

/* Makes the group of shm for a further group, in the parent's family. */
static cairn_status derive(struct exchange_machine *m, const struct exchange_machine *parent) {
    const cairn_group *whole = m->x->group;
    struct cairn__family *family = parent->group->family;
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_make(family, m->count, &m->group));
    cairn_group *g = m->group;
    g->next = family->groups;
    family->groups = g;
    g->rank = m->position;
    g->index = whole->index;
    g->timeout = whole->timeout;
    g->timeout_name = whole->timeout_name;
    g->device = whole->device;
    g->backend = &cairn__group_shm;
    for (int i = 0; i < m->count; i++) {
        g->parent_ranks[i] = position_of(parent, whole->parent_ranks[m->ranks[i]]);
        g->env_ranks[i] = parent->group->env_ranks[g->parent_ranks[i]];
    }
    TRY(cairn__group_shm.derive(g, parent->group));
out:
    return st;
}

/* Explains the rank numbers in an error of the machine's group, which are positions on the machine. */
static cairn_status add_numbers(const struct exchange_machine *m, cairn_status st) {
    char list[200] = "";
    size_t used = 0;
    if (st == CAIRN_OK || m->count == 1) return st;
    for (int i = 0; i < m->count && used < sizeof(list) - 16; i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%d", i ? ", " : "", m->ranks[i]);
    return cairn__fail(st, "%s (numbers among the ranks of one machine, %s of the group)", cairn_last_error(), list);
}

/* Every rank has all lanes once all ranks know the lanes' places. */
static cairn_status share_lanes(struct exchange_machine *m) {
    struct shm_place places[CAIRN__MAX_RANKS];
    void *memory = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__shm_alloc(m->group, sizeof(struct lane), &memory));
    m->mine = memory;
    const struct shm_place mine = cairn__shm_locate(m->shm, memory, sizeof(struct lane));
    const struct cairn__request request = {.call = {.kind = CAIRN__ALLGATHER, .n = sizeof(mine), .dtype = CAIRN_U8},
                                           .dst = places,
                                           .src = &mine};
    TRY(cairn__group_run(m->group, &request, NULL));
    for (int i = 0; i < m->count; i++) m->lanes[i] = shm_at(m->shm, i, &places[i]);
    m->lanes[m->position] = m->mine;
out:
    return st;
}

cairn_status cairn__machine_make(struct exchange *x, const struct cairn__group_create_options *options,
                                 const struct cairn__peers *peers, const struct exchange *parent,
                                 struct exchange_machine **out) {
    const struct exchange_layout *l = layout_of(x);
    struct exchange_machine *m = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*m), (void **)&m));
    *out = m;
    m->x = x;
    m->awaited = -1;
    m->number = l->of[x->group->rank];
    m->count = cairn__layout_ranks_on(l, m->number);
    m->ranks = l->ranks + l->begin[m->number];
    m->position = position_of(m, x->group->rank);
    m->owners = m->count;
    for (int k = 0; k < l->machines; k++) {
        if (cairn__layout_ranks_on(l, k) < m->owners) m->owners = cairn__layout_ranks_on(l, k);
    }
    m->owned = m->position < m->owners ? m->position : NOT_OWNER;
    TRY(cairn__calloc((size_t)m->count, sizeof(*m->lanes), (void **)&m->lanes));
    TRY(cairn__calloc((size_t)l->machines, sizeof(*m->partials), (void **)&m->partials));
    TRY(add_numbers(m, peers ? meet(m, options, peers) : derive(m, parent->machine)));
    m->shm = m->group->impl;
    m->shm->spins = m->shm->yields = 1; /* its calls are rare; beside other programs a thousand yields take seconds */
    TRY(add_numbers(m, share_lanes(m)));
out:
    return st;
}

void cairn__machine_end(struct exchange_machine **machine) {
    struct exchange_machine *m = *machine;
    if (!m) return;
    if (m->group && m->group->index == 0) cairn__family_end(&m->group);
    else cairn__group_end(&m->group);
    cairn__free(m->lanes);
    cairn__free(m->partials);
    cairn__free(m);
    *machine = NULL;
}

void cairn__machine_give_up(struct exchange_machine *m, const char *cause, bool aborted) {
    if (!m->shm) return;
    if (aborted) atomic_store(&m->group->aborted, true);
    m->group->backend->give_up(m->group, cause);
}

cairn_status cairn__machine_alloc(struct exchange_machine *m, size_t nbytes, void **out) {
    return add_numbers(m, m->group->backend->alloc(m->group, nbytes, out));
}

cairn_status cairn__machine_free(struct exchange_machine *m, void *memory) {
    return add_numbers(m, m->group->backend->free(m->group, memory));
}

/* ---- what is waited for ---- */

int cairn__machine_awaited(const struct exchange_machine *m) {
    return m->awaited < 0 ? -1 : m->ranks[m->awaited];
}

enum counter { STAGED, GATHERED, TAKEN };

static uint64_t read(const struct lane *lane, enum counter counter) {
    return atomic_load(counter == STAGED ? &lane->staged : counter == GATHERED ? &lane->gathered : &lane->taken);
}

/* Whether this many first ranks of this machine have counted that far. */
static bool have(struct exchange_machine *m, int ranks, enum counter counter, uint64_t blocks) {
    for (int i = 0; i < ranks; i++) {
        if (read(m->lanes[i], counter) >= blocks) continue;
        if (i != m->position) m->awaited = i;
        return false;
    }
    return true;
}

static void count(struct exchange_machine *m, atomic_uint_fast64_t *counter) {
    atomic_fetch_add(counter, 1);
    m->x->moved = true;
    cairn__shm_notify(m->shm);
}

bool cairn__machine_lost(struct exchange_machine *m, int *position) {
    const uint64_t now = cairn__now_ns();
    *position = m->awaited;
    if (m->awaited < 0 || now < m->next_look) return false;
    m->next_look = now + LOOK_NS;
    cairn__shm_mark_ended(m->shm);
    return m->shm->peers[m->awaited].dead || cairn__shm_gone(m->shm, m->awaited) != SHM_HERE;
}

cairn_status cairn__machine_fail(const struct exchange *x, int position, const struct cairn__call *call) {
    const struct exchange_machine *m = x->machine;
    char other[80], name[80], what[128];
    const int pid = m->shm->peers[position].pid;
    cairn__group_name_rank(x->group, m->ranks[position], other, sizeof(other));
    cairn__group_name_rank(x->group, x->group->rank, name, sizeof(name));
    cairn__call_describe(call, what, sizeof(what));
    switch (cairn__shm_gone(m->shm, position)) {
    case SHM_ABORTED:
        return cairn__fail(CAIRN_EPEER, "%s aborted the group while %s was in %s", other, name, what);
    case SHM_GAVE_UP:
        return cairn__fail(CAIRN_EPEER, "%s gave up while %s was in %s: %.*s", other, name, what, SHM_CAUSE_NBYTES,
                           shm_lane(m->shm, position)->cause);
    case SHM_LEFT:
        return cairn__fail(CAIRN_EPEER, "%s (pid %d) left the group while %s was in %s", other, pid, name, what);
    default:
        return cairn__fail(CAIRN_EPEER, "%s (pid %d) ended while %s was in %s", other, pid, name, what);
    }
}

uint32_t cairn__machine_lie_down(struct exchange_machine *m) {
    atomic_fetch_add(&m->shm->bell->sleepers, 1);
    return atomic_load(&m->shm->bell->events);
}

void cairn__machine_sleep(struct exchange_machine *m, uint32_t seen) {
    cairn__shm_sleep(m->shm, seen);
}

void cairn__machine_get_up(struct exchange_machine *m) {
    atomic_fetch_sub(&m->shm->bell->sleepers, 1);
}

void cairn__machine_wake(void *machine) {
    const struct exchange_machine *m = machine;
    cairn__shm_notify(m->shm);
}

/* ---- pieces of a block ---- */

/* Offset from the block's beginning, and length, in elements. */
struct piece {
    size_t at, n;
};

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static struct piece cut(struct piece whole, size_t index, size_t pieces) {
    const size_t each = (whole.n + pieces * SLICE_ELEMENTS - 1) / (pieces * SLICE_ELEMENTS) * SLICE_ELEMENTS;
    const size_t begin = smaller(index * each, whole.n);
    return (struct piece){whole.at + begin, smaller(each, whole.n - begin)};
}

static const struct cairn__request *request_of(const struct flow *f) {
    return &f->work->request;
}

static size_t width_of(const struct flow *f) {
    return cairn_dtype_nbytes((cairn_dtype)request_of(f)->call.dtype);
}

static struct piece block_of(const struct flow *f, size_t block) {
    return (struct piece){0, smaller(f->per_block, request_of(f)->call.n - block * f->per_block)};
}

static struct piece slice_of(const struct exchange_machine *m, const struct flow *f, size_t block, int owner) {
    return cut(block_of(f, block), (size_t)owner, (size_t)m->owners);
}

/* The part of this rank's slice that the owner on `machine` adds up over all machines. */
static struct piece subslice_of(const struct exchange_machine *m, const struct flow *f, size_t block, int machine) {
    return cut(slice_of(m, f, block, m->owned), (size_t)machine, (size_t)layout_of(m->x)->machines);
}

/* Address of a rank's elements of a block: in its array, or in its bounce. */
static char *elements(const struct exchange_machine *m, const struct flow *f, size_t block, int position) {
    const struct lane *lane = m->lanes[position];
    if (position == m->position && m->in_place) return (char *)request_of(f)->dst + block * f->per_block * width_of(f);
    if (position != m->position && lane->array.segment)
        return (char *)shm_at(m->shm, position, &lane->array) + block * f->per_block * width_of(f);
    return m->lanes[position]->bounces[(m->before + block) % BOUNCES];
}

/* The sums of a block over this machine, followed by the partial sums that arrive from each other machine for this
 * rank's part. */
static float *sums(const struct flow *f, size_t block) {
    return (float *)(f->staging + block % EXCHANGE_AHEAD * f->stride);
}

static size_t arrivals_at(const struct exchange_machine *m, const struct flow *f, int machine) {
    return slice_of(m, f, 0, 0).n + (size_t)machine * subslice_of(m, f, 0, 0).n;
}

/* ---- turns ---- */

static void begin_call(struct exchange_machine *m, const struct flow *f) {
    const struct cairn__request *q = request_of(f);
    const struct shm_place array = cairn__shm_locate(m->shm, q->dst, q->call.n * width_of(f));
    m->in_place = q->dst == q->src && array.segment != 0 && array.segment != SHM_BY_ADDRESS;
    m->mine->call = q->call;
    m->mine->array = m->in_place ? array : (struct shm_place){0};
    m->begun = true;
}

static bool stage(struct exchange_machine *m, struct flow *f) {
    const size_t b = f->staged;
    if (b == f->blocks) return false;
    const uint64_t number = m->before + b;
    if (!m->in_place && number >= BOUNCES && !have(m, m->count, TAKEN, number + 1 - BOUNCES)) return false;
    if (!m->in_place)
        cairn__shm_copy_across(elements(m, f, b, m->position),
                               (const char *)request_of(f)->src + b * f->per_block * width_of(f),
                               block_of(f, b).n * width_of(f));
    f->staged++;
    count(m, &m->mine->staged);
    return true;
}

/* Not before this rank has started the block, and so compared the calls: once all ranks have taken a call's last block,
 * the others write their next call into their lanes. */
static bool take(struct exchange_machine *m, struct flow *f) {
    const size_t b = f->taken;
    if (b == f->started || !have(m, m->owners, GATHERED, m->before + b + 1)) return false;
    char *dst = (char *)request_of(f)->dst + b * f->per_block * width_of(f);
    for (int i = 0; i < m->owners; i++) {
        const struct piece s = slice_of(m, f, b, i);
        if (i == m->owned && m->in_place) continue;
        memcpy(dst + s.at * width_of(f), elements(m, f, b, i) + s.at * width_of(f), s.n * width_of(f));
    }
    f->taken++;
    count(m, &m->mine->taken);
    return true;
}

static bool has_gathered(const struct flow *f) {
    return f->gathered < f->combined && !f->second[f->gathered % EXCHANGE_AHEAD];
}

static void take_turn(struct exchange *x, struct flow *f) {
    struct exchange_machine *m = x->machine;
    m->awaited = -1;
    if (!m->begun) begin_call(m, f);
    for (; has_gathered(f); f->gathered++) count(m, &m->mine->gathered);
    while (take(m, f)) {}
    while (stage(m, f)) {}
}

/* Once all ranks have staged the first block, all lanes hold the call, and it is compared. */
static cairn_status may_start(struct exchange *x, struct flow *f, size_t block, bool *may) {
    struct exchange_machine *m = x->machine;
    const struct cairn__call *mine = &request_of(f)->call;
    *may = have(m, m->count, STAGED, m->before + block + 1);
    for (int i = 0; *may && block == 0 && i < m->count; i++) {
        const struct cairn__call *theirs = &m->lanes[i]->call;
        if (!cairn__calls_agree(mine, theirs))
            return cairn__fail_mismatch(x->group, x->group->rank, mine, m->ranks[i], theirs);
    }
    return CAIRN_OK;
}

/* The array must not change before the other ranks have taken all blocks, because they may read from it. */
static bool may_end(struct exchange *x, struct flow *f) {
    struct exchange_machine *m = x->machine;
    if (f->taken < f->blocks || !have(m, m->count, TAKEN, m->before + f->blocks)) return false;
    m->before += f->blocks;
    m->begun = false;
    m->awaited = -1;
    return true;
}

/* ---- transfers between owners ---- */

static int owner_on(const struct exchange_machine *m, int machine) {
    const struct exchange_layout *l = layout_of(m->x);
    return l->ranks[l->begin[machine] + m->owned];
}

static void scatter_sums(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    struct exchange_machine *m = x->machine;
    t->kind = CAIRN__MOVE_ALLTOALL;
    t->src = t->dst = sums(f, block);
    if (m->owned == NOT_OWNER) return;
    const struct piece slice = slice_of(m, f, block, m->owned), own = subslice_of(m, f, block, m->number);
    for (int i = 0; i < m->count; i++) x->srcs[i] = elements(m, f, block, i) + slice.at * width_of(f);
    cairn__sum_of_machine(x->kernels, (cairn_dtype)request_of(f)->call.dtype, sums(f, block), x->srcs, m->ranks,
                          m->count, slice.n, request_of(f)->nonfinite);
    for (int k = 0; k < layout_of(x)->machines; k++) {
        if (k == m->number) continue;
        const struct piece theirs = subslice_of(m, f, block, k);
        const int r = owner_on(m, k);
        x->at[0][r] = arrivals_at(m, f, k) * sizeof(float);
        x->at[1][r] = own.n * sizeof(float);
        x->at[2][r] = (theirs.at - slice.at) * sizeof(float);
        x->at[3][r] = theirs.n * sizeof(float);
    }
}

static void combine_sums(struct exchange *x, const struct flow *f, size_t block) {
    struct exchange_machine *m = x->machine;
    const struct cairn__request *q = request_of(f);
    if (m->owned == NOT_OWNER) return;
    const struct piece slice = slice_of(m, f, block, m->owned), own = subslice_of(m, f, block, m->number);
    const float *const here = sums(f, block);
    for (int k = 0; k < layout_of(x)->machines; k++)
        m->partials[k] = here + (k == m->number ? own.at - slice.at : arrivals_at(m, f, k));
    cairn__sum_of_machines(x->kernels, (cairn_dtype)q->call.dtype,
                           elements(m, f, block, m->position) + own.at * width_of(f), m->partials,
                           layout_of(x)->machines, own.n, (float)cairn__call_divisor(&q->call, x->group->size),
                           q->nonfinite);
}

static void gather_results(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    const struct exchange_machine *m = x->machine;
    t->kind = CAIRN__MOVE_ALLTOALL;
    t->dst = elements(m, f, block, m->position);
    t->src = t->dst;
    if (m->owned == NOT_OWNER) return;
    const struct piece own = subslice_of(m, f, block, m->number);
    for (int k = 0; k < layout_of(x)->machines; k++) {
        if (k == m->number) continue;
        const struct piece theirs = subslice_of(m, f, block, k);
        const int r = owner_on(m, k);
        x->at[0][r] = theirs.at * width_of(f);
        x->at[1][r] = theirs.n * width_of(f);
        x->at[2][r] = own.at * width_of(f);
        x->at[3][r] = own.n * width_of(f);
    }
}

const struct exchange_shape cairn__machine_allreduce = {.first = scatter_sums,
                                                        .combine = combine_sums,
                                                        .second = gather_results,
                                                        .stages = true,
                                                        .take_turn = take_turn,
                                                        .may_start = may_start,
                                                        .may_end = may_end,
                                                        .per_block = BLOCK_ELEMENTS};

size_t cairn__machine_staged_nbytes(size_t n, int size) {
    return 2 * (n + 2 * (size_t)size * SLICE_ELEMENTS) * sizeof(float);
}

size_t cairn__machine_stride(void) {
    return cairn__machine_staged_nbytes(BLOCK_ELEMENTS, CAIRN__MAX_RANKS);
}
