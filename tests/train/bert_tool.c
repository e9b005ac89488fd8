/* Runs examples/bert's model for comparisons in Python.
 *
 *   bert_tool init CONFIG SEED OUT            writes a new model's weights to the folder OUT
 *   bert_tool copy MODEL OUT [f32|f16|bf16]   loads with bert_load and saves with bert_save
 *   bert_tool run MODEL INPUTS OUT [again]    one forward and backward; MODEL has no dropout. INPUTS has ids.npy,
 *                                             labels.npy and, if they exist, mask.npy and types.npy, all i64;
 *                                             OUT/out.safetensors gets logits and loss, and OUT/model.safetensors the
 *                                             gradients under their weights' names. again: with gradient checkpointing
 *
 * Prints bert_load's note. */
#include <unistd.h>

#include "../check.h"
#include "model.h"

enum { MOST_PATH = 4096 };

static const char *below(const char *folder, const char *name) {
    static char path[MOST_PATH];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static cairn_env *open_env(uint64_t seed) {
    cairn_env *env = NULL;
    MUST_OK(cairn_env_create(NULL, NULL, NULL, &env));
    cairn_manual_seed(env, seed);
    return env;
}

static cairn_module *load(cairn_env *env, struct bert_config *config, const char *folder, cairn_switch again) {
    char note[300];
    MUST_OK(bert_config_read(config, folder));
    cairn_module *model = bert_create(env, config, &(struct bert_options){.gradient_checkpointing = again});
    MUST(model);
    MUST_OK(bert_load(model, folder, note, sizeof(note)));
    if (*note) printf("%s\n", note);
    return model;
}

/* NULL where there is no such file. */
static cairn_tensor *input(cairn_env *env, const char *folder, const char *name) {
    int64_t shape[2], values[4096];
    cairn_npy *npy;
    const char *path = below(folder, name);
    if (access(path, F_OK) != 0) return NULL;
    MUST_OK(cairn_npy_open(path, &npy));
    MUST(cairn_npy_dtype(npy) == CAIRN_I64 && cairn_npy_ndim(npy) <= 2);
    for (int i = 0; i < cairn_npy_ndim(npy); i++) shape[i] = cairn_npy_size(npy, i);
    MUST_OK(cairn_npy_read(npy, 0, (size_t)shape[0], values, sizeof(values)));
    cairn_tensor *t = cairn_tensor_from(env, CAIRN_I64, cairn_npy_ndim(npy), shape, values);
    MUST(t);
    cairn_npy_destroy(&npy);
    return t;
}

static void save_outputs(cairn_env *env, cairn_tensor *logits, cairn_tensor *loss, const char *path) {
    float values[4096], one;
    cairn_param_set *set;
    MUST(cairn_tensor_numel(logits) <= 4096);
    MUST_OK(cairn_tensor_read(logits, values, cairn_tensor_numel(logits)));
    MUST_OK(cairn_tensor_read(loss, &one, 1));
    const cairn_param io[] = {{.name = "logits",
                               .data = values,
                               .dtype = CAIRN_F32,
                               .ndim = 2,
                               .shape = {cairn_tensor_size(logits, 0), cairn_tensor_size(logits, 1)}},
                              {.name = "loss", .data = &one, .dtype = CAIRN_F32, .ndim = 1, .shape = {1}}};
    MUST_OK(cairn_param_set_create(env, io, 2, &set));
    MUST_OK(cairn_param_set_save(set, path, NULL));
    cairn_param_set_destroy(&set);
}

/* Gradients take the weights' places, so that they are saved under their names. */
static void show_gradients(cairn_module *model) {
    cairn_param_set *set = cairn_module_params(model);
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        size_t n = 1;
        MUST_OK(cairn_param_set_get(set, i, &p));
        for (int d = 0; d < p.ndim; d++) n *= (size_t)p.shape[d];
        MUST(p.grad);
        memcpy(p.data, p.grad, n * sizeof(float));
        MUST_OK(cairn_param_changed(set, i, 1));
    }
}

static void run(const char *folder, const char *inputs, const char *out, cairn_switch again) {
    struct bert_config config;
    cairn_env *env = open_env(1);
    cairn_module *model = load(env, &config, folder, again);
    cairn_tensor *in[BERT_INPUTS] = {input(env, inputs, "ids.npy"), input(env, inputs, "mask.npy"),
                                     input(env, inputs, "types.npy")};
    cairn_tensor *labels = input(env, inputs, "labels.npy");
    cairn_tensor *logits = cairn_module_forward_n(model, in, BERT_INPUTS);
    cairn_tensor *loss = cairn_cross_entropy(logits, labels, NULL);
    MUST_OK(cairn_backward(loss));
    show_gradients(model);
    MUST_OK(bert_save(model, &config, out, CAIRN_F32));
    save_outputs(env, logits, loss, below(out, "out.safetensors"));
    for (int i = 0; i < BERT_INPUTS; i++) cairn_tensor_destroy(&in[i]);
    cairn_tensor_destroy(&labels);
    cairn_module_destroy(&model);
    bert_config_clear(&config);
    cairn_env_destroy(&env);
}

static void save(cairn_env *env, cairn_module *model, struct bert_config *config, const char *out, cairn_dtype dtype) {
    MUST_OK(bert_save(model, config, out, dtype));
    cairn_module_destroy(&model);
    bert_config_clear(config);
    cairn_env_destroy(&env);
}

static cairn_dtype dtype_of(const char *name) {
    return strcmp(name, "f16") == 0 ? CAIRN_F16 : strcmp(name, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32;
}

int main(int argc, char **argv) {
    struct bert_config config;
    MUST(argc >= 4);
    if (strcmp(argv[1], "init") == 0 && argc == 5) {
        cairn_env *env = open_env(strtoull(argv[3], NULL, 10));
        MUST_OK(bert_config_read(&config, argv[2]));
        cairn_module *model = bert_create(env, &config, NULL);
        MUST(model);
        save(env, model, &config, argv[4], CAIRN_F32);
    } else if (strcmp(argv[1], "copy") == 0) {
        cairn_env *env = open_env(2);
        cairn_module *model = load(env, &config, argv[2], CAIRN_OFF);
        save(env, model, &config, argv[3], dtype_of(argc > 4 ? argv[4] : "f32"));
    } else {
        MUST(strcmp(argv[1], "run") == 0 && argc >= 5);
        run(argv[2], argv[3], argv[4], argc > 5 ? CAIRN_ON : CAIRN_OFF);
    }
    return 0;
}
