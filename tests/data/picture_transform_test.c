/* Transforms of pictures: crop boxes, resizing, values. test_pictures.py compares with Pillow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../check.h"
#include "../failing_alloc.h"
#include "cairn/pictures.h"
#include "core/alloc.h"

static const struct cairn_picture_transform *training(void) {
    static const struct cairn_picture_transform t = {.struct_size = sizeof(t),
                                                     .augment = CAIRN_ON,
                                                     .size = 8,
                                                     .dtype = CAIRN_U8};
    return &t;
}

struct drawn {
    struct cairn_picture_box box;
    int mirrored;
};

static struct drawn draw(int64_t h, int64_t w, const struct cairn_picture_transform *t, uint64_t seed, int64_t epoch,
                         int64_t index) {
    struct drawn d;
    struct cairn_random random;
    cairn_random_begin(&random, seed, epoch, index);
    OK(cairn_picture_random_box(h, w, t, &random, &d.box, &d.mirrored));
    return d;
}

static bool same(struct drawn a, struct drawn b) {
    return a.box.top == b.box.top && a.box.left == b.box.left && a.box.height == b.box.height &&
           a.box.width == b.box.width && a.mirrored == b.mirrored;
}

static void a_box_depends_on_seed_epoch_and_index_only(void **state) {
    (void)state;
    int others = 0;
    for (int64_t i = 0; i < 100; i++) {
        const struct drawn d = draw(300, 400, training(), 1, 2, i);
        assert_true(same(d, draw(300, 400, training(), 1, 2, i)));
        others += same(d, draw(300, 400, training(), 2, 2, i)) + same(d, draw(300, 400, training(), 1, 3, i)) +
                  same(d, draw(300, 400, training(), 1, 2, i + 1));
    }
    assert_in_range(others, 0, 1);
}

static void boxes_have_the_requested_areas_and_ratios(void **state) {
    (void)state;
    enum { N = 20000, H = 300, W = 400 };
    int thirds[3] = {0}, tall = 0, mirrored = 0, top = 0, left = 0;
    for (int64_t i = 0; i < N; i++) {
        const struct drawn d = draw(H, W, training(), 5, 0, i);
        const struct cairn_picture_box b = d.box;
        const double area = (double)(b.height * b.width) / (H * W), ratio = (double)b.width / (double)b.height;
        assert_true(b.top >= 0 && b.left >= 0 && b.top + b.height <= H && b.left + b.width <= W);
        if (area < 0.075 || area > 1 || ratio < 0.73 || ratio > 1.37) fail_msg("area %g, ratio %g", area, ratio);
        thirds[area < 0.08 + 0.92 / 3 ? 0 : area < 0.08 + 2 * 0.92 / 3 ? 1 : 2]++;
        tall += ratio < 1;
        mirrored += d.mirrored;
        top += 2 * b.top < H - b.height, left += 2 * b.left < W - b.width;
    }
    /* As Python's random numbers give them by the same rule: 8988, 8281, 2731 and 8308 of 20000. */
    assert_in_range(thirds[0], 8700, 9280);
    assert_in_range(thirds[1], 7990, 8570);
    assert_in_range(thirds[2], 2530, 2930);
    assert_in_range(tall, 8020, 8600);
    assert_in_range(mirrored, 9750, 10250);
    assert_in_range(top, 9500, 10500);
    assert_in_range(left, 9500, 10500);
}

/* A box of these areas never fits: torchvision's way out is the middle, as wide or high as ratio allows. */
static void a_picture_that_no_box_fits_gives_its_middle(void **state) {
    (void)state;
    static const struct {
        int64_t h, w;
        struct cairn_picture_box box;
    } cases[] = {{10, 1000, {0, 493, 10, 13}},
                 {1000, 10, {493, 0, 13, 10}},
                 {1, 1000, {0, 499, 1, 1}},
                 {1000, 1, {499, 0, 1, 1}}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int64_t index = 0; index < 20; index++) {
            const struct cairn_picture_transform *all =
                cairn_picture_transform(.augment = CAIRN_ON, .scale = {0.5, 1}, .flip = CAIRN_OFF);
            const struct drawn d = draw(cases[i].h, cases[i].w, all, 0, 0, index);
            assert_memory_equal(&d.box, &cases[i].box, sizeof(d.box));
            assert_int_equal(d.mirrored, 0);
        }
    }
    const struct drawn one = draw(1, 1, training(), 0, 0, 0);
    assert_memory_equal(&one.box, &((struct cairn_picture_box){0, 0, 1, 1}), sizeof(one.box));
}

static void the_area_of_one_is_all_of_a_square(void **state) {
    (void)state;
    const struct cairn_picture_transform *all =
        cairn_picture_transform(.augment = CAIRN_ON, .scale = {1, 1}, .ratio = {1, 1});
    const struct drawn d = draw(77, 77, all, 3, 4, 5);
    assert_memory_equal(&d.box, &((struct cairn_picture_box){0, 0, 77, 77}), sizeof(d.box));
}

/* ---- resizing ---- */

static cairn_picture *picture(int64_t h, int64_t w, const uint8_t *pixels) {
    cairn_picture *p = NULL;
    OK(cairn_picture_create(h, w, pixels, &p));
    return p;
}

static void halving_takes_triangles_of_four(void **state) {
    (void)state;
    /* Weights of a triangle of width 4 over pixels 0 to 2: 3/8, 3/8, 1/8 of 7/8 (the border has nothing beyond). */
    static const uint8_t grey[4] = {70, 0, 0, 210};
    uint8_t pixels[4 * 3];
    for (int i = 0; i < 12; i++) pixels[i] = grey[i / 3];
    cairn_picture *p = picture(1, 4, pixels), *half = NULL;
    OK(cairn_picture_resize(p, &(struct cairn_picture_box){0, 0, 1, 4}, 1, 2, &half));
    assert_int_equal(cairn_picture_width(half), 2);
    assert_int_equal(cairn_picture_pixels(half)[0], 70 * 3 / 7);
    assert_int_equal(cairn_picture_pixels(half)[3], 210 * 3 / 7);
    cairn_picture_destroy(&half);
    OK(cairn_picture_resize(p, &(struct cairn_picture_box){0, 1, 1, 2}, 1, 2, &half)); /* nothing to do */
    assert_int_equal(cairn_picture_pixels(half)[0], 0);
    cairn_picture_destroy(&half);
    cairn_picture_destroy(&p);
}

static void boxes_outside_of_a_picture_are_refused(void **state) {
    (void)state;
    static const uint8_t pixels[5 * 4 * 3];
    static const struct cairn_picture_box wrong[] = {{0, 0, 6, 4},  {0, 0, 5, 5},         {1, 0, 5, 4},
                                                     {0, 1, 5, 4},  {0, 0, 0, 4},         {0, 0, 5, -1},
                                                     {-1, 0, 2, 2}, {0, -1, 2, 2},        {5, 0, 1, 1},
                                                     {0, 0, 1, 0},  {INT64_MAX, 0, 1, 1}, {0, 0, INT64_MAX, 1}};
    cairn_picture *p = picture(5, 4, pixels), *out = NULL;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        REFUSED(cairn_picture_resize(p, &wrong[i], 2, 2, &out), CAIRN_EINVAL, "of a picture of 5 x 4 pixels");
    REFUSED(cairn_picture_resize(p, &(struct cairn_picture_box){0, 0, 5, 4}, 0, 2, &out), CAIRN_EINVAL,
            "resizing to 0 x 2 pixels");
    REFUSED(cairn_picture_resize(p, &(struct cairn_picture_box){0, 0, 5, 4}, INT64_MAX, INT64_MAX, &out), CAIRN_EINVAL,
            "there must be from 1 to 2^31");
    REFUSED(cairn_picture_resize(NULL, &wrong[0], 2, 2, &out), CAIRN_EINVAL, "picture, box and out must be set");
    assert_null(out);
    cairn_picture_destroy(&p);
}

/* ---- values ---- */

/* 4 x 6 pixels that say where they are. */
static cairn_picture *places(void) {
    uint8_t pixels[4 * 6 * 3];
    for (int i = 0; i < 4 * 6 * 3; i++) pixels[i] = (uint8_t)(i / 3 / 6 * 60 + i / 3 % 6 * 10 + i % 3);
    return picture(4, 6, pixels);
}

static void evaluation_takes_the_middle(void **state) {
    (void)state;
    uint8_t values[3][2][2];
    cairn_picture *p = places();
    OK(cairn_picture_apply(p, cairn_picture_transform(.size = 2, .resize = 4, .dtype = CAIRN_U8), NULL, values,
                           sizeof(values)));
    for (int c = 0; c < 3; c++) {
        for (int y = 0; y < 2; y++) {
            for (int x = 0; x < 2; x++) assert_int_equal(values[c][y][x], (1 + y) * 60 + (2 + x) * 10 + c);
        }
    }
    cairn_picture_destroy(&p);
}

/* All of it, resized, would have 2^47 pixels. */
static void of_a_picture_a_pixel_wide_the_middle_is_taken(void **state) {
    (void)state;
    enum { LONG = 1 << 20 };
    static uint8_t pixels[LONG * 3], values[3][64][64];
    for (int i = 0; i < LONG * 3; i++) pixels[i] = (uint8_t)(i / 3 < LONG / 2 ? 10 : 200);
    for (int turned = 0; turned < 2; turned++) {
        cairn_picture *p = picture(turned ? 1 : LONG, turned ? LONG : 1, pixels);
        OK(cairn_picture_apply(p, cairn_picture_transform(.size = 64, .resize = 8192, .dtype = CAIRN_U8), NULL, values,
                               sizeof(values)));
        for (int i = 1; i < 64; i++) /* a slope of a part of a pixel */
            assert_true(turned ? values[2][5][i] >= values[2][5][i - 1] : values[2][i][5] >= values[2][i - 1][5]);
        assert_in_range(values[0][31][31], 95, 115);
        cairn_picture_destroy(&p);
    }
}

static void f32_values_are_normalised_as_torch_rounds(void **state) {
    (void)state;
    uint8_t bytes[3][16];
    float imagenets[3][16], plain[3][16];
    cairn_picture *p = places();
    OK(cairn_picture_apply(p, cairn_picture_transform(.size = 4, .resize = 4, .dtype = CAIRN_U8), NULL, bytes,
                           sizeof(bytes)));
    OK(cairn_picture_apply(p, cairn_picture_transform(.size = 4, .resize = 4), NULL, imagenets, sizeof(imagenets)));
    OK(cairn_picture_apply(p, cairn_picture_transform(.size = 4, .resize = 4, .std = {1, 1, 1}), NULL, plain,
                           sizeof(plain)));
    static const float mean[] = {0.485f, 0.456f, 0.406f}, std[] = {0.229f, 0.224f, 0.225f};
    for (int i = 0; i < 48; i++) {
        const float unit = (float)bytes[i / 16][i % 16] / 255.0f;
        assert_true(plain[i / 16][i % 16] == unit);
        assert_true(imagenets[i / 16][i % 16] == (unit - mean[i / 16]) / std[i / 16]);
    }
    cairn_picture_destroy(&p);
}

static void training_mirrors_about_half(void **state) {
    (void)state;
    uint8_t values[3][8][8];
    int mirrored = 0;
    uint8_t pixels[8 * 8 * 3];
    for (int i = 0; i < 8 * 8 * 3; i++) pixels[i] = (uint8_t)(i / 3 % 8 * 30);
    cairn_picture *p = picture(8, 8, pixels);
    for (int64_t i = 0; i < 1000; i++) {
        struct cairn_random random;
        cairn_random_begin(&random, 1, 0, i);
        OK(cairn_picture_apply(p, training(), &random, values, sizeof(values)));
        mirrored += values[0][0][0] > values[0][0][7];
    }
    assert_in_range(mirrored, 430, 570);
    cairn_picture_destroy(&p);
}

static void transforms_that_make_no_sense_are_refused(void **state) {
    (void)state;
    static const struct {
        struct cairn_picture_transform t;
        const char *words;
    } cases[] = {
        {{.size = -1}, "size is -1; it must be from 1 to 16384"},
        {{.size = 20000}, "size is 20000"},
        {{.size = INT64_MAX}, "size is 9223372036854775807"},
        {{.size = INT64_MIN}, "size is -9223372036854775808"},
        {{.resize = 223}, "resize is 223; it must be from size, which is 224, to 65536"},
        {{.scale = {0.5, 0.2}}, "scale is {0.5, 0.2}"},
        {{.scale = {0, 1}}, "scale is {0, 1}"},
        {{.scale = {0.5, 1.5}}, "scale is {0.5, 1.5}"},
        {{.ratio = {-1, 1}}, "ratio is {-1, 1}"},
        {{.ratio = {2, 1}}, "ratio is {2, 1}"},
        {{.std = {1, 0, 1}}, "std 0 of channel 1"},
        {{.mean = {0.5, 0.5, 0.5}}, "mean 0.5 and std 0 of channel 0"},
        {{.augment = (cairn_switch)9}, "augment is 9"},
        {{.flip = (cairn_switch)9}, "flip is 9"},
        {{.dtype = CAIRN_F16}, "dtype is f16; it must be f32 or u8"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_picture_transform t = cases[i].t;
        t.struct_size = sizeof(t);
        assert_int_equal(cairn_picture_transform_nbytes(&t), 0);
        SAYS(cases[i].words);
    }
    assert_int_equal(cairn_picture_transform_nbytes(NULL), 224 * 224 * 3 * 4);
    assert_int_equal(cairn_picture_transform_nbytes(training()), 8 * 8 * 3);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    struct cairn_random random;
    struct cairn_picture_box box;
    uint8_t values[192];
    int mirrored;
    cairn_picture *p = places();
    cairn_random_begin(&random, 0, 0, 0);
    REFUSED(cairn_picture_apply(p, training(), NULL, values, 192), CAIRN_EINVAL, "random must be set");
    REFUSED(cairn_picture_apply(p, training(), &random, values, 191), CAIRN_EINVAL, "nbytes is 191, but an example");
    REFUSED(cairn_picture_apply(NULL, training(), &random, values, 192), CAIRN_EINVAL, "picture and values must be");
    REFUSED(cairn_picture_random_box(5, 5, NULL, &random, &box, &mirrored), CAIRN_EINVAL, "augment is not CAIRN_ON");
    REFUSED(cairn_picture_random_box(0, 5, training(), &random, &box, &mirrored), CAIRN_EINVAL, "0 x 5 pixels");
    REFUSED(cairn_picture_random_box(5, 5, training(), NULL, &box, &mirrored), CAIRN_EINVAL,
            "random, box and mirrored");
    cairn_picture_destroy(&p);
}

static void memory_that_runs_out_leaks_nothing(void **state) {
    (void)state;
    uint8_t values[192];
    cairn_picture *p = places();
    const uint64_t alive = cairn__alloc_counters().alive;
    cairn_status st = CAIRN_ENOMEM;
    int n = 0;
    while (st == CAIRN_ENOMEM) {
        struct cairn_random random;
        cairn_random_begin(&random, 0, 0, 0);
        fail_in = ++n;
        st = cairn_picture_apply(p, training(), &random, values, sizeof(values));
        assert_true(st == CAIRN_ENOMEM || st == CAIRN_OK);
        assert_int_equal(cairn__alloc_counters().alive, alive);
    }
    fail_in = 0;
    assert_in_range(n, 8, 16);
    cairn_picture_destroy(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_box_depends_on_seed_epoch_and_index_only),
        cmocka_unit_test(boxes_have_the_requested_areas_and_ratios),
        cmocka_unit_test(a_picture_that_no_box_fits_gives_its_middle),
        cmocka_unit_test(the_area_of_one_is_all_of_a_square),
        cmocka_unit_test(halving_takes_triangles_of_four),
        cmocka_unit_test(boxes_outside_of_a_picture_are_refused),
        cmocka_unit_test(evaluation_takes_the_middle),
        cmocka_unit_test(of_a_picture_a_pixel_wide_the_middle_is_taken),
        cmocka_unit_test(f32_values_are_normalised_as_torch_rounds),
        cmocka_unit_test(training_mirrors_about_half),
        cmocka_unit_test(transforms_that_make_no_sense_are_refused),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(memory_that_runs_out_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
