/* Parameters from inside: the one meeting point of nn (which writes gradients), ddp (which reduces them), amp (which
 * scales losses and looks for overflow) and optim (which reads gradients). grad.h has the gradient of one parameter and
 * its states.
 *
 * A gradient's life: nn asks where to write it (cairn__grad_begin_write), writes it, and says so
 * (cairn__param_grad_ready); a listener (ddp) may reduce it in place; after backward cairn__param_set_settle returns
 * when it has. The optimizer asks for what to read (cairn__grad_prepare_read).
 *
 * While a set keeps its gradients unsynced (ddp's no_sync) the listener's functions of a backward (begin to
 * no_gradient) are not called. */
#ifndef CAIRN__PARAM_H
#define CAIRN__PARAM_H

#include <stdbool.h>

#include "cairn/param.h"
#include "device/env.h"
#include "param/grad.h"

/* The elements of a parameter that a rank updates where ranks share its update (ddp_options.shard_optimizer). */
struct cairn__shard {
    size_t first, n;
};

struct cairn__param {
    struct cairn_param_set *set;
    size_t index; /* in the set */
    char *name;
    struct cairn__param *same_hash; /* the next older one of its chain (names.c) */
    cairn_dtype dtype;              /* of data and of grad */
    cairn_dtype value_type;         /* a half type whose values stand in f32 memory; 0 = dtype's own */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    size_t n;
    bool is_norm;
    bool requires_grad; /* else it is frozen: its gradient is empty, and nothing writes one */

    void *data;    /* the weights that forward reads */
    float *master; /* [shard] f32 values that the optimizer updates; NULL where data itself is updated */
    bool owns_data, owns_master;
    bool stochastic;       /* updates of half weights without a master are rounded at random */
    const void *owner;     /* the optimizer that updates it; NULL = none */
    const uint64_t *steps; /* the number of the last step that the owner has queued; NULL without an owner */
    float **arrays;        /* [num_arrays] of the owner, each f32 of [shard] in device memory, or NULL */
    int num_arrays;

    bool is_sharded; /* else the shard is the whole parameter: cairn__param_shard */
    struct cairn__shard shard;

    struct cairn__grad *gradient;
    const float *grad_factor; /* in device memory: what backward writes is multiplied by it, before anything reads it;
                                 NULL = 1. Of a module that outlives the parameter */
    uint64_t reached; /* the backward that reaches it, of those that nn has begun last: cairn__param_is_reached */

    uint64_t version; /* changes whenever the weights do: key of caches */
};

/* The ranks that share the updates of a set. After a reduction a rank has the average of its shards alone, and so its
 * flags, norms and counts are of these. Errors: of the group. */
struct cairn__sharers {
    void *ctx;
    int size;

    /* Collective: */
    /* This rank has updated its shards of these parameters, of this set and others: every rank gets the weights of all.
     * The device's, or returns when they are there. */
    cairn_status (*updated)(void *ctx, struct cairn__param *const *params, size_t count);
    /* Flags of accumulated sums that one rank has raised are raised on all. Those of slots are shared when these are
     * reduced. */
    cairn_status (*share_sum_flags)(void *ctx);
    /* all [size * nbytes] gets every rank's mine, memory of the host; waits. */
    cairn_status (*gather)(void *ctx, void *all, const void *mine, size_t nbytes);
    /* Whether all ranks may make the call, by what each has found out alone; waits. Where one has another status than
     * CAIRN_OK, it returns that, and the others CAIRN_EPEER with its sentence. The group lives. */
    cairn_status (*agree)(void *ctx, const char *call, cairn_status status);

    /* By this rank alone: */
    cairn_status (*progress)(void *ctx); /* why the group is dead; CAIRN_OK: it lives */
    /* A call in which the others wait for this rank has failed here: with status, and the last error. They fail with
     * it, in this call or the next. */
    void (*failed)(void *ctx, cairn_status status);
    int (*env_rank)(void *ctx, int rank); /* in the environment */
};

/* What a parameter set tells ddp about its backwards, but not of those whose gradients stay unsynced; and what it asks.
 * Every function is required but those marked optional. A status other than CAIRN_OK comes with its message as the last
 * error. */
struct cairn__grad_listener {
    void *ctx;
    bool is_alone; /* no other rank adds to these gradients: what overflows is this rank's */
    /* (optional) A backward begins; it has written no gradient yet, and cairn__param_is_reached returns which it will
     * write. Of the user's set: called before the first gradient is declared after a settle. A status other than
     * CAIRN_OK ends the backward: failed is called next. */
    cairn_status (*begin)(void *ctx);
    void (*ready)(void *ctx, size_t index); /* the slot of parameter index holds its gradient */
    cairn_status (*progress)(void *ctx);    /* between nodes of a backward */
    cairn_status (*settle)(void *ctx);      /* the backward is over: return once gradients may be read */
    void (*failed)(void *ctx);              /* it failed half-way: what was ready will not be completed */
    /* (optional) cairn_backward was called with a loss that depends on no tensor that requires a gradient, in this
     * set or any other. A status other than CAIRN_OK says that other ranks wait for gradients of this set: failed is
     * called next. */
    cairn_status (*no_gradient)(void *ctx);
    /* (optional) Called on every rank before a step that all ranks skip, of the backwards since the set's gradients
     * were last forgotten. May be collective. Results are equal on all ranks:
     *   *ranks    with those of the environment added whose own gradients were not finite before the reduction
     *   *found    |= an average was not finite; if *ranks is empty then, only the average was not
     *   *checked  the listener has checked all of these backwards */
    cairn_status (*nonfinite_ranks)(void *ctx, struct cairn__ranks *ranks, bool *found, bool *checked);
    /* (optional) Between backwards: this rank is about to freeze these parameters (on: to thaw them), unless status
     * says why it cannot, with its message as the last error. Collective. CAIRN_OK: all ranks change the same; else
     * none does. The listener finds what changed at its next begin. */
    cairn_status (*agree_on_frozen)(void *ctx, const char *call, struct cairn__param *const *params, size_t count,
                                    bool on, cairn_status status);
    /* (optional: yes, of all) Whether the listener keeps parameter index, or the module's buffer of this path, equal on
     * all ranks of the environment. */
    bool (*shares_param)(void *ctx, size_t index);
    bool (*shares_buffer)(void *ctx, const char *path);
    const struct cairn__sharers *sharers; /* (optional: no parameter of the set is sharded) */
};

/* Calls that would freeze or thaw and came within a backward, of which the listener's other ranks have not heard. */
struct cairn__refusals {
    int count;
    const char *call, *why; /* of the last */
};

struct cairn_param_set {
    struct cairn_env *env;
    struct cairn_param_set *next; /* in the environment's list */
    struct cairn__param **params;
    size_t count, capacity;
    struct cairn__param **chains; /* by name: names.c */
    size_t num_chains;

    const struct cairn__loss_scale *scale; /* of the backward now running or last run, in device memory; NULL = 1 */

    /* Overflow flags in device memory, made on first need, four per parameter:
     *   [i]                     parameter i's gradient of the last backward is infinite or NaN
     *   [flags_count + i]       its accumulated sum is; from which backward is not known
     *   [2 flags_count + ...]   copies of both, for gradients that are each rank's own and whose flags ranks have
     *                           agreed on (cairn__grad_save_agreed_flags)
     * Raised by the passes that check or reduce gradients. Lowered when the parameter's optimizer takes note of them
     * (cairn__optimizer_take_flags, _take_sums) or the gradient is forgotten. */
    uint32_t *flags;
    size_t flags_count;        /* of parameters; flags are four times as many */
    struct cairn__item *items; /* [flags_count] room for lists */
    uint8_t *listed;           /* which parameters require a gradient, for cairn_param_set_stateful; NULL = not yet */
    size_t listed_capacity;

    /* Device memory, a word per rank and one for cairn__param_set_save_loss; NULL = amp does not check losses. Word r
     * is raised while a loss of rank r was infinite or NaN, gradients of it went to this set, and no optimizer has
     * taken note (cairn__optimizer_take_flags). A rank raises its own word; ddp all-reduces the words with the next
     * backward that it reduces. */
    uint32_t *bad_losses;
    bool losses_touched; /* they may be raised */
    bool loss_comes;     /* this rank's was looked at, and its backward is still to come */

    uint64_t backward;    /* the number of the backward now running or last run */
    bool in_backward;     /* one is running. Of the user's set: from the first gradient declared to settle, and only
                             with a listener */
    bool unsynced;        /* gradients that are written from now on stay on this rank (ddp_no_sync) */
    bool spares_unsynced; /* but those of ddp_zero_loss, all zeros, are dropped instead of kept */
    bool only_unsynced;   /* the last backward was unsynced: no gradient is checked, earlier ones included, since other
                             ranks would not see the overflow. Cleared by a reduction, a step or clipping */

    bool is_users;                    /* its memory is the user's: cairn_param_set_create made it */
    struct cairn__unresolved *losses; /* whose gradients the user declares ready; NULL = amp does not scale them */
    bool declared, declared_unsynced; /* there are some since these were last looked at */

    /* Of several ranks with a listener, and part of the set's state. */
    bool used_unsynced; /* since the last reduction: a step that comes now applies gradients of this rank alone */
    bool ranks_differ;  /* weights, and what belongs to them, are each rank's own: after such a step, a reduction that
                           reduced nothing, or clipping by a norm of this rank alone. Cleared by loading a state
                           without it */
    bool keeps_buffers; /* buffers are each rank's own until the next training forward, which does not send rank 0's */

    int users; /* optimizers and contexts that refer to this set; none may outlive it */
    const struct cairn__grad_listener *listener; /* ddp; NULL = none */
    struct cairn__refusals refusals;
    const char *frozen_by; /* "ddp_create": types and masters may no longer change; NULL = they may */
    const void *amp;       /* the context that has prepared it; NULL = none */
    _Alignas(int32_t) char precision
        [256];            /* what amp made of the set, in words: equal on every rank, or ddp_create says so */
    const void *averages; /* which the parameters have instead of their own weights; NULL = none */
};

/* The set that was made last; the others follow by `next`. NULL = none is alive. */
static inline struct cairn_param_set *cairn__last_set(const struct cairn_env *env) {
    return (struct cairn_param_set *)env->places[CAIRN__PLACE_OF_PARAM].at;
}

/* ---- who uses a set ---- */

/* amp has prepared the set. losses: of a user's set, else NULL; precision: as the field. */
void cairn__param_set_begin_amp(struct cairn_param_set *set, const void *amp, struct cairn__unresolved *losses,
                                const char *precision);
void cairn__param_set_end_amp(struct cairn_param_set *set);

/* listener, which stays the caller's, gets the set's gradients. frozen_by: as the field. */
void cairn__param_set_begin_listen(struct cairn_param_set *set, const struct cairn__grad_listener *listener,
                                   const char *frozen_by);
void cairn__param_set_end_listen(struct cairn_param_set *set);

/* The scale of gradients that the user declares from now on; NULL = 1. */
static inline void cairn__param_set_use_scale(struct cairn_param_set *set, const struct cairn__loss_scale *scale) {
    set->scale = scale;
}

/* ---- making ---- */

cairn_status cairn__param_set_new(struct cairn_env *env, struct cairn_param_set **out); /* empty, for a module */

/* Adds an f32 parameter whose memory the set owns, contents undefined. *out is owned by the set. */
cairn_status cairn__param_set_add(struct cairn_param_set *set, const char *name, int ndim, const int64_t *shape,
                                  bool is_norm, struct cairn__param **out);

/* The parameter of this name, by a hash (names.c); NULL = none. */
struct cairn__param *cairn__param_set_find(const struct cairn_param_set *set, const char *name);

/* The index of names (names.c). make_room: for count parameters in all, before the next is added. drop_last: before the
 * parameter added last is removed. */
cairn_status cairn__param_names_make_room(struct cairn_param_set *set, size_t count);
void cairn__param_names_add(struct cairn_param_set *set, struct cairn__param *p);
void cairn__param_names_drop_last(struct cairn_param_set *set, struct cairn__param *last);

/* Whether a parameter has a gradient, written or accumulated, this rank's own or not. */
bool cairn__param_set_has_gradients(const struct cairn_param_set *set);

/* Takes back the parameter that was added last, and ends it. */
void cairn__param_set_drop_last(struct cairn_param_set *set);

/* Moves every parameter of *child to the end of set, where it is called prefix + its name, and ends *child. Pointers to
 * the parameters stay valid. Errors, which change nothing: CAIRN_ESTATE an optimizer or context uses one of the two, or
 * the child has gradients; CAIRN_EINVAL a name twice; CAIRN_ENOMEM. */
cairn_status cairn__param_set_adopt(struct cairn_param_set *set, struct cairn_param_set **child, const char *prefix);

/* Changes the parameters that the sets own from f32 to half; with keep_master the f32 values become the masters,
 * without it they go; with keep_norms normalisation parameters stay as they are. Gradient slots that the sets own go
 * too (they have another type), and a step begins: results may show memory that is gone. All sets or none. */
cairn_status cairn__param_sets_to_half(struct cairn_param_set *const *sets, size_t count, cairn_dtype half,
                                       bool keep_master, bool keep_norms);
static inline cairn_status cairn__param_set_to_half(struct cairn_param_set *set, cairn_dtype half, bool keep_master,
                                                    bool keep_norms) {
    return cairn__param_sets_to_half(&set, 1, half, keep_master, keep_norms);
}

/* The same for parameters in the user's memory, which stay where they are: f32 ones take half values in f32 memory,
 * half ones must be of that type. half 0: half ones keep their type, f32 ones are f32, what an earlier call made half
 * too, with the bits of its master. masters: of all that are or become half. All or nothing. Errors: CAIRN_ESTATE as
 * above; CAIRN_EINVAL the other half type, a module's set; CAIRN_ENOMEM. */
cairn_status cairn__param_set_take_half_values(struct cairn_param_set *set, cairn_dtype half, bool masters,
                                               bool keep_norms);

/* Whether an optimizer or context uses the set; then logs an error of `call`, which must leave all as it is: a logged
 * leak is better than the use of freed memory that would follow. */
bool cairn__param_set_in_use(const struct cairn_param_set *set, const char *call);

/* sizeof(cairn_param) of 0.8.0. */
#define CAIRN__PARAM_0_8 CAIRN__SIZE_THROUGH(cairn_param, is_norm)

/* cairn_param_set_get that makes no gradient memory. */
void cairn__param_describe(const struct cairn__param *p, cairn_param *out);

/* Whether memory that a user gives for a parameter is aligned, and the device's. Errors: CAIRN_EINVAL. */
cairn_status cairn__param_check_memory(const struct cairn_param_set *set, const cairn_param *given, const char *what,
                                       const void *p);

/* ---- frozen parameters (requires_grad.c) ---- */

static inline bool cairn__param_requires_grad(const struct cairn__param *p) {
    return p->requires_grad;
}

bool cairn__param_set_any_requires_grad(const struct cairn_param_set *set); /* some parameter does */

/* Whether its name matches the pattern, as fnmatch(3) has it. */
bool cairn__param_matches(const struct cairn__param *p, const char *pattern);

/* What the public calls do with parameters of one set; call: theirs, for messages. status: whether the parameters were
 * found; it is passed on so that the ranks of a listener agree on it. Errors: as cairn/param.h says. */
cairn_status cairn__params_require_grad(const char *call, struct cairn_param_set *set,
                                        struct cairn__param *const *params, size_t count, bool on, cairn_status status);

/* Calls that freeze or thaw are refused within a backward: CAIRN_ESTATE, and the set's listener hears of it from
 * report_refusals when the backward has settled, which is collective over its ranks. (refusals.c) */
cairn_status cairn__param_set_check_between(const char *call, struct cairn_param_set *set);
void cairn__params_report_refusals(struct cairn_env *env);

/* ---- a backward (backward.c) ---- */

/* A backward begins. scale: of its loss. It writes the gradients of parameters whose `reached` is `backward`. The
 * caller then calls progress after each node, and at the end settle, or abort after any failure. Errors: the
 * listener's. */
cairn_status cairn__param_set_begin_backward(struct cairn_param_set *set, uint64_t backward,
                                             const struct cairn__loss_scale *scale);
void cairn__param_grad_ready(
    struct cairn__param *p); /* its slot is written: cairn__grad_mark_written, and calls the listener */
cairn_status cairn__param_set_progress(struct cairn_param_set *set);
cairn_status cairn__param_set_settle(struct cairn_param_set *set);
void cairn__param_set_abort(struct cairn_param_set *set);               /* after a failure, settle's own too */
cairn_status cairn__param_set_no_gradient(struct cairn_param_set *set); /* no backward: the listener's no_gradient */

/* Gradients of the user's have been declared, and may be checked. */
void cairn__param_set_note_declared(struct cairn_param_set *set);

/* Whether gradients of the user's have been declared since the last call. *only_unsynced: in no_sync alone. */
bool cairn__param_set_take_declared(struct cairn_param_set *set, bool *only_unsynced);

/* Whether the backward now running writes p's gradient. Of the user's set, where that is not known: true. */
static inline bool cairn__param_is_reached(const struct cairn__param *p) {
    return p->set->is_users || p->reached == p->set->backward;
}

/* No gradient of the set is to be applied until it has been forgotten. */
void cairn__param_set_make_incomplete(struct cairn_param_set *set);

/* From here on gradients stay unsynced, or no longer. Not within a backward. Of the user's set, what stands in its
 * memory unsynced is added to the unsynced sum: errors CAIRN_ENOMEM. */
cairn_status cairn__param_set_keep_unsynced(struct cairn_param_set *set, bool on);

/* Whether gradients of ddp_zero_loss are dropped while the set keeps gradients unsynced. */
static inline void cairn__param_set_spare_unsynced(struct cairn_param_set *set, bool on) {
    set->spares_unsynced = on;
}

/* No longer, and what is unsynced is forgotten. */
void cairn__param_set_drop_unsynced(struct cairn_param_set *set);

/* Gradients of any set that wait at this scale are accumulated: its memory is about to be used again. Errors:
 * CAIRN_ENOMEM. */
cairn_status cairn__params_accumulate_at(struct cairn_env *env, const struct cairn__loss_scale *scale);

/* ---- gradients in the user's memory (declared.c) ---- */

/* cairn_grads_ready. call: the public function that messages name. */
cairn_status cairn__grads_ready(const char *call, struct cairn_param_set *set, size_t first, size_t count);

/* Gradients of p's set, which is the user's, were declared and are not settled: they are the listener's. */
static inline bool cairn__param_is_in_flight(const struct cairn__param *p) {
    return p->set->is_users && p->set->in_backward;
}

/* Calls that read, change or forget such gradients are refused: CAIRN_ESTATE, with call in the message. refuse: true,
 * and the message in the log, for calls that return nothing. */
cairn_status cairn__params_check_settled(const char *call, struct cairn__param *const *params, size_t count);
bool cairn__params_log_if_in_flight(const char *call, struct cairn__param *const *params, size_t count);

/* Makes the flags where they are not yet; errors: CAIRN_ENOMEM. (flags.c) */
cairn_status cairn__param_set_make_flags(struct cairn_param_set *set);

/* ---- lists of gradients (gradients.c) ---- */

/* ddp calls it when a reduction has checked every gradient of this backward. found: some result was infinite or NaN,
 * equal on all ranks. 0: their slots count as CHECKED without a read. Else each slot is read once, to raise the flags
 * of those that overflowed; all ranks hold equal gradients, and raise the same flags. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_on_reduced(struct cairn_param_set *set, uint32_t found);

/* Makes flags speak of the gradients as they are: one read of those that are not checked. items: room for count. The
 * parameters' sets have flags. */
void cairn__params_check(struct cairn_device *d, struct cairn__param *const *params, size_t count,
                         struct cairn__item *items);

/* Of all parameters of a set, which gets flags. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_check(struct cairn_param_set *set);

/* Whether some must not be applied: their backward failed half-way. */
bool cairn__params_incomplete(struct cairn__param *const *params, size_t count);

/* cairn__grad_use_unsynced of each. Errors: CAIRN_ENOMEM. */
cairn_status cairn__params_use_unsynced(struct cairn__param *const *params, size_t count);

/* A step has used the gradients. Those of a user's set are used up; a module's stay as they were until the next
 * backward. */
void cairn__params_consume(struct cairn__param *const *params, size_t count);

/* Forgets gradients (nothing is written to memory). Call cairn__env_resolve before, which checks them. */
void cairn__params_forget(struct cairn__param *const *params, size_t count);

/* All of the set's, and begins a new step of the environment. Does nothing within a backward or a checkpoint, where an
 * error is logged. */
void cairn__param_set_zero_grad(struct cairn_param_set *set);

/* ---- losses that are infinite or NaN themselves (loss.c) ---- */

/* Makes bad_losses, or ends them. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_watch_losses(struct cairn_param_set *set);
void cairn__param_set_unwatch_losses(struct cairn_param_set *set);

/* A loss of this rank is scaled: returns the flag to raise if it is infinite or NaN, before its backward; NULL = losses
 * are not watched. Its backward, or end_loss where none comes, ends it. */
uint32_t *cairn__param_set_begin_loss(struct cairn_param_set *set);
void cairn__param_set_end_loss(struct cairn_param_set *set);

/* The words, [env->size], to ddp's memory and back, for ranks to reduce. Errors: the device's. */
cairn_status cairn__param_set_read_losses(const struct cairn_param_set *set, uint32_t *words);
cairn_status cairn__param_set_write_losses(struct cairn_param_set *set, const uint32_t *words);

/* Whether words may be raised that an optimizer should take note of now; they then count as lowered, unless this rank
 * keeps its own (cairn__param_set_keeps_loss). */
bool cairn__param_set_take_losses(struct cairn_param_set *set);

/* Lowers all: the gradients of those losses are forgotten. */
void cairn__param_set_forget_losses(struct cairn_param_set *set);

/* Whether unsynced gradients of the set wait for a reduction. An optimizer that takes note before it must leave this
 * rank's word as it was, for the reduction to pass on: save before, restore after. */
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

/* The weights from element `first` on. Those of an empty parameter may be NULL. */
static inline void *cairn__param_weights_at(const struct cairn__param *p, size_t first) {
    return first > 0 ? (char *)p->data + first * cairn_dtype_nbytes(p->dtype) : p->data;
}

enum { CAIRN__PARAM_ARRAYS = 1 + CAIRN__MAX_STATES };

/* f32 arrays beside the weights: the master, and those of the owner. NULL where the parameter has none. */
struct cairn__param_arrays {
    float *at[CAIRN__PARAM_ARRAYS];
};

float *cairn__param_array(const struct cairn__param *p, int i); /* as at[i] */

/* Arrays of n elements where p has some, contents undefined. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_arrays_make(const struct cairn__param *p, size_t n, struct cairn__param_arrays *out);
void cairn__param_arrays_free(const struct cairn__param *p, struct cairn__param_arrays *arrays);

/* p's shard is this one from now on (NULL: the whole), and arrays, of its size, take the place of p's, whose elements
 * are copied where they have some in common. Its gradients are forgotten. Errors: the device's. */
cairn_status cairn__param_arrays_use(struct cairn__param *p, const struct cairn__shard *shard,
                                     struct cairn__param_arrays *arrays);

/* Of calls that need all of a parameter's f32 values. Errors: CAIRN_ENOTSUP it is sharded. */
cairn_status cairn__param_check_whole(const char *call, const struct cairn__param *p);
cairn_status cairn__params_check_whole(const char *call, struct cairn__param *const *params, size_t count);

/* Of calls that change weights or what they are. Errors: CAIRN_ESTATE the set has averages instead. */
cairn_status cairn__param_set_check_own_weights(const char *call, const struct cairn_param_set *set);

/* The weights stand in other memory from now on, the set's (owned) or another owner's. Results that show them are to
 * be recycled (env->begin_step). Errors: the device's. */
cairn_status cairn__param_move(struct cairn__param *p, void *to, bool owned);

/* ---- weights ---- */

/* p has the weights of another parameter of its shape and type, in another environment, from now on; its own master
 * goes. in_place: it shows the other's memory, and its own goes; else, on another GPU, follow copies what has changed.
 * follow comes before p is used, whenever the other may have changed: p's version and requires_grad become the other's.
 * The other outlives p. Errors of follow: of cairn_param_require_grad, the device's. */
void cairn__param_share(struct cairn__param *p, const struct cairn__param *other, bool in_place);
cairn_status cairn__param_follow(struct cairn__param *p, const struct cairn__param *other);

/* Half weights = round(master), where p has one; of half values in f32 memory without one, round(weights). Of a sharded
 * parameter: those of the shard. */
void cairn__param_round_from_master(struct cairn__param *p);

/* The weights of every parameter have changed. */
void cairn__param_set_weights_changed(struct cairn_param_set *set);

#endif
