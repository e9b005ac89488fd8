/* The front of all kinds of optimizers: creation, groups, queries, and destruction. The step is in step.c, reports are
 * in report.c, calls that change gradients in clip.c. */
#include "optim/optim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "optim/rates.h"
#include "optim/report.h"

cairn_status cairn__check_set(const char *kind, const cairn_param_set *set, const void *out) {
    REQUIRE(out, CAIRN_EINVAL, "%s: the optimizer, or out, is NULL", kind);
    REQUIRE(set, CAIRN_EINVAL, "%s: the parameter set is NULL; check that its model was created (last error: %s)", kind,
            cairn_last_error()[0] ? cairn_last_error() : "none");
    return CAIRN_OK;
}

cairn_status cairn__check_rate(const char *kind, const char *name, double value) {
    REQUIRE(isfinite(value) && value >= 0, CAIRN_EINVAL, "%s: %s is %g; it must be a number >= 0", kind, name, value);
    return CAIRN_OK;
}

cairn_status cairn__check_beta(const char *kind, const char *name, double value) {
    REQUIRE(value >= 0 && value < 1, CAIRN_EINVAL, "%s: %s is %g; it must be in [0, 1)", kind, name, value);
    return CAIRN_OK;
}

static struct cairn_device *device_of(const struct cairn_optimizer *o) {
    return o->env->device;
}

static cairn_status make_zeroed(struct cairn_device *d, size_t nbytes, void **out) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_OPTIM, nbytes, out));
    d->passes->fill(d, CAIRN_F32, *out, nbytes / sizeof(float), 0.0f);
out:
    return st;
}

/* ---- arrays that grow with the groups ---- */

static void free_arrays(struct cairn_device *d, struct cairn__optim_arrays *a) {
    cairn__device_free(d, a->missed);
    cairn__device_free(d, a->squares);
    cairn__device_free(d, a->overflows);
    cairn__device_free_pinned(d, a->report_overflows);
    cairn__free(a->params);
    cairn__free(a->moments);
    cairn__free(a->items);
    cairn__free(a->list);
    cairn__free(a->keys);
    cairn__free(a->plain);
    cairn__free(a->taken);
    memset(a, 0, sizeof(*a));
}

/* losses: number of words of bad losses in all sets. */
static cairn_status make_arrays(struct cairn_device *d, size_t count, size_t losses, struct cairn__optim_arrays *a) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(count, sizeof(a->params[0]), (void **)&a->params));
    TRY(cairn__calloc(count, sizeof(a->moments[0]), (void **)&a->moments));
    TRY(cairn__calloc(count, sizeof(a->items[0]), (void **)&a->items));
    TRY(cairn__calloc(count, sizeof(a->list[0]), (void **)&a->list));
    TRY(cairn__calloc(count, sizeof(a->keys[0]), (void **)&a->keys));
    TRY(cairn__calloc(count, sizeof(a->plain[0]), (void **)&a->plain));
    TRY(cairn__calloc(count + losses, sizeof(a->taken[0]), (void **)&a->taken));
    TRY(make_zeroed(d, count * sizeof(a->missed[0]), (void **)&a->missed));
    TRY(make_zeroed(d, count * sizeof(a->squares[0]), (void **)&a->squares));
    TRY(make_zeroed(d, (count + 1) * sizeof(a->overflows[0]), (void **)&a->overflows));
    TRY(cairn__device_alloc_pinned(d, CAIRN__REPORTS * (count + 1) * sizeof(a->report_overflows[0]),
                                   (void **)&a->report_overflows));
out:
    return st;
}

/* Parameters added later have missed every step so far. */
static cairn_status carry_over(struct cairn_optimizer *o, struct cairn__optim_arrays *to, size_t count) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = device_of(o);
    const int64_t steps = cairn__optimizer_last_report(o).steps;
    if (o->count) {
        memcpy(to->params, o->arrays.params, o->count * sizeof(to->params[0]));
        memcpy(to->moments, o->arrays.moments, o->count * sizeof(to->moments[0]));
        TRY(cairn__device_copy(d, to->missed, o->arrays.missed, o->count * sizeof(to->missed[0])));
        TRY(cairn__device_copy(d, to->overflows, o->arrays.overflows, o->count * sizeof(to->overflows[0])));
        TRY(cairn__device_copy(d, &to->overflows[count], &o->arrays.overflows[o->count], sizeof(to->overflows[0])));
    }
    for (size_t i = o->count; i < count && steps > 0; i++) d->passes->store(d, &to->missed[i], &steps, sizeof(steps));
out:
    return st;
}

static cairn_status make_moments_of(struct cairn_optimizer *o, const struct cairn__optim_arrays *of, size_t i,
                                    const struct cairn__param_group *group) {
    cairn_status st = CAIRN_OK;
    for (int s = 0; s < cairn__rule_arrays(&group->rule); s++) {
        float **const array = &of->moments[i].array[s];
        const size_t n = cairn__rule_elements(&group->rule, s, cairn__param_shard(of->params[i]).n);
        if (!*array) TRY(make_zeroed(device_of(o), n * sizeof(float), (void **)array));
    }
out:
    return st;
}

cairn_status cairn__optimizer_make_moments(cairn_optimizer *o, size_t i, const struct cairn__param_group *group) {
    return make_moments_of(o, &o->arrays, i, group);
}

/* Such a parameter has missed all steps so far. Their number is copied by a pass on the device, without waiting. */
cairn_status cairn__optimizer_make_waiting(cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    const struct cairn__optim_arrays *of = &o->arrays;
    for (const struct cairn__param_group *group = o->groups; group < o->groups + o->num_groups; group++) {
        for (size_t i = group->first; i < group->first + group->count; i++) {
            if (!of->moments[i].waits || !cairn__grad_exists(of->params[i]->gradient)) continue;
            TRY(make_moments_of(o, of, i, group));
            TRY(cairn__device_copy(device_of(o), &of->missed[i], &o->state->steps, sizeof(of->missed[i])));
            of->moments[i].waits = false;
        }
    }
out:
    return st;
}

static void free_moments(struct cairn_device *d, const struct cairn__optim_arrays *a, size_t first, size_t count) {
    for (size_t i = first; a->moments && i < count; i++) {
        for (int s = 0; s < CAIRN__MAX_STATES; s++) cairn__device_free(d, a->moments[i].array[s]);
    }
}

/* ---- groups ---- */

static void own(struct cairn__param *p, const struct cairn_optimizer *o) {
    p->owner = o;
    p->steps = o ? &o->queued : NULL;
    p->arrays = NULL;
    p->num_arrays = 0;
}

/* Makes moments known to the parameters, so that changing a parameter's shard moves its moments too. */
static void show_moments(struct cairn_optimizer *o) {
    for (const struct cairn__param_group *g = o->groups; g < o->groups + o->num_groups; g++) {
        int whole = 0;
        while (whole < CAIRN__MAX_STATES && cairn__rule_elements(&g->rule, whole, 0) == 0) whole++;
        for (size_t i = g->first; i < g->first + g->count; i++) {
            o->arrays.params[i]->arrays = o->arrays.moments[i].array;
            /* Arrays of the parameter's size only, not the single number after them. */
            o->arrays.params[i]->num_arrays = whole;
        }
    }
}

/* Sets owners on the way, which detects a parameter given twice; resets them on failure. */
static cairn_status pick(struct cairn_optimizer *o, struct cairn_param_set *set, const size_t *indices, size_t count,
                         struct cairn__param **params) {
    cairn_status st = CAIRN_OK;
    size_t i = 0;
    for (; i < count; i++) {
        const size_t index = indices ? indices[i] : i;
        if (index >= set->count) {
            st = cairn__fail(CAIRN_EINVAL, "%s: parameter index is %zu, but the set has %zu parameters", o->kind->name,
                             index, set->count);
            break;
        }
        struct cairn__param *const p = set->params[index];
        if (p->owner) {
            st = cairn__fail(CAIRN_EINVAL, "%s: parameter '%s' %s", o->kind->name, p->name,
                             p->owner == o ? "is given twice" : "belongs to an optimizer already");
            break;
        }
        params[i] = p;
        own(params[i], o);
    }
    for (size_t k = 0; st != CAIRN_OK && k < i; k++) own(params[k], NULL);
    return st;
}

static bool knows(const struct cairn_optimizer *o, const struct cairn_param_set *set) {
    for (size_t i = 0; i < o->num_sets; i++) {
        if (o->sets[i] == set) return true;
    }
    return false;
}

static cairn_status check_group(struct cairn_optimizer *o, const struct cairn__optimizer_kind *kind,
                                struct cairn_param_set *set, size_t added, const struct cairn__param_group *group) {
    REQUIRE(o->kind == kind, CAIRN_EINVAL, "%s: a group of %s cannot be added to an optimizer of this kind",
            o->kind->name, kind->name);
    REQUIRE(o->env == set->env, CAIRN_EINVAL, "%s: the parameters belong to another environment", kind->name);
    REQUIRE(added <= set->count, CAIRN_EINVAL, "%s: %zu parameters are given, but the set has %zu", kind->name, added,
            set->count);
    REQUIRE(
        o->count == 0 || o->env->graphs == 0, CAIRN_ESTATE,
        "%s: a captured graph uses the optimizer's memory, which adding a group would move; destroy the graph first",
        kind->name);
    REQUIRE(!kind->max_norm || o->num_groups == 0 || kind->max_norm(group) == kind->max_norm(&o->groups[0]),
            CAIRN_EINVAL,
            "%s: max_grad_norm is %g, and %g in group 0; it is of all gradients together: give one for all", kind->name,
            kind->max_norm(group), kind->max_norm(&o->groups[0]));
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(device_of(o), "add parameters before the graph is captured"));
    REQUIRE(!o->guard.owner || set->amp == o->guard.owner, CAIRN_ESTATE,
            "add_group: the optimizer belongs to an amp context, but these parameters do not; give their model to the "
            "same amp_initialize");
    TRY(cairn__device_synchronize(device_of(o)));
    TRY(cairn__optimizer_read_reports(o)); /* before the arrays change size */
out:
    return st;
}

/* Cannot fail. */
static void take_over(struct cairn_optimizer *o, struct cairn__optim_arrays *arrays, struct cairn__rate_table *table,
                      double *norms, size_t count, const struct cairn__param_group *group,
                      struct cairn_param_set *set) {
    struct cairn_device *d = device_of(o);
    free_arrays(d, &o->arrays);
    cairn__device_free(d, o->norms);
    o->arrays = *arrays;
    o->norms = norms;
    o->groups[o->num_groups] = *group;
    o->groups[o->num_groups].first = o->count;
    if (!group->kind) o->groups[o->num_groups].kind = o->kind;
    o->groups[o->num_groups++].count = count - o->count;
    o->count = count;
    show_moments(o);
    cairn__rates_replace(o, table);
    if (knows(o, set)) return;
    o->sets[o->num_sets++] = set;
    set->users++;
}

cairn_status cairn__optimizer_add_group(cairn_optimizer *o, const struct cairn__optimizer_kind *kind,
                                        struct cairn_param_set *set, const size_t *indices, size_t given,
                                        const struct cairn__param_group *group) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = device_of(o);
    struct cairn__optim_arrays fresh = {0};
    struct cairn__rate_table table = {0};
    double *norms = NULL;
    const size_t added = indices ? given : set->count, count = o->count + added;
    bool picked = false;
    TRY(check_group(o, kind, set, added, group));
    TRY(make_arrays(d, count, (o->num_sets + 1) * (size_t)o->env->size, &fresh));
    TRY(cairn__grow((void **)&o->groups, &o->groups_capacity, o->num_groups + 1, sizeof(o->groups[0])));
    TRY(cairn__grow((void **)&o->sets, &o->sets_capacity, o->num_sets + 1, sizeof(o->sets[0])));
    TRY(cairn__rates_make(d, o->num_groups + 1, &table));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, (count + 1) * sizeof(double), (void **)&norms));
    TRY(cairn__param_set_make_flags(set));
    TRY(pick(o, set, indices, added, fresh.params + o->count));
    picked = true;
    TRY(carry_over(o, &fresh, count));
    for (size_t i = o->count; i < count; i++) {
        const struct cairn__optimizer_kind *of = group->kind ? group->kind : kind;
        if (of->check_param) TRY(of->check_param(of, fresh.params[i]));
        fresh.moments[i].waits = !cairn__param_requires_grad(fresh.params[i]);
        if (!fresh.moments[i].waits) TRY(make_moments_of(o, &fresh, i, group));
    }
    take_over(o, &fresh, &table, norms, count, group, set);
    return CAIRN_OK;
out:
    for (size_t i = o->count; picked && i < count; i++) own(fresh.params[i], NULL);
    free_moments(d, &fresh, o->count, count);
    free_arrays(d, &fresh);
    cairn__rates_free(d, &table);
    cairn__device_free(d, norms);
    return st;
}

/* ---- making and ending ---- */

cairn_status cairn__optimizer_create(const struct cairn__optimizer_kind *kind, struct cairn_param_set *set,
                                     const size_t *indices, size_t count, const struct cairn__param_group *group,
                                     cairn_optimizer **out) {
    cairn_status st = CAIRN_OK;
    struct cairn_optimizer *o = NULL;
    TRY(cairn__calloc(1, sizeof(*o), (void **)&o));
    o->kind = kind;
    o->env = set->env;
    o->set = set;
    cairn__optimizer_link_reader(o);
    const struct cairn__optim_state fresh = {.clip = 1};
    struct cairn_device *d = device_of(o);
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, sizeof(fresh), (void **)&o->state));
    d->passes->store(d, o->state, &fresh, sizeof(fresh));
    TRY(cairn__device_alloc_pinned(d, CAIRN__REPORTS * sizeof(o->reports[0]), (void **)&o->reports));
    TRY(cairn__optimizer_add_group(o, kind, set, indices, count, group));
    *out = o;
    return CAIRN_OK;
out:
    cairn_optimizer_destroy(&o);
    return st;
}

void cairn_optimizer_destroy(cairn_optimizer **optimizer) {
    if (!optimizer || !*optimizer) return;
    struct cairn_optimizer *o = *optimizer;
    /* Reads the device's last reports first, so that traces are complete. (amp reads its own when it ends.) */
    if (o->count && cairn__device_synchronize(device_of(o)) == CAIRN_OK) (void)cairn__optimizer_read_reports(o);
    if (o->guard.ctx && o->guard.release) o->guard.release(o->guard.ctx);
    if (o->guard.ctx) {
        cairn__log(CAIRN_LOG_ERROR,
                   "cairn_optimizer_destroy: an amp context uses the optimizer, which is kept; call amp_destroy first");
        return;
    }
    struct cairn_device *d = device_of(o);
    cairn__optimizer_unlink_reader(o);
    for (size_t i = 0; i < o->num_sets; i++) o->sets[i]->users--;
    for (size_t i = 0; i < o->count; i++) {
        cairn__grad_release(o->arrays.params[i]->gradient); /* while the coefficient's memory still exists */
        own(o->arrays.params[i], NULL);
    }
    free_moments(d, &o->arrays, 0, o->count);
    free_arrays(d, &o->arrays);
    for (size_t g = 0; g < o->num_groups; g++) cairn__group_drop_schedule(d, &o->groups[g]);
    cairn__rates_free(d, &o->table);
    cairn__device_free(d, o->norms);
    cairn__device_free(d, o->partner_norms);
    cairn__device_free(d, o->scratch);
    cairn__device_free(d, o->state);
    cairn__device_free_pinned(d, o->reports);
    cairn__free(o->groups);
    cairn__free(o->sets);
    cairn__free(o->own_kind);
    cairn__free(o);
    *optimizer = NULL;
}

static const struct cairn__optimizer_kind user_kind = {.name = "the user's update",
                                                       .is_user = true,
                                                       .saved_as = "user"};

cairn_status cairn__user_optimizer_create(cairn_param_set *set, cairn_optimizer **out) {
    const struct cairn__param_group group = {.first = 0};
    return cairn__optimizer_create(&user_kind, set, NULL, 0, &group, out);
}

/* ---- for amp ---- */

void cairn__set_step_guard(cairn_optimizer *optimizer, const struct cairn__step_guard *guard) {
    optimizer->guard = guard ? *guard : (struct cairn__step_guard){0};
}

void *cairn__step_guard_of(const cairn_optimizer *optimizer) {
    return optimizer->guard.ctx;
}

void cairn__optimizer_set_partners(cairn_optimizer *optimizer, const struct cairn__partners *partners) {
    optimizer->partners = partners;
}

const struct cairn__partners *cairn__optimizer_partners(const cairn_optimizer *optimizer) {
    return optimizer->partners;
}

double cairn__optimizer_max_norm(const cairn_optimizer *optimizer) {
    return optimizer->kind->max_norm ? optimizer->kind->max_norm(&optimizer->groups[0]) : 0;
}

struct cairn_env *cairn__optimizer_env(const cairn_optimizer *optimizer) {
    return optimizer->env;
}

struct cairn__param *const *cairn__optimizer_param_list(const cairn_optimizer *optimizer) {
    return optimizer->arrays.params;
}

struct cairn_param_set *const *cairn__optimizer_sets(const cairn_optimizer *optimizer, size_t *count) {
    *count = optimizer->num_sets;
    return optimizer->sets;
}

const struct cairn__sharers *cairn__optimizer_sharers(const cairn_optimizer *o) {
    for (size_t i = 0; i < o->num_sets; i++) {
        if (cairn__param_set_sharers(o->sets[i])) return cairn__param_set_sharers(o->sets[i]);
    }
    return NULL;
}

static void tell_sharers(const struct cairn_optimizer *o, cairn_status status) {
    for (size_t i = 0; i < o->num_sets; i++) {
        const struct cairn__sharers *sharers = cairn__param_set_sharers(o->sets[i]);
        if (sharers) sharers->failed(sharers->ctx, status);
    }
}

static bool are_same(const struct cairn__sharers *a, const struct cairn__sharers *b) {
    bool same = a->size == b->size;
    for (int r = 0; same && r < a->size; r++) same = a->env_rank(a->ctx, r) == b->env_rank(b->ctx, r);
    return same;
}

cairn_status cairn__optimizer_check_sharers(const cairn_optimizer *o, const char *call) {
    const struct cairn__sharers *first = cairn__optimizer_sharers(o);
    for (size_t i = 0; i < o->num_sets; i++) {
        const struct cairn__sharers *sharers = cairn__param_set_sharers(o->sets[i]);
        if (!sharers || are_same(first, sharers)) continue;
        const cairn_status st = cairn__fail(
            CAIRN_ENOTSUP,
            "%s: the optimizer has parameters whose updates are shared (ddp_options.shard_optimizer) by one group of "
            "ranks, and others shared by another; make an optimizer for each of these models",
            call);
        tell_sharers(o, st); /* other ranks of one of the groups may step, and would wait */
        return st;
    }
    return CAIRN_OK;
}

cairn_status cairn__optimizer_end_sharers(const cairn_optimizer *o, cairn_status status) {
    const bool is_own = status == CAIRN_ENOMEM || status == CAIRN_ESYSTEM || status == CAIRN_EDEVICE ||
                        status == CAIRN_EPEER || status == CAIRN_ETIMEOUT || status == CAIRN_EINTERNAL;
    if (is_own) tell_sharers(o, status);
    return status;
}

cairn_status cairn__optimizer_agree(const cairn_optimizer *o, const char *call, cairn_status status) {
    const struct cairn__sharers *sharers = cairn__optimizer_sharers(o);
    char own[1024];
    if (!sharers) return status;
    if (!cairn__is_on_host(device_of(o))) return cairn__optimizer_end_sharers(o, status);
    snprintf(own, sizeof(own), "%s", cairn_last_error());
    const cairn_status all = sharers->agree(sharers->ctx, call, status);
    return status != CAIRN_OK ? cairn__fail(status, "%s", own) : all;
}

uint32_t *cairn__optimizer_skip(cairn_optimizer *optimizer) {
    return &optimizer->state->skip;
}

struct cairn__overflow *cairn__optimizer_overflows(cairn_optimizer *optimizer) {
    return optimizer->arrays.overflows;
}

void cairn__optimizer_set_rounding(cairn_optimizer *optimizer, uint64_t seed) {
    struct cairn_device *d = device_of(optimizer);
    d->passes->store(d, &optimizer->state->rounding_seed, &seed, sizeof(seed));
}

/* ---- facts ---- */

int cairn_optimizer_step_skipped(const cairn_optimizer *optimizer) {
    if (!optimizer) return 0;
    const struct cairn__step_report last = cairn__optimizer_last_report(optimizer);
    return last.number && !last.stepped;
}

int64_t cairn_optimizer_steps(const cairn_optimizer *optimizer) {
    return optimizer ? cairn__optimizer_last_report(optimizer).steps : 0;
}

int64_t cairn_optimizer_skipped(const cairn_optimizer *optimizer) {
    return optimizer ? cairn__optimizer_last_report(optimizer).skipped : 0;
}

size_t cairn_optimizer_num_params(const cairn_optimizer *optimizer) {
    return optimizer ? optimizer->count : 0;
}

int cairn_optimizer_num_groups(const cairn_optimizer *optimizer) {
    return optimizer ? (int)optimizer->num_groups : 0;
}

cairn_param_set *cairn_optimizer_params(cairn_optimizer *optimizer) {
    return optimizer ? optimizer->set : NULL;
}
