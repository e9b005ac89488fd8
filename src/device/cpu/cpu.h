/* The CPU backend: its state, its passes, and the engine of its matrix products: oneDNN where it was found
 * (matmul_onednn.c), else plain loops (matmul_ref.c). The build picks one of the two files. */
#ifndef CAIRN__DEVICE_CPU_H
#define CAIRN__DEVICE_CPU_H

#include "device/device.h"

extern const struct cairn__device_ops cairn__cpu_ops;
extern const struct cairn__passes cairn__cpu_passes;

/* Memory that grows to the largest need and stays, so that a training step allocates nothing once it has run. */
struct cairn__scratch {
    float *data;
    size_t room;
};

enum { CAIRN__LANES = 64 };

struct cairn__cpu {
    const struct cairn__kernels *kernels;
    struct cairn__engine *engine;
    struct cairn__engine *lanes[CAIRN__LANES]; /* of threads that multiply side by side; made when first needed */
    struct cairn__scratch attention;           /* all lanes of it */
    struct cairn__scratch a, b, c, row; /* operands, result, and bias or row sums of products; a and b of sums too */
    struct cairn__scratch dense[CAIRN__MAP_INPUTS]; /* operands of maps that would be read in jumps */
    cairn_status failed;                            /* of passes, until check is asked; with its words */
    char failure[256];
    char text[128];
};

static inline struct cairn__cpu *cairn__cpu_of(const struct cairn_device *d) {
    return d->state;
}

/* n floats, undefined; what was there before is gone. */
cairn_status cairn__scratch_room(struct cairn__scratch *s, size_t n, float **out);

/* n values of x as f32: x itself, or widened into s. */
cairn_status cairn__cpu_widen(const struct cairn_device *d, struct cairn__scratch *s, cairn_dtype type, const void *x,
                              size_t n, const float **out);

struct cairn__engine;

/* features: cairn__cpu_features(). One engine a device, used by one thread at a time. */
cairn_status cairn__engine_open(unsigned features, struct cairn__engine **out);
void cairn__engine_close(struct cairn__engine **engine);

/* "oneDNN 2.6.3, 1 thread"; owned by the engine, good until it is asked again. */
const char *cairn__engine_describe(struct cairn__engine *engine);

/* Whether the engine multiplies this type itself; f32 always. Other operands are widened by the caller. */
bool cairn__engine_takes(const struct cairn__engine *engine, cairn_dtype type);

/* Element [i, j] is at i * row + j * col. */
struct cairn__operand {
    const void *data;
    int64_t row, col;
};

/* C[m, n] = A[m, k] B[k, n]. No size is 0, the type is one the engine takes, and A and B are as
 * cairn__operand_settle leaves them. Products and sums are f32. */
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
 * has to, on f32. It is asked with sizes, operands, types and add. */
bool cairn__engine_finishes(const struct cairn__engine *engine, const struct cairn__product *product);

/* Equal calls give equal bits. Errors: CAIRN_ENOMEM; CAIRN_EDEVICE with oneDNN's status. */
cairn_status cairn__engine_product(struct cairn__engine *engine, const struct cairn__product *product);

/* The same for dense operands: C in f32 whatever out_type says; bias, relu and row sums are the caller's business. */
cairn_status cairn__engine_matmul(struct cairn__engine *engine, const struct cairn__matmul *p);

/* Whether x, [rows, cols], has rows or columns of neighbours that do not overlap. Then it is left with col 1, or else
 * with row 1, and the other stride is large enough for any engine. */
bool cairn__operand_settle(struct cairn__operand *x, int64_t rows, int64_t cols);

#endif
