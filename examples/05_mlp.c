/* A four-layer perceptron that classifies handwritten digits, at any opt level. digits.h shows how to run it. */
#include "digits.h"

static cairn_module *build(cairn_env *env) {
    return cairn_sequential(env, CAIRN_MODULES(cairn_flatten_from(env, 1),                                        /**/
                                               cairn_linear(env, PIXELS, 256), cairn_activation(env, cairn_relu), /**/
                                               cairn_linear(env, 256, 256), cairn_activation(env, cairn_relu),    /**/
                                               cairn_linear(env, 256, 128), cairn_activation(env, cairn_relu),    /**/
                                               cairn_linear(env, 128, CLASSES)));
}

int main(int argc, char **argv) {
    const struct training how = {.build = build, .epochs = 30, .lr = 2e-3, .weight_decay = 1e-2};
    return digits_main(argc, argv, how);
}
