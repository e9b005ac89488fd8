/* Loss scalers as objects. The state is in device memory; getters return it as of the last report read (`known`). */
#include "scaler.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "device/reports.h"
#include "nn/hooks.h"
#include "param/param.h"

static_assert(sizeof(struct cairn__scaler_state) <= CAIRN__STORE_MAX, "a scaler's state is stored whole");

/* ---- reports ---- */

static cairn_status update_by_user(struct amp_scaler *s, int found) {
    struct amp_scaler_state next;
    const double before = s->known.scale, floor = s->known.min;
    cairn__scaler_state_show(&s->known, &next);
    if (s->update_by_statistics) {
        s->update_by_statistics(s->ctx, &next, found, &s->seen[(uint64_t)s->known.updates % CAIRN__REPORTS]);
    } else {
        s->update(s->ctx, &next, found);
    }
    REQUIRE(isfinite(next.scale) && next.scale > 0, CAIRN_EINVAL,
            "the update function of loss scaler %d set the scale to %.10g; it must be a finite number above 0, so the "
            "scale stays %.10g",
            s->known.id, next.scale, before);
    /* Copies only the fields that the update may change to known and to the device, which never writes them. */
    struct cairn__scaler_state *k = &s->known;
    k->scale = next.scale < k->min ? k->min : next.scale > k->max ? k->max : next.scale;
    k->unskipped = next.growth_tracker < 0 ? 0 : next.growth_tracker;
    k->hysteresis_left = next.hysteresis_left;
    memcpy(k->user, next.user, sizeof(k->user));
    struct cairn_device *d = s->env->device;
    d->passes->store(d, s->state, k, offsetof(struct cairn__scaler_state, hysteresis));
    REQUIRE(!(found && before <= floor && next.scale < floor), CAIRN_ENUMERIC,
            "gradient overflow with loss scaler %d at its floor of %.10g: its update function cannot lower the scale "
            "to %.10g. Look for a division by zero, a learning rate that is too high, or lower min_scale",
            s->known.id, floor, next.scale);
    return CAIRN_OK;
}

/* Logs what amp_scaler_update did to the scale. If steps update the scaler, their guards log it, with gradients'
 * names. */
static cairn_status log_update(const struct amp_scaler *s) {
    const struct cairn__scaler_state *k = &s->known;
    if (k->verdict != CAIRN__SCALER_KEPT) cairn__trace("amp", "loss_scale", (int64_t)k->scale, 0, 0);
    REQUIRE(
        k->verdict != CAIRN__SCALER_AT_FLOOR, CAIRN_ENUMERIC,
        "gradient overflow with loss scaler %d at its floor of %.10g: the steps were skipped and the scale cannot be "
        "lowered. Look for a division by zero, a learning rate that is too high, or lower min_scale",
        k->id, k->scale);
    if (k->verdict == CAIRN__SCALER_SHRANK)
        cairn__log(CAIRN_LOG_NOTICE, "Gradient overflow.  Loss scaler %d reducing loss scale to %.10g", k->id,
                   k->scale);
    if (k->verdict == CAIRN__SCALER_REACHED_FLOOR)
        cairn__log(CAIRN_LOG_WARNING, "Gradient overflow.  Loss scaler %d reducing loss scale to its floor of %.10g",
                   k->id, k->scale);
    return CAIRN_OK;
}

static cairn_status read_report(struct amp_scaler *s, const struct cairn__scaler_report *r) {
    cairn_status st = CAIRN_OK;
    struct cairn__scaler_state *k = &s->known;
    k->updates = (int64_t)r->number;
    k->last_found = r->found;
    if (r->found) k->last_overflow = k->updates - 1;
    k->verdict = r->verdict;
    if (k->rule == CAIRN__SCALER_USER) {
        st = update_by_user(s, r->found != 0);
    } else {
        k->scale = r->scale;
        k->unskipped = r->unskipped;
        if (s->logs_updates) st = log_update(s);
    }
    if (s->recorded < s->capacity) {
        const struct amp_scaler_update_record entry = {.step = k->updates,
                                                       .scale = k->scale,
                                                       .growth_tracker = k->unskipped,
                                                       .found = r->found != 0};
        cairn__element_write(s->records, s->record_nbytes, s->recorded, &entry, sizeof(entry));
    }
    if (s->records) s->recorded++;
    return st;
}

cairn_status cairn__scaler_read_reports(amp_scaler *s) {
    cairn_status worst = CAIRN_OK;
    struct cairn__scaler_report r;
    if (s->env->device->capturing) return CAIRN_OK; /* stores by the user's update would be recorded */
    while (cairn__reports_next(s->reports, sizeof(r), &s->last_read, &r)) {
        const cairn_status st = read_report(s, &r);
        if (st != CAIRN_OK) worst = st;
    }
    return worst;
}

static cairn_status read_reports(struct cairn__report_reader *reader) {
    return cairn__scaler_read_reports((amp_scaler *)((char *)reader - offsetof(amp_scaler, reader)));
}

/* ---- making and ending ---- */

static void drop_statistics(struct amp_scaler *s) {
    s->next = (struct amp_scaler_statistics){.struct_size = sizeof(s->next)};
}

static void free_scaler(struct amp_scaler *s) {
    if (!s) return;
    cairn__device_free(s->env->device, s->state);
    cairn__device_free(s->env->device, s->cells);
    cairn__device_free(s->env->device, s->no_loss);
    cairn__device_free_pinned(s->env->device, s->reports);
    cairn__free(s);
}

cairn_status cairn__scaler_create(cairn_env *env, const struct cairn__scaler_state *fresh,
                                  const struct amp_scaler_options *options, amp_scaler **out) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = env->device;
    struct amp_scaler_options o = {.struct_size = sizeof(o)};
    struct amp_scaler *s = NULL;
    TRY(cairn__options_read(&o, sizeof(o), options, "amp_scaler_options"));
    TRY(cairn__calloc(1, sizeof(*s), (void **)&s));
    drop_statistics(s);
    s->env = env;
    s->update = o.update;
    s->update_by_statistics = o.update_by_statistics;
    s->saturation_log = cairn__saturation_log(&o);
    s->ctx = o.ctx;
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, sizeof(*s->state), (void **)&s->state));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, CAIRN__AMP_CELLS * sizeof(s->cells[0]), (void **)&s->cells));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, 2 * sizeof(s->no_loss[0]), (void **)&s->no_loss));
    TRY(cairn__device_alloc_pinned(d, CAIRN__REPORTS * sizeof(s->reports[0]), (void **)&s->reports));
    s->known = *fresh;
    s->queued = (uint64_t)fresh->updates;
    d->passes->store(d, s->state, fresh, sizeof(*fresh));
    d->passes->store(d, s->no_loss, (float[2]){0, 0}, 2 * sizeof(s->no_loss[0]));
    s->reader = (struct cairn__report_reader){.read = read_reports, .next = s->env->readers};
    s->env->readers = &s->reader;
    *out = s;
    return CAIRN_OK;
out:
    free_scaler(s);
    return st;
}

void cairn__scaler_read_last_reports(amp_scaler *s) {
    if (cairn__device_synchronize(s->env->device) != CAIRN_OK) return;
    if (s->is_own) (void)cairn__env_read_reports(s->env); /* its guards end too, and need theirs */
    (void)cairn__scaler_read_reports(s);
}

void cairn__scaler_free(amp_scaler **scaler) {
    struct amp_scaler *s = *scaler;
    struct cairn__report_reader **at = &s->env->readers;
    while (*at && *at != &s->reader) at = &(*at)->next;
    if (*at) *at = s->reader.next;
    /* Gradients at the cells' scales are accumulated before the cells are freed. If that fails, their scale is lost,
     * and all gradients become incomplete. */
    for (int i = 0; i < CAIRN__AMP_CELLS; i++) {
        if (cairn__params_accumulate_at(s->env, &s->cells[i]) == CAIRN_OK) continue;
        for (struct cairn_param_set *set = cairn__last_set(s->env); set; set = set->next)
            cairn__param_set_make_incomplete(set);
    }
    s->env->unstepped -= s->pending;
    s->env->places[CAIRN__PLACE_OF_AMP].alive -= s->is_own;
    free_scaler(s);
    *scaler = NULL;
}

/* ---- the scale of a loss ---- */

static bool stays_1(const struct amp_scaler *s) {
    return s->known.rule == CAIRN__SCALER_STATIC && s->known.scale == 1;
}

/* NULL on error. */
static struct cairn__loss_scale *next_cell(struct amp_scaler *s) {
    struct cairn__loss_scale *cell = &s->cells[s->next_cell++ % CAIRN__AMP_CELLS];
    if (cairn__params_accumulate_at(s->env, cell) != CAIRN_OK) return NULL;
    if (s->shown_cell == cell) s->shown_cell = NULL;
    return cell;
}

cairn_tensor *cairn__scaler_scale(amp_scaler *s, cairn_tensor *loss, uint32_t *found) {
    if (!loss) return NULL;
    if (stays_1(s) && cairn_tensor_dtype(loss) == CAIRN_F32)
        return !found || cairn__loss_check(loss, found) == CAIRN_OK ? loss : NULL;
    struct cairn__loss_scale *cell = next_cell(s);
    return cell ? cairn__scale_loss(loss, s->state, cell, found) : NULL;
}

/* Stores the scale that the user is given in a new cell, which later updates on the device do not change. */
static cairn_status show_anew(struct amp_scaler *s) {
    struct cairn_device *d = s->env->device;
    struct cairn__loss_scale *cell = next_cell(s);
    if (!cell) return cairn__last_status();
    const struct cairn__loss_scale value = cairn__loss_scale_of(&s->known);
    d->passes->store(d, cell, &value, sizeof(value));
    s->shown_cell = cell;
    s->shown_scale = s->known.scale;
    s->shown_on_device = false;
    return CAIRN_OK;
}

/* A scale given on the device stays valid until the step, so the number must be that scale. */
static cairn_status know_shown_scale(struct amp_scaler *s) {
    cairn_status st = CAIRN_OK;
    float scale = 0;
    if (!isnan(s->shown_scale)) return CAIRN_OK;
    TRY(cairn__device_download(s->env->device, &scale, &s->shown_cell->scale, sizeof(scale)));
    s->shown_scale = scale;
out:
    return st;
}

/* Whether the scale given last is still the one to give: gradients may carry it, or it equals the current scale.
 * Replays may have been steps and changed the device's scale. */
static cairn_status is_current(struct amp_scaler *s, bool *current) {
    cairn_status st = CAIRN_OK;
    double now = 0;
    *current = s->shown_cell && (s->pending || s->shown_on_device || s->shown_scale == s->known.scale);
    if (!*current || s->pending || !s->shown_on_device || s->shown_replays == s->env->replays) return CAIRN_OK;
    TRY(cairn__device_download(s->env->device, &now, &s->state->scale, sizeof(now)));
    TRY(know_shown_scale(s));
    *current = s->shown_scale == (double)(float)now;
out:
    return st;
}

cairn_status cairn__scaler_show_scale(amp_scaler *s, double *scale, const struct cairn__loss_scale **cell) {
    bool current = false;
    cairn_status st = CAIRN_OK;
    if (s->known.rule != CAIRN__SCALER_STATIC)
        TRY(cairn__device_refuse_recording(
            s->env->device, "a dynamic loss scale as a number would stay the same in every replay; use a static one"));
    if (!stays_1(s)) TRY(is_current(s, &current));
    if (!stays_1(s)) TRY(current ? know_shown_scale(s) : show_anew(s));
    *scale = stays_1(s) ? 1 : s->shown_scale;
    *cell = stays_1(s) ? NULL : s->shown_cell;
out:
    return st;
}

cairn_status cairn__scaler_use_scale(amp_scaler *s, const struct cairn__loss_scale **cell) {
    struct cairn_device *d = s->env->device;
    *cell = NULL;
    if (stays_1(s)) return CAIRN_OK;
    struct cairn__loss_scale *next = next_cell(s);
    if (!next) return cairn__last_status();
    d->passes->scale_loss(d, &s->no_loss[1], &s->no_loss[0], s->state, next, NULL);
    *cell = next;
    return CAIRN_OK;
}

cairn_status cairn__scaler_show_1(amp_scaler *s, const float **shown) {
    struct cairn_device *d = s->env->device;
    struct cairn__loss_scale *cell = next_cell(s);
    if (!cell) return cairn__last_status();
    d->passes->store(d, cell, &(struct cairn__loss_scale){1, 1}, sizeof(*cell));
    *shown = &cell->scale;
    return CAIRN_OK;
}

cairn_status cairn__scaler_show_on_device(amp_scaler *s, const float **shown, const struct cairn__loss_scale **cell) {
    struct cairn_device *d = s->env->device;
    *cell = NULL;
    if (stays_1(s)) return cairn__scaler_show_1(s, shown);
    if (!s->shown_cell || !s->pending) {
        struct cairn__loss_scale *anew = next_cell(s);
        if (!anew) return cairn__last_status();
        d->passes->scale_loss(d, &s->no_loss[1], &s->no_loss[0], s->state, anew, NULL);
        s->shown_cell = anew;
        s->shown_on_device = s->known.rule != CAIRN__SCALER_STATIC;
        s->shown_replays = s->env->replays;
        s->shown_scale = s->shown_on_device ? (double)NAN : s->known.scale;
    }
    *cell = s->shown_cell;
    *shown = &s->shown_cell->scale;
    return CAIRN_OK;
}

void cairn__scaler_add_pending(amp_scaler *s) {
    s->pending++;
    s->env->unstepped++;
}

static void drop_pending(struct amp_scaler *s) {
    s->env->unstepped -= s->pending;
    s->pending = 0;
    s->shown_on_device = false;
}

/* Updates in replays have no statistics. They need none, since no rule that uses statistics can be recorded. */
void cairn__scaler_leave_update(amp_scaler *s) {
    struct cairn_device *d = s->env->device;
    const struct amp_scaler_statistics *next = &s->next;
    const double largest = next->infs || next->nans ? (double)INFINITY : next->largest;
    const double count = (double)(next->elements - next->zeros);
    const double shares[] = {count > 0 ? (double)next->saturating / count : -1,
                             count > 0 ? (double)next->saturating_if_grown / count : -1};
    s->seen[++s->queued % CAIRN__REPORTS] = *next;
    if (s->known.rule == CAIRN__SCALER_LOGMAX) d->passes->store(d, &s->state->largest, &largest, sizeof(largest));
    if (s->known.rule == CAIRN__SCALER_HISTOGRAM) d->passes->store(d, &s->state->saturating, shares, sizeof(shares));
    drop_statistics(s);
    drop_pending(s);
}

void cairn__scaler_queue_update(amp_scaler *s) {
    struct cairn_device *d = s->env->device;
    cairn__scaler_leave_update(s);
    d->passes->scaler_update(d, s->state, s->reports);
}

void cairn__scaler_drop_found(amp_scaler *s) {
    struct cairn_device *d = s->env->device;
    d->passes->clear_flags(d, &s->state->found, 1);
    drop_statistics(s);
    drop_pending(s);
}

void cairn__scaler_put_scale(amp_scaler *s, double scale) {
    struct cairn_device *d = s->env->device;
    s->shown_on_device = false;
    s->known.scale = scale;
    s->known.scale = cairn__scaler_times(&s->known, 1);
    d->passes->store(d, &s->state->scale, &s->known.scale, sizeof(s->known.scale));
}

/* ---- reading, saving, loading ---- */

double amp_scaler_get_scale(const amp_scaler *scaler) {
    return scaler ? scaler->known.scale : (double)NAN;
}

cairn_status amp_scaler_get_state(const amp_scaler *scaler, struct amp_scaler_state *state) {
    REQUIRE(scaler && state, CAIRN_EINVAL, "amp_scaler_get_state: scaler and state must be set");
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = scaler->env->device;
    struct cairn__scaler_state now;
    struct amp_scaler_state shown;
    const size_t room = state->struct_size;
    REQUIRE(room >= sizeof(room) && room <= 65536, CAIRN_EINVAL,
            "amp_scaler_get_state: struct_size is %zu; begin with AMP_SCALER_STATE_INIT", room);
    TRY(cairn__device_refuse_recording(d, "a scaler's state has no value yet; read it between replays"));
    TRY(cairn__device_synchronize(d));
    TRY(cairn__scaler_read_reports((amp_scaler *)scaler)); /* the user's update computes the state */
    TRY(cairn__device_download(d, &now, scaler->state, sizeof(now)));
    cairn__scaler_state_show(&now, &shown);
    shown.struct_size = room < sizeof(shown) ? room : sizeof(shown); /* size in the caller's build */
    memcpy(state, &shown, shown.struct_size);
out:
    return st;
}

cairn_status cairn__scaler_synchronize(amp_scaler *scaler, const char *where) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = scaler->env->device;
    REQUIRE(!scaler->pending, CAIRN_ESTATE,
            "%slosses that loss scaler %d has scaled were not stepped yet; set its state after the step, or before a "
            "loss is scaled",
            where, scaler->known.id);
    TRY(cairn__device_refuse_recording(d, "a scaler's state cannot be set in a graph; set it between replays"));
    TRY(cairn__device_synchronize(d));
    (void)cairn__scaler_read_reports(scaler); /* of updates before */
out:
    return st;
}

cairn_status cairn__scaler_check_kind(const amp_scaler *scaler, amp_scaler_kind kind, const char *where) {
    REQUIRE(kind != AMP_SCALER_USER || scaler->update || scaler->update_by_statistics, CAIRN_EINVAL,
            "%sthe kind is user, but the scaler was created without an update function", where);
    REQUIRE(kind == AMP_SCALER_STATIC || !scaler->ignores_overflow, CAIRN_EINVAL,
            "%sthe kind is %s, a dynamic scale, which needs skipped steps, but this context has skip_nonfinite=OFF; "
            "call amp_initialize with the loss_scale of the run that saved the state, or with skip_nonfinite=ON",
            where, cairn__scaler_kind_name(kind));
    return CAIRN_OK;
}

/* Empties the ring, since reports are numbered by updates. */
void cairn__scaler_put(amp_scaler *s, const struct cairn__scaler_state *state) {
    struct cairn_device *d = s->env->device;
    const int32_t id = s->known.id;
    s->shown_on_device = false;
    s->known = *state;
    s->known.id = id;
    memset(s->reports, 0, CAIRN__REPORTS * sizeof(s->reports[0]));
    s->last_read = s->queued = (uint64_t)state->updates;
    d->passes->store(d, s->state, &s->known, sizeof(s->known));
}

cairn_status amp_scaler_set_state(amp_scaler *scaler, const struct amp_scaler_state *state) {
    static const char where[] = "amp_scaler_set_state: ";
    REQUIRE(scaler && state, CAIRN_EINVAL, "%sscaler and state must be set", where);
    cairn_status st = CAIRN_OK;
    struct amp_scaler_state given = {0};
    struct cairn__scaler_state next;
    TRY(cairn__options_read(&given, sizeof(given), state, "amp_scaler_state"));
    TRY(cairn__scaler_state_take(&given, where, &next));
    TRY(cairn__scaler_check_kind(scaler, given.kind, where));
    TRY(cairn__scaler_synchronize(scaler, where));
    cairn__scaler_put(scaler, &next);
out:
    return st;
}

cairn_status amp_scaler_record_sized(size_t record_nbytes, amp_scaler *scaler, struct amp_scaler_update_record *records,
                                     size_t capacity) {
    REQUIRE(scaler, CAIRN_EINVAL, "amp_scaler_record: scaler is NULL");
    REQUIRE(!capacity == !records, CAIRN_EINVAL,
            "amp_scaler_record: capacity is %zu, but records is %p; set both, or neither to end a recording", capacity,
            (void *)records);
    cairn_status st = CAIRN_OK;
    TRY(cairn__element_check(record_nbytes, "amp_scaler_update_record"));
    st = cairn__scaler_read_reports(scaler); /* of updates before */
    scaler->records = records;
    scaler->record_nbytes = record_nbytes;
    scaler->capacity = capacity;
    scaler->recorded = 0;
out:
    return st;
}

cairn_status(amp_scaler_record)(amp_scaler *scaler, struct amp_scaler_update_record *records, size_t capacity) {
    return amp_scaler_record_sized(CAIRN__SIZE_THROUGH(struct amp_scaler_update_record, found), scaler, records,
                                   capacity);
}

size_t amp_scaler_recorded(const amp_scaler *scaler) {
    return scaler ? scaler->recorded : 0;
}
