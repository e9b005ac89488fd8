/* Counts of exponents by vectors: a part of simd.h, which includes it.
 *
 * Each element's place among the counters (exponents.h) is found by vectors and stored. Neighbours are then counted in
 * different tables, since a counter that was just stored can be added to only some cycles later: elements that are all
 * equal, or every other one 0, take the time of others. */

enum { COUNTED_AT_ONCE = 512, COUNT_TABLES = 8, COUNTED_IN_32_BITS = 1 << 30 };

/* n is at most COUNTED_AT_ONCE, and x has whole vectors. */
INLINE void find_fields(const float *x, size_t n, int32_t *field) {
    typedef int32_t lanes __attribute__((vector_size(32)));
    typedef float floats __attribute__((vector_size(32)));
    for (size_t i = 0; i < n; i += 8) {
        lanes m;
        memcpy(&m, x + i, sizeof(m));
        m &= 0x7fffffff;
        const lanes is_small = (lanes)(m < 0x800000);
        const lanes of_small = (lanes) __builtin_convertvector(m, floats) >> 23;
        const lanes of_others = (m >> 23) + 149 - (lanes)(m > 0x7f800000);
        const lanes fields = (of_small & is_small) | (of_others & ~is_small);
        memcpy(field + i, &fields, sizeof(fields));
    }
}

INLINE void count_fields(const int32_t *field, size_t n, uint32_t (*count)[CAIRN__FIELDS]) {
    size_t i = 0;
    for (; i + COUNT_TABLES <= n; i += COUNT_TABLES) {
        count[0][field[i]]++;
        count[1][field[i + 1]]++;
        count[2][field[i + 2]]++;
        count[3][field[i + 3]]++;
        count[4][field[i + 4]]++;
        count[5][field[i + 5]]++;
        count[6][field[i + 6]]++;
        count[7][field[i + 7]]++;
    }
    for (; i < n; i++) count[0][field[i]]++;
}

/* Of at most COUNTED_IN_32_BITS elements. */
INLINE void count_part(int type, const void *x, size_t n, struct cairn__exponent_counts *counts) {
    uint32_t count[COUNT_TABLES][CAIRN__FIELDS] = {{0}};
    int32_t field[COUNTED_AT_ONCE];
    float wide[COUNTED_AT_ONCE];
    for (size_t i = 0; i < n; i += COUNTED_AT_ONCE) {
        const size_t m = least(n - i, COUNTED_AT_ONCE);
        const void *from = (const char *)x + i * width_of(type);
        if (type == CAIRN_F32 && m == COUNTED_AT_ONCE) {
            find_fields(from, m, field);
        } else {
            if (m < COUNTED_AT_ONCE) memset(wide + m / LANES * LANES, 0, LANES * sizeof(wide[0]));
            OVER(m, NULL, 4, put(CAIRN_F32, wide, at, get(type, from, at)));
            find_fields(wide, m, field);
        }
        count_fields(field, m, count);
    }
    for (uint32_t f = 0; f < CAIRN__FIELDS; f++) {
        uint64_t all = 0;
        for (int t = 0; t < COUNT_TABLES; t++) all += count[t][f];
        if (all) *cairn__count_of_field(counts, f) += all;
    }
}

INLINE void count_exponents(int type, const void *x, size_t n, struct cairn__exponent_counts *counts) {
    for (size_t i = 0; i < n; i += COUNTED_IN_32_BITS)
        count_part(type, (const char *)x + i * width_of(type), least(n - i, COUNTED_IN_32_BITS), counts);
}
