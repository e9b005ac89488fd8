/* Philox against its authors' test vectors, and the distributions derived from it against libm and their moments. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/philox.h"

/* Source: Random123 1.14, tests/kat_vectors, "philox4x32 10". */
static void blocks_match_the_known_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t key, low, high;
        uint32_t word[4];
    } answers[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct cairn__philox_block b = cairn__philox(answers[i].key, answers[i].low, answers[i].high);
        assert_memory_equal(b.word, answers[i].word, sizeof(b.word));
    }
}

static void uniforms_are_in_their_interval_and_even(void **state) {
    (void)state;
    assert_true(cairn__uniform(0) == 0.0f);
    assert_true(cairn__uniform(UINT32_MAX) == 1.0f - 0x1p-24f);
    assert_true(cairn__uniform(0x80000000) == 0.5f);
    enum { N = 1 << 18 };
    double sum = 0;
    int bucket[16] = {0};
    for (uint64_t i = 0; i < N; i++) {
        float u = cairn__uniform(cairn__philox(42, i, 7).word[i % 4]);
        assert_true(u >= 0 && u < 1);
        sum += (double)u;
        bucket[(int)(u * 16)]++;
    }
    assert_true(fabs(sum / N - 0.5) < 5 * 0.2887 / sqrt(N)); /* five standard errors */
    for (int b = 0; b < 16; b++) assert_true(fabs(bucket[b] - N / 16.0) < 5 * sqrt(N / 16.0));
}

/* Moments of a standard normal, each within five of its standard errors, and its tails. */
static void normals_have_the_moments_and_tails_of_the_distribution(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    double moment[5] = {0};
    int beyond_two = 0, beyond_four = 0;
    for (uint64_t i = 0; i < N / 4; i++) {
        float normal[4];
        cairn__normal4(cairn__philox(1234, i, 0), normal);
        for (int j = 0; j < 4; j++) {
            double x = (double)normal[j];
            assert_true(isfinite(x) && fabs(x) < 5.9); /* sqrt(2 ln 2^24) = 5.77 */
            for (int m = 1; m <= 4; m++) moment[m] += pow(x, m) / N;
            beyond_two += fabs(x) > 2;
            beyond_four += fabs(x) > 4;
        }
    }
    const double root = sqrt(N);
    assert_true(fabs(moment[1]) < 5 * 1 / root);
    assert_true(fabs(moment[2] - 1) < 5 * sqrt(2) / root);
    assert_true(fabs(moment[3]) < 5 * sqrt(15) / root);
    assert_true(fabs(moment[4] - 3) < 5 * sqrt(96) / root);
    assert_true(fabs(beyond_two - 0.0455003 * N) < 5 * sqrt(0.0455 * N));
    assert_true(fabs(beyond_four - 6.334e-5 * N) < 5 * sqrt(6.334e-5 * N));
}

static void normals_of_neighbours_are_uncorrelated(void **state) {
    (void)state;
    enum { N = 1 << 16 };
    double across_pair = 0, across_counter = 0;
    float last = 0;
    for (uint64_t i = 0; i < N; i++) {
        float normal[4];
        cairn__normal4(cairn__philox(5, i, 0), normal);
        across_pair += (double)normal[0] * (double)normal[1] / N;
        across_counter += (double)normal[0] * (double)last / N;
        last = normal[0];
    }
    assert_true(fabs(across_pair) < 5 / sqrt(N) && fabs(across_counter) < 5 / sqrt(N));
}

/* The bound is philox.h's own. All 2^24 arguments that a normal can ask for. */
static void logarithm_is_within_its_bound(void **state) {
    (void)state;
    double worst = 0;
    for (uint32_t k = 1; k < 1u << 24; k++) {
        double want = log(k * 0x1p-24), got = (double)cairn__log_unit((float)k * 0x1p-24f);
        worst = fmax(worst, fabs((got - want) / want));
    }
    assert_true(worst < exp2(-22.5));
    assert_true(cairn__log_unit(1.0f) == 0.0f);
}

static void cosine_and_sine_are_within_their_bound(void **state) {
    (void)state;
    double worst = 0;
    for (uint64_t word = 0; word < (uint64_t)1 << 32; word += 1021) {
        float cosine, sine;
        cairn__cos_sin_turn((uint32_t)word, &cosine, &sine);
        double angle = 6.283185307179586 * ((double)word * 0x1p-32);
        worst = fmax(worst, fmax(fabs((double)cosine - cos(angle)), fabs((double)sine - sin(angle))));
    }
    assert_true(worst < 0x1p-22);
}

/* Bits, not values: these are the numbers every device must make. */
static void normals_keep_their_bits(void **state) {
    (void)state;
    float normal[4];
    cairn__normal4(cairn__philox(0, 0, 0), normal);
    static const uint32_t want[4] = {0x3f7dbb31, 0xbf6cb6af, 0xbf1e1b9d, 0xbef6d1ae}; /* x86-64 and aarch64 */
    for (int j = 0; j < 4; j++) assert_int_equal(cairn__f32_bits(normal[j]), want[j]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_match_the_known_answers),
        cmocka_unit_test(uniforms_are_in_their_interval_and_even),
        cmocka_unit_test(normals_have_the_moments_and_tails_of_the_distribution),
        cmocka_unit_test(normals_of_neighbours_are_uncorrelated),
        cmocka_unit_test(logarithm_is_within_its_bound),
        cmocka_unit_test(cosine_and_sine_are_within_their_bound),
        cmocka_unit_test(normals_keep_their_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
