/* Writers and readers of files. */
#include "state/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/status.h"

/* Bytes written, and read, at once: a piece is hashed while it is in the processor's cache. */
enum { PIECE = 1 << 20, READ_AT_ONCE = 1 << 18, MAX_PATH = 4096 };
/* Writeback to the disk starts after every so many bytes, runs while the next ones are hashed and copied, and is waited
 * for before these are handed over. So little remains for fsync, and a file's size shows its progress. */
enum { AHEAD = 8 << 20 };

struct cairn__writer {
    char *path;
    char *written; /* the name until commit; path itself when written in place */
    int fd;
    bool is_in_place, is_made; /* is_made: there is a file to remove */
    cairn_status failed;
    char failure[512]; /* the message of `failed` */
    char *piece;
    size_t used;
    uint64_t nbytes;
    uint64_t started, waited; /* bytes whose writeback has started; bytes on the disk */
    XXH3_state_t *hash;
};

/* ---- folders ---- */

static int open_folder(const char *path) {
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Syncs and closes the folder. File systems that cannot sync folders return EINVAL. */
static cairn_status sync_open_folder(int fd, const char *path) {
    const int errnum = fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
    close(fd);
    return errnum == 0 ? CAIRN_OK : cairn__fail_errno(errnum, "%s: bringing the folder onto the disk", path);
}

/* The folder that contains path. */
static cairn_status name_above(const char *path, char above[MAX_PATH]) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    if (n >= MAX_PATH) return cairn__fail_errno(ENAMETOOLONG, "%.200s...", path);
    memcpy(above, n ? path : ".", n ? n : 1);
    above[n ? n : 1] = 0;
    return CAIRN_OK;
}

cairn_status cairn__folder_sync(const char *path) {
    const int fd = open_folder(path);
    return fd < 0 ? cairn__fail_errno(errno, "%s: opening the folder", path) : sync_open_folder(fd, path);
}

cairn_status cairn__folder_sync_above(const char *path) {
    char above[MAX_PATH];
    const cairn_status st = name_above(path, above);
    return st == CAIRN_OK ? cairn__folder_sync(above) : st;
}

/* ---- writing ---- */

/* Records the first failure of a writer: free space that appears later does not complete the file. */
static cairn_status fail_writer(struct cairn__writer *w, int errnum, const char *what) {
    w->failed = cairn__fail_errno(errnum, "%s: %s", w->path, what);
    strncpy(w->failure, cairn_last_error(), sizeof(w->failure) - 1);
    return w->failed;
}

/* write without SIGXFSZ: a file-size limit returns EFBIG only. The signal that the kernel sends to this thread too is
 * consumed, unless it was pending before. */
static ssize_t write_without_signal(int fd, const void *data, size_t nbytes) {
    sigset_t limit, before, waiting;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    sigpending(&waiting);
    pthread_sigmask(SIG_BLOCK, &limit, &before);
    const ssize_t n = write(fd, data, nbytes);
    const int errnum = errno;
    if (n < 0 && errnum == EFBIG && !sigismember(&waiting, SIGXFSZ)) {
        const struct timespec at_once = {0};
        while (sigtimedwait(&limit, NULL, &at_once) < 0 && errno == EINTR) {}
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = errnum;
    return n;
}

/* Waiting here consumes an error of the disk, after which fsync would return 0, so the error must be kept. */
static cairn_status sync_range(struct cairn__writer *w, uint64_t from, uint64_t to, unsigned how) {
    if (sync_file_range(w->fd, (off_t)from, (off_t)(to - from), how) == 0) return CAIRN_OK;
    const bool cannot = errno == ENOSYS || errno == EINVAL || errno == ESPIPE;
    return cannot ? CAIRN_OK : fail_writer(w, errno, "bringing it onto the disk");
}

static cairn_status write_piece(struct cairn__writer *w, const char *data, size_t nbytes) {
    XXH3_64bits_update(w->hash, data, nbytes);
    while (nbytes > 0) {
        const ssize_t n = write_without_signal(w->fd, data, nbytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_writer(w, n < 0 ? errno : EIO, "writing");
        data += n;
        nbytes -= (size_t)n;
        w->nbytes += (uint64_t)n;
    }
    if (w->nbytes - w->started >= AHEAD) {
        cairn_status st = sync_range(w, w->started, w->nbytes, SYNC_FILE_RANGE_WRITE);
        if (st == CAIRN_OK && w->started > w->waited) /* a length of 0 would mean up to the end of the file */
            st = sync_range(w, w->waited, w->started, SYNC_FILE_RANGE_WAIT_BEFORE);
        w->waited = w->started;
        w->started = w->nbytes;
        return st;
    }
    return CAIRN_OK;
}

static cairn_status flush(struct cairn__writer *w) {
    const size_t nbytes = w->used;
    w->used = 0;
    return write_piece(w, w->piece, nbytes);
}

/* A number from this thread, process, machine and time. */
static uint64_t unlike_others(void) {
    struct timespec t;
    char machine[256] = "";
    clock_gettime(CLOCK_REALTIME, &t);
    (void)gethostname(machine, sizeof(machine) - 1);
    const uint64_t h = cairn__hash_word(cairn__hash_text(CAIRN__HASH_START, machine), (uint64_t)t.tv_sec);
    return cairn__hash_word(cairn__hash_word(h, (uint64_t)t.tv_nsec), (uint64_t)syscall(SYS_gettid));
}

cairn_status cairn__writer_create(const char *path, unsigned flags, struct cairn__writer **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__writer *w = NULL;
    char name[MAX_PATH];
    TRY(cairn__calloc(1, sizeof(*w), (void **)&w));
    w->fd = -1;
    w->is_in_place = flags & CAIRN__WRITER_IN_PLACE;
    TRY(cairn__strdup(path, &w->path));
    const int n = w->is_in_place ? snprintf(name, sizeof(name), "%s", path)
                                 : snprintf(name, sizeof(name), "%s.partial-%" PRIx64, path, unlike_others());
    if (n < 0 || n >= MAX_PATH) TRY(cairn__fail_errno(ENAMETOOLONG, "%.200s...", path));
    TRY(cairn__strdup(name, &w->written));
    TRY(cairn__alloc(PIECE, (void **)&w->piece));
    w->hash = XXH3_createState();
    if (!w->hash) TRY(cairn__fail(CAIRN_ENOMEM, "out of memory: the state of a hash"));
    XXH3_64bits_reset(w->hash);
    const int how = w->is_in_place ? O_TRUNC | O_NOFOLLOW : O_EXCL;
    w->fd = open(w->written, O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666);
    if (w->fd < 0) TRY(cairn__fail_errno(errno, "%s: cannot be made", path));
    w->is_made = true;
    *out = w;
    return CAIRN_OK;
out:
    cairn__writer_discard(&w);
    return st;
}

cairn_status cairn__writer_write(struct cairn__writer *w, const void *data, size_t nbytes) {
    cairn_status st = w->failed;
    const char *from = data;
    if (st != CAIRN_OK) return cairn__fail(st, "%s", w->failure);
    while (nbytes > 0) {
        const size_t room = PIECE - w->used, n = nbytes < room ? nbytes : room;
        if (n == PIECE) { /* without a copy */
            TRY(write_piece(w, from, n));
        } else {
            memcpy(w->piece + w->used, from, n);
            w->used += n;
            if (w->used == PIECE) TRY(flush(w));
        }
        from += n;
        nbytes -= n;
    }
out:
    return st;
}

cairn_status cairn__writer_finish(struct cairn__writer *w) {
    cairn_status st = w->failed;
    if (st != CAIRN_OK) return cairn__fail(st, "%s", w->failure);
    if (w->fd < 0) return CAIRN_OK; /* already finished */
    TRY(flush(w));
    if (fsync(w->fd) != 0) TRY(fail_writer(w, errno, "bringing it onto the disk"));
    const int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 && errno != EINTR) TRY(fail_writer(w, errno, "closing"));
    cairn__free(w->piece);
    w->piece = NULL;
out:
    return st;
}

/* Opens the folder before the rename: a process that waits for the file may rename the folder as soon as the name
 * appears. */
static cairn_status give_name(struct cairn__writer *w) {
    char above[MAX_PATH];
    cairn_status st = CAIRN_OK;
    TRY(name_above(w->path, above));
    const int folder = open_folder(above);
    if (folder < 0 || rename(w->written, w->path) != 0) {
        st = fail_writer(w, errno, "giving the file its name");
        if (folder >= 0) close(folder);
        return st;
    }
    w->is_made = false; /* it has its final name: later failures leave it complete */
    TRY(sync_open_folder(folder, above));
out:
    return st;
}

cairn_status cairn__writer_commit(struct cairn__writer **writer, struct cairn__file_facts *facts) {
    struct cairn__writer *w = *writer;
    cairn_status st = CAIRN_OK;
    TRY(cairn__writer_finish(w));
    if (!w->is_in_place) TRY(give_name(w));
    w->is_made = false;
    if (facts) *facts = (struct cairn__file_facts){.nbytes = w->nbytes, .hash = XXH3_64bits_digest(w->hash)};
out:
    cairn__writer_discard(writer);
    return st;
}

void cairn__writer_discard(struct cairn__writer **writer) {
    struct cairn__writer *w = *writer;
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    if (w->is_made) unlink(w->written);
    if (w->hash) XXH3_freeState(w->hash);
    cairn__free(w->piece);
    cairn__free(w->written);
    cairn__free(w->path);
    cairn__free(w);
    *writer = NULL;
}

/* ---- reading ---- */

struct cairn__reader {
    char *path;
    int fd;
    uint64_t nbytes;
    uint64_t hashed;    /* bytes hashed from the beginning */
    XXH3_state_t *hash; /* NULL = not started */
};

static cairn_status start_hash(struct cairn__reader *r) {
    r->hash = XXH3_createState();
    REQUIRE(r->hash, CAIRN_ENOMEM, "out of memory: the state of a hash");
    XXH3_64bits_reset(r->hash);
    return CAIRN_OK;
}

cairn_status cairn__reader_open(const char *path, unsigned flags, struct cairn__reader **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__reader *r = NULL;
    struct stat s;
    const bool takes_link = !(flags & CAIRN__READER_NO_LINK);
    TRY(cairn__calloc(1, sizeof(*r), (void **)&r));
    /* O_NONBLOCK: opening a pipe without a writer would block. */
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (takes_link ? 0 : O_NOFOLLOW));
    if (r->fd < 0 && errno == ELOOP && !takes_link)
        TRY(cairn__fail(CAIRN_EINVAL, "%s: a symbolic link, which is not followed here", path));
    if (r->fd < 0 || fstat(r->fd, &s) != 0) TRY(cairn__fail_errno(errno, "%s", path));
    if (!S_ISREG(s.st_mode)) TRY(cairn__fail(CAIRN_EINVAL, "%s: not a regular file", path));
    (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    r->nbytes = (uint64_t)s.st_size;
    TRY(cairn__strdup(path, &r->path));
    if (flags & CAIRN__READER_HASHES) TRY(start_hash(r));
    *out = r;
    return CAIRN_OK;
out:
    cairn__reader_close(&r);
    return st;
}

void cairn__reader_close(struct cairn__reader **reader) {
    struct cairn__reader *r = *reader;
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    if (r->hash) XXH3_freeState(r->hash);
    cairn__free(r->path);
    cairn__free(r);
    *reader = NULL;
}

const char *cairn__reader_path(const struct cairn__reader *r) {
    return r->path;
}

uint64_t cairn__reader_nbytes(const struct cairn__reader *r) {
    return r->nbytes;
}

static cairn_status read_piece(struct cairn__reader *r, uint64_t at, char *to, size_t nbytes) {
    while (nbytes > 0) {
        const ssize_t n = pread(r->fd, to, nbytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cairn__fail_errno(errno, "%s: reading at byte %" PRIu64, r->path, at);
        REQUIRE(n > 0, CAIRN_EINVAL, "%s: ends at byte %" PRIu64 ", and %zu more are to be read: was it cut?", r->path,
                at, nbytes);
        to += n;
        at += (uint64_t)n;
        nbytes -= (size_t)n;
    }
    return CAIRN_OK;
}

/* Hashes [r->hashed, until). */
static cairn_status hash_until(struct cairn__reader *r, uint64_t until) {
    cairn_status st = CAIRN_OK;
    char *piece = NULL;
    if (r->hashed < until) TRY(cairn__alloc(PIECE, (void **)&piece));
    while (r->hashed < until) {
        const size_t n = until - r->hashed < PIECE ? (size_t)(until - r->hashed) : PIECE;
        TRY(read_piece(r, r->hashed, piece, n));
        XXH3_64bits_update(r->hash, piece, n);
        r->hashed += n;
    }
out:
    cairn__free(piece);
    return st;
}

cairn_status cairn__reader_read(struct cairn__reader *r, uint64_t at, void *to, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    char *end = to;
    REQUIRE(at <= r->nbytes && nbytes <= r->nbytes - at, CAIRN_EINVAL,
            "%s: has %" PRIu64 " bytes, and %zu from byte %" PRIu64 " on are to be read", r->path, r->nbytes, nbytes,
            at);
    if (r->hash) TRY(hash_until(r, at));
    while (nbytes > 0) {
        const size_t n = nbytes < READ_AT_ONCE ? nbytes : READ_AT_ONCE;
        TRY(read_piece(r, at, end, n));
        if (r->hash && at <= r->hashed && at + n > r->hashed) { /* the part that follows the hashed bytes */
            const size_t known = (size_t)(r->hashed - at);
            XXH3_64bits_update(r->hash, end + known, n - known);
            r->hashed = at + n;
        }
        end += n;
        at += n;
        nbytes -= n;
    }
out:
    return st;
}

cairn_status cairn__reader_hash(struct cairn__reader *r, uint64_t *hash) {
    cairn_status st = CAIRN_OK;
    if (!r->hash) TRY(start_hash(r));
    TRY(hash_until(r, r->nbytes));
    *hash = XXH3_64bits_digest(r->hash);
out:
    return st;
}

cairn_status cairn__file_read(const char *path, unsigned flags, size_t most, char **text,
                              struct cairn__file_facts *facts) {
    cairn_status st = CAIRN_OK;
    struct cairn__reader *r = NULL;
    char *all = NULL;
    TRY(cairn__reader_open(path, flags | CAIRN__READER_HASHES, &r));
    if (r->nbytes > most)
        TRY(cairn__fail(CAIRN_EINVAL, "%s: %" PRIu64 " bytes, more than the %zu that such a file may have", path,
                        r->nbytes, most));
    TRY(cairn__alloc((size_t)r->nbytes + 1, (void **)&all));
    TRY(cairn__reader_read(r, 0, all, (size_t)r->nbytes));
    all[r->nbytes] = 0;
    if (facts) *facts = (struct cairn__file_facts){.nbytes = r->nbytes, .hash = XXH3_64bits_digest(r->hash)};
    *text = all;
    all = NULL;
out:
    cairn__free(all);
    cairn__reader_close(&r);
    return st;
}
