/* The gradient of one parameter, and the functions that change it. Only grad.c accesses its fields.
 *
 * Three state machines. An edge is named after the function that takes it, without cairn__grad_, or by a short name
 * (tests/param/walk_test.c walks all of them):
 *
 *     write      mark_written
 *     sync       write_unreached
 *     join       join_reduction
 *     check      list_slot, list_accumulated
 *     add        accumulate, accumulate_at, begin_write, and bind in the place of Cairn's own memory
 *     use        use_unsynced, prepare_read, unscale
 *
 *   slot         what the last backward wrote: in the parameter's type, multiplied by that backward's loss scale
 *
 *     EMPTY      -- write, sync, join ---------> WRITTEN
 *                -- write ---------------------> UNSYNCED in a backward that is not synchronised (no_sync), or EMPTY if
 *                                                the set spares zeros (spares_unsynced)
 *     UNSYNCED   -- add -----------------------> EMPTY (the sum of unsynced gradients gets it)
 *                -- use, sync -----------------> WRITTEN, from where prepare_read and unscale go on
 *                -- write ---------------------> UNSYNCED (memory of the user's, who adds up himself)
 *                -- forget_unsynced -----------> EMPTY
 *     WRITTEN    -- check, set_checked, set_clip -> CHECKED: its flag says whether it is infinite or NaN
 *                -- drop ----------------------> EMPTY
 *     CHECKED    -- consume -------------------> WRITTEN: a further step checks it again
 *     both       -- add, prepare_read, unscale -> EMPTY (the accumulated sum gets it); the last two not, where there is
 *                                                no sum and none is needed
 *                -- write, join ---------------> as from EMPTY (memory of the user's, who adds up himself)
 *                -- sync ----------------------> WRITTEN (the accumulated sum gets what was there)
 *     any        -- forget, place, change_type -> EMPTY
 *
 *   accumulated  the unscaled f32 sum of slots of earlier backwards, which may have had other scales
 *
 *     ABSENT     -- add, use, sync ------------> CHECKED: the pass that adds also checks
 *     CHECKED    -- consume -------------------> UNCHECKED (a module's: a step forgets the user's)
 *     UNCHECKED  -- check, set_clip, add, use, sync -> CHECKED
 *     both       -- write, sync ---------------> ABSENT, if a step had used it from the unsynced sum: it goes back
 *     any        -- forget, change_type -------> ABSENT
 *
 *   unsynced     the unscaled f32 sum of gradients that no_sync keeps on this rank; not checked for overflow
 *
 *     NONE       -- add (a slot that is UNSYNCED) -> KEPT
 *                -- use (such a slot) ---------> USED: a step or clipping came before a synchronising backward
 *     KEPT       -- use -----------------------> USED
 *     USED       -- add -----------------------> USED_KEPT -- use -> USED
 *     any        -- write, sync (synchronised) -> NONE: slot = round(unsynced * scale + slot) is reduced
 *     any        -- forget, forget_unsynced, change_type -> NONE
 *
 * A gradient also stores the scale of the slot, the clipping coefficient that is still to be applied, whether its flags
 * may be raised, whether the optimizer has taken note of it, and whether it is pending.
 *
 * For a sharded parameter (param.h), a reduction leaves this rank only the shard of the slot, and the accumulated sum
 * is [shard]. Checks, accumulation, clipping and steps use only the shard; before the reduction the slot is whole. The
 * slot's flag is raised only by the listener after a reduction, on all ranks. An overflow found later raises the flag
 * of the sum, which ranks share before a step. consume leaves such a slot CHECKED, and raises the flags that ranks have
 * agreed on.
 *
 * The only error of functions that return a status is CAIRN_ENOMEM, since some allocate memory on first need. */
#ifndef CAIRN__PARAM_GRAD_H
#define CAIRN__PARAM_GRAD_H

#include <stdbool.h>

#include "device/env.h"

struct cairn__param;
struct cairn__grad;

enum cairn__slot_state { CAIRN__SLOT_EMPTY, CAIRN__SLOT_UNSYNCED, CAIRN__SLOT_WRITTEN, CAIRN__SLOT_CHECKED };
enum cairn__accumulated_state { CAIRN__ACCUMULATED_ABSENT, CAIRN__ACCUMULATED_UNCHECKED, CAIRN__ACCUMULATED_CHECKED };
enum cairn__unsynced_state {
    CAIRN__UNSYNCED_NONE,
    CAIRN__UNSYNCED_KEPT,
    CAIRN__UNSYNCED_USED,
    CAIRN__UNSYNCED_USED_KEPT
};

struct cairn__grad_states {
    enum cairn__slot_state slot;
    enum cairn__accumulated_state accumulated;
    enum cairn__unsynced_state unsynced;
};

/* A gradient as stored. Multiplied by *factor it is unscaled. */
struct cairn__grad_view {
    const void *x; /* NULL = no gradient */
    size_t n;      /* elements of the parameter, or of its shard after ranks have reduced it (struct cairn__shard) */
    cairn_dtype dtype;
    cairn_dtype values;  /* the type of the values in x: dtype, or a half type in f32 memory */
    const float *factor; /* in device memory; NULL = 1 */
};

/* slot: memory of the user's, or NULL. */
cairn_status cairn__grad_new(struct cairn__param *param, void *slot, struct cairn__grad **out);
void cairn__grad_free(struct cairn__grad *g);

/* ---- looking; changes nothing ---- */

struct cairn__grad_states cairn__grad_states(const struct cairn__grad *g);

bool cairn__grad_is_written(const struct cairn__grad *g);     /* the slot is not empty */
bool cairn__grad_is_accumulated(const struct cairn__grad *g); /* there is an accumulated sum */
bool cairn__grad_exists(const struct cairn__grad *g);         /* either */
bool cairn__grad_is_synced(const struct cairn__grad *g);      /* either, where an unsynced slot does not count */
bool cairn__grad_is_unsynced(const struct cairn__grad *g);    /* there is an unsynced slot or sum */

bool cairn__grad_is_scaled(const struct cairn__grad *g); /* the slot is multiplied by a loss scale */
/* The slot's scale is not that of the set's backward. */
bool cairn__grad_is_at_other_scale(const struct cairn__grad *g);
bool cairn__grad_is_clipped(const struct cairn__grad *g);    /* a coefficient is still to be applied */
bool cairn__grad_is_noted(const struct cairn__grad *g);      /* the optimizer has taken note of it */
bool cairn__grad_is_incomplete(const struct cairn__grad *g); /* its backward failed half-way */

/* Part of the gradient was written since a step, taken or skipped, last used it. A checkpoint saved now would lose that
 * part; gradients that a step has used need not be saved. */
bool cairn__grad_is_pending(const struct cairn__grad *g);

/* The slot if there is one, else the accumulated sum, else the unsynced sum. */
struct cairn__grad_view cairn__grad_peek(const struct cairn__grad *g);

/* The memory of the slot; NULL until it is needed. */
void *cairn__grad_memory(const struct cairn__grad *g);

bool cairn__grad_owns_memory(const struct cairn__grad *g); /* neither the user's nor a bucket's */

/* ---- memory ---- */

cairn_status cairn__grad_make_memory(struct cairn__grad *g); /* where there is none */

/* Moves the slot to memory of another owner, a bucket or the user. The contents are not moved. NULL: the next backward
 * allocates memory. */
void cairn__grad_place(struct cairn__grad *g, void *slot);

/* Moves the slot to memory of the user's. A gradient in Cairn's own memory is accumulated first. A gradient in the
 * user's old memory keeps its state, and its elements are expected in the new memory. */
cairn_status cairn__grad_bind(struct cairn__grad *g, void *slot);

/* The parameter's type changes: frees memory of the old type, and drops what it holds. */
void cairn__grad_change_type(struct cairn__grad *g);

/* While a parameter is frozen: frees Cairn's own memory of the slot and the sums of a forgotten gradient. The user's
 * memory stays bound. */
void cairn__grad_free_memory(struct cairn__grad *g);

/* Before the shard changes: frees the memory of a forgotten gradient's accumulated sum, which is [shard]. */
void cairn__grad_free_sum(struct cairn__grad *g);

/* ---- backward ---- */

/* Returns in *slot where to write the gradient of this backward: n elements of the parameter's type, to be overwritten.
 * A gradient that an earlier backward left there is unscaled if a clipping coefficient is pending, and accumulated. */
cairn_status cairn__grad_begin_write(struct cairn__grad *g, void **slot);

/* The slot has been written, at the set's scale. A synchronising backward adds the unsynced sum to the slot; in any
 * other (set->unsynced) the slot becomes UNSYNCED. */
void cairn__grad_mark_written(struct cairn__grad *g);

/* For a parameter that a synchronising backward does not reach: fills the slot with the unsynced sum, at this
 * backward's scale, or zeros. */
cairn_status cairn__grad_write_unreached(struct cairn__grad *g);

/* This rank has no gradient, but its slot takes part in the reduction: it counts as written, at the set's scale. */
void cairn__grad_join_reduction(struct cairn__grad *g);

/* The slot counts as not written: no rank had a gradient in this backward. */
void cairn__grad_drop(struct cairn__grad *g);

/* Adds a written slot to the accumulated sum, an unsynced one to the unsynced sum, and leaves the slot empty. */
cairn_status cairn__grad_accumulate(struct cairn__grad *g);

/* cairn__grad_accumulate if the slot is at this scale, whose memory is about to be reused. */
cairn_status cairn__grad_accumulate_at(struct cairn__grad *g, const struct cairn__loss_scale *scale);

void cairn__grad_fail(struct cairn__grad *g); /* the backward failed half-way: incomplete until forgotten */

/* ---- overflow ---- */

/* If the slot is WRITTEN and of this type, or the accumulated sum UNCHECKED: sets *item, which the caller must give to
 * passes->check, and marks it CHECKED. False: nothing to check, or not yet (set->only_unsynced,
 * cairn__param_is_in_flight). */
bool cairn__grad_list_slot(struct cairn__grad *g, cairn_dtype dtype, struct cairn__item *item);
bool cairn__grad_list_accumulated(struct cairn__grad *g, struct cairn__item *item);

/* A reduction has checked the slot: WRITTEN becomes CHECKED. Raises no flag; cairn__param_set_on_reduced does. */
void cairn__grad_set_checked(struct cairn__grad *g);

/* The optimizer takes note of a gradient that ranks have added up. False if there is none. */
bool cairn__grad_note(struct cairn__grad *g);

/* If the flag of the last backward's gradient, or of the accumulated sum, may be raised: fills *taken for
 * passes->take_flags, which moves the flag to the optimizer (the caller fills in rank and to). The flag then counts as
 * lowered. */
bool cairn__grad_take_flag(struct cairn__grad *g, struct cairn__taken *taken);
bool cairn__grad_take_accumulated_flag(struct cairn__grad *g, struct cairn__taken *taken);

void cairn__grad_touch_flags(struct cairn__grad *g); /* another rank may have raised them */
void cairn__grad_touch_sum_flag(struct cairn__grad *g);
bool cairn__grad_has_touched_flags(const struct cairn__grad *g);
void cairn__grad_lower_flags(struct cairn__grad *g); /* while a step is recorded, even if none is raised */

/* For a gradient, or a shard, that is this rank's own (ddp_options.ignored) but whose flags ranks have reduced. Saves
 * the flags, so that every step that consumes the gradient raises them again, until it is forgotten. */
void cairn__grad_save_agreed_flags(struct cairn__grad *g);
void cairn__grad_drop_agreed_flags(struct cairn__grad *g); /* a later reduction has found none */

/* ---- step ---- */

/* For a call that reads, changes or applies the gradient before ranks have reduced it: the unsynced gradient counts as
 * this rank's gradient from now on, and is checked. A later synchronising backward still reduces it. */
cairn_status cairn__grad_use_unsynced(struct cairn__grad *g);

/* Returns what the optimizer reads. Uses the unsynced gradient, and accumulates a slot if there is an accumulated
 * sum. */
cairn_status cairn__grad_prepare_read(struct cairn__grad *g, struct cairn__grad_view *view);

/* Sets the clipping coefficient (device memory), by which the step will multiply; changes no element. Returns the flag
 * for the pass that computes the norm to raise; the gradient then counts as CHECKED and noted. Call
 * cairn__grad_prepare_read first. */
uint32_t *cairn__grad_set_clip(struct cairn__grad *g, const float *coefficient);

/* unscale makes the gradient an unscaled f32 one, with clipping applied. unscaled_memory returns it, or its shard; NULL
 * = none. */
cairn_status cairn__grad_unscale(struct cairn__grad *g);
float *cairn__grad_unscaled_memory(const struct cairn__grad *g);

/* A step has used the gradient, which does not change: a further step checks it again. */
void cairn__grad_consume(struct cairn__grad *g);

/* The optimizer that clipped the gradient or took note of it is destroyed. Applies its coefficient (drops it, if there
 * is no memory for that), and clears `noted` for the next optimizer. */
void cairn__grad_release(struct cairn__grad *g);

/* Forgets the gradient. Nothing is written to memory; cairn__params_forget lowers the flags before. */
void cairn__grad_forget(struct cairn__grad *g);

/* Forgets the unsynced gradient. */
void cairn__grad_forget_unsynced(struct cairn__grad *g);

#endif
