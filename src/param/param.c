/* Parameter sets: their memory, their gradients' state, their flags.
 *
 * A set decides nothing: it holds what nn, ddp, amp and optim must agree on, so that none of them needs to know
 * another. Everything that can be needed in a steady step is allocated at the first step that needs it and then
 * kept. */
#include "param/param.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"

static struct cairn_device *device_of(const struct cairn__param *p) {
    return p->set->env->device;
}

static void cast(const struct cairn__param *p, void *dst, cairn_dtype to, const void *src, cairn_dtype from) {
    struct cairn_device *d = device_of(p);
    cairn__pass_cast(d->passes, d, dst, to, src, from, p->n);
}

/* ---- making and ending ---- */

static cairn_status count_elements(const char *name, int ndim, const int64_t *shape, size_t *n) {
    REQUIRE(ndim >= 0 && ndim <= CAIRN_MAX_DIMS, CAIRN_EINVAL, "parameter '%s' has %d dimensions; 0 to %d are allowed",
            name, ndim, CAIRN_MAX_DIMS);
    size_t elements = 1;
    for (int d = 0; d < ndim; d++) {
        REQUIRE(shape[d] >= 0 && (shape[d] == 0 || elements <= (size_t)INT64_MAX / 8 / (size_t)shape[d]), CAIRN_EINVAL,
                "parameter '%s' has size %lld in dimension %d", name, (long long)shape[d], d);
        elements *= (size_t)shape[d];
    }
    *n = elements;
    return CAIRN_OK;
}

static void param_destroy(struct cairn__param *p) {
    if (!p) return;
    if (p->owns_data) cairn__device_free(device_of(p), p->data);
    if (p->owns_master) cairn__device_free(device_of(p), p->master);
    if (p->owns_grad) cairn__device_free(device_of(p), p->grad);
    cairn__device_free(device_of(p), p->acc);
    cairn__device_free(device_of(p), p->local);
    cairn__free(p->name);
    cairn__free(p);
}

/* Takes its description from `like`; data and grad are the caller's business. */
static cairn_status append(struct cairn_param_set *set, const cairn_param *like, struct cairn__param **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__param *p = NULL;
    TRY(cairn__calloc(1, sizeof(*p), (void **)&p));
    p->set = set;
    p->index = set->count;
    p->dtype = like->dtype;
    p->ndim = like->ndim;
    p->is_norm = like->is_norm == CAIRN_ON;
    TRY(count_elements(like->name, like->ndim, like->shape, &p->n));
    memcpy(p->shape, like->shape, (size_t)like->ndim * sizeof(p->shape[0]));
    TRY(cairn__strdup(like->name, &p->name));
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
    cairn_status st = cairn__calloc(1, sizeof(*set), (void **)&set);
    if (st != CAIRN_OK) return st;
    set->env = env;
    set->next = env->last_set;
    env->last_set = set;
    env->sets++;
    *out = set;
    return CAIRN_OK;
}

bool cairn__param_set_in_use(const struct cairn_param_set *set, const char *call) {
    if (set->users == 0) return false;
    cairn__log(
        CAIRN_LOG_ERROR,
        "%s: %d optimizers, amp or ddp contexts still use these parameters, which are therefore kept; destroy ddp, "
        "amp and optimizer first",
        call, set->users);
    return true;
}

static void unlink_set(struct cairn_param_set *set) {
    struct cairn_param_set **at = &set->env->last_set;
    while (*at != set) at = &(*at)->next;
    *at = set->next;
    set->env->sets--;
}

void cairn_param_set_destroy(cairn_param_set **set) {
    if (!set || !*set || cairn__param_set_in_use(*set, "cairn_param_set_destroy")) return;
    unlink_set(*set);
    for (size_t i = 0; i < (*set)->count; i++) param_destroy((*set)->params[i]);
    cairn__param_set_unwatch_losses(*set);
    cairn__device_free((*set)->env->device, (*set)->flags);
    cairn__free((*set)->items);
    cairn__free((*set)->params);
    cairn__free((*set)->chains);
    cairn__free(*set);
    *set = NULL;
}

bool cairn__param_set_has_gradients(const struct cairn_param_set *set) {
    for (size_t i = 0; set->backward > 0 && i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        if (p->written || p->has_acc || p->has_local) return true;
    }
    return false;
}

static cairn_status check_memory(const struct cairn_param_set *set, const cairn_param *given, const char *what,
                                 const void *p) {
    REQUIRE((uintptr_t)p % cairn_dtype_nbytes(given->dtype) == 0, CAIRN_EINVAL,
            "parameter '%s': %s at %p is not aligned for %s", given->name, what, p, cairn_dtype_name(given->dtype));
    REQUIRE(cairn__device_reaches(set->env->device, p), CAIRN_EINVAL,
            "parameter '%s': %s is memory of the host, but the environment computes on %s: give memory of that device",
            given->name, what, set->env->device->ops->name);
    return CAIRN_OK;
}

static cairn_status make_slot(struct cairn__param *p) {
    cairn_status st =
        cairn__device_alloc(device_of(p), CAIRN__HOLDS_GRADS, p->n * cairn_dtype_nbytes(p->dtype), &p->grad);
    if (st == CAIRN_OK) p->owns_grad = true;
    return st;
}

static cairn_status add_users(struct cairn_param_set *set, const cairn_param *given) {
    REQUIRE(given->name && given->name[0], CAIRN_EINVAL, "parameter %zu has no name", set->count);
    REQUIRE(!cairn__param_set_find(set, given->name), CAIRN_EINVAL, "two parameters are called '%s'", given->name);
    REQUIRE(given->dtype == CAIRN_F32 || cairn__is_half(given->dtype), CAIRN_EINVAL,
            "parameter '%s' has dtype %d (%s); f32, f16 and bf16 are allowed", given->name, (int)given->dtype,
            cairn_dtype_name(given->dtype));
    cairn_status st = CAIRN_OK;
    struct cairn__param *p = NULL;
    TRY(check_memory(set, given, "data", given->data));
    if (given->grad) TRY(check_memory(set, given, "grad", given->grad));
    TRY(append(set, given, &p));
    p->data = given->data;
    p->grad = given->grad;
    if (given->data || p->n == 0) return CAIRN_OK;
    st = cairn__fail(CAIRN_EINVAL, "parameter '%s' has no data", given->name);
    cairn__param_set_drop_last(set);
out:
    return st;
}

cairn_status cairn_param_set_create(cairn_env *env, const cairn_param *params, size_t count, cairn_param_set **out) {
    REQUIRE(env && out && (params || count == 0), CAIRN_EINVAL,
            "cairn_param_set_create: env, params and out must be set");
    cairn_status st = CAIRN_OK;
    struct cairn_param_set *set = NULL;
    TRY(cairn__param_set_new(env, &set));
    set->is_users = true;
    for (size_t i = 0; i < count; i++) TRY(add_users(set, &params[i]));
    *out = set;
    return CAIRN_OK;
out:
    cairn_param_set_destroy(&set);
    return st;
}

/* ---- slices of one array ---- */

static cairn_status check_may_add(const cairn_param_set *set, const cairn_param *first, size_t count, size_t stride) {
    const char *const what = first && first->name ? first->name : "";
    REQUIRE(set && first, CAIRN_EINVAL, "cairn_param_set_add: set and first must be set");
    REQUIRE(!first->name || first->name[0], CAIRN_EINVAL, "parameter %zu has no name", set->count);
    REQUIRE(set->is_users, CAIRN_EINVAL, "cairn_param_set_add '%s': the set is a module's; use cairn_module_add_param",
            what);
    REQUIRE(set->users == 0 && !cairn__param_set_has_gradients(set), CAIRN_ESTATE,
            "cairn_param_set_add '%s': an optimizer, amp or ddp uses the set, or it has gradients; add all parameters "
            "first",
            what);
    size_t n = 0;
    const cairn_status st = count_elements(what, first->ndim, first->shape, &n);
    if (st != CAIRN_OK) return st;
    REQUIRE(stride == 0 || stride >= n || count < 2, CAIRN_EINVAL,
            "cairn_param_set_add '%s': slices of %zu elements overlap at a stride of %zu", what, n, stride);
    REQUIRE(count < 2 || (stride ? stride : n) <= (size_t)INT64_MAX / 8 / count, CAIRN_EINVAL,
            "cairn_param_set_add '%s': %zu slices of %zu elements are more than memory can hold", what, count, n);
    return CAIRN_OK;
}

/* The slice's number in the place of %d, or behind a dot; "param" and the number in the set without a name. */
static void name_slice(char *out, size_t nbytes, const cairn_param_set *set, const char *pattern, size_t i,
                       size_t count) {
    const char *const at = pattern ? strstr(pattern, "%d") : NULL;
    if (!pattern) {
        snprintf(out, nbytes, "param%zu", set->count);
    } else if (at) {
        snprintf(out, nbytes, "%.*s%zu%s", (int)(at - pattern), pattern, i, at + 2);
    } else if (count > 1) {
        snprintf(out, nbytes, "%s.%zu", pattern, i);
    } else {
        snprintf(out, nbytes, "%s", pattern);
    }
}

static void *slice_at(void *array, const cairn_param *first, size_t elements) {
    return array ? (char *)array + elements * cairn_dtype_nbytes(first->dtype) : NULL;
}

cairn_status cairn_param_set_add(cairn_param_set *set, const cairn_param *first, size_t count, size_t stride) {
    cairn_status st = check_may_add(set, first, count, stride);
    if (st != CAIRN_OK) return st;
    const size_t before = set->count, nbytes = (first->name ? strlen(first->name) : 0) + sizeof("param") + 21;
    size_t step = stride;
    char *name = NULL;
    TRY(cairn__alloc(nbytes, (void **)&name));
    if (!stride) TRY(count_elements("", first->ndim, first->shape, &step));
    for (size_t i = 0; i < count; i++) {
        cairn_param slice = *first;
        name_slice(name, nbytes, set, first->name, i, count);
        slice.name = name;
        slice.data = slice_at(first->data, first, i * step);
        slice.grad = slice_at(first->grad, first, i * step);
        TRY(add_users(set, &slice));
    }
out:
    while (st != CAIRN_OK && set->count > before) cairn__param_set_drop_last(set);
    cairn__free(name);
    return st;
}

cairn_status cairn__param_set_add(struct cairn_param_set *set, const char *name, int ndim, const int64_t *shape,
                                  bool is_norm, struct cairn__param **out) {
    cairn_param like = {.name = name, .dtype = CAIRN_F32, .ndim = ndim, .is_norm = is_norm ? CAIRN_ON : CAIRN_OFF};
    if (ndim > 0 && ndim <= CAIRN_MAX_DIMS) memcpy(like.shape, shape, (size_t)ndim * sizeof(shape[0]));
    struct cairn__param *p = NULL;
    cairn_status st = append(set, &like, &p);
    if (st != CAIRN_OK) return st;
    st = cairn__device_alloc(set->env->device, CAIRN__HOLDS_PARAMS, p->n * sizeof(float), &p->data);
    if (st != CAIRN_OK) {
        cairn__param_set_drop_last(set);
        return st;
    }
    p->owns_data = true;
    *out = p;
    return CAIRN_OK;
}

void cairn__param_set_drop_last(struct cairn_param_set *set) {
    struct cairn__param *last = set->params[--set->count];
    cairn__param_names_drop_last(set, last);
    param_destroy(last);
}

/* ---- one set into another ---- */

static cairn_status check_may_move(const struct cairn_param_set *set, const struct cairn_param_set *from,
                                   const char *prefix) {
    REQUIRE(set->users == 0 && from->users == 0, CAIRN_ESTATE,
            "'%s': an optimizer, amp or ddp uses these parameters, which can therefore not become part of another set",
            prefix);
    for (size_t i = 0; i < from->count; i++) {
        const struct cairn__param *p = from->params[i];
        REQUIRE(!p->written && !p->has_acc && !p->has_local, CAIRN_ESTATE,
                "'%s': parameter '%s' has a gradient; build the whole model before its first backward", prefix,
                p->name);
    }
    return CAIRN_OK;
}

static cairn_status longer_name(const struct cairn_param_set *set, const char *prefix, const char *name, char **out) {
    const size_t nbytes = strlen(prefix) + strlen(name) + 1;
    cairn_status st = cairn__alloc(nbytes, (void **)out);
    if (st != CAIRN_OK) return st;
    snprintf(*out, nbytes, "%s%s", prefix, name);
    REQUIRE(!cairn__param_set_find(set, *out), CAIRN_EINVAL, "two parameters are called '%s'", *out);
    return CAIRN_OK;
}

static void move(struct cairn_param_set *set, struct cairn__param *p, char *name) {
    cairn__free(p->name);
    p->name = name;
    p->set = set;
    p->index = set->count;
    cairn__param_names_add(set, p);
    set->params[set->count++] = p;
}

/* All memory first, so that a failure changes nothing. */
cairn_status cairn__param_set_adopt(struct cairn_param_set *set, struct cairn_param_set **child, const char *prefix) {
    cairn_status st = CAIRN_OK;
    struct cairn_param_set *from = *child;
    char **names = NULL;
    TRY(check_may_move(set, from, prefix));
    TRY(cairn__calloc(from->count, sizeof(names[0]), (void **)&names));
    TRY(cairn__grow((void **)&set->params, &set->capacity, set->count + from->count, sizeof(set->params[0])));
    TRY(cairn__param_names_make_room(set, set->count + from->count));
    for (size_t i = 0; i < from->count; i++) TRY(longer_name(set, prefix, from->params[i]->name, &names[i]));
    for (size_t i = 0; i < from->count; i++) {
        move(set, from->params[i], names[i]);
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

static cairn_status check_may_change(const struct cairn__param *p) {
    REQUIRE(!p->set->frozen_by, CAIRN_ESTATE, "parameter '%s' cannot change its type after %s", p->name,
            p->set->frozen_by);
    REQUIRE(p->owns_data && p->dtype == CAIRN_F32, CAIRN_ENOTSUP,
            "parameter '%s' is %s in %s memory; only f32 parameters of a module can be made half", p->name,
            cairn_dtype_name(p->dtype), p->owns_data ? "Cairn's" : "the user's");
    return CAIRN_OK;
}

/* Cannot fail; weights becomes p's. */
static void turn_half(struct cairn__param *p, cairn_dtype half, void *weights, bool keep_master) {
    cast(p, weights, half, p->data, CAIRN_F32);
    if (keep_master) {
        p->master = p->data;
        p->owns_master = true;
    } else {
        cairn__device_free(device_of(p), p->data);
    }
    p->data = weights;
    p->dtype = half;
    if (p->owns_grad) cairn__device_free(device_of(p), p->grad);
    p->grad = NULL;
    p->owns_grad = p->written = p->has_acc = p->held = p->has_local = p->own = false;
    p->version++;
}

static cairn_status make_halves(const struct cairn_param_set *set, cairn_dtype half, bool keep_norms, void **weights) {
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        if (keep_norms && p->is_norm) continue;
        cairn_status st = check_may_change(p);
        if (st == CAIRN_OK)
            st = cairn__device_alloc(device_of(p), CAIRN__HOLDS_PARAMS, p->n * cairn_dtype_nbytes(half), &weights[i]);
        if (st != CAIRN_OK) return st;
    }
    return CAIRN_OK;
}

static void turn_set_half(struct cairn_param_set *set, cairn_dtype half, bool keep_master, void **weights) {
    for (size_t i = 0; i < set->count; i++) {
        if (weights[i]) turn_half(set->params[i], half, weights[i], keep_master);
        weights[i] = NULL;
    }
    if (set->env->begin_step) set->env->begin_step(set->env); /* results show or wait for weights that are gone */
}

static void free_halves(const struct cairn_param_set *set, void **weights) {
    for (size_t i = 0; weights && i < set->count; i++) cairn__device_free(set->env->device, weights[i]);
    cairn__free(weights);
}

/* All memory first, so that a failure changes nothing. */
cairn_status cairn__param_sets_to_half(struct cairn_param_set *const *sets, size_t count, cairn_dtype half,
                                       bool keep_master, bool keep_norms) {
    cairn_status st = CAIRN_OK;
    void ***weights = NULL; /* of each set, of each parameter */
    TRY(cairn__calloc(count, sizeof(weights[0]), (void **)&weights));
    for (size_t s = 0; s < count; s++) {
        TRY(cairn__calloc(sets[s]->count, sizeof(weights[s][0]), (void **)&weights[s]));
        TRY(make_halves(sets[s], half, keep_norms, weights[s]));
    }
    for (size_t s = 0; s < count; s++) turn_set_half(sets[s], half, keep_master, weights[s]);
out:
    for (size_t s = 0; weights && s < count; s++) free_halves(sets[s], weights[s]);
    cairn__free(weights);
    return st;
}

static cairn_status check_may_take(const struct cairn__param *p, cairn_dtype half) {
    REQUIRE(!p->set->frozen_by, CAIRN_ESTATE, "parameter '%s' cannot change its values after %s", p->name,
            p->set->frozen_by);
    REQUIRE(p->set->is_users, CAIRN_EINVAL, "parameter '%s' belongs to a module: give the module to amp_initialize",
            p->name);
    REQUIRE(p->dtype == CAIRN_F32 || p->dtype == half || !half, CAIRN_EINVAL,
            "parameter '%s' is %s, but the half type chosen is %s; choose one", p->name, cairn_dtype_name(p->dtype),
            cairn_dtype_name(half));
    return CAIRN_OK;
}

static bool stays_f32(const struct cairn__param *p, cairn_dtype half, bool keep_norms) {
    return p->dtype == CAIRN_F32 && (!half || (keep_norms && p->is_norm));
}

static cairn_status make_masters(struct cairn_param_set *set, cairn_dtype half, bool masters, bool keep_norms,
                                 float **made) {
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        cairn_status st = check_may_take(p, half);
        if (st == CAIRN_OK && masters && !p->master && !stays_f32(p, half, keep_norms))
            st = cairn__device_alloc(device_of(p), CAIRN__HOLDS_PARAMS, p->n * sizeof(float), (void **)&made[i]);
        if (st != CAIRN_OK) return st;
    }
    return CAIRN_OK;
}

static void drop_master(struct cairn__param *p) {
    if (p->owns_master) cairn__device_free(device_of(p), p->master);
    p->master = NULL;
    p->owns_master = false;
}

/* Cannot fail. made: NULL where a master of an earlier context is there still, or none is wanted. */
static void take_half_values(struct cairn__param *p, cairn_dtype half, bool has_master, float *made) {
    if (made) {
        cast(p, made, CAIRN_F32, p->data, p->dtype);
        p->master = made;
        p->owns_master = true;
    }
    if (!has_master) drop_master(p);
    if (p->dtype == CAIRN_F32) p->value_type = half;
    cairn__param_round_from_master(p);
    p->version++;
}

/* What an earlier context made half is f32 again, with the bits of its master. Cannot fail. */
static void take_f32_values(struct cairn__param *p) {
    if (!p->value_type) return;
    if (p->master) cast(p, p->data, CAIRN_F32, p->master, CAIRN_F32);
    drop_master(p);
    p->value_type = (cairn_dtype)0;
    p->version++;
}

cairn_status cairn__param_set_take_half_values(struct cairn_param_set *set, cairn_dtype half, bool masters,
                                               bool keep_norms) {
    cairn_status st = CAIRN_OK;
    float **made = NULL;
    TRY(cairn__calloc(set->count, sizeof(made[0]), (void **)&made));
    TRY(make_masters(set, half, masters, keep_norms, made));
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        if (stays_f32(p, half, keep_norms)) {
            take_f32_values(p);
        } else {
            take_half_values(p, half, masters, made[i]);
        }
        made[i] = NULL;
    }
out:
    for (size_t i = 0; made && i < set->count; i++) cairn__device_free(set->env->device, made[i]);
    cairn__free(made);
    return st;
}

/* ---- looking ---- */

size_t cairn_param_set_count(const cairn_param_set *set) {
    return set ? set->count : 0;
}

void cairn__param_describe(const struct cairn__param *p, cairn_param *out) {
    *out = (cairn_param){.name = p->name,
                         .data = p->data,
                         .grad = p->grad,
                         .dtype = p->dtype,
                         .ndim = p->ndim,
                         .is_norm = p->is_norm ? CAIRN_ON : CAIRN_OFF};
    memcpy(out->shape, p->shape, sizeof(p->shape));
}

cairn_status cairn_param_set_get(const cairn_param_set *set, size_t i, cairn_param *out) {
    REQUIRE(set && out, CAIRN_EINVAL, "set and out must be set");
    REQUIRE(i < set->count, CAIRN_EINVAL, "parameter %zu of a set of %zu", i, set->count);
    struct cairn__param *p = set->params[i];
    const cairn_status st = set->is_users && !p->grad ? make_slot(p) : CAIRN_OK;
    if (st == CAIRN_OK) cairn__param_describe(p, out);
    return st;
}

float *cairn_param_master(const cairn_param_set *set, size_t i) {
    if (!set || i >= set->count) return NULL;
    const struct cairn__param *p = set->params[i];
    return p->master ? p->master : p->dtype == CAIRN_F32 ? p->data : NULL;
}

cairn_status cairn_param_changed(cairn_param_set *set, size_t i, int master_was_written) {
    REQUIRE(set && i < set->count, CAIRN_EINVAL, "parameter %zu of a set of %zu", i, cairn_param_set_count(set));
    struct cairn__param *p = set->params[i];
    if (p->master && !master_was_written) cast(p, p->master, CAIRN_F32, p->data, p->dtype);
    if (p->value_type || master_was_written) cairn__param_round_from_master(p);
    p->version++;
    return CAIRN_OK;
}

/* ---- gradients ---- */

static cairn_status make_accumulator(struct cairn__param *p) {
    if (p->acc) return CAIRN_OK;
    cairn_status st = cairn__device_alloc(device_of(p), CAIRN__HOLDS_GRADS, p->n * sizeof(float), (void **)&p->acc);
    if (st != CAIRN_OK) return st;
    cairn__log(CAIRN_LOG_INFO, "'%s' accumulates over several backwards: %zu bytes more", p->name,
               p->n * sizeof(float));
    return CAIRN_OK;
}

/* acc (+)= slot * factor; the slot is then free. What the slot's flag tells already is not told of its backward
 * again. */
static cairn_status fold(struct cairn__param *p) {
    if (p->held) return cairn__param_keep(p);
    cairn_status st = CAIRN_OK;
    TRY(cairn__param_set_make_flags(p->set));
    TRY(make_accumulator(p));
    struct cairn_device *d = device_of(p);
    uint32_t *const flag = p->checked ? cairn__param_acc_flag(p) : cairn__param_flag(p);
    const struct cairn__item item = {.n = p->n, .dst = p->acc, .x = p->grad, .y = p->acc, .found = flag};
    if (p->has_acc) {
        d->passes->axpby(d, &item, 1, CAIRN_F32, p->dtype, p->factor, 1.0f, NULL);
    } else {
        d->passes->scale(d, &item, 1, CAIRN_F32, p->dtype, p->factor, NULL);
    }
    *(p->checked ? &p->acc_flag_touched : &p->flag_touched) = true;
    p->has_acc = p->acc_checked = true;
    p->written = false;
out:
    return st;
}

static cairn_status fold_at(struct cairn_param_set *set, const float *factor) {
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        cairn_status st = p->written && p->factor == factor ? fold(p) : CAIRN_OK;
        if (st != CAIRN_OK) return st;
    }
    if (set->factor == factor) set->factor = NULL; /* the next backward sets its own */
    return CAIRN_OK;
}

cairn_status cairn__params_fold_at(struct cairn_env *env, const float *factor) {
    cairn_status st = CAIRN_OK;
    for (struct cairn_param_set *set = env->last_set; st == CAIRN_OK && set; set = set->next) st = fold_at(set, factor);
    return st;
}

cairn_status cairn__param_grad_slot(struct cairn__param *p, void **slot) {
    cairn_status st = CAIRN_OK;
    if (!p->grad) TRY(make_slot(p));
    if (p->clip) TRY(cairn__param_unscale(p)); /* what is added is not clipped */
    if (p->written) TRY(fold(p));
    *slot = p->grad;
out:
    return st;
}

void cairn__param_grad_ready(struct cairn__param *p) {
    struct cairn_param_set *set = p->set;
    p->written = true;
    p->factor = set->factor;
    p->checked = false;
    p->clip = NULL;
    p->held = set->held && !set->spares_held;
    p->written = p->held || !set->held;
    if (set->held) return;
    cairn__param_add_held(p);
    if (set->listener) set->listener->ready(set->listener->ctx, p->index);
}

/* ---- gradients of the user's ---- */

static cairn_status check_range(const char *call, const cairn_param_set *set, size_t first, size_t count) {
    REQUIRE(set, CAIRN_EINVAL, "%s: set is NULL", call);
    REQUIRE(set->is_users, CAIRN_EINVAL, "%s: a module's gradients are written by cairn_backward", call);
    REQUIRE(first <= set->count && count <= set->count - first, CAIRN_EINVAL,
            "%s: %zu parameters from %zu on, of a set of %zu", call, count, first, set->count);
    return CAIRN_OK;
}

/* Of a set that somebody listens to, a declaration after settle is a backward of its own. */
static cairn_status begin_declaring(struct cairn_param_set *set) {
    cairn_status st = set->walking ? CAIRN_OK : cairn__param_set_begin(set, set->backward + 1, set->factor);
    if (st != CAIRN_OK) cairn__param_set_abort(set);
    return st;
}

cairn_status cairn__params_check_arrived(const char *call, struct cairn__param *const *params, size_t count) {
    for (size_t i = 0; i < count; i++) {
        REQUIRE(!cairn__param_is_on_its_way(params[i]), CAIRN_ESTATE,
                "%s: gradients of the set of parameter '%s' are being averaged: call ddp_wait first", call,
                params[i]->name);
    }
    return CAIRN_OK;
}

bool cairn__params_refuse(const char *call, struct cairn__param *const *params, size_t count) {
    if (cairn__params_check_arrived(call, params, count) == CAIRN_OK) return false;
    cairn__log(CAIRN_LOG_ERROR, "%s; nothing was done", cairn_last_error());
    return true;
}

static cairn_status check_declared(const char *call, const struct cairn__param *p) {
    REQUIRE(!cairn__param_is_on_its_way(p) || p->reached != p->set->backward, CAIRN_ESTATE,
            "%s: parameter '%s' was declared ready already since the last ddp_wait, and travels", call, p->name);
    REQUIRE(p->grad || p->n == 0, CAIRN_EINVAL,
            "%s: parameter '%s' has no gradient memory; give it some with cairn_param_bind, or write to what "
            "cairn_param_set_get shows",
            call, p->name);
    REQUIRE(!p->written || !p->owner || p->factor == p->set->factor, CAIRN_ESTATE,
            "%s: the gradient of parameter '%s' waits for its step, multiplied by another loss scale; call "
            "cairn_grads_taken before its memory is written again, or cairn_param_set_zero_grad",
            call, p->name);
    return CAIRN_OK;
}

/* What travels is told when it has arrived. */
static void tell_declared(struct cairn_param_set *set) {
    *(set->held ? &set->declared_held : &set->declared) = true;
    if (set->on_ready) cairn__env_list_unresolved(set->env, set->on_ready);
}

cairn_status cairn__grads_ready(const char *call, cairn_param_set *set, size_t first, size_t count) {
    cairn_status st = CAIRN_OK;
    TRY(check_range(call, set, first, count));
    struct cairn_device *d = set->env->device;
    for (size_t i = first; i < first + count; i++) TRY(check_declared(call, set->params[i]));
    if (count > 0) TRY(begin_declaring(set));
    for (size_t i = first; i < first + count; i++) {
        struct cairn__param *p = set->params[i];
        if (p->value_type) d->passes->round(d, p->value_type, p->grad, p->grad, p->n);
        p->reached = set->backward;
        cairn__param_grad_ready(p);
    }
    if (count > 0 && !set->walking) tell_declared(set);
out:
    return st;
}

cairn_status cairn_grads_ready(cairn_param_set *set, size_t first, size_t count) {
    return cairn__grads_ready("cairn_grads_ready", set, first, count);
}

/* Who has to look does so first, so that what is found counts where it came from. What no optimizer updates is not
 * kept. */
cairn_status cairn_grads_taken(cairn_param_set *set, size_t first, size_t count) {
    cairn_status st = CAIRN_OK;
    TRY(check_range("cairn_grads_taken", set, first, count));
    TRY(cairn__params_check_arrived("cairn_grads_taken", set->params, set->count));
    TRY(cairn__env_resolve(set->env));
    for (size_t i = first; i < first + count; i++) {
        struct cairn__param *p = set->params[i];
        if (!p->written || !p->owner) continue;
        if (p->clip) TRY(cairn__param_unscale(p));
        if (p->written) TRY(fold(p));
    }
out:
    return st;
}

static cairn_status check_may_bind(const cairn_param_set *set, size_t i, const void *data, const void *grad) {
    REQUIRE(set, CAIRN_EINVAL, "cairn_param_bind: set is NULL");
    REQUIRE(i < set->count, CAIRN_EINVAL, "cairn_param_bind: parameter %zu of a set of %zu", i, set->count);
    const struct cairn__param *p = set->params[i];
    REQUIRE(set->is_users, CAIRN_ESTATE, "cairn_param_bind: parameter '%s' is a module's, whose memory is Cairn's",
            p->name);
    REQUIRE(set->env->graphs == 0, CAIRN_ESTATE,
            "cairn_param_bind: a captured graph has the old memory of parameter '%s'; destroy the graph first",
            p->name);
    const cairn_param like = {.name = p->name, .dtype = p->dtype};
    cairn_status st = CAIRN_OK;
    TRY(cairn__params_check_arrived("cairn_param_bind", &set->params[i], 1));
    if (data) TRY(check_memory(set, &like, "data", data));
    if (grad) TRY(check_memory(set, &like, "grad", grad));
out:
    return st;
}

/* The user's old memory is not looked at: it may be gone. */
cairn_status cairn_param_bind(cairn_param_set *set, size_t i, void *data, void *grad) {
    cairn_status st = CAIRN_OK;
    TRY(check_may_bind(set, i, data, grad));
    struct cairn__param *p = set->params[i];
    if (grad && p->owns_grad) {
        TRY(cairn__env_resolve(set->env));
        if (p->written) TRY(fold(p));
        cairn__device_free(device_of(p), p->grad);
        p->owns_grad = false;
    }
    if (grad) p->grad = grad;
    if (data) p->data = data;
    p->version++;
out:
    return st;
}

/* Who hears of this backward; NULL = nobody. */
static const struct cairn__grad_listener *listener_of(const struct cairn_param_set *set) {
    return set->held ? NULL : set->listener;
}

cairn_status cairn__param_set_begin(struct cairn_param_set *set, uint64_t backward, const float *factor) {
    const struct cairn__grad_listener *listener = listener_of(set);
    set->backward = backward;
    set->factor = factor;
    set->loss_comes = false;
    set->alone |= set->held;
    set->walking = listener || !set->is_users;
    return listener && listener->begin ? listener->begin(listener->ctx) : CAIRN_OK;
}

cairn_status cairn__param_set_progress(struct cairn_param_set *set) {
    const struct cairn__grad_listener *listener = listener_of(set);
    return listener ? listener->progress(listener->ctx) : CAIRN_OK;
}

cairn_status cairn__param_set_settle(struct cairn_param_set *set) {
    const struct cairn__grad_listener *listener = listener_of(set);
    const bool were_declared = set->walking && set->is_users;
    set->walking = false;
    set->alone = set->held;
    if (set->held && set->is_users) return cairn__param_set_hold(set, true);
    const cairn_status st = listener ? listener->settle(listener->ctx) : CAIRN_OK;
    if (st == CAIRN_OK && were_declared) tell_declared(set);
    return st;
}

void cairn__param_set_make_incomplete(struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) set->params[i]->incomplete = true;
}

bool cairn__params_incomplete(struct cairn__param *const *params, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (params[i]->incomplete) return true;
    }
    return false;
}

void cairn__param_set_abort(struct cairn_param_set *set) {
    const struct cairn__grad_listener *listener = listener_of(set);
    set->walking = false;
    cairn__param_set_make_incomplete(set);
    if (listener) listener->failed(listener->ctx);
}

cairn_status cairn__param_set_miss(struct cairn_param_set *set) {
    const struct cairn__grad_listener *listener = listener_of(set);
    const cairn_status st = listener && listener->missed ? listener->missed(listener->ctx) : CAIRN_OK;
    if (st != CAIRN_OK) cairn__param_set_abort(set);
    return st;
}

/* What is recorded holds for whatever was before, so that there flags are lowered which nobody may have raised. */
static void lower_flags(struct cairn__param *const *params, size_t count) {
    struct cairn_param_set *set = params[0]->set;
    struct cairn_device *d = set->env->device;
    bool touched = false, all = count == set->count;
    for (size_t i = 0; i < count; i++) {
        touched |= params[i]->flag_touched || params[i]->acc_flag_touched;
        all &= params[i]->set == set;
    }
    if (!touched && !d->capturing) return;
    if (all && set->flags) d->passes->clear_flags(d, set->flags, 2 * set->flags_count);
    for (size_t i = 0; i < count && !all; i++) {
        const struct cairn__param *p = params[i];
        if (!p->set->flags) continue;
        if (p->flag_touched || d->capturing) d->passes->clear_flags(d, cairn__param_flag(p), 1);
        if (p->acc_flag_touched || d->capturing) d->passes->clear_flags(d, cairn__param_acc_flag(p), 1);
    }
}

/* Losses of which no gradient is left. What is not held has been taken note of, unless its backward failed. */
static void forget_losses(struct cairn_param_set *set) {
    if (set->loss_comes) return;
    for (size_t i = 0; i < set->count; i++) {
        if (cairn__param_has_held(set->params[i])) return;
    }
    cairn__param_set_forget_losses(set);
}

void cairn__params_forget(struct cairn__param *const *params, size_t count) {
    if (count) lower_flags(params, count);
    for (size_t i = 0; i < count; i++) {
        struct cairn__param *p = params[i];
        p->written = p->has_acc = p->flag_touched = p->acc_flag_touched = p->seen = p->incomplete = false;
        p->agreed = false;
        p->held = p->has_local = p->own = false;
        p->clip = NULL;
    }
    for (size_t i = 0; i < count; i++) {
        const bool is_new = i == 0 || params[i]->set != params[i - 1]->set;
        if (is_new && params[i]->set->losses_touched) forget_losses(params[i]->set);
    }
}

void cairn__param_set_zero_grad(struct cairn_param_set *set) {
    if (set->env->begin_step && !set->env->begin_step(set->env)) return;
    (void)cairn__env_resolve(set->env);
    cairn__params_forget(set->params, set->count);
}

void cairn_param_set_zero_grad(cairn_param_set *set) {
    if (!set || cairn__params_refuse("cairn_param_set_zero_grad", set->params, set->count)) return;
    (void)cairn__env_resolve(set->env);
    cairn__params_forget(set->params, set->count);
}

cairn_status cairn__param_grad_final(struct cairn__param *p, const void **grad, cairn_dtype *dtype,
                                     const float **factor) {
    cairn_status st = cairn__params_take_held(&p, 1);
    if (st == CAIRN_OK && p->has_acc && p->written) st = fold(p);
    if (st != CAIRN_OK) return st;
    *grad = p->has_acc ? (const void *)p->acc : p->written ? p->grad : NULL;
    *dtype = p->has_acc ? CAIRN_F32 : p->dtype;
    *factor = p->has_acc ? NULL : p->factor;
    return CAIRN_OK;
}

cairn_status cairn__param_unscale(struct cairn__param *p) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = device_of(p);
    TRY(cairn__params_take_held(&p, 1));
    if (!p->written && !p->has_acc) return CAIRN_OK;
    if (p->written && (p->has_acc || p->dtype != CAIRN_F32)) TRY(fold(p));
    float *grad = p->has_acc ? p->acc : p->grad;
    const struct cairn__item item = {.n = p->n, .dst = grad, .x = grad};
    if (!p->has_acc && p->factor) d->passes->scale(d, &item, 1, CAIRN_F32, CAIRN_F32, p->factor, NULL);
    if (p->clip) d->passes->scale(d, &item, 1, CAIRN_F32, CAIRN_F32, p->clip, NULL);
    p->clip = NULL;
    if (!p->has_acc) p->factor = NULL;
out:
    return st;
}

/* ---- flags ---- */

cairn_status cairn__param_set_make_flags(struct cairn_param_set *set) {
    if (set->flags && set->flags_count == set->count) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = set->env->device;
    struct cairn__item *items = NULL;
    uint32_t *flags = NULL;
    TRY(cairn__calloc(set->count, sizeof(items[0]), (void **)&items));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, 4 * set->count * sizeof(flags[0]), (void **)&flags));
    d->passes->clear_flags(d, flags, 4 * set->count);
    cairn__free(set->items);
    cairn__device_free(d, set->flags); /* parameters are added before there are gradients: nothing is raised */
    set->items = items;
    set->flags = flags;
    set->flags_count = set->count;
    return CAIRN_OK;
out:
    cairn__free(items);
    return st;
}

static void list(struct cairn__item *items, size_t *listed, size_t n, const void *x, uint32_t *flag) {
    items[(*listed)++] = (struct cairn__item){.n = n, .x = x, .found = flag};
}

static void look_at(struct cairn_device *d, const struct cairn__item *items, size_t listed, cairn_dtype dtype) {
    if (listed) d->passes->check(d, items, listed, dtype, NULL);
}

static bool is_slot_unseen(const struct cairn__param *p) {
    return p->written && !p->held && !p->checked && !p->set->alone && !cairn__param_is_on_its_way(p);
}

static bool is_acc_unseen(const struct cairn__param *p) {
    return p->has_acc && !p->acc_checked && !p->set->alone;
}

static void check_slots(struct cairn_device *d, struct cairn__param *const *params, size_t count,
                        struct cairn__item *items, cairn_dtype dtype) {
    size_t listed = 0;
    for (size_t i = 0; i < count; i++) {
        struct cairn__param *p = params[i];
        if (p->dtype != dtype || !is_slot_unseen(p)) continue;
        list(items, &listed, p->n, p->grad, cairn__param_flag(p));
        p->checked = p->flag_touched = true;
    }
    look_at(d, items, listed, dtype);
}

static void check_accs(struct cairn_device *d, struct cairn__param *const *params, size_t count,
                       struct cairn__item *items) {
    size_t listed = 0;
    for (size_t i = 0; i < count; i++) {
        struct cairn__param *p = params[i];
        if (!is_acc_unseen(p)) continue;
        list(items, &listed, p->n, p->acc, cairn__param_acc_flag(p));
        p->acc_checked = p->acc_flag_touched = true;
    }
    look_at(d, items, listed, CAIRN_F32);
}

void cairn__params_check(struct cairn_device *d, struct cairn__param *const *params, size_t count,
                         struct cairn__item *items) {
    uint32_t types = 0; /* a bit each */
    bool accs = false;
    for (size_t i = 0; i < count; i++) {
        types |= (uint32_t)is_slot_unseen(params[i]) << params[i]->dtype;
        accs |= is_acc_unseen(params[i]);
    }
    for (cairn_dtype dtype = CAIRN_F32; dtype <= CAIRN_BF16; dtype++) {
        if (types >> dtype & 1) check_slots(d, params, count, items, dtype);
    }
    if (accs) check_accs(d, params, count, items);
}

cairn_status cairn__param_set_report(struct cairn_param_set *set, uint32_t found) {
    cairn_status st = CAIRN_OK;
    if (found) TRY(cairn__param_set_make_flags(set));
    for (cairn_dtype dtype = CAIRN_F32; found && dtype <= CAIRN_BF16; dtype++)
        check_slots(set->env->device, set->params, set->count, set->items, dtype);
    for (size_t i = 0; i < set->count; i++) set->params[i]->checked = true;
out:
    return st;
}

cairn_status cairn__param_set_check(struct cairn_param_set *set) {
    const cairn_status st = cairn__param_set_make_flags(set);
    if (st == CAIRN_OK) cairn__params_check(set->env->device, set->params, set->count, set->items);
    return st;
}

static void copy_flag(const struct cairn__param *p, size_t to, size_t from) {
    uint32_t *const flags = p->set->flags;
    (void)cairn__device_copy(device_of(p), flags + to + p->index, flags + from + p->index,
                             sizeof(*flags)); /* as a pass */
}

void cairn__params_agreed(struct cairn__param *const *params, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const size_t n = params[i]->set->flags_count;
        copy_flag(params[i], 2 * n, 0);
        copy_flag(params[i], 3 * n, n);
        params[i]->agreed = true;
    }
}

static void raise_again(struct cairn__param *p) {
    const size_t n = p->set->flags_count;
    copy_flag(p, 0, 2 * n);
    copy_flag(p, n, 3 * n);
    p->flag_touched = p->acc_flag_touched = true;
}

void cairn__params_consumed(struct cairn__param *const *params, size_t count) {
    size_t run = 1;
    for (size_t i = 0; i < count; i += run) {
        const bool is_users = params[i]->set->is_users;
        for (run = 1; i + run < count && params[i + run]->set->is_users == is_users; run++) continue;
        if (is_users) cairn__params_forget(params + i, run);
        for (size_t k = i; k < i + run; k++) {
            params[k]->checked = params[k]->acc_checked = params[k]->seen = false;
            params[k]->clip = NULL;
            if (params[k]->agreed) raise_again(params[k]);
        }
    }
}

/* ---- weights ---- */

void cairn__param_round_from_master(struct cairn__param *p) {
    struct cairn_device *d = device_of(p);
    if (p->value_type) {
        d->passes->round(d, p->value_type, p->data, p->master ? p->master : p->data, p->n);
    } else if (p->master) {
        cast(p, p->data, p->dtype, p->master, CAIRN_F32);
    }
}

void cairn__param_set_weights_changed(struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) set->params[i]->version++;
}
