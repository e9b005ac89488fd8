/* What the GPU module is opened for. */
#include "device/module.h"

#include "device/cuda/cuda.h"

const struct cairn__module_tables cairn__module_tables = {
    .name = "cuda",
    .all = {{"device", &cairn__cuda_ops}},
};
