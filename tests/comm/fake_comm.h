/* A fake communication library whose ranks are threads and whose device is the CPU. It does exactly what comm/nccl
 * requires, in the most awkward way allowed. Streams run in order; collectives that ranks issue in different orders
 * never run. */
#ifndef TESTS_DIST_FAKE_COMM_H
#define TESTS_DIST_FAKE_COMM_H

#include <stdbool.h>

#include "device/comm.h"

enum fake_comm_fault {
    FAKE_COMM_FINE = 0,
    FAKE_COMM_NO_ID,       /* unique_id fails */
    FAKE_COMM_INIT_FAILS,  /* on the rank */
    FAKE_COMM_INIT_HANGS,  /* of the rank: it never gets ready, nor does any other */
    FAKE_COMM_SAME_PLACE,  /* all ranks are on one device */
    FAKE_COMM_CALL_FAILS,  /* on the rank, the operation */
    FAKE_COMM_ASYNC_FAILS, /* the rank's state says so once the operation should run */
    FAKE_COMM_HANGS,       /* the rank's operation never runs */
    FAKE_COMM_NO_MEMORY,   /* the rank has none */
    FAKE_COMM_FILLS_QUEUE, /* as HANGS, and what follows the operation on the rank stands still until an abort */
    FAKE_COMM_FREE_STANDS, /* so does the rank's free of memory */
    FAKE_COMM_QUEUE_FULL,  /* once fake_comm_fill_queue is called, what follows on the rank stands until an abort */
    FAKE_COMM_NO_MARKS,    /* once fake_comm_fill_queue is called, none of the rank's passes */
};

struct fake_comm_plan {
    unsigned seed;              /* of delays; 0 = whatever can run does at once */
    enum fake_comm_fault fault; /* in communicators of more than one rank, but for NO_ID */
    int rank, operation;        /* operations of a communicator are counted from 1 */
    bool tells;                 /* of a call that stands: the state is a failure then */
};

/* For communicators that are made from now on. */
void fake_comm_set(const struct fake_comm_plan *plan);
/* As if graphs lived that have recorded communicators: aborts end what runs, and do not return. */
void fake_comm_keep_graphs(bool keep);
void fake_comm_fill_queue(void);
int fake_comm_count(void);  /* that are open */
int fake_comm_aborts(void); /* since set */
int fake_comm_blocks(void); /* of memory that are not free */
int fake_comm_stands(void); /* calls that stand still or stood, since set */
int fake_comm_groups(void); /* of messages launched since set */

extern const struct cairn__comm_ops fake_comm_ops;

#endif
