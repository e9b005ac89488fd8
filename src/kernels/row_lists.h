/* The row lists of the kernel files, which table.c joins. Lists for other processor families are absent. */
#ifndef CAIRN__KERNELS_ROW_LISTS_H
#define CAIRN__KERNELS_ROW_LISTS_H

#include "kernels/kernels.h"

/* NAMED(add) is add_ref, add_avx2, ...: ISA is what the kernel file defines it to be. */
#define CONCAT_(name, isa) name##_##isa
#define CONCAT(name, isa)  CONCAT_(name, isa)
#define NAMED(name)        CONCAT(name, ISA) /* scale_f16_f32 -> scale_f16_f32_avx2 */
#define TEXT_(x)           #x
#define TEXT(x)            TEXT_(x)

struct cairn__row_list {
    const struct cairn__kernel_row *rows;
    size_t count;
};

extern const struct cairn__row_list cairn__kernel_rows_ref;
extern const struct cairn__row_list cairn__kernel_rows_of_rows_ref;
extern const struct cairn__row_list cairn__kernel_rows_maps_ref;
#if defined(__x86_64__)
extern const struct cairn__row_list cairn__kernel_rows_avx2;
extern const struct cairn__row_list cairn__kernel_rows_of_rows_avx2;
extern const struct cairn__row_list cairn__kernel_rows_of_rows_avx512;
extern const struct cairn__row_list cairn__kernel_rows_avx512;
extern const struct cairn__row_list cairn__kernel_rows_avx512_bf16;
extern const struct cairn__row_list cairn__kernel_rows_maps_avx2;
extern const struct cairn__row_list cairn__kernel_rows_maps_avx512;
#endif

#endif
