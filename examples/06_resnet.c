/* A small ResNet that classifies handwritten digits. Its residual block is a module that the program defines. The
 * running statistics of batch norms are buffers, and the norms' weights stay f32 under O2. digits.h shows how to run
 * it.
 *
 * Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2016. */
#include "digits.h"

struct block {
    cairn_module *body, *past; /* past: on the shortcut; NULL = identity */
};

static cairn_tensor *forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct block *b = context;
    (void)module, (void)count;
    cairn_tensor *past = b->past ? cairn_module_forward(b->past, inputs[0]) : inputs[0];
    return cairn_relu(cairn_add(cairn_module_forward(b->body, inputs[0]), past));
}

static const struct cairn_module_ops block_ops = {.struct_size = sizeof(block_ops),
                                                  .name = "ResidualBlock",
                                                  .forward = forward,
                                                  .destroy = free};

/* A convolution without bias: the batch norm after it would cancel one. */
static cairn_module *conv(cairn_env *env, int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    const int64_t around = kernel / 2;
    return cairn_conv2d(env, in, out, kernel,
                        cairn_conv_options(.stride = {stride}, .padding = {around, around}, .bias = CAIRN_OFF));
}

static cairn_module *block(cairn_env *env, int64_t in, int64_t out, int64_t stride) {
    struct block *b = calloc(1, sizeof(*b));
    cairn_module *m = cairn_module_create(env, &block_ops, b); /* takes ownership of b, even on error */
    if (!m) return NULL;
    b->body = cairn_module_add_child(
        m, "body",
        cairn_sequential(env, CAIRN_MODULES(conv(env, in, out, 3, stride), cairn_batch_norm(env, out, 0, 0),
                                            cairn_activation(env, cairn_relu), conv(env, out, out, 3, 1),
                                            cairn_batch_norm(env, out, 0, 0))));
    if (in != out || stride != 1) {
        b->past = cairn_module_add_child(m, "past",
                                         cairn_sequential(env, CAIRN_MODULES(conv(env, in, out, 1, stride),
                                                                             cairn_batch_norm(env, out, 0, 0))));
    }
    if (b->body && (b->past || (in == out && stride == 1))) return m;
    cairn_module_destroy(&m);
    return NULL;
}

static cairn_module *build(cairn_env *env) {
    return cairn_sequential(env, CAIRN_MODULES(conv(env, 1, 16, 3, 1), cairn_batch_norm(env, 16, 0, 0),
                                               cairn_activation(env, cairn_relu), block(env, 16, 16, 1),
                                               block(env, 16, 32, 2), cairn_adaptive_avg_pool(env, 1, 1),
                                               cairn_flatten_from(env, 1), cairn_linear(env, 32, CLASSES)));
}

int main(int argc, char **argv) {
    const struct training how = {.build = build, .epochs = 10, .lr = 5e-3, .weight_decay = 1e-2};
    return digits_main(argc, argv, how);
}
