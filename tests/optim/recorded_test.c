/* Captured steps of optimizers whose norms, counts and clipping stay on the device give the same bits as called
 * steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../one_env.h"
#include "recorded.h"

static cairn_status make_lamb(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT;
    h.max_grad_norm = 0.25; /* below the norm that the step clips to itself */
    return cairn_lamb_create(set, &h, out);
}

static cairn_status make_nvlamb(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT;
    h.nvlamb = CAIRN_ON, h.max_grad_norm = 0;
    return cairn_lamb_create(set, &h, out);
}

static cairn_status make_novograd(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_novograd_create(set, NULL, out);
}

static cairn_status make_novograd_by_greatest(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_novograd_options h = CAIRN_NOVOGRAD_OPTIONS_INIT;
    h.max_norm = h.init_zero = CAIRN_ON;
    return cairn_novograd_create(set, &h, out);
}

static cairn_status with_larc(cairn_status made, cairn_switch clips, cairn_optimizer *const *out) {
    struct cairn_larc_options h = CAIRN_LARC_OPTIONS_INIT;
    h.clip = clips;
    return made == CAIRN_OK ? cairn_optimizer_set_larc(*out, &h) : made;
}

static cairn_status make_larc_on_sgd(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.momentum = 0.9, h.weight_decay = 0.1;
    return with_larc(cairn_sgd_create(set, &h, out), CAIRN_ON, out);
}

static cairn_status make_larc_on_adam(cairn_param_set *set, cairn_optimizer **out) {
    return with_larc(cairn_adam_create(set, NULL, out), CAIRN_OFF, out);
}

static cairn_status make_lion(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_lion_create(set, NULL, out);
}

static cairn_status make_adagrad(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_adagrad_create(set, NULL, out);
}

static cairn_status make_amsgrad(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_adam_options h = CAIRN_ADAM_OPTIONS_INIT;
    h.amsgrad = CAIRN_ON;
    return cairn_adam_create(set, &h, out);
}

static void recorded_steps_of_lamb_have_the_bits_of_called_ones(void **state) {
    assert_recorded_as_called(*state, make_lamb);
    assert_recorded_as_called(*state, make_nvlamb);
}

static void recorded_steps_of_novograd_have_the_bits_of_called_ones(void **state) {
    assert_recorded_as_called(*state, make_novograd);
    assert_recorded_as_called(*state, make_novograd_by_greatest);
}

static void recorded_steps_under_larc_have_the_bits_of_called_ones(void **state) {
    assert_recorded_as_called(*state, make_larc_on_sgd);
    assert_recorded_as_called(*state, make_larc_on_adam);
}

static void recorded_steps_of_one_pass_have_the_bits_of_called_ones(void **state) {
    assert_recorded_as_called(*state, make_lion);
    assert_recorded_as_called(*state, make_adagrad);
    assert_recorded_as_called(*state, make_amsgrad);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_steps_of_lamb_have_the_bits_of_called_ones),
        cmocka_unit_test(recorded_steps_of_novograd_have_the_bits_of_called_ones),
        cmocka_unit_test(recorded_steps_under_larc_have_the_bits_of_called_ones),
        cmocka_unit_test(recorded_steps_of_one_pass_have_the_bits_of_called_ones),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
