/* Ranks are killed, stopped or exit at random moments of group creation, collectives, messages or allocations: the
 * others return an error in time, on shm with the victim's rank, and nothing is left behind.
 *
 * usage: random_faults_test shm | gloo MOMENTS [SEED [FIRST]]
 *        FIRST: number of the first moment (0); CAIRN_TEST_FAULTS in the environment overrides MOMENTS; with
 *        CAIRN_TEST_MACHINES=aab ranks are on machines of these names, and every second moment is during long sums */
#include "machines.h"
#include "moments.h"

#include <math.h>
#include <sys/time.h>

#include "collectives.h"
#include "trial.h"

static const double TIMEOUT = 3;  /* seconds; the group's where a rank stops */
static const double AT_ONCE = 20; /* s, within which a death is reported on a busy machine */

static const char *backend = "shm";
static int moments = 12, first;
static unsigned seed = 1;

/* ---- a rank ---- */

static void exit_now(int signal_number) {
    (void)signal_number;
    note_strike();
    _exit(9);
}

static void exit_later(long us) {
    struct itimerval timer = {.it_value = {.tv_sec = us / 1000000, .tv_usec = us % 1000000 + 1}};
    signal(SIGALRM, exit_now);
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* Which descriptors are open, as text: "3 -> socket:[123], ..." */
static void list_descriptors(char *text, size_t nbytes) {
    char path[300], target[100];
    size_t used = 0;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e = d ? readdir(d) : NULL; e && used < nbytes; e = readdir(d)) {
        snprintf(path, sizeof(path), "/proc/self/fd/%s", e->d_name);
        ssize_t length = readlink(path, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        used += (size_t)snprintf(text + used, nbytes - used, "%s -> %s, ", e->d_name, target);
    }
    if (d) closedir(d);
}

/* All-reduces in group memory and elsewhere, two at a time, until something fails: as collectives_loop. */
static cairn_status reduce_until_failure(cairn_group *group, unsigned random, char *text, size_t nbytes) {
    enum { LEAST = 3000, MOST = 1000000 };
    static float own[MOST];
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    void *memory = NULL;
    cairn_status st = cairn_group_alloc(group, sizeof(own), &memory);
    while (st == CAIRN_OK) {
        float *const x[] = {own, memory};
        cairn_work *works[2] = {NULL};
        const size_t n = LEAST + random_below(&random, random_below(&random, 3) ? LEAST : MOST - LEAST);
        for (size_t i = 0; i < 2 * n; i++) x[i / n][i % n] = (float)(i % 16 * (size_t)(rank + 1));
        for (int i = 0; i < 2 && st == CAIRN_OK; i++)
            st = cairn_allreduce(group, x[i], n, CAIRN_F32, CAIRN_SUM, &works[i]);
        for (int i = 0; i < 2 && st == CAIRN_OK; i++)
            st = cairn_work_wait(&works[i]); /* else they end with the group */
        for (size_t i = 0; i < 2 * n && st == CAIRN_OK; i++) {
            if (x[i / n][i % n] != (float)(i % 16 * (size_t)(p * (p + 1) / 2)))
                st = cairn__fail(CAIRN_EINTERNAL, "element %zu of twice %zu is wrong", i, n);
        }
    }
    snprintf(text, nbytes, "%s", cairn_last_error());
    return st;
}

/* Until something fails, be it the creation. */
static void take_part(int rank, int size, int port) {
    struct told *told = &board->told[rank];
    struct member m;
    tell(rank, join_group(backend, rank, size, port, TIMEOUT, &m));
    if (told->status != CAIRN_OK) return;
    note_ready();
    if (!board->moment.early && rank == board->moment.victim && board->moment.fault == EXIT) {
        exit_later(board->moment.wait_us);
    }
    const bool sums = machines && board->moment.number % 2 == 1;
    char text[sizeof(told->text)];
    const cairn_status st =
        (sums ? reduce_until_failure : collectives_loop)(m.group, (unsigned)board->moment.number, text, sizeof(text));
    tell(rank, cairn__fail(st, "%s", text));
    leave_group(&m);
}

static int run_rank(int rank, int size, int port) {
    const int before = count_entries("/proc/self/fd");
    if (board->moment.early && rank == board->moment.victim && board->moment.fault == EXIT) {
        exit_later(board->moment.wait_us);
    }
    take_part(rank, size, port);
    board->told[rank].new_descriptors = count_entries("/proc/self/fd") - before;
    list_descriptors(board->told[rank].descriptors, sizeof(board->told[rank].descriptors));
    return 0;
}

/* ---- the parent ---- */

static struct moment make_moment(int number) {
    static const enum fault faults[] = {KILL, EXIT, STOP};
    unsigned random = seed * 7919u + (unsigned)number;
    struct moment m = {.seed = seed, .number = number, .fault = faults[number % 3]};
    for (int i = 0; i < 4; i++) (void)random_below(&random, 2);
    m.size = 2 + (int)random_below(&random, 3);
    m.victim = (int)random_below(&random, (unsigned)m.size);
    m.early = random_below(&random, 5) == 0;
    m.wait_us = (long)exp(random_below(&random, 1000) / 1000.0 * log(m.early ? 30e3 : 300e3));
    return m;
}

static const char *judge(const struct moment *m, const struct told *told, double seconds) {
    const bool waits = m->fault == STOP || m->early; /* who never came is waited for as long */
    if (told->status != CAIRN_EPEER && told->status != CAIRN_ETIMEOUT) return "neither CAIRN_EPEER nor CAIRN_ETIMEOUT";
    if (told->status == CAIRN_ETIMEOUT && !waits) return "a death is no timeout";
    if (seconds > (waits ? TIMEOUT : 0) + AT_ONCE) return "it came too late";
    if (strcmp(backend, "shm") != 0) return NULL; /* gloo cannot always tell who, nor end what failed inside it */
    /* While a group or its memory is made, one that heard of the end and ended may be taken for the first. */
    const bool in_making = m->early || strstr(told->text, "exchanged memory");
    if (!in_making && !names_victim(m, told->text)) return "the victim is not named";
    if (told->new_descriptors > 0) return "descriptors are left";
    return NULL;
}

static void other_ranks_report_one_that_fails_at_any_moment(void **state) {
    (void)state;
    for (int number = first; number < first + moments; number++) {
        const struct moment m = make_moment(number);
        run_moment(&m, run_rank, judge, backend);
    }
    assert_int_equal(count_files_in_dev_shm(), 0);
    assert_int_equal(count_entries("."), 2);
}

/* A folder of its own shows what is left in it. */
static int set_up(void **state) {
    static char folder[] = "/tmp/cairn-faults-XXXXXX";
    *state = folder;
    if (!make_board() || !mkdtemp(folder)) return -1;
    return setenv("TMPDIR", folder, 1) || chdir(folder);
}

static int tidy(void **state) {
    return chdir("/") || rmdir(*state);
}

int main(int argc, char **argv) {
    const char *wanted = getenv("CAIRN_TEST_FAULTS");
    machines_from_environment();
    if (argc > 1) backend = argv[1];
    if (argc > 2) moments = atoi(wanted ? wanted : argv[2]);
    if (argc > 3) seed = (unsigned)atoi(argv[3]);
    if (argc > 4) first = atoi(argv[4]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_ranks_report_one_that_fails_at_any_moment),
    };
    return cmocka_run_group_tests_name("random faults", tests, set_up, tidy);
}
