/* Trains an example's digit classifier for a few steps with ddp, on the ranks that are there.
 *
 * usage: PROGRAM DIGITS.csv LEVEL HALF STEPS     compiled with -DEXAMPLE="\"examples/06_resnet.c\"" */
#define main example_main
#include EXAMPLE
#undef main

#include "record.h"

enum { SOME = 20 }; /* pictures per step: not a multiple of any vector width */

int program_main(int argc, char **argv) {
    static struct digits d;
    static float pixels[SOME][PIXELS];
    static int64_t classes[SOME];
    int64_t batch[SOME];
    struct amp_options options = *amp_options(.verbosity = 0);
    struct cairn_adam_options hyper = CAIRN_ADAMW_OPTIONS_INIT;
    cairn_env *env;
    cairn_optimizer *adamw;
    amp_context *amp;
    ddp_context *net;
    cairn_sampler *sampler;
    if (argc != 5) return 2;
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &env));
    CAIRN_CHECK(amp_opt_level_parse(argv[2], &options.opt_level));
    CAIRN_CHECK(amp_half_type_parse(argv[3], &options.half_type));
    read_digits(argv[1], &d);
    cairn_module *model = build(env);
    if (!model) die(cairn_last_error());
    CAIRN_CHECK(cairn_adamw_create(cairn_module_params(model), &hyper, &adamw));
    CAIRN_CHECK(amp_initialize(env, model, adamw, &options, &amp));
    CAIRN_CHECK(ddp_create(model, cairn_env_group(env), NULL, &net));
    CAIRN_CHECK(cairn_distributed_sampler_create(TRAINED, cairn_env_rank(env), cairn_env_size(env), NULL, &sampler));
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(SOME, 1, 8, 8));
    cairn_tensor *y = cairn_zeros(env, CAIRN_I64, CAIRN_SHAPE(SOME));
    for (long steps = strtol(argv[4], NULL, 10); steps > 0; steps--) {
        if (cairn_sampler_next(sampler, batch, SOME) != SOME) die("that is more steps than an epoch has");
        for (int i = 0; i < SOME; i++) {
            memcpy(pixels[i], d.pixels[batch[i]], sizeof(pixels[i]));
            classes[i] = d.classes[batch[i]];
        }
        CAIRN_CHECK(cairn_tensor_write(x, pixels, SOME * PIXELS));
        CAIRN_CHECK(cairn_tensor_write(y, classes, SOME));
        cairn_zero_grad(adamw);
        cairn_tensor *loss = cairn_cross_entropy(ddp_forward(net, x), y, NULL);
        CAIRN_CHECK(amp_backward(amp, loss, adamw));
        CAIRN_CHECK(cairn_step(adamw));
    }
    cairn_sampler_destroy(&sampler);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&adamw);
    cairn_module_destroy(&model);
    cairn_env_destroy(&env);
    return 0;
}
