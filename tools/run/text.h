/* Sentences and texts of cairn-run. */
#ifndef RUN_TEXT_H
#define RUN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* "cairn-run: ..." as one line on stderr, in one write. It is dropped if stderr is closed, or takes nothing for some
 * seconds. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* The same for a finished text. */
void say_text(const char *text);

/* Ends cairn-run if memory has run out. */
void *must(void *p);

/* Made with malloc. */
__attribute__((format(printf, 1, 2))) char *format_text(const char *format, ...);

/* Frees an array of texts that NULL ends, and the texts. */
void free_texts(char **texts);

/* A name in a template and its value; a NULL name ends a list. */
struct substitution {
    const char *name, *value;
};

/* Python's string.Template(template).safe_substitute: $name and ${name} of the list are replaced, $$ is $, anything
 * else stays. Made with malloc. */
char *substitute(const char *template, const struct substitution *list);

/* Seconds of the monotonic clock. */
double now(void);

/* The number of n bytes that fd takes without blocking, waiting at most `seconds` until it takes any; 0 = none, -1 =
 * closed. */
long write_some(int fd, const char *bytes, size_t n, double seconds);

/* Opens /dev/null for closed ones of stdin, stdout and stderr, so that no file opened later takes their numbers. */
void hold_standard_streams(void);

#endif
