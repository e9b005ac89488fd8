/* Parameter sets: creating, destroying, merging one into another, and queries.
 *
 * A set makes no decisions. It holds what nn, ddp, amp and optim share, so that none of them needs to know another. All
 * memory of a steady-state step is allocated by the first step that needs it, and then kept. */
#include "param/param.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"

static struct cairn_device *device_of(const struct cairn__param *p) {
    return p->set->env->device;
}

/* ---- making and ending ---- */

static cairn_status count_elements(const char *name, int ndim, const int64_t *shape, size_t *n) {
    REQUIRE(ndim >= 0 && ndim <= CAIRN_MAX_DIMS, CAIRN_EINVAL, "parameter '%s' has %d dimensions; 0 to %d are allowed",
            name, ndim, CAIRN_MAX_DIMS);
    size_t elements = 1;
    for (int d = 0; d < ndim; d++) {
        REQUIRE(shape[d] >= 0 && (shape[d] == 0 || elements <= (size_t)INT64_MAX / 8 / (size_t)shape[d]), CAIRN_EINVAL,
                "parameter '%s' has size %lld in dimension %d; sizes must be from 0 to what memory can hold", name,
                (long long)shape[d], d);
        elements *= (size_t)shape[d];
    }
    *n = elements;
    return CAIRN_OK;
}

static void param_destroy(struct cairn__param *p) {
    if (!p) return;
    if (p->owns_data) cairn__device_free(device_of(p), p->data);
    if (p->owns_master) cairn__device_free(device_of(p), p->master);
    cairn__grad_free(p->gradient);
    cairn__free(p->name);
    cairn__free(p);
}

/* Copies the description and the gradient's memory from `like`; the caller sets data. */
static cairn_status append(struct cairn_param_set *set, const cairn_param *like, struct cairn__param **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__param *p = NULL;
    TRY(cairn__calloc(1, sizeof(*p), (void **)&p));
    p->set = set;
    p->index = set->count;
    p->dtype = like->dtype;
    p->ndim = like->ndim;
    p->is_norm = like->is_norm == CAIRN_ON;
    p->requires_grad = true;
    TRY(count_elements(like->name, like->ndim, like->shape, &p->n));
    memcpy(p->shape, like->shape, (size_t)like->ndim * sizeof(p->shape[0]));
    TRY(cairn__strdup(like->name, &p->name));
    TRY(cairn__grad_new(p, like->grad, &p->gradient));
    TRY(cairn__grow((void **)&set->params, &set->capacity, set->count + 1, sizeof(set->params[0])));
    TRY(cairn__param_names_make_room(set, set->count + 1));
    cairn__param_names_add(set, p);
    set->params[set->count++] = p;
    *out = p;
    return CAIRN_OK;
out:
    param_destroy(p);
    return st;
}

cairn_status cairn__param_set_new(struct cairn_env *env, struct cairn_param_set **out) {
    struct cairn_param_set *set = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*set), (void **)&set));
    set->env = env;
    struct cairn__place *const place = &env->places[CAIRN__PLACE_OF_PARAM];
    set->next = place->at;
    place->at = set;
    place->alive++;
    *out = set;
out:
    return st;
}

bool cairn__param_set_in_use(const struct cairn_param_set *set, const char *call) {
    if (set->users == 0) return false;
    cairn__log(CAIRN_LOG_ERROR,
               "%s: %d optimizers, averages, amp or ddp contexts use these parameters, which are kept; destroy them "
               "first",
               call, set->users);
    return true;
}

void cairn__param_set_begin_amp(struct cairn_param_set *set, const void *amp, struct cairn__unresolved *losses,
                                const char *precision) {
    set->amp = amp;
    set->losses = losses;
    set->users++;
    snprintf(set->precision, sizeof(set->precision), "%s", precision);
}

void cairn__param_set_end_amp(struct cairn_param_set *set) {
    set->amp = NULL;
    set->losses = NULL;
    set->scale = NULL;
    set->users--;
    memset(set->precision, 0, sizeof(set->precision));
}

void cairn__param_set_begin_listen(struct cairn_param_set *set, const struct cairn__grad_listener *listener,
                                   const char *frozen_by) {
    set->listener = listener;
    set->frozen_by = frozen_by;
    set->users++;
}

void cairn__param_set_end_listen(struct cairn_param_set *set) {
    set->listener = NULL;
    set->keeps_buffers = false;
    set->refusals.count = 0;
    set->frozen_by = NULL;
    set->users--;
}

static void unlink_set(struct cairn_param_set *set) {
    struct cairn__place *const place = &set->env->places[CAIRN__PLACE_OF_PARAM];
    struct cairn_param_set *newer = place->at;
    if (newer == set) {
        place->at = set->next;
    } else {
        while (newer->next != set) newer = newer->next;
        newer->next = set->next;
    }
    place->alive--;
}

void cairn_param_set_destroy(cairn_param_set **set) {
    if (!set || !*set || cairn__param_set_in_use(*set, "cairn_param_set_destroy")) return;
    unlink_set(*set);
    for (size_t i = 0; i < (*set)->count; i++) param_destroy((*set)->params[i]);
    cairn__param_set_unwatch_losses(*set);
    cairn__device_free((*set)->env->device, (*set)->flags);
    cairn__free((*set)->items);
    cairn__free((*set)->listed);
    cairn__free((*set)->params);
    cairn__free((*set)->chains);
    cairn__free(*set);
    *set = NULL;
}

bool cairn__param_set_has_gradients(const struct cairn_param_set *set) {
    for (size_t i = 0; set->backward > 0 && i < set->count; i++) {
        const struct cairn__grad *g = set->params[i]->gradient;
        if (cairn__grad_exists(g) || cairn__grad_is_unsynced(g)) return true;
    }
    return false;
}

cairn_status cairn__param_check_memory(const struct cairn_param_set *set, const cairn_param *given, const char *what,
                                       const void *p) {
    REQUIRE((uintptr_t)p % cairn_dtype_nbytes(given->dtype) == 0, CAIRN_EINVAL,
            "parameter '%s': %s at %p is not aligned for %s", given->name, what, p, cairn_dtype_name(given->dtype));
    REQUIRE(cairn__device_reaches(set->env->device, p), CAIRN_EINVAL,
            "parameter '%s': %s is host memory, but the environment computes on %s; pass memory of that device",
            given->name, what, set->env->device->ops->name);
    return CAIRN_OK;
}

static cairn_status add_users(struct cairn_param_set *set, const cairn_param *given) {
    REQUIRE(given->name && given->name[0], CAIRN_EINVAL, "parameter %zu has no name", set->count);
    REQUIRE(!cairn__param_set_find(set, given->name), CAIRN_EINVAL, "two parameters are called '%s'", given->name);
    REQUIRE(given->dtype == CAIRN_F32 || cairn__is_half(given->dtype), CAIRN_EINVAL,
            "parameter '%s' has dtype %d (%s); f32, f16 and bf16 are allowed", given->name, (int)given->dtype,
            cairn_dtype_name(given->dtype));
    cairn_status st = CAIRN_OK;
    struct cairn__param *p = NULL;
    TRY(cairn__param_check_memory(set, given, "data", given->data));
    if (given->grad) TRY(cairn__param_check_memory(set, given, "grad", given->grad));
    TRY(append(set, given, &p));
    p->data = given->data;
    if (given->data || p->n == 0) return CAIRN_OK;
    st = cairn__fail(CAIRN_EINVAL, "parameter '%s' has no data", given->name);
    cairn__param_set_drop_last(set);
out:
    return st;
}

cairn_status cairn_param_set_create_sized(size_t param_nbytes, cairn_env *env, const cairn_param *params, size_t count,
                                          cairn_param_set **out) {
    REQUIRE(env && out && (params || count == 0), CAIRN_EINVAL,
            "cairn_param_set_create: env, params and out must be set");
    cairn_status st = CAIRN_OK;
    struct cairn_param_set *set = NULL;
    TRY(cairn__element_check(param_nbytes, "cairn_param"));
    TRY(cairn__param_set_new(env, &set));
    set->is_users = true;
    for (size_t i = 0; i < count; i++) {
        cairn_param given = {0};
        TRY(cairn__element_read(&given, sizeof(given), params, param_nbytes, i, "cairn_param"));
        TRY(add_users(set, &given));
    }
    *out = set;
    return CAIRN_OK;
out:
    cairn_param_set_destroy(&set);
    return st;
}

cairn_status(cairn_param_set_create)(cairn_env *env, const cairn_param *params, size_t count, cairn_param_set **out) {
    return cairn_param_set_create_sized(CAIRN__PARAM_0_8, env, params, count, out);
}

/* ---- slices of one array ---- */

static cairn_status check_may_add(const cairn_param_set *set, const cairn_param *first, size_t count, size_t stride) {
    const char *const what = first && first->name ? first->name : "";
    REQUIRE(set && first, CAIRN_EINVAL, "cairn_param_set_add: set and first must be set");
    REQUIRE(!first->name || first->name[0], CAIRN_EINVAL, "parameter %zu has no name", set->count);
    REQUIRE(set->is_users, CAIRN_EINVAL, "cairn_param_set_add '%s': the set is a module's; use cairn_module_add_param",
            what);
    REQUIRE(set->users == 0 && !cairn__param_set_has_gradients(set), CAIRN_ESTATE,
            "cairn_param_set_add '%s': an optimizer, averages, amp or ddp use the set, or it has gradients; add all "
            "parameters first",
            what);
    size_t n = 0;
    cairn_status st = CAIRN_OK;
    TRY(count_elements(what, first->ndim, first->shape, &n));
    REQUIRE(stride == 0 || stride >= n || count < 2, CAIRN_EINVAL,
            "cairn_param_set_add '%s': slices of %zu elements overlap at a stride of %zu", what, n, stride);
    REQUIRE(count < 2 || (stride ? stride : n) <= (size_t)INT64_MAX / 8 / count, CAIRN_EINVAL,
            "cairn_param_set_add '%s': %zu slices of %zu elements are more than memory can hold", what, count, n);
out:
    return st;
}

static void *slice_at(void *array, const cairn_param *first, size_t elements) {
    return array ? (char *)array + elements * cairn_dtype_nbytes(first->dtype) : NULL;
}

static cairn_status add_slices(cairn_param_set *set, const cairn_param *first, size_t count, size_t stride) {
    cairn_status st = CAIRN_OK;
    char *name = NULL;
    const size_t before = set ? set->count : 0;
    TRY(check_may_add(set, first, count, stride));
    const size_t nbytes = (first->name ? strlen(first->name) : 0) + sizeof("param") + 21;
    size_t step = stride;
    TRY(cairn__alloc(nbytes, (void **)&name));
    if (!stride) TRY(count_elements("", first->ndim, first->shape, &step));
    for (size_t i = 0; i < count; i++) {
        cairn_param slice = *first;
        /* The slice's number replaces %d, or follows a dot. Without a name: "param" and the number in the set. */
        const char *const at = first->name ? strstr(first->name, "%d") : NULL;
        if (!first->name) {
            snprintf(name, nbytes, "param%zu", set->count);
        } else if (at) {
            snprintf(name, nbytes, "%.*s%zu%s", (int)(at - first->name), first->name, i, at + 2);
        } else if (count > 1) {
            snprintf(name, nbytes, "%s.%zu", first->name, i);
        } else {
            snprintf(name, nbytes, "%s", first->name);
        }
        slice.name = name;
        slice.data = slice_at(first->data, first, i * step);
        slice.grad = slice_at(first->grad, first, i * step);
        TRY(add_users(set, &slice));
    }
out:
    while (st != CAIRN_OK && set && set->count > before) cairn__param_set_drop_last(set);
    cairn__free(name);
    return st;
}

cairn_status cairn_param_set_add_sized(size_t param_nbytes, cairn_param_set *set, const cairn_param *first,
                                       size_t count, size_t stride) {
    cairn_param given = {0};
    cairn_status st = CAIRN_OK;
    TRY(cairn__element_check(param_nbytes, "cairn_param"));
    if (first) TRY(cairn__element_read(&given, sizeof(given), first, param_nbytes, 0, "cairn_param"));
    TRY(add_slices(set, first ? &given : NULL, count, stride));
out:
    return st;
}

cairn_status(cairn_param_set_add)(cairn_param_set *set, const cairn_param *first, size_t count, size_t stride) {
    return cairn_param_set_add_sized(CAIRN__PARAM_0_8, set, first, count, stride);
}

cairn_status cairn__param_set_add(struct cairn_param_set *set, const char *name, int ndim, const int64_t *shape,
                                  bool is_norm, struct cairn__param **out) {
    cairn_param like = {.name = name, .dtype = CAIRN_F32, .ndim = ndim, .is_norm = is_norm ? CAIRN_ON : CAIRN_OFF};
    if (ndim > 0 && ndim <= CAIRN_MAX_DIMS) memcpy(like.shape, shape, (size_t)ndim * sizeof(shape[0]));
    struct cairn__param *p = NULL;
    cairn_status st = CAIRN_OK;
    TRY(append(set, &like, &p));
    st = cairn__device_alloc(set->env->device, CAIRN__HOLDS_PARAMS, p->n * sizeof(float), &p->data);
    if (st != CAIRN_OK) {
        cairn__param_set_drop_last(set);
        return st;
    }
    p->owns_data = true;
    *out = p;
out:
    return st;
}

void cairn__param_set_drop_last(struct cairn_param_set *set) {
    struct cairn__param *last = set->params[--set->count];
    cairn__param_names_drop_last(set, last);
    param_destroy(last);
}

/* ---- one set into another ---- */

static cairn_status longer_name(const struct cairn_param_set *set, const char *prefix, const char *name, char **out) {
    const size_t nbytes = strlen(prefix) + strlen(name) + 1;
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc(nbytes, (void **)out));
    snprintf(*out, nbytes, "%s%s", prefix, name);
    REQUIRE(!cairn__param_set_find(set, *out), CAIRN_EINVAL, "two parameters are called '%s'", *out);
out:
    return st;
}

/* Allocates all memory first, so that a failure changes nothing. */
cairn_status cairn__param_set_adopt(struct cairn_param_set *set, struct cairn_param_set **child, const char *prefix) {
    cairn_status st = CAIRN_OK;
    struct cairn_param_set *from = *child;
    char **names = NULL;
    REQUIRE(set->users == 0 && from->users == 0, CAIRN_ESTATE,
            "'%s': an optimizer, averages, amp or ddp use these parameters; build the whole model before making them",
            prefix);
    for (size_t i = 0; i < from->count; i++) {
        const struct cairn__param *p = from->params[i];
        REQUIRE(!cairn__grad_exists(p->gradient) && !cairn__grad_is_unsynced(p->gradient), CAIRN_ESTATE,
                "'%s': parameter '%s' has a gradient; build the whole model before its first backward", prefix,
                p->name);
    }
    TRY(cairn__calloc(from->count, sizeof(names[0]), (void **)&names));
    TRY(cairn__grow((void **)&set->params, &set->capacity, set->count + from->count, sizeof(set->params[0])));
    TRY(cairn__param_names_make_room(set, set->count + from->count));
    for (size_t i = 0; i < from->count; i++) TRY(longer_name(set, prefix, from->params[i]->name, &names[i]));
    for (size_t i = 0; i < from->count; i++) {
        cairn__free(from->params[i]->name);
        from->params[i]->name = names[i];
        from->params[i]->set = set;
        from->params[i]->index = set->count;
        cairn__param_names_add(set, from->params[i]);
        set->params[set->count++] = from->params[i];
        names[i] = NULL;
    }
    from->count = 0;
    cairn__free(names);
    cairn_param_set_destroy(child);
    return CAIRN_OK;
out:
    for (size_t i = 0; names && i < from->count; i++) cairn__free(names[i]);
    cairn__free(names);
    return st;
}
/* ---- looking ---- */

size_t cairn_param_set_count(const cairn_param_set *set) {
    return set ? set->count : 0;
}

/* Clears padding too: users may compare records bytewise, and must not see stack memory. */
void cairn__param_describe(const struct cairn__param *p, cairn_param *out) {
    memset(out, 0, sizeof(*out));
    out->name = p->name;
    out->data = p->data;
    out->grad = cairn__grad_memory(p->gradient);
    out->dtype = p->dtype;
    out->ndim = p->ndim;
    out->is_norm = p->is_norm ? CAIRN_ON : CAIRN_OFF;
    memcpy(out->shape, p->shape, sizeof(p->shape));
}

cairn_status cairn_param_set_get_sized(size_t param_nbytes, const cairn_param_set *set, size_t i, cairn_param *out) {
    REQUIRE(set && out, CAIRN_EINVAL, "set and out must be set");
    REQUIRE(i < set->count, CAIRN_EINVAL, "parameter index is %zu, but the set has %zu parameters", i, set->count);
    struct cairn__param *p = set->params[i];
    cairn_status st = CAIRN_OK;
    cairn_param entry;
    TRY(cairn__element_check(param_nbytes, "cairn_param"));
    if (set->is_users && cairn__param_requires_grad(p)) TRY(cairn__grad_make_memory(p->gradient));
    cairn__param_describe(p, &entry);
    cairn__element_write(out, param_nbytes, 0, &entry, sizeof(entry));
out:
    return st;
}

cairn_status(cairn_param_set_get)(const cairn_param_set *set, size_t i, cairn_param *out) {
    return cairn_param_set_get_sized(CAIRN__PARAM_0_8, set, i, out);
}
