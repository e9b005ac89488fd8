/* The tensors of a checkpoint, of a safetensors file, or of several with an index, as one list. */
#ifndef TOOLS_CKPT_TENSORS_H
#define TOOLS_CKPT_TENSORS_H

#include <stdbool.h>
#include <stdio.h>

#include "state/safetensors.h"
#include "state/state_internal.h"
#include "state/weights_source.h"

struct tensor {
    char *name; /* of a rank's own entries: "rank 1: env/seed"; info has the name in the file */
    int rank;   /* in whose file of a checkpoint it is; -1: in that of all ranks, or it is of no checkpoint */
    struct cairn__safetensors *file;
    const struct cairn__safetensors_tensor *info;
};

struct tensors {
    const char *path;
    struct cairn__manifest manifest; /* of a checkpoint; no files: it is none */
    struct cairn__source source;     /* what is no checkpoint */
    struct cairn__safetensors **files;
    size_t num_files;
    struct tensor *at; /* by name */
    size_t count;
};

/* Errors, with the path: those of cairn__source_open and of a manifest; CAIRN_EINVAL it is neither. */
cairn_status tensors_open(const char *path, struct tensors *out);
void tensors_close(struct tensors *t);

const struct tensor *tensors_find(const struct tensors *t, const char *name);

/* All of its elements; free with cairn__free. */
cairn_status tensor_read(const struct tensor *t, void **out);

/* Of a checkpoint: every file has the size and the checksum of its manifest. Of files: they are read to their end. */
cairn_status tensors_check(const struct tensors *t);

bool is_float(cairn_dtype d);

/* Prints text that files of others may have written: what a terminal takes for a command is escaped, "\x1b". Then
 * spaces up to so many characters. */
void put_text(FILE *to, const char *text, int width);

/* "[2, 3]" */
void tensor_put_shape(const struct cairn__safetensors_tensor *t, char text[128]);

#endif
