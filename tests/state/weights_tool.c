/* Writes weights for Python to read, and copies weights written by Python.
 *
 *   weights_tool save FOLDER       writes a small net as every kind of file, and its input and output as io.safetensors
 *   weights_tool copy FROM TO      copies every tensor, of any type, and every text of a file */
#include <sys/stat.h>

#include "../check.h"
#include "cairn/cairn.h"
#include "core/alloc.h"
#include "state/safetensors.h"

enum { MAX_PATH = 1024, BATCH = 3, OUT = 6 };

static const char *below(const char *folder, const char *name) {
    static char path[MAX_PATH];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static cairn_module *make_net(cairn_env *env) {
    cairn_module *net =
        cairn_sequential(env, CAIRN_MODULES(cairn_conv2d(env, 2, 4, 3, NULL), cairn_batch_norm(env, 4, 0, 0),
                                            cairn_flatten_from(env, 1), cairn_linear(env, 16, OUT),
                                            cairn_layer_norm(env, CAIRN_SHAPE(OUT), 0)));
    MUST(net);
    for (size_t i = 0; i < cairn_module_num_buffers(net); i++) {
        cairn_tensor *t = cairn_module_buffer(net, i, NULL);
        if (cairn_tensor_dtype(t) == CAIRN_F32) MUST_OK(cairn_init_uniform(t, 1, 2));
    }
    cairn_module_train(net, 0);
    return net;
}

/* A tensor's elements and shape, as a parameter. */
static cairn_param read(const char *name, cairn_tensor *t) {
    cairn_param p = {.name = name, .dtype = CAIRN_F32, .ndim = cairn_tensor_ndim(t)};
    const size_t n = (size_t)cairn_tensor_numel(t);
    float *data = malloc(n * sizeof(*data));
    for (int i = 0; i < p.ndim; i++) p.shape[i] = cairn_tensor_size(t, i);
    MUST(data);
    MUST_OK(cairn_tensor_read(t, data, n));
    p.data = data;
    return p;
}

/* Random numbers of this shape, and what the net makes of them. */
static void save_io(cairn_env *env, cairn_module *net, int ndim, const int64_t *shape, const char *path) {
    cairn_tensor *input = cairn_randn(env, CAIRN_F32, ndim, shape);
    cairn_param_set *set = NULL;
    MUST(input);
    const cairn_param io[] = {read("x", input), read("y", cairn_module_forward(net, input))};
    MUST_OK(cairn_param_set_create(env, io, 2, &set));
    MUST_OK(cairn_param_set_save(set, path, NULL));
    cairn_param_set_destroy(&set);
    cairn_tensor_destroy(&input);
    for (int i = 0; i < 2; i++) free(io[i].data);
}

/* ---- nets like those of the examples 06 and 07 ---- */

struct parts {
    cairn_module *first, *second;
};

/* first(x) + second(x), as a residual block ends. */
static cairn_tensor *forward_sum(cairn_module *m, void *context, cairn_tensor *const *inputs, int count) {
    const struct parts *parts = context;
    (void)m, (void)count;
    return cairn_relu(
        cairn_add(cairn_module_forward(parts->first, inputs[0]), cairn_module_forward(parts->second, inputs[0])));
}

static cairn_module *residual_block(cairn_env *env, int64_t in, int64_t out) {
    static const struct cairn_module_ops ops = {.struct_size = sizeof(ops),
                                                .name = "Block",
                                                .forward = forward_sum,
                                                .destroy = free};
    struct parts *parts = calloc(1, sizeof(*parts));
    cairn_module *m = cairn_module_create(env, &ops, parts);
    const struct cairn_conv_options *wide = cairn_conv_options(.stride = {2}, .padding = {1, 1}, .bias = CAIRN_OFF);
    const struct cairn_conv_options *point = cairn_conv_options(.stride = {2}, .bias = CAIRN_OFF);
    MUST(m);
    parts->first = cairn_module_add_child(m, "body",
                                          cairn_sequential(env, CAIRN_MODULES(cairn_conv2d(env, in, out, 3, wide),
                                                                              cairn_batch_norm(env, out, 0, 0))));
    parts->second = cairn_module_add_child(m, "past",
                                           cairn_sequential(env, CAIRN_MODULES(cairn_conv2d(env, in, out, 1, point),
                                                                               cairn_batch_norm(env, out, 0, 0))));
    MUST(parts->first && parts->second);
    return m;
}

/* x + second(first(x)): what a transformer has beside its attention. */
static cairn_tensor *forward_mixed(cairn_module *m, void *context, cairn_tensor *const *inputs, int count) {
    const struct parts *parts = context;
    (void)m, (void)count;
    return cairn_add(inputs[0], cairn_module_forward(parts->second, cairn_module_forward(parts->first, inputs[0])));
}

static cairn_module *mixer(cairn_env *env, int64_t width) {
    static const struct cairn_module_ops ops = {.struct_size = sizeof(ops),
                                                .name = "Mixer",
                                                .forward = forward_mixed,
                                                .destroy = free};
    struct parts *parts = calloc(1, sizeof(*parts));
    cairn_module *m = cairn_module_create(env, &ops, parts);
    MUST(m);
    parts->first = cairn_module_add_child(m, "norm", cairn_layer_norm(env, CAIRN_SHAPE(width), 0));
    parts->second = cairn_module_add_child(m, "mlp",
                                           cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, width, 2 * width),
                                                                               cairn_activation(env, cairn_gelu),
                                                                               cairn_linear(env, 2 * width, width))));
    MUST(parts->first && parts->second);
    return m;
}

/* Saves net with its input and output, and destroys it. All of its arrays are random, so that none is another's. */
static void save_net(cairn_env *env, cairn_module *net, int ndim, const int64_t *shape, const char *folder,
                     const char *name) {
    char file[64];
    MUST(net);
    const cairn_param_set *set = cairn_module_params(net);
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        MUST_OK(cairn_param_set_get(set, i, &p));
        MUST_OK(cairn_init_uniform(cairn_module_get(net, p.name), -0.5, 0.5));
    }
    for (size_t i = 0; i < cairn_module_num_buffers(net); i++) {
        cairn_tensor *t = cairn_module_buffer(net, i, NULL);
        if (cairn_tensor_dtype(t) == CAIRN_F32) MUST_OK(cairn_init_uniform(t, 1, 2));
    }
    cairn_module_train(net, 0);
    snprintf(file, sizeof(file), "%s_io.safetensors", name);
    save_io(env, net, ndim, shape, below(folder, file));
    snprintf(file, sizeof(file), "%s.safetensors", name);
    MUST_OK(cairn_module_save(net, below(folder, file), NULL));
    cairn_module_destroy(&net);
}

static void save_examples(cairn_env *env, const char *folder) {
    const struct cairn_conv_options *padded = cairn_conv_options(.padding = {1, 1}, .bias = CAIRN_OFF);
    save_net(env,
             cairn_sequential(env, CAIRN_MODULES(cairn_conv2d(env, 1, 4, 3, padded), cairn_batch_norm(env, 4, 0, 0),
                                                 cairn_activation(env, cairn_relu), residual_block(env, 4, 6),
                                                 cairn_adaptive_avg_pool(env, 1, 1), cairn_flatten_from(env, 1),
                                                 cairn_linear(env, 6, OUT))),
             CAIRN_SHAPE(BATCH, 1, 8, 8), folder, "resnet");
    save_net(env,
             cairn_sequential(
                 env,
                 CAIRN_MODULES(cairn_linear(env, 5, 12),
                               cairn_transformer_encoder_layer(env, 12, 3, 24,
                                                               cairn_encoder_layer_options(.activation = cairn_gelu,
                                                                                           .norm_first = CAIRN_ON)),
                               mixer(env, 12), cairn_layer_norm(env, CAIRN_SHAPE(12), 0), cairn_linear(env, 12, OUT))),
             CAIRN_SHAPE(BATCH, 7, 5), folder, "encoder");
}

static void save_tied(cairn_env *env, const char *path) {
    float w[2][3] = {{1, 2, 3}, {4, 5, 6}};
    cairn_param_set *set = NULL;
    const cairn_param params[] = {{.name = "embedding", .data = w, .dtype = CAIRN_F32, .ndim = 2, .shape = {2, 3}},
                                  {.name = "decoder", .data = w, .dtype = CAIRN_F32, .ndim = 2, .shape = {2, 3}}};
    MUST_OK(cairn_param_set_create(env, params, 2, &set));
    MUST_OK(cairn_param_set_save(set, path, NULL));
    cairn_param_set_destroy(&set);
}

static void save(const char *folder) {
    cairn_env *env = NULL;
    const struct cairn_weights_name names[] = {{"0.*", "stem.*"}, {"3.weight", "a.w|b.w"}};
    const struct cairn_weights_text texts[] = {{"title", "a \"net\"\n\xc3\xa4"}};
    MUST_OK(cairn_env_create(NULL, NULL, NULL, &env));
    cairn_module *net = make_net(env);
    save_io(env, net, CAIRN_SHAPE(BATCH, 2, 4, 4), below(folder, "io.safetensors"));
    save_examples(env, folder);
    save_tied(env, below(folder, "tied.safetensors"));
    MUST_OK(cairn_module_save(net, below(folder, "f32.safetensors"), NULL));
    MUST_OK(cairn_module_save(net, below(folder, "f16.safetensors"), cairn_weights_options(.dtype = CAIRN_F16)));
    MUST_OK(cairn_module_save(net, below(folder, "bf16.safetensors"), cairn_weights_options(.dtype = CAIRN_BF16)));
    MUST_OK(cairn_module_save(net, below(folder, "named.safetensors"),
                              cairn_weights_options(.names = names, .num_names = 2, .prefix = "net.", .metadata = texts,
                                                    .num_metadata = 1)));
    MUST(mkdir(below(folder, "several"), 0777) == 0);
    MUST_OK(cairn_module_save(net, below(folder, "several/model.safetensors"),
                              cairn_weights_options(.max_file_nbytes = 400)));
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    MUST_OK(cairn_sgd_create(cairn_module_params(net), NULL, &sgd));
    MUST_OK(amp_initialize(env, net, sgd, amp_options(.opt_level = AMP_O2), &amp));
    MUST_OK(cairn_module_save(net, below(folder, "o2.safetensors"), NULL));
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&net);
    cairn_env_destroy(&env);
}

static void copy(const char *from, const char *to) {
    struct cairn__safetensors *f = NULL;
    struct cairn__safetensors_writer *w = NULL;
    struct cairn__safetensors_tensor *tensors = NULL;
    struct cairn__safetensors_text *texts = NULL;
    MUST_OK(cairn__safetensors_open(from, 0, &f));
    const size_t n = cairn__safetensors_count(f), m = cairn__safetensors_metadata_count(f);
    MUST_OK(cairn__calloc(n, sizeof(*tensors), (void **)&tensors));
    MUST_OK(cairn__calloc(m, sizeof(*texts), (void **)&texts));
    for (size_t i = 0; i < n; i++) tensors[i] = *cairn__safetensors_at(f, i);
    for (size_t i = 0; i < m; i++) texts[i] = cairn__safetensors_metadata_at(f, i);
    MUST_OK(cairn__safetensors_create(to, 0, tensors, n, texts, m, &w));
    for (size_t k = 0; k < n; k++) {
        const struct cairn__safetensors_tensor *t = &tensors[cairn__safetensors_nth(w, k)];
        void *elements = NULL;
        MUST_OK(cairn__alloc((size_t)t->nbytes, &elements));
        MUST_OK(cairn__safetensors_read(f, t, 0, elements, (size_t)t->nbytes));
        MUST_OK(cairn__safetensors_write(w, elements, (size_t)t->nbytes));
        cairn__free(elements);
    }
    MUST_OK(cairn__safetensors_commit(&w, NULL));
    cairn__safetensors_close(&f);
    cairn__free(tensors);
    cairn__free(texts);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "save") == 0) {
        save(argv[2]);
    } else if (argc == 4 && strcmp(argv[1], "copy") == 0) {
        copy(argv[2], argv[3]);
    } else {
        fprintf(stderr, "usage: weights_tool save FOLDER | copy FROM TO\n");
        return 2;
    }
    return 0;
}
