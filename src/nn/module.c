/* Modules: building, running and destroying them. module_tree.c has the queries. */
#include "nn/module.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "nn/ops.h"
#include "nn/watched.h"
#include "param/watcher.h"

/* ---- making and ending ---- */

static cairn_status create(cairn_env *env, const struct cairn__module_kind *kind, cairn_module **out) {
    REQUIRE(env, CAIRN_EINVAL, "%s: env is NULL", kind->name);
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    TRY(cairn__calloc(1, sizeof(*m), (void **)&m));
    m->env = env;
    m->kind = *kind;
    m->training = true;
    TRY(cairn__param_set_new(env, &m->params));
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

cairn_status cairn__module_create(cairn_env *env, const struct cairn__module_kind *kind, size_t context_nbytes,
                                  cairn_module **out) {
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    TRY(create(env, kind, &m));
    TRY(cairn__calloc(1, context_nbytes, &m->context));
    m->end_context = cairn__free;
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

static cairn_status create_users(cairn_env *env, const struct cairn_module_ops *ops, void *context,
                                 cairn_module **out) {
    enum { ANY_NUMBER = 1 << 20 };
    REQUIRE(ops->name && ops->name[0] && ops->forward, CAIRN_EINVAL,
            "module_create: ops->name and ops->forward must be set");
    const struct cairn__module_kind kind = {.name = ops->name, .forward = ops->forward, .max_inputs = ANY_NUMBER};
    cairn_status st = CAIRN_OK;
    TRY(create(env, &kind, out));
    (*out)->context = context;
    (*out)->end_context = ops->destroy;
out:
    return st;
}

cairn_module *cairn_module_create(cairn_env *env, const struct cairn_module_ops *given, void *context) {
    struct cairn_module_ops ops = {.struct_size = sizeof(ops)};
    cairn_module *m = NULL;
    if (!given) {
        (void)cairn__fail(CAIRN_EINVAL, "module_create: ops is NULL");
        return NULL;
    }
    if (cairn__options_read(&ops, sizeof(ops), given, "cairn_module_ops") == CAIRN_OK &&
        create_users(env, &ops, context, &m) == CAIRN_OK)
        return m;
    if (ops.destroy) ops.destroy(context);
    return NULL;
}

static void end(cairn_module *m) {
    for (size_t i = 0; i < m->num_children; i++) end(m->children[i]);
    for (size_t i = 0; i < m->num_handles; i++) cairn__tensor_of_param_destroy(&m->handles[i]);
    for (size_t i = 0; i < m->num_buffers; i++) {
        cairn__tensor_of_buffer_destroy(&m->buffers[i].tensor);
        cairn__free(m->buffers[i].path);
    }
    cairn_param_set_destroy(&m->params);
    if (m->end_context) m->end_context(m->context);
    cairn__free(m->children);
    cairn__free(m->handles);
    cairn__free(m->buffers);
    cairn__free(m->name);
    cairn__free(m);
}

void cairn_module_destroy(cairn_module **module) {
    if (!module || !*module) return;
    cairn_module *m = *module;
    if (m->parent) {
        cairn__log(CAIRN_LOG_ERROR,
                   "cairn_module_destroy: '%s' is a child of another module, which destroys it; it is kept", m->name);
        return;
    }
    if (cairn__tape_of(m->env)->root->walking) {
        cairn__log(CAIRN_LOG_ERROR, "cairn_module_destroy was called within a backward; the module is kept");
        return;
    }
    if (m->params && cairn__param_set_in_use(m->params, "cairn_module_destroy")) return;
    end(m);
    *module = NULL;
}

void cairn__module_drop(cairn_module *child) {
    if (child && !child->parent) cairn_module_destroy(&child);
}

/* ---- building ---- */

/* Whether a root has a member of that name. Names in the root's set are paths: a child's parameters have a dot. */
static bool has_member(const cairn_module *m, const char *name) {
    if (cairn__param_set_find(m->params, name)) return true;
    for (size_t i = 0; i < m->num_buffers; i++) {
        if (strcmp(m->buffers[i].path, name) == 0) return true;
    }
    for (size_t i = 0; i < m->num_children; i++) {
        if (strcmp(m->children[i]->name, name) == 0) return true;
    }
    return false;
}

static cairn_status check_name(const cairn_module *m, const char *call, const char *name) {
    REQUIRE(m && name, CAIRN_EINVAL, "%s: module and name must be set", call);
    REQUIRE(name[0] && !strchr(name, '.'), CAIRN_EINVAL, "%s '%s': a name must not be empty or have a dot", call, name);
    REQUIRE(!m->parent, CAIRN_ESTATE,
            "%s '%s': the module is child '%s' of another; add to a module before it becomes a child", call, name,
            m->name);
    REQUIRE(m->params->users == 0 && !cairn__param_set_has_gradients(m->params), CAIRN_ESTATE,
            "%s '%s': an optimizer, averages, amp or ddp use the module's parameters, or they have gradients; build "
            "the whole module first",
            call, name);
    REQUIRE(!has_member(m, name), CAIRN_EINVAL, "%s: the %s has a member '%s' already", call, m->kind.name, name);
    return CAIRN_OK;
}

cairn_status cairn__module_add_param(cairn_module *m, const char *name, int ndim, const int64_t *shape, bool is_norm,
                                     cairn_tensor **tensor) {
    cairn_status st = CAIRN_OK;
    struct cairn__param *p = NULL;
    TRY(cairn__grow((void **)&m->handles, &m->handles_capacity, m->num_handles + 1, sizeof(m->handles[0])));
    TRY(cairn__param_set_add(m->params, name, ndim, shape, is_norm, &p));
    st = cairn__tensor_of_param(p, &m->handles[m->num_handles]);
    if (st != CAIRN_OK) {
        cairn__param_set_drop_last(m->params);
        return st;
    }
    if (tensor) *tensor = m->handles[m->num_handles];
    m->num_handles++;
out:
    return st;
}

cairn_tensor *cairn_module_add_param(cairn_module *m, const char *name, int ndim, const int64_t *shape, int is_norm) {
    cairn_tensor *t = NULL;
    cairn_status st = check_name(m, "add_param", name);
    if (st == CAIRN_OK && !shape && ndim != 0) st = cairn__fail(CAIRN_EINVAL, "add_param '%s': shape is NULL", name);
    if (st == CAIRN_OK) st = cairn__module_add_param(m, name, ndim, shape, cairn__is_on(is_norm), &t);
    return st == CAIRN_OK ? t : NULL;
}

static cairn_status add_buffer(cairn_module *m, const char *name, cairn_dtype dtype, int ndim, const int64_t *shape,
                               cairn_tensor **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__module_buffer b = {.tensor = NULL};
    TRY(check_name(m, "add_buffer", name));
    TRY(cairn__grow((void **)&m->buffers, &m->buffers_capacity, m->num_buffers + 1, sizeof(m->buffers[0])));
    TRY(cairn__strdup(name, &b.path));
    TRY(cairn__tensor_of_buffer(m->env, dtype, ndim, shape, &b.tensor));
    m->buffers[m->num_buffers++] = b;
    *out = b.tensor;
    return CAIRN_OK;
out:
    cairn__free(b.path);
    return st;
}

cairn_tensor *cairn_module_add_buffer(cairn_module *m, const char *name, cairn_dtype dtype, int ndim,
                                      const int64_t *shape) {
    cairn_tensor *t = NULL;
    return add_buffer(m, name, dtype, ndim, shape, &t) == CAIRN_OK ? t : NULL;
}

/* ---- children: whatever can fail comes first, so that a failure leaves both modules unchanged ---- */

static cairn_status lengthen_paths(cairn_module *m, const char *prefix) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < m->num_buffers; i++) {
        struct cairn__module_buffer *b = &m->buffers[i];
        const size_t nbytes = strlen(prefix) + strlen(b->path) + 1;
        TRY(cairn__alloc(nbytes, (void **)&b->next_path));
        snprintf(b->next_path, nbytes, "%s%s", prefix, b->path);
    }
    for (size_t i = 0; i < m->num_children; i++) TRY(lengthen_paths(m->children[i], prefix));
out:
    return st;
}

static void take_paths(cairn_module *m, bool longer) {
    for (size_t i = 0; i < m->num_buffers; i++) {
        struct cairn__module_buffer *b = &m->buffers[i];
        cairn__free(longer ? b->path : b->next_path);
        if (longer) b->path = b->next_path;
        b->next_path = NULL;
    }
    for (size_t i = 0; i < m->num_children; i++) take_paths(m->children[i], longer);
}

static cairn_status check_child(const cairn_module *m, const char *name, const cairn_module *child) {
    cairn_status st = CAIRN_OK;
    TRY(check_name(m, "add_child", name));
    REQUIRE(child != m, CAIRN_EINVAL, "add_child '%s': a module cannot be its own child", name);
    REQUIRE(!child->parent, CAIRN_ESTATE, "add_child '%s': the %s is child '%s' of another module already", name,
            child->kind.name, child->name);
    REQUIRE(child->env == m->env, CAIRN_EINVAL, "add_child '%s': the modules belong to different environments", name);
out:
    return st;
}

static cairn_status adopt(cairn_module *m, const char *name, cairn_module *child) {
    cairn_status st = CAIRN_OK;
    char *own_name = NULL, *prefix = NULL;
    const size_t nbytes = strlen(name) + sizeof(".");
    TRY(cairn__grow((void **)&m->children, &m->children_capacity, m->num_children + 1, sizeof(m->children[0])));
    TRY(cairn__strdup(name, &own_name));
    TRY(cairn__alloc(nbytes, (void **)&prefix));
    snprintf(prefix, nbytes, "%s.", name);
    TRY(lengthen_paths(child, prefix));
    TRY(cairn__param_set_adopt(m->params, &child->params, prefix));
    m->children[m->num_children++] = child;
    child->parent = m;
    child->name = own_name;
    own_name = NULL;
out:
    take_paths(child, st == CAIRN_OK);
    cairn__free(own_name);
    cairn__free(prefix);
    return st;
}

static const cairn_module *root_of(const cairn_module *m) {
    while (m && m->parent) m = m->parent;
    return m;
}

cairn_status cairn__module_add_child(cairn_module *m, const char *name, cairn_module *child, cairn_module **out) {
    cairn_status st = CAIRN_OK;
    if (!child) {
        const cairn_status earlier = cairn__last_status();
        return earlier != CAIRN_OK ? earlier : cairn__fail(CAIRN_EINVAL, "add_child: the child is NULL");
    }
    TRY(check_child(m, name, child));
    TRY(adopt(m, name, child));
    if (out) *out = child;
    return CAIRN_OK;
out:
    if (child != root_of(m)) cairn__module_drop(child); /* m itself would be destroyed with its root */
    return st;
}

cairn_module *cairn_module_add_child(cairn_module *m, const char *name, cairn_module *child) {
    cairn_module *taken = NULL;
    return cairn__module_add_child(m, name, child, &taken) == CAIRN_OK ? taken : NULL;
}

/* ---- running ---- */

void cairn__module_set_io_types(cairn_module *module, cairn_dtype input, cairn_dtype output) {
    module->input = input;
    module->output = output;
}

static cairn_tensor *in_type(cairn_tensor *t, cairn_dtype dtype) {
    if (!t || !dtype || cairn__tensor_dtype(t) == dtype || !cairn__is_float(cairn__tensor_dtype(t))) return t;
    return cairn_cast(t, dtype);
}

static cairn_status check_inputs(const cairn_module *m, cairn_tensor *const *inputs, int count) {
    const cairn_status earlier = cairn__last_status();
    if ((!m || (inputs && count > 0 && !inputs[0])) && earlier != CAIRN_OK) return earlier; /* keep the first error */
    REQUIRE(m, CAIRN_EINVAL, "module_forward: the module is NULL");
    const int most = m->kind.max_inputs ? m->kind.max_inputs : 1;
    REQUIRE(inputs && count > 0 && count <= most, CAIRN_EINVAL, "%s: %d inputs are given; it takes 1 to %d",
            m->kind.name, count, most);
    REQUIRE(inputs[0], CAIRN_EINVAL, "%s: input 0 is NULL", m->kind.name);
    return CAIRN_OK;
}

/* A NULL input stays NULL; a cast that fails makes one. */
static cairn_status cast_inputs(const cairn_module *m, cairn_tensor *const **inputs, int count) {
    cairn_tensor **cast = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tape_room(cairn__tape_of(m->env), (size_t)count * sizeof(cast[0]), (void **)&cast));
    for (int i = 0; i < count; i++) {
        cast[i] = in_type((*inputs)[i], m->input);
        if ((*inputs)[i] && !cast[i]) return cairn__last_status();
    }
    *inputs = cast;
out:
    return st;
}

/* If forward returns NULL, the message includes the last error from before it: that may be the cause. */
static cairn_tensor *forward(cairn_module *m, cairn_tensor *const *inputs, int count) {
    const uint64_t before = cairn__failures();
    cairn_tensor *y = m->kind.forward(m, m->context, inputs, count);
    if (y || cairn__failures() != before) return y;
    if (cairn__last_status() == CAIRN_OK) {
        (void)cairn__fail(CAIRN_ESTATE, "%s: its forward returned NULL without an error", m->kind.name);
    } else {
        (void)cairn__fail(cairn__last_status(), "%s: its forward returned NULL; the last error before: %s",
                          m->kind.name, cairn_last_error());
    }
    return NULL;
}

static cairn_tensor *run(cairn_module *m, cairn_tensor *const *inputs, int count) {
    if (check_inputs(m, inputs, count) != CAIRN_OK) return NULL;
    const size_t mark = cairn__inside_begin(m->env);
    cairn_tensor *y = NULL;
    if (!m->input || cast_inputs(m, &inputs, count) == CAIRN_OK) y = in_type(forward(m, inputs, count), m->output);
    cairn__note_use(y); /* y may be an input, a leaf or parameter */
    return cairn__inside_end(m->env, mark, y);
}

void cairn__module_put_path(const cairn_module *m, char text[CAIRN__MODULE_PATH]) {
    text[0] = '\0';
    if (!m->parent) return;
    cairn__module_put_path(m->parent, text);
    const size_t used = strlen(text);
    snprintf(text + used, CAIRN__MODULE_PATH - used, "%s%s", used > 0 ? "." : "", m->name);
}

/* An error names the innermost module in which it occurred, unless it occurred before that module began. */
cairn_tensor *cairn_module_forward_n(cairn_module *m, cairn_tensor *const *inputs, int count) {
    const uint64_t failures = cairn__failures();
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_tensor *y = run(m, inputs, count);
    if (y && cairn__watcher_now(m->env)) cairn__show_result(m, y);
    if (begin_ns && m && !m->parent) cairn__trace("nn", "forward", count, 0, begin_ns);
    if (!y && m && m->parent && cairn__failures() != failures) {
        char path[CAIRN__MODULE_PATH];
        cairn__module_put_path(m, path);
        cairn__fail_in(path);
    }
    return y;
}

cairn_tensor *cairn_module_forward(cairn_module *m, cairn_tensor *x) {
    return cairn_module_forward_n(m, &x, 1);
}

void cairn_module_train(cairn_module *m, int on) {
    if (!m) return;
    m->training = cairn__is_on(on);
    for (size_t i = 0; i < m->num_children; i++) cairn_module_train(m->children[i], on);
}

cairn_status cairn__module_follow_mode(cairn_module *m, const cairn_module *other) {
    cairn_status st = CAIRN_OK;
    REQUIRE(strcmp(m->kind.name, other->kind.name) == 0, CAIRN_EINVAL, "module '%s' is a %s there and a %s here",
            other->name ? other->name : "", other->kind.name, m->kind.name);
    REQUIRE(m->num_children == other->num_children, CAIRN_EINVAL, "the %s '%s' has %zu children there and %zu here",
            other->kind.name, other->name ? other->name : "", other->num_children, m->num_children);
    m->training = other->training;
    for (size_t i = 0; i < m->num_children; i++) TRY(cairn__module_follow_mode(m->children[i], other->children[i]));
out:
    return st;
}

int cairn_module_is_training(const cairn_module *m) {
    return m && m->training;
}
