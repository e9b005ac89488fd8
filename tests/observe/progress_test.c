/* Progress lines as read from the other end of a pipe. */
#include <fcntl.h>
#include <math.h>
#include <pty.h>
#include <unistd.h>

#include "../ranks.h"

enum { TEXT = 4096, READ = 0, WRITE = 1 };

struct pipe_ends {
    int end[2];
};

static struct pipe_ends open_pipe(void) {
    struct pipe_ends p;
    if (pipe(p.end) != 0) abort();
    (void)fcntl(p.end[READ], F_SETFL, O_NONBLOCK);
    return p;
}

/* What has arrived since the last call. */
static const char *arrived(struct pipe_ends p) {
    static _Thread_local char text[TEXT];
    const ssize_t n = read(p.end[READ], text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static void close_pipe(struct pipe_ends p) {
    close(p.end[READ]);
    close(p.end[WRITE]);
}

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with) {
    return strlen(text) >= strlen(with) && strcmp(text + strlen(text) - strlen(with), with) == 0;
}

static char *plain_lines(cairn_env *env, void *ctx) {
    const struct pipe_ends p = open_pipe();
    cairn_progress *progress;
    (void)ctx;
    EXPECT_OK(cairn_progress_create(env, 4, cairn_progress_options(.title = "train", .fd = p.end[WRITE]), &progress));
    EXPECT(cairn_progress_step(progress) == 0); /* ten seconds have not passed */
    EXPECT(strcmp(arrived(p), "") == 0);
    cairn_progress_show(progress, cairn_progress_values(.loss = 0.25, .lr = 5e-4, .scale = 32768, .skipped = 3,
                                                        .more = "accuracy 0.5"));
    const char *line = arrived(p);
    EXPECT(begins(line, "train  25% 1/4, "));
    EXPECT(ends(line, " left, loss 0.25, lr 0.0005, scale 32768, 3 skipped, accuracy 0.5\n"));
    EXPECT(cairn_progress_step(progress) == 0 && cairn_progress_step(progress) == 0);
    EXPECT(cairn_progress_step(progress) == 1); /* the last */
    cairn_progress_show(progress, cairn_progress_values(.has_loss = 1));
    line = arrived(p);
    EXPECT(begins(line, "train 100% 4/4, ") && ends(line, " in all, loss 0\n"));
    cairn_progress_destroy(&progress);
    EXPECT(!progress && strcmp(arrived(p), "") == 0);
    close_pipe(p);
    return NULL;
}

static void outside_of_a_terminal_lines_are_plain_and_rare(void **state) {
    (void)state;
    run_ranks(1, plain_lines, NULL);
}

static char *terminal_lines(cairn_env *env, void *ctx) {
    const struct pipe_ends p = open_pipe();
    cairn_progress *progress;
    (void)ctx;
    EXPECT_OK(cairn_progress_create(env, 0,
                                    cairn_progress_options(.fd = p.end[WRITE], .terminal = CAIRN_ON, .interval = 1e-9,
                                                           .done = 7),
                                    &progress));
    for (int s = 0; s < 2; s++) {
        EXPECT(cairn_progress_step(progress) == 1);
        cairn_progress_show(progress, NULL);
        const char *line = arrived(p);
        EXPECT(begins(line, s ? "\r9, " : "\r8, ") && ends(line, "step/s\033[K") + ends(line, "steps/s\033[K") == 1);
    }
    cairn_progress_destroy(&progress);
    EXPECT(strcmp(arrived(p), "\n") == 0);
    close_pipe(p);
    return NULL;
}

static void on_a_terminal_a_line_is_written_over_the_one_before(void **state) {
    (void)state;
    run_ranks(1, terminal_lines, NULL);
}

static char *lines_of_terminals(cairn_env *env, void *ctx) {
    (void)ctx;
    for (unsigned short columns = 0; columns <= 80; columns += 80) {
        const struct winsize size = {.ws_row = 24, .ws_col = columns};
        struct pipe_ends p;
        struct termios raw = {0};
        cairn_progress *progress;
        EXPECT(openpty(&p.end[READ], &p.end[WRITE], NULL, &raw, &size) == 0);
        (void)fcntl(p.end[READ], F_SETFL, O_NONBLOCK);
        EXPECT_OK(cairn_progress_create(env, 3, cairn_progress_options(.fd = p.end[WRITE]), &progress));
        cairn_progress_show(progress, NULL);
        const char *line = arrived(p);
        EXPECT(begins(line, columns ? "\r  0% 0/3" : "  0% 0/3") && ends(line, columns ? "\033[K" : "\n"));
        cairn_progress_destroy(&progress);
        close_pipe(p);
    }
    return NULL;
}

/* As `script > file` makes one: everything would be one line of the file. */
static void a_terminal_without_a_size_gets_plain_lines(void **state) {
    (void)state;
    run_ranks(1, lines_of_terminals, NULL);
}

static char *lines_of_ranks(cairn_env *env, void *ctx) {
    const struct pipe_ends p = open_pipe();
    const bool writes = cairn_env_rank(env) == 0;
    cairn_progress *progress;
    (void)ctx;
    EXPECT_OK(
        cairn_progress_create(env, 1, cairn_progress_options(.fd = p.end[WRITE], .terminal = CAIRN_OFF), &progress));
    EXPECT(cairn_progress_step(progress) == writes);
    cairn_progress_show(progress, NULL);
    EXPECT((strlen(arrived(p)) > 0) == writes);
    cairn_progress_destroy(&progress);
    close_pipe(p);
    return NULL;
}

static void only_rank_0_writes(void **state) {
    (void)state;
    run_ranks(3, lines_of_ranks, NULL);
}

static char *no_reader(cairn_env *env, void *ctx) {
    const struct pipe_ends p = open_pipe();
    char long_text[3 * TEXT];
    cairn_progress *progress;
    (void)ctx;
    memset(long_text, 'x', sizeof(long_text));
    long_text[sizeof(long_text) - 1] = 0;
    EXPECT_OK(cairn_progress_create(env, 1, cairn_progress_options(.title = long_text, .fd = p.end[WRITE]), &progress));
    cairn_progress_show(progress, NULL);
    const char *line = arrived(p);
    EXPECT(strlen(line) > 400 && strlen(line) < 520 && ends(line, "x\n"));
    close(p.end[READ]);
    cairn_progress_show(progress, NULL); /* SIGPIPE would end the test */
    close(p.end[WRITE]);
    cairn_progress_show(progress, NULL);
    cairn_progress_destroy(&progress);
    return NULL;
}

static void a_closed_pipe_ends_no_training(void **state) {
    (void)state;
    run_ranks(1, no_reader, NULL);
}

static char *bad_options(cairn_env *env, void *ctx) {
    cairn_progress *p = NULL;
    (void)ctx;
    EXPECT_REFUSED(cairn_progress_create(env, -1, NULL, &p), CAIRN_EINVAL, "total is -1");
    EXPECT_REFUSED(cairn_progress_create(NULL, 1, NULL, &p), CAIRN_EINVAL, "must be set");
    EXPECT_REFUSED(cairn_progress_create(env, 3, cairn_progress_options(.done = 4), &p), CAIRN_EINVAL,
                   "done is 4; it must be from 0 to the total of 3 steps");
    EXPECT_REFUSED(cairn_progress_create(env, 3, cairn_progress_options(.interval = NAN), &p), CAIRN_EINVAL,
                   "interval is nan");
    EXPECT(cairn_progress_step(NULL) == 0);
    cairn_progress_show(NULL, NULL);
    cairn_progress_start(NULL);
    cairn_progress_destroy(&p);
    return NULL;
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    run_ranks(1, bad_options, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outside_of_a_terminal_lines_are_plain_and_rare),
        cmocka_unit_test(on_a_terminal_a_line_is_written_over_the_one_before),
        cmocka_unit_test(a_terminal_without_a_size_gets_plain_lines),
        cmocka_unit_test(only_rank_0_writes),
        cmocka_unit_test(a_closed_pipe_ends_no_training),
        cmocka_unit_test(wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
