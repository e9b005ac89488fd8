/* Programs that are killed while they save (a single process, one of several ranks, or all ranks), and disks that fail:
 * afterwards the old or the new checkpoint is there, complete. With an argument: how many kills; 40 without, or 6 with
 * CAIRN_TEST_SHORT in the environment. */
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../check.h"
#include "cairn/cairn.h"
#include "core/status.h"
#include "env/env_internal.h"
#include "folder.h"
#include "rendezvous/store/server.h"

enum { N = 1 << 18 /* 1 MiB, so that most of the time is in writing */, MAX_RANKS = 3 };

static int kills = 40;

static uint32_t value(int64_t step, size_t i) {
    return (uint32_t)(step * 2654435761u) ^ (uint32_t)i;
}

static void fill(uint32_t *x, int64_t step) {
    for (size_t i = 0; i < N; i++) x[i] = value(step, i);
}

static bool is_of(const uint32_t *x, int64_t step) {
    for (size_t i = 0; i < N; i++) {
        if (x[i] != value(step, i)) return false;
    }
    return true;
}

struct program {
    cairn_env *env;
    cairn_state *state;
    uint32_t *x;
    int64_t step;
};

static struct program begin_in(cairn_env *env) {
    struct program p = {.env = env, .x = malloc(N * sizeof(uint32_t))};
    MUST(cairn_state_create(p.env, &p.state) == CAIRN_OK);
    MUST(cairn_state_add_bytes(p.state, "x", p.x, N * sizeof(uint32_t)) == CAIRN_OK);
    MUST(cairn_state_load_latest(p.state, folder, NULL, &p.step) == CAIRN_OK);
    return p;
}

static struct program begin(void) {
    cairn_env *env = NULL;
    MUST(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK);
    return begin_in(env);
}

static void end(struct program *p) {
    cairn_state_destroy(&p->state);
    cairn_env_destroy(&p->env);
    free(p->x);
}

static void say(int said, int64_t step) {
    if (write(said, &step, sizeof(step)) != sizeof(step)) _exit(1);
}

/* Saves step after step, until that fails. Says to the parent the step that it goes on from, then each that is whole;
 * in the background a step is, once the next begins. */
static void save_until_killed(struct program *p, int said, bool background) {
    const struct cairn_state_save_options *how =
        cairn_state_save_options(.keep_last = 2, .background = background ? CAIRN_ON : CAIRN_OFF);
    say(said, p->step);
    for (;;) {
        fill(p->x, ++p->step);
        if (cairn_state_save(p->state, folder, p->step, how) != CAIRN_OK) return;
        if (background) fill(p->x, -1);
        say(said, p->step - background);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Up to so many seconds, from a seed. */
static void sleep_by_chance(uint32_t *seed, double most) {
    *seed = *seed * 1664525 + 1013904223;
    const double pause = most * *seed / 0x1p32;
    nanosleep(&(struct timespec){(time_t)pause, (long)(1e9 * (pause - (double)(time_t)pause))}, NULL);
}

/* Seconds of a save, which depend on the disk. */
static double time_a_save(void) {
    struct program p = begin();
    fill(p.x, ++p.step);
    const double since = now();
    OK(cairn_state_save(p.state, folder, p.step, NULL));
    const double seconds = now() - since;
    end(&p);
    return seconds;
}

/* The next step that the child says, false when it ended. */
static bool hear(int said, int64_t *step) {
    return read(said, step, sizeof(*step)) == sizeof(*step);
}

/* Waits until the child has started, and for every other one until a save of its own is whole: how long either takes
 * depends on the machine, and the moments that matter come after. */
static int64_t wait_for_saves(int said, int kill, bool background) {
    int64_t step = -1;
    const int words = 1 + (kill % 2) * (1 + background);
    for (int i = 0; i < words; i++) MUST(hear(said, &step));
    return step;
}

static void kill_while_saving(bool background) {
    const double most = 4 * time_a_save() + 0.005;
    uint32_t seed = 20241124;
    int64_t last = 1;
    for (int i = 0; i < kills; i++) {
        int pipe_of[2], status;
        assert_int_equal(pipe(pipe_of), 0);
        const pid_t child = fork();
        if (child == 0) {
            struct program p = begin();
            save_until_killed(&p, pipe_of[1], background);
            _exit(1);
        }
        close(pipe_of[1]);
        int64_t whole = wait_for_saves(pipe_of[0], i, background);
        sleep_by_chance(&seed, most);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        while (hear(pipe_of[0], &whole)) continue;
        close(pipe_of[0]);
        struct program p = begin();
        if (p.step < whole) fail_msg("kill %d: step %d was whole, and %d is found", i, (int)whole, (int)p.step);
        if (p.step > 0) assert_true(is_of(p.x, p.step));
        last = p.step;
        end(&p);
    }
    print_message("%d kills, the last is step %d\n", kills, (int)last);
    assert_true(last >= kills / 2);
}

static void a_program_killed_while_it_saves_leaves_the_old_or_the_new_checkpoint(void **unused) {
    (void)unused;
    kill_while_saving(false);
}

static void a_program_killed_while_it_saves_in_the_background_does_too(void **unused) {
    (void)unused;
    kill_while_saving(true);
}

/* ---- several ranks ---- */

enum { PEER_DIED = 3 };

struct ranks {
    int p, port; /* port: of the store */
    pid_t pids[MAX_RANKS];
    int said[MAX_RANKS];
};

/* In a process of its own, so that those which fork ranks have one thread. */
static pid_t serve_store(int *port) {
    int pipe_of[2];
    struct cairn__store_server *server = NULL;
    MUST(pipe(pipe_of) == 0);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* when the test fails */
        MUST(cairn__store_serve(0, &server, port) == CAIRN_OK);
        MUST(write(pipe_of[1], port, sizeof(*port)) == sizeof(*port));
        for (;;) pause();
    }
    MUST(read(pipe_of[0], port, sizeof(*port)) == sizeof(*port));
    close(pipe_of[0]);
    close(pipe_of[1]);
    return child;
}

/* What it finds is whole on this rank, too. Ends with PEER_DIED when a save says that another rank died. */
static void be_rank(const struct ranks *ranks, int r, int generation, int said, bool background) {
    struct cairn__launch launch = {.rank = r,
                                   .size = ranks->p,
                                   .local_rank = r,
                                   .local_size = ranks->p,
                                   .launcher = "torch",
                                   .meeting = {.hosts = {"127.0.0.1"},
                                               .num_hosts = 1,
                                               .ports = {ranks->port},
                                               .num_ports = 1,
                                               .agent_store = true}};
    struct cairn_env_options options = *cairn_env_options(.timeout = 30);
    cairn_env *env = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(launch.key_prefix, sizeof(launch.key_prefix), "generation%d", generation);
    MUST(cairn__env_create_at(&launch, &options, &env) == CAIRN_OK);
    cairn_set_log(NULL, NULL);
    struct program p = begin_in(env);
    MUST(p.step == 0 || is_of(p.x, p.step));
    save_until_killed(&p, said, background);
    MUST(cairn__last_status() == CAIRN_EPEER);
    _exit(PEER_DIED);
}

static void begin_ranks(struct ranks *ranks, int generation, bool background) {
    for (int r = 0; r < ranks->p; r++) {
        int pipe_of[2];
        assert_int_equal(pipe(pipe_of), 0);
        ranks->pids[r] = fork();
        if (ranks->pids[r] == 0) be_rank(ranks, r, generation, pipe_of[1], background);
        close(pipe_of[1]);
        ranks->said[r] = pipe_of[0];
    }
}

/* Returns the last step that a rank called whole. */
static int64_t end_ranks(struct ranks *ranks, int victims) {
    int64_t last = 0;
    for (int r = 0; r < ranks->p; r++) {
        if (victims >> r & 1) kill(ranks->pids[r], SIGKILL);
    }
    for (int r = 0; r < ranks->p; r++) {
        int status;
        int64_t step = 0;
        while (hear(ranks->said[r], &step)) last = step > last ? step : last;
        close(ranks->said[r]);
        assert_int_equal(waitpid(ranks->pids[r], &status, 0), ranks->pids[r]);
        const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        const bool has_noticed = WIFEXITED(status) && WEXITSTATUS(status) == PEER_DIED;
        if (victims >> r & 1) assert_true(was_killed || (has_noticed && r > 0)); /* before its turn came */
        else assert_true(has_noticed);
    }
    return last;
}

/* All ranks go on from one step, and from none before the last that was whole. */
static int64_t find_same_step(const struct ranks *ranks, int64_t whole) {
    int64_t first = -1, step = -1;
    for (int r = 0; r < ranks->p; r++) {
        assert_true(hear(ranks->said[r], &step));
        if (r == 0) first = step;
        assert_int_equal(step, first);
    }
    if (first < whole) fail_msg("step %d was whole, and %d is found", (int)whole, (int)first);
    return first;
}

/* Every third time all of them die, else one. */
static void kill_ranks_while_saving(int p, bool background) {
    struct ranks ranks = {.p = p};
    uint32_t seed = 20241125;
    int64_t whole = 0;
    const double most = 4 * time_a_save() + 0.005;
    const pid_t store = serve_store(&ranks.port);
    for (int i = 0; i < kills; i++) {
        const int all = (1 << p) - 1;
        begin_ranks(&ranks, i, background);
        const int64_t found = find_same_step(&ranks, whole);
        int64_t step = found;
        for (int n = (i % 2) * (1 + background); n > 0; n--) MUST(hear(ranks.said[0], &step));
        sleep_by_chance(&seed, most);
        whole = end_ranks(&ranks, i % 3 == 0 ? all : 1 << i % p);
        if (whole < step) whole = step;
        if (whole < found) whole = found;
    }
    kill(store, SIGKILL);
    assert_int_equal(waitpid(store, NULL, 0), store);
    print_message("%d kills among %d ranks, the last whole step is %d\n", kills, p, (int)whole);
    assert_true(whole >= kills / 2);
}

static void ranks_that_die_while_they_save_leave_all_the_same_checkpoint(void **unused) {
    (void)unused;
    kill_ranks_while_saving(2, false);
    kill_ranks_while_saving(3, false);
}

static void ranks_that_die_while_they_save_in_the_background_do_too(void **unused) {
    (void)unused;
    kill_ranks_while_saving(2, true);
    kill_ranks_while_saving(3, true);
}

/* ---- disks ---- */

static void write_proc(const char *path, const char *text) {
    const int fd = open(path, O_WRONLY);
    if (fd >= 0 && write(fd, text, strlen(text)) < 0) perror(path);
    if (fd >= 0) close(fd);
}

/* A name space of this process's own, which root makes, or any user as root of one. */
static bool leave_the_mounts(void) {
    char map[64];
    snprintf(map, sizeof(map), "0 %d 1", (int)getuid());
    if (unshare(CLONE_NEWNS) == 0) return true;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    write_proc("/proc/self/uid_map", map);
    return true;
}

/* A file system of 3 MiB over the folder. */
static bool mount_small_disk(void) {
    if (!leave_the_mounts()) return false;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return false;
    return mount("tmpfs", folder, "tmpfs", 0, "size=3m") == 0;
}

/* In a child, since the mount ends with it. 77: cannot mount here. */
static int on_a_small_disk(void (*fn)(void)) {
    const pid_t child = fork();
    int status = 0;
    if (child == 0) {
        if (!mount_small_disk()) _exit(77);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define SURE(condition)                                                                              \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, cairn_last_error()); \
            _exit(1);                                                                                \
        }                                                                                            \
    } while (0)

static void fill_the_disk(void) {
    for (int background = 0; background < 2; background++) {
        struct program p = begin();
        const int64_t first = p.step;
        cairn_status st = CAIRN_OK;
        for (int i = 1; st == CAIRN_OK && i < 9; i++) {
            fill(p.x, first + i);
            st = cairn_state_save(p.state, folder, first + i,
                                  cairn_state_save_options(.background = background ? CAIRN_ON : CAIRN_OFF));
            if (st == CAIRN_OK) st = cairn_state_wait(p.state);
        }
        SURE(st == CAIRN_ESYSTEM && strstr(cairn_last_error(), folder) && strstr(cairn_last_error(), "No space left"));
        end(&p);
        struct program again = begin();
        SURE(again.step == 2 && is_of(again.x, 2)); /* two of them fit */
        fill(again.x, 2);
        end(&again);
    }
}

static void a_full_disk_is_an_error_and_what_was_whole_stays(void **unused) {
    (void)unused;
    const int status = on_a_small_disk(fill_the_disk);
    if (status == 77) {
        print_message("a file system cannot be mounted here\n");
        skip();
    }
    assert_int_equal(status, 0);
}

static void save_read_only(void) {
    struct program p = begin();
    fill(p.x, 1);
    SURE(cairn_state_save(p.state, folder, 1, NULL) == CAIRN_OK);
    SURE(mount("none", folder, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    SURE(cairn_state_save(p.state, folder, 2, NULL) == CAIRN_ESYSTEM && strstr(cairn_last_error(), "Read-only"));
    int64_t step = 0;
    SURE(cairn_state_load_latest(p.state, folder, NULL, &step) == CAIRN_OK && step == 1);
    end(&p);
}

static void a_read_only_folder_is_an_error_and_can_be_loaded_from(void **unused) {
    (void)unused;
    const int status = on_a_small_disk(save_read_only);
    if (status == 77) {
        print_message("a file system cannot be mounted here\n");
        skip();
    }
    assert_int_equal(status, 0);
}

static void a_folder_that_vanishes_is_made_anew_and_a_file_in_its_place_refused(void **unused) {
    (void)unused;
    struct program p = begin();
    fill(p.x, 1);
    OK(cairn_state_save(p.state, folder, 1, NULL));
    assert_int_equal(remove_folder(NULL), 0);
    OK(cairn_state_save(p.state, folder, 2, NULL)); /* its own folder is made, as the first time */
    char below[128];
    snprintf(below, sizeof(below), "%s/gone//b/a/", folder);
    OK(cairn_state_save(p.state, below, 3, NULL)); /* and the folders it is in */
    int64_t step = 0;
    OK(cairn_state_load_latest(p.state, below, NULL, &step));
    assert_int_equal(step, 3);
    write_file(in_folder("file"), "x", 1);
    snprintf(below, sizeof(below), "%s/file/a", folder);
    REFUSED(cairn_state_save(p.state, below, 3, NULL), CAIRN_ESYSTEM, below);
    OK(cairn_state_load_latest(p.state, folder, NULL, &step));
    assert_int_equal(step, 2);
    end(&p);
}

int main(int argc, char **argv) {
#define T(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        T(a_program_killed_while_it_saves_leaves_the_old_or_the_new_checkpoint),
        T(a_program_killed_while_it_saves_in_the_background_does_too),
        T(ranks_that_die_while_they_save_leave_all_the_same_checkpoint),
        T(ranks_that_die_while_they_save_in_the_background_do_too),
        T(a_full_disk_is_an_error_and_what_was_whole_stays),
        T(a_read_only_folder_is_an_error_and_can_be_loaded_from),
        T(a_folder_that_vanishes_is_made_anew_and_a_file_in_its_place_refused),
    };
    if (check_is_short()) kills = 6; /* each way to wait with each kind of victim */
    if (argc > 1) kills = atoi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
