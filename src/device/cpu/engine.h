/* The engine of the CPU's matrix products: oneDNN where the build has it (engine_onednn.c, matmul_onednn.c), else plain
 * loops (matmul_ref.c). */
#ifndef CAIRN__CPU_ENGINE_H
#define CAIRN__CPU_ENGINE_H

#include <stdbool.h>

#include "cairn/core.h"

struct cairn__engine;

/* features: cairn__cpu_features(). One engine a device, used by one thread at a time. */
cairn_status cairn__engine_open(unsigned features, struct cairn__engine **out);
void cairn__engine_close(struct cairn__engine **engine);

/* "oneDNN 2.6.3, 1 thread"; owned by the engine, valid until the next call. */
const char *cairn__engine_describe(struct cairn__engine *engine);

/* Whether the engine multiplies this type itself; f32 always. Other operands are widened by the caller. */
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
    cairn_dtype in_type, out_type; /* out_type: f32, or in_type where the engine finishes this product */
    const float *bias; /* added to every row before the rounding; NULL = none, as where it does not finish */
    bool add;          /* to the f32 that C holds; without bias */
    void *c;
    int64_t c_row;
};

/* Whether the engine adds the bias and rounds to in_type itself, with the bits of passes of their own; else the caller
 * has to, on f32. Of product it reads sizes, operands, types and add. */
bool cairn__engine_finishes(const struct cairn__engine *engine, const struct cairn__product *product);

/* Equal calls give equal bits. Errors: CAIRN_ENOMEM; CAIRN_EDEVICE with oneDNN's status. */
cairn_status cairn__engine_product(struct cairn__engine *engine, const struct cairn__product *product);

#endif
