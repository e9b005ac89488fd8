/* The numbers by which data-parallel training is tuned: how long forward, backward and communication take, how much of
 * the communication backward hides, and which parameters travel together.
 *
 * Field names are torch's (torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data), so that what reads those
 * reads these; what torch has none for is marked. Every iteration counts, where torch takes samples: a few looks at the
 * clock.
 *
 * Environment   TORCH_DISTRIBUTED_DEBUG=INFO: rank 0 logs what a context was made with; =DETAIL: and its times after
 *               iterations 1 to 10 and each 100th, as torch does.
 *               CAIRN_DDP_LOG=FILE: the first rank of its group writes ddp_write_logging_data's file after iterations
 *               1, 2, 4, 8, ..., every second (this rank's times leave that out; another rank may wait for it in its
 *               next reduction), and when the context ends: a program that ends without ddp_destroy leaves what the
 *               last of these found, a device or a pipe gets the last alone. With "%r" in FILE every rank does, and its
 *               number among all ranks stands there. Of several contexts the one that wrote last is left.
 * Head-room     What training would gain without communication is at most avg_backward_exposed_comm_time an iteration.
 *               To measure it, register ddp_noop_hook() and compare the times of a step (torch's advice: under 10 %, it
 *               is not the communication).
 * Threads       as ddp.h. */
#ifndef CAIRN_DDP_LOGGING_H
#define CAIRN_DDP_LOGGING_H

#include "ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Texts are the context's, until the next call for it. Times are ns; those that begin or end at a moment are
 * CLOCK_MONOTONIC's; 0 = there was none. Without avg_ they are of the last iteration that was reduced. */
struct ddp_logging_data {
    size_t struct_size;

    /* ---- what it is ---- */
    const char *module_name;             /* "Sequential"; "" where the parameters are the user's */
    const char *backend_name;            /* "shm" */
    const char *comm_hook;               /* its name; "" = none */
    const char *dtypes;                  /* of parameters: "f32, bf16" */
    const char *torch_distributed_debug; /* "OFF", "INFO", "DETAIL" */
    int64_t world_size, rank;
    int64_t num_parameter_tensors, total_parameter_size_bytes; /* that take part */
    int64_t bucket_cap_bytes;
    int64_t first_bucket_cap_bytes; /* not torch's */
    /* 1 = ON */
    int64_t broadcast_buffers, find_unused_parameters, gradient_as_bucket_view, static_graph;

    /* ---- buckets ---- */
    const char *bucket_sizes; /* bytes that travel, as first planned: "4198400, 4194304" */
    int64_t has_rebuilt_buckets;
    const char *rebuilt_bucket_sizes;                    /* "" until then */
    const char *rebuilt_per_bucket_param_indices;        /* "5 4 3 2, 1 0" */
    const char *prev_iteration_grad_ready_order_indices; /* "5, 4, 3, 2, 1, 0" */

    /* ---- times ---- */
    int64_t iteration;             /* backwards that were reduced; those that ddp_no_sync keeps count nowhere here */
    int64_t unused_parameter_size; /* parameters without a gradient in the last one */
    int64_t forward_compute_time, backward_compute_time, backward_comm_time, backward_compute_comm_overlap_time;
    int64_t avg_forward_compute_time;
    int64_t avg_backward_compute_time; /* from forward's end to the last gradient, what reduces in between included */
    int64_t avg_backward_comm_time;    /* from the first bucket sent to the last one reduced */
    int64_t avg_backward_compute_comm_overlap_time; /* the part of it before backward had its last gradient */
    int64_t forward_compute_time_start, backward_compute_time_start, backward_compute_time_end,
        backward_comm_time_start, backward_comm_time_end;
    /* Not torch's: */
    int64_t backward_comm_busy_time, avg_backward_comm_busy_time; /* in which at least one bucket was on its way */
    int64_t backward_exposed_comm_time, avg_backward_exposed_comm_time; /* of these, after the last gradient: waiting */
    int64_t avg_outside_time; /* from the end of a backward to the next forward (or gradient): optimizer, data */

    int64_t has_error; /* the context can no longer be used; */
    const char *error; /* and why; "" */
};
#define DDP_LOGGING_DATA_INIT \
    { .struct_size = sizeof(struct ddp_logging_data) }

/* Errors: CAIRN_EINVAL, also for a struct_size of 0; CAIRN_ENOMEM. Cost: some texts. torch: _get_ddp_logging_data */
CAIRN_API cairn_status ddp_get_logging_data(ddp_context *ddp, struct ddp_logging_data *out);

/* The same as a JSON object, with these names, in a file that is written whole or not at all (a device or a pipe is
 * written into). It is a profile for cairn-plan, too: forward_ns, backward_ns and optimizer_ns (medians of the last 32
 * iterations, without what communication took of the processor where CAIRN_DDP_LOG is set), and of each parameter name,
 * elements, dtype, wire and ready_ns, from backward's begin to its gradient. Bytes of names that are no UTF-8 are
 * written as U+FFFD. Errors: CAIRN_EINVAL; CAIRN_ESYSTEM the file, with the reason; CAIRN_ENOMEM. */
CAIRN_API cairn_status ddp_write_logging_data(ddp_context *ddp, const char *path);

#ifdef __cplusplus
}
#endif

#endif
