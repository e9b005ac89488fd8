/* Runs ranks as processes, forked before the test starts threads. They meet at the test's store and end with the
 * test. */
#ifndef TESTS_DIST_GROUP_PROCESSES_H
#define TESTS_DIST_GROUP_PROCESSES_H

#include "group_ranks.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/trace.h"

/* Runs in a rank's process and returns its exit status: 0, or 1 if an expectation failed. */
typedef int (*process_fn)(int rank, int size, int port);

struct processes {
    int size;
    pid_t pids[MAX_RANKS];
    struct cairn__store_server *server;
};

/* Starts the ranks, except `skipped` (-1 = none). Forks before the store's thread starts, since a process with threads
 * must not fork. */
static inline void start_ranks(struct processes *p, int size, int skipped, process_fn fn) {
    int pipes[MAX_RANKS][2], port = 0;
    *p = (struct processes){.size = size};
    fflush(NULL); /* MUST exits a rank, which would write inherited buffered output again */
    for (int r = 0; r < size; r++) {
        assert_int_equal(pipe(pipes[r]), 0);
        p->pids[r] = r == skipped ? 0 : fork();
        if (p->pids[r] > 0 || r == skipped) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* ends the ranks if the test fails */
        int told = 0;
        if (read(pipes[r][0], &told, sizeof(told)) != (ssize_t)sizeof(told)) _exit(2);
        check_as_rank(r, size);
        _exit(fn(r, size, told));
    }
    assert_int_equal(cairn__store_serve(0, &p->server, &port), CAIRN_OK);
    for (int r = 0; r < size; r++) {
        assert_int_equal(write(pipes[r][1], &port, sizeof(port)), sizeof(port));
        close(pipes[r][0]);
        close(pipes[r][1]);
    }
}

static inline int end_of(struct processes *p, int rank) {
    int status = 0;
    while (waitpid(p->pids[rank], &status, 0) < 0 && errno == EINTR) {}
    return status;
}

static inline int count_entries(const char *path) {
    int count = 0;
    DIR *d = opendir(path);
    while (d && readdir(d)) count++;
    if (d) closedir(d);
    return count;
}

/* Counts only files of Cairn's groups, since other programs' files come and go. */
static inline int count_files_in_dev_shm(void) {
    int count = 0;
    DIR *d = opendir("/dev/shm");
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        count += strstr(e->d_name, "cairn") || strstr(e->d_name, "gloo");
    }
    if (d) closedir(d);
    return count;
}

static inline void sleep_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

#endif
