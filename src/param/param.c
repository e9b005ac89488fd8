/* Parameter sets: their memory, their gradients' state, their flags.
 *
 * A set decides nothing: it holds what nn, ddp, amp and optim must agree on, so that none of them needs to know another.
 * Everything that can be needed in a steady step is allocated at the first step that needs it and then kept. */
#include "param/param.h"

#include <stdio.h>
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
    cairn__device_free((*set)->env->device, (*set)->flags);
    cairn__free((*set)->items);
    cairn__free((*set)->params);
    cairn__free(*set);
    *set = NULL;
}

static bool has_name(const struct cairn_param_set *set, const char *name) {
    for (size_t i = 0; i < set->count; i++) {
        if (strcmp(set->params[i]->name, name) == 0) return true;
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

static cairn_status add_users(struct cairn_param_set *set, const cairn_param *given, size_t i) {
    REQUIRE(given->name && given->name[0], CAIRN_EINVAL, "parameter %zu has no name", i);
    REQUIRE(!has_name(set, given->name), CAIRN_EINVAL, "two parameters are called '%s'", given->name);
    REQUIRE(given->data, CAIRN_EINVAL, "parameter '%s' has no data", given->name);
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
    if (!p->grad) TRY(make_slot(p));
out:
    return st;
}

cairn_status cairn_param_set_create(cairn_env *env, const cairn_param *params, size_t count, cairn_param_set **out) {
    REQUIRE(env && out && (params || count == 0), CAIRN_EINVAL,
            "cairn_param_set_create: env, params and out must be set");
    cairn_status st = CAIRN_OK;
    struct cairn_param_set *set = NULL;
    TRY(cairn__param_set_new(env, &set));
    for (size_t i = 0; i < count; i++) TRY(add_users(set, &params[i], i));
    *out = set;
    return CAIRN_OK;
out:
    cairn_param_set_destroy(&set);
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
    param_destroy(set->params[--set->count]);
}

/* ---- one set into another ---- */

static cairn_status check_may_move(const struct cairn_param_set *set, const struct cairn_param_set *from,
                                   const char *prefix) {
    REQUIRE(set->users == 0 && from->users == 0, CAIRN_ESTATE,
            "'%s': an optimizer, amp or ddp uses these parameters, which can therefore not become part of another set",
            prefix);
    for (size_t i = 0; i < from->count; i++) {
        const struct cairn__param *p = from->params[i];
        REQUIRE(!p->written && !p->has_acc, CAIRN_ESTATE,
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
    REQUIRE(!has_name(set, *out), CAIRN_EINVAL, "two parameters are called '%s'", *out);
    return CAIRN_OK;
}

static void move(struct cairn_param_set *set, struct cairn__param *p, char *name) {
    cairn__free(p->name);
    p->name = name;
    p->set = set;
    p->index = set->count;
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
    p->owns_grad = p->written = p->has_acc = false;
    p->version++;
}

/* All memory first, so that a failure changes nothing. */
cairn_status cairn__param_set_to_half(struct cairn_param_set *set, cairn_dtype half, bool keep_master,
                                      bool keep_norms) {
    cairn_status st = CAIRN_OK;
    void **weights = NULL;
    TRY(cairn__calloc(set->count, sizeof(weights[0]), (void **)&weights));
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        if (keep_norms && p->is_norm) continue;
        TRY(check_may_change(p));
        TRY(cairn__device_alloc(device_of(p), CAIRN__HOLDS_PARAMS, p->n * cairn_dtype_nbytes(half), &weights[i]));
    }
    for (size_t i = 0; i < set->count; i++) {
        if (weights[i]) turn_half(set->params[i], half, weights[i], keep_master);
        weights[i] = NULL;
    }
    if (set->env->begin_step) set->env->begin_step(set->env); /* results show or wait for weights that are gone */
out:
    for (size_t i = 0; weights && i < set->count; i++) cairn__device_free(set->env->device, weights[i]);
    cairn__free(weights);
    return st;
}

/* ---- looking ---- */

size_t cairn_param_set_count(const cairn_param_set *set) {
    return set ? set->count : 0;
}

cairn_status cairn_param_set_get(const cairn_param_set *set, size_t i, cairn_param *out) {
    REQUIRE(set && out, CAIRN_EINVAL, "set and out must be set");
    REQUIRE(i < set->count, CAIRN_EINVAL, "parameter %zu of a set of %zu", i, set->count);
    const struct cairn__param *p = set->params[i];
    *out = (cairn_param){.name = p->name,
                         .data = p->data,
                         .grad = p->grad,
                         .dtype = p->dtype,
                         .ndim = p->ndim,
                         .is_norm = p->is_norm ? CAIRN_ON : CAIRN_OFF};
    memcpy(out->shape, p->shape, sizeof(p->shape));
    return CAIRN_OK;
}

float *cairn_param_master(const cairn_param_set *set, size_t i) {
    if (!set || i >= set->count) return NULL;
    const struct cairn__param *p = set->params[i];
    return p->dtype == CAIRN_F32 ? p->data : p->master;
}

cairn_status cairn_param_changed(cairn_param_set *set, size_t i, int master_was_written) {
    REQUIRE(set && i < set->count, CAIRN_EINVAL, "parameter %zu of a set of %zu", i, cairn_param_set_count(set));
    struct cairn__param *p = set->params[i];
    if (p->master && master_was_written) {
        cairn__param_round_from_master(p);
    } else if (p->master) {
        cast(p, p->master, CAIRN_F32, p->data, p->dtype);
    }
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

/* acc (+)= slot * factor; the slot is then free. */
static cairn_status fold(struct cairn__param *p) {
    cairn_status st = CAIRN_OK;
    struct cairn_param_set *set = p->set;
    TRY(cairn__param_set_make_flags(set));
    TRY(make_accumulator(p));
    struct cairn_device *d = device_of(p);
    const struct cairn__item item = {
        .n = p->n, .dst = p->acc, .x = p->grad, .y = p->acc, .found = &set->flags[1 + p->index]};
    if (p->has_acc) {
        d->passes->axpby(d, &item, 1, CAIRN_F32, p->dtype, p->factor, 1.0f, &set->flags[0]);
    } else {
        d->passes->scale(d, &item, 1, CAIRN_F32, p->dtype, p->factor, &set->flags[0]);
    }
    set->flags_touched = true;
    p->has_acc = true;
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
    if (p->written) TRY(fold(p));
    *slot = p->grad;
out:
    return st;
}

void cairn__param_grad_ready(struct cairn__param *p) {
    struct cairn_param_set *set = p->set;
    p->written = true;
    p->factor = set->factor;
    set->checked = false;
    if (set->listener) set->listener->ready(set->listener->ctx, p->index);
}

cairn_status cairn_grads_ready(cairn_param_set *set, size_t first, size_t count) {
    REQUIRE(set, CAIRN_EINVAL, "cairn_grads_ready: set is NULL");
    REQUIRE(first <= set->count && count <= set->count - first, CAIRN_EINVAL,
            "cairn_grads_ready: parameters [%zu, %zu) of a set of %zu", first, first + count, set->count);
    for (size_t i = first; i < first + count; i++) {
        REQUIRE(set->params[i]->grad, CAIRN_EINVAL, "cairn_grads_ready: parameter '%s' has no gradient memory",
                set->params[i]->name);
    }
    for (size_t i = first; i < first + count; i++) cairn__param_grad_ready(set->params[i]);
    return CAIRN_OK;
}

cairn_status cairn__param_set_progress(struct cairn_param_set *set) {
    return set->listener ? set->listener->progress(set->listener->ctx) : CAIRN_OK;
}

cairn_status cairn__param_set_settle(struct cairn_param_set *set) {
    return set->listener ? set->listener->settle(set->listener->ctx) : CAIRN_OK;
}

void cairn__param_set_abort(struct cairn_param_set *set) {
    set->incomplete = true;
    if (set->listener) set->listener->failed(set->listener->ctx);
}

static void forget_gradients(struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        p->written = p->has_acc = false;
    }
    struct cairn_device *d = set->env->device;
    if (set->flags_touched || (d->capturing && set->flags)) { /* what is recorded holds whatever was before */
        d->passes->clear_flags(d, set->flags, 1 + set->count, set->found_into);
        set->flags_touched = false;
    }
    set->incomplete = false;
    set->checked = true;
}

void cairn__param_set_zero_grad(struct cairn_param_set *set) {
    if (set->env->begin_step && !set->env->begin_step(set->env)) return;
    forget_gradients(set);
}

cairn_status cairn__param_grad_final(struct cairn__param *p, const void **grad, cairn_dtype *dtype,
                                     const float **factor) {
    if (p->has_acc && p->written) {
        cairn_status st = fold(p);
        if (st != CAIRN_OK) return st;
    }
    *grad = p->has_acc ? (const void *)p->acc : p->written ? p->grad : NULL;
    *dtype = p->has_acc ? CAIRN_F32 : p->dtype;
    *factor = p->has_acc ? NULL : p->factor;
    return CAIRN_OK;
}

/* ---- flags ---- */

cairn_status cairn__param_set_make_flags(struct cairn_param_set *set) {
    if (set->flags && set->flags_count == set->count) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = set->env->device;
    struct cairn__item *items = NULL;
    uint32_t *flags = NULL;
    TRY(cairn__calloc(set->count, sizeof(items[0]), (void **)&items));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, (1 + set->count) * sizeof(flags[0]), (void **)&flags));
    d->passes->clear_flags(d, flags, 1 + set->count, NULL);
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

static size_t list_gradients(const struct cairn_param_set *set, cairn_dtype dtype) {
    size_t listed = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        if (!p->written || p->dtype != dtype) continue;
        set->items[listed++] = (struct cairn__item){.n = p->n, .x = p->grad, .found = &set->flags[1 + i]};
    }
    return listed;
}

static size_t list_accumulators(const struct cairn_param_set *set) {
    size_t listed = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        if (p->has_acc)
            set->items[listed++] = (struct cairn__item){.n = p->n, .x = p->acc, .found = &set->flags[1 + i]};
    }
    return listed;
}

static void look_at(const struct cairn_param_set *set, size_t listed, cairn_dtype dtype) {
    struct cairn_device *d = set->env->device;
    if (listed) d->passes->check(d, set->items, listed, dtype, &set->flags[0]);
}

/* One read of every gradient, wherever it stands. */
static cairn_status scan(struct cairn_param_set *set) {
    cairn_status st = cairn__param_set_make_flags(set);
    if (st != CAIRN_OK) return st;
    for (cairn_dtype dtype = CAIRN_F32; dtype <= CAIRN_BF16; dtype++) look_at(set, list_gradients(set, dtype), dtype);
    look_at(set, list_accumulators(set), CAIRN_F32);
    set->flags_touched = true;
    return CAIRN_OK;
}

/* The sum may be infinite where no rank's gradient was, and the other way round: the flag stands whatever the scan says. */
cairn_status cairn__param_set_report(struct cairn_param_set *set, uint32_t found) {
    cairn_status st = CAIRN_OK;
    const uint32_t raised = 1;
    if (found) {
        TRY(scan(set));
        set->env->device->passes->store(set->env->device, &set->flags[0], &raised, sizeof(raised));
    }
    set->checked = true;
out:
    return st;
}

cairn_status cairn__param_set_check(struct cairn_param_set *set) {
    if (set->checked) return CAIRN_OK;
    cairn_status st = scan(set);
    if (st == CAIRN_OK) set->checked = true;
    return st;
}

void cairn__param_set_consumed(struct cairn_param_set *set) {
    set->checked = false;
    set->flags_touched = false;
}

void cairn__param_set_names(const struct cairn_param_set *set, const uint32_t *found, char *text, size_t nbytes) {
    enum { ROOM_FOR_REST = 32 };
    size_t used = 0, left_out = 0;
    text[0] = '\0';
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        if (!found[i]) continue;
        if (left_out || used + strlen(p->name) + ROOM_FOR_REST > nbytes) {
            left_out++;
        } else {
            used += (size_t)snprintf(text + used, nbytes - used, "%s%s", used ? ", " : "", p->name);
        }
    }
    if (left_out) snprintf(text + used, nbytes - used, "%s%zu more", used ? ", and " : "", left_out);
}

/* ---- weights ---- */

void cairn__param_round_from_master(struct cairn__param *p) {
    if (p->master) cast(p, p->data, p->dtype, p->master, CAIRN_F32);
}

void cairn__param_set_weights_changed(struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) set->params[i]->version++;
}
