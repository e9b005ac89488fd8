/* Guards. Before a step is queued, its guard checks the gradients that no scaled loss has checked. The scalers of the
 * losses since the last step are updated once, by the first step after them. A skipped step is logged when its report
 * has been read. */
#include "guard.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"
#include "fp8_casts.h"
#include "nn/hooks.h"

/* ---- checking for overflow ---- */

void cairn__guard_add_loss(struct cairn__amp_guard *g, int loss_id, bool is_unsynced, int micro_batch) {
    g->losses |= UINT64_C(1) << loss_id;
    g->micro_batch = micro_batch ? micro_batch : g->micro_batch + !is_unsynced;
}

bool cairn__guard_is_unsynced(const struct cairn__amp_guard *g) {
    size_t count = 0;
    struct cairn_param_set *const *sets = cairn__optimizer_sets(g->optimizer, &count);
    for (size_t i = 0; i < count; i++) {
        if (!sets[i]->unsynced) return false;
    }
    return count > 0;
}

static uint32_t micro_batch_of(const struct cairn__amp_guard *g) {
    return g->micro_batch ? (uint32_t)g->micro_batch : 1;
}

bool cairn__guard_check(struct cairn__amp_guard *g, uint32_t *const *raises, size_t num_raises) {
    cairn__optimizer_check(g->optimizer);
    return cairn__optimizer_take_flags(g->optimizer, micro_batch_of(g), raises, num_raises);
}

void cairn__guard_check_all(struct cairn__amp_guard *g, uint32_t *const *raises, size_t num_raises) {
    (void)cairn__guard_check(g, raises, num_raises);
    (void)cairn__optimizer_take_sums(g->optimizer, micro_batch_of(g), raises, num_raises);
}

/* Fails between begin and end of a scaled loss, and for a scaler used explicitly, which cairn_step does not update. */
static cairn_status prepare(const struct cairn__amp_guard *g) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__optimizer_prepare(g->optimizer));
    REQUIRE(!g->open || !*g->open, CAIRN_ESTATE,
            "cairn_step was called between amp_scale_loss and amp_scale_loss_end; call amp_scale_loss_end first");
    if (!g->owner || g->is_step_explicit) return CAIRN_OK;
    for (int id = 0; id < g->num_scalers; id++) {
        const amp_scaler *s = g->scalers[id];
        const bool may_lead_here = !g->losses || g->losses >> id & 1;
        REQUIRE(!(s->is_explicit && s->pending && may_lead_here), CAIRN_ESTATE,
                "cairn_step: loss scaler %d was used with amp_scaler_scale; call amp_scaler_step instead of "
                "cairn_step, and amp_scaler_update after all optimizers",
                id);
    }
out:
    return st;
}

static cairn_status before(void *ctx, struct cairn__step_end *end, bool *may) {
    struct cairn__amp_guard *g = ctx;
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__optimizer_agree(g->optimizer, "cairn_step", prepare(g)));
    *may = true;
    uint32_t *const skip = cairn__optimizer_skip(g->optimizer);
    /* Checks gradients that no scaled loss has checked, and accumulated sums. An overflow found here reaches no
     * scaler. */
    if (g->skips) cairn__guard_check_all(g, &skip, 1);
    g->knows_nonfinite_ranks = false;
    if (g->partners_say) g->partners_say[0] = '\0';
    cairn__found_end(&g->partners_found);
    g->nonfinite_ranks = (struct cairn__ranks){{0}};
    if (g->agrees) TRY(cairn__guard_agree(g));
    /* Before partners agree: of this optimizer's own overflow alone. */
    if (g->skips) TRY(cairn__guard_find_nonfinite_ranks(g));
    if (g->skips) TRY(cairn__guard_unite_shards(g));
    if (g->skips && cairn__optimizer_partners(g->optimizer)) TRY(cairn__guard_agree_with_partners(g));
    TRY(cairn__guard_count(g));
    /* The end of the step updates the scalers of the losses since the last step, unless another optimizer's step has
     * done so (then none is pending). The step's report names one of them. */
    for (int id = 0; id < g->num_scalers; id++) {
        amp_scaler *scaler = g->scalers[id];
        if (!(g->losses >> id & 1) || scaler->is_explicit) continue;
        end->scalers[end->num_scalers] = scaler->state;
        end->scaler_reports[end->num_scalers++] = scaler->pending ? scaler->reports : NULL;
        if (!scaler->pending) continue;
        cairn__scaler_leave_update(scaler);
        scaler->logs_updates = false;
    }
    if (g->fp8) TRY(cairn__fp8_casts_update(g->fp8));
    g->losses = 0;
    g->micro_batch = 0;
    g->checked_late = g->checks_late;
    g->checks_late = false;
out:
    cairn__trace("amp", "before_step", 0, 0, begin_ns);
    return st;
}

/* ---- reports ---- */

/* "weight (2 inf, 1 nan of 512)" */
static int format_one(const struct cairn__param *p, const struct cairn__overflow *o, char *text, size_t nbytes) {
    char infs[32] = "", nans[32] = "";
    if (o->infs) snprintf(infs, sizeof(infs), "%" PRIu32 " inf", o->infs);
    if (o->nans) snprintf(nans, sizeof(nans), "%s%" PRIu32 " nan", o->infs ? ", " : "", o->nans);
    if (!o->infs && !o->nans) return snprintf(text, nbytes, "%.160s", p->name);
    return snprintf(text, nbytes, "%.160s (%s%s of %zu)", p->name, infs, nans, p->n);
}

void cairn__guard_names(const struct cairn__amp_guard *g, const struct cairn__overflow *overflows, char *text,
                        size_t nbytes) {
    enum { ROOM_FOR_REST = 32 };
    struct cairn__param *const *params = cairn__optimizer_param_list(g->optimizer);
    size_t used = 0, left_out = 0;
    text[0] = '\0';
    for (size_t i = 0; i < cairn_optimizer_num_params(g->optimizer); i++) {
        char one[256];
        if (!overflows[i].micro_batch) continue;
        const size_t length = (size_t)format_one(params[i], &overflows[i], one, sizeof(one));
        if (left_out || used + length + ROOM_FOR_REST > nbytes) {
            left_out++;
        } else {
            used += (size_t)snprintf(text + used, nbytes - used, "%s%s", used ? ", " : "", one);
        }
    }
    if (left_out) snprintf(text + used, nbytes - used, "%s%zu more", used ? ", and " : "", left_out);
}

/* ", on rank 1", ", on ranks 0, 2 and 3" */
static void name_ranks(const struct cairn__ranks *ranks, char *text, size_t nbytes) {
    enum { SHOWN = 8 };
    int list[CAIRN__MAX_RANKS], count = 0;
    for (int r = 0; r < CAIRN__MAX_RANKS; r++) {
        if (cairn__ranks_has(ranks, r)) list[count++] = r;
    }
    size_t used = (size_t)snprintf(text, nbytes, ", on rank%s", count > 1 ? "s" : "");
    for (int i = 0; i < count && i < SHOWN; i++) {
        const char *before = i == 0 ? " " : i + 1 == count ? " and " : ", ";
        used += (size_t)snprintf(text + used, nbytes - used, "%s%d", before, list[i]);
    }
    if (count > SHOWN) snprintf(text + used, nbytes - used, " and %d more", count - SHOWN);
    if (count == 0) snprintf(text, nbytes, ", only in the sum over the ranks: the gradients of each rank are finite");
}

/* Where the overflows come from: the first micro-batch, and the rank or ranks. */
static void where_from(const struct cairn__amp_guard *g, const struct cairn__overflow *overflows, char *text,
                       size_t nbytes) {
    uint32_t first = 0;
    int32_t rank = -1;
    bool several = false;
    for (size_t i = 0; i < cairn_optimizer_num_params(g->optimizer); i++) {
        if (!overflows[i].micro_batch) continue;
        several |= first && overflows[i].rank != rank;
        if (!first || overflows[i].micro_batch < first) first = overflows[i].micro_batch;
        rank = overflows[i].rank;
    }
    int used = 0;
    text[0] = '\0';
    if (first > 1) {
        used = snprintf(text, nbytes, ", first in micro-batch %" PRIu32 "%s", first,
                        g->checked_late ? " or before it" : "");
    }
    const struct cairn__partners *partners = cairn__optimizer_partners(g->optimizer);
    if (partners) used += snprintf(text + used, nbytes - (size_t)used, ", on %s", partners->name);
    if (g->knows_nonfinite_ranks) {
        name_ranks(&g->nonfinite_ranks, text + used, nbytes - (size_t)used);
    } else if (several) {
        snprintf(text + used, nbytes - (size_t)used, ", on several ranks");
    } else if (partners) { /* this rank, even if another replica of the stage may have overflowed */
        snprintf(text + used, nbytes - (size_t)used, " (rank %d)", cairn_env_rank(g->env));
    } else if (rank >= 0 && cairn_env_size(g->env) > 1) {
        snprintf(text + used, nbytes - (size_t)used, ", on rank %" PRId32, rank);
    }
}

/* Writes "the loss of micro-batch 2 is inf or nan on rank 1", or "non-finite gradient in weight (1 inf of 40), first in
 * micro-batch 2", or both. */
void cairn__guard_explain_own(const struct cairn__amp_guard *g, const struct cairn__overflow *overflows, char *text,
                              size_t nbytes) {
    char names[512], from[160], which[40] = "", where[24] = "", loss[96] = "", gradients[768] = "";
    const struct cairn__overflow *of_loss = &overflows[cairn_optimizer_num_params(g->optimizer)];
    cairn__guard_names(g, overflows, names, sizeof(names));
    where_from(g, overflows, from, sizeof(from));
    if (of_loss->micro_batch > 1) snprintf(which, sizeof(which), " of micro-batch %" PRIu32, of_loss->micro_batch);
    if (cairn_env_size(g->env) > 1) snprintf(where, sizeof(where), " on rank %" PRId32, of_loss->rank);
    if (of_loss->micro_batch) snprintf(loss, sizeof(loss), "the loss%s is inf or nan%s", which, where);
    if (names[0] || !loss[0])
        snprintf(gradients, sizeof(gradients), "%snon-finite gradient in %s%s", loss[0] ? "; " : "",
                 names[0] ? names : "another optimizer of the same loss, or the loss itself", from);
    snprintf(text, nbytes, "%s%s", loss, gradients);
}

static bool is_explicit(const struct cairn__amp_guard *g) {
    for (int id = 0; id < g->num_scalers; id++) {
        if (g->scalers[id]->is_explicit || g->scalers[id]->logs_updates) return true;
    }
    return false;
}

static cairn_status log_skip(const struct cairn__amp_guard *g, const struct cairn__step_report *r,
                             const struct cairn__overflow *overflows) {
    char own[900], why[4096]; /* with "; it began where the result of exp([4]) has ..." */
    const char *anomaly = cairn__noted_anomaly(g->env);
    cairn__guard_explain_own(g, overflows, own, sizeof(own));
    snprintf(why, sizeof(why), "%s%s%s", g->partners_say && g->partners_say[0] ? g->partners_say : own,
             anomaly[0] ? "; it began where " : "", anomaly);
    switch ((enum cairn__scaler_verdict)r->verdict) {
    case CAIRN__SCALER_AT_FLOOR:
        return cairn__fail(
            CAIRN_ENUMERIC,
            "gradient overflow with the loss scale at its floor of %.10g: %s; the step was skipped and the "
            "scale cannot be lowered. Look for a division by zero, a learning rate that is too high, or "
            "lower min_loss_scale",
            r->scale, why);
    case CAIRN__SCALER_REACHED_FLOOR:
        cairn__log(CAIRN_LOG_WARNING,
                   "Gradient overflow.  Skipping step, loss scaler %d reducing loss scale to its floor of %.10g: %s",
                   (int)r->scaler, r->scale, why);
        return CAIRN_OK;
    case CAIRN__SCALER_SHRANK:
        cairn__log(CAIRN_LOG_NOTICE,
                   "Gradient overflow.  Skipping step, loss scaler %d reducing loss scale to %.10g: %s", (int)r->scaler,
                   r->scale, why);
        return CAIRN_OK;
    case CAIRN__SCALER_MOVED:
        cairn__log(CAIRN_LOG_NOTICE, "Gradient overflow.  Skipping step, loss scaler %d sets loss scale to %.10g: %s",
                   (int)r->scaler, r->scale, why);
        return CAIRN_OK;
    case CAIRN__SCALER_KEPT:
        break;
    }
    if (r->scale == 0 && is_explicit(g)) { /* amp_scaler_update logs the new scale */
        cairn__log(CAIRN_LOG_NOTICE, "Gradient overflow.  Skipping step: %s", why);
        return CAIRN_OK;
    }
    /* Without a loss since the last step, any scaler's scale. */
    const double scale = r->scale != 0 ? r->scale : amp_scaler_get_scale(g->scalers[0]);
    cairn__log(CAIRN_LOG_NOTICE, "Gradient overflow.  Skipping step, loss scale stays %.10g: %s", scale, why);
    return CAIRN_OK;
}

int32_t cairn__guard_only_nonfinite_rank(const struct cairn__amp_guard *g) {
    int32_t rank = -1;
    size_t sets = 0;
    (void)cairn__optimizer_sets(g->optimizer, &sets);
    if (sets > 1) return -1; /* ranks do not report which set overflowed */
    for (int r = 0; g->knows_nonfinite_ranks && r < CAIRN__MAX_RANKS; r++) {
        if (cairn__ranks_has(&g->nonfinite_ranks, r)) {
            if (rank >= 0) return -1;
            rank = r;
        }
    }
    return rank;
}

static void remember(struct cairn__amp_guard *g, const struct cairn__overflow *overflows) {
    const size_t count = cairn_optimizer_num_params(g->optimizer) + 1;
    const int32_t rank = cairn__guard_only_nonfinite_rank(g);
    cairn__found_end(&g->last_found);
    g->last_found = g->partners_found;
    g->partners_found = (struct cairn__amp_found){NULL, 0, NULL};
    if (count != g->num_last) {
        cairn__free(g->last);
        g->num_last = 0;
        g->last = NULL;
        if (cairn__calloc(count, sizeof(g->last[0]), (void **)&g->last) != CAIRN_OK) return;
        g->num_last = count;
    }
    memcpy(g->last, overflows, count * sizeof(g->last[0]));
    for (size_t i = 0; i < count && rank >= 0; i++) {
        if (g->last[i].micro_batch && g->last[i].rank < 0) g->last[i].rank = rank;
    }
    g->has_last = true;
}

static cairn_status after(void *ctx, const struct cairn__step_report *r, const struct cairn__overflow *overflows) {
    struct cairn__amp_guard *g = ctx;
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = CAIRN_OK;
    for (int id = 0; id < g->num_scalers; id++) {
        const cairn_status read = cairn__scaler_read_reports(g->scalers[id]);
        if (read != CAIRN_OK) st = read;
    }
    if (r->number <= g->last_before) return st;
    if (r->verdict != CAIRN__SCALER_KEPT) cairn__trace("amp", "loss_scale", (int64_t)r->scale, 0, 0);
    if (!r->stepped) {
        const amp_scaler *scaler = g->scalers[r->scaler];
        struct cairn__step_report shown = *r;
        if (scaler->known.rule == CAIRN__SCALER_USER && r->scale != 0) { /* the device does not know the user's scale */
            shown.scale = amp_scaler_get_scale(scaler);
            if (shown.scale < r->scale) shown.verdict = CAIRN__SCALER_SHRANK;
        }
        remember(g, overflows);
        const cairn_status logged = log_skip(g, &shown, overflows); /* even if the user's update function failed */
        if (logged != CAIRN_OK) st = logged;
    }
    cairn__forget_anomaly(g->env); /* the next one noted belongs to another step */
    cairn__trace("amp", "after_step", r->steps + r->skipped, 0, begin_ns);
    return st;
}

static void release(void *ctx) {
    struct cairn__amp_guard *g = ctx;
    if (g->ending) g->ending(g);
}

/* ---- making and ending ---- */

cairn_status cairn__guard_create(cairn_optimizer *optimizer, const void *owner, amp_scaler *const *scalers,
                                 int num_scalers, bool skips, bool waits, struct cairn__amp_guard **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__amp_guard *g = NULL;
    struct cairn_env *env = cairn__optimizer_env(optimizer);
    TRY(cairn__calloc(1, sizeof(*g), (void **)&g));
    *g = (struct cairn__amp_guard){.env = env,
                                   .optimizer = optimizer,
                                   .owner = owner,
                                   .scalers = scalers,
                                   .num_scalers = num_scalers,
                                   .skips = skips};
    g->num_last = cairn_optimizer_num_params(optimizer) + 1;
    TRY(cairn__calloc(g->num_last, sizeof(g->last[0]), (void **)&g->last));
    TRY(cairn__device_synchronize(env->device)); /* all reports of steps before this guard have arrived */
    g->last_before = cairn__optimizer_last_report(optimizer).number;
    const struct cairn__step_guard guard = {
        .ctx = g, .before = before, .after = after, .waits = waits, .owner = owner, .release = release};
    cairn__set_step_guard(optimizer, &guard);
    *out = g;
    return CAIRN_OK;
out:
    if (g) {
        cairn__free(g->last);
    }
    cairn__free(g);
    return st;
}

void cairn__guard_destroy(struct cairn__amp_guard **guard) {
    if (!guard || !*guard) return;
    struct cairn__amp_guard *g = *guard;
    cairn__set_step_guard(g->optimizer, NULL);
    cairn__device_free(g->env->device, g->census);
    cairn__free(g->host_census);
    cairn__free(g->last);
    cairn__free(g->words);
    cairn__free(g->theirs);
    cairn__free(g->overflows);
    cairn__free(g->partners_say);
    cairn__found_end(&g->partners_found);
    cairn__found_end(&g->last_found);
    cairn__free(g);
    *guard = NULL;
}
