/* accumulation_memory_test: a step of 32 micro-batches needs the memory of one micro-batch plus the accumulated f32
 * gradients, for the nets of examples 05 to 07, at every level; CAIRN_TEST_SHORT in the environment: at O0, O2 in f16
 * and O3. Built once per example, which it includes. Each training is a process of its own, whose peak resident memory
 * the system reports. */
int example_main(int argc, char **argv);
#define main example_main
#include EXAMPLE
#undef main

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "../check.h"
#include "param/param.h"

enum { ROWS = 512, MANY = 32 };

static const struct amp_options levels[] = {{.opt_level = AMP_O0, .half_type = CAIRN_F16},
                                            {.opt_level = AMP_O1, .half_type = CAIRN_F16},
                                            {.opt_level = AMP_O2, .half_type = CAIRN_F16},
                                            {.opt_level = AMP_O2, .half_type = CAIRN_BF16},
                                            {.opt_level = AMP_O3, .half_type = CAIRN_BF16}};

static void micro_batch(struct trainer *t, cairn_tensor *x, cairn_tensor *y, int of) {
    cairn_tensor *loss = cairn_cross_entropy(cairn_module_forward(t->model, x), y, NULL);
    CAIRN_CHECK(amp_backward(t->amp, cairn_mul_scalar(loss, 1.0 / of), t->adamw));
}

static void train(const struct amp_options *level, int steps, int micro_batches, bool releases) {
    struct trainer t = {.env = NULL};
    const struct training how = {.build = build, .lr = 1e-3};
    struct amp_options amp = *level;
    amp.struct_size = sizeof(amp);
    amp.verbosity = -1;
    amp.loss_scale = 128;
    CAIRN_CHECK(cairn_env_create(NULL, NULL, NULL, &t.env));
    begin(&t, &how, &amp);
    cairn_tensor *x = cairn_randn(t.env, CAIRN_F32, CAIRN_SHAPE(ROWS, 1, 8, 8));
    cairn_tensor *y = cairn_zeros(t.env, CAIRN_I64, CAIRN_SHAPE(ROWS));
    for (int s = 0; s < steps; s++) {
        cairn_zero_grad(t.adamw);
        for (int m = 0; m < micro_batches; m++) {
            micro_batch(&t, x, y, micro_batches);
            if (releases) CAIRN_CHECK(cairn_release_results(t.env));
        }
        CAIRN_CHECK(cairn_step(t.adamw));
    }
}

/* In bytes. */
static double peak_of(const struct amp_options *level, int steps, int micro_batches, bool releases) {
    struct rusage use;
    int status = -1;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        train(level, steps, micro_batches, releases);
        _exit(0);
    }
    assert_int_equal(wait4(child, &status, 0, &use), child);
    assert_int_equal(status, 0);
    return (double)use.ru_maxrss * 1024;
}

static double accumulators(void) {
    cairn_env *env = NULL;
    CAIRN_CHECK(cairn_env_create(NULL, NULL, NULL, &env));
    cairn_module *model = build(env);
    const struct cairn_param_set *set = cairn_module_params(model);
    double nbytes = 0;
    for (size_t i = 0; i < set->count; i++) nbytes += (double)set->params[i]->n * sizeof(float);
    cairn_module_destroy(&model);
    cairn_env_destroy(&env);
    return nbytes;
}

/* Of one: a second step, when what the first needed is known. What is not released is what the program got: scores,
 * losses, what is between them; and gaps that do not fit. */
static void many_micro_batches_take_the_memory_of_one(void **state) {
    const double sums = accumulators(), results = 4.0 * MANY * ROWS * CLASSES * sizeof(float);
    (void)state;
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i += check_is_short() ? 2 : 1) {
        const double one = peak_of(&levels[i], 2, 1, true), many = peak_of(&levels[i], 1, MANY, true),
                     kept = peak_of(&levels[i], 1, MANY, false);
        printf("O%d %-4s: %.1f MB for one, %.1f MB for %d, %.1f MB where none is released; sums %.1f MB\n",
               (int)levels[i].opt_level - (int)AMP_O0, cairn_dtype_name(levels[i].half_type), one / 1e6, many / 1e6,
               MANY, kept / 1e6, sums / 1e6);
        assert_true(many <= 1.02 * one + sums);
        assert_true(kept <= 1.15 * one + sums + results);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_micro_batches_take_the_memory_of_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
