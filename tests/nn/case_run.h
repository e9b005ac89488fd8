/* Runs a case of op_cases.h: draws its inputs, applies the operation in a type and a layout, and converts the results
 * of forward and backward to f64 for comparison. */
#ifndef CASE_RUN_H
#define CASE_RUN_H

#include <stdbool.h>

#include "op_cases.h"

enum { NUM_FAMILIES = 8, CASE_WHY = 512, CASE_TYPES = 3 };

struct family {
    const char *name;
    const struct op_cases *cases;
};
extern const struct family families[NUM_FAMILIES];

/* f32, f16, bf16 */
extern const cairn_dtype case_types[CASE_TYPES];

struct case_array {
    int ndim;
    int64_t shape[CASE_DIMS];
    size_t n;
    double *values; /* [n], row-major; NULL = no such array */
    cairn_dtype dtype;
};

/* Allocates zeroed values; free with cairn__free. */
void *case_room(size_t n, size_t nbytes);

bool case_input_is_float(const struct case_input *input);

/* Whether the case needs the gradient of this input. */
bool case_wants(const struct op_case *c, int input);

/* Draws the values of every input; floats are rounded to `type`. */
void case_draw(const struct op_case *c, cairn_dtype type, struct case_array inputs[CASE_INPUTS]);
void case_arrays_free(struct case_array *arrays, int count);

/* The initial gradient of backward, for element i of the result. Exact in every type. */
double case_weight(size_t i);

/* Tolerance of a value in a type: absolute + relative * |expected|. Infinities and NaNs must match; f64 must be
 * equal. */
struct limit {
    double relative, absolute;
};
struct limit case_limit(const struct op_case *c, cairn_dtype type);
bool case_is_near(double got, double want, struct limit limit);

enum layout { DENSE, STRIDED };

struct case_how {
    cairn_dtype type; /* type that the inputs were drawn in */
    enum layout layout;
    unsigned wanted; /* bit i: compute the gradient of input i, if the case needs it */
};

enum { EVERY_GRADIENT = 0xff };

struct case_result {
    struct case_array y;
    struct case_array dy; /* the initial gradient; no values if the result does not require a gradient */
    struct case_array grads[CASE_INPUTS];
    bool has_grad[CASE_INPUTS];
};

/* Applies the operation in a separate step. Returns false on error, with the reason in `why`. */
bool case_run(cairn_env *env, const struct op_case *c, const struct case_array inputs[CASE_INPUTS],
              const struct case_how *how, struct case_result *out, char why[CASE_WHY]);
void case_result_free(struct case_result *result);

/* Finite differences of the weighted sum of the result (of `outputs` elements) by elements of an input, in f64. */
bool case_differences(cairn_env *env, const struct op_case *c, const struct case_array inputs[CASE_INPUTS], int input,
                      const size_t *elements, size_t count, size_t outputs, double *quotients, char why[CASE_WHY]);

/* ---- PyTorch; case_torch.c ---- */

/* Prints a case as text for torch_ops.py, in the types of training: inputs, result, gradients. */
bool case_dump(cairn_env *env, const struct family *family, const struct op_case *c, char why[CASE_WHY]);

/* Compares the case with its results in `vectors`, a file written by torch_ops.py --store. *found: whether the file has
 * any. */
bool case_meets_vectors(cairn_env *env, const struct op_case *c, const char *vectors, bool *found, char why[CASE_WHY]);

#endif
