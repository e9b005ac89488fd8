/* The CPU backend: its three tables, and the functions of other files that the device's table uses. */
#ifndef CAIRN__DEVICE_CPU_H
#define CAIRN__DEVICE_CPU_H

#include "device/device.h"

extern const struct cairn__device_ops cairn__cpu_ops;
extern const struct cairn__passes cairn__cpu_passes; /* passes.c */
extern const struct cairn__math cairn__cpu_math;     /* cpu_math.c */

/* matmul.c */
cairn_status cairn__cpu_matmul(struct cairn_device *d, const struct cairn__matmul *p);

#endif
