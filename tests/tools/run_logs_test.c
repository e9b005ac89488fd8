/* cairn-run's logs: the destination of each stream, the output of teed files, and a closed or slow console. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/run/logs.h"
#include "tools/run/text.h"

enum { RANKS = 3 };

/* ---- a folder for each test, and a console of its own ---- */

static char root[64];
static int kept_out, kept_err, console = -1; /* console: what stdout and stderr are, a file in memory */

static int enter(void **state) {
    (void)state;
    strcpy(root, "/tmp/cairn_logs_XXXXXX");
    if (!mkdtemp(root)) return -1;
    setenv("TMPDIR", root, 1);
    return 0;
}

static int leave(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

static void swap_console(int out, int err) {
    fflush(stdout);
    fflush(stderr);
    kept_out = dup(STDOUT_FILENO);
    kept_err = dup(STDERR_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
}

static void open_console(void) {
    console = memfd_create("console", 0);
    swap_console(console, console);
}

static void restore_console(void) {
    dup2(kept_out, STDOUT_FILENO);
    dup2(kept_err, STDERR_FILENO);
    close(kept_out);
    close(kept_err);
}

/* All that was shown; free it. */
static char *close_console(void) {
    restore_console();
    off_t n = lseek(console, 0, SEEK_END);
    char *text = must(calloc((size_t)n + 1, 1));
    assert_int_equal(pread(console, text, (size_t)n, 0), n);
    close(console);
    return text;
}

static void assert_shown(const char *expected) {
    char *text = close_console();
    assert_string_equal(text, expected);
    free(text);
}

/* ---- options and files ---- */

struct job {
    struct options o;
    unsigned char redirects[RANKS], tee[RANKS];
    bool shown[RANKS];
};

/* Streams as digits of each rank. */
static struct options *make_job(struct job *job, const char *redirects, const char *tee, const char *log_dir) {
    *job = (struct job){
        .o = {.ranks = RANKS, .role = "default", .log_dir = log_dir, .line_prefix = "[${role_name}${local_rank}]:"}};
    job->o.run_id = "a/b";
    job->o.redirects = job->redirects;
    job->o.tee = job->tee;
    job->o.shown = job->shown;
    for (int r = 0; r < RANKS; r++) {
        job->redirects[r] = (unsigned char)(redirects[r] - '0');
        job->tee[r] = (unsigned char)(tee[r] - '0');
        job->shown[r] = true;
    }
    return &job->o;
}

static void put(int fd, const char *text) {
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static char *read_file(const char *path) {
    int fd = open(path, O_RDONLY);
    char *text = must(calloc(1, 1 << 16));
    if (fd >= 0) assert_true(read(fd, text, (1 << 16) - 1) >= 0);
    if (fd >= 0) close(fd);
    return text;
}

static int entries(const char *folder) {
    DIR *dir = opendir(folder);
    int n = -2; /* . and .. */
    for (; dir && readdir(dir);) n++;
    if (dir) closedir(dir);
    return n;
}

static bool same_place(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* ---- where streams go ---- */

static void folder_without_redirected_output_is_removed(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    open_console();
    assert_true(logs_open(make_job(&job, "000", "000", NULL), &logs));
    assert_true(logs_begin(logs, 0, 0));
    assert_int_equal(entries(root), 1);
    for (int r = 0; r < RANKS; r++) {
        char tail[64];
        snprintf(tail, sizeof(tail), "/attempt_0/%d/error.json", r);
        const char *file = logs_error_file(logs, r);
        assert_true(file[0] == '/' && strstr(file, "/a_b_") && strstr(file, tail));
        assert_int_equal(logs_fd(logs, r, STREAM_OUT), -1);
        assert_int_equal(logs_fd(logs, r, STREAM_ERR), -1);
    }
    logs_pump(logs, false);
    assert_true(logs_interval(logs) > 1000);
    int error = open(logs_error_file(logs, 1), O_CREAT | O_WRONLY, 0600);
    put(error, "{}");
    close(error);
    logs_close(&logs);
    assert_null(logs);
    assert_int_equal(entries(root), 0);
    assert_shown("");
}

static void redirected_streams_are_files_of_their_ranks(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    char folder[128];
    snprintf(folder, sizeof(folder), "%s/new/logs", root);
    open_console();
    assert_true(logs_open(make_job(&job, "120", "003", folder), &logs));
    assert_true(logs_begin(logs, 4, 0));
    static const int files[RANKS][2] = {{1, 0}, {0, 1}, {1, 1}};
    for (int r = 0; r < RANKS; r++) {
        char *path = must(strdup(logs_error_file(logs, r)));
        assert_memory_equal(path, folder, strlen(folder));
        assert_non_null(strstr(path, "/attempt_4/"));
        strcpy(strrchr(path, '/'), "/stdout.log");
        assert_int_equal(same_place(logs_fd(logs, r, STREAM_OUT), path), files[r][0]);
        strcpy(strrchr(path, '/'), "/stderr.log");
        assert_int_equal(same_place(logs_fd(logs, r, STREAM_ERR), path), files[r][1]);
        free(path);
    }
    put(logs_fd(logs, 0, STREAM_OUT), "silent\n");
    put(logs_fd(logs, 2, STREAM_ERR), "loud\n");
    char *path = must(strdup(logs_error_file(logs, 0)));
    strcpy(strrchr(path, '/'), "/stdout.log");
    logs_close(&logs);
    char *text = read_file(path);
    assert_string_equal(text, "silent\n");
    free(text);
    free(path);
    assert_shown("[default2]:loud\n");
}

static void own_folder_with_redirected_output_stays_and_is_named(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    open_console();
    assert_true(logs_open(make_job(&job, "100", "000", NULL), &logs));
    assert_true(logs_begin(logs, 0, 0));
    char run[256];
    snprintf(run, sizeof(run), "%s", logs_error_file(logs, 0));
    *strstr(run, "/attempt_0") = '\0';
    logs_close(&logs);
    assert_int_equal(entries(root), 1);
    char sentence[512];
    snprintf(sentence, sizeof(sentence), "cairn-run: the ranks' output is in %s\n", run);
    assert_shown(sentence);
}

static void own_folder_whose_output_was_all_shown_is_removed(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    open_console();
    assert_true(logs_open(make_job(&job, "000", "300", NULL), &logs));
    assert_true(logs_begin(logs, 0, 0));
    put(logs_fd(logs, 0, STREAM_OUT), "x\n");
    logs_close(&logs);
    assert_int_equal(entries(root), 0);
    assert_shown("[default0]:x\n");
}

static void a_filtered_rank_is_silent_and_its_files_are_written(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    struct options *o = make_job(&job, "000", "110", root);
    job.shown[0] = job.shown[2] = false;
    open_console();
    assert_true(logs_open(o, &logs));
    assert_true(logs_begin(logs, 0, 0));
    for (int r = 0; r < 2; r++) put(logs_fd(logs, r, STREAM_OUT), "line\n");
    assert_true(same_place(logs_fd(logs, 0, STREAM_ERR), "/dev/null"));
    assert_int_equal(logs_fd(logs, 1, STREAM_ERR), -1);
    assert_true(same_place(logs_fd(logs, 2, STREAM_OUT), "/dev/null"));
    struct stat status;
    assert_int_equal(fstat(logs_fd(logs, 0, STREAM_OUT), &status), 0);
    assert_int_equal(status.st_size, 5);
    logs_close(&logs);
    assert_shown("[default1]:line\n");
}

static void dev_null_as_folder_means_no_files(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    open_console();
    assert_true(logs_open(make_job(&job, "103", "020", "/dev/null"), &logs));
    assert_true(logs_begin(logs, 0, 0));
    assert_string_equal(logs_error_file(logs, 0), "");
    assert_true(same_place(logs_fd(logs, 0, STREAM_OUT), "/dev/null"));
    assert_int_equal(logs_fd(logs, 0, STREAM_ERR), -1);
    assert_int_equal(logs_fd(logs, 1, STREAM_ERR), -1);
    assert_true(same_place(logs_fd(logs, 2, STREAM_ERR), "/dev/null"));
    logs_close(&logs);
    assert_int_equal(entries(root), 0);
    assert_shown("");
}

static void an_attempt_begins_with_an_empty_folder(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    open_console();
    assert_true(logs_open(make_job(&job, "300", "000", root), &logs));
    for (int attempt = 0; attempt < 2; attempt++) {
        assert_true(logs_begin(logs, attempt, 0));
        put(logs_fd(logs, 0, STREAM_OUT), "old\n");
        int error = open(logs_error_file(logs, 0), O_CREAT | O_EXCL | O_WRONLY, 0600);
        assert_true(error >= 0);
        close(error);
    }
    char *before = must(strdup(logs_error_file(logs, 0)));
    assert_true(logs_begin(logs, 1, 0)); /* nodes came or went: the same attempt again */
    assert_string_equal(logs_error_file(logs, 0), before);
    assert_int_not_equal(access(before, F_OK), 0);
    struct stat status;
    assert_int_equal(fstat(logs_fd(logs, 0, STREAM_OUT), &status), 0);
    assert_int_equal(status.st_size, 0);
    strcpy(strstr(before, "attempt_1"), "attempt_0/0/stdout.log");
    char *text = read_file(before);
    assert_string_equal(text, "old\n");
    free(text);
    free(before);
    logs_close(&logs);
    assert_shown("");
}

static void folder_that_cannot_be_made_is_an_error(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    open_console();
    assert_false(logs_open(make_job(&job, "000", "000", "/dev/null/x"), &logs));
    assert_null(logs);
    assert_shown("cairn-run: --log-dir /dev/null/x: a folder cannot be made there: Not a directory\n");
    setenv("TMPDIR", "/dev/null/x", 1);
    open_console();
    assert_false(logs_open(make_job(&job, "001", "000", NULL), &logs));
    char *text = close_console();
    assert_non_null(strstr(text, "Not a directory; name one with --log-dir\n"));
    free(text);
}

static void a_job_without_files_goes_on_without_a_folder(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    setenv("TMPDIR", "/dev/null/x", 1);
    open_console();
    assert_true(logs_open(make_job(&job, "000", "000", NULL), &logs));
    assert_true(logs_begin(logs, 0, 0));
    assert_string_equal(logs_error_file(logs, 2), "");
    logs_close(&logs);
    char *text = close_console();
    assert_non_null(strstr(text, "ranks' error files are not collected\n"));
    free(text);
}

/* ---- what is shown ---- */

static void lines_are_shown_whole_with_their_rank(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    open_console();
    assert_true(logs_open(make_job(&job, "000", "011", root), &logs));
    assert_true(logs_begin(logs, 0, 6));
    int a = logs_fd(logs, 1, STREAM_OUT), b = logs_fd(logs, 2, STREAM_OUT);
    assert_true(logs_interval(logs) > 0 && logs_interval(logs) < 1);
    put(a, "one\ntw");
    put(b, "\n");
    logs_pump(logs, false);
    logs_pump(logs, false);
    put(a, "o\nend");
    logs_pump(logs, false);
    logs_close(&logs);
    assert_shown("[default1]:one\n[default2]:\n[default1]:two\n[default1]:end\n");
}

static void carriage_return_ends_a_line_as_in_torch(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    open_console();
    assert_true(logs_open(make_job(&job, "000", "100", root), &logs));
    assert_true(logs_begin(logs, 0, 0));
    int fd = logs_fd(logs, 0, STREAM_OUT);
    put(fd, "\r10%\r20%");
    logs_pump(logs, false);
    put(fd, "\r\ndos\r");
    logs_pump(logs, false);
    put(fd, "\n\nlast");
    logs_close(&logs);
    assert_shown("[default0]:10%\n[default0]:20%\n[default0]:dos\n[default0]:\n[default0]:last\n");
}

static void the_prefix_can_be_chosen(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    open_console();
    struct options *o = make_job(&job, "000", "010", root);
    o->role = "$rank";
    o->line_prefix = "<${role_name} $rank ${local_rank} $$ ${other}> ";
    assert_true(logs_open(o, &logs));
    assert_true(logs_begin(logs, 0, 6));
    put(logs_fd(logs, 1, STREAM_OUT), "x\n");
    logs_close(&logs);
    assert_shown("<$rank 7 1 $ ${other}> x\n");
}

static void line_longer_than_a_chunk_is_shown_in_pieces(void **state) {
    (void)state;
    enum { LONG = 200000 };
    struct job job;
    struct logs *logs = NULL;
    char *line = must(malloc(LONG + 1));
    memset(line, 'x', LONG);
    line[LONG] = '\0';
    open_console();
    assert_true(logs_open(make_job(&job, "000", "100", root), &logs));
    assert_true(logs_begin(logs, 0, 0));
    put(logs_fd(logs, 0, STREAM_OUT), line);
    put(logs_fd(logs, 0, STREAM_OUT), "\nshort\n");
    logs_close(&logs);
    free(line);
    char *text = close_console();
    size_t xs = 0;
    for (const char *c = text; *c; c++) xs += *c == 'x';
    assert_int_equal(xs, LONG);
    assert_non_null(strstr(text, "x\n[default0]:short\n"));
    free(text);
}

static void much_output_does_not_keep_cairn_run_from_its_ranks(void **state) {
    (void)state;
    enum { LINES = 300000 };
    struct job job;
    struct logs *logs = NULL;
    open_console();
    assert_true(logs_open(make_job(&job, "000", "100", root), &logs));
    assert_true(logs_begin(logs, 0, 0));
    FILE *file = fdopen(dup(logs_fd(logs, 0, STREAM_OUT)), "w");
    for (int i = 0; i < LINES; i++) fprintf(file, "line %d\n", i);
    fclose(file);
    logs_pump(logs, false);
    assert_true(lseek(console, 0, SEEK_END) < 4 << 20);
    assert_true(logs_interval(logs) == 0);
    logs_close(&logs);
    char *text = close_console(), *rest = text;
    for (int i = 0; i < LINES; i++) {
        char expected[64];
        snprintf(expected, sizeof(expected), "[default0]:line %d\n", i);
        if (strncmp(rest, expected, strlen(expected)) != 0) fail_msg("line %d: %.40s", i, rest);
        rest += strlen(expected);
    }
    assert_string_equal(rest, "");
    free(text);
}

/* ---- consoles that fail ---- */

static void a_closed_console_is_left_alone(void **state) {
    (void)state;
    struct job job;
    struct logs *logs = NULL;
    int ends[2];
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    swap_console(ends[1], ends[1]);
    bool fine = logs_open(make_job(&job, "000", "300", NULL), &logs) && logs_begin(logs, 0, 0);
    put(logs_fd(logs, 0, STREAM_OUT), "x\n");
    put(logs_fd(logs, 0, STREAM_ERR), "x\n");
    logs_pump(logs, false);
    say("this is discarded");
    logs_close(&logs);
    restore_console();
    close(ends[1]);
    assert_true(fine);
    assert_int_equal(entries(root), 0);
}

static void *read_slowly(void *end) {
    static char text[1 << 20];
    size_t n = 0;
    for (ssize_t got = 1; got > 0; n += (size_t)got) {
        usleep(100);
        got = read(*(int *)end, text + n, 1000);
        if (got < 0) break;
    }
    text[n] = '\0';
    return text;
}

static void slow_console_gets_all_output_and_delays_nothing(void **state) {
    (void)state;
    enum { LINES = 20000 };
    struct job job;
    struct logs *logs = NULL;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    swap_console(ends[1], ends[1]);
    bool fine = logs_open(make_job(&job, "000", "100", root), &logs) && logs_begin(logs, 0, 0);
    FILE *file = fdopen(dup(logs_fd(logs, 0, STREAM_OUT)), "w");
    for (int i = 0; i < LINES; i++) fprintf(file, "line %d\n", i);
    fclose(file);
    logs_pump(logs, false); /* the pipe is not read yet: a call that blocked would never return */
    double interval = logs_interval(logs);
    pthread_t reader;
    pthread_create(&reader, NULL, read_slowly, &ends[0]);
    logs_close(&logs);
    restore_console();
    close(ends[1]);
    void *text = NULL;
    pthread_join(reader, &text);
    close(ends[0]);
    assert_true(fine && interval < 1);
    char *rest = text;
    for (int i = 0; i < LINES; i++) {
        char expected[64];
        snprintf(expected, sizeof(expected), "[default0]:line %d\n", i);
        if (strncmp(rest, expected, strlen(expected)) != 0) fail_msg("line %d: %.40s", i, rest);
        rest += strlen(expected);
    }
    assert_string_equal(rest, "");
}

int main(void) {
#define LOGS_TEST(f) cmocka_unit_test_setup_teardown(f, enter, leave)
    const struct CMUnitTest tests[] = {
        LOGS_TEST(folder_without_redirected_output_is_removed),
        LOGS_TEST(redirected_streams_are_files_of_their_ranks),
        LOGS_TEST(own_folder_with_redirected_output_stays_and_is_named),
        LOGS_TEST(own_folder_whose_output_was_all_shown_is_removed),
        LOGS_TEST(a_filtered_rank_is_silent_and_its_files_are_written),
        LOGS_TEST(dev_null_as_folder_means_no_files),
        LOGS_TEST(an_attempt_begins_with_an_empty_folder),
        LOGS_TEST(folder_that_cannot_be_made_is_an_error),
        LOGS_TEST(a_job_without_files_goes_on_without_a_folder),
        LOGS_TEST(lines_are_shown_whole_with_their_rank),
        LOGS_TEST(carriage_return_ends_a_line_as_in_torch),
        LOGS_TEST(the_prefix_can_be_chosen),
        LOGS_TEST(line_longer_than_a_chunk_is_shown_in_pieces),
        LOGS_TEST(much_output_does_not_keep_cairn_run_from_its_ranks),
        LOGS_TEST(a_closed_console_is_left_alone),
        LOGS_TEST(slow_console_gets_all_output_and_delays_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
