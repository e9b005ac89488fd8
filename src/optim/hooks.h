/* What optim shows amp: the guard of a step, and the optimizer's own state of overflow. */
#ifndef CAIRN__OPTIM_HOOKS_H
#define CAIRN__OPTIM_HOOKS_H

#include <stdbool.h>

#include "cairn/optim.h"
#include "kernels/step.h"
#include "param/param.h"
#include "param/stateful.h"

/* The guard of an optimizer's steps: amp. Called once before a step, and once when the step's report has been read. */
struct cairn__step_guard {
    void *ctx; /* NULL = no guard */
    /* (optional) Calls cairn__optimizer_prepare, then cairn__optimizer_agree with whether it may step, and, where all
     * may (*may), raises the optimizer's skip if the step must be skipped, and lists in *end the scalers that the
     * step's report may name, those that the step's end is to update with their rings. A status other than CAIRN_OK
     * refuses the step: no weight is written. */
    cairn_status (*before)(void *ctx, struct cairn__step_end *end, bool *may);
    /* (optional) The report of a step has been read: on the CPU before cairn_step returns, on a GPU later, in order.
     * overflows [parameters + 1], the last one of the losses: valid if the step was skipped (report->stepped is 0). The
     * status is returned by cairn_step, or by the call that read the report. */
    cairn_status (*after)(void *ctx, const struct cairn__step_report *report, const struct cairn__overflow *overflows);
    bool waits;                 /* cairn_step waits for its report, unless a graph is being recorded */
    const void *owner;          /* only parameters of sets that it has prepared may be added; NULL = any */
    void (*release)(void *ctx); /* (optional) cairn_optimizer_destroy was called: if it does not remove the guard, the
                                   optimizer is not destroyed */
};

/* Optimizers that step together, each on a rank of its own and over other parameters: the stages of a pipeline. Their
 * gradients are clipped by the norm of all of them, and a step that one's guard skips is skipped by all. */
struct cairn__partners {
    void *ctx;
    int size, index; /* of this optimizer among them */
    /* all [size * nbytes] gets every partner's mine [nbytes]. Collective; waits. Errors: of the group. */
    cairn_status (*gather)(void *ctx, void *all, const void *mine, size_t nbytes);
    /* "stage 1": of this optimizer, for messages. */
    const char *name;
    /* Of the stage that has p, or, NULL, that computes the loss; -1 = none has it. */
    int (*stage)(void *ctx, const struct cairn__param *p);
    /* Whether p's gradient is in the norm here: another partner has the same parameter otherwise. */
    bool (*counts)(void *ctx, const struct cairn__param *p);
};

/* partners, which stays the caller's, until NULL takes it away. */
void cairn__optimizer_set_partners(cairn_optimizer *optimizer, const struct cairn__partners *partners);
const struct cairn__partners *cairn__optimizer_partners(const cairn_optimizer *optimizer); /* NULL = none */

/* The norm that a step brings its gradients down to, beside the calls that clip: LAMB's max_grad_norm; 0 = none. */
double cairn__optimizer_max_norm(const cairn_optimizer *optimizer);

/* guard is copied; NULL takes it away. One per optimizer. */
void cairn__set_step_guard(cairn_optimizer *optimizer, const struct cairn__step_guard *guard);
void *cairn__step_guard_of(const cairn_optimizer *optimizer); /* its ctx; NULL where there is none */

/* Makes gradients what the step will read: takes unsynced sums, checks the losses that wait (cairn__env_resolve),
 * applies the clipping coefficient where other gradients have come since, and accumulates slots beside sums. Before the
 * check for overflow, since a sum may overflow. Errors: CAIRN_ENOMEM; those of the resolver. */
cairn_status cairn__optimizer_prepare(cairn_optimizer *optimizer);

/* The last report that has come, read without waiting; number is 0 before the first. */
struct cairn__step_report cairn__optimizer_last_report(const cairn_optimizer *optimizer);

/* Those that share updates of its parameters; NULL = none. */
const struct cairn__sharers *cairn__optimizer_sharers(const cairn_optimizer *optimizer);

/* All its sets that ranks share are shared by the same ranks, of which those of cairn__optimizer_sharers speak for all;
 * else CAIRN_ENOTSUP, on every rank that waits. */
cairn_status cairn__optimizer_check_sharers(const cairn_optimizer *optimizer, const char *call);

/* A call in which sharers wait for each other has returned status here: where it is this rank's alone (memory, the
 * device, another group) their groups end with it. What all are refused alike ends nothing. Returns status. */
cairn_status cairn__optimizer_end_sharers(const cairn_optimizer *optimizer, cairn_status status);

/* Before a call in which sharers wait for each other: status is what this rank alone says of it. Where it is not
 * CAIRN_OK on one, it returns that, the others CAIRN_EPEER with its sentence, and their groups live. Not so on a GPU,
 * whose host waits for nothing here: as cairn__optimizer_end_sharers. */
cairn_status cairn__optimizer_agree(const cairn_optimizer *optimizer, const char *call, cairn_status status);

struct cairn_env *cairn__optimizer_env(const cairn_optimizer *optimizer);

/* [cairn_optimizer_num_params], until the next add_group. */
struct cairn__param *const *cairn__optimizer_param_list(const cairn_optimizer *optimizer);

/* The sets its parameters belong to, each once. */
struct cairn_param_set *const *cairn__optimizer_sets(const cairn_optimizer *optimizer, size_t *count);

/* Makes the flags those of the present gradients: reads those that are not CHECKED once. */
void cairn__optimizer_check(cairn_optimizer *optimizer);

/* Notes raised flags: the parameters, the micro-batch (from 1), how many elements; and losses that were infinite or NaN
 * themselves. Where there are some, every *raises[i] is raised (device memory, at most CAIRN__SHARE_MAX). Returns
 * whether there may have been any. */
bool cairn__optimizer_take_flags(cairn_optimizer *optimizer, uint32_t micro_batch, uint32_t *const *raises,
                                 size_t num_raises);

/* The same of accumulated sums, which may hold an overflow that was noted before: only to be called at a step. */
bool cairn__optimizer_take_sums(cairn_optimizer *optimizer, uint32_t micro_batch, uint32_t *const *raises,
                                size_t num_raises);

/* In device memory: raised, the next step is skipped. */
uint32_t *cairn__optimizer_skip(cairn_optimizer *optimizer);

/* Drops the overflow noted for a step that is not made: the next step checks again, and is not skipped for it. */
void cairn__optimizer_forget_found(cairn_optimizer *optimizer);

/* In device memory, [parameters + 1], the last of the losses: what has been noted since the last step. */
struct cairn__overflow *cairn__optimizer_overflows(cairn_optimizer *optimizer);

/* Makes every gradient an unscaled f32 one, with the clipping coefficient applied. Errors: CAIRN_ENOMEM. */
cairn_status cairn__optimizer_unscale(cairn_optimizer *optimizer);

/* The seed of stochastic rounding, for parameters that are marked so. */
void cairn__optimizer_set_rounding(cairn_optimizer *optimizer, uint64_t seed);

/* The two halves of cairn_step, for an update that is not an optimizer's: what comes before it, and what ends it. */
cairn_status cairn__step_begin(cairn_optimizer *optimizer, struct cairn__step_end *end);
cairn_status cairn__step_finish(cairn_optimizer *optimizer, const struct cairn__step_end *end);

/* The scalers that the step's end would update, at once: where it comes much later, or not at all. */
void cairn__step_update_scalers(cairn_optimizer *optimizer, struct cairn__step_end *end);

/* What cairn_optimizer_stateful lists and loads, under names that begin with prefix. */
cairn_status cairn__optimizer_list_state(cairn_optimizer *optimizer, const char *prefix,
                                         struct cairn__entries *entries);
cairn_status cairn__optimizer_check_state(const cairn_optimizer *optimizer, const char *prefix,
                                          const struct cairn__entries *entries);
cairn_status cairn__optimizer_state_loaded(cairn_optimizer *optimizer, const char *prefix,
                                           const struct cairn__entries *entries);

/* An optimizer over all parameters of set that updates nothing: the user does. */
cairn_status cairn__user_optimizer_create(cairn_param_set *set, cairn_optimizer **out);

#endif
