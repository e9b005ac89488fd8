/* Random trainings from a seed, for tools/same-bits: the kind of backward, nets, optimizers, levels, scalers, ddp's
 * options, which rank has input for which parameters, where a gradient or a loss is infinite, what the program reads,
 * changes, saves and clears in between, and wrong calls. Choices that must be equal on all ranks come from a generator
 * that is not seeded with the rank.
 *
 * usage: random PATH FIRST COUNT RANKS...     seeds FIRST .. FIRST + COUNT - 1, each on each number of ranks; 0: the
 *                                             seed's own number, 1 to 4. Records: PATH.seedS.onR.rankN.record
 *
 * SAME_BITS_PLANT=SEED:STEP flips the lowest bit of a gradient, to show that the comparison detects it. */
#include "record.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 6, MAX_RANKS = 4, MAX_NETS = 2, MAX_ROUNDS = 2, MAX_MICROS = 3 };
enum { PARTS = 4, MAX_PART = 70, MAX_ALL = PARTS * MAX_PART, ALL_PARTS = (1 << PARTS) - 1 };
enum { ROWS = 5, WIDE = 21, NARROW = 3, MLP_PARAMS = 6 };

/* BY_UPDATE: the user's own buffers and own update, between amp_begin_step and amp_end_step. */
enum way { BY_BACKWARD, BY_REDUCER, BY_HAND, BY_UPDATE, BY_SCALER, WAYS };
static const char *const way_names[WAYS] = {"ddp_create", "ddp_reducer_create", "ddp_create_params", "amp_begin_step",
                                            "amp_scaler_create"};
enum kind { SGD, MOMENTUM, NESTEROV, DAMPENED, ADAM, ADAMW, KINDS };
static const char *const kind_names[KINDS] = {"SGD", "momentum", "Nesterov", "dampened", "Adam", "AdamW"};

/* ---- random numbers ---- */

enum topic { OPTIONS, GRAPH, STEP, ROUND, MICRO, ORDER, LOSS };

struct dice {
    uint64_t state;
};

/* splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) */
static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static struct dice dice_of(uint64_t seed, enum topic topic, int step, int round, int rank, int micro) {
    const int where[] = {(int)topic, step, round, rank, micro};
    struct dice d = {mixed(seed + 0x9e3779b97f4a7c15u)};
    for (size_t i = 0; i < sizeof(where) / sizeof(where[0]); i++) d.state = mixed(d.state * 64 + (uint64_t)where[i]);
    return d;
}

static uint32_t roll(struct dice *d, uint32_t sides) {
    d->state += 0x9e3779b97f4a7c15u;
    return (uint32_t)(mixed(d->state) >> 32) % sides;
}

static bool one_in(struct dice *d, uint32_t n) {
    return roll(d, n) == 0;
}

/* ---- choices of a seed, equal on all ranks ---- */

struct choices {
    uint64_t seed;
    enum way way;
    int ranks, nets, losses, part[PARTS];
    bool with_ddp, has_context, in_half, two_groups, is_mlp[MAX_NETS];
    enum kind kind[MAX_NETS];
    struct amp_options amp;
    struct amp_scaler_options scaler;
    bool has_scaler;
    cairn_dtype hook; /* type that a comm hook compresses to; 0 = no hook */
    struct ddp_options ddp;
};

static const char *const ignored[] = {"part3"};
static const char *const triggers[] = {"part1"};

static bool is_own(const struct choices *c) {
    return c->way == BY_HAND || c->way == BY_UPDATE;
}

/* Whether every backward of a rank with input reaches all parameters. */
static bool is_strict(const struct choices *c) {
    const struct ddp_options *o = &c->ddp;
    const bool guesses = o->find_unused_parameters == CAIRN_ON || o->delay_allreduce == CAIRN_ON;
    return c->way != BY_REDUCER && !guesses && o->static_graph != CAIRN_ON;
}

static void choose_buckets(struct dice *d, struct ddp_options *o) {
    const uint32_t way = roll(d, 5);
    if (way == 0) o->message_size = 1;
    if (way == 1) o->message_size = 1 + roll(d, 60);
    if (way == 2) o->bucket_nbytes = 16u << roll(d, 4); /* splits parts */
    if (way == 3) o->first_bucket_nbytes = 16u << roll(d, 4);
    if (one_in(d, 4)) {
        o->delay_allreduce = CAIRN_ON;
    } else if (one_in(d, 6)) {
        o->allreduce_trigger_params = triggers;
        o->num_trigger_params = 1;
    }
}

static void choose_unused(struct dice *d, struct ddp_options *o) {
    const uint32_t way = roll(d, 5);
    if (way == 0) o->static_graph = CAIRN_ON;
    if (way > 1) o->find_unused_parameters = CAIRN_ON;
    if (one_in(d, 2) && (o->find_unused_parameters || o->delay_allreduce)) o->skip_all_reduce_unused_params = CAIRN_ON;
    if (!one_in(d, 4)) return;
    o->ignored = ignored;
    o->num_ignored = 1;
}

static void choose_sums(struct dice *d, struct choices *c) {
    static const cairn_dtype wires[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    struct ddp_options *o = &c->ddp;
    if (one_in(d, 3)) o->wire = wires[roll(d, 3)];
    if (one_in(d, 5)) c->hook = wires[1 + roll(d, 2)];
    if (one_in(d, 8)) o->allreduce_always_fp32 = o->wire ? CAIRN_DEFAULT : CAIRN_ON;
    if (one_in(d, 4)) o->gradient_average = CAIRN_OFF;
    if (one_in(d, 2) && o->gradient_average) o->gradient_predivide_factor = 2;
    if (one_in(d, 4)) o->join_divide_by_initial_world_size = CAIRN_OFF;
    if (one_in(d, 3) && c->way != BY_HAND) o->gradient_as_bucket_view = CAIRN_OFF;
}

/* A custom scaler rule: the scale falls by a factor of 8 and rises by 2. */
static void own_update(void *ctx, struct amp_scaler_state *state, int found) {
    (void)ctx;
    state->user[0] += found;
    state->scale = found ? state->scale / 8 : state->scale * 2;
}

static void choose_scaler(struct dice *d, struct choices *c) {
    struct amp_scaler_options *s = &c->scaler;
    s->struct_size = sizeof(*s);
    c->has_scaler = !one_in(d, 4);
    s->kind = (amp_scaler_kind)(AMP_SCALER_STATIC + (int)roll(d, 6));
    s->init_scale = ldexp(1, (int)roll(d, 17));
    if (s->kind == AMP_SCALER_USER) s->update = own_update;
    if (s->kind == AMP_SCALER_STATIC) return;
    s->min_scale = one_in(d, 3) ? 1 : 0x1p-20;
    s->max_scale = 0x1p20;
    s->growth_interval = 1 + (int64_t)roll(d, 3);
}

/* Some combinations are errors; amp is then created with level and half type only. */
static void choose_amp(struct dice *d, struct choices *c) {
    struct amp_options *o = &c->amp;
    *o = *amp_options(.opt_level = (amp_opt_level)(AMP_O0 + (int)roll(d, 4)),
                      .half_type = one_in(d, 2) ? CAIRN_F16 : CAIRN_BF16, .num_losses = c->losses);
    if (one_in(d, 5)) o->loss_scale = one_in(d, 2) ? AMP_DYNAMIC : 128;
    if (one_in(d, 5)) o->keep_batchnorm_fp32 = one_in(d, 2) ? CAIRN_ON : CAIRN_OFF;
    if (one_in(d, 5)) o->master_weights = one_in(d, 2) ? CAIRN_ON : CAIRN_OFF;
    if (one_in(d, 8)) o->skip_nonfinite = one_in(d, 2) ? CAIRN_ON : CAIRN_OFF;
    if (one_in(d, 8)) o->cast_model_type = one_in(d, 2) ? AMP_KEEP_TYPES : CAIRN_F32;
    if (one_in(d, 12)) o->cast_model_outputs = o->half_type;
    if (one_in(d, 20)) o->enabled = CAIRN_OFF;
    if (one_in(d, 8)) o->explain_overflow = CAIRN_ON;
    if (one_in(d, 3) && o->opt_level == AMP_O3 && o->half_type == CAIRN_BF16) o->stochastic_rounding = CAIRN_ON;
    o->rounding_seed = c->seed;
}

static void choose(uint64_t seed, int ranks, struct choices *c) {
    static const int sizes[] = {1, 5, 16, 19, 33, 67, MAX_PART};
    struct dice d = dice_of(seed, OPTIONS, 0, 0, 0, 0);
    static const enum way ways[] = {BY_BACKWARD, BY_BACKWARD, BY_BACKWARD, BY_REDUCER, BY_HAND,
                                    BY_HAND,     BY_UPDATE,   BY_SCALER,   BY_SCALER};
    *c = (struct choices){.seed = seed, .way = ways[roll(&d, sizeof(ways) / sizeof(ways[0]))]};
    const int own_ranks = 1 + (int)roll(&d, MAX_RANKS);
    c->ranks = ranks ? ranks : own_ranks;
    c->with_ddp = c->way == BY_REDUCER || (c->way != BY_UPDATE && !one_in(&d, 5));
    c->has_context = c->way != BY_SCALER || one_in(&d, 2);
    c->nets = !is_own(c) && one_in(&d, 3) ? 2 : 1;
    c->losses = !is_own(c) && c->way != BY_SCALER && one_in(&d, 3) ? 2 : 1;
    for (int k = 0; k < PARTS; k++) c->part[k] = sizes[roll(&d, sizeof(sizes) / sizeof(sizes[0]))];
    for (int k = 0; k < MAX_NETS; k++) c->kind[k] = (enum kind)roll(&d, KINDS);
    c->two_groups = one_in(&d, 4);
    c->ddp.struct_size = sizeof(c->ddp);
    choose_buckets(&d, &c->ddp);
    choose_unused(&d, &c->ddp);
    choose_sums(&d, c);
    for (int k = 0; k < MAX_NETS; k++) {
        c->is_mlp[k] = one_in(&d, 3) && !is_own(c) && !c->ddp.num_ignored && !c->ddp.num_trigger_params;
    }
    choose_amp(&d, c);
    choose_scaler(&d, c);
    c->in_half = one_in(&d, 2) && is_own(c) && c->amp.opt_level >= AMP_O2;
}

static void describe(const struct choices *c) {
    const struct ddp_options *o = &c->ddp;
    record(
        "seed %llu: %d ranks, %d nets, %d losses by %s%s, O%d %s%s%s, %s and %s%s, scaler %d from %g, parts of %d %d "
        "%d %d, nets of layers %d %d",
        (unsigned long long)c->seed, c->ranks, c->nets, c->losses, way_names[c->way], c->with_ddp ? "" : ", no ddp",
        (int)c->amp.opt_level - (int)AMP_O0, cairn_dtype_name(c->amp.half_type), c->in_half ? " memory" : "",
        c->has_context ? "" : ", no context", kind_names[c->kind[0]], kind_names[c->kind[1]],
        c->two_groups ? ", two groups" : "", c->has_scaler ? (int)c->scaler.kind : 0, c->scaler.init_scale, c->part[0],
        c->part[1], c->part[2], c->part[3], (int)c->is_mlp[0], (int)c->is_mlp[1]);
    record(
        "wire %d, hook %d, message_size %lld, bucket_nbytes %zu, first %zu, view %d, delay %d, find_unused %d, static "
        "%d, skip_unused %d, ignored %zu, triggers %zu, average %d, predivide %g, join %d",
        (int)o->wire, (int)c->hook, (long long)o->message_size, o->bucket_nbytes, o->first_bucket_nbytes,
        (int)o->gradient_as_bucket_view, (int)o->delay_allreduce, (int)o->find_unused_parameters, (int)o->static_graph,
        (int)o->skip_all_reduce_unused_params, o->num_ignored, o->num_trigger_params, (int)o->gradient_average,
        o->gradient_predivide_factor, (int)o->join_divide_by_initial_world_size);
}

/* ---- a step ---- */

enum forgets { ZERO_GRAD, CLEAR_GRADS, ZERO_SET, KEEPS };

struct step {
    enum forgets forgets;
    int rounds; /* synchronised backwards */
    bool clips_norm, clips_value, reads, reports, unscales, sets_lr, writes_master, saves, loads, errs, steps_not;
    bool delays, forgets_rounds, sets_scale;
};

struct round {
    int loss;
    unsigned nets;         /* bit k: the loss has net k */
    int micros[MAX_RANKS]; /* number of backwards; all but the last are under no_sync */
};

/* One backward of one rank. */
struct micro {
    unsigned used[MAX_NETS]; /* 0: no input */
    float numbers[MAX_NETS][MAX_ALL];
    bool bad; /* the loss is infinite, its gradients are unchanged */
};

static struct step step_of(const struct choices *c, int s) {
    struct dice d = dice_of(c->seed, STEP, s, 0, 0, 0);
    struct step step = {.forgets = one_in(&d, 3) ? (enum forgets)roll(&d, 4) : ZERO_GRAD};
    step.rounds = one_in(&d, 4) ? MAX_ROUNDS : 1;
    step.clips_norm = one_in(&d, 4) && c->ddp.num_ignored == 0; /* the norm is over all */
    step.clips_value = one_in(&d, 8);
    step.reads = one_in(&d, 4);
    step.reports = one_in(&d, 6);
    step.unscales = one_in(&d, 2);
    step.sets_lr = one_in(&d, 4);
    step.writes_master = one_in(&d, 8);
    step.saves = one_in(&d, 6);
    step.loads = one_in(&d, 6);
    step.errs = one_in(&d, 4);
    step.steps_not = one_in(&d, 10);
    step.delays = one_in(&d, 3);
    step.forgets_rounds = one_in(&d, 8);
    step.sets_scale = one_in(&d, 12);
    return step;
}

static struct round round_of(const struct choices *c, int s, int r) {
    struct dice d = dice_of(c->seed, ROUND, s, r, 0, 0);
    struct round round = {.loss = (int)roll(&d, (uint32_t)c->losses)};
    round.nets = 1 + roll(&d, (1u << c->nets) - 1);
    for (int rank = 0; rank < c->ranks; rank++) round.micros[rank] = 1 + (int)roll(&d, MAX_MICROS);
    return round;
}

static unsigned used_of(const struct choices *c, struct dice *d, int rank, int k) {
    struct dice graph = dice_of(c->seed, GRAPH, 0, k, rank, 0);
    const bool is_static = c->ddp.static_graph == CAIRN_ON;
    if (one_in(d, 6) && (c->way != BY_HAND || !is_static)) return 0;
    if (is_strict(c) || c->is_mlp[k]) return ALL_PARTS;
    return 1 + (is_static ? roll(&graph, ALL_PARTS) : roll(d, ALL_PARTS));
}

static float number(struct dice *d) {
    const uint32_t kind = roll(d, 6000);
    const float x = ((float)roll(d, 4001) - 2000) / 1024;
    return kind == 0 ? INFINITY : kind == 1 ? NAN : kind < 20 ? x * 4000 : kind < 60 ? x * 0x1p-20f : x;
}

static void plant(const struct choices *c, int s, struct micro *m) {
    unsigned long long seed;
    int step;
    const char *text = getenv("SAME_BITS_PLANT");
    if (!text || sscanf(text, "%llu:%d", &seed, &step) != 2 || seed != c->seed || step != s) return;
    for (int i = 0; i < MAX_ALL; i++) {
        uint32_t bits;
        memcpy(&bits, &m->numbers[0][i], sizeof(bits));
        bits ^= (bits & 0x7f800000) != 0x7f800000; /* not of inf and NaN */
        memcpy(&m->numbers[0][i], &bits, sizeof(bits));
    }
}

static void micro_of(const struct choices *c, int s, int r, int rank, int m, struct micro *out) {
    struct dice d = dice_of(c->seed, MICRO, s, r, rank, m);
    for (int k = 0; k < c->nets; k++) {
        out->used[k] = used_of(c, &d, rank, k);
        for (int i = 0; i < MAX_ALL; i++) out->numbers[k][i] = number(&d);
    }
    struct dice loss = dice_of(c->seed, LOSS, s, r, rank, m);
    out->bad = one_in(&loss, 40) && !is_own(c);
    plant(c, s, out);
}

/* ---- a training ---- */

struct net {
    const struct choices *c;
    unsigned used; /* bit k: the loss has part k */
    cairn_tensor *part[PARTS], *x, *y;
    cairn_module *model;
    cairn_param_set *set;
    cairn_optimizer *optimizer;
    ddp_context *ddp;
    union { /* memory of the user's */
        float f32[MAX_ALL];
        uint16_t half[MAX_ALL];
    } weights, gradients;
};

struct training {
    const struct choices *c;
    cairn_env *env;
    amp_context *amp;
    amp_scaler *scaler; /* BY_SCALER: the context's or its own */
    struct net nets[MAX_NETS];
    char saved[8192];
};

#define CHECKED(call) (record_status(#call, (call)) == CAIRN_OK)

/* Returns whether to continue: errors between ranks end the training. */
static bool goes_on(const char *call, cairn_status status) {
    if (status != CAIRN_OK) record_status(call, status);
    if (status != CAIRN_EPEER && status != CAIRN_ETIMEOUT) return true;
    record_no_last_steps();
    return false;
}
#define GO(call) \
    if (!goes_on(#call, (call))) return false

static int begin_of(const struct choices *c, int k) {
    int begin = 0;
    for (int i = 0; i < k; i++) begin += c->part[i];
    return begin;
}

static cairn_tensor *parts_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct net *n = context;
    cairn_tensor *loss = NULL;
    (void)module, (void)count;
    for (int k = 0; k < PARTS; k++) {
        if (!(n->used >> k & 1)) continue;
        const int begin = begin_of(n->c, k);
        cairn_tensor *one =
            cairn_sum(cairn_mul(cairn_slice(inputs[0], 0, begin, begin + n->c->part[k], 1), n->part[k]));
        loss = loss ? cairn_add(loss, one) : one;
    }
    return loss;
}

static const struct cairn_module_ops parts_ops = {.struct_size = sizeof(parts_ops),
                                                  .name = "Parts",
                                                  .forward = parts_forward};

/* The gradient of part k is the k-th piece of the input. Part 1 belongs to a normalisation layer. */
static bool make_parts(struct training *t, struct net *n) {
    static const char *const names[PARTS] = {"part0", "part1", "part2", "part3"};
    n->model = cairn_module_create(t->env, &parts_ops, n);
    if (!n->model) return false;
    for (int k = 0; k < PARTS; k++) {
        n->part[k] =
            cairn_module_add_param(n->model, names[k], CAIRN_SHAPE(t->c->part[k]), k == 1 ? CAIRN_ON : CAIRN_OFF);
        cairn_param p;
        if (!CHECKED(cairn_param_set_get(cairn_module_params(n->model), (size_t)k, &p))) return false;
        for (int i = 0; i < t->c->part[k]; i++) ((float *)p.data)[i] = (float)((k * 5 + i * 3) % 9 - 4) / 4 + 0x1p-12f;
    }
    n->x = cairn_zeros(t->env, CAIRN_F32, CAIRN_SHAPE(begin_of(t->c, PARTS)));
    return n->x != NULL;
}

static bool make_mlp(struct training *t, struct net *n) {
    cairn_env *env = t->env;
    n->model = cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, WIDE, WIDE), cairn_batch_norm(env, WIDE, 0, 0),
                                                   cairn_activation(env, cairn_gelu), cairn_linear(env, WIDE, NARROW)));
    n->x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(ROWS, WIDE));
    n->y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(ROWS, NARROW));
    return n->model && n->x && n->y;
}

/* Rounds towards 0; values below the half type's normal numbers become 0. */
static uint16_t to_half(cairn_dtype dtype, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (dtype == CAIRN_BF16) return (uint16_t)(bits >> 16 | ((bits & 0xffff) && x != x));
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    return (uint16_t)(magnitude < 0x38800000 ? sign : sign | ((magnitude >> 13) - (112u << 10)));
}

static void put(const struct choices *c, float *f32, uint16_t *half, int i, float x) {
    if (c->in_half) {
        half[i] = to_half(c->amp.half_type, x);
    } else {
        f32[i] = x;
    }
}

static bool make_set(struct training *t, struct net *n) {
    static const char *const names[PARTS] = {"part0", "part1", "part2", "part3"};
    const struct choices *c = t->c;
    cairn_param params[PARTS] = {{0}};
    for (int k = 0; k < PARTS; k++) {
        const int at = begin_of(c, k);
        params[k] = (cairn_param){.name = names[k],
                                  .data = c->in_half ? (void *)&n->weights.half[at] : &n->weights.f32[at],
                                  .grad = c->in_half ? (void *)&n->gradients.half[at] : &n->gradients.f32[at],
                                  .dtype = c->in_half ? c->amp.half_type : CAIRN_F32,
                                  .ndim = 1,
                                  .shape = {c->part[k]},
                                  .is_norm = k == 1 && !c->in_half ? CAIRN_ON : CAIRN_OFF};
    }
    for (int i = 0; i < begin_of(c, PARTS); i++) {
        put(c, n->weights.f32, n->weights.half, i, (float)(i % 9 - 4) / 4 + 0x1p-12f);
    }
    return CHECKED(cairn_param_set_create(t->env, params, PARTS, &n->set));
}

static bool make_optimizer(struct training *t, struct net *n, enum kind kind) {
    static const size_t first[] = {0, 1}, rest[] = {2, 3, 4, 5, 6, 7};
    const size_t others = cairn_param_set_count(n->set) - 2;
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT;
    sgd.lr = 0.07;
    sgd.momentum = kind == SGD ? 0 : 0.75;
    sgd.dampening = kind == DAMPENED ? 0.3 : 0;
    sgd.nesterov = kind == NESTEROV ? CAIRN_ON : CAIRN_OFF;
    sgd.weight_decay = adam.weight_decay = 0.125;
    adam.lr = 0.013;
    if (!t->c->two_groups) {
        if (kind < ADAM) return CHECKED(cairn_sgd_create(n->set, &sgd, &n->optimizer));
        if (kind == ADAM) return CHECKED(cairn_adam_create(n->set, &adam, &n->optimizer));
        return CHECKED(cairn_adamw_create(n->set, &adam, &n->optimizer));
    }
    if (kind < ADAM) {
        if (!CHECKED(cairn_sgd_create_over(n->set, first, 2, &sgd, &n->optimizer))) return false;
        sgd.lr /= 2;
        return CHECKED(cairn_sgd_add_group(n->optimizer, n->set, rest, others, &sgd));
    }
    if (!CHECKED(
            (kind == ADAM ? cairn_adam_create_over : cairn_adamw_create_over)(n->set, first, 2, &adam, &n->optimizer)))
        return false;
    adam.beta1 = 0.5;
    return CHECKED(cairn_adam_add_group(n->optimizer, n->set, rest, others, &adam));
}

static bool make_net(struct training *t, int k) {
    struct net *n = &t->nets[k];
    n->c = t->c;
    n->used = ALL_PARTS;
    if (is_own(t->c)) {
        if (!make_set(t, n)) return false;
    } else {
        if (!(t->c->is_mlp[k] ? make_mlp(t, n) : make_parts(t, n))) return false;
        n->set = cairn_module_params(n->model);
    }
    return t->c->way == BY_UPDATE || make_optimizer(t, n, t->c->kind[k]);
}

static cairn_status initialize(struct training *t, const struct amp_options *o) {
    struct net *n = t->nets;
    if (is_own(t->c)) return amp_initialize_params(t->env, n->set, n->optimizer, o, &t->amp);
    return amp_initialize_all(t->env, t->c->nets, (cairn_module *[]){n[0].model, n[1].model}, t->c->nets,
                              (cairn_optimizer *[]){n[0].optimizer, n[1].optimizer}, o, &t->amp);
}

static bool make_amp(struct training *t) {
    struct amp_options o = t->c->amp;
    if (t->c->has_scaler) o.scaler = &t->c->scaler;
    if (t->c->has_context && !CHECKED(initialize(t, &o))) {
        struct amp_options fewer =
            *amp_options(.opt_level = o.opt_level, .half_type = o.half_type, .num_losses = o.num_losses);
        if (!CHECKED(initialize(t, &fewer))) return false;
    }
    if (t->c->way != BY_SCALER) return true;
    if (t->amp) t->scaler = amp_loss_scaler(t->amp, 0);
    if (t->scaler) return true;
    if (t->amp) return false;
    if (!CHECKED(amp_scaler_create(t->env, t->c->has_scaler ? &t->c->scaler : NULL, &t->scaler))) {
        return CHECKED(amp_scaler_create(t->env, NULL, &t->scaler));
    }
    return true;
}

static bool make_ddp(struct training *t, struct net *n) {
    const struct choices *c = t->c;
    cairn_group *group = cairn_env_group(t->env);
    if (is_own(c)) {
        GO(ddp_create_params(n->set, group, &c->ddp, &n->ddp));
    } else if (c->way == BY_REDUCER) {
        GO(ddp_reducer_create(n->model, group, &c->ddp, &n->ddp));
    } else {
        GO(ddp_create(n->model, group, &c->ddp, &n->ddp));
    }
    if (!n->ddp || !c->hook) return n->ddp != NULL;
    GO(ddp_register_comm_hook(n->ddp, c->hook == CAIRN_F16 ? ddp_fp16_compress_hook() : ddp_bf16_compress_hook()));
    return true;
}

static bool begin(struct training *t) {
    for (int k = 0; k < t->c->nets; k++) {
        if (!make_net(t, k)) return false;
    }
    if (!make_amp(t)) return false;
    for (int k = 0; k < t->c->nets && t->c->with_ddp; k++) {
        if (!make_ddp(t, &t->nets[k])) return false;
    }
    record_state("made");
    return true;
}

static void end(struct training *t) {
    for (int k = 0; k < t->c->nets; k++) ddp_destroy(&t->nets[k].ddp);
    if (!t->amp) amp_scaler_destroy(&t->scaler);
    amp_destroy(&t->amp);
    for (int k = 0; k < t->c->nets; k++) {
        struct net *n = &t->nets[k];
        cairn_optimizer_destroy(&n->optimizer);
        if (!n->model) cairn_param_set_destroy(&n->set);
        cairn_module_destroy(&n->model);
        cairn_tensor_destroy(&n->x);
        cairn_tensor_destroy(&n->y);
    }
}

/* ---- one backward ---- */

static cairn_tensor *loss_of(struct training *t, int k, const struct micro *m) {
    struct net *n = &t->nets[k];
    const bool is_mlp = t->c->is_mlp[k];
    if (!m->used[k] && n->ddp) return ddp_zero_loss(n->ddp);
    n->used = m->used[k] ? m->used[k] : ALL_PARTS;
    if (cairn_tensor_write(n->x, m->numbers[k], cairn_tensor_numel(n->x)) != CAIRN_OK) return NULL;
    if (is_mlp && cairn_tensor_write(n->y, m->numbers[k] + ROWS * WIDE, ROWS * NARROW) != CAIRN_OK) return NULL;
    cairn_tensor *y = n->ddp ? ddp_forward(n->ddp, n->x) : cairn_module_forward(n->model, n->x);
    return is_mlp ? cairn_mse_loss(y, n->y) : y;
}

static cairn_status backward(struct training *t, const struct round *r, const struct micro *m, bool delays) {
    cairn_optimizer *optimizers[MAX_NETS];
    cairn_tensor *loss = NULL;
    int count = 0;
    for (int k = 0; k < t->c->nets; k++) {
        if (!(r->nets >> k & 1)) continue;
        cairn_tensor *one = loss_of(t, k, m);
        loss = count ? cairn_add(loss, one) : one;
        optimizers[count++] = t->nets[k].optimizer;
    }
    if (m->bad) loss = cairn_add(loss, cairn_full(t->env, CAIRN_F32, 0, NULL, INFINITY));
    if (t->scaler) return cairn_backward(amp_scaler_scale(t->scaler, loss));
    const cairn_switch delay = delays ? CAIRN_ON : CAIRN_OFF;
    return amp_backward_with(t->amp, loss,
                             amp_loss_options(.loss_id = r->loss, .num_optimizers = count, .optimizers = optimizers,
                                              .delay_unscale = delay));
}

static cairn_status declare(struct net *n, size_t first, size_t count) {
    return n->ddp ? ddp_grads_ready(n->ddp, first, count) : cairn_grads_ready(n->set, first, count);
}

/* Declares all gradients at once, or one by one in a rotated, possibly reversed order. */
static cairn_status declare_used(struct net *n, unsigned used, struct dice *d) {
    cairn_status st = CAIRN_OK;
    const size_t from = roll(d, PARTS), by = one_in(d, 2) ? 1 : PARTS - 1;
    if (used == ALL_PARTS && one_in(d, 3)) return declare(n, 0, PARTS);
    for (size_t i = 0; i < PARTS && st == CAIRN_OK; i++) {
        const size_t k = (from + i * by) % PARTS;
        if (used >> k & 1) st = declare(n, k, 1);
    }
    return st;
}

static cairn_status backward_by_hand(struct training *t, const struct micro *m, struct dice *d) {
    const struct choices *c = t->c;
    struct net *n = t->nets;
    const double scale = amp_loss_scale(t->amp);
    const unsigned used = is_strict(c) ? ALL_PARTS : m->used[0];
    for (int k = 0; k < PARTS; k++) {
        for (int i = begin_of(c, k); used >> k & 1 && i < begin_of(c, k + 1); i++) {
            const float x = m->used[0] ? m->numbers[0][i] : 0;
            put(c, n->gradients.f32, n->gradients.half, i, (float)scale * x);
        }
    }
    cairn_status st = declare_used(n, used, d);
    if (st == CAIRN_OK && one_in(d, 4) && !n->ddp) st = cairn_grads_taken(n->set, 0, PARTS);
    return st == CAIRN_OK && n->ddp ? ddp_wait(n->ddp) : st;
}

/* ---- one round ---- */

/* Call before the first forward, which may be collective. */
static bool join(struct training *t, const struct round *r, int s, int number_of_round) {
    const int rank = cairn_env_rank(t->env);
    struct micro last;
    int active = 0;
    micro_of(t->c, s, number_of_round, rank, r->micros[rank] - 1, &last);
    for (int k = 0; k < t->c->nets; k++) {
        if (!(r->nets >> k & 1) || !t->nets[k].ddp) continue;
        GO(ddp_join(t->nets[k].ddp, last.used[k] != 0, &active));
        record("net %d: %d ranks have input", k, active);
    }
    return true;
}

static bool run_round(struct training *t, const struct step *step, int s, int number_of_round) {
    const struct choices *c = t->c;
    const int rank = cairn_env_rank(t->env);
    const struct round round = round_of(c, s, number_of_round);
    struct dice d = dice_of(c->seed, ORDER, s, number_of_round, rank, 0);
    if (!join(t, &round, s, number_of_round)) return false;
    for (int i = 0; i < round.micros[rank]; i++) {
        const bool is_last = i + 1 == round.micros[rank];
        struct micro m = {.bad = false};
        micro_of(c, s, number_of_round, rank, i, &m);
        for (int k = 0; k < c->nets; k++) {
            if (c->way == BY_REDUCER || !t->nets[k].ddp || !(round.nets >> k & 1)) continue;
            GO(ddp_no_sync(t->nets[k].ddp, !is_last));
        }
        if (is_own(c)) {
            GO(backward_by_hand(t, &m, &d));
        } else {
            GO(backward(t, &round, &m, step->delays && !is_last));
        }
    }
    for (int k = 0; k < c->nets && c->way == BY_REDUCER; k++) {
        if (round.nets >> k & 1) GO(ddp_reduce(t->nets[k].ddp));
    }
    return true;
}

/* ---- between backward and step ---- */

static void forget(struct training *t, enum forgets how) {
    for (int k = 0; k < t->c->nets; k++) {
        struct net *n = &t->nets[k];
        if (how == ZERO_GRAD && n->optimizer) cairn_zero_grad(n->optimizer);
        if (how == CLEAR_GRADS && n->optimizer) cairn_clear_grads(n->optimizer);
        if (how == ZERO_SET) cairn_param_set_zero_grad(n->set);
    }
}

static void read_masters(struct training *t, struct net *n) {
    cairn_param params[MLP_PARAMS + PARTS];
    const size_t count = n->optimizer ? cairn_optimizer_num_params(n->optimizer) : cairn_param_set_count(n->set);
    const cairn_status st = t->amp ? amp_master_params(t->amp, n->optimizer, params, count)
                                   : cairn_optimizer_masters(n->optimizer, params, count);
    if (record_status("masters", st) == CAIRN_OK) record_params(params, count);
}

static void read_reports(struct training *t, struct net *n) {
    struct amp_gradient_report r[MLP_PARAMS + PARTS];
    const size_t count = n->optimizer ? cairn_optimizer_num_params(n->optimizer) : cairn_param_set_count(n->set);
    if (!t->amp || !CHECKED(amp_gradient_reports(t->amp, n->optimizer, r, count))) return;
    for (size_t i = 0; i < count; i++) {
        record("%s: %s, %llu, %llu zeros, %llu subnormals, %llu inf, %llu nan, exponents %d to %d, scale %a", r[i].name,
               cairn_dtype_name(r[i].dtype), (unsigned long long)r[i].n, (unsigned long long)r[i].zeros,
               (unsigned long long)r[i].subnormals, (unsigned long long)r[i].infs, (unsigned long long)r[i].nans,
               r[i].min_exponent, r[i].max_exponent, r[i].scale);
    }
}

/* Wrong calls, which fail on this rank only and change nothing; their messages are recorded. */
static void err(struct training *t) {
    struct net *n = t->nets;
    cairn_param p;
    double norm;
    int skip;
    struct amp_scaler_state bad = AMP_SCALER_STATE_INIT;
    (void)CHECKED(cairn_param_set_get(n->set, 99, &p));
    (void)CHECKED(cairn_grads_ready(n->set, 99, 1));
    (void)CHECKED(cairn_grads_taken(n->set, 0, 99));
    (void)CHECKED(cairn_param_changed(n->set, 99, 0));
    (void)CHECKED(cairn_param_bind(n->set, 99, NULL, NULL));
    if (n->optimizer) {
        (void)CHECKED(cairn_clip_grad_norm(n->optimizer, -1, &norm));
        (void)CHECKED(cairn_clip_grad_value(n->optimizer, 0));
        (void)CHECKED(cairn_optimizer_set_lr(n->optimizer, NAN));
        (void)CHECKED(cairn_optimizer_masters(n->optimizer, &p, 99));
    }
    if (t->amp) {
        (void)CHECKED(amp_scale_loss_end(t->amp));
        if (n->optimizer) (void)CHECKED(amp_begin_step(t->amp, &skip));
        (void)CHECKED(amp_load_state_dict(t->amp, "loss_scaler0.scale many\n"));
        (void)CHECKED(amp_backward(t->amp, NULL, n->optimizer));
    }
    if (t->scaler) (void)CHECKED(amp_scaler_set_state(t->scaler, &bad));
    if (n->ddp && t->c->way != BY_REDUCER) (void)CHECKED(ddp_reduce(n->ddp));
    (void)CHECKED(ddp_no_sync(NULL, 1));
}

/* ---- one step ---- */

/* Plain SGD on f32 values; half weights at O3 have none and stay unchanged. */
static void update(struct training *t) {
    cairn_param params[PARTS];
    int skip = 0;
    if (!CHECKED(amp_begin_step(t->amp, &skip))) return;
    record("amp_begin_step: skip %d", skip);
    if (!skip && CHECKED(amp_master_params(t->amp, NULL, params, PARTS))) {
        record_params(params, PARTS);
        for (int k = 0; k < PARTS; k++) {
            float *w = params[k].data;
            const float *g = params[k].grad;
            if (params[k].dtype != CAIRN_F32 || !g) continue;
            for (int i = 0; i < t->c->part[k]; i++) w[i] -= 0x1p-4f * g[i];
        }
    }
    (void)CHECKED(amp_end_step(t->amp));
}

static void take_steps(struct training *t) {
    int stepped = -1;
    for (int k = 0; k < t->c->nets; k++) {
        struct net *n = &t->nets[k];
        if (t->scaler) {
            (void)CHECKED(amp_scaler_step(t->scaler, n->optimizer, &stepped));
            record("net %d: stepped %d", k, stepped);
        } else if (n->optimizer) {
            (void)CHECKED(cairn_step(n->optimizer));
        } else {
            update(t);
        }
    }
    if (t->scaler) (void)CHECKED(amp_scaler_update(t->scaler));
}

static void before_step(struct training *t, const struct step *step, struct net *n) {
    double norm = 0;
    if (step->reports) read_reports(t, n);
    if (step->unscales && t->scaler) (void)CHECKED(amp_scaler_unscale(t->scaler, n->optimizer));
    if (step->reads) read_masters(t, n);
    if (!n->optimizer) return;
    if (step->clips_norm && CHECKED(cairn_clip_grad_norm(n->optimizer, 0.5, &norm))) record("norm %a", norm);
    if (step->clips_value) (void)CHECKED(cairn_clip_grad_value(n->optimizer, 0.25));
    if (step->sets_lr) (void)CHECKED(cairn_optimizer_set_lr(n->optimizer, cairn_optimizer_lr(n->optimizer) * 0.75));
}

static void write_master(struct net *n) {
    float *master = cairn_param_master(n->set, 0);
    if (!master) return;
    master[0] = master[0] * 0.5f + 0x1p-13f;
    (void)CHECKED(cairn_param_changed(n->set, 0, 1));
}

static void after_step(struct training *t, const struct step *step) {
    for (int k = 0; k < t->c->nets && step->writes_master; k++) write_master(&t->nets[k]);
    if (t->amp && step->saves) record("saved %d", amp_state_dict(t->amp, t->saved, sizeof(t->saved)));
    if (t->amp && step->loads && !step->steps_not && t->saved[0]) (void)CHECKED(amp_load_state_dict(t->amp, t->saved));
    if (t->scaler && step->sets_scale) (void)CHECKED(amp_scaler_set_scale(t->scaler, 64));
    if (step->errs) err(t);
}

static bool run_step(struct training *t, int s) {
    const struct choices *c = t->c;
    const struct step step = step_of(c, s);
    forget(t, step.forgets);
    if (c->way == BY_HAND && t->nets[0].ddp) GO(cairn_grads_taken(t->nets[0].set, 0, PARTS));
    for (int r = 0; r < step.rounds; r++) {
        if (r > 0 && step.forgets_rounds) forget(t, CLEAR_GRADS);
        if (!run_round(t, &step, s, r)) return false;
        if (is_own(c) && r + 1 < step.rounds) GO(cairn_grads_taken(t->nets[0].set, 0, PARTS));
    }
    for (int k = 0; k < c->nets; k++) before_step(t, &step, &t->nets[k]);
    if (!step.steps_not) take_steps(t);
    after_step(t, &step);
    return true;
}

static int train(int rank, void *argument) {
    const struct choices *c = argument;
    static struct training t;
    (void)rank;
    t = (struct training){.c = c};
    describe(c);
    if (!CHECKED(cairn_env_create(NULL, NULL, cairn_env_options(.seed = c->seed, .timeout = 20), &t.env))) return 1;
    bool is_on = begin(&t);
    for (int s = 0; s < STEPS && is_on; s++) is_on = run_step(&t, s);
    if (!is_on) record_no_last_steps();
    record(is_on ? "trained" : "ended early");
    end(&t);
    cairn_env_destroy(&t.env);
    return 0;
}

int main(int argc, char **argv) {
    char path[4096];
    struct choices c;
    int failed = 0;
    if (argc < 5) {
        fprintf(stderr, "usage: %s PATH FIRST COUNT RANKS...\n", argv[0]);
        return 2;
    }
    const uint64_t first = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10);
    for (uint64_t seed = first; seed < first + count; seed++) {
        for (int i = 4; i < argc; i++) {
            choose(seed, (int)strtol(argv[i], NULL, 10), &c);
            snprintf(path, sizeof(path), "%s.seed%llu.on%d", argv[1], (unsigned long long)seed, c.ranks);
            failed |= record_ranks(path, c.ranks, train, &c);
        }
    }
    return failed;
}
