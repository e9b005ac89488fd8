/* A module's saved state: its parameter set's state, and its buffers. */
#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"
#include "param/stateful.h"

static struct cairn_env *env_of(const void *object) {
    return cairn__module_env(object);
}

static cairn_status list_buffer(const cairn_module *m, size_t i, struct cairn__entries *entries) {
    const char *path = NULL;
    const cairn_tensor *t = cairn_module_buffer(m, i, &path);
    return cairn__entries_add_array(entries, cairn__buffer_entry_owner(m->params, path), t->dtype, t->ndim, t->shape,
                                    t->data, "%s", path);
}

static cairn_status require_root(const cairn_module *m) {
    REQUIRE(m->params, CAIRN_ESTATE,
            "the %s is '%s' of another module, with which its state is saved: give the outermost module", m->kind.name,
            m->name);
    return CAIRN_OK;
}

static cairn_status list(void *object, struct cairn__entries *entries) {
    cairn_module *m = object;
    cairn_status st = CAIRN_OK;
    TRY(require_root(m));
    TRY(cairn__param_set_list_state(m->params, entries));
    for (size_t i = 0; i < cairn_module_num_buffers(m); i++) TRY(list_buffer(m, i, entries));
out:
    return st;
}

static cairn_status loaded(void *object, const struct cairn__entries *entries) {
    const cairn_module *m = object;
    return cairn__param_set_state_loaded(m->params, entries);
}

static cairn_status weights(void *object, struct cairn_param_set **set, struct cairn__entries *buffers) {
    cairn_module *m = object;
    cairn_status st = CAIRN_OK;
    TRY(require_root(m));
    for (size_t i = 0; i < cairn_module_num_buffers(m); i++) TRY(list_buffer(m, i, buffers));
    *set = m->params;
out:
    return st;
}

static const struct cairn__stateful_ops ops = {
    .kind = "module", .env = env_of, .list = list, .loaded = loaded, .weights = weights};

cairn_stateful cairn_module_stateful(cairn_module *module) {
    return (cairn_stateful){&ops, module};
}
