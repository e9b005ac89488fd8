/* Using Cairn with other CUDA code, on one stream. Streams are passed as void *, so no CUDA header is needed.
 *
 * A trainer with its own kernels passes its stream to Cairn, describes its device pointers with cairn_param_set_create,
 * and calls Cairn between its own launches; neither needs to synchronise. Not included by cairn.h.
 *
 * Calls that use CUDA make env's GPU the calling thread's current device and leave it so: a program that uses several
 * GPUs calls cudaSetDevice again before it uses another one. */
#ifndef CAIRN_INTEROP_CUDA_H
#define CAIRN_INTEROP_CUDA_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The cudaStream_t that Cairn queues work on: its own non-blocking one until cairn_cuda_set_stream is called. NULL if
 * env is not on a GPU (cairn_last_error says so); note that CUDA's legacy default stream is NULL too. */
CAIRN_API void *cairn_cuda_stream(cairn_env *env);

/* Makes Cairn queue on the user's stream from now on, after the work it has already queued. The stream must belong to
 * env's device and outlive its use; NULL is CUDA's legacy default stream, on which no graph can be recorded.
 * cairn_env_destroy waits for it. Errors, after which Cairn keeps its old stream: CAIRN_EINVAL env is NULL or not on a
 * GPU; CAIRN_ESTATE a graph is being recorded, or the program is capturing one of the streams; CAIRN_EDEVICE the stream
 * belongs to another GPU. */
CAIRN_API cairn_status cairn_cuda_set_stream(cairn_env *env, void *stream);

/* The GPU's ordinal in CUDA's numbering; -1 if env is not on a GPU. */
CAIRN_API int cairn_cuda_ordinal(const cairn_env *env);

#ifdef __cplusplus
}
#endif

#endif
