/* The rows of what map_loops.h made: MAP_ROWS(f32, CAIRN_F32) lists those of one type, in a file with ISA and
 * NEEDS. */
#define EACH_FOLD(X) X(SUM) X(SUM_SQUARES) X(SUM_ABS) X(PRODUCT) X(MAX) X(MIN)
#define MAP_ROW(kind, a, b, name) \
    {CAIRN__K_##kind, a, b, NEEDS, CAIRN__BITEXACT, TEXT(NAMED(name)), (void (*)(void))NAMED(name)},
#define MAP_ROW_f32(name, inputs, what) MAP_ROW(MAP, CAIRN__MAP_##name, CAIRN_F32, map_##name##_f32)
#define MAP_ROW_f64(name, inputs, what) MAP_ROW(MAP, CAIRN__MAP_##name, CAIRN_F64, map_##name##_f64)
#define FOLD_ROWS(name, t, type)                               \
    MAP_ROW(FOLD, CAIRN__FOLD_##name, type, fold_##name##_##t) \
    MAP_ROW(FOLD_INTO, CAIRN__FOLD_##name, type, fold_into_##name##_##t)
#define FOLD_ROWS_f32(name) FOLD_ROWS(name, f32, CAIRN_F32)
#define FOLD_ROWS_f64(name) FOLD_ROWS(name, f64, CAIRN_F64)
#define MAP_ROWS(t, type)   CAIRN__MAP_LIST(MAP_ROW_##t) EACH_FOLD(FOLD_ROWS_##t) MAP_ROW(DOT, type, 0, dot_##t)
