/* Decoding pictures: every kind of PNG and JPEG, and hostile ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "../check.h"
#include "../failing_alloc.h"
#include "cairn/pictures.h"
#include "core/alloc.h"
#include "encode.h"

enum { H = 21, W = 34 };

static cairn_picture *decoded(struct bytes file) {
    cairn_picture *p = NULL;
    OK(cairn_picture_decode(file.at, file.n, "a.jpg", NULL, &p));
    return p;
}

static void is_refused(struct bytes file, const char *words) {
    cairn_picture *p = NULL;
    const uint64_t alive = cairn__alloc_counters().alive;
    REFUSED(cairn_picture_decode(file.at, file.n, "here/a.jpg", NULL, &p), CAIRN_EINVAL, words);
    SAYS("here/a.jpg: ");
    assert_null(p);
    assert_int_equal(cairn__alloc_counters().alive, alive);
}

static const cairn_switch on = CAIRN_ON;

static int far_from(const cairn_picture *p, const unsigned char *rgb) {
    int most = 0;
    const uint8_t *pixels = cairn_picture_pixels(p);
    for (int64_t i = 0; i < 3 * cairn_picture_height(p) * cairn_picture_width(p); i++) {
        const int d = abs(pixels[i] - rgb[i]);
        most = d > most ? d : most;
    }
    return most;
}

/* ---- PNG ---- */

/* Sample s of a row of samples of `depth` bits, as 8 bits. */
static int sample(const unsigned char *row, int s, int depth, bool is_index) {
    if (depth == 16) return row[2 * s];
    if (depth == 8) return row[s];
    const int v = row[s * depth / 8] >> (8 - depth - s * depth % 8) & ((1 << depth) - 1);
    return is_index ? v : v * 255 / ((1 << depth) - 1);
}

static void every_kind_of_png_becomes_rgb(void **state) {
    (void)state;
    static const struct {
        int color, channels, depth, num_palette;
    } kinds[] = {{PNG_COLOR_TYPE_GRAY, 1, 1, 0},        {PNG_COLOR_TYPE_GRAY, 1, 2, 0},
                 {PNG_COLOR_TYPE_GRAY, 1, 4, 0},        {PNG_COLOR_TYPE_GRAY, 1, 8, 0},
                 {PNG_COLOR_TYPE_GRAY, 1, 16, 0},       {PNG_COLOR_TYPE_GRAY_ALPHA, 2, 8, 0},
                 {PNG_COLOR_TYPE_GRAY_ALPHA, 2, 16, 0}, {PNG_COLOR_TYPE_PALETTE, 1, 1, 2},
                 {PNG_COLOR_TYPE_PALETTE, 1, 2, 4},     {PNG_COLOR_TYPE_PALETTE, 1, 4, 16},
                 {PNG_COLOR_TYPE_PALETTE, 1, 8, 256},   {PNG_COLOR_TYPE_RGB, 3, 8, 0},
                 {PNG_COLOR_TYPE_RGB, 3, 16, 0},        {PNG_COLOR_TYPE_RGB_ALPHA, 4, 8, 0},
                 {PNG_COLOR_TYPE_RGB_ALPHA, 4, 16, 0}};
    unsigned char rows[H][8 * W];
    for (unsigned i = 0; i < sizeof(rows); i++) rows[i / (8 * W)][i % (8 * W)] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (int variant = 0; variant < 4; variant++) {
            const int channels = kinds[k].channels, depth = kinds[k].depth;
            const bool is_palette = kinds[k].color == PNG_COLOR_TYPE_PALETTE, has_alpha = channels % 2 == 0;
            if (has_alpha && variant >= 2) continue; /* which no tRNS goes with */
            struct bytes file = encode_png(H, W, rows[0], sizeof(rows[0]),
                                           (struct png_kind){.color = kinds[k].color,
                                                             .depth = depth,
                                                             .interlaced = variant & 1,
                                                             .num_palette = kinds[k].num_palette,
                                                             .transparent = variant >> 1});
            cairn_picture *p = decoded(file);
            assert_int_equal(cairn_picture_height(p), H);
            assert_int_equal(cairn_picture_width(p), W);
            for (int i = 0; i < H * W * 3; i++) {
                const int y = i / 3 / W, x = i / 3 % W, c = i % 3;
                unsigned char rgb[3];
                const int s = sample(rows[y], x * channels + (channels > 2 ? c : 0), depth, is_palette);
                if (is_palette) palette_entry(s, rgb);
                if (cairn_picture_pixels(p)[i] != (is_palette ? rgb[c] : s))
                    fail_msg("kind %zu, variant %d, value %d: %d", k, variant, i, cairn_picture_pixels(p)[i]);
            }
            cairn_picture_destroy(&p);
            free(file.at);
        }
    }
}

static struct bytes small_png(void) {
    unsigned char *rgb = waves(H, W, 3);
    struct bytes file = encode_rgb_png(H, W, rgb);
    free(rgb);
    return file;
}

static void a_png_truncated_anywhere_is_refused(void **state) {
    (void)state;
    struct bytes file = small_png();
    for (size_t n = 0; n < file.n; n++) {
        /* In memory of its own, so that a sanitizer sees what is read behind its end. */
        struct bytes cut = {malloc(n ? n : 1), n};
        memcpy(cut.at, file.at, n);
        is_refused(cut, n == 0 ? "empty (0 bytes)" : n < 8 ? "neither a JPEG nor a PNG" : "may have been truncated");
        free(cut.at);
    }
    free(file.at);
}

static void a_png_with_a_wrong_checksum_is_refused(void **state) {
    (void)state;
    struct bytes file = small_png();
    file.at[29] ^= 1; /* of IHDR */
    is_refused(file, "a PNG that cannot be decoded: IHDR: CRC error");
    file.at[29] ^= 1;
    file.at[file.n - 12 - 1] ^= 1; /* of the last IDAT, behind which stands IEND */
    is_refused(file, "CRC error");
    free(file.at);
}

/* ---- JPEG ---- */

static void a_jpeg_gives_the_picture_that_was_written(void **state) {
    (void)state;
    unsigned char *rgb = waves(H, W, 3);
    static const struct jpeg_kind kinds[] = {
        {.from = JCS_RGB, .in_file = JCS_YCbCr, .channels = 3},
        {.from = JCS_RGB, .in_file = JCS_RGB, .channels = 3},
        {.from = JCS_RGB, .in_file = JCS_YCbCr, .channels = 3, .restart_interval = 2},
        {.from = JCS_RGB, .in_file = JCS_YCbCr, .channels = 3, .orientation = 6}, /* it is not turned */
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct bytes file = encode_jpeg(H, W, rgb, kinds[i]);
        cairn_picture *p = decoded(file);
        assert_int_equal(cairn_picture_height(p), H);
        assert_int_equal(cairn_picture_width(p), W);
        assert_in_range(far_from(p, rgb), 0, 12);
        cairn_picture_destroy(&p);
        free(file.at);
    }
    free(rgb);
}

static void a_progressive_and_an_arithmetic_jpeg_have_the_bits_of_a_plain_one(void **state) {
    (void)state;
    unsigned char *rgb = waves(H, W, 3);
    const struct jpeg_kind plain = {.from = JCS_RGB, .in_file = JCS_YCbCr, .channels = 3, .subsampling = 2};
    struct jpeg_kind progressive = plain, arithmetic = plain;
    progressive.progressive = arithmetic.arithmetic = 1;
    struct bytes files[] = {encode_jpeg(H, W, rgb, plain), encode_jpeg(H, W, rgb, progressive),
                            encode_jpeg(H, W, rgb, arithmetic)};
    cairn_picture *first = decoded(files[0]);
    for (int i = 1; i < 3; i++) {
        cairn_picture *p = decoded(files[i]);
        assert_int_equal(far_from(p, cairn_picture_pixels(first)), 0);
        cairn_picture_destroy(&p);
    }
    for (int i = 0; i < 3; i++) free(files[i].at);
    cairn_picture_destroy(&first);
    free(rgb);
}

static void a_grey_jpeg_is_grey(void **state) {
    (void)state;
    unsigned char *grey = waves(H, W, 1), rgb[H * W * 3];
    for (int i = 0; i < H * W * 3; i++) rgb[i] = grey[i / 3];
    struct bytes file =
        encode_jpeg(H, W, grey, (struct jpeg_kind){.from = JCS_GRAYSCALE, .in_file = JCS_GRAYSCALE, .channels = 1});
    cairn_picture *p = decoded(file);
    assert_in_range(far_from(p, rgb), 0, 12);
    for (int i = 0; i < H * W * 3; i++)
        assert_int_equal(cairn_picture_pixels(p)[i], cairn_picture_pixels(p)[i - i % 3]);
    cairn_picture_destroy(&p);
    free(grey);
    free(file.at);
}

/* As Adobe's programs write them, 255 is no ink: red is what cyan leaves of white, less the black. */
static void cmyk_and_ycck_become_rgb(void **state) {
    (void)state;
    static const struct {
        unsigned char inks[4], rgb[3];
    } cases[] = {{{255, 255, 255, 255}, {255, 255, 255}},
                 {{255, 255, 255, 0}, {0, 0, 0}},
                 {{0, 255, 255, 255}, {0, 255, 255}},
                 {{255, 0, 0, 255}, {255, 0, 0}},
                 {{200, 100, 50, 128}, {100, 50, 25}}};
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned char inks[8 * 8 * 4], rgb[8 * 8 * 3];
        for (int k = 0; k < 8 * 8 * 4; k++) inks[k] = cases[i / 2].inks[k % 4];
        for (int k = 0; k < 8 * 8 * 3; k++) rgb[k] = cases[i / 2].rgb[k % 3];
        struct bytes file =
            encode_jpeg(8, 8, inks,
                        (struct jpeg_kind){.from = JCS_CMYK, .in_file = i % 2 ? JCS_YCCK : JCS_CMYK, .channels = 4});
        cairn_picture *p = decoded(file);
        assert_in_range(far_from(p, rgb), 0, 3);
        cairn_picture_destroy(&p);
        free(file.at);
    }
}

static struct bytes small_jpeg(int progressive) {
    unsigned char *rgb = waves(H, W, 3);
    struct bytes file = encode_jpeg(H, W, rgb,
                                    (struct jpeg_kind){.from = JCS_RGB,
                                                       .in_file = JCS_YCbCr,
                                                       .channels = 3,
                                                       .subsampling = 2,
                                                       .progressive = progressive});
    free(rgb);
    return file;
}

/* But for the two bytes of its end, without which a plain one has all its lines. */
static void a_jpeg_truncated_anywhere_is_refused(void **state) {
    (void)state;
    for (int progressive = 0; progressive < 2; progressive++) {
        struct bytes file = small_jpeg(progressive);
        for (size_t n = 0; n < file.n - 2; n++) {
            struct bytes cut = {malloc(n ? n : 1), n};
            memcpy(cut.at, file.at, n);
            is_refused(cut, n == 0 ? "empty (0 bytes)" : n < 3 ? "neither a JPEG nor a PNG" : "a JPEG");
            free(cut.at);
        }
        free(file.at);
    }
}

static void a_truncated_jpeg_is_an_error_unless_allowed(void **state) {
    (void)state;
    unsigned char *rgb = waves(64, 64, 3);
    struct bytes file =
        encode_jpeg(64, 64, rgb, (struct jpeg_kind){.from = JCS_RGB, .in_file = JCS_YCbCr, .channels = 3});
    cairn_picture *whole = decoded(file), *p = NULL;
    file.n = file.n * 3 / 4;
    is_refused(file, "ends before its last line; the file may have been truncated (allow_damaged takes what is there)");
    OK(cairn_picture_decode(file.at, file.n, "a.jpg", cairn_picture_options(.allow_damaged = on), &p));
    assert_int_equal(cairn_picture_height(p), 64);
    assert_memory_equal(cairn_picture_pixels(p), cairn_picture_pixels(whole), 8 * 64 * 3); /* a row of blocks */
    cairn_picture_destroy(&whole);
    cairn_picture_destroy(&p);
    free(rgb);
    free(file.at);
}

static size_t find_marker(struct bytes file, int marker) {
    for (size_t i = 0; i + 1 < file.n; i++) {
        if (file.at[i] == 0xff && file.at[i + 1] == marker) return i;
    }
    fail_msg("there is no marker %x", marker);
    return 0;
}

static void damaged_data_of_a_jpeg_are_refused_or_taken(void **state) {
    (void)state;
    struct bytes file = small_jpeg(0);
    cairn_picture *p = NULL;
    const size_t scan = find_marker(file, 0xda) + 14;
    file.at[scan + 20] = 0xff, file.at[scan + 21] = 0xd3; /* a restart where there is none */
    is_refused(file, "a JPEG with damaged data: ");
    SAYS("(allow_damaged takes it as it is)");
    OK(cairn_picture_decode(file.at, file.n, "a.jpg", cairn_picture_options(.allow_damaged = on), &p));
    cairn_picture_destroy(&p);
    free(file.at);
}

static void a_jpeg_of_thousands_of_scans_is_refused(void **state) {
    (void)state;
    struct bytes file = small_jpeg(1), many = {malloc(file.n * 4000), 0};
    const size_t begin = find_marker(file, 0xda);
    struct bytes rest = {file.at + begin + 2, file.n - begin - 2};
    const size_t next = begin + 2 + find_marker(rest, 0xc4); /* the tables of the second scan */
    cairn_picture *p = NULL;
    memcpy(many.at, file.at, begin);
    many.n = begin;
    for (int i = 0; i < 2000; i++) {
        memcpy(many.at + many.n, file.at + begin, next - begin);
        many.n += next - begin;
    }
    memcpy(many.at + many.n, file.at + next, file.n - next);
    many.n += file.n - next;
    REFUSED(cairn_picture_decode(many.at, many.n, "a.jpg", cairn_picture_options(.allow_damaged = on), &p),
            CAIRN_EINVAL, "a.jpg: a JPEG of more than 500 scans");
    free(many.at);
    free(file.at);
}

/* ---- both ---- */

static void huge_pictures_are_refused_before_memory_is_taken(void **state) {
    (void)state;
    struct bytes files[] = {small_jpeg(0), small_jpeg(1), small_png()};
    for (int i = 0; i < 2; i++) {
        const size_t frame = find_marker(files[i], i ? 0xc2 : 0xc0);
        memcpy(files[i].at + frame + 5, "\xff\xdc\xff\xdc", 4); /* 65500 x 65500 */
        is_refused(files[i], "declares 65500 x 65500 pixels, more than the 89478485 that are allowed; make it smaller, "
                             "or raise max_pixels");
    }
    memcpy(files[2].at + 16, "\x7f\xff\xff\xff\x7f\xff\xff\xff", 8);
    png_uint_32 crc = (png_uint_32)crc32(crc32(0, NULL, 0), files[2].at + 12, 17);
    for (int k = 0; k < 4; k++) files[2].at[29 + k] = (unsigned char)(crc >> (24 - 8 * k));
    is_refused(files[2], "declares 2147483647 x 2147483647 pixels");
    for (int i = 0; i < 3; i++) free(files[i].at);
}

static void the_limit_is_the_callers(void **state) {
    (void)state;
    struct bytes files[] = {small_jpeg(0), small_png()};
    for (int i = 0; i < 2; i++) {
        cairn_picture *p = NULL;
        REFUSED(cairn_picture_decode(files[i].at, files[i].n, "a", cairn_picture_options(.max_pixels = H * W - 1), &p),
                CAIRN_EINVAL, "a: declares 34 x 21 pixels, more than the 713 that are allowed");
        OK(cairn_picture_decode(files[i].at, files[i].n, "a", cairn_picture_options(.max_pixels = H * W), &p));
        cairn_picture_destroy(&p);
        free(files[i].at);
    }
}

static void other_formats_are_called_by_their_names(void **state) {
    (void)state;
    is_refused((struct bytes){(unsigned char *)"GIF89a......", 12}, "a GIF; Cairn reads JPEG and PNG: convert it");
    is_refused((struct bytes){(unsigned char *)"RIFF....WEBPVP8 ", 16}, "a WebP picture");
    is_refused((struct bytes){(unsigned char *)"BM......", 8}, "a BMP");
    is_refused((struct bytes){(unsigned char *)"II*\0....", 8}, "a TIFF");
    is_refused((struct bytes){(unsigned char *)"....ftypheic", 12}, "a HEIF, AVIF or MP4 file");
    is_refused((struct bytes){(unsigned char *)"<html>", 6},
               "neither a JPEG nor a PNG; it begins with the bytes 3c 68 74 6d 6c 3e");
}

static void a_file_is_what_its_bytes_are(void **state) {
    (void)state;
    struct bytes file = small_png();
    cairn_picture *p = NULL, *same = decoded(file); /* called a.jpg */
    char path[64];
    const int fd = memfd_create("picture", MFD_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    assert_int_equal(write(fd, file.at, file.n), file.n);
    OK(cairn_picture_read(path, NULL, &p));
    assert_int_equal(far_from(p, cairn_picture_pixels(same)), 0);
    cairn_picture_destroy(&p);
    assert_int_equal(ftruncate(fd, (off_t)file.n / 2), 0);
    REFUSED(cairn_picture_read(path, NULL, &p), CAIRN_EINVAL, "a PNG that ends before its last line");
    assert_int_equal(ftruncate(fd, 0), 0);
    REFUSED(cairn_picture_read(path, NULL, &p), CAIRN_EINVAL, "empty (0 bytes)");
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0); /* zeros, of which 12 bytes are read */
    REFUSED(cairn_picture_read(path, NULL, &p), CAIRN_EINVAL, "neither a JPEG nor a PNG");
    assert_int_equal(pwrite(fd, file.at, 16, 0), 16);
    REFUSED(cairn_picture_read(path, NULL, &p), CAIRN_EINVAL,
            "1099511627776 bytes; Cairn reads pictures of up to 2^30");
    REFUSED(cairn_picture_read("/no/such/a.jpg", NULL, &p), CAIRN_ESYSTEM, "/no/such/a.jpg: No such file");
    REFUSED(cairn_picture_read("/", NULL, &p), CAIRN_EINVAL, "/: not a regular file");
    SAYS("/: ");
    cairn_picture_destroy(&same);
    close(fd);
    free(file.at);
}

static void memory_that_runs_out_is_said_and_leaks_nothing(void **state) {
    (void)state;
    unsigned char inks[8 * 8 * 4] = {0};
    struct bytes files[] = {small_jpeg(0), small_png(),
                            encode_jpeg(8, 8, inks,
                                        (struct jpeg_kind){.from = JCS_CMYK, .in_file = JCS_YCCK, .channels = 4})};
    for (int i = 0; i < 3; i++) {
        const uint64_t alive = cairn__alloc_counters().alive;
        cairn_status st = CAIRN_ENOMEM;
        cairn_picture *p = NULL;
        int n = 0;
        while (st == CAIRN_ENOMEM) {
            fail_in = ++n;
            st = cairn_picture_decode(files[i].at, files[i].n, "a.jpg", NULL, &p);
            assert_true(st == CAIRN_ENOMEM || st == CAIRN_OK);
        }
        fail_in = 0;
        assert_in_range(n, 3, 10);
        cairn_picture_destroy(&p);
        assert_int_equal(cairn__alloc_counters().alive, alive);
        free(files[i].at);
    }
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    cairn_picture *p = NULL;
    REFUSED(cairn_picture_read(NULL, NULL, &p), CAIRN_EINVAL, "path and out must be set");
    REFUSED(cairn_picture_decode("", 0, NULL, NULL, &p), CAIRN_EINVAL, "bytes, name and out must be set");
    REFUSED(cairn_picture_decode("", 0, "a", cairn_picture_options(.max_pixels = -1), &p), CAIRN_EINVAL,
            "max_pixels is -1");
    REFUSED(cairn_picture_decode("", 0, "a", cairn_picture_options(.allow_damaged = (cairn_switch)7), &p), CAIRN_EINVAL,
            "allow_damaged is 7");
    REFUSED(cairn_picture_create(0, 5, (const uint8_t *)"", &p), CAIRN_EINVAL, "a picture of 0 x 5 pixels");
    REFUSED(cairn_picture_create(INT64_MAX, INT64_MAX, (const uint8_t *)"", &p), CAIRN_EINVAL, "it must have from 1");
    assert_int_equal(cairn_picture_height(NULL), -1);
    assert_int_equal(cairn_picture_width(NULL), -1);
    assert_null(cairn_picture_pixels(NULL));
    cairn_picture_destroy(&p);
    cairn_picture_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_png_becomes_rgb),
        cmocka_unit_test(a_png_truncated_anywhere_is_refused),
        cmocka_unit_test(a_png_with_a_wrong_checksum_is_refused),
        cmocka_unit_test(a_jpeg_gives_the_picture_that_was_written),
        cmocka_unit_test(a_progressive_and_an_arithmetic_jpeg_have_the_bits_of_a_plain_one),
        cmocka_unit_test(a_grey_jpeg_is_grey),
        cmocka_unit_test(cmyk_and_ycck_become_rgb),
        cmocka_unit_test(a_jpeg_truncated_anywhere_is_refused),
        cmocka_unit_test(a_truncated_jpeg_is_an_error_unless_allowed),
        cmocka_unit_test(damaged_data_of_a_jpeg_are_refused_or_taken),
        cmocka_unit_test(a_jpeg_of_thousands_of_scans_is_refused),
        cmocka_unit_test(huge_pictures_are_refused_before_memory_is_taken),
        cmocka_unit_test(the_limit_is_the_callers),
        cmocka_unit_test(other_formats_are_called_by_their_names),
        cmocka_unit_test(a_file_is_what_its_bytes_are),
        cmocka_unit_test(memory_that_runs_out_is_said_and_leaks_nothing),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
