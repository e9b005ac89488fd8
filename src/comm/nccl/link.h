/* A communicator in use, shared by the group's caller, the watching thread, and a thread that calls cairn_group_abort.
 *
 * Launches are numbered from 1 and run in order; each is followed by a mark. The host never blocks in the device for
 * another rank: it polls. A thread ("cairn-nccl") checks every tenth of a second whether marks pass and whether the
 * library has failed, because the caller may be stuck in a full queue of the device, or in the user's own wait for the
 * stream. A failure or a timeout aborts the communicator: queued work then ends, and every caller gets the cause.
 *
 * Only that thread aborts; the others request it and continue, because an abort returns only when no graph is left that
 * has recorded the communicator. No call of the library is made under the mutex: a call that queues blocks while the
 * device's queue is full, and meanwhile the thread must detect a stall or a failure, and abort. */
#ifndef CAIRN__COMM_NCCL_LINK_H
#define CAIRN__COMM_NCCL_LINK_H

#include <pthread.h>

#include "comm/group_backend.h"
#include "core/clock.h"
#include "device/comm.h"

/* Launches in flight, and those that a graph records without a wait for them. */
enum { CAIRN__LINK_DEPTH = CAIRN__COMM_MARKS / 2 };

struct cairn__link {
    cairn_group *group;
    const struct cairn__comm_ops *ops;
    pthread_t thread;
    bool watched;
    bool ready;            /* the ranks are connected */
    bool has_memory;       /* some was allocated */
    pthread_mutex_t mutex; /* of all that follows */
    pthread_cond_t wake;   /* for the thread: it stops, or aborts */
    pthread_cond_t idle;   /* no longer calling, or gone */
    bool stops;
    bool calling;      /* a thread is in a call of the library */
    const char *doing; /* which call, for messages: "in ..." */
    int stood_ms;      /* of polls by the thread in which that call went on, and no mark passed */
    bool looks;        /* a thread reads the communicator's state, perhaps beside that call */
    bool gone;         /* no further call begins; the thread aborts */
    struct cairn__comm *comm;
    uint64_t launched, passed;
    struct cairn__call calls[CAIRN__LINK_DEPTH]; /* of launches under way */
    struct cairn__stall stall;                   /* polls in which no mark passed */
    double timeout;                              /* s; the group's until the link ends */
    cairn_status failed;
    char failure[600];
    uint64_t recorded; /* launches that graphs recorded */
};

/* Zeroed memory becomes a link without a communicator, which cairn__link_end ends at any time. */
void cairn__link_begin(struct cairn__link *link, cairn_group *group, const struct cairn__comm_ops *ops);

/* Connects the ranks within `timeout` seconds and begins to watch. */
cairn_status cairn__link_open(struct cairn__link *link, const struct cairn__comm_id *id, double timeout);
/* Waits while graphs live that have recorded the communicator. */
void cairn__link_end(struct cairn__link *link);

/* Any thread; does not wait. */
void cairn__link_abort(struct cairn__link *link);

/* What gives a launch's work to the communicator. */
typedef cairn_status (*cairn__link_queue)(struct cairn__link *link, void *ctx);

/* Queues the work after what the device's stream has, followed by a mark. call is for messages. Waits while too many
 * launches are in flight. *number is the launch's number; while a graph is recorded, that of the recording, which
 * only cairn__link_join takes. Any failure ends the link. */
cairn_status cairn__link_launch(struct cairn__link *link, const struct cairn__call *call, cairn__link_queue queue,
                                void *ctx, uint64_t *number);

/* Device memory that the communicator knows. Errors: the link's failure; CAIRN_ENOMEM, which does not end the link.
 * After a failure of the link, memory is freed only when the link ends. */
cairn_status cairn__link_alloc(struct cairn__link *link, size_t nbytes, void **out);
void cairn__link_free(struct cairn__link *link, void *memory);

/* Polls the marks; returns the link's failure. */
cairn_status cairn__link_poll(struct cairn__link *link, uint64_t *passed);
/* The device's stream waits for the launch. */
cairn_status cairn__link_join(struct cairn__link *link, uint64_t number);
/* The host waits for the launch, and makes progress in the family meanwhile. */
cairn_status cairn__link_wait(struct cairn__link *link, uint64_t number);

#endif
