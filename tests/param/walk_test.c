/* Random walks through the states of gradients, against a model written from the description in param/grad.h: after
 * every call states, values and flags equal the model's, and every transition is an edge of the diagram there. All
 * edges are taken.
 *
 * The model's arithmetic is exact. Values are integers, loss scales and clipping coefficients are powers of 2 whose
 * product in a walk is at least 2^-6; a walk forgets gradients above 2^13, and one transition enlarges them at most 8
 * times. So an f32 sum needs 22 bits and is exact, and a half slot is one rounding of the exact sum.
 *
 * usage: walk_test [WALKS [FIRST]]    (CAIRN_TEST_SEEDS in the environment overrides WALKS) */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "core/dtype.h"
#include "param/param.h"

enum { PARAMS = 2, MOST = 5, BUFFERS = 2, LONGEST = 30, ENOUGH = 100000 };

static uint64_t num_walks = ENOUGH, first_walk;
static bool walked; /* all of them, as the model says */

/* ---- the diagram ---- */

enum machine { SLOT, ACCUMULATED, UNSYNCED, MACHINES };

static const char *const machine_names[MACHINES] = {"slot", "accumulated", "unsynced"};
static const char *const state_names[MACHINES][4] = {{"EMPTY", "UNSYNCED", "WRITTEN", "CHECKED"},
                                                     {"ABSENT", "UNCHECKED", "CHECKED", NULL},
                                                     {"NONE", "KEPT", "USED", "USED_KEPT"}};

enum by {
    OPEN,
    WRITE,
    SYNC,
    REDUCE,
    DROP,
    ACCUMULATE,
    ACCUMULATE_AT,
    LOOK,
    FOUND,
    USE_UNSYNCED,
    READ,
    CLIP,
    UNSCALE,
    CONSUME,
    FORGET,
    FORGET_UNSYNCED,
    PLACE,
    BIND,
    CHANGE_TYPE,
    EDGES_END, /* what follows changes no state */
    BEGIN = EDGES_END,
    SETTLE,
    ABORT,
    TAKE_FLAGS,
    AGREE,
    HOLD,
    VALUES,
    STEP,
    BYS
};

static const char *const by_names[BYS] = {
    [OPEN] = "open",
    [WRITE] = "write",
    [SYNC] = "sync",
    [REDUCE] = "reduce",
    [DROP] = "drop",
    [ACCUMULATE] = "accumulate",
    [ACCUMULATE_AT] = "accumulate_at",
    [LOOK] = "look",
    [FOUND] = "found",
    [USE_UNSYNCED] = "use_unsynced",
    [READ] = "read",
    [CLIP] = "clip",
    [UNSCALE] = "unscale",
    [CONSUME] = "consume",
    [FORGET] = "forget",
    [FORGET_UNSYNCED] = "forget_unsynced",
    [PLACE] = "place",
    [BIND] = "bind",
    [CHANGE_TYPE] = "change_type",
    [BEGIN] = "(begin)",
    [SETTLE] = "(settle)",
    [ABORT] = "(abort)",
    [TAKE_FLAGS] = "(take_flag)",
    [AGREE] = "(agree)",
    [HOLD] = "(keep_unsynced)",
    [VALUES] = "(values)",
    [STEP] = "(cairn_step)",
};

#define OF(x) (1u << (x))

enum { /* states of the three machines, as bits */
       EMPTY = OF(CAIRN__SLOT_EMPTY),
       LOCAL = OF(CAIRN__SLOT_UNSYNCED),
       WRITTEN = OF(CAIRN__SLOT_WRITTEN),
       CHECKED = OF(CAIRN__SLOT_CHECKED),
       ABSENT = OF(CAIRN__ACCUMULATED_ABSENT),
       UNCHECKED = OF(CAIRN__ACCUMULATED_UNCHECKED),
       SUM_CHECKED = OF(CAIRN__ACCUMULATED_CHECKED),
       NONE = OF(CAIRN__UNSYNCED_NONE),
       KEPT = OF(CAIRN__UNSYNCED_KEPT),
       USED = OF(CAIRN__UNSYNCED_USED),
       USED_KEPT = OF(CAIRN__UNSYNCED_USED_KEPT)
};

/* An edge for each bit of from and each of by. */
struct edges {
    enum machine machine;
    unsigned from, by, to;
};

#define ADDS (OF(OPEN) | OF(ACCUMULATE) | OF(ACCUMULATE_AT) | OF(BIND))
#define USES (OF(USE_UNSYNCED) | OF(READ) | OF(UNSCALE))

static const struct edges diagram[] = {
    {SLOT, EMPTY | WRITTEN | CHECKED, OF(WRITE), WRITTEN},
    {SLOT, EMPTY | LOCAL | WRITTEN | CHECKED, OF(WRITE), LOCAL},
    {SLOT, EMPTY, OF(WRITE), EMPTY},
    {SLOT, EMPTY | LOCAL | WRITTEN | CHECKED, OF(SYNC), WRITTEN},
    {SLOT, EMPTY | WRITTEN | CHECKED, OF(REDUCE), WRITTEN},
    {SLOT, WRITTEN, OF(DROP), EMPTY},
    {SLOT, LOCAL | WRITTEN | CHECKED, ADDS | OF(READ) | OF(UNSCALE), EMPTY},
    {SLOT, LOCAL, USES, WRITTEN},
    {SLOT, WRITTEN, OF(LOOK) | OF(FOUND) | OF(CLIP), CHECKED},
    {SLOT, CHECKED, OF(CONSUME), WRITTEN},
    {SLOT, LOCAL | WRITTEN | CHECKED, OF(FORGET) | OF(PLACE) | OF(CHANGE_TYPE), EMPTY},
    {SLOT, LOCAL, OF(FORGET_UNSYNCED), EMPTY},

    {ACCUMULATED, ABSENT, ADDS | OF(SYNC) | USES, SUM_CHECKED},
    {ACCUMULATED, UNCHECKED, (ADDS & ~OF(BIND)) | OF(SYNC) | USES | OF(LOOK) | OF(CLIP), SUM_CHECKED},
    {ACCUMULATED, SUM_CHECKED, OF(CONSUME), UNCHECKED},
    {ACCUMULATED, UNCHECKED | SUM_CHECKED, OF(WRITE) | OF(SYNC) | OF(FORGET) | OF(CHANGE_TYPE), ABSENT},

    {UNSYNCED, NONE | KEPT, ADDS, KEPT},
    {UNSYNCED, USED | USED_KEPT, ADDS, USED_KEPT},
    {UNSYNCED, NONE | KEPT | USED_KEPT, USES, USED},
    {UNSYNCED, KEPT | USED | USED_KEPT, OF(WRITE) | OF(SYNC) | OF(FORGET) | OF(FORGET_UNSYNCED) | OF(CHANGE_TYPE),
     NONE},
};

static uint64_t taken[MACHINES][4][EDGES_END][4], reached[MACHINES][4];

static bool is_drawn(enum machine machine, unsigned from, enum by by, unsigned to) {
    for (size_t e = 0; e < sizeof(diagram) / sizeof(diagram[0]) && by < EDGES_END; e++) {
        const struct edges *d = &diagram[e];
        if (d->machine == machine && (d->from & OF(from)) && (d->by & OF(by)) && d->to == OF(to)) return true;
    }
    return false;
}

/* ---- sets ---- */

struct kind {
    const char *name;
    bool is_users;
    cairn_dtype dtype, values; /* values: half ones in f32 memory; 0 = dtype's own */
};

static const struct kind kinds[] = {
    {"a module's, f32", false, CAIRN_F32, (cairn_dtype)0},
    {"a module's, f16", false, CAIRN_F16, (cairn_dtype)0},
    {"a module's, bf16", false, CAIRN_BF16, (cairn_dtype)0},
    {"the user's, f32", true, CAIRN_F32, (cairn_dtype)0},
    {"the user's, f16", true, CAIRN_F16, (cairn_dtype)0},
    {"the user's, bf16", true, CAIRN_BF16, (cairn_dtype)0},
    {"the user's, f16 values in f32", true, CAIRN_F32, CAIRN_F16},
    {"the user's, bf16 values in f32", true, CAIRN_F32, CAIRN_BF16},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static const size_t sizes[KINDS][PARAMS] = {{3, 1}, {2, 5}, {1, 4}, {4, 2}, {5, 1}, {3, 2}, {1, 3}, {2, 4}};

static struct sets {
    const struct kind *kind;
    cairn_env *env;
    cairn_param_set *set;
    cairn_optimizer *owner;
    float data[PARAMS][MOST];
    _Alignas(64) unsigned char buffers[PARAMS][BUFFERS][64]; /* the user's, or where a group would have its arena */
} all_sets[KINDS];

static void make_users(struct sets *s, const size_t *n) {
    cairn_param described[PARAMS];
    for (size_t i = 0; i < PARAMS; i++) {
        described[i] = (cairn_param){.name = i ? "b" : "a",
                                     .data = s->data[i],
                                     .grad = s->buffers[i][0],
                                     .dtype = s->kind->dtype,
                                     .ndim = 1,
                                     .shape = {(int64_t)n[i]}};
    }
    assert_int_equal(cairn_param_set_create(s->env, described, PARAMS, &s->set), CAIRN_OK);
    if (s->kind->values)
        assert_int_equal(cairn__param_set_take_half_values(s->set, s->kind->values, false, false), CAIRN_OK);
}

static void make_modules(struct sets *s, const size_t *n) {
    assert_int_equal(cairn__param_set_new(s->env, &s->set), CAIRN_OK);
    for (size_t i = 0; i < PARAMS; i++) {
        struct cairn__param *p = NULL;
        assert_int_equal(cairn__param_set_add(s->set, i ? "b" : "a", 1, (int64_t[]){(int64_t)n[i]}, false, &p),
                         CAIRN_OK);
        memset(p->data, 0, n[i] * sizeof(float));
    }
    if (s->kind->dtype != CAIRN_F32)
        assert_int_equal(cairn__param_set_to_half(s->set, s->kind->dtype, true, false), CAIRN_OK);
}

static void be_quiet(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level, (void)message; /* cairn_step warns of scaled gradients without amp */
}

static int make_all(void **state) {
    struct cairn_sgd_options options = CAIRN_SGD_OPTIONS_INIT;
    (void)state;
    options.lr = 1;
    cairn_set_log(be_quiet, NULL);
    for (size_t k = 0; k < KINDS; k++) {
        struct sets *s = &all_sets[k];
        s->kind = &kinds[k];
        assert_int_equal(cairn_env_create(NULL, NULL, NULL, &s->env), CAIRN_OK);
        s->kind->is_users ? make_users(s, sizes[k]) : make_modules(s, sizes[k]);
        assert_int_equal(cairn_sgd_create(s->set, &options, &s->owner), CAIRN_OK);
    }
    return 0;
}

static int end_all(void **state) {
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        struct sets *s = &all_sets[k];
        for (size_t i = 0; i < PARAMS; i++) s->set->params[i]->owner = s->owner;
        cairn_optimizer_destroy(&s->owner);
        cairn_param_set_destroy(&s->set);
        cairn_env_destroy(&s->env);
    }
    return 0;
}

/* ---- a walk ---- */

/* What the words of grad.h say of one parameter. */
struct model {
    struct cairn__grad_states is;
    double slot[MOST]; /* as stored */
    double sum[MOST], kept[MOST];
    const struct cairn__loss_scale *scale; /* of the slot; NULL = 1 */
    double clip;                           /* 0 = none */
    bool found, sum_found;                 /* the flags */
    bool agreed, agreed_found, agreed_sum_found;
    bool noted, incomplete;
    bool unused;   /* written since a step last used it */
    bool reported; /* a flag was taken since a step last used the gradient */
};

struct called {
    enum by by;
    unsigned who;
    struct cairn__grad_states is[PARAMS];
};

struct walk {
    uint64_t seed, random;
    struct sets *s;
    cairn_param_set *set;
    struct model m[PARAMS];
    struct cairn__grad_states before[PARAMS];
    float coefficients[PARAMS];
    int halvings; /* by clipping */

    bool unsynced, spares, only_unsynced, in_backward; /* the set's, as they should be */
    const struct cairn__loss_scale *scale;
    uint64_t backward;

    struct cairn__grad_listener listener;
    bool listens, looks, ignores; /* looks: the group looks for overflow; ignores: it leaves out the last parameter */
    unsigned arrived;             /* of parameters */

    struct called calls[LONGEST * 40];
    size_t num_calls;
};

static const struct cairn__loss_scale scales[] = {{8, 0.125f}, {4, 0.25f}, {2, 0.5f}, {0.5f, 2}, {0.125f, 8}};

static uint32_t roll(struct walk *w, uint32_t sides) {
    uint64_t z = w->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32) % sides;
}

static bool one_in(struct walk *w, uint32_t n) {
    return roll(w, n) == 0;
}

static unsigned bits(size_t first, size_t count) {
    return (OF(first + count) - 1) & ~(OF(first) - 1);
}

static struct cairn__param *param(const struct walk *w, size_t i) {
    return w->set->params[i];
}

static struct cairn__grad *grad(const struct walk *w, size_t i) {
    return w->set->params[i]->gradient;
}

static void print_calls(const struct walk *w) {
    printf("walk %llu, of %s%s%s%s (again: walk_test 1 %llu):\n", (unsigned long long)w->seed, w->s->kind->name,
           w->listens ? ", with a listener" : "", w->looks ? " that looks" : "", w->ignores ? " and ignores b" : "",
           (unsigned long long)w->seed);
    for (size_t c = 0; c < w->num_calls; c++) {
        printf("  %-16s %s%s ", by_names[w->calls[c].by], w->calls[c].who & 1 ? "a" : " ",
               w->calls[c].who & 2 ? "b" : " ");
        for (size_t i = 0; i < PARAMS; i++) {
            const struct cairn__grad_states *is = &w->calls[c].is[i];
            printf("  %s/%s/%s", state_names[SLOT][is->slot], state_names[ACCUMULATED][is->accumulated],
                   state_names[UNSYNCED][is->unsynced]);
        }
        printf("\n");
    }
}

#define EXPECT(w, condition, ...)                  \
    do {                                           \
        if (!(condition)) {                        \
            print_calls(w);                        \
            printf("is not so: " #condition ": "); \
            printf(__VA_ARGS__);                   \
            printf("\n");                          \
            fflush(stdout);                        \
            fail();                                \
        }                                          \
    } while (0)

/* ---- comparing ---- */

static double scale_of(const struct cairn__loss_scale *s) {
    return s ? (double)s->scale : 1;
}

static bool is_written(const struct model *m) {
    return m->is.slot != CAIRN__SLOT_EMPTY;
}

static bool is_accumulated(const struct model *m) {
    return m->is.accumulated != CAIRN__ACCUMULATED_ABSENT;
}

static bool is_taken(const struct model *m) {
    return m->is.unsynced == CAIRN__UNSYNCED_USED || m->is.unsynced == CAIRN__UNSYNCED_USED_KEPT;
}

static bool is_kept(const struct model *m) {
    return m->is.unsynced == CAIRN__UNSYNCED_KEPT || m->is.unsynced == CAIRN__UNSYNCED_USED_KEPT;
}

static bool is_unsynced(const struct model *m) {
    return m->is.slot == CAIRN__SLOT_UNSYNCED || m->is.unsynced != CAIRN__UNSYNCED_NONE;
}

static double load(cairn_dtype dtype, const void *x, size_t k) {
    return (double)cairn__dtype(dtype)->to_f32((const char *)x + k * cairn_dtype_nbytes(dtype));
}

static void store(cairn_dtype dtype, void *x, size_t k, double value) {
    cairn__dtype(dtype)->from_f32((char *)x + k * cairn_dtype_nbytes(dtype), (float)value);
}

static bool is_same(double a, double b) {
    return isnan(a) ? isnan(b) : a == b;
}

static void expect_values(const struct walk *w, size_t i, const char *what, cairn_dtype dtype, const void *x,
                          const double *want) {
    for (size_t k = 0; k < param(w, i)->n; k++)
        EXPECT(w, is_same(load(dtype, x, k), want[k]), "%s of %s[%zu] is %g, not %g", what, param(w, i)->name, k,
               load(dtype, x, k), want[k]);
}

static void expect_states(const struct walk *w, size_t i) {
    const struct cairn__grad_states is = cairn__grad_states(grad(w, i)), want = w->m[i].is;
    EXPECT(w, is.slot == want.slot && is.accumulated == want.accumulated && is.unsynced == want.unsynced,
           "%s should be %s/%s/%s", param(w, i)->name, state_names[SLOT][want.slot],
           state_names[ACCUMULATED][want.accumulated], state_names[UNSYNCED][want.unsynced]);
}

static void expect_stored(const struct walk *w, size_t i) {
    const struct model *m = &w->m[i];
    const struct cairn__param *p = param(w, i);
    const struct cairn__grad_view view = cairn__grad_peek(p->gradient);
    const float *const unscaled = cairn__grad_unscaled_memory(p->gradient);
    EXPECT(w, !view.x == !(is_written(m) || is_accumulated(m) || is_kept(m)), "of %s", p->name);
    if (is_written(m)) {
        EXPECT(w, view.dtype == p->dtype && view.values == (p->value_type ? p->value_type : p->dtype), "of %s",
               p->name);
        EXPECT(w, view.factor == (m->scale ? &m->scale->factor : NULL), "of %s", p->name);
        expect_values(w, i, "the slot", p->dtype, view.x, m->slot);
    } else if (view.x) {
        EXPECT(w, view.dtype == CAIRN_F32 && view.values == CAIRN_F32 && !view.factor, "of %s", p->name);
        expect_values(w, i, "what peek shows", CAIRN_F32, view.x, is_accumulated(m) ? m->sum : m->kept);
    }
    if (is_accumulated(m)) expect_values(w, i, "the sum", CAIRN_F32, unscaled, m->sum);
}

static void expect_rest(const struct walk *w, size_t i) {
    const struct model *m = &w->m[i];
    const struct cairn__grad *g = grad(w, i);
    const uint32_t *const flags = w->set->flags;
    const bool synced = (is_written(m) && m->is.slot != CAIRN__SLOT_UNSYNCED) || is_accumulated(m);
    EXPECT(w, cairn__grad_is_synced(g) == synced, "of %zu", i);
    EXPECT(w, cairn__grad_is_unsynced(g) == is_unsynced(m), "of %zu", i);
    EXPECT(w, cairn__grad_is_scaled(g) == (is_written(m) && m->scale), "of %zu", i);
    EXPECT(w, cairn__grad_is_at_other_scale(g) == (is_written(m) && m->scale != w->scale), "of %zu", i);
    if (is_written(m) || is_accumulated(m)) EXPECT(w, cairn__grad_is_clipped(g) == (m->clip != 0), "of %zu", i);
    EXPECT(w, cairn__grad_is_noted(g) == m->noted, "of %zu", i);
    EXPECT(w, cairn__grad_is_incomplete(g) == m->incomplete, "of %zu", i);
    EXPECT(w, cairn__grad_is_pending(g) == (m->unused && (is_written(m) || is_accumulated(m) || is_unsynced(m))),
           "of %zu", i);
    EXPECT(w, (flags && flags[i]) == m->found, "flag of %zu should be %d", i, m->found);
    EXPECT(w, (flags && flags[PARAMS + i]) == m->sum_found, "the sum's flag of %zu should be %d", i, m->sum_found);
    if (m->found || m->sum_found) EXPECT(w, cairn__grad_has_touched_flags(g), "of %zu", i);
}

static void count(struct walk *w, enum machine machine, unsigned from, enum by by, unsigned to) {
    const bool drawn = is_drawn(machine, from, by, to);
    EXPECT(w, drawn || from == to, "%s: %s -- %s -> %s is not in the diagram", machine_names[machine],
           state_names[machine][from], by_names[by], state_names[machine][to]);
    if (drawn) taken[machine][from][by][to]++;
    reached[machine][to]++;
}

/* `who` (a bit a parameter) have been called: with the model's change this is all that happened. */
static void observe(struct walk *w, enum by by, unsigned who) {
    struct called *c = &w->calls[w->num_calls++];
    *c = (struct called){.by = by, .who = who};
    for (size_t i = 0; i < PARAMS; i++) c->is[i] = cairn__grad_states(grad(w, i));
    for (size_t i = 0; i < PARAMS; i++) {
        const struct cairn__grad_states was = w->before[i];
        w->before[i] = c->is[i];
        if (who & OF(i)) {
            count(w, SLOT, was.slot, by, c->is[i].slot);
            count(w, ACCUMULATED, was.accumulated, by, c->is[i].accumulated);
            count(w, UNSYNCED, was.unsynced, by, c->is[i].unsynced);
        }
        expect_states(w, i);
        expect_stored(w, i);
        expect_rest(w, i);
    }
    EXPECT(w,
           w->set->scale == w->scale && w->set->only_unsynced == w->only_unsynced &&
               w->set->in_backward == w->in_backward,
           "of the set");
}

static void called(struct walk *w, enum by by, size_t i) {
    observe(w, by, OF(i));
}

/* ---- the model: values ---- */

/* As f32, which must hold it. */
static double exact(const struct walk *w, double x) {
    EXPECT(w, isnan(x) || (double)(float)x == x, "%.17g is no f32 value: the walk was to stay exact", x);
    return x;
}

static double rounded(const struct walk *w, double x) {
    const cairn_dtype to = w->s->kind->values ? w->s->kind->values : w->s->kind->dtype;
    unsigned char bits[8];
    cairn__dtype(to)->from_f32(bits, (float)exact(w, x));
    return (double)cairn__dtype(to)->to_f32(bits);
}

static size_t size_of(const struct walk *w, const struct model *m) {
    return param(w, (size_t)(m - w->m))->n;
}

static bool is_finite(const struct walk *w, const struct model *m, const double *x) {
    bool finite = true;
    for (size_t k = 0; k < size_of(w, m); k++) finite &= isfinite(x[k]) != 0;
    return finite;
}

/* dst = factor * x, + y where there is one */
static void add(const struct walk *w, const struct model *m, double *dst, double factor, const double *x,
                const double *y) {
    for (size_t k = 0; k < size_of(w, m); k++) dst[k] = exact(w, factor * x[k] + (y ? y[k] : 0));
}

/* ---- the model: states ---- */

static void model_accumulate(const struct walk *w, struct model *m) {
    const double factor = 1 / scale_of(m->scale);
    if (m->is.slot == CAIRN__SLOT_UNSYNCED) {
        add(w, m, m->kept, factor, m->slot, is_kept(m) ? m->kept : NULL);
        m->is.unsynced = is_taken(m) ? CAIRN__UNSYNCED_USED_KEPT : CAIRN__UNSYNCED_KEPT;
    } else if (is_written(m)) {
        add(w, m, m->sum, factor, m->slot, is_accumulated(m) ? m->sum : NULL);
        *(m->is.slot == CAIRN__SLOT_CHECKED ? &m->sum_found : &m->found) |= !is_finite(w, m, m->sum);
        m->is.accumulated = CAIRN__ACCUMULATED_CHECKED;
    }
    m->is.slot = CAIRN__SLOT_EMPTY;
}

static void model_take_unsynced(struct walk *w, struct model *m) {
    const bool kept = is_kept(m);
    w->only_unsynced = false;
    if (kept || m->is.slot == CAIRN__SLOT_UNSYNCED) m->is.unsynced = CAIRN__UNSYNCED_USED;
    if (m->is.slot == CAIRN__SLOT_UNSYNCED) m->is.slot = CAIRN__SLOT_WRITTEN;
    if (!kept) return;
    add(w, m, m->sum, 1, m->kept, is_accumulated(m) ? m->sum : NULL);
    m->found |= !is_finite(w, m, m->sum);
    m->is.accumulated = CAIRN__ACCUMULATED_CHECKED;
}

static void model_read(struct walk *w, struct model *m) {
    model_take_unsynced(w, m);
    if (is_accumulated(m)) model_accumulate(w, m);
}

static void model_clip_sum(const struct walk *w, struct model *m) {
    if (is_accumulated(m) && m->clip != 0) add(w, m, m->sum, m->clip, m->sum, NULL);
    m->clip = 0;
}

static void model_unscale(struct walk *w, struct model *m) {
    model_take_unsynced(w, m);
    if (is_accumulated(m) || w->s->kind->dtype != CAIRN_F32) model_accumulate(w, m);
    if (is_written(m)) {
        add(w, m, m->slot, (m->clip != 0 ? m->clip : 1) / scale_of(m->scale), m->slot, NULL);
        m->scale = NULL;
        m->clip = 0;
    }
    model_clip_sum(w, m);
}

static void model_open(struct walk *w, struct model *m) {
    if (m->clip != 0) model_unscale(w, m);
    model_accumulate(w, m);
}

/* Of the slot as it is now: what a step took, and with it all that is accumulated, is reduced with it. */
static void model_add_unsynced(const struct walk *w, struct model *m) {
    if (is_taken(m) && is_accumulated(m)) {
        add(w, m, m->kept, 1, m->sum, is_kept(m) ? m->kept : NULL);
        m->is.unsynced = CAIRN__UNSYNCED_KEPT;
        m->is.accumulated = CAIRN__ACCUMULATED_ABSENT;
    }
    for (size_t k = 0; is_kept(m) && k < size_of(w, m); k++)
        m->slot[k] = rounded(w, m->kept[k] * scale_of(m->scale) + m->slot[k]);
    m->is.unsynced = CAIRN__UNSYNCED_NONE;
}

static void model_set_written(const struct walk *w, struct model *m, const double *values) {
    model_clip_sum(w, m);
    m->is.slot = CAIRN__SLOT_WRITTEN;
    m->scale = w->scale;
    m->unused = true;
    memcpy(m->slot, values, sizeof(m->slot));
}

static void model_write(const struct walk *w, struct model *m, const double *values) {
    const bool was_unused = m->unused;
    model_set_written(w, m, values);
    if (!w->unsynced) {
        model_add_unsynced(w, m);
    } else {
        m->is.slot = w->spares ? CAIRN__SLOT_EMPTY : CAIRN__SLOT_UNSYNCED;
        if (w->spares) m->unused = was_unused;
    }
}

static void model_sync(struct walk *w, struct model *m) {
    static const double zeros[MOST];
    if (m->is.slot == CAIRN__SLOT_UNSYNCED && m->is.unsynced == CAIRN__UNSYNCED_NONE && m->scale == w->scale) {
        m->is.slot = CAIRN__SLOT_WRITTEN; /* it stands there already */
        return;
    }
    model_open(w, m);
    model_set_written(w, m, zeros);
    model_add_unsynced(w, m);
}

static void model_look(const struct walk *w, struct model *m) {
    if (w->only_unsynced) return;
    if (m->is.slot == CAIRN__SLOT_WRITTEN && !(w->s->kind->is_users && w->in_backward)) {
        m->found |= !is_finite(w, m, m->slot);
        m->is.slot = CAIRN__SLOT_CHECKED;
    }
}

static void model_look_at_sum(const struct walk *w, struct model *m) {
    if (w->only_unsynced || m->is.accumulated != CAIRN__ACCUMULATED_UNCHECKED) return;
    m->sum_found |= !is_finite(w, m, m->sum);
    m->is.accumulated = CAIRN__ACCUMULATED_CHECKED;
}

static void model_forget(struct model *m) {
    *m = (struct model){.scale = m->scale};
}

static void model_forget_unsynced(struct model *m) {
    if (m->is.slot == CAIRN__SLOT_UNSYNCED) m->is.slot = CAIRN__SLOT_EMPTY;
    m->is.unsynced = CAIRN__UNSYNCED_NONE;
}

/* A user's is used up. */
static void model_consume(const struct walk *w, struct model *m) {
    if (w->s->kind->is_users) model_forget(m);
    if (m->is.slot == CAIRN__SLOT_CHECKED) m->is.slot = CAIRN__SLOT_WRITTEN;
    if (is_accumulated(m)) m->is.accumulated = CAIRN__ACCUMULATED_UNCHECKED;
    if (m->agreed) m->found = m->agreed_found;
    if (m->agreed) m->sum_found = m->agreed_sum_found;
    m->noted = m->reported = m->unused = false;
    m->clip = 0;
}

/* ---- a backward ---- */

/* Few bits, so that sums of many are exact; more than a half sum holds. */
static void choose_values(struct walk *w, double *values) {
    const cairn_dtype type = w->s->kind->values ? w->s->kind->values : w->s->kind->dtype;
    const int most = type == CAIRN_BF16 ? 127 : 1023;
    for (size_t k = 0; k < MOST; k++) {
        const double x = (int)roll(w, (uint32_t)(2 * most + 1)) - most;
        values[k] = ldexp(x, (int)roll(w, 3)) * scale_of(w->scale);
    }
    if (one_in(w, 10)) values[0] = one_in(w, 3) ? (double)NAN : one_in(w, 2) ? (double)INFINITY : -(double)INFINITY;
}

static void write_values(struct walk *w, size_t i, const double *values) {
    void *const slot = cairn__grad_memory(grad(w, i));
    for (size_t k = 0; k < param(w, i)->n; k++) store(param(w, i)->dtype, slot, k, values[k]);
}

static void open(struct walk *w, size_t i) {
    void *slot = NULL;
    EXPECT(w, cairn__grad_begin_write(grad(w, i), &slot) == CAIRN_OK && slot == cairn__grad_memory(grad(w, i)), "open");
    model_open(w, &w->m[i]);
    called(w, OPEN, i);
}

static void sync(struct walk *w, size_t i) {
    EXPECT(w, cairn__grad_write_unreached(grad(w, i)) == CAIRN_OK, "sync");
    model_sync(w, &w->m[i]);
    called(w, SYNC, i);
}

/* Another rank's, or zeros. */
static void reduce(struct walk *w, size_t i) {
    double values[MOST] = {0};
    if (!one_in(w, 3)) choose_values(w, values);
    write_values(w, i, values);
    cairn__grad_join_reduction(grad(w, i));
    model_set_written(w, &w->m[i], values);
    called(w, REDUCE, i);
}

static void begin(struct walk *w) {
    w->backward++;
    w->only_unsynced |= w->unsynced;
    w->in_backward = !w->s->kind->is_users || (w->listens && !w->unsynced);
}

/* ---- a listener, as ddp is one ---- */

static bool is_ignored(const struct walk *w, size_t i) {
    return w->ignores && i + 1 == PARAMS;
}

/* What a module's backward does not reach arrives now, if something is unsynced, or as zeros. */
static cairn_status hear_begin(void *ctx) {
    struct walk *w = ctx;
    w->arrived = 0;
    for (size_t i = 0; !w->s->kind->is_users && i < PARAMS; i++) {
        if (is_ignored(w, i) || cairn__param_is_reached(param(w, i)) || !is_unsynced(&w->m[i])) continue;
        sync(w, i);
        w->arrived |= OF(i);
    }
    return CAIRN_OK;
}

static void hear_ready(void *ctx, size_t index) {
    struct walk *w = ctx;
    w->arrived |= OF(index);
}

static cairn_status hear_progress(void *ctx) {
    (void)ctx;
    return CAIRN_OK;
}

static void hear_failed(void *ctx) {
    (void)ctx;
}

/* A module's is dropped where no rank has one; the user's then waits on. */
static void let_zero_arrive(struct walk *w, size_t i) {
    const bool waits_on = w->s->kind->is_users && is_written(&w->m[i]);
    const bool used = !one_in(w, 3);
    const bool by_sync = !w->s->kind->is_users && one_in(w, 3); /* zeros likewise */
    if (by_sync) sync(w, i);
    if (!by_sync && !waits_on) open(w, i);
    if (!by_sync && (!w->s->kind->is_users || used)) reduce(w, i);
    if (used) w->arrived |= OF(i);
    if (used || w->s->kind->is_users) return;
    cairn__grad_drop(grad(w, i));
    w->m[i].is.slot = CAIRN__SLOT_EMPTY;
    called(w, DROP, i);
}

/* Two ranks have equal gradients. */
static bool add_up(struct walk *w) {
    bool found = false;
    for (size_t i = 0; i < PARAMS; i++) {
        double *const slot = w->m[i].slot;
        if (!(w->arrived & OF(i))) continue;
        for (size_t k = 0; k < param(w, i)->n; k++) slot[k] = rounded(w, 2 * slot[k]);
        write_values(w, i, slot);
        found |= !is_finite(w, &w->m[i], slot);
    }
    observe(w, VALUES, w->arrived);
    return found;
}

static void look(struct walk *w, size_t first, size_t count);

/* Of what is not reduced another rank may have found something. */
static void agree_on_ignored(struct walk *w) {
    const size_t last = PARAMS - 1;
    struct model *m = &w->m[last];
    assert_int_equal(cairn__param_set_make_flags(w->set), CAIRN_OK);
    look(w, last, 1);
    if (one_in(w, 4)) w->set->flags[last] = m->found = true;
    if (one_in(w, 8)) w->set->flags[PARAMS + last] = m->sum_found = true;
    for (size_t i = 0; i < PARAMS; i++) cairn__grad_touch_flags(grad(w, i));
    cairn__grad_save_agreed_flags(grad(w, last));
    m->agreed = true;
    m->agreed_found = m->found;
    m->agreed_sum_found = m->sum_found;
    called(w, AGREE, last);
}

static void report(struct walk *w, bool found) {
    if (!w->looks || one_in(w, 8)) return; /* ddp's hook, which says nothing, may come and go */
    assert_int_equal(cairn__param_set_on_reduced(w->set, found), CAIRN_OK);
    for (size_t i = 0; i < PARAMS; i++) {
        if (found) model_look(w, &w->m[i]);
        const bool seen = !w->s->kind->is_users || param(w, i)->reached == w->set->backward;
        if (seen && w->m[i].is.slot == CAIRN__SLOT_WRITTEN) w->m[i].is.slot = CAIRN__SLOT_CHECKED;
    }
    observe(w, found ? LOOK : FOUND, OF(PARAMS) - 1);
}

static cairn_status hear_settle(void *ctx) {
    struct walk *w = ctx;
    w->in_backward = w->only_unsynced = false; /* before the listener hears of it */
    for (size_t i = 0; i < PARAMS; i++) {
        if (is_ignored(w, i)) {
            if (is_unsynced(&w->m[i])) sync(w, i);
        } else if (w->arrived & OF(i)) {
            continue;
        } else if (w->s->kind->is_users && is_unsynced(&w->m[i])) {
            sync(w, i);
            w->arrived |= OF(i);
        } else {
            let_zero_arrive(w, i);
        }
    }
    if (w->ignores) w->arrived &= ~OF(PARAMS - 1);
    const bool found = add_up(w);
    if (w->ignores) agree_on_ignored(w);
    report(w, found);
    return CAIRN_OK;
}

/* ---- transitions of many ---- */

static void settle(struct walk *w) {
    EXPECT(w, cairn__param_set_settle(w->set) == CAIRN_OK, "settle");
    w->in_backward = false;
    w->only_unsynced = w->unsynced;
    for (size_t i = 0; w->unsynced && w->s->kind->is_users && i < PARAMS; i++) {
        if (w->m[i].is.slot == CAIRN__SLOT_UNSYNCED) model_accumulate(w, &w->m[i]);
    }
    observe(w, w->unsynced && w->s->kind->is_users ? ACCUMULATE : SETTLE, OF(PARAMS) - 1);
}

static void fail_backward(struct walk *w) {
    cairn__param_set_abort(w->set);
    w->in_backward = false;
    for (size_t i = 0; i < PARAMS; i++) w->m[i].incomplete = true;
    observe(w, ABORT, OF(PARAMS) - 1);
}

static void module_backward(struct walk *w) {
    const unsigned reaches = one_in(w, 4) ? roll(w, 1 << PARAMS) : OF(PARAMS) - 1;
    const bool fails = one_in(w, 40);
    const struct cairn__loss_scale *scale = one_in(w, 5) ? NULL : &scales[roll(w, 5)];
    w->scale = scale;
    w->set->spares_unsynced = w->spares = w->unsynced && one_in(w, 6);
    begin(w);
    for (size_t i = 0; i < PARAMS; i++) param(w, i)->reached = reaches & OF(i) ? w->backward : 0;
    EXPECT(w, cairn__param_set_begin_backward(w->set, w->backward, scale) == CAIRN_OK, "begin");
    observe(w, BEGIN, 0);
    for (size_t i = 0; i < PARAMS; i++) {
        double values[MOST] = {0};
        if (!(reaches & OF(i))) continue;
        open(w, i);
        if (fails && one_in(w, 2)) break;
        if (!w->spares) choose_values(w, values);
        write_values(w, i, values);
        cairn__param_grad_ready(param(w, i));
        model_write(w, &w->m[i], values);
        called(w, WRITE, i);
        EXPECT(w, cairn__param_set_progress(w->set) == CAIRN_OK, "progress");
    }
    fails ? fail_backward(w) : settle(w);
}

/* The user overwrites, or adds in place. */
static void write_users(struct walk *w, size_t i, double *values) {
    const struct model *m = &w->m[i];
    choose_values(w, values);
    if (is_written(m) && m->scale == w->scale && one_in(w, 2))
        for (size_t k = 0; k < param(w, i)->n; k++) values[k] = exact(w, values[k] + m->slot[k]);
    const cairn_dtype stored = w->s->kind->dtype;
    write_values(w, i, values);
    for (size_t k = 0; k < param(w, i)->n; k++) {
        values[k] = load(stored, cairn__grad_memory(grad(w, i)), k);
        values[k] = rounded(w, values[k]);
    }
}

static void declare(struct walk *w) {
    const size_t first = roll(w, PARAMS), count = 1 + roll(w, (uint32_t)(PARAMS - first));
    double values[PARAMS][MOST] = {{0}};
    if (!w->in_backward && one_in(w, 2)) w->set->scale = w->scale = one_in(w, 5) ? NULL : &scales[roll(w, 5)];
    for (size_t i = first; i < first + count; i++) {
        if (w->in_backward && w->arrived & OF(i)) return; /* it travels */
        const bool refused = param(w, i)->owner && is_written(&w->m[i]) && w->m[i].scale != w->scale;
        if (!refused) continue;
        EXPECT(w, cairn_grads_ready(w->set, first, count) == CAIRN_ESTATE, "a gradient at another scale");
        observe(w, BEGIN, 0);
        return;
    }
    for (size_t i = first; i < first + count; i++) write_users(w, i, values[i]);
    EXPECT(w, cairn_grads_ready(w->set, first, count) == CAIRN_OK, "%s", cairn_last_error());
    if (!w->in_backward) begin(w);
    for (size_t i = first; i < first + count; i++) model_write(w, &w->m[i], values[i]);
    observe(w, WRITE, bits(first, count));
}

/* As ddp_wait: of a rank that has declared nothing, too. */
static void wait_for_declared(struct walk *w) {
    if (w->listens && !w->unsynced && !w->in_backward) {
        begin(w);
        EXPECT(w, cairn__param_set_begin_backward(w->set, w->set->backward + 1, w->scale) == CAIRN_OK, "begin");
        observe(w, BEGIN, 0);
    }
    one_in(w, 40) && w->in_backward ? fail_backward(w) : settle(w);
}

static void take_away(struct walk *w) {
    const size_t first = roll(w, PARAMS), count = 1 + roll(w, (uint32_t)(PARAMS - first));
    EXPECT(w, cairn_grads_taken(w->set, first, count) == CAIRN_OK, "%s", cairn_last_error());
    for (size_t i = first; i < first + count; i++) {
        if (param(w, i)->owner && is_written(&w->m[i])) model_open(w, &w->m[i]);
    }
    observe(w, OPEN, bits(first, count));
}

static void accumulate_at(struct walk *w) {
    const struct cairn__loss_scale *ends = &scales[roll(w, 5)];
    for (size_t i = 0; i < PARAMS && one_in(w, 2); i++) {
        if (is_written(&w->m[i]) && w->m[i].scale) ends = w->m[i].scale; /* a likely one */
    }
    EXPECT(w, cairn__params_accumulate_at(w->s->env, ends) == CAIRN_OK, "accumulate_at");
    for (size_t i = 0; i < PARAMS; i++) {
        if (is_written(&w->m[i]) && w->m[i].scale == ends) model_accumulate(w, &w->m[i]);
    }
    if (w->scale == ends) w->scale = NULL;
    observe(w, ACCUMULATE_AT, OF(PARAMS) - 1);
}

static void accumulate(struct walk *w, size_t i) {
    EXPECT(w, cairn__grad_accumulate(grad(w, i)) == CAIRN_OK, "accumulate");
    model_accumulate(w, &w->m[i]);
    called(w, ACCUMULATE, i);
}

static void hold(struct walk *w) {
    w->unsynced = !w->unsynced;
    EXPECT(w, cairn__param_set_keep_unsynced(w->set, w->unsynced) == CAIRN_OK, "keep_unsynced");
    for (size_t i = 0; w->s->kind->is_users && i < PARAMS; i++) {
        if (w->m[i].is.slot == CAIRN__SLOT_UNSYNCED) model_accumulate(w, &w->m[i]);
    }
    observe(w, w->s->kind->is_users ? ACCUMULATE : HOLD, OF(PARAMS) - 1);
}

static void drop_unsynced(struct walk *w) {
    cairn__param_set_drop_unsynced(w->set);
    w->unsynced = w->spares = w->only_unsynced = w->in_backward = false;
    for (size_t i = 0; i < PARAMS; i++) model_forget_unsynced(&w->m[i]);
    observe(w, FORGET_UNSYNCED, OF(PARAMS) - 1);
}

static void look(struct walk *w, size_t first, size_t count) {
    assert_int_equal(cairn__param_set_make_flags(w->set), CAIRN_OK);
    struct cairn__item items[PARAMS];
    cairn__params_check(w->s->env->device, w->set->params + first, count, items);
    for (size_t i = first; i < first + count; i++) {
        model_look(w, &w->m[i]);
        model_look_at_sum(w, &w->m[i]);
    }
    observe(w, LOOK, bits(first, count));
}

static void lower(struct walk *w, const struct cairn__taken *t, const uint32_t *flag, const void *x, bool *raised,
                  struct model *m) {
    EXPECT(w, t->flag == flag && t->x == x, "what was taken");
    w->s->env->device->passes->clear_flags(w->s->env->device, t->flag, 1);
    m->reported |= *raised;
    *raised = false;
}

/* The optimizer takes note. What it does not see yet stays raised. */
static void take_flags(struct walk *w, size_t i, bool sums) {
    struct model *m = &w->m[i];
    struct cairn__taken t;
    const bool synced = (is_written(m) && m->is.slot != CAIRN__SLOT_UNSYNCED) || is_accumulated(m);
    const void *const sum = is_accumulated(m) ? cairn__grad_unscaled_memory(grad(w, i)) : NULL;
    EXPECT(w, cairn__grad_note(grad(w, i)) == (synced && !w->only_unsynced), "note of %zu", i);
    m->noted |= synced && !w->only_unsynced;
    if (cairn__grad_take_flag(grad(w, i), &t)) {
        EXPECT(w, !w->only_unsynced, "take_flag");
        lower(w, &t, &w->set->flags[i], is_written(m) ? cairn__grad_memory(grad(w, i)) : sum, &m->found, m);
    }
    EXPECT(w, !m->found || w->only_unsynced, "the flag of %zu was to be taken", i);
    if (sums && cairn__grad_take_accumulated_flag(grad(w, i), &t))
        lower(w, &t, &w->set->flags[PARAMS + i], sum, &m->sum_found, m);
    EXPECT(w, !sums || !m->sum_found, "the sum's flag of %zu was to be taken", i);
    called(w, TAKE_FLAGS, i);
}

static void take_unsynced(struct walk *w, size_t first, size_t count) {
    EXPECT(w, cairn__params_use_unsynced(w->set->params + first, count) == CAIRN_OK, "take_unsynced");
    for (size_t i = first; i < first + count; i++) model_take_unsynced(w, &w->m[i]);
    observe(w, USE_UNSYNCED, bits(first, count));
}

static struct cairn__grad_view read_grad(struct walk *w, size_t i) {
    struct cairn__grad_view view;
    EXPECT(w, cairn__grad_prepare_read(grad(w, i), &view) == CAIRN_OK, "read");
    model_read(w, &w->m[i]);
    called(w, READ, i);
    return view;
}

/* x * factor * clip, as a step has it. */
static void expect_applied(struct walk *w, size_t i, const struct cairn__grad_view *view) {
    const struct model *m = &w->m[i];
    const float *const by = m->clip != 0 ? &w->coefficients[i] : NULL;
    for (size_t k = 0; view->x && k < param(w, i)->n; k++) {
        const double x = load(view->dtype, view->x, k) * (view->factor ? (double)*view->factor : 1) * (by ? *by : 1);
        const double whole = is_written(m) ? m->slot[k] / scale_of(m->scale) : m->sum[k];
        EXPECT(w, is_same(x, whole * (m->clip != 0 ? m->clip : 1)), "applied to %zu: %g", i, x);
        EXPECT(w, isfinite(x) || m->reported, "%g is applied to %zu, and no flag was taken", x, i);
    }
    EXPECT(w, !(is_written(m) && is_accumulated(m)), "read shows half of %zu", i);
}

/* As cairn_step, and what amp does before it. */
static void step(struct walk *w, size_t first, size_t count) {
    const bool skips_unread = one_in(w, 4);
    take_unsynced(w, first, count);
    for (size_t i = first; i < first + count; i++) take_flags(w, i, false);
    for (size_t i = first; i < first + count; i++) {
        if (is_accumulated(&w->m[i])) accumulate(w, i);
    }
    look(w, first, count);
    for (size_t i = first; i < first + count; i++) take_flags(w, i, true);
    for (size_t i = first; !skips_unread && i < first + count; i++) {
        const struct cairn__grad_view view = read_grad(w, i);
        expect_applied(w, i, &view);
    }
    cairn__params_consume(w->set->params + first, count);
    for (size_t i = first; i < first + count; i++) model_consume(w, &w->m[i]);
    observe(w, w->s->kind->is_users ? FORGET : CONSUME, bits(first, count));
}

static void put_zeros(const struct walk *w, size_t i) {
    const struct cairn__param *p = param(w, i);
    if (p->master) memset(p->master, 0, p->n * sizeof(float));
    memset(p->data, 0, p->n * cairn_dtype_nbytes(p->dtype));
}

/* By a learning rate of 1, from 0. */
static void expect_weights(const struct walk *w, size_t i) {
    const struct cairn__param *p = param(w, i);
    const struct model *m = &w->m[i];
    for (size_t k = 0; k < p->n; k++) {
        const double whole = is_written(m) ? m->slot[k] / scale_of(m->scale) : is_accumulated(m) ? m->sum[k] : 0;
        const double x = p->master ? (double)p->master[k] : load(p->dtype, p->data, k);
        EXPECT(w, is_same(x, p->master ? -whole : rounded(w, -whole)), "weight %zu of %s: %g", k, p->name, x);
    }
}

/* An optimizer's own step, which takes several edges at once: unguarded, so that it applies infinities too. */
static void step_with_optimizer(struct walk *w) {
    for (size_t i = 0; i < PARAMS; i++) put_zeros(w, i);
    EXPECT(w, cairn_step(w->s->owner) == CAIRN_OK, "%s", cairn_last_error());
    for (size_t i = 0; i < PARAMS; i++) {
        model_read(w, &w->m[i]);
        expect_weights(w, i);
        model_consume(w, &w->m[i]);
        w->before[i] = cairn__grad_states(grad(w, i));
    }
    observe(w, STEP, OF(PARAMS) - 1);
}

/* Its norm's pass would look. */
static void clip(struct walk *w, size_t i) {
    struct cairn_device *d = w->s->env->device;
    const struct cairn__grad_view view = read_grad(w, i);
    struct model *m = &w->m[i];
    const int halvings = (int)roll(w, 3);
    if (!view.x || w->halvings + halvings > 6) return;
    w->halvings += halvings;
    assert_int_equal(cairn__param_set_make_flags(w->set), CAIRN_OK);
    m->clip = ldexp(m->clip != 0 ? m->clip : 1, -halvings);
    w->coefficients[i] = (float)m->clip;
    const bool sum = is_accumulated(m), finite = is_finite(w, m, sum ? m->sum : m->slot);
    const struct cairn__item item = {.n = param(w, i)->n,
                                     .x = view.x,
                                     .found = cairn__grad_set_clip(grad(w, i), &w->coefficients[i])};
    d->passes->check(d, &item, 1, view.dtype, NULL);
    *(sum ? &m->sum_found : &m->found) |= !finite;
    if (m->is.slot == CAIRN__SLOT_WRITTEN) m->is.slot = CAIRN__SLOT_CHECKED;
    if (sum) m->is.accumulated = CAIRN__ACCUMULATED_CHECKED;
    m->noted = true;
    called(w, CLIP, i);
}

/* As cairn_optimizer_masters, behind which the user may change what he sees. */
static void inspect(struct walk *w, size_t i) {
    struct model *m = &w->m[i];
    EXPECT(w, cairn__grad_unscale(grad(w, i)) == CAIRN_OK, "unscale");
    model_unscale(w, m);
    called(w, UNSCALE, i);
    float *const x = cairn__grad_unscaled_memory(grad(w, i));
    double *const seen = is_accumulated(m) ? m->sum : is_written(m) ? m->slot : NULL;
    EXPECT(w, !x == !seen, "unscaled %zu", i);
    if (x) expect_values(w, i, "the unscaled gradient", CAIRN_F32, x, seen);
    for (size_t k = 0; x && k < param(w, i)->n && one_in(w, 3); k++) {
        if (fabs(seen[k]) > 64 && isfinite(seen[k])) x[k] = (float)(seen[k] = seen[k] < 0 ? -64 : 64);
    }
    called(w, VALUES, i);
}

static void forget(struct walk *w, size_t first, size_t count) {
    cairn__params_forget(w->set->params + first, count);
    for (size_t i = first; i < first + count; i++) model_forget(&w->m[i]);
    observe(w, FORGET, bits(first, count));
}

static void place(struct walk *w, size_t i) {
    cairn__grad_place(grad(w, i), one_in(w, 2) ? NULL : w->s->buffers[i][roll(w, BUFFERS)]);
    w->m[i].is.slot = CAIRN__SLOT_EMPTY;
    if (!is_accumulated(&w->m[i])) w->m[i].clip = 0;
    called(w, PLACE, i);
}

static void change_type(struct walk *w, size_t i) {
    cairn__grad_change_type(grad(w, i));
    w->m[i].is = (struct cairn__grad_states){CAIRN__SLOT_EMPTY, CAIRN__ACCUMULATED_ABSENT, CAIRN__UNSYNCED_NONE};
    w->m[i].clip = 0;
    called(w, CHANGE_TYPE, i);
}

/* What waits in the user's memory comes along, as with realloc. */
static void bind(struct walk *w, size_t i) {
    unsigned char *const to = w->s->buffers[i][roll(w, BUFFERS)];
    const bool owned = cairn__grad_owns_memory(grad(w, i));
    if (owned) model_accumulate(w, &w->m[i]);
    if (!owned) memmove(to, cairn__grad_memory(grad(w, i)), 64);
    EXPECT(w, cairn_param_bind(w->set, i, NULL, to) == CAIRN_OK, "%s", cairn_last_error());
    called(w, BIND, i);
}

/* ---- walking ---- */

static void start(struct walk *w, uint64_t seed) {
    w->seed = w->random = seed;
    w->s = &all_sets[seed % KINDS];
    w->set = w->s->set;
    w->listens = one_in(w, 2);
    w->looks = w->listens && one_in(w, 2);
    w->ignores = w->listens && !w->s->kind->is_users && one_in(w, 4);
    w->backward = w->set->backward;
    w->listener = (struct cairn__grad_listener){.ctx = w,
                                                .begin = hear_begin,
                                                .ready = hear_ready,
                                                .progress = hear_progress,
                                                .settle = hear_settle,
                                                .failed = hear_failed};
    w->set->listener = w->listens ? &w->listener : NULL;
    const bool owned = one_in(w, 2), in_bucket = one_in(w, 2);
    for (size_t i = 0; i < PARAMS; i++) {
        cairn_param shown;
        cairn__grad_place(grad(w, i), (w->s->kind->is_users ? owned : !in_bucket) ? NULL : w->s->buffers[i][0]);
        assert_int_equal(cairn_param_set_get(w->set, i, &shown), CAIRN_OK);
        param(w, i)->owner = one_in(w, 4) ? NULL : w->s->owner;
        w->before[i] = cairn__grad_states(grad(w, i));
    }
    observe(w, BEGIN, 0);
}

static void end(struct walk *w) {
    if (w->in_backward) settle(w);
    w->set->listener = NULL;
    drop_unsynced(w);
    forget(w, 0, PARAMS);
    w->set->scale = NULL;
    for (size_t i = 0; i < PARAMS; i++) cairn__grad_place(grad(w, i), NULL);
}

static bool is_incomplete(const struct walk *w) {
    return w->m[0].incomplete || w->m[1].incomplete;
}

static bool is_clipped(const struct walk *w) {
    return cairn__grad_is_clipped(grad(w, 0)) || cairn__grad_is_clipped(grad(w, 1));
}

/* Sums of what comes next stay exact. */
static bool has_grown(const struct walk *w) {
    bool grown = false;
    for (size_t i = 0; i < PARAMS; i++) {
        const struct model *m = &w->m[i];
        for (size_t k = 0; k < param(w, i)->n; k++) {
            grown |= is_written(m) && isfinite(m->slot[k]) && fabs(m->slot[k]) > 8192 * scale_of(m->scale);
            grown |= is_accumulated(m) && isfinite(m->sum[k]) && fabs(m->sum[k]) > 8192;
            grown |= is_kept(m) && isfinite(m->kept[k]) && fabs(m->kept[k]) > 8192;
        }
    }
    return grown;
}

static void move_memory(struct walk *w, size_t i) {
    if (w->s->kind->is_users) {
        bind(w, i);
    } else if (one_in(w, 3)) {
        change_type(w, i);
    } else {
        place(w, i);
    }
}

/* While declared gradients travel only the listener has them. */
static void go(struct walk *w) {
    const bool users = w->s->kind->is_users;
    const size_t first = roll(w, PARAMS), count = 1 + roll(w, (uint32_t)(PARAMS - first));
    const uint32_t way = roll(w, 48);
    if (has_grown(w) && !w->in_backward) {
        forget(w, 0, PARAMS);
    } else if (way < 16 || w->in_backward) {
        users && (way % 3 == 0) ? wait_for_declared(w) : users ? declare(w) : module_backward(w);
    } else if (way < 22) {
        hold(w);
    } else if (way < 28) {
        if (is_incomplete(w)) return;
        one_in(w, 4) && !is_clipped(w) ? step_with_optimizer(w) : step(w, first, count);
    } else if (way < 32) {
        clip(w, first);
    } else if (way < 35) {
        inspect(w, first);
    } else if (way < 37) {
        look(w, first, count);
    } else if (way < 39) {
        take_flags(w, first, one_in(w, 2));
    } else if (way < 41) {
        one_in(w, 2) ? accumulate(w, first) : accumulate_at(w);
    } else if (way < 43) {
        users ? take_away(w) : take_unsynced(w, first, count);
    } else if (way < 45) {
        move_memory(w, first);
    } else if (way < 47) {
        forget(w, first, count);
    } else {
        drop_unsynced(w);
    }
}

static void random_walks_follow_the_model(void **state) {
    static struct walk w;
    (void)state;
    for (uint64_t seed = first_walk; seed < first_walk + num_walks; seed++) {
        memset(&w, 0, offsetof(struct walk, calls));
        w.num_calls = 0;
        start(&w, seed);
        for (uint32_t left = 10 + roll(&w, LONGEST - 9); left > 0; left--) go(&w);
        end(&w);
    }
    walked = true;
}

/* ---- all of it ---- */

static bool print_edges_of(const struct edges *d) {
    bool all = true;
    for (unsigned from = 0; from < 4; from++) {
        for (unsigned by = 0; by < EDGES_END; by++) {
            unsigned to = 0;
            while (d->to != OF(to)) to++;
            if (!(d->from & OF(from)) || !(d->by & OF(by))) continue;
            const uint64_t times = taken[d->machine][from][by][to];
            printf("%-11s  %-10s -- %-15s -> %-10s  %llu\n", machine_names[d->machine], state_names[d->machine][from],
                   by_names[by], state_names[d->machine][to], (unsigned long long)times);
            all &= times > 0;
        }
    }
    return all;
}

static void every_state_and_edge_is_reached(void **state) {
    bool all = true;
    (void)state;
    assert_true(walked);
    for (size_t m = 0; m < MACHINES; m++) {
        for (size_t is = 0; is < 4 && state_names[m][is]; is++) {
            printf("%-11s  %-10s  %llu\n", machine_names[m], state_names[m][is], (unsigned long long)reached[m][is]);
            all &= reached[m][is] > 0;
        }
    }
    for (size_t e = 0; e < sizeof(diagram) / sizeof(diagram[0]); e++) all &= print_edges_of(&diagram[e]);
    fflush(stdout);
    if (num_walks >= ENOUGH) assert_true(all);
}

int main(int argc, char **argv) {
    const char *wanted = getenv("CAIRN_TEST_SEEDS");
    if (wanted || argc > 1) num_walks = strtoull(wanted ? wanted : argv[1], NULL, 10);
    if (argc > 2) first_walk = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_walks_follow_the_model),
        cmocka_unit_test(every_state_and_edge_is_reached),
    };
    return cmocka_run_group_tests_name("random walks of gradients", tests, make_all, end_all);
}
