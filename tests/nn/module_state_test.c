/* The state that a module saves: parameters and buffers by path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "../state_in_memory.h"

static cairn_module *make_net(cairn_env *env) {
    cairn_module *const layers[] = {cairn_linear(env, 3, 4), cairn_batch_norm(env, 4, 1e-5, 0.1),
                                    cairn_dropout(env, 0.5), cairn_linear(env, 4, 2)};
    cairn_module *net = cairn_sequential(env, 4, layers);
    assert_non_null(net);
    return net;
}

static void train(cairn_module *net, cairn_tensor *x, int times) {
    for (int i = 0; i < times; i++) {
        OK(cairn_backward(cairn_mean(cairn_module_forward(net, x))));
        cairn_module_zero_grad(net);
    }
}

static void running_statistics_come_back_and_dropout_goes_on(void **state) {
    cairn_env *env = *state;
    struct kept_state kept = {.count = 0}, want = {.count = 0}, got = {.count = 0};
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(6, 3));
    cairn_module *net = make_net(env);
    train(net, x, 3);
    cairn_stateful of[] = {cairn_module_stateful(net), cairn__env_stateful(env)};
    CALM(keep_state(&kept, of, 2));
    assert_non_null(cairn__entries_find(&kept.objects[0].entries, "0.weight"));
    assert_non_null(cairn__entries_find(&kept.objects[0].entries, "1.running_mean"));
    train(net, x, 2);
    CALM(keep_state(&want, of, 2));
    cairn_module_destroy(&net);

    net = make_net(env); /* other weights, and streams that are further on */
    train(net, x, 1);
    of[0] = cairn_module_stateful(net);
    CALM(bring_back(&kept, of, 2));
    CALM(keep_state(&got, of, 2));
    CALM(same_states(&kept, &got));
    train(net, x, 2);
    CALM(keep_state(&got, of, 2));
    CALM(same_states(&want, &got));
    cairn_module_destroy(&net);
    cairn_tensor_destroy(&x);
    drop_state(&kept);
    drop_state(&want);
    drop_state(&got);
}

static void the_training_mode_is_the_programs(void **state) {
    struct kept_state kept = {.count = 0};
    cairn_module *net = make_net(*state);
    const cairn_stateful of = cairn_module_stateful(net);
    CALM(keep_state(&kept, &of, 1));
    cairn_module_train(net, 0);
    CALM(bring_back(&kept, &of, 1));
    assert_false(cairn_module_is_training(net));
    cairn_module_destroy(&net);
    drop_state(&kept);
}

static void a_module_of_another_is_refused(void **state) {
    cairn_module *const first = cairn_linear(*state, 3, 4);
    cairn_module *net = cairn_sequential(*state, 1, &first);
    struct cairn__entries entries = {.env = *state};
    const cairn_stateful of = cairn_module_stateful(first);
    REFUSED(of.ops->list(of.object, &entries), CAIRN_ESTATE, "the Linear is '0' of another module");
    cairn__entries_clear(&entries);
    cairn_module_destroy(&net);
}

static void no_module_gives_a_handle_of_nothing(void **state) {
    (void)state;
    const cairn_stateful of = cairn_module_stateful(NULL), set = cairn_param_set_stateful(NULL);
    assert_null(of.object);
    assert_null(set.object);
    assert_non_null(of.ops);
    assert_non_null(set.ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(running_statistics_come_back_and_dropout_goes_on),
        cmocka_unit_test(the_training_mode_is_the_programs),
        cmocka_unit_test(a_module_of_another_is_refused),
        cmocka_unit_test(no_module_gives_a_handle_of_nothing),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
