/* amp_initialize: all that can fail is done and checked before anything is changed that cannot be taken back; hooks come
 * last, because nothing after them can fail. */
#include "context.h"

#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "nn/hooks.h"
#include "ops.h"
#include "optim/hooks.h"

static cairn_status check_arguments(struct cairn_env *env, cairn_module *model, cairn_optimizer *optimizer) {
    REQUIRE(env, CAIRN_EINVAL, "amp_initialize: env is NULL");
    REQUIRE(model, CAIRN_EINVAL, "amp_initialize: model is NULL");
    REQUIRE(optimizer, CAIRN_EINVAL, "amp_initialize: optimizer is NULL");
    const struct cairn_param_set *set = cairn_optimizer_params(optimizer);
    REQUIRE(cairn__module_env(model) == env, CAIRN_EINVAL, "amp_initialize: the model was made in another environment");
    const struct cairn_param_set *own = cairn_module_params(model);
    if (!own) return cairn__last_status();
    REQUIRE(set == own, CAIRN_EINVAL,
            "amp_initialize: the optimizer updates other parameters than the model's; make it over "
            "cairn_module_params(model)");
    REQUIRE(!set->has_amp, CAIRN_ESTATE,
            "amp_initialize: this model and optimizer have been initialised; amp_destroy the first context");
    REQUIRE(!set->frozen_by, CAIRN_ESTATE,
            "amp_initialize must come before %s, which broadcasts the masters that amp makes", set->frozen_by);
    return CAIRN_OK;
}

static cairn_status check_params(const struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        REQUIRE(p->dtype == CAIRN_F32, CAIRN_EINVAL,
                "amp_initialize: parameter '%s' is %s; give amp an f32 model, it does the casting", p->name,
                cairn_dtype_name(p->dtype));
    }
    return CAIRN_OK;
}

static cairn_status cast_params(struct cairn_param_set *set, const struct cairn__amp_policy *policy) {
    if (!cairn__is_half(policy->cast_model_type)) return CAIRN_OK;
    return cairn__param_set_to_half(set, policy->cast_model_type, policy->master_weights, policy->keep_batchnorm_fp32);
}

static cairn_dtype compute_type(void *ctx, enum cairn__op op, const cairn_dtype *inputs, int count) {
    const struct amp_context *amp = ctx;
    (void)inputs, (void)count;
    return cairn__amp_compute_type(op, amp->policy.half_type);
}

static cairn_status install_casts(struct amp_context *amp) {
    const struct cairn__op_hook hook = {.ctx = amp, .compute_type = compute_type};
    return amp->policy.patch_ops ? cairn__set_op_hook(amp->env, &hook) : CAIRN_OK;
}

static void install(struct amp_context *amp) {
    const struct cairn__amp_policy *policy = &amp->policy;
    const struct cairn__step_hook step_hook = {.ctx = amp,
                                               .before = cairn__amp_before_step,
                                               .queued = cairn__amp_step_queued,
                                               .told = cairn__amp_told,
                                               .scaler = amp->scaler};
    cairn__module_set_io_types(amp->model, policy->cast_model_type, policy->cast_model_outputs);
    cairn__set_step_hook(amp->optimizer, &step_hook);
    amp->set->skip_nonfinite = policy->skip_nonfinite;
    amp->set->has_amp = true;
    amp->set->users++;
    cairn__amp_policy_summary(policy, amp->set->precision, sizeof(amp->set->precision));
}

static cairn_status make_scaler(struct amp_context *amp) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = amp->env->device;
    const struct cairn__scaler_state fresh = cairn__amp_scaler_of(&amp->policy);
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, sizeof(fresh), (void **)&amp->scaler));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, CAIRN__AMP_CELLS * sizeof(amp->cells[0]), (void **)&amp->cells));
    d->passes->store(d, amp->scaler, &fresh, sizeof(fresh));
    TRY(cairn__device_synchronize(d)); /* reports of steps before this context are all in */
    amp->before = cairn__optimizer_last_report(amp->optimizer).number;
out:
    return st;
}

static void free_context(struct amp_context *amp) {
    if (!amp) return;
    cairn__device_free(amp->env->device, amp->scaler);
    cairn__device_free(amp->env->device, amp->cells);
    cairn__free(amp);
}

cairn_status amp_initialize(cairn_env *env, cairn_module *model, cairn_optimizer *optimizer,
                            const struct amp_options *options, amp_context **out) {
    REQUIRE(out, CAIRN_EINVAL, "amp_initialize: out is NULL");
    cairn_status st = CAIRN_OK;
    struct amp_context *amp = NULL;
    struct cairn__amp_policy policy;
    TRY(check_arguments(env, model, optimizer));
    TRY(cairn__amp_policy_resolve(options, &policy));
    struct cairn_param_set *set = cairn_optimizer_params(optimizer);
    if (policy.enabled) TRY(check_params(set));
    TRY(cairn__calloc(1, sizeof(*amp), (void **)&amp));
    *amp = (struct amp_context){.env = env, .model = model, .optimizer = optimizer, .set = set, .policy = policy};
    TRY(make_scaler(amp));
    TRY(install_casts(
        amp)); /* O1 alone has them, and casts no parameter: what follows cannot fail with them in place */
    TRY(cast_params(set, &policy));
    if (policy.enabled) install(amp);
    cairn__amp_policy_log(options, &policy);
    *out = amp;
    return CAIRN_OK;
out:
    free_context(amp);
    return st;
}

/* What the device still has to say is said while somebody listens; what waits at a scale of this context gets it. */
static void settle(struct amp_context *a) {
    if (cairn__device_synchronize(a->env->device) == CAIRN_OK) (void)cairn__env_read_reports(a->env);
    for (int i = 0; i < CAIRN__AMP_CELLS; i++) {
        if (cairn__params_fold_at(a->env, &a->cells[i].factor) != CAIRN_OK) a->set->incomplete = true;
    }
    a->env->unstepped -= a->pending;
    a->set->found_into = NULL;
    a->env->begin_step(a->env); /* a scaled loss that nobody walked back from is told to be stale */
}

void amp_destroy(amp_context **amp) {
    if (!amp || !*amp) return;
    struct amp_context *a = *amp;
    settle(a);
    if (a->policy.enabled) {
        if (a->policy.patch_ops) cairn__clear_op_hook(a->env);
        cairn__module_set_io_types(a->model, (cairn_dtype)0, (cairn_dtype)0);
        cairn__set_step_hook(a->optimizer, NULL);
        a->set->skip_nonfinite = false;
        a->set->has_amp = false;
        a->set->users--;
        memset(a->set->precision, 0, sizeof(a->set->precision));
    }
    free_context(a);
    *amp = NULL;
}
