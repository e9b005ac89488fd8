/* struct cairn_env, the environment in which every object is created. The struct is data only. It is defined here,
 * below the rooms that read it; src/env creates it. A higher room keeps its state in its own place of the environment,
 * with a type of its own. */
#ifndef CAIRN__DEVICE_ENV_H
#define CAIRN__DEVICE_ENV_H

#include "cairn/env.h"
#include "device/device.h"

/* The state that a higher room keeps in an environment: an object of its own type and a number. Only that room's
 * functions use them, and src/env, which creates and destroys environments. */
struct cairn__place {
    void *at; /* NULL = nothing */
    int64_t number;
    int alive; /* objects of the room that were created in the environment and may not outlive it */
};

enum cairn__place_of {
    CAIRN__PLACE_OF_PARAM,
    CAIRN__PLACE_OF_DATA,
    CAIRN__PLACE_OF_NN,
    CAIRN__PLACE_OF_COMM,
    CAIRN__PLACE_OF_AMP,
    CAIRN__PLACE_OF_DDP,
    CAIRN__PLACE_OF_ENV,
    CAIRN__PLACE_OF_OBSERVE,
    CAIRN__PLACE_OF_WATCHER, /* of param/watcher.h: observe's, which param and nn call */
    CAIRN__NUM_PLACES
};

/* Reads reports (kernels/step.h) that the device has written during work that the host did not follow step by step. */
struct cairn__report_reader {
    cairn_status (*read)(struct cairn__report_reader *reader); /* never waits; returns the worst report's status */
    struct cairn__report_reader *next;
};

/* A scaled loss of amp whose gradients are not checked yet. They must be checked before they are changed or
 * forgotten. */
struct cairn__unresolved {
    cairn_status (*resolve)(struct cairn__unresolved *unresolved);
    /* If this is the `losses` of a user's set: sets the set's `scale` to that of the next loss. Else NULL. */
    cairn_status (*take_scale)(struct cairn__unresolved *unresolved);
    struct cairn__unresolved *next;
    bool is_listed;
};

struct cairn_env {
    struct cairn_device *device;
    int rank, size, local_rank;
    int local_size, restart_count; /* local_size 0 = not known */
    char *description;             /* what cairn_env_describe returns */

    struct cairn__place places[CAIRN__NUM_PLACES];

    int graphs;      /* number of live graphs */
    int unstepped;   /* scaled losses that no step has used yet */
    int open_losses; /* amp's scaled losses that have not been ended */

    uint64_t seed;
    uint64_t next_stream; /* number of random streams used so far, one per tensor */
    int stream_rank;      /* the rank part of stream numbers: rank, except in a model's replica */

    /* Counts replays and recordings of graphs: each changes weights, so the host's record of current casts is stale. */
    uint64_t replays;
    struct cairn__report_reader *readers;
    struct cairn__unresolved *unresolved;

    /* Gathers n words of host memory from every rank into all [size * n], in rank order. Collective; blocks. The group
     * implements it. */
    cairn_status (*gather)(struct cairn_env *env, int32_t *all, const int32_t *words, size_t n);

    /* Replaces values [n], in host memory, by their sums over the ranks, bit for bit the same on all. Collective;
     * blocks; implemented by the group. */
    cairn_status (*sum)(struct cairn_env *env, double *values, size_t n);

    /* Begins a new step: zero_grad calls it, and nn recycles the results of the last step. Within a backward or a
     * checkpoint it changes nothing and returns false. nn implements this and the next three. */
    bool (*begin_step)(struct cairn_env *env);

    /* The storage for the results of a graph's step: fork creates it, use puts it in use and returns the storage in use
     * before, end destroys it. */
    cairn_status (*fork_results)(struct cairn_env *env, void **out);
    void *(*use_results)(struct cairn_env *env, void *results);
    void (*end_results)(void *results);
};

/* Calls every reader; returns the last status that is not CAIRN_OK, whose message is the last error. */
static inline cairn_status cairn__env_read_reports(struct cairn_env *env) {
    cairn_status st = CAIRN_OK;
    for (struct cairn__report_reader *r = env->readers; r; r = r->next) {
        const cairn_status one = r->read(r);
        if (one != CAIRN_OK) st = one;
    }
    return st;
}

/* Adds u to the list of unresolved losses, unless it is there. It is resolved once, before gradients are next read,
 * forgotten or used by a step. */
static inline void cairn__env_list_unresolved(struct cairn_env *env, struct cairn__unresolved *u) {
    if (u->is_listed) return;
    u->is_listed = true;
    u->next = env->unresolved;
    env->unresolved = u;
}

/* Resolves all listed losses. Must be called before gradients are added to, changed or forgotten. */
static inline cairn_status cairn__env_resolve(struct cairn_env *env) {
    cairn_status st = CAIRN_OK;
    while (env->unresolved) {
        struct cairn__unresolved *u = env->unresolved;
        env->unresolved = u->next;
        u->is_listed = false;
        const cairn_status one = u->resolve(u);
        if (one != CAIRN_OK) st = one;
    }
    return st;
}

/* Element i of random stream s under seed q is word i % 4 of cairn__philox(q, i / 4, s << 16 | stream_rank): every rank
 * and every tensor has numbers of its own, and any element can be computed by itself. */
static inline uint64_t cairn__env_stream(const struct cairn_env *env) {
    return env->next_stream << 16 | (uint64_t)env->stream_rank;
}

static inline uint64_t cairn__env_next_stream(struct cairn_env *env) {
    const uint64_t stream = cairn__env_stream(env);
    env->next_stream++;
    return stream;
}

#endif
