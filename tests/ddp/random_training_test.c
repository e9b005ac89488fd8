/* Random data-parallel trainings from a seed: options, which rank has input for which parameters, how often it
 * accumulates, where a gradient or a loss is infinite. After every step all ranks have equal bits; if the data is
 * exact, these are the bits of one process on the summed gradients. If one rank makes a mistake, every rank returns an
 * error message.
 *
 * usage: random_training_test SEEDS [FIRST]    (CAIRN_TEST_SEEDS in the environment overrides SEEDS) */
#include <math.h>

#include "comm/group.h"
#include "core/status.h"
#include "parts.h"

enum { STEPS = 8, MAX_RANKS = 4, MAX_NETS = 2, MAX_ROUNDS = 2, MAX_MICROS = 3, ALL = PARTS * PART };
enum way { BY_BACKWARD, BY_REDUCER, BY_HAND, WAYS };
static const char *const way_names[WAYS] = {"ddp_create", "ddp_reducer_create", "ddp_create_params"};

static uint64_t num_seeds = 100, first_seed;

/* ---- chance ---- */

enum topic { OPTIONS, GRAPH, STEP, ROUND, MICRO, ORDER, MISTAKE, LOSS, SHARDS };

struct dice {
    uint64_t seed, rolled, of;
};

static struct dice dice_of(uint64_t seed, enum topic topic, int step, int round, int rank, int micro) {
    const int where[] = {topic, step, round, rank, micro};
    struct dice d = {.seed = seed};
    for (size_t i = 0; i < sizeof(where) / sizeof(where[0]); i++) d.of = d.of * 64 + (uint64_t)where[i];
    return d;
}

static uint32_t roll(struct dice *d, uint32_t sides) {
    return cairn__philox(d->seed, d->rolled++, d->of).word[0] % sides;
}

static bool one_in(struct dice *d, uint32_t n) {
    return roll(d, n) == 0;
}

/* ---- what a seed chooses, equally on all ranks ---- */

struct choices {
    uint64_t seed;
    enum way way;
    int ranks, nets, losses;
    bool exact; /* sums and averages are representable everywhere */
    enum parts_kind_of_step kind;
    struct amp_options amp;
    struct amp_scaler_options scaler;
    cairn_dtype hook; /* that a hook compresses to; 0 = no hook */
    bool in_half;     /* BY_HAND: the user's memory */
    struct ddp_options ddp;
};

static const char *const ignored[] = {"part3"};
static const char *const triggers[] = {"part1"};

static bool is_strict(const struct choices *c) {
    const struct ddp_options *o = &c->ddp;
    const bool guesses = o->find_unused_parameters == CAIRN_ON || o->delay_allreduce == CAIRN_ON;
    return c->way != BY_REDUCER && !guesses && o->static_graph != CAIRN_ON;
}

static void choose_buckets(struct dice *d, struct ddp_options *o) {
    switch (roll(d, 5)) {
    case 0:
        o->message_size = 1;
        break;
    case 1:
        o->message_size = 1 + roll(d, 60);
        break;
    case 2:
        o->bucket_nbytes = 16u << roll(d, 4);
        break; /* buckets end within parameters */
    case 3:
        o->first_bucket_nbytes = 16u << roll(d, 4);
        break;
    default:
        break;
    }
    if (one_in(d, 4)) {
        o->delay_allreduce = CAIRN_ON;
    } else if (one_in(d, 6)) {
        o->allreduce_trigger_params = triggers;
        o->num_trigger_params = 1;
    }
}

static void choose_unused(struct dice *d, struct ddp_options *o) {
    switch (roll(d, 5)) {
    case 0:
        o->static_graph = CAIRN_ON;
        break;
    case 1:
        break;
    default:
        o->find_unused_parameters = CAIRN_ON;
    }
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
    if (one_in(d, 4)) o->gradient_average = CAIRN_OFF;
    if (one_in(d, 2) && o->gradient_average) o->gradient_predivide_factor = 2;
    if (one_in(d, 4)) o->join_divide_by_initial_world_size = CAIRN_OFF;
    if (one_in(d, 3) && c->way != BY_HAND) o->gradient_as_bucket_view = CAIRN_OFF;
}

static bool sums_are_exact(const struct choices *c) {
    if (c->ddp.gradient_average == CAIRN_OFF) return true;
    return c->ranks != 3 && (c->ranks == 2 || !c->ddp.join_divide_by_initial_world_size);
}

/* They take no hook and no other wire. */
static void choose_shards(struct choices *c) {
    struct dice d = dice_of(c->seed, SHARDS, 0, 0, 0, 0);
    if (c->way == BY_REDUCER || !one_in(&d, 2)) return;
    c->ddp.shard_optimizer = CAIRN_ON;
    c->ddp.wire = 0;
    c->hook = 0;
}

static void choose(uint64_t seed, struct choices *c) {
    struct dice d = dice_of(seed, OPTIONS, 0, 0, 0, 0);
    const uint32_t way = roll(&d, 5);
    *c = (struct choices){.seed = seed, .way = way < 3 ? BY_BACKWARD : way < 4 ? BY_REDUCER : BY_HAND};
    c->ranks = 2 + (int)roll(&d, MAX_RANKS - 1);
    c->nets = c->way != BY_HAND && one_in(&d, 3) ? 2 : 1;
    c->losses = c->way != BY_HAND && one_in(&d, 3) ? 2 : 1;
    c->kind = (enum parts_kind_of_step)roll(&d, KINDS_OF_STEP);
    c->ddp.struct_size = sizeof(c->ddp);
    choose_buckets(&d, &c->ddp);
    choose_unused(&d, &c->ddp);
    choose_sums(&d, c);
    choose_shards(c);
    c->exact = !one_in(&d, 3) && sums_are_exact(c);
    c->amp = parts_levels[roll(&d, PARTS_LEVELS)];
    c->amp.num_losses = c->losses;
    c->in_half = one_in(&d, 2) && c->amp.opt_level >= AMP_O2;
    c->scaler = parts_scaler;
    c->scaler.min_scale = 0x1p-20;
    c->scaler.max_scale = c->exact ? 1024 : 0x1p20;
    c->scaler.growth_interval = 1 + (int64_t)roll(&d, 3);
}

static void describe(const struct choices *c, char *text, size_t nbytes) {
    const struct ddp_options *o = &c->ddp;
    snprintf(text, nbytes,
             "seed %llu: %d ranks, %d nets, %d losses by %s, O%d %s, %s, wire %d, hook %d, message_size %lld, "
             "bucket_nbytes %zu, view %d, delay %d, find_unused %d, static %d, skip_unused %d, ignored %zu, average "
             "%d, shards %d, "
             "%s",
             (unsigned long long)c->seed, c->ranks, c->nets, c->losses, way_names[c->way],
             (int)c->amp.opt_level - (int)AMP_O0, cairn_dtype_name(c->amp.half_type),
             c->kind == BY_SGD ? "SGD" : "AdamW", (int)o->wire, (int)c->hook, (long long)o->message_size,
             o->bucket_nbytes, (int)o->gradient_as_bucket_view, (int)o->delay_allreduce, (int)o->find_unused_parameters,
             (int)o->static_graph, (int)o->skip_all_reduce_unused_params, o->num_ignored, (int)o->gradient_average,
             (int)o->shard_optimizer, c->exact ? "exact" : "inexact");
}

/* ---- what a step is made of ---- */

struct step {
    bool forgets, clips;
    int rounds; /* backwards that are synchronised */
};

struct round {
    int loss;
    unsigned nets;         /* bit k: the loss has net k */
    int micros[MAX_RANKS]; /* backwards, all but the last under no_sync */
};

/* One backward of one rank. */
struct micro {
    unsigned used[MAX_NETS]; /* 0: no input */
    float gradient[MAX_NETS][ALL];
    bool bad; /* the loss is infinite, its gradients need not be */
};

static struct step step_of(const struct choices *c, int s) {
    struct dice d = dice_of(c->seed, STEP, s, 0, 0, 0);
    struct step step = {.forgets = !one_in(&d, 4)};
    step.clips = one_in(&d, 3) && c->ddp.num_ignored == 0; /* the norm is over all parameters */
    step.rounds = one_in(&d, 4) ? MAX_ROUNDS : 1;
    return step;
}

static struct round round_of(const struct choices *c, int s, int r) {
    struct dice d = dice_of(c->seed, ROUND, s, r, 0, 0);
    struct round round = {.loss = (int)roll(&d, (uint32_t)c->losses)};
    round.nets = 1 + roll(&d, (1u << c->nets) - 1);
    for (int rank = 0; rank < c->ranks; rank++) round.micros[rank] = 1 + (int)roll(&d, MAX_MICROS);
    return round;
}

/* Where one process is compared, its loss reaches some parameter; a static graph holds for every rank from the first
 * step on. */
static unsigned used_of(const struct choices *c, struct dice *d, int rank, int k) {
    struct dice graph = dice_of(c->seed, GRAPH, 0, k, rank, 0);
    const bool is_static = c->ddp.static_graph == CAIRN_ON;
    const bool may_lack = c->exact ? rank > 0 && !is_static : c->way != BY_HAND || !is_static;
    if (one_in(d, 6) && may_lack) return 0;
    if (is_strict(c)) return ALL_PARTS;
    if (is_static) return 1 + roll(&graph, ALL_PARTS);
    return 1 + roll(d, ALL_PARTS);
}

static float number(const struct choices *c, struct dice *d) {
    if (one_in(d, 40 * ALL)) return INFINITY;
    if (c->exact) return (float)roll(d, 5) - 2;
    const float x = sinf((float)roll(d, 10000));
    return one_in(d, 200) ? x * 4000 : x;
}

static void micro_of(const struct choices *c, int s, int r, int rank, int m, struct micro *out) {
    struct dice d = dice_of(c->seed, MICRO, s, r, rank, m);
    for (int k = 0; k < c->nets; k++) {
        out->used[k] = used_of(c, &d, rank, k);
        for (int i = 0; i < ALL; i++) out->gradient[k][i] = out->used[k] >> i / PART & 1 ? number(c, &d) : 0;
    }
    struct dice loss = dice_of(c->seed, LOSS, s, r, rank, m);
    out->bad = one_in(&loss, 40) && c->way != BY_HAND;
}

/* ---- what one process is given instead ---- */

static float divisor_of(const struct choices *c, int active) {
    const float predivide = (float)c->ddp.gradient_predivide_factor;
    if (c->ddp.gradient_average == CAIRN_OFF) return predivide != 0 ? predivide : 1;
    return (float)(c->ddp.join_divide_by_initial_world_size == CAIRN_OFF && active > 0 ? active : c->ranks);
}

static void add_micro(const struct choices *c, const struct micro *m, struct micro *sum) {
    sum->bad |= m->bad;
    for (int k = 0; k < c->nets; k++) {
        sum->used[k] |= is_strict(c) ? ALL_PARTS : m->used[k];
        for (int i = 0; i < ALL; i++) sum->gradient[k][i] += m->gradient[k][i];
    }
}

static void whole(const struct choices *c, int s, int r, struct micro *sum) {
    const struct round round = round_of(c, s, r);
    int active[MAX_NETS] = {0};
    memset(sum, 0, sizeof(*sum));
    for (int rank = 0; rank < c->ranks; rank++) {
        struct micro m = {.bad = false};
        for (int i = 0; i < round.micros[rank]; i++) {
            micro_of(c, s, r, rank, i, &m);
            add_micro(c, &m, sum);
        }
        for (int k = 0; k < c->nets; k++) active[k] += m.used[k] != 0;
    }
    for (int k = 0; k < c->nets; k++) {
        for (int i = 0; i < ALL; i++) sum->gradient[k][i] /= divisor_of(c, active[k]);
    }
}

/* ---- mistakes ---- */

enum blunder { LEAVES, BAD_ARGUMENT, SKIPS_A_ROUND, MISSES, DECLARES_TWICE, OTHER_OPTIONS, BLUNDERS };
static const char *const blunder_names[BLUNDERS] = {"leaves",
                                                    "gives a bad argument and leaves",
                                                    "skips a backward",
                                                    "misses a parameter",
                                                    "declares a parameter twice",
                                                    "has other options"};

struct mistake {
    enum blunder blunder;
    int rank, step; /* of this rank, in the first round of this step */
};

static bool may_miss(const struct choices *c) {
    return is_strict(c) || (c->ddp.static_graph == CAIRN_ON && c->exact && c->nets == 1);
}

static struct mistake mistake_of(const struct choices *c) {
    struct dice d = dice_of(c->seed, MISTAKE, 0, 0, 0, 0);
    struct mistake m = {.blunder = (enum blunder)roll(&d, BLUNDERS)};
    m.rank = (int)roll(&d, (uint32_t)c->ranks);
    m.step = 1 + (int)roll(&d, STEPS - 1);
    if (m.blunder == SKIPS_A_ROUND && c->nets > 1) m.blunder = BAD_ARGUMENT; /* ranks would wait in two groups */
    if (m.blunder == MISSES && !may_miss(c)) m.blunder = LEAVES;
    if (m.blunder == DECLARES_TWICE && c->way != BY_HAND) m.blunder = LEAVES;
    return m;
}

/* ---- a training ---- */

struct net {
    struct trained of; /* without its amp, which serves all nets */
    union {            /* BY_HAND */
        float f32[ALL];
        uint16_t half[ALL];
    } weights, gradients;
};

struct training {
    const struct choices *c;
    const struct mistake *mistake; /* NULL: none */
    cairn_env *env;
    amp_context *amp;
    bool alone;
    bool blunders; /* this rank, in this round */
    struct net nets[MAX_NETS];
};

static bool is_mistaken(const struct training *t, enum blunder blunder) {
    return t->mistake && t->mistake->rank == cairn_env_rank(t->env) && t->mistake->blunder == blunder;
}

static cairn_dtype type_by_hand(const struct choices *c) {
    return c->in_half ? c->amp.half_type : CAIRN_F32;
}

static void *part_of(void *array, cairn_dtype dtype, int k) {
    return (char *)array + (size_t)k * PART * cairn_dtype_nbytes(dtype);
}

static char *make_set(struct training *t, struct net *net) {
    static const char *const names[PARTS] = {"part0", "part1", "part2", "part3"};
    cairn_env *env = t->env;
    const cairn_dtype dtype = type_by_hand(t->c);
    cairn_param params[PARTS] = {{0}};
    for (int k = 0; k < PARTS; k++) {
        params[k] = (cairn_param){.name = names[k],
                                  .data = part_of(&net->weights, dtype, k),
                                  .grad = part_of(&net->gradients, dtype, k),
                                  .dtype = dtype,
                                  .ndim = 1,
                                  .shape = {PART}};
    }
    for (int i = 0; i < ALL; i++) {
        const float w = (float)(i % 9 - 4) / 4;
        cairn__dtype(dtype)->from_f32((char *)&net->weights + (size_t)i * cairn_dtype_nbytes(dtype), w);
    }
    EXPECT_OK(cairn_param_set_create(env, params, PARTS, &net->of.set));
    return NULL;
}

static char *make_net(struct training *t, struct net *net) {
    cairn_env *env = t->env;
    if (t->c->way == BY_HAND) {
        PASS(make_set(t, net));
    } else {
        net->of.model = make_parts(env);
        EXPECT(net->of.model);
        net->of.set = cairn_module_params(net->of.model);
        net->of.x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(ALL));
    }
    EXPECT_OK(parts_optimizer(&net->of, t->c->kind));
    return NULL;
}

static char *make_amp(struct training *t) {
    const struct choices *c = t->c;
    struct net *net = t->nets;
    cairn_env *env = t->env;
    struct amp_options o = c->amp;
    o.scaler = &c->scaler;
    if (c->way == BY_HAND) {
        EXPECT_OK(amp_initialize_params(env, net->of.set, net->of.optimizer, &o, &t->amp));
    } else {
        EXPECT_OK(amp_initialize_all(env, c->nets, (cairn_module *[]){net[0].of.model, net[1].of.model}, c->nets,
                                     (cairn_optimizer *[]){net[0].of.optimizer, net[1].of.optimizer}, &o, &t->amp));
    }
    for (int k = 0; k < c->nets; k++) net[k].of.amp = t->amp;
    return NULL;
}

static char *make_ddp(struct training *t, struct net *net) {
    cairn_env *env = t->env;
    const struct choices *c = t->c;
    cairn_group *group = cairn_env_group(env);
    struct ddp_options o = c->ddp;
    if (is_mistaken(t, OTHER_OPTIONS)) o.gradient_average = o.gradient_average ? CAIRN_DEFAULT : CAIRN_OFF;
    if (c->way == BY_HAND) {
        EXPECT_OK(ddp_create_params(net->of.set, group, &o, &net->of.net));
    } else {
        EXPECT_OK((c->way == BY_REDUCER ? ddp_reducer_create : ddp_create)(net->of.model, group, &o, &net->of.net));
    }
    if (!c->hook) return NULL;
    EXPECT_OK(ddp_register_comm_hook(net->of.net,
                                     c->hook == CAIRN_F16 ? ddp_fp16_compress_hook() : ddp_bf16_compress_hook()));
    return NULL;
}

static char *begin(struct training *t) {
    const struct choices *c = t->c;
    for (int k = 0; k < c->nets; k++) PASS(make_net(t, &t->nets[k]));
    PASS(make_amp(t));
    for (int k = 0; k < c->nets && !t->alone; k++) PASS(make_ddp(t, &t->nets[k]));
    return NULL;
}

static void end(struct training *t) {
    for (int k = 0; k < t->c->nets; k++) ddp_destroy(&t->nets[k].of.net);
    amp_destroy(&t->amp);
    for (int k = 0; k < t->c->nets; k++) {
        struct trained *of = &t->nets[k].of;
        cairn_optimizer_destroy(&of->optimizer);
        if (!of->model) cairn_param_set_destroy(&of->set);
        cairn_module_destroy(&of->model);
        cairn_tensor_destroy(&of->x);
    }
}

static bool is_now(const struct training *t, enum blunder blunder) {
    return t->blunders && is_mistaken(t, blunder);
}

/* ---- one backward ---- */

static cairn_tensor *loss_of(struct net *net, unsigned used, const float *gradient) {
    struct trained *of = &net->of;
    if (!used) return ddp_zero_loss(of->net);
    use_parts(of->model, used);
    if (cairn_tensor_write(of->x, gradient, ALL) != CAIRN_OK) return NULL;
    return of->net ? ddp_forward(of->net, of->x) : cairn_module_forward(of->model, of->x);
}

static cairn_status backward(struct training *t, const struct round *r, const struct micro *m) {
    cairn_optimizer *optimizers[MAX_NETS];
    cairn_tensor *loss = NULL;
    int count = 0;
    for (int k = 0; k < t->c->nets; k++) {
        if (!(r->nets >> k & 1)) continue;
        cairn_tensor *one = loss_of(&t->nets[k], m->used[k], m->gradient[k]);
        loss = count ? cairn_add(loss, one) : one;
        optimizers[count++] = t->nets[k].of.optimizer;
    }
    if (m->bad) loss = cairn_add(loss, cairn_full(t->env, CAIRN_F32, 0, NULL, INFINITY));
    return amp_backward_with(t->amp, loss,
                             amp_loss_options(.loss_id = r->loss, .num_optimizers = count, .optimizers = optimizers));
}

static cairn_status declare(struct training *t, size_t first, size_t count) {
    struct trained *of = &t->nets[0].of;
    return of->net ? ddp_grads_ready(of->net, first, count) : cairn_grads_ready(of->set, first, count);
}

/* All at once, or one by one from some parameter on. */
static cairn_status declare_used(struct training *t, unsigned used, struct dice *d) {
    cairn_status st = CAIRN_OK;
    const size_t from = roll(d, PARTS), by = one_in(d, 2) ? 1 : PARTS - 1;
    if (used == ALL_PARTS && one_in(d, 3)) return declare(t, 0, PARTS);
    for (size_t i = 0; i < PARTS && st == CAIRN_OK; i++) {
        const size_t k = (from + i * by) % PARTS;
        if (used >> k & 1) st = declare(t, k, 1);
    }
    return st;
}

static cairn_status backward_by_hand(struct training *t, const struct micro *m, struct dice *d) {
    const cairn_dtype dtype = type_by_hand(t->c);
    const double scale = amp_next_scale(t->amp);
    const unsigned used = is_strict(t->c) && !is_now(t, MISSES) ? ALL_PARTS : m->used[0];
    for (int i = 0; i < ALL; i++) {
        char *at = (char *)&t->nets[0].gradients + (size_t)i * cairn_dtype_nbytes(dtype);
        if (used >> i / PART & 1) cairn__dtype(dtype)->from_f32(at, (float)scale * m->gradient[0][i]);
    }
    const unsigned again = is_now(t, DECLARES_TWICE) ? used | 1 : 0; /* also where this rank has no input */
    cairn_status st = declare_used(t, used | again, d);
    if (st == CAIRN_OK && again) st = declare_used(t, again, d);
    return st == CAIRN_OK && t->nets[0].of.net ? ddp_wait(t->nets[0].of.net) : st;
}

/* ---- one round and one step ---- */

static char *choose_sync(struct training *t, const struct round *r, bool is_held) {
    for (int k = 0; k < t->c->nets; k++) {
        ddp_context *net = t->nets[k].of.net;
        if (!(r->nets >> k & 1)) continue;
        if (t->c->way != BY_REDUCER) EXPECT_OK(ddp_no_sync(net, is_held));
    }
    return NULL;
}

/* Before the first forward, which may be collective. */
static char *join(struct training *t, const struct round *r, int s, int number_of_round) {
    cairn_env *env = t->env;
    const int rank = cairn_env_rank(env);
    struct micro last;
    int active;
    micro_of(t->c, s, number_of_round, rank, r->micros[rank] - 1, &last);
    for (int k = 0; k < t->c->nets; k++) {
        if (r->nets >> k & 1) EXPECT_OK(ddp_join(t->nets[k].of.net, last.used[k] != 0, &active));
    }
    return NULL;
}

/* Never a mistake that reads as input that has run out. */
static void miss_one(const struct training *t, struct micro *m) {
    for (int k = 0; k < t->c->nets; k++) {
        if (is_strict(t->c)) m->used[k] = ALL_PARTS;
        m->used[k] = m->used[k] == 1 ? 2 : m->used[k] ^ 1;
    }
}

/* Mistakes that end the training of the rank that makes them at once. */
static char *blunder(const struct training *t) {
    EXPECT(!is_now(t, LEAVES));
    if (is_now(t, BAD_ARGUMENT)) EXPECT_OK(ddp_join(t->nets[0].of.net, 1, NULL));
    return NULL;
}

static char *run_micro(struct training *t, const struct round *r, const struct micro *m, struct dice *d) {
    EXPECT_OK(t->c->way == BY_HAND ? backward_by_hand(t, m, d) : backward(t, r, m));
    return NULL;
}

static char *run_round(struct training *t, int s, int number_of_round) {
    cairn_env *env = t->env;
    const struct choices *c = t->c;
    const int rank = cairn_env_rank(env);
    const struct round round = round_of(c, s, number_of_round);
    struct dice d = dice_of(c->seed, ORDER, s, number_of_round, rank, 0);
    struct micro m = {.bad = false};
    if (t->alone) {
        whole(c, s, number_of_round, &m);
        return run_micro(t, &round, &m, &d);
    }
    t->blunders = t->mistake && t->mistake->step == s && number_of_round == 0;
    PASS(blunder(t));
    if (is_now(t, SKIPS_A_ROUND)) return NULL;
    PASS(join(t, &round, s, number_of_round));
    for (int i = 0; i < round.micros[rank]; i++) {
        micro_of(c, s, number_of_round, rank, i, &m);
        if (is_now(t, MISSES)) miss_one(t, &m);
        PASS(choose_sync(t, &round, i + 1 < round.micros[rank]));
        PASS(run_micro(t, &round, &m, &d));
        if ((rank + i) % 2) EXPECT_OK(cairn_release_results(t->env)); /* ranks need not do it at the same time */
    }
    for (int k = 0; k < c->nets && c->way == BY_REDUCER; k++) {
        if (round.nets >> k & 1) EXPECT_OK(ddp_reduce(t->nets[k].of.net));
    }
    return NULL;
}

/* Whether a scaler is told twice of an inf that is kept over steps depends on where it is kept; ddp may change that. */
static bool has_skipped(const struct training *t) {
    bool any = false;
    for (int k = 0; k < t->c->nets; k++) any |= cairn_optimizer_step_skipped(t->nets[k].of.optimizer);
    return any;
}

static char *run_step(struct training *t, int s) {
    const struct choices *c = t->c;
    const struct step step = step_of(c, s);
    const bool forgets = step.forgets || (c->exact && has_skipped(t));
    for (int k = 0; k < c->nets && forgets; k++) cairn_zero_grad(t->nets[k].of.optimizer);
    for (int r = 0; r < step.rounds; r++) {
        PASS(run_round(t, s, r));
        if (c->way == BY_HAND && r + 1 < step.rounds) EXPECT_OK(cairn_grads_taken(t->nets[0].of.set, 0, PARTS));
    }
    for (int k = 0; k < c->nets; k++) {
        if (step.clips) EXPECT_OK(cairn_clip_grad_norm(t->nets[k].of.optimizer, 0.5, NULL));
        EXPECT_OK(cairn_step(t->nets[k].of.optimizer));
    }
    return NULL;
}

/* ---- comparing ---- */

struct state {
    struct remembered nets[MAX_NETS];
    char scalers[1024];
};

/* An ignored parameter is each rank's own. */
static void look(const struct training *t, struct state *state) {
    const int k = PARTS - 1;
    memset(state, 0, sizeof(*state));
    (void)amp_state_dict(t->amp, state->scalers, sizeof(state->scalers));
    for (int i = 0; i < t->c->nets; i++) {
        struct remembered *r = &state->nets[i];
        remember(&t->nets[i].of, r);
        if (t->c->ddp.num_ignored == 0) continue;
        memset(r->value[k], 0, sizeof(r->value[k]));
        memset(r->master[k], 0, sizeof(r->master[k]));
        for (int m = 0; m < 2; m++) memset(r->moment[m][k], 0, sizeof(r->moment[m][k]));
    }
}

static char *differ(const struct choices *c, int s, const char *whose, const struct state *a, const struct state *b) {
    char *text = malloc(3000);
    size_t used;
    describe(c, text, 1000);
    used = strlen(text);
    used += (size_t)snprintf(text + used, 3000 - used, "; after step %d %s differ:", s, whose);
    for (int i = 0; i < c->nets; i++) {
        const struct remembered *x = &a->nets[i], *y = &b->nets[i];
        for (int k = 0; k < PARTS; k++)
            used +=
                (size_t)snprintf(text + used, 3000 - used, " net %d part %d%s%s%s,", i, k,
                                 memcmp(x->value[k], y->value[k], sizeof(x->value[k])) ? " weight" : "",
                                 memcmp(x->master[k], y->master[k], sizeof(x->master[k])) ? " master" : "",
                                 memcmp(x->moment[0][k], y->moment[0][k], sizeof(x->moment[0][k])) ? " moment" : "");
        used += (size_t)snprintf(text + used, 3000 - used, " steps %d %d skipped %d %d;", (int)x->steps, (int)y->steps,
                                 (int)x->skipped, (int)y->skipped);
    }
    if (strcmp(a->scalers, b->scalers) != 0)
        snprintf(text + used, 3000 - used, " scalers %s | %s", a->scalers, b->scalers);
    return text;
}

struct job {
    struct choices c;
    struct state want[STEPS]; /* of one process, where it is exact */
};

static void add_bits(void *to, const void *from, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i++) ((char *)to)[i] |= ((const char *)from)[i];
}

/* Of ranks that share updates each has remembered its part, and zeros. */
static void unite(const struct choices *c, struct state *all) {
    for (int k = 0; k < c->nets; k++) {
        struct remembered *first = &all[0].nets[k];
        for (int r = 1; r < c->ranks; r++) {
            add_bits(first->master, all[r].nets[k].master, sizeof(first->master));
            add_bits(first->moment, all[r].nets[k].moment, sizeof(first->moment));
        }
        for (int r = 1; r < c->ranks; r++) {
            memcpy(all[r].nets[k].master, first->master, sizeof(first->master));
            memcpy(all[r].nets[k].moment, first->moment, sizeof(first->moment));
        }
    }
}

static char *compare(const struct training *t, const struct job *j, int s) {
    cairn_env *env = t->env;
    struct state mine, all[MAX_RANKS];
    look(t, &mine);
    EXPECT_OK(cairn__group_exchange(cairn_env_group(env), all, &mine, sizeof(mine)));
    if (j->c.ddp.shard_optimizer == CAIRN_ON) unite(&j->c, all);
    mine = all[cairn_env_rank(env)];
    for (int r = 1; r < j->c.ranks; r++) {
        if (memcmp(&all[0], &all[r], sizeof(mine)) != 0) return differ(&j->c, s, "ranks", &all[0], &all[r]);
    }
    const bool same = !j->c.exact || memcmp(&mine, &j->want[s], sizeof(mine)) == 0;
    return same ? NULL : differ(&j->c, s, "ranks and one process", &mine, &j->want[s]);
}

static char *train_alone(cairn_env *env, void *ctx) {
    struct job *j = ctx;
    struct training t = {.c = &j->c, .env = env, .alone = true};
    PASS(begin(&t));
    for (int s = 0; s < STEPS; s++) {
        PASS(run_step(&t, s));
        look(&t, &j->want[s]);
    }
    end(&t);
    return NULL;
}

/* Prints the seed's choices with the failure, so that it can be run again. */
static char *with_choices(const struct choices *c, char *failure) {
    char *text = malloc(4000);
    describe(c, text, 1000);
    snprintf(text + strlen(text), 3000, ": %s", failure);
    free(failure);
    fprintf(stderr, "%s\n", text); /* of every rank: one rank's error may only repeat another's */
    return text;
}

static char *train_together(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    struct training t = {.c = &j->c, .env = env};
    char *failure = begin(&t);
    for (int s = 0; s < STEPS && !failure; s++) {
        failure = run_step(&t, s);
        if (!failure) failure = compare(&t, j, s);
    }
    end(&t);
    return failure ? with_choices(&j->c, failure) : NULL;
}

static void ranks_keep_equal_bits_and_those_of_one_process(void **state) {
    static struct job j;
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + num_seeds; seed++) {
        choose(seed, &j.c);
        if (j.c.exact) run_ranks(1, train_alone, &j);
        run_ranks(j.c.ranks, train_together, &j);
    }
}

/* A rank that destroys its contexts waits in the first for the others, which may wait for it in the second. */
static void abort_all(const struct training *t) {
    for (int k = 0; k < t->c->nets; k++) cairn_group_abort(ddp_group(t->nets[k].of.net));
}

/* Every rank fails, and none waits for as long as the timeout of a silent rank. */
static char *train_with_a_mistake(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    const struct mistake mistake = mistake_of(&j->c);
    struct training t = {.c = &j->c, .env = env, .mistake = &mistake};
    char *failure = begin(&t);
    for (int s = 0; s < STEPS && !failure; s++) failure = run_step(&t, s);
    const bool left = is_mistaken(&t, LEAVES) || is_mistaken(&t, SKIPS_A_ROUND);
    const bool said = failure && !strstr(failure, "(last error: )") && cairn__last_status() != CAIRN_ETIMEOUT;
    if (failure && j->c.nets > 1) abort_all(&t);
    end(&t);
    if (said || left) {
        free(failure);
        return NULL;
    }
    if (!failure) failure = FAILURE("nothing was said");
    fprintf(stderr, "rank %d %s in step %d: ", mistake.rank, blunder_names[mistake.blunder], mistake.step);
    return with_choices(&j->c, failure);
}

static void error_of_one_rank_ends_the_training_of_all_with_a_message(void **state) {
    static struct job j;
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + (num_seeds + 1) / 2; seed++) {
        choose(seed, &j.c);
        run_ranks(j.c.ranks, train_with_a_mistake, &j);
    }
}

int main(int argc, char **argv) {
    const char *wanted = getenv("CAIRN_TEST_SEEDS");
    if (argc > 1) num_seeds = strtoull(wanted ? wanted : argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_keep_equal_bits_and_those_of_one_process),
        cmocka_unit_test(error_of_one_rank_ends_the_training_of_all_with_a_message),
    };
    return cmocka_run_group_tests_name("random trainings", tests, parts_be_quiet, NULL);
}
