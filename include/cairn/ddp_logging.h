/* Measurements for tuning data-parallel training: how long forward, backward and communication take, how much of the
 * communication overlaps with backward, and which parameters share a bucket.
 *
 * Field names are torch's (torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data), so its tools can read
 * them; fields that torch does not have are marked. Every iteration is measured, while torch samples: the cost is a few
 * clock readings.
 *
 * Environment   TORCH_DISTRIBUTED_DEBUG=INFO: rank 0 logs the properties of each new context; =DETAIL: also its times
 *               after iterations 1 to 10 and each 100th, as torch does.
 *               CAIRN_DDP_LOG=FILE: the first rank of the context's group writes ddp_write_logging_data's file after
 *               iterations 1, 2, 4, 8, ..., every second, and when the context ends. (This rank's times exclude the
 *               writing; another rank may wait for it in its next reduction.) A program that ends without ddp_destroy
 *               leaves the last file written so far. A device or a pipe gets only the last one. With "%r" in FILE every
 *               rank writes a file, and %r is replaced by its number among all ranks. With several contexts the file is
 *               that of the one that wrote last.
 * Head-room     Without communication training would gain at most avg_backward_exposed_comm_time an iteration. To
 *               measure it, register ddp_noop_hook() and compare step times (torch's advice: below 10 %, communication
 *               is not the problem).
 * Threads       as ddp.h. */
#ifndef CAIRN_DDP_LOGGING_H
#define CAIRN_DDP_LOGGING_H

#include "ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Strings are owned by the context, until its next call. Times are in ns; start and end times are those of
 * CLOCK_MONOTONIC; 0 = not measured. Fields without avg_ describe the last iteration that was reduced. */
struct ddp_logging_data {
    size_t struct_size;

    /* ---- properties ---- */
    const char *module_name;             /* "Sequential"; "" for parameters in the user's memory */
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
    const char *bucket_sizes; /* bytes sent, as first planned: "4198400, 4194304" */
    int64_t has_rebuilt_buckets;
    const char *rebuilt_bucket_sizes;                    /* "" until then */
    const char *rebuilt_per_bucket_param_indices;        /* "5 4 3 2, 1 0" */
    const char *prev_iteration_grad_ready_order_indices; /* "5, 4, 3, 2, 1, 0" */

    /* ---- times ---- */
    int64_t iteration;             /* reduced backwards; those under ddp_no_sync are counted nowhere here */
    int64_t unused_parameter_size; /* parameters without a gradient in the last iteration */
    int64_t forward_compute_time, backward_compute_time, backward_comm_time, backward_compute_comm_overlap_time;
    int64_t avg_forward_compute_time;
    int64_t avg_backward_compute_time; /* from the end of forward to the last gradient, including reductions between */
    int64_t avg_backward_comm_time;    /* from the first bucket sent to the last one reduced */
    int64_t avg_backward_compute_comm_overlap_time; /* the part of it before backward's last gradient */
    int64_t forward_compute_time_start, backward_compute_time_start, backward_compute_time_end,
        backward_comm_time_start, backward_comm_time_end;
    /* Not torch's: */
    int64_t backward_comm_busy_time, avg_backward_comm_busy_time;       /* with at least one bucket in flight */
    int64_t backward_exposed_comm_time, avg_backward_exposed_comm_time; /* of this, after the last gradient: waiting */
    int64_t avg_outside_time; /* from the end of a backward to the next forward (or gradient): optimizer, data */

    int64_t has_error; /* 1: the context can no longer be used; */
    const char *error; /* the reason; "" = none */
};
#define DDP_LOGGING_DATA_INIT \
    { .struct_size = sizeof(struct ddp_logging_data) }

/* Errors: CAIRN_EINVAL, also for a struct_size of 0; CAIRN_ENOMEM. Cost: formatting some strings. torch:
 * _get_ddp_logging_data */
CAIRN_API cairn_status ddp_get_logging_data(ddp_context *ddp, struct ddp_logging_data *out);

/* Writes the same as a JSON object, with these names, to a file that is complete or absent (a device or a pipe is
 * written directly). The file is also a profile for cairn-plan, with forward_ns, backward_ns and optimizer_ns (medians
 * of the last 32 iterations, without the processor time of communication if CAIRN_DDP_LOG is set), and for each
 * parameter name, elements, dtype, wire and ready_ns, the time from the start of backward to its gradient. Bytes of
 * names that are not UTF-8 are written as U+FFFD. Errors: CAIRN_EINVAL; CAIRN_ESYSTEM the file, with the reason;
 * CAIRN_ENOMEM. */
CAIRN_API cairn_status ddp_write_logging_data(ddp_context *ddp, const char *path);

#ifdef __cplusplus
}
#endif

#endif
