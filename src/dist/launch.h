/* Launch facts: who this process is among its ranks, as the launcher told it. */
#ifndef CAIRN__DIST_LAUNCH_H
#define CAIRN__DIST_LAUNCH_H

#include <stdbool.h>

#include "cairn/core.h"

struct cairn__launch {
    int rank, size;
    int local_rank, local_size; /* local_size 0 = not told; then local_rank is rank unless that was told */
    char master_addr[256];      /* "" where size is 1 and nobody told */
    int master_port;
    bool agent_store;     /* the launcher hosts the store */
    char key_prefix[128]; /* "cairn/<run id>/<restart count>" */
    char source[32];      /* "torch" or "alone" */
};

/* Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_*; takes
 * --local_rank=N, --local-rank=N and both with a space out of argv (argc, argv may be NULL). An argument after "--" is
 * the program's. LOCAL_RANK and the argument must agree where both are there. Without RANK and WORLD_SIZE: alone.
 * Errors: CAIRN_EINVAL, each with what to set: RANK without WORLD_SIZE or the reverse, RANK or LOCAL_RANK out of range,
 * MASTER_ADDR or MASTER_PORT missing where size > 1, a number that is none, a run id beyond 100 characters; argc and
 * argv are then as they were. */
cairn_status cairn__launch_read(int *argc, char ***argv, struct cairn__launch *out);

#endif
