/* Ranks that are killed, stopped or end by themselves at random moments of creation, of any collective, message or
 * allocation: the others return an error in time, on shm with the victim's number, and nothing is left behind.
 *
 * usage: random_faults_test shm | gloo MOMENTS [SEED [FIRST]]
 *        FIRST: the number of the first one, 0 if not given; CAIRN_TEST_FAULTS in the environment overrides MOMENTS;
 *        with CAIRN_TEST_MACHINES=aab ranks are on machines of these names, and each second moment is of long sums */
#include "group_processes.h"
#include "machines.h"

#include <math.h>
#include <sys/time.h>

#include "collectives.h"
#include "core/status.h"
#include "trial.h"

enum fault { KILL, EXIT, STOP, NUM_FAULTS };
static const char *const fault_names[NUM_FAULTS] = {"is killed", "exits", "is stopped"};

static const double TIMEOUT = 3;   /* seconds; the group's where a rank stops */
static const double AT_ONCE = 5;   /* s, within which a death is reported */
static const double PATIENCE = 60; /* for what hangs */

struct told {
    cairn_status status;
    uint64_t at_ns;
    int new_descriptors;
    char text[1024], descriptors[2000];
};

struct moment {
    int number, size, victim;
    enum fault fault;
    bool early;   /* it strikes while the ranks may still be meeting */
    long wait_us; /* after the start, or after all have met */
};

/* What parent and children share. */
static struct board {
    struct moment moment;
    atomic_int ready;
    atomic_ullong struck_ns;
    struct told told[MAX_RANKS];
} * board;

static const char *backend = "shm";
static int moments = 12, first;
static unsigned seed = 1;

/* ---- a rank ---- */

static void exit_now(int signal_number) {
    (void)signal_number;
    atomic_store(&board->struck_ns, cairn__now_ns());
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
    told->status = join_group(backend, rank, size, port, TIMEOUT, &m);
    told->at_ns = cairn__now_ns();
    snprintf(told->text, sizeof(told->text), "%s", cairn_last_error());
    if (told->status != CAIRN_OK) return;
    atomic_fetch_add(&board->ready, 1);
    if (!board->moment.early && rank == board->moment.victim && board->moment.fault == EXIT) {
        exit_later(board->moment.wait_us);
    }
    const bool sums = machines && board->moment.number % 2 == 1;
    told->status = (sums ? reduce_until_failure : collectives_loop)(m.group, (unsigned)board->moment.number, told->text,
                                                                    sizeof(told->text));
    told->at_ns = cairn__now_ns();
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
    unsigned random = seed * 7919u + (unsigned)number;
    struct moment m = {.number = number, .fault = (enum fault)(number % NUM_FAULTS)};
    for (int i = 0; i < 4; i++) (void)random_below(&random, 2);
    m.size = 2 + (int)random_below(&random, 3);
    m.victim = (int)random_below(&random, (unsigned)m.size);
    m.early = random_below(&random, 5) == 0;
    m.wait_us = (long)exp(random_below(&random, 1000) / 1000.0 * log(m.early ? 30e3 : 300e3));
    return m;
}

static void describe(const struct moment *m, char *text, size_t nbytes) {
    snprintf(text, nbytes, "moment %d of seed %u on %s: rank %d of %d %s %.1f ms after %s", m->number, seed, backend,
             m->victim, m->size, fault_names[m->fault], (double)m->wait_us * 1e-3, m->early ? "the start" : "meeting");
}

static void strike(struct processes *p, const struct moment *m) {
    const uint64_t deadline = cairn__now_ns() + (uint64_t)(PATIENCE * 1e9);
    while (!m->early && atomic_load(&board->ready) < m->size && cairn__now_ns() < deadline) sleep_ms(1);
    if (m->fault == EXIT) return; /* it does so itself */
    nanosleep(&(struct timespec){.tv_sec = m->wait_us / 1000000, .tv_nsec = m->wait_us % 1000000 * 1000}, NULL);
    kill(p->pids[m->victim], m->fault == KILL ? SIGKILL : SIGSTOP);
    atomic_store(&board->struck_ns, cairn__now_ns());
}

/* Ends all, and says so, where one of the others does not end by itself. */
static bool survivors_end(struct processes *p, const struct moment *m) {
    const uint64_t deadline = cairn__now_ns() + (uint64_t)(PATIENCE * 1e9);
    bool all = true;
    for (int r = 0; r < p->size; r++) {
        int status = 0;
        if (r == m->victim) continue;
        while (waitpid(p->pids[r], &status, WNOHANG) == 0 && cairn__now_ns() < deadline) sleep_ms(1);
        if (cairn__now_ns() >= deadline) {
            kill(p->pids[r], SIGKILL);
            (void)end_of(p, r);
        }
        all = all && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    kill(p->pids[m->victim], SIGKILL);
    (void)end_of(p, m->victim);
    return all;
}

static bool names_victim(const struct moment *m, const char *text) {
    char name[40];
    snprintf(name, sizeof(name), "rank %d", m->victim);
    return strstr(text, name) != NULL;
}

/* NULL, or what is wrong with the rank's report. */
static const char *judge(const struct moment *m, const struct told *told) {
    const double took = ((double)told->at_ns - (double)atomic_load(&board->struck_ns)) * 1e-9;
    const bool waits = m->fault == STOP || m->early; /* who never came is waited for as long */
    if (told->status != CAIRN_EPEER && told->status != CAIRN_ETIMEOUT) return "neither CAIRN_EPEER nor CAIRN_ETIMEOUT";
    if (told->status == CAIRN_ETIMEOUT && !waits) return "a death is no timeout";
    if (took > (waits ? TIMEOUT : 0) + AT_ONCE) return "it came too late";
    if (strcmp(backend, "shm") != 0) return NULL; /* gloo cannot always tell who, nor end what failed inside it */
    /* While a group or its memory is made, one that heard of the end and ended may be taken for the first. */
    const bool in_making = m->early || strstr(told->text, "exchanged memory");
    if (!in_making && !names_victim(m, told->text)) return "the victim is not named";
    if (told->new_descriptors > 0) return "descriptors are left";
    return NULL;
}

static void run_moment(const struct moment *m) {
    struct processes p;
    char story[300];
    describe(m, story, sizeof(story));
    memset(board, 0, sizeof(*board));
    board->moment = *m;
    start_ranks(&p, m->size, -1, run_rank);
    strike(&p, m);
    const bool all = survivors_end(&p, m);
    cairn__store_stop(&p.server);
    if (!all) fail_msg("%s: not all others ended well in time", story);
    for (int r = 0; r < m->size; r++) {
        const struct told *told = &board->told[r];
        const char *wrong = r == m->victim ? NULL : judge(m, told);
        if (!wrong) continue;
        print_error("%s: rank %d: %s: CAIRN_%s: %s\n", story, r, wrong, cairn_status_name(told->status), told->text);
        fail_msg("its descriptors are %s", told->descriptors);
    }
}

static void other_ranks_report_one_that_fails_at_any_moment(void **state) {
    (void)state;
    for (int number = first; number < first + moments; number++) {
        struct moment m = make_moment(number);
        run_moment(&m);
    }
    assert_int_equal(count_files_in_dev_shm(), 0);
    assert_int_equal(count_entries("."), 2);
}

/* A folder of its own shows what is left in it. */
static int set_up(void **state) {
    static char folder[] = "/tmp/cairn-faults-XXXXXX";
    *state = folder;
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED || !mkdtemp(folder)) return -1;
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
