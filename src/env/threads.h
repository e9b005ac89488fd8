/* Ranks that are threads of one process: what cairn_env_create needs to know of the calling thread, and which of the
 * thread's environments are alive when its function ends. */
#ifndef CAIRN__ENV_THREADS_H
#define CAIRN__ENV_THREADS_H

#include <stdbool.h>

#include "cairn/env.h"
#include "rendezvous/launch/launch.h"

/* Whether the calling thread is a rank of cairn_spawn_threads. If so, sets its launch facts, and the store where the
 * ranks meet; NULL = they meet at the launcher's place. */
bool cairn__thread_launch(const struct cairn__launch **launch, cairn_store **store);

/* Errors: CAIRN_EPEER another rank of this thread's cairn_spawn_threads has failed, with that rank's sentence. */
cairn_status cairn__thread_check(void);

/* env has taken the calling thread's place as a rank, and must end before the thread does. Errors: CAIRN_ENOMEM. */
cairn_status cairn__thread_adopt(cairn_env *env);
/* env ends; any thread. Does nothing for an environment that was not adopted. */
void cairn__thread_disown(const cairn_env *env);

#endif
