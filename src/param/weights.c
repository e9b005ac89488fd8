/* Weights: their types, their half values, and the f32 masters that optimizers update. */
#include "core/alloc.h"
#include "core/status.h"
#include "param/param.h"

static struct cairn_device *device_of(const struct cairn__param *p) {
    return p->set->env->device;
}

static void cast(const struct cairn__param *p, void *dst, cairn_dtype to, const void *src, cairn_dtype from) {
    struct cairn_device *d = device_of(p);
    cairn__pass_cast(d->passes, d, dst, to, src, from, p->n);
}

/* The weights of this rank's shard. */
static void *at_shard(const struct cairn__param *p) {
    return cairn__param_weights_at(p, cairn__param_shard(p).first);
}

static void cast_shard(const struct cairn__param *p, void *dst, cairn_dtype to, const void *src, cairn_dtype from) {
    struct cairn_device *d = device_of(p);
    cairn__pass_cast(d->passes, d, dst, to, src, from, cairn__param_shard(p).n);
}

/* Cannot fail; p owns weights afterwards. */
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
    cairn__grad_change_type(p->gradient);
    p->version++;
}

static cairn_status make_halves(const struct cairn_param_set *set, cairn_dtype half, bool keep_norms, void **weights) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__param_set_check_own_weights("other types of parameters", set));
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        if (keep_norms && p->is_norm) continue;
        REQUIRE(!p->set->frozen_by, CAIRN_ESTATE,
                "parameter '%s' cannot change its type after %s; call amp_initialize before", p->name,
                p->set->frozen_by);
        REQUIRE(p->owns_data && p->dtype == CAIRN_F32, CAIRN_ENOTSUP,
                "parameter '%s' is %s in %s memory; only f32 parameters of a module can be made half", p->name,
                cairn_dtype_name(p->dtype), p->owns_data ? "Cairn's" : "the user's");
        TRY(cairn__device_alloc(device_of(p), CAIRN__HOLDS_PARAMS, p->n * cairn_dtype_nbytes(half), &weights[i]));
    }
out:
    return st;
}

static void free_halves(const struct cairn_param_set *set, void **weights) {
    for (size_t i = 0; weights && i < set->count; i++) cairn__device_free(set->env->device, weights[i]);
    cairn__free(weights);
}

/* All memory first, so that a failure changes nothing. */
cairn_status cairn__param_sets_to_half(struct cairn_param_set *const *sets, size_t count, cairn_dtype half,
                                       bool keep_master, bool keep_norms) {
    cairn_status st = CAIRN_OK;
    void ***weights = NULL; /* for each set, for each parameter */
    TRY(cairn__calloc(count, sizeof(weights[0]), (void **)&weights));
    for (size_t s = 0; s < count; s++) {
        TRY(cairn__calloc(sets[s]->count, sizeof(weights[s][0]), (void **)&weights[s]));
        TRY(make_halves(sets[s], half, keep_norms, weights[s]));
    }
    for (size_t s = 0; s < count; s++) {
        struct cairn_param_set *set = sets[s];
        for (size_t i = 0; i < set->count; i++) {
            if (weights[s][i]) turn_half(set->params[i], half, weights[s][i], keep_master);
            weights[s][i] = NULL;
        }
        if (set->env->begin_step) set->env->begin_step(set->env); /* results refer to weights that are freed */
    }
out:
    for (size_t s = 0; weights && s < count; s++) free_halves(sets[s], weights[s]);
    cairn__free(weights);
    return st;
}

static bool stays_f32(const struct cairn__param *p, cairn_dtype half, bool keep_norms) {
    return p->dtype == CAIRN_F32 && (!half || (keep_norms && p->is_norm));
}

static cairn_status make_masters(struct cairn_param_set *set, cairn_dtype half, bool masters, bool keep_norms,
                                 float **made) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__param_set_check_own_weights("other types of parameters", set));
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        REQUIRE(!p->set->frozen_by, CAIRN_ESTATE,
                "parameter '%s' cannot change its values after %s; call amp_initialize_params before", p->name,
                p->set->frozen_by);
        REQUIRE(p->set->is_users, CAIRN_EINVAL, "parameter '%s' belongs to a module; give the module to amp_initialize",
                p->name);
        REQUIRE(p->dtype == CAIRN_F32 || p->dtype == half || !half, CAIRN_EINVAL,
                "parameter '%s' is %s, but half_type is %s; use one of them", p->name, cairn_dtype_name(p->dtype),
                cairn_dtype_name(half));
        if (masters && !p->master && !stays_f32(p, half, keep_norms))
            TRY(cairn__device_alloc(device_of(p), CAIRN__HOLDS_PARAMS, p->n * sizeof(float), (void **)&made[i]));
    }
out:
    return st;
}

static void drop_master(struct cairn__param *p) {
    if (p->owns_master) cairn__device_free(device_of(p), p->master);
    p->master = NULL;
    p->owns_master = false;
}

/* Restores f32 values, with the bits of the master, where an earlier context made half values. Cannot fail. */
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
            if (made[i]) { /* NULL = an earlier context's master still exists, or none is wanted */
                cast(p, made[i], CAIRN_F32, p->data, p->dtype);
                p->master = made[i];
                p->owns_master = true;
            }
            if (!masters) drop_master(p);
            if (p->dtype == CAIRN_F32) p->value_type = half;
            cairn__param_round_from_master(p);
            p->version++;
        }
        made[i] = NULL;
    }
out:
    for (size_t i = 0; made && i < set->count; i++) cairn__device_free(set->env->device, made[i]);
    cairn__free(made);
    return st;
}

float *cairn_param_master(const cairn_param_set *set, size_t i) {
    if (!set || i >= set->count) return NULL;
    const struct cairn__param *p = set->params[i];
    if (p->is_sharded) return NULL;
    return p->master ? p->master : p->dtype == CAIRN_F32 ? p->data : NULL;
}

cairn_status cairn_param_changed(cairn_param_set *set, size_t i, int master_was_written) {
    REQUIRE(set && i < set->count, CAIRN_EINVAL, "parameter index is %zu, but the set has %zu parameters", i,
            cairn_param_set_count(set));
    struct cairn__param *p = set->params[i];
    if (p->is_sharded && p->master && master_was_written)
        return cairn__param_check_whole("cairn_param_changed, of a master", p);
    if (p->master && !master_was_written) cast_shard(p, p->master, CAIRN_F32, at_shard(p), p->dtype);
    if (p->value_type && p->is_sharded) { /* including the elements that other ranks update */
        device_of(p)->passes->round(device_of(p), p->value_type, p->data, p->data, p->n);
    } else if (p->value_type || master_was_written) {
        cairn__param_round_from_master(p);
    }
    p->version++;
    return CAIRN_OK;
}

void cairn__param_round_from_master(struct cairn__param *p) {
    struct cairn_device *d = device_of(p);
    if (p->value_type) {
        d->passes->round(d, p->value_type, at_shard(p), p->master ? (void *)p->master : at_shard(p),
                         cairn__param_shard(p).n);
    } else if (p->master) {
        cast_shard(p, at_shard(p), p->dtype, p->master, CAIRN_F32);
    }
}

/* Distinguishes versions of shared weights from those of p's earlier weights. */
static const uint64_t SHARED = UINT64_C(1) << 63;

void cairn__param_share(struct cairn__param *p, const struct cairn__param *other, bool in_place) {
    drop_master(p);
    if (!in_place) return;
    if (p->owns_data) cairn__device_free(device_of(p), p->data);
    p->data = other->data;
    p->owns_data = false;
}

cairn_status cairn__param_follow(struct cairn__param *p, const struct cairn__param *other) {
    /* Replays write weights without changing their version. */
    const uint64_t version = SHARED | (other->version + other->set->env->replays);
    cairn_status st = CAIRN_OK;
    if (p->owns_data && p->version != version)
        TRY(cairn__device_copy(device_of(p), p->data, other->data, p->n * cairn_dtype_nbytes(p->dtype)));
    p->version = version;
    if (p->requires_grad != other->requires_grad) TRY(cairn_param_require_grad(p->set, p->index, other->requires_grad));
out:
    return st;
}

cairn_status cairn__param_set_check_own_weights(const char *call, const struct cairn_param_set *set) {
    REQUIRE(!set->averages, CAIRN_ESTATE,
            "%s: the model has averages instead of its own weights; call cairn_averages_restore first", call);
    return CAIRN_OK;
}

void cairn__param_set_weights_changed(struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) set->params[i]->version++;
}
