/* What the files of ddp share.
 *
 *   ddp.c       the context: options, making and ending, forward
 *   plan.c      which gradients travel together
 *   options.c   options, read and checked
 *   reducer.c   one backward: arrivals, launches, settling; the listener of the parameter set; rebuilding
 *   unused.c    which parameters take part in a backward, here and on the other ranks
 *   local.c     no_sync, and ddp_reduce
 *   raw.c       parameters in the user's memory
 *   nonfinite.c ranks whose own gradients were infinite or NaN
 *   join.c      uneven inputs
 *   hooks.c     communication hooks
 *   powersgd.c  the hook of PowerSGD, and its state; low_rank.c its arithmetic
 *   local_sgd.c the hook of post-local SGD, and averages of weights
 *   buffers.c   rank 0's buffers to all
 *   weights.c   rank 0's weights to all
 *   agree.c     agreement on parameters and buffers
 *   frozen.c    agreement on parameters that are frozen or thawed
 *   shards.c    updates that are shared out over the ranks
 *   state.c     what is saved: the order of arrival, and what ddp keeps equal on all ranks
 *   times.c     when the parts of an iteration began and ended
 *   logging.c   times, sizes and options, for the user, the log and the file
 */
#ifndef CAIRN__DDP_CONTEXT_H
#define CAIRN__DDP_CONTEXT_H

#include "cairn/ddp.h"
#include "comm/nonfinite.h"
#include "ddp/logging.h"
#include "ddp/plan.h"
#include "nn/hooks.h"
#include "param/param.h"

/* Of a bucket's weights. */
struct cairn__ddp_gather {
    bool due; /* one of its parameters was updated */
    cairn_work *work;
};

/* A parameter that is the same on all ranks: one that is not ignored. */
struct cairn__ddp_shared {
    struct cairn__param *param;
    bool closes; /* one of allreduce_trigger_params */
};

/* A shared parameter whose gradient is reduced, since it is not frozen: item i of the plan is slots[i]. */
struct cairn__ddp_slot {
    struct cairn__param *param;
    cairn_dtype wire; /* that travels */
    bool closes;      /* one of allreduce_trigger_params */
    bool in_place; /* its gradient lies in the arena; else it is copied (and cast) there when it is ready, and back */
    bool arrived;  /* in this backward */
    bool zero;     /* it arrived without a gradient: zeros stand in when its bucket goes out */
    bool used;     /* in this backward, by this rank; after share_used, by any */
    bool in_graph, used_first; /* static_graph: the first backward reached it here; any rank used it there */
};

struct cairn__ddp_send {
    size_t pending; /* items that have not arrived in this backward */
    bool launched;
    bool skipped; /* no rank has a gradient for it */
    cairn_work *work;
};

struct cairn__entries;
struct cairn__powersgd;
struct cairn__local_sgd;

/* What a hook of ddp's own does beside begin and finish. */
struct cairn__own_hook {
    cairn_status (*settle)(struct ddp_context *d); /* all buckets of a backward are done */
    /* Its part of the context's state: as of struct cairn__stateful_ops. */
    cairn_status (*list)(struct ddp_context *d, struct cairn__entries *entries);
    cairn_status (*check)(const struct ddp_context *d, const struct cairn__entries *entries);
    void (*loaded)(struct ddp_context *d, const struct cairn__entries *entries);
    void (*end)(struct ddp_context *d); /* collective */
};

struct ddp_context {
    const char *call;    /* that made it: "ddp_create" */
    cairn_module *model; /* NULL: the set is the user's */
    struct cairn_param_set *set;
    cairn_group *group, *channel; /* the user's; ours */
    struct ddp_options
        options; /* complete: no field is DEFAULT or 0 where that means something else; its lists are ours */
    struct ddp_comm_hook hook;              /* begin NULL: the all-reduce */
    bool has_hook, reduces_nothing;         /* by the hook of ddp_noop_hook */
    const struct cairn__own_hook *own_hook; /* NULL: the hook is the user's, or there is none */
    struct cairn__powersgd *powersgd;       /* its state, where that is it */
    struct cairn__local_sgd *local_sgd;     /* likewise */

    struct cairn__ddp_shared *shared; /* [num_shared] in order of registration */
    size_t num_shared;
    struct cairn__ddp_slot *slots; /* [num_slots] in order of registration */
    size_t num_slots;
    size_t *slot_of;               /* [set->count] index of a parameter's slot; SIZE_MAX = ignored, or frozen */
    struct cairn__param **ignored; /* [num_ignored] parameters without a slot */
    size_t num_ignored;
    struct cairn__ddp_plan plan;
    struct cairn__ddp_send *sends; /* [plan.count] */
    size_t *bucket_params;         /* plan.members, as indices of the set */
    void *arenas[CAIRN_U8 + 1];    /* [dtype] group memory */
    struct cairn__item *items;     /* [num_slots] room for lists */

    /* shards.c's. Rank r of p updates the r-th of p equal slices of every bucket. */
    bool shards;                       /* options.shard_optimizer, on several ranks */
    bool owns_weights;                 /* the module's weights stand in `weights`; else in their own memory */
    void *weights[CAIRN_U8 + 1];       /* [dtype] group memory, laid out as the arenas: the weights, or copies of the
                                           user's that travel */
    struct cairn__ddp_gather *gathers; /* [plan.count] */

    bool copies; /* some slot is not in place */
    bool speaks; /* a reduction's check for inf and NaN holds for gradients copied back too */

    struct cairn__grad_listener listener;
    struct cairn__sharers sharers; /* of the listener, with shards */
    void *losses;                  /* group memory: which ranks' losses were infinite or NaN; NULL = not yet */
    cairn_work *losses_sent;       /* of this backward */
    size_t next;                   /* bucket to go out next */
    size_t
        *order; /* [num_slots] slots in the order they arrived in this backward, or the last one; num_arrived of them */
    size_t num_arrived;
    size_t *planned; /* [num_planned] rank 0's order that the buckets were planned anew in; 0 = they were not */
    size_t num_planned;
    int64_t *listed;        /* [set->count] that order in parameters, as a list of entries has it; NULL = not yet */
    int64_t backwards;      /* that were reduced, those of the training that was loaded included */
    bool has_reduced;       /* a backward of this context */
    bool running;           /* a backward has begun */
    bool settling;          /* and computes nothing more */
    bool rebuilt;           /* buckets are as they will stay */
    bool no_sync;           /* gradients stay on this rank */
    bool reducer;           /* always, until ddp_reduce */
    bool knows_graph;       /* slots' in_graph was found out */
    bool all_know_graph;    /* on every rank, and so used_first */
    uint8_t *maps;          /* unused.c's */
    void *buffers;          /* group memory: the model's, packed; NULL = not yet, or there are none */
    bool warned_of_buffers; /* the notice about buffers under no_grad has been logged */
    struct cairn__nonfinite nonfinite; /* of the backwards since the gradients were last forgotten */
    bool checks_sources, blind;        /* this backward fills nonfinite; one of those backwards did not */
    int checks_left;                   /* backwards that will still fill nonfinite */
    float last_factor;                 /* 1/S of the last backward */
    int active;                        /* ranks with input, of the last ddp_join; the size where there was none */
    int buffers_root;                  /* whose buffers are sent: 0, or the lowest rank with input */
    bool zero_loss; /* the backward now coming is of a loss of this rank's that reaches all and uses none */
    struct cairn__ddp_times times;
    struct cairn__ddp_log log;
    cairn_status status; /* first failure of this backward */
    cairn_status failed; /* raw buffers: of the declarations since the last ddp_wait; and its sentence */
    char cause[1024];
};

/* ---- ddp.c ---- */

/* What all ways to make a context have in common. */
struct cairn__ddp_request {
    const char *call;    /* for messages */
    cairn_module *model; /* or NULL, and */
    struct cairn_param_set *set;
    cairn_group *group;
    const struct ddp_options *options;
};
/* Collective; errors as ddp_create: a rank that is wrong makes all fail. */
cairn_status cairn__ddp_make(const struct cairn__ddp_request *request, ddp_context **out);

/* A loss of 0 whose gradient is 0 for every parameter of a root: they are written as those of any loss, in one piece of
 * work a parameter, from the last to the first. NULL on error: CAIRN_EINVAL it has no parameters; CAIRN_ENOMEM. */
cairn_tensor *cairn__ddp_zero_loss(const cairn_module *root);

/* What ddp_forward does before the model's own, and ddp_zero_loss instead of it: buckets are planned anew and buffers
 * sent where that is due. Collective. */
cairn_status cairn__ddp_before_forward(struct ddp_context *d);

/* ---- options.c ---- */

/* Reads and checks, fills in what was left out; lists are still the caller's. */
cairn_status cairn__ddp_options_read(const struct ddp_options *given, const cairn_group *group, bool for_module,
                                     struct ddp_options *out);
/* Collective over d->group: the same call and options everywhere. */
cairn_status cairn__ddp_agree_on_options(const struct ddp_context *d);
/* Whether it is one of ddp_options.ignored: a parameter's name, or a buffer's. */
bool cairn__ddp_ignores(const struct ddp_context *d, const char *name);

/* ---- reducer.c ---- */

/* Fills in d->slots and d->slot_of, which have room: the shared parameters that are not frozen now. */
void cairn__ddp_list_slots(struct ddp_context *d);

/* Slots, plan and the room for both; then (collective) the arenas, and gradients in them. The second after the first
 * went well on every rank. */
cairn_status cairn__ddp_plan_slots(struct ddp_context *d);
cairn_status cairn__ddp_attach(struct ddp_context *d);
/* Gradients are the model's own again, and forgotten; the arenas are given back. Collective. */
void cairn__ddp_detach(struct ddp_context *d);

/* Uses the hook from now on; where it changes the type that travels, gradients move to other arenas. Collective; an
 * error leaves all ranks as they were. */
cairn_status cairn__ddp_use_hook(struct ddp_context *d, const struct ddp_comm_hook *hook);

/* The set's listener from here on. */
void cairn__ddp_listen(struct ddp_context *d);

/* A backward begins; further calls within it do nothing. nn calls it for a module, the first declaration for raw
 * buffers, which may plan buckets anew. */
cairn_status cairn__ddp_begin(struct ddp_context *d);

/* The slot has its gradient; or none in this backward, and zeros travel. A failure is kept in d->status. */
void cairn__ddp_arrive(struct ddp_context *d, size_t slot);
void cairn__ddp_arrive_empty(struct ddp_context *d, size_t slot);

/* The backward has ended: gradients that did not arrive count as zero, and averages replace gradients. */
cairn_status cairn__ddp_settle(struct ddp_context *d);

/* Collective, once for each choice of slots, before the second forward: buckets in rank 0's order of arrival. */
cairn_status cairn__ddp_rebuild(struct ddp_context *d);

/* The bucket's all-reduce, as without a hook. Its parts: gradients are divided where they are to be before a sum; what
 * a sum over the ranks is divided by, 0 = nothing (cairn__group_average). */
cairn_status cairn__ddp_reduce(struct ddp_context *d, const struct ddp_bucket *bucket, cairn_work **work);
void cairn__ddp_weigh(const struct ddp_context *d, const struct ddp_bucket *bucket);
int cairn__ddp_divisor(const struct ddp_context *d);

/* A bucket as the user sees it. */
struct ddp_bucket cairn__ddp_bucket_view(const struct ddp_context *d, size_t b);

/* ---- shards.c ---- */

/* Whether options and parameters allow it; each rank by itself. Errors: CAIRN_ENOTSUP, CAIRN_ESTATE. */
cairn_status cairn__ddp_shards_check(const struct ddp_context *d);
/* Collective, when arenas are there: cuts masters and moments, and moves weights. */
cairn_status cairn__ddp_shards_begin(struct ddp_context *d);
/* Collective: a backward has been reduced, and found says whether a result was infinite or NaN, as far as the backend
 * checks them. Flags of its gradients are then equal on all ranks. */
cairn_status cairn__ddp_shards_reduced(struct ddp_context *d, uint32_t found);
/* For the listener; NULL = ranks do not share updates. */
const struct cairn__sharers *cairn__ddp_sharers(struct ddp_context *d);
/* Collective: masters, moments and weights are whole again. Errors: CAIRN_ENOMEM on every rank, of weights, and nothing
 * has changed. Where the group is dead, or there is no memory for the others, these stay as they are, and the next step
 * of their optimizer says so. */
cairn_status cairn__ddp_shards_end(struct ddp_context *d);

/* ---- agree.c ---- */

/* Collective over the channel: name, dtype, shape and order of parameters and buffers that are not ignored, and the
 * set's precision. Errors: CAIRN_EPEER on every rank, with the parameter and both ranks' values. Cost: a few words,
 * unless ranks differ. */
cairn_status cairn__ddp_agree_on_params(const struct ddp_context *d);

/* ---- frozen.c ---- */

/* The listener's agree_on_frozen. Errors: CAIRN_EPEER with the parameter, on every rank. */
cairn_status cairn__ddp_agree_on_frozen(void *ctx, const char *call, struct cairn__param *const *params, size_t count,
                                        bool on, cairn_status status);

/* ---- state.c ---- */

/* The listener's shares_param and shares_buffer. */
bool cairn__ddp_shares_param(void *ctx, size_t index);
bool cairn__ddp_shares_buffer(void *ctx, const char *path);

/* ---- weights.c ---- */

/* Collective. Rank 0's f32 values (masters, or the weights themselves) go to all; half weights are rounded from them.
 * Cost: a collective for each MiB of small tensors, and for each large one. */
cairn_status cairn__ddp_broadcast_params(struct ddp_context *d);

/* ---- buffers.c ---- */

/* Collective. Send the buffers of d->buffers_root to all ranks: always; or, before a forward, if options and state
 * require it. */
cairn_status cairn__ddp_broadcast_buffers(struct ddp_context *d);
cairn_status cairn__ddp_buffers_forward(struct ddp_context *d);
void cairn__ddp_buffers_end(struct ddp_context *d); /* collective */

/* ---- unused.c ---- */

typedef bool (*cairn__ddp_slot_test)(const struct ddp_context *d, size_t s);
enum { CAIRN__DDP_NAMES_NBYTES = 700 };

/* "'fc1.weight', 'fc1.bias' and 3 more", of the slots that pass is_meant, for a message; returns how many do. */
size_t cairn__ddp_name_slots(const struct ddp_context *d, cairn__ddp_slot_test is_meant, char *text, size_t nbytes);

/* Before this backward sends anything: fails for parameters that get no gradient, or lets them arrive, with their
 * unsynced sum or empty. Does nothing for a user's set, whose declarations are not known yet. */
cairn_status cairn__ddp_unused_begin(struct ddp_context *d);
/* Whether bucket b need not be sent, since no rank has a gradient for it. */
bool cairn__ddp_unused_skips(const struct ddp_context *d, size_t b);
/* No more gradients come: slots that have not arrived do, with their unsynced sum or empty. */
cairn_status cairn__ddp_unused_rest(struct ddp_context *d);
/* All buckets are on their way: parameters for which no rank had a gradient count as never written. */
cairn_status cairn__ddp_unused_settle(struct ddp_context *d);
/* Frees its memory: the context ends, or has other slots. */
void cairn__ddp_unused_end(struct ddp_context *d);

/* ---- nonfinite.c ---- */

/* A backward begins: decides whether its reductions fill d->nonfinite. */
void cairn__ddp_nonfinite_begin(struct ddp_context *d);
/* For reductions of this backward; NULL = not wanted. */
struct cairn__nonfinite *cairn__ddp_nonfinite_sources(struct ddp_context *d);
/* The listener's nonfinite_ranks. */
cairn_status cairn__ddp_nonfinite_ranks(void *ctx, struct cairn__ranks *ranks, bool *found, bool *checked);

/* ---- hooks.c ---- */

/* CAIRN_ESTATE: there is a hook, or a backward has run. */
cairn_status cairn__ddp_may_hook(const char *call, const struct ddp_context *d);
/* Collective, as the second one of every call that registers a hook: CAIRN_EPEER where ranks register others. */
cairn_status cairn__ddp_agree_on_hook(const struct ddp_context *d, const struct ddp_comm_hook *hook);

/* ---- local.c ---- */

/* CAIRN_ESTATE within a backward. */
cairn_status cairn__ddp_check_between(const char *call, const struct ddp_context *d);

#endif
