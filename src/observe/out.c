/* Files of writers. Every write is one system call that begins at the last trailer's offset and ends with a new
 * trailer, so the file is valid even if the process dies. */
#include "observe/out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"

enum { BUFFER = 64 * 1024, MARGIN = 64 /* room for the trailer */ };
static const uint64_t HELD_BACK_NS = 500 * 1000 * 1000;

static cairn_status open_locked(struct cairn__out *out) {
    struct stat s;
    out->fd = open(out->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (out->fd < 0)
        return cairn__fail_errno(errno, "the %s '%.300s' cannot be opened for writing", out->what, out->path);
    if (flock(out->fd, LOCK_EX | LOCK_NB) != 0) {
        REQUIRE(errno != EWOULDBLOCK, CAIRN_ESTATE,
                "the %s '%.300s' is being written by another rank or program; give each a name of its own (%%r in a "
                "name becomes the rank's number)",
                out->what, out->path);
        return cairn__fail_errno(errno, "the %s '%.300s' cannot be locked", out->what, out->path);
    }
    if (fstat(out->fd, &s) != 0 || (S_ISREG(s.st_mode) && ftruncate(out->fd, 0) != 0))
        return cairn__fail_errno(errno, "the %s '%.300s' cannot be emptied", out->what, out->path);
    REQUIRE(S_ISREG(s.st_mode) || S_ISCHR(s.st_mode), CAIRN_EINVAL,
            "the %s '%.300s' must be a file, and is a folder, a pipe or a socket", out->what, out->path);
    return CAIRN_OK;
}

cairn_status cairn__out_make_folder(char *path) {
    for (char *at = path + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        const char was = *at;
        *at = '\0';
        const int failed = mkdir(path, 0777), errnum = errno;
        *at = was;
        if (failed && errnum != EEXIST) return cairn__fail_errno(errnum, "the folder '%.300s' cannot be made", path);
        if (was == '\0') return CAIRN_OK;
    }
}

cairn_status cairn__out_open(struct cairn__out *out, const char *what, const char *path, const char *trailer) {
    cairn_status st = CAIRN_OK;
    *out = (struct cairn__out){.trailer = trailer, .fd = -1};
    TRY(cairn__strdup(what, &out->what));
    TRY(cairn__strdup(path, &out->path));
    TRY(cairn__alloc(BUFFER + MARGIN, (void **)&out->buffer));
    TRY(open_locked(out));
    out->written_ns = cairn__now_ns();
    return CAIRN_OK;
out:
    cairn__out_close(out, false);
    return st;
}

/* Returns the number of bytes written; sets errno if they are too few. */
static size_t write_at(int fd, const char *bytes, size_t nbytes, off_t at) {
    size_t done = 0;
    while (done < nbytes) {
        const ssize_t n = pwrite(fd, bytes + done, nbytes - done, at + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;
        if (n <= 0) break;
        done += (size_t)n;
    }
    return done;
}

/* Restores the earlier contents with their trailer, for which the disk has space. */
static void give_up(struct cairn__out *out, int errnum) {
    const size_t trailer = strlen(out->trailer);
    char reason[100];
    if (out->is_begun && write_at(out->fd, out->trailer, trailer, out->at) == trailer) out->at += (off_t)trailer;
    (void)!ftruncate(out->fd, out->at);
    out->status = CAIRN_ESYSTEM; /* not cairn__fail, since calls that send events succeed */
    snprintf(out->error, sizeof(out->error),
             "the %s '%.300s' could not be written, and ends here; the training goes on: %s", out->what, out->path,
             strerror_r(errnum, reason, sizeof(reason)));
    cairn__log(CAIRN_LOG_ERROR, "%s", out->error);
}

cairn_status cairn__out_flush(struct cairn__out *out) {
    const size_t trailer = strlen(out->trailer);
    if (out->status != CAIRN_OK || out->used == 0) return out->status;
    memcpy(out->buffer + out->used, out->trailer, trailer);
    const bool is_whole = write_at(out->fd, out->buffer, out->used + trailer, out->at) == out->used + trailer;
    const int errnum = errno;
    if (is_whole) {
        out->at += (off_t)out->used;
        out->is_begun = true;
    } else {
        give_up(out, errnum);
    }
    out->used = 0;
    return out->status;
}

void cairn__out_put(struct cairn__out *out, const void *bytes, size_t nbytes, uint64_t now_ns) {
    if (out->status != CAIRN_OK) return;
    if (out->used + nbytes > BUFFER) (void)cairn__out_flush(out);
    /* Not reached: writers limit names, so no event is that long. */
    if (nbytes > BUFFER || out->status != CAIRN_OK) return;
    memcpy(out->buffer + out->used, bytes, nbytes);
    out->used += nbytes;
    if (now_ns < out->written_ns + HELD_BACK_NS) return;
    out->written_ns = now_ns;
    (void)cairn__out_flush(out);
}

cairn_status cairn__out_flush_loudly(struct cairn__out *out) {
    const cairn_status st = cairn__out_flush(out);
    REQUIRE(st == CAIRN_OK, st, "%s", out->error);
    return CAIRN_OK;
}

void cairn__out_close(struct cairn__out *out, bool is_own) {
    if (is_own && out->fd >= 0) (void)cairn__out_flush(out);
    if (is_own && out->fd >= 0) (void)flock(out->fd, LOCK_UN); /* forked children have the descriptor too */
    if (out->fd >= 0) close(out->fd);
    cairn__free(out->path);
    cairn__free(out->what);
    cairn__free(out->buffer);
    *out = (struct cairn__out){.fd = -1, .trailer = ""};
}

bool cairn__out_is_written(const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    const bool is_free = flock(fd, LOCK_SH | LOCK_NB) == 0;
    close(fd);
    return !is_free;
}
