/* The CPU backend: its state, its passes, and the engine of its matrix products: oneDNN where it was found
 * (matmul_onednn.c), else plain loops (matmul_ref.c). The build picks one of the two files. */
#ifndef CAIRN__DEVICE_CPU_H
#define CAIRN__DEVICE_CPU_H

#include "device/device.h"

extern const struct cairn__device_ops cairn__cpu_ops;
extern const struct cairn__passes cairn__cpu_passes;

/* Memory that grows to the largest need and stays, so that a training step allocates nothing once it has run. */
struct cairn__scratch {
    float *data;
    size_t room;
};

struct cairn__cpu {
    const struct cairn__kernels *kernels;
    struct cairn__engine *engine;
    struct cairn__scratch a, b, c, row; /* operands, result, and bias or row sums of products; a and b of sums too */
    cairn_status failed;                /* of passes, until check is asked; with its words */
    char failure[256];
    char text[128];
};

static inline struct cairn__cpu *cairn__cpu_of(const struct cairn_device *d) {
    return d->state;
}

/* n floats, undefined; what was there before is gone. */
cairn_status cairn__scratch_room(struct cairn__scratch *s, size_t n, float **out);

/* n values of x as f32: x itself, or widened into s. */
cairn_status cairn__cpu_widen(const struct cairn_device *d, struct cairn__scratch *s, cairn_dtype type, const void *x,
                              size_t n, const float **out);

struct cairn__engine;

/* features: cairn__cpu_features(). One engine a device, used by one thread at a time. */
cairn_status cairn__engine_open(unsigned features, struct cairn__engine **out);
void cairn__engine_close(struct cairn__engine **engine);

/* "oneDNN 2.6.3, 1 thread"; owned by the engine. */
const char *cairn__engine_describe(const struct cairn__engine *engine);

/* Whether the engine multiplies this type itself; f32 always. Other operands are widened by the caller. */
bool cairn__engine_takes(const struct cairn__engine *engine, cairn_dtype type);

/* C = op(A) op(B), C in f32 whatever out_type says. No size is 0, the type is one it takes, and bias, relu and row sums are
 * the caller's business. Equal calls give equal bits. Errors: CAIRN_ENOMEM; CAIRN_EDEVICE with oneDNN's status. */
cairn_status cairn__engine_matmul(struct cairn__engine *engine, const struct cairn__matmul *product);

#endif
