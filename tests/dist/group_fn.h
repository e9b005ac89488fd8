/* How a rank reports, be it a thread or a process: EXPECT returns a sentence from the function it stands in. */
#ifndef TESTS_DIST_EXPECT_H
#define TESTS_DIST_EXPECT_H

#include <stdio.h>
#include <stdlib.h>

#include "cairn/dist.h"

/* NULL when all went well; otherwise a sentence, made with malloc. */
typedef char *(*group_fn)(cairn_group *group, void *ctx);

static inline char *group_failure(const char *file, int line, const char *what, const cairn_group *group) {
    char *text = malloc(2048);
    snprintf(text, 2048, "%s:%d: rank %d of %d: %s (last error: %s)", file, line, cairn_group_rank(group),
             cairn_group_size(group), what, cairn_last_error());
    return text;
}

#define EXPECT(condition)                                                              \
    do {                                                                               \
        if (!(condition)) return group_failure(__FILE__, __LINE__, #condition, group); \
    } while (0)
#define EXPECT_OK(call) EXPECT((call) == CAIRN_OK)
/* For helpers that return such a sentence themselves. */
#define EXPECT_FINE(call)              \
    do {                               \
        char *sentence = (call);       \
        if (sentence) return sentence; \
    } while (0)

#endif
