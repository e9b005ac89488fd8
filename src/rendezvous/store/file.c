/* A store in a file: a log of changes, which every process replays into a table of its own.
 *
 * The file begins with MAGIC; records follow (struct record, key, value), each appended under an exclusive flock by a
 * process that has replayed all records before it. So all tables go through the same states, and a process computes the
 * result of a change in its own. Calls that only read take the shared lock: on NFS it makes the writes of other
 * processes visible.
 *
 * A process that is killed while it writes leaves a truncated record. A record counts only if it is complete and its
 * checksum matches. A process that holds the exclusive lock, when no other can be writing, and finds anything else at
 * the end of the file cuts that off before it writes. No call has returned success for such a record.
 *
 * A file cannot wake waiters, so they read it again at growing intervals. A process that finds the lock taken tries
 * again in the same way, because a stopped process would otherwise hold the others beyond their timeout.
 *
 * The empty key, which callers cannot use, counts the processes that have left; the last one removes the file. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/trust.h"
#include "rendezvous/store/local.h"
#include "rendezvous/store/wire.h"

static const char MAGIC[16] = "cairn store 1\n";

enum { CHUNK = 64 << 10, FIRST_PAUSE_US = 100, LAST_LOCK_PAUSE_US = 5000, LAST_LOOK_PAUSE_US = 50000 };

static const double LEAVING = 10.0; /* seconds that destroy waits for the lock */

enum change { SET = 1, APPEND, ADD, DELETE };

struct record {
    uint32_t checksum; /* of the rest of the record, key and value */
    uint32_t change;
    uint32_t key_nbytes, value_nbytes;
};

struct file_store {
    cairn_store base;
    char *path; /* absolute */
    int fd, world_size;
    struct cairn__table table;
    off_t end;         /* of the part of the file that the table holds */
    uint64_t deadline; /* of the call in progress, ns */
    uint8_t *buffer;
    size_t capacity;
};

static struct file_store *file(cairn_store *s) {
    return (struct file_store *)s;
}

/* ---- time ---- */

static void start_clock(struct file_store *f, double seconds) {
    f->deadline = cairn__now_ns() + (uint64_t)(seconds < 1e9 ? seconds * 1e9 : 1e18);
}

static bool is_over(const struct file_store *f) {
    return cairn__now_ns() >= f->deadline;
}

/* Sleeps, and doubles the pause for the next time. */
static void take_a_break(const struct file_store *f, int *pause_us, int max_us) {
    const uint64_t now = cairn__now_ns(), left = f->deadline > now ? f->deadline - now : 0;
    const uint64_t wanted = (uint64_t)*pause_us * 1000, pause = wanted < left ? wanted : left;
    nanosleep(&(struct timespec){.tv_sec = 0, .tv_nsec = (long)pause}, NULL);
    *pause_us = *pause_us * 2 < max_us ? *pause_us * 2 : max_us;
}

/* ---- locks ---- */

static cairn_status lock(struct file_store *f, int how) {
    for (int pause = FIRST_PAUSE_US;;) {
        if (flock(f->fd, how | LOCK_NB) == 0) return CAIRN_OK;
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return cairn__fail_errno(errno,
                                     "the file store at %s cannot be locked; choose a file system that supports flock",
                                     f->path);
        }
        REQUIRE(!is_over(f), CAIRN_ETIMEOUT,
                "the file store at %s was locked for %g s; is a process that uses it stopped?", f->path,
                f->base.timeout);
        take_a_break(f, &pause, LAST_LOCK_PAUSE_US);
    }
}

static cairn_status unlock(struct file_store *f, cairn_status st) {
    flock(f->fd, LOCK_UN);
    return st;
}

/* ---- records ---- */

/* Detects a truncated record, not a forged one. */
static uint32_t checksum_of(const struct record *r, const uint8_t *body) {
    const size_t skipped = sizeof(r->checksum);
    const uint32_t head = cairn__hash32_bytes(CAIRN__HASH32_START, (const uint8_t *)r + skipped, sizeof(*r) - skipped);
    return cairn__hash32_bytes(head, body, (size_t)r->key_nbytes + r->value_nbytes);
}

static cairn_status apply(struct cairn__table *t, enum change change, struct cairn__blob key, struct cairn__blob value,
                          int64_t *sum) {
    int64_t delta = 0;
    switch (change) {
    case SET:
        return cairn__table_set(t, key, value);
    case APPEND:
        return cairn__table_append(t, key, value);
    case ADD:
        if (value.nbytes == sizeof(delta)) memcpy(&delta, value.data, sizeof(delta));
        return cairn__table_add(t, key, delta, sum);
    case DELETE:
        cairn__table_delete(t, key);
        return CAIRN_OK;
    }
    return cairn__fail(CAIRN_ESYSTEM, "a record of an unknown kind (%d)", (int)change);
}

/* The size of the record at data, 0 if it is incomplete. */
static size_t whole_record(const uint8_t *data, size_t nbytes, struct record *r) {
    if (nbytes < sizeof(*r)) return 0;
    memcpy(r, data, sizeof(*r));
    if (r->key_nbytes > STORE_MAX_KEY || r->value_nbytes > STORE_MAX_VALUE) return 0;
    const size_t total = sizeof(*r) + r->key_nbytes + r->value_nbytes;
    return nbytes >= total && checksum_of(r, data + sizeof(*r)) == r->checksum ? total : 0;
}

/* ---- reading new records, under a lock ---- */

static cairn_status fail_io(const struct file_store *f, const char *what) {
    return cairn__fail_errno(errno, "the file store at %s cannot be %s", f->path, what);
}

/* The file's size. Fails if the file was removed or has shrunk. */
static cairn_status look_at(const struct file_store *f, off_t *size) {
    struct stat s;
    if (fstat(f->fd, &s) != 0) return fail_io(f, "read");
    REQUIRE(
        s.st_nlink > 0, CAIRN_EPEER,
        "the file store at %s was removed; have all its %d processes destroyed it already? Use a new path for each run",
        f->path, f->world_size);
    REQUIRE(s.st_size >= f->end, CAIRN_EPEER,
            "the file store at %s shrank from %lld bytes to %lld; another program changed the file", f->path,
            (long long)f->end, (long long)s.st_size);
    *size = s.st_size;
    return CAIRN_OK;
}

static cairn_status read_at(struct file_store *f, off_t at, size_t nbytes, size_t *got) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&f->buffer, &f->capacity, nbytes, 1));
    *got = 0;
    while (*got < nbytes) {
        const ssize_t n = pread(f->fd, f->buffer + *got, nbytes - *got, at + (off_t)*got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_io(f, "read");
        if (n == 0) break;
        *got += (size_t)n;
    }
out:
    return st;
}

/* The size that the record at data claims, 0 if that is beyond the limits. */
static size_t wanted_bytes(const uint8_t *data, size_t nbytes) {
    struct record r;
    if (nbytes < sizeof(r)) return 0;
    memcpy(&r, data, sizeof(r));
    return r.key_nbytes > STORE_MAX_KEY || r.value_nbytes > STORE_MAX_VALUE ? 0
                                                                            : sizeof(r) + r.key_nbytes + r.value_nbytes;
}

/* Stops at the end of the file, or before an incomplete record. */
static cairn_status catch_up(struct file_store *f) {
    off_t size = 0;
    cairn_status st = CAIRN_OK;
    TRY(look_at(f, &size));
    for (size_t want = CHUNK; f->end < size;) {
        size_t got = 0, used = 0;
        TRY(read_at(f, f->end, want, &got));
        struct record r;
        used = 0;
        for (size_t n; (n = whole_record(f->buffer + used, got - used, &r)) > 0; used += n) {
            const uint8_t *body = f->buffer + used + sizeof(r);
            int64_t sum = 0;
            TRY(apply(&f->table, (enum change)r.change, cairn__blob_of(body, r.key_nbytes),
                      cairn__blob_of(body + r.key_nbytes, r.value_nbytes), &sum));
            f->end += (off_t)n;
        }
        if (used > 0) continue;
        if (got < want) break; /* end of the file */
        want = wanted_bytes(f->buffer, got);
        if (want <= got) break;
    }
out:
    return st;
}

static cairn_status look(struct file_store *f) {
    cairn_status st = CAIRN_OK;
    TRY(lock(f, LOCK_SH));
    TRY(unlock(f, catch_up(f)));
out:
    return st;
}

/* ---- writing, under the exclusive lock ---- */

static cairn_status write_at(struct file_store *f, const void *data, size_t nbytes, off_t at) {
    for (size_t done = 0; done < nbytes;) {
        const ssize_t n = pwrite(f->fd, (const char *)data + done, nbytes - done, at + (off_t)done);
        if (n > 0) done += (size_t)n;
        if (n == 0) errno = ENOSPC;
        if (n <= 0 && errno != EINTR) return fail_io(f, "written");
    }
    return CAIRN_OK;
}

static cairn_status write_record(struct file_store *f, enum change change, struct cairn__blob key,
                                 struct cairn__blob value) {
    struct record r = {0, change, (uint32_t)key.nbytes, (uint32_t)value.nbytes};
    const size_t total = sizeof(r) + key.nbytes + value.nbytes;
    off_t size = 0;
    cairn_status st = CAIRN_OK;
    TRY(look_at(f, &size));
    if (size > f->end && ftruncate(f->fd, f->end) != 0) TRY(fail_io(f, "truncated where a process died writing"));
    TRY(cairn__grow((void **)&f->buffer, &f->capacity, total, 1));
    memcpy(f->buffer + sizeof(r), key.data, key.nbytes);
    if (value.nbytes) memcpy(f->buffer + sizeof(r) + key.nbytes, value.data, value.nbytes);
    r.checksum = checksum_of(&r, f->buffer + sizeof(r));
    memcpy(f->buffer, &r, sizeof(r));
    TRY(write_at(f, f->buffer, total, f->end));
    f->end += (off_t)total;
out:
    return st;
}

/* To be called when the table has a change that the file lacks: the next call reads the whole file again. */
static void forget(struct file_store *f) {
    cairn__table_clear(&f->table);
    f->end = sizeof(MAGIC);
}

static cairn_status change_locked(struct file_store *f, enum change change, struct cairn__blob key,
                                  struct cairn__blob value, int64_t *sum) {
    cairn_status st = CAIRN_OK;
    TRY(catch_up(f));
    TRY(apply(&f->table, change, key, value, sum));
    st = write_record(f, change, key, value);
    if (st != CAIRN_OK) forget(f);
out:
    return st;
}

static cairn_status change_key(struct file_store *f, enum change change, const char *key, const void *value,
                               size_t nbytes, int64_t *sum) {
    cairn_status st = CAIRN_OK;
    TRY(lock(f, LOCK_EX));
    TRY(unlock(f, change_locked(f, change, cairn__key_blob(key), cairn__blob_of(value, nbytes), sum)));
out:
    return st;
}

/* ---- calls ---- */

static cairn_status file_set(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    start_clock(file(s), s->timeout);
    return change_key(file(s), SET, key, value, nbytes, NULL);
}

static cairn_status file_append(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    start_clock(file(s), s->timeout);
    return change_key(file(s), APPEND, key, value, nbytes, NULL);
}

static cairn_status file_add(cairn_store *s, const char *key, int64_t delta, int64_t *sum) {
    start_clock(file(s), s->timeout);
    return change_key(file(s), ADD, key, &delta, sizeof(delta), sum);
}

static cairn_status file_delete(cairn_store *s, const char *key, int *deleted) {
    struct file_store *f = file(s);
    cairn_status st = CAIRN_OK;
    start_clock(f, s->timeout);
    TRY(lock(f, LOCK_EX));
    st = catch_up(f);
    *deleted = st == CAIRN_OK && !cairn__table_missing(&f->table, &key, 1);
    if (*deleted) st = change_locked(f, DELETE, cairn__key_blob(key), cairn__blob_of(NULL, 0), NULL);
    unlock(f, st);
out:
    return st;
}

static cairn_status compare_set_locked(struct file_store *f, const char *key, struct cairn__blob expected,
                                       struct cairn__blob desired, void **value, size_t *nbytes) {
    struct cairn__blob now;
    cairn_status st = CAIRN_OK;
    TRY(catch_up(f));
    const uint64_t before = f->table.changes;
    TRY(cairn__table_compare_set(&f->table, cairn__key_blob(key), expected, desired, &now));
    st = cairn__blob_copy(now, value, nbytes);
    if (f->table.changes == before) return st;
    if (st == CAIRN_OK) st = write_record(f, SET, cairn__key_blob(key), desired);
    if (st == CAIRN_OK) return CAIRN_OK;
    cairn__free(*value);
    forget(f);
out:
    return st;
}

static cairn_status file_compare_set(cairn_store *s, const char *key, const void *expected, size_t nexpected,
                                     const void *desired, size_t ndesired, void **value, size_t *nbytes) {
    start_clock(file(s), s->timeout);
    cairn_status st = CAIRN_OK;
    TRY(lock(file(s), LOCK_EX));
    TRY(unlock(file(s), compare_set_locked(file(s), key, cairn__blob_of(expected, nexpected),
                                           cairn__blob_of(desired, ndesired), value, nbytes)));
out:
    return st;
}

static cairn_status wait_for(struct file_store *f, const char *const *keys, size_t n) {
    cairn_status st = CAIRN_OK;
    for (int pause = FIRST_PAUSE_US;; take_a_break(f, &pause, LAST_LOOK_PAUSE_US)) {
        const bool last = is_over(f);
        TRY(look(f));
        const char *missing = cairn__table_missing(&f->table, keys, n);
        if (!missing) return CAIRN_OK;
        REQUIRE(!last, CAIRN_ETIMEOUT, "key '%s' did not appear in the file store at %s within %g s", missing, f->path,
                f->base.timeout);
    }
out:
    return st;
}

static cairn_status file_wait(cairn_store *s, const char *const *keys, size_t n) {
    start_clock(file(s), s->timeout);
    return wait_for(file(s), keys, n);
}

static cairn_status file_get(cairn_store *s, const char *key, void **value, size_t *nbytes) {
    struct cairn__blob held = {NULL, 0};
    cairn_status st = CAIRN_OK;
    start_clock(file(s), s->timeout);
    TRY(wait_for(file(s), &key, 1));
    cairn__table_get(&file(s)->table, cairn__key_blob(key), &held);
    TRY(cairn__blob_copy(held, value, nbytes));
out:
    return st;
}

static cairn_status file_check(cairn_store *s, const char *const *keys, size_t n, int *present) {
    start_clock(file(s), s->timeout);
    cairn_status st = CAIRN_OK;
    TRY(look(file(s)));
    *present = cairn__table_missing(&file(s)->table, keys, n) == NULL;
out:
    return st;
}

static cairn_status file_num_keys(cairn_store *s, int64_t *count) {
    struct cairn__blob left;
    start_clock(file(s), s->timeout);
    cairn_status st = CAIRN_OK;
    TRY(look(file(s)));
    const bool counted = cairn__table_get(&file(s)->table, cairn__blob_of("", 0), &left);
    *count = (int64_t)file(s)->table.num_keys - counted;
out:
    return st;
}

/* ---- life ---- */

static bool is_at_its_path(const struct file_store *f) {
    struct stat mine, there;
    return fstat(f->fd, &mine) == 0 && stat(f->path, &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
}

static cairn_status leave(struct file_store *f) {
    int64_t gone = 0;
    cairn_status st = CAIRN_OK;
    start_clock(f, f->base.timeout < LEAVING ? f->base.timeout : LEAVING);
    TRY(lock(f, LOCK_EX));
    st = change_locked(f, ADD, cairn__blob_of("", 0), cairn__blob_of(&(int64_t){1}, sizeof(int64_t)), &gone);
    if (st == CAIRN_OK && gone >= f->world_size && is_at_its_path(f)) unlink(f->path);
    unlock(f, st);
out:
    return st;
}

static void release(struct file_store *f) {
    if (f->fd >= 0) close(f->fd);
    cairn__table_clear(&f->table);
    cairn__free(f->buffer);
    free(f->path);
    cairn__free(f);
}

static void file_destroy(cairn_store *s) {
    struct file_store *f = file(s);
    if (f->world_size > 0 && leave(f) != CAIRN_OK) {
        cairn__log(CAIRN_LOG_WARNING, "a file store was not removed: %s", cairn_last_error());
    }
    release(f);
}

static bool file_forgets(const cairn_store *s) {
    (void)s;
    return false;
}

static const struct cairn__store_ops file_ops = {
    .name = "file",
    .set = file_set,
    .get = file_get,
    .add = file_add,
    .wait = file_wait,
    .check = file_check,
    .compare_set = file_compare_set,
    .append = file_append,
    .delete = file_delete,
    .num_keys = file_num_keys,
    .forgets = file_forgets,
    .destroy = file_destroy,
};

/* The first process writes MAGIC, also if another process died while writing it. */
static cairn_status begin_file(struct file_store *f) {
    size_t got = 0;
    cairn_status st = CAIRN_OK;
    TRY(read_at(f, 0, sizeof(MAGIC), &got));
    REQUIRE(memcmp(f->buffer, MAGIC, got) == 0, CAIRN_EINVAL,
            "%s exists and is not a store of this version of Cairn; choose another path", f->path);
    f->end = sizeof(MAGIC);
    if (got < sizeof(MAGIC)) TRY(write_at(f, MAGIC, sizeof(MAGIC), 0));
out:
    return st;
}

/* Refuses what is not a regular file of one name, and a file that other users can write. */
static cairn_status judge_file(const char *path, const struct stat *s) {
    char why[CAIRN__WHY_NBYTES];
    REQUIRE(!S_ISLNK(s->st_mode), CAIRN_EINVAL,
            "%s is a symbolic link, which a file store does not follow; name the file itself, or remove the link",
            path);
    REQUIRE(S_ISREG(s->st_mode), CAIRN_EINVAL, "%s is not a regular file", path);
    REQUIRE(cairn__is_trusted(s, geteuid(), why), CAIRN_EINVAL,
            "the file store at %s %s, and must be writable by its user alone; remove the file, or choose another path",
            path, why);
    REQUIRE(
        s->st_nlink <= 1, CAIRN_EINVAL,
        "the file store at %s has %lu names (hard links), and must have one; remove the file, or choose another path",
        path, (unsigned long)s->st_nlink);
    return CAIRN_OK;
}

/* Opens the folder of path, of which *name is the rest. f->path becomes absolute. */
static cairn_status open_folder(struct file_store *f, const char *path, int *folder, const char **name) {
    const char *slash = strrchr(path, '/');
    char part[PATH_MAX], whole[PATH_MAX], why[CAIRN__WHY_NBYTES];
    struct stat s;
    *name = slash ? slash + 1 : path;
    const int n = snprintf(part, sizeof(part), "%.*s", slash ? (int)(slash + 1 - path) : 1, slash ? path : ".");
    if (n < 0 || n >= PATH_MAX) return cairn__fail_errno(ENAMETOOLONG, "the file store at %.200s...", path);
    *folder = open(part, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*folder < 0 || fstat(*folder, &s) != 0 || !realpath(part, whole))
        return cairn__fail_errno(errno, "the file store at %s cannot be opened", path);
    /* Other users must not be able to replace the store by another file. */
    REQUIRE(cairn__is_trusted(&s, geteuid(), why), CAIRN_EINVAL,
            "the folder %s %s, who could replace a file store in it; choose a folder of your own, or chmod go-w it",
            whole, why);
    free(f->path);
    f->path = NULL;
    if (asprintf(&f->path, "%s/%s", whole[1] ? whole : "", *name) >= 0) return CAIRN_OK;
    f->path = NULL;
    return cairn__fail(CAIRN_ENOMEM, "out of memory: a path");
}

/* *removed stays true if an earlier run's last process removed the file between open and lock. */
static cairn_status open_file(struct file_store *f, const char *path, bool *removed) {
    struct stat s = {0};
    const char *name = NULL;
    int folder = -1;
    cairn_status st = CAIRN_OK;
    TRY(open_folder(f, path, &folder, &name));
    /* The file is judged before it is opened, because opening alone affects a device, and again afterwards. */
    if (fstatat(folder, name, &s, AT_SYMLINK_NOFOLLOW) == 0) TRY(judge_file(f->path, &s));
    f->fd = openat(folder, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW, 0600);
    if (f->fd < 0) TRY(cairn__fail_errno(errno, "the file store at %s cannot be opened", f->path));
    if (fstat(f->fd, &s) != 0) TRY(fail_io(f, "read"));
    TRY(judge_file(f->path, &s));
    TRY(lock(f, LOCK_EX));
    if (fstat(f->fd, &s) != 0) TRY(unlock(f, fail_io(f, "read")));
    *removed = s.st_nlink == 0;
    st = unlock(f, *removed ? CAIRN_OK : begin_file(f));
out:
    if (folder >= 0) close(folder);
    return st;
}

cairn_status cairn_file_store_create(const char *path, int world_size, double timeout, cairn_store **out) {
    struct file_store *f = NULL;
    bool removed = true;
    cairn_status st = CAIRN_OK;
    REQUIRE(path && path[0] && out, CAIRN_EINVAL, "cairn_file_store_create: path is NULL or empty, or out is NULL");
    REQUIRE(world_size >= 0, CAIRN_EINVAL, "a file store's world_size is %d; it cannot be negative", world_size);
    TRY(cairn__store_timeout(timeout, &timeout));
    TRY(cairn__calloc(1, sizeof(*f), (void **)&f));
    f->base = (cairn_store){.ops = &file_ops, .timeout = timeout};
    f->fd = -1;
    f->world_size = world_size;
    start_clock(f, timeout);
    while (removed) {
        if (f->fd >= 0) close(f->fd);
        TRY(open_file(f, path, &removed));
        if (removed && is_over(f)) TRY(cairn__fail(CAIRN_ETIMEOUT, "other processes keep removing %s", path));
    }
    *out = &f->base;
    return CAIRN_OK;
out:
    if (f) release(f);
    return st;
}
