/* What optim offers amp, ddp and parallel: the guard of a step, partners, and the optimizer's overflow state. */
#ifndef CAIRN__OPTIM_HOOKS_H
#define CAIRN__OPTIM_HOOKS_H

#include <stdbool.h>

#include "cairn/optim.h"
#include "kernels/step.h"
#include "param/param.h"
#include "param/stateful.h"

/* The guard of an optimizer's steps, implemented by amp. Called once before a step, and once when the step's report has
 * been read. */
struct cairn__step_guard {
    void *ctx; /* NULL = no guard */
    /* (optional) Calls cairn__optimizer_prepare, then cairn__optimizer_agree with this rank's status. If all ranks may
     * step (*may), raises the optimizer's skip if the step must be skipped, and lists in *end the scalers that the
     * step's report may name; those that the step's end must update are listed with their report rings. A status other
     * than CAIRN_OK refuses the step: no weight is written. */
    cairn_status (*before)(void *ctx, struct cairn__step_end *end, bool *may);
    /* (optional) The report of a step has been read: on the CPU before cairn_step returns, on a GPU later, in order.
     * overflows [parameters + 1], the last is the losses': valid if the step was skipped (report->stepped is 0).
     * cairn_step, or the call that read the report, returns the status. */
    cairn_status (*after)(void *ctx, const struct cairn__step_report *report, const struct cairn__overflow *overflows);
    bool waits;        /* cairn_step waits for its report, unless a graph is being recorded */
    const void *owner; /* only parameters of sets prepared by this owner may be added; NULL = any */
    /* (optional) cairn_optimizer_destroy was called. If release does not remove the guard, the optimizer is not
     * destroyed. */
    void (*release)(void *ctx);
};

/* Optimizers that step together, each on its own rank and over different parameters: the stages of a pipeline. Clipping
 * uses the norm of all their gradients, and if the guard of one skips a step, all skip it. */
struct cairn__partners {
    void *ctx;
    int size, index; /* index: of this optimizer */
    /* all [size * nbytes] gets `mine` [nbytes] of every partner. Collective; waits. Errors: of the group. */
    cairn_status (*gather)(void *ctx, void *all, const void *mine, size_t nbytes);
    /* This optimizer's name in messages: "stage 1". */
    const char *name;
    /* The stage that has p, or, if p is NULL, the one that computes the loss; -1 = none. */
    int (*stage)(void *ctx, const struct cairn__param *p);
    /* Whether this partner counts p's gradient in the norm. If not, another partner has the same parameter and counts
     * it. */
    bool (*counts)(void *ctx, const struct cairn__param *p);
};

/* Sets partners, which remains the caller's and must stay valid until a call with NULL removes it. */
void cairn__optimizer_set_partners(cairn_optimizer *optimizer, const struct cairn__partners *partners);
const struct cairn__partners *cairn__optimizer_partners(const cairn_optimizer *optimizer); /* NULL = none */

/* The norm to which each step itself clips, besides the calls that clip: LAMB's max_grad_norm; 0 = none. */
double cairn__optimizer_max_norm(const cairn_optimizer *optimizer);

/* Sets the optimizer's one guard, which is copied; NULL removes it. */
void cairn__set_step_guard(cairn_optimizer *optimizer, const struct cairn__step_guard *guard);
void *cairn__step_guard_of(const cairn_optimizer *optimizer); /* the guard's ctx; NULL = no guard */

/* Brings gradients into the form that the step reads: uses unsynced sums, resolves losses (cairn__env_resolve), applies
 * the clipping coefficient if other gradients have been added since, and accumulates slots that have a sum. Call it
 * before the check for overflow, since a sum may overflow. Errors: CAIRN_ENOMEM; those of resolving. */
cairn_status cairn__optimizer_prepare(cairn_optimizer *optimizer);

/* The last report that has arrived, read without waiting; number is 0 before the first. */
struct cairn__step_report cairn__optimizer_last_report(const cairn_optimizer *optimizer);

/* The ranks that share updates of its parameters; NULL = none. */
const struct cairn__sharers *cairn__optimizer_sharers(const cairn_optimizer *optimizer);

/* Checks that all its sharded sets are shared by the same ranks, so that cairn__optimizer_sharers stands for all of
 * them; else CAIRN_ENOTSUP, on every rank that waits. */
cairn_status cairn__optimizer_check_sharers(const cairn_optimizer *optimizer, const char *call);

/* Call this with the status of a call in which sharers wait for each other. If the failure is this rank's alone
 * (memory, the device, another group), it makes the sharers' groups fail. A refusal that all ranks get alike does not.
 * Returns status. */
cairn_status cairn__optimizer_end_sharers(const cairn_optimizer *optimizer, cairn_status status);

/* Before a call in which sharers wait for each other; status is this rank's own. If it is not CAIRN_OK on one rank,
 * that rank returns it, the others return CAIRN_EPEER with its message, and the groups remain usable. On a GPU, where
 * the host does not wait here, it does as cairn__optimizer_end_sharers. */
cairn_status cairn__optimizer_agree(const cairn_optimizer *optimizer, const char *call, cairn_status status);

struct cairn_env *cairn__optimizer_env(const cairn_optimizer *optimizer);

/* [cairn_optimizer_num_params], valid until the next add_group. */
struct cairn__param *const *cairn__optimizer_param_list(const cairn_optimizer *optimizer);

/* The sets its parameters belong to, each once. */
struct cairn_param_set *const *cairn__optimizer_sets(const cairn_optimizer *optimizer, size_t *count);

/* Brings flags up to date with the gradients, by reading once those that are not CHECKED. */
void cairn__optimizer_check(cairn_optimizer *optimizer);

/* Notes raised flags: which parameters, the micro-batch (from 1), and how many elements; and losses that are infinite
 * or NaN themselves. If there are any, raises every *raises[i] (device memory, at most CAIRN__SHARE_MAX). Returns
 * whether there may have been any. */
bool cairn__optimizer_take_flags(cairn_optimizer *optimizer, uint32_t micro_batch, uint32_t *const *raises,
                                 size_t num_raises);

/* The same for accumulated sums, which may hold an overflow noted before: call it only at a step. */
bool cairn__optimizer_take_sums(cairn_optimizer *optimizer, uint32_t micro_batch, uint32_t *const *raises,
                                size_t num_raises);

/* In device memory. While it is raised, the next step is skipped. */
uint32_t *cairn__optimizer_skip(cairn_optimizer *optimizer);

/* Drops overflows noted for a step that did not follow: the next step checks again, and is not skipped for them. */
void cairn__optimizer_forget_found(cairn_optimizer *optimizer);

/* In device memory, [parameters + 1], the last is the losses': overflows noted since the last step. */
struct cairn__overflow *cairn__optimizer_overflows(cairn_optimizer *optimizer);

/* Turns every gradient into an unscaled f32 one, with the clipping coefficient applied. Errors: CAIRN_ENOMEM. */
cairn_status cairn__optimizer_unscale(cairn_optimizer *optimizer);

/* Sets the seed of stochastic rounding, for parameters marked stochastic. */
void cairn__optimizer_set_rounding(cairn_optimizer *optimizer, uint64_t seed);

/* The two halves of cairn_step, before and after the update, for an update that no optimizer makes. */
cairn_status cairn__step_begin(cairn_optimizer *optimizer, struct cairn__step_end *end);
cairn_status cairn__step_finish(cairn_optimizer *optimizer, const struct cairn__step_end *end);

/* Updates now the scalers that the step's end would update, for a step that ends much later or not at all. */
void cairn__step_update_scalers(cairn_optimizer *optimizer, struct cairn__step_end *end);

/* What cairn_optimizer_stateful lists and loads, under names that begin with prefix. */
cairn_status cairn__optimizer_list_state(cairn_optimizer *optimizer, const char *prefix,
                                         struct cairn__entries *entries);
cairn_status cairn__optimizer_check_state(const cairn_optimizer *optimizer, const char *prefix,
                                          const struct cairn__entries *entries);
cairn_status cairn__optimizer_state_loaded(cairn_optimizer *optimizer, const char *prefix,
                                           const struct cairn__entries *entries);

/* Creates an optimizer over all parameters of set that updates nothing, because the user updates them. */
cairn_status cairn__user_optimizer_create(cairn_param_set *set, cairn_optimizer **out);

#endif
