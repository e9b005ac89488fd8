/* A call on a group as the other ranks see it: the part that must be the same on every rank, and how messages describe
 * it and its ranks. */
#ifndef CAIRN__COMM_CALL_H
#define CAIRN__COMM_CALL_H

#include <stdbool.h>

#include "cairn/dist.h"

enum cairn__call_kind {
    CAIRN__ALLREDUCE = 1,
    CAIRN__REDUCE,
    CAIRN__BROADCAST,
    CAIRN__ALLGATHER,
    CAIRN__REDUCE_SCATTER,
    CAIRN__ALLTOALL, /* the last of the collectives that move arrays */
    CAIRN__SEND,
    CAIRN__RECV,
    CAIRN__BARRIER,
    CAIRN__ALLOC, /* allocates n bytes of group memory; completes when all ranks have posted it */
    CAIRN__FREE,  /* frees group memory, likewise; n identifies the allocation */
    CAIRN__AGREE, /* a barrier whose found is the OR of every rank's found */
};

/* Integers only, so it can be placed in shared memory and sent as bytes. */
struct cairn__call {
    uint64_t number;     /* of the collective in its group, from 1; of the message between its two ranks, from 1 */
    uint64_t n;          /* elements; bytes of CAIRN__ALLOC; which allocation of CAIRN__FREE */
    union {              /* each kind has one of these at most */
        int32_t root;    /* of a reduce or broadcast */
        int32_t peer;    /* of a send or recv: the other rank */
        int32_t divisor; /* of an all-reduce or reduce-scatter to the average: 0 = the group's size */
    };
    uint8_t kind, dtype, redop, unused;
};

/* "rank 1"; in a group of some ranks, or of all in another order, "rank 1 of group 3 (rank 5 of all)". */
void cairn__group_name_rank(const cairn_group *group, int rank, char *text, size_t nbytes);

/* "all-reduce", "send", ... */
const char *cairn__call_name(enum cairn__call_kind kind);

static inline bool cairn__call_is_message(const struct cairn__call *call) {
    return call->kind == CAIRN__SEND || call->kind == CAIRN__RECV;
}

/* What a reduction over size ranks is divided by: 1, except for averages. */
static inline int cairn__call_divisor(const struct cairn__call *call, int size) {
    const bool may_differ = call->kind == CAIRN__ALLREDUCE || call->kind == CAIRN__REDUCE_SCATTER;
    if (call->redop != CAIRN_AVG) return 1;
    return may_differ && call->divisor > 0 ? call->divisor : size;
}

/* Whether two ranks' calls match. A send matches a recv of the same number, count and type. */
bool cairn__calls_agree(const struct cairn__call *a, const struct cairn__call *b);

/* "all-reduce number 17 of 5 f32 to the average", "the group's creation" for number 0 */
void cairn__call_describe(const struct cairn__call *call, char *text, size_t nbytes);

/* CAIRN_EPEER, the same sentence on both ranks of the group: "all-reduce number 17: rank 0 issues 5 f32 to sum, rank 2
 * issues 6 f32 to sum; every rank must issue the same collectives in the same order". */
cairn_status cairn__fail_mismatch(const cairn_group *group, int rank, const struct cairn__call *call, int other,
                                  const struct cairn__call *others);

#endif
