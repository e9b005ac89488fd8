/* Scans an untrusted JSON text before jansson reads it. jansson's limit of depth depends on its build, and it has no
 * limit of memory, of which it may need up to 80 times the text ("{},{},..."). */
#ifndef CAIRN__STATE_JSON_SCAN_H
#define CAIRN__STATE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

struct cairn__json_scan {
    int depth;      /* of nested objects and arrays */
    size_t longest; /* elements of the longest array that contains no objects and arrays */
    bool is_costly; /* jansson would need more than 12 times the text and 64 MiB; names of tensors need 5 to 14 times */
};

/* Ignores brackets in strings. The text need not be valid JSON. */
struct cairn__json_scan cairn__json_scan(const char *text, size_t nbytes);

#endif
