/* Distributed data parallel: every rank computes the gradients of its own batch, and all ranks apply their average.
 *
 * Follows torch.nn.parallel.DistributedDataParallel in order and buckets and apex.parallel in averaging half gradients as
 * half; gradients overlap with backward from the first step on. What is better here: the average is summed in f32 in rank
 * order and rounded once (4 x 40000 in f16 is 40000); all ranks fail where parameters differ, with the name.
 * Threads: one thread per context at a time. */
#ifndef CAIRN_DDP_H
#define CAIRN_DDP_H

#include "core.h"
#include "dist.h"
#include "nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_context ddp_context;

struct ddp_options {
    size_t struct_size;
    size_t bucket_nbytes; /* a bucket is closed once it holds this much; 0 = 25 MiB (torch: bucket_cap_mb) */
    cairn_dtype wire; /* type that travels; 0 = the gradients' own (half at O2 and O3). f32, f16 or bf16; another type
                             than the gradients' costs a copy and a rounding each way */
};
#define ddp_options(...) (&(struct ddp_options){.struct_size = sizeof(struct ddp_options), __VA_ARGS__})

/* Makes the ranks' models one: checks that all have the same parameters and buffers, sends rank 0's masters, weights and
 * buffers to all (half weights are re-rounded from the masters; buffers are each rank's own from then on), and moves the
 * gradients into buckets of group memory, in reverse order of registration. From then on cairn_backward averages gradients over the ranks before it returns.
 *
 *   model    after amp_initialize (where amp is used)
 *   group    cairn_env_group(env); may have one rank
 *   options  NULL = all defaults
 *   out      ends before model and group
 *
 * Collective. Every rank calls it, and every rank runs as many backwards.
 * Errors   CAIRN_EINVAL; CAIRN_ESTATE the model has a ddp context already; CAIRN_EPEER parameters differ between ranks
 *          (every rank fails; the message names the parameter and both ranks' shapes), or a rank died; CAIRN_ETIMEOUT;
 *          CAIRN_ENOMEM.
 * Cost     no copy of the gradients beyond the buckets themselves.
 * Source   torch/nn/parallel/distributed.py (2.x); apex/parallel/distributed.py at 25.04. */
CAIRN_API cairn_status ddp_create(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                                  ddp_context **out);

/* Gives the gradients back to the model; gradients in the buckets are forgotten. Collective, as cairn_group_free is: every
 * rank calls it, and nobody waits for a rank once the group is dead. */
CAIRN_API void ddp_destroy(ddp_context **ddp);

/* cairn_module_forward of the model. NULL on error. */
CAIRN_API cairn_tensor *ddp_forward(ddp_context *ddp, cairn_tensor *x);

/* How many buckets there are. */
CAIRN_API int ddp_bucket_count(const ddp_context *ddp);

#ifdef __cplusplus
}
#endif

#endif
