/* An environment from launch facts that are known already: what cairn_env_create does after reading them, and how ranks
 * become threads of one process. */
#ifndef CAIRN__ENV_INTERNAL_H
#define CAIRN__ENV_INTERNAL_H

#include "cairn/env.h"
#include "dist/launch.h"

/* Collective over launch->size callers. options may be NULL. Errors: as cairn_env_create. */
cairn_status cairn__env_create_at(const struct cairn__launch *launch, const struct cairn_env_options *options,
                                  cairn_env **out);

#endif
