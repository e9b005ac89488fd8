/* TensorBoard's files. */
#ifndef CAIRN__OBSERVE_TENSORBOARD_H
#define CAIRN__OBSERVE_TENSORBOARD_H

#include "cairn/observe.h"

/* cairn_tensorboard_create for a rank that has no environment yet. */
cairn_status cairn__tensorboard_open(int rank, int size, const char *folder, cairn_writer **out);

#endif
