/* Gradients in the user's memory: the user declares them ready, and takes them back. */
#include "core/log.h"
#include "core/status.h"
#include "param/param.h"

static cairn_status check_range(const char *call, const cairn_param_set *set, size_t first, size_t count) {
    REQUIRE(set, CAIRN_EINVAL, "%s: set is NULL", call);
    REQUIRE(set->is_users, CAIRN_EINVAL, "%s: a module's gradients are written by cairn_backward", call);
    REQUIRE(first <= set->count && count <= set->count - first, CAIRN_EINVAL,
            "%s: %zu parameters from index %zu on, but the set has %zu", call, count, first, set->count);
    return CAIRN_OK;
}

/* For a set with a listener, the first declaration after a settle begins a backward. */
static cairn_status begin_declaring(struct cairn_param_set *set) {
    cairn_status st = set->in_backward ? CAIRN_OK : cairn__param_set_begin_backward(set, set->backward + 1, set->scale);
    if (st != CAIRN_OK) cairn__param_set_abort(set);
    return st;
}

cairn_status cairn__params_check_settled(const char *call, struct cairn__param *const *params, size_t count) {
    for (size_t i = 0; i < count; i++) {
        REQUIRE(!cairn__param_is_in_flight(params[i]), CAIRN_ESTATE,
                "%s: gradients of parameter '%s' and its set are being averaged; call ddp_wait first", call,
                params[i]->name);
    }
    return CAIRN_OK;
}

bool cairn__params_log_if_in_flight(const char *call, struct cairn__param *const *params, size_t count) {
    if (cairn__params_check_settled(call, params, count) == CAIRN_OK) return false;
    cairn__log(CAIRN_LOG_ERROR, "%s; nothing was done", cairn_last_error());
    return true;
}

static cairn_status check_declared(const char *call, const struct cairn__param *p) {
    REQUIRE(!cairn__param_is_in_flight(p) || p->reached != p->set->backward, CAIRN_ESTATE,
            "%s: parameter '%s' was declared ready already since the last ddp_wait, and is being averaged", call,
            p->name);
    REQUIRE(cairn__grad_memory(p->gradient) || p->n == 0, CAIRN_EINVAL,
            "%s: parameter '%s' has no gradient memory; bind some with cairn_param_bind, or write to the memory that "
            "cairn_param_set_get returns",
            call, p->name);
    REQUIRE(!p->owner || !cairn__grad_is_at_other_scale(p->gradient), CAIRN_ESTATE,
            "%s: the gradient of parameter '%s' was not stepped yet and has another loss scale; before writing its "
            "memory again call cairn_grads_taken, or cairn_param_set_zero_grad",
            call, p->name);
    return CAIRN_OK;
}

cairn_status cairn__grads_ready(const char *call, cairn_param_set *set, size_t first, size_t count) {
    cairn_status st = CAIRN_OK;
    TRY(check_range(call, set, first, count));
    struct cairn_device *d = set->env->device;
    for (size_t i = first; i < first + count; i++) {
        if (cairn__param_requires_grad(set->params[i])) TRY(check_declared(call, set->params[i]));
    }
    if (count > 0) TRY(begin_declaring(set));
    for (size_t i = first; i < first + count; i++) {
        struct cairn__param *p = set->params[i];
        if (!cairn__param_requires_grad(p)) continue;
        void *const grad = cairn__grad_memory(p->gradient);
        if (p->value_type) d->passes->round(d, p->value_type, grad, grad, p->n);
        p->reached = set->backward;
        cairn__param_grad_ready(p);
    }
    if (count > 0 && !set->in_backward) cairn__param_set_note_declared(set);
out:
    return st;
}

cairn_status cairn_grads_ready(cairn_param_set *set, size_t first, size_t count) {
    return cairn__grads_ready("cairn_grads_ready", set, first, count);
}

/* Resolves first, so that an overflow is attributed to its own loss. Gradients that no optimizer updates are not
 * accumulated. */
cairn_status cairn_grads_taken(cairn_param_set *set, size_t first, size_t count) {
    cairn_status st = CAIRN_OK;
    TRY(check_range("cairn_grads_taken", set, first, count));
    TRY(cairn__params_check_settled("cairn_grads_taken", set->params, set->count));
    TRY(cairn__env_resolve(set->env));
    for (size_t i = first; i < first + count; i++) {
        struct cairn__grad *g = set->params[i]->gradient;
        void *slot = NULL;
        if (set->params[i]->owner && cairn__grad_is_written(g)) TRY(cairn__grad_begin_write(g, &slot));
    }
out:
    return st;
}

static cairn_status check_may_bind(const cairn_param_set *set, size_t i, const void *data, const void *grad) {
    REQUIRE(set, CAIRN_EINVAL, "cairn_param_bind: set is NULL");
    REQUIRE(i < set->count, CAIRN_EINVAL, "cairn_param_bind: parameter index is %zu, but the set has %zu parameters", i,
            set->count);
    const struct cairn__param *p = set->params[i];
    REQUIRE(set->is_users, CAIRN_ESTATE,
            "cairn_param_bind: parameter '%s' belongs to a module, whose memory is Cairn's", p->name);
    REQUIRE(set->env->graphs == 0, CAIRN_ESTATE,
            "cairn_param_bind: a captured graph uses the present memory of parameter '%s'; destroy the graph first",
            p->name);
    const cairn_param like = {.name = p->name, .dtype = p->dtype};
    cairn_status st = CAIRN_OK;
    TRY(cairn__params_check_settled("cairn_param_bind", &set->params[i], 1));
    if (data) TRY(cairn__param_check_memory(set, &like, "data", data));
    if (grad) TRY(cairn__param_check_memory(set, &like, "grad", grad));
out:
    return st;
}

/* The user's old memory is not read, since it may be freed already. */
cairn_status cairn_param_bind(cairn_param_set *set, size_t i, void *data, void *grad) {
    cairn_status st = CAIRN_OK;
    TRY(check_may_bind(set, i, data, grad));
    struct cairn__param *p = set->params[i];
    if (grad && cairn__grad_owns_memory(p->gradient)) TRY(cairn__env_resolve(set->env));
    if (grad) TRY(cairn__grad_bind(p->gradient, grad));
    if (data) p->data = data;
    p->version++;
out:
    return st;
}
