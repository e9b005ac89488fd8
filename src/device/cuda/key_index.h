/* A set-associative index of keys, of what a library's algorithm is chosen for: each key has a place, whose content is
 * the caller's. A new key replaces the least recently used one of its set. Pure logic: no CUDA here. */
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

/* The key's place. *found: it had one already; otherwise the caller replaces the content. Keys are compared as bytes:
 * they have no padding, and nbytes is a multiple of 8. keys: nbytes for each place, the index's own. */
size_t cairn__index_find(struct cairn__key_index *index, void *keys, const void *key, size_t nbytes, bool *found);

#endif
