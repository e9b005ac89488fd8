/* Internals that the files of the exchange share.
 *
 * A flow runs one work as transfers. Its array is divided into blocks, and each block takes two transfers with a local
 * part between them: for an all-reduce, an all-to-all of slices, their sum, and an all-gather. Kinds of works leave out
 * what they do not need. Blocks overlap, and all ranks start transfers in the same order whatever the timing: first(0),
 * first(1), second(0), first(2), second(1), and so on. */
#ifndef CAIRN__COMM_EXCHANGE_PARTS_H
#define CAIRN__COMM_EXCHANGE_PARTS_H

#include "comm/exchange/exchange.h"
#include "comm/exchange/levels.h"
#include "core/clock.h"
#include "kernels/kernels.h"

enum {
    EXCHANGE_AHEAD = 2,              /* blocks whose first transfer may be in flight */
    EXCHANGE_SHORT_NBYTES = 64 << 10 /* a slot of short calls */
};

/* What ranks exchange about a call before, or instead of, moving arrays. */
struct exchange_word {
    struct cairn__call call;
    uint32_t found, unused;
};

struct flow;
struct exchange;
struct exchange_machine;

/* How works of a kind are made of transfers, block by block. */
struct exchange_shape {
    /* first and second fill a transfer whose arrays of offsets and sizes are x's, zeroed. (optional: all but first) */
    void (*first)(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t);
    void (*combine)(struct exchange *x, const struct flow *f, size_t block);
    void (*second)(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t);
    void (*begin)(struct exchange *x, const struct flow *f); /* once, before the first block */
    bool parts;  /* arrays are one part of n elements for each rank: blocks are of a part */
    bool stages; /* needs staging */
    /* What the ranks of one machine do in shared memory (machine.h); all of these are set, or none. */
    void (*take_turn)(struct exchange *x, struct flow *f); /* as far as it goes, before transfers are started */
    cairn_status (*may_start)(struct exchange *x, struct flow *f, size_t block, bool *may); /* the block's first */
    bool (*may_end)(struct exchange *x, struct flow *f); /* the transfers are over; once true it is not called again */
    size_t per_block;                                    /* elements of one; 0: as many as some bytes */
};

enum flow_stage { FLOW_QUEUED = 0, FLOW_WORDS, FLOW_ANSWERS, FLOW_MOVES };

struct flow {
    struct flow *next;
    cairn_work *work;
    const struct exchange_shape *shape; /* NULL: nothing but words */
    enum flow_stage stage;
    struct exchange_word mine, theirs; /* of a message; a collective's words stand in x->words */
    struct cairn__moving *word_moving;
    size_t per_block, blocks;       /* elements in one, of them in all */
    size_t started, combined;       /* blocks whose first was started, that were combined (and the second started) */
    size_t staged, gathered, taken; /* blocks within the machine; machine.h */
    char *staging;                  /* EXCHANGE_AHEAD slots of stride bytes, a part for each rank in each */
    size_t stride;
    struct cairn__moving *first[EXCHANGE_AHEAD], *second[EXCHANGE_AHEAD];
};

/* Works in order; the first one is running. */
struct flow_queue {
    struct flow *head, *tail;
};

struct exchange {
    cairn_group *group;
    const struct cairn__engine_ops *ops;
    struct cairn__engine *engine;  /* NULL for one rank */
    struct cairn__engine *answers; /* where calls are checked: receivers' words for senders, in an order of their own */
    const struct cairn__kernels *kernels;
    bool check;                       /* CAIRN_CHECK */
    struct exchange_layout layout;    /* of the ranks on machines */
    bool in_levels;                   /* sums are in two levels: several machines, one with several ranks */
    struct exchange_machine *machine; /* NULL unless in_levels */
    struct flow_queue collectives;
    struct flow_queue *lanes; /* [2 * size] messages to each rank, from each rank; made when needed */
    int messages;             /* in lanes */
    struct flow *free_flows;
    struct exchange_word *words; /* [size] */
    size_t *at[4];               /* [size] each: dst_at, dst_nbytes, src_at, src_nbytes of a transfer */
    const void **srcs;           /* [size] */
    char *short_staging;         /* of flows, each made when needed: a group of short calls takes little memory */
    char *staging;               /* with slots of stride bytes */
    size_t stride;
    void **blocks; /* group memory; NULL where one was freed */
    size_t num_blocks, blocks_capacity;
    bool moved; /* in this step */
    struct cairn__stall stall;
    double doubt;        /* seconds of the stall at which to check for a deadlock next */
    cairn_status failed; /* of a step in post, for the next poll to return; ... */
    char failure[900];   /* ... its sentence */
};

/* ---- shapes.c ---- */

const struct exchange_shape *cairn__exchange_shape(const struct exchange *x, const struct cairn__call *call);
size_t cairn__exchange_per_block(const struct exchange *x, const struct exchange_shape *shape,
                                 const struct cairn__call *call);
/* Of x->staging. */
size_t cairn__exchange_stride(int size);
/* At least what a block of n elements needs of a slot. */
size_t cairn__exchange_staged_nbytes(const struct exchange *x, const struct exchange_shape *shape,
                                     const struct cairn__call *call, size_t n);
/* Whether the call is a sum that the group computes in two levels. */
bool cairn__adds_in_levels(const struct exchange *x, const struct cairn__call *call);

/* ---- flow.c ---- */

/* Errors: CAIRN_ENOMEM, and nothing is queued. */
cairn_status cairn__exchange_queue(struct exchange *x, cairn_work *work);
/* Makes what progress it can in all flows, and sets x->moved if there was any. */
cairn_status cairn__exchange_step(struct exchange *x);
void cairn__exchange_free_flows(struct exchange *x);
/* Fills the all-gather of the ranks' words. */
void cairn__exchange_words(struct exchange *x, struct cairn__transfer *t);

#endif
