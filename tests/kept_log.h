/* Keeps Cairn's log messages, one per line: cairn_set_log(keep_log, NULL) keeps notices and above, keep_whole_log keeps
 * all levels. Threads may log at the same time. */
#ifndef TESTS_KEPT_LOG_H
#define TESTS_KEPT_LOG_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cairn/core.h"

static char log_text[8192];

static inline void keep_whole_log(void *cookie, cairn_log_level level, const char *message) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)cookie, (void)level;
    pthread_mutex_lock(&lock);
    const size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof(log_text) - used, "%s\n", message);
    pthread_mutex_unlock(&lock);
}

static inline void keep_log(void *cookie, cairn_log_level level, const char *message) {
    if (level <= CAIRN_LOG_NOTICE) keep_whole_log(cookie, level, message);
}

#endif
