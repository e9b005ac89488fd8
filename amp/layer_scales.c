/* A chain of layers with one scale each: creation and updates. Backward divides parameters' gradients as it writes them
 * (struct cairn__param.grad_factor), so ddp, clipping and steps need not know the scales. */
#include "cairn/layer_scales.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "layer_chain.h"
#include "nn/hooks.h"
#include "param/param.h"

/* ---- making ---- */

static void end_chain(void *context) {
    struct cairn__chain *c = context;
    if (!c) return;
    cairn__device_free(c->env->device, c->census);
    cairn__device_free(c->env->device, c->norms);
    cairn__free(c->children);
    cairn__free(c->links);
    cairn__free(c->types);
    cairn__free(c->elements);
    cairn__free(c->said);
    cairn__free(c);
}

static bool is_power_of_two(double x) {
    int exponent;
    return frexp(x, &exponent) == 0.5;
}

static cairn_status read_rule(const struct amp_sequential_options *options, struct cairn__layer_rule *rule) {
    static const char name[] = "amp_sequential_options";
    struct amp_sequential_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), options, name));
    if (o.underflow_share == 0) o.underflow_share = 1e-3;
    if (o.headroom == 0) o.headroom = 16;
    if (o.max_layer_scale == 0) o.max_layer_scale = 16;
    if (o.max_scale == 0) o.max_scale = 1024;
    REQUIRE(o.underflow_share > 0 && o.underflow_share < 1, CAIRN_EINVAL,
            "%s: underflow_share is %g; it must be a number between 0 and 1, both excluded", name, o.underflow_share);
    REQUIRE(o.headroom >= 1 && o.headroom <= 65536, CAIRN_EINVAL,
            "%s: headroom is %g; it must be a number from 1 to 65536", name, o.headroom);
    const double bounds[] = {o.max_layer_scale, o.max_scale};
    for (int i = 0; i < 2; i++) {
        REQUIRE(bounds[i] >= 1 && bounds[i] <= 0x1p24 && is_power_of_two(bounds[i]), CAIRN_EINVAL,
                "%s: %s is %g; it must be a power of two from 1 to 2^24", name, i ? "max_scale" : "max_layer_scale",
                bounds[i]);
    }
    *rule = (struct cairn__layer_rule){.q = cairn__normal_quantile(o.underflow_share),
                                       .headroom = o.headroom,
                                       .max_layer_scale = o.max_layer_scale,
                                       .max_scale = o.max_scale};
out:
    return st;
}

static cairn_status make_chain(cairn_env *env, int count, const struct amp_sequential_options *options,
                               struct cairn__chain **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__chain *c = NULL;
    REQUIRE(env, CAIRN_EINVAL, "amp_sequential: env is NULL");
    const size_t n = (size_t)count;
    TRY(cairn__calloc(1, sizeof(*c), (void **)&c));
    c->env = env;
    c->count = n;
    TRY(read_rule(options, &c->rule));
    TRY(cairn__calloc(n, sizeof(c->children[0]), (void **)&c->children));
    TRY(cairn__calloc(n + 1, sizeof(c->links[0]), (void **)&c->links));
    TRY(cairn__calloc(n, sizeof(c->types[0]), (void **)&c->types));
    TRY(cairn__calloc(n, sizeof(c->elements[0]), (void **)&c->elements));
    TRY(cairn__calloc(2 * (size_t)env->size, sizeof(c->said[0]), (void **)&c->said));
    TRY(cairn__device_alloc(env->device, CAIRN__HOLDS_STATE, n * sizeof(c->census[0]), (void **)&c->census));
    TRY(cairn__device_alloc(env->device, CAIRN__HOLDS_STATE, n * sizeof(c->norms[0]), (void **)&c->norms));
    for (size_t i = 0; i <= n; i++) c->links[i] = (struct cairn__link){c, i};
    *out = c;
    return CAIRN_OK;
out:
    end_chain(c);
    return st;
}

/* The parameters of child i have names that begin with "i.". */
static cairn_status divide_gradients(const struct cairn__chain *c, struct cairn_param_set *set) {
    const float *scales = cairn__tensor_memory(c->buffer);
    for (size_t i = 0; i < set->count; i++) {
        REQUIRE(!set->params[i]->grad_factor, CAIRN_EINVAL,
                "amp_sequential: '%s' is in another amp_sequential inside this one; give all their children to one",
                set->params[i]->name);
    }
    for (size_t i = 0; i < set->count; i++) {
        const unsigned long child = strtoul(set->params[i]->name, NULL, 10);
        set->params[i]->grad_factor = &scales[c->count + child];
    }
    return CAIRN_OK;
}

static cairn_status build(struct cairn__chain *c, cairn_module *module, cairn_module *const *children, int *taken) {
    const int64_t shape[] = {2, (int64_t)c->count};
    char number[16];
    cairn_status st = CAIRN_OK;
    c->buffer = cairn_module_add_buffer(module, "layer_scales", CAIRN_F32, 2, shape);
    if (!c->buffer) return cairn__last_status();
    TRY(cairn_buffer_keep_type(c->buffer));
    TRY(cairn_init_constant(c->buffer, 1));
    while ((size_t)*taken < c->count) {
        const int i = (*taken)++;
        snprintf(number, sizeof(number), "%d", i);
        c->children[i] = cairn_module_add_child(module, number, children[i]);
        if (!c->children[i]) return cairn__last_status();
    }
    st = divide_gradients(c, cairn_module_params(module));
out:
    return st;
}

static bool is_before(cairn_module *const *children, int i) {
    for (int k = 0; k < i; k++) {
        if (children[k] == children[i]) return true;
    }
    return false;
}

static cairn_status check_children(int count, cairn_module *const *children) {
    static const char call[] = "amp_sequential";
    REQUIRE(count > 0 && children, CAIRN_EINVAL, "%s: %d children; at least one must be given", call, count);
    for (int i = 0; i < count; i++) {
        REQUIRE(!children[i] || !is_before(children, i), CAIRN_EINVAL, "%s: child %d is there already", call, i);
    }
    return CAIRN_OK;
}

static const struct cairn_module_ops chain_ops = {.struct_size = sizeof(chain_ops),
                                                  .name = "amp_sequential",
                                                  .forward = cairn__chain_run,
                                                  .destroy = end_chain};

cairn_module *amp_sequential(cairn_env *env, int count, cairn_module *const *children,
                             const struct amp_sequential_options *options) {
    struct cairn__chain *c = NULL;
    cairn_module *module = NULL;
    int taken = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_children(count, children));
    TRY(make_chain(env, count, options, &c));
    module = cairn_module_create(env, &chain_ops, c);
    if (module) TRY(build(c, module, children, &taken));
    if (module) return module;
out:
    for (int i = taken; children && i < count; i++) {
        cairn_module *child = children[i];
        if (child && !is_before(children, i)) cairn_module_destroy(&child);
    }
    cairn_module_destroy(&module);
    return NULL;
}

/* ---- updates ---- */

static struct cairn__chain *chain_of(const cairn_module *module, const char *call) {
    struct cairn__chain *c = module ? cairn__module_context_by(module, cairn__chain_run) : NULL;
    if (!c) (void)cairn__fail(CAIRN_EINVAL, "%s: the module must be one that amp_sequential made", call);
    return c;
}

static cairn_status read_own(const struct cairn__chain *c, struct cairn__layer_gradient *own) {
    struct cairn_device *d = c->env->device;
    struct cairn__census *census = NULL;
    double *norms = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(c->count, sizeof(census[0]), (void **)&census));
    TRY(cairn__calloc(c->count, sizeof(norms[0]), (void **)&norms));
    TRY(cairn__device_download(d, census, c->census, c->count * sizeof(census[0])));
    TRY(cairn__device_download(d, norms, c->norms, c->count * sizeof(norms[0])));
    for (size_t i = 0; i < c->count; i++) {
        if (!c->types[i]) continue;
        own[i].nonfinite = (int64_t)(census[i].infs + census[i].nans);
        own[i].count = c->elements[i] - (int64_t)census[i].zeros;
        own[i].squares = own[i].nonfinite ? 0 : norms[i] * norms[i];
        own[i].largest = census[i].largest;
        cairn__layer_range(c->types[i], &own[i].least, &own[i].most);
    }
out:
    cairn__free(census);
    cairn__free(norms);
    return st;
}

/* own is this rank's status so far. Checks that all ranks succeeded and have equal chains. */
static cairn_status agree(const struct cairn__chain *c, cairn_status own) {
    const int32_t mine[2] = {(int32_t)c->count, own == CAIRN_OK};
    cairn_status st = CAIRN_OK;
    if (c->env->size == 1) return own;
    TRY(c->env->gather(c->env, c->said, mine, 2));
    if (own != CAIRN_OK) return own;
    for (int r = 0; r < c->env->size; r++) {
        REQUIRE(c->said[2 * r + 1], CAIRN_EPEER,
                "amp_sequential_update: rank %d could not read its gradients; its message says why", r);
        REQUIRE(c->said[2 * r] == mine[0], CAIRN_EINVAL,
                "amp_sequential_update: rank %d has %d children, this rank %d; all ranks must have the same chain, and "
                "stages of a pipeline have not",
                r, (int)c->said[2 * r], (int)mine[0]);
    }
out:
    return st;
}

/* Adds up in rank order, so that all ranks get the same sums. The range is that of any rank that has one. */
static cairn_status exchange(const struct cairn__chain *c, struct cairn__layer_gradient *gradients) {
    const size_t size = (size_t)c->env->size, words = c->count * sizeof(gradients[0]) / sizeof(int32_t);
    struct cairn__layer_gradient *all = NULL;
    cairn_status st = CAIRN_OK;
    if (size == 1) return CAIRN_OK;
    TRY(cairn__calloc(size * c->count, sizeof(all[0]), (void **)&all));
    TRY(c->env->gather(c->env, (int32_t *)(void *)all, (const int32_t *)(const void *)gradients, words));
    memset(gradients, 0, c->count * sizeof(gradients[0]));
    for (size_t i = 0; i < size * c->count; i++) {
        const struct cairn__layer_gradient *of = &all[i];
        struct cairn__layer_gradient *sum = &gradients[i % c->count];
        sum->squares += of->squares;
        sum->count += of->count;
        sum->nonfinite += of->nonfinite;
        if (of->largest > sum->largest) sum->largest = of->largest;
        if (of->least > sum->least) sum->least = of->least, sum->most = of->most;
    }
out:
    cairn__free(all);
    return st;
}

cairn_status amp_sequential_update(cairn_module *module) {
    const struct cairn__chain *c = chain_of(module, "amp_sequential_update");
    struct cairn__layer_gradient *gradients = NULL;
    float *scales = NULL;
    double *a = NULL, product = 1;
    cairn_status st = CAIRN_OK;
    if (!c) return CAIRN_EINVAL;
    struct cairn_device *d = c->env->device;
    TRY(cairn__device_refuse_recording(d, "gradients have no values yet; call amp_sequential_update between replays"));
    TRY(cairn__calloc(c->count, sizeof(gradients[0]), (void **)&gradients));
    TRY(cairn__calloc(2 * c->count, sizeof(scales[0]), (void **)&scales));
    TRY(cairn__calloc(c->count, sizeof(a[0]), (void **)&a));
    TRY(cairn__device_download(d, scales, cairn__tensor_memory(c->buffer), 2 * c->count * sizeof(scales[0])));
    TRY(agree(c, read_own(c, gradients)));
    TRY(exchange(c, gradients));
    for (size_t i = 0; i < c->count; i++) a[i] = (double)scales[i];
    cairn__layer_scales_next(&c->rule, gradients, a, c->count);
    for (size_t i = c->count; i-- > 0;) {
        product *= a[i];
        scales[i] = (float)a[i];
        scales[c->count + i] = (float)(1 / product);
    }
    TRY(cairn__device_upload(d, cairn__tensor_memory(c->buffer), scales, 2 * c->count * sizeof(scales[0])));
out:
    cairn__free(gradients);
    cairn__free(scales);
    cairn__free(a);
    return st;
}

cairn_status amp_sequential_scales(const cairn_module *module, double *scales, size_t count) {
    static const char call[] = "amp_sequential_scales";
    const struct cairn__chain *c = chain_of(module, call);
    float *held = NULL;
    cairn_status st = CAIRN_OK;
    if (!c) return CAIRN_EINVAL;
    REQUIRE(scales && count == c->count, CAIRN_EINVAL, "%s: count is %zu, but the module has %zu children", call, count,
            c->count);
    TRY(cairn__device_refuse_recording(c->env->device, "read scales between replays"));
    TRY(cairn__calloc(2 * count, sizeof(held[0]), (void **)&held));
    TRY(cairn__device_download(c->env->device, held, cairn__tensor_memory(c->buffer), 2 * count * sizeof(held[0])));
    for (size_t i = 0; i < count; i++) scales[i] = 1 / (double)held[count + i];
out:
    cairn__free(held);
    return st;
}
