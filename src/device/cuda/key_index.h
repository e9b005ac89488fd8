/* A set-associative index of the problems for which a library's algorithm is chosen. Each key has a place; the caller
 * keeps the content. A new key replaces the least recently used one of its set. Pure logic, no CUDA calls. */
#ifndef CAIRN__DEVICE_CUDA_KEY_INDEX_H
#define CAIRN__DEVICE_CUDA_KEY_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN__INDEX_SETS = 64, CAIRN__INDEX_WAYS = 8, CAIRN__INDEX_PLACES = CAIRN__INDEX_SETS * CAIRN__INDEX_WAYS };

struct cairn__key_index {
    uint64_t used[CAIRN__INDEX_PLACES]; /* at the last use; 0 = free */
    uint64_t now;
};

/* The key's place. *found: whether it had one already; if not, the caller replaces the content. Keys are compared as
 * bytes: they must have no padding, and nbytes is a multiple of 8. keys: nbytes for each place, used by the index. */
size_t cairn__index_find(struct cairn__key_index *index, void *keys, const void *key, size_t nbytes, bool *found);

#endif
