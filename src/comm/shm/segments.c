/* Group memory: each rank has a part of every allocation, and every rank maps all parts. */
#include <stdio.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "comm/shm/shm.h"
#include "core/alloc.h"
#include "core/status.h"

enum { PAGE = 4096, SKEW = 9 * 64 };

/* Where in its file a rank's part begins. At the same place in a page the same element of eight arrays would fill one
 * set of a first-level cache: sums of eight arrays took half as long again. */
static size_t skew(const struct cairn__shm *s, int rank) {
    return s->size > 2 ? (size_t)rank * SKEW % PAGE : 0;
}

static size_t file_nbytes(const struct cairn__shm *s, size_t nbytes) {
    return nbytes + (s->size > 2 ? PAGE : 0);
}

struct shm_place cairn__shm_locate(const struct cairn__shm *s, const void *memory, size_t nbytes) {
    for (size_t i = 0; i < s->num_segments; i++) {
        const struct shm_segment *g = &s->segments[i];
        uintptr_t begin = g->nbytes ? (uintptr_t)g->parts[s->rank] : 0, at = (uintptr_t)memory;
        if (!begin || at < begin || at - begin > g->nbytes || nbytes > g->nbytes - (at - begin)) continue;
        if (s->by_address) return (struct shm_place){.segment = SHM_IN_GROUP, .offset = at};
        return (struct shm_place){.segment = (uint32_t)i + 1, .offset = at - begin};
    }
    if (s->by_address) return (struct shm_place){.segment = SHM_BY_ADDRESS, .offset = (uintptr_t)memory};
    return (struct shm_place){0};
}

static void unmap_segment(struct cairn__shm *s, struct shm_segment *g) {
    if (g->own) cairn__shm_free_parts(g->own);
    for (int r = 0; r < s->size && g->parts && !g->own; r++) {
        if (g->parts[r]) cairn__shm_unmap((char *)g->parts[r] - skew(s, r), file_nbytes(s, g->nbytes));
    }
    cairn__free(g->parts);
    *g = (struct shm_segment){0};
}

void cairn__shm_free_parts(struct shm_part *parts) {
    while (parts) {
        struct shm_part *p = parts;
        parts = p->next;
        cairn__shm_unmap(p->memory, p->nbytes);
        cairn__free(p);
    }
}

/* Another rank may still take a message from it. */
static void leave_part(struct cairn__shm *s, struct shm_segment *g) {
    struct shm_part *p = g->own;
    p->next = atomic_load(&s->control->left);
    while (!atomic_compare_exchange_weak(&s->control->left, &p->next, p)) {}
    cairn__free(g->parts);
}

void cairn__shm_free_all(struct cairn__shm *s) {
    for (size_t i = 0; i < s->num_segments; i++) {
        if (s->segments[i].own) leave_part(s, &s->segments[i]);
        else unmap_segment(s, &s->segments[i]);
    }
    cairn__free(s->segments);
}

/* A larger allocation would not fail but invoke the system's out-of-memory killer. The same on every rank. */
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
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&s->segments, &s->segments_capacity, i + 1, sizeof(*s->segments)));
    if (i == s->num_segments) s->num_segments++;
    TRY(cairn__calloc((size_t)s->size, sizeof(void *), (void **)&s->segments[i].parts));
    *out = &s->segments[i];
out:
    return st;
}

/* Makes this rank's part and sends it to all ranks, which wait for it; if there is none, sends the status. */
static cairn_status offer_part(struct cairn__shm *s, cairn_status st, struct shm_segment *g, size_t nbytes) {
    int fd = -1;
    void *file = NULL;
    if (st == CAIRN_OK) st = cairn__shm_create_memory(nbytes, nbytes, &fd, &file);
    if (st == CAIRN_OK) g->parts[s->rank] = (char *)file + skew(s, s->rank);
    for (int r = 0; r < s->size; r++) {
        cairn_status sent = r == s->rank ? CAIRN_OK : cairn__shm_send_memory(s, r, s->group->index, st, fd, NULL);
        if (sent != CAIRN_OK) {
            st = sent;
            break;
        }
    }
    if (fd >= 0) close(fd);
    return st;
}

/* If a rank has no memory, *usable is its status, and the last error its reason. */
static cairn_status collect_parts(struct cairn__shm *s, struct shm_segment *g, size_t nbytes, cairn_status *usable) {
    cairn_status st = CAIRN_OK;
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank) continue;
        int fd = -1;
        void *file = NULL;
        cairn_status theirs = CAIRN_OK;
        TRY(cairn__shm_receive_memory(s, r, &theirs, &fd, &file));
        if (theirs == CAIRN_OK && *usable == CAIRN_OK) theirs = cairn__shm_map_memory(fd, nbytes, &file);
        if (file) g->parts[r] = (char *)file + skew(s, r);
        if (theirs != CAIRN_OK && *usable == CAIRN_OK) *usable = theirs;
        if (fd >= 0) close(fd);
    }
out:
    return st;
}

/* All ranks have all parts that they need, or none keeps any. */
static cairn_status agree_on(struct cairn__shm *s, cairn_status usable) {
    struct cairn__request r = {.call = {.kind = CAIRN__AGREE}, .found = usable != CAIRN_OK};
    uint32_t failed = 0;
    char reason[256];
    snprintf(reason, sizeof(reason), "%s", cairn_last_error());
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_run(s->group, &r, &failed));
    if (usable != CAIRN_OK) return cairn__fail(usable, "%s", reason);
    REQUIRE(!failed, CAIRN_ENOMEM, "another rank could not map the group's memory");
out:
    return st;
}

static cairn_status share_segment(struct cairn__shm *s, cairn_status usable, struct shm_segment *g, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    usable = offer_part(s, usable, g, file_nbytes(s, nbytes));
    if (usable == CAIRN_EPEER || usable == CAIRN_ETIMEOUT) return usable;
    TRY(collect_parts(s, g, file_nbytes(s, nbytes), &usable));
    TRY(agree_on(s, usable));
out:
    return st;
}

/* Where the others find it by its address. */
static cairn_status make_part(struct cairn__shm *s, cairn_status usable, struct shm_segment *g, size_t nbytes) {
    const size_t whole = file_nbytes(s, nbytes);
    if (usable == CAIRN_OK) usable = cairn__calloc(1, sizeof(*g->own), (void **)&g->own);
    if (usable == CAIRN_OK) usable = cairn__shm_private_memory(whole, whole, &g->own->memory);
    if (usable == CAIRN_OK) {
        g->own->nbytes = whole;
        g->parts[s->rank] = (char *)g->own->memory + skew(s, s->rank);
    }
    return agree_on(s, usable);
}

cairn_status cairn__shm_alloc(cairn_group *group, size_t nbytes, void **out) {
    struct cairn__shm *s = group->impl;
    struct shm_segment none = {0}, *g = &none;
    cairn_status st = CAIRN_OK;
    size_t rounded = nbytes ? (nbytes + PAGE - 1) / PAGE * PAGE : PAGE;
    TRY(check_fits(s, rounded));
    TRY(cairn__group_run(group, &(struct cairn__request){.call = {.kind = CAIRN__ALLOC, .n = nbytes}}, NULL));
    st = take_segment(s, &g);
    g->nbytes = st == CAIRN_OK ? rounded : 0;
    if (s->by_address) {
        st = make_part(s, st, g, rounded);
    } else if (s->size > 1) {
        st = share_segment(s, st, g, rounded);
    } else if (st == CAIRN_OK) {
        st = cairn__shm_private_memory(rounded, rounded, &g->parts[0]);
    }
    if (st == CAIRN_OK) {
        *out = g->parts[s->rank];
    } else {
        unmap_segment(s, g);
    }
out:
    return st;
}

cairn_status cairn__shm_free(cairn_group *group, void *memory) {
    struct cairn__shm *s = group->impl;
    size_t i = 0;
    while (i < s->num_segments && (!s->segments[i].nbytes || s->segments[i].parts[s->rank] != memory)) i++;
    REQUIRE(i < s->num_segments, CAIRN_EINVAL, "%p is not memory of this group; pass what cairn_group_alloc returned",
            memory);
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_run(group, &(struct cairn__request){.call = {.kind = CAIRN__FREE, .n = i + 1}}, NULL));
    unmap_segment(s, &s->segments[i]);
out:
    return st;
}
