/* steady_test: the nets of examples 04 to 06, at every level: a step allocates nothing once a few have gone before, and
 * the losses of a batch that is learnt by heart go down. Built once an example, which it includes. */
int example_main(int argc, char **argv);
#define main example_main
#include EXAMPLE
#undef main

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/alloc.h"

enum { WARM_UP = 6, STEADY = 6 };

static const struct {
    amp_opt_level level;
    cairn_dtype half;
} levels[] = {
    {AMP_O0, CAIRN_F16}, {AMP_O1, CAIRN_F16},  {AMP_O1, CAIRN_BF16},
    {AMP_O2, CAIRN_F16}, {AMP_O2, CAIRN_BF16}, {AMP_O3, CAIRN_BF16},
};

static unsigned draw(unsigned n) {
    static unsigned long long state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % n;
}

static void fill_batch(struct trainer *t) {
    static float pixels[BATCH][PIXELS];
    static int64_t classes[BATCH];
    for (int i = 0; i < BATCH; i++) {
        for (int p = 0; p < PIXELS; p++) pixels[i][p] = (float)draw(17) / 8 - 1;
        classes[i] = (int64_t)draw(CLASSES);
    }
    assert_int_equal(cairn_tensor_write(t->x, pixels, BATCH * PIXELS), CAIRN_OK);
    assert_int_equal(cairn_tensor_write(t->y, classes, BATCH), CAIRN_OK);
}

static void steady_steps_allocate_nothing_and_learn(void **state) {
    (void)state;
    const struct training how = {.build = build, .lr = 2e-3};
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        struct trainer t = {.env = NULL};
        assert_int_equal(cairn_env_create(NULL, NULL, NULL, &t.env), CAIRN_OK);
        begin(&t, &how,
              amp_options(.opt_level = levels[i].level, .half_type = levels[i].half, .loss_scale = 128,
                          .verbosity = -1));
        fill_batch(&t);
        const float first = cairn_tensor_item(step(&t));
        for (int s = 1; s < WARM_UP; s++) step(&t);
        const uint64_t before = cairn__alloc_counters().allocations;
        float last = 0;
        for (int s = 0; s < STEADY; s++) last = cairn_tensor_item(step(&t));
        assert_int_equal(cairn__alloc_counters().allocations, before);
        assert_true(last < 0.8f * first);
        end(&t);
        cairn_env_destroy(&t.env);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steady_steps_allocate_nothing_and_learn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
