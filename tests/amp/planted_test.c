/* Plants an infinity or a NaN in an input or a weight of every operation. If it reaches the loss or a gradient, every
 * rank skips the step; the operations that may absorb it are listed.
 *
 * The cases are those of tests/nn. Every float input that requires a gradient is a parameter, that is, a weight; a
 * value planted as data is added to it. With CAIRN_TEST_SHORT in the environment each of the levels O1, O2 and O3 has
 * one half type instead of both. */
#include <math.h>

#include "../ddp/parts.h"
#include "../nn/case_run.h"
#include "core/alloc.h"
#include "core/convert.h"
#include "nn/ops.h"

/* ---- a module that is one operation ---- */

struct operation {
    const struct op_case *c;
    cairn_tensor *weights[CASE_INPUTS], *data[CASE_INPUTS], *factors; /* factors: made by the first forward */
};

/* NULL where the case has no loss: its result is no float, has no elements, or wants no gradient. */
static cairn_tensor *apply(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    struct operation *o = context;
    cairn_env *env = cairn__module_env(module);
    cairn_tensor *in[CASE_INPUTS] = {NULL};
    (void)inputs, (void)count;
    for (int i = 0; i < CASE_INPUTS; i++)
        in[i] = o->weights[i] && o->data[i] ? cairn_add(o->weights[i], o->data[i]) : o->data[i];
    env->next_stream = 1000; /* every run has the same random numbers */
    cairn_tensor *y = o->c->build(in);
    if (!y || !cairn__wants_grad(y) || cairn_tensor_numel(y) == 0) return NULL;
    if (!o->factors) {
        double *values = case_room(cairn_tensor_numel(y), sizeof(double));
        for (size_t i = 0; i < cairn_tensor_numel(y); i++) values[i] = case_weight(i);
        o->factors = cairn_zeros(env, CAIRN_F32, y->ndim, y->shape);
        (void)cairn_tensor_write(o->factors, values, cairn_tensor_numel(y));
        cairn__free(values);
    }
    return cairn_sum(cairn_mul(cairn_cast(y, CAIRN_F32), o->factors));
}

static const struct cairn__module_kind operation_kind = {.name = "Operation", .forward = apply};

struct subject {
    const struct op_case *c;
    struct case_array inputs[CASE_INPUTS];
    struct operation *operation;
    cairn_module *model;
    cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
    ddp_context *net;
    cairn_tensor *nothing; /* the module's input */
};

/* Of the type that the level computes in; integers and masks are what they are. */
static cairn_tensor *leaf_of(cairn_env *env, const struct case_array *a, cairn_dtype type) {
    void *bits = case_room(a->n, 8);
    const cairn_dtype dtype = cairn__is_float(a->dtype) ? type : a->dtype;
    cairn__convert(bits, dtype, a->values, CAIRN_F64, a->n);
    cairn_tensor *t = cairn_tensor_from(env, dtype, a->ndim, a->shape, bits);
    cairn__free(bits);
    return t;
}

static char *subject_begin(struct subject *s, cairn_env *env, const struct op_case *c,
                           const struct amp_options *level) {
    *s = (struct subject){.c = c, .nothing = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1))};
    case_draw(c, level->half_type, s->inputs);
    EXPECT_OK(cairn__module_create(env, &operation_kind, sizeof(struct operation), &s->model));
    s->operation = cairn__module_context(s->model);
    s->operation->c = c;
    for (int i = 0; i < CASE_INPUTS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "input%d", i);
        if (s->inputs[i].values && case_wants(c, i))
            EXPECT_OK(cairn__module_add_param(s->model, name, s->inputs[i].ndim, s->inputs[i].shape, false,
                                              &s->operation->weights[i]));
    }
    s->set = cairn_module_params(s->model);
    EXPECT_OK(cairn_sgd_create(s->set, NULL, &s->sgd));
    EXPECT_OK(amp_initialize(env, s->model, s->sgd, level, &s->amp));
    EXPECT_OK(ddp_create(s->model, cairn_env_group(env), NULL, &s->net));
    return NULL;
}

static void free_data(struct subject *s) {
    for (int i = 0; i < CASE_INPUTS; i++) cairn_tensor_destroy(&s->operation->data[i]);
}

static void subject_end(struct subject *s) {
    ddp_destroy(&s->net);
    amp_destroy(&s->amp);
    cairn_optimizer_destroy(&s->sgd);
    free_data(s);
    cairn_tensor_destroy(&s->operation->factors);
    cairn_module_destroy(&s->model);
    cairn_tensor_destroy(&s->nothing);
    case_arrays_free(s->inputs, CASE_INPUTS);
}

/* ---- planting ---- */

enum place { NOWHERE, IN_WEIGHT, IN_DATA, PLACES };

struct planting {
    enum place place;
    int input;
    size_t element;
    double value;
};

/* The type that a parameter of the case is computed in; f32 at O1, where operations cast. */
static cairn_dtype type_of(const struct subject *s) {
    return s->set->count ? s->set->params[0]->dtype : CAIRN_F32;
}

/* Weights are the drawn values, and what is added to them 0, but for what is planted. */
static char *plant(struct subject *s, cairn_env *env, const struct planting *p) {
    size_t param = 0;
    free_data(s);
    for (int i = 0; i < CASE_INPUTS; i++) {
        struct case_array *a = &s->inputs[i];
        if (!a->values) continue;
        const bool is_weight = s->operation->weights[i] != NULL, is_here = p->place != NOWHERE && p->input == i;
        double *drawn = a->values, *values = case_room(a->n, sizeof(double));
        memcpy(values, drawn, a->n * sizeof(double));
        if (is_here && (p->place == IN_WEIGHT || !is_weight)) values[p->element] = p->value;
        if (is_weight) {
            const struct cairn__param *w = s->set->params[param];
            cairn__convert(w->data, w->dtype, values, CAIRN_F64, a->n);
            EXPECT_OK(cairn_param_changed(s->set, param++, 0));
            memset(values, 0, a->n * sizeof(double));
            if (is_here && p->place == IN_DATA) values[p->element] = p->value;
        }
        a->values = values;
        s->operation->data[i] = leaf_of(env, a, type_of(s));
        a->values = drawn;
        cairn__free(values);
        EXPECT(s->operation->data[i]);
    }
    return NULL;
}

static bool has_bad_gradient(const struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        for (size_t k = 0; cairn__grad_is_written(p->gradient) && k < p->n; k++) {
            const char *at = (const char *)cairn__grad_memory(p->gradient) + k * cairn_dtype_nbytes(p->dtype);
            if (!isfinite(cairn__dtype(p->dtype)->to_f32(at))) return true;
        }
    }
    return false;
}

/* Sum of all bits: of weights and masters. */
static uint64_t weights_of(const struct cairn_param_set *set) {
    uint64_t sum = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        const unsigned char *data = p->data, *master = (const unsigned char *)p->master;
        for (size_t k = 0; k < p->n * cairn_dtype_nbytes(p->dtype); k++) sum = sum * 31 + data[k];
        for (size_t k = 0; master && k < p->n * sizeof(float); k++) sum = sum * 31 + master[k];
    }
    return sum;
}

enum outcome { NO_LOSS, ENDED, SKIPPED, STEPPED };

/* STEPPED: though the loss or a gradient was infinite or NaN. One rank sees what all sum up to in its gradients. */
static char *train(struct subject *s, cairn_env *env, const struct planting *p, enum outcome *out) {
    PASS(plant(s, env, p));
    cairn_zero_grad(s->sgd);
    const uint64_t before = weights_of(s->set);
    cairn_tensor *loss = ddp_forward(s->net, s->nothing);
    *out = NO_LOSS;
    if (!loss) return NULL;
    float bad = !isfinite(cairn_tensor_item(loss));
    EXPECT_OK(amp_backward(s->amp, loss, s->sgd));
    if (has_bad_gradient(s->set)) bad = 1;
    EXPECT_OK(cairn_allreduce(cairn_env_group(env), &bad, 1, CAIRN_F32, CAIRN_MAX, NULL));
    EXPECT_OK(cairn_step(s->sgd));
    const bool skipped = cairn_optimizer_step_skipped(s->sgd);
    EXPECT(!skipped || before == weights_of(s->set));
    *out = skipped ? SKIPPED : bad != 0 ? STEPPED : ENDED;
    return NULL;
}

/* ---- over all ---- */

#define LEVEL(level, half)                                                                                 \
    {                                                                                                      \
        .struct_size = sizeof(struct amp_options), .opt_level = level, .half_type = half, .loss_scale = 8, \
        .skip_nonfinite = CAIRN_ON, .verbosity = -1                                                        \
    }
static const struct amp_options levels[] = {LEVEL(AMP_O1, CAIRN_F16), LEVEL(AMP_O1, CAIRN_BF16),
                                            LEVEL(AMP_O2, CAIRN_F16), LEVEL(AMP_O2, CAIRN_BF16),
                                            LEVEL(AMP_O3, CAIRN_F16), LEVEL(AMP_O3, CAIRN_BF16)};
enum { LEVELS = sizeof(levels) / sizeof(levels[0]) };
static const double values[] = {NAN, INFINITY, -INFINITY};

struct totals {
    bool has_loss[CAIRN__NUM_OPS], reaches[CAIRN__NUM_OPS];
    unsigned ends[CAIRN__NUM_OPS]; /* bit v: values[v] did, somewhere */
    int ranks;
    size_t runs;
};

static char *stepped(const struct op_case *c, const struct planting *p, int level) {
    char *text = malloc(512);
    snprintf(text, 512, "\"%s\" at level %d takes a step with %g in %s %d", c->name, level, p->value,
             p->place == IN_WEIGHT ? "weight" : "data", p->input);
    return text;
}

static char *plant_everywhere(struct subject *s, cairn_env *env, int level, struct totals *totals) {
    enum outcome outcome;
    const bool counts = cairn_env_rank(env) == 0;
    for (int i = 0; i < CASE_INPUTS; i++) {
        for (int v = 0; v < 3; v++) {
            for (enum place place = IN_WEIGHT; place < PLACES; place++) {
                const struct case_array *a = &s->inputs[i];
                struct planting p = {place, i, 0, values[v]};
                if (!a->values || !a->n || !cairn__is_float(a->dtype)) continue;
                if (place == IN_WEIGHT && !s->operation->weights[i]) continue;
                /* data of the last rank alone */
                if (place == IN_DATA && cairn_env_rank(env) + 1 < cairn_env_size(env)) p.place = NOWHERE;
                p.element = a->n / 2;
                PASS(train(s, env, &p, &outcome));
                if (outcome == STEPPED) return stepped(s->c, &p, level);
                if (!counts) continue;
                totals->runs++;
                totals->has_loss[s->c->op] |= outcome != NO_LOSS;
                if (outcome == ENDED) totals->ends[s->c->op] |= 1u << v;
                totals->reaches[s->c->op] |= outcome == SKIPPED;
            }
        }
    }
    return NULL;
}

static bool is_first_of_its_op(const struct op_cases *cases, size_t k) {
    for (size_t i = 0; i < k; i++) {
        if (cases->cases[i].op == cases->cases[k].op) return false;
    }
    return true;
}

static bool has_weight(const struct op_case *c) {
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (c->inputs[i].shape && case_wants(c, i)) return true;
    }
    return false;
}

/* On several ranks the first case of each operation. */
static char *plant_in_all_operations(cairn_env *env, void *ctx) {
    struct totals *totals = ctx;
    for (int f = 0; f < NUM_FAMILIES; f++) {
        for (size_t k = 0; k < families[f].cases->count; k++) {
            for (int level = 0; level < LEVELS; level++) {
                struct subject s;
                if (check_is_short() && level % 4 != 0 && level != 3) continue; /* O1 f16, O2 bf16, O3 f16 */
                if (totals->ranks > 1 && !is_first_of_its_op(families[f].cases, k)) continue;
                if (!has_weight(&families[f].cases->cases[k])) continue;
                PASS(subject_begin(&s, env, &families[f].cases->cases[k], &levels[level]));
                PASS(plant_everywhere(&s, env, level, totals));
                subject_end(&s);
            }
        }
    }
    return NULL;
}

/* ---- where it may end ---- */

enum { NAN_ = 1, HIGH = 2, LOW = 4, INF_ = HIGH | LOW, ANY = NAN_ | INF_ }; /* HIGH: +inf, LOW: -inf */

/* docs/operations.md says the same in words. */
static const struct {
    enum cairn__op op;
    unsigned values; /* that end in some case of it */
    const char *why;
} ends_in[] = {
    {CAIRN__OP_RECIPROCAL, INF_, "1 / inf is 0, with a slope of 0"},
    {CAIRN__OP_RSQRT, HIGH, "so is 1 / sqrt(inf)"},
    {CAIRN__OP_DIV, INF_, "and a / inf"},
    {CAIRN__OP_ADDCDIV, INF_, "and a / inf"},
    {CAIRN__OP_BATCH_NORM, HIGH, "in evaluation: and what is divided by a running variance of inf"},
    {CAIRN__OP_EXP, LOW, "e^-inf is 0"},
    {CAIRN__OP_EXPM1, LOW, "-1"},
    {CAIRN__OP_SCALAR_POW, LOW, "2^-inf is 0"},
    {CAIRN__OP_SOFTPLUS, LOW, "ln(1 + e^-inf) is 0"},
    {CAIRN__OP_SOFT_MARGIN_LOSS, LOW, "so it is of a prediction that is infinitely right"},
    {CAIRN__OP_SIGMOID, INF_, "0 and 1, where it is flat"},
    {CAIRN__OP_TANH, INF_, "-1 and 1, likewise"},
    {CAIRN__OP_ERF, INF_, "-1 and 1, likewise"},
    {CAIRN__OP_ATAN, INF_, "-pi / 2 and pi / 2, likewise"},
    {CAIRN__OP_RELU, LOW, "below 0 it is flat"},
    {CAIRN__OP_CHECKPOINT, LOW, "of a relu"},
    {CAIRN__OP_CLAMP, INF_, "beyond its bounds it is flat"},
    {CAIRN__OP_POW_SCALAR, ANY, "x^0 is 1, inf^-0.5 is 0"},
    {CAIRN__OP_MAXIMUM, LOW, "the other one is greater"},
    {CAIRN__OP_MINIMUM, HIGH, "the other one is less"},
    {CAIRN__OP_AMAX, LOW, "others are greater"},
    {CAIRN__OP_AMIN, HIGH, "others are less"},
    {CAIRN__OP_MAX_POOL2D, LOW, "others are greater"},
    {CAIRN__OP_SOFTMAX, INF_, "e^-inf is 0: a mask; of softmin e^-(+inf)"},
    {CAIRN__OP_SDPA, LOW, "likewise, in a mask that is added"},
    {CAIRN__OP_CROSS_ENTROPY, ANY, "likewise, in a class that is not the right one; a row that is ignored"},
    {CAIRN__OP_NLL_LOSS, ANY, "it reads the right class alone, and no row that is ignored"},
    {CAIRN__OP_WHERE, ANY, "the other one is chosen"},
    {CAIRN__OP_PRELU, ANY, "a weight that no input below 0 uses"},
    {CAIRN__OP_DROPOUT, ANY, "dropped"},
    {CAIRN__OP_SLICE, ANY, "outside of the slice"},
    {CAIRN__OP_EMBEDDING, ANY, "a row that no index asks for"},
    {CAIRN__OP_CONV1D, ANY, "an element that the stride steps over"},
    {CAIRN__OP_ADDMM, ANY, "a matrix with a factor of 0 is not read, as in PyTorch"},
};

/* No gradient passes, or there is no case: a loss is scaled by every step, and a loss of zero has no inputs but
 * weights. */
static const enum cairn__op without_loss[] = {CAIRN__OP_EQ,     CAIRN__OP_NE,     CAIRN__OP_LT,
                                              CAIRN__OP_LE,     CAIRN__OP_GT,     CAIRN__OP_GE,
                                              CAIRN__OP_ARGMAX, CAIRN__OP_ARGMIN, CAIRN__OP_GUEST};

static unsigned may_end(enum cairn__op op) {
    for (size_t i = 0; i < sizeof(ends_in) / sizeof(ends_in[0]); i++) {
        if (ends_in[i].op == op) return ends_in[i].values;
    }
    return 0;
}

static bool has_no_loss(enum cairn__op op) {
    for (size_t i = 0; i < sizeof(without_loss) / sizeof(without_loss[0]); i++) {
        if (without_loss[i] == op) return true;
    }
    return false;
}

static void no_step_is_taken_with_a_planted_value(void **state) {
    (void)state;
    struct totals totals = {.ranks = 1};
    run_ranks(1, plant_in_all_operations, &totals);
    print_message("%zu plantings\n", totals.runs);
    for (int i = 0; i < CAIRN__NUM_OPS; i++) {
        const enum cairn__op op = (enum cairn__op)i;
        const char *name = cairn__op_name(op);
        if (totals.ends[op] != may_end(op))
            fail_msg("'%s': of NaN (1), inf (2), -inf (4) there ended %u, where ends_in says %u", name, totals.ends[op],
                     may_end(op));
        if (totals.has_loss[op] == has_no_loss(op))
            fail_msg("'%s' has %s loss", name, totals.has_loss[op] ? "a" : "no");
        if (totals.has_loss[op] && !totals.reaches[op]) fail_msg("'%s' lets nothing reach its loss", name);
    }
}

static void no_rank_takes_a_step_with_a_value_planted_on_one(void **state) {
    (void)state;
    struct totals totals = {.ranks = 2};
    run_ranks(2, plant_in_all_operations, &totals);
    print_message("%zu plantings\n", totals.runs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_step_is_taken_with_a_planted_value),
        cmocka_unit_test(no_rank_takes_a_step_with_a_value_planted_on_one),
    };
    return cmocka_run_group_tests(tests, parts_be_quiet, NULL);
}
