#include "device/cuda/key_index.h"

#include <string.h>

#include "core/hash.h"

static uint64_t hash(const void *key, size_t nbytes) {
    uint64_t h = CAIRN__HASH_START;
    for (size_t i = 0; i < nbytes; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)key + i, sizeof(word));
        h = cairn__hash_word(h, word);
        h ^= h >> 32; /* words at a time, so that high bits must be brought down */
    }
    return h;
}

size_t cairn__index_find(struct cairn__key_index *index, void *keys, const void *key, size_t nbytes, bool *found) {
    const size_t first = hash(key, nbytes) % CAIRN__INDEX_SETS * CAIRN__INDEX_WAYS;
    size_t oldest = first;
    for (size_t i = first; i < first + CAIRN__INDEX_WAYS; i++) {
        if (index->used[i] && memcmp((char *)keys + i * nbytes, key, nbytes) == 0) {
            index->used[i] = ++index->now;
            *found = true;
            return i;
        }
        if (index->used[i] < index->used[oldest]) oldest = i;
    }
    memcpy((char *)keys + oldest * nbytes, key, nbytes);
    index->used[oldest] = ++index->now;
    *found = false;
    return oldest;
}
