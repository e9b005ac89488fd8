/* ResNet for tools/cairn-bench resnet. steps.h describes the training; resnet_torch.py is PyTorch's side. The model is
 * examples/resnet's. */
#include "../../examples/resnet/resnet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"
#include "training.h"

enum { BATCH = 8, CHANNELS = 3, EDGE = 224, CLASSES = 1000 };

static cairn_module *create(cairn_env *env, int size, double dropout) {
    (void)dropout;
    return resnet_create(env, &(struct resnet_options){.depth = size, .classes = CLASSES});
}

/* Values between -1/2 and 1/2 without the correlation of bench_value's neighbours: convolutions would cancel correlated
 * values, and norms would divide by almost 0. Source of the mixing: MurmurHash3's last steps. */
static float mixed(uint32_t stream, size_t i) {
    uint32_t bits = (uint32_t)i * 2654435761u + stream * 40503u;
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    return (float)((bits ^ bits >> 16) >> 8) * 0x1p-24f - 0.5f;
}

static bool ends(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Convolutions have He's standard deviation (fan-out); mixed() has 1 / sqrt(12). The last norm of a block is small,
 * since otherwise even f32 gradients would have errors of a few per cent. */
static cairn_status fill_weights(cairn_param_set *set) {
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        cairn_status st = cairn_param_set_get(set, i, &p);
        if (st != CAIRN_OK) return st;
        const bool is_norm = p.ndim == 1 && ends(p.name, "weight");
        const bool is_last = is_norm && (ends(p.name, "bn2.weight") || ends(p.name, "bn3.weight"));
        const double outputs = p.ndim == 4 ? (double)(p.shape[0] * p.shape[2] * p.shape[3]) : 0;
        const float scale = (float)(p.ndim == 4 ? sqrt(24 / outputs) : 0.1);
        const float centre = is_last ? 0.2f : is_norm ? 1.0f : 0.0f;
        for (size_t k = 0; k < bench_numel(&p); k++) ((float *)p.data)[k] = centre + mixed((uint32_t)i, k) * scale;
    }
    return CAIRN_OK;
}

static bool make_batch(struct bench_training *t) {
    const size_t n = (size_t)BATCH * CHANNELS * EDGE * EDGE;
    float *x = malloc(n * sizeof(*x));
    int64_t labels[BATCH];
    if (!x) return false;
    for (size_t i = 0; i < n; i++) x[i] = 4 * mixed(2000 + (uint32_t)t->rank, i);
    for (int i = 0; i < BATCH; i++) labels[i] = (100 * i + t->rank) % CLASSES;
    t->inputs[0] = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE(BATCH, CHANNELS, EDGE, EDGE), x);
    t->labels = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(BATCH), labels);
    free(x);
    return t->inputs[0] && t->labels;
}

static cairn_status create_sgd(cairn_param_set *params, cairn_optimizer **out) {
    return cairn_sgd_create(params,
                            &(struct cairn_sgd_options){.struct_size = sizeof(struct cairn_sgd_options),
                                                        .lr = 1e-3,
                                                        .momentum = 0.9,
                                                        .weight_decay = 1e-4},
                            out);
}

int main(int argc, char **argv) {
    static const struct bench_model resnet = {.program = "bench-resnet",
                                              .num_inputs = 1,
                                              .create = create,
                                              .fill_weights = fill_weights,
                                              .make_batch = make_batch,
                                              .create_optimizer = create_sgd};
    return bench_train(&resnet, argc, argv);
}
