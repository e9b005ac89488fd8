/* The gradient of one parameter, and the functions that change it. Its fields are grad.c's alone.
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
 * Beside them stand, as data: the scale of the slot, the clipping coefficient that is still to be applied, whether the
 * flags may be raised, whether the optimizer has taken note of the gradient, and whether a step has still to use it.
 *
 * Of a sharded parameter (param.h) a reduction leaves this rank the shard of the slot, and accumulated is of [shard]:
 * what checks, accumulates, clips or applies goes by it; what comes before the reduction is whole. Only the listener,
 * when it has reduced, raises the slot's flag, on all ranks; what is found later raises that of the sum, which ranks
 * share before a step. consume leaves such a slot CHECKED, and raises what was agreed on.
 *
 * Errors of all that return a status: CAIRN_ENOMEM, where memory is made on first need. */
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

/* A gradient as it is stored; multiplied by *factor it is unscaled. */
struct cairn__grad_view {
    const void *x; /* NULL = there is none */
    size_t n;      /* elements: the parameter's; of its shard once ranks have reduced it (struct cairn__shard) */
    cairn_dtype dtype;
    cairn_dtype values;  /* the type of the values in x: dtype, or a half type in f32 memory */
    const float *factor; /* in device memory; NULL = 1 */
};

/* slot: the user's memory, or NULL. */
cairn_status cairn__grad_new(struct cairn__param *param, void *slot, struct cairn__grad **out);
void cairn__grad_free(struct cairn__grad *g);

/* ---- looking; changes nothing ---- */

struct cairn__grad_states cairn__grad_states(const struct cairn__grad *g);

bool cairn__grad_is_written(const struct cairn__grad *g);     /* the slot is not empty */
bool cairn__grad_is_accumulated(const struct cairn__grad *g); /* there is an accumulated sum */
bool cairn__grad_exists(const struct cairn__grad *g);         /* either */
bool cairn__grad_is_synced(const struct cairn__grad *g);      /* either, where an unsynced slot does not count */
bool cairn__grad_is_unsynced(const struct cairn__grad *g);    /* a slot or a sum waits for a synchronising backward */

bool cairn__grad_is_scaled(const struct cairn__grad *g);         /* the slot is multiplied by a loss scale */
bool cairn__grad_is_at_other_scale(const struct cairn__grad *g); /* than that of the set's backward */
bool cairn__grad_is_clipped(const struct cairn__grad *g);        /* a coefficient is still to be applied */
bool cairn__grad_is_noted(const struct cairn__grad *g);          /* the optimizer has taken note of it */
bool cairn__grad_is_incomplete(const struct cairn__grad *g);     /* its backward failed half-way */

/* A part of it has been written since a step, taken or skipped, last used it: it would be missing in what is saved now,
 * where what a step has used is not. */
bool cairn__grad_is_pending(const struct cairn__grad *g);

/* The slot; else the accumulated sum; else the unsynced one. */
struct cairn__grad_view cairn__grad_peek(const struct cairn__grad *g);

/* The memory of the slot; NULL until it is needed. */
void *cairn__grad_memory(const struct cairn__grad *g);

bool cairn__grad_owns_memory(const struct cairn__grad *g); /* it is not the user's, nor a bucket's */

/* ---- memory ---- */

cairn_status cairn__grad_make_memory(struct cairn__grad *g); /* where there is none */

/* The slot is in memory of another owner from now on: a bucket, the user. What was in it is not moved. NULL: the next
 * backward makes some. */
void cairn__grad_place(struct cairn__grad *g, void *slot);

/* The slot is memory of the user's from now on. What Cairn's own memory holds is accumulated before; what the user's
 * old memory holds comes along, and counts as it did. */
cairn_status cairn__grad_bind(struct cairn__grad *g, void *slot);

/* The parameter's type changes: memory of the old one goes, with what it holds. */
void cairn__grad_change_type(struct cairn__grad *g);

/* Of a gradient that has been forgotten, while its parameter is frozen: memory that is Cairn's, of the slot and of the
 * sums, goes. The user's stays bound. */
void cairn__grad_free_memory(struct cairn__grad *g);

/* Of one that has been forgotten: memory of the accumulated sum goes, which is [shard], before the shard changes. */
void cairn__grad_free_sum(struct cairn__grad *g);

/* ---- backward ---- */

/* Where to write the gradient of this backward: n elements of the parameter's type, to be overwritten. What an earlier
 * backward left there is unscaled if it is to be clipped, and accumulated. */
cairn_status cairn__grad_begin_write(struct cairn__grad *g, void **slot);

/* The slot has been written, at the set's scale. In a synchronising backward the unsynced sum is added to it; in
 * another (set->unsynced) it becomes UNSYNCED. */
void cairn__grad_mark_written(struct cairn__grad *g);

/* A synchronising backward does not reach the parameter: its slot gets the unsynced sum, at this backward's scale, or
 * zeros. */
cairn_status cairn__grad_write_unreached(struct cairn__grad *g);

/* This rank has no gradient, but the slot takes part in the reduction: it counts as written, at the set's scale. */
void cairn__grad_join_reduction(struct cairn__grad *g);

/* The slot counts as not written: no rank had a gradient in this backward. */
void cairn__grad_drop(struct cairn__grad *g);

/* accumulated += slot, if it is written; an unsynced slot goes to the unsynced sum. The slot is then empty. */
cairn_status cairn__grad_accumulate(struct cairn__grad *g);

/* cairn__grad_accumulate of a slot at this scale, whose memory is about to be used again. */
cairn_status cairn__grad_accumulate_at(struct cairn__grad *g, const struct cairn__loss_scale *scale);

void cairn__grad_fail(struct cairn__grad *g); /* the backward failed half-way: incomplete until forgotten */

/* ---- overflow ---- */

/* If the slot is WRITTEN and of this type, or the accumulated sum UNCHECKED: *item is what the caller has to give to
 * passes->check, and it counts as CHECKED from now on. False: nothing to do, or not yet (set->only_unsynced,
 * cairn__param_is_in_flight). */
bool cairn__grad_list_slot(struct cairn__grad *g, cairn_dtype dtype, struct cairn__item *item);
bool cairn__grad_list_accumulated(struct cairn__grad *g, struct cairn__item *item);

/* A reduction has checked the slot: WRITTEN becomes CHECKED. Raises no flag (cairn__param_set_on_reduced does). */
void cairn__grad_set_checked(struct cairn__grad *g);

/* The optimizer takes note of a gradient that ranks have added up; false where there is none. */
bool cairn__grad_note(struct cairn__grad *g);

/* If the flag of the last backward's gradient, or of the accumulated sum, may be raised: *taken is what
 * passes->take_flags moves to the optimizer (the caller fills in rank and to), and the flag counts as lowered. */
bool cairn__grad_take_flag(struct cairn__grad *g, struct cairn__taken *taken);
bool cairn__grad_take_accumulated_flag(struct cairn__grad *g, struct cairn__taken *taken);

void cairn__grad_touch_flags(struct cairn__grad *g); /* they may be raised, by another rank */
void cairn__grad_touch_sum_flag(struct cairn__grad *g);
bool cairn__grad_has_touched_flags(const struct cairn__grad *g);
void cairn__grad_lower_flags(struct cairn__grad *g); /* whatever they were, if a step is being recorded */

/* The gradient is this rank's own (ddp_options.ignored), or its shard is, but ranks have reduced its flags. Saves
 * these, so that every step that consumes the gradient raises them again, until it is forgotten. */
void cairn__grad_save_agreed_flags(struct cairn__grad *g);
void cairn__grad_drop_agreed_flags(struct cairn__grad *g); /* a later reduction has found none */

/* ---- step ---- */

/* A call reads, changes or applies the gradient before ranks have reduced it: what is unsynced counts as this rank's
 * gradient from now on, and is checked. A synchronising backward that comes later reduces it after all. */
cairn_status cairn__grad_use_unsynced(struct cairn__grad *g);

/* What the optimizer reads: what is unsynced is used, and a slot beside an accumulated sum is accumulated. */
cairn_status cairn__grad_prepare_read(struct cairn__grad *g, struct cairn__grad_view *view);

/* Sets the clipping coefficient (device memory), by which the step will multiply; changes no element. Returns the flag
 * that the pass over the norm raises, so that the gradient counts as CHECKED and noted. After
 * cairn__grad_prepare_read. */
uint32_t *cairn__grad_set_clip(struct cairn__grad *g, const float *coefficient);

/* Makes it an unscaled f32 gradient, with clipping done; and returns that gradient of the shard, NULL = none. */
cairn_status cairn__grad_unscale(struct cairn__grad *g);
float *cairn__grad_unscaled_memory(const struct cairn__grad *g);

/* A step has used it, and it stands as it was: a further step looks at it again. */
void cairn__grad_consume(struct cairn__grad *g);

/* The optimizer that clipped it or took note of it ends: its coefficient is applied (dropped, without memory for that),
 * and the next optimizer has noted nothing. */
void cairn__grad_release(struct cairn__grad *g);

/* There is none any more. Nothing is written to memory; flags are lowered before (cairn__params_forget). */
void cairn__grad_forget(struct cairn__grad *g);

/* What is unsynced is forgotten. */
void cairn__grad_forget_unsynced(struct cairn__grad *g);

#endif
