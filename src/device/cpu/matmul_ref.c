/* Matrix products in plain loops, for builds without oneDNN: complete and slow. Sums run over k in order. */
#include "core/alloc.h"
#include "device/cpu/cpu.h"

struct cairn__engine {
    int unused;
};

cairn_status cairn__engine_open(unsigned features, struct cairn__engine **out) {
    (void)features;
    return cairn__calloc(1, sizeof(**out), (void **)out);
}

void cairn__engine_close(struct cairn__engine **engine) {
    cairn__free(*engine);
    *engine = NULL;
}

const char *cairn__engine_describe(const struct cairn__engine *engine) {
    (void)engine;
    return "plain loops (built without oneDNN)";
}

bool cairn__engine_takes(const struct cairn__engine *engine, cairn_dtype type) {
    (void)engine;
    return type == CAIRN_F32;
}

static float dot(const struct cairn__matmul *p, int64_t i, int64_t j) {
    const float *a = p->a, *b = p->b;
    float sum = 0.0f;
    for (int64_t l = 0; l < p->k; l++) {
        sum += a[p->trans_a ? l * p->m + i : i * p->k + l] * b[p->trans_b ? j * p->k + l : l * p->n + j];
    }
    return sum;
}

cairn_status cairn__engine_matmul(struct cairn__engine *engine, const struct cairn__matmul *p) {
    (void)engine;
    float *c = p->c;
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            c[i * p->n + j] = dot(p, i, j);
        }
    }
    return CAIRN_OK;
}
