/* Runs ranks as processes, one of which fails at a random moment of the common program; the other ranks end by
 * themselves, and the test judges their errors. Parent and ranks share a board in shared memory. */
#ifndef TESTS_COMM_MOMENTS_H
#define TESTS_COMM_MOMENTS_H

#include "group_processes.h"

#include "core/status.h"

/* The parent kills and stops ranks; for other faults the rank acts itself and calls note_strike. */
enum fault { KILL, STOP, EXIT, RETURN, NO_MEMORY, NUM_FAULTS };
static const char *const fault_names[NUM_FAULTS] = {"is killed", "is stopped", "exits", "returns early",
                                                    "has no memory"};

enum { PATIENCE_S = 60 /* before a rank counts as hanging */ };

struct moment {
    unsigned seed;
    int number, size, victim;
    enum fault fault;
    bool early;   /* may strike while the ranks still meet */
    long wait_us; /* after the start, or after all ranks have called note_ready */
};

/* A rank's report at its end. */
struct told {
    cairn_status status;
    uint64_t at_ns;
    char text[1024];
    int new_descriptors; /* still open */
    char descriptors[2000];
};

static struct board {
    struct moment moment;
    atomic_int ready;
    atomic_ullong struck_ns;
    struct told told[MAX_RANKS];
} * board;

/* Call in main, before there are ranks. Returns false if out of memory. */
static inline bool make_board(void) {
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board != MAP_FAILED;
}

/* ---- a rank ---- */

static inline void note_ready(void) {
    atomic_fetch_add(&board->ready, 1);
}

static inline void note_strike(void) {
    atomic_store(&board->struck_ns, cairn__now_ns());
}

/* Reports the last error. */
static inline void tell(int rank, cairn_status status) {
    struct told *told = &board->told[rank];
    told->status = status;
    told->at_ns = cairn__now_ns();
    snprintf(told->text, sizeof(told->text), "%s", cairn_last_error());
}

/* ---- the parent ---- */

static inline bool is_victims_own(const struct moment *m) {
    return m->fault != KILL && m->fault != STOP;
}

static inline void strike(const struct processes *p, const struct moment *m) {
    const uint64_t deadline = cairn__now_ns() + PATIENCE_S * 1000000000ull;
    while (!m->early && atomic_load(&board->ready) < m->size && cairn__now_ns() < deadline) sleep_ms(1);
    if (is_victims_own(m)) return;
    nanosleep(&(struct timespec){.tv_sec = m->wait_us / 1000000, .tv_nsec = m->wait_us % 1000000 * 1000}, NULL);
    kill(p->pids[m->victim], m->fault == KILL ? SIGKILL : SIGSTOP);
    note_strike();
}

/* Kills ranks that do not end by themselves. */
static inline bool survivors_end(struct processes *p, const struct moment *m) {
    const uint64_t deadline = cairn__now_ns() + PATIENCE_S * 1000000000ull;
    bool all = true;
    for (int r = 0; r < p->size; r++) {
        int status = 0;
        pid_t ended = 0;
        if (r == m->victim) continue;
        while ((ended = waitpid(p->pids[r], &status, WNOHANG)) == 0 && cairn__now_ns() < deadline) sleep_ms(1);
        if (ended == 0) {
            kill(p->pids[r], SIGKILL);
            status = end_of(p, r);
        }
        all = all && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    kill(p->pids[m->victim], SIGKILL);
    (void)end_of(p, m->victim);
    return all;
}

static inline bool names_victim(const struct moment *m, const char *text) {
    char name[40];
    snprintf(name, sizeof(name), "rank %d", m->victim);
    return strstr(text, name) != NULL;
}

/* Judges the report of a rank other than the victim, given the time since the strike. Returns NULL, or what is
 * wrong. */
typedef const char *(*judge_fn)(const struct moment *m, const struct told *told, double seconds);

static inline void judge_all(const struct moment *m, bool ended_well, judge_fn judge, const char *story) {
    for (int r = 0; r < m->size; r++) {
        const struct told *told = &board->told[r];
        /* 0: the others have ended before the victim, which the parent then killed, noted its own failure. */
        const uint64_t struck_ns = atomic_load(&board->struck_ns);
        const double seconds = struck_ns ? ((double)told->at_ns - (double)struck_ns) * 1e-9 : 0;
        const char *wrong = r == m->victim ? NULL
                            : ended_well   ? judge(m, told, seconds)
                                           : "not all others ended well in time";
        if (!wrong) continue;
        if (told->new_descriptors > 0) print_error("its descriptors are %s\n", told->descriptors);
        fail_msg(
            "moment %d of seed %u on %s: rank %d of %d %s %.1f ms after %s; rank %d, %.2f s later: %s: CAIRN_%s: %s",
            m->number, m->seed, story, m->victim, m->size, fault_names[m->fault], (double)m->wait_us * 1e-3,
            m->early ? "the start" : "all were ready", r, seconds, wrong, cairn_status_name(told->status), told->text);
    }
}

/* story: describes where the fault happens. */
static inline void run_moment(const struct moment *m, process_fn fn, judge_fn judge, const char *story) {
    struct processes p;
    memset(board, 0, sizeof(*board));
    board->moment = *m;
    start_ranks(&p, m->size, -1, fn);
    strike(&p, m);
    const bool all = survivors_end(&p, m);
    cairn__store_stop(&p.server);
    judge_all(m, all, judge, story);
}

#endif
