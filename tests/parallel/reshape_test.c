/* Loading checkpoints with other numbers of replicas and stages than they were saved with. */
#include "chain.h"

#include "../state/folder.h"

enum { MAX_REPLICAS = 4 };

/* One training: of some steps, in a shape, that saves once and may begin from a checkpoint. */
struct part_of {
    const struct chain *c;
    struct outcome *out; /* [replicas] */
    int first, last;     /* steps [first, last); from a checkpoint where first is not 0, or loads */
    int save;            /* after so many steps; -1 = never */
    bool loads;
    const char *error; /* loading says */
};

static char *add_parts(struct chain_rank *r, cairn_env *env, cairn_state **state) {
    EXPECT_OK(cairn_state_create(env, state));
    for (int i = 0; i < r->num_stages; i++)
        EXPECT_OK(cairn_state_add_part(*state, "model", cairn_module_stateful(r->stages[i])));
    EXPECT_OK(cairn_state_add_part(*state, "optimizer", cairn_optimizer_stateful(r->optimizer)));
    if (r->amp) EXPECT_OK(cairn_state_add_part(*state, "amp", amp_stateful(r->amp)));
    return NULL;
}

static char *train(cairn_env *env, void *ctx) {
    const struct part_of *t = ctx;
    struct chain_rank r = {.env = env};
    cairn_state *state = NULL;
    int64_t step = 0;
    PASS(chain_begin(&r, env, t->c));
    struct outcome *out = &t->out[r.replica];
    PASS(add_parts(&r, env, &state));
    if (t->error) {
        EXPECT(cairn_state_load_latest(state, folder, NULL, &step) != CAIRN_OK);
        EXPECT_SAYS(t->error);
        goto out;
    }
    if (t->loads) EXPECT_OK(cairn_state_load_latest(state, folder, NULL, &step));
    EXPECT(step == t->first);
    if (t->save == t->first) EXPECT_OK(cairn_state_save(state, folder, step, NULL));
    for (r.step = t->first; r.step < t->last; r.step++) {
        PASS(chain_step(&r, out));
        if (r.step + 1 == t->save) EXPECT_OK(cairn_state_save(state, folder, t->save, NULL));
    }
    for (int i = 0; i < LAYERS; i++) {
        if (r.layers.linear[i]) PASS(chain_read_layer(&r.layers, i, out));
    }
out:
    cairn_state_destroy(&state);
    chain_end(&r);
    return NULL;
}

static void run(struct part_of t) {
    const int replicas = t.c->replicas ? t.c->replicas : 1;
    memset(t.out, 0, MAX_REPLICAS * sizeof(*t.out));
    run_ranks((t.c->ranks ? t.c->ranks : 1) * replicas, train, &t);
}

static struct chain shaped(int replicas, int stages) {
    return (struct chain){.name = "reshaped",
                          .ranks = stages,
                          .chunks = 1,
                          .schedule = CAIRN_PIPELINE_1F1B,
                          .replicas = replicas,
                          .n_microbatches = 4,
                          .rows = 16,
                          .steps = 4,
                          .level = AMP_O2,
                          .half = CAIRN_F16,
                          .loss_scale = 128,
                          .kind = CHAIN_ADAM,
                          .is_named = true};
}

static void same_weights(const struct chain *c, const struct outcome *a, const struct outcome *b) {
    struct outcome x = *a;
    memcpy(x.losses, b->losses, sizeof(x.losses)); /* of steps that one of the two did not make */
    memcpy(x.scales, b->scales, sizeof(x.scales));
    memcpy(x.skipped, b->skipped, sizeof(x.skipped));
    chain_same(c->name, &x, b);
}

/* Stages change no bit, and so neither does a training that changes its stages. */
static void a_training_goes_on_over_other_stages_to_the_bit(void **state) {
    static struct outcome whole[MAX_REPLICAS], resumed[MAX_REPLICAS];
    static const int ways[][2] = {{2, 3}, {3, 2}, {1, 4}, {4, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        for (int replicas = 1; replicas <= 2; replicas++) {
            struct chain from = shaped(replicas, ways[i][0]), to = shaped(replicas, ways[i][1]);
            from.norms = to.norms = replicas == 1;
            from.frozen = to.frozen = (int)i;
            run((struct part_of){&from, whole, 0, 4, 2, false, NULL});
            run((struct part_of){&to, resumed, 2, 4, -1, true, NULL});
            for (int r = 0; r < replicas; r++) same_weights(&to, &resumed[r], &whole[r]);
            remove_folder(NULL);
            make_folder(NULL);
        }
    }
}

/* What is loaded is what was saved, in any shape, there and back. */
static void every_shape_takes_what_any_other_has_saved(void **state) {
    static struct outcome saved[MAX_REPLICAS], loaded[MAX_REPLICAS];
    static const int shapes[][2] = {{2, 2}, {1, 2}, {2, 1}, {4, 1}, {1, 4}, {1, 1}, {2, 2}};
    (void)state;
    struct chain first = shaped(2, 2);
    run((struct part_of){&first, saved, 0, 2, 2, false, NULL});
    for (size_t i = 1; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct chain c = shaped(shapes[i][0], shapes[i][1]);
        run((struct part_of){&c, loaded, 2, 2, 2, true, NULL}); /* saves what it has loaded */
        for (int r = 0; r < c.replicas; r++) same_weights(&c, &loaded[r], &saved[0]);
    }
    static struct outcome back[MAX_REPLICAS], whole[MAX_REPLICAS];
    run((struct part_of){&first, whole, 0, 4, -1, false, NULL});
    run((struct part_of){&first, back, 2, 4, -1, true, NULL});
    for (int r = 0; r < 2; r++) same_weights(&first, &back[r], &whole[r]);
}

/* Numbers of which nothing has to be rounded: the step after the load is the whole batch's. */
static void an_exact_step_is_the_same_in_every_shape(void **state) {
    static struct outcome whole[MAX_REPLICAS], loaded[MAX_REPLICAS];
    static const int shapes[][2] = {{2, 2}, {1, 2}, {2, 1}, {4, 1}, {1, 4}, {2, 3}};
    (void)state;
    struct chain alone = shaped(1, 1);
    alone.exact = true;
    alone.kind = CHAIN_SGD;
    alone.loss_scale = 8;
    alone.steps = 1;
    run((struct part_of){&alone, whole, 0, 1, 0, false, NULL}); /* saves before its step */
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct chain c = alone;
        c.replicas = shapes[i][0];
        c.ranks = shapes[i][1];
        run((struct part_of){&c, loaded, 0, 1, -1, true, NULL});
        for (int r = 0; r < c.replicas; r++) same_weights(&c, &loaded[r], &whole[0]);
    }
}

static void another_model_is_refused_on_all_ranks(void **state) {
    static struct outcome out[MAX_REPLICAS];
    (void)state;
    struct chain c = shaped(1, 2), plain = c, norms = c;
    run((struct part_of){&c, out, 0, 1, 1, false, NULL});
    norms.norms = true;
    run((struct part_of){&norms, out, 0, 0, -1, true, "does not have 'model/"});
    run((struct part_of){&c, out, 1, 1, 1, true, NULL});
    remove_folder(NULL);
    make_folder(NULL);
    run((struct part_of){&norms, out, 0, 1, 1, false, NULL});
    run((struct part_of){&plain, out, 0, 0, -1, true, "which is part of no rank's program"});
}

/* Both stages call their first layer "0". */
static char *save_with_equal_names(cairn_env *env, void *ctx) {
    const struct part_of *t = ctx;
    struct chain_rank r = {.env = env};
    cairn_state *state = NULL;
    PASS(chain_begin(&r, env, t->c));
    PASS(add_parts(&r, env, &state));
    EXPECT_REFUSED(cairn_state_save(state, folder, 0, NULL), r.rank == 1 ? CAIRN_EINVAL : CAIRN_EPEER,
                   "ranks 0 and 1 have a part 'model/0.0.bias' each, and not the same");
    cairn_state_destroy(&state);
    chain_end(&r);
    return NULL;
}

static void stages_with_the_same_names_are_refused(void **state) {
    static struct outcome out[MAX_REPLICAS];
    (void)state;
    struct chain c = shaped(1, 2);
    c.is_named = false;
    struct part_of t = {.c = &c, .out = out};
    run_ranks(2, save_with_equal_names, &t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_training_goes_on_over_other_stages_to_the_bit, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(every_shape_takes_what_any_other_has_saved, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(an_exact_step_is_the_same_in_every_shape, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(another_model_is_refused_on_all_ranks, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(stages_with_the_same_names_are_refused, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
