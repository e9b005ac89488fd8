#include "rounded_sum.h"

#include <math.h>

#include "core/half.h"
#include "core/philox.h"
#include "kernels/element.h"

float lab_round(cairn_dtype dtype, float x) {
    if (dtype == CAIRN_F16) return cairn__f16_to_f32(cairn__f32_to_f16(x));
    if (dtype == CAIRN_BF16) return cairn__bf16_to_f32(cairn__f32_to_bf16(x));
    return x;
}

static float round_at_random(const struct lab_sum *s, float x) {
    const struct cairn__philox_block block = cairn__philox(s->seed, s->additions / 8, s->stream);
    return cairn__bf16_to_f32(cairn__round_stochastic(x, cairn__random_16(&block, s->additions)));
}

void lab_sum_add(struct lab_sum *s, float term) {
    const float wide = s->value + term;
    s->value = s->rounding == LAB_STOCHASTIC ? round_at_random(s, wide) : lab_round(s->dtype, wide);
    s->additions++;
}

float lab_sum_equal(struct lab_sum s, float start, float term, size_t n) {
    s.value = start;
    for (size_t i = 0; i < n; i++) lab_sum_add(&s, term);
    return s.value;
}

struct lab_moments lab_sum_moments(struct lab_sum s, float start, float term, size_t n, size_t runs) {
    double sum = 0, squares = 0;
    for (size_t r = 0; r < runs; r++) {
        s.stream = r;
        const double end = (double)lab_sum_equal(s, start, term, n);
        sum += end;
        squares += end * end;
    }
    const double mean = sum / (double)runs;
    return (struct lab_moments){mean, sqrt(fmax(squares / (double)runs - mean * mean, 0))};
}
