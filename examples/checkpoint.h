/* The examples' options --checkpoint FOLDER and --save-every STEPS: a training that is killed, or whose machine fails,
 * resumes from its last checkpoint when it is started again, and ends with the same bits. See docs/checkpoints.md.
 *
 *     cairn-run --nproc_per_node 2 --max-restarts 3 ./01_linear_regression --checkpoint runs/a */
#ifndef EXAMPLES_CHECKPOINT_H
#define EXAMPLES_CHECKPOINT_H

#include <cairn/cairn.h>

#include <stdlib.h>
#include <string.h>

struct checkpoint {
    const char *folder; /* NULL = no checkpoints: the functions below do nothing */
    long every;         /* steps; 0 = 100 */
    cairn_state *state;
    int64_t steps; /* steps done, including those before a restart */
};

/* Reads an option; returns 0 if name is not one of the two. */
static inline int checkpoint_option(struct checkpoint *c, const char *name, const char *value) {
    if (strcmp(name, "--checkpoint") == 0 && *value) {
        c->folder = value;
    } else if (strcmp(name, "--save-every") == 0 && atol(value) > 0) {
        c->every = atol(value);
    } else {
        return 0;
    }
    return 1;
}

/* Collects the state that a resumed training needs; NULL for objects that the training does not have. The caller adds
 * any other state, then calls checkpoint_resume. */
static inline void checkpoint_begin(struct checkpoint *c, cairn_env *env, cairn_module *model,
                                    cairn_optimizer *optimizer, amp_context *amp, ddp_context *net,
                                    cairn_sampler *sampler) {
    if (!c->folder) return;
    CAIRN_CHECK(cairn_state_create(env, &c->state));
    CAIRN_CHECK(cairn_state_add(c->state, "model", cairn_module_stateful(model)));
    CAIRN_CHECK(cairn_state_add(c->state, "optimizer", cairn_optimizer_stateful(optimizer)));
    CAIRN_CHECK(cairn_state_add(c->state, "amp", amp_stateful(amp)));
    if (net) CAIRN_CHECK(cairn_state_add(c->state, "ddp", ddp_stateful(net)));
    if (sampler) CAIRN_CHECK(cairn_state_add(c->state, "data", cairn_sampler_stateful(sampler)));
}

/* Loads the last complete checkpoint, if there is one. From here on SIGUSR1 and SIGTERM request a checkpoint. */
static inline void checkpoint_resume(struct checkpoint *c) {
    if (!c->state) return;
    CAIRN_CHECK(cairn_state_watch_signals(c->state));
    CAIRN_CHECK(cairn_state_load_latest(c->state, c->folder, NULL, &c->steps));
}

/* Call after each step. Saves in the background when a checkpoint is due. After a SIGTERM the program exits once the
 * checkpoint is written. */
static inline void checkpoint_step(struct checkpoint *c) {
    int due = 0;
    c->steps++;
    if (c->state) CAIRN_CHECK(cairn_state_due(c->state, c->steps, c->every ? c->every : 100, &due));
    if (due & CAIRN_STATE_SAVE)
        CAIRN_CHECK(cairn_state_save(c->state, c->folder, c->steps,
                                     cairn_state_save_options(.keep_last = 2, .background = CAIRN_ON)));
    if (due & CAIRN_STATE_STOP) CAIRN_CHECK(cairn_state_wait(c->state));
    if (due & CAIRN_STATE_STOP) exit(0);
}

static inline void checkpoint_end(struct checkpoint *c) {
    if (c->state) CAIRN_CHECK(cairn_state_wait(c->state));
    cairn_state_destroy(&c->state);
}

#endif
