/* The writers that the environment's variables ask for, one of each kind of file. */
#ifndef CAIRN__OBSERVE_BEGIN_H
#define CAIRN__OBSERVE_BEGIN_H

#include "device/env.h"

/* Begins them for env's rank, whose number and size are set; those of another environment of this process and rank that
 * is alive are shared. One that cannot begin is logged as an error. Any thread. */
void cairn__observe_begin(struct cairn_env *env);

/* Ends those that no other environment shares. */
void cairn__observe_end(struct cairn_env *env);

#endif
