/* Changes a gradient after backward has written it and before ddp reduces it: a gradient listener in front of ddp's. */
#ifndef TESTS_PLANT_H
#define TESTS_PLANT_H

#include "device/env.h"
#include "param/param.h"

struct plant {
    struct cairn_param_set *set;
    const struct cairn__grad_listener *behind; /* the listener that was installed before; NULL = none */
    struct cairn__grad_listener front;
    int target;  /* parameter whose gradient is changed; -1 = none, -2 = all */
    bool all;    /* every element, not only the first */
    float value; /* what is written */

    const int *watched;    /* (optional) a counter to read when parameter 0 is ready */
    int seen_before_first; /* its value at that moment */
};

static inline void plant_ready(void *ctx, size_t index) {
    struct plant *plant = ctx;
    struct cairn__param *p = plant->set->params[index];
    struct cairn_device *d = plant->set->env->device;
    if (plant->target == -2 || plant->target == (int)index) {
        d->passes->fill(d, p->dtype, cairn__grad_memory(p->gradient), plant->all ? p->n : 1, plant->value);
    }
    if (index == 0 && plant->watched) plant->seen_before_first = *plant->watched;
    if (plant->behind) plant->behind->ready(plant->behind->ctx, index);
}

static inline cairn_status plant_begin(void *ctx) {
    struct plant *plant = ctx;
    return plant->behind && plant->behind->begin ? plant->behind->begin(plant->behind->ctx) : CAIRN_OK;
}

static inline cairn_status plant_progress(void *ctx) {
    struct plant *plant = ctx;
    return plant->behind ? plant->behind->progress(plant->behind->ctx) : CAIRN_OK;
}

static inline cairn_status plant_settle(void *ctx) {
    struct plant *plant = ctx;
    return plant->behind ? plant->behind->settle(plant->behind->ctx) : CAIRN_OK;
}

static inline void plant_failed(void *ctx) {
    struct plant *plant = ctx;
    if (plant->behind) plant->behind->failed(plant->behind->ctx);
}

static inline cairn_status plant_nonfinite_ranks(void *ctx, struct cairn__ranks *ranks, bool *found, bool *looked) {
    struct plant *plant = ctx;
    *looked = false;
    return plant->behind && plant->behind->nonfinite_ranks
               ? plant->behind->nonfinite_ranks(plant->behind->ctx, ranks, found, looked)
               : CAIRN_OK;
}

/* Call after ddp_create. Stays installed until plant_remove. */
static inline void plant_install(struct plant *plant, struct cairn_param_set *set) {
    *plant = (struct plant){.set = set, .behind = set->listener, .target = -1};
    plant->front = (struct cairn__grad_listener){.ctx = plant,
                                                 .begin = plant_begin,
                                                 .ready = plant_ready,
                                                 .progress = plant_progress,
                                                 .settle = plant_settle,
                                                 .failed = plant_failed,
                                                 .nonfinite_ranks = plant_nonfinite_ranks};
    set->listener = &plant->front;
}

static inline void plant_remove(struct plant *plant) {
    plant->set->listener = plant->behind;
}

#endif
