/* Pipeline parallelism: the model is divided into stages on different ranks, and each batch passes through them in
 * micro-batches.
 *
 *     stage 0   F0 F1 F2 F3          B0    B1    B2    B3        GPipe: all forwards, then all backwards
 *     stage 1      F0 F1 F2 F3 B0    B1    B2    B3
 *
 *     stage 0   F0 F1          B0 F2 B1 F3 B2    B3              1F1B: a backward as soon as there is one
 *     stage 1      F0 B0 F1    B1 F2 B2 F3 B3
 *
 * Stage s is a module on rank s of a group. Its output is sent to stage s + 1 as that stage's input, and the gradient
 * of that input is sent back, both as messages of the group: through group memory where it has some (shm), from GPU to
 * GPU over NCCL. A rank with several modules runs stages rank, rank + ranks, rank + 2 * ranks, ... Every rank has an
 * environment, an optimizer and an amp context of its own:
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
 * Batches     A batch is split along dimension 0 as by torch.chunk: equal micro-batches, the last one smaller if the
 *             rows do not divide evenly. Each message's type and shape is sent ahead of it, so batches may differ from
 *             step to step. Between GPUs these are sent only if the input's shape, the frozen parameters or the call
 *             (step, eval) differ from the previous call; otherwise stages must send the same types and shapes as
 *             before, and a difference ends the pipeline (CAIRN_ENOTSUP).
 * Gradients   are those of the mean over the batch: the loss function returns the mean over a micro-batch, and each
 *             micro-batch is weighted by its rows. Gradients are accumulated in f32 in micro-batch order in every
 *             schedule, so all schedules give the same bits as one rank that calls cairn_backward for the same
 *             micro-batches.
 * amp         All stages share one loss scale: create the contexts with the same options. The last stage scales the
 *             loss; the scale travels with the gradients. If a gradient of any stage is infinite or NaN, all stages
 *             skip the step, and the message and amp_last_overflow on every rank name the stage, rank and parameters.
 *             cairn_clip_grad_norm clips by the norm over all stages, and so does LAMB's max_grad_norm, which must be
 *             the same on all. Both exchange a few words between the ranks that have an optimizer, and all of these
 *             ranks must call them.
 * Dropout     Random numbers depend on the rank and the order of its forwards. With one module a rank, every schedule
 *             runs forwards in micro-batch order and draws the same numbers; another number of stages or micro-batches
 *             draws others. batch_norm normalises each micro-batch by its own statistics and counts it as one batch.
 * Memory      A stage keeps what backward needs of each micro-batch in flight, that is between its forward and its
 *             backward: all micro-batches with GPipe, at most (stages - stage) with 1F1B. It also keeps, until the step
 *             ends, about 700 bytes on the host for each operation of each micro-batch.
 * Waiting     On GPUs each call first waits until the ranks agree on the batch; the first call with a batch that
 *             differs (see Batches) also waits for every message. If the last rank asks for *loss or *output, every
 *             rank's call also waits at its end, for all GPUs. Messages have streams of their own, one per neighbour
 *             and direction, so nothing unrelated is queued behind a waiting message, and no schedule can deadlock.
 * Failures    An error that a rank finds before a step fails the call on all ranks, and the pipeline can still be used.
 *             An error within a step ends the pipeline: the other ranks return CAIRN_EPEER with the failing rank's
 *             message; over NCCL they return CAIRN_ETIMEOUT after the group's timeout, or after twice that if a rank
 *             waits for another one that waits. Gradients are then incomplete, and cairn_step refuses them. On GPUs, if
 *             a stage fails in a call that gives the last rank a *loss or *output, no rank returns CAIRN_OK. In a step
 *             without *loss, a rank that has queued its part may return CAIRN_OK before another rank fails: without amp
 *             and clipping its cairn_step is then queued too, and its next pipeline call fails; resume from a
 *             checkpoint. The group passed to create stays usable.
 * Threads     one thread an environment, as for all its objects.
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

/* The loss of one micro-batch, called on the last stage; returns the mean over its rows, one element. output: of the
 * last module; target: the micro-batch's rows of the target; micro_batch: from 0. Returns NULL on failure, with the
 * last error set. Tensors made here end with the micro-batch. */
typedef cairn_tensor *(*cairn_pipeline_loss_fn)(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch);

/* A stage's forward, for programs that need more than cairn_module_forward(module, input), such as a mask that depends
 * on the micro-batch. */
typedef cairn_tensor *(*cairn_pipeline_forward_fn)(void *ctx, cairn_module *module, cairn_tensor *input,
                                                   int micro_batch);

struct cairn_pipeline_options {
    size_t struct_size;
    cairn_pipeline_schedule schedule; /* 0 = 1F1B; with several modules a rank, interleaved 1F1B */
    int n_microbatches;               /* at most this many; 0 = set by split_size. Exactly one of the two must be set */
    int64_t split_size;               /* rows of a micro-batch; 0 = set by n_microbatches */
    /* Required on the rank with the last stage, except if it only evaluates without a target; NULL elsewhere. */
    cairn_pipeline_loss_fn loss;
    cairn_pipeline_forward_fn forward; /* NULL = cairn_module_forward, or ddp_forward */
    void *ctx;                         /* passed to loss and forward; the caller's */
    amp_context *amp;                  /* of the modules; on all ranks or none, and only with optimizer. NULL = none */
    /* Of the modules' parameters. NULL, on some ranks or all: the rank's parameters stay unchanged, and it takes no
     * part in steps and clipping. */
    cairn_optimizer *optimizer;
    /* [num_modules] For each module a context over the replicas of its stage, or NULL; NULL = none at all. The pipeline
     * calls ddp_forward and ddp_no_sync; a forward function of the user's calls ddp_forward itself. */
    ddp_context *const *ddp;
};
#define cairn_pipeline_options(...) \
    (&(struct cairn_pipeline_options){.struct_size = sizeof(struct cairn_pipeline_options), __VA_ARGS__})

/* Makes a rank's stages of a pipeline.
 *
 *   modules  [num_modules] roots, in the order of their stages; the same number on every rank. They stay the caller's
 *   group    any number of ranks, on CPUs or with a GPU each; the pipeline derives its own groups from it
 *   options  the same on every rank, except functions, amp and optimizer
 *   out      must be destroyed before modules, amp, optimizer and group
 *
 * Call it after amp_initialize and before the first step. Collective: succeeds on every rank or fails on every rank.
 * Errors: CAIRN_EINVAL; CAIRN_EPEER an error on another rank, or options, levels or loss scales that differ between
 * ranks; CAIRN_ETIMEOUT; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_pipeline_create(cairn_module *const *modules, int num_modules, cairn_group *group,
                                             const struct cairn_pipeline_options *options, cairn_pipeline **out);

/* Not collective; NULL is fine. On GPUs it waits for queued work. */
CAIRN_API void cairn_pipeline_destroy(cairn_pipeline **pipeline);

/* Forward and backward of a batch. Adds to gradients that are already there.
 *
 *   input   [rows, ...] on the rank with the first stage; NULL elsewhere
 *   target  [rows, ...] on the rank with the last stage; NULL elsewhere
 *   loss    out: the mean over the batch, on the rank with the last stage; NULL = not needed. On GPUs all ranks wait
 *           for it, so request it only now and then
 *
 * Collective. Results made by the step end with it; the program's own results stay, except on a rank without an
 * optimizer, where the step is then over (cairn_release_results). Returns when this rank's part is done; on GPUs when
 * it is queued, or with *loss when every rank's part is done.
 * Errors: CAIRN_EINVAL an argument, with CAIRN_EPEER on the other ranks: nothing was done; any other error ends the
 * pipeline. */
CAIRN_API cairn_status cairn_pipeline_step(cairn_pipeline *pipeline, cairn_tensor *input, cairn_tensor *target,
                                           double *loss);

/* Forward only, under no_grad, for evaluation. The caller sets the mode with cairn_module_train.
 *
 *   target, loss  as for cairn_pipeline_step; with target NULL no loss is computed and *loss is not written
 *   output        out, on the rank with the last stage, or NULL: a leaf with the outputs of all rows, owned by the
 *                 caller */
CAIRN_API cairn_status cairn_pipeline_eval(cairn_pipeline *pipeline, cairn_tensor *input, cairn_tensor *target,
                                           double *loss, cairn_tensor **output);

/* Ties parameters of several stages into one: each rank names its own, or passes NULL if it has none. They become equal
 * (the first stage's values are sent to the others), and every step sums their gradients, so equal optimizers keep them
 * equal. The norm of clipping counts them once.
 *
 *   module, name  one of this rank's modules, by index, and the parameter's path in it
 *
 * Collective; call it after amp_initialize and before a step. Steps then return CAIRN_ENOTSUP while ddp_no_sync is on.
 * Errors, on all ranks: CAIRN_EINVAL no such parameter, different shapes or types, fewer than two ranks; CAIRN_EPEER;
 * CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_pipeline_tie(cairn_pipeline *pipeline, int module, const char *name);

/* ---- data parallelism over pipelines ---- */

/* Arranges ranks in a grid: each row is a replica of the model, divided into stages; each column has the replicas of
 * one stage. The environment's rank is replica * stages + stage, so the stages of a replica are neighbours.
 *
 *   replicas, stages   their product is the number of ranks; 0 for one of them = derived from the other
 *
 * Pass cairn_grid_stages to cairn_pipeline_create and cairn_grid_replicas to ddp_create for each stage; the ddp
 * contexts go to cairn_pipeline_options.ddp. Each replica trains on rows of its own; gradients are averaged over
 * replicas during the backward of the last micro-batch. While the grid exists, log lines show the rank's place: "cairn:
 * [rank 3, replica 1, stage 1] error: ...". Collective over the environment. Errors: CAIRN_EINVAL; those of
 * cairn_group_split.
 * torch: init_device_mesh("cpu", (replicas, stages)) */
CAIRN_API cairn_status cairn_grid_create(cairn_env *env, int replicas, int stages, cairn_grid **out);
CAIRN_API void cairn_grid_destroy(cairn_grid **grid); /* after everything that uses its groups */

CAIRN_API cairn_group *cairn_grid_stages(const cairn_grid *grid);   /* this replica's stages, in order; the grid's */
CAIRN_API cairn_group *cairn_grid_replicas(const cairn_grid *grid); /* the replicas of this stage; the grid's */
CAIRN_API int cairn_grid_stage(const cairn_grid *grid);             /* of this rank; 0 for NULL */
CAIRN_API int cairn_grid_replica(const cairn_grid *grid);

/* The largest number of micro-batches that this rank had in flight at once in the last step; 0 for NULL. */
CAIRN_API int cairn_pipeline_in_flight(const cairn_pipeline *pipeline);

#ifdef __cplusplus
}
#endif

#endif
