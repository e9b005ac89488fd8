/* A ResNet in two parts, split at any block, loads its weights from the whole model's file and computes the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../../examples/resnet/resnet.h"
#include "../one_env.h"
#include "../state/folder.h"

enum { CLASSES = 5, ROWS = 2, SIZE = 32 };

static void load(cairn_module *part, const char *path) {
    struct cairn_weights_report report = CAIRN_WEIGHTS_REPORT_INIT;
    OK(cairn_module_load(part, path, cairn_weights_options(.strict = CAIRN_OFF), &report));
    assert_int_equal(report.missing, 0); /* the rest is the other part's */
    assert_int_equal(report.other_shape, 0);
    cairn_module_train(part, 0);
}

static void a_net_in_two_parts_computes_the_same_as_the_whole(void **state) {
    static const int depths[] = {18, 50};
    cairn_env *env = *state;
    const char *path = in_folder("whole.safetensors");
    float want[ROWS * CLASSES], got[ROWS * CLASSES];
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, 3, SIZE, SIZE));
    for (int d = 0; d < 2; d++) {
        struct resnet_options options = {.depth = depths[d], .classes = CLASSES, .width = 4};
        cairn_module *whole = resnet_create(env, &options);
        OK(cairn_module_save(whole, path, NULL));
        cairn_module_train(whole, 0);
        cairn_no_grad_begin(env);
        OK(cairn_tensor_read(cairn_module_forward(whole, x), want, ROWS * CLASSES));
        OK(cairn_no_grad_end(env));
        for (int cut = 1; cut < resnet_num_blocks(depths[d]); cut++) {
            struct resnet_options first = options, second = options;
            first.end_block = second.first_block = cut;
            cairn_module *a = resnet_create(env, &first), *b = resnet_create(env, &second);
            load(a, path);
            load(b, path);
            cairn_no_grad_begin(env);
            OK(cairn_tensor_read(cairn_module_forward(b, cairn_module_forward(a, x)), got, ROWS * CLASSES));
            OK(cairn_no_grad_end(env));
            assert_memory_equal(got, want, sizeof(got));
            cairn_module_destroy(&a);
            cairn_module_destroy(&b);
        }
        cairn_module_destroy(&whole);
    }
    cairn_tensor_destroy(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_net_in_two_parts_computes_the_same_as_the_whole, make_env, end_env),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
