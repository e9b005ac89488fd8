/* Queries of a tree of modules: its parameters and buffers by path, and its printed form. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

void *cairn__module_context_by(const cairn_module *module,
                               cairn_tensor *(*forward)(cairn_module *module, void *context,
                                                        cairn_tensor *const *inputs, int count)) {
    return module && module->kind.forward == forward ? module->context : NULL;
}

cairn_env *cairn__module_env(const cairn_module *module) {
    return module ? module->env : NULL;
}

cairn_param_set *cairn_module_params(cairn_module *m) {
    if (m && !m->params) {
        (void)cairn__fail(
            CAIRN_ESTATE,
            "module_params: the %s is child '%s' of another module; its parameters are in that module's set",
            m->kind.name, m->name);
    }
    return m ? m->params : NULL;
}

void cairn_module_zero_grad(cairn_module *m) {
    if (m && !m->params) {
        cairn__log(
            CAIRN_LOG_ERROR,
            "cairn_module_zero_grad: the %s is child '%s' of another module; nothing was done: call it for the root",
            m->kind.name, m->name);
        return;
    }
    cairn_param_set_zero_grad(m ? m->params : NULL);
}

size_t cairn__module_prefix(const cairn_module *m) {
    size_t n = 0;
    for (; m->parent; m = m->parent) n += strlen(m->name) + 1;
    return n;
}

/* ---- frozen parameters ---- */

static size_t count_handles(const cairn_module *m) {
    size_t n = m->num_handles;
    for (size_t i = 0; i < m->num_children; i++) n += count_handles(m->children[i]);
    return n;
}

static size_t list_params(const cairn_module *m, struct cairn__param **list) {
    size_t n = 0;
    for (; n < m->num_handles; n++) list[n] = m->handles[n]->param;
    for (size_t i = 0; i < m->num_children; i++) n += list_params(m->children[i], list + n);
    return n;
}

cairn_status cairn_module_require_grad(cairn_module *module, int on) {
    static const char call[] = "cairn_module_require_grad";
    REQUIRE(module, CAIRN_EINVAL, "%s: the module is NULL", call);
    struct cairn__param **list = NULL;
    const cairn_module *root = module;
    while (root->parent) root = root->parent;
    const size_t count = count_handles(module);
    cairn_status st = cairn__calloc(count, sizeof(list[0]), (void **)&list);
    if (st == CAIRN_OK) (void)list_params(module, list);
    st = cairn__params_require_grad(call, root->params, list, count, cairn__is_on(on), st);
    cairn__free(list);
    return st;
}

/* ---- buffers ---- */

size_t cairn_module_num_buffers(const cairn_module *m) {
    if (!m) return 0;
    size_t n = m->num_buffers;
    for (size_t i = 0; i < m->num_children; i++) n += cairn_module_num_buffers(m->children[i]);
    return n;
}

/* The buffer with index *i; *i counts down over the buffers before it. */
static const struct cairn__module_buffer *nth_buffer(const cairn_module *m, size_t *i) {
    if (*i < m->num_buffers) return &m->buffers[*i];
    *i -= m->num_buffers;
    const struct cairn__module_buffer *found = NULL;
    for (size_t c = 0; !found && c < m->num_children; c++) found = nth_buffer(m->children[c], i);
    return found;
}

cairn_tensor *cairn_module_buffer(const cairn_module *m, size_t i, const char **name) {
    const struct cairn__module_buffer *b = m ? nth_buffer(m, &i) : NULL;
    if (!b) return NULL;
    if (name) *name = b->path + cairn__module_prefix(m);
    return b->tensor;
}

/* ---- by path ---- */

static cairn_tensor *find(const cairn_module *m, size_t prefix, const char *path) {
    for (size_t i = 0; i < m->num_handles; i++) {
        if (strcmp(m->handles[i]->param->name + prefix, path) == 0) return m->handles[i];
    }
    for (size_t i = 0; i < m->num_buffers; i++) {
        if (strcmp(m->buffers[i].path + prefix, path) == 0) return m->buffers[i].tensor;
    }
    cairn_tensor *found = NULL;
    for (size_t i = 0; !found && i < m->num_children; i++) found = find(m->children[i], prefix, path);
    return found;
}

cairn_tensor *cairn_module_get(const cairn_module *m, const char *path) {
    cairn_tensor *t = m && path ? find(m, cairn__module_prefix(m), path) : NULL;
    if (!t) {
        (void)cairn__fail(CAIRN_EINVAL, "module_get: the %s has no parameter or buffer '%s'", m ? m->kind.name : "NULL",
                          path ? path : "NULL");
    }
    return t;
}

/* ---- printing ---- */

struct writer {
    char *text;
    size_t nbytes, used;
};

static void put(struct writer *w, int indent, const char *text) {
    const size_t room = w->used < w->nbytes ? w->nbytes - w->used : 0;
    const int n = snprintf(room ? w->text + w->used : NULL, room, "%*s%s", indent, "", text);
    w->used += n > 0 ? (size_t)n : 0;
}

static void put_module(struct writer *w, const cairn_module *m, int indent) {
    char facts[256] = "";
    if (m->kind.describe) m->kind.describe(m->context, facts, sizeof(facts));
    put(w, 0, m->kind.name);
    put(w, 0, "(");
    put(w, 0, facts);
    for (size_t i = 0; i < m->num_children; i++) {
        put(w, 0, "\n");
        put(w, indent + 2, "(");
        put(w, 0, m->children[i]->name);
        put(w, 0, "): ");
        put_module(w, m->children[i], indent + 2);
    }
    if (m->num_children) put(w, 0, "\n");
    put(w, m->num_children ? indent : 0, ")");
}

int cairn_module_format(const cairn_module *m, char *text, size_t nbytes) {
    if (!m || (!text && nbytes > 0)) {
        (void)cairn__fail(CAIRN_EINVAL, "module_format: module and text must be set");
        return -1;
    }
    struct writer w = {.text = text, .nbytes = nbytes};
    put_module(&w, m, 0);
    return w.used <= INT_MAX ? (int)w.used : -1;
}
