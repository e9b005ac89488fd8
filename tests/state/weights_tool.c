/* Weights for Python to read, and Python's to copy.
 *
 *   weights_tool save FOLDER       a small net in every kind of file, and its input and output in io.safetensors
 *   weights_tool copy FROM TO      every tensor and text of a file, of whatever type */
#include <sys/stat.h>

#include "../check.h"
#include "cairn/cairn.h"
#include "core/alloc.h"
#include "state/safetensors.h"

enum { MOST_PATH = 1024, BATCH = 3, IN = 2 * 4 * 4, OUT = 6 };

static const char *below(const char *folder, const char *name) {
    static char path[MOST_PATH];
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

static void save_io(cairn_env *env, cairn_module *net, const char *path) {
    float x[BATCH * IN], y[BATCH * OUT];
    cairn_tensor *input = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, 2, 4, 4));
    cairn_param_set *set = NULL;
    MUST_OK(cairn_tensor_read(input, x, BATCH * IN));
    MUST_OK(cairn_tensor_read(cairn_module_forward(net, input), y, BATCH * OUT));
    const cairn_param io[] = {{.name = "x", .data = x, .dtype = CAIRN_F32, .ndim = 4, .shape = {BATCH, 2, 4, 4}},
                              {.name = "y", .data = y, .dtype = CAIRN_F32, .ndim = 2, .shape = {BATCH, OUT}}};
    MUST_OK(cairn_param_set_create(env, io, 2, &set));
    MUST_OK(cairn_param_set_save(set, path, NULL));
    cairn_param_set_destroy(&set);
    cairn_tensor_destroy(&input);
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
    save_io(env, net, below(folder, "io.safetensors"));
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
