/* Creates an environment from known launch facts: cairn_env_create does this after reading them, and tests do it to run
 * ranks as threads of one process. */
#ifndef CAIRN__ENV_INTERNAL_H
#define CAIRN__ENV_INTERNAL_H

#include "cairn/env.h"
#include "rendezvous/launch/launch.h"

/* Collective over launch->size callers. options may be NULL. Errors: as cairn_env_create. */
cairn_status cairn__env_create_at(const struct cairn__launch *launch, const struct cairn_env_options *options,
                                  cairn_env **out);

/* Meets the other ranks and creates the environment's group. The store and its server end before this returns, unless
 * the group keeps its store: then the environment keeps them. *port: the TCP store's, 0 = there was none. options must
 * be complete. */
cairn_status cairn__env_meet(struct cairn_env *env, const struct cairn__launch *launch,
                             const struct cairn_env_options *options, int *port);

/* Ends the store that was kept. Call it after the group has ended. */
void cairn__env_part(struct cairn_env *env);

/* Called in a forked child that has launcher's variables of its own, so it does not take its parent's rank. */
void cairn__env_is_rank_of_its_own(void);

/* The path in "file:///path", NULL for other methods. CAIRN_EINVAL for "file://" without a whole path. */
cairn_status cairn__env_file_path(const char *init_method, const char **path);

#endif
