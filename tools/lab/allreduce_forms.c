#include "allreduce_forms.h"

#include <string.h>

#include "core/status.h"

const char *lab_form_name(enum lab_form_of_allreduce form) {
    static const char *const names[] = {[LAB_FORM_ALLREDUCE] = "all-reduce",
                                        [LAB_FORM_REDUCE_BROADCAST] = "reduce + broadcast",
                                        [LAB_FORM_ALLTOALL] = "all-to-all",
                                        [LAB_FORM_RING] = "ring"};
    return names[form];
}

static void add(float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] += y[i];
}

static cairn_status by_reduce(cairn_group *group, float *x, size_t n) {
    cairn_status st = CAIRN_OK;
    TRY(cairn_reduce(group, x, x, n, CAIRN_F32, CAIRN_SUM, 0, NULL));
    TRY(cairn_broadcast(group, x, n, CAIRN_F32, 0, NULL));
out:
    return st;
}

static cairn_status by_alltoall(cairn_group *group, float *x, float *room, size_t n) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const size_t part = n / (size_t)p;
    cairn_status st = CAIRN_OK;
    TRY(cairn_alltoall(group, room, x, part, CAIRN_F32, NULL));
    for (int r = 1; r < p; r++) add(room, room + (size_t)r * part, part);
    memcpy(x + (size_t)rank * part, room, part * sizeof(*x));
    TRY(cairn_allgather(group, x, x + (size_t)rank * part, part, CAIRN_F32, NULL));
out:
    return st;
}

/* Sends `from_part` to the next rank and receives a part of the previous rank into `to`. */
static cairn_status pass_on(cairn_group *group, const float *from_part, float *to, size_t n) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    cairn_work *sent = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn_send(group, from_part, n, CAIRN_F32, (rank + 1) % p, &sent));
    TRY(cairn_recv(group, to, n, CAIRN_F32, (rank + p - 1) % p, NULL));
    TRY(cairn_work_wait(&sent));
out:
    return st;
}

static cairn_status by_ring(cairn_group *group, float *x, float *room, size_t n) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const size_t part = n / (size_t)p;
    cairn_status st = CAIRN_OK;
    for (int hop = 0; hop < p - 1; hop++) { /* the last hop completes the sum of part rank + 1 */
        float *mine = x + (size_t)((rank - hop + p) % p) * part, *next = x + (size_t)((rank - hop - 1 + p) % p) * part;
        TRY(pass_on(group, mine, room, part));
        add(next, room, part);
    }
    for (int hop = 0; hop < p - 1; hop++) {
        float *mine = x + (size_t)((rank + 1 - hop + p) % p) * part, *next = x + (size_t)((rank - hop + p) % p) * part;
        TRY(pass_on(group, mine, next, part));
    }
out:
    return st;
}

cairn_status lab_allreduce_by(enum lab_form_of_allreduce form, cairn_group *group, float *x, float *room, size_t n) {
    REQUIRE(n % (size_t)cairn_group_size(group) == 0, CAIRN_EINVAL, "%zu elements do not divide by %d ranks", n,
            cairn_group_size(group));
    switch (form) {
    case LAB_FORM_REDUCE_BROADCAST:
        return by_reduce(group, x, n);
    case LAB_FORM_ALLTOALL:
        return by_alltoall(group, x, room, n);
    case LAB_FORM_RING:
        return by_ring(group, x, room, n);
    default:
        return cairn_allreduce(group, x, n, CAIRN_F32, CAIRN_SUM, NULL);
    }
}
