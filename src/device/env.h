/* struct cairn_env: what every object is made in. The struct is data only and lives here, below the rooms that read it;
 * src/env assembles one. The tape and the group belong to rooms that this one does not know: they are pointers. */
#ifndef CAIRN__DEVICE_ENV_H
#define CAIRN__DEVICE_ENV_H

#include "cairn/env.h"
#include "device/device.h"

struct cairn__tape;

struct cairn_env {
    struct cairn_device *device;
    int rank, size, local_rank;

    int sets; /* parameter sets made in it that are alive */

    uint64_t seed;
    uint64_t next_stream; /* random streams handed out so far: one a tensor */

    struct cairn__tape *tape;  /* nn's */
    struct cairn_group *group; /* dist's */

    /* A new step begins: zero_grad says so, nn's tape listens and recycles the results of the last step. */
    void (*begin_step)(struct cairn_env *env);
};

/* Element i of random stream s under seed q is word i % 4 of cairn__philox(q, i / 4, s << 16 | rank): every rank and every
 * tensor has numbers of its own, and each can be made alone. */
static inline uint64_t cairn__env_next_stream(struct cairn_env *env) {
    return env->next_stream++ << 16 | (uint64_t)env->rank;
}

#endif
