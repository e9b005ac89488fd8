/* What a JSON text of strangers holds, before jansson reads it: its own limit of depth is one of its build, and it has
 * none of memory, of which it needs up to 80 times the text ("{},{},..."). */
#ifndef CAIRN__STATE_JSON_SCAN_H
#define CAIRN__STATE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

struct cairn__json_scan {
    int depth;      /* of objects and arrays in one another */
    size_t longest; /* elements of an array without objects and arrays in it */
    bool is_costly; /* jansson would need more than 12 times the text and 64 MiB; names of tensors need 5 to 14 times */
};

/* Brackets in strings do not count. The text may be broken: what is found then is what stands in it. */
struct cairn__json_scan cairn__json_scan(const char *text, size_t nbytes);

#endif
