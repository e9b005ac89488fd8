/* How the tools end on an error. */
#ifndef COMMON_SAY_H
#define COMMON_SAY_H

#include <stdbool.h>

/* The tool's name, which its main file defines: "cairn-plan". */
extern const char program_name[];

/* "cairn-plan: ..." as one line on stderr; false, for callers to return. */
__attribute__((format(printf, 1, 2))) bool refuse(const char *format, ...);

/* Ends the program if memory has run out. */
void *must(void *p);

/* A copy that is valid in JSON and XML and printable in a terminal: bytes that are not UTF-8, and control
 * characters, become '?'. */
char *clean_text(const char *text);

#endif
