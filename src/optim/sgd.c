/* SGD with momentum, dampening, weight decay and Nesterov's momentum, as torch.optim.SGD. */
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

#include <math.h>

static int sgd_states(const struct cairn_optimizer *o) {
    return o->rule.sgd.momentum != 0;
}

static void sgd_update(const struct cairn_optimizer *o, struct cairn_device *d, const struct cairn__update_list *l) {
    d->passes->sgd(d, l->items, l->count, l->grad, l->mode, &o->rule.sgd, o->state, l->skip);
}

static const struct cairn__optimizer_kind sgd_kind = {"SGD", sgd_states, sgd_update};

static cairn_status check(const struct cairn_sgd_options *h) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate("SGD", "lr", h->lr));
    TRY(cairn__check_rate("SGD", "momentum", h->momentum));
    TRY(cairn__check_rate("SGD", "weight_decay", h->weight_decay));
    REQUIRE(isfinite(h->dampening), CAIRN_EINVAL, "SGD: dampening is %g; it must be a number", h->dampening);
    REQUIRE(h->nesterov != CAIRN_ON || (h->momentum > 0 && h->dampening == 0), CAIRN_EINVAL,
            "SGD: nesterov needs a momentum above 0 and no dampening, got momentum %g and dampening %g", h->momentum,
            h->dampening);
out:
    return st;
}

cairn_status cairn_sgd_create(cairn_param_set *set, const struct cairn_sgd_options *options, cairn_optimizer **out) {
    cairn_status st = cairn__check_set("SGD", set, out);
    if (st != CAIRN_OK) return st;
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_sgd_options"));
    TRY(check(&h));
    struct cairn_optimizer like = {.kind = &sgd_kind, .set = set, .lr = h.lr};
    like.rule.sgd = (struct cairn__sgd_rule){.momentum = h.momentum,
                                             .dampening = h.dampening,
                                             .weight_decay = h.weight_decay,
                                             .nesterov = h.nesterov == CAIRN_ON};
    TRY(cairn__optimizer_create(&like, out));
out:
    return st;
}
