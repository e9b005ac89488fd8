/* The bytes of a file, and which decoder they are for. */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "data/file.h"
#include "data/pictures/picture.h"

#define MOST_FILE ((int64_t)1 << 30)
enum { DEFAULT_PIXELS = 89478485, MAGIC = 12 };

/* ---- which decoder ---- */

static bool begins(const struct cairn__picture_file *f, size_t at, const char *magic, size_t n) {
    return f->nbytes >= at + n && memcmp(f->bytes + at, magic, n) == 0;
}

static bool is_jpeg(const struct cairn__picture_file *f) {
    return begins(f, 0, "\xff\xd8\xff", 3);
}

static bool is_png(const struct cairn__picture_file *f) {
    return begins(f, 0, "\x89PNG\r\n\x1a\n", 8);
}

static cairn_status refuse_format(const struct cairn__picture_file *f) {
    static const struct {
        const char *magic, *name;
        size_t n, at;
    } others[] = {{"GIF8", "a GIF", 4, 0},
                  {"WEBP", "a WebP picture", 4, 8},
                  {"BM", "a BMP", 2, 0},
                  {"II*\0", "a TIFF", 4, 0},
                  {"MM\0*", "a TIFF", 4, 0},
                  {"ftyp", "a HEIF, AVIF or MP4 file", 4, 4},
                  {"\0\0\0\x0cjP  ", "a JPEG 2000 picture", 8, 0}};
    char begin[3 * MAGIC + 1] = "";
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (begins(f, others[i].at, others[i].magic, others[i].n))
            return cairn__fail(CAIRN_EINVAL, "%s: %s; Cairn reads JPEG and PNG: convert it", f->name, others[i].name);
    }
    for (size_t i = 0; i < f->nbytes && i < MAGIC; i++) snprintf(begin + 3 * i, 4, " %02x", f->bytes[i]);
    return cairn__fail(CAIRN_EINVAL, "%s: neither a JPEG nor a PNG; it begins with the bytes%s", f->name, begin);
}

static cairn_status check_format(const struct cairn__picture_file *f) {
    REQUIRE(f->nbytes > 0, CAIRN_EINVAL, "%s: empty (0 bytes)", f->name);
    return is_jpeg(f) || is_png(f) ? CAIRN_OK : refuse_format(f);
}

static cairn_status decode(const struct cairn__picture_file *f, cairn_picture **out) {
    const cairn_status st = check_format(f);
    if (st != CAIRN_OK) return st;
    return is_jpeg(f) ? cairn__jpeg_decode(f, out) : cairn__png_decode(f, out);
}

cairn_status cairn__picture_read_options(const struct cairn_picture_options *given, struct cairn__picture_file *f) {
    struct cairn_picture_options o = *cairn_picture_options(.max_pixels = 0);
    const cairn_status st = cairn__options_read(&o, sizeof(o), given, "cairn_picture_options");
    if (st != CAIRN_OK) return st;
    REQUIRE(o.max_pixels >= 0 && o.max_pixels <= CAIRN__MOST_PIXELS, CAIRN_EINVAL,
            "cairn_picture_options.max_pixels is %" PRId64 "; it must be from 0 (the default) to 2^31", o.max_pixels);
    REQUIRE(o.allow_damaged == CAIRN_DEFAULT || o.allow_damaged == CAIRN_ON || o.allow_damaged == CAIRN_OFF,
            CAIRN_EINVAL, "cairn_picture_options.allow_damaged is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF",
            (int)o.allow_damaged);
    f->max_pixels = o.max_pixels ? o.max_pixels : DEFAULT_PIXELS;
    f->allow_damaged = o.allow_damaged == CAIRN_ON;
    return CAIRN_OK;
}

cairn_status cairn_picture_decode(const void *bytes, size_t nbytes, const char *name,
                                  const struct cairn_picture_options *options, cairn_picture **out) {
    struct cairn__picture_file f = {.name = name, .bytes = bytes, .nbytes = nbytes};
    REQUIRE((bytes || nbytes == 0) && name && out, CAIRN_EINVAL,
            "cairn_picture_decode: bytes, name and out must be set");
    const cairn_status st = cairn__picture_read_options(options, &f);
    return st == CAIRN_OK ? decode(&f, out) : st;
}

/* ---- files ---- */

/* The first bytes decide whether the rest is read: a film among the pictures takes no memory. */
static cairn_status read_all(const struct cairn__file *file, struct cairn__picture_file *f, uint8_t **bytes) {
    uint8_t magic[MAGIC];
    const size_t nbytes = file->nbytes < MAGIC ? (size_t)file->nbytes : MAGIC;
    cairn_status st = CAIRN_OK;
    TRY(cairn__file_read_at(file, magic, nbytes, 0));
    f->bytes = magic, f->nbytes = nbytes;
    TRY(check_format(f));
    TRY(file->nbytes <= MOST_FILE
            ? CAIRN_OK
            : cairn__fail(CAIRN_EINVAL, "%s: %" PRId64 " bytes; Cairn reads pictures of up to 2^30", f->name,
                          file->nbytes));
    TRY(cairn__alloc((size_t)file->nbytes, (void **)bytes));
    TRY(cairn__file_read_at(file, *bytes, (size_t)file->nbytes, 0));
    f->bytes = *bytes, f->nbytes = (size_t)file->nbytes;
out:
    return st;
}

cairn_status cairn_picture_read(const char *path, const struct cairn_picture_options *options, cairn_picture **out) {
    struct cairn__picture_file f = {.name = path};
    struct cairn__file file;
    uint8_t *bytes = NULL;
    REQUIRE(path && out, CAIRN_EINVAL, "cairn_picture_read: path and out must be set");
    cairn_status st = cairn__picture_read_options(options, &f);
    if (st != CAIRN_OK) return st;
    st = cairn__file_open(&file, path);
    if (st != CAIRN_OK) return st;
    st = read_all(&file, &f, &bytes);
    cairn__file_close(&file);
    if (st == CAIRN_OK) st = decode(&f, out);
    cairn__free(bytes);
    return st;
}
