/* The engine of the CPU's matrix products: oneDNN if the build has it (engine_onednn.c, matmul_onednn.c), else plain
 * loops (matmul_ref.c). */
#ifndef CAIRN__CPU_ENGINE_H
#define CAIRN__CPU_ENGINE_H

#include <stdbool.h>

#include "cairn/core.h"

struct cairn__engine;

/* features: cairn__cpu_features(). A device has one engine, plus one for each lane; one thread at a time uses it. */
cairn_status cairn__engine_open(unsigned features, struct cairn__engine **out);
void cairn__engine_close(struct cairn__engine **engine);

/* "oneDNN 2.6.3, 1 thread"; owned by the engine, valid until the next call. */
const char *cairn__engine_describe(struct cairn__engine *engine);

/* Whether the engine multiplies operands of this type; it always multiplies f32. The caller widens other types. */
bool cairn__engine_takes(const struct cairn__engine *engine, cairn_dtype type);

/* Element [i, j] is at i * row + j * col. */
struct cairn__operand {
    const void *data;
    int64_t row, col;
};

/* C[m, n] = A[m, k] B[k, n]. No size is 0, the type is one the engine takes, and A and B are as
 * cairn__operand_settle leaves them (pack.h). Products and sums are f32. */
struct cairn__product {
    int64_t m, n, k;
    struct cairn__operand a, b;
    cairn_dtype in_type, out_type; /* out_type: f32, or in_type if the engine finishes this product */
    const float *bias; /* added to every row before the rounding; NULL = none; must be NULL if it does not finish */
    bool add;          /* adds to the f32 that C holds; without bias */
    void *c;
    int64_t c_row;
};

/* Whether the engine itself adds the bias and rounds to in_type, with the same bits as separate passes; otherwise the
 * caller must do both on f32. Reads product's sizes, operands, types and add. */
bool cairn__engine_finishes(const struct cairn__engine *engine, const struct cairn__product *product);

/* Equal calls give equal bits. Errors: CAIRN_ENOMEM; CAIRN_EDEVICE with oneDNN's status. */
cairn_status cairn__engine_product(struct cairn__engine *engine, const struct cairn__product *product);

#endif
