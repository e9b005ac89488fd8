#include "rendezvous/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "core/vars.h"

struct cairn__secret {
    uint8_t key[CAIRN__SECRET_NBYTES];
};

_Static_assert(CAIRN__KEYED_NBYTES == crypto_generichash_BYTES && CAIRN__SECRET_NBYTES == crypto_generichash_KEYBYTES,
               "BLAKE2b as libsodium recommends it");

bool cairn__secret_is_built(void) {
    return true;
}

/* ---- making and ending ---- */

static cairn_status allocate(struct cairn__secret **out) {
    REQUIRE(sodium_init() >= 0, CAIRN_ESYSTEM, "libsodium cannot be started: it gets no random numbers");
    *out = sodium_malloc(sizeof(**out));
    REQUIRE(*out, CAIRN_ENOMEM, "out of memory: a job's secret could not be stored");
    return CAIRN_OK;
}

void cairn__secret_destroy(struct cairn__secret **secret) {
    sodium_free(*secret); /* also clears the memory */
    *secret = NULL;
}

cairn_status cairn__secret_random(struct cairn__secret **out) {
    cairn_status st = CAIRN_OK;
    TRY(allocate(out));
    randombytes_buf((*out)->key, sizeof((*out)->key));
out:
    return st;
}

cairn_status cairn__secret_from(const void *bytes, size_t nbytes, const char *what, struct cairn__secret **out) {
    cairn_status st = CAIRN_OK;
    REQUIRE(nbytes >= CAIRN__SECRET_LEAST && nbytes <= CAIRN__SECRET_MOST, CAIRN_EINVAL,
            "%s has %s%zu bytes; a job's secret has %d to %d: `cairn-run --new-secret FILE` makes one", what,
            nbytes > CAIRN__SECRET_MOST ? "at least " : "", nbytes, CAIRN__SECRET_LEAST, CAIRN__SECRET_MOST);
    TRY(allocate(out));
    crypto_generichash((*out)->key, sizeof((*out)->key), bytes, nbytes, NULL, 0);
out:
    return st;
}

/* ---- from files ---- */

static cairn_status read_secret(int fd, bool from_beginning, const char *what, struct cairn__secret **out) {
    uint8_t bytes[CAIRN__SECRET_MOST + 1];
    size_t nbytes = 0;
    cairn_status st = CAIRN_OK;
    while (nbytes <= CAIRN__SECRET_MOST) { /* until the end, or one byte more than the longest secret */
        const size_t room = CAIRN__SECRET_MOST + 1 - nbytes;
        const ssize_t got =
            from_beginning ? pread(fd, bytes + nbytes, room, (off_t)nbytes) : read(fd, bytes + nbytes, room);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) TRY(cairn__fail_errno(errno, "%s, a job's secret, cannot be read", what));
        if (got == 0) break;
        nbytes += (size_t)got;
    }
    while (nbytes > 0 && (bytes[nbytes - 1] == '\n' || bytes[nbytes - 1] == '\r')) nbytes--;
    TRY(cairn__secret_from(bytes, nbytes, what, out));
out:
    sodium_memzero(bytes, sizeof(bytes));
    return st;
}

static cairn_status check_file(int fd, const char *path) {
    struct stat s;
    if (fstat(fd, &s) != 0) return cairn__fail_errno(errno, "%s, a job's secret, cannot be read", path);
    REQUIRE(S_ISREG(s.st_mode), CAIRN_EINVAL, "%s, a job's secret, is not a regular file", path);
    REQUIRE(s.st_uid == geteuid(), CAIRN_EINVAL,
            "%s, a job's secret, belongs to user %u, and this process is user %u's; use a file of your own: "
            "`cairn-run --new-secret FILE` makes one",
            path, (unsigned)s.st_uid, (unsigned)geteuid());
    REQUIRE((s.st_mode & 077) == 0, CAIRN_EINVAL,
            "%s, a job's secret, has mode %04o, so others may have read or changed it; make a new one with `cairn-run "
            "--new-secret FILE`, or `chmod 600` it if nobody else has an account here",
            path, (unsigned)(s.st_mode & 07777));
    return CAIRN_OK;
}

cairn_status cairn__secret_from_file(const char *path, struct cairn__secret **out) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    REQUIRE(fd >= 0 || errno != ELOOP, CAIRN_EINVAL, "%s, a job's secret, is a symbolic link; name the file itself",
            path);
    if (fd < 0) return cairn__fail_errno(errno, "%s, a job's secret, cannot be opened", path);
    cairn_status st = CAIRN_OK;
    TRY(check_file(fd, path));
    TRY(read_secret(fd, true, path, out));
out:
    close(fd);
    return st;
}

/* Whether fd is from cairn__secret_share: then it holds the key itself, not text to be hashed. */
static bool is_shared(int fd, const struct stat *s) {
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_WRITE) && s->st_size == CAIRN__SECRET_NBYTES;
}

static cairn_status take_shared(int fd, struct cairn__secret **out) {
    cairn_status st = CAIRN_OK;
    TRY(allocate(out));
    if (pread(fd, (*out)->key, sizeof((*out)->key), 0) == (ssize_t)sizeof((*out)->key)) return CAIRN_OK;
    st = cairn__fail_errno(errno, "a job's secret that was inherited cannot be read");
    cairn__secret_destroy(out);
out:
    return st;
}

cairn_status cairn__secret_from_descriptor(int fd, struct cairn__secret **out) {
    char what[64];
    struct stat s;
    snprintf(what, sizeof(what), "descriptor %d", fd);
    if (fstat(fd, &s) != 0) return cairn__fail_errno(errno, "%s, a job's secret, is not open", what);
    REQUIRE(S_ISREG(s.st_mode) || S_ISFIFO(s.st_mode) || S_ISSOCK(s.st_mode), CAIRN_EINVAL,
            "%s, a job's secret, is neither a file nor a pipe", what);
    return is_shared(fd, &s) ? take_shared(fd, out) : read_secret(fd, S_ISREG(s.st_mode), what, out);
}

cairn_status cairn__secret_from_environment(struct cairn__secret **out) {
    const char *path = cairn__var("CAIRN_JOB_SECRET_FILE");
    bool is_inherited = false;
    long fd = 0;
    cairn_status st = CAIRN_OK;
    *out = NULL;
    TRY(cairn__var_int("CAIRN_JOB_SECRET_FD", 0, 1 << 20, &is_inherited, &fd));
    if (is_inherited) {
        st = cairn__secret_from_descriptor((int)fd, out);
        if (st != CAIRN_OK)
            st = cairn__fail(st, "%s; CAIRN_JOB_SECRET_FD names it, which cairn-run sets: has a wrapper closed it?",
                             cairn_last_error());
    } else if (path) {
        st = cairn__secret_from_file(path, out);
    }
out:
    return st;
}

/* ---- handing on ---- */

static cairn_status write_whole(int fd, const void *bytes, size_t nbytes, const char *what) {
    for (size_t done = 0; done < nbytes;) {
        const ssize_t n = write(fd, (const char *)bytes + done, nbytes - done);
        if (n > 0) done += (size_t)n;
        if (n == 0) errno = ENOSPC;
        if (n <= 0 && errno != EINTR) return cairn__fail_errno(errno, "%s, a job's secret, cannot be written", what);
    }
    return CAIRN_OK;
}

cairn_status cairn__secret_write_new(const char *path) {
    uint8_t random[CAIRN__SECRET_NBYTES];
    char text[2 * CAIRN__SECRET_NBYTES + 2];
    REQUIRE(sodium_init() >= 0, CAIRN_ESYSTEM, "libsodium cannot be started: it gets no random numbers");
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return cairn__fail_errno(errno, "%s, a new secret, cannot be made", path);
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(text, sizeof(text), random, sizeof(random));
    text[2 * sizeof(random)] = '\n';
    const cairn_status st = write_whole(fd, text, sizeof(text) - 1, path);
    sodium_memzero(random, sizeof(random));
    sodium_memzero(text, sizeof(text));
    close(fd);
    return st;
}

cairn_status cairn__secret_share(const struct cairn__secret *secret, int *fd) {
    cairn_status st = CAIRN_OK;
    *fd = memfd_create("cairn-job-secret", MFD_ALLOW_SEALING);
    if (*fd < 0) return cairn__fail_errno(errno, "no memory for a job's secret that ranks inherit");
    TRY(write_whole(*fd, secret->key, sizeof(secret->key), "memory"));
    (void)fcntl(*fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return CAIRN_OK;
out:
    close(*fd);
    *fd = -1;
    return st;
}

/* ---- proving ---- */

void cairn__keyed_hash(const struct cairn__secret *secret, const void *data, size_t nbytes,
                       uint8_t out[CAIRN__KEYED_NBYTES]) {
    crypto_generichash(out, CAIRN__KEYED_NBYTES, data, nbytes, secret->key, sizeof(secret->key));
}

bool cairn__keyed_equal(const uint8_t a[CAIRN__KEYED_NBYTES], const uint8_t b[CAIRN__KEYED_NBYTES]) {
    return sodium_memcmp(a, b, CAIRN__KEYED_NBYTES) == 0;
}
