/* How cairn-plan ends on an error. */
#ifndef PLAN_SAY_H
#define PLAN_SAY_H

#include <stdbool.h>

/* "cairn-plan: ..." as one line on stderr; false, for callers to return. */
__attribute__((format(printf, 1, 2))) bool refuse(const char *format, ...);

/* Ends cairn-plan if memory has run out. */
void *must(void *p);

/* A copy that is valid in JSON and XML and printable in a terminal: bytes that are not UTF-8, and control
 * characters, become '?'. */
char *clean_text(const char *text);

#endif
