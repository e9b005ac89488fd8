/* Replaces this room if a library it needs is missing. */
#include "cairn/state.h"
#include "cairn/weights.h"
#include "core/status.h"

static cairn_status not_built(const char *call) {
    return cairn__fail(CAIRN_ENOTBUILT, "%s: this build has no jansson or no xxhash (meson's option 'state')", call);
}

cairn_status cairn_weights_save(cairn_stateful object, const char *path, const struct cairn_weights_options *options) {
    (void)object, (void)path, (void)options;
    return not_built("cairn_weights_save");
}

cairn_status cairn_weights_load(cairn_stateful object, const char *path, const struct cairn_weights_options *options,
                                struct cairn_weights_report *report) {
    (void)object, (void)path, (void)options, (void)report;
    return not_built("cairn_weights_load");
}

cairn_status cairn_state_create(cairn_env *env, cairn_state **out) {
    (void)env, (void)out;
    return not_built("cairn_state_create");
}

/* The other functions cannot be called, since no state can be created. */

void cairn_state_destroy(cairn_state **state) {
    (void)state;
}

cairn_status cairn_state_add(cairn_state *state, const char *name, cairn_stateful object) {
    (void)state, (void)name, (void)object;
    return not_built("cairn_state_add");
}

cairn_status cairn_state_add_part(cairn_state *state, const char *name, cairn_stateful object) {
    (void)state, (void)name, (void)object;
    return not_built("cairn_state_add_part");
}

cairn_status cairn_state_add_i64(cairn_state *state, const char *name, int64_t *value) {
    (void)state, (void)name, (void)value;
    return not_built("cairn_state_add_i64");
}

cairn_status cairn_state_add_f64(cairn_state *state, const char *name, double *value) {
    (void)state, (void)name, (void)value;
    return not_built("cairn_state_add_f64");
}

cairn_status cairn_state_add_bytes(cairn_state *state, const char *name, void *memory, size_t nbytes) {
    (void)state, (void)name, (void)memory, (void)nbytes;
    return not_built("cairn_state_add_bytes");
}

cairn_status cairn_state_add_rank_bytes(cairn_state *state, const char *name, void *memory, size_t nbytes) {
    (void)state, (void)name, (void)memory, (void)nbytes;
    return not_built("cairn_state_add_rank_bytes");
}

cairn_status cairn_state_save(cairn_state *state, const char *dir, int64_t step,
                              const struct cairn_state_save_options *options) {
    (void)state, (void)dir, (void)step, (void)options;
    return not_built("cairn_state_save");
}

cairn_status cairn_state_wait(cairn_state *state) {
    (void)state;
    return not_built("cairn_state_wait");
}

cairn_status cairn_state_load(cairn_state *state, const char *path, const struct cairn_state_load_options *options,
                              int64_t *step) {
    (void)state, (void)path, (void)options, (void)step;
    return not_built("cairn_state_load");
}

cairn_status cairn_state_load_latest(cairn_state *state, const char *dir,
                                     const struct cairn_state_load_options *options, int64_t *step) {
    (void)state, (void)dir, (void)options, (void)step;
    return not_built("cairn_state_load_latest");
}

cairn_status cairn_state_watch_signals(cairn_state *state) {
    (void)state;
    return not_built("cairn_state_watch_signals");
}

cairn_status cairn_state_due(cairn_state *state, int64_t step, int64_t every, int *due) {
    (void)state, (void)step, (void)every, (void)due;
    return not_built("cairn_state_due");
}
