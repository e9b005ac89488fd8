/* Averages of weights. Each slot is a parameter, in the order of the set, or after these a buffer. A slot's weights are
 * looked up at every call, since amp may replace them. */
#include "cairn/averages.h"

#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"
#include "optim/report.h"
#include "param/stateful.h"

enum { SWAPPED = 1 << 20 }; /* elements exchanged at a time */

struct slot {
    float *average;
    void *backup; /* for weights that cannot be swapped with their average because they round it; made by apply */
    size_t n;
    uint64_t version; /* the parameter's version when the averages were applied */
    const struct cairn_optimizer *owner;
    int64_t steps; /* steps that the owner had taken then */
    /* Current: */
    void *weights;
    cairn_dtype type;
    bool is_exact; /* f32, not rounded to half values */
};

struct cairn_averages {
    struct cairn_env *env;
    cairn_stateful model;
    struct cairn_param_set *set;
    bool uses_buffers;
    struct slot *slots;
    size_t count;              /* of parameters */
    size_t buffers;            /* number of buffers, after the parameters */
    struct cairn__item *items; /* [count + buffers] */
    struct cairn__average *state;
    float *swapped; /* [SWAPPED] */
};

static struct cairn_device *device_of(const cairn_averages *a) {
    return a->env->device;
}

static bool is_applied(const cairn_averages *a) {
    return a->set && a->set->averages == a;
}

/* ---- slots ---- */

static bool is_float(cairn_dtype t) {
    return t == CAIRN_F32 || t == CAIRN_F16 || t == CAIRN_BF16;
}

/* Lists the model's buffers, in a fixed order; the caller clears entries. */
static cairn_status list_buffers(const cairn_averages *a, struct cairn__entries *entries) {
    struct cairn_param_set *set = NULL;
    *entries = (struct cairn__entries){.env = a->env};
    return a->model.ops->weights(a->model.object, &set, entries);
}

static cairn_status look_up(const char *call, cairn_averages *a) {
    cairn_status st = CAIRN_OK;
    struct cairn__entries entries = {.env = a->env};
    for (size_t i = 0; i < a->count; i++) {
        const struct cairn__param *p = a->set->params[i];
        struct slot *s = &a->slots[i];
        if (p->master || p->value_type) TRY(cairn__param_check_whole(call, p));
        s->weights = p->master ? (void *)p->master : p->data;
        s->type = p->master ? CAIRN_F32 : p->dtype;
        s->is_exact = p->master || (p->dtype == CAIRN_F32 && !p->value_type);
        s->n = p->n;
    }
    if (!a->uses_buffers) return CAIRN_OK;
    TRY(list_buffers(a, &entries));
    for (size_t i = 0; i < a->buffers && i < entries.count; i++) {
        const struct cairn__entry *e = &entries.at[i];
        struct slot *s = &a->slots[a->count + i];
        s->weights = e->memory;
        s->type = e->dtype;
        s->is_exact = s->type == CAIRN_F32;
        s->n = is_float(s->type) ? e->nbytes / cairn_dtype_nbytes(e->dtype) : 0;
    }
out:
    cairn__entries_clear(&entries);
    return st;
}

/* Lists the slots of one type as items, with the average as dst. */
static size_t list_slots(const cairn_averages *a, cairn_dtype type) {
    size_t listed = 0;
    for (const struct slot *s = a->slots; s < a->slots + a->count + a->buffers; s++) {
        if (s->type == type && s->n)
            a->items[listed++] = (struct cairn__item){.n = s->n, .dst = s->average, .x = s->weights};
    }
    return listed;
}

static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* ---- making and ending ---- */

static cairn_status read_options(const struct cairn_averages_options *given, struct cairn_averages_options *h) {
    cairn_status st = CAIRN_OK;
    *h = (struct cairn_averages_options)CAIRN_EMA_OPTIONS_INIT;
    TRY(cairn__options_read(h, sizeof(*h), given, "cairn_averages_options"));
    REQUIRE(h->kind == CAIRN_AVERAGES_EMA || h->kind == CAIRN_AVERAGES_SWA, CAIRN_EINVAL,
            "averages: kind is %d; it must be CAIRN_AVERAGES_EMA or CAIRN_AVERAGES_SWA", (int)h->kind);
    TRY(cairn__check_beta("averages", "decay", h->decay));
    REQUIRE(h->start >= 0 && h->every >= 1, CAIRN_EINVAL,
            "averages: start is %lld and every %lld; they must be at least 0 and 1", (long long)h->start,
            (long long)h->every);
out:
    return st;
}

static void begin_as_weights(const cairn_averages *a) {
    struct cairn_device *d = device_of(a);
    for (int t = 0; t < TYPES; t++) {
        const size_t listed = list_slots(a, types[t]);
        if (listed) d->passes->cast(d, a->items, listed, CAIRN_F32, types[t]);
    }
}

static cairn_status make_slots(cairn_averages *a) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = device_of(a);
    struct cairn__entries entries = {.env = a->env};
    if (a->uses_buffers) TRY(list_buffers(a, &entries));
    a->count = a->set->count;
    a->buffers = entries.count;
    TRY(cairn__calloc(a->count + a->buffers, sizeof(a->slots[0]), (void **)&a->slots));
    TRY(cairn__calloc(a->count + a->buffers, sizeof(a->items[0]), (void **)&a->items));
    TRY(look_up("cairn_averages_create", a));
    for (struct slot *s = a->slots; s < a->slots + a->count + a->buffers; s++) {
        if (s->n) TRY(cairn__device_alloc(d, CAIRN__HOLDS_OPTIM, s->n * sizeof(float), (void **)&s->average));
    }
    begin_as_weights(a);
out:
    cairn__entries_clear(&entries);
    return st;
}

cairn_status cairn_averages_create(cairn_stateful model, const struct cairn_averages_options *options,
                                   cairn_averages **out) {
    cairn_status st = CAIRN_OK;
    cairn_averages *a = NULL;
    struct cairn_averages_options h;
    struct cairn__entries buffers = {.count = 0};
    REQUIRE(out && model.object && model.ops, CAIRN_EINVAL,
            "averages: the model, or out, is NULL; check that the model was created (last error: %s)",
            cairn_last_error()[0] ? cairn_last_error() : "none");
    REQUIRE(model.ops->weights, CAIRN_EINVAL,
            "averages: an object of kind '%s' has no weights; give cairn_module_stateful or cairn_param_set_stateful",
            model.ops->kind);
    TRY(read_options(options, &h));
    TRY(cairn__calloc(1, sizeof(*a), (void **)&a));
    a->model = model;
    a->env = model.ops->env(model.object);
    a->uses_buffers = h.use_buffers == CAIRN_ON;
    buffers.env = a->env;
    TRY(model.ops->weights(model.object, &a->set, &buffers));
    a->set->users++;
    TRY(cairn__param_set_check_own_weights("cairn_averages_create", a->set));
    TRY(make_slots(a));
    const struct cairn__average fresh = {.start = h.start,
                                         .every = h.every,
                                         .decay = h.decay,
                                         .is_equal = h.kind == CAIRN_AVERAGES_SWA};
    TRY(cairn__device_alloc(device_of(a), CAIRN__HOLDS_STATE, sizeof(fresh), (void **)&a->state));
    device_of(a)->passes->store(device_of(a), a->state, &fresh, sizeof(fresh));
    TRY(cairn__device_check(device_of(a)));
    *out = a;
    a = NULL;
out:
    cairn__entries_clear(&buffers);
    cairn_averages_destroy(&a);
    return st;
}

void cairn_averages_destroy(cairn_averages **averages) {
    if (!averages || !*averages) return;
    cairn_averages *a = *averages;
    struct cairn_device *d = device_of(a);
    if (is_applied(a)) (void)cairn_averages_restore(a);
    if (is_applied(a)) a->set->averages = NULL; /* not restored, because a graph is being recorded, for example */
    for (size_t i = 0; a->slots && i < a->count + a->buffers; i++) {
        cairn__device_free(d, a->slots[i].average);
        cairn__device_free(d, a->slots[i].backup);
    }
    cairn__device_free(d, a->state);
    cairn__device_free(d, a->swapped);
    if (a->set) a->set->users--;
    cairn__free(a->slots);
    cairn__free(a->items);
    cairn__free(a);
    *averages = NULL;
}

/* ---- updates ---- */

cairn_status cairn_averages_update(cairn_averages *averages, cairn_optimizer *optimizer) {
    cairn_status st = CAIRN_OK;
    REQUIRE(averages, CAIRN_EINVAL, "cairn_averages_update: averages is NULL");
    struct cairn_device *d = device_of(averages);
    REQUIRE(!optimizer || optimizer->env == averages->env, CAIRN_EINVAL,
            "cairn_averages_update: the optimizer belongs to another environment");
    TRY(cairn__param_set_check_own_weights("cairn_averages_update", averages->set));
    TRY(look_up("cairn_averages_update", averages));
    d->passes->average_begin(d, averages->state, optimizer ? optimizer->state : NULL);
    for (int t = 0; t < TYPES; t++) {
        const size_t listed = list_slots(averages, types[t]);
        if (listed) d->passes->average(d, averages->items, listed, types[t], averages->state);
    }
    TRY(cairn__device_check(d));
out:
    return st;
}

/* ---- averages in the model ---- */

/* Replays of a recorded step do not change versions, so the optimizers' step counts are noted too. */
static cairn_status note_versions(const cairn_averages *a) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_synchronize(device_of(a)));
    for (size_t i = 0; i < a->count; i++) {
        const struct cairn__param *p = a->set->params[i];
        struct slot *s = &a->slots[i];
        s->version = p->version;
        s->owner = p->owner;
        s->steps = s->owner ? cairn__optimizer_last_report(s->owner).steps : 0;
    }
out:
    return st;
}

static bool weights_changed(const cairn_averages *a) {
    for (size_t i = 0; i < a->count; i++) {
        const struct cairn__param *p = a->set->params[i];
        const struct slot *s = &a->slots[i];
        if (p->version != s->version) return true;
        if (s->owner && p->owner == s->owner && cairn__optimizer_last_report(s->owner).steps != s->steps) return true;
    }
    return false;
}

static cairn_status check_between(const char *call, const cairn_averages *a) {
    cairn_status st = CAIRN_OK;
    REQUIRE(a, CAIRN_EINVAL, "%s: averages is NULL", call);
    TRY(cairn__param_set_check_own_weights(call, a->set));
    TRY(cairn__device_refuse_recording(device_of(a), "averages change places with weights between replays"));
    TRY(cairn__env_check_between_steps(a->env));
out:
    return st;
}

static cairn_status exchange(const cairn_averages *a, const struct slot *s) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = device_of(a);
    for (size_t i = 0; i < s->n; i += SWAPPED) {
        const size_t nbytes = (s->n - i < SWAPPED ? s->n - i : SWAPPED) * sizeof(float);
        float *const w = (float *)s->weights + i;
        TRY(cairn__device_copy(d, a->swapped, w, nbytes));
        TRY(cairn__device_copy(d, w, s->average + i, nbytes));
        TRY(cairn__device_copy(d, s->average + i, a->swapped, nbytes));
    }
out:
    return st;
}

static void round_weights(const cairn_averages *a) {
    for (size_t i = 0; i < a->count; i++) {
        cairn__param_round_from_master(a->set->params[i]);
        a->set->params[i]->version++;
    }
}

cairn_status cairn_averages_apply(cairn_averages *averages) {
    cairn_status st = CAIRN_OK;
    cairn_averages *a = averages;
    TRY(check_between("cairn_averages_apply", a));
    struct cairn_device *d = device_of(a);
    TRY(look_up("cairn_averages_apply", a));
    if (!a->swapped) TRY(cairn__device_alloc(d, CAIRN__HOLDS_OPTIM, SWAPPED * sizeof(float), (void **)&a->swapped));
    for (struct slot *s = a->slots; s < a->slots + a->count + a->buffers; s++) {
        if (s->is_exact || s->backup || !s->n) continue;
        TRY(cairn__device_alloc(d, CAIRN__HOLDS_OPTIM, s->n * cairn_dtype_nbytes(s->type), &s->backup));
    }
    a->set->averages = a;
    for (const struct slot *s = a->slots; s < a->slots + a->count + a->buffers; s++) {
        if (s->is_exact) {
            TRY(exchange(a, s));
        } else if (s->n) {
            TRY(cairn__device_copy(d, s->backup, s->weights, s->n * cairn_dtype_nbytes(s->type)));
            cairn__pass_cast(d->passes, d, s->weights, s->type, s->average, CAIRN_F32, s->n);
        }
    }
    round_weights(a);
    TRY(note_versions(a));
    TRY(cairn__device_check(d));
out:
    return st;
}

cairn_status cairn_averages_restore(cairn_averages *averages) {
    cairn_status st = CAIRN_OK;
    cairn_averages *a = averages;
    REQUIRE(a, CAIRN_EINVAL, "cairn_averages_restore: averages is NULL");
    REQUIRE(is_applied(a), CAIRN_ESTATE, "cairn_averages_restore: the model does not have these averages");
    struct cairn_device *d = device_of(a);
    TRY(cairn__device_refuse_recording(d, "averages change places with weights between replays"));
    TRY(look_up("cairn_averages_restore", a));
    TRY(cairn__device_synchronize(d));
    const bool is_changed = weights_changed(a);
    for (const struct slot *s = a->slots; s < a->slots + a->count + a->buffers; s++) {
        if (s->is_exact) {
            TRY(exchange(a, s));
        } else if (s->n) {
            TRY(cairn__device_copy(d, s->weights, s->backup, s->n * cairn_dtype_nbytes(s->type)));
        }
    }
    round_weights(a);
    a->set->averages = NULL;
    if (is_changed) {
        struct cairn__average now;
        begin_as_weights(a);
        TRY(cairn__device_download(d, &now, a->state, sizeof(now)));
        now.averaged = 0; /* the next update copies the weights */
        d->passes->store(d, a->state, &now, sizeof(now));
    }
    TRY(cairn__device_check(d));
    REQUIRE(!is_changed, CAIRN_ESTATE,
            "cairn_averages_restore: weights were changed while the model had the averages, by a load or a replayed "
            "step; the model has its own weights again, and the averages, which are lost, begin anew as they are");
out:
    return st;
}

cairn_status cairn_averages_copy(cairn_averages *averages) {
    cairn_status st = CAIRN_OK;
    cairn_averages *a = averages;
    TRY(check_between("cairn_averages_copy", a));
    struct cairn_device *d = device_of(a);
    TRY(look_up("cairn_averages_copy", a));
    for (const struct slot *s = a->slots; s < a->slots + a->count + a->buffers; s++) {
        if (s->n) cairn__pass_cast(d->passes, d, s->weights, s->type, s->average, CAIRN_F32, s->n);
    }
    round_weights(a);
    TRY(cairn__device_check(d));
out:
    return st;
}

/* ---- facts ---- */

int64_t cairn_averages_count(const cairn_averages *averages) {
    struct cairn__average now = {.averaged = 0};
    if (!averages) return 0;
    (void)cairn__device_download(device_of(averages), &now, averages->state, sizeof(now));
    return now.averaged;
}

const float *cairn_averages_param(const cairn_averages *averages, size_t i) {
    return averages && i < averages->count && !is_applied(averages) ? averages->slots[i].average : NULL;
}

/* ---- state ---- */

static struct cairn_env *env_of(const void *object) {
    return ((const cairn_averages *)object)->env;
}

static cairn_status list(void *object, struct cairn__entries *entries) {
    cairn_averages *a = object;
    const enum cairn__entry_owner owner = cairn__params_entry_owner(a->set->params, a->count);
    struct cairn__entries buffers = {.env = a->env};
    struct cairn__average now;
    cairn_status st = CAIRN_OK;
    TRY(cairn__param_set_check_own_weights("averages", a->set));
    TRY(cairn__env_check_between_steps(a->env));
    TRY(cairn__device_download(device_of(a), &now, a->state, sizeof(now)));
    for (size_t i = 0; i < a->count; i++) {
        const struct cairn__param *p = a->set->params[i];
        TRY(cairn__entries_add_array(entries, cairn__param_entry_owner(p), CAIRN_F32, p->ndim, p->shape,
                                     a->slots[i].average, "average.%s", p->name));
    }
    if (a->uses_buffers) TRY(list_buffers(a, &buffers));
    for (size_t i = 0; i < a->buffers; i++) {
        const struct cairn__entry *e = &buffers.at[i];
        if (!is_float(e->dtype)) continue;
        TRY(cairn__entries_add_array(entries, e->owner, CAIRN_F32, e->ndim, e->shape, a->slots[a->count + i].average,
                                     "buffer_average.%s", e->name));
    }
    TRY(cairn__entries_add_i64(entries, owner, now.seen, "seen"));
    TRY(cairn__entries_add_i64(entries, owner, now.averaged, "averaged"));
out:
    cairn__entries_clear(&buffers);
    return st;
}

static cairn_status check(const void *object, const struct cairn__entries *entries) {
    (void)object;
    const int64_t seen = cairn__entries_i64(entries, "seen"), averaged = cairn__entries_i64(entries, "averaged");
    REQUIRE(averaged >= 0 && seen >= 0 && averaged < (int64_t)1 << 60 && seen < (int64_t)1 << 60, CAIRN_EINVAL,
            "averages: %lld weights were averaged until step %lld, which cannot be", (long long)averaged,
            (long long)seen);
    return CAIRN_OK;
}

static cairn_status loaded(void *object, const struct cairn__entries *entries) {
    cairn_averages *a = object;
    cairn_status st = CAIRN_OK;
    struct cairn__average now;
    TRY(check(object, entries));
    TRY(cairn__device_download(device_of(a), &now, a->state, sizeof(now)));
    now.seen = cairn__entries_i64(entries, "seen");
    now.averaged = cairn__entries_i64(entries, "averaged");
    device_of(a)->passes->store(device_of(a), a->state, &now, sizeof(now));
out:
    return st;
}

static const struct cairn__stateful_ops ops = {
    .kind = "averages", .env = env_of, .list = list, .check = check, .loaded = loaded};

cairn_stateful cairn_averages_stateful(cairn_averages *averages) {
    return (cairn_stateful){&ops, averages};
}
