/* Adam and AdamW: one kind, told apart by where weight decay goes. */
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

static int adam_states(const struct cairn_optimizer *o) {
    (void)o;
    return 2;
}

static void adam_update(const struct cairn_optimizer *o, struct cairn_device *d, const struct cairn__update_list *l) {
    d->passes->adam(d, l->items, l->count, l->grad, l->mode, &o->rule.adam, o->state, l->skip);
}

static const struct cairn__optimizer_kind adam_kind = {"Adam", adam_states, adam_update};
static const struct cairn__optimizer_kind adamw_kind = {"AdamW", adam_states, adam_update};

static cairn_status check(const char *kind, const struct cairn_adam_options *h) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate(kind, "lr", h->lr));
    TRY(cairn__check_rate(kind, "eps", h->eps));
    TRY(cairn__check_rate(kind, "weight_decay", h->weight_decay));
    REQUIRE(h->beta1 >= 0 && h->beta1 < 1, CAIRN_EINVAL, "%s: beta1 is %g; it must be in [0, 1)", kind, h->beta1);
    REQUIRE(h->beta2 >= 0 && h->beta2 < 1, CAIRN_EINVAL, "%s: beta2 is %g; it must be in [0, 1)", kind, h->beta2);
out:
    return st;
}

static cairn_status create(const struct cairn__optimizer_kind *kind, const struct cairn_adam_options *defaults,
                           cairn_param_set *set, const struct cairn_adam_options *options, cairn_optimizer **out) {
    cairn_status st = cairn__check_set(kind->name, set, out);
    if (st != CAIRN_OK) return st;
    struct cairn_adam_options h = *defaults;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_adam_options"));
    TRY(check(kind->name, &h));
    struct cairn_optimizer like = {.kind = kind, .set = set, .lr = h.lr};
    like.rule.adam = (struct cairn__adam_rule){.beta1 = h.beta1,
                                               .beta2 = h.beta2,
                                               .eps = h.eps,
                                               .weight_decay = h.weight_decay,
                                               .decoupled = kind == &adamw_kind};
    TRY(cairn__optimizer_create(&like, out));
out:
    return st;
}

cairn_status cairn_adam_create(cairn_param_set *set, const struct cairn_adam_options *options, cairn_optimizer **out) {
    const struct cairn_adam_options defaults = CAIRN_ADAM_OPTIONS_INIT;
    return create(&adam_kind, &defaults, set, options, out);
}

cairn_status cairn_adamw_create(cairn_param_set *set, const struct cairn_adam_options *options, cairn_optimizer **out) {
    const struct cairn_adam_options defaults = CAIRN_ADAMW_OPTIONS_INIT;
    return create(&adamw_kind, &defaults, set, options, out);
}
