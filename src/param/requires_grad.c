/* Freezing and thawing of parameters. If ranks share a set, its listener makes the change on all of them: no rank
 * changes anything before all agree. */
#include <fnmatch.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "param/param.h"

bool cairn__param_matches(const struct cairn__param *p, const char *pattern) {
    return fnmatch(pattern, p->name, 0) == 0;
}

bool cairn__param_set_any_requires_grad(const struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        if (cairn__param_requires_grad(set->params[i])) return true;
    }
    return false;
}

static cairn_status check_may_change(const char *call, const struct cairn_param_set *set, size_t count) {
    REQUIRE(count == 0 || set->env->graphs == 0, CAIRN_ESTATE,
            "%s: a captured graph computes gradients for the parameters that required them at capture; destroy the "
            "graph first",
            call);
    return cairn__device_refuse_recording(set->env->device, "freeze and thaw parameters before the graph is captured");
}

/* Cannot fail. */
static void freeze(struct cairn__param *p) {
    cairn__params_forget(&p, 1);
    cairn__grad_free_memory(p->gradient);
    p->requires_grad = false;
}

cairn_status cairn__params_require_grad(const char *call, struct cairn_param_set *set,
                                        struct cairn__param *const *params, size_t count, bool on,
                                        cairn_status status) {
    const struct cairn__grad_listener *listener = set->listener;
    const cairn_status st = cairn__param_set_check_between(call, set);
    if (st != CAIRN_OK) return st;
    if (status == CAIRN_OK) status = check_may_change(call, set, count);
    if (status == CAIRN_OK) status = cairn__env_resolve(set->env);
    if (listener && listener->agree_on_frozen)
        status = listener->agree_on_frozen(listener->ctx, call, params, count, on, status);
    for (size_t i = 0; status == CAIRN_OK && i < count; i++) {
        if (on) {
            params[i]->requires_grad = true;
        } else if (params[i]->requires_grad) {
            freeze(params[i]);
        }
    }
    return status;
}

/* ---- the calls ---- */

cairn_status cairn_param_require_grad(cairn_param_set *set, size_t i, int on) {
    REQUIRE(set, CAIRN_EINVAL, "cairn_param_require_grad: set is NULL");
    cairn_status st = CAIRN_OK;
    if (i >= set->count)
        st = cairn__fail(CAIRN_EINVAL,
                         "cairn_param_require_grad: parameter index is %zu, but the set has %zu parameters", i,
                         set->count);
    return cairn__params_require_grad("cairn_param_require_grad", set, &set->params[i], st == CAIRN_OK,
                                      cairn__is_on(on), st);
}

static cairn_status find_matches(const struct cairn_param_set *set, const char *pattern, struct cairn__param **found,
                                 size_t *count) {
    REQUIRE(pattern, CAIRN_EINVAL, "cairn_param_set_require_grad: pattern is NULL");
    for (size_t i = 0; i < set->count; i++) {
        if (cairn__param_matches(set->params[i], pattern)) found[(*count)++] = set->params[i];
    }
    REQUIRE(*count > 0, CAIRN_EINVAL, "cairn_param_set_require_grad: no parameter's name matches '%s'", pattern);
    return CAIRN_OK;
}

cairn_status cairn_param_set_require_grad(cairn_param_set *set, const char *pattern, int on) {
    REQUIRE(set, CAIRN_EINVAL, "cairn_param_set_require_grad: set is NULL");
    struct cairn__param **found = NULL;
    size_t count = 0;
    cairn_status st = cairn__calloc(set->count, sizeof(found[0]), (void **)&found);
    if (st == CAIRN_OK) st = find_matches(set, pattern, found, &count);
    st = cairn__params_require_grad("cairn_param_set_require_grad", set, found, count, cairn__is_on(on), st);
    cairn__free(found);
    return st;
}

int cairn_param_requires_grad(const cairn_param_set *set, size_t i) {
    return set && i < set->count && cairn__param_requires_grad(set->params[i]);
}
