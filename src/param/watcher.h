/* The watcher sees values while training computes them: it is the recorder of exponents (src/observe). nn passes it the
 * results of modules and their gradients, this room the gradients of parameters. Without a watcher each call site costs
 * one load and one branch. While a graph is recorded, the watcher is not called.
 *
 * Values are dense, in device memory, and valid during the call; the work that computes them is queued on the device.
 * The functions change nothing, handle their own failures, and return no status. */
#ifndef CAIRN__PARAM_WATCHER_H
#define CAIRN__PARAM_WATCHER_H

#include "param/param.h"

struct cairn__watched {
    const void *x;
    size_t n;
    cairn_dtype dtype;
};

struct cairn__watcher {
    void *ctx;

    /* Whether the watcher currently wants results of modules of this tree. */
    bool (*wants_results)(void *ctx, const struct cairn_param_set *params);
    /* A module returned a result. path: of the module in its tree, "" for the root; kind: "Sequential". Returns a
     * number that result_grad gets with the gradient; 0 = the gradient is not wanted. values NULL: a checkpoint has
     * recomputed the result. */
    uint64_t (*result)(void *ctx, const struct cairn_param_set *params, const char *path, const char *kind,
                       const struct cairn__watched *values);
    /* The gradient of a result, multiplied by *scale (device memory; NULL = 1). */
    void (*result_grad)(void *ctx, uint64_t result, const struct cairn__watched *values,
                        const struct cairn__loss_scale *scale);

    /* The slot of p holds its gradient; the listener has not been called yet. */
    void (*grad_ready)(void *ctx, const struct cairn__param *p);
    /* A backward of a set with a listener is over, and gradients may be read. */
    void (*grads_settled)(void *ctx, const struct cairn_param_set *set);
};

/* NULL = no watcher. */
static inline const struct cairn__watcher *cairn__watcher_of(const struct cairn_env *env) {
    return (const struct cairn__watcher *)env->places[CAIRN__PLACE_OF_WATCHER].at;
}

/* The watcher to call now: NULL while a graph is recorded. */
static inline const struct cairn__watcher *cairn__watcher_now(const struct cairn_env *env) {
    const struct cairn__watcher *w = cairn__watcher_of(env);
    return w && !env->device->capturing ? w : NULL;
}

static inline void cairn__env_watch(struct cairn_env *env, const struct cairn__watcher *watcher) {
    env->places[CAIRN__PLACE_OF_WATCHER].at = (void *)(uintptr_t)watcher;
}

#endif
