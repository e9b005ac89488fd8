/* The maps of maps_ref.c, compiled for AVX-512; in f32 alone. */
#include "core/cpu.h"
#include "kernels/fold_lanes.h"
#include "kernels/math_f32.h"

#include "kernels/map_rows.h"

#define ISA   avx512
#define NEEDS (CAIRN__CPU_AVX2 | CAIRN__CPU_AVX512)

#define T f32
#define R float
#include "kernels/map_loops.h"

#include "kernels/fp8_loops.h"

static const struct cairn__kernel_row rows[] = {MAP_ROWS(f32, CAIRN_F32) FP8_ROWS};

const struct cairn__row_list cairn__kernel_rows_maps_avx512 = {rows, sizeof(rows) / sizeof(rows[0])};
