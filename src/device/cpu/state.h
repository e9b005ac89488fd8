/* The CPU backend's state between calls, and the functions that all of its passes use. */
#ifndef CAIRN__CPU_STATE_H
#define CAIRN__CPU_STATE_H

#include "device/device.h"

/* Memory that grows to the largest size needed and is kept, so that a training step that has run once allocates
 * nothing. */
struct cairn__scratch {
    float *data;
    size_t room;
};

enum { CAIRN__LANES = 64 };

struct cairn__cpu {
    const struct cairn__kernels *kernels;
    struct cairn__engine *engine;
    struct cairn__engine *lanes[CAIRN__LANES]; /* engines of threads that multiply in parallel; opened on first use */
    struct cairn__scratch attention;           /* for all lanes of attention */
    struct cairn__scratch a, b, c, row; /* a product's operands, result, and bias or row sums; sums use a and b too */
    struct cairn__scratch dense[CAIRN__MAP_INPUTS]; /* copies of map operands whose strides defeat the cache */
    cairn_status failed;                            /* the first failure of a pass, until check returns it */
    char failure[256];                              /* its message */
    char text[128];                                 /* what describe returns */
};

static inline struct cairn__cpu *cairn__cpu_of(const struct cairn_device *d) {
    return d->state;
}

/* Whether st is CAIRN_OK. Keeps the first failure, with its message, for the device's check. */
bool cairn__cpu_is_ok(struct cairn__cpu *cpu, cairn_status st);

/* *out: room for n floats, undefined; earlier contents are lost. */
cairn_status cairn__scratch_room(struct cairn__scratch *s, size_t n, float **out);

/* n values of x as f32: x itself, or widened into s. */
cairn_status cairn__cpu_widen(const struct cairn_device *d, struct cairn__scratch *s, cairn_dtype type, const void *x,
                              size_t n, const float **out);

#endif
