/* lifetimes_test [N]: N random programs (300) that make, read, keep and drop tensors inside and outside of modules,
 * under no_grad, in checkpoints, around backwards that retain their graph or not, of several losses.
 *
 * Each program runs twice from one seed: first with its modules' functions called directly, so that no tensor dies
 * before the step ends; then with modules, while released memory is overwritten with NaNs. Tensors that are alive
 * according to a model of lifetimes have the same bits in both runs, and so have gradients; using any other tensor is
 * an error. The model only knows where each tensor was created and which backwards have run, and nothing about
 * memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/philox.h"
#include "nn/module.h"
#include "nn/tensor.h"
#include "test_env.h"

enum { ROWS = 4, WIDTH = 6, SIZE = ROWS * WIDTH, MOST = 4096, LAYERS = 2, LEAVES = 3, LOG = 1 << 16, DEEPEST = 3 };

struct dice {
    uint64_t seed, next;
};

static unsigned roll(struct dice *d, unsigned n) {
    return cairn__philox(d->seed, d->next++, 7).word[0] % n;
}

struct value {
    cairn_tensor *t;
    int in[2];
    int leaf;        /* 1: wants a gradient or not; 2: kept, and the program's to destroy */
    bool wants_grad; /* a graph holds it */
    bool is_inside, has_ended, is_consumed;
    bool is_loss;
    bool saves_nothing; /* a view or a cast: walked as often as one likes */
};

struct checkpointed {
    struct program *p;
    uint64_t seed;
    bool uses_input; /* its gradient reaches it */
};

struct program {
    cairn_env *env;
    bool has_modules;
    cairn_module *user, *linear[LAYERS], *row;
    struct value v[MOST];
    int n, depth, no_grad, mark_of_no_grad;
    bool in_checkpoint;
    struct checkpointed checkpoints[MOST];
    int num_checkpoints, last_loss;
    struct dice *d; /* of the module that is called next, */
    int from, made; /* the value it gets if that has no number yet is made of; and what it returned */
    float *log;     /* what was read: written by the first run */
    size_t logged;
    uint64_t seed;
};

/* ---- values ---- */

static int find(const struct program *p, const cairn_tensor *t) {
    for (int i = p->n; i-- > 0;) {
        if (p->v[i].t == t) return i;
    }
    return -1;
}

static int add(struct program *p, cairn_tensor *t, int a, int b) {
    if (!t) fail_msg("seed %llu: %s", (unsigned long long)p->seed, cairn_last_error());
    assert_true(p->n < MOST);
    struct value *v = &p->v[p->n];
    *v = (struct value){.t = t, .in = {a, b}, .is_inside = p->depth > 0};
    v->wants_grad = p->no_grad == 0 && ((a >= 0 && p->v[a].wants_grad) || (b >= 0 && p->v[b].wants_grad));
    return p->n++;
}

/* Marks the values that a graph of value i holds; false: a backward has consumed one of them. */
static bool reach(const struct program *p, int i, bool *reached) {
    memset(reached, 0, MOST * sizeof(reached[0]));
    reached[i] = true;
    for (; i >= 0; i--) {
        const struct value *v = &p->v[i];
        reached[i] &= v->wants_grad && !v->leaf;
        if (!reached[i]) continue;
        if (v->is_consumed) return false;
        for (int k = 0; k < 2; k++) {
            if (v->in[k] >= 0) reached[v->in[k]] = true;
        }
    }
    return true;
}

static bool is_usable(const struct value *v) {
    return v->t && !v->has_ended && !v->is_loss;
}

/* One that may be used, from `first` on. */
static int pick(const struct program *p, struct dice *d, int first) {
    for (;;) {
        const int i = first + (int)roll(d, (unsigned)(p->n - first));
        if (is_usable(&p->v[i])) return i;
    }
}

/* ---- what programs do ---- */

static int body(struct program *p, struct dice *d, int in, int first);

static int operate(struct program *p, struct dice *d, int a, int b) {
    cairn_tensor *x = p->v[a].t, *z = p->v[b].t;
    int made = 0;
    switch (roll(d, 14)) {
    case 0:
        return add(p, cairn_add(x, z), a, b);
    case 1:
        return add(p, cairn_mul(x, z), a, b);
    case 2:
        return add(p, cairn_tanh(x), a, -1);
    case 3:
        return add(p, cairn_sigmoid(x), a, -1);
    case 4:
        return add(p, cairn_relu(x), a, -1);
    case 5:
        return add(p, cairn_square(cairn_tanh(x)), a, -1);
    case 6:
        return add(p, cairn_softmax(x, -1), a, -1);
    case 7:
        return add(p, cairn_mul_scalar(x, 0.5), a, -1);
    case 8:
        return add(p, cairn_dropout_forward(x, 0.3, 1), a, -1);
    case 9:
        return add(p, cairn_normalize(x, 2, -1, 1e-6), a, -1);
    case 10:
        return add(p, cairn_layer_norm_forward(x, NULL, NULL, 1, 1e-5), a, -1);
    case 11:
        made = add(p, cairn_detach(x), a, -1);
        p->v[made].wants_grad = false;
        return made;
    case 12:
        made = add(p, cairn_reshape(x, CAIRN_SHAPE(ROWS, WIDTH)), a, -1);
        break;
    default:
        made = add(p, cairn_cast(x, roll(d, 2) ? CAIRN_BF16 : CAIRN_F32), a, -1);
        break;
    }
    p->v[made].saves_nothing = true;
    return made;
}

/* A module of the user's returns: what it made and no graph holds ends, but for y. */
static void leave(struct program *p, int mark, int y) {
    for (int i = mark; i < p->n; i++) p->v[i].has_ended |= i != y && !p->v[i].wants_grad && !p->v[i].leaf;
    if (--p->depth == 0) p->v[y].is_inside = false;
}

static int run_user(struct program *p, struct dice *d, int in) {
    const int mark = p->n, first = p->in_checkpoint ? in : 0;
    p->depth++;
    const int y = body(p, d, in, first);
    leave(p, mark, y);
    return y;
}

/* The input may be what a layer before has made: it is inside too. */
static cairn_tensor *user_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    struct program *p = context;
    (void)module, (void)count;
    int in = find(p, inputs[0]);
    if (in < 0) {
        p->depth++;
        in = add(p, inputs[0], p->from, -1);
        p->v[in].wants_grad = p->no_grad == 0; /* there are parameters */
        p->depth--;
    }
    p->made = run_user(p, p->d, in);
    return p->v[p->made].t;
}

static int call_user(struct program *p, struct dice *d, int in) {
    if (!p->has_modules) return run_user(p, d, in);
    p->d = d;
    const cairn_tensor *y = cairn_module_forward(p->user, p->v[in].t);
    assert_ptr_equal(y, p->v[p->made].t);
    return p->made;
}

static int call_linear(struct program *p, struct dice *d, int in) {
    cairn_module *m = p->linear[roll(d, LAYERS)];
    cairn_tensor *x = cairn_cast(p->v[in].t, CAIRN_F32);
    x = p->has_modules ? cairn_module_forward(m, x)
                       : cairn_linear_forward(x, cairn_module_get(m, "weight"), cairn_module_get(m, "bias"));
    const int y = add(p, x, in, -1);
    p->v[y].wants_grad = p->no_grad == 0;
    return y;
}

/* A Sequential of a linear, a tanh and the user's: what is between them has no handle but the user's input. */
static int call_row(struct program *p, struct dice *d, int in) {
    cairn_tensor *x = cairn_cast(p->v[in].t, CAIRN_F32);
    const int from = add(p, x, in, -1), mark = p->n;
    p->v[from].saves_nothing = true;
    p->depth++;
    if (p->has_modules) {
        p->d = d;
        p->from = from;
        assert_non_null(cairn_module_forward(p->row, x));
    } else {
        cairn_module *m = p->linear[0];
        x = cairn_tanh(cairn_linear_forward(x, cairn_module_get(m, "weight"), cairn_module_get(m, "bias")));
        const int between = add(p, x, from, -1);
        p->v[between].wants_grad = p->no_grad == 0;
        p->made = run_user(p, d, between);
    }
    leave(p, mark, p->made);
    return p->made;
}

static cairn_tensor *checkpointed(void *ctx, cairn_tensor *const *inputs, int count) {
    static bool reached[MOST];
    struct checkpointed *c = ctx;
    struct program *p = c->p;
    struct dice d = {c->seed, 0};
    const int n = p->n, depth = p->depth, no_grad = p->no_grad;
    const bool was = p->in_checkpoint;
    (void)count;
    const int in = find(p, inputs[0]);
    p->depth = no_grad == 0 ? 0 : depth + 1; /* without a graph a module */
    const int first = add(p, inputs[0], in, -1);
    p->v[first].wants_grad = inputs[0]->wants_grad;
    p->in_checkpoint = true;
    const int y = body(p, &d, first, first);
    (void)reach(p, y, reached);
    c->uses_input = reached[first];
    p->in_checkpoint = was;
    p->n = n;
    p->depth = depth;
    return p->v[y].t;
}

/* What it makes has ended when it returns; parameters in it want gradients. */
static int call_checkpoint(struct program *p, struct dice *d, int in) {
    assert_true(p->num_checkpoints < MOST);
    struct checkpointed *c = &p->checkpoints[p->num_checkpoints++];
    *c = (struct checkpointed){.p = p, .seed = roll(d, 1u << 30)};
    cairn_tensor *y = cairn_checkpoint(checkpointed, c, &p->v[in].t, 1);
    const int known = y ? find(p, y) : -1;
    if (known >= 0) {
        p->v[known].is_inside &= p->depth > 0;
        return known;
    }
    const int made = add(p, y, c->uses_input ? in : -1, -1);
    p->v[made].wants_grad = y->wants_grad;
    return made;
}

static void begin_no_grad(struct program *p) {
    cairn_no_grad_begin(p->env);
    if (p->no_grad++ == 0) p->mark_of_no_grad = p->n;
}

/* Headers of a scope are written again soon. */
static void end_no_grad(struct program *p) {
    float values[SIZE];
    assert_int_equal(cairn_no_grad_end(p->env), CAIRN_OK);
    if (--p->no_grad > 0) return;
    for (int i = p->mark_of_no_grad; i < p->n; i++) {
        assert_int_equal(cairn_tensor_read(p->v[i].t, values, SIZE), CAIRN_ESTATE);
        p->v[i].t = NULL;
    }
}

/* One thing that may be done anywhere; the value it makes. */
static int act(struct program *p, struct dice *d, int first) {
    const int in = pick(p, d, first);
    const unsigned what = p->depth >= DEEPEST ? 0 : roll(d, 16);
    if (what == 1 || what == 2) return call_user(p, d, in);
    if (what == 3) return call_linear(p, d, in);
    if (what == 4) return call_row(p, d, in);
    if (what == 5 && !p->in_checkpoint) return call_checkpoint(p, d, in);
    if (what == 6) {
        begin_no_grad(p);
        for (unsigned k = roll(d, 4); k > 0; k--) act(p, d, first);
        end_no_grad(p);
        return in;
    }
    return operate(p, d, in, pick(p, d, first));
}

/* What the user's module does: a few things, and it returns one of what there is. */
static int body(struct program *p, struct dice *d, int in, int first) {
    int y = in;
    for (unsigned k = 1 + roll(d, 4); k > 0; k--) {
        const int made = act(p, d, first);
        if (roll(d, 4)) y = made;
    }
    return is_usable(&p->v[y]) && roll(d, 8) ? y : in;
}

/* ---- looking ---- */

/* The first run writes the log, the second compares with it. */
static void note(struct program *p, const void *bits, size_t n, const char *what, int i) {
    assert_true(p->logged + n <= LOG);
    float *at = p->log + p->logged;
    p->logged += n;
    if (!p->has_modules) {
        memcpy(at, bits, n * sizeof(float));
    } else if (memcmp(at, bits, n * sizeof(float)) != 0) {
        fail_msg("seed %llu: %s %d has other bits than without modules", (unsigned long long)p->seed, what, i);
    }
}

static void look_at(struct program *p, int i) {
    float values[SIZE];
    const struct value *v = &p->v[i];
    if (!v->t || (v->has_ended && !p->has_modules)) return;
    const cairn_status st = cairn_tensor_read(v->t, values, v->t->n);
    if (st != (v->has_ended ? CAIRN_ESTATE : CAIRN_OK))
        fail_msg("seed %llu: value %d of %d: %s where it %s", (unsigned long long)p->seed, i, p->n,
                 cairn_status_name(st), v->has_ended ? "has ended" : "is alive");
    if (st == CAIRN_OK) note(p, values, v->t->n, "value", i);
}

static void look_at_gradients(struct program *p) {
    for (int i = 0; i < LEAVES; i++) {
        const float *grad = cairn_tensor_grad(p->v[i].t);
        if (grad) note(p, grad, SIZE, "gradient of leaf", i);
    }
    for (int l = 0; l < LAYERS; l++) {
        const struct cairn_param_set *set = cairn_module_params(l == 0 && p->row ? p->row : p->linear[l]);
        for (size_t i = 0; i < set->count; i++) {
            const struct cairn__param *q = set->params[i];
            if (q->reached == cairn__tape_of(p->env)->backward)
                note(p, cairn__grad_memory(q->gradient), q->n, "gradient of layer", l);
        }
    }
}

static void poison(const struct program *p) {
    const struct cairn__tape *tape = cairn__tape_of(p->env);
    for (size_t i = 0; p->has_modules && i < tape->num_gaps; i++)
        memset(tape->gaps[i].data, 0xff, tape->gaps[i].nbytes);
}

/* ---- backward ---- */

static void consume(struct program *p, const bool *reached) {
    for (int i = 0; i < p->n; i++) {
        p->v[i].is_consumed |= reached[i] && !p->v[i].saves_nothing;
        p->v[i].has_ended |= reached[i] && p->v[i].is_inside;
    }
}

static void backward(struct program *p, struct dice *d) {
    static bool reached[MOST];
    const int x = pick(p, d, 0);
    const cairn_switch retain = roll(d, 3) == 0 ? CAIRN_ON : CAIRN_OFF;
    if (!p->v[x].wants_grad) return;
    int loss = p->last_loss;
    if (loss < 0 || roll(d, 3)) loss = add(p, cairn_sum(cairn_cast(p->v[x].t, CAIRN_F32)), x, -1);
    p->v[loss].is_loss = true;
    p->last_loss = loss;
    const bool is_refused = !reach(p, loss, reached);
    const cairn_status st = cairn_backward_with(p->v[loss].t, cairn_backward_options(.retain_graph = retain));
    if (st != (is_refused ? CAIRN_ESTATE : CAIRN_OK))
        fail_msg("seed %llu: backward of value %d: %s: %s", (unsigned long long)p->seed, x, cairn_status_name(st),
                 cairn_last_error());
    if (st != CAIRN_OK) return;
    if (retain == CAIRN_OFF) consume(p, reached);
    poison(p);
    look_at_gradients(p);
}

/* ---- a program ---- */

/* What has ended is an error to use; leaves stay. */
static void begin_anew(struct program *p, struct dice *d) {
    const bool keeps_gradients = roll(d, 2);
    if (keeps_gradients) {
        assert_int_equal(cairn_release_results(p->env), CAIRN_OK);
    } else {
        p->env->begin_step(p->env);
        for (int i = 0; i < LEAVES; i++) cairn_tensor_clear_grad(p->v[i].t);
    }
    int leaves = 0;
    for (int i = 0; i < p->n; i++) {
        float values[SIZE];
        struct value *v = &p->v[i];
        if (v->t && v->leaf) {
            p->v[leaves++] = *v;
        } else if (v->t) {
            assert_int_equal(cairn_tensor_read(v->t, values, v->t->n), CAIRN_ESTATE);
        }
    }
    p->n = leaves;
    p->num_checkpoints = 0;
    p->last_loss = -1;
}

static void keep(struct program *p, struct dice *d) {
    const int i = add(p, cairn_tensor_keep(p->v[pick(p, d, 0)].t), -1, -1);
    p->v[i].leaf = 2;
}

/* Graphs that use it go on. */
static void drop(struct program *p, struct dice *d) {
    const int i = pick(p, d, 0);
    if (p->v[i].leaf == 2) cairn_tensor_destroy(&p->v[i].t);
}

static void step(struct program *p, struct dice *d) {
    switch (roll(d, 12)) {
    case 0:
        backward(p, d);
        break;
    case 1:
        keep(p, d);
        break;
    case 2:
        drop(p, d);
        break;
    case 3:
        if (roll(d, 3) == 0) begin_anew(p, d);
        break;
    case 4:
    case 5:
        look_at(p, (int)roll(d, (unsigned)p->n));
        break;
    default:
        act(p, d, 0);
        break;
    }
    poison(p);
}

static cairn_module *row_of(struct program *p) {
    static const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "User", .forward = user_forward};
    p->user = cairn_module_create(p->env, &ops, p);
    return cairn_sequential(p->env, CAIRN_MODULES(p->linear[0], cairn_activation(p->env, cairn_tanh),
                                                  cairn_module_create(p->env, &ops, p)));
}

static void begin(struct program *p) {
    p->env = test_env_create(p->seed, 0);
    for (int l = 0; l < LAYERS; l++) p->linear[l] = cairn_linear(p->env, WIDTH, WIDTH);
    p->row = row_of(p);
    assert_non_null(p->row);
    for (int i = 0; i < LEAVES; i++) {
        add(p, cairn_randn(p->env, CAIRN_F32, CAIRN_SHAPE(ROWS, WIDTH)), -1, -1);
        p->v[i].leaf = 1;
        p->v[i].wants_grad = i > 0;
        if (i > 0) assert_int_equal(cairn_tensor_require_grad(p->v[i].t), CAIRN_OK);
    }
}

static void end(struct program *p) {
    cairn_module_destroy(&p->user);
    cairn_module_destroy(&p->row);
    for (int l = 1; l < LAYERS; l++) cairn_module_destroy(&p->linear[l]);
    test_env_destroy(p->env);
}

static void run(uint64_t seed, bool has_modules, float *log) {
    static struct program p;
    struct dice d = {seed, 0};
    p = (struct program){.has_modules = has_modules, .log = log, .seed = seed, .from = -1, .last_loss = -1};
    begin(&p);
    for (unsigned k = 10 + roll(&d, 50); k > 0; k--) step(&p, &d);
    for (int i = 0; i < p.n; i++) look_at(&p, i);
    end(&p);
}

static unsigned long long programs = 300;

static void random_programs_read_what_the_model_says_is_alive(void **state) {
    static float log[LOG];
    (void)state;
    for (uint64_t seed = 1; seed <= programs; seed++) {
        const uint64_t before = cairn__alloc_counters().alive;
        run(seed, false, log);
        run(seed, true, log);
        assert_int_equal(cairn__alloc_counters().alive, before);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs_read_what_the_model_says_is_alive)};
    if (argc > 1) programs = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
