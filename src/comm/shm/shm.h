/* The shm backend: all ranks on one machine, in shared memory. Where all are threads of one process, arrays are where
 * they are for every rank (by_address), and nothing is a file.
 *
 * The ranks of an environment's group hold one Unix socket to each other (meet.c): end of file on it means that the
 * other ended. A process descriptor shows that too where a child of that rank keeps the socket open. Everything shared
 * is an unlinked memory file passed over those sockets (memory.c); nothing has a name that could stay behind. Groups
 * made from it use its sockets and its bell, which wakes the ranks that sleep in any of them, and have all else of
 * their own.
 *
 * The control memory has a lane for each rank, which that rank alone writes. To post collective number s a rank fills
 * slot s % SHM_SLOTS of its lane and then stores the slot's ticket. Once all ranks have posted, each compares their
 * slots with its own, and every rank derives the same number of steps from them. A rank stores the count of its steps
 * so far in its lane; step k may begin when all ranks have made step k - 1 (collective.c). So there are no locks, and
 * one store lets every rank continue.
 *
 * Where the ranks outnumber the processors they are crowded: most of them sleep, and a step of every rank would cost a
 * turn of every rank. There a sum over group memory has no steps but pieces, which the ranks that are awake compute for
 * all ranks (share.c).
 *
 * Reuse is safe by counting: at most SHM_OUTSTANDING collectives of a rank are in its slots, later ones queue up until
 * there is room. So a rank that posts s has seen every rank post s - SHM_OUTSTANDING, and those had completed
 * s - 2 * SHM_OUTSTANDING. Hence SHM_SLOTS.
 *
 * Messages have a pair for each two ranks and direction (message.c), in memory that gets its pages when it is first
 * used. */
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
    SHM_BOUNCES = 3,               /* of each rank, for memory that is not the group's; see collective.c */
    SHM_BOUNCE_NBYTES = 128 << 10, /* of each of them */
    SHM_CAUSE_NBYTES = 448,
    SHM_CALL_WORDS = sizeof(struct cairn__call) / sizeof(uint64_t),
    SHM_PAIR_SLOTS = 16,
    SHM_PAIR_NBYTES = 64 << 10,
};

/* Where an array is, as every rank can find it. */
struct shm_place {
    uint64_t offset;  /* into the segment's part of the array's rank */
    uint32_t segment; /* index + 1; 0 = not the group's memory. The last two: offset is its address */
    uint32_t unused;
};

/* In group memory of ranks in one process, which stays until the last of them leaves. */
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
    atomic_uint_fast64_t turns; /* odd = it is stuck, and the rest holds for as long as turns is the same */
    atomic_int_fast64_t group;  /* index */
    atomic_uint_fast64_t call[SHM_CALL_WORDS]; /* struct cairn__call */
    atomic_uint_fast64_t dead;                 /* turns at which it detected a deadlock */
};

struct shm_lane {
    alignas(SHM_LINE) atomic_uint_fast64_t steps;
    atomic_uint_fast64_t touching; /* this rank reads or writes arrays of others by their addresses; reach.c */
    atomic_uint_fast64_t sharing;  /* number + 1 of the collective of which this rank may have a piece in hand */
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

/* What has been taken and made of a collective in pieces; share.c. Words of an earlier collective in its place count as
 * 0. */
struct shm_job {
    alignas(64) atomic_uint_fast64_t made;   /* pieces, and whether a result is not finite */
    atomic_uint_fast64_t taken[SHM_REGIONS]; /* pieces of each region */
};

/* A rank's group memory where all have one address space. */
struct shm_part {
    void *memory;
    size_t nbytes;
    struct shm_part *next;
};

struct shm_control {
    struct shm_bell bell;
    _Atomic(struct shm_part *) left; /* group memory of those that have left, likewise */
    atomic_int users; /* ranks that have not left, of control memory that they have in common in one process */
    struct shm_job jobs[SHM_SLOTS];
    struct shm_lane lanes[]; /* [size], then the bounces [size][SHM_BOUNCES], then the pairs [size][size] */
};

/* One end of the messages from one rank to another; its rank alone writes it. */
struct shm_end {
    alignas(SHM_LINE) atomic_uint_fast64_t finished; /* messages that are done at this end */
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
    int process; /* pidfd; -1 where the system has none to give, or the rank is a thread of this process */
    int pid;
    bool is_thread; /* of this process, as the system says */
    bool dead;
};

/* One allocation of group memory, mapped from every rank. */
struct shm_segment {
    size_t nbytes;        /* of each rank's part; 0 = a free entry */
    void **parts;         /* [size] */
    struct shm_part *own; /* where all ranks have one address space, else NULL */
};

struct shm_op {
    cairn_work *work;
    struct shm_slot *slot; /* this rank's own */
    int matched;           /* ranks whose slots were compared */
    bool planned, single;  /* single: no bounce, hence one step */
    bool shared;           /* no step, but pieces */
    size_t block;          /* elements a bounce holds, of each part where the array has a part a rank */
    uint64_t blocks, first_block, first, nsteps, step;
    uint32_t found;
};

/* When something last moved of what a rank waits for. */
struct shm_clock {
    uint64_t moves, seen;
    uint64_t since, next_look; /* ns in which this process was not stopped; 0 = not stalled */
};

/* Works in their order, linked by their states. */
struct shm_queue {
    cairn_work *first, *last;
};

/* This rank's end of the messages from or to one other. */
struct shm_route {
    struct shm_pair *pair;
    struct shm_end *mine, *theirs;
    int peer;
    bool sends;
    struct shm_queue works;
    cairn_work *unpublished, *moving;  /* the first of works that has no slot yet; whose bytes are moved next */
    uint64_t published, moved, posted; /* messages: with a slot, whose bytes were moved, all */
    size_t at;                         /* bytes moved of the next */
    size_t filled;                     /* bytes of pair that have their pages */
    struct shm_clock clock;
    struct shm_route *next; /* with works */
    bool active;
};

struct cairn__shm {
    cairn_group *group;
    pid_t process;                        /* that is this rank; its children have its groups too, and are not */
    struct cairn__shm *root;              /* of the family's first group; that itself */
    struct cairn__shm *parent;            /* while it is made from that one, else NULL */
    const struct cairn__kernels *kernels; /* of the host's memory, whatever the group's device */
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

    /* Collectives by number: complete <= done (this rank's part is) <= posted. */
    uint64_t complete, done, posted;
    uint64_t steps;  /* this rank's, as published */
    uint64_t blocks; /* that went or will go through bounces, of all collectives planned */
    struct shm_op ops[SHM_OUTSTANDING];
    struct shm_queue queued; /* for want of room in ops */
    struct shm_clock clock;  /* of the collectives */

    struct shm_route *routes; /* [2 * size] from and to each rank; made when first needed */
    struct shm_route *active; /* those with works */

    bool moved; /* since it was last cleared */
    const cairn_group
        *stuck_in;          /* of a root: the group in which this rank has published that it is stuck; NULL = none */
    uint64_t stuck_at;      /* number of the call */
    uint64_t checked_ns;    /* of a root: when its wait last checked for a stall; 0 = not since it began */
    uint64_t stopped_ns;    /* of a root: how long the process was stopped in waits */
    unsigned stalled_polls; /* calls of progress that moved nothing */
    int spins, yields;
    uint64_t tired_ns; /* when a wait stops to yield */
    bool crowded;      /* the ranks outnumber the processors that they may run on; the same on every rank */
    int regions;       /* of a collective in pieces: as many as processors, if that many can be */
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

/* The files follow from the lowest up: none calls one that comes after it.
 *
 * ---- bell.c ---- */

/* Wakes the ranks that sleep; called after every store that others may wait for. */
void cairn__shm_notify(struct cairn__shm *s);
/* Sleeps for a while, unless the bell has rung since events was `seen`. */
void cairn__shm_sleep(struct cairn__shm *s, uint32_t seen);

/* ---- peers.c ---- */

/* Marks the peers whose processes have ended. */
void cairn__shm_mark_ended(struct cairn__shm *s);
/* Whether and how rank has published that it left. */
enum shm_gone cairn__shm_gone(const struct cairn__shm *s, int rank);
/* A rank that ended, left or aborted the group; -1 = none. */
int cairn__shm_find_gone(struct cairn__shm *s);
/* CAIRN_EPEER "rank 1 (pid 99) left the group while rank 0 <did>". */
cairn_status cairn__shm_fail_gone(const struct cairn__shm *s, int rank, const char *did);

/* ---- meet.c ---- */

/* Connects to every rank: fills fd, process and pid of s->peers, which hold -1, -1 and 0. The listener stays open: it
 * is the caller's, and closed once the group stands. */
cairn_status cairn__shm_meet(struct cairn__shm *s, const struct cairn__peers *peers);

/* ---- memory.c ---- */

/* A memory file of nbytes, mapped and zeroed; *fd is the caller's to close. The first `filled` bytes have their pages,
 * the others get them by cairn__shm_fill. */
cairn_status cairn__shm_create_memory(size_t nbytes, size_t filled, int *fd, void **out);
/* The same for this process alone, without a file. */
cairn_status cairn__shm_private_memory(size_t nbytes, size_t filled, void **out);
cairn_status cairn__shm_map_memory(int fd, size_t nbytes, void **out);
cairn_status cairn__shm_fill(void *memory, size_t nbytes);
void cairn__shm_unmap(void *memory, size_t nbytes);

/* To one peer: a memory file of the group of that index, or memory of this process (where address is not NULL), or,
 * where status is not CAIRN_OK, that there is none and the last error's reason. */
cairn_status cairn__shm_send_memory(struct cairn__shm *s, int peer, int64_t index, cairn_status status, int fd,
                                    void *address);
/* Of s->group; what is there of others is dropped. *status is what the sender sent, or CAIRN_ESYSTEM where its
 * descriptor got lost here, with the reason as this thread's last error. Where it is OK, *fd is the caller's, or -1 and
 * *address is where the memory is, else NULL. The returned status is about the way: CAIRN_EPEER, CAIRN_ETIMEOUT,
 * CAIRN_ESYSTEM. */
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

/* Some elements of a collective that go the same way at the same time. */
struct shm_block {
    size_t first, n; /* elements of the request, of each part where the array has a part a rank */
    size_t nbytes;   /* of one element */
    uint64_t number; /* of the collective */
    uint64_t bounce; /* which of the SHM_BOUNCES */
};

/* Whether this collective needs no bounce; the same on every rank. */
bool cairn__shm_all_placed(const struct cairn__shm *s, const struct cairn__call *call, uint64_t number);
/* Whether the array has a part for each rank of which the others read theirs alone. */
bool cairn__shm_has_parts(const struct cairn__call *call);
/* What others read of this rank's block, into its bounce. */
void cairn__shm_stage(struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b);
/* memcpy to memory that other cores have read last and will read next. */
void cairn__shm_copy_across(void *dst, const void *src, size_t nbytes);
/* This rank's share of the work. */
void cairn__shm_work_on(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b);
/* Piece index of so many of an all-reduce or reduce without bounces, for all ranks. */
void cairn__shm_reduce_piece(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b, size_t index,
                             size_t pieces);
/* Copies what others computed for this rank from their bounces. */
void cairn__shm_copy_out(struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b);

/* ---- share.c ---- */

/* Whether a collective without bounces is made in pieces; the same on every rank. */
bool cairn__shm_shares(const struct cairn__shm *s, const struct cairn__call *call);
/* Whether to wake ranks that sleep as soon as all have posted, and not only when all pieces are computed. */
bool cairn__shm_wants_help(const struct shm_op *op);
/* Computes the pieces that no rank has taken. The block is the whole call. */
void cairn__shm_share(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b);
/* Whether all pieces are computed; *found as cairn__work_complete wants it. */
bool cairn__shm_shared(const struct cairn__shm *s, const struct shm_op *op, uint64_t number, uint32_t *found);

/* ---- collective.c ---- */

/* Posts it, or queues it for want of room; cairn__shm_step then moves it on. */
void cairn__shm_post_collective(struct cairn__shm *s, cairn_work *work);
cairn_status cairn__shm_step_collectives(struct cairn__shm *s);
/* Whether rank is behind what the oldest outstanding collective waits for. */
bool cairn__shm_lags(struct cairn__shm *s, int rank);

/* That of groups whose ranks are threads of one process; a group of the shm backend turns out to be one. */
extern const struct cairn__group_backend cairn__group_threads;

/* ---- reach.c ---- */

/* Where arrays are found by their addresses: around what this rank reads or writes of the arrays of peer, or of all
 * others (-1). CAIRN_EPEER where one has left, and may have freed its own: nothing may be touched, and there is no end
 * to be called. */
cairn_status cairn__shm_begin_touching(struct cairn__shm *s, int peer);
void cairn__shm_end_touching(struct cairn__shm *s);
/* After this rank has published that it is gone: returns once no other touches its arrays. */
void cairn__shm_wait_untouched(struct cairn__shm *s);

/* ---- message.c ---- */

cairn_status cairn__shm_post_message(struct cairn__shm *s, cairn_work *work);
cairn_status cairn__shm_step_messages(struct cairn__shm *s);
struct shm_route *cairn__shm_route(const struct cairn__shm *s, const struct cairn__call *call);

/* ---- deadlock.c ---- */

/* Called while this rank waits in `call` and nothing moves: publishes that, and checks whether a rank that it waits for
 * waits for this one, in another group or message. CAIRN_EPEER if so: both waits fail. */
cairn_status cairn__shm_find_deadlock(struct cairn__shm *s, const struct shm_route *route,
                                      const struct cairn__call *call);
/* The wait is over. */
void cairn__shm_go_on(struct cairn__shm *s);

/* ---- wait.c ---- */

/* Collectives and messages, as far as they go without waiting; sets moved. Errors: CAIRN_EPEER the ranks disagree. */
cairn_status cairn__shm_step(struct cairn__shm *s);
cairn_status cairn__shm_wait(struct cairn__shm *s, const cairn_work *work);
/* A step, and once in a while a check of the timeout and the peers. */
cairn_status cairn__shm_poll(struct cairn__shm *s);
/* Decides how long waits spin: hardly where the ranks outnumber the processors that they may run on, together. Once the
 * family's first group has had its first barrier. */
void cairn__shm_set_patience(struct cairn__shm *s);

#endif
