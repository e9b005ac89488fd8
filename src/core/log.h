/* The log: one message a line, to the user's callback or to stderr. */
#ifndef CAIRN__CORE_LOG_H
#define CAIRN__CORE_LOG_H

#include "cairn/core.h"

/* Formats and sends a message, unless CAIRN_LOG excludes its level. Any thread. */
void cairn__log(cairn_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Tells the default sink which rank this process is; ranks above 0 print errors only. */
void cairn__log_set_rank(int rank);

#endif
