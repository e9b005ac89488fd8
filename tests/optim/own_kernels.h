/* The updates of custom_test.c as CUDA kernels of a user's program: functions that queue them. */
#ifndef OWN_KERNELS_H
#define OWN_KERNELS_H

#include "cairn/custom_optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

void queue_sgd(void *ctx, const struct cairn_custom_update *u);
void queue_adamw(void *ctx, const struct cairn_custom_update *u);

#ifdef __cplusplus
}
#endif

#endif
