/* The suite of collectives.h with ranks as processes: one rank under any launcher, or with --spawn N all ranks.
 * CAIRN_BACKEND chooses the backend.
 *
 * usage: collectives_rank [--spawn N] suite [WORD] | mismatch NAME | loop [SECONDS]
 *
 * suite      the cases whose names contain the word, or all; every rank prints the backend
 * mismatch   rank 1 calls something else; all ranks must fail and print why. An unknown NAME prints the names
 * loop       repeats until something fails and prints the error; ends after SECONDS (60), so that nothing is left
 *            running. SIGUSR1 makes it exit with 9 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cairn/env.h"
#include "collectives.h"

static char **words; /* after the program's own options: what to do, and its argument or NULL */

/* Prints and frees it; the program's exit code. */
static int report(char *sentence) {
    if (!sentence) return 0;
    fprintf(stderr, "%s\n", sentence);
    free(sentence);
    return 1;
}

static int run_suite(cairn_group *group) {
    int failed = report(collectives_check(group, words[1]));
    if (!failed) {
        printf("rank %d of %d: %s\n", cairn_group_rank(group), cairn_group_size(group), cairn_group_backend(group));
    }
    return failed;
}

static int expect_mismatch(cairn_group *group, struct collectives_mismatch *m) {
    const int failed = report(collectives_check_mismatch(group, m));
    if (!failed && (!m->parties || cairn_group_rank(group) < m->parties)) {
        printf("rank %d was told of another %s\n", cairn_group_rank(group), m->name);
        fflush(stdout);
    }
    return failed;
}

static int run_mismatch(cairn_group *group) {
    for (struct collectives_mismatch *m = collectives_mismatches; m->name && words[1]; m++) {
        if (strcmp(m->name, words[1]) == 0) return expect_mismatch(group, m);
    }
    for (struct collectives_mismatch *m = collectives_mismatches; m->name; m++) puts(m->name);
    return 2;
}

static void exit_now(int signal_number) {
    (void)signal_number;
    _exit(9);
}

static int run_loop(cairn_group *group) {
    char text[1024];
    signal(SIGUSR1, exit_now);
    alarm(words[1] ? (unsigned)atoi(words[1]) : 60);
    printf("rank %d, pid %d\n", cairn_group_rank(group), (int)getpid());
    fflush(stdout);
    cairn_status st = collectives_loop(group, 1, text, sizeof(text));
    fprintf(stderr, "rank %d: CAIRN_%s: %s\n", cairn_group_rank(group), cairn_status_name(st), text);
    return 1;
}

static int run(int rank, void *unused) {
    (void)rank, (void)unused;
    cairn_env *env = NULL;
    if (cairn_env_create(NULL, NULL, NULL, &env) != CAIRN_OK) return report(strdup(cairn_last_error()));
    check_as_rank(cairn_env_rank(env), cairn_env_size(env));
    cairn_group *group = cairn_env_group(env);
    int result = strcmp(words[0], "suite") == 0      ? run_suite(group)
                 : strcmp(words[0], "mismatch") == 0 ? run_mismatch(group)
                                                     : run_loop(group);
    cairn_env_destroy(&env);
    return result;
}

int main(int argc, char **argv) {
    static char *none[] = {"suite", NULL, NULL};
    const int spawns = argc > 2 && strcmp(argv[1], "--spawn") == 0;
    words = argv + (spawns ? 3 : 1);
    if (!words[0]) words = none;
    if (!spawns) return run(0, NULL);
    return cairn_spawn(run, NULL, atoi(argv[2]), NULL) == CAIRN_OK ? 0 : report(strdup(cairn_last_error()));
}
