/* The backend's table: creation, groups made from another, the end. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/shm/shm.h"
#include "core/alloc.h"
#include "core/cpu.h"
#include "core/status.h"

/* ---- control memory ---- */

static size_t bounces_offset(int size) {
    const size_t nbytes = sizeof(struct shm_control) + (size_t)size * sizeof(struct shm_lane);
    return (nbytes + SHM_PAIR_NBYTES - 1) / SHM_PAIR_NBYTES * SHM_PAIR_NBYTES;
}

static size_t pairs_offset(int size) {
    return bounces_offset(size) + (size > 1 ? (size_t)size * SHM_BOUNCES * SHM_BOUNCE_NBYTES : 0);
}

static void place_control(struct cairn__shm *s, void *memory) {
    s->control = memory;
    s->bounces = (uint8_t *)memory + bounces_offset(s->size);
    s->pairs = (struct shm_pair *)((uint8_t *)memory + pairs_offset(s->size));
    s->bell = &s->root->control->bell;
}

static cairn_status host_control(struct cairn__shm *s) {
    void *memory = NULL;
    int fd = -1;
    const size_t filled = pairs_offset(s->size);
    cairn_status st = s->by_address ? cairn__shm_private_memory(s->control_nbytes, filled, &memory)
                                    : cairn__shm_create_memory(s->control_nbytes, filled, &fd, &memory);
    if (st == CAIRN_OK) place_control(s, memory);
    if (st == CAIRN_OK) atomic_store(&s->control->users, s->size);
    for (int r = 1; r < s->size; r++) {
        cairn_status sent = cairn__shm_send_memory(s, r, s->group->index, st, fd, s->by_address ? memory : NULL);
        if (sent != CAIRN_OK && st == CAIRN_OK) st = sent;
    }
    if (fd >= 0) close(fd);
    return st;
}

static cairn_status join_control(struct cairn__shm *s) {
    void *memory = NULL;
    int fd = -1;
    cairn_status st = CAIRN_OK, hosted = CAIRN_OK;
    TRY(cairn__shm_receive_memory(s, 0, &hosted, &fd, &memory));
    TRY(hosted);
    if (!memory) TRY(cairn__shm_map_memory(fd, s->control_nbytes, &memory));
    place_control(s, memory);
out:
    if (fd >= 0) close(fd);
    return st;
}

static cairn_status make_control(struct cairn__shm *s) {
    void *memory = NULL;
    cairn_status st = CAIRN_OK;
    s->control_nbytes = pairs_offset(s->size) + (s->size > 1 ? (size_t)s->size * (size_t)s->size * SHM_PAIR_NBYTES : 0);
    if (s->size > 1) return s->rank == 0 ? host_control(s) : join_control(s);
    TRY(cairn__shm_private_memory(s->control_nbytes, s->control_nbytes, &memory));
    place_control(s, memory);
out:
    return st;
}

/* ---- creation ---- */

static cairn_status shm_post_work(cairn_group *group, cairn_work *work) {
    struct cairn__shm *s = group->impl;
    cairn_status st = CAIRN_OK;
    if (cairn__call_is_message(&work->request.call)) TRY(cairn__shm_post_message(s, work));
    else cairn__shm_post_collective(s, work);
    TRY(cairn__shm_step(s));
out:
    return st;
}

static cairn_status shm_wait_work(cairn_group *group, cairn_work *work) {
    return cairn__shm_wait(group->impl, work);
}

static cairn_status shm_progress(cairn_group *group) {
    return cairn__shm_poll(group->impl);
}

static cairn_status begin(cairn_group *group, struct cairn__shm *root, struct cairn__shm **out) {
    struct cairn__shm *s = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*s), (void **)&s));
    group->impl = s;
    s->group = group;
    s->process = getpid();
    s->root = root ? root : s;
    s->kernels = cairn__kernels_cpu(cairn__cpu_features());
    s->rank = group->rank;
    s->size = group->size;
    if (root) cairn__shm_set_patience(s);
    TRY(cairn__calloc((size_t)s->size, sizeof(*s->peers), (void **)&s->peers));
    for (int r = 0; r < s->size; r++) s->peers[r].fd = s->peers[r].process = -1;
    TRY(cairn__calloc((size_t)s->size, sizeof(*s->dsts), (void **)&s->dsts));
    TRY(cairn__calloc((size_t)s->size, sizeof(*s->srcs), (void **)&s->srcs));
    *out = s;
out:
    return st;
}

/* The group's ranks are threads of this process, and all of them know that. */
static void choose_reach(cairn_group *group, struct cairn__shm *s) {
    bool all = true;
    for (int r = 0; r < s->size; r++) all = all && s->peers[r].is_thread;
    s->by_address = all && s->size > 1;
    group->backend = all ? &cairn__group_threads : &cairn__group_shm;
}

static cairn_status shm_create(cairn_group *group, const struct cairn__group_create_options *options,
                               struct cairn__peers *peers) {
    struct cairn__shm *s = NULL;
    cairn_status st = CAIRN_OK;
    TRY(begin(group, NULL, &s));
    if (s->size > 1) TRY(cairn__shm_meet(s, peers));
    s->peers[s->rank].is_thread = options->is_thread;
    choose_reach(group, s);
    TRY(make_control(s));
    cpu_set_t *mine = &shm_lane(s, s->rank)->processors; /* a launcher may have bound each rank to one of its own */
    if (sched_getaffinity(0, sizeof(*mine), mine) != 0) CPU_ZERO(mine);
    /* Number 0: no rank leaves creation before all have the control memory. */
    cairn_work barrier = {.group = group, .request = {.call = {.kind = CAIRN__BARRIER}}};
    cairn__shm_post_collective(s, &barrier);
    TRY(cairn__shm_wait(s, &barrier));
    cairn__shm_set_patience(s);
out:
    return st;
}

/* Needs no barrier of its own: in the parent the members agree on whether all of them succeeded. */
static cairn_status shm_derive(cairn_group *group, cairn_group *parent) {
    struct cairn__shm *from = parent->impl, *s = NULL;
    cairn_status st = begin(group, from->root, &s);
    /* The members wait for the first one's memory, or its status. */
    for (int r = 1; r < group->size && group->rank == 0 && st != CAIRN_OK; r++)
        (void)cairn__shm_send_memory(from, group->parent_ranks[r], group->index, st, -1, NULL);
    TRY(st);
    s->parent = from;
    for (int r = 0; r < s->size; r++) s->peers[r] = from->peers[group->parent_ranks[r]];
    choose_reach(group, s);
    TRY(make_control(s));
    s->parent = NULL;
    s->posted = s->done = s->complete = 1;
out:
    return st;
}

/* ---- the end ---- */

static void publish_gone(struct cairn__shm *s, enum shm_gone how, const char *cause) {
    struct shm_lane *mine = shm_lane(s, s->rank);
    if (atomic_load(&mine->gone) != SHM_HERE || s->process != getpid()) return;
    snprintf(mine->cause, sizeof(mine->cause), "%s", cause);
    atomic_store(&mine->gone, how);
    cairn__shm_notify(s);
    cairn__shm_wait_untouched(s);
}

static void shm_give_up(cairn_group *group, const char *cause) {
    struct cairn__shm *s = group->impl;
    if (s->control) publish_gone(s, atomic_load(&group->aborted) ? SHM_ABORTED : SHM_GAVE_UP, cause);
}

/* Of memory that ranks have in common the last one ends it. What a rank never joined, in a creation that failed, stays:
 * the others cannot know that it will not. */
static void leave_control(struct cairn__shm *s) {
    if (s->by_address && s->control && atomic_fetch_sub(&s->control->users, 1) > 1) return;
    if (s->by_address && s->control) cairn__shm_free_parts(atomic_load(&s->control->left));
    cairn__shm_unmap(s->control, s->control_nbytes);
}

static void shm_destroy(cairn_group *group) {
    struct cairn__shm *s = group->impl;
    if (!s) return;
    if (s->control) publish_gone(s, SHM_LEFT, group->family->failure);
    cairn__shm_free_all(s);
    for (int r = 0; r < s->size && s->peers && s->root == s; r++) {
        if (s->peers[r].fd >= 0) close(s->peers[r].fd);
        if (s->peers[r].process >= 0) close(s->peers[r].process);
    }
    cairn__free(s->peers);
    leave_control(s);
    cairn__free(s->routes);
    cairn__free(s->dsts);
    cairn__free(s->srcs);
    cairn__free(s);
    group->impl = NULL;
}

#define SHM(called)                                                                                                   \
    {                                                                                                                 \
        .name = called, .shares_memory = true, .checks_results = true, .finds_nonfinite = true, .create = shm_create, \
        .derive = shm_derive, .destroy = shm_destroy, .alloc = cairn__shm_alloc, .free = cairn__shm_free,             \
        .post = shm_post_work, .progress = shm_progress, .wait = shm_wait_work, .give_up = shm_give_up,               \
    }

const struct cairn__group_backend cairn__group_shm = SHM("shm");
const struct cairn__group_backend cairn__group_threads = SHM("threads");
