#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/printable.h"

void *must(void *p) {
    static const char sentence[] = "cairn-run: memory ran out\n";
    if (p) return p;
    ssize_t ignored = write(STDERR_FILENO, sentence, sizeof(sentence) - 1);
    (void)ignored;
    exit(1);
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* If poll reports a pipe as writable, a write of up to PIPE_BUF bytes does not block. */
long write_some(int fd, const char *bytes, size_t n, double seconds) {
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    if (poll(&ready, 1, (int)(seconds * 1e3)) <= 0) return 0;
    ssize_t written = write(fd, bytes, n < PIPE_BUF ? n : PIPE_BUF);
    if (written >= 0) return (long)written;
    return errno == EAGAIN || errno == EINTR ? 0 : -1;
}

void say_text(const char *text) {
    static double patience = 5; /* seconds; 0 after stderr has taken nothing for that long */
    long n = (long)strlen(text), written = 1;
    for (long at = 0; at < n && written > 0; at += written) {
        written = write_some(STDERR_FILENO, text + at, (size_t)(n - at), patience);
    }
    if (written == 0) patience = 0;
}

void say(const char *format, ...) {
    char *sentence = NULL;
    va_list args;
    va_start(args, format);
    const int length = vasprintf(&sentence, format, args);
    va_end(args);
    if (length < 0) return;
    const size_t most = 4 * (size_t)length + 64; /* "\x1b" for a byte */
    char *printable = malloc(most), *line = NULL;
    if (printable) cairn__write_printable(printable, most, sentence, true);
    if (printable && asprintf(&line, "cairn-run: %s\n", printable) >= 0) {
        say_text(line);
        free(line);
    }
    free(printable);
    free(sentence);
}

/* open() returns the lowest free number. */
void hold_standard_streams(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

char *format_text(const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) text = NULL;
    va_end(args);
    return must(text);
}

void free_texts(char **texts) {
    for (char **t = texts; texts && *t; t++) free(*t);
    free(texts);
}

/* ---- templates ---- */

static bool is_letter(char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Returns the length of the name at text; 0 = none. */
static size_t name_length(const char *text) {
    size_t n = 0;
    while (is_letter(text[n]) || (n > 0 && text[n] >= '0' && text[n] <= '9')) n++;
    return n;
}

static const char *find_value(const struct substitution *list, const char *name, size_t length) {
    for (; list->name; list++) {
        if (strncmp(list->name, name, length) == 0 && !list->name[length]) return list->value;
    }
    return NULL;
}

/* Returns the length of the placeholder at text, which is a '$'. *value: its replacement, NULL = none. */
static size_t read_mark(const char *text, const struct substitution *list, const char **value) {
    bool braced = text[1] == '{';
    const char *name = text + 1 + braced;
    size_t length = name_length(name);
    *value = NULL;
    if (text[1] == '$') {
        *value = "$";
        return 2;
    }
    if (length == 0 || (braced && name[length] != '}')) return 1;
    *value = find_value(list, name, length);
    return 1 + length + (braced ? 2 : 0);
}

char *substitute(const char *template, const struct substitution *list) {
    char *out = NULL;
    size_t nbytes = 0;
    FILE *stream = must(open_memstream(&out, &nbytes));
    while (*template) {
        const char *value = NULL;
        size_t n = *template == '$' ? read_mark(template, list, &value) : strcspn(template, "$");
        fwrite(value ? value : template, 1, value ? strlen(value) : n, stream);
        template += n;
    }
    if (fclose(stream) != 0) must(NULL);
    return out;
}
