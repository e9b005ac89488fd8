/* What ddp reports of a context: by ddp_get_logging_data (cairn/ddp_logging.h), in the log, in a file. */
#ifndef CAIRN__DDP_LOGGING_H
#define CAIRN__DDP_LOGGING_H

#include "cairn/ddp.h"
#include "ddp/times.h"

struct cairn__ddp_text {
    char *text; /* NULL = "" */
    size_t capacity, used;
};

struct cairn__ddp_log {
    int debug; /* TORCH_DISTRIBUTED_DEBUG: 0 off, 1 info, 2 detail */
    struct cairn__ddp_text module_name, dtypes, bucket_sizes, rebuilt_bucket_sizes, param_indices, ready_order, error;
    struct cairn__ddp_text path; /* of the file that CAIRN_DDP_LOG asks for; "" = none */
    uint64_t left_ns;            /* when it was written last */
};

/* Whether CAIRN_DDP_LOG is set. */
bool cairn__ddp_log_wants_file(void);
/* The context is whole: notes its buckets and logs what TORCH_DISTRIBUTED_DEBUG asks for. */
void cairn__ddp_log_made(ddp_context *d);
/* An iteration has been counted (cairn__ddp_times_settled): writes the file where it is due. */
void cairn__ddp_log_settled(ddp_context *d);
/* The context ends: writes the file that CAIRN_DDP_LOG names, and frees the log. Copes with a context that was not
 * made. */
void cairn__ddp_log_end(ddp_context *d);

#endif
