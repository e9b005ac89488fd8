/* struct cairn_env: what every object is made in. The struct is data only and lives here, below the rooms that read it;
 * src/env assembles one. What a room above keeps in an environment stands in its place, and is of its own type. */
#ifndef CAIRN__DEVICE_ENV_H
#define CAIRN__DEVICE_ENV_H

#include "cairn/env.h"
#include "device/device.h"

/* What a room above this one keeps in an environment: an object of its own type, and a number. Only the room's own
 * functions look into these, and src/env, which makes and ends an environment. */
struct cairn__place {
    void *at; /* NULL = nothing */
    int64_t number;
    int alive; /* objects of the room, made in the environment, that may not outlive it */
};

enum cairn__place_of {
    CAIRN__PLACE_OF_PARAM,
    CAIRN__PLACE_OF_NN,
    CAIRN__PLACE_OF_COMM,
    CAIRN__PLACE_OF_AMP,
    CAIRN__PLACE_OF_DDP,
    CAIRN__PLACE_OF_ENV,
    CAIRN__NUM_PLACES
};

/* Somebody who looks for reports that the device left (kernels/step.h) after work that the host did not walk
 * through. */
struct cairn__report_reader {
    cairn_status (*read)(struct cairn__report_reader *reader); /* never waits; the status of the worst report */
    struct cairn__report_reader *next;
};

/* A scaled loss whose gradients have still to be looked at before anybody changes or forgets them: amp's. */
struct cairn__unresolved {
    cairn_status (*resolve)(struct cairn__unresolved *unresolved);
    /* Of a user's set (whose `losses` it is): the set's `scale` becomes that of the next loss. Else NULL. */
    cairn_status (*take_scale)(struct cairn__unresolved *unresolved);
    struct cairn__unresolved *next;
    bool is_listed;
};

struct cairn_env {
    struct cairn_device *device;
    int rank, size, local_rank;
    int local_size, restart_count; /* local_size 0 = not told */
    char *description;             /* for people; cairn_env_describe */

    struct cairn__place places[CAIRN__NUM_PLACES];

    int graphs;    /* that are alive */
    int unstepped; /* scaled losses that no step has followed */

    uint64_t seed;
    uint64_t next_stream; /* random streams handed out so far: one a tensor */

    /* Of graphs, and recordings: with each, weights and their casts are other than the host's books say. */
    uint64_t replays;
    struct cairn__report_reader *readers;
    struct cairn__unresolved *unresolved;

    /* Every rank's n words of the host, in rank order: all [size * n]. All ranks call it; waits for them. The
     * group's. */
    cairn_status (*gather)(struct cairn_env *env, int32_t *all, const int32_t *words, size_t n);

    /* A new step begins: zero_grad says so, and the results of the last step are recycled. false: not now, within a
     * backward or a checkpoint; nothing has changed. nn's, as the next three. */
    bool (*begin_step)(struct cairn_env *env);

    /* What the results of a graph's step stand in, and its end. use_results: from here on results stand in those;
     * returns those before. */
    cairn_status (*fork_results)(struct cairn_env *env, void **out);
    void *(*use_results)(struct cairn_env *env, void *results);
    void (*end_results)(void *results);
};

/* Asks every reader; the status of the last one that has something to say, whose sentence is the last error. */
static inline cairn_status cairn__env_read_reports(struct cairn_env *env) {
    cairn_status st = CAIRN_OK;
    for (struct cairn__report_reader *r = env->readers; r; r = r->next) {
        const cairn_status said = r->read(r);
        if (said != CAIRN_OK) st = said;
    }
    return st;
}

/* Lists u, which is looked after once: by whoever reads, steps with or forgets gradients next. */
static inline void cairn__env_list_unresolved(struct cairn_env *env, struct cairn__unresolved *u) {
    if (u->is_listed) return;
    u->is_listed = true;
    u->next = env->unresolved;
    env->unresolved = u;
}

/* To be called before gradients are added to, changed or forgotten. */
static inline cairn_status cairn__env_resolve(struct cairn_env *env) {
    cairn_status st = CAIRN_OK;
    while (env->unresolved) {
        struct cairn__unresolved *u = env->unresolved;
        env->unresolved = u->next;
        u->is_listed = false;
        const cairn_status said = u->resolve(u);
        if (said != CAIRN_OK) st = said;
    }
    return st;
}

/* Element i of random stream s under seed q is word i % 4 of cairn__philox(q, i / 4, s << 16 | rank): every rank and
 * every tensor has numbers of its own, and each can be made alone. */
static inline uint64_t cairn__env_next_stream(struct cairn_env *env) {
    return env->next_stream++ << 16 | (uint64_t)env->rank;
}

#endif
