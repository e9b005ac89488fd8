/* Maps, folds, dot products and fp8: the reference, which is the generic path too; maps in f32 and f64. */
#include <math.h>

#include "kernels/math_f32.h"
#include "kernels/math_f64.h"

#include "kernels/map_rows.h"

#define ISA   ref
#define NEEDS 0

#define T f32
#define R float
#include "kernels/map_loops.h"
#undef T
#undef R

#define T f64
#define R double
#include "kernels/map_loops.h"
#undef T
#undef R

#include "kernels/fp8_loops.h"

static const struct cairn__kernel_row rows[] = {MAP_ROWS(f32, CAIRN_F32) MAP_ROWS(f64, CAIRN_F64) FP8_ROWS};

const struct cairn__row_list cairn__kernel_rows_maps_ref = {rows, sizeof(rows) / sizeof(rows[0])};
