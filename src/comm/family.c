/* Creates and frees families and groups, without the backend's part. */
#include <sched.h>
#include <stddef.h>
#include <stdio.h>

#include "comm/front.h"
#include "core/alloc.h"
#include "core/fork.h"
#include "core/status.h"

enum { MAX_TIMEOUT = 1000000000 /* s; fits in 64 bits of ns */ };

/* A graph calls this before a launch, because the group may have failed between calls. */
static cairn_status check_recorded(struct cairn__recorded *recorded) {
    return cairn__group_progress((cairn_group *)((char *)recorded - offsetof(cairn_group, recorded)));
}

cairn_status cairn__group_make(struct cairn__family *family, int size, cairn_group **out) {
    cairn_group *group = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*group), (void **)&group));
    group->family = family;
    group->size = size;
    group->forks = cairn__forks();
    group->recorded.check = check_recorded;
    TRY(cairn__calloc((size_t)size, sizeof(int), (void **)&group->env_ranks));
    TRY(cairn__calloc((size_t)size, sizeof(int), (void **)&group->parent_ranks));
    TRY(cairn__group_add_works(group));
    TRY(cairn__calloc((size_t)size, sizeof(*group->proposals), (void **)&group->proposals));
    *out = group;
    return CAIRN_OK;
out:
    cairn__group_end(&group);
    return st;
}

double cairn__group_clamp_timeout(double timeout) {
    return timeout < MAX_TIMEOUT ? timeout : MAX_TIMEOUT;
}

cairn_status cairn__family_make(const struct cairn__group_create_options *options, cairn_group **out) {
    struct cairn__family *family = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*family), (void **)&family));
    snprintf(family->prefix, sizeof(family->prefix), "%s", options->prefix ? options->prefix : "");
    family->store = options->store;
    family->rank_0_serves = options->rank_0_serves;
    TRY(cairn__group_make(family, options->size, &family->groups));
    cairn_group *group = family->groups;
    group->rank = options->rank;
    group->timeout = cairn__group_clamp_timeout(options->timeout);
    group->timeout_name = "CAIRN_TIMEOUT";
    group->device = options->device;
    for (int r = 0; r < group->size; r++) group->env_ranks[r] = r;
    group->is_of_all = true;
    *out = group;
    return CAIRN_OK;
out:
    cairn__free(family);
    return st;
}

void cairn__group_end(cairn_group **group) {
    cairn_group *g = *group;
    if (!g) return;
    if (!cairn__group_was_forked(g)) {
        while (atomic_load(&g->aborting) > 0) sched_yield(); /* the abort that led here may not have returned yet */
        if (g->backend) g->backend->destroy(g);
    }
    cairn_group **at = &g->family->groups;
    g->family->outstanding -= g->outstanding;
    while (*at && *at != g) at = &(*at)->next;
    if (*at) *at = g->next;
    cairn__group_free_works(g);
    cairn__free(g->proposals);
    cairn__free(g->env_ranks);
    cairn__free(g->parent_ranks);
    cairn__free(g->next_sent);
    cairn__free(g->next_received);
    cairn__free(g);
    *group = NULL;
}

void cairn__family_end(cairn_group **group) {
    struct cairn__family *family = *group ? (*group)->family : NULL;
    cairn__group_end(group);
    cairn__free(family);
}
