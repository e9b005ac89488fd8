/* Distributed data parallel: every rank computes the gradients of its own batch, and all ranks apply their average.
 *
 * Provides torch.nn.parallel.DistributedDataParallel's and apex.parallel's features under their names. Improvements:
 * gradients overlap with backward from the first step on, and backward writes them directly into the memory that is
 * reduced; the average is summed in f32 in rank order and rounded once (4 x 40000 in f16 is 40000; nccl: dist.h); if
 * ranks differ all of them fail, with the parameter's name; ranks that have run out of input keep scale, masters and
 * moments equal to the others'.
 *
 * Buckets   hold gradients that are sent together. Every rank sends buckets in the same fixed order, each as soon as
 *           all its gradients are ready and its predecessors have been sent. Buckets are planned in reverse order of
 *           registration; before the second forward they are planned once more, in the order in which gradients became
 *           ready on rank 0.
 * Order     ddp makes its own channel of the group (cairn_group_new), so its collectives do not interfere with the
 *           user's. Every rank must create, use and destroy its contexts in the same way.
 * Failures  A failure that kills the group kills the context: destroy it. A backward that fails half-way on one rank
 *           fails on all. So does one whose loss depends on nothing that requires a gradient; with several contexts in
 *           the environment it fails in all of them, with find_unused_parameters too. A loss that reaches only another
 *           model is not a failure, since one of two models is often trained alone. So if it happens on one rank by
 *           mistake, the other ranks' timeout reports it: every rank must run the same number of backwards of each
 *           context.
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

/* Each comment describes the field below it. */
struct ddp_options {
    size_t struct_size;

    /* A bucket is closed once it holds this much; 0 = 25 MiB (torch: bucket_cap_mb), or 4 MiB on "shm", where sums are
     * done in the caches and fewer, larger messages gain nothing. A larger tensor is split over several buckets. */
    size_t bucket_nbytes;
    /* The type that is sent; 0 = the gradients' own (half at O2 and O3, and for half values in f32 memory). f32, f16 or
     * bf16; a type other than the gradients' costs a copy and a rounding each way. */
    cairn_dtype wire;
    /* The size of the first bucket of each type, so that communication starts early; 0 = 1 MiB or bucket_nbytes,
     * whichever is less (torch: dist._DEFAULT_FIRST_BUCKET_BYTES). */
    size_t first_bucket_nbytes;

    /* ---- torch's ---- */

    /* ON: each forward outside no_grad first broadcasts rank 0's buffers, unless the previous one was under
     * ddp_no_sync. Default ON */
    cairn_switch broadcast_buffers;
    /* ON: parameters that a backward does not reach have zero gradients; those that no rank reaches keep weight,
     * moments and master. Every backward then waits for one bit per parameter from every rank. OFF: unreached
     * parameters are an error on all ranks. Default OFF */
    cairn_switch find_unused_parameters;
    /* ON: in the first backward ranks exchange which parameters it reaches; a later backward that reaches others is an
     * error. Default OFF */
    cairn_switch static_graph;
    /* OFF: ranks are assumed to have equal parameters; nothing is compared or broadcast. Default ON */
    cairn_switch init_sync;
    /* OFF: gradients have their own memory and are copied to buckets and back. Default ON for modules; gradients in the
     * user's memory are always copied. */
    cairn_switch gradient_as_bucket_view;
    /* ON, with find_unused_parameters: a bucket for which no rank has a gradient is not sent. Default OFF */
    cairn_switch skip_all_reduce_unused_params;
    /* [num_ignored] names of parameters and buffers that are not synchronised, so that each rank has its own (torch:
     * _ddp_params_and_buffers_to_ignore). */
    const char *const *ignored;
    size_t num_ignored;

    /* ---- apex's ---- */

    /* A number of elements, instead of bucket_nbytes: a bucket is closed once it holds this many; 1 = one parameter per
     * bucket. 0 = use bucket_nbytes */
    int64_t message_size;
    /* ON: nothing is sent until backward has ended, in one bucket per type; unused parameters are handled as with
     * find_unused_parameters. Default OFF */
    cairn_switch delay_allreduce;
    /* apex's name for gradient_as_bucket_view, used if that is not set: ON: gradients are views of the buckets, which
     * are kept until the next backward (ddp_bucket_get); OFF, apex's default: they have memory of their own. 0 = as
     * gradient_as_bucket_view */
    cairn_switch retain_allreduce_buffers;
    /* ON: the same as wire = f32. Default OFF */
    cairn_switch allreduce_always_fp32;
    /* OFF: gradients are summed, not averaged. Default ON */
    cairn_switch gradient_average;
    /* f: apex divides by f before the sum and by p/f after it. Averages here are one division in f32, so f does not
     * affect them; with gradient_average OFF, gradients are divided by f before they are summed. 0 = 1 */
    double gradient_predivide_factor;
    /* [num_trigger_params] buckets are closed after each of these parameters, and nowhere else. */
    const char *const *allreduce_trigger_params;
    size_t num_trigger_params;
    /* Deprecated, no effect: buckets have a single order, and on a GPU one stream of the group. 0 or 1; above 1:
     * CAIRN_EINVAL. */
    int num_allreduce_streams;
    /* Deprecated, no effect: there are no profiler ranges (apex: NVTX); ddp_logging.h has times. ON: CAIRN_EINVAL. */
    cairn_switch prof;

    /* ---- uneven inputs: ddp_join ---- */

    /* ON: averages are divided by the number of all ranks. OFF: by the number of ranks that have input. Default ON */
    cairn_switch join_divide_by_initial_world_size;
    /* ON: a rank without input is an error on every rank. Default OFF */
    cairn_switch join_throw_on_early_termination;

    /* ---- ZeRO (torch: ZeroRedundancyOptimizer; DeepSpeed: stage 1) ---- */

    /* ON: each of p ranks updates an equal part of the parameters, and keeps masters and optimizer states of that part
     * only. cairn_step gathers the weights: it is collective, and sends them in their own type. Weights and moments
     * have the same bits as without sharding; with norms (clipping, LAMB, NovoGrad, LARC) they agree to 1e-6, and LAMB,
     * NovoGrad and LARC exchange norms between all ranks, so every step waits for the device and cannot be recorded.
     * Memory: a module's weights move into group memory; for weights in the user's memory, one more copy of all of them
     * is needed. Between a backward (ddp_wait) and the step, gradients contain the average only in this rank's part.
     * Not supported (an error with a message): communication hooks, ddp_reducer_create, a wire type other than the
     * gradients', freezing and thawing, steps of unsynced gradients, cairn_optimizer_masters, Muon, averages of half
     * weights, updates by the user's program (those of custom_optimizer.h are supported), cairn_weights_load.
     * cairn_weights_save writes half weights as they are. cairn_param_master returns NULL. ddp_destroy restores full
     * masters and states on every rank, if there is memory. Default OFF */
    cairn_switch shard_optimizer;
};
#define ddp_options(...) (&(struct ddp_options){.struct_size = sizeof(struct ddp_options), __VA_ARGS__})

/* ---- for modules ---- */

/* Synchronises the ranks' models: checks that all have the same parameters, buffers and options, broadcasts rank 0's
 * masters, weights and buffers (half weights are rounded again from the masters), and moves the gradients into buckets
 * in group memory. From then on cairn_backward averages gradients over the ranks before it returns.
 *
 *   model    after amp_initialize, if amp is used
 *   group    cairn_env_group(env); may have one rank
 *   options  NULL = all defaults; the same on every rank
 *   out      must be destroyed before model and group
 *
 * Pointers to gradients change here and at the second ddp_forward outside no_grad, and then never again. Existing
 * gradients of the model are forgotten. With shard_optimizer cairn_param.data changes here and in ddp_destroy.
 * Collective: every rank calls it, and every rank must then run the same number of backwards.
 * Errors   CAIRN_EINVAL; CAIRN_ESTATE the model already has a ddp context, or parameters of which a context with
 *          shard_optimizer has left this rank only a part; CAIRN_EPEER parameters or options differ between ranks
 *          (every rank fails; the message names the parameter or option and both ranks' values), or a rank died;
 *          CAIRN_ETIMEOUT; CAIRN_ENOMEM.
 * Cost     no copy of the gradients besides the buckets; rank 0's small tensors are sent through 1 MiB of group memory,
 *          which is freed at once.
 * Source   torch/nn/parallel/distributed.py (1.13 to 2.x); apex/parallel/distributed.py at 25.04. */
CAIRN_API cairn_status ddp_create(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                                  ddp_context **out);

/* Returns the gradients' memory to the model; gradients in the buckets are forgotten. Collective, as cairn_group_free
 * is: every rank calls it, and no rank waits once the group is dead. An error is logged if the group dies during the
 * call, or if this rank took fewer steps than another rank, which then waits for it in another group. Destroy graphs
 * that have recorded its collectives first: if one is alive, an error is logged and nothing happens. With
 * shard_optimizer, if a rank has no memory for the weights, an error is logged and the context is kept: *ddp stays set.
 * Otherwise it becomes NULL. */
CAIRN_API void ddp_destroy(ddp_context **ddp);

/* cairn_module_forward and cairn_module_forward_n of the model. Broadcasts buffers and plans buckets anew when due
 * (both collective). NULL on error. */
CAIRN_API cairn_tensor *ddp_forward(ddp_context *ddp, cairn_tensor *x);
CAIRN_API cairn_tensor *ddp_forward_n(ddp_context *ddp, cairn_tensor *const *inputs, int count);

/* Broadcasts rank 0's buffers (running statistics), except ignored ones. A forward outside no_grad does this first
 * (ddp_options.broadcast_buffers); a forward under no_grad exchanges nothing, so ranks may evaluate different numbers
 * of batches, or none. Call it on every rank before evaluating a model with buffers.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_EPEER; CAIRN_ETIMEOUT. Cost: one broadcast; none without buffers. */
CAIRN_API cairn_status ddp_broadcast_buffers(ddp_context *ddp);

/* ---- for parameters in the user's memory ---- */

/* The same for a set made by cairn_param_set_create; after amp_initialize_params, if amp is used. Gradients keep their
 * memory and are copied to buckets and back. In each step declare every gradient once with ddp_grads_ready, in any
 * order; then ddp_wait returns with the averages in place, and the step follows. */
CAIRN_API cairn_status ddp_create_params(cairn_param_set *set, cairn_group *group, const struct ddp_options *options,
                                         ddp_context **out);

/* cairn_grads_ready (param.h) for ddp's set; also sends each bucket that becomes ready. The memory may not be read or
 * written until ddp_wait: calls that would (a step, clipping, zero_grad, cairn_grads_taken, another loss scale) return
 * an error. The first declaration after the first ddp_wait plans buckets anew and is collective. Errors: as
 * cairn_grads_ready; CAIRN_ESTATE a parameter was already declared since the last ddp_wait, or with static_graph was
 * not declared before the first one. Errors in a bucket are returned by ddp_wait. After a failure that ends a backward,
 * this call and ddp_wait repeat its cause; a group of one rank then starts over. */
CAIRN_API cairn_status ddp_grads_ready(ddp_context *ddp, size_t first, size_t count);

/* Waits until the averages are in the gradients' memory (with shard_optimizer those of this rank's part), or under
 * ddp_no_sync until the gradients are kept elsewhere, so that the memory may be overwritten, starting from 0. Every
 * rank calls it once per backward; with several backwards before a step, call cairn_grads_taken after each, so that the
 * next does not overwrite the averages.
 * Errors: CAIRN_ESTATE a parameter was not declared (the message names it and suggests find_unused_parameters; the
 * other ranks return CAIRN_EPEER with the same message); CAIRN_EPEER; CAIRN_ETIMEOUT; CAIRN_ENOMEM. Gradients are then
 * incomplete, and the next step refuses them. */
CAIRN_API cairn_status ddp_wait(ddp_context *ddp);

/* ---- accumulation over several backwards ---- */

/* on not 0: from now on a backward (or ddp_wait) keeps its gradients on this rank, unscaled, in f32, and does not
 * update scalers. The first backward after ddp_no_sync(ddp, 0) reduces the sum of all: round(unsynced * S + its own), S
 * being its scale. An overflow in any of them is found there, on all ranks, and skips one step. Switch it before the
 * forward of a batch, since it applies to both forward and backward; cairn_release_results after each backward frees
 * memory for the next one. torch's no_sync(), apex's disable_allreduce and enable_allreduce.
 *
 * A call that reads, clips or applies gradients before they are reduced uses those of this rank; ranks that apply them
 * diverge. From the first such step on, the set's weights, moments, counters and loss scales count as each rank's own:
 * checkpoints (state.h) contain those of every rank and load only on the same number of ranks, even if weights have
 * been averaged since. ddp_create does not change that: it broadcasts rank 0's weights, but no moments.
 * Errors: CAIRN_EINVAL; CAIRN_ESTATE within a backward, or between ddp_grads_ready and ddp_wait; CAIRN_ENOMEM. Cost: an
 * f32 accumulator for each parameter, made on first need. Source: torch/nn/parallel/distributed.py, no_sync. */
CAIRN_API cairn_status ddp_no_sync(ddp_context *ddp, int on);

/* apex.parallel.Reducer: a context whose backwards keep their gradients until ddp_reduce, which averages the sums since
 * the last ddp_reduce. A parameter without a gradient on some ranks counts as zero there; one for which no rank has a
 * gradient keeps weight, moments and master.
 * Both are collective. Errors: of create, as ddp_create; of ddp_reduce, CAIRN_EINVAL another kind of context,
 * CAIRN_ESTATE within a backward, and on every rank if only some ranks had a backward since the last ddp_reduce (a rank
 * without input uses ddp_zero_loss), CAIRN_EPEER, CAIRN_ETIMEOUT, CAIRN_ENOMEM. Cost: nothing overlaps with backward;
 * for several backwards, as ddp_no_sync.
 * Source: apex/parallel/distributed.py, class Reducer. */
CAIRN_API cairn_status ddp_reducer_create(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                                          ddp_context **out);
CAIRN_API cairn_status ddp_reduce(ddp_context *ddp);

/* ---- uneven inputs ---- */

/* If ranks may run out of input at different times, ask before each step how many ranks still have input:
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
 * A rank without input takes the same step with zero gradients, so scale, masters, weights and moments stay equal on
 * all ranks; torch's Join lets scalers and moments drift and sends a model around at the end. Call it before each step:
 * a rank may have input again later.
 *
 *   have_input  not 0: this rank has a batch for the next step
 *   active      out: the number of ranks that have one; 0 = none: end the loop
 *
 * Averages   are the sum over the ranks, to which zeros add nothing, divided once by the number of all ranks, or of
 *            those with input (join_divide_by_initial_world_size), also for gradients accumulated before under
 *            ddp_no_sync.
 * Buffers    come from the lowest rank that has input.
 * Parameters in the user's memory: a rank without input writes zeros to the gradients and declares them as usual (or
 *            declares none, with find_unused_parameters), then calls ddp_wait and steps.
 * SyncBatchNorm needs every rank's forward and backward: a rank without input uses a batch of 0 rows instead of
 *               ddp_zero_loss (its loss is then NaN); or set join_throw_on_early_termination.
 * Collective. Errors: CAIRN_EINVAL; CAIRN_ESTATE within a backward (between ddp_grads_ready and ddp_wait), or, with
 * join_throw_on_early_termination, on every rank if only some ranks have input (if none has, that is the end);
 * CAIRN_EPEER; CAIRN_ETIMEOUT. Cost: an all-gather of one byte per rank.
 * Source: torch.distributed.algorithms.join, for what the options mean. */
CAIRN_API cairn_status ddp_join(ddp_context *ddp, int have_input, int *active);

/* A loss of 0 whose gradient is 0 for every parameter, including ignored ones. Use it instead of ddp_forward and the
 * loss: it broadcasts buffers when due. With find_unused_parameters no parameter counts as used on this rank; those
 * that no rank's batch reaches keep weight, moments and master. Other losses without a gradient do not work, since
 * backward cannot tell which context they belong to. NULL on error: CAIRN_EINVAL, also for parameters in the user's
 * memory; CAIRN_ENOMEM; as ddp_forward. */
CAIRN_API cairn_tensor *ddp_zero_loss(ddp_context *ddp);

/* ---- communication hooks ---- */

/* Describes a bucket. */
struct ddp_bucket {
    size_t struct_size;
    int index;         /* buckets are sent in this order */
    int is_last;       /* 1: the last bucket of a backward */
    cairn_dtype dtype; /* the type that is sent */
    size_t n;          /* elements, including padding between parameters */
    void *buffer;      /* [n] group memory */
    const size_t
        *params; /* [num_params] indices of the parameters that are in it, completely or in part; owned by ddp, valid
                    until it plans buckets anew */
    size_t num_params;
    cairn_group *group; /* the context's channel */
};
#define DDP_BUCKET_INIT \
    { .struct_size = sizeof(struct ddp_bucket) }

struct ddp_comm_hook {
    size_t struct_size;
    const char *name; /* for logs */
    void *ctx;
    cairn_dtype wire; /* the bucket is rounded to this type before begin, and converted back afterwards: torch's
                         fp16_compress_wrapper; 0 = as in ddp_options */
    /* Replaces the all-reduce: starts an operation on the bucket's buffer, in place, and returns its *work, as a
     * collective of bucket->group does (NULL in *work = already done). Called in the order of buckets, on every rank.
     * (optional: the all-reduce) */
    cairn_status (*begin)(void *ctx, const struct ddp_bucket *bucket, cairn_work **work);
    /* (optional) Finishes the buffer once the work is done. Called in the order of buckets. */
    cairn_status (*finish)(void *ctx, const struct ddp_bucket *bucket);
    /* ON: a parameter larger than a bucket is not split, so the buffer holds all of it. Default OFF */
    cairn_switch whole_parameters;
};

/* Sets the context's hook. Call it once, before the first backward; collective, with the same hook on every rank. hook
 * is copied, its strings and ctx are not. What the user's begin leaves in the buffer is the gradient: the hook does the
 * averaging, gradient_average and similar options have no effect, and the result must be equal on all ranks, or they
 * diverge. Errors: CAIRN_EINVAL; CAIRN_ESTATE there is a hook already, or a backward has run, also under ddp_no_sync;
 * CAIRN_ENOMEM. An error of one rank is an error on all; while the group lives they continue without the hook.
 * Cost: if it changes the type that is sent, or keeps parameters whole, old and new buckets exist side by side for a
 * moment.
 * Source: torch.distributed.algorithms.ddp_comm_hooks. */
CAIRN_API cairn_status ddp_register_comm_hook(ddp_context *ddp, const struct ddp_comm_hook *hook);

/* Built-in hooks: the default all-reduce; the same with f16 or bf16 sent; and none at all, which shows how much time
 * communication costs: ranks then diverge, and checkpoints hold each rank's own weights, as under ddp_no_sync. */
CAIRN_API const struct ddp_comm_hook *ddp_allreduce_hook(void);
CAIRN_API const struct ddp_comm_hook *ddp_fp16_compress_hook(void);
CAIRN_API const struct ddp_comm_hook *ddp_bf16_compress_hook(void);
CAIRN_API const struct ddp_comm_hook *ddp_noop_hook(void);

/* ---- buckets ---- */

/* The current number of buckets (0 for NULL); and a description of bucket i, in *out, initialised with DDP_BUCKET_INIT.
 * Errors: CAIRN_EINVAL. apex: allreduce_buffers. */
CAIRN_API int ddp_bucket_count(const ddp_context *ddp);
CAIRN_API cairn_status ddp_bucket_get(const ddp_context *ddp, int i, struct ddp_bucket *out);

/* The channel that gradients are sent through, owned by the context; NULL for NULL. For cairn_group_abort from another
 * thread. */
CAIRN_API cairn_group *ddp_group(const ddp_context *ddp);

/* The context's state for a checkpoint (stateful.h): the order in which gradients became ready, so that the first
 * forward after a load plans the same buckets as before. Averages do not depend on buckets: without this state training
 * has the same bits. If other parameters are frozen at the load, buckets are planned as without it. CAIRN_ESTATE within
 * a backward, or before ddp_wait. */
CAIRN_API cairn_stateful ddp_stateful(ddp_context *ddp);

#ifdef __cplusplus
}
#endif

#endif
