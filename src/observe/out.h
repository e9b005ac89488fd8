/* A file to which a writer appends events: buffered up to half a second or 64 KiB, valid at any time, and no longer
 * written after a failure. */
#ifndef CAIRN__OBSERVE_OUT_H
#define CAIRN__OBSERVE_OUT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cairn/core.h"

struct cairn__out {
    char *path, *what;   /* what: "timeline", for example, for messages */
    const char *trailer; /* follows everything written so far, so that the file is valid; "" = nothing */
    char *buffer;
    size_t used;
    int fd;
    off_t at;            /* offset of the trailer */
    uint64_t written_ns; /* time of the last write */
    bool is_begun;       /* a write has happened */
    cairn_status status;
    char error[600]; /* the message of status */
};

/* Creates the folder at path and its parents; path is modified during the call only. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__out_make_folder(char *path);

/* Creates or truncates the file at path, and locks it (flock) until it is closed. Errors: CAIRN_ESYSTEM with the
 * reason; CAIRN_ESTATE another writer has it; CAIRN_ENOMEM. */
cairn_status cairn__out_open(struct cairn__out *out, const char *what, const char *path, const char *trailer);

/* Appends bytes, which reach the file together or not at all, even if the process dies. now_ns: the time; 0 =
 * unknown. */
void cairn__out_put(struct cairn__out *out, const void *bytes, size_t nbytes, uint64_t now_ns);

/* Writes buffered bytes. The first failure is logged, and every later call returns it. */
cairn_status cairn__out_flush(struct cairn__out *out);

/* The same, but sets this thread's last error: for calls that return a status. */
cairn_status cairn__out_flush_loudly(struct cairn__out *out);

/* Flushes if is_own, closes and frees. */
void cairn__out_close(struct cairn__out *out, bool is_own);

/* Whether a writer has the file at path open. */
bool cairn__out_is_written(const char *path);

#endif
