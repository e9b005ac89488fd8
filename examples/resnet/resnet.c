/* A block and the net are modules of the program's own, since something goes past what is in them. */
#include "resnet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STAGES = 4, MOST_CONVS = 3, WIDTH = 64 };

static const struct shape {
    int depth, is_bottleneck, blocks[STAGES];
} shapes[] = {{18, 0, {2, 2, 2, 2}},
              {34, 0, {3, 4, 6, 3}},
              {50, 1, {3, 4, 6, 3}},
              {101, 1, {3, 4, 23, 3}},
              {152, 1, {3, 8, 36, 3}}};

static const struct shape *find_shape(int depth) {
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (shapes[i].depth == depth) return &shapes[i];
    }
    return NULL;
}

int resnet_is_depth(int depth) {
    return find_shape(depth) != NULL;
}

/* ---- parts ---- */

/* A convolution without bias, which the norm behind it would take away again; the size stays but for the stride. */
static cairn_module *conv(cairn_env *env, int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    cairn_module *m = cairn_conv2d(env, in, out, kernel,
                                   cairn_conv_options(.stride = {stride}, .padding = {kernel / 2}, .bias = CAIRN_OFF));
    if (m && cairn_init_kaiming_normal(cairn_module_get(m, "weight"), sqrt(2), 1) != CAIRN_OK) cairn_module_destroy(&m);
    return m;
}

static cairn_module *norm(cairn_env *env, int64_t channels, int is_zero) {
    cairn_module *m = cairn_batch_norm(env, channels, 0, 0);
    if (m && is_zero && cairn_init_constant(cairn_module_get(m, "weight"), 0) != CAIRN_OK) cairn_module_destroy(&m);
    return m;
}

/* ---- blocks ---- */

struct block {
    int num_convs;
    cairn_module *conv[MOST_CONVS], *norm[MOST_CONVS];
    cairn_module *past; /* NULL = the input itself */
};

static cairn_tensor *block_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct block *b = context;
    cairn_tensor *y = inputs[0];
    (void)module, (void)count;
    for (int i = 0; i < b->num_convs; i++) {
        y = cairn_module_forward(b->norm[i], cairn_module_forward(b->conv[i], y));
        if (i + 1 < b->num_convs) y = cairn_relu(y);
    }
    return cairn_relu(cairn_add(y, b->past ? cairn_module_forward(b->past, inputs[0]) : inputs[0]));
}

static const struct cairn_module_ops basic_ops = {.struct_size = sizeof(basic_ops),
                                                  .name = "BasicBlock",
                                                  .forward = block_forward,
                                                  .destroy = free};
static const struct cairn_module_ops bottleneck_ops = {.struct_size = sizeof(bottleneck_ops),
                                                       .name = "Bottleneck",
                                                       .forward = block_forward,
                                                       .destroy = free};

static int add_conv(cairn_module *m, struct block *b, cairn_module *child, cairn_module *its_norm) {
    char name[16];
    const int i = b->num_convs++;
    snprintf(name, sizeof(name), "conv%d", i + 1);
    b->conv[i] = cairn_module_add_child(m, name, child);
    snprintf(name, sizeof(name), "bn%d", i + 1);
    b->norm[i] = cairn_module_add_child(m, name, its_norm);
    return b->conv[i] && b->norm[i];
}

/* channels: of its 3x3 convolutions; a bottleneck has four times as many outputs. */
static cairn_module *block(cairn_env *env, const struct shape *shape, int64_t in, int64_t channels, int64_t stride,
                           int is_zero) {
    struct block *b = calloc(1, sizeof(*b));
    cairn_module *m = cairn_module_create(env, shape->is_bottleneck ? &bottleneck_ops : &basic_ops, b); /* ends b */
    const int64_t out = shape->is_bottleneck ? 4 * channels : channels;
    int is_whole = m && b;
    if (is_whole && shape->is_bottleneck)
        is_whole = add_conv(m, b, conv(env, in, channels, 1, 1), norm(env, channels, 0)) &&
                   add_conv(m, b, conv(env, channels, channels, 3, stride), norm(env, channels, 0)) &&
                   add_conv(m, b, conv(env, channels, out, 1, 1), norm(env, out, is_zero));
    else if (is_whole)
        is_whole = add_conv(m, b, conv(env, in, channels, 3, stride), norm(env, channels, 0)) &&
                   add_conv(m, b, conv(env, channels, out, 3, 1), norm(env, out, is_zero));
    if (is_whole && (in != out || stride != 1)) {
        b->past = cairn_module_add_child(m, "downsample",
                                         cairn_sequential(env, CAIRN_MODULES(conv(env, in, out, 1, stride),
                                                                             norm(env, out, 0))));
        is_whole = b->past != NULL;
    }
    if (!is_whole) cairn_module_destroy(&m);
    return m;
}

static cairn_module *stage(cairn_env *env, const struct shape *shape, int number, int64_t *in, int64_t width,
                           int is_zero) {
    enum { MOST_BLOCKS = 36 };
    cairn_module *blocks[MOST_BLOCKS];
    const int64_t channels = width << number;
    for (int i = 0; i < shape->blocks[number]; i++) {
        blocks[i] = block(env, shape, *in, channels, number > 0 && i == 0 ? 2 : 1, is_zero);
        *in = shape->is_bottleneck ? 4 * channels : channels;
    }
    return cairn_sequential(env, shape->blocks[number], blocks);
}

/* ---- the net ---- */

struct net {
    cairn_module *conv1, *bn1, *stages[STAGES], *fc;
};

static cairn_tensor *net_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct net *n = context;
    (void)module, (void)count;
    cairn_tensor *x = cairn_relu(cairn_module_forward(n->bn1, cairn_module_forward(n->conv1, inputs[0])));
    x = cairn_max_pool2d(x, 3, 3, cairn_pool_options(.stride = {2}, .padding = {1}));
    for (int i = 0; i < STAGES; i++) x = cairn_module_forward(n->stages[i], x);
    return cairn_module_forward(n->fc, cairn_flatten(cairn_adaptive_avg_pool2d(x, 1, 1), 1, -1));
}

static const struct cairn_module_ops net_ops = {.struct_size = sizeof(net_ops),
                                                .name = "ResNet",
                                                .forward = net_forward,
                                                .destroy = free};

cairn_module *resnet_create(cairn_env *env, const struct resnet_options *options) {
    const struct shape *shape = find_shape(options->depth);
    struct net *n = shape ? calloc(1, sizeof(*n)) : NULL;
    cairn_module *m = shape ? cairn_module_create(env, &net_ops, n) : NULL; /* ends n, whatever happens */
    int64_t channels = options->width ? options->width : WIDTH;
    int is_whole = m && n;
    if (is_whole) {
        n->conv1 = cairn_module_add_child(m, "conv1", conv(env, 3, channels, 7, 2));
        n->bn1 = cairn_module_add_child(m, "bn1", norm(env, channels, 0));
        is_whole = n->conv1 && n->bn1;
    }
    for (int i = 0; is_whole && i < STAGES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "layer%d", i + 1);
        n->stages[i] = cairn_module_add_child(m, name,
                                              stage(env, shape, i, &channels, options->width ? options->width : WIDTH,
                                                    options->zero_init_residual));
        is_whole = n->stages[i] != NULL;
    }
    if (is_whole) n->fc = cairn_module_add_child(m, "fc", cairn_linear(env, channels, options->classes));
    if (is_whole && n->fc) return m;
    cairn_module_destroy(&m);
    return NULL;
}
