/* A file that a writer of events adds to: held back for half a second or 64 KiB, whole at any time, and left alone once
 * it could not be written. */
#ifndef CAIRN__OBSERVE_OUT_H
#define CAIRN__OBSERVE_OUT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cairn/core.h"

struct cairn__out {
    char *path, *what;   /* what: "timeline" and the like, for messages */
    const char *trailer; /* stands behind everything written so far, so that the file is valid; "" = nothing */
    char *buffer;
    size_t used;
    int fd;
    off_t at;            /* where the trailer stands */
    uint64_t written_ns; /* when it was written last */
    bool is_begun;       /* something was written */
    cairn_status status;
    char error[600]; /* the sentence of status */
};

/* The folder at path, and those above it; path is as it was afterwards. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__out_make_folder(char *path);

/* Creates the file at path, or empties it, and locks it (flock) until it is closed.
 * Errors: CAIRN_ESYSTEM with the reason; CAIRN_ESTATE another writer has it; CAIRN_ENOMEM. */
cairn_status cairn__out_open(struct cairn__out *out, const char *what, const char *path, const char *trailer);

/* Adds bytes, which stay together in the file even if the process dies. now_ns: when; 0 = it does not matter. */
void cairn__out_put(struct cairn__out *out, const void *bytes, size_t nbytes, uint64_t now_ns);

/* Writes what is held back. The first failure is logged, and is what every later call returns. */
cairn_status cairn__out_flush(struct cairn__out *out);

/* The same, with the failure as this thread's last error: for calls that may fail. */
cairn_status cairn__out_flush_loudly(struct cairn__out *out);

/* Flushes if is_own, closes and frees. */
void cairn__out_close(struct cairn__out *out, bool is_own);

/* Whether the writer of the file at path is alive: another than `mine`. */
bool cairn__out_is_written(const char *path);

#endif
