/* Looking at every gradient of a backward: those of activations by operations that change nothing, between the others
 * of a model, and those of parameters once the backward is over.
 *
 * A gradient that an operation hands to its input arrives at the watched place before it, in the type it has there. So
 * with a place before every operation, and one on each branch where a result is used twice, all are seen. */
#ifndef LAB_WATCH_H
#define LAB_WATCH_H

#include <stdbool.h>

#include "cairn/cairn.h"

/* dx [n] of dtype: the gradient at a place ("gelu 2", of an activation; or the name of a parameter, is_param). That of
 * an activation may be changed: backward goes on with what stands there then. */
typedef void (*lab_look)(void *ctx, const char *place, bool is_param, cairn_dtype dtype, void *dx, size_t n);

enum { LAB_MOST_PLACES = 64 };

struct lab_watch {
    lab_look look; /* NULL = nothing is looked at */
    void *ctx;
    struct lab_place {
        struct lab_watch *watch;
        const char *name;
    } places[LAB_MOST_PLACES];
    size_t count;
};

/* x, whose gradient the watch sees when a backward reaches it. watch NULL: x itself. name lives as long as the watch.
 * NULL on error, and for NULL. */
cairn_tensor *lab_watched(struct lab_watch *watch, const char *name, cairn_tensor *x);

/* Looks at the gradients of all parameters that have one, after a backward. */
cairn_status lab_watch_params(struct lab_watch *watch, cairn_param_set *set);

/* A look: the largest magnitude of f16 gradients. What is infinite or NaN makes it infinite. */
struct lab_greatest {
    double f16;
};
void lab_look_for_greatest(void *greatest, const char *place, bool is_param, cairn_dtype dtype, void *dx, size_t n);

#endif
