/* Pictures in JPEG and PNG files: decoding, crops for training and evaluation, and folders of pictures by class.
 *
 *     CAIRN_CHECK(cairn_picture_folder_create("imagenet/train", NULL, &folder));
 *     CAIRN_CHECK(cairn_picture_dataset_create(folder, cairn_picture_transform(.augment = CAIRN_ON), &dataset));
 *
 * A loader (loader.h) over this dataset has batches of f32 [n, 3, 224, 224] and of classes, i64 [n].
 * A picture is RGB, u8 [height, width, 3]. The decoder is chosen by the file's contents, never by its name.
 * docs/pictures.md says how each kind of picture is converted, and compares with torchvision and Pillow.
 * Threads: calls on different pictures may run concurrently; a picture or folder may be read by several threads.
 * CAIRN_ENOTBUILT: the build has no libjpeg or no libpng (meson's option 'pictures'). */
#ifndef CAIRN_PICTURES_H
#define CAIRN_PICTURES_H

#include "core.h"
#include "loader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- one picture ---- */

typedef struct cairn_picture cairn_picture;

struct cairn_picture_options {
    size_t struct_size;
    /* A picture with more pixels (height times width) is refused before memory is allocated. 0 = 89478485: 256 MiB of
     * RGB, and Pillow's MAX_IMAGE_PIXELS. */
    int64_t max_pixels;
    /* ON: a damaged or truncated JPEG gives what can be decoded, as Pillow does for damaged ones. OFF: it is refused.
     * PNGs have checksums, and damaged ones are always refused. Default OFF */
    cairn_switch allow_damaged;
};
#define cairn_picture_options(...) \
    (&(struct cairn_picture_options){.struct_size = sizeof(struct cairn_picture_options), __VA_ARGS__})

/* Reads a file as RGB: a JPEG (baseline, progressive, arithmetic; grey, YCbCr, RGB, CMYK, YCCK) or a PNG (every kind;
 * of an animated one the default image, which is its first frame). Grey is repeated, alpha and PNG transparency are
 * dropped, 16-bit values keep their high byte, and CMYK is converted as by Pillow. Not applied: EXIF orientation,
 * colour profiles, gamma. options may be NULL.
 * Errors, each with the path: CAIRN_EINVAL another format, an empty, truncated or damaged file, more pixels than
 * allowed, a file over 1 GiB; CAIRN_ESYSTEM it cannot be opened or read; CAIRN_ENOMEM.
 * Cost: memory for the file, 3 bytes a pixel, and for a JPEG of several scans up to 8 more bytes a pixel. Pillow's
 * Image.open(path).convert("RGB") */
CAIRN_API cairn_status cairn_picture_read(const char *path, const struct cairn_picture_options *options,
                                          cairn_picture **out);

/* The same for a file's bytes in memory; messages show name instead of a path. */
CAIRN_API cairn_status cairn_picture_decode(const void *bytes, size_t nbytes, const char *name,
                                            const struct cairn_picture_options *options, cairn_picture **out);

/* Makes a picture from a copy of pixels, u8 [height, width, 3]. Errors: CAIRN_EINVAL NULL, a size below 1, or over 2^31
 * pixels; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_picture_create(int64_t height, int64_t width, const uint8_t *pixels, cairn_picture **out);

CAIRN_API void cairn_picture_destroy(cairn_picture **picture);

/* For NULL they return -1, -1 and NULL. The pixels are valid as long as the picture. */
CAIRN_API int64_t cairn_picture_height(const cairn_picture *picture);
CAIRN_API int64_t cairn_picture_width(const cairn_picture *picture);
CAIRN_API const uint8_t *cairn_picture_pixels(const cairn_picture *picture);

/* ---- crops and transforms ---- */

/* A rectangle in a picture, in pixels. */
struct cairn_picture_box {
    int64_t top, left, height, width;
};

/* Crops a picture to box and resizes it to height x width: bilinear, with antialiasing when it shrinks, and the same
 * bits as Pillow's Image.crop(box).resize((width, height), Image.BILINEAR) up to Pillow 12. (Pillow 13 resizes the
 * height first where that is less work; values then differ by 1 at most.)
 * Errors: CAIRN_EINVAL NULL, a box that is empty or exceeds the picture, a size below 1 or over 2^31 pixels;
 * CAIRN_ENOMEM. Source: Pillow, src/libImaging/Resample.c. */
CAIRN_API cairn_status cairn_picture_resize(const cairn_picture *picture, const struct cairn_picture_box *box,
                                            int64_t height, int64_t width, cairn_picture **out);

/* Converts a picture to the values of an example, [3, size, size].
 *
 * For training (augment ON) it does torchvision's RandomResizedCrop and RandomHorizontalFlip. Up to ten times it draws
 * a box: an area uniform in scale, and a width / height whose logarithm is uniform in that of ratio. The first box that
 * fits into the picture is placed uniformly; if none fits, it takes the largest centred box whose width / height is in
 * ratio. The box is resized to size, and mirrored with probability 1/2.
 * For evaluation (augment OFF) it does Resize(resize) and CenterCrop(size): the shorter edge becomes resize, and the
 * centre is taken.
 * Then f32 values are (v / 255 - mean) / std, by channel, each operation rounded to f32 as torchvision's ToTensor and
 * Normalize do; u8 values are v. */
struct cairn_picture_transform {
    size_t struct_size;
    cairn_switch augment; /* OFF */
    int64_t size;         /* edge of the result, at most 16384; 0 = 224 */
    int64_t resize;       /* the shorter edge before the crop, from size to 65536; 0 = size / 0.875, rounded down */
    double scale[2];      /* lowest and highest part of the area, in (0, 1]; {0, 0} = {0.08, 1} */
    double ratio[2];      /* lowest and highest width / height, above 0; {0, 0} = {3/4, 4/3} */
    cairn_switch flip;    /* OFF: never mirrored, as for letters and digits. Default ON */
    cairn_dtype dtype;    /* CAIRN_F32 or CAIRN_U8. 0 = CAIRN_F32 */
    /* For f32 values, on a scale from 0 to 1. Both {0, 0, 0} = ImageNet's: mean {0.485, 0.456, 0.406}, std {0.229,
     * 0.224, 0.225}. With std {1, 1, 1} and mean {0, 0, 0} values are v / 255. */
    double mean[3], std[3];
};
#define cairn_picture_transform(...) \
    (&(struct cairn_picture_transform){.struct_size = sizeof(struct cairn_picture_transform), __VA_ARGS__})

/* Bytes of an example: 3 size^2 elements of the type. Returns 0, with CAIRN_EINVAL, for an invalid transform. */
CAIRN_API size_t cairn_picture_transform_nbytes(const struct cairn_picture_transform *transform);

/* Draws the box that an augmenting transform takes of a picture of height x width, and whether it is mirrored, with the
 * next numbers of random (loader.h): a function of seed, epoch and index only, with the same bits wherever libm's log
 * and exp give the same.
 * Errors: CAIRN_EINVAL NULL, a transform that is invalid or does not augment, a picture of no pixels or over 2^31.
 * Source: torchvision.transforms.RandomResizedCrop.get_params. */
CAIRN_API cairn_status cairn_picture_random_box(int64_t height, int64_t width,
                                                const struct cairn_picture_transform *transform,
                                                struct cairn_random *random, struct cairn_picture_box *box,
                                                int *mirrored);

/* Writes the transformed picture to values [3, size, size]; nbytes is the size of values. random may be NULL if the
 * transform does not augment; transform NULL = all defaults.
 * Errors: CAIRN_EINVAL NULL, an invalid transform, nbytes too small; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_picture_apply(const cairn_picture *picture,
                                           const struct cairn_picture_transform *transform, struct cairn_random *random,
                                           void *values, size_t nbytes);

/* ---- a folder of pictures by class ---- */

/* FOLDER/CLASS/.../NAME.jpg: the folders of FOLDER are the classes, numbered from 0 in the order of their names. A
 * class has all files in its folder and the folders below (links are followed), ordered by folder and name. Names are
 * compared byte by byte, so the order is the same on every machine. As torchvision.datasets.ImageFolder, but names that
 * begin with a dot are ignored. */
typedef struct cairn_picture_folder cairn_picture_folder;

struct cairn_picture_folder_options {
    size_t struct_size;
    int64_t max_pixels;         /* as in cairn_picture_options */
    cairn_switch allow_damaged; /* as in cairn_picture_options */
    /* A folder whose classes this one must have, with the same names and numbers: pass the training folder when making
     * the evaluation folder. NULL = any classes */
    const cairn_picture_folder *same_classes_as;
};
#define cairn_picture_folder_options(...) \
    (&(struct cairn_picture_folder_options){.struct_size = sizeof(struct cairn_picture_folder_options), __VA_ARGS__})

/* Lists the files that end in .jpg, .jpeg or .png, in lower or upper case, without opening them. Other files are
 * ignored, except .ppm, .bmp, .pgm, .tif, .tiff and .webp, which torchvision would read: they are an error. options may
 * be NULL.
 * Errors, each with the path: CAIRN_EINVAL no class, a class without a picture, classes that differ from
 * same_classes_as, a picture of another format, folders more than 32 deep (a link to a parent folder); CAIRN_ESYSTEM it
 * cannot be read; CAIRN_ENOMEM. Cost: some 16 bytes a picture and its name, twice while listing. */
CAIRN_API cairn_status cairn_picture_folder_create(const char *path, const struct cairn_picture_folder_options *options,
                                                   cairn_picture_folder **out);

CAIRN_API void cairn_picture_folder_destroy(cairn_picture_folder **folder);

/* The number of pictures, and of classes; 0 for NULL. The name of a class, valid as long as the folder, or NULL if
 * there is none; the class of picture i, or -1 if there is none. */
CAIRN_API int64_t cairn_picture_folder_count(const cairn_picture_folder *folder);
CAIRN_API int64_t cairn_picture_folder_num_classes(const cairn_picture_folder *folder);
CAIRN_API const char *cairn_picture_folder_class_name(const cairn_picture_folder *folder, int64_t number);
CAIRN_API int64_t cairn_picture_folder_class(const cairn_picture_folder *folder, int64_t i);

/* Writes the path of picture i, truncated to nbytes including its 0, and returns its length; -1, with the cause in
 * cairn_last_error, if there is none. path NULL with nbytes 0: only returns the length. */
CAIRN_API int cairn_picture_folder_path(const cairn_picture_folder *folder, int64_t i, char *path, size_t nbytes);

/* Reads picture i. Errors: those of cairn_picture_read; CAIRN_EINVAL there is no picture i. */
CAIRN_API cairn_status cairn_picture_folder_read(const cairn_picture_folder *folder, int64_t i, cairn_picture **out);

/* Makes a dataset of the pictures of a folder, which the loader's workers read and transform. Example i has two fields:
 * the values of picture i (cairn_picture_apply), and its class, i64. The same seed, epoch and i always give the same
 * bits.
 *
 *   folder     outlives the dataset; several datasets may share it, for training and evaluation on the same pictures
 *   transform  copied; NULL = all defaults. dtype u8 is refused: tensors have no u8
 *
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM. When reading: those of cairn_picture_folder_read. */
CAIRN_API cairn_status cairn_picture_dataset_create(const cairn_picture_folder *folder,
                                                    const struct cairn_picture_transform *transform,
                                                    cairn_dataset **out);

#ifdef __cplusplus
}
#endif

#endif
