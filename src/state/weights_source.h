/* Where weights are loaded from: one file or several, seen as one. */
#ifndef CAIRN__STATE_WEIGHTS_SOURCE_H
#define CAIRN__STATE_WEIGHTS_SOURCE_H

#include "state/safetensors.h"

struct cairn__source_tensor {
    const struct cairn__safetensors_tensor *at;
    struct cairn__safetensors *file;
    bool is_taken; /* the caller's: some tensor of the program is read from it */
};

struct cairn__source {
    struct cairn__safetensors **files;
    size_t num_files, files_capacity;
    struct cairn__source_tensor *tensors; /* by name */
    size_t count;
};

/* path: as cairn_weights_load says. Files of an index are of its folder alone; links are followed, by which Hugging
 * Face's own cache of files works. Errors: CAIRN_EINVAL with the path; CAIRN_ESYSTEM; CAIRN_ENOMEM. */
cairn_status cairn__source_open(struct cairn__source *source, const char *path);
void cairn__source_close(struct cairn__source *source);

/* The tensor of this name, or the one that metadata gives the name of as an alias; NULL = there is none. */
struct cairn__source_tensor *cairn__source_find(const struct cairn__source *source, const char *name);

#endif
