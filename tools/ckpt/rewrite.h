/* Writes the tensors of a file or checkpoint to safetensors files: converted to another type, split into several files,
 * or joined. */
#ifndef TOOLS_CKPT_REWRITE_H
#define TOOLS_CKPT_REWRITE_H

#include "tensors.h"

struct rewrite_options {
    cairn_dtype type; /* new type of floats; 0 = unchanged */
    uint64_t most;    /* most bytes of tensors per file; 0 = one file */
};

/* Parses --type f32|f16|bf16 and --max-file-size 5GB. Returns false for other arguments. */
bool rewrite_options_read(char **args, int n, struct rewrite_options *out);

/* Writes the weights and buffers of the model that was added to the checkpoint under this name; of per-rank buffers
 * rank 0's. Errors: CAIRN_EINVAL there is no such model, or it has an entry of a single rank; those of
 * cairn__shards_save and cairn__safetensors_read. */
cairn_status rewrite_model(const struct tensors *t, const char *model, const char *path,
                           const struct rewrite_options *o, size_t *count);

/* Writes all tensors and texts of files. Errors: CAIRN_EINVAL t is a checkpoint; those of rewrite_model. */
cairn_status rewrite_files(const struct tensors *t, const char *path, const struct rewrite_options *o, size_t *count);

#endif
