/* The front of optimizers: what every kind shares.
 *
 * A step is queued and not waited for: lists of parameters with equal types go through one fused pass each, which reads
 * learning rate, step number, loss-scale factor and the skip flag where the device keeps them, and a last small pass
 * counts the step, updates the scaler, lowers the flags and leaves a report. The host reads reports as they come: on the
 * CPU that is before cairn_step returns, on a GPU usually during the next step. */
#include "optim/optim.h"

#include <assert.h>
#include <math.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"

cairn_status cairn__check_set(const char *kind, const cairn_param_set *set, cairn_optimizer **out) {
    REQUIRE(out, CAIRN_EINVAL, "%s: out is NULL", kind);
    REQUIRE(set, CAIRN_EINVAL, "%s: the parameter set is NULL; was its model made? (last error: %s)", kind,
            cairn_last_error()[0] ? cairn_last_error() : "none");
    return CAIRN_OK;
}

cairn_status cairn__check_rate(const char *kind, const char *name, double value) {
    REQUIRE(isfinite(value) && value >= 0, CAIRN_EINVAL, "%s: %s is %g; it must be a number >= 0", kind, name, value);
    return CAIRN_OK;
}

static struct cairn_device *device_of(const struct cairn_optimizer *o) {
    return o->set->env->device;
}

/* ---- reports ---- */

/* The number of the last report that has come; 0 = none. */
static uint64_t newest(const struct cairn_optimizer *o) {
    uint64_t last = 0;
    for (int i = 0; i < CAIRN__REPORTS; i++) {
        const uint64_t number = __atomic_load_n(&o->reports[i].number, __ATOMIC_ACQUIRE);
        if (number > last) last = number;
    }
    return last;
}

/* Once report number + CAIRN__REPORTS - 1 has come, the device may be writing the next one over this one. */
static bool is_whole(const struct cairn_optimizer *o, uint64_t number) {
    return newest(o) < number + CAIRN__REPORTS - 1;
}

/* A report that has come; false where it has been overtaken meanwhile. Its words are acquired, so that the question comes
 * after them (a fence would do, but thread sanitizers know none). */
static bool look(const struct cairn_optimizer *o, uint64_t number, struct cairn__step_report *out) {
    typedef uint64_t __attribute__((may_alias)) word;
    static_assert(sizeof(*out) % sizeof(word) == 0, "whole words");
    const word *from = (const word *)&o->reports[number % CAIRN__REPORTS];
    word *to = (word *)out;
    for (size_t i = 0; i < sizeof(*out) / sizeof(word); i++) to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
    return is_whole(o, number);
}

struct cairn__step_report cairn__optimizer_last_report(const cairn_optimizer *o) {
    struct cairn__step_report last;
    while (!look(o, newest(o), &last)) continue;
    return last;
}

static cairn_status tell(struct cairn_optimizer *o, const struct cairn__step_report *r) {
    cairn__trace("optim", r->stepped ? "step" : "step_skipped", r->steps + r->skipped, 0, 0);
    if (!o->hook.told) return CAIRN_OK;
    return o->hook.told(o->hook.ctx, r, o->names + r->number % CAIRN__REPORTS * o->set->count);
}

/* Passes on what has come since the last time. Where the device is further ahead than there are slots, the oldest reports
 * are lost: their totals are in the later ones. */
static cairn_status read_reports(struct cairn_optimizer *o) {
    cairn_status worst = CAIRN_OK;
    for (uint64_t last = newest(o); o->told < last; last = newest(o)) {
        struct cairn__step_report r;
        if (!is_whole(o, o->told + 1)) o->told = last - (CAIRN__REPORTS - 1);
        if (!look(o, o->told + 1, &r)) continue;
        o->told++;
        const cairn_status st = tell(o, &r);
        if (st != CAIRN_OK) worst = st;
    }
    return worst;
}

static cairn_status reader_read(struct cairn__report_reader *reader) {
    return read_reports((cairn_optimizer *)((char *)reader - offsetof(cairn_optimizer, reader)));
}

static void link_reader(struct cairn_optimizer *o) {
    o->reader = (struct cairn__report_reader){.read = reader_read, .next = o->set->env->readers};
    o->set->env->readers = &o->reader;
}

static void unlink_reader(struct cairn_optimizer *o) {
    struct cairn__report_reader **at = &o->set->env->readers;
    while (*at && *at != &o->reader) at = &(*at)->next;
    if (*at) *at = o->reader.next;
}

/* ---- making and ending ---- */

static cairn_status make_zeroed(struct cairn_device *d, size_t nbytes, void **out) {
    cairn_status st = cairn__device_alloc(d, CAIRN__HOLDS_OPTIM, nbytes, out);
    if (st == CAIRN_OK) d->passes->fill(d, CAIRN_F32, *out, nbytes / sizeof(float), 0.0f);
    return st;
}

static cairn_status make_moments(struct cairn_optimizer *o) {
    const int arrays = o->kind->states(o);
    for (size_t i = 0; i < o->set->count; i++) {
        for (int s = 0; s < arrays; s++) {
            cairn_status st =
                make_zeroed(device_of(o), o->set->params[i]->n * sizeof(float), (void **)&o->moments[i].array[s]);
            if (st != CAIRN_OK) return st;
        }
    }
    return CAIRN_OK;
}

static cairn_status make_reports(struct cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_alloc_pinned(device_of(o), CAIRN__REPORTS * sizeof(o->reports[0]), (void **)&o->reports));
    TRY(cairn__device_alloc_pinned(device_of(o), CAIRN__REPORTS * o->set->count * sizeof(o->names[0]),
                                   (void **)&o->names));
out:
    return st;
}

static cairn_status make_lists(struct cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(o->set->count, sizeof(o->items[0]), (void **)&o->items));
    TRY(cairn__calloc(o->set->count, sizeof(o->list[0]), (void **)&o->list));
    TRY(cairn__calloc(o->set->count, sizeof(o->groups[0]), (void **)&o->groups));
out:
    return st;
}

static cairn_status make_state(struct cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    const struct cairn__optim_state fresh = {.lr = o->lr};
    struct cairn_device *d = device_of(o);
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, sizeof(fresh), (void **)&o->state));
    d->passes->store(d, o->state, &fresh, sizeof(fresh));
    TRY(make_zeroed(d, o->set->count * sizeof(o->missed[0]), (void **)&o->missed));
out:
    return st;
}

cairn_status cairn__optimizer_create(const struct cairn_optimizer *like, cairn_optimizer **out) {
    cairn_status st = CAIRN_OK;
    struct cairn_optimizer *o = NULL;
    TRY(cairn__calloc(1, sizeof(*o), (void **)&o));
    *o = *like;
    o->set->users++;
    link_reader(o);
    TRY(cairn__calloc(o->set->count, sizeof(o->moments[0]), (void **)&o->moments));
    TRY(make_moments(o));
    TRY(make_state(o));
    TRY(make_reports(o));
    TRY(make_lists(o));
    TRY(cairn__param_set_make_flags(o->set));
    *out = o;
    return CAIRN_OK;
out:
    cairn_optimizer_destroy(&o);
    return st;
}

/* What the device still has to say is heard first: traces are whole. (amp hears its part when it ends.) */
static void hear_the_rest(struct cairn_optimizer *o) {
    if (o->reports && o->names && cairn__device_synchronize(device_of(o)) == CAIRN_OK) (void)read_reports(o);
}

void cairn_optimizer_destroy(cairn_optimizer **optimizer) {
    if (!optimizer || !*optimizer) return;
    struct cairn_optimizer *o = *optimizer;
    if (o->hook.ctx) {
        cairn__log(CAIRN_LOG_ERROR,
                   "cairn_optimizer_destroy: its amp context is alive, so it is kept; amp_destroy first");
        return;
    }
    struct cairn_device *d = device_of(o);
    hear_the_rest(o);
    unlink_reader(o);
    o->set->users--;
    for (size_t i = 0; o->moments && i < o->set->count; i++) {
        for (int s = 0; s < CAIRN__MAX_STATES; s++) cairn__device_free(d, o->moments[i].array[s]);
    }
    cairn__device_free(d, o->state);
    cairn__device_free(d, o->missed);
    cairn__device_free_pinned(d, o->reports);
    cairn__device_free_pinned(d, o->names);
    cairn__free(o->moments);
    cairn__free(o->items);
    cairn__free(o->list);
    cairn__free(o->groups);
    cairn__free(o);
    *optimizer = NULL;
}

void cairn__set_step_hook(cairn_optimizer *optimizer, const struct cairn__step_hook *hook) {
    optimizer->hook = hook ? *hook : (struct cairn__step_hook){0};
}

void cairn_zero_grad(cairn_optimizer *optimizer) {
    if (optimizer) cairn__param_set_zero_grad(optimizer->set);
}

/* ---- a step ---- */

static enum cairn__weight_mode mode_of(const struct cairn__param *p) {
    if (p->dtype == CAIRN_F32) return CAIRN__W_F32;
    if (p->master) return p->dtype == CAIRN_F16 ? CAIRN__W_F32_F16 : CAIRN__W_F32_BF16;
    return p->dtype == CAIRN_F16 ? CAIRN__W_F16 : CAIRN__W_BF16;
}

/* Fills items[i] and groups[i] = gradient type * modes + weight mode, or -1. */
static cairn_status describe(struct cairn_optimizer *o, size_t i) {
    struct cairn__param *p = o->set->params[i];
    struct cairn__optim_item *item = &o->items[i];
    cairn_dtype grad = CAIRN_F32;
    *item = (struct cairn__optim_item){.n = p->n,
                                       .weights = p->master ? (void *)p->master : p->data,
                                       .half = p->master ? p->data : NULL,
                                       .state = {o->moments[i].array[0], o->moments[i].array[1]},
                                       .missed = &o->missed[i]};
    cairn_status st = cairn__param_grad_final(p, &item->grad, &grad, &item->factor);
    if (st == CAIRN_OK) o->groups[i] = item->grad ? (int)grad * CAIRN__NUM_WEIGHT_MODES + (int)mode_of(p) : -1;
    return st;
}

static void update_group(struct cairn_optimizer *o, int group, const uint32_t *skip) {
    struct cairn__update_list list = {.items = o->list,
                                      .grad = (cairn_dtype)(group / CAIRN__NUM_WEIGHT_MODES),
                                      .mode = (enum cairn__weight_mode)(group % CAIRN__NUM_WEIGHT_MODES),
                                      .skip = skip};
    for (size_t i = 0; i < o->set->count; i++) {
        if (o->groups[i] == group) o->list[list.count++] = o->items[i];
    }
    if (list.count) o->kind->update(o, device_of(o), &list);
}

static cairn_status queue_updates(struct cairn_optimizer *o, const uint32_t *skip) {
    enum { GROUPS = 32 };
    static_assert(((int)CAIRN_BF16 + 1) * CAIRN__NUM_WEIGHT_MODES <= GROUPS, "a bit a group");
    uint32_t present = 0;
    for (size_t i = 0; i < o->set->count; i++) {
        cairn_status st = describe(o, i);
        if (st != CAIRN_OK) return st;
        if (o->groups[i] >= 0) present |= 1u << o->groups[i];
    }
    for (int group = 0; group < GROUPS; group++) {
        if (present >> group & 1) update_group(o, group, skip);
    }
    for (size_t i = 0; i < o->set->count; i++) {
        if (o->groups[i] < 0) device_of(o)->passes->miss(device_of(o), &o->missed[i], skip);
    }
    return CAIRN_OK;
}

static void queue_end(struct cairn_optimizer *o, bool update_scaler) {
    const struct cairn__step_end end = {.optim = o->state,
                                        .scaler = o->hook.scaler,
                                        .update_scaler = update_scaler && o->hook.scaler,
                                        .flags = o->set->flags,
                                        .count = o->set->count,
                                        .skips = o->set->skip_nonfinite,
                                        .reports = o->reports,
                                        .names = o->names};
    device_of(o)->passes->step_end(device_of(o), &end);
    cairn__param_set_consumed(o->set);
    cairn__param_set_weights_changed(o->set);
}

cairn_status cairn_step(cairn_optimizer *optimizer) {
    REQUIRE(optimizer, CAIRN_EINVAL, "optimizer is NULL");
    struct cairn_optimizer *o = optimizer;
    REQUIRE(!o->set->incomplete, CAIRN_ESTATE,
            "cairn_step: the backward before it failed, so its gradients are incomplete; nothing was written");
    cairn_status st = CAIRN_OK;
    bool update_scaler = false;
    if (o->hook.before) TRY(o->hook.before(o->hook.ctx, &update_scaler));
    TRY(queue_updates(o, o->set->skip_nonfinite ? &o->set->flags[0] : NULL));
    queue_end(o, update_scaler);
    if (o->hook.queued) o->hook.queued(o->hook.ctx);
    TRY(cairn__device_check(device_of(o)));
    if (!device_of(o)->capturing) TRY(read_reports(o)); /* what came before a recording is no failure of its step */
out:
    return st;
}

/* ---- facts ---- */

int cairn_step_skipped(const cairn_optimizer *optimizer) {
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

cairn_status cairn_optimizer_set_lr(cairn_optimizer *optimizer, double lr) {
    REQUIRE(optimizer, CAIRN_EINVAL, "optimizer is NULL");
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = device_of(optimizer);
    TRY(cairn__check_rate(optimizer->kind->name, "lr", lr));
    TRY(cairn__device_refuse_recording(d, "the learning rate would stand still; set it between replays"));
    optimizer->lr = lr;
    d->passes->store(d, &optimizer->state->lr, &lr, sizeof(lr));
out:
    return st;
}

double cairn_optimizer_lr(const cairn_optimizer *optimizer) {
    return optimizer ? optimizer->lr : 0;
}

cairn_param_set *cairn_optimizer_params(cairn_optimizer *optimizer) {
    return optimizer ? optimizer->set : NULL;
}
