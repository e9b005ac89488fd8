/* Tensors in one safetensors file, or in several of bounded size with an index, as Hugging Face's libraries write them:
 * "m/model.safetensors", or "m/model-00001-of-00003.safetensors", ... and "m/model.safetensors.index.json". */
#ifndef CAIRN__STATE_SHARDS_H
#define CAIRN__STATE_SHARDS_H

#include "state/safetensors.h"

/* Appends the elements of tensors[i] to file, by cairn__safetensors_write. */
typedef cairn_status cairn__shards_write_fn(void *ctx, size_t i, struct cairn__safetensors_writer *file);

/* Writes all tensors, in an order of its own, and the metadata into each file.
 *
 *   most    bytes of a file's tensors, but one tensor at least; 0 = one file. Where one file is enough it is path, and
 *           an index that was there goes; else path goes
 *
 * All files and the index are on the disk before the first one gets its name, so a full disk leaves the old files. From
 * then on there is no index until all files have their names, so a reader never combines old and new files. Last, files
 * of the old index that have names of this form and are not among the new ones are removed; if one cannot be removed,
 * that is a warning and no error. Errors: CAIRN_EINVAL too many files, a name of a file that is not UTF-8; as of
 * cairn__safetensors_create and cairn__writer_commit; write's. */
cairn_status cairn__shards_save(const char *path, const struct cairn__safetensors_tensor *tensors, size_t n,
                                const struct cairn__safetensors_text *metadata, size_t num_metadata, uint64_t most,
                                cairn__shards_write_fn *write, void *ctx);

#endif
