/* Recorders, for what begins and ends with an environment. */
#ifndef CAIRN__OBSERVE_RECORDER_H
#define CAIRN__OBSERVE_RECORDER_H

#include "cairn/exponents.h"

/* The environment gets a recorder of its own, or a line in the log. */
void cairn__recorder_begin(cairn_env *env, int64_t every);

/* The environment ends: its recorder records no more, and its own is destroyed. */
void cairn__recorder_end(cairn_env *env);

#endif
