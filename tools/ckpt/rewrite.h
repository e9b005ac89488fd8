/* Tensors of a file or a checkpoint, written into safetensors files: in another type, cut into several, or joined. */
#ifndef TOOLS_CKPT_REWRITE_H
#define TOOLS_CKPT_REWRITE_H

#include "tensors.h"

struct rewrite_options {
    cairn_dtype type; /* of floats; 0 = as they are */
    uint64_t most;    /* bytes of a file's tensors; 0 = one file */
};

/* --type f32|f16|bf16, --max-file-size 5GB: false = something else. */
bool rewrite_options_read(char **args, int n, struct rewrite_options *out);

/* The weights and buffers of the model that was added to the checkpoint under this name; of buffers that each rank has,
 * rank 0's. Errors: CAIRN_EINVAL there is none, or it has something that belongs to one rank alone; as of
 * cairn__shards_save and cairn__safetensors_read. */
cairn_status rewrite_model(const struct tensors *t, const char *model, const char *path,
                           const struct rewrite_options *o, size_t *count);

/* All tensors and texts of files. Errors: CAIRN_EINVAL t is a checkpoint; as rewrite_model. */
cairn_status rewrite_files(const struct tensors *t, const char *path, const struct rewrite_options *o, size_t *count);

#endif
