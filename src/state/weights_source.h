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

/* An index of jansson's, to be given back by json_decref, and its weight_map, which lives as long; unlike in a source,
 * what it says of files is not looked at. Errors: CAIRN_EINVAL it is none; as of cairn__file_read. */
struct json_t;
cairn_status cairn__source_read_index(const char *path, struct json_t **index, struct json_t **map);

/* The tensor of this name, or the one that metadata gives the name of as an alias; NULL = there is none. */
struct cairn__source_tensor *cairn__source_find(const struct cairn__source *source, const char *name);

#endif
