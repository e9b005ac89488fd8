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
    FAKE_COMM_INIT_HANGS,  /* on the rank: neither it nor any other rank gets ready */
    FAKE_COMM_SAME_PLACE,  /* all ranks are on one device */
    FAKE_COMM_CALL_FAILS,  /* the operation fails on the rank */
    FAKE_COMM_ASYNC_FAILS, /* the rank's state reports an error once the operation should run */
    FAKE_COMM_HANGS,       /* the rank's operation never runs */
    FAKE_COMM_NO_MEMORY,   /* allocation fails on the rank */
    FAKE_COMM_FILLS_QUEUE, /* as HANGS, and later calls on the rank block until an abort */
    FAKE_COMM_FREE_STANDS, /* the rank's free of memory blocks, too */
    FAKE_COMM_QUEUE_FULL,  /* after fake_comm_fill_queue, calls on the rank block until an abort */
    FAKE_COMM_NO_MARKS,    /* after fake_comm_fill_queue, none of the rank's event marks is reached */
};

struct fake_comm_plan {
    unsigned seed;              /* of delays; 0 = operations run as soon as possible */
    enum fake_comm_fault fault; /* applies to communicators of more than one rank, except NO_ID */
    int rank, operation;        /* operations of a communicator are counted from 1 */
    bool tells;                 /* while a call blocks, the state reports a failure */
};

/* For communicators that are created from now on. */
void fake_comm_set(const struct fake_comm_plan *plan);
/* Simulates live graphs that captured communicators: aborts end running operations, and do not return. */
void fake_comm_keep_graphs(bool keep);
void fake_comm_fill_queue(void);
int fake_comm_count(void);  /* that are open */
int fake_comm_aborts(void); /* since set */
int fake_comm_blocks(void); /* memory blocks in use */
int fake_comm_stands(void); /* calls that block or have blocked, since set */
int fake_comm_groups(void); /* message groups launched since set */

extern const struct cairn__comm_ops fake_comm_ops;

#endif
