/* The CPU backend, and the engine of its matrix products: oneDNN where it was found (matmul_onednn.c), else plain loops
 * (matmul_ref.c). The build picks one of the two files. */
#ifndef CAIRN__DEVICE_CPU_H
#define CAIRN__DEVICE_CPU_H

#include "device/device.h"

extern const struct cairn__device_ops cairn__cpu_ops;

struct cairn__engine;

/* features: cairn__cpu_features(). One engine a device, used by one thread at a time. */
cairn_status cairn__engine_open(unsigned features, struct cairn__engine **out);
void cairn__engine_close(struct cairn__engine **engine);

/* "oneDNN 2.6.3, 1 thread"; owned by the engine. */
const char *cairn__engine_describe(const struct cairn__engine *engine);

/* Whether the engine multiplies this type itself; f32 always. Other operands are widened by the caller. */
bool cairn__engine_takes(const struct cairn__engine *engine, cairn_dtype type);

/* C = op(A) op(B) (+ C). No size is 0, the type is one it takes, and bias is the caller's business. Equal calls give equal
 * bits. Errors: CAIRN_ENOMEM; CAIRN_EDEVICE with oneDNN's status. */
cairn_status cairn__engine_matmul(struct cairn__engine *engine, const struct cairn__matmul *product);

#endif
