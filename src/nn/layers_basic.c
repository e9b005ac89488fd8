/* Layers without parameters, and Sequential. */
#include <stdio.h>

#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

/* ---- dropout ---- */

static cairn_tensor *dropout(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_dropout_forward(inputs[0], *(const double *)context, module->training);
}

static void describe_dropout(const void *context, char *text, size_t nbytes) {
    snprintf(text, nbytes, "p=%g", *(const double *)context);
}

static const struct cairn__module_kind dropout_kind = {.name = "Dropout",
                                                       .forward = dropout,
                                                       .describe = describe_dropout};

cairn_module *cairn_dropout(cairn_env *env, double p) {
    cairn_module *m = NULL;
    if (!(p >= 0 && p <= 1)) {
        (void)cairn__fail(CAIRN_EINVAL, "dropout: probability %g; it must be from 0 to 1", p);
        return NULL;
    }
    if (cairn__module_create(env, &dropout_kind, sizeof(p), &m) != CAIRN_OK) return NULL;
    *(double *)m->context = p;
    return m;
}

/* ---- an operation of one input ---- */

typedef cairn_tensor *(*op_fn)(cairn_tensor *x);

struct activation {
    op_fn op;
};

static cairn_tensor *activate(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    return ((const struct activation *)context)->op(inputs[0]);
}

/* Names as torch prints them; other operations are shown as Activation. */
static const struct {
    op_fn op;
    const char *name;
} known[] = {
    {cairn_relu, "ReLU"}, {cairn_gelu, "GELU"}, {cairn_gelu_tanh, "GELUTanh"},
    {cairn_silu, "SiLU"}, {cairn_tanh, "Tanh"}, {cairn_sigmoid, "Sigmoid"},
};

cairn_module *cairn_activation(cairn_env *env, cairn_tensor *(*op)(cairn_tensor *x)) {
    struct cairn__module_kind kind = {.name = "Activation", .forward = activate};
    cairn_module *m = NULL;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].op == op) kind.name = known[i].name;
    }
    if (!op) {
        (void)cairn__fail(CAIRN_EINVAL, "activation: the operation is NULL");
        return NULL;
    }
    if (cairn__module_create(env, &kind, sizeof(struct activation), &m) != CAIRN_OK) return NULL;
    ((struct activation *)m->context)->op = op;
    return m;
}

/* ---- flatten ---- */

static cairn_tensor *flatten(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    return cairn_flatten(inputs[0], *(const int *)context, -1);
}

static void describe_flatten(const void *context, char *text, size_t nbytes) {
    snprintf(text, nbytes, "start_dim=%d, end_dim=-1", *(const int *)context);
}

static const struct cairn__module_kind flatten_kind = {.name = "Flatten",
                                                       .forward = flatten,
                                                       .describe = describe_flatten};

cairn_module *cairn_flatten_from(cairn_env *env, int first_dim) {
    cairn_module *m = NULL;
    if (cairn__module_create(env, &flatten_kind, sizeof(first_dim), &m) != CAIRN_OK) return NULL;
    *(int *)m->context = first_dim;
    return m;
}

/* ---- Sequential ---- */

static cairn_tensor *run_all(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)context, (void)count;
    cairn_tensor *x = inputs[0];
    const size_t mark = cairn__inside_begin(module->env);
    for (size_t i = 0; i < module->num_children; i++) {
        x = cairn_module_forward(module->children[i], x);
        cairn__inside_pass(module->env, mark, x);
    }
    return cairn__inside_end(module->env, mark, x);
}

static const struct cairn__module_kind sequential_kind = {.name = "Sequential", .forward = run_all};

static bool is_among(cairn_module *const *children, int count, const cairn_module *m) {
    for (int i = 0; i < count; i++) {
        if (children[i] == m) return true;
    }
    return false;
}

/* Ends the children without a parent, the last first: each is checked while all are still alive. */
static void drop_from(int i, int count, cairn_module *const *children) {
    if (i >= count) return;
    const bool is_ours = children[i] && !children[i]->parent && !is_among(children, i, children[i]);
    drop_from(i + 1, count, children);
    if (is_ours) cairn__module_drop(children[i]);
}

/* *done: the number of children that are taken or ended. */
static cairn_status create_sequential(cairn_env *env, int count, const char *const *names,
                                      cairn_module *const *children, int *done, cairn_module **out) {
    cairn_status st = CAIRN_OK;
    char number[16];
    REQUIRE(count == 0 || (count > 0 && children), CAIRN_EINVAL, "sequential: %d children", count);
    for (int i = 0; i < count; i++) {
        if (!children[i]) return cairn__module_add_child(NULL, NULL, NULL, NULL); /* keeps the first cause */
        REQUIRE(!is_among(children, i, children[i]), CAIRN_EINVAL, "sequential: child %d is there already", i);
    }
    TRY(cairn__module_create(env, &sequential_kind, 0, out));
    while (*done < count) {
        const int i = (*done)++;
        snprintf(number, sizeof(number), "%d", i);
        TRY(cairn__module_add_child(*out, names ? names[i] : number, children[i], NULL));
    }
out:
    return st;
}

static cairn_module *make_sequential(cairn_env *env, int count, const char *const *names,
                                     cairn_module *const *children) {
    cairn_module *m = NULL;
    int done = 0;
    if (create_sequential(env, count, names, children, &done, &m) == CAIRN_OK) return m;
    if (children) drop_from(done, count, children);
    cairn_module_destroy(&m);
    return NULL;
}

cairn_module *cairn_sequential(cairn_env *env, int count, cairn_module *const *children) {
    return make_sequential(env, count, NULL, children);
}

cairn_module *cairn_sequential_named(cairn_env *env, int count, const char *const *names,
                                     cairn_module *const *children) {
    for (int i = 0; i < count; i++) {
        if (names && names[i]) continue;
        (void)cairn__fail(CAIRN_EINVAL, "sequential: child %d has no name", i);
        if (children) drop_from(0, count, children);
        return NULL;
    }
    return make_sequential(env, count, names, children);
}
