/* What is cut out of a picture, and the values of it. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "data/pictures/picture.h"
#include "data/pictures/resize.h"

enum { MOST_SIZE = 1 << 14, MOST_RESIZE = 1 << 16, TRIES = 10, CHANNELS = 3 };

/* ---- options ---- */

static int is_switch(cairn_switch s) {
    return s == CAIRN_DEFAULT || s == CAIRN_ON || s == CAIRN_OFF;
}

static bool is_zero(const double three[CHANNELS]) {
    return three[0] == 0 && three[1] == 0 && three[2] == 0;
}

static void fill_defaults(struct cairn_picture_transform *t) {
    static const double mean[] = {0.485, 0.456, 0.406}, std[] = {0.229, 0.224, 0.225};
    if (t->size == 0) t->size = 224;
    if (t->resize == 0 && t->size >= 1 && t->size <= MOST_SIZE) t->resize = t->size * 8 / 7;
    if (t->scale[0] == 0 && t->scale[1] == 0) t->scale[0] = 0.08, t->scale[1] = 1;
    if (t->ratio[0] == 0 && t->ratio[1] == 0) t->ratio[0] = 3.0 / 4.0, t->ratio[1] = 4.0 / 3.0;
    if (t->dtype == 0) t->dtype = CAIRN_F32;
    if (is_zero(t->std) && is_zero(t->mean)) {
        memcpy(t->mean, mean, sizeof(mean));
        memcpy(t->std, std, sizeof(std));
    }
}

static cairn_status check_numbers(const struct cairn_picture_transform *t) {
    REQUIRE(t->size >= 1 && t->size <= MOST_SIZE, CAIRN_EINVAL,
            "cairn_picture_transform.size is %" PRId64 "; it must be from 1 to %d", t->size, (int)MOST_SIZE);
    REQUIRE(t->resize >= t->size && t->resize <= MOST_RESIZE, CAIRN_EINVAL,
            "cairn_picture_transform.resize is %" PRId64 "; it must be from size, which is %" PRId64 ", to %d",
            t->resize, t->size, (int)MOST_RESIZE);
    REQUIRE(t->scale[0] > 0 && t->scale[0] <= t->scale[1] && t->scale[1] <= 1, CAIRN_EINVAL,
            "cairn_picture_transform.scale is {%g, %g}; it must be a lowest and a highest part, above 0 and up to 1",
            t->scale[0], t->scale[1]);
    REQUIRE(t->ratio[0] > 0 && t->ratio[0] <= t->ratio[1] && isfinite(t->ratio[1]), CAIRN_EINVAL,
            "cairn_picture_transform.ratio is {%g, %g}; it must be a lowest and a highest width / height, above 0",
            t->ratio[0], t->ratio[1]);
    for (int c = 0; c < CHANNELS; c++) {
        REQUIRE(isfinite(t->mean[c]) && isfinite(t->std[c]) && t->std[c] > 0, CAIRN_EINVAL,
                "cairn_picture_transform: mean %g and std %g of channel %d; std must be above 0, and both finite",
                t->mean[c], t->std[c], c);
    }
    return CAIRN_OK;
}

cairn_status cairn__picture_read_transform(const struct cairn_picture_transform *given,
                                           struct cairn_picture_transform *t) {
    *t = *cairn_picture_transform(.size = 0);
    const cairn_status st = cairn__options_read(t, sizeof(*t), given, "cairn_picture_transform");
    if (st != CAIRN_OK) return st;
    REQUIRE(is_switch(t->augment), CAIRN_EINVAL,
            "cairn_picture_transform.augment is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", (int)t->augment);
    REQUIRE(is_switch(t->flip), CAIRN_EINVAL,
            "cairn_picture_transform.flip is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", (int)t->flip);
    fill_defaults(t);
    REQUIRE(t->dtype == CAIRN_F32 || t->dtype == CAIRN_U8, CAIRN_EINVAL,
            "cairn_picture_transform.dtype is %s; it must be f32 or u8", cairn_dtype_name(t->dtype));
    return check_numbers(t);
}

static size_t nbytes_of(const struct cairn_picture_transform *t) {
    return (size_t)t->size * (size_t)t->size * CHANNELS * cairn_dtype_nbytes(t->dtype);
}

size_t cairn_picture_transform_nbytes(const struct cairn_picture_transform *transform) {
    struct cairn_picture_transform t;
    return cairn__picture_read_transform(transform, &t) == CAIRN_OK ? nbytes_of(&t) : 0;
}

/* ---- boxes ---- */

static double uniform(struct cairn_random *random, double low, double high) {
    return low + (high - low) * ((double)cairn_random_word(random) * 0x1p-32);
}

/* rint is Python's round: halves to even. */
static void draw_box(int64_t height, int64_t width, const struct cairn_picture_transform *t,
                     struct cairn_random *random, struct cairn_picture_box *box) {
    const double area = (double)height * (double)width, low = log(t->ratio[0]), high = log(t->ratio[1]);
    for (int i = 0; i < TRIES; i++) {
        const double target = area * uniform(random, t->scale[0], t->scale[1]);
        const double ratio = exp(uniform(random, low, high));
        const double w = rint(sqrt(target * ratio)), h = rint(sqrt(target / ratio));
        if (w < 1 || w > (double)width || h < 1 || h > (double)height) continue;
        *box = (struct cairn_picture_box){.height = (int64_t)h, .width = (int64_t)w};
        box->top = cairn_random_below(random, (uint32_t)(height - box->height + 1));
        box->left = cairn_random_below(random, (uint32_t)(width - box->width + 1));
        return;
    }
    /* The largest part in the middle with a ratio that is allowed. */
    const double own = (double)width / (double)height;
    int64_t h = height, w = width;
    if (own < t->ratio[0]) h = (int64_t)rint((double)width / t->ratio[0]);
    else if (own > t->ratio[1]) w = (int64_t)rint((double)height * t->ratio[1]);
    h = h < 1 ? 1 : h, w = w < 1 ? 1 : w; /* of a picture a pixel wide */
    *box = (struct cairn_picture_box){(height - h) / 2, (width - w) / 2, h, w};
}

static int draw_mirror(const struct cairn_picture_transform *t, struct cairn_random *random) {
    return t->flip != CAIRN_OFF && cairn_random_word(random) >> 31;
}

cairn_status cairn_picture_random_box(int64_t height, int64_t width, const struct cairn_picture_transform *transform,
                                      struct cairn_random *random, struct cairn_picture_box *box, int *mirrored) {
    struct cairn_picture_transform t;
    cairn_status st = CAIRN_OK;
    REQUIRE(random && box && mirrored, CAIRN_EINVAL, "cairn_picture_random_box: random, box and mirrored must be set");
    REQUIRE(height > 0 && width > 0 && height <= CAIRN__MOST_PIXELS / width, CAIRN_EINVAL,
            "a picture of %" PRId64 " x %" PRId64 " pixels; it must have from 1 to 2^31", height, width);
    TRY(cairn__picture_read_transform(transform, &t));
    REQUIRE(t.augment == CAIRN_ON, CAIRN_EINVAL,
            "cairn_picture_random_box: the transform's augment is not CAIRN_ON, so nothing about it is random");
    draw_box(height, width, &t, random, box);
    *mirrored = draw_mirror(&t, random);
out:
    return st;
}

static cairn_status resize_part(const cairn_picture *p, const struct cairn_picture_box *box,
                                const struct cairn__resized_part *part, cairn_picture **out) {
    const size_t row = (size_t)p->width * CHANNELS;
    cairn_picture *resized = NULL;
    cairn_status st = cairn__picture_alloc(part->box.height, part->box.width, &resized);
    if (st == CAIRN_OK)
        st = cairn__resize_bilinear(p->pixels + (size_t)box->top * row + (size_t)box->left * CHANNELS, box->height,
                                    box->width, row, part, resized->pixels);
    if (st != CAIRN_OK) cairn_picture_destroy(&resized);
    else *out = resized;
    return st;
}

cairn_status cairn_picture_resize(const cairn_picture *picture, const struct cairn_picture_box *box, int64_t height,
                                  int64_t width, cairn_picture **out) {
    REQUIRE(picture && box && out, CAIRN_EINVAL, "cairn_picture_resize: picture, box and out must be set");
    const int64_t h = picture->height, w = picture->width;
    REQUIRE(box->height > 0 && box->width > 0 && box->top >= 0 && box->left >= 0 && box->height <= h &&
                box->width <= w && box->top <= h - box->height && box->left <= w - box->width,
            CAIRN_EINVAL,
            "a box of %" PRId64 " x %" PRId64 " at row %" PRId64 ", column %" PRId64 " of a picture of %" PRId64
            " x %" PRId64 " pixels",
            box->height, box->width, box->top, box->left, h, w);
    REQUIRE(height > 0 && width > 0 && height <= CAIRN__MOST_PIXELS / width &&
                box->height <= CAIRN__MOST_PIXELS / width,
            CAIRN_EINVAL, "resizing to %" PRId64 " x %" PRId64 " pixels; there must be from 1 to 2^31", height, width);
    const struct cairn__resized_part all = {height, width, {0, 0, height, width}};
    return resize_part(picture, box, &all, out);
}

/* ---- values ---- */

/* The middle of the picture whose shorter edge has become `resize`, and the longer what torchvision rounds it to. */
static cairn_status resize_and_crop(const cairn_picture *p, const struct cairn_picture_transform *t,
                                    cairn_picture **out) {
    const struct cairn_picture_box all = {0, 0, p->height, p->width};
    const int64_t shorter = p->height < p->width ? p->height : p->width;
    const int64_t longer = p->height < p->width ? p->width : p->height;
    const int64_t other = (int64_t)((double)(t->resize * longer) / (double)shorter);
    const bool is_tall = p->width <= p->height;
    struct cairn__resized_part part = {is_tall ? other : t->resize, is_tall ? t->resize : other, {0}};
    part.box.height = part.box.width = t->size;
    part.box.top = (int64_t)rint((double)(part.out_h - t->size) / 2.0);
    part.box.left = (int64_t)rint((double)(part.out_w - t->size) / 2.0);
    return resize_part(p, &all, &part, out);
}

/* A picture [size, size], mirrored or not, as values [3, size, size]. */
static void write_values(const cairn_picture *p, int mirrored, const struct cairn_picture_transform *t, void *values) {
    const int64_t size = t->size;
    float table[CHANNELS][256];
    for (int c = 0; c < CHANNELS; c++) {
        for (int v = 0; v < 256; v++) table[c][v] = ((float)v / 255.0f - (float)t->mean[c]) / (float)t->std[c];
    }
    for (int c = 0; c < CHANNELS; c++) {
        for (int64_t y = 0; y < size; y++) {
            const uint8_t *row = p->pixels + (size_t)(y * size) * CHANNELS;
            const size_t at = (size_t)(c * size + y) * (size_t)size;
            for (int64_t x = 0; x < size; x++) {
                const uint8_t v = row[(mirrored ? size - 1 - x : x) * CHANNELS + c];
                if (t->dtype == CAIRN_U8) ((uint8_t *)values)[at + (size_t)x] = v;
                else ((float *)values)[at + (size_t)x] = table[c][v];
            }
        }
    }
}

cairn_status cairn_picture_apply(const cairn_picture *picture, const struct cairn_picture_transform *transform,
                                 struct cairn_random *random, void *values, size_t nbytes) {
    struct cairn_picture_transform t;
    struct cairn_picture_box box = {0};
    cairn_picture *resized = NULL;
    int mirrored = 0;
    cairn_status st = CAIRN_OK;
    REQUIRE(picture && values, CAIRN_EINVAL, "cairn_picture_apply: picture and values must be set");
    TRY(cairn__picture_read_transform(transform, &t));
    REQUIRE(nbytes >= nbytes_of(&t), CAIRN_EINVAL, "nbytes is %zu, but an example of this transform has %zu", nbytes,
            nbytes_of(&t));
    REQUIRE(random || t.augment != CAIRN_ON, CAIRN_EINVAL,
            "cairn_picture_apply: random must be set, since the transform augments");
    if (t.augment == CAIRN_ON) {
        draw_box(picture->height, picture->width, &t, random, &box);
        mirrored = draw_mirror(&t, random);
        TRY(cairn_picture_resize(picture, &box, t.size, t.size, &resized));
    } else {
        TRY(resize_and_crop(picture, &t, &resized));
    }
    write_values(resized, mirrored, &t, values);
out:
    cairn_picture_destroy(&resized);
    return st;
}
