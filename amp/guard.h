/* amp's implementation of struct cairn__step_guard, one for each optimizer: it knows from which losses the gradients
 * came, skips the step if one overflowed, and logs that. */
#ifndef CAIRN__AMP_GUARD_H
#define CAIRN__AMP_GUARD_H

#include "optim/hooks.h"
#include "scaler.h"

/* Overflows of all partners of an optimizer; names stand in `said`. */
struct cairn__amp_found {
    struct amp_overflow *list; /* [count], the loss first, then by partner */
    size_t count;
    char *said;
};

struct cairn__amp_guard {
    cairn_env *env;
    cairn_optimizer *optimizer;
    const void *owner;          /* a context, which has prepared the parameters; or NULL */
    amp_scaler *const *scalers; /* by loss_id */
    int num_scalers;
    bool skips;                   /* a step with an infinite or NaN gradient is skipped */
    bool agrees;                  /* with the other ranks, on overflow */
    struct cairn__fp8_casts *fp8; /* of the owner: a step updates its scales; NULL = none */
    const bool *open;             /* the owner has begun a scaled loss and not ended it; NULL = there is no owner */
    void (*ending)(struct cairn__amp_guard *guard); /* at the optimizer's end; NULL = it lives longer */
    bool is_step_explicit;                          /* within amp_scaler_step */

    uint64_t losses;   /* bit i: loss i has been scaled for this optimizer since its last step */
    int micro_batch;   /* scaled losses since then */
    bool checks_late;  /* gradients of several losses are checked at once (delay_unscale) */
    bool checked_late; /* and were in the last step */

    uint64_t last_before; /* the number of the last report of a step before this guard */
    /* [num_last] overflows of the last skipped step that is known of, if has_last: of its parameters, and last of the
     * losses; host memory */
    struct cairn__overflow *last;
    size_t num_last;
    bool has_last;

    /* If knows_nonfinite_ranks: ranks whose own gradients were not finite, of the skipped step; empty: only the
     * sum over the ranks is not finite. */
    struct cairn__ranks nonfinite_ranks;
    bool knows_nonfinite_ranks;

    /* Of the step that partners (optim/hooks.h) skip: what went wrong where, of all of them; NULL or "" = it is not
     * known to be one. */
    char *partners_say;
    struct cairn__amp_found partners_found; /* the same as a list */
    struct cairn__amp_found last_found;     /* of the last skipped step, beside `last`; empty = partners have no part */

    int32_t *words, *theirs; /* of ranks that agree; host memory */
    struct cairn__overflow *overflows;

    /* [2][census_room], where a scaler's rule looks at gradients: in device memory, and the host's copy. */
    struct cairn__census *census, *host_census;
    size_t census_room;
};

/* Makes a guard of the optimizer's steps. scalers stays the caller's. waits: a step waits for its report. Errors:
 * CAIRN_ESTATE the optimizer has one; CAIRN_ENOMEM. */
cairn_status cairn__guard_create(cairn_optimizer *optimizer, const void *owner, amp_scaler *const *scalers,
                                 int num_scalers, bool skips, bool waits, struct cairn__amp_guard **out);

/* From now on a step that one rank skips is skipped on every rank, and its report names the gradients of all:
 * cairn__guard_agree. Errors: CAIRN_ENOMEM. */
cairn_status cairn__guard_make_agree(struct cairn__amp_guard *guard);

/* Makes skip and overflows equal on all ranks: after the checks and before the scalers' updates, on every rank. Waits
 * for the device and for the other ranks. Errors: of the group. */
cairn_status cairn__guard_agree(struct cairn__amp_guard *guard);

/* The same with the optimizer's partners: on each of them before its step. Errors: of the group; CAIRN_ENOMEM. */
cairn_status cairn__guard_agree_with_partners(struct cairn__amp_guard *guard);

/* Of the step that partners are about to skip: lists in partners_found what each of them found; own [parameters + 1] is
 * what this one did. On each of them. Errors: of the group; CAIRN_ENOMEM. */
cairn_status cairn__found_exchange(struct cairn__amp_guard *guard, const struct cairn__partners *partners,
                                   const struct cairn__overflow *own);
void cairn__found_end(struct cairn__amp_found *found);

/* The rank whose gradients overflowed before ddp reduced them; -1: none, several, or not known. */
int32_t cairn__guard_only_nonfinite_rank(const struct cairn__amp_guard *guard);

/* "non-finite gradient in weight (1 inf of 40), first in micro-batch 2, on stage 1 (rank 1)", of this optimizer
 * alone. */
void cairn__guard_explain_own(const struct cairn__amp_guard *guard, const struct cairn__overflow *overflows, char *text,
                              size_t nbytes);

/* After that, on every rank: if the step will be skipped, gets from ddp, which has reduced the gradients, the ranks
 * whose own gradients overflowed. Does nothing on a GPU, where the host does not know of the skip yet. Errors: of the
 * group. */
cairn_status cairn__guard_find_nonfinite_ranks(struct cairn__amp_guard *guard);

/* After the same: if the step will be skipped, overflows count the elements of all ranks that share updates. Does
 * nothing on a GPU, where counts of shards are not taken. Errors: of the group; CAIRN_ENOMEM. */
cairn_status cairn__guard_unite_shards(struct cairn__amp_guard *guard);

/* What the optimizer's gradients are, unscaled, as far as scaler's rule looks at them; with those of ranks or partners
 * that decide on the step together. Waits for the device; collective where others take part. Errors: CAIRN_ENOMEM;
 * CAIRN_ESTATE a graph is being recorded; CAIRN_EDEVICE; of the group. (statistics.c) */
cairn_status cairn__guard_statistics(struct cairn__amp_guard *guard, const amp_scaler *scaler,
                                     struct amp_scaler_statistics *out);

/* Before a step, once ranks agree on its losses: hands them to the scalers whose rules look at them. */
cairn_status cairn__guard_count(struct cairn__amp_guard *guard);

/* Takes the guard off its optimizer and frees it. Reads no reports: callers do that before. */
void cairn__guard_destroy(struct cairn__amp_guard **guard);

/* A loss was scaled whose gradients reach the optimizer. micro_batch: its number, 0 = the next one. is_unsynced: they
 * stay unsynced; such losses count as one micro-batch together with the next loss whose gradients are reduced. */
void cairn__guard_add_loss(struct cairn__amp_guard *guard, int loss_id, bool is_unsynced, int micro_batch);

/* Whether all sets of the optimizer keep gradients unsynced (ddp_no_sync). */
bool cairn__guard_is_unsynced(const struct cairn__amp_guard *guard);

/* Checks the gradients and notes overflows; where there is one, every *raises[i] is raised (device memory, at most
 * CAIRN__SHARE_MAX). Returns whether there may have been one. */
bool cairn__guard_check(struct cairn__amp_guard *guard, uint32_t *const *raises, size_t num_raises);
/* The same for a step: checks accumulated sums too. */
void cairn__guard_check_all(struct cairn__amp_guard *guard, uint32_t *const *raises, size_t num_raises);

/* "weight (2 inf, 1 nan of 512), bias", cut with ", and 12 more" to fit. */
void cairn__guard_names(const struct cairn__amp_guard *guard, const struct cairn__overflow *overflows, char *text,
                        size_t nbytes);

#endif
