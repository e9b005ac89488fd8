/* torch.nn.Conv1d, Conv2d and the pools. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/options.h"
#include "core/status.h"
#include "nn/module.h"
#include "nn/ops_planes.h"
#include "nn/tensor.h"

/* ---- convolution ---- */

struct conv {
    int dims; /* 1 or 2 */
    cairn_tensor *weight, *bias;
    struct cairn_conv_options options;
};

static cairn_tensor *conv(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct conv *c = context;
    return c->dims == 1 ? cairn_conv1d_forward(inputs[0], c->weight, c->bias, &c->options)
                        : cairn_conv2d_forward(inputs[0], c->weight, c->bias, &c->options);
}

/* ", stride=(1, 2)" */
static int describe_pair(char *text, size_t nbytes, const char *name, int dims, const int64_t *v) {
    return dims == 1 ? snprintf(text, nbytes, ", %s=(%" PRId64 ",)", name, v[0])
                     : snprintf(text, nbytes, ", %s=(%" PRId64 ", %" PRId64 ")", name, v[0], v[1]);
}

static void describe_conv(const void *context, char *text, size_t nbytes) {
    const struct conv *c = context;
    const struct cairn_conv_options *o = &c->options;
    const int64_t *w = c->weight->shape, kernel[2] = {w[2], w[2]};
    size_t used = (size_t)snprintf(text, nbytes, "%" PRId64 ", %" PRId64, w[1] * o->groups, w[0]);
    used += (size_t)describe_pair(text + used, nbytes - used, "kernel_size", c->dims, kernel);
    used += (size_t)describe_pair(text + used, nbytes - used, "stride", c->dims, o->stride);
    int64_t padding[2];
    cairn__option_padding(padding, o->padding);
    if (padding[0] || padding[1])
        used += (size_t)describe_pair(text + used, nbytes - used, "padding", c->dims, padding);
    if (o->dilation[0] > 1 || o->dilation[1] > 1)
        used += (size_t)describe_pair(text + used, nbytes - used, "dilation", c->dims, o->dilation);
    if (o->groups > 1) used += (size_t)snprintf(text + used, nbytes - used, ", groups=%" PRId64, o->groups);
    if (!c->bias) snprintf(text + used, nbytes - used, ", bias=False");
}

static const struct cairn__module_kind conv_kinds[] = {
    [1] = {.name = "Conv1d", .forward = conv, .describe = describe_conv},
    [2] = {.name = "Conv2d", .forward = conv, .describe = describe_conv},
};

/* {2, 0} is {2, 2}, and {0, 0} is {otherwise, otherwise}. */
static void complete_pair(int64_t pair[2], int64_t otherwise) {
    if (pair[0] == 0) pair[0] = otherwise;
    if (pair[1] == 0) pair[1] = pair[0];
}

static cairn_status check_steps(const char *what, const int64_t stride[2], const int64_t padding[2],
                                const int64_t dilation[2]) {
    for (int i = 0; i < 2; i++) {
        REQUIRE(stride[i] > 0 && padding[i] >= 0 && dilation[i] > 0, CAIRN_EINVAL,
                "%s: stride %" PRId64 ", padding %" PRId64 ", dilation %" PRId64 "; none must be negative", what,
                stride[i], padding[i], dilation[i]);
    }
    return CAIRN_OK;
}

static cairn_status create_conv(cairn_env *env, int dims, int64_t in, int64_t channels, int64_t kernel,
                                const struct cairn_conv_options *given, cairn_module **out) {
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    const char *what = dims == 1 ? "conv1d" : "conv2d";
    struct cairn_conv_options o = {.struct_size = sizeof(o)};
    TRY(cairn__options_read(&o, sizeof(o), given, "cairn_conv_options"));
    complete_pair(o.stride, 1);
    complete_pair(o.dilation, 1);
    if (o.groups == 0) o.groups = 1;
    REQUIRE(in > 0 && channels > 0 && kernel > 0, CAIRN_EINVAL,
            "%s: %" PRId64 " channels to %" PRId64 ", kernel %" PRId64 "; all must be positive", what, in, channels,
            kernel);
    REQUIRE(o.groups > 0 && in % o.groups == 0 && channels % o.groups == 0, CAIRN_EINVAL,
            "%s: %" PRId64 " groups do not divide %" PRId64 " and %" PRId64 " channels", what, o.groups, in, channels);
    REQUIRE(o.output_padding[0] == 0 && o.output_padding[1] == 0, CAIRN_EINVAL,
            "%s: output_padding is for transposed convolutions", what);
    int64_t padding[2];
    cairn__option_padding(padding, o.padding);
    TRY(check_steps(what, o.stride, padding, o.dilation));
    TRY(cairn__module_create(env, &conv_kinds[dims], sizeof(struct conv), &m));
    struct conv *c = m->context;
    c->dims = dims;
    c->options = o;
    const int64_t shape[] = {channels, in / o.groups, kernel, kernel};
    const double fan_in = (double)shape[1] * (double)kernel * (dims == 2 ? (double)kernel : 1.0);
    const float bound = (float)(1.0 / sqrt(fan_in));
    TRY(cairn__module_add_param(m, "weight", 2 + dims, shape, false, &c->weight));
    if (o.bias != CAIRN_OFF) TRY(cairn__module_add_param(m, "bias", 1, shape, false, &c->bias));
    cairn__param_init_uniform(c->weight->param, bound);
    if (c->bias) cairn__param_init_uniform(c->bias->param, bound);
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

cairn_module *cairn_conv2d(cairn_env *env, int64_t in, int64_t out, int64_t kernel,
                           const struct cairn_conv_options *options) {
    cairn_module *m = NULL;
    return create_conv(env, 2, in, out, kernel, options, &m) == CAIRN_OK ? m : NULL;
}

cairn_module *cairn_conv1d(cairn_env *env, int64_t in, int64_t out, int64_t kernel,
                           const struct cairn_conv_options *options) {
    cairn_module *m = NULL;
    return create_conv(env, 1, in, out, kernel, options, &m) == CAIRN_OK ? m : NULL;
}

/* ---- pools ---- */

struct pool {
    int64_t h, w; /* the kernel; of an adaptive pool the output */
    struct cairn_pool_options options;
};

static cairn_tensor *max_pool(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct pool *p = context;
    return cairn_max_pool2d(inputs[0], p->h, p->w, &p->options);
}

static cairn_tensor *avg_pool(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct pool *p = context;
    return cairn_avg_pool2d(inputs[0], p->h, p->w, &p->options);
}

static cairn_tensor *adaptive_avg_pool(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct pool *p = context;
    return cairn_adaptive_avg_pool2d(inputs[0], p->h, p->w);
}

static void describe_pool(const void *context, char *text, size_t nbytes) {
    const struct pool *p = context;
    const struct cairn_pool_options *o = &p->options;
    int n = snprintf(text, nbytes, "kernel_size=%" PRId64, p->h);
    n += describe_pair(text + n, nbytes - (size_t)n, "stride", 2, o->stride);
    int64_t padding[2];
    cairn__option_padding(padding, o->padding);
    describe_pair(text + n, nbytes - (size_t)n, "padding", 2, padding);
}

static void describe_adaptive(const void *context, char *text, size_t nbytes) {
    const struct pool *p = context;
    snprintf(text, nbytes, "output_size=(%" PRId64 ", %" PRId64 ")", p->h, p->w);
}

static const struct cairn__module_kind max_pool_kind = {.name = "MaxPool2d",
                                                        .forward = max_pool,
                                                        .describe = describe_pool};
static const struct cairn__module_kind avg_pool_kind = {.name = "AvgPool2d",
                                                        .forward = avg_pool,
                                                        .describe = describe_pool};
static const struct cairn__module_kind adaptive_kind = {.name = "AdaptiveAvgPool2d",
                                                        .forward = adaptive_avg_pool,
                                                        .describe = describe_adaptive};

static cairn_status read_pool(const char *what, int64_t kernel, const struct cairn_pool_options *given,
                              struct cairn_pool_options *o) {
    *o = (struct cairn_pool_options){.struct_size = sizeof(*o)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(o, sizeof(*o), given, "cairn_pool_options"));
    REQUIRE(kernel > 0, CAIRN_EINVAL, "%s: kernel %" PRId64 "; it must be positive", what, kernel);
    complete_pair(o->stride, kernel);
    complete_pair(o->dilation, 1);
    int64_t padding[2];
    cairn__option_padding(padding, o->padding);
    for (int i = 0; i < 2; i++) {
        REQUIRE(padding[i] <= kernel / 2, CAIRN_EINVAL,
                "%s: padding %" PRId64 " is more than half of the kernel %" PRId64, what, padding[i], kernel);
    }
    TRY(check_steps(what, o->stride, padding, o->dilation));
out:
    return st;
}

static cairn_module *create_pool(cairn_env *env, const struct cairn__module_kind *kind, const struct pool *pool) {
    cairn_module *m = NULL;
    if (cairn__module_create(env, kind, sizeof(*pool), &m) != CAIRN_OK) return NULL;
    *(struct pool *)m->context = *pool;
    return m;
}

cairn_module *cairn_max_pool(cairn_env *env, int64_t kernel, const struct cairn_pool_options *options) {
    struct pool p = {.h = kernel, .w = kernel};
    if (read_pool("max_pool", kernel, options, &p.options) != CAIRN_OK) return NULL;
    return create_pool(env, &max_pool_kind, &p);
}

cairn_module *cairn_avg_pool(cairn_env *env, int64_t kernel, const struct cairn_pool_options *options) {
    struct pool p = {.h = kernel, .w = kernel};
    if (read_pool("avg_pool", kernel, options, &p.options) != CAIRN_OK) return NULL;
    return create_pool(env, &avg_pool_kind, &p);
}

cairn_module *cairn_adaptive_avg_pool(cairn_env *env, int64_t out_h, int64_t out_w) {
    const struct pool p = {.h = out_h, .w = out_w};
    if (out_h > 0 && out_w > 0) return create_pool(env, &adaptive_kind, &p);
    (void)cairn__fail(CAIRN_EINVAL, "adaptive_avg_pool: output of %" PRId64 " x %" PRId64 "; both must be positive",
                      out_h, out_w);
    return NULL;
}
