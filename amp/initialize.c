/* amp_initialize: does everything that can fail before any change that cannot be undone. Steps that cannot fail come
 * last. */
#include <string.h>

#include "casts.h"
#include "context.h"
#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
#include "nn/hooks.h"

/* ---- arguments ---- */

static cairn_status check_set(const struct cairn__amp_parts *parts, const struct cairn_param_set *set) {
    REQUIRE(!set->amp, CAIRN_ESTATE,
            "%s: these parameters belong to an amp context already; give each model to one context, or amp_destroy "
            "that one first",
            parts->call);
    REQUIRE(!set->frozen_by, CAIRN_ESTATE, "%s must be called before %s, which broadcasts the master weights",
            parts->call, set->frozen_by);
    return CAIRN_OK;
}

static bool has_set(const amp_context *amp, const struct cairn_param_set *set) {
    for (size_t i = 0; i < amp->num_sets; i++) {
        if (amp->sets[i] == set) return true;
    }
    return false;
}

static cairn_status take_model(const struct cairn__amp_parts *parts, amp_context *amp, cairn_module *model) {
    cairn_status st = CAIRN_OK;
    REQUIRE(model, CAIRN_EINVAL, "%s: a model is NULL", parts->call);
    REQUIRE(cairn__module_env(model) == parts->env, CAIRN_EINVAL, "%s: a model was made in another environment",
            parts->call);
    struct cairn_param_set *set = cairn_module_params(model);
    if (!set) return cairn__last_status();
    REQUIRE(!has_set(amp, set), CAIRN_EINVAL, "%s: a model is given twice", parts->call);
    TRY(check_set(parts, set));
    for (size_t i = 0; amp->policy.enabled && i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        REQUIRE(p->dtype == CAIRN_F32, CAIRN_EINVAL,
                "%s: parameter '%s' is %s; give amp an f32 model, which it casts itself", parts->call, p->name,
                cairn_dtype_name(p->dtype));
    }
    amp->models[amp->num_models++] = model;
    amp->sets[amp->num_sets++] = set;
out:
    return st;
}

static cairn_status check_optimizer(const struct cairn__amp_parts *parts, const amp_context *amp,
                                    const cairn_optimizer *optimizer) {
    size_t count = 0;
    REQUIRE(optimizer, CAIRN_EINVAL, "%s: an optimizer is NULL", parts->call);
    REQUIRE(!cairn__step_guard_of(optimizer), CAIRN_ESTATE,
            "%s: an optimizer is given twice, or belongs to another amp context or amp_scaler already", parts->call);
    struct cairn_param_set *const *sets = cairn__optimizer_sets(optimizer, &count);
    for (size_t i = 0; i < count; i++) {
        REQUIRE(has_set(amp, sets[i]), CAIRN_EINVAL,
                "%s: an optimizer updates parameters that are not given here (such as '%s'); make it over the "
                "parameters of a given model or set",
                parts->call, sets[i]->count ? sets[i]->params[0]->name : "none");
    }
    return CAIRN_OK;
}

static cairn_status take_parts(const struct cairn__amp_parts *parts, amp_context *amp) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(parts->num_models + 1, sizeof(amp->models[0]), (void **)&amp->models));
    TRY(cairn__calloc(parts->num_models + 1, sizeof(amp->sets[0]), (void **)&amp->sets));
    for (size_t i = 0; i < parts->num_models; i++) TRY(take_model(parts, amp, parts->models[i]));
    if (parts->set) {
        TRY(check_set(parts, parts->set));
        amp->sets[amp->num_sets++] = parts->set;
    }
    if (!amp->policy.enabled) return CAIRN_OK; /* without guards any optimizer is accepted */
    for (size_t i = 0; i < parts->num_optimizers; i++) TRY(check_optimizer(parts, amp, parts->optimizers[i]));
out:
    return st;
}

/* ---- the parts of a context ---- */

static cairn_status add_guard(amp_context *amp, cairn_optimizer *optimizer) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__guard_create(optimizer, amp, amp->scalers, amp->policy.num_losses, amp->policy.skip_nonfinite,
                            amp->policy.explain_overflow, &amp->guards[amp->num_guards]));
    amp->guards[amp->num_guards++]->open = &amp->open;
out:
    return st;
}

/* A set without an optimizer gets one that updates nothing, so that every step takes the same path. */
static cairn_status make_guards(const struct cairn__amp_parts *parts, amp_context *amp) {
    cairn_status st = CAIRN_OK;
    const size_t words = (parts->num_optimizers + 1 + 63) / 64;
    TRY(cairn__calloc(parts->num_optimizers + 1, sizeof(amp->guards[0]), (void **)&amp->guards));
    TRY(cairn__calloc(words, sizeof(uint64_t), (void **)&amp->begun.guards));
    TRY(cairn__calloc(words, sizeof(uint64_t), (void **)&amp->ended.guards));
    TRY(cairn__device_alloc(amp->env->device, CAIRN__HOLDS_STATE, 2 * sizeof(amp->found[0]), (void **)&amp->found));
    amp->env->device->passes->clear_flags(amp->env->device, amp->found, 2);
    if (parts->set && parts->num_optimizers == 0) TRY(cairn__user_optimizer_create(parts->set, &amp->own));
    if (!amp->policy.enabled) return CAIRN_OK;
    for (size_t i = 0; i < parts->num_optimizers; i++) {
        REQUIRE(!cairn__step_guard_of(parts->optimizers[i]), CAIRN_EINVAL, "%s: an optimizer is given twice",
                parts->call);
        TRY(add_guard(amp, parts->optimizers[i]));
    }
    if (amp->own) {
        TRY(add_guard(amp, amp->own));
        TRY(cairn__guard_make_agree(amp->guards[0]));
    }
out:
    return st;
}

/* For models: allocates all memory first. If that fails for weights, half buffers are dropped again. */
static cairn_status cast_models(amp_context *amp) {
    cairn_status st = CAIRN_OK;
    const struct cairn__amp_policy *policy = &amp->policy;
    size_t made = 0;
    for (; made < amp->num_models; made++)
        TRY(cairn__module_make_half_buffers(amp->models[made], policy->cast_model_type));
    TRY(cairn__param_sets_to_half(amp->sets, amp->num_sets, policy->cast_model_type, policy->master_weights,
                                  policy->keep_batchnorm_fp32));
    for (size_t i = 0; i < amp->num_models; i++)
        cairn__module_use_half_buffers(amp->models[i], policy->cast_model_type);
    return CAIRN_OK;
out:
    for (size_t i = 0; i < made; i++) cairn__module_drop_half_buffers(amp->models[i]);
    return st;
}

static cairn_status cast_weights(const struct cairn__amp_parts *parts, amp_context *amp) {
    cairn_status st = CAIRN_OK;
    const struct cairn__amp_policy *policy = &amp->policy;
    const bool is_half = cairn__is_half(policy->cast_model_type);
    if (!policy->enabled) return CAIRN_OK;
    if (parts->set) {
        for (size_t i = 0; i < parts->set->count; i++) {
            const struct cairn__param *p = parts->set->params[i];
            REQUIRE(!amp->policy.stochastic_rounding || p->dtype != CAIRN_F32 ||
                        (p->is_norm && amp->policy.keep_batchnorm_fp32),
                    CAIRN_EINVAL,
                    "%s: stochastic_rounding rounds weights in bf16 memory, but parameter '%s' is in f32 memory; leave "
                    "it out, or use master weights (O2)",
                    parts->call, p->name);
        }
        return cairn__param_set_take_half_values(parts->set, is_half ? policy->cast_model_type : (cairn_dtype)0,
                                                 policy->master_weights, policy->keep_batchnorm_fp32);
    }
    if (is_half) TRY(cast_models(amp));
out:
    return st;
}

/* ---- installing: cannot fail ---- */

static void install(const struct cairn__amp_parts *parts, amp_context *amp) {
    const struct cairn__amp_policy *policy = &amp->policy;
    amp->unresolved.resolve = parts->set ? cairn__amp_resolve_declared : cairn__amp_resolve;
    amp->unresolved.take_scale = parts->set ? cairn__amp_take_scale : NULL;
    for (size_t i = 0; i < amp->num_models; i++)
        cairn__module_set_io_types(amp->models[i], policy->cast_model_type, policy->cast_model_outputs);
    for (size_t i = 0; i < amp->num_sets; i++) {
        struct cairn_param_set *set = amp->sets[i];
        char precision[sizeof(set->precision)];
        cairn__amp_policy_summary(policy, precision, sizeof(precision));
        cairn__param_set_begin_amp(set, amp, set->is_users ? &amp->unresolved : NULL, precision);
        for (size_t k = 0; k < set->count; k++) {
            struct cairn__param *p = set->params[k];
            p->stochastic = policy->stochastic_rounding && p->dtype == CAIRN_BF16 && !p->master;
        }
    }
    for (size_t i = 0; i < amp->num_guards; i++)
        cairn__optimizer_set_rounding(amp->guards[i]->optimizer, policy->rounding_seed);
}

static void free_context(amp_context *amp) {
    if (!amp) return;
    for (size_t i = 0; i < amp->num_sets && amp->policy.enabled;
         i++) { /* if disabled, the models may be destroyed already */
        if (!amp->sets[i]->amp) cairn__param_set_unwatch_losses(amp->sets[i]);
    }
    for (size_t i = 0; i < amp->num_guards; i++) cairn__guard_destroy(&amp->guards[i]);
    cairn_optimizer_destroy(&amp->own);
    for (int id = 0; amp->scalers && id < amp->policy.num_losses; id++) cairn__scaler_end(&amp->scalers[id]);
    cairn__fp8_casts_destroy(&amp->fp8);
    cairn__device_free(amp->env->device, amp->found);
    cairn__free(amp->begun.guards);
    cairn__free(amp->ended.guards);
    cairn__free(amp->scalers);
    cairn__free(amp->guards);
    cairn__free(amp->models);
    cairn__free(amp->sets);
    cairn__free(amp);
}

static cairn_status begin_fp8(amp_context *amp) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__fp8_casts_create(amp->env, amp->sets, amp->num_sets, &amp->policy.fp8, &amp->fp8));
    for (size_t i = 0; i < amp->num_guards; i++) amp->guards[i]->fp8 = amp->fp8;
    cairn__casts_use_fp8(amp->env, amp->fp8);
out:
    return st;
}

cairn_status cairn__amp_create(const struct cairn__amp_parts *parts, const struct amp_options *options,
                               amp_context **out) {
    REQUIRE(out, CAIRN_EINVAL, "%s: out is NULL", parts->call);
    REQUIRE(parts->env, CAIRN_EINVAL, "%s: env is NULL", parts->call);
    cairn_status st = CAIRN_OK;
    amp_context *amp = NULL;
    bool casting = false, noting = false;
    TRY(cairn__calloc(1, sizeof(*amp), (void **)&amp));
    amp->env = parts->env;
    TRY(cairn__amp_policy_resolve(options, &amp->policy));
    TRY(take_parts(parts, amp));
    TRY(cairn__calloc((size_t)amp->policy.num_losses, sizeof(amp->scalers[0]), (void **)&amp->scalers));
    for (int id = 0; id < amp->policy.num_losses; id++) {
        struct cairn__scaler_state fresh;
        TRY(cairn__scaler_resolve(&amp->policy.scaler, id, &fresh));
        TRY(cairn__scaler_create(amp->env, &fresh, &amp->policy.scaler, &amp->scalers[id]));
        amp->scalers[id]->is_disabled = !amp->policy.enabled;
        amp->scalers[id]->ignores_overflow = amp->policy.enabled && !amp->policy.skip_nonfinite;
    }
    TRY(make_guards(parts, amp));
    /* For a set of the user's, Cairn sees no losses. */
    for (size_t i = 0; i < amp->num_sets && amp->num_models > 0 && cairn__amp_checks(amp); i++)
        TRY(cairn__param_set_watch_losses(amp->sets[i]));
    if (amp->policy.patch_ops) {
        TRY(cairn__casts_begin_o1(amp->env, amp->policy.half_type, amp->policy.verbosity >= 2));
        casting = true;
    }
    if (amp->policy.has_fp8) TRY(begin_fp8(amp));
    if (amp->policy.explain_overflow) {
        TRY(cairn__note_anomalies(amp->env, true));
        noting = true;
    }
    TRY(cast_weights(parts, amp));
    if (amp->policy.enabled) install(parts, amp);
    cairn__amp_policy_log(&amp->policy);
    if (amp->policy.enabled) {
        cairn__trace_fact("amp", "opt_level", cairn__amp_level_name(amp->policy.level));
        cairn__trace_fact("amp", "half", cairn_dtype_name(amp->policy.half_type));
    }
    *out = amp;
    return CAIRN_OK;
out:
    if (casting) cairn__casts_end_o1(amp->env);
    if (noting) (void)cairn__note_anomalies(amp->env, false);
    free_context(amp);
    return st;
}

/* ---- the calls ---- */

cairn_status amp_initialize_all(cairn_env *env, int num_models, cairn_module *const *models, int num_optimizers,
                                cairn_optimizer *const *optimizers, const struct amp_options *options,
                                amp_context **out) {
    REQUIRE(num_models > 0 && models, CAIRN_EINVAL,
            "amp_initialize_all: num_models is %d and models is %s; at least one model must be given", num_models,
            models ? "set" : "NULL");
    REQUIRE(num_optimizers >= 0 && (optimizers || num_optimizers == 0), CAIRN_EINVAL,
            "amp_initialize_all: num_optimizers is %d, but optimizers is %s", num_optimizers,
            optimizers ? "an array" : "NULL");
    const struct cairn__amp_parts parts = {.call = "amp_initialize",
                                           .env = env,
                                           .models = models,
                                           .num_models = (size_t)num_models,
                                           .optimizers = optimizers,
                                           .num_optimizers = (size_t)num_optimizers};
    return cairn__amp_create(&parts, options, out);
}

cairn_status amp_initialize(cairn_env *env, cairn_module *model, cairn_optimizer *optimizer,
                            const struct amp_options *options, amp_context **out) {
    return amp_initialize_all(env, 1, &model, optimizer ? 1 : 0, &optimizer, options, out);
}

void amp_destroy(amp_context **amp) {
    if (!amp || !*amp) return;
    amp_context *a = *amp;
    /* Reads the last reports while the guards that log them exist. begin_step makes the step's results stale, including
     * a scaled loss without a backward. */
    (void)cairn__env_resolve(a->env);
    if (cairn__device_synchronize(a->env->device) == CAIRN_OK) (void)cairn__env_read_reports(a->env);
    a->env->begin_step(a->env);
    if (a->open) a->env->open_losses--;
    if (a->policy.enabled) {
        if (a->policy.patch_ops) cairn__casts_end_o1(a->env);
        if (a->policy.explain_overflow) (void)cairn__note_anomalies(a->env, false);
        for (size_t i = 0; i < a->num_models; i++)
            cairn__module_set_io_types(a->models[i], (cairn_dtype)0, (cairn_dtype)0);
        for (size_t i = 0; i < a->num_sets; i++) {
            cairn__param_set_end_amp(a->sets[i]);
            for (size_t k = 0; k < a->sets[i]->count; k++) a->sets[i]->params[k]->stochastic = false;
        }
    }
    free_context(a);
    *amp = NULL;
}
