/* Recorders that begin and end with an environment. */
#ifndef CAIRN__OBSERVE_RECORDER_H
#define CAIRN__OBSERVE_RECORDER_H

#include "cairn/exponents.h"

/* Gives the environment its own recorder. A failure is logged. */
void cairn__recorder_begin(cairn_env *env, int64_t every);

/* The environment ends: stops its recorder, and destroys it if it is the environment's own. */
void cairn__recorder_end(cairn_env *env);

#endif
