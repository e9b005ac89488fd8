/* Blocks and the net are custom modules rather than cairn_sequential, because of the shortcuts around their layers. */
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

int resnet_num_blocks(int depth) {
    const struct shape *shape = find_shape(depth);
    int count = 0;
    for (int i = 0; shape && i < STAGES; i++) count += shape->blocks[i];
    return count;
}

/* ---- parts ---- */

/* A convolution without bias, which the norm after it would cancel. Padding keeps the size, apart from the stride. */
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
    cairn_module *past; /* shortcut; NULL = identity */
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
    char name[24];
    const int i = b->num_convs++;
    snprintf(name, sizeof(name), "conv%d", i + 1);
    b->conv[i] = cairn_module_add_child(m, name, child);
    snprintf(name, sizeof(name), "bn%d", i + 1);
    b->norm[i] = cairn_module_add_child(m, name, its_norm);
    return b->conv[i] && b->norm[i];
}

/* channels: of the 3x3 convolutions; a bottleneck block has four times as many output channels. */
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

/* A layer without its first blocks; the remaining blocks keep their names. */
enum { MOST_BLOCKS = 36 };
struct rest {
    int count;
    cairn_module *blocks[MOST_BLOCKS];
};

static cairn_tensor *rest_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct rest *r = context;
    cairn_tensor *x = inputs[0];
    (void)module, (void)count;
    for (int i = 0; i < r->count; i++) x = cairn_module_forward(r->blocks[i], x);
    return x;
}

static const struct cairn_module_ops rest_ops = {.struct_size = sizeof(rest_ops),
                                                 .name = "Sequential",
                                                 .forward = rest_forward,
                                                 .destroy = free};

static cairn_module *rest(cairn_env *env, int count, cairn_module *const *blocks, int first) {
    struct rest *r = calloc(1, sizeof(*r));
    cairn_module *m = cairn_module_create(env, &rest_ops, r); /* ends r */
    int is_whole = m && r;
    for (int i = 0; i < count; i++) {
        char name[24];
        snprintf(name, sizeof(name), "%d", first + i);
        cairn_module *block = cairn_module_add_child(m, name, blocks[i]); /* on error destroys block */
        is_whole = is_whole && block;
        if (is_whole) r->blocks[r->count++] = block;
    }
    if (!is_whole) cairn_module_destroy(&m);
    return m;
}

/* Blocks [first, end) of a layer. */
static cairn_module *stage(cairn_env *env, const struct shape *shape, int number, int first, int end, int64_t width,
                           int is_zero) {
    cairn_module *blocks[MOST_BLOCKS];
    const int64_t channels = width << number, out = shape->is_bottleneck ? 4 * channels : channels;
    const int64_t before = number == 0 ? width : out / 2;
    for (int i = first; i < end; i++)
        blocks[i - first] = block(env, shape, i == 0 ? before : out, channels, number > 0 && i == 0 ? 2 : 1, is_zero);
    return first ? rest(env, end - first, blocks, first) : cairn_sequential(env, end, blocks);
}

/* ---- the net ---- */

struct net {
    cairn_module *conv1, *bn1, *stages[STAGES], *fc; /* NULL = in another pipeline stage */
};

static cairn_tensor *net_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct net *n = context;
    cairn_tensor *x = inputs[0];
    (void)module, (void)count;
    if (n->conv1) {
        x = cairn_relu(cairn_module_forward(n->bn1, cairn_module_forward(n->conv1, x)));
        x = cairn_max_pool2d(x, 3, 3, cairn_pool_options(.stride = {2}, .padding = {1}));
    }
    for (int i = 0; i < STAGES; i++) x = n->stages[i] ? cairn_module_forward(n->stages[i], x) : x;
    return n->fc ? cairn_module_forward(n->fc, cairn_flatten(cairn_adaptive_avg_pool2d(x, 1, 1), 1, -1)) : x;
}

static const struct cairn_module_ops net_ops = {.struct_size = sizeof(net_ops),
                                                .name = "ResNet",
                                                .forward = net_forward,
                                                .destroy = free};

static int at_most(int a, int b) {
    return a < b ? a : b;
}

static int at_least(int a, int b) {
    return a > b ? a : b;
}

cairn_module *resnet_create(cairn_env *env, const struct resnet_options *options) {
    const struct shape *shape = find_shape(options->depth);
    struct net *n = shape ? calloc(1, sizeof(*n)) : NULL;
    cairn_module *m = shape ? cairn_module_create(env, &net_ops, n) : NULL; /* takes ownership of n, even on error */
    const int64_t width = options->width ? options->width : WIDTH;
    const int all = resnet_num_blocks(options->depth), end = options->end_block ? options->end_block : all;
    int is_whole = m && n, before = 0;
    if (is_whole && options->first_block == 0) {
        n->conv1 = cairn_module_add_child(m, "conv1", conv(env, 3, width, 7, 2));
        n->bn1 = cairn_module_add_child(m, "bn1", norm(env, width, 0));
        is_whole = n->conv1 && n->bn1;
    }
    for (int i = 0; is_whole && i < STAGES; before += shape->blocks[i++]) {
        char name[24];
        const int from = at_least(options->first_block - before, 0), to = at_most(end - before, shape->blocks[i]);
        if (from >= to) continue;
        snprintf(name, sizeof(name), "layer%d", i + 1);
        n->stages[i] =
            cairn_module_add_child(m, name, stage(env, shape, i, from, to, width, options->zero_init_residual));
        is_whole = n->stages[i] != NULL;
    }
    const int64_t channels = (width << (STAGES - 1)) * (shape && shape->is_bottleneck ? 4 : 1);
    if (is_whole && end == all) {
        n->fc = cairn_module_add_child(m, "fc", cairn_linear(env, channels, options->classes));
        is_whole = n->fc != NULL;
    }
    if (is_whole) return m;
    cairn_module_destroy(&m);
    return NULL;
}
