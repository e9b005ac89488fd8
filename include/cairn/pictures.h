/* Pictures in files, JPEG and PNG; what is cut out of them for training and for evaluation; folders of them by class.
 *
 *     CAIRN_CHECK(cairn_picture_folder_create("imagenet/train", NULL, &folder));
 *     CAIRN_CHECK(cairn_picture_dataset_create(folder, cairn_picture_transform(.augment = CAIRN_ON), &dataset));
 *
 * and a loader (loader.h) has batches of f32 [n, 3, 224, 224] and of classes, i64 [n].
 * A picture is RGB, u8 [height, width, 3]. What the bytes are decides how they are decoded, never the file's name.
 * docs/pictures.md says what becomes of each kind of picture, and compares with torchvision and Pillow.
 * Threads: calls on different pictures may run at a time; a picture and a folder may be read by several threads.
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
    /* A picture that declares more pixels (height times width) is refused before memory is taken for it. 0 = 89478485,
     * which is 256 MiB of RGB, and Pillow's MAX_IMAGE_PIXELS. */
    int64_t max_pixels;
    /* ON: of a JPEG whose data are damaged or cut, what can be decoded, as Pillow gives of damaged ones. OFF: it is
     * refused. PNGs have checksums, and damaged ones are always refused. OFF */
    cairn_switch allow_damaged;
};
#define cairn_picture_options(...) \
    (&(struct cairn_picture_options){.struct_size = sizeof(struct cairn_picture_options), __VA_ARGS__})

/* Reads a file, a JPEG (baseline, progressive, arithmetic; grey, YCbCr, RGB, CMYK, YCCK) or a PNG (every kind; of an
 * animated one the default image, which is its first frame), and makes RGB of it. Grey is repeated, alpha and what a
 * PNG calls transparent are left out, the high byte of 16 bits is taken, CMYK is converted as Pillow does. Not applied:
 * EXIF orientation, colour profiles, gamma. options may be NULL.
 * Errors, each with the path: CAIRN_EINVAL another format, empty, cut, damaged, more pixels than allowed, over 1 GiB;
 * CAIRN_ESYSTEM it cannot be opened or read; CAIRN_ENOMEM.
 * Cost: the file, 3 bytes a pixel, and of a JPEG of several scans up to 8 bytes a pixel besides. Pillow's
 * Image.open(path).convert("RGB") */
CAIRN_API cairn_status cairn_picture_read(const char *path, const struct cairn_picture_options *options,
                                          cairn_picture **out);

/* The same of bytes in memory; name stands for the path in messages. */
CAIRN_API cairn_status cairn_picture_decode(const void *bytes, size_t nbytes, const char *name,
                                            const struct cairn_picture_options *options, cairn_picture **out);

/* A copy of pixels, u8 [height, width, 3]. Errors: CAIRN_EINVAL NULL, a size below 1, or over 2^31 pixels;
 * CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_picture_create(int64_t height, int64_t width, const uint8_t *pixels, cairn_picture **out);

CAIRN_API void cairn_picture_destroy(cairn_picture **picture);

/* -1 and NULL for NULL. The pixels are valid as long as the picture. */
CAIRN_API int64_t cairn_picture_height(const cairn_picture *picture);
CAIRN_API int64_t cairn_picture_width(const cairn_picture *picture);
CAIRN_API const uint8_t *cairn_picture_pixels(const cairn_picture *picture);

/* ---- what is cut out of one ---- */

/* A part of a picture, in pixels. */
struct cairn_picture_box {
    int64_t top, left, height, width;
};

/* The part of a picture that box names, resized to height x width: bilinear, and antialiased where it gets smaller, in
 * the bits of Pillow's Image.crop(box).resize((width, height), Image.BILINEAR) up to Pillow 12. (Pillow 13 resizes the
 * height first where that is less work; values then differ by 1 at most.)
 * Errors: CAIRN_EINVAL NULL, a box that is empty or leaves the picture, a size below 1 or over 2^31 pixels;
 * CAIRN_ENOMEM. Source: Pillow, src/libImaging/Resample.c. */
CAIRN_API cairn_status cairn_picture_resize(const cairn_picture *picture, const struct cairn_picture_box *box,
                                            int64_t height, int64_t width, cairn_picture **out);

/* From a picture to the values of an example, [3, size, size].
 *
 * For training (augment ON), torchvision's RandomResizedCrop and RandomHorizontalFlip: ten times a part of an area
 * uniform in scale and of a width / height whose logarithm is uniform in that of ratio is drawn, and the first that
 * fits into the picture is placed uniformly; where none fits, the largest part in the middle whose width / height is in
 * ratio. It is resized to size, and mirrored with probability 1/2.
 * For evaluation (augment OFF), Resize(resize) and CenterCrop(size): the shorter edge becomes resize, and the middle is
 * taken.
 * Then f32 values are (v / 255 - mean) / std, by channel, each operation rounded to f32 as torchvision's ToTensor and
 * Normalize do; u8 values are v. */
struct cairn_picture_transform {
    size_t struct_size;
    cairn_switch augment; /* OFF */
    int64_t size;         /* edge of the result, to 16384; 0 = 224 */
    int64_t resize;       /* the shorter edge before the crop, from size to 65536; 0 = size / 0.875, rounded down */
    double scale[2];      /* lowest and highest part of the area, above 0 and to 1; {0, 0} = {0.08, 1} */
    double ratio[2];      /* lowest and highest width / height, above 0; {0, 0} = {3/4, 4/3} */
    cairn_switch flip;    /* OFF: never; letters and digits are not mirrored. ON */
    cairn_dtype dtype;    /* CAIRN_F32 or CAIRN_U8. 0 = CAIRN_F32 */
    /* Of f32 values, on the scale 0 to 1. Both {0, 0, 0} = ImageNet's: mean {0.485, 0.456, 0.406}, std {0.229, 0.224,
     * 0.225}. With std {1, 1, 1} and mean {0, 0, 0} values are v / 255. */
    double mean[3], std[3];
};
#define cairn_picture_transform(...) \
    (&(struct cairn_picture_transform){.struct_size = sizeof(struct cairn_picture_transform), __VA_ARGS__})

/* How many bytes an example has: 3 size^2 of the type. 0 with CAIRN_EINVAL where the transform makes no sense. */
CAIRN_API size_t cairn_picture_transform_nbytes(const struct cairn_picture_transform *transform);

/* The part of a picture of height x width that a transform takes where it augments, and whether it is mirrored, by the
 * next numbers of random (loader.h): a function of seed, epoch and index alone, in bits that are the same wherever
 * libm's log and exp are.
 * Errors: CAIRN_EINVAL NULL, a transform that makes no sense or does not augment, a picture of no pixels or over
 * 2^31. Source: torchvision.transforms.RandomResizedCrop.get_params. */
CAIRN_API cairn_status cairn_picture_random_box(int64_t height, int64_t width,
                                                const struct cairn_picture_transform *transform,
                                                struct cairn_random *random, struct cairn_picture_box *box,
                                                int *mirrored);

/* values [3, size, size] of a picture; nbytes is what values has room for. random may be NULL where the transform does
 * not augment, and transform NULL for all defaults.
 * Errors: CAIRN_EINVAL NULL, a transform that makes no sense, too little room; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_picture_apply(const cairn_picture *picture,
                                           const struct cairn_picture_transform *transform, struct cairn_random *random,
                                           void *values, size_t nbytes);

/* ---- a folder of pictures by class ---- */

/* FOLDER/CLASS/.../NAME.jpg: classes are the folders of FOLDER, numbered from 0 by their names' order; their files, in
 * folders below them too (links are followed), are ordered by folder and name. Order is that of bytes, on every machine
 * the same. torchvision.datasets.ImageFolder, but that names that begin with a dot are left out. */
typedef struct cairn_picture_folder cairn_picture_folder;

struct cairn_picture_folder_options {
    size_t struct_size;
    int64_t max_pixels;         /* as of a picture */
    cairn_switch allow_damaged; /* as of a picture */
    /* A folder whose classes these must be, by name and number: that of training, for that of evaluation. NULL = any */
    const cairn_picture_folder *same_classes_as;
};
#define cairn_picture_folder_options(...) \
    (&(struct cairn_picture_folder_options){.struct_size = sizeof(struct cairn_picture_folder_options), __VA_ARGS__})

/* Lists the files that end in .jpg, .jpeg or .png, in small or large letters, and opens none. Others are left out, but
 * for .ppm, .bmp, .pgm, .tif, .tiff and .webp, which torchvision would read: an error. options may be NULL.
 * Errors, each with the path: CAIRN_EINVAL no class, a class without a picture, other classes than same_classes_as, a
 * picture of another format, folders more than 32 deep (a link to a folder above); CAIRN_ESYSTEM it cannot be read;
 * CAIRN_ENOMEM. Cost: some 16 bytes a picture and its name, twice while it is listed. */
CAIRN_API cairn_status cairn_picture_folder_create(const char *path, const struct cairn_picture_folder_options *options,
                                                   cairn_picture_folder **out);

CAIRN_API void cairn_picture_folder_destroy(cairn_picture_folder **folder);

/* How many pictures and classes there are; 0 for NULL. The name of a class, valid as long as the folder, and NULL where
 * there is none; the class of picture i, -1 where there is none. */
CAIRN_API int64_t cairn_picture_folder_count(const cairn_picture_folder *folder);
CAIRN_API int64_t cairn_picture_folder_num_classes(const cairn_picture_folder *folder);
CAIRN_API const char *cairn_picture_folder_class_name(const cairn_picture_folder *folder, int64_t number);
CAIRN_API int64_t cairn_picture_folder_class(const cairn_picture_folder *folder, int64_t i);

/* Writes the path of picture i, cut to nbytes with its 0, and returns its length; -1 with the cause in cairn_last_error
 * where there is none. path NULL with nbytes 0: the length alone. */
CAIRN_API int cairn_picture_folder_path(const cairn_picture_folder *folder, int64_t i, char *path, size_t nbytes);

/* Reads picture i. Errors: cairn_picture_read; CAIRN_EINVAL there is none. */
CAIRN_API cairn_status cairn_picture_folder_read(const cairn_picture_folder *folder, int64_t i, cairn_picture **out);

/* The pictures of a folder as a dataset for loaders, which reads and transforms them in its workers. Example i has two
 * fields: the values of picture i (cairn_picture_apply), and its class, i64. A seed, an epoch and i give the same bits
 * always.
 *
 *   folder     outlives the dataset; several datasets may have one, for training and evaluation on the same pictures
 *   transform  copied; NULL = all defaults. dtype u8 is refused: tensors have no u8
 *
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM. Reading: cairn_picture_folder_read. */
CAIRN_API cairn_status cairn_picture_dataset_create(const cairn_picture_folder *folder,
                                                    const struct cairn_picture_transform *transform,
                                                    cairn_dataset **out);

#ifdef __cplusplus
}
#endif

#endif
