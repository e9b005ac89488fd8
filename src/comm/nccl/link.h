/* A communicator in use: what the group's caller, the thread that watches, and a thread that calls cairn_group_abort
 * share of it.
 *
 * Launches are numbered from 1 and run in order; each leaves a mark behind it. The host never blocks in the device for
 * another rank: it polls. A thread ("cairn-nccl") polls every tenth of a second whether marks pass and whether the
 * library has failed, since the caller may be stuck in a full queue of the device, or in the user's own wait for the
 * stream. What fails, and a timeout, aborts the communicator: what is queued then ends, and every caller gets the
 * cause.
 *
 * Only that thread aborts, and the others request it and go on, since an abort returns when no graph is left that has
 * recorded the communicator. No call of the library is made under the mutex: one that queues blocks while the device's
 * queue is full, and meanwhile the thread must notice that nothing moves, or what failed, and abort. */
#ifndef CAIRN__COMM_NCCL_LINK_H
#define CAIRN__COMM_NCCL_LINK_H

#include <pthread.h>

#include "comm/group_backend.h"
#include "core/clock.h"
#include "device/comm.h"

/* Launches under way, and those that a graph records without having been waited for. */
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
    const char *doing; /* which, for people: "in " it */
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

/* Any thread; waits for nothing. */
void cairn__link_abort(struct cairn__link *link);

/* What gives a launch's work to the communicator. */
typedef cairn_status (*cairn__link_queue)(struct cairn__link *link, void *ctx);

/* Queues behind what the device has, and leaves a mark. call: what it is, for people. Waits while too many are under
 * way. The number goes to *number; while a graph is recorded it is that of a recording, for cairn__link_join alone.
 * Whatever fails is the link's end. */
cairn_status cairn__link_launch(struct cairn__link *link, const struct cairn__call *call, cairn__link_queue queue,
                                void *ctx, uint64_t *number);

/* Memory of the device that the communicator knows. Errors: the link's failure; CAIRN_ENOMEM, which is not its end.
 * After the link's failure free leaves it to the end. */
cairn_status cairn__link_alloc(struct cairn__link *link, size_t nbytes, void **out);
void cairn__link_free(struct cairn__link *link, void *memory);

/* Polls the marks; returns the link's failure. */
cairn_status cairn__link_poll(struct cairn__link *link, uint64_t *passed);
/* The device's stream waits for the launch. */
cairn_status cairn__link_join(struct cairn__link *link, uint64_t number);
/* The host does, and moves the family on meanwhile. */
cairn_status cairn__link_wait(struct cairn__link *link, uint64_t number);

#endif
