/* One forward and backward of a ResNet, for test_resnet.py: resnet_tool DEPTH CLASSES train|eval FOLDER.
 *
 * Reads FOLDER/weights.safetensors (strictly: all tensors of the model and no others), x.npy and y.npy; writes the
 * scores to scores.raw and the gradient of parameter NAME to NAME.grad, all f32, and weights and buffers to
 * after.safetensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/resnet/resnet.h"
#include "../check.h"

static const char *folder;

static const char *in_folder(const char *name) {
    static char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t nbytes) {
    FILE *f = fopen(in_folder(name), "wb");
    MUST(f && fwrite(bytes, 1, nbytes, f) == nbytes && fclose(f) == 0);
}

static cairn_tensor *read_tensor(cairn_env *env, const char *name) {
    int64_t shape[CAIRN_MAX_DIMS];
    cairn_npy *npy;
    MUST_OK(cairn_npy_open(in_folder(name), &npy));
    const int ndim = cairn_npy_ndim(npy);
    for (int i = 0; i < ndim; i++) shape[i] = cairn_npy_size(npy, i);
    const size_t rows = (size_t)shape[0], nbytes = rows * cairn_npy_row_nbytes(npy);
    void *values = malloc(nbytes);
    MUST_OK(cairn_npy_read(npy, 0, rows, values, nbytes));
    cairn_tensor *t = cairn_tensor_from(env, cairn_npy_dtype(npy), ndim, shape, values);
    MUST(t);
    cairn_npy_destroy(&npy);
    free(values);
    return t;
}

static void write_gradients(cairn_module *model) {
    const cairn_param_set *set = cairn_module_params(model);
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        char name[256];
        size_t n = 1;
        MUST_OK(cairn_param_set_get(set, i, &p));
        for (int d = 0; d < p.ndim; d++) n *= (size_t)p.shape[d];
        snprintf(name, sizeof(name), "%s.grad", p.name);
        write_file(name, p.grad, n * sizeof(float));
    }
}

int main(int argc, char **argv) {
    cairn_env *env;
    MUST_OK(cairn_env_create(NULL, NULL, NULL, &env));
    MUST(argc == 5);
    folder = argv[4];
    const int64_t classes = atoll(argv[2]);
    cairn_module *model = resnet_create(env, &(struct resnet_options){.depth = atoi(argv[1]), .classes = classes});
    MUST(model);
    MUST_OK(cairn_module_load(model, in_folder("weights.safetensors"), NULL, NULL));
    cairn_module_train(model, strcmp(argv[3], "train") == 0);
    cairn_tensor *x = read_tensor(env, "x.npy"), *y = read_tensor(env, "y.npy");
    cairn_tensor *scores = cairn_module_forward(model, x);
    MUST_OK(cairn_backward(cairn_cross_entropy(scores, y, NULL)));
    const size_t n = (size_t)(cairn_tensor_size(x, 0) * classes);
    float *values = malloc(n * sizeof(float));
    MUST_OK(cairn_tensor_read(scores, values, n));
    write_file("scores.raw", values, n * sizeof(float));
    write_gradients(model);
    MUST_OK(cairn_module_save(model, in_folder("after.safetensors"), NULL));
    free(values);
    cairn_tensor_destroy(&x), cairn_tensor_destroy(&y);
    cairn_module_destroy(&model);
    cairn_env_destroy(&env);
    return 0;
}
