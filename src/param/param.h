/* Parameters, internal interface: what nn (which writes gradients), ddp (which reduces them), amp (which scales losses
 * and checks for overflow) and optim (which reads gradients) share. grad.h has the gradient of one parameter and its
 * states.
 *
 * The life of a gradient: nn gets the memory for it (cairn__grad_begin_write), writes it, and calls
 * cairn__param_grad_ready. The listener (ddp) may then reduce it in place. At the end of the backward
 * cairn__param_set_settle returns once all gradients are reduced. The optimizer gets what it reads from
 * cairn__grad_prepare_read.
 *
 * While a set keeps its gradients unsynced (ddp's no_sync), the listener's functions from begin to no_gradient are not
 * called. */
#ifndef CAIRN__PARAM_H
#define CAIRN__PARAM_H

#include <stdbool.h>

#include "cairn/param.h"
#include "device/env.h"
#include "param/grad.h"

/* The elements of a parameter that this rank updates, if ranks share the update (ddp_options.shard_optimizer). */
struct cairn__shard {
    size_t first, n;
};

struct cairn__param {
    struct cairn_param_set *set;
    size_t index; /* in the set */
    char *name;
    struct cairn__param *same_hash; /* the next older parameter of its hash chain (names.c) */
    cairn_dtype dtype;              /* of the weights and the gradient */
    cairn_dtype value_type;         /* the half type whose values f32 memory holds; 0 = values of dtype */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    size_t n;
    bool is_norm;
    bool requires_grad; /* false = frozen: it has no gradient, and none is written */

    void *data;    /* the weights that forward reads */
    float *master; /* [shard] f32 master weights that the optimizer updates; NULL = it updates data */
    bool owns_data, owns_master;
    bool stochastic;       /* updates of half weights without master are rounded stochastically */
    const void *owner;     /* the optimizer that updates it; NULL = none */
    const uint64_t *steps; /* the owner's number of the last step queued; NULL without an owner */
    float **arrays;        /* [num_arrays] optimizer state, each f32 [shard] in device memory, or NULL */
    int num_arrays;

    bool is_sharded; /* false = the shard is the whole parameter: cairn__param_shard */
    struct cairn__shard shard;

    struct cairn__grad *gradient;
    /* In device memory: multiplies what backward writes, before it is read; NULL = 1. Owned by a module that outlives
     * the parameter */
    const float *grad_factor;
    uint64_t reached; /* number of the last backward that reaches it: cairn__param_is_reached */

    uint64_t version; /* changes whenever the weights change; caches compare it */
};

/* The ranks that share the updates of a set. After a reduction a rank has the averages of its own shards alone, so its
 * flags, norms and counts cover only these. Errors: of the group. */
struct cairn__sharers {
    void *ctx;
    int size;

    /* Collective: */
    /* This rank has updated its shards of these parameters, of this set and others: gathers the weights of all shards
     * on every rank. Queued on the device, or done on return. */
    cairn_status (*updated)(void *ctx, struct cairn__param *const *params, size_t count);
    /* Raises on all ranks the flags of accumulated sums that any rank has raised. Flags of slots are shared when the
     * slots are reduced. */
    cairn_status (*share_sum_flags)(void *ctx);
    /* all [size * nbytes] gets `mine` of every rank; host memory; waits. */
    cairn_status (*gather)(void *ctx, void *all, const void *mine, size_t nbytes);
    /* Whether all ranks may make the call, given the status that each has found by itself; waits. If a rank's status is
     * not CAIRN_OK, that rank returns it, and the others return CAIRN_EPEER with its message. The group remains
     * usable. */
    cairn_status (*agree)(void *ctx, const char *call, cairn_status status);

    /* Not collective: */
    cairn_status (*progress)(void *ctx); /* CAIRN_OK, or why the group has failed */
    /* A call in which the other ranks wait for this one has failed here, with status and the last error. They fail with
     * the same, in this call or the next. */
    void (*failed)(void *ctx, cairn_status status);
    int (*env_rank)(void *ctx, int rank); /* in the environment */
};

/* What a parameter set calls as backwards run, except those whose gradients stay unsynced: ddp. Functions are required
 * unless marked optional. A status other than CAIRN_OK comes with its message as the last error. */
struct cairn__grad_listener {
    void *ctx;
    bool is_alone; /* no other rank adds to these gradients, so an overflow is this rank's */
    /* (optional) A backward begins. It has written no gradient yet; cairn__param_is_reached returns which ones it will
     * write. For a set of the user's: called before the first gradient that is declared after a settle. A status other
     * than CAIRN_OK ends the backward: failed is called next. */
    cairn_status (*begin)(void *ctx);
    void (*ready)(void *ctx, size_t index); /* the slot of parameter index holds its gradient */
    cairn_status (*progress)(void *ctx);    /* between nodes of a backward */
    cairn_status (*settle)(void *ctx);      /* the backward is over: returns once gradients may be read */
    void (*failed)(void *ctx);              /* the backward failed: the other gradients will not become ready */
    /* (optional) cairn_backward was called with a loss that depends on no tensor that requires a gradient, in any set.
     * A status other than CAIRN_OK means that other ranks wait for gradients of this set: failed is called next. */
    cairn_status (*no_gradient)(void *ctx);
    /* (optional) Called on every rank before a step that all ranks skip. Covers the backwards since the set's gradients
     * were last forgotten. May be collective. Results are equal on all ranks:
     *   *ranks    with those of the environment added whose own gradients were not finite before the reduction
     *   *found    |= an average was not finite; if *ranks is empty then, only the average was not
     *   *checked  the listener has checked all of these backwards */
    cairn_status (*nonfinite_ranks)(void *ctx, struct cairn__ranks *ranks, bool *found, bool *checked);
    /* (optional) Called between backwards when this rank is about to freeze these parameters (on: to thaw them). If it
     * cannot, status says why, with its message as the last error. Collective. CAIRN_OK: all ranks make the same
     * change; else none does. The listener finds out what changed at its next begin. */
    cairn_status (*agree_on_frozen)(void *ctx, const char *call, struct cairn__param *const *params, size_t count,
                                    bool on, cairn_status status);
    /* (optional: default true) Whether the listener keeps parameter index, or the module's buffer with this path, equal
     * on all ranks of the environment. */
    bool (*shares_param)(void *ctx, size_t index);
    bool (*shares_buffer)(void *ctx, const char *path);
    const struct cairn__sharers *sharers; /* (optional: NULL = no parameter of the set is sharded) */
};

/* Calls to freeze or thaw that were refused within a backward and not yet reported to the listener's other ranks. */
struct cairn__refusals {
    int count;
    const char *call, *why; /* of the last */
};

struct cairn_param_set {
    struct cairn_env *env;
    struct cairn_param_set *next; /* in the environment's list */
    struct cairn__param **params;
    size_t count, capacity;
    struct cairn__param **chains; /* hash chains by name (names.c) */
    size_t num_chains;

    const struct cairn__loss_scale *scale; /* of the backward that runs or ran last, in device memory; NULL = 1 */

    /* Overflow flags in device memory, allocated on first need, four per parameter:
     *   [i]                     parameter i's gradient of the last backward is infinite or NaN
     *   [flags_count + i]       its accumulated sum is; from which backward is not known
     *   [2 flags_count + ...]   copies of both, for gradients that are each rank's own and whose flags ranks have
     *                           agreed on (cairn__grad_save_agreed_flags)
     * Raised by the passes that check or reduce gradients. Lowered when the parameter's optimizer takes note of them
     * (cairn__optimizer_take_flags, _take_sums) or the gradient is forgotten. */
    uint32_t *flags;
    size_t flags_count;        /* parameters that have flags; there are 4 flags_count of them */
    struct cairn__item *items; /* [flags_count] scratch for lists */
    /* Which parameters require a gradient, for cairn_param_set_stateful; NULL = not made yet */
    uint8_t *listed;
    size_t listed_capacity;

    /* Device memory, a word per rank and one for cairn__param_set_save_loss; NULL = amp does not check losses. Word r
     * is raised when a loss of rank r is infinite or NaN and its gradients go to this set, and lowered when an
     * optimizer takes note (cairn__optimizer_take_flags) or its gradients are forgotten. A rank raises its own word;
     * ddp all-reduces the words with the next backward that it reduces. */
    uint32_t *bad_losses;
    bool losses_touched; /* words may be raised */
    bool loss_comes;     /* this rank's loss was checked, and its backward has not run yet */

    uint64_t backward; /* number of the backward that runs or ran last */
    /* A backward runs. For a set of the user's: from the first gradient declared to settle, and only with a listener */
    bool in_backward;
    bool unsynced;        /* gradients written from now on stay on this rank (ddp_no_sync) */
    bool spares_unsynced; /* unsynced gradients of ddp_zero_loss, all zeros, are dropped instead of kept */
    /* The last backward was unsynced: no gradient is checked, not even earlier ones, since other ranks would not see
     * the overflow. Cleared by a reduction, a step or clipping */
    bool only_unsynced;

    bool is_users;                    /* made by cairn_param_set_create: its memory is the user's */
    struct cairn__unresolved *losses; /* whose gradients the user declares; NULL = amp does not scale them */
    bool declared, declared_unsynced; /* some were, since the last cairn__param_set_take_declared */

    /* The next three are for several ranks with a listener. ranks_differ and keeps_buffers are saved with the set. */

    /* Unsynced gradients were used since the last reduction: a step now would apply gradients of this rank alone */
    bool used_unsynced;
    /* Weights, and the state that goes with them, are each rank's own: after such a step, a reduction that reduced
     * nothing, or clipping by a norm of this rank alone. Cleared by loading a state without it */
    bool ranks_differ;
    /* Each rank keeps its own buffers through the next training forward, which does not broadcast rank 0's */
    bool keeps_buffers;

    int users; /* optimizers and contexts that refer to this set; none may outlive it */
    const struct cairn__grad_listener *listener; /* ddp; NULL = none */
    struct cairn__refusals refusals;
    const char *frozen_by; /* the call after which types and masters may not change, "ddp_create"; NULL = they may */
    const void *amp;       /* the context that has prepared the set; NULL = none */
    _Alignas(int32_t) char precision[256]; /* amp's settings as text, which ddp_create compares between ranks */
    const void *averages; /* the averages that the parameters hold instead of their own weights; NULL = none */
};

/* The set created last; the others follow by `next`. NULL = there are no sets. */
static inline struct cairn_param_set *cairn__last_set(const struct cairn_env *env) {
    return (struct cairn_param_set *)env->places[CAIRN__PLACE_OF_PARAM].at;
}

/* ---- who uses a set ---- */

/* amp has prepared the set. losses is NULL for a module's set; losses and precision are as the fields of the set. */
void cairn__param_set_begin_amp(struct cairn_param_set *set, const void *amp, struct cairn__unresolved *losses,
                                const char *precision);
void cairn__param_set_end_amp(struct cairn_param_set *set);

/* From now on the set calls listener, which remains the caller's. frozen_by is as the field of the set. */
void cairn__param_set_begin_listen(struct cairn_param_set *set, const struct cairn__grad_listener *listener,
                                   const char *frozen_by);
void cairn__param_set_end_listen(struct cairn_param_set *set);

/* Sets the scale of gradients that the user declares from now on; NULL = 1. */
static inline void cairn__param_set_use_scale(struct cairn_param_set *set, const struct cairn__loss_scale *scale) {
    set->scale = scale;
}

/* ---- making ---- */

cairn_status cairn__param_set_new(struct cairn_env *env, struct cairn_param_set **out); /* empty, for a module */

/* Adds an f32 parameter. The set owns *out and its memory, whose contents are undefined. */
cairn_status cairn__param_set_add(struct cairn_param_set *set, const char *name, int ndim, const int64_t *shape,
                                  bool is_norm, struct cairn__param **out);

/* Finds a parameter by name through a hash (names.c); NULL = none. */
struct cairn__param *cairn__param_set_find(const struct cairn_param_set *set, const char *name);

/* The index of names (names.c). make_room: for count parameters in all, called before the next is added. drop_last:
 * called before the parameter added last is removed. */
cairn_status cairn__param_names_make_room(struct cairn_param_set *set, size_t count);
void cairn__param_names_add(struct cairn_param_set *set, struct cairn__param *p);
void cairn__param_names_drop_last(struct cairn_param_set *set, struct cairn__param *last);

/* Whether any parameter has a gradient, written, accumulated or unsynced. */
bool cairn__param_set_has_gradients(const struct cairn_param_set *set);

/* Removes and destroys the parameter added last. */
void cairn__param_set_drop_last(struct cairn_param_set *set);

/* Moves every parameter of *child to the end of set, under the name prefix + its name, and destroys *child. Pointers to
 * the parameters stay valid. Errors, which change nothing: CAIRN_ESTATE an optimizer or context uses one of the two
 * sets, or the child has gradients; CAIRN_EINVAL a name occurs twice; CAIRN_ENOMEM. */
cairn_status cairn__param_set_adopt(struct cairn_param_set *set, struct cairn_param_set **child, const char *prefix);

/* Converts the parameters that the sets own from f32 to half. keep_master: the f32 values become the master weights,
 * else they are freed. keep_norms: normalisation parameters stay f32. Frees gradient slots that the sets own (their
 * type changes), and begins a new step of the environment, since results may refer to freed memory. Converts all sets
 * or none. */
cairn_status cairn__param_sets_to_half(struct cairn_param_set *const *sets, size_t count, cairn_dtype half,
                                       bool keep_master, bool keep_norms);
static inline cairn_status cairn__param_set_to_half(struct cairn_param_set *set, cairn_dtype half, bool keep_master,
                                                    bool keep_norms) {
    return cairn__param_sets_to_half(&set, 1, half, keep_master, keep_norms);
}

/* The same for parameters in the user's memory, which do not move. f32 parameters get half values in f32 memory; half
 * parameters must be of type `half`. half 0: half parameters keep their type, and f32 parameters have f32 values; one
 * to which an earlier call gave half values gets the bits of its master back. masters: makes masters for all parameters
 * that have or get half values. All or nothing. Errors: CAIRN_ESTATE as above; CAIRN_EINVAL a parameter of the other
 * half type, or a module's set; CAIRN_ENOMEM. */
cairn_status cairn__param_set_take_half_values(struct cairn_param_set *set, cairn_dtype half, bool masters,
                                               bool keep_norms);

/* Whether an optimizer or context uses the set. If so, logs an error of `call`, which must then free nothing: a logged
 * leak is better than a use after free. */
bool cairn__param_set_in_use(const struct cairn_param_set *set, const char *call);

/* sizeof(cairn_param) of 0.8.0. */
#define CAIRN__PARAM_0_8 CAIRN__SIZE_THROUGH(cairn_param, is_norm)

/* cairn_param_set_get without allocating memory for the gradient. */
void cairn__param_describe(const struct cairn__param *p, cairn_param *out);

/* Checks that memory given by the user for a parameter is aligned and belongs to the device. Errors: CAIRN_EINVAL. */
cairn_status cairn__param_check_memory(const struct cairn_param_set *set, const cairn_param *given, const char *what,
                                       const void *p);

/* ---- frozen parameters (requires_grad.c) ---- */

static inline bool cairn__param_requires_grad(const struct cairn__param *p) {
    return p->requires_grad;
}

bool cairn__param_set_any_requires_grad(const struct cairn_param_set *set); /* any parameter does */

/* Whether the parameter's name matches the pattern, by fnmatch(3). */
bool cairn__param_matches(const struct cairn__param *p, const char *pattern);

/* Common part of the public calls, for parameters of one set. call: the public function, for messages. status: whether
 * the parameters were found; passed in so that the listener's ranks agree on it. Errors: as in cairn/param.h. */
cairn_status cairn__params_require_grad(const char *call, struct cairn_param_set *set,
                                        struct cairn__param *const *params, size_t count, bool on, cairn_status status);

/* Refuses calls that freeze or thaw within a backward, with CAIRN_ESTATE. When the backward has settled,
 * report_refusals reports the refusal to the set's listener, collectively over its ranks. (refusals.c) */
cairn_status cairn__param_set_check_between(const char *call, struct cairn_param_set *set);
void cairn__params_report_refusals(struct cairn_env *env);

/* ---- a backward (backward.c) ---- */

/* Begins a backward, which writes the gradients of the parameters whose `reached` is `backward`. scale: of its loss.
 * The caller then calls progress after each node, and at the end settle, or abort after any failure. Errors: the
 * listener's. */
cairn_status cairn__param_set_begin_backward(struct cairn_param_set *set, uint64_t backward,
                                             const struct cairn__loss_scale *scale);
void cairn__param_grad_ready(
    struct cairn__param *p); /* marks the slot written (cairn__grad_mark_written) and calls the listener */
cairn_status cairn__param_set_progress(struct cairn_param_set *set);
cairn_status cairn__param_set_settle(struct cairn_param_set *set);
void cairn__param_set_abort(struct cairn_param_set *set); /* after any failure, one of settle too */
/* no backward runs: calls the listener's no_gradient */
cairn_status cairn__param_set_no_gradient(struct cairn_param_set *set);

/* Records that gradients of the user's were declared and may be checked. */
void cairn__param_set_note_declared(struct cairn_param_set *set);

/* Whether gradients of the user's were declared since the last call. *only_unsynced: all of them under no_sync. */
bool cairn__param_set_take_declared(struct cairn_param_set *set, bool *only_unsynced);

/* Whether the running backward writes p's gradient. true for a set of the user's, where this is not known. */
static inline bool cairn__param_is_reached(const struct cairn__param *p) {
    return p->set->is_users || p->reached == p->set->backward;
}

/* Marks all gradients of the set incomplete: none is applied until it has been forgotten. */
void cairn__param_set_make_incomplete(struct cairn_param_set *set);

/* Starts or stops keeping gradients unsynced. Not within a backward. For a set of the user's, unsynced gradients in its
 * memory are added to the unsynced sum. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_keep_unsynced(struct cairn_param_set *set, bool on);

/* Whether gradients of ddp_zero_loss are dropped while the set keeps gradients unsynced. */
static inline void cairn__param_set_spare_unsynced(struct cairn_param_set *set, bool on) {
    set->spares_unsynced = on;
}

/* Stops keeping gradients unsynced, and forgets those that are. */
void cairn__param_set_drop_unsynced(struct cairn_param_set *set);

/* Accumulates the pending gradients of any set at this scale, because its memory is about to be reused. Errors:
 * CAIRN_ENOMEM. */
cairn_status cairn__params_accumulate_at(struct cairn_env *env, const struct cairn__loss_scale *scale);

/* ---- gradients in the user's memory (declared.c) ---- */

/* cairn_grads_ready for another public function, `call` in messages. */
cairn_status cairn__grads_ready(const char *call, struct cairn_param_set *set, size_t first, size_t count);

/* Whether gradients of p's set, a set of the user's, were declared and are not settled. Until then they belong to the
 * listener. */
static inline bool cairn__param_is_in_flight(const struct cairn__param *p) {
    return p->set->is_users && p->set->in_backward;
}

/* For calls that read, change or forget gradients, which must not be in flight. check_settled: CAIRN_ESTATE, with call
 * in the message. log_if_in_flight, for calls that return nothing: logs the message and returns true. */
cairn_status cairn__params_check_settled(const char *call, struct cairn__param *const *params, size_t count);
bool cairn__params_log_if_in_flight(const char *call, struct cairn__param *const *params, size_t count);

/* Allocates the flags if there are none yet. Errors: CAIRN_ENOMEM. (flags.c) */
cairn_status cairn__param_set_make_flags(struct cairn_param_set *set);

/* ---- lists of gradients (gradients.c) ---- */

/* ddp calls this when a reduction has checked every gradient of this backward. found: some result was infinite or NaN;
 * equal on all ranks. If 0, the slots become CHECKED without a read. Otherwise each slot is read once, to raise the
 * flags of those that overflowed; all ranks hold equal gradients and raise the same flags. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_on_reduced(struct cairn_param_set *set, uint32_t found);

/* Brings flags up to date by reading, once, the gradients that are not checked. items: room for count. The parameters'
 * sets must have flags. */
void cairn__params_check(struct cairn_device *d, struct cairn__param *const *params, size_t count,
                         struct cairn__item *items);

/* The same for all parameters of a set, after allocating its flags. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_check(struct cairn_param_set *set);

/* Whether any gradient is incomplete: its backward failed, and it must not be applied. */
bool cairn__params_incomplete(struct cairn__param *const *params, size_t count);

/* Calls cairn__grad_use_unsynced for each. Errors: CAIRN_ENOMEM. */
cairn_status cairn__params_use_unsynced(struct cairn__param *const *params, size_t count);

/* A step has used the gradients. Those of a user's set are forgotten; those of a module stay as they were until the
 * next backward. */
void cairn__params_consume(struct cairn__param *const *params, size_t count);

/* Forgets gradients. Nothing is written to memory. Call cairn__env_resolve first, which checks them. */
void cairn__params_forget(struct cairn__param *const *params, size_t count);

/* Forgets all gradients of the set, and begins a new step of the environment. Within a backward or a checkpoint it only
 * logs an error. */
void cairn__param_set_zero_grad(struct cairn_param_set *set);

/* ---- losses that are infinite or NaN themselves (loss.c) ---- */

/* Allocates or frees set->bad_losses. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_watch_losses(struct cairn_param_set *set);
void cairn__param_set_unwatch_losses(struct cairn_param_set *set);

/* Called when a loss of this rank is scaled. Returns the flag to raise, before the backward, if the loss is infinite or
 * NaN; NULL = losses are not watched. The loss lasts until its backward, or until end_loss if none follows. */
uint32_t *cairn__param_set_begin_loss(struct cairn_param_set *set);
void cairn__param_set_end_loss(struct cairn_param_set *set);

/* Copy the words [env->size] to ddp's memory and back, for ranks to reduce. Errors: the device's. */
cairn_status cairn__param_set_read_losses(const struct cairn_param_set *set, uint32_t *words);
cairn_status cairn__param_set_write_losses(struct cairn_param_set *set, const uint32_t *words);

/* Whether words may be raised that an optimizer must take note of now. They then count as lowered, unless this rank
 * keeps its own (cairn__param_set_keeps_loss). */
bool cairn__param_set_take_losses(struct cairn_param_set *set);

/* Lowers all words, since the gradients of their losses are forgotten. */
void cairn__param_set_forget_losses(struct cairn_param_set *set);

/* Whether the set has unsynced gradients that a later reduction adds. An optimizer that takes note before that
 * reduction must leave this rank's word as it was, so that the reduction can share it: save before, restore after. */
bool cairn__param_set_keeps_loss(const struct cairn_param_set *set);
void cairn__param_set_save_loss(const struct cairn_param_set *set);
void cairn__param_set_restore_loss(const struct cairn_param_set *set);

/* ---- shards (shard.c) ---- */

static inline const struct cairn__sharers *cairn__param_set_sharers(const struct cairn_param_set *set) {
    return set->listener ? set->listener->sharers : NULL;
}

static inline struct cairn__shard cairn__param_shard(const struct cairn__param *p) {
    return p->is_sharded ? p->shard : (struct cairn__shard){0, p->n};
}

/* The weights from element `first` on. NULL is possible for an empty parameter. */
static inline void *cairn__param_weights_at(const struct cairn__param *p, size_t first) {
    return first > 0 ? (char *)p->data + first * cairn_dtype_nbytes(p->dtype) : p->data;
}

enum { CAIRN__PARAM_ARRAYS = 1 + CAIRN__MAX_STATES };

/* f32 arrays beside the weights: the master, then those of the owner. NULL = the parameter has none. */
struct cairn__param_arrays {
    float *at[CAIRN__PARAM_ARRAYS];
};

float *cairn__param_array(const struct cairn__param *p, int i); /* as at[i] */

/* Allocates arrays of n elements, contents undefined, where p has arrays. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_arrays_make(const struct cairn__param *p, size_t n, struct cairn__param_arrays *out);
void cairn__param_arrays_free(const struct cairn__param *p, struct cairn__param_arrays *arrays);

/* Gives p a new shard (NULL = the whole parameter). `arrays`, of the shard's size, replace p's; elements that both have
 * are copied. Forgets p's gradients. Errors: the device's. */
cairn_status cairn__param_arrays_use(struct cairn__param *p, const struct cairn__shard *shard,
                                     struct cairn__param_arrays *arrays);

/* Check for calls that need all of a parameter's f32 values. Errors: CAIRN_ENOTSUP it is sharded. */
cairn_status cairn__param_check_whole(const char *call, const struct cairn__param *p);
cairn_status cairn__params_check_whole(const char *call, struct cairn__param *const *params, size_t count);

/* Check for calls that change weights or their types. Errors: CAIRN_ESTATE the set holds averages instead. */
cairn_status cairn__param_set_check_own_weights(const char *call, const struct cairn_param_set *set);

/* Moves the weights to other memory, which the set owns (owned) or another owner does. The caller must recycle results
 * that refer to the old memory (env->begin_step). Errors: the device's. */
cairn_status cairn__param_move(struct cairn__param *p, void *to, bool owned);

/* ---- weights ---- */

/* From now on p has the weights of `other`, a parameter of equal shape and type in another environment. p's master is
 * freed. in_place: p uses other's memory and frees its own; otherwise (on another GPU) follow copies the weights if
 * they have changed. Call follow before p is used whenever other may have changed: it also takes over other's version
 * and requires_grad. other must outlive p. Errors of follow: of cairn_param_require_grad, the device's. */
void cairn__param_share(struct cairn__param *p, const struct cairn__param *other, bool in_place);
cairn_status cairn__param_follow(struct cairn__param *p, const struct cairn__param *other);

/* Half weights = round(master) if p has a master; half values in f32 memory without a master = round(weights). Of a
 * sharded parameter, only the shard. */
void cairn__param_round_from_master(struct cairn__param *p);

/* Records that the weights of every parameter have changed. */
void cairn__param_set_weights_changed(struct cairn_param_set *set);

#endif
