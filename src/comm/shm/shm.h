/* The shm backend: all ranks on one machine, in shared memory. If all ranks are threads of one process, every rank uses
 * arrays at their addresses (by_address), and there are no files.
 *
 * The ranks of an environment's group have a Unix socket to each other (meet.c): end of file on it means that the peer
 * ended. A process descriptor shows that, too, if a child of the peer keeps the socket open. All shared memory is in
 * unlinked memory files, which are passed over those sockets (memory.c); nothing has a name that could stay behind.
 * Groups made from this one use its sockets and its bell, which wakes the ranks that sleep in any of them; the rest is
 * their own.
 *
 * The control memory has a lane for each rank, which that rank alone writes. To post collective number s a rank fills
 * slot s % SHM_SLOTS of its lane and then stores the slot's ticket. Once all ranks have posted, each compares their
 * slots with its own, and every rank derives the same number of steps from them. A rank stores the count of its steps
 * so far in its lane; step k may begin when all ranks have made step k - 1 (collective.c). So there are no locks, and
 * one store lets every rank continue.
 *
 * If the ranks outnumber the processors they are crowded: most of them sleep, and a step of all ranks would need a time
 * slice for every rank. A sum over group memory then has pieces instead of steps, which the ranks that are awake
 * compute for all ranks (share.c).
 *
 * Slots are reused safely by counting: a rank has at most SHM_OUTSTANDING collectives in its slots, and later ones
 * queue until there is room. So a rank that posts s has seen every rank post s - SHM_OUTSTANDING, and those had
 * completed s - 2 * SHM_OUTSTANDING. Hence SHM_SLOTS.
 *
 * Messages use a pair for each ordered pair of ranks (message.c), whose memory gets its pages at first use. */
#ifndef CAIRN__COMM_SHM_H
#define CAIRN__COMM_SHM_H

#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "comm/group_backend.h"

enum {
    SHM_REGIONS = 7, /* so that struct shm_job is a cache line */
    SHM_OUTSTANDING = 64,
    SHM_SLOTS = 2 * SHM_OUTSTANDING,
    SHM_LINE = 128,                /* two cache lines: the prefetcher of x86 fetches pairs */
    SHM_BOUNCES = 3,               /* per rank, for memory that is not the group's; see collective.c */
    SHM_BOUNCE_NBYTES = 128 << 10, /* of each bounce */
    SHM_CAUSE_NBYTES = 448,
    SHM_CALL_WORDS = sizeof(struct cairn__call) / sizeof(uint64_t),
    SHM_PAIR_SLOTS = 16,
    SHM_PAIR_NBYTES = 64 << 10,
};

/* Where an array is, in a form that every rank can use. */
struct shm_place {
    uint64_t offset;  /* into the segment's part of the array's rank */
    uint32_t segment; /* index + 1; 0 = not group memory. With the two values below, offset is the address */
    uint32_t unused;
};

/* IN_GROUP: group memory of ranks in one process, which stays until the last of them leaves. */
#define SHM_IN_GROUP   (UINT32_MAX - 1)
#define SHM_BY_ADDRESS UINT32_MAX

/* A call that a rank has posted. */
struct shm_slot {
    alignas(64) atomic_uint_fast64_t ticket; /* number + 1 of the call; 0 at first */
    struct cairn__call call;
    struct shm_place src, dst;
};

enum shm_gone { SHM_HERE = 0, SHM_LEFT, SHM_GAVE_UP, SHM_ABORTED };

/* The call in which a rank has waited for a while. */
struct shm_stuck {
    atomic_uint_fast64_t turns;                /* odd = stuck; the other fields are valid while turns is unchanged */
    atomic_int_fast64_t group;                 /* index */
    atomic_uint_fast64_t call[SHM_CALL_WORDS]; /* struct cairn__call */
    atomic_uint_fast64_t dead;                 /* turns at which it detected a deadlock */
};

struct shm_lane {
    alignas(SHM_LINE) atomic_uint_fast64_t steps;
    atomic_uint_fast64_t touching; /* this rank is reading or writing arrays of others by their addresses; reach.c */
    atomic_uint_fast64_t sharing;  /* number + 1 of the collective of which this rank may be computing a piece */
    atomic_uint_fast64_t found;    /* bit number % SHM_OUTSTANDING: this rank found a non-finite result */
    alignas(SHM_LINE) atomic_uint_fast32_t gone; /* enum shm_gone; cause is written before it */
    char cause[SHM_CAUSE_NBYTES];
    atomic_uint_fast64_t calls; /* collectives that this rank had posted when it last got stuck; deadlock.c */
    struct shm_stuck stuck;     /* in any group of the family; of the family's first group */
    cpu_set_t processors; /* that this rank may run on; of the family's first group, written before its first barrier */
    alignas(SHM_LINE) struct shm_slot slots[SHM_SLOTS];
    struct cairn__ranks nonfinite_ranks[SHM_SLOTS]; /* whose sources this rank found non-finite; if a call asks */
};

/* Of a whole family: its first group's. */
struct shm_bell {
    alignas(SHM_LINE) _Atomic uint32_t events; /* futex: counts publications while a rank sleeps */
    alignas(SHM_LINE) _Atomic uint32_t sleepers;
};

/* Which pieces of a collective have been taken and computed; share.c. Words of an earlier collective in the same place
 * count as 0. */
struct shm_job {
    alignas(64) atomic_uint_fast64_t made;   /* computed pieces, and whether a result is not finite */
    atomic_uint_fast64_t taken[SHM_REGIONS]; /* pieces of each region */
};

/* A rank's group memory, if all ranks share one address space. */
struct shm_part {
    void *memory;
    size_t nbytes;
    struct shm_part *next;
};

struct shm_control {
    struct shm_bell bell;
    _Atomic(struct shm_part *) left; /* group memory of ranks that have left; only if all share one address space */
    atomic_int users;                /* ranks that have not left; only if all share one address space */
    struct shm_job jobs[SHM_SLOTS];
    struct shm_lane lanes[]; /* [size], then the bounces [size][SHM_BOUNCES], then the pairs [size][size] */
};

/* One end of the messages from one rank to another; only its rank writes it. */
struct shm_end {
    alignas(SHM_LINE) atomic_uint_fast64_t finished; /* messages completed at this end */
    atomic_uint_fast64_t moved;                      /* bytes put into the ring, or taken out of it */
    alignas(SHM_LINE) struct shm_slot slots[SHM_PAIR_SLOTS];
};

enum { SHM_RING_NBYTES = SHM_PAIR_NBYTES - 2 * (int)sizeof(struct shm_end) };

struct shm_pair {
    struct shm_end sender, receiver;
    uint8_t ring[SHM_RING_NBYTES];
};

struct shm_peer {
    int fd;      /* -1 for this rank itself */
    int process; /* pidfd; -1 if the system has none, or the rank is a thread of this process */
    int pid;
    bool is_thread; /* of this process, according to the system */
    bool dead;
};

/* One allocation of group memory, mapped from every rank. */
struct shm_segment {
    size_t nbytes;        /* of each rank's part; 0 = a free entry */
    void **parts;         /* [size] */
    struct shm_part *own; /* if all ranks share one address space, else NULL */
};

struct shm_op {
    cairn_work *work;
    struct shm_slot *slot; /* this rank's own */
    int matched;           /* ranks whose slots were compared */
    bool planned, single;  /* single: no bounces, so one step */
    bool shared;           /* pieces instead of steps */
    size_t block;          /* elements that a bounce holds; of each part, if the array has one per rank */
    uint64_t blocks, first_block, first, nsteps, step;
    uint32_t found;
};

/* When something that a rank waits for last made progress. */
struct shm_clock {
    uint64_t moves, seen;
    uint64_t since, next_look; /* ns in which this process was not stopped; 0 = not stalled */
};

/* Works in order, linked through work->state. */
struct shm_queue {
    cairn_work *first, *last;
};

/* This rank's end of the messages from or to one other rank. */
struct shm_route {
    struct shm_pair *pair;
    struct shm_end *mine, *theirs;
    int peer;
    bool sends;
    struct shm_queue works;
    cairn_work *unpublished, *moving;  /* the first work without a slot; the one whose bytes are moved next */
    uint64_t published, moved, posted; /* messages that have a slot; whose bytes were moved; all */
    size_t at;                         /* bytes moved of `moving` */
    size_t filled;                     /* bytes of pair that have their pages */
    struct shm_clock clock;
    struct shm_route *next; /* the next route with works */
    bool active;
};

struct cairn__shm {
    cairn_group *group;
    pid_t process;           /* this rank's process; forked children have copies of its groups, but are not the rank */
    struct cairn__shm *root; /* of the family's first group; may be this one */
    struct cairn__shm *parent;            /* the group that this one is being made from, else NULL */
    const struct cairn__kernels *kernels; /* the CPU's, whatever the group's device */
    int rank, size;
    bool by_address;             /* all ranks are threads of this process */
    struct shm_peer *peers;      /* [size]; descriptors are the root's */
    struct shm_control *control; /* NULL until mapped */
    struct shm_bell *bell;
    uint8_t *bounces;
    struct shm_pair *pairs;
    size_t control_nbytes;
    struct shm_segment *segments;
    size_t num_segments, segments_capacity;
    void **dsts; /* [size], scratch */
    const void **srcs;

    /* Numbers of collectives: complete <= done (this rank has done its part) <= posted. */
    uint64_t complete, done, posted;
    uint64_t steps;  /* of this rank, as published */
    uint64_t blocks; /* that went or will go through bounces, in all collectives planned so far */
    struct shm_op ops[SHM_OUTSTANDING];
    struct shm_queue queued; /* collectives waiting for room in ops */
    struct shm_clock clock;  /* of the collectives */

    struct shm_route *routes; /* [2 * size] from and to each rank; allocated when first needed */
    struct shm_route *active; /* the routes with works */

    bool moved; /* something moved since this was last cleared */
    const cairn_group
        *stuck_in;          /* of a root: the group in which this rank has published that it is stuck; NULL = none */
    uint64_t stuck_at;      /* number of the call */
    uint64_t checked_ns;    /* of a root: when its wait last checked for a stall; 0 = not since it began */
    uint64_t stopped_ns;    /* of a root: how long the process was stopped in waits */
    unsigned stalled_polls; /* calls of progress that moved nothing */
    int spins, yields;
    uint64_t tired_ns; /* when a wait stops yielding */
    bool crowded;      /* the ranks outnumber the processors that they may run on; the same on every rank */
    int regions;       /* of a collective in pieces: one per processor, as far as possible */
};

static inline struct shm_lane *shm_lane(const struct cairn__shm *s, int rank) {
    return &s->control->lanes[rank];
}

static inline struct shm_slot *shm_slot(const struct cairn__shm *s, int rank, uint64_t number) {
    return &s->control->lanes[rank].slots[number % SHM_SLOTS];
}

static inline struct cairn__ranks *shm_nonfinite_ranks(const struct cairn__shm *s, int rank, uint64_t number) {
    return &s->control->lanes[rank].nonfinite_ranks[number % SHM_SLOTS];
}

static inline struct shm_op *shm_op(struct cairn__shm *s, uint64_t number) {
    return &s->ops[number % SHM_OUTSTANDING];
}

static inline void shm_move(struct cairn__shm *s, struct shm_clock *clock) {
    clock->moves++;
    s->moved = true;
}

/* At the end of the queue. */
static inline void shm_enqueue(struct shm_queue *queue, cairn_work *work) {
    work->state = NULL;
    if (queue->first) {
        queue->last->state = work;
    } else {
        queue->first = work;
    }
    queue->last = work;
}

static inline cairn_work *shm_dequeue(struct shm_queue *queue) {
    cairn_work *work = queue->first;
    queue->first = work->state;
    return work;
}

/* The files, lowest first: none calls a file that comes after it.
 *
 * ---- bell.c ---- */

/* Wakes the sleeping ranks; called after every store that others may wait for. */
void cairn__shm_notify(struct cairn__shm *s);
/* Sleeps for a while, unless the bell has rung since `events` had the value seen. */
void cairn__shm_sleep(struct cairn__shm *s, uint32_t seen);

/* ---- peers.c ---- */

/* Marks the peers whose processes have ended. */
void cairn__shm_mark_ended(struct cairn__shm *s);
/* Whether rank has published that it left, and how. */
enum shm_gone cairn__shm_gone(const struct cairn__shm *s, int rank);
/* Returns a rank that ended, left or aborted the group; -1 = none. */
int cairn__shm_find_gone(struct cairn__shm *s);
/* CAIRN_EPEER "rank 1 (pid 99) left the group while rank 0 <did>". */
cairn_status cairn__shm_fail_gone(const struct cairn__shm *s, int rank, const char *did);

/* ---- meet.c ---- */

/* Connects to every rank: fills fd, process and pid of s->peers, which hold -1, -1 and 0. The listener stays open; the
 * caller owns it and closes it once the group is complete. */
cairn_status cairn__shm_meet(struct cairn__shm *s, const struct cairn__peers *peers);

/* ---- memory.c ---- */

/* Makes a memory file of nbytes, mapped and zeroed; the caller closes *fd. The first `filled` bytes have their pages;
 * cairn__shm_fill allocates those of the others. */
cairn_status cairn__shm_create_memory(size_t nbytes, size_t filled, int *fd, void **out);
/* The same without a file, for this process alone. */
cairn_status cairn__shm_private_memory(size_t nbytes, size_t filled, void **out);
cairn_status cairn__shm_map_memory(int fd, size_t nbytes, void **out);
cairn_status cairn__shm_fill(void *memory, size_t nbytes);
void cairn__shm_unmap(void *memory, size_t nbytes);

/* Sends a peer a memory file of the group with that index; or, if address is not NULL, memory of this process; or, if
 * status is not CAIRN_OK, that there is none, with the last error as the reason. */
cairn_status cairn__shm_send_memory(struct cairn__shm *s, int peer, int64_t index, cairn_status status, int fd,
                                    void *address);
/* Receives memory of s->group; that of other groups is dropped. *status is the sender's, or CAIRN_ESYSTEM if its
 * descriptor was lost here; the reason is this thread's last error. If *status is CAIRN_OK, either *fd is a descriptor,
 * which the caller owns, and *address is NULL; or *fd is -1 and *address is the memory. The returned status is that of
 * the connection: CAIRN_EPEER, CAIRN_ETIMEOUT, CAIRN_ESYSTEM. */
cairn_status cairn__shm_receive_memory(struct cairn__shm *s, int peer, cairn_status *status, int *fd, void **address);

/* ---- segments.c ---- */

cairn_status cairn__shm_alloc(cairn_group *group, size_t nbytes, void **out);
cairn_status cairn__shm_free(cairn_group *group, void *memory);
void cairn__shm_free_all(struct cairn__shm *s);
void cairn__shm_free_parts(struct shm_part *parts);

/* Where this rank's nbytes at memory are. */
struct shm_place cairn__shm_locate(const struct cairn__shm *s, const void *memory, size_t nbytes);

static inline void *shm_at(const struct cairn__shm *s, int rank, const struct shm_place *place) {
    if (place->segment >= SHM_IN_GROUP) return (void *)(uintptr_t)place->offset;
    return (char *)s->segments[place->segment - 1].parts[rank] + place->offset;
}

/* ---- block.c ---- */

/* Some elements of a collective that are moved together. */
struct shm_block {
    size_t first, n; /* elements of the request; of each part, if the array has one per rank */
    size_t nbytes;   /* of one element */
    uint64_t number; /* of the collective */
    uint64_t bounce; /* which of the SHM_BOUNCES */
};

/* Whether this collective needs no bounce; the same on every rank. */
bool cairn__shm_all_placed(const struct cairn__shm *s, const struct cairn__call *call, uint64_t number);
/* Whether the array has a part for each rank, of which each other rank reads only its own. */
bool cairn__shm_has_parts(const struct cairn__call *call);
/* Copies what others read of this rank's block into its bounce. */
void cairn__shm_stage(struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b);
/* memcpy to memory that other cores read last and will read next. */
void cairn__shm_copy_across(void *dst, const void *src, size_t nbytes);
/* Does this rank's share of a block. */
void cairn__shm_work_on(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b);
/* Computes piece `index` of `pieces` of an all-reduce or reduce without bounces, for all ranks. */
void cairn__shm_reduce_piece(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b, size_t index,
                             size_t pieces);
/* Copies what others computed for this rank from their bounces. */
void cairn__shm_copy_out(struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b);

/* ---- share.c ---- */

/* Whether a collective without bounces is computed in pieces; the same on every rank. */
bool cairn__shm_shares(const struct cairn__shm *s, const struct cairn__call *call);
/* Whether to wake sleeping ranks as soon as all have posted, not only when all pieces are computed. */
bool cairn__shm_wants_help(const struct shm_op *op);
/* Takes and computes pieces until none is left. The block is the whole call. */
void cairn__shm_share(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b);
/* Whether all pieces are computed; *found as cairn__work_complete wants it. */
bool cairn__shm_shared(const struct cairn__shm *s, const struct shm_op *op, uint64_t number, uint32_t *found);

/* ---- collective.c ---- */

/* Posts the work, or queues it until there is room; cairn__shm_step then makes progress. */
void cairn__shm_post_collective(struct cairn__shm *s, cairn_work *work);
cairn_status cairn__shm_step_collectives(struct cairn__shm *s);
/* Whether rank is behind what the oldest outstanding collective waits for. */
bool cairn__shm_lags(struct cairn__shm *s, int rank);

/* The backend of groups whose ranks are threads of one process; a group of the shm backend is switched to it. */
extern const struct cairn__group_backend cairn__group_threads;

/* ---- reach.c ---- */

/* With by_address: call these before and after reading or writing arrays of peer, or of all other ranks (-1). begin
 * returns CAIRN_EPEER if one has left and may have freed its arrays: then touch nothing, and do not call end. */
cairn_status cairn__shm_begin_touching(struct cairn__shm *s, int peer);
void cairn__shm_end_touching(struct cairn__shm *s);
/* After this rank has published that it is gone: returns once no other rank touches its arrays. */
void cairn__shm_wait_untouched(struct cairn__shm *s);

/* ---- message.c ---- */

cairn_status cairn__shm_post_message(struct cairn__shm *s, cairn_work *work);
cairn_status cairn__shm_step_messages(struct cairn__shm *s);
struct shm_route *cairn__shm_route(const struct cairn__shm *s, const struct cairn__call *call);

/* ---- deadlock.c ---- */

/* Called while this rank waits in `call` and nothing moves: publishes that, and checks whether a rank that it waits for
 * waits for this one in another group or message. Errors: CAIRN_EPEER it does, and both waits fail. */
cairn_status cairn__shm_find_deadlock(struct cairn__shm *s, const struct shm_route *route,
                                      const struct cairn__call *call);
/* The wait is over. */
void cairn__shm_go_on(struct cairn__shm *s);

/* ---- wait.c ---- */

/* Makes progress in collectives and messages without waiting; sets moved. Errors: CAIRN_EPEER the ranks disagree. */
cairn_status cairn__shm_step(struct cairn__shm *s);
cairn_status cairn__shm_wait(struct cairn__shm *s, const cairn_work *work);
/* A step, and once in a while a check of the timeout and the peers. */
cairn_status cairn__shm_poll(struct cairn__shm *s);
/* Decides how long waits spin: hardly at all if the ranks together outnumber the processors that they may run on.
 * Called after the first barrier of the family's first group. */
void cairn__shm_set_patience(struct cairn__shm *s);

#endif
