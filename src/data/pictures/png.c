/* PNG, by libpng. It reports errors by a call that must not return, which leaves by longjmp to the one setjmp of this
 * file, in run. What lives across it stands in the struct decoder of run's caller, who frees it: no local variable of
 * run changes between setjmp and longjmp. */
#include <setjmp.h>
#include <string.h>

#include <png.h>

#include "core/status.h"
#include "data/pictures/picture.h"

/* Of texts and profiles before the picture, which nothing here reads. */
enum { MOST_CHUNK = 8 << 20, MOST_CHUNKS = 1000 };

struct decoder {
    png_structp png;
    png_infop info;
    jmp_buf failed;
    cairn_status status; /* of the failure */
    const struct cairn__picture_file *file;
    size_t at; /* bytes read of the file */
    cairn_picture *picture;
};

static _Noreturn void leave(struct decoder *d, cairn_status st) {
    d->status = st;
    longjmp(d->failed, 1);
}

static void on_error(png_structp png, png_const_charp why) {
    struct decoder *d = png_get_error_ptr(png);
    leave(d, cairn__fail(CAIRN_EINVAL, "%s: a PNG that cannot be decoded: %s", d->file->name, why));
}

/* A chunk that is no part of the picture is damaged, for example. */
static void on_warning(png_structp png, png_const_charp why) {
    (void)png, (void)why;
}

static void on_read(png_structp png, png_bytep to, size_t nbytes) {
    struct decoder *d = png_get_io_ptr(png);
    if (nbytes > d->file->nbytes - d->at)
        leave(d, cairn__fail(CAIRN_EINVAL, "%s: a PNG that ends before its last line; the file may have been truncated",
                             d->file->name));
    memcpy(to, d->file->bytes + d->at, nbytes);
    d->at += nbytes;
}

static void begin(struct decoder *d) {
    png_set_user_limits(d->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* check_size has the limit that counts */
    png_set_chunk_malloc_max(d->png, MOST_CHUNK);
    png_set_chunk_cache_max(d->png, MOST_CHUNKS);
    png_set_read_fn(d->png, d, on_read);
    png_read_info(d->png, d->info);
}

static void check(struct decoder *d, cairn_status st) {
    if (st != CAIRN_OK) leave(d, st);
}

/* Every kind becomes RGB of 8 bits; returns how many passes its rows come in. */
static int convert(struct decoder *d) {
    png_set_palette_to_rgb(d->png);
    png_set_expand_gray_1_2_4_to_8(d->png);
    png_set_strip_16(d->png);
    png_set_strip_alpha(d->png);
    png_set_gray_to_rgb(d->png);
    const int passes = png_set_interlace_handling(d->png);
    png_read_update_info(d->png, d->info);
    return passes;
}

static void decode(struct decoder *d) {
    begin(d);
    const png_uint_32 height = png_get_image_height(d->png, d->info), width = png_get_image_width(d->png, d->info);
    check(d, cairn__picture_check_size(d->file, height, width));
    const int passes = convert(d);
    const size_t row_nbytes = (size_t)width * 3;
    if (png_get_rowbytes(d->png, d->info) != row_nbytes)
        leave(d, cairn__fail(CAIRN_EINTERNAL, "%s: libpng gives rows of %zu bytes; %zu were expected", d->file->name,
                             png_get_rowbytes(d->png, d->info), row_nbytes));
    check(d, cairn__picture_alloc(height, width, &d->picture));
    for (int pass = 0; pass < passes; pass++) {
        for (png_uint_32 y = 0; y < height; y++) png_read_row(d->png, d->picture->pixels + y * row_nbytes, NULL);
    }
    png_read_end(d->png, NULL); /* which checks the last checksum */
}

static void run(struct decoder *d) {
    if (setjmp(d->failed) != 0) return;
    d->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, d, on_error, on_warning);
    d->info = d->png ? png_create_info_struct(d->png) : NULL;
    check(d, d->info ? CAIRN_OK : cairn__fail(CAIRN_ENOMEM, "%s: no memory for libpng", d->file->name));
    decode(d);
}

cairn_status cairn__png_decode(const struct cairn__picture_file *file, cairn_picture **out) {
    struct decoder d = {.file = file, .status = CAIRN_OK};
    run(&d);
    png_destroy_read_struct(&d.png, &d.info, NULL);
    if (d.status != CAIRN_OK) cairn_picture_destroy(&d.picture);
    else *out = d.picture;
    return d.status;
}
