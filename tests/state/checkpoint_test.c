/* Checkpoints of an object with entries of every kind of owner, saved and loaded on different numbers of ranks; damaged
 * folders; and checkpoints that do not match the program. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../ranks.h"
#include "core/status.h"
#include "folder.h"
#include "param/stateful.h"
#include "state/state_internal.h"

enum { SHARED = 1000, OWN = 7, ROWS = 11, WIDTH = 3, MAX_RANKS = 4 };

static bool exists(const char *name) {
    struct stat s;
    return lstat(in_folder(name), &s) == 0;
}

/* ---- an object with every kind of entry ---- */

struct object {
    cairn_env *env;
    float shared[SHARED];
    double own[OWN];
    uint8_t first[4];
    float rows[ROWS][WIDTH]; /* [first_row, first_row + num_rows) of ROWS */
    int64_t first_row, num_rows;
    int64_t count;
    double rate;
    bool has_own; /* else there is no entry of a rank alone */
    bool refuses;
};

static struct cairn_env *env_of(const void *object) {
    return ((const struct object *)object)->env;
}

static cairn_status list(void *object, struct cairn__entries *e) {
    struct object *o = object;
    cairn_status st = CAIRN_OK;
    if (o->refuses) return cairn__fail(CAIRN_ESTATE, "a gradient is pending; step first");
    TRY(cairn__entries_add_array(e, CAIRN__ENTRY_SHARED, CAIRN_F32, 2, (int64_t[]){SHARED / 10, 10}, o->shared,
                                 "layer.%d.weight", 0));
    if (o->has_own) TRY(cairn__entries_add_array(e, CAIRN__ENTRY_RANK, CAIRN_F64, 1, (int64_t[]){OWN}, o->own, "own"));
    TRY(cairn__entries_add_host_array(e, CAIRN__ENTRY_RANK_OR_FIRST, CAIRN_U8, 1, (int64_t[]){4}, o->first, "first"));
    TRY(cairn__entries_add_array(e, CAIRN__ENTRY_SLICE, CAIRN_F32, 2, (int64_t[]){o->num_rows, WIDTH}, o->rows,
                                 "rows"));
    e->at[e->count - 1].first = o->first_row;
    e->at[e->count - 1].whole_rows = ROWS;
    TRY(cairn__entries_add_i64(e, CAIRN__ENTRY_SHARED, o->count, "count"));
    TRY(cairn__entries_add_f64(e, CAIRN__ENTRY_SHARED, o->rate, "group.0.rate"));
out:
    return st;
}

static cairn_status loaded(void *object, const struct cairn__entries *e) {
    struct object *o = object;
    o->count = cairn__entries_i64(e, "count");
    o->rate = cairn__entries_f64(e, "group.%d.rate", 0);
    return CAIRN_OK;
}

static const struct cairn__stateful_ops ops = {.kind = "test object", .env = env_of, .list = list, .loaded = loaded};

/* What an object holds after `step` steps on rank of p. */
static void fill(struct object *o, cairn_env *env, int64_t step, bool has_own) {
    const int rank = cairn_env_rank(env), p = cairn_env_size(env);
    memset(o, 0, sizeof(*o));
    o->env = env;
    o->has_own = has_own;
    for (int i = 0; i < SHARED; i++) o->shared[i] = (float)(step * SHARED + i);
    for (int i = 0; i < OWN; i++) o->own[i] = (double)step + 0.1 * rank + i;
    for (int i = 0; i < 4; i++) o->first[i] = (uint8_t)(step + 10 * rank + i);
    o->first_row = (int64_t)ROWS * rank / p;
    o->num_rows = (int64_t)ROWS * (rank + 1) / p - o->first_row;
    for (int64_t r = 0; r < o->num_rows; r++)
        for (int c = 0; c < WIDTH; c++) o->rows[r][c] = (float)((o->first_row + r) * 100 + c + step);
    o->count = step * 1000000007;
    o->rate = 1.0 / (double)(step + 3);
}

/* NULL, or what differs from a fresh object of that step. saved_on: ranks. */
static const char *differs(const struct object *o, int64_t step, int saved_on) {
    struct object want;
    fill(&want, o->env, step, o->has_own);
    if (saved_on != cairn_env_size(o->env))
        for (int i = 0; i < 4; i++) want.first[i] = (uint8_t)(step + i);
    if (memcmp(o->shared, want.shared, sizeof(want.shared)) != 0) return "the shared array";
    if (o->has_own && memcmp(o->own, want.own, sizeof(want.own)) != 0) return "the rank's own array";
    if (memcmp(o->first, want.first, sizeof(want.first)) != 0) return "the rank's or the first rank's array";
    if (memcmp(o->rows, want.rows, (size_t)o->num_rows * sizeof(o->rows[0])) != 0) return "the slice";
    if (o->count != want.count || o->rate != want.rate) return "the numbers";
    return NULL;
}

static cairn_status make_state(cairn_env *env, struct object *o, cairn_state **state) {
    const cairn_status st = cairn_state_create(env, state);
    return st == CAIRN_OK ? cairn_state_add(*state, "object", (cairn_stateful){&ops, o}) : st;
}

struct run {
    int64_t step;
    int saved_on;
    bool has_own, background, refused;
    const char *words; /* of the refusal */
};

static char *save_on_ranks(cairn_env *env, void *ctx) {
    const struct run *run = ctx;
    struct object o;
    cairn_state *state;
    fill(&o, env, run->step, run->has_own);
    EXPECT_OK(make_state(env, &o, &state));
    const struct cairn_state_save_options *how =
        cairn_state_save_options(.background = run->background ? CAIRN_ON : CAIRN_OFF);
    EXPECT_OK(cairn_state_save(state, folder, run->step, how));
    if (run->background) {
        fill(&o, env, run->step + 50, run->has_own); /* the copy is what is saved */
        EXPECT_OK(cairn_state_wait(state));
    }
    cairn_state_destroy(&state);
    return NULL;
}

static char *load_on_ranks(cairn_env *env, void *ctx) {
    const struct run *run = ctx;
    struct object o;
    cairn_state *state;
    int64_t step = -1;
    fill(&o, env, 999, run->has_own);
    EXPECT_OK(make_state(env, &o, &state));
    const cairn_status st = cairn_state_load_latest(state, folder, NULL, &step);
    if (run->refused) {
        EXPECT(st == CAIRN_EINVAL || st == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), run->words));
        EXPECT(!differs(&o, 999, cairn_env_size(env))); /* nothing has changed */
    } else {
        EXPECT_OK(st);
        EXPECT(step == run->step);
        const char *what = differs(&o, step, run->saved_on);
        if (what) return check_failure(__FILE__, __LINE__, what);
    }
    cairn_state_destroy(&state);
    return NULL;
}

/* ---- ranks ---- */

static void every_entry_comes_back_on_as_many_ranks(void **unused) {
    (void)unused;
    for (int p = 1; p <= MAX_RANKS; p++) {
        for (int background = 0; background < 2; background++) {
            struct run run = {.step = 10 * p + background, .saved_on = p, .has_own = true, .background = background};
            run_ranks(p, save_on_ranks, &run);
            run_ranks(p, load_on_ranks, &run);
        }
    }
}

static void what_no_rank_has_alone_loads_on_any_number_of_ranks(void **unused) {
    (void)unused;
    for (int p = 1; p <= MAX_RANKS; p++) {
        struct run run = {.step = p, .saved_on = p};
        run_ranks(p, save_on_ranks, &run);
        for (int q = 1; q <= MAX_RANKS; q++) run_ranks(q, load_on_ranks, &run);
    }
}

static void what_a_rank_has_alone_is_refused_on_another_number_of_ranks(void **unused) {
    (void)unused;
    struct run run = {.step = 4, .saved_on = 2, .has_own = true, .refused = true, .words = "was saved on 2 ranks"};
    run_ranks(2, save_on_ranks, &run);
    run_ranks(1, load_on_ranks, &run);
    run_ranks(3, load_on_ranks, &run);
}

static char *save_differently(cairn_env *env, void *ctx) {
    struct object o;
    cairn_state *state;
    int64_t number = 3;
    const char *words = ctx;
    const int rank = cairn_env_rank(env);
    fill(&o, env, 1, false);
    EXPECT_OK(make_state(env, &o, &state));
    if (rank == 1 && strstr(words, "share")) EXPECT_OK(cairn_state_add_i64(state, "mine alone", &number));
    o.refuses = rank == 1 && strstr(words, "pending");
    const int64_t step = rank == 1 && strstr(words, "step 8") ? 8 : 7;
    EXPECT(cairn_state_save(state, folder, step, NULL) != CAIRN_OK);
    EXPECT(strstr(cairn_last_error(), words));
    EXPECT(!exists("step-00000007") && !exists("step-00000008"));
    cairn_state_destroy(&state);
    return NULL;
}

static void ranks_that_save_different_things_all_fail(void **unused) {
    (void)unused;
    run_ranks(2, save_differently, "what ranks share is not the same");
    run_ranks(3, save_differently, "saves step 8");
    run_ranks(3, save_differently, "a gradient is pending");
}

/* Rank 1 alone; the message stands on all ranks. */
static char *give_wrong_arguments(cairn_env *env, void *ctx) {
    struct object o;
    cairn_state *state;
    int64_t step = 5;
    int due = 0;
    const bool wrong = cairn_env_rank(env) == 1;
    (void)ctx;
    fill(&o, env, 1, false);
    EXPECT_OK(make_state(env, &o, &state));
    EXPECT(cairn_state_save(state, wrong ? NULL : folder, 7, NULL) != CAIRN_OK);
    EXPECT_SAYS("dir is empty");
    EXPECT(cairn_state_save(state, folder, 7, cairn_state_save_options(.keep_last = wrong ? -1 : 1)) != CAIRN_OK);
    EXPECT_SAYS("must not be negative");
    EXPECT(cairn_state_load(state, wrong ? "" : in_folder("step-00000001"), NULL, &step) != CAIRN_OK);
    EXPECT_SAYS(wrong ? "path is NULL or empty" : "there is no checkpoint.json");
    EXPECT(cairn_state_load_latest(state, wrong ? NULL : folder, NULL, &step) != CAIRN_OK);
    EXPECT_SAYS("dir is NULL");
    EXPECT_OK(cairn_state_watch_signals(state));
    EXPECT(cairn_state_due(state, 1, wrong ? -1 : 1, &due) == CAIRN_EINVAL);
    EXPECT_SAYS("every is negative on rank 1");
    EXPECT_OK(cairn_state_save(state, folder, 7, NULL)); /* and all go on */
    EXPECT_OK(cairn_state_load_latest(state, folder, NULL, &step));
    EXPECT(step == 7);
    cairn_state_destroy(&state);
    return NULL;
}

static void wrong_arguments_on_one_rank_are_an_error_on_all(void **unused) {
    (void)unused;
    run_ranks(3, give_wrong_arguments, NULL);
}

/* ---- signals ---- */

static char *wait_for_signals(cairn_env *env, void *ctx) {
    cairn_state *state;
    const bool first = cairn_env_rank(env) == 0;
    int due = -1, *stopped = ctx;
    EXPECT_OK(cairn_state_create(env, &state));
    EXPECT_OK(cairn_state_due(state, 10, 5, &due));
    EXPECT(due == CAIRN_STATE_SAVE);
    EXPECT_OK(cairn_state_watch_signals(state));
    EXPECT_OK(cairn_state_due(state, 11, 5, &due));
    EXPECT(due == 0);
    if (first) raise(SIGUSR1);
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    EXPECT_OK(cairn_state_due(state, 12, 0, &due));
    EXPECT(due == CAIRN_STATE_SAVE);
    EXPECT_OK(cairn_state_due(state, 13, 0, &due));
    EXPECT(due == 0); /* once */
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    if (first && !*stopped) raise(SIGTERM);
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    EXPECT_OK(cairn_state_due(state, 14, 0, &due));
    EXPECT(due == (CAIRN_STATE_SAVE | CAIRN_STATE_STOP));
    EXPECT_OK(cairn_state_due(state, 15, 0, &due));
    EXPECT(due == CAIRN_STATE_STOP); /* asked for one checkpoint */
    EXPECT(cairn_state_due(state, first ? 16 : 17, 0, &due) == CAIRN_EPEER);
    EXPECT_SAYS("step 17 and every 0 on rank 1, 16 and 0 on rank 0; they must be equal");
    EXPECT(cairn_state_due(state, 18, first ? 6 : 5, &due) == CAIRN_EPEER);
    cairn_state_destroy(&state);
    return NULL;
}

static void a_signal_asks_for_a_checkpoint_on_all_ranks_at_one_step(void **unused) {
    (void)unused;
    int stopped = 0;
    run_ranks(3, wait_for_signals, &stopped);
}

/* In a child; its exit status says what was not so. */
static int stop_twice(bool at_once) {
    const struct timespec pause = {1, 100000000};
    cairn_env *env;
    cairn_state *state;
    int due = 0;
    if (cairn_env_create(NULL, NULL, NULL, &env) != CAIRN_OK || cairn_state_create(env, &state) != CAIRN_OK) return 2;
    if (cairn_state_watch_signals(state) != CAIRN_OK) return 3;
    raise(SIGTERM);
    if (!at_once) nanosleep(&pause, NULL);
    raise(SIGTERM);
    return cairn_state_due(state, 1, 0, &due) == CAIRN_OK && due == (CAIRN_STATE_SAVE | CAIRN_STATE_STOP) ? 0 : 4;
}

static int status_of_child(bool at_once) {
    const pid_t child = fork();
    int status;
    assert_true(child >= 0);
    if (child == 0) _exit(stop_twice(at_once));
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void a_second_request_to_stop_within_a_second_is_the_same_and_a_later_one_ends_the_program(void **unused) {
    (void)unused;
    assert_int_equal(status_of_child(true), 0);
    const int status = status_of_child(false);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

static void signals_that_the_program_handles_are_left_to_it(void **unused) {
    (void)unused;
    cairn_env *env;
    cairn_state *state;
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct sigaction before;
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    OK(cairn_state_create(env, &state));
    static const int signals[] = {SIGTERM, SIGUSR1};
    for (int i = 0; i < 2; i++) {
        struct sigaction unchanged, other;
        sigaction(signals[!i], NULL, &unchanged);
        sigaction(signals[i], &ignore, &before);
        REFUSED(cairn_state_watch_signals(state), CAIRN_ESTATE, i ? "SIGUSR1" : "SIGTERM");
        assert_int_equal(sigaction(signals[!i], NULL, &other), 0);
        assert_true(other.sa_handler == unchanged.sa_handler); /* and the other one is not swallowed */
        sigaction(signals[i], &before, NULL);
    }
    cairn_state_destroy(&state);
    cairn_env_destroy(&env);
}

/* ---- one rank ---- */

struct one {
    cairn_env *env;
    struct object o;
    cairn_state *state;
};

static struct one begin_one(int64_t step) {
    struct one one = {.env = NULL};
    OK(cairn_env_create(NULL, NULL, NULL, &one.env));
    fill(&one.o, one.env, step, true);
    return one;
}

static void end_one(struct one *one) {
    cairn_state_destroy(&one->state);
    cairn_env_destroy(&one->env);
    assert_null(one->env);
}

static void save_steps(const int64_t *steps, int count, const struct cairn_state_save_options *how) {
    struct one one = begin_one(0);
    OK(make_state(one.env, &one.o, &one.state));
    for (int i = 0; i < count; i++) {
        fill(&one.o, one.env, steps[i], true);
        OK(cairn_state_save(one.state, folder, steps[i], how));
    }
    end_one(&one);
}

/* The step that is found, whose values are checked. */
static int64_t load_latest(void) {
    struct one one = begin_one(999);
    int64_t step = -1;
    OK(make_state(one.env, &one.o, &one.state));
    OK(cairn_state_load_latest(one.state, folder, NULL, &step));
    if (step > 0) assert_null(differs(&one.o, step, 1));
    if (step == 0) assert_null(differs(&one.o, 999, 1));
    end_one(&one);
    return step;
}

static void a_folder_without_checkpoints_loads_step_0_and_changes_nothing(void **unused) {
    (void)unused;
    assert_int_equal(load_latest(), 0);
    strcat(folder, "x");
    assert_int_equal(load_latest(), 0);
    folder[strlen(folder) - 1] = 0;
}

static void a_step_that_is_saved_again_is_replaced(void **unused) {
    (void)unused;
    save_steps((int64_t[]){5, 6}, 2, NULL);
    struct one one = begin_one(8);
    OK(make_state(one.env, &one.o, &one.state));
    OK(cairn_state_save(one.state, folder, 6, NULL));
    fill(&one.o, one.env, 999, true);
    int64_t step = 0;
    char path[256];
    snprintf(path, sizeof(path), "%s/step-00000006", folder);
    OK(cairn_state_load(one.state, path, NULL, &step));
    assert_int_equal(step, 6);
    assert_null(differs(&one.o, 8, 1));
    end_one(&one);
}

static void old_checkpoints_go_but_the_last_and_every_nth(void **unused) {
    (void)unused;
    save_steps((int64_t[]){10, 20, 25, 30, 40, 45, 50}, 7, cairn_state_save_options(.keep_last = 2, .keep_every = 20));
    assert_false(exists("step-00000010") || exists("step-00000025") || exists("step-00000030"));
    assert_true(exists("step-00000020") && exists("step-00000040") && exists("step-00000045") &&
                exists("step-00000050"));
    assert_int_equal(load_latest(), 50);
}

static void what_a_killed_save_left_is_passed_over_and_removed(void **unused) {
    (void)unused;
    char path[256];
    save_steps((int64_t[]){5}, 1, NULL);
    static const char *const folders[] = {".step-00000009.7f.partial", ".step-00000004.gone", ".step-notes"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mkdir(in_folder(folders[i]), 0777), 0);
        snprintf(path, sizeof(path), "%s/%s/shared.safetensors", folder, folders[i]);
        write_file(path, "x", 1);
    }
    assert_int_equal(load_latest(), 5);
    save_steps((int64_t[]){6}, 1, NULL);
    assert_false(exists(folders[0]) || exists(folders[1]));
    assert_true(exists(".step-notes/shared.safetensors")); /* not ours */
    assert_int_equal(load_latest(), 6);
}

static void a_link_to_an_archive_goes_and_the_archive_stays(void **unused) {
    (void)unused;
    assert_int_equal(mkdir(in_folder("archive"), 0777), 0);
    write_file(in_folder("archive/shared.safetensors"), "x", 1);
    assert_int_equal(symlink(in_folder("archive"), in_folder("step-00000001")), 0);
    save_steps((int64_t[]){2, 3}, 2, cairn_state_save_options(.keep_last = 1));
    assert_false(exists("step-00000001") || exists("step-00000002"));
    assert_true(exists("archive/shared.safetensors"));
}

/* ---- broken checkpoints ---- */

static char warned[4096];

static void keep_warning(void *ctx, cairn_log_level level, const char *line) {
    (void)ctx;
    if (level == CAIRN_LOG_WARNING) snprintf(warned, sizeof(warned), "%s", line);
}

static void edit(const char *file, void (*change)(const char *path)) {
    char path[256];
    snprintf(path, sizeof(path), "%s/step-00000006/%s", folder, file);
    change(path);
}

static void cut(const char *path) {
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(truncate(path, s.st_size / 2), 0);
}

static void flip_last(const char *path) {
    const int fd = open(path, O_RDWR);
    unsigned char c;
    const off_t at = lseek(fd, 0, SEEK_END) - 1;
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 0x10;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

/* In the header, which stays one. */
static void rename_an_entry(const char *path) {
    char text[8192];
    const int fd = open(path, O_RDWR);
    const ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    assert_true(n > 8);
    for (ssize_t i = 0; i < n; i++) text[i] = text[i] ? text[i] : ' ';
    text[n] = 0;
    const char *at = strstr(text, "object/count");
    assert_non_null(at);
    assert_int_equal(pwrite(fd, "d", 1, at - text + 11), 1);
    close(fd);
}

static void append(const char *path) {
    const int fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
}

static void delete (const char *path) {
    assert_int_equal(unlink(path), 0);
}

static void make_link(const char *path) {
    char elsewhere[300];
    snprintf(elsewhere, sizeof(elsewhere), "%s.moved", path);
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
}

static void empty(const char *path) {
    assert_int_equal(truncate(path, 0), 0);
}

static void a_broken_checkpoint_is_passed_over_with_a_warning(void **unused) {
    static const struct {
        const char *file;
        void (*change)(const char *path);
        const char *words;
    } cases[] = {
        {"checkpoint.json", delete, "there is no checkpoint.json"},
        {"checkpoint.json", cut, "checkpoint.json"},
        {"checkpoint.json", empty, "checkpoint.json"},
        {"checkpoint.json", make_link, "link"},
        {"shared.safetensors", delete, "is missing"},
        {"shared.safetensors", cut, "the manifest says"},
        {"shared.safetensors", append, "the manifest says"},
        {"shared.safetensors", flip_last, "checksum"},
        {"shared.safetensors", rename_an_entry, "checksum"},
        {"shared.safetensors", make_link, "link"},
        {"rank-00000.safetensors", flip_last, "checksum"},
        {"rank-00000.safetensors", empty, "the manifest says"},
    };
    (void)unused;
    cairn_set_log(keep_warning, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        save_steps((int64_t[]){5, 6}, 2, NULL);
        edit(cases[i].file, cases[i].change);
        warned[0] = 0;
        assert_int_equal(load_latest(), 5);
        if (!strstr(warned, cases[i].words)) fail_msg("case %zu: '%s' is not in '%s'", i, cases[i].words, warned);
    }
    cairn_set_log(NULL, NULL);
}

static void remove_file(const char *path) {
    assert_int_equal(unlink(path), 0);
}

/* Each in a way that ends its load at another place. */
static void checkpoints_that_are_broken_in_two_ways_are_passed_over(void **unused) {
    (void)unused;
    cairn_set_log(keep_warning, NULL);
    save_steps((int64_t[]){4, 5, 6}, 3, NULL);
    edit("shared.safetensors", flip_last);
    remove_file(in_folder("step-00000005/shared.safetensors"));
    assert_int_equal(load_latest(), 4);
    remove_file(in_folder("step-00000004/checkpoint.json"));
    struct one one = begin_one(9);
    int64_t step = 0;
    OK(make_state(one.env, &one.o, &one.state));
    REFUSED(cairn_state_load_latest(one.state, folder, NULL, &step), CAIRN_EINVAL,
            "none of its 3 checkpoints is whole");
    end_one(&one);
    cairn_set_log(NULL, NULL);
}

/* A lenient load, which may find an older checkpoint without the object that a newer one has. */
static void what_is_absent_from_an_older_checkpoint_has_nothing_of_a_broken_newer_one(void **unused) {
    (void)unused;
    struct one one = begin_one(5);
    struct object other;
    int64_t step = 0;
    cairn_set_log(keep_warning, NULL);
    fill(&other, one.env, 3, true);
    OK(make_state(one.env, &one.o, &one.state));
    OK(cairn_state_save(one.state, folder, 5, NULL));
    OK(cairn_state_add(one.state, "other", (cairn_stateful){&ops, &other}));
    fill(&one.o, one.env, 6, true);
    OK(cairn_state_save(one.state, folder, 6, NULL));
    edit("shared.safetensors", flip_last);
    fill(&other, one.env, 8, true);
    OK(cairn_state_load_latest(one.state, folder, cairn_state_load_options(.strict = CAIRN_OFF), &step));
    assert_int_equal(step, 5);
    assert_null(differs(&one.o, 5, 1));
    assert_null(differs(&other, 8, 1));
    end_one(&one);
    cairn_set_log(NULL, NULL);
}

static void a_folder_whose_checkpoints_are_all_broken_is_an_error(void **unused) {
    (void)unused;
    save_steps((int64_t[]){6}, 1, NULL);
    edit("shared.safetensors", flip_last);
    struct one one = begin_one(1);
    int64_t step = 7;
    OK(make_state(one.env, &one.o, &one.state));
    REFUSED(cairn_state_load_latest(one.state, folder, NULL, &step), CAIRN_EINVAL,
            "none of its 1 checkpoints is whole");
    SAYS("leaves the state undefined");
    end_one(&one);
}

static void a_later_version_of_the_format_is_refused_by_its_number(void **unused) {
    (void)unused;
    char path[256], text[4096] = "";
    save_steps((int64_t[]){5, 6}, 2, NULL);
    snprintf(path, sizeof(path), "%s/step-00000006/checkpoint.json", folder);
    FILE *f = fopen(path, "r+");
    assert_true(fread(text, 1, sizeof(text) - 1, f) > 0);
    char *at = strstr(text, "\"version\": 1");
    assert_non_null(at);
    at[11] = '2';
    rewind(f);
    fputs(text, f);
    fclose(f);
    struct one one = begin_one(1);
    int64_t step = 7;
    OK(make_state(one.env, &one.o, &one.state));
    REFUSED(cairn_state_load_latest(one.state, folder, NULL, &step), CAIRN_ENOTSUP, "version 2 of the format");
    end_one(&one);
}

/* ---- manifests of strangers ---- */

#define MANIFEST(version, ranks) \
    "{\"format\": \"cairn checkpoint\", \"version\": " version ", \"step\": 7, \"ranks\": " ranks ", \"files\": ["

static void expect_manifest(const char *text, cairn_status status, const char *words) {
    struct cairn__manifest m;
    REFUSED(cairn__manifest_read(text, strlen(text), "the path", &m), status, words);
    assert_null(m.files);
}

static void manifests_of_more_files_than_ranks_write_are_refused(void **unused) {
    (void)unused;
    enum { MANY = 80000 };
    static const char one[] = "{\"name\": \"%d\", \"nbytes\": 1, \"xxh3\": \"0123456789abcdef\"}%s";
    struct cairn__manifest m;
    char *text = malloc(MANY * 80);
    for (int n = 3; n <= MANY; n += MANY - 3) {
        size_t used = (size_t)sprintf(text, MANIFEST("1", "2"));
        for (int i = 0; i < n; i++) used += (size_t)sprintf(text + used, one, i, i < n - 1 ? ", " : "]}");
        if (n == MANY) expect_manifest(text, CAIRN_EINVAL, "80000 files, and 2 ranks have one each and one together");
        else OK(cairn__manifest_read(text, used, "the path", &m));
    }
    assert_int_equal(m.num_files, 3);
    cairn__manifest_clear(&m);
    free(text);
}

static void manifests_of_numbers_that_none_has_are_refused(void **unused) {
    (void)unused;
    struct cairn__manifest m;
    static const char most[] = MANIFEST("1", "256") "]}";
    OK(cairn__manifest_read(most, sizeof(most) - 1, "the path", &m));
    cairn__manifest_clear(&m);
    expect_manifest(MANIFEST("1", "257") "]}", CAIRN_EINVAL, "a checkpoint's, but broken");
    expect_manifest(MANIFEST("1", "0") "]}", CAIRN_EINVAL, "a checkpoint's, but broken");
    expect_manifest(MANIFEST("0", "1") "]}", CAIRN_EINVAL, "a checkpoint's, but broken");
    expect_manifest(MANIFEST("4294967297", "1") "]}", CAIRN_ENOTSUP, "version 4294967297 of the format");
    expect_manifest(MANIFEST("1", "1") "[[[[[[[[[[[[[[[[[[", CAIRN_EINVAL, "nests deeper");
}

/* ---- what does not fit ---- */

static void an_object_that_the_program_or_the_checkpoint_lacks_is_named(void **unused) {
    (void)unused;
    save_steps((int64_t[]){6}, 1, NULL);
    struct one one = begin_one(2);
    int64_t step = 0, number = 12;
    OK(cairn_state_create(one.env, &one.state));
    REFUSED(cairn_state_load_latest(one.state, folder, NULL, &step), CAIRN_EINVAL,
            "'object/count', which the program does not");
    OK(cairn_state_add(one.state, "object", (cairn_stateful){&ops, &one.o}));
    OK(cairn_state_add_i64(one.state, "epoch", &number));
    REFUSED(cairn_state_load_latest(one.state, folder, NULL, &step), CAIRN_EINVAL, "does not have 'epoch'");
    assert_null(differs(&one.o, 2, 1));
    assert_int_equal(number, 12);
    end_one(&one);
}

static void a_lenient_load_leaves_what_one_of_both_lacks(void **unused) {
    (void)unused;
    struct one one = begin_one(5);
    struct object other = one.o;
    int64_t old = 1, common = 2, new = 3, step = 0;
    OK(make_state(one.env, &one.o, &one.state));
    OK(cairn_state_add(one.state, "other", (cairn_stateful){&ops, &other}));
    OK(cairn_state_add_i64(one.state, "old", &old));
    OK(cairn_state_add_i64(one.state, "common", &common));
    OK(cairn_state_save(one.state, folder, 5, NULL));
    cairn_state_destroy(&one.state);

    fill(&one.o, one.env, 6, true);
    fill(&other, one.env, 7, true);
    common = 0;
    OK(make_state(one.env, &one.o, &one.state));
    OK(cairn_state_add(one.state, "average", (cairn_stateful){&ops, &other}));
    OK(cairn_state_add_i64(one.state, "new", &new));
    OK(cairn_state_add_i64(one.state, "common", &common));
    REFUSED(cairn_state_load_latest(one.state, folder, NULL, &step), CAIRN_EINVAL, "");
    assert_null(differs(&one.o, 6, 1));
    OK(cairn_state_load_latest(one.state, folder, cairn_state_load_options(.strict = CAIRN_OFF), &step));
    assert_int_equal(step, 5);
    assert_null(differs(&one.o, 5, 1));
    assert_null(differs(&other, 7, 1)); /* as it was */
    assert_int_equal(common, 2);
    assert_int_equal(new, 3);
    one.o.has_own = false; /* another structure is no missing object */
    REFUSED(cairn_state_load_latest(one.state, folder, cairn_state_load_options(.strict = CAIRN_OFF), &step),
            CAIRN_EINVAL, "object/own");
    OK(cairn_state_save(one.state, folder, 8, NULL)); /* all of it, what was absent too */
    end_one(&one);
}

static void numbers_and_memory_of_the_program_come_back(void **unused) {
    (void)unused;
    struct one one = begin_one(2);
    int64_t epoch = 3, step = 0;
    double best = 0.25;
    char text[32] = "what I was thinking", own[5] = "mine";
    OK(cairn_state_create(one.env, &one.state));
    OK(cairn_state_add_i64(one.state, "epoch", &epoch));
    OK(cairn_state_add_f64(one.state, "best", &best));
    OK(cairn_state_add_bytes(one.state, "notes", text, sizeof(text)));
    OK(cairn_state_add_rank_bytes(one.state, "own", own, sizeof(own)));
    OK(cairn_state_save(one.state, folder, 1, NULL));
    epoch = 0, best = 0;
    memset(text, 0, sizeof(text));
    memset(own, 0, sizeof(own));
    OK(cairn_state_load_latest(one.state, folder, NULL, &step));
    assert_int_equal(step, 1);
    assert_int_equal(epoch, 3);
    assert_true(best == 0.25);
    assert_string_equal(text, "what I was thinking");
    assert_string_equal(own, "mine");
    end_one(&one);
}

static void a_wrong_shape_or_type_is_named_with_both(void **unused) {
    (void)unused;
    struct one one = begin_one(2);
    char bytes[8] = {0};
    int64_t step, number = 0;
    OK(cairn_state_create(one.env, &one.state));
    OK(cairn_state_add_bytes(one.state, "x", bytes, 8));
    OK(cairn_state_save(one.state, folder, 1, NULL));
    cairn_state_destroy(&one.state);
    OK(cairn_state_create(one.env, &one.state));
    OK(cairn_state_add_bytes(one.state, "x", bytes, 7));
    REFUSED(cairn_state_load_latest(one.state, folder, NULL, &step), CAIRN_EINVAL, "has shape [8]");
    cairn_state_destroy(&one.state);
    OK(cairn_state_create(one.env, &one.state));
    OK(cairn_state_add_i64(one.state, "x", &number));
    REFUSED(cairn_state_load_latest(one.state, folder, NULL, &step), CAIRN_EINVAL, "'x' is U8");
    end_one(&one);
}

static void names_that_files_could_not_hold_are_refused(void **unused) {
    (void)unused;
    struct one one = begin_one(2);
    int64_t number = 0;
    OK(make_state(one.env, &one.o, &one.state));
    REFUSED(cairn_state_add_i64(one.state, "", &number), CAIRN_EINVAL, "empty");
    REFUSED(cairn_state_add_i64(one.state, "a/b", &number), CAIRN_EINVAL, "'/'");
    REFUSED(cairn_state_add_i64(one.state, "a\nb", &number), CAIRN_EINVAL, "control");
    REFUSED(cairn_state_add_i64(one.state, "env", &number), CAIRN_EINVAL, "already");
    REFUSED(cairn_state_add_i64(one.state, "__metadata__", &number), CAIRN_EINVAL, "cannot be a name");
    REFUSED(cairn_state_add_i64(one.state, "caf\xe9", &number), CAIRN_EINVAL, "UTF-8");
    char longest[257];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[256] = 0;
    REFUSED(cairn_state_add_i64(one.state, longest, &number), CAIRN_EINVAL, "255 bytes");
    REFUSED(cairn_state_add_i64(one.state, "object", &number), CAIRN_EINVAL, "already");
    REFUSED(cairn_state_add_i64(one.state, "x", NULL), CAIRN_EINVAL, "NULL");
    REFUSED(cairn_state_add(one.state, "y", (cairn_stateful){&ops, NULL}), CAIRN_EINVAL, "NULL");
    REFUSED(cairn_state_save(one.state, folder, -1, NULL), CAIRN_EINVAL, "negative");
    REFUSED(cairn_state_save(one.state, "", 1, NULL), CAIRN_EINVAL, "empty");
    end_one(&one);
}

/* ---- disks ---- */

static void a_save_that_fails_leaves_the_old_checkpoint_and_the_program_goes_on(void **unused) {
    (void)unused;
    struct one one = begin_one(5);
    struct rlimit before, small = {4096, RLIM_INFINITY};
    char below[256];
    OK(make_state(one.env, &one.o, &one.state));
    OK(cairn_state_save(one.state, folder, 5, NULL));
    snprintf(below, sizeof(below), "%s/step-00000005/checkpoint.json", folder);
    REFUSED(cairn_state_save(one.state, below, 6, NULL), CAIRN_ESYSTEM, below);
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    for (int background = 0; background < 2; background++) { /* ulimit -f: no SIGXFSZ ends the program */
        setrlimit(RLIMIT_FSIZE, &small);
        cairn_status st = cairn_state_save(one.state, folder, 6,
                                           cairn_state_save_options(.background = background ? CAIRN_ON : CAIRN_OFF));
        if (background) st = cairn_state_wait(one.state);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(st, CAIRN_ESYSTEM);
        SAYS("step-00000006");
    }
    assert_int_equal(load_latest(), 5);
    OK(cairn_state_save(one.state, folder, 6, NULL));
    end_one(&one);
}

static void what_failed_in_the_background_is_returned_by_the_next_call(void **unused) {
    (void)unused;
    struct one one = begin_one(5);
    struct rlimit before, small;
    OK(make_state(one.env, &one.o, &one.state));
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &small);
    OK(cairn_state_save(one.state, folder, 6, cairn_state_save_options(.background = CAIRN_ON)));
    assert_int_equal(cairn_state_save(one.state, folder, 7, NULL), CAIRN_ESYSTEM);
    SAYS("step-00000006");
    setrlimit(RLIMIT_FSIZE, &before);
    OK(cairn_state_save(one.state, folder, 7, NULL));
    end_one(&one);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        T(every_entry_comes_back_on_as_many_ranks),
        T(what_no_rank_has_alone_loads_on_any_number_of_ranks),
        T(what_a_rank_has_alone_is_refused_on_another_number_of_ranks),
        T(ranks_that_save_different_things_all_fail),
        T(wrong_arguments_on_one_rank_are_an_error_on_all),
        T(signals_that_the_program_handles_are_left_to_it),
        T(a_second_request_to_stop_within_a_second_is_the_same_and_a_later_one_ends_the_program),
        T(a_signal_asks_for_a_checkpoint_on_all_ranks_at_one_step),
        T(a_folder_without_checkpoints_loads_step_0_and_changes_nothing),
        T(a_step_that_is_saved_again_is_replaced),
        T(old_checkpoints_go_but_the_last_and_every_nth),
        T(what_a_killed_save_left_is_passed_over_and_removed),
        T(a_link_to_an_archive_goes_and_the_archive_stays),
        T(a_broken_checkpoint_is_passed_over_with_a_warning),
        T(checkpoints_that_are_broken_in_two_ways_are_passed_over),
        T(what_is_absent_from_an_older_checkpoint_has_nothing_of_a_broken_newer_one),
        T(a_folder_whose_checkpoints_are_all_broken_is_an_error),
        T(a_later_version_of_the_format_is_refused_by_its_number),
        cmocka_unit_test(manifests_of_more_files_than_ranks_write_are_refused),
        cmocka_unit_test(manifests_of_numbers_that_none_has_are_refused),
        T(an_object_that_the_program_or_the_checkpoint_lacks_is_named),
        T(a_lenient_load_leaves_what_one_of_both_lacks),
        T(numbers_and_memory_of_the_program_come_back),
        T(a_wrong_shape_or_type_is_named_with_both),
        T(names_that_files_could_not_hold_are_refused),
        T(a_save_that_fails_leaves_the_old_checkpoint_and_the_program_goes_on),
        T(what_failed_in_the_background_is_returned_by_the_next_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
