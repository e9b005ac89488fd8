/* The launchers of maps.cu: one element of the result from one of each operand.
 *
 * In f32, of floats, results have the CPU's bits but for those of NaNs that are computed: the formulas are the same
 * (kernels/map_functions.h), and compiled without contraction. f64 is CUDA's own mathematics, within an ulp or two.
 *
 * map_sum: the order of `sum` in launch.h, V = 8 where the first input is of a half type and else 4, so that a sum has
 * the same bits however memory lies. */
#ifndef CAIRN__DEVICE_CUDA_MAPS_H
#define CAIRN__DEVICE_CUDA_MAPS_H

#include "device/cuda/axes.h"
#include "device/cuda/launch.h"
#include "kernels/maps.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Operand 0 of the axes is the result, those from 1 on are the inputs; of a map without result (map_sum) operand 0 is
 * the first input once more. */
struct cairn__map_job {
    struct cairn__axes axes;
    void *dst;
    const void *x[CAIRN__MAP_INPUTS];
    cairn_dtype dst_type, x_type[CAIRN__MAP_INPUTS];
    double numbers[CAIRN__MAP_NUMBERS];
};

enum { CAIRN__MAP_PACK_NBYTES = 16 };

/* Elements that a pack of the type has: the last axis and strides must be multiples for launch_packs. */
int cairn__map_pack(cairn_dtype t);

/* Whether a formula has kernels for packs. */
bool cairn__map_has_packs(enum cairn__map_fn f);

/* All operands are of t: f32, f16 or bf16. Along the last axis, a multiple of the pack unless it is the only one, the
 * result's stride is 1, the inputs' 0 or 1; other strides are multiples of the pack, and pointers aligned to it. */
int cairn__launch_map_packs(struct CUstream_st *stream, enum cairn__map_fn f, cairn_dtype t,
                            const struct cairn__map_job *job);
/* Any types and strides; R is f64 where wide. */
int cairn__launch_map_any(struct CUstream_st *stream, enum cairn__map_fn f, bool wide,
                          const struct cairn__map_job *job);
/* dst is one element. */
int cairn__launch_map_sum(struct CUstream_st *stream, struct cairn__partials *partials, enum cairn__map_fn f, bool wide,
                          const struct cairn__map_job *job, double divisor);

/* Copies of bits of `width` bytes, 1, 2, 4 or 8; in packs of 16 bytes, as of launch_map_packs. */
int cairn__launch_copy_packs(struct CUstream_st *stream, const struct cairn__map_job *job, size_t width);
int cairn__launch_copy_any(struct CUstream_st *stream, const struct cairn__map_job *job, size_t width);
/* planes of [rows, cols] in the result, whose elements lie one after another along cols; those of the source lie one
 * after another along rows. The strides of the axes: all but the last two are the planes'. */
int cairn__launch_copy_transposed(struct CUstream_st *stream, const struct cairn__map_job *job, size_t width);

#ifdef __cplusplus
}
#endif

#endif
