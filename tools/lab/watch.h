/* Inspects every gradient of a backward: gradients of activations by identity operations between a model's operations,
 * and gradients of parameters after the backward.
 *
 * The gradient that an operation passes to its input arrives at the watched place before the operation, in its own
 * type. With a place before every operation, and one on each branch of a result that is used twice, every gradient is
 * seen. */
#ifndef LAB_WATCH_H
#define LAB_WATCH_H

#include <stdbool.h>

#include "cairn/cairn.h"

/* dx [n] of dtype: the gradient at a place ("gelu 2" for an activation, or the name of a parameter, is_param). The
 * callback may change an activation's gradient: backward continues with the changed values. */
typedef void (*lab_look)(void *ctx, const char *place, bool is_param, cairn_dtype dtype, void *dx, size_t n);

enum { LAB_MOST_PLACES = 64 };

struct lab_watch {
    lab_look look; /* NULL = gradients are not inspected */
    void *ctx;
    struct lab_place {
        struct lab_watch *watch;
        const char *name;
    } places[LAB_MOST_PLACES];
    size_t count;
};

/* Returns x with a watched place: the watch sees its gradient when a backward reaches it. With watch NULL returns x
 * itself. name must outlive the watch. Returns NULL on error, and for NULL. */
cairn_tensor *lab_watched(struct lab_watch *watch, const char *name, cairn_tensor *x);

/* Passes the gradients of all parameters that have one to the watch; call after a backward. */
cairn_status lab_watch_params(struct lab_watch *watch, cairn_param_set *set);

/* A callback that keeps the largest magnitude of f16 gradients; an infinity or NaN makes it infinite. */
struct lab_greatest {
    double f16;
};
void lab_look_for_greatest(void *greatest, const char *place, bool is_param, cairn_dtype dtype, void *dx, size_t n);

#endif
