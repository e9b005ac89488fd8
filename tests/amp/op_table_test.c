/* The op table: the types in which every operation computes, returns results and returns gradients, for f16 and bf16:
 * under O1, in an autocast scope, in a disabled scope, and without any.
 *
 * The cases are those of tests/nn, applied to f32, half and mixed inputs, leaves and parameters. The table below states
 * the expectations independently of amp/ops.c; actual types are read from the graph that an operation records and from
 * the values of gradients. An operation missing from the table fails the test. */
#include <stdio.h>
#include <string.h>

#include "casts.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/status.h"
#include "ddp/context.h"
#include "nn/ops.h"
#include "nn/tensor.h"
#include "ops.h"
#include "../nn/case_run.h"
#include "../nn/test_env.h"

/* Which types meet: without casts, of different ones... */
enum without { WIDENS = 1, AS_GIVEN };

/* ...and what comes out: of the type of the computation, or another. */
enum gives { SAME = 1, BOOLS, INDICES, ITS_OWN };

struct expected {
    int op;
    amp_cast cast;
    enum without without;
    enum gives gives;
};

/* clang-format off */
#define H(op)        {CAIRN__OP_##op, AMP_CAST_HALF,   WIDENS,   SAME}
#define H_STRICT(op) {CAIRN__OP_##op, AMP_CAST_HALF,   AS_GIVEN, SAME}
#define S(op)        {CAIRN__OP_##op, AMP_CAST_F32,    WIDENS,   SAME}
#define S_STRICT(op) {CAIRN__OP_##op, AMP_CAST_F32,    AS_GIVEN, SAME}
#define W(op)        {CAIRN__OP_##op, AMP_CAST_WIDEST, WIDENS,   SAME}
#define TRUTH(op)    {CAIRN__OP_##op, AMP_CAST_WIDEST, WIDENS,   BOOLS}
#define F(op)        {CAIRN__OP_##op, AMP_CAST_FOLLOW, AS_GIVEN, SAME}
#define INDEX(op)    {CAIRN__OP_##op, AMP_CAST_FOLLOW, AS_GIVEN, INDICES}
#define OWN(op)      {CAIRN__OP_##op, AMP_CAST_FOLLOW, AS_GIVEN, ITS_OWN}
#define GUEST(op)    {CAIRN__AMP_##op, AMP_CAST_FOLLOW, AS_GIVEN, ITS_OWN}

static const struct expected table[] = {
    H_STRICT(LINEAR), H(MATMUL), H(BMM), H(ADDMM), H(BADDBMM), H(SDPA),
    H_STRICT(CONV1D), H_STRICT(CONV2D), H_STRICT(CONV_TRANSPOSE1D), H_STRICT(CONV_TRANSPOSE2D), H(PRELU),

    W(ADD), W(SUB), W(MUL), W(DIV), W(MAXIMUM), W(MINIMUM), W(ATAN2), W(WHERE), W(ADDCMUL), W(ADDCDIV), W(CAT),
    W(STACK), TRUTH(EQ), TRUTH(NE), TRUTH(LT), TRUTH(LE), TRUTH(GT), TRUTH(GE),

    F(ADD_SCALAR), F(MUL_SCALAR), F(CLAMP), F(NEG), F(ABS), F(SQRT), F(SIN), F(COS), F(ATAN), F(TANH), F(ERF),
    F(SIGMOID), F(RELU), F(SILU), F(AMAX), F(AMIN), F(MAX_POOL2D), F(AVG_POOL2D), F(ADAPTIVE_AVG_POOL2D),
    F(BATCH_NORM), F(EMBEDDING), F(DROPOUT), F(CONTIGUOUS), F(RESHAPE), F(PERMUTE), F(SLICE), F(EXPAND), F(DETACH),
    INDEX(ARGMAX), INDEX(ARGMIN), OWN(CHECKPOINT), OWN(CUSTOM), OWN(CAST), OWN(GUEST),
    GUEST(SCALE_LOSS), GUEST(ZERO_LOSS),

    S(POW), S(POW_SCALAR), S(SCALAR_POW), S(SQUARE), S(RSQRT), S(RECIPROCAL), S(EXP), S(EXPM1), S(LOG), S(LOG1P),
    S(LOG2), S(LOG10), S(TAN), S(ASIN), S(ACOS), S(SINH), S(COSH), S(ERFINV), S(SOFTPLUS), S(GELU), S(GELU_TANH),
    S(SUM), S(MEAN), S(SUM_DIMS), S(MEAN_DIMS), S(VAR), S(STD), S(NORM), S(PROD), S(CUMSUM), S(CUMPROD),
    S_STRICT(LAYER_NORM), S_STRICT(RMS_NORM), S_STRICT(GROUP_NORM), S(SOFTMAX), S(LOG_SOFTMAX),
    S(MSE_LOSS), S(L1_LOSS), S(SMOOTH_L1_LOSS), S(BCE_WITH_LOGITS), S(KL_DIV), S(SOFT_MARGIN_LOSS), S(POISSON_NLL_LOSS),
    S(CROSS_ENTROPY), S(NLL_LOSS),

    {CAIRN__OP_BCE, AMP_CAST_BANNED, WIDENS, SAME},
};
/* clang-format on */

static const struct expected *expected_of(int op) {
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].op == op) return &table[i];
    }
    return NULL;
}

static void every_operation_is_in_both_tables(void **state) {
    (void)state;
    assert_int_equal(sizeof(table) / sizeof(table[0]), CAIRN__AMP_NUM_OPS);
    for (int i = 0; i < CAIRN__AMP_NUM_OPS; i++) {
        const struct expected *e = expected_of(i);
        const struct cairn__amp_op_row *row = cairn__amp_op_row(i);
        if (!e) fail_msg("'%s' is not in this test's table", cairn__amp_op_name(i));
        if (!row || !row->reason[0]) fail_msg("'%s' has no row with a reason in amp/ops.c", cairn__amp_op_name(i));
        if (row->cast != e->cast) fail_msg("'%s' has another class in amp/ops.c", cairn__amp_op_name(i));
    }
}

/* What amp and ddp bring to nn is known by its own names, and not by the one that all of it has there. */
static void operations_of_other_rooms_have_names(void **state) {
    cairn_env *env = test_env_of(state);
    const char *reason = NULL;
    assert_int_equal(amp_op_cast(env, "scale_loss", &reason), AMP_CAST_FOLLOW);
    assert_non_null(strstr(reason, "65536"));
    assert_int_equal(amp_op_cast(env, "zero_loss", &reason), AMP_CAST_FOLLOW);
    assert_string_equal(reason, "reads no value");
    assert_int_equal(amp_op_set_cast(env, "zero_loss", AMP_CAST_HALF), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "amp_op_set_cast: 'zero_loss' moves values without computing, so its class "
                                            "is fixed; cast its input with cairn_cast");
    assert_int_equal(amp_op_cast(env, cairn__op_name(CAIRN__OP_GUEST), NULL), 0);
}

/* ---- the page ---- */

static const char *const class_names[] = {[AMP_CAST_HALF] = "AMP_CAST_HALF",
                                          [AMP_CAST_F32] = "AMP_CAST_F32",
                                          [AMP_CAST_WIDEST] = "AMP_CAST_WIDEST",
                                          [AMP_CAST_FOLLOW] = "AMP_CAST_FOLLOW",
                                          [AMP_CAST_BANNED] = "AMP_CAST_BANNED"};

/* The third column of the class's row in docs/operations.md. */
static void read_names(amp_cast cast, char *names, int nbytes) {
    char start[64];
    FILE *f = fopen(OPERATIONS_PAGE, "r");
    assert_non_null(f);
    snprintf(start, sizeof(start), "| `%s` |", class_names[cast]);
    do {
        if (!fgets(names, nbytes, f)) fail_msg("docs/operations.md has no row of %s", class_names[cast]);
    } while (strncmp(names, start, strlen(start)) != 0);
    fclose(f);
    memset(names, ' ', strlen(start));
}

static void the_page_has_every_operation_in_its_class(void **state) {
    (void)state;
    for (int cast = AMP_CAST_HALF; cast <= AMP_CAST_BANNED; cast++) {
        char names[4096], quoted[64];
        int quotes = 0, ops = 0;
        read_names((amp_cast)cast, names, sizeof(names));
        for (const char *c = names; *c; c++) quotes += *c == '`';
        for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
            if (table[i].cast != (amp_cast)cast || table[i].op == CAIRN__OP_GUEST) continue; /* which is no name */
            snprintf(quoted, sizeof(quoted), "`%s`", cairn__amp_op_name(table[i].op));
            if (!strstr(names, quoted)) fail_msg("docs/operations.md: %s is not in %s", quoted, class_names[cast]);
            ops++;
        }
        assert_int_equal(quotes, 2 * ops);
    }
}

/* ---- where ---- */

enum where { OUTSIDE, IN_O1, IN_SCOPE, IN_SCOPE_THAT_IS_OFF, NUM_WHERES };
static const char *const where_names[] = {"outside", "under O1", "in autocast", "in autocast that is off"};

static bool casts_in(enum where w) {
    return w == IN_O1 || w == IN_SCOPE;
}

static void enter(cairn_env *env, enum where w, cairn_dtype half) {
    if (w == IN_O1 || w == IN_SCOPE_THAT_IS_OFF) assert_int_equal(cairn__casts_begin_o1(env, half, false), CAIRN_OK);
    if (w == IN_SCOPE)
        assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.half_type = half), NULL), CAIRN_OK);
    if (w == IN_SCOPE_THAT_IS_OFF)
        assert_int_equal(amp_autocast_begin(env, amp_autocast_options(.enabled = CAIRN_OFF), NULL), CAIRN_OK);
}

static void leave(cairn_env *env, enum where w) {
    if (w == IN_SCOPE) assert_int_equal(amp_autocast_end(env, 0), CAIRN_OK);
    cairn__casts_end_o1(env); /* and what was begun in it */
}

/* ---- the rule ---- */

static cairn_dtype widest_of(const cairn_dtype *types, int count) {
    for (int i = 0; i < count; i++) {
        if (types[i] == CAIRN_F64) return CAIRN_F64;
    }
    for (int i = 1; i < count; i++) {
        if (types[i] != types[0]) return CAIRN_F32;
    }
    return types[0];
}

/* What the float inputs are cast to; 0 = they stay as they are. */
static cairn_dtype expected_type(const struct expected *e, enum where w, cairn_dtype half, const cairn_dtype *types,
                                 int count) {
    const cairn_dtype wide = widest_of(types, count), uncast = e->without == WIDENS ? wide : (cairn_dtype)0;
    if (!casts_in(w) || e->cast == AMP_CAST_FOLLOW || wide == CAIRN_F64) return uncast;
    if (e->cast == AMP_CAST_WIDEST) return wide;
    return e->cast == AMP_CAST_HALF ? half : CAIRN_F32;
}

static bool has_half(const cairn_dtype *types, int count) {
    for (int i = 0; i < count; i++) {
        if (cairn__is_half(types[i])) return true;
    }
    return false;
}

/* ---- a hook that records the calls of amp's ---- */

enum { MAX_CALLS = 32, MAX_INPUTS = 8 };

struct call {
    cairn_dtype types[MAX_INPUTS];
    int count;
};
static struct {
    struct cairn__op_hook inner;
    enum cairn__op op;
    struct call calls[MAX_CALLS];
    int count;
} heard;

static cairn_status listen(void *ctx, const struct cairn__op_question *q, cairn_dtype *out) {
    if (q->op == heard.op && heard.count < MAX_CALLS && q->count <= MAX_INPUTS) {
        struct call *c = &heard.calls[heard.count++];
        memcpy(c->types, q->inputs, (size_t)q->count * sizeof(q->inputs[0]));
        c->count = q->count;
    }
    return heard.inner.compute_type ? heard.inner.compute_type(ctx, q, out) : CAIRN_OK;
}

static void start_listening(cairn_env *env, enum cairn__op op) {
    struct cairn__op_hook hook = cairn__tape_of(env)->main->hook;
    if (hook.compute_type != listen) {
        heard.inner = hook;
        hook.compute_type = listen;
        cairn__set_op_hook(env, &hook);
    }
    heard.op = op;
    heard.count = 0;
}

static void stop_listening(cairn_env *env) {
    cairn__set_op_hook(env, &heard.inner);
}

/* ---- one application ---- */

struct run {
    cairn_env *env;
    const struct op_case *c;
    const struct expected *e;
    enum where where;
    cairn_dtype half;
    cairn_dtype types[CASE_INPUTS]; /* of the inputs that are floats */
    bool params;                    /* those that want gradients are parameters of a module */
    cairn_module *module;
    cairn_tensor *in[CASE_INPUTS];
    bool is_leaf[CASE_INPUTS];
};

static int checked[CAIRN__NUM_OPS]; /* applications whose types were read off the graph */

static void fail_run(const struct run *r, const char *what) {
    char types[128] = "";
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (!r->types[i]) continue;
        const size_t used = strlen(types);
        snprintf(types + used, sizeof(types) - used, "%s ", cairn_dtype_name(r->types[i]));
    }
    fail_msg("\"%s\" of %s%s, %s with %s: %s (last error: %s)", r->c->name, types, r->params ? "parameters" : "leaves",
             where_names[r->where], cairn_dtype_name(r->half), what, cairn_last_error());
}

static void fill(cairn_tensor *t, const struct case_array *a) {
    void *data = cairn__tensor_data(t);
    cairn__convert(data, cairn__tensor_dtype(t), a->values, CAIRN_F64, a->n);
}

static cairn_tensor *make_leaf(const struct run *r, const struct case_array *a, cairn_dtype dtype, bool wants) {
    cairn_tensor *t = cairn_zeros(r->env, dtype, a->ndim, a->shape);
    assert_non_null(t);
    fill(t, a);
    if (wants) assert_int_equal(cairn_tensor_require_grad(t), CAIRN_OK);
    return t;
}

static cairn_tensor *never(cairn_module *m, void *ctx, cairn_tensor *const *in, int count) {
    (void)m, (void)ctx, (void)in, (void)count;
    return NULL;
}
static const struct cairn_module_ops bag = {.struct_size = sizeof(bag), .name = "Bag", .forward = never};

static void make_params(struct run *r, const struct case_array *arrays) {
    cairn_dtype type = CAIRN_F32;
    r->module = cairn_module_create(r->env, &bag, NULL);
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (!arrays[i].values || !case_wants(r->c, i)) continue;
        const char name[] = {(char)('a' + i), '\0'};
        r->in[i] = cairn_module_add_param(r->module, name, arrays[i].ndim, arrays[i].shape, 0);
        if (!r->in[i]) fail_run(r, "parameter");
        type = r->types[i];
    }
    struct cairn_param_set *set = cairn_module_params(r->module);
    if (type != CAIRN_F32) assert_int_equal(cairn__param_set_to_half(set, type, false, false), CAIRN_OK);
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (r->in[i]) fill(r->in[i], &arrays[i]);
    }
    cairn__param_set_weights_changed(set);
}

static void make_inputs(struct run *r, const struct case_array *arrays) {
    if (r->params) make_params(r, arrays);
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (!arrays[i].values || r->in[i]) continue;
        const bool is_float = case_input_is_float(&r->c->inputs[i]);
        r->in[i] = make_leaf(r, &arrays[i], is_float ? r->types[i] : arrays[i].dtype, case_wants(r->c, i));
        r->is_leaf[i] = true;
    }
}

static void end_inputs(struct run *r) {
    r->env->begin_step(r->env);
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (r->is_leaf[i]) cairn_tensor_destroy(&r->in[i]);
    }
    cairn_module_destroy(&r->module);
}

/* ---- what came of it ---- */

/* The k-th node of the operation, for which the hook was called k + 1 times; NULL = it is not on the tape. */
static const struct cairn__node *node_of(const struct run *r, int k, int *total) {
    const struct cairn__tape *tape = cairn__tape_of(r->env);
    const struct cairn__node *found = NULL;
    *total = 0;
    for (size_t i = 0; i < tape->count; i++) {
        if (tape->nodes[i]->op != r->c->op) continue;
        if ((*total)++ == k) found = tape->nodes[i];
    }
    return found;
}

static void check_result(const struct run *r, const cairn_tensor *y, cairn_dtype computed) {
    const cairn_dtype got = cairn_tensor_dtype(y);
    if (r->e->gives == SAME && got != computed) fail_run(r, "the result has another type");
    if (r->e->gives == BOOLS && got != CAIRN_BOOL) fail_run(r, "the result is not bool");
    if (r->e->gives == INDICES && got != CAIRN_I64) fail_run(r, "the result is not i64");
}

static void check_node(const struct run *r, const struct cairn__node *node, const struct call *call) {
    const cairn_dtype want = expected_type(r->e, r->where, r->half, call->types, call->count);
    cairn_dtype first = (cairn_dtype)0;
    int k = 0;
    for (int i = 0; i < node->count; i++) {
        const cairn_tensor *x = node->inputs[i];
        if (!x || !cairn__is_float(cairn__tensor_dtype(x))) continue;
        const cairn_dtype type = cairn__tensor_dtype(x);
        if (type != (want ? want : call->types[k])) fail_run(r, "computed in another type");
        if (!first) first = type;
        k++;
    }
    if (k != call->count) fail_run(r, "the question had other inputs");
    check_result(r, node->result, first);
    checked[r->c->op]++;
}

/* The hook is not called for views, which show their input in its type. */
static void check_views(const struct run *r) {
    const struct cairn__tape *tape = cairn__tape_of(r->env);
    for (size_t i = 0; i < tape->count; i++) {
        const struct cairn__node *node = tape->nodes[i];
        if (node->op != r->c->op || !node->row->view) continue;
        if (heard.count > 0) fail_run(r, "asked about a view");
        check_result(r, node->result, cairn__tensor_dtype(node->inputs[0]));
        checked[r->c->op]++;
    }
}

static void check_types(const struct run *r, const cairn_tensor *y) {
    int nodes = 0;
    (void)node_of(r, 0, &nodes);
    check_views(r);
    if (nodes == heard.count) {
        for (int k = 0; k < nodes; k++) check_node(r, node_of(r, k, &nodes), &heard.calls[k]);
    } else if (r->e->gives == BOOLS || r->e->gives == INDICES) {
        check_result(r, y, (cairn_dtype)0); /* no gradient, so no node */
    }
}

static bool may_be_refused(const struct run *r) {
    const struct call *last = heard.count > 0 ? &heard.calls[heard.count - 1] : NULL;
    if (!last || cairn__last_status() != CAIRN_EINVAL) return false;
    if (casts_in(r->where) && r->e->cast == AMP_CAST_BANNED) return has_half(last->types, last->count);
    if (expected_type(r->e, r->where, r->half, last->types, last->count)) return false;
    for (int i = 1; i < last->count; i++) { /* mixed, where nobody casts: infer tells */
        if (last->types[i] != last->types[0]) return true;
    }
    return false;
}

/* ---- gradients ---- */

static bool is_held_by(double value, cairn_dtype type) {
    uint64_t stored = 0;
    double back = 0;
    cairn__convert(&stored, type, &value, CAIRN_F64, 1);
    cairn__convert(&back, CAIRN_F64, &stored, type, 1);
    return back == value || value != value;
}

/* The half type that the gradient of t passed through on its way: its own, or that of the only cast of it. 0 = none, or
 * it is a sum of several, which a leaf has in f32. */
static cairn_dtype narrowed_to(const struct run *r, const cairn_tensor *t) {
    const struct cairn__tape *tape = cairn__tape_of(r->env);
    const cairn_dtype own = cairn__tensor_dtype(t);
    const cairn_tensor *cast = NULL;
    int uses = 0;
    if (t->param && cairn__is_half(own)) return own;
    for (size_t i = 0; i < tape->count; i++) {
        for (int k = 0; k < tape->nodes[i]->count; k++) {
            if (tape->nodes[i]->inputs[k] != t) continue;
            uses++;
            cast = tape->nodes[i]->op == CAIRN__OP_CAST ? tape->nodes[i]->result : NULL;
        }
    }
    if (uses != 1 || r->c->adds_up) return (cairn_dtype)0;
    return cairn__is_half(own) ? own : cast && cairn__is_half(cast->dtype) ? cast->dtype : (cairn_dtype)0;
}

static void check_gradient(const struct run *r, int input, cairn_dtype through) {
    const cairn_tensor *t = r->in[input];
    const struct cairn__param *p = t->param;
    double value = 0;
    if (p && p->dtype != r->types[input]) fail_run(r, "a parameter, and its gradient, has another type");
    if (p && !cairn__grad_is_written(p->gradient)) return;
    if (!p && !t->has_grad) return;
    if (!p && !cairn_tensor_grad(t)) fail_run(r, "the gradient of a leaf is not f32");
    for (size_t i = 0; i < t->n && through; i++) {
        if (p) {
            cairn__convert(&value, CAIRN_F64,
                           (const char *)cairn__grad_memory(p->gradient) + i * cairn_dtype_nbytes(p->dtype), p->dtype,
                           1);
        } else {
            value = (double)cairn_tensor_grad(t)[i];
        }
        if (!is_held_by(value, through)) fail_run(r, "a gradient that its type does not hold");
    }
}

static void walk_back(const struct run *r, cairn_tensor *y) {
    cairn_dtype through[CASE_INPUTS] = {(cairn_dtype)0};
    struct case_array a = {.ndim = y->ndim, .n = y->n, .values = case_room(y->n, sizeof(double))};
    if (y->ndim > CASE_DIMS) fail_run(r, "dimensions");
    memcpy(a.shape, y->shape, (size_t)y->ndim * sizeof(a.shape[0]));
    for (size_t i = 0; i < a.n; i++) a.values[i] = case_weight(i);
    cairn_tensor *dy = make_leaf(r, &a, y->dtype, false);
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (r->in[i] && r->in[i]->wants_grad) through[i] = narrowed_to(r, r->in[i]);
    }
    if (cairn_backward_with(y, cairn_backward_options(.grad = dy)) != CAIRN_OK) fail_run(r, "backward");
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (r->in[i] && r->in[i]->wants_grad) check_gradient(r, i, through[i]);
    }
    cairn_tensor_destroy(&dy);
    cairn__free(a.values);
}

static void run(struct run *r, const struct case_array *arrays) {
    make_inputs(r, arrays);
    enter(r->env, r->where, r->half);
    start_listening(r->env, r->c->op);
    r->env->next_stream = 1000;
    cairn_tensor *y = r->c->build(r->in);
    if (y) {
        check_types(r, y);
        if (y->wants_grad) walk_back(r, y);
    } else if (!may_be_refused(r)) {
        fail_run(r, "forward");
    }
    stop_listening(r->env);
    leave(r->env, r->where);
    end_inputs(r);
}

/* ---- all of them ---- */

enum { ALL_F32, ALL_HALF, ONE_F32, ONE_HALF, NUM_MIXTURES };

/* Types by a mixture; which: the input that differs. false: there is no such input, or nothing it could differ from. */
static bool mix(struct run *r, const struct case_array *arrays, int mixture, int which) {
    int floats = 0;
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (!arrays[i].values || !case_input_is_float(&r->c->inputs[i])) continue;
        const bool is_f32 =
            mixture == ALL_F32 || (mixture == ONE_F32 && i == which) || (mixture == ONE_HALF && i != which);
        r->types[i] = is_f32 ? CAIRN_F32 : r->half;
        floats++;
    }
    if (mixture == ALL_F32 || mixture == ALL_HALF) return which == 0;
    return floats > 1 && r->types[which] != 0;
}

static void run_mixtures(cairn_env *env, const struct op_case *c, cairn_dtype half, enum where where, bool params) {
    struct case_array arrays[CASE_INPUTS];
    bool is_empty = false;
    case_draw(c, half, arrays);
    for (int i = 0; i < CASE_INPUTS; i++) is_empty |= arrays[i].values && arrays[i].n == 0;
    for (int mixture = 0; mixture < (params ? ONE_F32 : NUM_MIXTURES); mixture++) {
        for (int which = 0; which < CASE_INPUTS && !(params && is_empty); which++) {
            struct run r = {
                .env = env, .c = c, .e = expected_of(c->op), .where = where, .half = half, .params = params};
            if (mix(&r, arrays, mixture, which)) run(&r, arrays);
        }
    }
    case_arrays_free(arrays, CASE_INPUTS);
}

static void run_all(cairn_env *env, cairn_dtype half, bool params) {
    memset(checked, 0, sizeof(checked));
    for (int i = 0; i < NUM_FAMILIES; i++) {
        for (size_t k = 0; k < families[i].cases->count; k++) {
            for (int w = 0; w < NUM_WHERES; w++)
                run_mixtures(env, &families[i].cases->cases[k], half, (enum where)w, params);
        }
    }
    for (int i = 0; i < CAIRN__NUM_OPS; i++) {
        const struct expected *e = expected_of(i);
        const bool is_seen = checked[i] > 0 || e->gives == BOOLS || e->gives == INDICES || i == CAIRN__OP_DETACH ||
                             i == CAIRN__OP_CAST || i == CAIRN__OP_GUEST;
        if (!is_seen) fail_msg("no graph showed what '%s' computes in", cairn__op_name((enum cairn__op)i));
    }
}

static void leaves_of_f16_follow_the_table(void **state) {
    run_all(test_env_of(state), CAIRN_F16, false);
}
static void leaves_of_bf16_follow_the_table(void **state) {
    run_all(test_env_of(state), CAIRN_BF16, false);
}
static void parameters_of_f16_follow_the_table(void **state) {
    run_all(test_env_of(state), CAIRN_F16, true);
}
static void parameters_of_bf16_follow_the_table(void **state) {
    run_all(test_env_of(state), CAIRN_BF16, true);
}

/* ---- what no graph shows ---- */

static const cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};

/* f(env, half) everywhere, with both types. */
static void everywhere(cairn_env *env, void (*f)(cairn_env *env, cairn_dtype half)) {
    for (int h = 0; h < 2; h++) {
        for (int w = 0; w < NUM_WHERES; w++) {
            enter(env, (enum where)w, halves[h]);
            f(env, halves[h]);
            leave(env, (enum where)w);
            env->begin_step(env);
        }
    }
}

/* 1 in half, and 1 + 2^-12, which is another number in f32 alone. */
static void compare(cairn_env *env, cairn_dtype half) {
    cairn_tensor *a = cairn_full(env, half, CAIRN_SHAPE(1), 1);
    cairn_tensor *b = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1), 1 + 0x1p-12);
    assert_true(cairn_tensor_item(cairn_eq(a, b)) == 0);
    assert_true(cairn_tensor_item(cairn_ne(a, b)) == 1);
    assert_true(cairn_tensor_item(cairn_lt(a, b)) == 1);
    assert_true(cairn_tensor_item(cairn_le(b, a)) == 0);
    assert_true(cairn_tensor_item(cairn_gt(b, a)) == 1);
    assert_true(cairn_tensor_item(cairn_ge(a, b)) == 0);
}

static void comparisons_are_made_in_the_widest_type(void **state) {
    everywhere(test_env_of(state), compare);
}

/* Equal in half, where the first of equals would win. */
static void find(cairn_env *env, cairn_dtype half) {
    (void)half;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(3), (float[]){1, 1 - 0x1p-14f, 1 + 0x1p-14f});
    assert_true(cairn_tensor_item(cairn_argmax(x, 0, 0)) == 2);
    assert_true(cairn_tensor_item(cairn_argmin(x, 0, 0)) == 1);
}

static void indices_are_found_in_the_input_s_type(void **state) {
    everywhere(test_env_of(state), find);
}

static void show(cairn_env *env, cairn_dtype half) {
    cairn_tensor *x = cairn_full(env, half, CAIRN_SHAPE(2), 1);
    assert_int_equal(cairn_tensor_dtype(cairn_detach(x)), half);
    assert_int_equal(cairn_tensor_dtype(cairn_cast(x, CAIRN_F32)), CAIRN_F32);
    assert_int_equal(cairn_tensor_dtype(cairn_cast(cairn_cast(x, CAIRN_F64), half)), half);
}

static void casts_have_the_chosen_type_and_detached_values_their_own(void **state) {
    everywhere(test_env_of(state), show);
}

static void scale(cairn_env *env, cairn_dtype half) {
    cairn_tensor *x = cairn_full(env, half, CAIRN_SHAPE(1), 3);
    cairn_tensor_require_grad(x);
    cairn_tensor *loss = test_scale_loss(cairn_relu(x), 65536);
    assert_int_equal(cairn_tensor_dtype(loss), CAIRN_F32);
    assert_true(cairn_tensor_item(loss) == 3 * 65536.0f);
}

static void scaled_losses_are_f32(void **state) {
    everywhere(test_env_of(state), scale);
}

/* Parameters are left in their own types, and the loss is f32. */
static void drop(cairn_env *env, cairn_dtype half) {
    cairn_module *m = cairn_linear(env, 3, 2);
    assert_int_equal(cairn__param_set_to_half(cairn_module_params(m), half, true, false), CAIRN_OK);
    assert_int_equal(cairn_tensor_dtype(cairn__ddp_zero_loss(m)), CAIRN_F32);
    assert_int_equal(cairn_tensor_dtype(cairn_module_get(m, "weight")), half);
    cairn_module_destroy(&m);
}

static void losses_of_zero_are_f32(void **state) {
    everywhere(test_env_of(state), drop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_in_both_tables),
        ENV_TEST(operations_of_other_rooms_have_names),
        cmocka_unit_test(the_page_has_every_operation_in_its_class),
        ENV_TEST(leaves_of_f16_follow_the_table),
        ENV_TEST(leaves_of_bf16_follow_the_table),
        ENV_TEST(parameters_of_f16_follow_the_table),
        ENV_TEST(parameters_of_bf16_follow_the_table),
        ENV_TEST(comparisons_are_made_in_the_widest_type),
        ENV_TEST(indices_are_found_in_the_input_s_type),
        ENV_TEST(casts_have_the_chosen_type_and_detached_values_their_own),
        ENV_TEST(scaled_losses_are_f32),
        ENV_TEST(losses_of_zero_are_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
