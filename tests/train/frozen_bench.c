/* The cost of a frozen trunk: the step of an eight-layer model of which only the last layer is trained, against a
 * forward of the other seven without a graph plus a step of the last layer on its output, alternating in one run.
 *
 * usage: frozen-bench [WIDTH [BATCH]] */
#include <stdlib.h>

#include "../deep_mlp.h"
#include "cairn/cairn.h"
#include "core/trace.h"

enum { LAYERS = 8, WARM_UP = 10, TURNS = 201 };

static void must(cairn_status status) {
    if (status == CAIRN_OK) return;
    fprintf(stderr, "frozen-bench: %s\n", cairn_last_error());
    exit(1);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, TURNS, sizeof(values[0]), by_value);
    return values[TURNS / 2];
}

struct model {
    cairn_module *module;
    cairn_optimizer *adam;
};

static struct model make(cairn_module *module) {
    struct model m = {.module = module};
    must(cairn_adam_create(cairn_module_params(module), NULL, &m.adam));
    return m;
}

static void end(struct model *m) {
    cairn_optimizer_destroy(&m->adam);
    cairn_module_destroy(&m->module);
}

static double step(amp_context *amp, const struct model *m, cairn_tensor *x, cairn_tensor *y) {
    const uint64_t begin = cairn__now_ns();
    cairn_zero_grad(m->adam);
    must(amp_backward(amp, cairn_mse_loss(cairn_module_forward(m->module, x), y), m->adam));
    must(cairn_step(m->adam));
    return (double)(cairn__now_ns() - begin);
}

static double forward(cairn_env *env, const struct model *trunk, cairn_tensor *x) {
    const uint64_t begin = cairn__now_ns();
    cairn_no_grad_begin(env);
    if (!cairn_module_forward(trunk->module, x)) must(CAIRN_EINTERNAL);
    must(cairn_no_grad_end(env));
    return (double)(cairn__now_ns() - begin);
}

static void compare(cairn_env *env, const struct amp_options *options, int64_t width, int64_t batch) {
    static double whole[TURNS], parts[TURNS], ratio[TURNS];
    static const char *const names[] = {[AMP_O0] = "O0", [AMP_O1] = "O1", [AMP_O2] = "O2", [AMP_O3] = "O3"};
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(batch, width));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(batch, width));
    cairn_module *all = make_deep_mlp(env, LAYERS, width), *part = make_deep_mlp(env, LAYERS - 1, width);
    amp_context *amp = NULL;
    must(cairn_param_set_require_grad(cairn_module_params(all), "[0-6].*", CAIRN_OFF));
    must(cairn_param_set_require_grad(cairn_module_params(part), "*", CAIRN_OFF));
    struct model frozen = make(all), trunk = make(part), head = make(cairn_linear(env, width, width));
    must(amp_initialize_all(env, CAIRN_MODULES(all, part, head.module),
                            CAIRN_OPTIMIZERS(frozen.adam, trunk.adam, head.adam), options, &amp));
    for (int t = -WARM_UP; t < TURNS; t++) {
        const double a = step(amp, &frozen, x, y), b = forward(env, &trunk, x) + step(amp, &head, x, y);
        if (t < 0) continue;
        whole[t] = a;
        parts[t] = b;
        ratio[t] = a / b;
    }
    printf("%s %s, the last of %d layers [%lld, %lld] trained, batch %lld: step %.0f us, forward and head %.0f us, "
           "median ratio %.3f\n",
           names[options->opt_level], cairn_dtype_name(options->half_type), LAYERS, (long long)width, (long long)width,
           (long long)batch, median(whole) / 1e3, median(parts) / 1e3, median(ratio));
    amp_destroy(&amp);
    end(&frozen);
    end(&trunk);
    end(&head);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
}

int main(int argc, char **argv) {
    const int64_t width = argc > 1 ? atoll(argv[1]) : 256, batch = argc > 2 ? atoll(argv[2]) : 64;
    static const struct {
        amp_opt_level level;
        cairn_dtype half;
    } levels[] = {{AMP_O0, CAIRN_F16},  {AMP_O1, CAIRN_F16}, {AMP_O1, CAIRN_BF16}, {AMP_O2, CAIRN_F16},
                  {AMP_O2, CAIRN_BF16}, {AMP_O3, CAIRN_F16}, {AMP_O3, CAIRN_BF16}};
    cairn_env *env = NULL;
    must(cairn_env_create(&argc, &argv, NULL, &env));
    for (size_t l = 0; l < sizeof(levels) / sizeof(levels[0]); l++)
        compare(env, amp_options(.opt_level = levels[l].level, .half_type = levels[l].half, .verbosity = -1), width,
                batch);
    cairn_env_destroy(&env);
    return 0;
}
