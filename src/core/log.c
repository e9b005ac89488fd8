/* The log sink is process-wide state by intent: the program decides where the library's messages go. */
#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/printable.h"
#include "core/vars.h"

static const char *const level_names[] = {
    [CAIRN_LOG_ERROR] = "error", [CAIRN_LOG_WARNING] = "warning", [CAIRN_LOG_NOTICE] = "notice",
    [CAIRN_LOG_INFO] = "info",   [CAIRN_LOG_DEBUG] = "debug",
};

static atomic_int sink_rank;
static _Thread_local int thread_rank = CAIRN__LOG_RANK_OF_PROCESS;
static atomic_int threshold; /* 0 = CAIRN_LOG not read yet */
static cairn_log_fn user_sink;
static void *user_cookie;

enum { STAGE_BITS = 16 };
static atomic_uint places[CAIRN__LOG_PLACES]; /* by rank: 1 + the replica and the stage; 0 = in no grid */

static int read_threshold(void) {
    const char *wanted = cairn__var("CAIRN_LOG");
    int level = 0;
    for (int i = CAIRN_LOG_ERROR; wanted && i <= CAIRN_LOG_DEBUG; i++) {
        if (strcmp(wanted, level_names[i]) == 0) level = i;
    }
    const bool is_unknown = wanted && !level;
    if (!level) level = CAIRN_LOG_NOTICE;
    const bool is_first = atomic_exchange(&threshold, level) == 0;
    if (is_unknown && is_first) {
        cairn__log(CAIRN_LOG_WARNING, "CAIRN_LOG='%s' is none of error, warning, notice, info, debug and is ignored",
                   wanted);
    }
    return level;
}

void cairn_set_log(cairn_log_fn fn, void *cookie) {
    user_sink = fn;
    user_cookie = cookie;
}

void cairn__log_set_rank(int rank) {
    atomic_store(&sink_rank, rank);
}

void cairn__log_set_thread_rank(int rank) {
    thread_rank = rank;
}

int cairn__log_thread_rank(void) {
    return thread_rank;
}

static unsigned word_of(int replica, int stage) {
    return 1 + ((unsigned)replica << STAGE_BITS | (unsigned)stage);
}

void cairn__log_enter_place(int rank, int replica, int stage) {
    if (rank >= 0 && rank < CAIRN__LOG_PLACES) atomic_store(&places[rank], word_of(replica, stage));
}

void cairn__log_leave_place(int rank, int replica, int stage) {
    unsigned word = word_of(replica, stage);
    if (rank >= 0 && rank < CAIRN__LOG_PLACES) (void)atomic_compare_exchange_strong(&places[rank], &word, 0);
}

static void print(cairn_log_level level, int rank, const char *message) {
    char who[64] = ""; /* "[rank 3] ", "[rank 3, replica 1, stage 1] "; "" of rank 0 in no grid */
    const unsigned word = rank >= 0 && rank < CAIRN__LOG_PLACES ? atomic_load(&places[rank]) : 0;
    if (word) {
        snprintf(who, sizeof(who), "[rank %d, replica %u, stage %u] ", rank, (word - 1) >> STAGE_BITS,
                 (word - 1) & ((1u << STAGE_BITS) - 1));
    } else if (rank > 0) {
        snprintf(who, sizeof(who), "[rank %d] ", rank);
    }
    if (level == CAIRN_LOG_NOTICE) fprintf(stderr, "cairn: %s%s\n", who, message);
    else fprintf(stderr, "cairn: %s%s: %s\n", who, level_names[level], message);
}

void cairn__log(cairn_log_level level, const char *format, ...) {
    int limit = atomic_load(&threshold);
    if ((int)level > (limit ? limit : read_threshold())) return;

    char text[2048], message[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    cairn__write_printable(message, sizeof(message), text, true); /* it may quote a stranger */

    const int rank = thread_rank == CAIRN__LOG_RANK_OF_PROCESS ? atomic_load(&sink_rank) : thread_rank;
    if (user_sink) {
        user_sink(user_cookie, level, message);
    } else if (rank == 0 || level == CAIRN_LOG_ERROR) {
        print(level, rank, message);
    }
}
