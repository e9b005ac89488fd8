/* In place of jpeg.c and png.c where a library is missing. */
#include "core/status.h"
#include "data/pictures/picture.h"

cairn_status cairn__pictures_built(const char *call) {
    return cairn__fail(CAIRN_ENOTBUILT, "%s: this build has no libjpeg or no libpng (meson's option 'pictures')", call);
}

cairn_status cairn__jpeg_decode(const struct cairn__picture_file *file, cairn_picture **out) {
    (void)out;
    return cairn__pictures_built(file->name);
}

cairn_status cairn__png_decode(const struct cairn__picture_file *file, cairn_picture **out) {
    (void)out;
    return cairn__pictures_built(file->name);
}
