#include "waves.h"

#include "core/philox.h"

/* Periods across and down a picture. */
static const int frequency[LAB_CLASSES][2] = {{1, 0}, {0, 1}, {1, 1}, {1, -1}, {2, 0},
                                              {0, 2}, {2, 1}, {1, 2}, {2, -1}, {1, -2}};

/* Standard deviation of the normal noise. */
static const float noise = 1.5f;

void lab_wave(uint64_t seed, uint64_t number, float pixels[LAB_PIXELS], int64_t *class) {
    const struct cairn__philox_block draw = cairn__philox(seed, 0, number);
    const uint32_t c = (uint32_t)(((uint64_t)draw.word[0] * LAB_CLASSES) >> 32);
    const uint32_t phase = draw.word[1] >> 2; /* within a quarter of a turn */
    float normals[4];
    for (int i = 0; i < LAB_PIXELS; i++) {
        const int eighths = frequency[c][0] * (i % LAB_SIDE) + frequency[c][1] * (i / LAB_SIDE);
        float cosine, sine;
        if (i % 4 == 0) cairn__normal4(cairn__philox(seed, 1 + (uint64_t)i / 4, number), normals);
        cairn__cos_sin_turn(((uint32_t)eighths << 29) + phase, &cosine, &sine);
        pixels[i] = cosine + noise * normals[i % 4];
    }
    *class = (int64_t)c;
}
