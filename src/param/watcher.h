/* Who sees values while a training computes them: the recorder of exponents (src/observe). nn shows it what modules
 * return and the gradients of that, this room the gradients of parameters. Without one each place costs one load and
 * one branch; while a graph is recorded, nothing is shown.
 *
 * Values are dense, in device memory, and valid during the call: the work that makes them is queued on the device. The
 * functions change nothing, fail on their own, and return no status. */
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

    /* Whether results of modules of this tree are wanted now. */
    bool (*wants_results)(void *ctx, const struct cairn_param_set *params);
    /* What a module returned: path in its tree, "" of the root, whose kind that is ("Sequential"). Returns a number by
     * which the gradient is shown; 0 = it is not wanted. values NULL: a checkpoint has computed it again. */
    uint64_t (*result)(void *ctx, const struct cairn_param_set *params, const char *path, const char *kind,
                       const struct cairn__watched *values);
    /* Its gradient, multiplied by *scale (device memory; NULL = 1). */
    void (*result_grad)(void *ctx, uint64_t result, const struct cairn__watched *values,
                        const struct cairn__loss_scale *scale);

    /* The slot of p holds its gradient, which no listener has seen. */
    void (*grad_ready)(void *ctx, const struct cairn__param *p);
    /* A backward of a set with a listener is over, and gradients may be read. */
    void (*grads_settled)(void *ctx, const struct cairn_param_set *set);
};

/* NULL = none watches. */
static inline const struct cairn__watcher *cairn__watcher_of(const struct cairn_env *env) {
    return (const struct cairn__watcher *)env->places[CAIRN__PLACE_OF_WATCHER].at;
}

/* The same, but NULL while a graph is recorded. */
static inline const struct cairn__watcher *cairn__watcher_now(const struct cairn_env *env) {
    const struct cairn__watcher *w = cairn__watcher_of(env);
    return w && !env->device->capturing ? w : NULL;
}

static inline void cairn__env_watch(struct cairn_env *env, const struct cairn__watcher *watcher) {
    env->places[CAIRN__PLACE_OF_WATCHER].at = (void *)(uintptr_t)watcher;
}

#endif
