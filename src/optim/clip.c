/* Calls that read or change gradients between backward and step: clipping and unscaling. */
#include <math.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "optim/optim.h"

static struct cairn_device *device_of(const struct cairn_optimizer *o) {
    return o->env->device;
}

/* ---- by norm ---- */

static void end_clip(struct cairn_optimizer *o) {
    const float one = 1.0f;
    if (o->clipped) device_of(o)->passes->store(device_of(o), &o->state->clip, &one, sizeof(one));
    o->clipped = false;
}

void cairn__optimizer_forget_stale(cairn_optimizer *o) {
    if (!o->clipped && !o->noted) return;
    for (size_t i = 0; i < o->count; i++) {
        if (cairn__grad_is_noted(o->arrays.params[i]->gradient)) return;
    }
    end_clip(o);
    if (o->noted) cairn__optimizer_lower_skip(o);
}

static bool has_unclipped(const struct cairn_optimizer *o) {
    for (size_t i = 0; i < o->count; i++) {
        const struct cairn__grad *g = o->arrays.params[i]->gradient;
        if (cairn__grad_exists(g) && !cairn__grad_is_clipped(g)) return true;
    }
    return false;
}

/* state->clip applies to every gradient of the optimizer. */
cairn_status cairn__optimizer_part_clip(cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    if (!o->clipped || !has_unclipped(o)) return CAIRN_OK;
    for (size_t i = 0; i < o->count; i++) {
        struct cairn__grad *g = o->arrays.params[i]->gradient;
        if (cairn__grad_is_clipped(g)) TRY(cairn__grad_unscale(g));
    }
    end_clip(o);
out:
    return st;
}

static bool accumulates(const struct cairn_optimizer *o) {
    for (size_t i = 0; i < o->count; i++) {
        if (cairn__grad_is_accumulated(o->arrays.params[i]->gradient)) return true;
    }
    return false;
}

/* If some gradients are each rank's own (ddp_options.ignored), so is the norm, and clipping by it makes all gradients
 * each rank's own. */
static void note_own_norm(const struct cairn_optimizer *o) {
    if (cairn__params_entry_owner(o->arrays.params, o->count) == CAIRN__ENTRY_SHARED) return;
    for (size_t i = 0; i < o->num_sets; i++) o->sets[i]->ranks_differ |= o->sets[i]->listener != NULL;
}

/* ---- partners ---- */

/* Gradients that another partner counts are clipped and checked like the others, but not added to the norm. */
static void clip_uncounted(struct cairn_optimizer *o) {
    struct cairn_device *d = device_of(o);
    for (size_t i = 0; o->partners && i < o->count; i++) {
        const struct cairn__param *p = o->arrays.params[i];
        if (o->arrays.keys[i] < 0 || o->partners->counts(o->partners->ctx, p)) continue;
        const struct cairn__item item = {.n = o->arrays.items[i].n,
                                         .x = o->arrays.items[i].grad,
                                         .found = cairn__grad_set_clip(p->gradient, &o->state->clip)};
        d->passes->l2norm(d, &item, 1, (cairn_dtype)o->arrays.keys[i], o->arrays.items[i].factor, &o->norms[o->count],
                          NULL, NULL);
        o->arrays.keys[i] = -2;
    }
}

/* *norms [*count] is host memory. Each rank has its own first `theirs` norms: replaces them with those of all ranks, in
 * rank order. */
static cairn_status gather_from(cairn_status (*gather)(void *ctx, void *all, const void *mine, size_t nbytes),
                                void *ctx, int size, double **norms, size_t theirs, size_t *count) {
    uint64_t counts[CAIRN__MAX_RANKS], mine = theirs;
    double *all = NULL, *result = NULL;
    size_t room = 0, listed = 0;
    cairn_status st = CAIRN_OK;
    TRY(gather(ctx, counts, &mine, sizeof(mine)));
    for (int r = 0; r < size; r++) room = counts[r] > room ? (size_t)counts[r] : room;
    TRY(cairn__calloc((size_t)(size + 1) * room + 1, sizeof(all[0]), (void **)&all));
    TRY(cairn__calloc((size_t)size * room + *count + 1, sizeof(result[0]), (void **)&result));
    double *const own = all + (size_t)size * room;
    for (size_t k = 0; k < theirs; k++) own[k] = (*norms)[k];
    TRY(gather(ctx, all, own, room * sizeof(own[0])));
    for (int r = 0; r < size; r++) {
        for (size_t k = 0; k < counts[r]; k++) result[listed++] = all[(size_t)r * room + k];
    }
    for (size_t k = theirs; k < *count; k++) result[listed++] = (*norms)[k];
    cairn__free(*norms);
    *norms = result;
    *count = listed;
    result = NULL;
out:
    cairn__free(all);
    cairn__free(result);
    return st;
}

/* Gathers the norms of lists of other ranks' shards, and of all lists of partners, so that all ranks sum the squares in
 * the same order. The first `sharded` lists in o->norms are lists of shards. *norms [*count] is device memory. */
static cairn_status gather_norms(struct cairn_optimizer *o, size_t sharded, const double **norms, size_t *count) {
    const struct cairn__partners *partners = o->partners;
    const struct cairn__sharers *sharers = cairn__optimizer_sharers(o);
    double *all = NULL;
    cairn_status st = CAIRN_OK;
    if (!partners && sharded == 0) return CAIRN_OK;
    TRY(cairn__calloc(*count + 1, sizeof(all[0]), (void **)&all));
    TRY(cairn__device_download(device_of(o), all, o->norms, *count * sizeof(all[0])));
    if (sharded) TRY(gather_from(sharers->gather, sharers->ctx, sharers->size, &all, sharded, count));
    if (partners) TRY(gather_from(partners->gather, partners->ctx, partners->size, &all, *count, count));
    const size_t room = *count + 1;
    if (room > o->partner_norms_room) {
        cairn__device_free(device_of(o), o->partner_norms);
        o->partner_norms = NULL;
        o->partner_norms_room = 0;
        TRY(cairn__device_alloc(device_of(o), CAIRN__HOLDS_STATE, room * sizeof(double), (void **)&o->partner_norms));
        o->partner_norms_room = room;
    }
    TRY(cairn__device_upload(device_of(o), o->partner_norms, all, *count * sizeof(all[0])));
    *norms = o->partner_norms;
out:
    cairn__free(all);
    return st;
}

/* Checks that this rank makes by itself. */
static cairn_status check_clip(const struct cairn_optimizer *o, double max_norm, const double *norm) {
    struct cairn_device *d = device_of(o);
    cairn_status st = CAIRN_OK;
    REQUIRE(max_norm > 0, CAIRN_EINVAL, "cairn_clip_grad_norm: max_norm is %g; it must be above 0", max_norm);
    if (norm) TRY(cairn__device_refuse_recording(d, "the norm is not known yet; pass NULL for norm"));
    if (o->partners || cairn__optimizer_sharers(o))
        TRY(cairn__device_refuse_recording(d, "the ranks form the norm of all together on the host; call the step "
                                              "instead of recording it"));
    TRY(cairn__params_check_settled("cairn_clip_grad_norm", o->arrays.params, o->count));
out:
    return st;
}

/* Computes the norm before resolving, so that the norm's pass also checks for overflow. Accumulated sums are checked
 * before, because their norm would not say which backward overflowed. */
cairn_status cairn_clip_grad_norm(cairn_optimizer *optimizer, double max_norm, double *norm) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_clip_grad_norm: optimizer is NULL");
    cairn_status st = CAIRN_OK;
    struct cairn_optimizer *o = optimizer;
    struct cairn_device *d = device_of(o);
    size_t lists = 0, sharded = 0;
    st = cairn__optimizer_check_sharers(o, "cairn_clip_grad_norm");
    if (st == CAIRN_OK) st = cairn__optimizer_agree(o, "cairn_clip_grad_norm", check_clip(o, max_norm, norm));
    if (st != CAIRN_OK) return st;
    TRY(cairn__params_use_unsynced(o->arrays.params, o->count));
    cairn__optimizer_forget_stale(o);
    TRY(cairn__optimizer_part_clip(o));
    if (accumulates(o)) TRY(cairn__env_resolve(o->env));
    TRY(cairn__optimizer_read_grads(o));
    clip_uncounted(o);
    for (int of_shards = 1; of_shards >= 0; of_shards--) { /* lists of shards first */
        for (size_t i = 0; i < o->count; i++) {
            if (o->arrays.keys[i] < 0 || o->arrays.params[i]->is_sharded != (of_shards == 1)) continue;
            (void)cairn__optimizer_norm_list(o, i, 0, &o->norms[lists++], &o->state->clip);
        }
        if (of_shards) sharded = lists;
    }
    TRY(cairn__env_resolve(o->env));
    const double *norms = o->norms;
    TRY(gather_norms(o, sharded, &norms, &lists));
    d->passes->clip(d, norms, lists, max_norm, o->state, &o->norms[o->count]);
    o->clipped = true;
    note_own_norm(o);
    if (norm) TRY(cairn__device_download(d, norm, &o->norms[o->count], sizeof(*norm)));
    if (norm) cairn__trace_scalar("optim", "grad_norm", (int64_t)o->last_read + 1, *norm);
out:
    return cairn__optimizer_end_sharers(o, st);
}

/* Called after the guard's checks, so it checks nothing, and marks no gradient as clipped. */
cairn_status cairn__optimizer_clip_step(cairn_optimizer *o, double max_norm) {
    cairn_status st = CAIRN_OK;
    size_t done = 0, sharded = 0;
    if (o->partners || cairn__optimizer_sharers(o))
        TRY(cairn__device_refuse_recording(device_of(o), "the step clips by a norm that ranks form together on the "
                                                         "host; call the step instead of recording it"));
    TRY(cairn__optimizer_read_grads(o));
    for (size_t i = 0; o->partners && i < o->count; i++) {
        if (!o->partners->counts(o->partners->ctx, o->arrays.params[i])) o->arrays.keys[i] = -1;
    }
    for (int of_shards = 1; of_shards >= 0; of_shards--) {
        for (size_t i = 0; i < o->count; i++) {
            if (o->arrays.keys[i] < 0 || o->arrays.params[i]->is_sharded != (of_shards == 1)) continue;
            done = cairn__optimizer_norm_list(o, i, done, &o->norms[o->count], NULL);
        }
        if (of_shards) sharded = done;
    }
    const double *norms = o->norms;
    TRY(gather_norms(o, sharded, &norms, &done));
    device_of(o)->passes->clip(device_of(o), norms, done, max_norm, o->state, &o->norms[o->count]);
    o->clipped = true;
    note_own_norm(o);
out:
    return st;
}

/* ---- unscaled gradients ---- */

cairn_status cairn__optimizer_unscale(cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__params_check_settled("unscaling", o->arrays.params, o->count));
    TRY(cairn__params_use_unsynced(o->arrays.params, o->count));
    TRY(cairn__env_resolve(o->env));
    cairn__optimizer_forget_stale(o);
    if (o->guard.before) cairn__optimizer_check(o); /* checks gradients of no scaled loss before they change */
    for (size_t i = 0; i < o->count; i++) TRY(cairn__grad_unscale(o->arrays.params[i]->gradient));
    end_clip(o);
out:
    return st;
}

cairn_status cairn_clip_grad_value(cairn_optimizer *optimizer, double limit) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_clip_grad_value: optimizer is NULL");
    REQUIRE(limit > 0, CAIRN_EINVAL, "cairn_clip_grad_value: limit is %g; it must be above 0", limit);
    cairn_status st = CAIRN_OK;
    struct cairn_optimizer *o = optimizer;
    size_t listed = 0;
    TRY(cairn__optimizer_unscale(o));
    for (size_t i = 0; i < o->count; i++) {
        float *grad = cairn__grad_unscaled_memory(o->arrays.params[i]->gradient);
        const size_t n = cairn__param_shard(o->arrays.params[i]).n;
        if (grad) o->arrays.plain[listed++] = (struct cairn__item){.n = n, .dst = grad, .x = grad};
    }
    if (listed) device_of(o)->passes->clamp(device_of(o), o->arrays.plain, listed, (float)limit);
out:
    return st;
}

cairn_status cairn_optimizer_masters_sized(size_t param_nbytes, cairn_optimizer *optimizer, cairn_param *out,
                                           size_t count) {
    REQUIRE(optimizer && (out || count == 0), CAIRN_EINVAL, "cairn_optimizer_masters: optimizer and out must be set");
    REQUIRE(count == optimizer->count, CAIRN_EINVAL,
            "cairn_optimizer_masters: count is %zu, but the optimizer has %zu parameters "
            "(cairn_optimizer_num_params)",
            count, optimizer->count);
    cairn_status st = CAIRN_OK;
    TRY(cairn__element_check(param_nbytes, "cairn_param"));
    TRY(cairn__params_check_whole("cairn_optimizer_masters", optimizer->arrays.params, count));
    TRY(cairn__optimizer_unscale(optimizer));
    for (size_t i = 0; i < count; i++) {
        const struct cairn__param *p = optimizer->arrays.params[i];
        cairn_param entry;
        cairn__param_describe(p, &entry);
        if (p->master) {
            entry.data = p->master;
            entry.dtype = CAIRN_F32;
        }
        entry.grad = cairn__grad_unscaled_memory(p->gradient);
        cairn__element_write(out, param_nbytes, i, &entry, sizeof(entry));
    }
out:
    return st;
}

cairn_status(cairn_optimizer_masters)(cairn_optimizer *optimizer, cairn_param *out, size_t count) {
    return cairn_optimizer_masters_sized(CAIRN__PARAM_0_8, optimizer, out, count);
}
