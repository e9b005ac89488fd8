/* Sentences and texts of cairn-run. */
#ifndef RUN_TEXT_H
#define RUN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* "cairn-run: ..." as one line on stderr, in one write. A stderr that is closed, or that takes nothing for some
 * seconds, does not get it. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* The same for a text that is whole. */
void say_text(const char *text);

/* Ends cairn-run where memory ran out. */
void *must(void *p);

/* Made with malloc. */
__attribute__((format(printf, 1, 2))) char *format_text(const char *format, ...);

/* Frees an array of texts that NULL ends, and the texts. */
void free_texts(char **texts);

/* A name that a template may hold, and what it stands for; a NULL name ends a list of them. */
struct substitution {
    const char *name, *value;
};

/* Python's string.Template(template).safe_substitute: $name and ${name} of the list are replaced, $$ is $, anything
 * else stays. Made with malloc. */
char *substitute(const char *template, const struct substitution *list);

/* Seconds of the monotonic clock. */
double now(void);

/* What fd takes of n bytes without blocking, waiting at most `seconds` until it takes any; 0 = nothing, -1 = closed. */
long write_some(int fd, const char *bytes, size_t n, double seconds);

/* Makes what is closed of stdin, stdout and stderr /dev/null, so that nothing opened later takes their places. */
void hold_standard_streams(void);

#endif
