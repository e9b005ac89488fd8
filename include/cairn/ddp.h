/* Distributed data parallel: every rank computes the gradients of its own batch, and all ranks apply their average.
 *
 * What torch.nn.parallel.DistributedDataParallel and apex.parallel offer, under their names. What is better here:
 * gradients overlap with backward from the first step on and are written by it straight into the memory that is
 * reduced; the average is summed in f32 in rank order and rounded once (4 x 40000 in f16 is 40000; nccl: dist.h); all
 * ranks fail where they differ, with the parameter's name; ranks whose input has run out keep scale, masters and
 * moments equal to the others'.
 *
 * Buckets   Gradients that travel together. Each rank sends them in one fixed order, a bucket as soon as all its
 *           gradients are there and its predecessors are sent. They are planned in reverse order of registration;
 *           before the second forward they are planned once more, in the order in which gradients became ready on rank
 *           0.
 * Order     ddp makes a channel of its own of the group (cairn_group_new), so that its collectives keep clear of the
 *           user's. Every rank makes, uses and ends its contexts alike.
 * Failures  What kills the group kills the context: destroy it. A backward that fails half-way on one rank fails on
 *           all. So does one whose loss depends on nothing that requires a gradient: with several contexts in the
 *           environment, in all of them, with find_unused_parameters too. A loss that reaches another model alone is
 *           no failure (of two models one often trains by itself), so that a rank on which it is one by mistake is
 *           found by the others' timeout: every rank runs as many backwards of each context.
 * Threads   one thread per context at a time. */
#ifndef CAIRN_DDP_H
#define CAIRN_DDP_H

#include "core.h"
#include "dist.h"
#include "nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_context ddp_context;

/* A comment is of the field below it. */
struct ddp_options {
    size_t struct_size;

    /* A bucket is closed once it holds this much; 0 = 25 MiB (torch: bucket_cap_mb), and 4 MiB on "shm", where it is
     * summed in the caches and nothing is gained by sending less often. A tensor that is larger is split over
     * several. */
    size_t bucket_nbytes;
    /* Type that travels; 0 = the gradients' own (half at O2 and O3, and for half values in f32 memory). f32, f16 or
     * bf16; another type than the gradients' costs a copy and a rounding each way. */
    cairn_dtype wire;
    /* Of the first bucket of each type, so that something travels early; 0 = 1 MiB or bucket_nbytes, whichever is
     * less (torch: dist._DEFAULT_FIRST_BUCKET_BYTES). */
    size_t first_bucket_nbytes;

    /* ---- torch's ---- */

    /* Rank 0's buffers go to all before each forward that follows a training forward with synchronisation. ON */
    cairn_switch broadcast_buffers;
    /* ON: parameters that a backward does not reach count as zero; those that no rank reaches keep weight, moments
     * and master as they are. Every backward then waits for a bit a parameter from every rank. OFF: they are an
     * error on all ranks. */
    cairn_switch find_unused_parameters;
    /* ON: ranks exchange once, in the first backward, which parameters it reaches; a backward that reaches others is an
     * error. OFF */
    cairn_switch static_graph;
    /* OFF: ranks are taken to hold equal parameters; nothing is compared or sent. ON */
    cairn_switch init_sync;
    /* OFF: gradients stay where they are and are copied into buckets and back. ON for modules; memory of the user's
     * never moves. */
    cairn_switch gradient_as_bucket_view;
    /* With find_unused_parameters: a bucket for which no rank has a gradient is not sent. OFF */
    cairn_switch skip_all_reduce_unused_params;
    /* [num_ignored] names of parameters and buffers that stay each rank's own (torch:
     * _ddp_params_and_buffers_to_ignore). */
    const char *const *ignored;
    size_t num_ignored;

    /* ---- apex's ---- */

    /* Elements instead of bucket_nbytes: a bucket is closed once it holds as many; 1 = one parameter a bucket. 0 =
     * bucket_nbytes counts */
    int64_t message_size;
    /* ON: nothing is sent before backward has ended, one bucket a type; unused parameters count as with
     * find_unused_parameters. OFF */
    cairn_switch delay_allreduce;
    /* gradient_as_bucket_view by apex's name, where that is not set: ON: gradients are views of the buckets, which stay
     * until the next backward (ddp_bucket_get); OFF, apex's default: they have memory of their own. 0 = as
     * gradient_as_bucket_view */
    cairn_switch retain_allreduce_buffers;
    /* ON: wire = f32. OFF */
    cairn_switch allreduce_always_fp32;
    /* OFF: the sum, not the average. ON */
    cairn_switch gradient_average;
    /* f: apex divides by f before the sum and by p/f after it. An average here is one division in f32, so f changes
     * it not at all; where gradient_average is OFF, gradients are divided by f before they are summed. 0 = 1 */
    double gradient_predivide_factor;
    /* [num_trigger_params] a bucket is closed behind each of these parameters, and by nothing else. */
    const char *const *allreduce_trigger_params;
    size_t num_trigger_params;
    /* Deprecated: without effect. Buckets have one order, and on a GPU one stream of the group's; 0 or 1. Above 1:
     * CAIRN_EINVAL. */
    int num_allreduce_streams;
    /* Deprecated: without effect. There are no profiler ranges to switch on (apex: NVTX); times are in
     * ddp_logging.h. ON: CAIRN_EINVAL. */
    cairn_switch prof;

    /* ---- uneven inputs: ddp_join ---- */

    /* OFF: averages are over the ranks that have input. ON */
    cairn_switch join_divide_by_initial_world_size;
    /* ON: a rank without input is an error on every rank. OFF */
    cairn_switch join_throw_on_early_termination;

    /* ---- ZeRO (torch: ZeroRedundancyOptimizer; DeepSpeed: stage 1) ---- */

    /* ON: of p ranks each updates an equal part of the parameters, and has that part alone of masters and of the
     * optimizers' states. cairn_step gathers the weights, which is collective, and sends bytes of the weights' type.
     * Weights and moments have the bits that they have without it; where norms decide (clipping, LAMB, NovoGrad, LARC)
     * they agree to 1e-6, and LAMB, NovoGrad and LARC exchange norms between all ranks, which waits for the device in
     * every step and cannot be recorded.
     * Memory: a module's weights move into group memory; those in the user's memory travel in one more copy of all of
     * them. Between a backward (ddp_wait) and the step a gradient's memory has the average in this rank's part alone.
     * Refused, with a sentence: communication hooks, ddp_reducer_create, another wire than the gradients' type,
     * freezing and thawing, steps of gradients that are unsynced, cairn_optimizer_masters, Muon, averages of half
     * weights, updates that the user's program makes itself (those of custom_optimizer.h are shared),
     * cairn_weights_load; cairn_weights_save writes half weights as they are. cairn_param_master returns NULL.
     * ddp_destroy makes all whole again, where there is the memory for it. OFF */
    cairn_switch shard_optimizer;
};
#define ddp_options(...) (&(struct ddp_options){.struct_size = sizeof(struct ddp_options), __VA_ARGS__})

/* ---- for modules ---- */

/* Makes the ranks' models one: checks that all have the same parameters, buffers and options,
 * sends rank 0's masters, weights and buffers to all (half weights are re-rounded from the masters), and moves the
 * gradients into buckets of group memory. From then on cairn_backward averages gradients over the ranks before it
 * returns.
 *
 *   model    after amp_initialize (where amp is used)
 *   group    cairn_env_group(env); may have one rank
 *   options  NULL = all defaults; the same on every rank
 *   out      ends before model and group
 *
 * Pointers to gradients change here and at the second ddp_forward that records, and never again. Gradients that the
 * model has already are forgotten. With shard_optimizer cairn_param.data changes here and in ddp_destroy.
 * Collective. Every rank calls it, and every rank runs as many backwards.
 * Errors   CAIRN_EINVAL; CAIRN_ESTATE the model has a ddp context already, or parameters of which a context with
 *          shard_optimizer has left this rank a part; CAIRN_EPEER parameters or options differ
 *          between ranks (every rank fails; the message names the parameter or option and both ranks' values), or a
 *          rank died; CAIRN_ETIMEOUT; CAIRN_ENOMEM.
 * Cost     no copy of the gradients beyond the buckets themselves; rank 0's small tensors come through 1 MiB of group
 *          memory, given back at once.
 * Source   torch/nn/parallel/distributed.py (1.13 to 2.x); apex/parallel/distributed.py at 25.04. */
CAIRN_API cairn_status ddp_create(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                                  ddp_context **out);

/* Gives the gradients back to the model; gradients in the buckets are forgotten. Collective, as cairn_group_free is:
 * every rank calls it, and no rank waits once the group is dead. If the group dies during the call, the cause is logged
 * as an error; so where this rank took fewer steps than another, which waits for it in another group. Its graphs end
 * before it: where one is alive that has recorded its collectives, an error is logged and nothing happens. With
 * shard_optimizer, where a rank has no memory for the weights, an error is logged and the context is kept: *ddp stays
 * set. Otherwise it is NULL. */
CAIRN_API void ddp_destroy(ddp_context **ddp);

/* cairn_module_forward of the model; ddp_forward_n that of several inputs. Broadcasts buffers and plans buckets anew
 * where that is due (both collective). NULL on error. */
CAIRN_API cairn_tensor *ddp_forward(ddp_context *ddp, cairn_tensor *x);
CAIRN_API cairn_tensor *ddp_forward_n(ddp_context *ddp, cairn_tensor *const *inputs, int count);

/* Gives every rank rank 0's buffers (running statistics), but for ignored ones. A training forward that follows a
 * synchronised one begins with that; a forward under no_grad exchanges nothing, so that ranks may evaluate unequal
 * numbers of batches, also none. Call it on every rank before an evaluation of a model with buffers.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_EPEER; CAIRN_ETIMEOUT. One broadcast; none where there are no buffers. */
CAIRN_API cairn_status ddp_broadcast_buffers(ddp_context *ddp);

/* ---- for parameters in the user's memory ---- */

/* The same for a set that cairn_param_set_create made; after amp_initialize_params, where amp is used. Gradients stay
 * where they are and are copied into buckets and back. Every gradient of a step is declared once, by ddp_grads_ready,
 * in any order; ddp_wait then has their averages in place, and the step follows. */
CAIRN_API cairn_status ddp_create_params(cairn_param_set *set, cairn_group *group, const struct ddp_options *options,
                                         ddp_context **out);

/* cairn_grads_ready of the set of ddp (param.h), and sends each bucket that it makes full. The memory may not be read
 * or written until ddp_wait: calls that would (a step, clipping, zero_grad, cairn_grads_taken, another loss scale)
 * refuse. The first declaration after the first ddp_wait plans buckets anew and is collective. Errors: as
 * cairn_grads_ready; CAIRN_ESTATE a parameter was declared already since the last ddp_wait, or with static_graph was
 * not before the first one. ddp_wait returns what fails in a bucket. After a failure that ends a backward this
 * call repeats its cause, and so does ddp_wait; a rank alone begins anew after that. */
CAIRN_API cairn_status ddp_grads_ready(ddp_context *ddp, size_t first, size_t count);

/* Returns once the averages stand in the gradients' memory, with shard_optimizer those of this rank's part; under
 * ddp_no_sync once they are kept elsewhere, so that the memory may be written again, from 0. Every rank calls it once a
 * backward; where several come before a step, cairn_grads_taken after each keeps averages from being replaced by the
 * next.
 * Errors: CAIRN_ESTATE a parameter was not declared (its name, and find_unused_parameters as the remedy; on the other
 * ranks CAIRN_EPEER with the same sentence); CAIRN_EPEER; CAIRN_ETIMEOUT; CAIRN_ENOMEM. Gradients are then incomplete,
 * and the next step refuses them. */
CAIRN_API cairn_status ddp_wait(ddp_context *ddp);

/* ---- accumulation over several backwards ---- */

/* on not 0: backwards (or ddp_wait) from here on keep their gradients on this rank, unscaled, in f32, scalers are not
 * updated for them, and the first one after ddp_no_sync(ddp, 0) reduces the sum of all: round(unsynced * S + its own)
 * is reduced, S being its scale. An overflow in any of them is found there, on all ranks, and is one skipped step. It
 * holds for forward and backward of a batch: switch it before the forward; cairn_release_results after the backward
 * gives the next one its memory. torch's no_sync(), apex's disable_allreduce and enable_allreduce.
 *
 * A call that reads, clips or applies gradients before that uses those of this rank; ranks that apply them diverge.
 * From the first such step on, the set's weights, and moments, counters and loss scales with them, count as each rank's
 * own: checkpoints (state.h) hold those of every rank and load on as many ranks, also when weights have been averaged
 * since. ddp_create sends rank 0's weights, and no moments: it does not change that.
 * Errors: CAIRN_EINVAL; CAIRN_ESTATE within a backward, or between ddp_grads_ready and ddp_wait; CAIRN_ENOMEM. Cost: an
 * f32 accumulator for each parameter, made on first need. Source: torch/nn/parallel/distributed.py, no_sync. */
CAIRN_API cairn_status ddp_no_sync(ddp_context *ddp, int on);

/* apex.parallel.Reducer: a context whose backwards keep their gradients until ddp_reduce, which averages the sums since
 * the last one. A parameter without a gradient on some ranks counts as zero there; one without a gradient on all keeps
 * weight, moments and master.
 * Both are collective. Errors: of create, as ddp_create; of ddp_reduce, CAIRN_EINVAL another kind of context,
 * CAIRN_ESTATE within a backward, and on every rank where some had a backward since the last one and some had not (a
 * rank without input takes ddp_zero_loss), CAIRN_EPEER, CAIRN_ETIMEOUT, CAIRN_ENOMEM. Cost: nothing overlaps; of
 * several backwards, as ddp_no_sync.
 * Source: apex/parallel/distributed.py, class Reducer. */
CAIRN_API cairn_status ddp_reducer_create(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                                          ddp_context **out);
CAIRN_API cairn_status ddp_reduce(ddp_context *ddp);

/* ---- uneven inputs ---- */

/* Where ranks may run out of input at different times, the loop asks before each step how many ranks still have some:
 *
 *     for (;;) {
 *         int have = next_batch(&x, &y), active;
 *         CHECK(ddp_join(net, have, &active));
 *         if (active == 0) break;
 *         cairn_zero_grad(opt);
 *         cairn_tensor *loss = have ? cairn_mse_loss(ddp_forward(net, x), y) : ddp_zero_loss(net);
 *         CHECK(amp_backward(amp, loss, opt));
 *         CHECK(cairn_step(opt));
 *     }
 *
 * A rank without input goes through the same step with gradients of zero, so that scale, masters, weights and moments
 * stay equal on all ranks; torch's Join lets scalers and moments drift and sends a model around at the end. Call it
 * before each step: a rank may have input again later.
 *
 *   have_input  not 0: this rank has a batch for the step that comes
 *   active      out: ranks that have one; 0 = none, and nothing more is to be done
 *
 * Averages   the sum over the ranks, which zeros leave as it is, divided once: by all ranks, or those that have input
 *            (join_divide_by_initial_world_size), also where gradients have come together under ddp_no_sync before.
 * Buffers    come from the lowest rank that has input.
 * Parameters in the user's memory: a rank without input writes zeros to the gradients and declares them as ever (or,
 *            with find_unused_parameters, declares none), then ddp_wait and the step.
 * SyncBatchNorm needs every rank's forward and backward: there a rank without input takes a batch of 0 rows instead of
 *            ddp_zero_loss (the loss it prints is then a NaN), or give join_throw_on_early_termination.
 * Collective. Errors: CAIRN_EINVAL; CAIRN_ESTATE within a backward (between ddp_grads_ready and ddp_wait), or with
 * join_throw_on_early_termination, on every rank: some have input and some have not (that all have none is the end);
 * CAIRN_EPEER; CAIRN_ETIMEOUT. Cost: an all-gather of a byte a rank.
 * Source: torch.distributed.algorithms.join, for what the options mean. */
CAIRN_API cairn_status ddp_join(ddp_context *ddp, int have_input, int *active);

/* A loss of 0 whose gradient is 0 for every parameter, ignored ones too. It stands for ddp_forward and the loss:
 * buffers are broadcast where that is due. With find_unused_parameters none of them counts as used on this rank, and
 * those that no rank's batch reaches keep weight, moments and master. Another loss without a gradient does not serve:
 * backward cannot know whose it is. NULL on error: CAIRN_EINVAL, also for parameters in the user's memory;
 * CAIRN_ENOMEM; as ddp_forward. */
CAIRN_API cairn_tensor *ddp_zero_loss(ddp_context *ddp);

/* ---- communication hooks ---- */

/* What a bucket consists of. */
struct ddp_bucket {
    size_t struct_size;
    int index;         /* buckets are sent in this order */
    int is_last;       /* 1: of a backward */
    cairn_dtype dtype; /* of what travels */
    size_t n;          /* elements, padding between parameters included */
    void *buffer;      /* [n] memory of the group */
    const size_t
        *params; /* [num_params] indices of those it holds, or parts of which it holds; ddp's, until it plans anew */
    size_t num_params;
    cairn_group *group; /* the context's channel */
};
#define DDP_BUCKET_INIT \
    { .struct_size = sizeof(struct ddp_bucket) }

struct ddp_comm_hook {
    size_t struct_size;
    const char *name; /* for logs */
    void *ctx;
    cairn_dtype wire; /* the bucket is rounded to this type before begin, and its result taken back from it: torch's
                         fp16_compress_wrapper; 0 = as ddp_options say */
    /* Instead of the all-reduce: posts what is to be done with the bucket's buffer, in place; *work as from a
     * collective of bucket->group (NULL in it = done already). Called in the order of buckets, on every rank.
     * (optional: the all-reduce) */
    cairn_status (*begin)(void *ctx, const struct ddp_bucket *bucket, cairn_work **work);
    /* (optional) The work is done: what remains to be done with the buffer. Order of buckets. */
    cairn_status (*finish)(void *ctx, const struct ddp_bucket *bucket);
    /* ON: a parameter larger than a bucket is not split, so that the buffer holds all of it. OFF */
    cairn_switch whole_parameters;
};

/* Once, before the first backward; collective, the same on every rank. hook is copied, its strings and ctx are not.
 * What a begin of the user's own leaves in the buffer is the gradient: the hook averages, and gradient_average and
 * similar options have no effect. It must be equal on all ranks, or they diverge. Errors: CAIRN_EINVAL; CAIRN_ESTATE
 * there is one already, or a backward has run, under ddp_no_sync too; CAIRN_ENOMEM. An error of one rank is one on all,
 * and while the group lives they go on without the hook.
 * Cost: where it changes what travels, or keeps parameters whole, old and new buckets exist side by side for a
 * moment.
 * Source: torch.distributed.algorithms.ddp_comm_hooks. */
CAIRN_API cairn_status ddp_register_comm_hook(ddp_context *ddp, const struct ddp_comm_hook *hook);

/* The all-reduce as it is anyway; the same with f16 or bf16 travelling; and none at all, which shows how much faster
 * training could be: ranks then diverge, and checkpoints hold each rank's own weights, as ddp_no_sync says. */
CAIRN_API const struct ddp_comm_hook *ddp_allreduce_hook(void);
CAIRN_API const struct ddp_comm_hook *ddp_fp16_compress_hook(void);
CAIRN_API const struct ddp_comm_hook *ddp_bf16_compress_hook(void);
CAIRN_API const struct ddp_comm_hook *ddp_noop_hook(void);

/* ---- buckets ---- */

/* How many buckets there are, now (0 for NULL); and bucket i, in what begins as DDP_BUCKET_INIT. Errors: CAIRN_EINVAL.
 * apex: allreduce_buffers. */
CAIRN_API int ddp_bucket_count(const ddp_context *ddp);
CAIRN_API cairn_status ddp_bucket_get(const ddp_context *ddp, int i, struct ddp_bucket *out);

/* The channel that gradients go through; the context's. NULL for NULL. For cairn_group_abort from another thread. */
CAIRN_API cairn_group *ddp_group(const ddp_context *ddp);

/* The context as a part of a training's state (stateful.h): the order of arrival that buckets are planned by, so that
 * the first forward after a load plans those that were. Averages do not depend on buckets: without it training has the
 * same bits. Where other parameters are frozen then, buckets are planned as without it. CAIRN_ESTATE within a backward,
 * or before ddp_wait. */
CAIRN_API cairn_stateful ddp_stateful(ddp_context *ddp);

#ifdef __cplusplus
}
#endif

#endif
