/* Data files, read by pread: a file truncated while in use is an error and not a SIGBUS. Several threads may read a
 * file at a time. */
#ifndef CAIRN__DATA_FILE_H
#define CAIRN__DATA_FILE_H

#include "cairn/core.h"

struct cairn__file {
    char *path; /* NULL = not open */
    int fd;
    int64_t nbytes, changed_ns; /* size, and time of the last change, when it was opened */
};

/* Errors, each with the path: CAIRN_ESYSTEM; CAIRN_EINVAL not a regular file; CAIRN_ENOMEM. On an error file is
 * closed. */
cairn_status cairn__file_open(struct cairn__file *file, const char *path);
void cairn__file_close(struct cairn__file *file);

/* Reads [at, at + nbytes). Errors: CAIRN_EINVAL the file ends before; CAIRN_ESYSTEM. On an error `to` is undefined. */
cairn_status cairn__file_read_at(const struct cairn__file *file, void *to, size_t nbytes, int64_t at);

#endif
