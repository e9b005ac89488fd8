/* Atomic file writes, and readers of incomplete files. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../check.h"
#include "core/alloc.h"
#include "folder.h"
#include "state/file.h"

/* ---- a disk that does what a test wants ---- */

static struct {
    int64_t room;  /* bytes until it is full; < 0: no limit */
    size_t most;   /* bytes that a write takes; 0: all */
    int interrupt; /* this many writes are interrupted first */
    int fsync_error, rename_error;
    const char *moved,
        *moved_to; /* a folder that somebody renames as soon as a file in it has its name; NULL: no one */
} disk = {.room = -1};

ssize_t __real_write(int fd, const void *data, size_t nbytes);
ssize_t __wrap_write(int fd, const void *data, size_t nbytes);
ssize_t __wrap_write(int fd, const void *data, size_t nbytes) {
    if (disk.interrupt > 0) {
        disk.interrupt--;
        errno = EINTR;
        return -1;
    }
    if (disk.room == 0) {
        errno = ENOSPC;
        return -1;
    }
    if (disk.most > 0 && nbytes > disk.most) nbytes = disk.most;
    if (disk.room > 0 && nbytes > (size_t)disk.room) nbytes = (size_t)disk.room;
    if (disk.room > 0) disk.room -= (int64_t)nbytes;
    return __real_write(fd, data, nbytes);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    if (!disk.fsync_error) return __real_fsync(fd);
    errno = disk.fsync_error;
    return -1;
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    if (disk.rename_error) {
        errno = disk.rename_error;
        return -1;
    }
    const int renamed = __real_rename(from, to);
    return renamed == 0 && disk.moved ? __real_rename(disk.moved, disk.moved_to) : renamed;
}

static int repair_disk(void **state) {
    memset(&disk, 0, sizeof(disk));
    disk.room = -1;
    return remove_folder(state);
}

/* ---- writing ---- */

enum { MANY = 3 * (1 << 20) + 12345 };

static unsigned char *make_bytes(void) {
    unsigned char *bytes = malloc(MANY);
    uint32_t x = 1;
    for (int i = 0; i < MANY; i++) bytes[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 24);
    return bytes;
}

static struct cairn__writer *begin(const char *path) {
    struct cairn__writer *w = NULL;
    OK(cairn__writer_create(path, 0, &w));
    return w;
}

static void write_text(const char *path, const char *text) {
    struct cairn__writer *w = begin(path);
    OK(cairn__writer_write(w, text, strlen(text)));
    OK(cairn__writer_commit(&w, NULL));
    assert_null(w);
}

static void holds_text(const char *path, const char *text) {
    char *found = NULL;
    OK(cairn__file_read(path, 0, 1000, &found, NULL));
    assert_string_equal(found, text);
    cairn__free(found);
}

static void a_file_in_pieces_of_any_size_has_their_bytes_and_hash(void **state) {
    (void)state;
    static const size_t pieces[] = {MANY, 1, 7, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1};
    unsigned char *bytes = make_bytes();
    struct cairn__file_facts first = {0}, facts, read;
    for (size_t k = 0; k < sizeof(pieces) / sizeof(pieces[0]); k++) {
        struct cairn__writer *w = begin(in_folder("x"));
        const size_t step = pieces[k] < 100 ? 100 * pieces[k] + pieces[k] : pieces[k];
        for (size_t at = 0; at < MANY; at += step) {
            const size_t left = MANY - at;
            OK(cairn__writer_write(w, bytes + at, left < step ? left : step));
        }
        OK(cairn__writer_commit(&w, &facts));
        assert_int_equal(facts.nbytes, MANY);
        if (k == 0) first = facts;
        assert_true(facts.hash == first.hash);
        char *text = NULL;
        OK(cairn__file_read(in_folder("x"), 0, MANY, &text, &read));
        assert_memory_equal(text, bytes, MANY);
        assert_true(read.hash == facts.hash && read.nbytes == MANY);
        cairn__free(text);
    }
    assert_int_equal(count_files(), 1);
    free(bytes);
}

static void the_hash_is_xxh3(void **state) {
    (void)state;
    struct cairn__file_facts facts;
    struct cairn__writer *w = begin(in_folder("x"));
    OK(cairn__writer_commit(&w, &facts));
    assert_true(facts.hash == UINT64_C(0x2d06800538d394c2)); /* of nothing; xxhsum -H3 */
}

static void the_old_file_stays_until_the_new_one_is_whole(void **state) {
    (void)state;
    write_text(in_folder("x"), "old");
    struct cairn__writer *w = begin(in_folder("x"));
    OK(cairn__writer_write(w, "new", 3));
    assert_int_equal(count_files(), 2);
    holds_text(in_folder("x"), "old");
    cairn__writer_discard(&w);
    assert_null(w);
    assert_int_equal(count_files(), 1);
    holds_text(in_folder("x"), "old");
    write_text(in_folder("x"), "new");
    holds_text(in_folder("x"), "new");
    assert_int_equal(count_files(), 1);
}

static void in_place_the_file_has_its_name_at_once(void **state) {
    (void)state;
    struct cairn__writer *w = NULL;
    OK(cairn__writer_create(in_folder("x"), CAIRN__WRITER_IN_PLACE, &w));
    OK(cairn__writer_write(w, "here", 4));
    assert_int_equal(access(in_folder("x"), F_OK), 0);
    OK(cairn__writer_commit(&w, NULL));
    OK(cairn__folder_sync(folder));
    holds_text(in_folder("x"), "here");
    assert_int_equal(count_files(), 1);
}

static void short_and_interrupted_writes_go_on(void **state) {
    (void)state;
    unsigned char *bytes = make_bytes();
    disk.most = 100001;
    disk.interrupt = 3;
    struct cairn__writer *w = begin(in_folder("x"));
    OK(cairn__writer_write(w, bytes, MANY));
    OK(cairn__writer_commit(&w, NULL));
    char *text = NULL;
    OK(cairn__file_read(in_folder("x"), 0, MANY, &text, NULL));
    assert_memory_equal(text, bytes, MANY);
    cairn__free(text);
    free(bytes);
}

/* Writes a large file; the status of all of it. */
static cairn_status write_much(const char *path) {
    unsigned char *bytes = make_bytes();
    struct cairn__writer *w = NULL;
    cairn_status st = cairn__writer_create(path, 0, &w);
    if (st == CAIRN_OK) {
        (void)cairn__writer_write(w, bytes, MANY); /* commit repeats it */
        st = cairn__writer_commit(&w, NULL);
    }
    free(bytes);
    return st;
}

static void what_fails_on_the_way_names_the_path_and_leaves_the_old_file(void **state) {
    (void)state;
    char words[512];
    static const struct {
        int64_t room;
        int fsync_error, rename_error, what;
    } cases[] = {{1000, 0, 0, ENOSPC}, {0, 0, 0, ENOSPC}, {-1, EIO, 0, EIO}, {-1, 0, EACCES, EACCES}};
    write_text(in_folder("x"), "old");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        disk.room = cases[i].room;
        disk.fsync_error = cases[i].fsync_error;
        disk.rename_error = cases[i].rename_error;
        assert_int_equal(write_much(in_folder("x")), CAIRN_ESYSTEM);
        snprintf(words, sizeof(words), "%s/x: ", folder);
        SAYS(words);
        SAYS(strerror(cases[i].what));
        assert_int_equal(count_files(), 1);
        holds_text(in_folder("x"), "old");
    }
}

static void a_finished_file_needs_no_room_to_become_whole(void **state) {
    (void)state;
    struct cairn__file_facts facts;
    write_text(in_folder("x"), "old");
    struct cairn__writer *w = begin(in_folder("x"));
    OK(cairn__writer_write(w, "newer", 5));
    disk.room = 0;
    REFUSED(cairn__writer_finish(w), CAIRN_ESYSTEM, strerror(ENOSPC));
    REFUSED(cairn__writer_finish(w), CAIRN_ESYSTEM, strerror(ENOSPC));
    cairn__writer_discard(&w);
    disk.room = -1;
    w = begin(in_folder("x"));
    OK(cairn__writer_write(w, "newer", 5));
    OK(cairn__writer_finish(w));
    OK(cairn__writer_finish(w));
    holds_text(in_folder("x"), "old");
    disk.room = 0;
    OK(cairn__writer_commit(&w, &facts));
    assert_int_equal(facts.nbytes, 5);
    holds_text(in_folder("x"), "newer");
    assert_int_equal(count_files(), 1);
}

/* As rank 0 does with a checkpoint's folder once it has seen the sign of the last rank. */
static void a_folder_that_gets_another_name_beside_the_file_is_no_error(void **state) {
    (void)state;
    char moved[256], moved_to[256], path[300];
    snprintf(moved, sizeof(moved), "%s", in_folder("a"));
    snprintf(moved_to, sizeof(moved_to), "%s", in_folder("b"));
    snprintf(path, sizeof(path), "%s/x", moved);
    assert_int_equal(mkdir(moved, 0700), 0);
    disk.moved = moved;
    disk.moved_to = moved_to;
    write_text(path, "whole");
    disk.moved = NULL;
    holds_text(in_folder("b/x"), "whole");
}

static void a_full_disk_that_has_room_again_makes_no_file_with_a_hole(void **state) {
    (void)state;
    struct cairn__writer *w = begin(in_folder("x"));
    unsigned char *bytes = make_bytes();
    disk.room = 5;
    REFUSED(cairn__writer_write(w, bytes, MANY), CAIRN_ESYSTEM, strerror(ENOSPC));
    disk.room = -1;
    REFUSED(cairn__writer_write(w, bytes, 3), CAIRN_ESYSTEM, strerror(ENOSPC));
    REFUSED(cairn__writer_commit(&w, NULL), CAIRN_ESYSTEM, strerror(ENOSPC));
    assert_int_equal(count_files(), 0);
    free(bytes);
}

static void places_that_take_no_file_are_named(void **state) {
    (void)state;
    struct cairn__writer *w = NULL;
    char words[512];
    snprintf(words, sizeof(words), "%s/gone/x: cannot be made: %s", folder, strerror(ENOENT));
    REFUSED(cairn__writer_create(in_folder("gone/x"), 0, &w), CAIRN_ESYSTEM, words);
    assert_null(w);
    assert_int_equal(mkdir(in_folder("d"), 0777), 0);
    REFUSED(write_much(in_folder("d")), CAIRN_ESYSTEM, "/d: ");
    char *deep = malloc(5001);
    memset(deep, 'x', 5000);
    deep[5000] = 0;
    REFUSED(cairn__writer_create(deep, 0, &w), CAIRN_ESYSTEM, strerror(ENAMETOOLONG));
    free(deep);
    w = begin(in_folder("d/x"));
    OK(cairn__writer_write(w, "x", 1));
    glob_t partial;
    assert_int_equal(glob(in_folder("d/x.partial-*"), 0, NULL, &partial), 0);
    assert_int_equal(partial.gl_pathc, 1);
    assert_int_equal(unlink(partial.gl_pathv[0]), 0);
    globfree(&partial);
    assert_int_equal(rmdir(in_folder("d")), 0); /* the folder vanishes */
    REFUSED(cairn__writer_commit(&w, NULL), CAIRN_ESYSTEM, "/d/x: giving the file its name");
}

static void a_link_in_the_place_of_a_file_written_in_place_is_not_followed(void **state) {
    (void)state;
    struct cairn__writer *w = NULL;
    write_text(in_folder("other"), "kept");
    assert_int_equal(symlink(in_folder("other"), in_folder("x")), 0);
    REFUSED(cairn__writer_create(in_folder("x"), CAIRN__WRITER_IN_PLACE, &w), CAIRN_ESYSTEM, "/x: cannot be made");
    holds_text(in_folder("other"), "kept");
}

/* In a child: the limit is the process's. Its exit status says what was not so. */
static int write_over_the_limit(bool is_waiting) {
    sigset_t limit, waiting;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    if (is_waiting) { /* blocked and raised by the program itself: stays so */
        pthread_sigmask(SIG_BLOCK, &limit, NULL);
        raise(SIGXFSZ);
    }
    const struct rlimit r = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &r) != 0) return 2;
    if (write_much(in_folder("x")) != CAIRN_ESYSTEM) return 3;
    if (!strstr(cairn_last_error(), strerror(EFBIG))) return 4;
    sigpending(&waiting);
    if (sigismember(&waiting, SIGXFSZ) != is_waiting) return 5;
    return access(in_folder("x"), F_OK) == 0 ? 6 : 0;
}

static void a_file_size_limit_is_an_error_and_no_signal(void **state) {
    (void)state;
    for (int is_waiting = 0; is_waiting < 2; is_waiting++) {
        int status = -1;
        const pid_t child = fork();
        if (child == 0) _exit(write_over_the_limit(is_waiting));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(count_files(), 0);
    }
}

/* In a child, which has mounts of its own: 77 where it may not. */
static int write_to_small_disk(void) {
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return 77;
    if (mount("tmpfs", folder, "tmpfs", 0, "size=1m") != 0) return 77;
    write_text(in_folder("x"), "old");
    if (write_much(in_folder("x")) != CAIRN_ESYSTEM) return 2;
    if (!strstr(cairn_last_error(), strerror(ENOSPC)) || !strstr(cairn_last_error(), "/x: ")) return 3;
    holds_text(in_folder("x"), "old");
    if (count_files() != 1) return 4;
    if (mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0) return 77;
    if (write_much(in_folder("x")) != CAIRN_ESYSTEM) return 5;
    return strstr(cairn_last_error(), strerror(EROFS)) ? 0 : 6;
}

static void a_full_and_a_read_only_disk_are_errors(void **state) {
    (void)state;
    int status = -1;
    const pid_t child = fork();
    if (child == 0) _exit(write_to_small_disk());
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        printf("no disk of its own: this process may not mount one\n");
        skip();
    }
    assert_int_equal(status, 0);
}

static void write_for_ever(const char *path) {
    unsigned char *bytes = make_bytes();
    for (int i = 0;; i++) {
        struct cairn__writer *w = NULL;
        memset(bytes, i % 2 ? 'a' : 'b', MANY);
        if (cairn__writer_create(path, 0, &w) != CAIRN_OK) _exit(1);
        if (cairn__writer_write(w, bytes, MANY) != CAIRN_OK || cairn__writer_commit(&w, NULL) != CAIRN_OK) _exit(1);
    }
}

static void after_a_kill_at_any_moment_the_file_is_whole(void **state) {
    (void)state;
    uint32_t x = 5;
    for (int i = 0; i < 20; i++) {
        char *text = NULL;
        int status = 0;
        const pid_t child = fork();
        if (child == 0) write_for_ever(in_folder("x"));
        usleep(1000 + ((x = x * 1664525u + 1013904223u) >> 16) % 40000);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        if (access(in_folder("x"), F_OK) != 0) continue;
        struct cairn__file_facts facts;
        OK(cairn__file_read(in_folder("x"), 0, MANY, &text, &facts));
        assert_int_equal(facts.nbytes, MANY);
        for (int k = 1; k < MANY; k++) assert_true(text[k] == text[0]);
        cairn__free(text);
    }
}

static void *write_own(void *path) {
    for (int i = 0; i < 20; i++) {
        if (write_much(path) != CAIRN_OK) return path;
    }
    return NULL;
}

static void threads_that_write_one_path_leave_one_whole_file(void **state) {
    (void)state;
    pthread_t threads[2];
    char path[256];
    void *failed = NULL;
    snprintf(path, sizeof(path), "%s", in_folder("x"));
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, write_own, path), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(count_files(), 1);
    unsigned char *bytes = make_bytes();
    char *text = NULL;
    OK(cairn__file_read(path, 0, MANY, &text, NULL));
    assert_memory_equal(text, bytes, MANY);
    cairn__free(text);
    free(bytes);
}

/* ---- reading ---- */

static uint64_t hash_of(const char *path) {
    struct cairn__reader *r = NULL;
    uint64_t hash = 0;
    OK(cairn__reader_open(path, 0, &r));
    OK(cairn__reader_hash(r, &hash));
    cairn__reader_close(&r);
    assert_null(r);
    return hash;
}

static void reads_in_any_order_give_the_hash_of_the_file(void **state) {
    (void)state;
    static const struct {
        uint64_t at;
        size_t nbytes;
    } reads[][4] = {{{0, 0}},
                    {{0, MANY}},
                    {{0, 8}, {8, 100}, {108, MANY - 108}},
                    {{5, 100}, {50, 2000}, {50, 10}, {3000, 5}},
                    {{MANY - 1, 1}, {0, MANY}},
                    {{2 << 20, 1 << 20}, {0, 8}, {(3 << 20) - 5, 300}}};
    unsigned char *bytes = make_bytes(), *to = malloc(MANY);
    write_file(in_folder("x"), bytes, MANY);
    const uint64_t hash = hash_of(in_folder("x"));
    for (size_t k = 0; k < sizeof(reads) / sizeof(reads[0]); k++) {
        struct cairn__reader *r = NULL;
        uint64_t found = 0;
        OK(cairn__reader_open(in_folder("x"), CAIRN__READER_HASHES, &r));
        for (int i = 0; i < 4; i++) {
            OK(cairn__reader_read(r, reads[k][i].at, to, reads[k][i].nbytes));
            assert_memory_equal(to, bytes + reads[k][i].at, reads[k][i].nbytes);
        }
        OK(cairn__reader_hash(r, &found));
        assert_true(found == hash);
        cairn__reader_close(&r);
    }
    free(to);
    free(bytes);
}

static void what_is_no_regular_file_is_refused(void **state) {
    (void)state;
    struct cairn__reader *r = NULL;
    REFUSED(cairn__reader_open(folder, 0, &r), CAIRN_EINVAL, "not a regular file");
    REFUSED(cairn__reader_open(in_folder("gone"), 0, &r), CAIRN_ESYSTEM, strerror(ENOENT));
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    REFUSED(cairn__reader_open(in_folder("pipe"), 0, &r), CAIRN_EINVAL, "not a regular file");
    write_text(in_folder("x"), "x");
    assert_int_equal(symlink("x", in_folder("link")), 0);
    REFUSED(cairn__reader_open(in_folder("link"), CAIRN__READER_NO_LINK, &r), CAIRN_EINVAL, "a symbolic link");
    assert_null(r);
    holds_text(in_folder("link"), "x");
}

static void a_file_that_is_cut_while_it_is_read_is_an_error(void **state) {
    (void)state;
    struct cairn__reader *r = NULL;
    char bytes[8], *text = NULL;
    uint64_t hash;
    write_text(in_folder("x"), "0123456789");
    OK(cairn__reader_open(in_folder("x"), 0, &r));
    REFUSED(cairn__reader_read(r, 4, bytes, 7), CAIRN_EINVAL, "has 10 bytes, and 7 from byte 4 on");
    REFUSED(cairn__reader_read(r, UINT64_MAX, bytes, 7), CAIRN_EINVAL, "has 10 bytes");
    assert_int_equal(truncate(in_folder("x"), 6), 0);
    REFUSED(cairn__reader_read(r, 0, bytes, 8), CAIRN_EINVAL, "ends at byte 6, and 2 more are to be read: was it cut?");
    REFUSED(cairn__reader_hash(r, &hash), CAIRN_EINVAL, "was it cut?");
    cairn__reader_close(&r);
    REFUSED(cairn__file_read(in_folder("x"), 0, 5, &text, NULL), CAIRN_EINVAL, "6 bytes, more than the 5");
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, repair_disk)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_file_in_pieces_of_any_size_has_their_bytes_and_hash),
        IN_FOLDER(the_hash_is_xxh3),
        IN_FOLDER(the_old_file_stays_until_the_new_one_is_whole),
        IN_FOLDER(in_place_the_file_has_its_name_at_once),
        IN_FOLDER(short_and_interrupted_writes_go_on),
        IN_FOLDER(what_fails_on_the_way_names_the_path_and_leaves_the_old_file),
        IN_FOLDER(a_finished_file_needs_no_room_to_become_whole),
        IN_FOLDER(a_folder_that_gets_another_name_beside_the_file_is_no_error),
        IN_FOLDER(a_full_disk_that_has_room_again_makes_no_file_with_a_hole),
        IN_FOLDER(places_that_take_no_file_are_named),
        IN_FOLDER(a_link_in_the_place_of_a_file_written_in_place_is_not_followed),
        IN_FOLDER(a_file_size_limit_is_an_error_and_no_signal),
        IN_FOLDER(a_full_and_a_read_only_disk_are_errors),
        IN_FOLDER(after_a_kill_at_any_moment_the_file_is_whole),
        IN_FOLDER(threads_that_write_one_path_leave_one_whole_file),
        IN_FOLDER(reads_in_any_order_give_the_hash_of_the_file),
        IN_FOLDER(what_is_no_regular_file_is_refused),
        IN_FOLDER(a_file_that_is_cut_while_it_is_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
