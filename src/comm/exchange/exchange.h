/* The collectives of mpi and gloo groups, as transfers and local sums.
 *
 * A reduction is an all-to-all of slices, a sum over ranks by the reduce kernel (f32, rank order, one rounding), and an
 * all-gather of the slices: as many bytes as a ring, and the bits of shm. Long arrays are divided into blocks that stay
 * in cache; the all-to-all of the next block is in flight while this one is summed. Works of a group run one after the
 * other, in order; sends and recvs run beside them. Every poll makes progress in all. */
#ifndef CAIRN__COMM_EXCHANGE_H
#define CAIRN__COMM_EXCHANGE_H

#include "comm/exchange/engine.h"
#include "comm/group_backend.h"

/* Opens the module libcairn_<name>.so once; CAIRN_ENOTBUILT names the meson option that was off. */
cairn_status cairn__engine_find(const char *name, const struct cairn__engine_ops **out);

#endif
