/* The amp context from inside: models and optimizers of one amp_initialize, and a scaler for each loss. */
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
    int micro_batch;  /* its number; 0 = counted */
    bool delayed;     /* may be checked together with the next one, if that has the same scaler and optimizers */
    uint64_t *guards; /* bit i: optimizer i was given; in the context's memory */
};

struct amp_context {
    struct cairn__unresolved
        unresolved; /* of the last loss that ended; first, so that the one is found from the other */
    cairn_env *env;
    struct cairn__amp_policy policy;

    cairn_module **models;
    size_t num_models;
    struct cairn_param_set **sets; /* of the models; or the user's one */
    size_t num_sets;
    struct cairn__amp_guard **guards; /* of the optimizers */
    size_t num_guards;
    cairn_optimizer *own; /* over the user's set, made for a user who updates; NULL */

    amp_scaler **scalers;         /* [policy.num_losses] */
    struct cairn__fp8_casts *fp8; /* NULL = none */
    uint32_t *found; /* [2] device memory: the loss being checked overflowed; the same for share() to pass on */

    bool open; /* amp_scale_loss was called, and amp_scale_loss_end not yet */
    struct cairn__loss begun, ended;

    /* Of amp_initialize_params. */
    struct {
        int id;       /* of the loss whose scale amp_next_scale returned last */
        bool counted; /* as a loss of the next step, once gradients of it were declared */
    } shown;
    bool in_step; /* between amp_begin_step and amp_end_step: */
    struct cairn__step_end end;
};

/* What amp_initialize and amp_initialize_params are given: models, or a set. */
struct cairn__amp_parts {
    const char *call;
    cairn_env *env;
    cairn_module *const *models;
    size_t num_models;
    struct cairn_param_set *set; /* where there are no models */
    cairn_optimizer *const *optimizers;
    size_t num_optimizers;
};

/* The resolve of a context of the user's set: checks gradients that were declared ready (params.c). */
cairn_status cairn__amp_resolve_declared(struct cairn__unresolved *unresolved);
/* Sets set->scale as another call of amp_next_scale for the last loss would. */
cairn_status cairn__amp_take_scale(struct cairn__unresolved *unresolved);
/* Makes the context of amp_initialize or amp_initialize_params, whose errors it returns. */
cairn_status cairn__amp_create(const struct cairn__amp_parts *parts, const struct amp_options *options,
                               amp_context **out);

/* The guard of an optimizer; NULL where it was not given to this context. */
struct cairn__amp_guard *cairn__amp_guard_of(const amp_context *amp, const cairn_optimizer *optimizer, size_t *index);

/* Whether losses and gradients are checked for overflow: not where no step would be skipped. */
static inline bool cairn__amp_checks(const amp_context *amp) {
    return amp->policy.enabled && amp->policy.skip_nonfinite;
}

/* Checks the gradients of the loss that ended last for overflow. */
cairn_status cairn__amp_resolve(struct cairn__unresolved *unresolved);

#endif
