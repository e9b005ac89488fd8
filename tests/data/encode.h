/* Encodes test pictures as JPEG or PNG of every kind with libjpeg's and libpng's writers, which exit the program on
 * error. Include after check.h. */
#ifndef TESTS_DATA_ENCODE_H
#define TESTS_DATA_ENCODE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

struct bytes {
    unsigned char *at; /* free() */
    size_t n;
};

/* ---- JPEG ---- */

struct jpeg_kind {
    J_COLOR_SPACE from, in_file; /* JCS_RGB to JCS_YCbCr, JCS_CMYK to JCS_YCCK, ... */
    int channels;                /* of from */
    int quality;                 /* 0 = 95 */
    int subsampling;             /* 2: 4:2:0; 0 = 4:4:4 */
    int progressive, restart_interval, arithmetic;
    int orientation; /* of an EXIF segment; 0 = none */
};

static inline struct bytes encode_jpeg(int h, int w, const unsigned char *pixels, struct jpeg_kind kind) {
    struct jpeg_compress_struct j;
    struct jpeg_error_mgr errors;
    struct bytes out = {0};
    unsigned long n = 0;
    j.err = jpeg_std_error(&errors);
    jpeg_create_compress(&j);
    jpeg_mem_dest(&j, &out.at, &n);
    j.image_height = (JDIMENSION)h, j.image_width = (JDIMENSION)w;
    j.in_color_space = kind.from, j.input_components = kind.channels;
    jpeg_set_defaults(&j);
    jpeg_set_colorspace(&j, kind.in_file);
    jpeg_set_quality(&j, kind.quality ? kind.quality : 95, TRUE);
    j.comp_info[0].h_samp_factor = j.comp_info[0].v_samp_factor = kind.subsampling ? kind.subsampling : 1;
    j.restart_interval = (unsigned)kind.restart_interval;
    j.arith_code = kind.arithmetic ? TRUE : FALSE;
    if (kind.progressive) jpeg_simple_progression(&j);
    jpeg_start_compress(&j, TRUE);
    if (kind.orientation) {
        unsigned char exif[] = "Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\0\0\0\0\0\0";
        exif[25] = (unsigned char)kind.orientation;
        jpeg_write_marker(&j, JPEG_APP0 + 1, exif, sizeof(exif) - 1);
    }
    while (j.next_scanline < j.image_height) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(pixels + (size_t)j.next_scanline * (size_t)(w * kind.channels));
        jpeg_write_scanlines(&j, &row, 1);
    }
    jpeg_finish_compress(&j);
    jpeg_destroy_compress(&j);
    out.n = n;
    return out;
}

/* ---- PNG ---- */

struct png_kind {
    int color, depth, interlaced;
    int num_palette; /* number of palette entries */
    int transparent; /* a tRNS chunk */
};

static inline void palette_entry(int i, unsigned char rgb[3]) {
    rgb[0] = (unsigned char)(i * 37), rgb[1] = (unsigned char)(255 - i), rgb[2] = (unsigned char)(i * i);
}

static inline void append(png_structp png, png_bytep data, png_size_t n) {
    struct bytes *out = png_get_io_ptr(png);
    unsigned char *grown = realloc(out->at, out->n + n);
    if (!grown) abort();
    memcpy(grown + out->n, data, n);
    out->at = grown;
    out->n += n;
}

/* rows: in PNG's own layout, packed bits and big-endian samples; row_nbytes each. */
static inline struct bytes encode_png(int h, int w, const unsigned char *rows, size_t row_nbytes,
                                      struct png_kind kind) {
    struct bytes out = {0};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    if (!info || setjmp(png_jmpbuf(png))) abort();
    png_set_write_fn(png, &out, append, NULL);
    png_set_IHDR(png, info, (png_uint_32)w, (png_uint_32)h, kind.depth, kind.color,
                 kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    if (kind.num_palette) {
        png_color palette[256];
        for (int i = 0; i < kind.num_palette; i++) {
            unsigned char rgb[3];
            palette_entry(i, rgb);
            palette[i] = (png_color){rgb[0], rgb[1], rgb[2]};
        }
        png_set_PLTE(png, info, palette, kind.num_palette);
    }
    if (kind.transparent) {
        png_byte alpha[2] = {0, 128};
        png_color_16 color = {.red = 1, .green = 2, .blue = 3, .gray = 1};
        png_set_tRNS(png, info, alpha, kind.num_palette ? 2 : 0, &color);
    }
    png_write_info(png, info);
    for (int pass = png_set_interlace_handling(png); pass > 0; pass--) {
        for (int y = 0; y < h; y++) png_write_row(png, rows + (size_t)y * row_nbytes);
    }
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    return out;
}

static inline struct bytes encode_rgb_png(int h, int w, const unsigned char *rgb) {
    return encode_png(h, w, rgb, (size_t)w * 3, (struct png_kind){.color = PNG_COLOR_TYPE_RGB, .depth = 8});
}

/* ---- contents ---- */

/* Slow waves, which JPEG preserves well. */
static inline unsigned char *waves(int h, int w, int channels) {
    unsigned char *p = malloc((size_t)h * (size_t)w * (size_t)channels);
    for (int i = 0; i < h * w * channels; i++) {
        const int c = i % channels, x = i / channels % w, y = i / channels / w;
        p[i] = (unsigned char)(abs((x * (3 + c) + y * (5 - c) + 40 * c) % 400 - 200) + 20);
    }
    return p;
}

#endif
