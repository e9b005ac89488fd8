/* torch.nn.Embedding. */
#include <inttypes.h>
#include <stdio.h>

#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

struct embedding {
    cairn_tensor *weight;
    int64_t padding_idx;
};

static cairn_tensor *embed(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct embedding *e = context;
    return cairn_embedding_forward(inputs[0], e->weight, e->padding_idx);
}

static void describe_embedding(const void *context, char *text, size_t nbytes) {
    const struct embedding *e = context;
    const int n = snprintf(text, nbytes, "%" PRId64 ", %" PRId64, e->weight->shape[0], e->weight->shape[1]);
    if (e->padding_idx >= 0) snprintf(text + n, nbytes - (size_t)n, ", padding_idx=%" PRId64, e->padding_idx);
}

static const struct cairn__module_kind embedding_kind = {.name = "Embedding",
                                                         .forward = embed,
                                                         .describe = describe_embedding};

static cairn_status create_embedding(cairn_env *env, int64_t rows, int64_t dim, int64_t padding_idx,
                                     cairn_module **out) {
    REQUIRE(rows > 0 && dim > 0, CAIRN_EINVAL, "embedding: %" PRId64 " rows of %" PRId64 "; both must be positive",
            rows, dim);
    REQUIRE(padding_idx >= -1 && padding_idx < rows, CAIRN_EINVAL,
            "embedding: padding_idx %" PRId64 " of %" PRId64 " rows; -1 is none", padding_idx, rows);
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    TRY(cairn__module_create(env, &embedding_kind, sizeof(struct embedding), &m));
    struct embedding *e = m->context;
    e->padding_idx = padding_idx;
    TRY(cairn__module_add_param(m, "weight", CAIRN_SHAPE(rows, dim), false, &e->weight));
    TRY(cairn_init_normal(e->weight, 0, 1));
    if (padding_idx >= 0) {
        float *row = (float *)e->weight->param->data + padding_idx * dim;
        env->device->passes->fill(env->device, CAIRN_F32, row, (size_t)dim, 0.0f);
    }
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

cairn_module *cairn_embedding(cairn_env *env, int64_t rows, int64_t dim, int64_t padding_idx) {
    cairn_module *m = NULL;
    return create_embedding(env, rows, dim, padding_idx, &m) == CAIRN_OK ? m : NULL;
}
