/* The amp context, internal interface: the models and optimizers of one amp_initialize, and a scaler for each loss. */
#ifndef CAIRN__AMP_CONTEXT_H
#define CAIRN__AMP_CONTEXT_H

#include "fp8_casts.h"
#include "guard.h"
#include "param/param.h"
#include "policy.h"
#include "scaler.h"

/* A scaled loss: begun and not ended, or ended and not checked for overflow yet. */
struct cairn__loss {
    int id;
    int micro_batch;  /* its number; 0 = one more than the last */
    bool delayed;     /* may be checked with the next loss, if that has the same scaler and optimizers */
    uint64_t *guards; /* bit i: the loss was given optimizer i; points into the context's memory */
};

struct amp_context {
    struct cairn__unresolved
        unresolved; /* the last loss that ended; first member, so that its address is the context's */
    cairn_env *env;
    struct cairn__amp_policy policy;

    cairn_module **models;
    size_t num_models;
    struct cairn_param_set **sets; /* the models' sets, or the one set of the user's */
    size_t num_sets;
    struct cairn__amp_guard **guards; /* one for each optimizer */
    size_t num_guards;
    cairn_optimizer *own; /* updates nothing: made for a set of the user's without an optimizer; else NULL */

    amp_scaler **scalers;         /* [policy.num_losses] */
    struct cairn__fp8_casts *fp8; /* NULL = none */
    uint32_t *found;              /* [2] in device memory: the loss being checked overflowed; second word for share() */

    bool open; /* between amp_scale_loss and amp_scale_loss_end */
    struct cairn__loss begun, ended;

    /* For contexts of amp_initialize_params. */
    struct {
        int id;       /* the loss whose scale amp_next_scale returned last */
        bool counted; /* it counts as a loss of the next step: gradients were declared */
    } shown;
    bool in_step; /* between amp_begin_step and amp_end_step, with `end` set */
    struct cairn__step_end end;
};

/* Arguments of amp_initialize and amp_initialize_params: models, or a set. */
struct cairn__amp_parts {
    const char *call;
    cairn_env *env;
    cairn_module *const *models;
    size_t num_models;
    struct cairn_param_set *set; /* if there are no models */
    cairn_optimizer *const *optimizers;
    size_t num_optimizers;
};

/* `resolve` of a context with a set of the user's: checks gradients that were declared ready (params.c). */
cairn_status cairn__amp_resolve_declared(struct cairn__unresolved *unresolved);
/* Sets set->scale as a repeated amp_next_scale for the last loss would. */
cairn_status cairn__amp_take_scale(struct cairn__unresolved *unresolved);
/* Creates the context for amp_initialize or amp_initialize_params. Errors: theirs. */
cairn_status cairn__amp_create(const struct cairn__amp_parts *parts, const struct amp_options *options,
                               amp_context **out);

/* The guard of an optimizer; NULL if the optimizer was not given to this context. */
struct cairn__amp_guard *cairn__amp_guard_of(const amp_context *amp, const cairn_optimizer *optimizer, size_t *index);

/* Whether losses and gradients are checked for overflow. They are not if no step would be skipped. */
static inline bool cairn__amp_checks(const amp_context *amp) {
    return amp->policy.enabled && amp->policy.skip_nonfinite;
}

/* Checks the gradients of the loss that ended last for overflow. */
cairn_status cairn__amp_resolve(struct cairn__unresolved *unresolved);

#endif
