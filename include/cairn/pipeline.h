/* Pipelines: a model in stages, each on a rank of its own, through which a batch goes in micro-batches.
 *
 *     stage 0   F0 F1 F2 F3          B0    B1    B2    B3        GPipe: all forwards, then all backwards
 *     stage 1      F0 F1 F2 F3 B0    B1    B2    B3
 *
 *     stage 0   F0 F1          B0 F2 B1 F3 B2    B3              1F1B: a backward as soon as there is one
 *     stage 1      F0 B0 F1    B1 F2 B2 F3 B3
 *
 * Stage s is a module on rank s of a group. Its output goes to stage s + 1 as that one's input, and the gradient of
 * that comes back, both as messages of the group, through memory of the group where it has some (shm), by NCCL from GPU
 * to GPU. A rank with
 * several modules has stages rank, rank + ranks, rank + 2 * ranks, ... Every rank has an environment, an optimizer and
 * an amp context of its own:
 *
 *     CAIRN_CHECK(cairn_pipeline_create(&stage, 1, cairn_env_group(env),
 *                                       cairn_pipeline_options(.n_microbatches = 8, .loss = loss, .amp = amp,
 *                                                              .optimizer = optimizer), &pipeline));
 *     for (...) {
 *         cairn_zero_grad(optimizer);
 *         CAIRN_CHECK(cairn_pipeline_step(pipeline, first ? x : NULL, last ? y : NULL, last ? &mean : NULL));
 *         CAIRN_CHECK(cairn_step(optimizer));
 *     }
 *
 * Batches     A batch is cut along dimension 0, as torch.chunk cuts: equal micro-batches, the last one smaller where
 *             they do not come out even. Sizes, types and shapes go ahead of what they describe, so that batches may
 *             differ from step to step. Between GPUs they do so when the shape of the input, frozen parameters or the
 *             call (step, eval) are others than last time; otherwise what stages send has to be alike, or ends the
 *             pipeline (CAIRN_ENOTSUP).
 * Gradients   are those of the mean over the batch: the loss of a micro-batch, which the loss function returns as a
 *             mean, counts by its rows. They are added up in f32, micro-batch after micro-batch in every schedule, so
 *             that all schedules give the bits that one rank gives which calls cairn_backward for the same
 *             micro-batches.
 * amp         All stages have one loss scale: contexts are made with the same options, the last stage scales, the
 *             others know the scale that comes with a gradient. Where a gradient of one stage is infinite or NaN all
 *             skip the step, and the message and amp_last_overflow on every rank name stage, rank and parameters.
 *             cairn_clip_grad_norm clips by the norm over all stages, and so does LAMB's max_grad_norm, which must be
 *             the same on all. Both exchange a few words between the ranks that have an optimizer, all of which call
 *             them.
 * Dropout     Random numbers are those of the rank and of the order of its forwards: the same for every schedule of one
 *             module a rank, which runs them in the order of the micro-batches; others for other stages, or more
 *             micro-batches. batch_norm normalises each micro-batch by its own statistics, and counts it as a batch.
 * Memory      A stage holds what backward needs of the micro-batches whose forward it has run and whose backward it has
 *             not: all of them with GPipe, at most (stages - stage) with 1F1B. Beside it, until the step ends, about
 *             700 bytes on the host for each operation of each micro-batch.
 * Waiting     On GPUs a call waits where it begins, for the ranks to agree on the batch; the first one with such a
 *             batch waits for every message. Where the last rank wants *loss or *output, every rank's call also waits
 *             at its end, for all GPUs. Messages have streams of their own, one for each neighbour and direction:
 *             whatever waits for a message is behind it in no queue, so that no schedule can stop.
 * Failures    What a rank finds wrong before a step fails on all ranks, and the pipeline goes on. What fails within one
 *             ends the pipeline: the other ranks return CAIRN_EPEER with that rank's sentence, over NCCL CAIRN_ETIMEOUT
 *             once the group's timeout is over, or twice that for a rank behind another one that waited; gradients are
 *             then incomplete, and cairn_step refuses them. On GPUs no rank returns CAIRN_OK from a call that gives the
 *             last rank a *loss or an *output and in which a stage failed. In a step without *loss a rank that has
 *             queued its part may have returned CAIRN_OK before another one failed: without amp and clipping its
 *             cairn_step is queued, and its next call of the pipeline fails: go on from a checkpoint. The group given
 *             to create lives on.
 * Threads     one thread an environment, as everything of it.
 * Source      torch.distributed.pipelining (PipelineStage, ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B); Huang
 *             et al., "GPipe", 2019; Narayanan et al., "Efficient Large-Scale Language Model Training", 2021. */
#ifndef CAIRN_PIPELINE_H
#define CAIRN_PIPELINE_H

#include "amp.h"
#include "ddp.h"
#include "dist.h"
#include "nn.h"
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_pipeline cairn_pipeline;
typedef struct cairn_grid cairn_grid;

typedef enum cairn_pipeline_schedule {
    CAIRN_PIPELINE_GPIPE = 1,            /* all forwards, then all backwards; one module a rank */
    CAIRN_PIPELINE_1F1B = 2,             /* one forward, one backward; one module a rank */
    CAIRN_PIPELINE_INTERLEAVED_1F1B = 3, /* the same over several modules a rank: less idle, more messages */
} cairn_pipeline_schedule;

/* The loss of one micro-batch, in the last stage: the mean over its rows, one element. output: of the last module;
 * target: the rows of the batch's target; micro_batch: from 0. NULL: it failed, with the last error. Tensors it makes
 * end with the micro-batch. */
typedef cairn_tensor *(*cairn_pipeline_loss_fn)(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch);

/* A stage's forward, where it is more than cairn_module_forward(module, input): of a mask by number, say. */
typedef cairn_tensor *(*cairn_pipeline_forward_fn)(void *ctx, cairn_module *module, cairn_tensor *input,
                                                   int micro_batch);

struct cairn_pipeline_options {
    size_t struct_size;
    cairn_pipeline_schedule schedule; /* 1F1B, or with several modules interleaved 1F1B */
    int n_microbatches;               /* at most so many; 0 = by split_size. One of the two must be set */
    int64_t split_size;               /* rows of a micro-batch; 0 = by n_microbatches */
    /* Of the rank with the last stage; NULL elsewhere, or where there is no loss. */
    cairn_pipeline_loss_fn loss;
    cairn_pipeline_forward_fn forward; /* NULL = cairn_module_forward, or ddp_forward */
    void *ctx;                         /* of both; the caller's */
    amp_context *amp;                  /* of the modules: on every rank, with an optimizer, or on none; NULL = none */
    /* Of the modules' parameters. NULL, on some ranks or on all: a rank's parameters stay as they are, and it takes no
     * part in steps and clipping. */
    cairn_optimizer *optimizer;
    /* [num_modules] a context of each module over the replicas of its stage, or NULL for one; NULL = none. The pipeline
     * calls ddp_forward and ddp_no_sync; a forward function calls ddp_forward itself. */
    ddp_context *const *ddp;
};
#define cairn_pipeline_options(...) \
    (&(struct cairn_pipeline_options){.struct_size = sizeof(struct cairn_pipeline_options), __VA_ARGS__})

/* Makes the stages of a pipeline.
 *
 *   modules  [num_modules] roots, in the order of their stages; the same number on every rank. They stay the caller's
 *   group    of any number of ranks, on CPUs or with a GPU each; the pipeline makes groups of its own of it
 *   options  the same on every rank, but for functions, amp and optimizer
 *   out      ends before modules, amp, optimizer and group
 *
 * After amp_initialize and before the first step. Collective: returns on every rank or fails on every rank.
 * Errors: CAIRN_EINVAL; CAIRN_EPEER another rank's error, or ranks whose options, levels or loss scales differ;
 * CAIRN_ETIMEOUT; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_pipeline_create(cairn_module *const *modules, int num_modules, cairn_group *group,
                                             const struct cairn_pipeline_options *options, cairn_pipeline **out);

/* Not collective; NULL is fine. On GPUs it waits for what is queued. */
CAIRN_API void cairn_pipeline_destroy(cairn_pipeline **pipeline);

/* Forward and backward of a batch: leaves gradients, which add to those that are there.
 *
 *   input   [rows, ...] on the rank with the first stage; NULL elsewhere
 *   target  [rows, ...] on the rank with the last stage; NULL elsewhere
 *   loss    out: the mean over the batch, on the rank with the last stage; or NULL, where it is not needed: on GPUs
 *           all ranks wait for it, so read it once in a while
 *
 * Collective. Results that the step makes end with it; those of the program stay, but for a rank without an optimizer,
 * whose step is over (cairn_release_results). Returns when this rank's part is done; on GPUs when it is queued, or with
 * *loss when every rank's is done.
 * Errors: CAIRN_EINVAL an argument, here or (CAIRN_EPEER) on another rank: nothing was done; others end the
 * pipeline. */
CAIRN_API cairn_status cairn_pipeline_step(cairn_pipeline *pipeline, cairn_tensor *input, cairn_tensor *target,
                                           double *loss);

/* Forward alone, under no_grad: evaluation. cairn_module_train is the caller's to call.
 *
 *   target, loss  as above; target may be NULL: no loss is computed, and *loss is not written
 *   output        out, on the rank with the last stage, or NULL: a leaf with the outputs of all rows, the caller's */
CAIRN_API cairn_status cairn_pipeline_eval(cairn_pipeline *pipeline, cairn_tensor *input, cairn_tensor *target,
                                           double *loss, cairn_tensor **output);

/* Ties parameters of several stages, which are one: each rank names its own, NULL where it has none. They become equal
 * (the first stage's values go to the others), and every step adds their gradients up, so that equal optimizers keep
 * them equal. The norm of clipping counts them once.
 *
 *   module, name  of the rank's modules, and the parameter's path in it
 *
 * Collective, after amp_initialize, before a step. Steps are then refused (CAIRN_ENOTSUP) while the program has
 * ddp_no_sync on. Errors, on all ranks: CAIRN_EINVAL no such parameter, other shapes
 * or types, fewer than two ranks; CAIRN_EPEER; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_pipeline_tie(cairn_pipeline *pipeline, int module, const char *name);

/* ---- data parallelism over pipelines ---- */

/* Ranks in a grid: each row is a replica of the model, in stages; each column has the replicas of a stage. Rank
 * replica * stages + stage of the environment, so that a replica's stages are neighbours.
 *
 *   replicas, stages   whose product is the number of ranks; 0 for one of them = what the other leaves
 *
 * Of its groups the first is for cairn_pipeline_create and the second for ddp_create of each stage, whose contexts go
 * to cairn_pipeline_options.ddp. Each replica trains on rows of its own; gradients are averaged over replicas, with the
 * backward of the last micro-batch. While the grid lives, lines of the log say the rank's place: "cairn: [rank 3,
 * replica 1, stage 1] error: ...". Collective over the environment. Errors: CAIRN_EINVAL; cairn_group_split's.
 * torch: init_device_mesh("cpu", (replicas, stages)) */
CAIRN_API cairn_status cairn_grid_create(cairn_env *env, int replicas, int stages, cairn_grid **out);
CAIRN_API void cairn_grid_destroy(cairn_grid **grid); /* after what uses its groups */

CAIRN_API cairn_group *cairn_grid_stages(const cairn_grid *grid);   /* of this rank's replica, in order; the grid's */
CAIRN_API cairn_group *cairn_grid_replicas(const cairn_grid *grid); /* of this rank's stage; the grid's */
CAIRN_API int cairn_grid_stage(const cairn_grid *grid);             /* of this rank; 0 for NULL */
CAIRN_API int cairn_grid_replica(const cairn_grid *grid);

/* The micro-batches that this rank held at most between forward and backward, in the last step; 0 for NULL. */
CAIRN_API int cairn_pipeline_in_flight(const cairn_pipeline *pipeline);

#ifdef __cplusplus
}
#endif

#endif
