/* Prints the indices that samplers return, one line per rank and epoch, for test_samplers.py:
 * n size rank drop_last shuffle seed epoch: indices */
#include <cairn/cairn.h>

#include <inttypes.h>
#include <stdio.h>

enum { MAX_EXAMPLES = 41, MAX_RANKS = 8, EPOCHS = 2 };

struct how {
    int64_t n;
    int size, rank;
    struct cairn_sampler_options options;
};

static int print(struct how how) {
    cairn_sampler *s;
    int64_t index;
    if (cairn_distributed_sampler_create(how.n, how.rank, how.size, &how.options, &s) != CAIRN_OK) return 1;
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        if (cairn_sampler_set_epoch(s, epoch) != CAIRN_OK) return 1;
        printf("%" PRId64 " %d %d %d %d %" PRIu64 " %" PRId64 ":", how.n, how.size, how.rank,
               how.options.drop_last == CAIRN_ON, how.options.shuffle == CAIRN_ON, how.options.seed, epoch);
        while (cairn_sampler_next(s, &index, 1) == 1) printf(" %" PRId64, index);
        printf("\n");
    }
    cairn_sampler_destroy(&s);
    return 0;
}

static int print_ranks(int64_t n, int size) {
    int bad = 0;
    for (int r = 0; r < size; r++)
        for (int way = 0; way < 4; way++)
            bad |= print((struct how){n, size, r,
                                      *cairn_sampler_options(.shuffle = way & 1 ? CAIRN_ON : CAIRN_OFF,
                                                             .drop_last = way & 2 ? CAIRN_ON : CAIRN_OFF,
                                                             .seed = (uint64_t)size)});
    return bad;
}

int main(void) {
    int bad = 0;
    for (int64_t n = 0; n <= MAX_EXAMPLES; n++)
        for (int size = 1; size <= MAX_RANKS; size++) bad |= print_ranks(n, size);
    bad |= print((struct how){10007, 1, 0, *cairn_sampler_options(.shuffle = CAIRN_ON, .seed = UINT64_MAX)});
    if (bad) fprintf(stderr, "%s\n", cairn_last_error());
    return bad;
}
