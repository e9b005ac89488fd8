/* Cairn beside other CUDA code: one stream for both. Streams cross as void *, so that no CUDA header is needed here.
 *
 * A trainer with its own kernels gives its stream, describes its device pointers with cairn_param_set_create, and calls
 * Cairn between its own launches: no synchronisation is needed on either side. Not part of cairn.h.
 *
 * Whatever calls CUDA makes env's GPU the calling thread's current one, and so it stays: a program that uses several
 * GPUs calls cudaSetDevice again before it goes on with another. */
#ifndef CAIRN_INTEROP_CUDA_H
#define CAIRN_INTEROP_CUDA_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The cudaStream_t that Cairn queues on; of its own (non-blocking) until cairn_cuda_set_stream. NULL where env does not
 * compute on a GPU (cairn_last_error says so); note that CUDA's legacy default stream is NULL too. */
CAIRN_API void *cairn_cuda_stream(cairn_env *env);

/* Queues on the user's stream from now on; what Cairn has queued comes first. The stream must belong to env's device
 * and outlive its use; NULL is CUDA's legacy default stream, on which no graph can be recorded. cairn_env_destroy waits
 * for it. Errors, after which Cairn queues where it did: CAIRN_EINVAL env is NULL or not on a GPU; CAIRN_ESTATE while a
 * graph is recorded, or the program records one of the streams; CAIRN_EDEVICE the stream is another GPU's. */
CAIRN_API cairn_status cairn_cuda_set_stream(cairn_env *env, void *stream);

/* The GPU's ordinal as CUDA counts it; -1 where env does not compute on a GPU. */
CAIRN_API int cairn_cuda_ordinal(const cairn_env *env);

#ifdef __cplusplus
}
#endif

#endif
