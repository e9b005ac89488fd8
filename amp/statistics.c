/* Statistics of a step's gradients, for scalers whose rules use them. One census is taken of each gradient, and
 * converted to unscaled values by the factor that the step will multiply with. Ranks with reduced gradients have equal
 * ones and count alike without an exchange. Ranks that decide on a step together before the reduction, and partners,
 * exchange their counts, so that every scaler's update gets the same. */
#include <math.h>

#include "core/alloc.h"
#include "core/status.h"
#include "guard.h"

void cairn__statistics_add(struct amp_scaler_statistics *to, const struct amp_scaler_statistics *more) {
    if (more->largest > to->largest) to->largest = more->largest;
    to->elements += more->elements;
    to->zeros += more->zeros;
    to->infs += more->infs;
    to->nans += more->nans;
    to->saturating += more->saturating;
    to->saturating_if_grown += more->saturating_if_grown;
}

/* Parameters may have been added. */
static cairn_status make_room(struct cairn__amp_guard *g) {
    const size_t count = cairn_optimizer_num_params(g->optimizer);
    cairn_status st = CAIRN_OK;
    if (count <= g->census_room) return CAIRN_OK;
    cairn__device_free(g->env->device, g->census);
    cairn__free(g->host_census);
    g->census = g->host_census = NULL;
    g->census_room = 0;
    TRY(cairn__calloc(2 * count, sizeof(g->host_census[0]), (void **)&g->host_census));
    TRY(cairn__device_alloc(g->env->device, CAIRN__HOLDS_STATE, 2 * count * sizeof(g->census[0]), (void **)&g->census));
    g->census_room = count;
out:
    return st;
}

/* Thresholds for unscaled elements; 0 = no comparison. */
struct thresholds {
    double saturating, saturating_if_grown;
};

/* Uses the scale on the device, which the gradients were multiplied by. */
static cairn_status find_thresholds(const amp_scaler *s, struct thresholds *out) {
    const bool is_histogram = s->known.rule == CAIRN__SCALER_HISTOGRAM;
    const double log = is_histogram ? s->known.saturation_log : s->saturation_log;
    double scale = 0;
    cairn_status st = CAIRN_OK;
    *out = (struct thresholds){0, 0};
    if (s->known.rule == CAIRN__SCALER_LOGMAX) return CAIRN_OK;
    TRY(cairn__device_download(s->env->device, &scale, &s->state->scale, sizeof(scale)));
    out->saturating = exp2(log) / scale;
    out->saturating_if_grown = out->saturating / s->known.growth;
out:
    return st;
}

/* A gradient, and the factor that unscales it. */
struct counted {
    struct cairn__grad_view grad;
    double factor;
};

/* There are few different factors: those of the losses since the last step. If several partners have a parameter, one
 * of them counts its gradient. */
static cairn_status find_factors(const struct cairn__amp_guard *g, struct counted *list, size_t count) {
    struct cairn__param *const *params = cairn__optimizer_param_list(g->optimizer);
    const struct cairn__partners *partners = cairn__optimizer_partners(g->optimizer);
    const float *known = NULL;
    float factor = 1;
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < count; i++) {
        if (!partners || partners->counts(partners->ctx, params[i]))
            list[i].grad = cairn__grad_peek(params[i]->gradient);
        const float *of = list[i].grad.factor;
        if (of && of != known) TRY(cairn__device_download(g->env->device, &factor, of, sizeof(factor)));
        if (of) known = of;
        list[i].factor = of ? (double)factor : 1.0;
    }
out:
    return st;
}

/* Takes two censuses of each gradient, the second for the comparison after growth; one if there are no thresholds. */
static void take_censuses(const struct cairn__amp_guard *g, const struct counted *list, const struct thresholds *t) {
    struct cairn_device *d = g->env->device;
    const size_t count = cairn_optimizer_num_params(g->optimizer);
    const double of[] = {t->saturating, t->saturating_if_grown};
    for (size_t i = 0; i < 2 * count; i++) {
        const struct counted *c = &list[i % count];
        const struct cairn__item item = {.n = c->grad.n, .x = c->grad.x};
        if (c->grad.x && (i < count || of[1] > 0))
            d->passes->census(d, &item, 1, c->grad.dtype, (float)(of[i / count] / c->factor), &g->census[i]);
    }
}

static cairn_status count_own(struct cairn__amp_guard *g, const amp_scaler *s, struct amp_scaler_statistics *own) {
    const size_t count = cairn_optimizer_num_params(g->optimizer);
    struct counted *list = NULL;
    struct thresholds t;
    cairn_status st = CAIRN_OK;
    TRY(make_room(g));
    TRY(cairn__calloc(count, sizeof(list[0]), (void **)&list));
    TRY(find_thresholds(s, &t));
    TRY(find_factors(g, list, count));
    take_censuses(g, list, &t);
    TRY(cairn__device_download(g->env->device, g->host_census, g->census, 2 * count * sizeof(g->census[0])));
    for (size_t i = 0; i < count; i++) {
        const struct cairn__census *c = &g->host_census[i], *grown = &g->host_census[count + i];
        const int64_t n = (int64_t)list[i].grad.n, others = n - (int64_t)c->zeros;
        if (!list[i].grad.x) continue;
        const struct amp_scaler_statistics one = {.largest = c->largest * list[i].factor,
                                                  .elements = n,
                                                  .zeros = (int64_t)c->zeros,
                                                  .infs = (int64_t)c->infs,
                                                  .nans = (int64_t)c->nans,
                                                  .saturating = t.saturating > 0 ? others - (int64_t)c->subnormals : 0,
                                                  .saturating_if_grown =
                                                      t.saturating > 0 ? others - (int64_t)grown->subnormals : 0};
        cairn__statistics_add(own, &one);
    }
out:
    cairn__free(list);
    return st;
}

/* *all = the sum of all statistics, added in rank order. A struct_size of 0 means that a rank could not count. */
static void unite(struct amp_scaler_statistics *all, const struct amp_scaler_statistics *said, int size) {
    *all = (struct amp_scaler_statistics){.struct_size = sizeof(*all)};
    for (int i = 0; i < size; i++) cairn__statistics_add(all, &said[i]);
    for (int i = 0; i < size; i++) {
        if (!said[i].struct_size) all->struct_size = 0;
    }
}

static cairn_status exchange(struct cairn__amp_guard *g, struct amp_scaler_statistics *mine) {
    enum { WORDS = sizeof(*mine) / sizeof(int32_t) };
    const struct cairn__partners *partners = cairn__optimizer_partners(g->optimizer);
    struct amp_scaler_statistics *said = NULL;
    const struct cairn__sharers *sharers = cairn__optimizer_sharers(g->optimizer);
    const size_t most = (size_t)(partners && partners->size > g->env->size ? partners->size : g->env->size);
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(most, sizeof(said[0]), (void **)&said));
    if (g->agrees) {
        TRY(g->env->gather(g->env, (int32_t *)(void *)said, (const int32_t *)(const void *)mine, WORDS));
        unite(mine, said, g->env->size);
    }
    if (sharers) {
        TRY(sharers->gather(sharers->ctx, said, mine, sizeof(*mine)));
        unite(mine, said, sharers->size);
    }
    if (partners) {
        TRY(partners->gather(partners->ctx, said, mine, sizeof(*mine)));
        unite(mine, said, partners->size);
    }
out:
    cairn__free(said);
    return st;
}

cairn_status cairn__guard_statistics(struct cairn__amp_guard *g, const amp_scaler *s,
                                     struct amp_scaler_statistics *out) {
    cairn_status st = CAIRN_OK;
    *out = (struct amp_scaler_statistics){.struct_size = sizeof(*out)};
    TRY(cairn__device_refuse_recording(
        g->env->device, "the loss scaler looks at the gradients of each step, which have no values yet; step between "
                        "replays, or choose a scaler that counts overflows alone"));
    const cairn_status own = count_own(g, s, out);
    if (!g->agrees && !cairn__optimizer_partners(g->optimizer) && !cairn__optimizer_sharers(g->optimizer)) return own;
    if (own != CAIRN_OK) out->struct_size = 0; /* the others wait for an answer */
    TRY(exchange(g, out));
    if (own != CAIRN_OK) return own;
    REQUIRE(out->struct_size, CAIRN_EPEER, "another rank could not count its gradients; its message says why");
out:
    return st;
}

static bool leads_here(const struct cairn__amp_guard *g, int id) {
    const amp_scaler *s = g->scalers[id];
    return g->losses >> id & 1 && s->pending && !s->is_explicit && cairn__scaler_looks(s);
}

cairn_status cairn__guard_count(struct cairn__amp_guard *g) {
    cairn_status st = CAIRN_OK;
    for (int id = 0; id < g->num_scalers; id++) {
        struct amp_scaler_statistics counted;
        if (!leads_here(g, id)) continue;
        TRY(cairn__guard_statistics(g, g->scalers[id], &counted));
        g->scalers[id]->next = counted; /* replaces those of a step that failed */
    }
out:
    return st;
}
