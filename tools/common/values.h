/* Parsing of option values. */
#ifndef COMMON_VALUES_H
#define COMMON_VALUES_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_VALUES = 64 };

/* Each function reads a value at *text and advances *text past it; returns false if there is none. */
typedef bool (*read_fn)(const char **text, size_t *value);

bool read_whole(const char **text, size_t most, size_t *value);
bool read_bytes(const char **text, size_t *value); /* 4096, 64K, 25M, 1G; at most 2^50, and never 0 */

/* Reads the whole text: one value, or up to MAX_VALUES values separated by commas. */
bool read_list(const char *text, read_fn read, size_t *values, size_t *count);
bool read_one(const char *text, read_fn read, size_t *value);

#endif
