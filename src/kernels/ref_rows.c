/* The scalar reference of the kernels over rows (rows.h): their definition. f64 has no other row. */
#include <math.h>

#include "core/half.h"
#include "core/philox.h"
#include "kernels/row_lists.h"

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

INLINE float get_f32(int type, const void *x, size_t i) {
    if (type == CAIRN_F16) return cairn__f16_to_f32(((const uint16_t *)x)[i]);
    if (type == CAIRN_BF16) return cairn__bf16_to_f32(((const uint16_t *)x)[i]);
    return ((const float *)x)[i];
}
INLINE void put_f32(int type, void *x, size_t i, float value) {
    if (type == CAIRN_F16) {
        ((uint16_t *)x)[i] = cairn__f32_to_f16(value);
    } else if (type == CAIRN_BF16) {
        ((uint16_t *)x)[i] = cairn__f32_to_bf16(value);
    } else {
        ((float *)x)[i] = value;
    }
}
INLINE double get_f64(int type, const void *x, size_t i) {
    (void)type;
    return ((const double *)x)[i];
}
INLINE void put_f64(int type, void *x, size_t i, double value) {
    (void)type;
    ((double *)x)[i] = value;
}

#define OF(name) CONCAT(name, IN)

#define R  float
#define IN f32
#include "kernels/ref_rows.h"
#undef R
#undef IN
#define R  double
#define IN f64
#include "kernels/ref_rows.h"

#define ISA              ref
#define NEEDS            0
#define EACH_ROW_TYPE(X) X(f32, F32, f32) X(f16, F16, f32) X(bf16, BF16, f32) X(f64, F64, f64)
#include "kernels/row_instances.h"
