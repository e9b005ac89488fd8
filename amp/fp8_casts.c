/* The scales of fp8 casts: which exist, when they are updated, and what is saved.
 *
 * A product casts three tensors: the input, the weight, and the gradient of the result. Delayed scaling must find the
 * same tensors in the next step, so the scales of a product belong to its weight, a parameter, and are created on first
 * use. A product of two results has no parameter, and is scaled by its current amax. */
#include "fp8_casts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "device/env.h"
#include "fp8_products.h"

enum { TENSORS = 3 };
static const char *const tensor_names[TENSORS] = {"input", "weight", "gradient"};

struct scales {
    struct cairn__fp8_scale of[TENSORS];
};

struct cairn__fp8_casts {
    cairn_env *env;
    struct cairn__fp8_recipe recipe;
    struct cairn_param_set *const *sets;
    size_t num_sets, num_params; /* of all sets */
    struct scales **scales;      /* [num_params], set by set; NULL = none yet */
    float *amax;                 /* [num_params * TENSORS] exchanged between ranks */
};

/* ---- one parameter's ---- */

static void end_scales(struct scales **s) {
    if (!*s) return;
    for (int t = 0; t < TENSORS; t++) cairn__fp8_scale_end(&(*s)->of[t]);
    cairn__free(*s);
    *s = NULL;
}

static cairn_status begin_scales(struct cairn__fp8_casts *c, size_t i) {
    cairn_status st = CAIRN_OK;
    if (c->scales[i]) return CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*c->scales[i]), (void **)&c->scales[i]));
    for (int t = 0; t < TENSORS; t++) {
        const int format = t == TENSORS - 1 ? c->recipe.backward : c->recipe.forward;
        TRY(cairn__fp8_scale_begin(&c->scales[i]->of[t], format, &c->recipe));
    }
    return CAIRN_OK;
out:
    end_scales(&c->scales[i]);
    return st;
}

/* Returns num_params if p is in none of the sets. */
static size_t place_of(const struct cairn__fp8_casts *c, const struct cairn__param *p) {
    size_t first = 0;
    for (size_t i = 0; p && i < c->num_sets; i++) {
        if (c->sets[i] == p->set && first + p->index < c->num_params) return first + p->index;
        first += c->sets[i]->count;
    }
    return c->num_params;
}

cairn_status cairn__fp8_casts_create(cairn_env *env, struct cairn_param_set *const *sets, size_t num_sets,
                                     const struct cairn__fp8_recipe *recipe, struct cairn__fp8_casts **out) {
    struct cairn__fp8_casts *c = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(strcmp(env->device->ops->name, "cpu") == 0, CAIRN_ENOTSUP,
            "fp8 casts are emulated on the CPU alone, and '%s' is none; use device \"cpu\", or leave fp8 out",
            cairn_device_name(env->device));
    TRY(cairn__calloc(1, sizeof(*c), (void **)&c));
    *c = (struct cairn__fp8_casts){.env = env, .recipe = *recipe, .sets = sets, .num_sets = num_sets};
    for (size_t i = 0; i < num_sets; i++) c->num_params += sets[i]->count;
    TRY(cairn__calloc(c->num_params + 1, sizeof(c->scales[0]), (void **)&c->scales));
    TRY(cairn__calloc(c->num_params * TENSORS + 1, sizeof(c->amax[0]), (void **)&c->amax));
    *out = c;
    return CAIRN_OK;
out:
    cairn__fp8_casts_destroy(&c);
    return st;
}

void cairn__fp8_casts_destroy(struct cairn__fp8_casts **casts) {
    if (!*casts) return;
    struct cairn__fp8_casts *c = *casts;
    for (size_t i = 0; c->scales && i < c->num_params; i++) end_scales(&c->scales[i]);
    cairn__free(c->scales);
    cairn__free(c->amax);
    cairn__free(c);
    *casts = NULL;
}

/* ---- products ---- */

bool cairn__fp8_takes(int op) {
    return op == CAIRN__OP_LINEAR || op == CAIRN__OP_MATMUL || op == CAIRN__OP_BMM;
}

bool cairn__fp8_takes_by_default(int op) {
    return op == CAIRN__OP_LINEAR || op == CAIRN__OP_MATMUL;
}

/* The scales of the second operand if it is a parameter, else of the first, as in W x. */
static cairn_status scales_of(struct cairn__fp8_casts *c, cairn_tensor *const *operands, struct scales **out,
                              int *weight) {
    cairn_status st = CAIRN_OK;
    *out = NULL;
    for (*weight = 1; *weight >= 0; --*weight) {
        const size_t i = place_of(c, cairn__tensor_param(operands[*weight]));
        if (i == c->num_params) continue;
        TRY(begin_scales(c, i));
        *out = c->scales[i];
        return CAIRN_OK;
    }
out:
    return st;
}

cairn_status cairn__fp8_product(struct cairn__fp8_casts *c, enum cairn__op op, cairn_tensor *const *inputs,
                                cairn_dtype half, cairn_tensor **out) {
    struct cairn__fp8_operation o = {.op = op,
                                     .recipe = &c->recipe,
                                     .half = half,
                                     .operands = {inputs[0], inputs[1]},
                                     .bias = op == CAIRN__OP_LINEAR ? inputs[2] : NULL};
    struct scales *scales = NULL;
    int weight = 1;
    cairn_status st = CAIRN_OK;
    if (!cairn__fp8_can_cast(&o)) return CAIRN_OK;
    if (c->recipe.scaling == CAIRN_FP8_DELAYED) TRY(scales_of(c, o.operands, &scales, &weight));
    if (scales) {
        o.scales[weight == 1 ? 0 : 1] = &scales->of[0];
        o.scales[weight] = &scales->of[1];
        o.of_gradient = &scales->of[2];
    }
    *out = cairn__fp8_apply(&o);
    if (!*out) st = cairn__last_status();
out:
    return st;
}

/* ---- steps ---- */

/* SHARED if all ranks have equal scales. */
static enum cairn__entry_owner owner_of(const struct cairn__fp8_casts *c) {
    if (c->env->size > 1 && !c->recipe.reduces) return CAIRN__ENTRY_RANK;
    for (size_t i = 0; i < c->num_sets; i++) {
        if (cairn__params_entry_owner(c->sets[i]->params, c->sets[i]->count) != CAIRN__ENTRY_SHARED)
            return CAIRN__ENTRY_RANK;
    }
    return CAIRN__ENTRY_SHARED;
}

cairn_status cairn__fp8_casts_update(struct cairn__fp8_casts *c) {
    cairn_status st = CAIRN_OK;
    if (c->recipe.scaling != CAIRN_FP8_DELAYED) return CAIRN_OK;
    for (size_t i = 0; i < c->num_params * TENSORS; i++) {
        const struct scales *s = c->scales[i / TENSORS];
        c->amax[i] = s ? s->of[i % TENSORS].amax : 0;
    }
    if (owner_of(c) == CAIRN__ENTRY_SHARED) TRY(cairn__fp8_reduce(c->env, c->amax, c->num_params * TENSORS));
    for (size_t i = 0; i < c->num_params * TENSORS; i++) {
        if (c->amax[i] == 0) continue;
        TRY(begin_scales(c, i / TENSORS)); /* another rank has computed this product, this rank not yet */
        struct cairn__fp8_scale *s = &c->scales[i / TENSORS]->of[i % TENSORS];
        s->amax = c->amax[i];
        cairn__fp8_scale_update(s, &c->recipe);
    }
out:
    return st;
}

float cairn__fp8_casts_scale(const struct cairn__fp8_casts *c, const char *param, amp_fp8_tensor tensor) {
    size_t first = 0;
    for (size_t i = 0; i < c->num_sets; first += c->sets[i++]->count) {
        for (size_t k = 0; k < c->sets[i]->count; k++) {
            if (strcmp(c->sets[i]->params[k]->name, param) == 0)
                return c->scales[first + k] ? c->scales[first + k]->of[tensor - 1].scale : NAN;
        }
    }
    return NAN;
}

/* ---- what is saved ---- */

enum { PREFIX = 1024 };

/* "fp8.0.encoder.0.weight.input." */
static void prefix_of(const struct cairn__fp8_casts *c, size_t i, int tensor, char text[PREFIX]) {
    size_t set = 0, k = i;
    while (k >= c->sets[set]->count) k -= c->sets[set++]->count;
    snprintf(text, PREFIX, "fp8.%zu.%s.%s.", set, c->sets[set]->params[k]->name, tensor_names[tensor]);
}

static bool is_saved(const struct cairn__fp8_casts *c, size_t i, const struct cairn__entries *entries) {
    char prefix[PREFIX];
    prefix_of(c, i, 0, prefix);
    return cairn__entries_has(entries, "%sscale", prefix);
}

cairn_status cairn__fp8_casts_list(struct cairn__fp8_casts *c, struct cairn__entries *entries) {
    const enum cairn__entry_owner owner = owner_of(c);
    const bool loading = cairn__entries_is_load(entries);
    char prefix[PREFIX];
    cairn_status st = CAIRN_OK;
    TRY(cairn__entries_add_i64(entries, owner, (int64_t)c->recipe.scaling, "fp8.scaling"));
    for (size_t i = 0; i < c->num_params; i++) {
        if (loading ? !is_saved(c, i, entries) : !c->scales[i]) continue;
        TRY(begin_scales(c, i));
        for (int t = 0; t < TENSORS; t++) {
            prefix_of(c, i, t, prefix);
            TRY(cairn__fp8_scale_list(&c->scales[i]->of[t], &c->recipe, owner, prefix, entries));
        }
    }
out:
    return st;
}

cairn_status cairn__fp8_casts_check(const struct cairn__fp8_casts *c, const struct cairn__entries *entries) {
    const int64_t scaling = cairn__entries_i64(entries, "fp8.scaling");
    char prefix[PREFIX];
    cairn_status st = CAIRN_OK;
    REQUIRE(scaling == (int64_t)c->recipe.scaling, CAIRN_EINVAL,
            "amp: it was saved with the fp8 scaling %lld, and has %d", (long long)scaling, (int)c->recipe.scaling);
    for (size_t i = 0; i < c->num_params; i++) {
        if (!is_saved(c, i, entries)) continue;
        for (int t = 0; t < TENSORS; t++) {
            prefix_of(c, i, t, prefix);
            TRY(cairn__fp8_scale_check(&c->recipe, prefix, entries));
        }
    }
out:
    return st;
}

void cairn__fp8_casts_loaded(struct cairn__fp8_casts *c, const struct cairn__entries *entries) {
    char prefix[PREFIX];
    for (size_t i = 0; i < c->num_params; i++) {
        if (!c->scales[i]) continue;
        for (int t = 0; t < TENSORS; t++) {
            prefix_of(c, i, t, prefix);
            if (is_saved(c, i, entries)) cairn__fp8_scale_take(&c->scales[i]->of[t], prefix, entries);
            else cairn__fp8_scale_reset(&c->scales[i]->of[t], &c->recipe);
        }
    }
}
