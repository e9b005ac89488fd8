/* One stream for Cairn and the program's own CUDA code: public calls for the device's optional slots. */
#include "cairn/interop_cuda.h"

#include "core/status.h"
#include "device/env.h"

static cairn_status find_gpu(const cairn_env *env, const char *caller, struct cairn_device **out) {
    REQUIRE(env, CAIRN_EINVAL, "%s: env is NULL", caller);
    REQUIRE(env->device->ops->stream, CAIRN_EINVAL, "%s: the environment computes on %s, which has no stream", caller,
            env->device->ops->name);
    *out = env->device;
    return CAIRN_OK;
}

void *cairn_cuda_stream(cairn_env *env) {
    struct cairn_device *d = NULL;
    return find_gpu(env, "cairn_cuda_stream", &d) == CAIRN_OK ? d->ops->stream(d) : NULL;
}

cairn_status cairn_cuda_set_stream(cairn_env *env, void *stream) {
    struct cairn_device *d = NULL;
    cairn_status st = CAIRN_OK;
    TRY(find_gpu(env, "cairn_cuda_set_stream", &d));
    REQUIRE(!d->capturing, CAIRN_ESTATE,
            "cairn_cuda_set_stream: a graph is being recorded on the stream in use; change it between replays");
    TRY(d->ops->set_stream(d, stream));
out:
    return st;
}

int cairn_cuda_ordinal(const cairn_env *env) {
    return env && env->device->ops->stream ? env->device->ordinal : -1;
}
