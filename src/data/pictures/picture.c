/* What a picture is: its pixels. */
#include "data/pictures/picture.h"

#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

cairn_status cairn__picture_alloc(int64_t height, int64_t width, cairn_picture **out) {
    cairn_status st = CAIRN_OK;
    cairn_picture *p = NULL;
    TRY(cairn__calloc(1, sizeof(*p), (void **)&p));
    *p = (cairn_picture){.height = height, .width = width};
    TRY(cairn__alloc((size_t)height * (size_t)width * 3, (void **)&p->pixels));
    *out = p;
    return CAIRN_OK;
out:
    cairn_picture_destroy(&p);
    return st;
}

cairn_status cairn_picture_create(int64_t height, int64_t width, const uint8_t *pixels, cairn_picture **out) {
    REQUIRE(pixels && out, CAIRN_EINVAL, "cairn_picture_create: pixels and out must be set");
    REQUIRE(height > 0 && width > 0 && height <= CAIRN__MOST_PIXELS / width, CAIRN_EINVAL,
            "a picture of %" PRId64 " x %" PRId64 " pixels; it must have from 1 to 2^31", height, width);
    const cairn_status st = cairn__picture_alloc(height, width, out);
    if (st == CAIRN_OK) memcpy((*out)->pixels, pixels, (size_t)height * (size_t)width * 3);
    return st;
}

void cairn_picture_destroy(cairn_picture **picture) {
    if (!picture || !*picture) return;
    cairn__free((*picture)->pixels);
    cairn__free(*picture);
    *picture = NULL;
}

int64_t cairn_picture_height(const cairn_picture *picture) {
    return picture ? picture->height : -1;
}

int64_t cairn_picture_width(const cairn_picture *picture) {
    return picture ? picture->width : -1;
}

const uint8_t *cairn_picture_pixels(const cairn_picture *picture) {
    return picture ? picture->pixels : NULL;
}

cairn_status cairn__picture_check_size(const struct cairn__picture_file *file, int64_t height, int64_t width) {
    REQUIRE(height > 0 && width > 0, CAIRN_EINVAL, "%s: declares %" PRId64 " x %" PRId64 " pixels", file->name, width,
            height);
    REQUIRE(height <= file->max_pixels / width, CAIRN_EINVAL,
            "%s: declares %" PRId64 " x %" PRId64 " pixels, more than the %" PRId64
            " that are allowed; make it smaller, or raise max_pixels",
            file->name, width, height, file->max_pixels);
    return CAIRN_OK;
}
