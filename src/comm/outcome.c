/* Agreement on status: whether a call succeeded on every rank. */
#include <stdio.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/status.h"
#include "kernels/kernels.h"

struct reason {
    char text[256];
};

/* On the stack, since the failure may be that memory ran out. */
static cairn_status fail_as(cairn_group *group, const char *call, int rank) {
    struct reason all[CAIRN__MAX_RANKS], mine = {{0}};
    snprintf(mine.text, sizeof(mine.text), "%.255s", cairn_last_error());
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_exchange(group, all, &mine, sizeof(mine)));
    TRY(cairn__fail(CAIRN_EPEER, "%s: it failed on rank %d: %.255s", call, rank, all[rank].text));
out:
    return st;
}

cairn_status cairn__group_agree_on_status(cairn_group *group, const char *call, cairn_status status) {
    int32_t all[CAIRN__MAX_RANKS], mine = (int32_t)status;
    char own[1024];
    int rank = 0;
    if (cairn_group_size(group) == 1) return status;
    snprintf(own, sizeof(own), "%s", cairn_last_error());
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_exchange(group, all, &mine, sizeof(mine)));
    while (rank < cairn_group_size(group) && all[rank] == CAIRN_OK) rank++;
    if (rank == cairn_group_size(group)) return CAIRN_OK;
    st = fail_as(group, call, rank);
    if (status != CAIRN_OK) st = cairn__fail(status, "%s", own);
out:
    return st;
}

/* Every rank gets memory, or all get an error. */
cairn_status cairn__group_make_room(cairn_group *group, const char *call, size_t nbytes, void **out) {
    return cairn__group_agree_on_status(group, call, cairn__calloc((size_t)cairn_group_size(group), nbytes, out));
}
