/* Which examples of a dataset a rank trains on next: samplers.
 *
 * A dataset is n examples, numbered from 0; how they are read is the program's. A sampler hands out their numbers, an
 * epoch at a time, to each rank its own, in the order of torch.utils.data.distributed.DistributedSampler:
 *
 *     int64_t batch[BATCH];
 *     CHECK(cairn_distributed_sampler_create(n, cairn_group_rank(g), cairn_group_size(g), NULL, &sampler));
 *     for (int64_t epoch = 0; epoch < epochs; epoch++) {
 *         CHECK(cairn_sampler_set_epoch(sampler, epoch));
 *         while (cairn_sampler_next(sampler, batch, BATCH) == BATCH) train_on(batch);
 *     }
 *
 * Order     the n numbers in the epoch's order (shuffled, or 0, 1, 2, ...) are repeated from the start until the ranks
 *           divide them, or cut where drop_last is on; of what results, rank r of p takes the places r, r + p, r + 2p,
 *           ... All ranks have equally many, so they make equally many steps. With pad off nothing is repeated and
 *           nothing cut: the first n mod p ranks have one more. That is for evaluation, where no rank waits for another
 *           before the counts are added up (cairn/metrics.h); torch's sampler counts some examples twice there.
 * Shuffle   a function of seed, epoch and n alone, the same on every rank and machine; not torch's, whose bits are a
 *           Mersenne Twister's. To make it elsewhere: w is the stream of 32-bit words of Philox4x32-10 (SC11) with key
 *           seed and counters 2^127 + epoch * 2^64 + b, b = 0, 1, ..., four words each; order = 0, ..., n - 1; and
 *
 *               for i = n - 1, ..., 1:
 *                   take the next w until (w * (i + 1)) mod 2^32 >= 2^32 mod (i + 1)
 *                   swap order[i] with order[floor(w * (i + 1) / 2^32)]
 *
 *           All orders would be equally likely if the words were random. Sources: Fisher and Yates in R. Durstenfeld's
 *           form, Comm. ACM 7 (1964), algorithm 235; D. Lemire, "Fast Random Integer Generation in an Interval", ACM
 *           TOMACS 29 (2019), for the draw without bias.
 * Resuming  an epoch and a position are the whole state: cairn_sampler_set_epoch and cairn_sampler_seek restore it, and
 *           cairn_sampler_stateful makes it a part of a training's.
 *           Position k on each of p ranks means that the first k p places of the order have been handed out, so a run
 *           goes on with another number of ranks q at position k p / q, where that divides.
 * Threads   a sampler is used by one thread at a time; different ones are independent. It needs no environment. */
#ifndef CAIRN_DATA_H
#define CAIRN_DATA_H

#include "core.h"
#include "stateful.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_sampler cairn_sampler;

struct cairn_sampler_options {
    size_t struct_size;
    cairn_switch shuffle;   /* CAIRN_ON; off: 0, 1, 2, ... in every epoch */
    uint64_t seed;          /* of the shuffles; the same on every rank */
    cairn_switch drop_last; /* CAIRN_OFF: some are handed out twice where ranks do not divide n; on: some, not at all */
    cairn_switch pad;       /* CAIRN_ON; off, for evaluation: each example once, and some ranks get one fewer. Not with
                             * drop_last */
};
#define cairn_sampler_options(...) \
    (&(struct cairn_sampler_options){.struct_size = sizeof(struct cairn_sampler_options), __VA_ARGS__})

/* A sampler for one of several ranks, at the start of epoch 0.
 *
 *   n        examples, from 0; under 2^32 to be shuffled, up to 2^62 in order
 *   rank     this rank, from 0 to size - 1
 *   size     ranks: cairn_group_size, or those that divide the data among them, as in a group of data-parallel replicas
 *   options  NULL = all defaults; the same on every rank, or examples are left out and others repeated
 *
 * Length    ceil(n / size), by drop_last floor(n / size), on every rank; without drop_last a dataset smaller than size
 *           is repeated as often as it takes. With pad off ceil((n - rank) / size), which may be 0.
 * Errors    CAIRN_EINVAL; CAIRN_ENOMEM. Local: the ranks do not speak.
 * Cost      shuffled: 4 n bytes, and one read and write of them at random places an epoch; in order: nothing. */
CAIRN_API cairn_status cairn_distributed_sampler_create(int64_t n, int rank, int size,
                                                        const struct cairn_sampler_options *options,
                                                        cairn_sampler **out);

/* A sampler for all examples: of one rank alone. torch.utils.data.RandomSampler; SequentialSampler with shuffle off. */
CAIRN_API cairn_status cairn_sampler_create(int64_t n, const struct cairn_sampler_options *options,
                                            cairn_sampler **out);

CAIRN_API void cairn_sampler_destroy(cairn_sampler **sampler);

/* Begins an epoch, any from 0, at position 0, and shuffles for it; the same number again gives the same order again.
 * Call it on every rank before each epoch: an epoch that has come to its end does not start over by itself.
 * Errors: CAIRN_EINVAL NULL, or a negative epoch; nothing changed. Cost: the shuffle, no allocation. */
CAIRN_API cairn_status cairn_sampler_set_epoch(cairn_sampler *sampler, int64_t epoch);

/* Writes the next n of this rank's numbers to indices, each in [0, n of create), and returns how many: fewer at the end
 * of the epoch, where the last batch is not full, and then 0. It allocates nothing. NULL gives 0 and leaves the cause
 * in cairn_last_error. torch.utils.data.BatchSampler; its drop_last is a loop that ends at the first batch that is not
 * full. */
CAIRN_API size_t cairn_sampler_next(cairn_sampler *sampler, int64_t *indices, size_t n);

/* Goes to a position of the epoch: how many of this rank's numbers count as handed out, from 0 to the length.
 * Errors: CAIRN_EINVAL NULL, or a position outside; nothing changed. */
CAIRN_API cairn_status cairn_sampler_seek(cairn_sampler *sampler, int64_t position);

/* How many numbers this rank gets in an epoch, how many of them it has got, and the epoch it is in; 0 for NULL. */
CAIRN_API int64_t cairn_sampler_length(const cairn_sampler *sampler);
CAIRN_API int64_t cairn_sampler_position(const cairn_sampler *sampler);
CAIRN_API int64_t cairn_sampler_epoch(const cairn_sampler *sampler);

/* The sampler as a part of a training's state (stateful.h): epoch and position. On another number of ranks, q in the
 * place of p, position k becomes k p / q; where q does not divide k p the load is CAIRN_EINVAL, but at the end of an
 * epoch. CAIRN_EINVAL also for another n, seed or other options. Saving is always possible. */
CAIRN_API cairn_stateful cairn_sampler_stateful(cairn_sampler *sampler);

#ifdef __cplusplus
}
#endif

#endif
