/* The tensors of a checkpoint, of a safetensors file, or of several with an index, as one list. */
#ifndef TOOLS_CKPT_TENSORS_H
#define TOOLS_CKPT_TENSORS_H

#include <stdbool.h>
#include <stdio.h>

#include "state/safetensors.h"
#include "state/state_internal.h"
#include "state/weights_source.h"

struct tensor {
    char *name; /* "rank 1: env/seed" for entries of a single rank; info has the name in the file */
    int rank;   /* owner of the checkpoint file; -1 = all ranks, or not a checkpoint */
    struct cairn__safetensors *file;
    const struct cairn__safetensors_tensor *info;
};

struct tensors {
    const char *path;
    struct cairn__manifest manifest; /* no files = not a checkpoint */
    struct cairn__source source;     /* if it is not a checkpoint */
    struct cairn__safetensors **files;
    size_t num_files;
    struct tensor *at; /* sorted by name */
    size_t count;
};

/* Errors, with the path: those of cairn__source_open and of reading a manifest; CAIRN_EINVAL path is neither. */
cairn_status tensors_open(const char *path, struct tensors *out);
void tensors_close(struct tensors *t);

const struct tensor *tensors_find(const struct tensors *t, const char *name);

/* Reads all elements; free with cairn__free. */
cairn_status tensor_read(const struct tensor *t, void **out);

/* Checks a checkpoint's files against the sizes and checksums in its manifest; reads other files to the end. */
cairn_status tensors_check(const struct tensors *t);

bool is_float(cairn_dtype d);

/* Prints untrusted text from a file: escapes characters that a terminal could interpret as commands, as "\x1b". Pads
 * with spaces to `width` characters. */
void put_text(FILE *to, const char *text, int width);

/* "[2, 3]" */
void tensor_put_shape(const struct cairn__safetensors_tensor *t, char text[128]);

#endif
