/* steady_test: the nets of examples 05 to 07 at every level. After a few steps a step allocates nothing; the losses on
 * a single batch fall; and if CAIRN_DEVICE names a GPU they equal the CPU's as closely as the level allows. Built once
 * per example, which it includes. */
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

enum { WARM_UP = 6, STEADY = 6, STEPS = WARM_UP + STEADY };

/* apart: how far a device's loss may be from the CPU's, relative to that; AdamW moves a weight whose gradient is all
 * rounding by the learning rate (devices_agree.c). */
static const struct {
    amp_opt_level level;
    cairn_dtype half;
    double apart;
} levels[] = {
    {AMP_O0, CAIRN_F16, 2e-3}, {AMP_O1, CAIRN_F16, 2e-2},  {AMP_O1, CAIRN_BF16, 6e-2},
    {AMP_O2, CAIRN_F16, 2e-2}, {AMP_O2, CAIRN_BF16, 6e-2}, {AMP_O3, CAIRN_BF16, 8e-2},
};

static unsigned long long drawn;

static unsigned draw(unsigned n) {
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(drawn >> 33) % n;
}

static void fill_batch(struct trainer *t) {
    static float pixels[BATCH][PIXELS];
    static int64_t classes[BATCH];
    drawn = 1;
    for (int i = 0; i < BATCH; i++) {
        for (int p = 0; p < PIXELS; p++) pixels[i][p] = (float)draw(17) / 8 - 1;
        classes[i] = (int64_t)draw(CLASSES);
    }
    assert_int_equal(cairn_tensor_write(t->x, pixels, BATCH * PIXELS), CAIRN_OK);
    assert_int_equal(cairn_tensor_write(t->y, classes, BATCH), CAIRN_OK);
}

/* The losses of all steps, on a device; NULL = CAIRN_DEVICE, or the CPU. */
static void train(const char *device, size_t level, float losses[STEPS]) {
    const struct training how = {.build = build, .lr = 2e-3};
    struct trainer t = {.env = NULL};
    uint64_t before = 0;
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.device = device), &t.env), CAIRN_OK);
    begin(&t, &how,
          amp_options(.opt_level = levels[level].level, .half_type = levels[level].half, .loss_scale = 128,
                      .verbosity = -1));
    fill_batch(&t);
    for (int s = 0; s < STEPS; s++) {
        if (s == WARM_UP) before = cairn__alloc_counters().allocations;
        losses[s] = cairn_tensor_item(step(&t));
    }
    assert_int_equal(cairn__alloc_counters().allocations, before);
    end(&t);
    cairn_env_destroy(&t.env);
}

static void steady_steps_allocate_nothing_and_learn(void **state) {
    (void)state;
    const char *device = getenv("CAIRN_DEVICE");
    for (size_t l = 0; l < sizeof(levels) / sizeof(levels[0]); l++) {
        float losses[STEPS], of_cpu[STEPS];
        double most = 0;
        train(NULL, l, losses);
        assert_true(losses[STEPS - 1] < 0.8f * losses[0]);
        if (!device || strcmp(device, "cpu") == 0) continue;
        train("cpu", l, of_cpu);
        for (int s = 0; s < STEPS; s++) most = fmax(most, fabs((double)losses[s] / (double)of_cpu[s] - 1));
        print_message("level %zu: %g of the CPU's losses apart\n", l, most);
        assert_true(most <= levels[l].apart);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steady_steps_allocate_nothing_and_learn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
