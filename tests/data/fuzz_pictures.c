/* Arbitrary bytes decoded as a picture, with a limit on pixels, strictly and leniently: the result is a picture or an
 * error that names it, and nothing leaks. fuzz.h shows how to run it. */
#include "../fuzz.h"

#include "cairn/pictures.h"
#include "core/alloc.h"
#include "encode.h"

enum { MOST_PIXELS = 1 << 16 };

static size_t take(struct bytes file, uint8_t *out) {
    FUZZ_CHECK(file.n <= FUZZ_MAX);
    memcpy(out, file.at, file.n);
    free(file.at);
    return file.n;
}

static size_t fuzz_seed(int i, uint8_t *out) {
    static const struct jpeg_kind jpegs[] = {
        {.from = JCS_RGB, .in_file = JCS_YCbCr, .channels = 3, .quality = 60},
        {.from = JCS_RGB, .in_file = JCS_YCbCr, .channels = 3, .quality = 60, .subsampling = 2, .progressive = 1},
        {.from = JCS_RGB, .in_file = JCS_YCbCr, .channels = 3, .quality = 60, .arithmetic = 1},
        {.from = JCS_RGB, .in_file = JCS_RGB, .channels = 3, .quality = 60, .restart_interval = 1},
        {.from = JCS_GRAYSCALE, .in_file = JCS_GRAYSCALE, .channels = 1, .quality = 60, .orientation = 6},
        {.from = JCS_CMYK, .in_file = JCS_YCCK, .channels = 4, .quality = 60},
        {.from = JCS_CMYK, .in_file = JCS_CMYK, .channels = 4, .quality = 60, .progressive = 1}};
    static const struct png_kind pngs[] = {
        {.color = PNG_COLOR_TYPE_RGB, .depth = 8},
        {.color = PNG_COLOR_TYPE_RGB, .depth = 16, .interlaced = 1, .transparent = 1},
        {.color = PNG_COLOR_TYPE_GRAY, .depth = 1, .interlaced = 1},
        {.color = PNG_COLOR_TYPE_GRAY_ALPHA, .depth = 8},
        {.color = PNG_COLOR_TYPE_PALETTE, .depth = 4, .num_palette = 16, .transparent = 1},
        {.color = PNG_COLOR_TYPE_RGB_ALPHA, .depth = 8, .interlaced = 1}};
    const int num_jpegs = sizeof(jpegs) / sizeof(jpegs[0]), num_pngs = sizeof(pngs) / sizeof(pngs[0]);
    unsigned char *pixels = waves(13, 17, 8);
    size_t n = 0;
    if (i < num_jpegs) n = take(encode_jpeg(13, 17, pixels, jpegs[i]), out);
    else if (i < num_jpegs + num_pngs) n = take(encode_png(13, 17, pixels, 17 * 8, pngs[i - num_jpegs]), out);
    free(pixels);
    return n;
}

static void decode(const uint8_t *data, size_t nbytes, cairn_switch allow_damaged) {
    const uint64_t alive = cairn__alloc_counters().alive;
    const char *name = "the/picture";
    cairn_picture *p = NULL;
    const cairn_status st =
        cairn_picture_decode(data, nbytes, name,
                             cairn_picture_options(.max_pixels = MOST_PIXELS, .allow_damaged = allow_damaged), &p);
    if (st == CAIRN_OK) {
        const int64_t h = cairn_picture_height(p), w = cairn_picture_width(p);
        unsigned sum = 0; /* so that each pixel is read */
        FUZZ_CHECK(h > 0 && w > 0 && h * w <= MOST_PIXELS);
        for (int64_t i = 0; i < h * w * 3; i++) sum += cairn_picture_pixels(p)[i];
        FUZZ_CHECK(sum <= 255u * 3 * MOST_PIXELS);
    } else {
        FUZZ_CHECK(st == CAIRN_EINVAL && !p && strncmp(cairn_last_error(), name, strlen(name)) == 0);
    }
    cairn_picture_destroy(&p);
    FUZZ_CHECK(cairn__alloc_counters().alive == alive);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    uint8_t *own = malloc(nbytes ? nbytes : 1); /* of its size, so that a sanitizer sees what is read behind it */
    memcpy(own, data, nbytes);
    decode(own, nbytes, CAIRN_OFF);
    decode(own, nbytes, CAIRN_ON);
    free(own);
    return 0;
}
