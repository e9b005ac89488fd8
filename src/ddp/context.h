/* Internals that the files of ddp share.
 *
 *   ddp.c       creates and destroys contexts; forward
 *   plan.c      which gradients share a bucket
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
 *   buffers.c   broadcasts rank 0's buffers
 *   weights.c   broadcasts rank 0's weights
 *   agree.c     agreement on parameters and buffers
 *   frozen.c    agreement on parameters that are frozen or thawed
 *   shards.c    updates shared among the ranks
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

/* The all-gather of a bucket's weights, after an update. */
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
    cairn_dtype wire; /* the type that is sent */
    bool closes;      /* one of allreduce_trigger_params */
    bool in_place;    /* its gradient is in the arena; else it is copied (and cast) there when it is ready, and back */
    bool arrived;     /* in this backward */
    bool zero;        /* it arrived without a gradient: its bucket is sent with zeros for it */
    bool used;        /* in this backward, by this rank; after share_used, by any */
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

/* What a built-in hook does beyond begin and finish. */
struct cairn__own_hook {
    cairn_status (*settle)(struct ddp_context *d); /* all buckets of a backward are done */
    /* The hook's part of the context's state, as in struct cairn__stateful_ops. */
    cairn_status (*list)(struct ddp_context *d, struct cairn__entries *entries);
    cairn_status (*check)(const struct ddp_context *d, const struct cairn__entries *entries);
    void (*loaded)(struct ddp_context *d, const struct cairn__entries *entries);
    void (*end)(struct ddp_context *d); /* collective */
};

struct ddp_context {
    const char *call;    /* the call that created it: "ddp_create" */
    cairn_module *model; /* NULL: the set is the user's */
    struct cairn_param_set *set;
    cairn_group *group, *channel;           /* the user's; ours */
    struct ddp_options options;             /* with the defaults filled in; its lists are the context's */
    struct ddp_comm_hook hook;              /* begin NULL: the all-reduce */
    bool has_hook, reduces_nothing;         /* the hook is ddp_noop_hook's */
    const struct cairn__own_hook *own_hook; /* NULL: the hook is the user's, or there is none */
    struct cairn__powersgd *powersgd;       /* the state of this hook; NULL = another hook */
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
    struct cairn__item *items;     /* [num_slots] scratch for lists */

    /* shards.c's. Rank r of p updates the r-th of p equal slices of every bucket. */
    bool shards;                       /* options.shard_optimizer, on several ranks */
    bool owns_weights;                 /* the module's weights are in `weights`; else in their own memory */
    void *weights[CAIRN_U8 + 1];       /* [dtype] group memory, as the arenas: the weights, or copies of the user's */
    struct cairn__ddp_gather *gathers; /* [plan.count] */

    bool copies; /* a slot is not in place */
    bool speaks; /* a reduction's check for inf and NaN also covers gradients that are copied back */

    struct cairn__grad_listener listener;
    struct cairn__sharers sharers; /* the listener's, with shards */
    void *losses;                  /* group memory: which ranks' losses were infinite or NaN; NULL = not made yet */
    cairn_work *losses_sent;       /* the all-reduce of losses in this backward */
    size_t next;                   /* the next bucket to launch */
    size_t *order; /* [num_slots] the num_arrived slots of this backward, or the last one, in order of arrival */
    size_t num_arrived;
    size_t *planned; /* [num_planned] rank 0's order of arrival, by which buckets were rebuilt; 0 = not yet */
    size_t num_planned;
    int64_t *listed;        /* [set->count] that order as indices of parameters, to save; NULL = not made yet */
    int64_t backwards;      /* reduced so far, including those of a loaded training */
    bool has_reduced;       /* this context has reduced a backward */
    bool running;           /* a backward has begun */
    bool settling;          /* and has computed all its gradients */
    bool rebuilt;           /* buckets will not be planned again */
    bool no_sync;           /* gradients stay on this rank */
    bool reducer;           /* of ddp_reducer_create: they stay until ddp_reduce */
    bool knows_graph;       /* slots' in_graph is known */
    bool all_know_graph;    /* on every rank; so is used_first */
    uint8_t *maps;          /* unused.c's */
    void *buffers;          /* group memory: the model's buffers, packed; NULL = not made yet, or no buffers */
    bool warned_of_buffers; /* the notice about buffers under no_grad has been logged */
    struct cairn__nonfinite nonfinite; /* of the backwards since the gradients were last forgotten */
    bool checks_sources, blind;        /* this backward fills nonfinite; one of those backwards did not */
    int checks_left;                   /* backwards that will still fill nonfinite */
    float last_factor;                 /* 1/S of the last backward */
    int active;                        /* ranks with input at the last ddp_join; before the first, all ranks */
    int buffers_root;                  /* the rank whose buffers are sent: 0, or the lowest rank with input */
    bool zero_loss; /* the next backward is of ddp_zero_loss: it reaches all parameters and uses none */
    struct cairn__ddp_times times;
    struct cairn__ddp_log log;
    cairn_status status; /* first failure of this backward */
    cairn_status failed; /* raw buffers: first failure since the last ddp_wait; its sentence is in cause */
    char cause[1024];
};

/* ---- ddp.c ---- */

/* The arguments of every call that creates a context. */
struct cairn__ddp_request {
    const char *call;    /* for messages */
    cairn_module *model; /* or NULL, and */
    struct cairn_param_set *set;
    cairn_group *group;
    const struct ddp_options *options;
};
/* Collective; errors as ddp_create: a rank that is wrong makes all fail. */
cairn_status cairn__ddp_make(const struct cairn__ddp_request *request, ddp_context **out);

/* A loss of 0 with a gradient of 0 for every parameter of a root. Its backward writes them as any loss's, one parameter
 * after the other, from the last to the first. NULL on error: CAIRN_EINVAL root has no parameters; CAIRN_ENOMEM. */
cairn_tensor *cairn__ddp_zero_loss(const cairn_module *root);

/* Rebuilds the buckets and sends the buffers, if due. ddp_forward calls it before the model's forward, ddp_zero_loss
 * instead of a forward. Collective. */
cairn_status cairn__ddp_before_forward(struct ddp_context *d);

/* ---- options.c ---- */

/* Reads and checks the options, and fills in the defaults. Lists in out are still the caller's. */
cairn_status cairn__ddp_options_read(const struct ddp_options *given, const cairn_group *group, bool for_module,
                                     struct ddp_options *out);
/* Collective over d->group: checks that all ranks made the same call with the same options. */
cairn_status cairn__ddp_agree_on_options(const struct ddp_context *d);
/* Whether name, of a parameter or a buffer, is in ddp_options.ignored. */
bool cairn__ddp_ignores(const struct ddp_context *d, const char *name);

/* ---- reducer.c ---- */

/* Lists the shared parameters that are not frozen now in d->slots and d->slot_of, which are large enough. */
void cairn__ddp_list_slots(struct ddp_context *d);

/* plan_slots: plans the slots, and allocates what depends on the plan. attach, collective, after plan_slots succeeded
 * on every rank: allocates the arenas, and moves the gradients there. */
cairn_status cairn__ddp_plan_slots(struct ddp_context *d);
cairn_status cairn__ddp_attach(struct ddp_context *d);
/* Moves the gradients back to memory of the model's, forgets them, and frees the arenas. Collective. */
void cairn__ddp_detach(struct ddp_context *d);

/* Uses the hook from now on. If it changes the plan (another type is sent, parameters are not split), gradients move to
 * new arenas. Collective; an error leaves all ranks as they were. */
cairn_status cairn__ddp_use_hook(struct ddp_context *d, const struct ddp_comm_hook *hook);

/* Makes d the set's listener. */
void cairn__ddp_listen(struct ddp_context *d);

/* Begins a backward; further calls within it do nothing. nn calls it for a module. For raw buffers the first
 * declaration calls it, and buckets may be rebuilt then. */
cairn_status cairn__ddp_begin(struct ddp_context *d);

/* arrive: the slot's gradient is ready. arrive_empty: the slot gets none in this backward, and zeros are sent. Failures
 * are kept in d->status. */
void cairn__ddp_arrive(struct ddp_context *d, size_t slot);
void cairn__ddp_arrive_empty(struct ddp_context *d, size_t slot);

/* Ends a backward: gradients that did not arrive count as zero, and averages replace gradients. */
cairn_status cairn__ddp_settle(struct ddp_context *d);

/* Rebuilds the buckets in rank 0's order of arrival: once for each set of slots, before the second forward.
 * Collective. */
cairn_status cairn__ddp_rebuild(struct ddp_context *d);

/* reduce: the bucket's all-reduce, as without a hook. Its parts are weigh, which divides the gradients before a sum if
 * the options say so, and divisor: what the sum over the ranks is divided by, 0 = nothing (cairn__group_average). */
cairn_status cairn__ddp_reduce(struct ddp_context *d, const struct ddp_bucket *bucket, cairn_work **work);
void cairn__ddp_weigh(const struct ddp_context *d, const struct ddp_bucket *bucket);
int cairn__ddp_divisor(const struct ddp_context *d);

/* A bucket as the user sees it. */
struct ddp_bucket cairn__ddp_bucket_view(const struct ddp_context *d, size_t b);

/* ---- shards.c ---- */

/* Checks that options and parameters allow shards; each rank by itself. Errors: CAIRN_ENOTSUP, CAIRN_ESTATE. */
cairn_status cairn__ddp_shards_check(const struct ddp_context *d);
/* Collective, once the arenas exist: cuts masters and moments into shards, and moves the weights. */
cairn_status cairn__ddp_shards_begin(struct ddp_context *d);
/* Collective, after a backward was reduced. found: a result was infinite or NaN, as far as the backend checks results.
 * Afterwards the flags of the gradients are equal on all ranks. */
cairn_status cairn__ddp_shards_reduced(struct ddp_context *d, uint32_t found);
/* For the listener; NULL = ranks do not share updates. */
const struct cairn__sharers *cairn__ddp_sharers(struct ddp_context *d);
/* Collective: makes masters, moments and weights whole again. Errors: CAIRN_ENOMEM on every rank if memory for the
 * weights is missing; nothing has changed then. If the group is dead, or memory for masters and moments is missing,
 * these stay in shards, and the next step of their optimizer fails and says so. */
cairn_status cairn__ddp_shards_end(struct ddp_context *d);

/* ---- agree.c ---- */

/* Collective over the channel: checks that ranks agree on name, dtype, shape and order of parameters and buffers that
 * are not ignored, and on the set's precision. Errors: CAIRN_EPEER on every rank, with the parameter and both ranks'
 * values. Cost: a few words, unless ranks differ. */
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

/* Collective. Sends rank 0's f32 values (masters, or the weights themselves) to all ranks; half weights are rounded
 * from them. Cost: one collective per MiB of small tensors, and one per large tensor. */
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

/* Names the slots that pass is_meant, for a message: "'fc1.weight', 'fc1.bias' and 3 more". Returns how many pass. */
size_t cairn__ddp_name_slots(const struct ddp_context *d, cairn__ddp_slot_test is_meant, char *text, size_t nbytes);

/* Before this backward sends anything: fails for parameters that get no gradient, or lets them arrive, with their
 * unsynced sum or empty. Does nothing for a user's set, whose declarations are not known yet. */
cairn_status cairn__ddp_unused_begin(struct ddp_context *d);
/* Whether bucket b need not be sent, since no rank has a gradient for it. */
bool cairn__ddp_unused_skips(const struct ddp_context *d, size_t b);
/* When no more gradients will come: lets the remaining slots arrive, with their unsynced sum or empty. */
cairn_status cairn__ddp_unused_rest(struct ddp_context *d);
/* When all buckets are in flight: parameters for which no rank had a gradient count as never written. */
cairn_status cairn__ddp_unused_settle(struct ddp_context *d);
/* Frees the memory of unused.c: the context ends, or gets other slots. */
void cairn__ddp_unused_end(struct ddp_context *d);

/* ---- nonfinite.c ---- */

/* A backward begins: decides whether its reductions fill d->nonfinite. */
void cairn__ddp_nonfinite_begin(struct ddp_context *d);
/* For reductions of this backward; NULL = not wanted. */
struct cairn__nonfinite *cairn__ddp_nonfinite_sources(struct ddp_context *d);
/* The listener's nonfinite_ranks. */
cairn_status cairn__ddp_nonfinite_ranks(void *ctx, struct cairn__ranks *ranks, bool *found, bool *checked);

/* ---- hooks.c ---- */

/* Errors: CAIRN_ENOTSUP with shards; CAIRN_ESTATE there is a hook already, or a backward has run. */
cairn_status cairn__ddp_may_hook(const char *call, const struct ddp_context *d);
/* The second collective of every call that registers a hook. Errors: CAIRN_EPEER ranks register different hooks. */
cairn_status cairn__ddp_agree_on_hook(const struct ddp_context *d, const struct ddp_comm_hook *hook);

/* ---- local.c ---- */

/* Errors: CAIRN_ESTATE within a backward. */
cairn_status cairn__ddp_check_between(const char *call, const struct ddp_context *d);

#endif
