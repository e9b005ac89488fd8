/* Results of modules, and their gradients, for the environment's watcher. */
#include "nn/watched.h"

#include "nn/module.h"
#include "nn/ops.h"
#include "param/watcher.h"

static const struct cairn_param_set *params_of(const cairn_module *m) {
    while (m->parent) m = m->parent;
    return m->params;
}

static void show(const struct cairn__watcher *w, const cairn_module *m, cairn_tensor *y, const void *x) {
    char path[CAIRN__MODULE_PATH];
    const struct cairn__watched values = {x, y->n, cairn__tensor_dtype(y)};
    cairn__module_put_path(m, path);
    y->watched = w->result(w->ctx, params_of(m), path, m->kind.name, x ? &values : NULL);
}

/* A result that was shown before is one that the module only passes on. */
void cairn__show_result(const cairn_module *m, cairn_tensor *y) {
    const struct cairn__watcher *w = cairn__watcher_now(m->env);
    if (!m->training || y->kind != CAIRN__RESULT || y->watched || !cairn__records(m->env)) return;
    if (!cairn__is_float(cairn__tensor_dtype(y)) || !w->wants_results(w->ctx, params_of(m))) return;
    if (cairn__tape_of(m->env)->root->walking || y->is_dense) {
        show(w, m, y, cairn__tape_of(m->env)->root->walking ? NULL : cairn__tensor_data(y));
        return;
    }
    cairn_no_grad_begin(m->env);
    cairn_tensor *dense = cairn_contiguous(y);
    if (dense) show(w, m, y, cairn__tensor_data(dense));
    cairn_no_grad_end(m->env);
}

void cairn__show_gradient(const struct cairn__tape *tape, const cairn_tensor *t, const void *dy) {
    const struct cairn__watcher *w = cairn__watcher_now(tape->env);
    const struct cairn__watched values = {dy, t->n, cairn__tensor_dtype(t)};
    if (w) w->result_grad(w->ctx, t->watched, &values, tape->root->scale);
}
