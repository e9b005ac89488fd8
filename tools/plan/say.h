/* How cairn-plan ends where it cannot go on. */
#ifndef PLAN_SAY_H
#define PLAN_SAY_H

#include <stdbool.h>

/* "cairn-plan: ..." as one line on stderr; false, for callers to return. */
__attribute__((format(printf, 1, 2))) bool refuse(const char *format, ...);

/* Ends cairn-plan where memory ran out. */
void *must(void *p);

/* A copy that JSON and XML can hold and a terminal can show: what is no UTF-8, or a control character, becomes '?'. */
char *clean_text(const char *text);

#endif
