/* A picture, and the decoders of the two formats. Each foreign library is one file's: jpeg.c, png.c, and in their place
 * not_built.c where the build has none. */
#ifndef CAIRN__DATA_PICTURES_PICTURE_H
#define CAIRN__DATA_PICTURES_PICTURE_H

#include <stdbool.h>

#include "cairn/pictures.h"

struct cairn_picture {
    int64_t height, width;
    uint8_t *pixels; /* [height, width, 3] */
};

/* The bytes of a file, and what the caller allows. */
struct cairn__picture_file {
    const char *name; /* its path: for messages */
    const uint8_t *bytes;
    size_t nbytes;
    int64_t max_pixels;
    bool allow_damaged;
};

/* A picture whose pixels are undefined. Errors: CAIRN_ENOMEM. */
cairn_status cairn__picture_alloc(int64_t height, int64_t width, cairn_picture **out);

/* CAIRN_EINVAL where the file declares more pixels than max_pixels, or none: before memory is taken. */
cairn_status cairn__picture_check_size(const struct cairn__picture_file *file, int64_t height, int64_t width);

/* What the caller's options say: the two fields of file that come from them. Errors: CAIRN_EINVAL. */
cairn_status cairn__picture_read_options(const struct cairn_picture_options *given, struct cairn__picture_file *file);

/* The caller's transform with its defaults filled in. Errors: CAIRN_EINVAL it makes no sense. */
cairn_status cairn__picture_read_transform(const struct cairn_picture_transform *given,
                                           struct cairn_picture_transform *own);

/* Whether this build decodes. Errors: CAIRN_ENOTBUILT naming the call and the option. */
cairn_status cairn__pictures_built(const char *call);

/* Errors: as cairn_picture_read. */
cairn_status cairn__jpeg_decode(const struct cairn__picture_file *file, cairn_picture **out);
cairn_status cairn__png_decode(const struct cairn__picture_file *file, cairn_picture **out);

/* Of any picture that is made. */
#define CAIRN__MOST_PIXELS ((int64_t)1 << 31)

#endif
