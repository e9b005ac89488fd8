/* Checkpoints on disks that are slower than the ranks' timeout, on file systems that cannot exchange two names
 * atomically, and in folders that not all ranks see. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../ranks.h"
#include "core/status.h"
#include "folder.h"
#include "param/stateful.h"

/* The tests' own disk. */
static struct {
    _Atomic double fsync_seconds, read_seconds; /* what one takes */
    bool cannot_exchange;
    bool dies_between; /* a process that replaces a checkpoint, between its two renames */
    atomic_int reads;  /* of files with tensors */
} disk;

static void take(double seconds) {
    const struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    if (seconds > 0) nanosleep(&t, NULL);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    take(disk.fsync_seconds);
    return __real_fsync(fd);
}

ssize_t __real_pread64(int fd, void *to, size_t nbytes, off64_t at);
ssize_t __wrap_pread64(int fd, void *to, size_t nbytes, off64_t at);
ssize_t __wrap_pread64(int fd, void *to, size_t nbytes, off64_t at) {
    atomic_fetch_add(&disk.reads, 1);
    if (nbytes > 4096) take(disk.read_seconds); /* of an array */
    return __real_pread64(fd, to, nbytes, at);
}

int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    if (!disk.cannot_exchange) return __real_renameat2(from_dir, from, to_dir, to, flags);
    errno = EINVAL;
    return -1;
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    const int result = __real_rename(from, to);
    if (disk.dies_between && strstr(to, ".old")) _exit(9);
    return result;
}

/* ---- an object of one array ---- */

enum { N = 4096 };

struct object {
    cairn_env *env;
    float x[N];
    bool is_pending;
};

static struct cairn_env *env_of(const void *object) {
    return ((const struct object *)object)->env;
}

static cairn_status list(void *object, struct cairn__entries *e) {
    struct object *o = object;
    if (o->is_pending) return cairn__fail(CAIRN_ESTATE, "a gradient is pending; step first");
    return cairn__entries_add_array(e, CAIRN__ENTRY_SHARED, CAIRN_F32, 1, (int64_t[]){N}, o->x, "x");
}

static const struct cairn__stateful_ops ops = {.kind = "test object", .env = env_of, .list = list};

static cairn_status make(cairn_env *env, struct object *o, float value, cairn_state **state) {
    *o = (struct object){.env = env};
    for (int i = 0; i < N; i++) o->x[i] = value;
    const cairn_status st = cairn_state_create(env, state);
    return st == CAIRN_OK ? cairn_state_add(*state, "object", (cairn_stateful){&ops, o}) : st;
}

/* ---- slow disks ---- */

#define TIMEOUT 0.6

static char *save_and_load_slowly(cairn_env *env, void *ctx) {
    struct object o;
    cairn_state *state;
    int64_t step = 0;
    cairn_group *group = cairn_env_group(env);
    const bool first = cairn_env_rank(env) == 0;
    (void)ctx;
    EXPECT_OK(make(env, &o, 1, &state));
    disk.fsync_seconds = 2 * TIMEOUT;
    EXPECT_OK(cairn_state_save(state, folder, 1, NULL));
    EXPECT_OK(cairn_barrier(group)); /* and goes on */
    EXPECT_OK(cairn_state_save(state, folder, 2, cairn_state_save_options(.background = CAIRN_ON)));
    EXPECT_OK(cairn_state_wait(state));
    EXPECT_OK(cairn_barrier(group));
    disk.fsync_seconds = 0;
    disk.read_seconds = first ? 2 * TIMEOUT : 0;
    o.x[5] = 7;
    EXPECT_OK(cairn_state_load_latest(state, folder, NULL, &step));
    EXPECT(step == 2 && o.x[5] == 1);
    EXPECT_OK(cairn_barrier(group));
    disk.read_seconds = 0;
    cairn_state_destroy(&state);
    return NULL;
}

static atomic_int warnings;

static void count_warning(void *cookie, cairn_log_level level, const char *line) {
    (void)cookie;
    if (level == CAIRN_LOG_WARNING && strstr(line, "rank 0 still reads or writes")) atomic_fetch_add(&warnings, 1);
}

static void a_disk_slower_than_the_timeout_is_waited_for(void **unused) {
    (void)unused;
    struct cairn_env_options options = *cairn_env_options(.timeout = TIMEOUT);
    cairn_set_log(count_warning, NULL);
    run_ranks_with(2, &options, save_and_load_slowly, NULL);
    cairn_set_log(NULL, NULL);
    assert_true(warnings > 0);
}

/* Rank 1's gradient is pending. */
static char *load_between_backward_and_step(cairn_env *env, void *ctx) {
    struct object o;
    cairn_state *state;
    int64_t step = 5;
    (void)ctx;
    EXPECT_OK(make(env, &o, 1, &state));
    EXPECT_OK(cairn_state_save(state, folder, 1, NULL));
    o.is_pending = cairn_env_rank(env) == 1;
    disk.reads = 0;
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    EXPECT(cairn_state_load_latest(state, folder, NULL, &step) != CAIRN_OK);
    EXPECT_SAYS("a gradient is pending");
    EXPECT(step == 5);
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    cairn_state_destroy(&state);
    return NULL;
}

static void a_load_that_is_refused_does_not_read_the_files(void **unused) {
    (void)unused;
    run_ranks(2, load_between_backward_and_step, NULL);
    assert_in_range(disk.reads, 1, 2 * 6); /* of each rank the manifest, two lengths and headers */
}

/* ---- names that cannot be exchanged ---- */

static int64_t load_here(void) {
    struct object o;
    cairn_env *env;
    cairn_state *state;
    int64_t step = -1;
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    OK(make(env, &o, 0, &state));
    OK(cairn_state_load_latest(state, folder, NULL, &step));
    if (step > 0) assert_true(o.x[0] == (float)step);
    cairn_state_destroy(&state);
    cairn_env_destroy(&env);
    return step;
}

/* value of step, which is saved again. */
static int save_here(int64_t step) {
    struct object o;
    cairn_env *env;
    cairn_state *state;
    if (cairn_env_create(NULL, NULL, NULL, &env) != CAIRN_OK) return 2;
    if (make(env, &o, (float)step, &state) != CAIRN_OK) return 3;
    if (cairn_state_save(state, folder, step, NULL) != CAIRN_OK) return 4;
    cairn_state_destroy(&state);
    cairn_env_destroy(&env);
    return 0;
}

static void a_checkpoint_is_replaced_where_names_cannot_be_exchanged(void **unused) {
    (void)unused;
    disk.cannot_exchange = true;
    assert_int_equal(save_here(5), 0);
    assert_int_equal(save_here(5), 0);
    assert_int_equal(load_here(), 5);
    assert_int_equal(count_files(), 1);
    disk.cannot_exchange = false;
}

static void a_program_that_dies_between_the_two_names_leaves_the_old_checkpoint(void **unused) {
    (void)unused;
    int status;
    disk.cannot_exchange = true;
    assert_int_equal(save_here(5), 0);
    const pid_t child = fork();
    if (child == 0) {
        disk.dies_between = true;
        _exit(save_here(5));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 9);
    assert_int_equal(access(in_folder("step-00000005"), F_OK), -1);
    assert_int_equal(load_here(), 5);
    assert_int_equal(save_here(6), 0); /* which removes what is left */
    assert_int_equal(count_files(), 2);
    disk.cannot_exchange = false;
}

/* ---- folders ---- */

static char *load_from_different_folders(cairn_env *env, void *ctx) {
    struct object o;
    cairn_state *state;
    int64_t step = 5;
    const bool mounted = cairn_env_rank(env) != *(const int *)ctx;
    EXPECT_OK(make(env, &o, 1, &state));
    EXPECT(cairn_state_load_latest(state, mounted ? folder : in_folder("nothing"), NULL, &step) == CAIRN_EPEER);
    EXPECT_SAYS("do all ranks see one folder?");
    EXPECT(step == 5);
    cairn_state_destroy(&state);
    return NULL;
}

static void ranks_that_see_different_folders_do_not_begin_anew(void **unused) {
    (void)unused;
    assert_int_equal(save_here(1), 0);
    for (int without = 0; without < 2; without++) run_ranks(2, load_from_different_folders, &without);
}

static void a_folder_of_someone_elses_is_not_removed(void **unused) {
    (void)unused;
    struct object o;
    cairn_env *env;
    cairn_state *state;
    const struct cairn_state_save_options *how = cairn_state_save_options(.keep_last = 1);
    assert_int_equal(mkdir(in_folder("step-00000001"), 0777), 0);
    write_file(in_folder("step-00000001/notes"), "x", 1);
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    OK(make(env, &o, 2, &state));
    OK(cairn_state_save(state, folder, 2, how));
    OK(cairn_state_save(state, folder, 3, how));
    assert_int_equal(access(in_folder("step-00000001/notes"), F_OK), 0);
    assert_int_equal(access(in_folder("step-00000002"), F_OK), -1);
    REFUSED(cairn_state_save(state, folder, INT64_C(1000000000000000000), NULL), CAIRN_EINVAL, "18 digits");
    cairn_state_destroy(&state);
    cairn_env_destroy(&env);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        T(a_disk_slower_than_the_timeout_is_waited_for),
        T(a_load_that_is_refused_does_not_read_the_files),
        T(a_checkpoint_is_replaced_where_names_cannot_be_exchanged),
        T(a_program_that_dies_between_the_two_names_leaves_the_old_checkpoint),
        T(ranks_that_see_different_folders_do_not_begin_anew),
        T(a_folder_of_someone_elses_is_not_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
