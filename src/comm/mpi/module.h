/* Internals that the files of the mpi module share: MPI in this process, and the groups' engines on top of it.
 *
 * All engines use one communicator, a copy of MPI_COMM_WORLD that is made once and never freed, and distinguish their
 * messages by tags. So a group is made without MPI's collectives, which cannot time out, and one rank can end it alone,
 * while a message of another rank may be in flight. Every transfer consists of messages between two ranks, as
 * Open MPI's own non-blocking collectives do; those have no sizes beyond an int and do not name a missing rank. */
#ifndef CAIRN__COMM_MPI_MODULE_H
#define CAIRN__COMM_MPI_MODULE_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "comm/exchange/engine.h"
#include "core/clock.h"

/* Tags of one group; those of the next group begin TAGS later. */
enum {
    TAG_CONTROL = 0, /* enum word */
    TAG_NUMBER,      /* which tags a group made from this one may have */
    TAG_MESSAGE,     /* sends and recvs, in their order */
    TAG_COLLECTIVE,  /* and the following, used in turn, so that transfers in flight do not mix */
    COLLECTIVE_TAGS = 8,
    TAGS = 16,
};

enum word { GAVE_UP = 1, LEFT };

struct mpi_peer {
    int rank;       /* in the communicator */
    enum word word; /* 0 = alive as far as this rank knows */
    double since;   /* seconds */
};

struct cairn__engine {
    struct cairn__engine *next; /* in this process; of those that have ended, once it has */
    int rank, size;
    bool is_root; /* an environment's: all ranks have it */
    double timeout;
    MPI_Comm comm;
    struct mpi_peer *peers; /* [size] */
    bool missing;           /* some peer left a word */
    int tag;
    unsigned collectives;
    unsigned looks;
    _Atomic pthread_t caller; /* the last one's thread */
    atomic_bool told, wants_to_tell;
    MPI_Status *statuses; /* [2 * size] */
    struct cairn__moving *moving, *unused;
};

/* Messages, as requests with what they are of. */
struct cairn__moving {
    struct cairn__moving *next;
    int count;
    MPI_Request *requests; /* [2 * size] */
    int *peers;            /* likewise */
    int *nbytes;           /* to be received; -1 for what is sent */
    void *forward;         /* a broadcast is sent on once it came; NULL: nothing to send on */
    size_t forward_nbytes;
    int root, tag;
};

/* ---- watch.c ---- */

/* Measures how long a rank waits for all others before they have a group. */
struct cairn__mpi_watch {
    const struct cairn__engine_options *options;
    struct cairn__stall stall; /* without the time in which this rank was stopped */
    double next_look;          /* seconds of the stall at which to look into the store next */
    bool peer_gave_up;         /* another rank did */
    bool is_deaf;              /* the store does not answer */
};

/* The options must outlive watch. */
void cairn__mpi_watch_begin(struct cairn__mpi_watch *watch, const struct cairn__engine_options *options);

/* Call it at least ten times a second. Errors: CAIRN_ETIMEOUT, with the ranks that do not answer, once the time is up
 * here or on another rank. what: what this rank waits in. */
cairn_status cairn__mpi_watch_look(struct cairn__mpi_watch *watch, const char *what);

/* ---- start.c ---- */

/* MPI_Init_thread, once a process. Errors: CAIRN_ETIMEOUT, CAIRN_EPEER, CAIRN_ENOTSUP, CAIRN_ESYSTEM. */
cairn_status cairn__mpi_start(struct cairn__mpi_watch *watch, int *level);

/* Fails if cairn__mpi_start was called and failed: MPI cannot be used then, even if it says that it is initialized. */
cairn_status cairn__mpi_check_start(void);

/* ---- process.c ---- */

/* CAIRN_OK, or CAIRN_EPEER with MPI's words: "MPI cannot send to rank 2: ..." */
cairn_status cairn__mpi_check(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

cairn_status cairn__mpi_probe(bool launched);

/* Starts MPI if the program has not, and makes the communicator. Collective. */
cairn_status cairn__mpi_enter(struct cairn__mpi_watch *watch, MPI_Comm *comm);
/* From join to leave, the end of the process also ends the engine. */
void cairn__mpi_join(struct cairn__engine *engine);
void cairn__mpi_leave(struct cairn__engine *engine);
/* The list of those that have ended here, and that others have not left yet. */
struct cairn__engine **cairn__mpi_ended(void);
/* Called when a group died: MPI is not finalized at the end then, and the launcher ends the job with an error. */
void cairn__mpi_mourn(void);
bool cairn__mpi_is_over(void);
/* Whether any thread may call MPI at any time. */
bool cairn__mpi_any_thread(void);

/* Tags that no group of this process has had yet: the first, as far as it knows; and from here on no longer. */
int cairn__mpi_next_tag(void);
cairn_status cairn__mpi_take_tags(int first);

/* Polls, for the timeout of o; what: what is waited for. */
cairn_status cairn__mpi_wait(MPI_Request *requests, int count, const struct cairn__engine_options *o, const char *what);
/* The same before there is a group; what: what the ranks are in. */
cairn_status cairn__mpi_wait_watched(MPI_Request *request, struct cairn__mpi_watch *watch, const char *what);
void cairn__mpi_rest(int idle);

/* ---- engine.c ---- */

/* The others get its last word; false: in the midst of something, or the group died. */
bool cairn__mpi_part(struct cairn__engine *engine);

/* Before MPI_Finalize, which waits for all ranks for ever, and says nothing: until all have left the environments that
 * have ended here, or with a warning after the timeout. */
void cairn__mpi_await_others(void);

#endif
