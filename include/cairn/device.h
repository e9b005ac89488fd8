/* Devices: where memory is allocated and computations run. The environment owns its device, and everything made in the
 * environment uses it. */
#ifndef CAIRN_DEVICE_H
#define CAIRN_DEVICE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_device cairn_device;

/* "cpu" or "cuda". Owned by Cairn. Any thread. */
CAIRN_API const char *cairn_device_name(const cairn_device *device);

/* A one-line description: instruction set, oneDNN's version and the instruction set it is limited to; for a GPU its
 * name, architecture, memory, and the versions of driver and cuBLASLt. Owned by the device. Any thread. */
CAIRN_API const char *cairn_device_describe(const cairn_device *device);

#ifdef __cplusplus
}
#endif

#endif
