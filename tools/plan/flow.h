/* Simulates one step of a pipeline over time: the begin and end of each rank's actions.
 *
 * Ranks run the actions of cairn_pipeline (parallel/plan.c, the same code) in order. An action begins when the rank is
 * free and its input has arrived: a forward's input from the previous stage, a backward's gradient from the next stage.
 * It takes cost(rows) of its micro-batch. Then its result is sent: a message of n bytes takes alpha + beta n, during
 * which the sender's processor is busy for the link's share; messages in the same direction follow one another. A
 * message waits until the one `slots` before it has been received, as in cairn_pipeline. Not modelled: the optimizer,
 * tied weights, replicas, and that the first micro-batch writes gradients while the others accumulate.
 *
 * With p equal stages, M micro-batches, no fixed cost and a free link the step of GPipe and 1F1B is
 * (M + p - 1) / M times a stage's forward and backward of the batch, and (p - 1) / (M + p - 1) of it is idle. */
#ifndef PLAN_FLOW_H
#define PLAN_FLOW_H

#include "cairn/pipeline.h"
#include "link.h"
#include "stages.h"

struct turn {
    bool is_backward;
    int stage, micro_batch;
    double begin, end; /* ns */
};

struct flow {
    double end;       /* ns, of the last rank's last turn */
    double idle;      /* part of all ranks' time in which they compute nothing */
    double held;      /* bytes that the rank with the most holds between forward and backward */
    int in_flight;    /* of the rank with the most, counted per module */
    int ranks, turns; /* turns of each rank: 2 * modules * micro_batches */
    int micro_batches;
    int64_t split;     /* rows of a micro-batch; the last one may have fewer */
    struct turn *list; /* [ranks][turns] */
    int *in_flight_of; /* [ranks] */
};

struct pipe {
    const struct stages *stages; /* rank r has the stages r, r + ranks, ... */
    const struct link *link;
    cairn_pipeline_schedule schedule;
    int64_t rows;
    int modules; /* of a rank; stages / modules ranks */
};

enum { MAX_MICRO_BATCHES = 4096 };

void flow_run(const struct pipe *pipe, int64_t split, struct flow *out);
void flow_free(struct flow *f);

/* Rows per micro-batch for a number of micro-batches, as torch.chunk and cairn_pipeline split. */
int64_t split_for(int64_t rows, int64_t micro_batches);

/* Simulates a step for each number of micro-batches that rows can be split into, up to MAX_SEARCHED, by decreasing
 * split size. The caller owns *list and the steps, which have no turns. */
enum { MAX_SEARCHED = 512 };
size_t flow_search(const struct pipe *pipe, struct flow **list);

/* Returns the index of the step to suggest: among those that take at most 1 % longer than the shortest, which is within
 * the model's error, the one that holds the fewest rows between forward and backward; among equal ones the shortest,
 * then the one with the fewest micro-batches. */
#define FLAT 0.01
size_t flow_best(const struct flow *list, size_t count);

#endif
