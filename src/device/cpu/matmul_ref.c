/* Products in plain loops, for builds without oneDNN: complete and slow. Sums run over k in order. */
#include "core/alloc.h"
#include "device/cpu/conv.h"

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

const char *cairn__engine_describe(struct cairn__engine *engine) {
    (void)engine;
    return "plain loops (built without oneDNN)";
}

bool cairn__engine_takes(const struct cairn__engine *engine, cairn_dtype type) {
    (void)engine;
    return type == CAIRN_F32;
}

bool cairn__engine_finishes(const struct cairn__engine *engine, const struct cairn__product *product) {
    (void)engine, (void)product;
    return false;
}

static float dot(const struct cairn__product *p, int64_t i, int64_t j) {
    const float *a = p->a.data, *b = p->b.data;
    float sum = 0.0f;
    for (int64_t l = 0; l < p->k; l++) sum += a[i * p->a.row + l * p->a.col] * b[l * p->b.row + j * p->b.col];
    return sum;
}

cairn_status cairn__engine_product(struct cairn__engine *engine, const struct cairn__product *p) {
    (void)engine;
    float *c = p->c;
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            float *to = &c[i * p->c_row + j];
            *to = p->add ? *to + dot(p, i, j) : dot(p, i, j);
        }
    }
    return CAIRN_OK;
}

bool cairn__engine_conv_rounds(struct cairn__engine *engine, const struct cairn__conv_pass *pass) {
    (void)engine, (void)pass;
    return false;
}

cairn_status cairn__engine_conv(struct cairn__engine *engine, const struct cairn__conv_pass *pass) {
    (void)engine;
    cairn__conv_loops(pass);
    return CAIRN_OK;
}
