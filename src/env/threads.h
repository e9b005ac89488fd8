/* Ranks that are threads of one process: what cairn_env_create finds out about the thread that calls it, and which of
 * its environments are alive when its function ends. */
#ifndef CAIRN__ENV_THREADS_H
#define CAIRN__ENV_THREADS_H

#include <stdbool.h>

#include "cairn/env.h"
#include "rendezvous/launch/launch.h"

/* Whether the calling thread is a rank of cairn_spawn_threads; its launch facts, and the store where its ranks meet,
 * NULL = at the launcher's place. */
bool cairn__thread_launch(const struct cairn__launch **launch, cairn_store **store);

/* CAIRN_EPEER with its sentence, where another rank of this thread's cairn_spawn_threads has failed. */
cairn_status cairn__thread_check(void);

/* env has taken the calling thread's place as a rank: it must end before the thread does. CAIRN_ENOMEM. */
cairn_status cairn__thread_adopt(cairn_env *env);
/* It ends; any thread. Nothing for an environment that was not adopted. */
void cairn__thread_disown(const cairn_env *env);

#endif
