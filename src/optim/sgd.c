/* SGD with momentum, dampening, weight decay and Nesterov's momentum, as torch.optim.SGD. */
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

#include <math.h>

static int sgd_states(const struct cairn_optimizer *o) {
    return o->options.sgd.momentum != 0;
}

static void sgd_update(const struct cairn_optimizer *o, const struct cairn__kernels *k, struct cairn__param_state *s,
                       const struct cairn__update *u) {
    const struct cairn_sgd_options *h = &o->options.sgd;
    const struct cairn__sgd args = {
        .lr = (float)o->lr,
        .momentum = (float)h->momentum,
        .undamped = (float)(1.0 - h->dampening),
        .weight_decay = (float)h->weight_decay,
        .factor = u->factor,
        .momentum_on = h->momentum != 0,
        .nesterov = h->nesterov == CAIRN_ON,
        .first = s->steps == 1,
    };
    k->sgd[u->grad_dtype][u->mode](u->weights, u->half, s->state[0], u->grad, u->n, &args);
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
    struct cairn_optimizer like = {.kind = &sgd_kind, .set = set};
    like.options.sgd = (struct cairn_sgd_options)CAIRN_SGD_OPTIONS_INIT;
    TRY(cairn__options_read(&like.options.sgd, sizeof(like.options.sgd), options, "cairn_sgd_options"));
    TRY(check(&like.options.sgd));
    like.lr = like.options.sgd.lr;
    TRY(cairn__optimizer_create(&like, out));
out:
    return st;
}
