/* All-reduces in two levels: what the ranks of one machine do in shared memory, between and after the transfers to
 * other machines.
 *
 * The first ranks of each machine, as many as the machine with fewest has, are its owners: owner i owns slice i of
 * every block. A block goes as follows.
 *
 *   stage     each rank puts its block into its bounce, unless it reduces group memory in place
 *   first     when all ranks of the machine have staged: an owner adds up its slice over them, in f32, and sends a
 *             sub-slice of that to the owner of the same slice on each other machine
 *   combine   adds up the sub-slices of all machines, divides and rounds once, into its own bounce or array
 *   second    the owners of one slice gather the others' sub-slices, in the array's type
 *   take      when all owners have their slices: each rank copies them into its array
 *
 * A rank counts the blocks that it has staged, gathered and taken in its lane, of which the others wait for. So there
 * are no locks. A block's bounce is free again when all have taken it. The shared memory, the ranks' sockets and the
 * bell are those of a group of shm, which moves nothing itself. */
#ifndef CAIRN__COMM_MACHINE_H
#define CAIRN__COMM_MACHINE_H

#include "comm/exchange/parts.h"

struct exchange_machine; /* a rank's own, of one group */

/* Those of this machine call it together. peers are the whole group's: when the environment's group is made; else NULL,
 * and parent is the parent's. */
cairn_status cairn__machine_make(struct exchange *x, const struct cairn__group_create_options *options,
                                 const struct cairn__peers *peers, const struct exchange *parent,
                                 struct exchange_machine **out);
void cairn__machine_end(struct exchange_machine **machine);
/* To the others of this machine; any thread. */
void cairn__machine_give_up(struct exchange_machine *machine, const char *cause, bool aborted);

/* Group memory, which the machine's ranks reduce where it is. */
cairn_status cairn__machine_alloc(struct exchange_machine *machine, size_t nbytes, void **out);
cairn_status cairn__machine_free(struct exchange_machine *machine, void *memory);

/* A rank of this machine for which the last step waited, as the group numbers it; -1 = none. */
int cairn__machine_awaited(const struct exchange_machine *machine);
/* Called when nothing moves: whether that rank, at *position in its machine, has ended, left or given up, which is
 * looked up now and then. What it did before is there by then: only if after a further step it is still waited for, the
 * call has failed. */
bool cairn__machine_lost(struct exchange_machine *machine, int *position);
/* CAIRN_EPEER with the words for that. */
cairn_status cairn__machine_fail(const struct exchange *x, int position, const struct cairn__call *call);
/* Sleeps, some ms at most, until a rank of this machine moves on, or cairn__machine_wake is called, which any thread
 * may. In between lie_down and get_up comes a step, and after it, where nothing moved, sleep with what lie_down
 * returned. */
uint32_t cairn__machine_lie_down(struct exchange_machine *machine);
void cairn__machine_sleep(struct exchange_machine *machine, uint32_t seen);
void cairn__machine_get_up(struct exchange_machine *machine);
void cairn__machine_wake(void *machine);

/* What a block of n elements needs of a slot, on groups of so many ranks; and the longest. */
size_t cairn__machine_staged_nbytes(size_t n, int size);
size_t cairn__machine_stride(void);
extern const struct exchange_shape cairn__machine_allreduce;

#endif
