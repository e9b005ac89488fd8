/* Streams of random words for samplers and examples: the output of Philox for a key, from a counter on. */
#ifndef CAIRN__DATA_WORDS_H
#define CAIRN__DATA_WORDS_H

#include "core/philox.h"

struct cairn__words {
    uint64_t key, low, high; /* of the next block */
    struct cairn__philox_block block;
    int left;
};

static inline uint32_t cairn__words_next(struct cairn__words *w) {
    if (w->left == 0) {
        w->block = cairn__philox(w->key, w->low++, w->high);
        w->left = 4;
    }
    return w->block.word[4 - w->left--];
}

/* Uniform in [0, bound), bound > 0: rejects words of the last, incomplete part of their range. */
static inline uint32_t cairn__words_below(struct cairn__words *w, uint32_t bound) {
    const uint32_t rest = (0u - bound) % bound; /* 2^32 mod bound */
    uint64_t product;
    do {
        product = (uint64_t)cairn__words_next(w) * bound;
    } while ((uint32_t)product < rest);
    return (uint32_t)(product >> 32);
}

#endif
