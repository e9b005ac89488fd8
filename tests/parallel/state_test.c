/* Checkpoints of stages: a resumed training has the same bits as an uninterrupted one. */
#include "chain.h"

#include "../state/folder.h"

enum { AT = 2 };

struct resumed {
    const struct chain *c;
    struct outcome *out; /* [replicas] */
    bool loads;
};

static char *train(cairn_env *env, void *ctx) {
    const struct resumed *t = ctx;
    struct chain_rank r = {.env = env};
    cairn_state *state = NULL;
    int64_t step = 0;
    char name[32];
    PASS(chain_begin(&r, env, t->c));
    struct outcome *out = &t->out[r.replica];
    EXPECT_OK(cairn_state_create(env, &state));
    for (int i = 0; i < r.num_stages; i++) {
        snprintf(name, sizeof(name), "stage %d", i);
        EXPECT_OK(cairn_state_add(state, name, cairn_module_stateful(r.stages[i])));
    }
    EXPECT_OK(cairn_state_add(state, "optimizer", cairn_optimizer_stateful(r.optimizer)));
    EXPECT_OK(cairn_state_add(state, "amp", amp_stateful(r.amp)));
    if (t->loads) EXPECT_OK(cairn_state_load_latest(state, folder, NULL, &step));
    EXPECT(step == (t->loads ? AT : 0));
    for (r.step = (int)step; r.step < t->c->steps; r.step++) {
        PASS(chain_step(&r, out));
        if (r.step + 1 == AT) EXPECT_OK(cairn_state_save(state, folder, AT, NULL));
    }
    for (int i = 0; i < LAYERS; i++) {
        if (r.layers.linear[i]) PASS(chain_read_layer(&r.layers, i, out));
    }
    cairn_state_destroy(&state);
    chain_end(&r);
    return NULL;
}

static void a_training_goes_on_from_its_checkpoint(void **state) {
    static struct outcome whole[2], resumed[2];
    static const struct chain cases[] = {
        {"3 stages", 3, 1, CAIRN_PIPELINE_1F1B, .replicas = 0},
        {"2 ranks of 2", 2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, .replicas = 0},
        {"2 replicas of 2", 2, 1, CAIRN_PIPELINE_1F1B, .replicas = 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct chain c = cases[i];
        const int replicas = c.replicas ? c.replicas : 1;
        c.n_microbatches = 4;
        c.rows = 16;
        c.steps = 4;
        c.level = AMP_O2;
        c.half = CAIRN_F16;
        c.loss_scale = 128;
        c.kind = CHAIN_ADAM, c.norms = true;
        struct resumed t = {&c, whole, false};
        memset(whole, 0, sizeof(whole));
        memset(resumed, 0, sizeof(resumed));
        run_ranks(c.ranks * replicas, train, &t);
        t = (struct resumed){&c, resumed, true};
        run_ranks(c.ranks * replicas, train, &t);
        for (int r = 0; r < replicas; r++) {
            for (int s = 0; s < AT; s++) { /* which it did not make */
                resumed[r].losses[s] = whole[r].losses[s];
                resumed[r].scales[s] = whole[r].scales[s];
            }
            chain_same(c.name, &resumed[r], &whole[r]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_training_goes_on_from_its_checkpoint, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
