/* JPEG, by libjpeg. It reports errors by a call that must not return, which leaves by longjmp to the one setjmp of this
 * file, in run. What lives across it stands in the struct decoder of run's caller, who frees it: no local variable of
 * run changes between setjmp and longjmp. */
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>

#include <jpeglib.h> /* needs stdio.h before it, and jerror.h needs it */

#include <jerror.h>

#include "core/alloc.h"
#include "core/status.h"
#include "data/pictures/picture.h"

/* A file of a few KB may declare thousands of scans over all of the picture; a real one has some ten. */
enum { MOST_SCANS = 500 };

struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    cairn_status status; /* of the failure */
    const struct cairn__picture_file *file;
    cairn_picture *picture;
    uint8_t *inks; /* a row of CMYK */
};

static struct decoder *decoder_of(j_common_ptr jpeg) {
    return (struct decoder *)((char *)jpeg - offsetof(struct decoder, jpeg));
}

static _Noreturn void leave(struct decoder *d, cairn_status st) {
    d->status = st;
    longjmp(d->failed, 1);
}

static void on_error(j_common_ptr jpeg) {
    struct decoder *d = decoder_of(jpeg);
    char why[JMSG_LENGTH_MAX];
    d->errors.format_message(jpeg, why);
    const bool is_memory = d->errors.msg_code == JERR_OUT_OF_MEMORY;
    leave(d, cairn__fail(is_memory ? CAIRN_ENOMEM : CAIRN_EINVAL, "%s: a JPEG that cannot be decoded: %s",
                         d->file->name, why));
}

/* Warnings after which pixels are made up. The others (stray bytes between segments, an odd version) lose nothing. */
static bool is_damage(int code) {
    switch (code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_NOT_SEQUENTIAL:
        return true;
    default:
        return false;
    }
}

static void on_message(j_common_ptr jpeg, int level) {
    struct decoder *d = decoder_of(jpeg);
    char why[JMSG_LENGTH_MAX];
    if (level >= 0 || d->file->allow_damaged || !is_damage(d->errors.msg_code)) return;
    d->errors.format_message(jpeg, why);
    if (d->errors.msg_code == JWRN_JPEG_EOF)
        leave(d, cairn__fail(CAIRN_EINVAL,
                             "%s: a JPEG that ends before its last line; the file may have been truncated "
                             "(allow_damaged takes what is there)",
                             d->file->name));
    leave(d, cairn__fail(CAIRN_EINVAL, "%s: a JPEG with damaged data: %s (allow_damaged takes it as it is)",
                         d->file->name, why));
}

static void on_progress(j_common_ptr jpeg) {
    struct decoder *d = decoder_of(jpeg);
    if (d->jpeg.input_scan_number > MOST_SCANS)
        leave(d, cairn__fail(CAIRN_EINVAL, "%s: a JPEG of more than %d scans", d->file->name, (int)MOST_SCANS));
}

/* Inks and key are what Adobe's programs write: 255 is no ink. Pillow's Convert.c, cmyk2rgb, of 255 - v. */
static void to_rgb(const uint8_t *inks, int64_t width, uint8_t *rgb) {
    for (int64_t x = 0; x < width; x++) {
        const uint8_t key = inks[4 * x + 3];
        for (int c = 0; c < 3; c++) {
            const unsigned product = (255u - inks[4 * x + c]) * key + 128;
            rgb[3 * x + c] = (uint8_t)(key - ((product + (product >> 8)) >> 8));
        }
    }
}

static void check(struct decoder *d, cairn_status st) {
    if (st != CAIRN_OK) leave(d, st);
}

/* libjpeg's own choices for quality (JDCT_ISLOW, fancy upsampling), which are Pillow's too. */
static void begin(struct decoder *d) {
    struct jpeg_decompress_struct *j = &d->jpeg;
    jpeg_create_decompress(j);
    j->progress = &d->progress;
    jpeg_mem_src(j, d->file->bytes, d->file->nbytes);
    jpeg_read_header(j, TRUE);
    check(d, cairn__picture_check_size(d->file, j->image_height, j->image_width));
    if (j->num_components == 2 || j->num_components > 4)
        leave(d, cairn__fail(CAIRN_EINVAL, "%s: a JPEG of %d components; Cairn reads grey, colour and CMYK",
                             d->file->name, j->num_components));
    j->out_color_space = j->num_components == 4 ? JCS_CMYK : JCS_RGB;
    if (j->num_components == 4) check(d, cairn__alloc((size_t)j->image_width * 4, (void **)&d->inks));
    check(d, cairn__picture_alloc(j->image_height, j->image_width, &d->picture));
}

/* Whether there is an end-of-image behind the last line makes no difference to a picture that is all there. */
static void decode(struct decoder *d) {
    struct jpeg_decompress_struct *j = &d->jpeg;
    begin(d);
    jpeg_start_decompress(j);
    while (j->output_scanline < j->output_height) {
        uint8_t *rgb = d->picture->pixels + (size_t)j->output_scanline * j->output_width * 3;
        JSAMPROW row = d->inks ? d->inks : rgb;
        jpeg_read_scanlines(j, &row, 1);
        if (d->inks) to_rgb(d->inks, j->output_width, rgb);
    }
}

static void run(struct decoder *d) {
    if (setjmp(d->failed) == 0) decode(d);
}

cairn_status cairn__jpeg_decode(const struct cairn__picture_file *file, cairn_picture **out) {
    struct decoder d = {.file = file, .status = CAIRN_OK};
    d.jpeg.err = jpeg_std_error(&d.errors);
    d.errors.error_exit = on_error;
    d.errors.emit_message = on_message;
    d.progress.progress_monitor = on_progress;
    run(&d);
    jpeg_destroy_decompress(&d.jpeg);
    cairn__free(d.inks);
    if (d.status != CAIRN_OK) cairn_picture_destroy(&d.picture);
    else *out = d.picture;
    return d.status;
}

cairn_status cairn__pictures_built(const char *call) {
    (void)call;
    return CAIRN_OK;
}
