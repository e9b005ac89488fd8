/* The backend of mpi and gloo groups: life, death, memory and waiting. What moves is in flow.c, how collectives are
 * made of it in shapes.c. */
#include "comm/exchange/exchange.h"

#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "comm/deadlock.h"
#include "comm/exchange/links.h"
#include "comm/exchange/machine.h"
#include "comm/exchange/parts.h"
#include "core/alloc.h"
#include "core/cpu.h"
#include "core/descriptors.h"
#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/vars.h"
#include "rendezvous/store/store.h"

/* What the backends' libraries need beyond an engine's table. */
static const struct needs {
    const char *backend, *library;
    int files;       /* that the library opens in a process; 0 = none but a group's */
    bool uses_links; /* records of comm/exchange/links.h are in the store */
} all_needs[] = {
    {"mpi", "Open MPI", 16, false}, /* 4.1.4 on one machine; it does not say so, or waits, where there are fewer */
    {"gloo", "gloo", 0, true},
};

static const struct needs *needs_of(const char *backend) {
    const struct needs *needs = all_needs;
    while (strcmp(needs->backend, backend) != 0) needs++;
    return needs;
}

static const double LONGEST_GAP = 0.1; /* s between two polls that count as waiting: in longer gaps the rank computed */
static const double FIRST_CHECK =
    0.5; /* s of waiting before the first check for a deadlock; the next after twice as long */

/* ---- waiting ---- */

static bool stalled_too_long(struct exchange *x, double timeout) {
    return cairn__stall_poll(&x->stall, LONGEST_GAP) > timeout;
}

static void reset_stall(struct exchange *x) {
    cairn__stall_reset(&x->stall);
    x->doubt = FIRST_CHECK;
}

static cairn_status fail_late(const struct exchange *x, const char *what, double timeout, const char *timeout_name) {
    char rank[80], other[80] = "";
    int awaited = x->ops->awaited ? x->ops->awaited(x->engine) : -1;
    if (awaited < 0 && x->machine) awaited = cairn__machine_awaited(x->machine);
    cairn__group_name_rank(x->group, x->group->rank, rank, sizeof(rank));
    if (awaited >= 0) cairn__group_name_rank(x->group, awaited, other, sizeof(other));
    return cairn__fail(CAIRN_ETIMEOUT,
                       "%s waited %g s%s%s in %s, and nothing moved; raise %s if the other ranks are only slow", rank,
                       timeout, *other ? " for " : "", other, what, timeout_name);
}

/* What the group is in: the collective under way, or the oldest message. */
static const struct cairn__call *current(const struct exchange *x) {
    if (x->collectives.head) return &x->collectives.head->work->request.call;
    for (int i = 0; x->messages > 0 && i < 2 * x->group->size; i++) {
        if (x->lanes[i].head) return &x->lanes[i].head->work->request.call;
    }
    return &x->group->last;
}

static bool is_idle(const struct exchange *x) {
    return !x->collectives.head && x->messages == 0;
}

static cairn_status step(struct exchange *x) {
    if (x->failed != CAIRN_OK) return cairn__fail(x->failed, "%s", x->failure);
    return cairn__exchange_step(x);
}

static cairn_status check_machine(struct exchange *x) {
    int lost = -1, still = -1;
    if (!cairn__machine_lost(x->machine, &lost)) return CAIRN_OK;
    const struct cairn__call call = *current(x);
    const cairn_status st = step(x);
    (void)cairn__machine_lost(x->machine, &still);
    return st == CAIRN_OK && !x->moved && still == lost ? cairn__machine_fail(x, lost, &call) : st;
}

static cairn_status progress(cairn_group *group) {
    struct exchange *x = group->impl;
    cairn_status st = CAIRN_OK;
    if (is_idle(x)) return CAIRN_OK;
    TRY(step(x));
    if (x->moved || is_idle(x)) {
        reset_stall(x);
        return CAIRN_OK;
    }
    if (x->machine) TRY(check_machine(x));
    if (stalled_too_long(x, group->timeout)) {
        char what[128];
        cairn__call_describe(current(x), what, sizeof(what));
        TRY(fail_late(x, what, group->timeout, group->timeout_name));
    }
out:
    return st;
}

static void abort_engines(const struct exchange *x) {
    if (x->engine) x->ops->abort(x->engine);
    if (x->answers) x->ops->abort(x->answers);
}

static cairn_status wait_for(struct exchange *x, cairn_work *work) {
    enum { RESTS = 2 };
    cairn_group *group = x->group;
    for (int idle = 0;; idle++) {
        cairn_status st = progress(group);
        if (st == CAIRN_OK && !work->done && x->stall.seconds >= x->doubt) {
            x->doubt = 2 * x->stall.seconds;
            st = cairn__find_deadlock(group, &work->request.call); /* other calls under way may finish without it */
        }
        if (st != CAIRN_OK || work->done) return st;
        st = cairn__group_was_aborted(group);
        if (st != CAIRN_OK) {
            abort_engines(x); /* the thread that aborted may not have been one that can */
            return st;
        }
        cairn__family_progress_others(group);
        if (x->moved) {
            idle = 0;
        } else if (!x->machine || !x->ops->set_wake || idle < RESTS) {
            x->ops->rest(x->engine, idle);
        } else { /* ranks of one machine wait for each other as well as for transfers */
            const uint32_t seen = cairn__machine_lie_down(x->machine);
            st = progress(group);
            if (st == CAIRN_OK && !x->moved && !work->done) cairn__machine_sleep(x->machine, seen);
            cairn__machine_get_up(x->machine);
            if (st != CAIRN_OK) return st;
        }
    }
}

/* A failure may come from a rank that detected a deadlock first; then this one reports the same. */
static cairn_status wait(cairn_group *group, cairn_work *work) {
    const cairn_status st = wait_for(group->impl, work);
    char cause[sizeof(group->cause)];
    if (st == CAIRN_OK) {
        cairn__clear_stuck(group);
        return CAIRN_OK;
    }
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    const bool may_deadlock = st == CAIRN_EPEER && !group->family->deadlocked;
    if (may_deadlock && cairn__find_deadlock(group, &work->request.call) != CAIRN_OK)
        snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    cairn__clear_stuck(group);
    return cairn__fail(st, "%s", cause);
}

/* The work is in the queue whatever the step returns, so the next poll returns its error. */
static cairn_status post(cairn_group *group, cairn_work *work) {
    struct exchange *x = group->impl;
    const bool was_idle = is_idle(x);
    cairn_status st = CAIRN_OK;
    TRY(cairn__exchange_queue(x, work));
    if (was_idle) reset_stall(x);
    const cairn_status failed = step(x);
    if (failed != CAIRN_OK && x->failed == CAIRN_OK) {
        x->failed = failed;
        snprintf(x->failure, sizeof(x->failure), "%s", cairn_last_error());
    }
out:
    return st;
}

/* ---- creation ---- */

static cairn_status make(cairn_group *group, const struct cairn__engine_ops *ops, struct exchange **out) {
    const size_t p = (size_t)group->size;
    struct exchange *x = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*x), (void **)&x));
    group->impl = x;
    x->group = group;
    x->ops = ops;
    x->kernels = cairn__kernels_cpu(cairn__cpu_features());
    x->stride = cairn__exchange_stride(group->size);
    TRY(cairn__calloc(p, sizeof(*x->words), (void **)&x->words));
    TRY(cairn__calloc(p, sizeof(*x->srcs), (void **)&x->srcs));
    for (int i = 0; i < 4; i++) TRY(cairn__calloc(p, sizeof(size_t), (void **)&x->at[i]));
    *out = x;
out:
    return st;
}

static cairn_status read_variables(bool *check, bool *flat) {
    const char *hierarchy = cairn__var("CAIRN_HIERARCHY");
    bool present = false;
    long value = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__var_int("CAIRN_CHECK", 0, 1, &present, &value));
    *check = present && value == 1;
    *flat = hierarchy && strcmp(hierarchy, "flat") == 0;
    REQUIRE(!hierarchy || *flat || strcmp(hierarchy, "auto") == 0, CAIRN_EINVAL,
            "CAIRN_HIERARCHY is '%s'; it can be auto or flat", hierarchy);
out:
    return st;
}

/* Sends a word to all ranks, which shows that all have arrived. *found |= the words of all ranks. */
static cairn_status greet(struct exchange *x, const struct cairn__engine_options *o, uint32_t *found) {
    cairn_status st = CAIRN_OK;
    struct cairn__transfer t;
    struct cairn__moving *moving = NULL;
    bool done = false;
    cairn__exchange_words(x, &t);
    x->words[x->group->rank].found = *found;
    TRY(x->ops->start(x->engine, &t, &moving));
    reset_stall(x);
    for (int idle = 0; !done; idle++) {
        TRY(x->ops->test(x->engine, moving, &done));
        if (done) break;
        TRY(cairn__group_was_aborted(x->group));
        if (stalled_too_long(x, o->timeout)) TRY(fail_late(x, "the making of the group", o->timeout, o->timeout_name));
        x->ops->rest(x->engine, idle);
    }
    for (int r = 0; r < x->group->size; r++) *found |= x->words[r].found;
out:
    return st;
}

/* ---- machines ---- */

/* Whether two levels pay off, because fewer bytes go between machines. */
static void choose_levels(struct exchange *x, bool flat) {
    x->in_levels = !flat && x->layout.machines > 1 && x->layout.machines < x->group->size;
}

static cairn_status lay_out_peers(struct exchange *x, const struct cairn__peers *peers) {
    int keys[CAIRN__MAX_RANKS];
    for (int r = 0; r < peers->size; r++) {
        keys[r] = 0;
        while (strcmp(peers->all[keys[r]].host, peers->all[r].host) != 0) keys[r]++;
    }
    return cairn__layout_make(keys, peers->size, &x->layout);
}

static cairn_status lay_out_members(struct exchange *x, const struct exchange *parent) {
    int keys[CAIRN__MAX_RANKS];
    for (int r = 0; r < x->group->size; r++) keys[r] = parent->layout.of[x->group->parent_ranks[r]];
    return cairn__layout_make(keys, x->group->size, &x->layout);
}

static cairn_status make_machine(struct exchange *x, const struct cairn__group_create_options *options,
                                 const struct cairn__peers *peers, const struct exchange *parent) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__machine_make(x, options, peers, parent, &x->machine));
    if (x->stride < cairn__machine_stride()) x->stride = cairn__machine_stride();
out:
    return st;
}

static void wake_by_transfers(struct exchange *x) {
    if (x->machine && x->ops->set_wake) x->ops->set_wake(x->engine, cairn__machine_wake, x->machine);
}

/* Every rank has its machine, or none has a group. */
static cairn_status make_machine_together(struct exchange *x, const struct cairn__engine_options *o,
                                          const struct cairn__group_create_options *options,
                                          const struct cairn__peers *peers) {
    uint32_t failed = 0;
    char why[600];
    cairn_status st = make_machine(x, options, peers, NULL);
    snprintf(why, sizeof(why), "%s", cairn_last_error());
    failed = st != CAIRN_OK;
    TRY(greet(x, o, &failed));
    if (st != CAIRN_OK) return cairn__fail(st, "%s", why);
    REQUIRE(!failed, CAIRN_EPEER, "another rank could not share memory with the ranks of its machine");
out:
    return st;
}

static struct cairn__engine_options engine_options(const cairn_group *group, char *prefix, size_t nbytes) {
    snprintf(prefix, nbytes, "%s/%s/%lld", group->family->prefix, group->backend->name, (long long)group->index);
    return (struct cairn__engine_options){
        .rank = group->rank,
        .size = group->size,
        .timeout = group->timeout,
        .timeout_name = group->timeout_name,
        .store = group->family->store,
        .prefix = prefix,
        .address = "",
        .store_set = cairn_store_set,
        .store_get = cairn_store_get,
        .store_check = cairn_store_check,
        .store_free = cairn_store_free,
        .store_hurry = cairn__store_hurry,
        .store_set_timeout = cairn_store_set_timeout,
        .rank_0_serves = group->family->rank_0_serves,
        .make_links = cairn__links_make,
    };
}

static void name_answers(const struct cairn__engine_options *options, char *prefix, size_t nbytes) {
    snprintf(prefix, nbytes, "%s/answers", options->prefix);
}

/* All ranks of the group again. */
static cairn_status make_answers(struct exchange *x, const struct cairn__engine_options *options) {
    struct cairn__engine_options o = *options;
    char prefix[320];
    int ranks[CAIRN__MAX_RANKS];
    if (!x->check) return CAIRN_OK;
    name_answers(options, prefix, sizeof(prefix));
    o.prefix = prefix;
    for (int r = 0; r < o.size; r++) ranks[r] = r;
    return x->ops->derive(x->engine, ranks, &o, &x->answers);
}

/* Deletes this rank's keys in the store once all ranks have created the group. */
static void forget_meeting(const struct exchange *x, const struct cairn__engine_options *options) {
    struct cairn__engine_options o = *options;
    char prefix[320];
    if (!needs_of(x->group->backend->name)->uses_links) return;
    cairn__links_forget(&o);
    if (!x->answers) return;
    name_answers(options, prefix, sizeof(prefix));
    o.prefix = prefix;
    cairn__links_forget(&o);
}

/* The first transfer. If one rank checks calls (CAIRN_CHECK) all do, and if one wants one level all have one. */
static cairn_status agree(struct exchange *x, const struct cairn__engine_options *o, bool flat) {
    enum { CHECKS = 1, IS_FLAT = 2 };
    uint32_t found = (x->check ? CHECKS : 0) | (flat ? IS_FLAT : 0);
    cairn_status st = CAIRN_OK;
    TRY(greet(x, o, &found));
    x->check = found & CHECKS;
    choose_levels(x, found & IS_FLAT);
out:
    return st;
}

static cairn_status create(cairn_group *group, const struct cairn__group_create_options *options,
                           struct cairn__peers *peers) {
    const struct cairn__engine_ops *ops = NULL;
    struct exchange *x = NULL;
    char prefix[300];
    bool flat = false;
    cairn_status st = CAIRN_OK;
    TRY(cairn__engine_find(group->backend->name, &ops));
    TRY(make(group, ops, &x));
    TRY(read_variables(&x->check, &flat));
    if (group->size == 1) return CAIRN_OK;
    struct cairn__engine_options o = engine_options(group, prefix, sizeof(prefix));
    if (options->meeting_timeout > 0 && options->meeting_timeout != o.timeout) {
        o.timeout = options->meeting_timeout;
        o.timeout_name = "CAIRN_MEETING_TIMEOUT";
    }
    o.address = peers->all[group->rank].address;
    o.interface = options->interface;
    o.peers = peers->all;
    TRY(lay_out_peers(x, peers));
    TRY(ops->open(&o, &x->engine));
    TRY(agree(x, &o, flat));
    if (x->in_levels) {
        TRY(make_machine_together(x, &o, options, peers));
        if (group->rank == 0)
            cairn__log(CAIRN_LOG_INFO, "sums are in two levels: %d ranks on %d machines", group->size,
                       x->layout.machines);
    }
    wake_by_transfers(x);
    TRY(make_answers(x, &o));
    forget_meeting(x, &o);
out:
    return st;
}

static cairn_status derive(cairn_group *group, cairn_group *parent) {
    const struct exchange *from = parent->impl;
    struct exchange *x = NULL;
    char prefix[300];
    cairn_status st = CAIRN_OK;
    TRY(make(group, from->ops, &x));
    x->check = from->check;
    if (group->size == 1) return CAIRN_OK;
    const struct cairn__engine_options o = engine_options(group, prefix, sizeof(prefix));
    TRY(lay_out_members(x, from));
    choose_levels(x, !from->in_levels);
    if (x->in_levels) TRY(make_machine(x, NULL, NULL, from));
    TRY(from->ops->derive(from->engine, group->parent_ranks, &o, &x->engine));
    wake_by_transfers(x);
    TRY(make_answers(x, &o));
    forget_meeting(x, &o);
out:
    return st;
}

static cairn_status probe(const char *name, const struct cairn__group_create_options *options) {
    const struct cairn__engine_ops *ops = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__engine_find(name, &ops));
    TRY(ops->probe(options->is_mpi));
    const struct needs *needs = needs_of(name);
    if (options->size > 1 && needs->files > 0) TRY(cairn__check_descriptors(needs->files, needs->library));
out:
    return st;
}

/* MPI's ranks are processes. */
static cairn_status probe_mpi(const struct cairn__group_create_options *options) {
    REQUIRE(!options->is_thread, CAIRN_ENOTSUP,
            "its process has several ranks (cairn_spawn_threads), and MPI one; use auto");
    return probe("mpi", options);
}

static cairn_status probe_gloo(const struct cairn__group_create_options *options) {
    return probe("gloo", options);
}

/* ---- the end ---- */

static void destroy(cairn_group *group) {
    struct exchange *x = group->impl;
    bool over = true;
    if (!x) return;
    if (x->answers) over &= x->ops->close(&x->answers);
    if (x->engine) over &= x->ops->close(&x->engine);
    if (over) { /* else transfers that cannot be cancelled still write to these */
        for (size_t i = 0; i < x->num_blocks && !x->machine; i++) cairn__free(x->blocks[i]);
        cairn__machine_end(&x->machine);
        cairn__exchange_free_flows(x);
        cairn__free(x->words);
        cairn__free(x->short_staging);
        cairn__free(x->staging);
    }
    if (x->machine) cairn__machine_give_up(x->machine, "it ended the group in the midst of a transfer", false);
    else cairn__layout_end(&x->layout);
    for (int i = 0; i < 4; i++) cairn__free(x->at[i]);
    cairn__free(x->blocks);
    cairn__free(x->srcs);
    cairn__free(x);
    group->impl = NULL;
}

static void give_up(cairn_group *group, const char *cause) {
    const struct exchange *x = group->impl;
    if (!x) return;
    abort_engines(x);
    if (x->machine) cairn__machine_give_up(x->machine, cause, atomic_load(&group->aborted));
}

/* ---- group memory ---- */

static cairn_status make_block(struct exchange *x, size_t nbytes) {
    struct sysinfo info;
    cairn_status st = CAIRN_OK;
    REQUIRE(sysinfo(&info) == 0, CAIRN_ESYSTEM, "the size of this machine's memory cannot be read");
    /* The system would grant more, but not have it when it is written to. */
    const double room = ((double)info.totalram + (double)info.totalswap) * info.mem_unit;
    REQUIRE((double)nbytes <= room, CAIRN_ENOMEM,
            "group memory of %zu bytes is more than this machine's memory of %.0f bytes", nbytes, room);
    TRY(cairn__grow((void **)&x->blocks, &x->blocks_capacity, x->num_blocks + 1, sizeof(*x->blocks)));
    TRY(cairn__calloc(1, nbytes, &x->blocks[x->num_blocks]));
out:
    return st;
}

/* If one rank has no memory, none gets any; those of one machine fail together. */
static cairn_status alloc_in_machine(cairn_group *group, size_t nbytes, void **out) {
    struct exchange *x = group->impl;
    uint32_t failed = 0;
    char reason[256];
    void *memory = NULL;
    cairn_status st = cairn__grow((void **)&x->blocks, &x->blocks_capacity, x->num_blocks + 1, sizeof(*x->blocks));
    TRY(cairn__group_run(group,
                         &(struct cairn__request){.call = {.kind = CAIRN__ALLOC, .n = nbytes}, .found = st != CAIRN_OK},
                         &failed));
    REQUIRE(!failed, CAIRN_ENOMEM, "a rank has no memory for the list of the group's memory");
    const cairn_status own = cairn__machine_alloc(x->machine, nbytes, &memory);
    snprintf(reason, sizeof(reason), "%s", cairn_last_error());
    if (own == CAIRN_EPEER || own == CAIRN_ETIMEOUT) return own;
    TRY(cairn__group_run(group, &(struct cairn__request){.call = {.kind = CAIRN__AGREE}, .found = own != CAIRN_OK},
                         &failed));
    if (own == CAIRN_OK && !failed) {
        *out = x->blocks[x->num_blocks++] = memory;
        return CAIRN_OK;
    }
    if (own != CAIRN_OK) return cairn__fail(own, "%s", reason);
    TRY(cairn__machine_free(x->machine, memory));
    st = cairn__fail(CAIRN_ENOMEM, "another machine's ranks could not allocate %zu bytes of group memory", nbytes);
out:
    return st;
}

/* If one rank has no memory, none gets any. */
static cairn_status alloc(cairn_group *group, size_t nbytes, void **out) {
    struct exchange *x = group->impl;
    if (x->machine) return alloc_in_machine(group, nbytes, out);
    uint32_t failed = 0;
    char reason[256];
    const cairn_status own = make_block(x, nbytes);
    snprintf(reason, sizeof(reason), "%s", cairn_last_error());
    const struct cairn__request request = {.call = {.kind = CAIRN__ALLOC, .n = nbytes}, .found = own != CAIRN_OK};
    cairn_status st = cairn__group_run(group, &request, &failed);
    if (st == CAIRN_OK && !failed) {
        *out = x->blocks[x->num_blocks++];
        return CAIRN_OK;
    }
    if (own == CAIRN_OK) {
        cairn__free(x->blocks[x->num_blocks]);
        x->blocks[x->num_blocks] = NULL;
    }
    if (st != CAIRN_OK) return st;
    if (own != CAIRN_OK) return cairn__fail(own, "%s", reason);
    return cairn__fail(CAIRN_ENOMEM, "another rank could not allocate %zu bytes of group memory", nbytes);
}

static cairn_status release(cairn_group *group, void *memory) {
    struct exchange *x = group->impl;
    size_t i = 0;
    while (i < x->num_blocks && x->blocks[i] != memory) i++;
    REQUIRE(i < x->num_blocks, CAIRN_EINVAL, "%p is not memory of this group; pass what cairn_group_alloc returned",
            memory);
    const struct cairn__request request = {.call = {.kind = CAIRN__FREE, .n = i + 1}};
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_run(group, &request, NULL));
    if (x->machine) TRY(cairn__machine_free(x->machine, memory));
    else cairn__free(memory);
    x->blocks[i] = NULL;
out:
    return st;
}

/* ---- two tables ---- */

#define EXCHANGE(called, its_probe, its_files)                                                                       \
    {                                                                                                                \
        .name = called, .checks_results = false, .finds_nonfinite = true, .keeps_store = true, .files = its_files,   \
        .probe = its_probe, .create = create, .derive = derive, .destroy = destroy, .alloc = alloc, .free = release, \
        .post = post, .progress = progress, .wait = wait, .give_up = give_up,                                        \
    }

const struct cairn__group_backend cairn__group_mpi = EXCHANGE("mpi", probe_mpi, 0);
const struct cairn__group_backend cairn__group_gloo = EXCHANGE("gloo", probe_gloo, 2);
