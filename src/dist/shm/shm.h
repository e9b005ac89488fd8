/* The shm backend: all ranks on one machine, in shared memory.
 *
 * Ranks meet through the store (meet.c) and then hold one Unix socket to each other: end of file on it means that the
 * other ended. A process descriptor says so too where a child of that rank keeps the socket open. Everything shared is an unlinked memory file passed over those sockets (memory.c); nothing has a name
 * that could stay behind.
 *
 * The control memory has a lane for each rank, which that rank alone writes. To post collective number s a rank fills
 * slot s % SHM_SLOTS of its lane and then stores the slot's ticket. Once all ranks have posted, each compares their slots
 * with its own, and every rank derives the same number of steps from them. A rank stores the count of its steps so far in
 * its lane; step k may begin when all ranks have made step k - 1 (collective.c). So there are no locks, and one store
 * moves everybody on.
 *
 * Reuse is safe by counting: at most SHM_OUTSTANDING works are outstanding on a rank, so a rank that posts s has seen every
 * rank post s - SHM_OUTSTANDING, and those had completed s - 2 * SHM_OUTSTANDING. Hence SHM_SLOTS. */
#ifndef CAIRN__DIST_SHM_H
#define CAIRN__DIST_SHM_H

#include <stdalign.h>
#include <stdatomic.h>

#include "dist/group_backend.h"

enum {
    SHM_OUTSTANDING = 64,
    SHM_SLOTS = 2 * SHM_OUTSTANDING,
    SHM_BOUNCE_NBYTES = 256 << 10, /* of each rank, for memory that is not the group's */
    SHM_LINE = 128,                /* two cache lines: the prefetcher of x86 fetches pairs */
    SHM_CAUSE_NBYTES = 448,
};

struct shm_slot {
    alignas(64) atomic_uint_fast64_t ticket; /* number + 1 of the collective below; 0 at first */
    uint64_t n, offset;                      /* offset into the segment, where direct */
    uint32_t segment;
    int32_t root;
    uint8_t kind, dtype, redop, direct;
};

enum shm_gone { SHM_HERE = 0, SHM_LEFT, SHM_GAVE_UP };

struct shm_lane {
    alignas(SHM_LINE) atomic_uint_fast64_t steps;
    atomic_uint_fast64_t found;                  /* bit number % SHM_OUTSTANDING: this rank found a non-finite result */
    alignas(SHM_LINE) atomic_uint_fast32_t gone; /* enum shm_gone; cause is written before it */
    char cause[SHM_CAUSE_NBYTES];
    alignas(SHM_LINE) struct shm_slot slots[SHM_SLOTS];
};

struct shm_control {
    alignas(SHM_LINE) _Atomic uint32_t events; /* futex: counts publications while somebody sleeps */
    alignas(SHM_LINE) _Atomic uint32_t sleepers;
    alignas(SHM_LINE) struct shm_lane lanes[]; /* [size], then the bounces [size][SHM_BOUNCE_NBYTES] */
};

struct shm_peer {
    int fd;      /* -1 for this rank itself */
    int process; /* pidfd; -1 where the system has none to give, or the rank is a thread of this process */
    int pid;
    char address[40]; /* of its abstract socket, while meeting */
    bool known, dead;
};

/* One allocation of group memory, mapped from every rank. */
struct shm_segment {
    size_t nbytes; /* of each rank's part; 0 = a free entry */
    void **parts;  /* [size] */
};

struct shm_op {
    cairn_work *work;
    struct shm_slot *slot; /* this rank's own */
    int matched;           /* ranks whose slots were compared */
    bool planned, single;  /* single: no bounce, hence one step */
    size_t block;          /* elements a bounce holds */
    uint64_t first, nsteps, step;
    uint32_t found;
};

struct cairn__shm {
    cairn_group *group;
    const struct cairn__kernels *kernels; /* of the host's memory, whatever the group's device */
    int rank, size;
    int listener;
    struct shm_peer *peers;      /* [size] */
    struct shm_control *control; /* NULL until mapped */
    uint8_t *bounces;
    size_t control_nbytes;
    struct shm_segment *segments;
    size_t num_segments, segments_capacity;
    void **bufs; /* [size], scratch */

    /* Collectives by number: complete <= done (this rank's part is) <= posted. */
    uint64_t complete, done, posted;
    uint64_t steps; /* this rank's, as published */
    struct shm_op ops[SHM_OUTSTANDING];

    bool moved;                        /* since it was last cleared */
    unsigned stalled_polls;            /* calls of progress that moved nothing */
    uint64_t stalled_since, next_look; /* ns; 0 = not stalled */
    int spins, yields;
};

static inline struct shm_lane *shm_lane(const struct cairn__shm *s, int rank) {
    return &s->control->lanes[rank];
}

static inline struct shm_slot *shm_slot(const struct cairn__shm *s, int rank, uint64_t number) {
    return &s->control->lanes[rank].slots[number % SHM_SLOTS];
}

static inline struct shm_op *shm_op(struct cairn__shm *s, uint64_t number) {
    return &s->ops[number % SHM_OUTSTANDING];
}

/* ---- meet.c ---- */

/* Finds every rank through the store and connects to it: fills peers. */
cairn_status cairn__shm_meet(struct cairn__shm *s, const struct cairn__group_options *options);

/* ---- memory.c ---- */

/* A memory file of nbytes with its pages there, zeroed, mapped; *fd is the caller's to close. */
cairn_status cairn__shm_create_memory(size_t nbytes, int *fd, void **out);
/* The same for a rank alone, without a file. */
cairn_status cairn__shm_private_memory(size_t nbytes, void **out);
cairn_status cairn__shm_map_memory(int fd, size_t nbytes, void **out);
void cairn__shm_unmap(void *memory, size_t nbytes);

/* To one peer: a memory file, or, where status is not CAIRN_OK, that there is none and the last error's reason. */
cairn_status cairn__shm_send_memory(struct cairn__shm *s, int peer, cairn_status status, int fd);
/* *status is what the sender said, or CAIRN_ESYSTEM where its descriptor got lost here, with the reason as this thread's
 * last error; *fd is the caller's where it is OK. The returned status is about the way: CAIRN_EPEER, CAIRN_ETIMEOUT,
 * CAIRN_ESYSTEM. */
cairn_status cairn__shm_receive_memory(struct cairn__shm *s, int peer, cairn_status *status, int *fd);

/* ---- collective.c ---- */

cairn_status cairn__shm_post(struct cairn__shm *s, cairn_work *work);
/* As far as it goes without waiting; sets moved. Errors: CAIRN_EPEER the ranks disagree. */
cairn_status cairn__shm_step(struct cairn__shm *s);
/* Whether rank is behind what the oldest outstanding work waits for. */
bool cairn__shm_lags(struct cairn__shm *s, int rank);
/* "all-reduce number 17 of 5 f32" */
void cairn__shm_describe(const cairn_work *work, char *text, size_t nbytes);

/* ---- wait.c ---- */

/* Wakes who sleeps; called after every store that others may wait for. */
void cairn__shm_notify(struct cairn__shm *s);
cairn_status cairn__shm_wait(struct cairn__shm *s, const cairn_work *work);
/* The clock and the peers are looked at once in a while. */
cairn_status cairn__shm_poll(struct cairn__shm *s);
/* Decides how long waits spin: not at all to speak of where ranks outnumber processors. */
void cairn__shm_set_patience(struct cairn__shm *s);

#endif
