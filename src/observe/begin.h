/* The writers that environment variables request, one for each kind of file. */
#ifndef CAIRN__OBSERVE_BEGIN_H
#define CAIRN__OBSERVE_BEGIN_H

#include "device/env.h"

/* Begins the writers for env's rank; env's rank and size must be set. Shares those of another live environment of the
 * same process and rank. A writer that cannot begin is logged as an error. Any thread. */
void cairn__observe_begin(struct cairn_env *env);

/* Ends the writers that no other environment shares. */
void cairn__observe_end(struct cairn_env *env);

#endif
