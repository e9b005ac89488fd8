#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/status.h"

cairn_status cairn__file_open(struct cairn__file *f, const char *path) {
    cairn_status st = CAIRN_OK;
    struct stat s;
    *f = (struct cairn__file){.fd = -1};
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe without a writer would block */
    if (f->fd < 0 || fstat(f->fd, &s) != 0) TRY(cairn__fail_errno(errno, "%s", path));
    if (!S_ISREG(s.st_mode)) TRY(cairn__fail(CAIRN_EINVAL, "%s: not a regular file", path));
    f->nbytes = (int64_t)s.st_size;
    f->changed_ns = (int64_t)((uint64_t)s.st_mtim.tv_sec * 1000000000 + (uint64_t)s.st_mtim.tv_nsec); /* may wrap */
    TRY(cairn__strdup(path, &f->path));
    return CAIRN_OK;
out:
    cairn__file_close(f);
    return st;
}

void cairn__file_close(struct cairn__file *f) {
    if (f->fd >= 0) close(f->fd);
    cairn__free(f->path);
    *f = (struct cairn__file){.fd = -1};
}

cairn_status cairn__file_read_at(const struct cairn__file *f, void *to, size_t nbytes, int64_t at) {
    struct stat s;
    size_t done = 0;
    while (done < nbytes) {
        const ssize_t got = pread(f->fd, (char *)to + done, nbytes - done, (off_t)(at + (int64_t)done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return cairn__fail_errno(errno, "%s: reading at byte %" PRId64, f->path, at + (int64_t)done);
        if (got == 0) break;
        done += (size_t)got;
    }
    /* A file truncated during a read may return zeros: the kernel checks the size, then copies a page that has been
     * cleared since. So the size is checked after the read too. */
    if (fstat(f->fd, &s) != 0) return cairn__fail_errno(errno, "%s", f->path);
    REQUIRE(done == nbytes && s.st_size >= at && (uint64_t)(s.st_size - at) >= nbytes, CAIRN_EINVAL,
            "%s: ends at byte %" PRId64 ", and %zu from byte %" PRId64
            " on are to be read; the file may have been truncated",
            f->path, (int64_t)s.st_size, nbytes, at);
    return CAIRN_OK;
}
