/* --checkpoint FOLDER and --save-every STEPS of the examples: a training that is killed, or whose machine goes, goes on
 * from its last checkpoint when it is started again, and ends with the same bits. docs/checkpoints.md
 *
 *     cairn-run --nproc_per_node 2 --max-restarts 3 ./01_linear_regression --checkpoint runs/a */
#ifndef EXAMPLES_CHECKPOINT_H
#define EXAMPLES_CHECKPOINT_H

#include <cairn/cairn.h>

#include <stdlib.h>
#include <string.h>

struct checkpoint {
    const char *folder; /* NULL = nothing is saved, and the rest does nothing */
    long every;         /* steps; 0 = 100 */
    cairn_state *state;
    int64_t steps; /* made, those before a restart too */
};

/* Whether it is one of its options. */
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

/* Everything that the training needs to go on; what is NULL it does not have. The caller adds what it has beside that,
 * and then calls checkpoint_resume. */
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

/* Loads the last checkpoint that is whole, where there is one. SIGUSR1 and SIGTERM ask for one from here on. */
static inline void checkpoint_resume(struct checkpoint *c) {
    if (!c->state) return;
    CAIRN_CHECK(cairn_state_watch_signals(c->state));
    CAIRN_CHECK(cairn_state_load_latest(c->state, c->folder, NULL, &c->steps));
}

/* After a step: saves where it is time to, in the background. After a SIGTERM the program ends when that is done. */
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
