/* Rates of groups, in device memory. A step reads them, and computes those of the next step at its end
 * (kernels/schedule.h). The host keeps a copy of their inputs, to return rates without reading from the device. */
#include "optim/rates.h"

#include <math.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "device/reports.h"

static struct cairn_device *device_of(const struct cairn_optimizer *o) {
    return o->env->device;
}

/* ---- the table ---- */

cairn_status cairn__rates_make(struct cairn_device *d, size_t groups, struct cairn__rate_table *table) {
    cairn_status st = CAIRN_OK;
    struct cairn__group_schedule *schedules = NULL;
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, groups * sizeof(table->rates[0]), (void **)&table->rates));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, groups * sizeof(schedules[0]), (void **)&schedules));
    table->schedules = schedules;
    TRY(cairn__device_alloc_pinned(d, CAIRN__REPORTS * groups * sizeof(table->used[0]), (void **)&table->used));
    table->groups = groups;
out:
    return st;
}

void cairn__rates_free(struct cairn_device *d, struct cairn__rate_table *table) {
    cairn__device_free(d, table->rates);
    cairn__device_free(d, (void *)table->schedules);
    cairn__device_free_pinned(d, table->used);
    *table = (struct cairn__rate_table){0};
}

void cairn__rates_replace(cairn_optimizer *o, struct cairn__rate_table *table) {
    const struct cairn__rate_table *from = &o->table;
    for (size_t r = 0; r < CAIRN__REPORTS; r++) {
        for (size_t g = 0; g < table->groups; g++)
            table->used[r * table->groups + g] =
                g < from->groups ? from->used[r * from->groups + g] : (struct cairn__rates){NAN, NAN};
    }
    cairn__rates_free(device_of(o), &o->table);
    o->table = *table;
    for (size_t g = 0; g < o->num_groups; g++) cairn__rates_store(o, g);
}

void cairn__rates_store(cairn_optimizer *o, size_t g) {
    struct cairn_device *d = device_of(o);
    struct cairn__group_schedule there = o->groups[g].schedule;
    there.parts = o->groups[g].device_parts;
    d->passes->store(d, (void *)&o->table.schedules[g], &there, sizeof(there));
    const struct cairn__rate_table one = {&o->table.rates[g], &o->table.schedules[g], &o->table.used[g], 1};
    d->passes->renew_rates(d, &one, o->state);
}

struct cairn__rates cairn__rates_known(const cairn_optimizer *o, size_t g) {
    const struct cairn__step_report last = cairn__optimizer_last_report(o);
    return cairn__group_rates(&o->groups[g].schedule, last.steps, last.skipped);
}

void cairn__group_drop_schedule(struct cairn_device *d, struct cairn__param_group *group) {
    cairn__device_free(d, group->device_parts);
    cairn__free(group->parts);
    group->parts = group->device_parts = NULL;
    group->schedule = (struct cairn__group_schedule){.base = group->schedule.base};
}

/* ---- rates last used ---- */

static bool has(const cairn_optimizer *o, int group) {
    return o && group >= 0 && (size_t)group < o->num_groups;
}

/* If the device is ahead and overwrites this report while it is read, there is a later report. */
static struct cairn__rates used_by_last(const cairn_optimizer *o, int group) {
    struct cairn__rates used = {NAN, NAN};
    uint64_t number = 0;
    if (!has(o, group)) return used;
    do {
        number = cairn__optimizer_last_report(o).number;
        if (number) used = o->table.used[number % CAIRN__REPORTS * o->table.groups + (size_t)group];
    } while (number && !cairn__reports_is_whole(o->reports, sizeof(o->reports[0]), number));
    return used;
}

double cairn_optimizer_step_lr(const cairn_optimizer *optimizer, int group) {
    return used_by_last(optimizer, group).lr;
}

double cairn_optimizer_step_momentum(const cairn_optimizer *optimizer, int group) {
    return used_by_last(optimizer, group).momentum;
}

/* ---- base rates ---- */

static cairn_status check_lr(const cairn_optimizer *o, double lr) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate(o->kind->name, "lr", lr));
    TRY(cairn__device_refuse_recording(device_of(o),
                                       "the learning rate cannot be set in a graph; set it between replays"));
out:
    return st;
}

static void set_lr(cairn_optimizer *o, size_t g, double lr) {
    o->groups[g].schedule.base.lr = lr;
    cairn__rates_store(o, g);
}

cairn_status cairn_optimizer_set_lr(cairn_optimizer *optimizer, double lr) {
    REQUIRE(optimizer, CAIRN_EINVAL, "optimizer is NULL");
    cairn_status st = CAIRN_OK;
    TRY(check_lr(optimizer, lr));
    for (size_t g = 0; g < optimizer->num_groups; g++) set_lr(optimizer, g, lr);
out:
    return st;
}

cairn_status cairn_optimizer_set_group_lr(cairn_optimizer *optimizer, int group, double lr) {
    REQUIRE(optimizer, CAIRN_EINVAL, "optimizer is NULL");
    REQUIRE(has(optimizer, group), CAIRN_EINVAL, "%s: group is %d, but the optimizer has %zu groups",
            optimizer->kind->name, group, optimizer->num_groups);
    cairn_status st = CAIRN_OK;
    TRY(check_lr(optimizer, lr));
    set_lr(optimizer, (size_t)group, lr);
out:
    return st;
}

double cairn_optimizer_lr(const cairn_optimizer *optimizer) {
    return optimizer ? cairn_optimizer_group_lr(optimizer, 0) : 0;
}

double cairn_optimizer_group_lr(const cairn_optimizer *optimizer, int group) {
    return has(optimizer, group) ? cairn__rates_known(optimizer, (size_t)group).lr : (double)NAN;
}

double cairn_optimizer_base_lr(const cairn_optimizer *optimizer, int group) {
    return has(optimizer, group) ? optimizer->groups[group].schedule.base.lr : (double)NAN;
}

/* ---- on a plateau ---- */

cairn_status cairn_optimizer_set_plateau(cairn_optimizer *optimizer, const struct cairn_plateau_options *options) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_optimizer_set_plateau: optimizer is NULL");
    struct cairn_plateau_options h = CAIRN_PLATEAU_OPTIONS_INIT;
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_plateau_options"));
    REQUIRE(h.factor > 0 && h.factor < 1, CAIRN_EINVAL, "plateau: factor is %g; it must be in (0, 1)", h.factor);
    TRY(cairn__check_rate("plateau", "threshold", h.threshold));
    TRY(cairn__check_rate("plateau", "min_lr", h.min_lr));
    TRY(cairn__check_rate("plateau", "eps", h.eps));
    REQUIRE(h.patience >= 0 && h.cooldown >= 0, CAIRN_EINVAL,
            "plateau: patience is %lld and cooldown %lld; neither must be negative", (long long)h.patience,
            (long long)h.cooldown);
    optimizer->plateau = (struct cairn__plateau){.is_on = options != NULL,
                                                 .how = h,
                                                 .best = h.maximize == CAIRN_ON ? -INFINITY : (double)INFINITY};
out:
    return st;
}

/* torch.optim.lr_scheduler.ReduceLROnPlateau._is_better */
static bool is_better(const struct cairn__plateau *p, double metric) {
    const double threshold = p->how.threshold;
    const bool is_absolute = p->how.is_absolute == CAIRN_ON;
    if (p->how.maximize == CAIRN_ON) return metric > (is_absolute ? p->best + threshold : p->best * (1 + threshold));
    return metric < (is_absolute ? p->best - threshold : p->best * (1 - threshold));
}

/* Counts a metric. Returns whether to reduce the rate. Source: ReduceLROnPlateau.step. */
static bool count_metric(struct cairn__plateau *p, double metric) {
    const bool better = is_better(p, metric);
    if (better) p->best = metric;
    p->bad = better ? 0 : p->bad + 1;
    if (p->cooling > 0) {
        p->cooling--;
        p->bad = 0;
    }
    if (p->bad <= p->how.patience) return false;
    p->cooling = p->how.cooldown;
    p->bad = 0;
    return true;
}

cairn_status cairn_optimizer_report_metric(cairn_optimizer *optimizer, double metric, int *reduced) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_optimizer_report_metric: optimizer is NULL");
    struct cairn__plateau *p = &optimizer->plateau;
    REQUIRE(p->is_on, CAIRN_ESTATE, "cairn_optimizer_report_metric: call cairn_optimizer_set_plateau first");
    cairn_status st = CAIRN_OK;
    int any = 0;
    TRY(cairn__device_refuse_recording(device_of(optimizer),
                                       "a metric cannot be reported in a graph; report it between replays"));
    if (optimizer->env->size > 1) TRY(optimizer->env->sum(optimizer->env, &metric, 1));
    metric /= optimizer->env->size;
    const bool reduces = count_metric(p, metric);
    for (size_t g = 0; reduces && g < optimizer->num_groups; g++) {
        const double old = optimizer->groups[g].schedule.base.lr, less = fmax(old * p->how.factor, p->how.min_lr);
        if (!(old - less > p->how.eps)) continue;
        set_lr(optimizer, g, less);
        any = 1;
    }
    if (reduced) *reduced = any;
out:
    return st;
}
