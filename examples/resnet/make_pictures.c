/* Writes a small folder of pictures that a net can learn to classify: six textures in random colours, sizes and
 * positions, with noise, alternately as JPEG and PNG. The same seed gives the same pixels.
 *
 *     make_pictures FOLDER [--train N] [--val N] [--seed N]     N pictures per class (200 and 50), about 64 x 64 pixels
 *
 * FOLDER/train/rings/0001.png, FOLDER/val/checks/0002.jpg, ... Cropping and flipping keep a picture's class, so
 * training may use both. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jpeglib.h>
#include <png.h>

enum { LEAST = 48, MOST = 80 }; /* pixels along an edge */

static void die(const char *what, const char *why) {
    fprintf(stderr, "make_pictures: %s: %s\n", what, why);
    exit(1);
}

/* ---- random numbers: xorshift64*, Vigna 2014 ---- */

static uint64_t state;

static void seed_with(uint64_t seed) {
    state = (seed + 1) * 0x9E3779B97F4A7C15u;
}

static double uniform(double low, double high) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return low + (high - low) * (double)(state * 0x2545F4914F6CDD1Du >> 11) * 0x1p-53;
}

/* ---- textures ---- */

/* The sign selects one of two colours. x and y are in periods of the texture. */
static double wave(double t) {
    return sin(2 * M_PI * t);
}

static double checks(double x, double y) {
    return wave(x) * wave(y);
}

static double columns(double x, double y) {
    return (void)y, wave(x);
}

static double diagonals(double x, double y) {
    return wave(0.7 * (x + y));
}

static double dots(double x, double y) {
    const double dx = x - floor(x) - 0.5, dy = y - floor(y) - 0.5;
    return 0.09 - dx * dx - dy * dy;
}

static double rings(double x, double y) {
    return wave(sqrt(x * x + y * y));
}

static double rows(double x, double y) {
    return (void)x, wave(y);
}

static const struct {
    const char *name;
    double (*sign)(double x, double y);
} classes[] = {{"checks", checks}, {"columns", columns}, {"diagonals", diagonals},
               {"dots", dots},     {"rings", rings},     {"rows", rows}};
enum { CLASSES = sizeof(classes) / sizeof(classes[0]) };

struct picture {
    int height, width;
    unsigned char rgb[MOST * MOST * 3];
};

/* Half of the pictures are mirrored, so that the class "diagonals" has both directions. */
static void draw(struct picture *p, int class) {
    double colors[2][3], distance = 0;
    const double period = uniform(9, 16), left = uniform(-4, 0), top = uniform(-4, 0), noise = uniform(3, 15);
    const int is_mirrored = uniform(0, 1) < 0.5;
    p->height = (int)uniform(LEAST, MOST + 1), p->width = (int)uniform(LEAST, MOST + 1);
    while (distance < 200) { /* so that the texture is visible */
        distance = 0;
        for (int c = 0; c < 3; c++) {
            colors[0][c] = uniform(0, 255), colors[1][c] = uniform(0, 255);
            distance += fabs(colors[0][c] - colors[1][c]);
        }
    }
    for (int i = 0; i < p->height * p->width; i++) {
        const int x = i % p->width, y = i / p->width;
        const double sign = classes[class].sign((is_mirrored ? p->width - x : x) / period + left, y / period + top);
        for (int c = 0; c < 3; c++) {
            const double v = colors[sign > 0][c] + uniform(-noise, noise);
            p->rgb[3 * i + c] = (unsigned char)(v < 0 ? 0 : v > 255 ? 255 : v);
        }
    }
}

/* ---- files; on an error libpng and libjpeg exit the program ---- */

static FILE *open_file(const char *path) {
    FILE *f = fopen(path, "wb");
    if (!f) die(path, strerror(errno));
    return f;
}

static void close_file(FILE *f, const char *path) {
    if (fclose(f) != 0) die(path, strerror(errno));
}

static void write_png(const struct picture *p, const char *path) {
    FILE *f = open_file(path);
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info || setjmp(png_jmpbuf(png))) die(path, "libpng cannot write it");
    png_init_io(png, f);
    png_set_IHDR(png, info, (png_uint_32)p->width, (png_uint_32)p->height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    for (int y = 0; y < p->height; y++) png_write_row(png, p->rgb + (size_t)(y * p->width) * 3);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    close_file(f, path);
}

static void write_jpeg(const struct picture *p, const char *path) {
    struct jpeg_compress_struct j;
    struct jpeg_error_mgr errors;
    FILE *f = open_file(path);
    unsigned char line[MOST * 3];
    JSAMPROW row = line;
    j.err = jpeg_std_error(&errors);
    jpeg_create_compress(&j);
    jpeg_stdio_dest(&j, f);
    j.image_height = (JDIMENSION)p->height, j.image_width = (JDIMENSION)p->width;
    j.in_color_space = JCS_RGB, j.input_components = 3;
    jpeg_set_defaults(&j);
    jpeg_set_quality(&j, 90, TRUE);
    jpeg_start_compress(&j, TRUE);
    for (int y = 0; y < p->height; y++) {
        memcpy(line, p->rgb + (size_t)(y * p->width) * 3, (size_t)p->width * 3);
        jpeg_write_scanlines(&j, &row, 1);
    }
    jpeg_finish_compress(&j);
    jpeg_destroy_compress(&j);
    close_file(f, path);
}

static void make_folder(const char *path) {
    if (mkdir(path, 0777) != 0 && errno != EEXIST) die(path, strerror(errno));
}

static void write_class(const char *folder, int class, int n) {
    static struct picture p;
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, classes[class].name);
    make_folder(path);
    for (int i = 0; i < n; i++) {
        draw(&p, class);
        snprintf(path, sizeof(path), "%s/%s/%04d.%s", folder, classes[class].name, i, i % 2 ? "png" : "jpg");
        if (i % 2) write_png(&p, path);
        else write_jpeg(&p, path);
    }
}

int main(int argc, char **argv) {
    static const char usage[] = "make_pictures FOLDER [--train N] [--val N] [--seed N]";
    int counts[2] = {200, 50};
    uint64_t seed = 0;
    if (argc % 2 != 0 || argv[1][0] == '-') die("usage", usage);
    for (int i = 2; i < argc; i += 2) {
        if (strcmp(argv[i], "--train") == 0 && atoi(argv[i + 1]) > 0) counts[0] = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--val") == 0 && atoi(argv[i + 1]) > 0) counts[1] = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], NULL, 10);
        else die("usage", usage);
    }
    seed_with(seed);
    make_folder(argv[1]);
    for (int part = 0; part < 2; part++) {
        char folder[4000];
        snprintf(folder, sizeof(folder), "%s/%s", argv[1], part == 0 ? "train" : "val");
        make_folder(folder);
        for (int class = 0; class < CLASSES; class ++) write_class(folder, class, counts[part]);
    }
    return 0;
}
