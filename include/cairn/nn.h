/* Includes the headers of nn: tensors, operations on them, and modules. */
#ifndef CAIRN_NN_H
#define CAIRN_NN_H

#include "modules.h"
#include "ops.h"
#include "tensor.h"

#endif
