/* Datasets that come with Cairn, for loaders (loader.h). They read files by pread, never map them, and never trust
 * them: a file that is cut while it is read is an error with its name, at the batch that needs what is gone. */
#ifndef CAIRN_DATASETS_H
#define CAIRN_DATASETS_H

#include "core.h"
#include "loader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Example i has one field for each array: its row i (npy.h), in the file's type. So "x.npy" of f32 [N, 3, 32, 32] and
 * "y.npy" of i64 [N] give batches of f32 [n, 3, 32, 32] and i64 [n]. torch.utils.data.TensorDataset.
 *
 *   paths  [count], from 1 to CAIRN_MAX_FIELDS
 *
 * Arrays of u8, as of pictures, become i32 fields: tensors have no u8.
 * Errors: those of cairn_npy_open; CAIRN_EINVAL arrays of different lengths, with both paths, or one without
 * dimensions. */
CAIRN_API cairn_status cairn_npy_dataset_create(const char *const *paths, int count, cairn_dataset **out);

/* ---- from another dataset ---- */

/* Makes an example of another: adds fields to example, which is empty, from those of `from`. Called by several threads
 * at a time; random goes on where `from` has left it. As cairn_dataset_functions.read. */
typedef cairn_status (*cairn_map_fn)(void *ctx, const cairn_fields *from, struct cairn_random *random,
                                     cairn_fields *example);

/* Example i is what fn makes of example i of another dataset: tokens of text, parts of pictures.
 *
 *   from  outlives this one, as ctx does
 *
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM. Cost: memory for one example of `from` for each thread that reads. */
CAIRN_API cairn_status cairn_map_dataset_create(const cairn_dataset *from, cairn_map_fn fn, void *ctx,
                                                cairn_dataset **out);

#ifdef __cplusplus
}
#endif

#endif
