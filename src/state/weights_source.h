/* The source of loaded weights: one or several files, which appear as one. */
#ifndef CAIRN__STATE_WEIGHTS_SOURCE_H
#define CAIRN__STATE_WEIGHTS_SOURCE_H

#include "state/safetensors.h"

struct cairn__source_tensor {
    const struct cairn__safetensors_tensor *at;
    struct cairn__safetensors *file;
    bool is_taken; /* for the caller: a tensor of the program is read from it */
};

struct cairn__source {
    struct cairn__safetensors **files;
    size_t num_files, files_capacity;
    struct cairn__source_tensor *tensors; /* by name */
    size_t count;
};

/* path: as in cairn_weights_load. Files of an index must be in its folder. Symbolic links are followed, since Hugging
 * Face's cache uses them. Errors: CAIRN_EINVAL with the path; CAIRN_ESYSTEM; CAIRN_ENOMEM. */
cairn_status cairn__source_open(struct cairn__source *source, const char *path);
void cairn__source_close(struct cairn__source *source);

/* Reads an index as jansson's object, to be released by json_decref, and its weight_map, which lives as long. Does not
 * check the names of files in it. Errors: CAIRN_EINVAL it is not an index; as of cairn__file_read. */
struct json_t;
cairn_status cairn__source_read_index(const char *path, struct json_t **index, struct json_t **map);

/* The tensor with this name, or the one for which metadata lists this name as an alias; NULL = none. */
struct cairn__source_tensor *cairn__source_find(const struct cairn__source *source, const char *name);

#endif
