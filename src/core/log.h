/* The log: one message per line, sent to the user's callback or to stderr. */
#ifndef CAIRN__CORE_LOG_H
#define CAIRN__CORE_LOG_H

#include "cairn/core.h"

/* Formats and sends a message, unless CAIRN_LOG excludes its level. Any thread. */
void cairn__log(cairn_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sets the process's rank for the default sink, which prints only errors of ranks above 0. */
void cairn__log_set_rank(int rank);

/* Sets the rank of the calling thread only, which is a rank or a helper of one. CAIRN__LOG_RANK_OF_PROCESS: back to the
 * process's rank. */
enum { CAIRN__LOG_RANK_OF_PROCESS = -1 };
void cairn__log_set_thread_rank(int rank);
int cairn__log_thread_rank(void);

/* Between enter and leave, log lines of this rank (the process or one of its threads) show its place in a grid, the one
 * entered last. Any thread. */
enum { CAIRN__LOG_PLACES = 256 };
void cairn__log_enter_place(int rank, int replica, int stage);
void cairn__log_leave_place(int rank, int replica, int stage);

#endif
