/* All-reduces in two levels: the part of one machine's ranks in shared memory, between and after the transfers to other
 * machines.
 *
 * The first ranks of each machine, as many as the machine with the fewest ranks has, are its owners: owner i owns slice
 * i of every block. A block passes these stages:
 *
 *   stage     each rank puts its block into its bounce, unless it reduces group memory in place
 *   first     when all ranks of the machine have staged: an owner adds up its slice over them, in f32, and sends a
 *             sub-slice of that to the owner of the same slice on each other machine
 *   combine   adds up the sub-slices of all machines, divides and rounds once, into its own bounce or array
 *   second    the owners of one slice gather the others' sub-slices, in the array's type
 *   take      when all owners have their slices: each rank copies them into its array
 *
 * In its lane a rank counts the blocks that it has staged, gathered and taken; other ranks wait for these counts, so
 * there are no locks. A block's bounce is free again when all ranks have taken the block. The shared memory, the ranks'
 * sockets and the bell are those of a group of shm, which moves nothing itself. */
#ifndef CAIRN__COMM_MACHINE_H
#define CAIRN__COMM_MACHINE_H

#include "comm/exchange/parts.h"

struct exchange_machine; /* a rank's own, of one group */

/* Collective over the ranks of this machine. For the environment's group, peers are those of the whole group; otherwise
 * peers is NULL, and parent is the parent group's exchange. */
cairn_status cairn__machine_make(struct exchange *x, const struct cairn__group_create_options *options,
                                 const struct cairn__peers *peers, const struct exchange *parent,
                                 struct exchange_machine **out);
void cairn__machine_end(struct exchange_machine **machine);
/* Tells the other ranks of this machine that the group is dead; any thread. */
void cairn__machine_give_up(struct exchange_machine *machine, const char *cause, bool aborted);

/* Group memory, which the machine's ranks reduce in place. */
cairn_status cairn__machine_alloc(struct exchange_machine *machine, size_t nbytes, void **out);
cairn_status cairn__machine_free(struct exchange_machine *machine, void *memory);

/* The group's number of a rank of this machine that the last step waited for; -1 = none. */
int cairn__machine_awaited(const struct exchange_machine *machine);
/* Called when nothing moves: whether that rank, at *position in its machine, has ended, left or given up; checks only
 * now and then. What the rank did before is visible by then, so the call has failed only if a further step still waits
 * for the rank. */
bool cairn__machine_lost(struct exchange_machine *machine, int *position);
/* Returns CAIRN_EPEER with the message for that. */
cairn_status cairn__machine_fail(const struct exchange *x, int position, const struct cairn__call *call);
/* Sleeps, some ms at most, until a rank of this machine makes progress or any thread calls cairn__machine_wake. Call
 * lie_down, make a step, call sleep with lie_down's result if nothing moved, and then get_up. */
uint32_t cairn__machine_lie_down(struct exchange_machine *machine);
void cairn__machine_sleep(struct exchange_machine *machine, uint32_t seen);
void cairn__machine_get_up(struct exchange_machine *machine);
void cairn__machine_wake(void *machine);

/* Bytes of a slot that a block of n elements needs in a group of size ranks; and the largest such number. */
size_t cairn__machine_staged_nbytes(size_t n, int size);
size_t cairn__machine_stride(void);
extern const struct exchange_shape cairn__machine_allreduce;

#endif
