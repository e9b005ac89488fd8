/* Files of data, read by pread: one that is cut while it is used is an error, and not SIGBUS. A file may be read by
 * several threads at a time. */
#ifndef CAIRN__DATA_FILE_H
#define CAIRN__DATA_FILE_H

#include "cairn/core.h"

struct cairn__file {
    char *path; /* NULL = not open */
    int fd;
    int64_t nbytes, changed_ns; /* when it was opened: its size, and when it was last written */
};

/* Errors, each with the path: CAIRN_ESYSTEM; CAIRN_EINVAL not a regular file; CAIRN_ENOMEM. file is closed then. */
cairn_status cairn__file_open(struct cairn__file *file, const char *path);
void cairn__file_close(struct cairn__file *file);

/* Reads [at, at + nbytes). Errors: CAIRN_EINVAL it ends before; CAIRN_ESYSTEM. `to` is undefined then. */
cairn_status cairn__file_read_at(const struct cairn__file *file, void *to, size_t nbytes, int64_t at);

#endif
