/* Devices. Memory and arithmetic live on one; the environment owns it and everything made in that environment uses
 * it. */
#ifndef CAIRN_DEVICE_H
#define CAIRN_DEVICE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_device cairn_device;

/* "cpu" or "cuda". Owned by Cairn. Any thread. */
CAIRN_API const char *cairn_device_name(const cairn_device *device);

/* One line for people: instruction set, oneDNN's version and what it was capped to; of a GPU its name, architecture,
 * memory, and the versions of driver and cuBLASLt. Owned by the device. Any thread. */
CAIRN_API const char *cairn_device_describe(const cairn_device *device);

#ifdef __cplusplus
}
#endif

#endif
