/* Sums the replicas' gradients: on the CPU in one multi-threaded pass per parameter, which reads the gradients of all
 * replicas; on a GPU in one pass per replica, over the gradients of all parameters. */
#include <string.h>

#include "core/cpu.h"
#include "core/parallel.h"
#include "core/status.h"
#include "kernels/kernels.h"
#include "parallel/data_parallel.h"

cairn_status cairn__replica_room(struct cairn_device *d, struct cairn__replica_room *room, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    if (room->nbytes >= nbytes) return CAIRN_OK;
    cairn__device_free(d, room->data);
    *room = (struct cairn__replica_room){NULL, 0};
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_GRADS, nbytes, &room->data));
    room->nbytes = nbytes;
out:
    return st;
}

static void clear(struct cairn_device *d, cairn_dtype dtype, void *to, size_t n) {
    d->passes->fill(d, dtype, to, n, 0);
}

/* ---- on the CPU ---- */

/* Arrays of one type, which are summed in f32 in their order; the sum is rounded once. */
struct sum {
    cairn__reduce_fn reduce;
    const void *from[CAIRN__MAX_RANKS];
    int count;
    size_t nbytes; /* of an element */
    char *to;
};

enum { GRAIN = 65536 };

static void sum_piece(void *ctx, size_t begin, size_t end) {
    const struct sum *s = ctx;
    const void *from[CAIRN__MAX_RANKS];
    void *to = s->to + begin * s->nbytes;
    uint32_t found = 0;
    for (int i = 0; i < s->count; i++) from[i] = (const char *)s->from[i] + begin * s->nbytes;
    s->reduce(&to, 1, from, s->count, end - begin, 1.0f, &found);
}

static void sum_here(const struct cairn_data_parallel *dp, const struct cairn__scattered *f, size_t index) {
    const struct cairn__param *p = dp->set->params[index];
    struct sum s = {.reduce = cairn__kernels_cpu(cairn__cpu_features())->reduce[CAIRN__REDUCE_SUM][p->dtype],
                    .nbytes = cairn_dtype_nbytes(p->dtype),
                    .to = dp->slots[index].to};
    for (int r = 0; r < f->used; r++) {
        if (f->parts[r].grads[index]) s.from[s.count++] = f->parts[r].grads[index];
    }
    if (p->n == 0) return;
    if (s.count == 0) clear(dp->env->device, p->dtype, s.to, p->n);
    if (s.count == 1) memcpy(s.to, s.from[0], p->n * s.nbytes);
    if (s.count > 1) cairn__parallel_for(p->n, GRAIN, sum_piece, &s);
}

/* ---- on a GPU ---- */

/* Whether one of the replicas [begin, end) has a gradient of the parameter. */
static bool has_any(const struct cairn__scattered *f, size_t index, int begin, int end) {
    for (int r = begin; r < end; r++) {
        if (f->parts[r].grads[index]) return true;
    }
    return false;
}

/* Gives every half gradient memory for its f32 sum. */
static cairn_status place_sums(struct cairn_data_parallel *dp) {
    cairn_status st = CAIRN_OK;
    size_t nbytes = 0;
    for (size_t i = 0; i < dp->set->count; i++) {
        const struct cairn__param *p = dp->set->params[i];
        if (dp->slots[i].to && p->dtype != CAIRN_F32) nbytes += (p->n * sizeof(float) + 63) / 64 * 64;
    }
    TRY(cairn__replica_room(dp->env->device, &dp->sums, nbytes));
    char *next = dp->sums.data;
    for (size_t i = 0; i < dp->set->count; i++) {
        const struct cairn__param *p = dp->set->params[i];
        struct cairn__replica_slot *slot = &dp->slots[i];
        slot->sum = slot->to;
        if (!slot->to || p->dtype == CAIRN_F32) continue;
        slot->sum = (float *)(void *)next;
        next += (p->n * sizeof(float) + 63) / 64 * 64;
    }
out:
    return st;
}

/* Adds gradients of replica r and of one type to the sums. is_first selects the parameters whose first gradient is r's,
 * which starts the sum; is_last those whose last gradient is r's, which completes the sum into the slot. */
static void add_replica(const struct cairn_data_parallel *dp, const struct cairn__scattered *f, int r,
                        cairn_dtype dtype, bool is_first, bool is_last) {
    struct cairn_device *d = dp->env->device;
    const cairn_dtype to = is_last ? dtype : CAIRN_F32;
    size_t count = 0;
    for (size_t i = 0; i < dp->set->count; i++) {
        const struct cairn__param *p = dp->set->params[i];
        const struct cairn__replica_slot *slot = &dp->slots[i];
        if (!slot->to || !f->parts[r].grads[i] || p->dtype != dtype) continue;
        if (has_any(f, i, 0, r) == is_first || has_any(f, i, r + 1, f->used) == is_last) continue;
        dp->items[count++] = (struct cairn__item){.n = p->n,
                                                  .dst = is_last ? slot->to : slot->sum,
                                                  .x = f->parts[r].grads[i],
                                                  .y = slot->sum};
    }
    if (count == 0) return;
    if (is_first) d->passes->cast(d, dp->items, count, to, dtype);
    else d->passes->axpby(d, dp->items, count, to, dtype, NULL, 1.0f, NULL);
}

static cairn_status sum_there(struct cairn_data_parallel *dp, const struct cairn__scattered *f) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    cairn_status st = CAIRN_OK;
    TRY(place_sums(dp));
    for (int r = 0; r < f->used; r++) {
        for (int t = 0; t < 3; t++) {
            for (int k = 0; k < 4; k++) add_replica(dp, f, r, types[t], k & 1, k & 2);
        }
    }
    for (size_t i = 0; i < dp->set->count; i++) {
        const struct cairn__param *p = dp->set->params[i];
        if (dp->slots[i].to && !has_any(f, i, 0, f->used)) clear(dp->env->device, p->dtype, dp->slots[i].to, p->n);
    }
out:
    return st;
}

cairn_status cairn__replicas_sum(struct cairn_data_parallel *dp, const struct cairn__scattered *f) {
    if (!cairn__is_on_host(dp->env->device)) return sum_there(dp, f);
    for (size_t i = 0; i < dp->set->count; i++) {
        if (dp->slots[i].to) sum_here(dp, f, i);
    }
    return CAIRN_OK;
}
