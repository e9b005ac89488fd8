/* The log: one message a line, to the user's callback or to stderr. */
#ifndef CAIRN__CORE_LOG_H
#define CAIRN__CORE_LOG_H

#include "cairn/core.h"

/* Formats and sends a message, unless CAIRN_LOG excludes its level. Any thread. */
void cairn__log(cairn_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Tells the default sink which rank this process is; ranks above 0 print errors only. */
void cairn__log_set_rank(int rank);

/* The same for the calling thread alone, a rank or its helper. CAIRN__LOG_RANK_OF_PROCESS: as the process again. */
enum { CAIRN__LOG_RANK_OF_PROCESS = -1 };
void cairn__log_set_thread_rank(int rank);
int cairn__log_thread_rank(void);

/* From here on lines of this rank, of the process or of one of its threads, say its place in a grid: the one that was
 * given last, until that is left. Any thread. */
enum { CAIRN__LOG_PLACES = 256 };
void cairn__log_enter_place(int rank, int replica, int stage);
void cairn__log_leave_place(int rank, int replica, int stage);

#endif
