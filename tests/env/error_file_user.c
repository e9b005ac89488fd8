/* A rank that fails in the way named by its first argument, for test_error_file.py. */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cairn/env.h"
#include "core/status.h"
#include "env/error_file.h"

#define EXPECT(condition)                                                          \
    do {                                                                           \
        if (!(condition)) fprintf(stderr, "not so: %s\n", #condition), _exit(100); \
    } while (0)

static int return_after_an_error(void) {
    return cairn_set_num_threads(-5) == CAIRN_EINVAL ? 3 : 0;
}

static int exit_after_an_error(void) {
    (void)cairn_set_num_threads(-5);
    exit(3);
}

static int exit_silently(void) {
    return 7;
}

static int succeed_after_an_error(void) {
    (void)cairn_set_num_threads(-5);
    return 0;
}

/* 300 is 44 to the parent. */
static int exit_with_300(void) {
    exit(300);
}

static int fail_for_a_peer(void) {
    (void)cairn__fail(CAIRN_EPEER, "rank 1 has ended");
    return 1;
}

static int fail_in_many_letters(void) {
    (void)cairn__fail(CAIRN_EINVAL, "\"\\/\n\t\x01 \x7f é € 𝄞 | \x80 \xc3( \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 |");
    return 1;
}

/* The last error holds 1023 bytes: the cut goes through the last letter. */
static int fail_at_length(void) {
    char text[2000] = "";
    for (int i = 0; i < 600; i++) strcat(text, "é");
    (void)cairn__fail(CAIRN_EINVAL, "%s", text);
    return 1;
}

static int write_to_nowhere(void) {
    int *volatile nowhere = (int *)(uintptr_t)16;
    *nowhere = 1;
    return 0;
}

static int abort_after_an_error(void) {
    (void)cairn_set_num_threads(-5);
    abort();
}

static int be_sent_sigfpe(void) {
    kill(getpid(), SIGFPE);
    return 0;
}

static int be_sent_sigterm(void) {
    raise(SIGTERM);
    return 0;
}

static volatile bool goes_on = true;

static int deepen(const volatile char *above) {
    volatile char room[4096];
    room[0] = *above;
    return goes_on ? deepen(room) + room[0] : 0;
}

static int overflow_the_stack(void) {
    char zero = 0;
    return deepen(&zero);
}

static void end_with_42(int signal) {
    (void)signal;
    _exit(42);
}

static int keep_a_handler(void) {
    return write_to_nowhere(); /* main set it before the environment came */
}

/* It is not the rank: neither way writes. */
static int fail_in_a_child_only(void) {
    int status = 0;
    for (int i = 0; i < 2; i++) {
        const pid_t child = fork();
        if (child == 0 && i == 0) exit(5);
        if (child == 0) abort();
        EXPECT(waitpid(child, &status, 0) == child);
        EXPECT(i == 0 ? WIFEXITED(status) && WEXITSTATUS(status) == 5
                      : WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
    return 0;
}

static int fail_in_another_folder(void) {
    EXPECT(chdir("/") == 0);
    return 1;
}

static int write_a_file_of_its_own(void) {
    FILE *f = fopen(getenv("TORCHELASTIC_ERROR_FILE"), "w");
    EXPECT(f && fputs("{\"message\": \"mine\"}", f) >= 0 && fclose(f) == 0);
    return 1;
}

static int abort_in_a_child_that_became_a_rank(void) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        cairn__error_file_install(CAIRN_ON);
        abort();
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    return 0;
}

static const struct {
    const char *name;
    int (*fail)(void);
} cases[] = {{"return_after_an_error", return_after_an_error},
             {"exit_after_an_error", exit_after_an_error},
             {"exit_silently", exit_silently},
             {"succeed_after_an_error", succeed_after_an_error},
             {"exit_with_300", exit_with_300},
             {"fail_for_a_peer", fail_for_a_peer},
             {"fail_in_many_letters", fail_in_many_letters},
             {"fail_at_length", fail_at_length},
             {"write_to_nowhere", write_to_nowhere},
             {"abort_after_an_error", abort_after_an_error},
             {"be_sent_sigfpe", be_sent_sigfpe},
             {"be_sent_sigterm", be_sent_sigterm},
             {"overflow_the_stack", overflow_the_stack},
             {"keep_a_handler", keep_a_handler},
             {"fail_in_a_child_only", fail_in_a_child_only},
             {"fail_in_another_folder", fail_in_another_folder},
             {"write_a_file_of_its_own", write_a_file_of_its_own},
             {"abort_in_a_child_that_became_a_rank", abort_in_a_child_that_became_a_rank}};

int main(int argc, char **argv) {
    EXPECT(argc >= 2);
    /* A sanitizer's handlers would stay, as any program's do. */
    for (int s = 1; s < 32; s++) {
        if (s != SIGKILL && s != SIGSTOP) (void)signal(s, SIG_DFL);
    }
    if (strcmp(argv[1], "keep_a_handler") == 0) (void)signal(SIGSEGV, end_with_42);
    const cairn_switch record = argc > 2 && strcmp(argv[2], "off") == 0 ? CAIRN_OFF : CAIRN_DEFAULT;
    static cairn_env *env; /* static: a program that fails need not destroy it, and a leak checker finds it */
    EXPECT(cairn_env_create(NULL, NULL, cairn_env_options(.record_errors = record), &env) == CAIRN_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[1], cases[i].name) == 0) return cases[i].fail();
    }
    fprintf(stderr, "there is no case %s\n", argv[1]);
    return 100;
}
