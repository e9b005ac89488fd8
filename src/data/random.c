/* Random numbers of an example: a stream of words determined by seed, epoch and index. */
#include <string.h>

#include "cairn/loader.h"
#include "data/words.h"

static struct cairn__words load(const struct cairn_random *random) {
    struct cairn__words w;
    memcpy(&w, random->state, sizeof(w));
    return w;
}

static void store(struct cairn_random *random, const struct cairn__words *w) {
    _Static_assert(sizeof(*w) <= sizeof(random->state), "a stream of words has room in cairn_random");
    memcpy(random->state, w, sizeof(*w));
}

/* The two top bits of the counter are set, which counters of samplers and tensors never have. */
void cairn_random_begin(struct cairn_random *random, uint64_t seed, int64_t epoch, int64_t index) {
    const uint64_t place = (uint64_t)index, turn = (uint64_t)epoch & (((uint64_t)1 << 30) - 1);
    const struct cairn__words w = {.key = seed,
                                   .low = place << 32,
                                   .high = (uint64_t)3 << 62 | turn << 32 | place >> 32};
    *random = (struct cairn_random){{0}};
    store(random, &w);
}

uint32_t cairn_random_word(struct cairn_random *random) {
    struct cairn__words w = load(random);
    const uint32_t word = cairn__words_next(&w);
    store(random, &w);
    return word;
}

float cairn_random_uniform(struct cairn_random *random) {
    return cairn__uniform(cairn_random_word(random));
}

uint32_t cairn_random_below(struct cairn_random *random, uint32_t bound) {
    struct cairn__words w = load(random);
    if (bound == 0) return 0;
    const uint32_t number = cairn__words_below(&w, bound);
    store(random, &w);
    return number;
}
