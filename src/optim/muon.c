/* Muon, composed of existing passes of the device. SGD's update with momentum writes the momentum into scratch memory
 * (a step from 0 with rate -1). Clipping by its norm scales it to length 1, and matrix products make it orthogonal.
 * SGD's update without momentum, with the result as gradient, writes masters and half weights. These passes do the
 * skipping, unscaling, clipping and rounding. */
#include "cairn/muon.h"

#include <math.h>

#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

/* ---- scratch: in device memory, for one matrix at a time ---- */

/* Scalars that the passes read. */
struct scalars {
    struct cairn__optim_state state; /* the optimizer's, except `clip` */
    struct cairn__rates rates;       /* for the momentum's pass */
    double norm, total;
    float c, adjust;
};

struct scratch {
    struct scalars *s;
    float *x, *u;         /* [rows, cols]: the matrix, and its next iterate */
    float *gram, *square; /* [m, m] */
};

struct matrix {
    size_t rows, cols, m; /* m: the smaller of both */
};

static struct matrix matrix_of(const struct cairn__param *p) {
    const size_t rows = (size_t)p->shape[0], cols = rows ? p->n / rows : 0;
    return (struct matrix){rows, cols, rows < cols ? rows : cols};
}

/* Rounds up to blocks of 64 bytes. */
static size_t padded(size_t nbytes) {
    return (nbytes + 63) / 64 * 64;
}

/* Lays out scratch memory from `at` on, for the group's greatest number of elements and greatest m, which may belong to
 * different matrices. Returns its size. */
static size_t lay_out(const struct cairn_optimizer *o, const struct cairn__param_group *group, char *at,
                      struct scratch *scratch) {
    size_t n = 0, m = 0;
    for (size_t i = group->first; i < group->first + group->count; i++) {
        const struct matrix a = matrix_of(o->arrays.params[i]);
        if (a.rows * a.cols > n) n = a.rows * a.cols;
        if (a.m > m) m = a.m;
    }
    const size_t array = padded(n * sizeof(float)), square = padded(m * m * sizeof(float));
    const size_t offset = padded(sizeof(struct scalars)), gram = offset + 2 * array;
    if (at) {
        *scratch = (struct scratch){(void *)at, (void *)(at + offset), (void *)(at + offset + array),
                                    (void *)(at + gram), (void *)(at + gram + square)};
    }
    return gram + 2 * square;
}

static cairn_status prepare(struct cairn_optimizer *o, const struct cairn__param_group *group) {
    cairn_status st = CAIRN_OK;
    const size_t nbytes = lay_out(o, group, NULL, NULL);
    TRY(cairn__params_check_whole("Muon", o->arrays.params + group->first, group->count));
    if (nbytes > o->scratch_nbytes) {
        void *grown = NULL;
        TRY(cairn__device_alloc(o->env->device, CAIRN__HOLDS_OPTIM, nbytes, &grown));
        cairn__device_free(o->env->device, o->scratch);
        o->scratch = grown;
        o->scratch_nbytes = nbytes;
    }
out:
    return st;
}

static void store(struct cairn_device *d, float *dst, float value) {
    d->passes->store(d, dst, &value, sizeof(value));
}

/* ---- a matrix ---- */

/* x = u / max(|u|, eps), where u is the momentum. The factor is the one that clips u / eps to a norm of 1, computed
 * with clip = 1 / eps because u / eps itself could overflow f32. */
static cairn_status take_momentum(struct cairn_optimizer *o, const struct cairn__param_group *group, size_t i,
                                  const struct scratch *at) {
    struct cairn_device *d = o->env->device;
    const struct cairn__optim_item *of = &o->arrays.items[i];
    const cairn_dtype grad = (cairn_dtype)(o->arrays.keys[i] / CAIRN__NUM_STORAGE_MODES);
    struct cairn__optim_item item = {.n = of->n, .weights = at->u, .grad = of->grad, .factor = of->factor};
    const struct cairn__item u = {.n = of->n, .dst = at->x, .x = at->u};
    cairn_status st = CAIRN_OK;
    item.missed = of->missed;
    item.state[0] = of->state[0];
    d->passes->fill(d, CAIRN_F32, at->u, of->n, 0.0f);
    d->passes->update(d, &item, 1, grad, CAIRN__W_F32, &group->rule, &at->s->rates, o->state);
    d->passes->l2norm(d, &u, 1, CAIRN_F32, NULL, &at->s->norm, NULL, NULL);
    TRY(cairn__device_copy(d, &at->s->state, o->state, sizeof(*o->state)));
    store(d, &at->s->state.clip, (float)(1 / group->muon.eps));
    d->passes->clip(d, &at->s->norm, 1, 1, &at->s->state, &at->s->total);
    d->passes->scale(d, &u, 1, CAIRN_F32, CAIRN_F32, &at->s->state.clip, NULL);
    store(d, &at->s->state.clip, 1);
out:
    return st;
}

static cairn_status multiply(struct cairn_device *d, size_t m, size_t n, size_t k, const float *a, bool trans_a,
                             const float *b, bool trans_b, float *c) {
    const struct cairn__matmul product = {.m = (int64_t)m,
                                          .n = (int64_t)n,
                                          .k = (int64_t)k,
                                          .trans_a = trans_a,
                                          .trans_b = trans_b,
                                          .in_type = CAIRN_F32,
                                          .out_type = CAIRN_F32,
                                          .a = a,
                                          .b = b,
                                          .c = c};
    return cairn__device_matmul(d, &product);
}

/* Uses X X^T for a wide matrix and X^T X for a tall one, the smaller of both, and multiplies X by it from that side. */
static cairn_status iterate(struct cairn_device *d, const struct cairn__muon *h, struct matrix a,
                            const struct scratch *at) {
    const bool is_tall = a.rows > a.cols;
    const size_t n = a.rows * a.cols;
    const struct cairn__item polynomial = {.n = a.m * a.m, .dst = at->square, .x = at->square, .y = at->gram};
    const struct cairn__item next = {.n = n, .dst = at->x, .x = at->u, .y = at->x};
    cairn_status st = CAIRN_OK;
    TRY(multiply(d, a.m, a.m, n / a.m, at->x, is_tall, at->x, !is_tall, at->gram));
    TRY(multiply(d, a.m, a.m, a.m, at->gram, false, at->gram, false, at->square));
    d->passes->axpby(d, &polynomial, 1, CAIRN_F32, CAIRN_F32, &at->s->c, (float)h->b, NULL);
    if (is_tall) {
        TRY(multiply(d, a.rows, a.cols, a.cols, at->x, false, at->square, false, at->u));
    } else {
        TRY(multiply(d, a.rows, a.cols, a.rows, at->square, false, at->x, false, at->u));
    }
    d->passes->axpby(d, &next, 1, CAIRN_F32, CAIRN_F32, NULL, (float)h->a, NULL);
out:
    return st;
}

static void apply(struct cairn_optimizer *o, const struct cairn__param_group *group, size_t i,
                  const struct scratch *at) {
    struct cairn_device *d = o->env->device;
    struct cairn__optim_item item = o->arrays.items[i];
    const struct matrix a = matrix_of(o->arrays.params[i]);
    const double rows = (double)a.rows, cols = (double)a.cols;
    const double adjust = group->muon.matches_rms ? 0.2 * sqrt(fmax(rows, cols)) : sqrt(fmax(1, rows / cols));
    const enum cairn__weight_mode mode = (enum cairn__weight_mode)(o->arrays.keys[i] % CAIRN__NUM_STORAGE_MODES);
    const struct cairn__optim_rule rule = {.kind = CAIRN__OPTIM_SGD, .sgd = {.weight_decay = group->muon.weight_decay}};
    for (int s = 0; s < CAIRN__MAX_STATES; s++) item.state[s] = NULL;
    item.grad = at->x;
    item.factor = &at->s->adjust;
    store(d, &at->s->adjust, (float)adjust);
    d->passes->update(d, &item, 1, CAIRN_F32, mode, &rule, &o->table.rates[group - o->groups], &at->s->state);
}

static cairn_status update(struct cairn_optimizer *o, const struct cairn__param_group *group) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = o->env->device;
    struct scratch at = {.u = NULL};
    const struct cairn__rates *rates = &o->table.rates[group - o->groups];
    const double up = -1;
    (void)lay_out(o, group, o->scratch, &at);
    d->passes->store(d, &at.s->rates.lr, &up, sizeof(up));
    TRY(cairn__device_copy(d, &at.s->rates.momentum, &rates->momentum, sizeof(rates->momentum)));
    store(d, &at.s->c, (float)group->muon.c);
    for (size_t i = group->first; i < group->first + group->count; i++) {
        if (o->arrays.keys[i] < 0 || o->arrays.params[i]->n == 0) continue;
        TRY(take_momentum(o, group, i, &at));
        for (int k = 0; k < (int)group->muon.steps; k++)
            TRY(iterate(d, &group->muon, matrix_of(o->arrays.params[i]), &at));
        apply(o, group, i, &at);
    }
out:
    return st;
}

/* ---- hyperparameters ---- */

#define FIELD(member) offsetof(struct cairn__param_group, member)
static const struct cairn__group_field fields[] = {
    {"lr", CAIRN__GROUP_REAL, FIELD(schedule.base.lr), true, false},
    {"momentum", CAIRN__GROUP_REAL, FIELD(schedule.base.momentum), true, false},
    {"weight_decay", CAIRN__GROUP_REAL, FIELD(muon.weight_decay), false, false},
    {"eps", CAIRN__GROUP_REAL, FIELD(muon.eps), false, false},
    {"ns_a", CAIRN__GROUP_REAL, FIELD(muon.a), false, false},
    {"ns_b", CAIRN__GROUP_REAL, FIELD(muon.b), false, false},
    {"ns_c", CAIRN__GROUP_REAL, FIELD(muon.c), false, false},
    {"ns_steps", CAIRN__GROUP_REAL, FIELD(muon.steps), false, false},
    {"match_rms_adamw", CAIRN__GROUP_SWITCH, FIELD(muon.matches_rms), false, false},
    {"nesterov", CAIRN__GROUP_SWITCH, FIELD(rule.sgd.nesterov), false, false},
    {"maximize", CAIRN__GROUP_SWITCH, FIELD(rule.maximizes), false, false},
    {.name = NULL},
};
#undef FIELD

static cairn_status check_group(const struct cairn__optimizer_kind *k, const struct cairn__param_group *g) {
    const struct cairn__muon *h = &g->muon;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate(k->name, "lr", g->schedule.base.lr));
    TRY(cairn__check_beta(k->name, "momentum", g->schedule.base.momentum));
    TRY(cairn__check_rate(k->name, "weight_decay", h->weight_decay));
    REQUIRE(isfinite((float)(1 / h->eps)) && h->eps > 0 && isfinite(h->eps), CAIRN_EINVAL,
            "%s: eps is %g; it must be a number from 1e-38 on", k->name, h->eps);
    REQUIRE(isfinite(h->a) && isfinite(h->b) && isfinite(h->c), CAIRN_EINVAL,
            "%s: ns_coefficients are %g, %g and %g; they must be numbers", k->name, h->a, h->b, h->c);
    REQUIRE(h->steps >= 1 && h->steps <= 100 && h->steps == floor(h->steps), CAIRN_EINVAL,
            "%s: ns_steps is %g; it must be from 1 to 100", k->name, h->steps);
out:
    return st;
}

static cairn_status group_of(const struct cairn__optimizer_kind *k, const void *options,
                             struct cairn__param_group *out) {
    cairn_status st = CAIRN_OK;
    struct cairn_muon_options h = CAIRN_MUON_OPTIONS_INIT;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_muon_options"));
    REQUIRE((int)h.adjust >= 0 && h.adjust <= CAIRN_MUON_MATCH_RMS_ADAMW, CAIRN_EINVAL,
            "%s: adjust is %d; it must be CAIRN_MUON_ORIGINAL or CAIRN_MUON_MATCH_RMS_ADAMW", k->name, (int)h.adjust);
    *out = (struct cairn__param_group){.schedule.base = {.lr = h.lr, .momentum = h.momentum},
                                       .rule = {.kind = CAIRN__OPTIM_SGD,
                                                .maximizes = h.maximize == CAIRN_ON,
                                                .sgd = {.has_momentum = true, .nesterov = h.nesterov != CAIRN_OFF}},
                                       .muon = {.weight_decay = h.weight_decay,
                                                .eps = h.eps,
                                                .a = h.ns_coefficients[0],
                                                .b = h.ns_coefficients[1],
                                                .c = h.ns_coefficients[2],
                                                .steps = h.ns_steps,
                                                .matches_rms = h.adjust == CAIRN_MUON_MATCH_RMS_ADAMW}};
    TRY(check_group(k, out));
out:
    return st;
}

static cairn_status check_param(const struct cairn__optimizer_kind *k, const struct cairn__param *p) {
    REQUIRE(p->ndim >= 2, CAIRN_EINVAL,
            "%s: parameter '%s' has %d dimensions, and Muon is for matrices; give it to a group of AdamW (.adam of a "
            "rule, or cairn_adam_add_group)",
            k->name, p->name, p->ndim);
    return CAIRN_OK;
}

static const struct cairn__optimizer_kind kind = {.name = "Muon",
                                                  .has_momentum = true,
                                                  .options = offsetof(cairn_group_rule, muon),
                                                  .group_of = group_of,
                                                  .check = check_group,
                                                  .check_param = check_param,
                                                  .prepare = prepare,
                                                  .update = update,
                                                  .other = &cairn__adamw_kind,
                                                  .saved_as = "muon",
                                                  .state_names = {"momentum_buffer"},
                                                  .fields = fields};

cairn_status cairn_muon_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set, const cairn_group_rule *rules,
                                             size_t count, cairn_optimizer **out) {
    return cairn__optimizer_create_grouped(&kind, rule_nbytes, set, rules, count, out);
}

cairn_status(cairn_muon_create_grouped)(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                        cairn_optimizer **out) {
    return cairn_muon_create_grouped_sized(CAIRN__GROUP_RULE_0_9, set, rules, count, out);
}

cairn_status cairn_muon_create(cairn_param_set *set, const struct cairn_muon_options *options,
                               const struct cairn_adam_options *others, cairn_optimizer **out) {
    const struct cairn_adam_options usual = CAIRN_ADAMW_OPTIONS_INIT;
    const cairn_group_rule rules[] = {{.are = CAIRN_PARAMS_MATRICES, .muon = options},
                                      {.adam = others ? others : &usual}};
    return cairn_muon_create_grouped(set, rules, 2, out);
}

cairn_status cairn_muon_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                    const struct cairn_muon_options *options, cairn_optimizer **out) {
    return cairn__kind_create_over(&kind, set, indices, count, options, out);
}

cairn_status cairn_muon_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices, size_t count,
                                  const struct cairn_muon_options *options) {
    return cairn__kind_add_group(&kind, optimizer, set, indices, count, options);
}
