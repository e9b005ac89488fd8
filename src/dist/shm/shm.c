/* The backend's table: creation, group memory, the end. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/status.h"
#include "dist/shm/shm.h"

enum { PAGE = 4096 };

static size_t whole_pages(size_t nbytes) {
    return nbytes ? (nbytes + PAGE - 1) / PAGE * PAGE : PAGE;
}

/* ---- control memory ---- */

static size_t bounces_offset(int size) {
    return whole_pages(sizeof(struct shm_control) + (size_t)size * sizeof(struct shm_lane));
}

static void place_control(struct cairn__shm *s, void *memory) {
    s->control = memory;
    s->bounces = (uint8_t *)memory + bounces_offset(s->size);
}

static cairn_status host_control(struct cairn__shm *s) {
    void *memory = NULL;
    int fd = -1;
    cairn_status st = cairn__shm_create_memory(s->control_nbytes, &fd, &memory);
    if (st == CAIRN_OK) place_control(s, memory);
    for (int r = 1; r < s->size; r++) {
        cairn_status sent = cairn__shm_send_memory(s, r, st, fd);
        if (sent != CAIRN_OK && st == CAIRN_OK) st = sent;
    }
    if (fd >= 0) close(fd);
    return st;
}

static cairn_status join_control(struct cairn__shm *s) {
    void *memory = NULL;
    int fd = -1;
    cairn_status st = CAIRN_OK, hosted = CAIRN_OK;
    TRY(cairn__shm_receive_memory(s, 0, &hosted, &fd));
    TRY(hosted);
    TRY(cairn__shm_map_memory(fd, s->control_nbytes, &memory));
    place_control(s, memory);
out:
    if (fd >= 0) close(fd);
    return st;
}

static cairn_status private_control(struct cairn__shm *s) {
    void *memory = NULL;
    cairn_status st = cairn__shm_private_memory(s->control_nbytes, &memory);
    if (st == CAIRN_OK) place_control(s, memory);
    return st;
}

/* ---- creation and the end ---- */

static cairn_status shm_post_work(cairn_group *group, cairn_work *work) {
    return cairn__shm_post(group->impl, work);
}

static cairn_status shm_wait_work(cairn_group *group, cairn_work *work) {
    return cairn__shm_wait(group->impl, work);
}

static cairn_status shm_progress(cairn_group *group) {
    return cairn__shm_poll(group->impl);
}

/* Number 0: nobody leaves creation before everybody has the control memory. */
static cairn_status first_barrier(struct cairn__shm *s) {
    cairn_work work = {.group = s->group, .request = {.kind = CAIRN__BARRIER}};
    cairn_status st = cairn__shm_post(s, &work);
    return st == CAIRN_OK ? cairn__shm_wait(s, &work) : st;
}

static cairn_status shm_create(cairn_group *group, const struct cairn__group_options *options) {
    struct cairn__shm *s = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*s), (void **)&s));
    group->impl = s;
    s->group = group;
    s->kernels = cairn__kernels_cpu(cairn__cpu_features());
    s->rank = group->rank;
    s->size = group->size;
    s->listener = -1;
    s->control_nbytes = bounces_offset(s->size) + (s->size > 1 ? (size_t)s->size * SHM_BOUNCE_NBYTES : 0);
    TRY(cairn__calloc((size_t)s->size, sizeof(*s->peers), (void **)&s->peers));
    for (int r = 0; r < s->size; r++) s->peers[r].fd = s->peers[r].process = -1;
    TRY(cairn__calloc((size_t)s->size, sizeof(*s->bufs), (void **)&s->bufs));
    cairn__shm_set_patience(s);
    if (s->size > 1) TRY(cairn__shm_meet(s, options));
    TRY(s->size == 1 ? private_control(s) : s->rank == 0 ? host_control(s) : join_control(s));
    TRY(first_barrier(s));
    if (s->listener >= 0) close(s->listener);
    s->listener = -1;
out:
    return st;
}

static void say_gone(struct cairn__shm *s, enum shm_gone how, const char *cause) {
    struct shm_lane *mine = shm_lane(s, s->rank);
    if (atomic_load(&mine->gone) != SHM_HERE) return;
    snprintf(mine->cause, sizeof(mine->cause), "%s", cause);
    atomic_store(&mine->gone, how);
    cairn__shm_notify(s);
}

static void shm_give_up(cairn_group *group, const char *cause) {
    say_gone(group->impl, SHM_GAVE_UP, cause);
}

static void unmap_segment(struct cairn__shm *s, struct shm_segment *g) {
    for (int r = 0; r < s->size && g->parts; r++) cairn__shm_unmap(g->parts[r], g->nbytes);
    cairn__free(g->parts);
    *g = (struct shm_segment){0};
}

static void shm_destroy(cairn_group *group) {
    struct cairn__shm *s = group->impl;
    if (!s) return;
    if (s->control) say_gone(s, SHM_LEFT, "");
    for (size_t i = 0; i < s->num_segments; i++) unmap_segment(s, &s->segments[i]);
    for (int r = 0; r < s->size && s->peers; r++) {
        if (s->peers[r].fd >= 0) close(s->peers[r].fd);
        if (s->peers[r].process >= 0) close(s->peers[r].process);
    }
    if (s->listener >= 0) close(s->listener);
    cairn__shm_unmap(s->control, s->control_nbytes);
    cairn__free(s->segments);
    cairn__free(s->peers);
    cairn__free(s->bufs);
    cairn__free(s);
    group->impl = NULL;
}

/* ---- group memory ---- */

/* Asking for more would not fail but wake the system's out-of-memory killer. The same on every rank. */
static cairn_status check_fits(const struct cairn__shm *s, size_t nbytes) {
    struct sysinfo info;
    if (sysinfo(&info) != 0) return CAIRN_OK;
    double room = (double)info.totalram * info.mem_unit;
    REQUIRE((double)nbytes * s->size <= room, CAIRN_ENOMEM,
            "group memory of %zu bytes on each of %d ranks is more than this machine's memory of %.0f bytes", nbytes,
            s->size, room);
    return CAIRN_OK;
}

static cairn_status take_segment(struct cairn__shm *s, struct shm_segment **out) {
    size_t i = 0;
    while (i < s->num_segments && s->segments[i].nbytes) i++;
    cairn_status st = cairn__grow((void **)&s->segments, &s->segments_capacity, i + 1, sizeof(*s->segments));
    if (st != CAIRN_OK) return st;
    if (i == s->num_segments) s->num_segments++;
    st = cairn__calloc((size_t)s->size, sizeof(void *), (void **)&s->segments[i].parts);
    if (st == CAIRN_OK) *out = &s->segments[i];
    return st;
}

/* This rank's own part; sent to all, even where there is none, because all wait for it. */
static cairn_status offer_part(struct cairn__shm *s, cairn_status st, struct shm_segment *g, size_t nbytes) {
    int fd = -1;
    if (st == CAIRN_OK) st = cairn__shm_create_memory(nbytes, &fd, &g->parts[s->rank]);
    for (int r = 0; r < s->size; r++) {
        cairn_status sent = r == s->rank ? CAIRN_OK : cairn__shm_send_memory(s, r, st, fd);
        if (sent != CAIRN_OK) {
            st = sent;
            break;
        }
    }
    if (fd >= 0) close(fd);
    return st;
}

/* *usable is cleared where some rank has no memory, with its reason as the last error. */
static cairn_status collect_parts(struct cairn__shm *s, struct shm_segment *g, size_t nbytes, cairn_status *usable) {
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank) continue;
        int fd = -1;
        cairn_status theirs = CAIRN_OK;
        cairn_status st = cairn__shm_receive_memory(s, r, &theirs, &fd);
        if (st != CAIRN_OK) return st;
        if (theirs == CAIRN_OK && *usable == CAIRN_OK) theirs = cairn__shm_map_memory(fd, nbytes, &g->parts[r]);
        if (theirs != CAIRN_OK && *usable == CAIRN_OK) *usable = theirs;
        if (fd >= 0) close(fd);
    }
    return CAIRN_OK;
}

/* Everyone has mapped everything, or nobody keeps anything. */
static cairn_status agree_on(struct cairn__shm *s, cairn_status usable) {
    struct cairn__request r = {.kind = CAIRN__AGREE, .found = usable != CAIRN_OK};
    uint32_t failed = 0;
    char reason[256];
    snprintf(reason, sizeof(reason), "%s", cairn_last_error());
    cairn_status st = cairn__group_run(s->group, &r, &failed);
    if (st != CAIRN_OK) return st;
    if (usable != CAIRN_OK) return cairn__fail(usable, "%s", reason);
    REQUIRE(!failed, CAIRN_ENOMEM, "another rank could not map the group's memory");
    return CAIRN_OK;
}

static bool is_deadly(cairn_status st) {
    return st == CAIRN_EPEER || st == CAIRN_ETIMEOUT;
}

static cairn_status share_segment(struct cairn__shm *s, cairn_status usable, struct shm_segment *g, size_t nbytes) {
    usable = offer_part(s, usable, g, nbytes);
    if (is_deadly(usable)) return usable;
    cairn_status st = collect_parts(s, g, nbytes, &usable);
    return st == CAIRN_OK ? agree_on(s, usable) : st;
}

static cairn_status shm_alloc(cairn_group *group, size_t nbytes, void **out) {
    struct cairn__shm *s = group->impl;
    struct shm_segment none = {0}, *g = &none;
    cairn_status st = CAIRN_OK;
    size_t rounded = whole_pages(nbytes);
    TRY(check_fits(s, rounded));
    TRY(cairn__group_run(group, &(struct cairn__request){.kind = CAIRN__ALLOC, .n = nbytes}, NULL));
    st = take_segment(s, &g);
    g->nbytes = st == CAIRN_OK ? rounded : 0;
    if (s->size > 1) {
        st = share_segment(s, st, g, rounded);
    } else if (st == CAIRN_OK) {
        st = cairn__shm_private_memory(rounded, &g->parts[0]);
    }
    if (st == CAIRN_OK) {
        *out = g->parts[s->rank];
    } else {
        unmap_segment(s, g);
    }
out:
    return st;
}

static cairn_status shm_free(cairn_group *group, void *memory) {
    struct cairn__shm *s = group->impl;
    size_t i = 0;
    while (i < s->num_segments && (!s->segments[i].nbytes || s->segments[i].parts[s->rank] != memory)) i++;
    REQUIRE(i < s->num_segments, CAIRN_EINVAL, "%p is no memory of this group; pass what cairn_group_alloc gave",
            memory);
    cairn_status st = cairn__group_run(group, &(struct cairn__request){.kind = CAIRN__FREE, .n = i + 1}, NULL);
    if (st == CAIRN_OK) unmap_segment(s, &s->segments[i]);
    return st;
}

const struct cairn__group_backend cairn__group_shm = {
    .name = "shm",
    .looks = true,
    .create = shm_create,
    .destroy = shm_destroy,
    .alloc = shm_alloc,
    .free = shm_free,
    .post = shm_post_work,
    .progress = shm_progress,
    .wait = shm_wait_work,
    .give_up = shm_give_up,
};
