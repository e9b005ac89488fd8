/* Specific to file stores: truncated records, foreign bytes, locks, and removal of the file. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../check.h"
#include "cairn/store.h"

static char folder[64], path[96];

static int begin(void **state) {
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/cairn-file-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof(path), "%s/store", folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static cairn_store *open_store(void) {
    cairn_store *store = NULL;
    OK(cairn_file_store_create(path, 0, 60, &store));
    return store;
}

static void expect_held(cairn_store *store, const char *key, const char *value) {
    void *got = NULL;
    OK(cairn_store_get(store, key, &got, NULL));
    assert_string_equal(got, value);
    cairn_store_free(got);
}

static size_t read_file(uint8_t *bytes, size_t room) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = read(fd, bytes, room);
    close(fd);
    assert_true(n >= 0);
    return (size_t)n;
}

static void write_file(const void *bytes, size_t nbytes) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, bytes, nbytes), nbytes);
    close(fd);
}

enum { KEYS = 6 };

/* Sizes of the file before and after each of KEYS records; its bytes. */
static size_t make_file(size_t sizes[KEYS + 1], uint8_t *bytes, size_t room) {
    cairn_store *store = open_store();
    for (int i = 0; i <= KEYS; i++) {
        char key[8];
        sizes[i] = read_file(bytes, room);
        snprintf(key, sizeof(key), "k%d", i);
        if (i < KEYS) OK(cairn_store_set(store, key, "value", 5));
    }
    cairn_store_destroy(&store);
    return sizes[KEYS];
}

static void expect_refused(const char *words) {
    cairn_store *store = NULL;
    assert_int_equal(cairn_file_store_create(path, 0, 1, &store), CAIRN_EINVAL);
    assert_null(store);
    SAYS(words);
}

static void symbolic_link_is_not_followed(void **state) {
    (void)state;
    char target[128];
    snprintf(target, sizeof(target), "%s/target", folder);
    assert_int_equal(symlink(target, path), 0);
    expect_refused("/store is a symbolic link, which a file store does not follow; name the file itself, or remove the "
                   "link");
    assert_int_equal(access(target, F_OK), -1);
}

static void file_with_two_names_is_refused(void **state) {
    (void)state;
    char other[128];
    cairn_store *store = open_store();
    cairn_store_destroy(&store);
    snprintf(other, sizeof(other), "%s/other", folder);
    assert_int_equal(link(path, other), 0);
    expect_refused("/store has 2 names (hard links), and must have one; remove the file, or choose another path");
    unlink(other);
    store = open_store();
    cairn_store_destroy(&store);
}

static void file_that_others_can_write_is_refused(void **state) {
    (void)state;
    cairn_store *store = open_store();
    cairn_store_destroy(&store);
    chmod(path, 0602);
    expect_refused(
        "/store can be written by other users (mode 0602), and must be writable by its user alone; remove the "
        "file, or choose another path");
    chmod(path, 0644);
    store = open_store();
    cairn_store_destroy(&store);
}

static void folder_that_others_can_write_is_refused_unless_sticky(void **state) {
    (void)state;
    chmod(folder, 0777);
    expect_refused(
        " can be written by other users (mode 0777), who could replace a file store in it; choose a folder of "
        "your own, or chmod go-w it");
    assert_int_equal(access(path, F_OK), -1);
    chmod(folder, 01777);
    cairn_store *store = open_store();
    cairn_store_destroy(&store);
}

enum trap { FOLDER, FILE_OF_HIS, LINK_OF_HIS, NO_TRAP };

/* What another user can do in a folder for all, before this one comes. */
static void lay_trap_as_nobody(enum trap trap) {
    const pid_t pid = fork();
    if (pid == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
        umask(0);
        const int fd = trap == FILE_OF_HIS ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : 0;
        _exit(fd < 0 || (trap == LINK_OF_HIS && symlink("/etc/cairn-trapped", path) != 0));
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void what_another_user_made_is_refused(void **state) {
    (void)state;
    static const char *const words[] = {
        [FOLDER] = " belongs to user 65534, who could replace a file store in it; choose a folder of your own",
        [FILE_OF_HIS] = "/store belongs to user 65534, and must be writable by its user alone",
        [LINK_OF_HIS] = "/store is a symbolic link, which a file store does not follow"};
    if (geteuid() != 0) SKIP("needs root, to be another user");
    for (enum trap trap = FOLDER; trap < NO_TRAP; trap++) {
        assert_int_equal(chown(folder, trap == FOLDER ? 65534 : 0, (gid_t)-1), 0);
        chmod(folder, 01777);
        lay_trap_as_nobody(trap);
        expect_refused(words[trap]);
        unlink(path);
    }
    assert_int_equal(access("/etc/cairn-trapped", F_OK), -1);
}

static int64_t count_keys(cairn_store *store) {
    int64_t count = -1;
    OK(cairn_store_num_keys(store, &count));
    return count;
}

static void truncated_file_keeps_its_whole_records_and_goes_on(void **state) {
    (void)state;
    uint8_t bytes[1024];
    size_t sizes[KEYS + 1];
    const size_t whole = make_file(sizes, bytes, sizeof(bytes));
    for (size_t cut = 0; cut < whole; cut++) {
        int64_t wanted = 0;
        for (int i = 1; i <= KEYS; i++) wanted += cut >= sizes[i];
        write_file(bytes, cut);
        cairn_store *reader = open_store(), *writer = open_store();
        assert_int_equal(count_keys(reader), wanted);
        OK(cairn_store_set(writer, "new", "after", 5)); /* cuts the rest off */
        expect_held(reader, "new", "after");
        assert_int_equal(count_keys(reader), wanted + 1);
        cairn_store_destroy(&reader);
        cairn_store_destroy(&writer);
    }
}

/* Disks do that, kills do not: no byte may crash a reader or make a record be taken for another. */
static void record_with_a_changed_byte_is_ignored(void **state) {
    (void)state;
    uint8_t bytes[1024];
    size_t sizes[KEYS + 1];
    const size_t whole = make_file(sizes, bytes, sizeof(bytes));
    for (size_t i = sizes[0]; i < whole; i++) {
        int64_t before = 0;
        for (int k = 1; k <= KEYS; k++) before += i >= sizes[k];
        bytes[i] ^= 0x55;
        write_file(bytes, whole);
        bytes[i] ^= 0x55;
        cairn_store *store = open_store();
        assert_int_equal(count_keys(store), before);
        cairn_store_destroy(&store);
    }
}

static void files_of_other_programs_are_left_alone(void **state) {
    (void)state;
    static const char text[] = "my thesis, the only copy";
    char read_back[64] = "";
    cairn_store *store = NULL;
    write_file(text, sizeof(text));
    assert_int_equal(cairn_file_store_create(path, 1, 1, &store), CAIRN_EINVAL);
    SAYS("/store exists and is not a store of this version of Cairn; choose another path");
    read_file((uint8_t *)read_back, sizeof(read_back));
    assert_string_equal(read_back, text);
    assert_int_equal(cairn_file_store_create("/dev/null", 1, 1, &store), CAIRN_EINVAL);
    SAYS("/dev/null is not a regular file");
    assert_int_equal(cairn_file_store_create(folder, 1, 1, &store), CAIRN_EINVAL);
    SAYS(" is not a regular file");
    assert_int_equal(cairn_file_store_create("/no/such/folder/store", 1, 1, &store), CAIRN_ESYSTEM);
    SAYS("the file store at /no/such/folder/store cannot be opened: No such file or directory");
    assert_int_equal(cairn_file_store_create("", 1, 1, &store), CAIRN_EINVAL);
    assert_int_equal(cairn_file_store_create(NULL, 1, 1, &store), CAIRN_EINVAL);
    assert_int_equal(cairn_file_store_create(path, -1, 1, &store), CAIRN_EINVAL);
    assert_int_equal(cairn_file_store_create(path, 1, -1, &store), CAIRN_EINVAL);
    assert_int_equal(cairn_file_store_create(path, 1, 1, NULL), CAIRN_EINVAL);
    assert_null(store);
}

static void last_process_to_leave_removes_the_file(void **state) {
    (void)state;
    cairn_store *stores[3] = {NULL}, *kept = NULL;
    for (int i = 0; i < 3; i++) OK(cairn_file_store_create(path, 3, 60, &stores[i]));
    OK(cairn_store_set(stores[0], "k", "v", 1));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(access(path, F_OK), 0);
        if (i < 2) assert_int_equal(count_keys(stores[2]), 1); /* the count of processes that left is no visible key */
        cairn_store_destroy(&stores[i]);
    }
    assert_int_equal(access(path, F_OK), -1);
    OK(cairn_file_store_create(path, 0, 60, &kept));
    assert_int_equal(count_keys(kept), 0);
    cairn_store_destroy(&kept);
    assert_int_equal(access(path, F_OK), 0);
}

static void last_process_removes_its_own_file_only(void **state) {
    (void)state;
    cairn_store *store = NULL;
    OK(cairn_file_store_create(path, 1, 60, &store));
    unlink(path);
    write_file("another program", 15);
    cairn_store_destroy(&store);
    assert_int_equal(access(path, F_OK), 0);
}

static void file_that_vanishes_or_shrinks_is_epeer(void **state) {
    (void)state;
    cairn_store *store = open_store();
    OK(cairn_store_set(store, "k", "v", 1));
    assert_int_equal(truncate(path, 20), 0);
    assert_int_equal(cairn_store_set(store, "k", "v", 1), CAIRN_EPEER);
    SAYS("bytes to 20; another program changed the file");
    unlink(path);
    assert_int_equal(cairn_store_wait(store, &(const char *){"k"}, 1), CAIRN_EPEER);
    SAYS("was removed; have all its 0 processes destroyed it already? Use a new path for each run");
    cairn_store_destroy(&store);
}

static void file_that_stays_locked_is_a_timeout(void **state) {
    (void)state;
    cairn_store *store = open_store();
    int present = 0;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    OK(cairn_store_set_timeout(store, 0.1));
    assert_int_equal(cairn_store_set(store, "k", "v", 1), CAIRN_ETIMEOUT);
    SAYS("was locked for 0.1 s; is a process that uses it stopped?");
    assert_int_equal(cairn_store_check(store, &(const char *){"k"}, 1, &present), CAIRN_ETIMEOUT);
    flock(fd, LOCK_UN);
    OK(cairn_store_set(store, "k", "v", 1));
    expect_held(store, "k", "v");
    close(fd);
    cairn_store_destroy(&store);
}

/* Values long enough to be cut where the limit on a file's size is. */
static char long_value[4000];

static void limit_file_size(size_t nbytes) {
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){nbytes, RLIM_INFINITY});
}

static void write_that_fails_changes_nothing(void **state) {
    (void)state;
    cairn_store *store = open_store(), *other = open_store();
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    memset(long_value, 'x', sizeof(long_value) - 1);
    OK(cairn_store_set(store, "k", "old", 3));
    OK(cairn_store_add(store, "n", 41, NULL));
    limit_file_size(1000);
    assert_int_equal(cairn_store_set(store, "k", long_value, sizeof(long_value) - 1), CAIRN_ESYSTEM);
    SAYS("cannot be written: File too large");
    void *value = NULL;
    assert_int_equal(cairn_store_compare_set(store, "k", "old", 3, long_value, 3000, &value, NULL), CAIRN_ESYSTEM);
    assert_null(value);
    limit_file_size(RLIM_INFINITY);
    signal(SIGXFSZ, before);
    expect_held(store, "k", "old");
    OK(cairn_store_add(other, "n", 1, NULL));
    expect_held(store, "n", "42");
    cairn_store_destroy(&store);
    cairn_store_destroy(&other);
}

/* SIGXFSZ comes in the middle of a write: the first part is in the file, the process is dead, and its lock is gone. */
static void die_writing(size_t room) {
    cairn_store *store = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGXFSZ, SIG_DFL);
    limit_file_size(room);
    if (cairn_file_store_create(path, 0, 60, &store) != CAIRN_OK) _exit(2);
    cairn_store_set(store, "torn", long_value, sizeof(long_value));
    _exit(3);
}

static void record_of_a_process_killed_while_writing_is_ignored(void **state) {
    (void)state;
    const struct rlimit no_core = {0, 0};
    struct stat s;
    int64_t sum = 0;
    cairn_store *store = open_store();
    setrlimit(RLIMIT_CORE, &no_core);
    for (int64_t i = 1; i <= 20; i++) {
        OK(cairn_store_add(store, "n", 1, NULL));
        assert_int_equal(stat(path, &s), 0);
        const size_t size = (size_t)s.st_size, room = size + (size_t)i * 190;
        const pid_t child = fork();
        if (child == 0) die_writing(room);
        int status = 0;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
        assert_int_equal(stat(path, &s), 0);
        assert_int_equal(s.st_size, room); /* it is torn */
        int present = -1;
        OK(cairn_store_check(store, &(const char *){"torn"}, 1, &present));
        assert_int_equal(present, 0);
        OK(cairn_store_add(store, "n", 0, &sum));
        assert_int_equal(sum, i);
    }
    cairn_store_destroy(&store);
}

/* Each says in memory what the store has answered for. */
static void add_until_killed(atomic_llong *answered) {
    cairn_store *store = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cairn_file_store_create(path, 0, 60, &store) != CAIRN_OK) _exit(2);
    while (cairn_store_add(store, "total", 1, NULL) == CAIRN_OK) {
        atomic_fetch_add(answered, 1);
        if (cairn_store_append(store, "tape", long_value, 100) != CAIRN_OK) break;
    }
    fprintf(stderr, "%s\n", cairn_last_error());
    _exit(4);
}

static void killed_processes_lose_no_completed_write(void **state) {
    (void)state;
    enum { CHILDREN = 4, VICTIMS = 12 };
    atomic_llong *answered = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[CHILDREN];
    cairn_store *store = open_store();
    int64_t total = 0;
    unsigned seed = 12345;
    for (int i = 0; i < CHILDREN + VICTIMS; i++) {
        const int at = i % CHILDREN;
        if (i >= CHILDREN) {
            usleep((seed = seed * 1103515245 + 12345) / 65536 % 20000);
            kill(pids[at], SIGKILL);
            waitpid(pids[at], NULL, 0);
        }
        pids[at] = fork();
        if (pids[at] == 0) add_until_killed(answered);
    }
    for (int i = 0; i < CHILDREN; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < CHILDREN; i++) waitpid(pids[i], NULL, 0);
    OK(cairn_store_add(store, "total", 0, &total));
    const long long least = atomic_load(answered);
    if (total < least || total > least + CHILDREN + VICTIMS)
        fail_msg("%lld, answered for %lld", (long long)total, least);
    cairn_store_destroy(&store);
    munmap(answered, 4096);
}

int main(void) {
#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        FILE_TEST(truncated_file_keeps_its_whole_records_and_goes_on),
        FILE_TEST(record_with_a_changed_byte_is_ignored),
        FILE_TEST(files_of_other_programs_are_left_alone),
        FILE_TEST(symbolic_link_is_not_followed),
        FILE_TEST(file_with_two_names_is_refused),
        FILE_TEST(file_that_others_can_write_is_refused),
        FILE_TEST(folder_that_others_can_write_is_refused_unless_sticky),
        FILE_TEST(what_another_user_made_is_refused),
        FILE_TEST(last_process_to_leave_removes_the_file),
        FILE_TEST(last_process_removes_its_own_file_only),
        FILE_TEST(file_that_vanishes_or_shrinks_is_epeer),
        FILE_TEST(file_that_stays_locked_is_a_timeout),
        FILE_TEST(write_that_fails_changes_nothing),
        FILE_TEST(record_of_a_process_killed_while_writing_is_ignored),
        FILE_TEST(killed_processes_lose_no_completed_write),
    };
    return cmocka_run_group_tests_name("store in a file", tests, NULL, NULL);
}
