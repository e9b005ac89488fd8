/* Peers that died, gave up or left: how a rank detects and reports them. */
#include <poll.h>

#include "comm/shm/shm.h"
#include "core/status.h"

void cairn__shm_mark_ended(struct cairn__shm *s) {
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank || s->peers[r].dead) continue;
        struct pollfd p[] = {{.fd = s->peers[r].fd, .events = POLLRDHUP},
                             {.fd = s->peers[r].process, .events = POLLIN}};
        if (poll(p, 2, 0) > 0) s->peers[r].dead = true;
    }
}

enum shm_gone cairn__shm_gone(const struct cairn__shm *s, int rank) {
    return s->control ? (enum shm_gone)atomic_load(&shm_lane(s, rank)->gone) : SHM_HERE;
}

int cairn__shm_find_gone(struct cairn__shm *s) {
    int r = 0;
    cairn__shm_mark_ended(s);
    while (r < s->size && (r == s->rank || (!s->peers[r].dead && cairn__shm_gone(s, r) == SHM_HERE))) r++;
    return r < s->size ? r : -1;
}

cairn_status cairn__shm_fail_gone(const struct cairn__shm *s, int rank, const char *did) {
    char who[96];
    cairn__group_name_rank(s->group, rank, who, sizeof(who));
    const int pid = s->peers[rank].pid;
    const char *const cause = s->control ? shm_lane(s, rank)->cause : "";
    switch (cairn__shm_gone(s, rank)) {
    case SHM_ABORTED:
        return cairn__fail(CAIRN_EPEER, "%s aborted the group while rank %d %s", who, s->rank, did);
    case SHM_GAVE_UP:
        return cairn__fail(CAIRN_EPEER, "%s gave up while rank %d %s: %.*s", who, s->rank, did, SHM_CAUSE_NBYTES,
                           cause);
    case SHM_LEFT:
        return cairn__fail(CAIRN_EPEER, "%s (pid %d) left the group while rank %d %s%s%.*s", who, pid, s->rank, did,
                           cause[0] ? "; a group of it had failed before: " : "", SHM_CAUSE_NBYTES, cause);
    default:
        return cairn__fail(CAIRN_EPEER, "%s (pid %d) ended while rank %d %s", who, pid, s->rank, did);
    }
}
