/* Parameters from inside, and the state of their gradients: the one meeting point of nn (which writes gradients), ddp
 * (which reduces them), amp (which sets factor and flag) and optim (which reads them).
 *
 * A gradient's life: nn calls cairn__param_grad_slot and overwrites what it points to, then cairn__param_grad_ready; a
 * listener (ddp) may reduce it in place; after backward cairn__param_set_settle returns when it has. The slot then
 * holds the gradient of one backward at one scale, times p->factor the true one. A further backward folds it into an
 * f32 accumulator first. The optimizer asks cairn__param_grad_final for what to read.
 *
 * While a set holds its gradients (ddp's no_sync) they are this rank's own: the listener hears nothing, nobody looks at
 * them, and a further backward folds them into an f32 accumulator of their own, p->local. The first gradient that is
 * not held is added to them before the listener hears of it: slot = round(local * S + slot). A step that comes before
 * takes them as any others (held.c). */
#ifndef CAIRN__PARAM_H
#define CAIRN__PARAM_H

#include <stdbool.h>

#include "cairn/param.h"
#include "device/env.h"

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

    void *data;    /* the weights that forward reads */
    float *master; /* f32 values that the optimizer updates; NULL where data itself is updated */
    bool owns_data, owns_master;
    bool stochastic;               /* updates of half weights without a master are rounded at random */
    struct cairn_optimizer *owner; /* that updates it; NULL = none */

    void *grad;     /* slot; NULL until somebody needs it */
    bool owns_grad; /* not the user's, not a bucket's */
    bool written;   /* the slot holds a gradient */
    const float
        *factor;      /* in device memory; slot * factor is the true gradient: 1/S of its backward. NULL = 1. Else the
                            factor of a struct cairn__loss_scale */
    float *acc;       /* true f32 gradients of earlier backwards; made on first need */
    bool has_acc;     /* acc holds something */
    uint64_t reached; /* the backward that reaches it, of those that nn has begun last: cairn__param_is_reached */

    bool held;      /* the slot's gradient, where one is written, is this rank's own */
    float *local;   /* true f32 gradients of earlier backwards that are this rank's own; made on first need */
    bool has_local; /* local holds something */
    bool own;       /* slot or acc has something of this rank's own: a step or clipping took what was held */

    bool checked, acc_checked;           /* the flags speak of what is in the slot, in acc */
    bool flag_touched, acc_flag_touched; /* they may be raised */
    bool agreed;                         /* the flags were, by all ranks, of a gradient that is each rank's own */
    bool incomplete;                     /* a backward failed half-way: this gradient is not to be applied */
    const float *clip; /* in device memory: this gradient has still to be multiplied by it; NULL = 1 */
    bool seen;         /* the owner has taken note of this gradient: of overflow, or to clip it */

    uint64_t version; /* changes whenever the weights do: key of caches */
};

/* What ddp wants to know, but for backwards whose gradients the set holds: of those it hears nothing. Every slot but
 * the optional one is required. */
struct cairn__grad_listener {
    void *ctx;
    /* (optional) A backward begins, and nothing of it has been written: cairn__param_is_reached tells what it will
     * write. Of the user's set: the first gradient since settle is about to be declared. Another status than CAIRN_OK,
     * whose sentence is written, ends the backward: failed follows. */
    cairn_status (*begin)(void *ctx);
    void (*ready)(void *ctx, size_t index); /* the slot of parameter index holds its gradient */
    cairn_status (*progress)(void *ctx);    /* between nodes of a backward */
    cairn_status (*settle)(void *ctx);      /* the backward is over: return once gradients may be read */
    void (*failed)(void *ctx);              /* it failed half-way: what was ready will not be completed */
    /* (optional) A backward was asked for whose loss wants no gradient, of whichever set. Another status than CAIRN_OK,
     * whose sentence is written, says that somebody waits for gradients of this one: failed follows. */
    cairn_status (*missed)(void *ctx);
    /* (optional) Called on every rank before a step that all ranks skip. Adds to *ranks those of the environment whose
     * own gradients, before the reduction, were infinite or NaN in a backward since the set's gradients were last
     * forgotten. *looked: the listener looked at all of these backwards; *found |= an average was not finite, and if
     * *ranks is empty then, only the average was not. Equal on all ranks; may be collective. */
    cairn_status (*nonfinite_ranks)(void *ctx, struct cairn__ranks *ranks, bool *found, bool *looked);
};

struct cairn_param_set {
    struct cairn_env *env;
    struct cairn_param_set *next; /* in the environment's list */
    struct cairn__param **params;
    size_t count, capacity;
    struct cairn__param **chains; /* by name: names.c */
    size_t num_chains;

    const float *factor; /* 1/S of the backward now running or last run, in device memory: backward knows its loss's
                            scale. NULL = 1 */

    /* In device memory, made on first need: [i] parameter i's gradient of the last backward was infinite or NaN;
     * [flags_count + i] its accumulator is, of which nobody can say which backward it came with. Raised by whoever
     * reads or reduces gradients, lowered when the parameter's optimizer takes note (cairn__optimizer_take_flags,
     * _take_sums) or when the gradient is forgotten. [2 flags_count + ...] the same once more: what ranks have agreed
     * on of gradients that are each rank's own (cairn__params_agreed). */
    uint32_t *flags;
    size_t flags_count;        /* of parameters; flags are four times as many */
    struct cairn__item *items; /* [flags_count] room for lists */

    /* In device memory, [env->size] and room for one more; NULL = amp does not look at losses. Raised: a loss of that
     * rank whose gradients the set gets was infinite or NaN, and no optimizer has taken note
     * (cairn__optimizer_take_flags). A rank raises its own; ddp makes them all ranks' with the next backward that it
     * reduces. */
    uint32_t *bad_losses;
    bool losses_touched; /* they may be raised */
    bool loss_comes;     /* this rank's was looked at, and its backward is still to come */

    uint64_t backward; /* nn's number of the one now running or last run */
    bool
        walking; /* it is running; of the user's set: since the first gradient was declared, until settle. Not while: */
    bool held;   /* gradients that become ready are this rank's own */
    bool spares_held; /* and zeros, of a loss of 0: none is written */
    bool alone; /* the last backward was held: what there is to see in gradients (of earlier ones too) only this rank
                   sees, so nobody looks before ranks have added up or somebody steps */

    bool is_users; /* its memory is the user's: cairn_param_set_create made it */
    struct cairn__unresolved
        *on_ready;                /* who wants to look at gradients that the user has declared ready; NULL = nobody */
    bool declared, declared_held; /* there are some since that one last looked */
    cairn_status (*take_scale)(
        struct cairn__unresolved *on_ready); /* its: factor is that of a loss that begins now; NULL with it */

    int users; /* optimizers and contexts that refer to this set; none may outlive it */
    const struct cairn__grad_listener *listener; /* NULL = nobody */
    const char *frozen_by; /* "ddp_create": types and masters may no longer change; NULL = they may */
    const void *amp;       /* the context that has prepared it; NULL = none */
    _Alignas(int32_t) char precision
        [256]; /* what amp made of the set, in words: equal on every rank, or ddp_create says so */
};

/* ---- making ---- */

cairn_status cairn__param_set_new(struct cairn_env *env, struct cairn_param_set **out); /* empty, for a module */

/* Adds an f32 parameter whose memory the set owns, contents undefined. *out is owned by the set. */
cairn_status cairn__param_set_add(struct cairn_param_set *set, const char *name, int ndim, const int64_t *shape,
                                  bool is_norm, struct cairn__param **out);

/* The parameter that is called so; NULL = none. Whatever their number it takes no longer. */
struct cairn__param *cairn__param_set_find(const struct cairn_param_set *set, const char *name);

/* Room for count names, before the next is added; and that the last one is about to be taken back (names.c). */
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

/* Whether somebody still uses the set; then says so in the log, as an error of `call`, which must leave all as it is: a
 * leak that is told is better than the use of freed memory that would follow. */
bool cairn__param_set_in_use(const struct cairn_param_set *set, const char *call);

/* cairn_param_set_get that makes no gradient memory. */
void cairn__param_describe(const struct cairn__param *p, cairn_param *out);

/* ---- gradients ---- */

/* Where to write p's gradient of this backward: n elements of p->dtype, to be overwritten. Folds what an earlier
 * backward left there. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_grad_slot(struct cairn__param *p, void **slot);

/* The slot is complete: remembers the factor, adds what was held, tells the listener. */
void cairn__param_grad_ready(struct cairn__param *p);

/* A backward begins, whose loss's factor is that; it reaches the parameters whose `reached` is the number. Then nodes,
 * each with progress behind it, and settle or abort. Errors: the listener's; abort follows. */
cairn_status cairn__param_set_begin(struct cairn_param_set *set, uint64_t backward, const float *factor);
cairn_status cairn__param_set_progress(struct cairn_param_set *set);
cairn_status cairn__param_set_settle(struct cairn_param_set *set);
void cairn__param_set_abort(struct cairn_param_set *set);        /* after a failure, settle's own too */
cairn_status cairn__param_set_miss(struct cairn_param_set *set); /* no backward began: the listener's missed */

/* Whether the backward now running writes p's gradient. Of the user's set nobody knows before it is declared: true. */
static inline bool cairn__param_is_reached(const struct cairn__param *p) {
    return p->set->is_users || p->reached == p->set->backward;
}

/* cairn_grads_ready, in whose name sentences speak. */
cairn_status cairn__grads_ready(const char *call, struct cairn_param_set *set, size_t first, size_t count);

/* Gradients of p's set, which is the user's, were declared and are not settled: they are the listener's. */
static inline bool cairn__param_is_on_its_way(const struct cairn__param *p) {
    return p->set->is_users && p->set->walking;
}

/* Nobody reads, changes or forgets such gradients: CAIRN_ESTATE, with call in the sentence. refuse: true, and the
 * sentence in the log, for calls that return nothing. */
cairn_status cairn__params_check_arrived(const char *call, struct cairn__param *const *params, size_t count);
bool cairn__params_refuse(const char *call, struct cairn__param *const *params, size_t count);

/* No gradient of the set is to be applied until it has been forgotten; whether such are among some. */
void cairn__param_set_make_incomplete(struct cairn_param_set *set);
bool cairn__params_incomplete(struct cairn__param *const *params, size_t count);

/* Forgets gradients (nothing is written to memory). Whoever has to look at them has done so: cairn__env_resolve. */
void cairn__params_forget(struct cairn__param *const *params, size_t count);

/* All of the set's, and begins a new step of the environment. */
void cairn__param_set_zero_grad(struct cairn_param_set *set);

/* Gradients of any set that still wait at this factor are folded: its memory is about to be used again. */
cairn_status cairn__params_fold_at(struct cairn_env *env, const float *factor);

/* What the optimizer reads: gradient, its type, and the factor it is multiplied by. *grad = NULL where there is
 * none. */
cairn_status cairn__param_grad_final(struct cairn__param *p, const void **grad, cairn_dtype *dtype,
                                     const float **factor);

/* Makes that gradient a true f32 one, with clipping done. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_unscale(struct cairn__param *p);

/* ---- gradients that are this rank's own (held.c) ---- */

/* From here on gradients are held, or no longer. Not within a backward. Of the user's set, what stands in its memory
 * and was declared while gradients were held goes into p->local: errors CAIRN_ENOMEM. */
cairn_status cairn__param_set_hold(struct cairn_param_set *set, bool on);

/* No longer, and what was held is forgotten. */
void cairn__param_set_drop_held(struct cairn_param_set *set);

/* Whether a gradient of p waits to be added to one that is not held. */
static inline bool cairn__param_has_held(const struct cairn__param *p) {
    return (p->held && p->written) || p->has_local || p->own;
}

/* The held gradient in the slot is added to p->local; the slot is then free. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_keep(struct cairn__param *p);

/* A backward that is not held does not write p: its slot gets what was held, at this backward's scale, or else 0, and
 * is written. What an earlier backward left there is folded. The listener hears nothing. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_grad_absent(struct cairn__param *p);

/* slot = round(held * S + slot), of p->value_type where that is set. */
void cairn__param_add_held(struct cairn__param *p);

/* Somebody reads, changes or applies gradients now, though ranks were not asked: what is held becomes a gradient as any
 * other, which has still to be looked at. It is remembered for a gradient that is not held to be added to it after all.
 * Errors: CAIRN_ENOMEM. */
cairn_status cairn__params_take_held(struct cairn__param *const *params, size_t count);

/* ---- flags ---- */

static inline uint32_t *cairn__param_flag(const struct cairn__param *p) {
    return &p->set->flags[p->index];
}

static inline uint32_t *cairn__param_acc_flag(const struct cairn__param *p) {
    return &p->set->flags[p->set->flags_count + p->index];
}

/* Makes the flags where they are not yet; errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_make_flags(struct cairn_param_set *set);

/* A reduction has looked at every gradient: found tells what it saw. Where it saw something, each gradient is scanned
 * for names: the same ones on all ranks, which have written what any of them has, so that all raise the same flags. */
cairn_status cairn__param_set_report(struct cairn_param_set *set, uint32_t found);

/* Makes flags speak of the gradients as they are: one read of those that nobody has looked at, and that are not held.
 * items: room for count. The parameters' sets have flags. */
void cairn__params_check(struct cairn_device *d, struct cairn__param *const *params, size_t count,
                         struct cairn__item *items);

/* Their gradients are each rank's own, but the flags are now all ranks': until the gradients are forgotten they are
 * raised again for every further step. */
void cairn__params_agreed(struct cairn__param *const *params, size_t count);

/* Of all parameters of a set, which gets flags. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_check(struct cairn_param_set *set);

/* A step has used the gradients. Those of a user's set are used up. Of a module's they are as they were until the next
 * backward, and a further step looks at them again, at those that stand in accumulators too. */
void cairn__params_consumed(struct cairn__param *const *params, size_t count);

/* ---- losses that are infinite or NaN themselves (loss.c) ---- */

/* Makes bad_losses, or ends them. Errors: CAIRN_ENOMEM. */
cairn_status cairn__param_set_watch_losses(struct cairn_param_set *set);
void cairn__param_set_unwatch_losses(struct cairn_param_set *set);

/* Where this rank raises its own, before the loss's backward. */
static inline uint32_t *cairn__param_set_bad_loss(struct cairn_param_set *set) {
    set->losses_touched = set->loss_comes = true;
    return &set->bad_losses[set->env->rank];
}

/* Lowers all: the gradients of those losses are forgotten. */
void cairn__param_set_forget_losses(struct cairn_param_set *set);

/* Whether gradients that are this rank's own wait for a reduction. An optimizer that takes note before it leaves this
 * rank's word as it was, for the others to hear of: save before, restore after. */
bool cairn__param_set_keeps_loss(const struct cairn_param_set *set);
void cairn__param_set_save_loss(const struct cairn_param_set *set);
void cairn__param_set_restore_loss(const struct cairn_param_set *set);

/* ---- weights ---- */

/* Half weights = round(master), where p has one; of half values in f32 memory without one, round(weights). */
void cairn__param_round_from_master(struct cairn__param *p);

/* The weights of every parameter have changed. */
void cairn__param_set_weights_changed(struct cairn_param_set *set);

#endif
