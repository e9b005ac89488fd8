/* amp's implementation of struct cairn__step_guard, one for each optimizer. A guard knows which losses the gradients
 * come from, skips the step if a gradient overflowed, and logs the skip. */
#ifndef CAIRN__AMP_GUARD_H
#define CAIRN__AMP_GUARD_H

#include "optim/hooks.h"
#include "scaler.h"

/* Overflows of all partners of an optimizer. `said` holds the names. */
struct cairn__amp_found {
    struct amp_overflow *list; /* [count], the loss first, then by partner */
    size_t count;
    char *said;
};

struct cairn__amp_guard {
    cairn_env *env;
    cairn_optimizer *optimizer;
    const void *owner;          /* the context that has prepared the parameters; NULL = none */
    amp_scaler *const *scalers; /* by loss_id */
    int num_scalers;
    bool skips;                   /* a step with an infinite or NaN gradient is skipped */
    bool agrees;                  /* ranks agree on overflow before the step */
    struct cairn__fp8_casts *fp8; /* the owner's, whose scales a step updates; NULL = none */
    const bool *open;             /* whether the owner has begun a scaled loss and not ended it; NULL = no owner */
    void (*ending)(struct cairn__amp_guard *guard); /* as the optimizer ends; NULL = the guard ends first */
    bool is_step_explicit;                          /* within amp_scaler_step */

    uint64_t losses;   /* bit i: loss i has been scaled for this optimizer since its last step */
    int micro_batch;   /* scaled losses since then */
    bool checks_late;  /* gradients of several losses are checked together (delay_unscale) */
    bool checked_late; /* the same of the last step */

    uint64_t last_before; /* number of the last report of a step before this guard was made */
    /* If has_last: [num_last] overflows of the last skipped step whose report was read, one per parameter, then one for
     * the losses. Host memory. */
    struct cairn__overflow *last;
    size_t num_last;
    bool has_last;

    /* If knows_nonfinite_ranks: the ranks whose own gradients were not finite in the skipped step. Empty: only the sum
     * over the ranks is not finite. */
    struct cairn__ranks nonfinite_ranks;
    bool knows_nonfinite_ranks;

    /* What went wrong on which partner (optim/hooks.h), as text, if the next step is one that all partners skip; NULL
     * or "" = it is not known to be one. */
    char *partners_say;
    struct cairn__amp_found partners_found; /* the same as a list */
    struct cairn__amp_found last_found;     /* of the last skipped step, beside `last`; empty = it had no partners */

    int32_t *words, *theirs; /* buffers for ranks that agree; host memory */
    struct cairn__overflow *overflows;

    /* [2][census_room], if a scaler's rule uses statistics of gradients: device memory, and a copy on the host. */
    struct cairn__census *census, *host_census;
    size_t census_room;
};

/* Creates a guard for the optimizer's steps. The array scalers remains the caller's and must outlive the guard. waits:
 * a step waits for its report. Errors: CAIRN_ESTATE the optimizer has a guard; CAIRN_ENOMEM. */
cairn_status cairn__guard_create(cairn_optimizer *optimizer, const void *owner, amp_scaler *const *scalers,
                                 int num_scalers, bool skips, bool waits, struct cairn__amp_guard **out);

/* From now on all ranks skip a step if one of them skips it, and its report names the gradients of all ranks
 * (cairn__guard_agree). Errors: CAIRN_ENOMEM. */
cairn_status cairn__guard_make_agree(struct cairn__amp_guard *guard);

/* Makes skip and overflows equal on all ranks. Collective; called after the checks and before the scalers are updated.
 * Waits for the device and for the other ranks. Errors: of the group. */
cairn_status cairn__guard_agree(struct cairn__amp_guard *guard);

/* The same with the optimizer's partners; each calls it before its step. Errors: of the group; CAIRN_ENOMEM. */
cairn_status cairn__guard_agree_with_partners(struct cairn__amp_guard *guard);

/* Before a step that partners skip: lists in partners_found the overflows of every partner. own [parameters + 1] has
 * those of this one. Each partner calls it. Errors: of the group; CAIRN_ENOMEM. */
cairn_status cairn__found_exchange(struct cairn__amp_guard *guard, const struct cairn__partners *partners,
                                   const struct cairn__overflow *own);
void cairn__found_end(struct cairn__amp_found *found);

/* The rank whose gradients overflowed before ddp reduced them; -1 = none, several, or not known. */
int32_t cairn__guard_only_nonfinite_rank(const struct cairn__amp_guard *guard);

/* Writes "non-finite gradient in weight (1 inf of 40), first in micro-batch 2, on stage 1 (rank 1)", of this optimizer
 * alone. */
void cairn__guard_explain_own(const struct cairn__amp_guard *guard, const struct cairn__overflow *overflows, char *text,
                              size_t nbytes);

/* After cairn__guard_agree, on every rank: if the step will be skipped, asks ddp, which has reduced the gradients, for
 * the ranks whose own gradients overflowed. Does nothing on a GPU, where the host does not yet know whether the step is
 * skipped. Errors: of the group. */
cairn_status cairn__guard_find_nonfinite_ranks(struct cairn__amp_guard *guard);

/* After cairn__guard_find_nonfinite_ranks: if the step will be skipped, adds up the counts of overflowed elements over
 * the ranks that share updates. Does nothing on a GPU, where shards are not counted. Errors: of the group;
 * CAIRN_ENOMEM. */
cairn_status cairn__guard_unite_shards(struct cairn__amp_guard *guard);

/* Statistics of the optimizer's unscaled gradients, as far as scaler's rule uses them, added up over the ranks or
 * partners that decide on the step together. Waits for the device; collective over these ranks. Errors: CAIRN_ENOMEM;
 * CAIRN_ESTATE a graph is being recorded; CAIRN_EDEVICE; of the group. (statistics.c) */
cairn_status cairn__guard_statistics(struct cairn__amp_guard *guard, const amp_scaler *scaler,
                                     struct amp_scaler_statistics *out);

/* Before a step, once ranks agree on its losses: gives its statistics to the pending scalers whose rules use them. */
cairn_status cairn__guard_count(struct cairn__amp_guard *guard);

/* Removes the guard from its optimizer and frees it. Reads no reports: callers read them before. */
void cairn__guard_destroy(struct cairn__amp_guard **guard);

/* Records that a loss was scaled whose gradients reach the optimizer. micro_batch: its number, 0 = the next one.
 * is_unsynced: its gradients stay unsynced; unsynced losses and the next loss whose gradients are reduced count as one
 * micro-batch. */
void cairn__guard_add_loss(struct cairn__amp_guard *guard, int loss_id, bool is_unsynced, int micro_batch);

/* Whether all sets of the optimizer keep gradients unsynced (ddp_no_sync). */
bool cairn__guard_is_unsynced(const struct cairn__amp_guard *guard);

/* Checks the gradients and notes overflows. If there is one, every *raises[i] is raised (device memory, at most
 * CAIRN__SHARE_MAX). Returns whether there may have been one. */
bool cairn__guard_check(struct cairn__amp_guard *guard, uint32_t *const *raises, size_t num_raises);
/* The same for a step: checks accumulated sums too. */
void cairn__guard_check_all(struct cairn__amp_guard *guard, uint32_t *const *raises, size_t num_raises);

/* Writes "weight (2 inf, 1 nan of 512), bias", cut with ", and 12 more" to fit. */
void cairn__guard_names(const struct cairn__amp_guard *guard, const struct cairn__overflow *overflows, char *text,
                        size_t nbytes);

#endif
