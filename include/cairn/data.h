/* Samplers: which examples of a dataset a rank trains on next.
 *
 * A dataset is n examples, numbered from 0; the program reads them. A sampler returns the indices of an epoch, each
 * rank's own share, in the order of torch.utils.data.distributed.DistributedSampler:
 *
 *     int64_t batch[BATCH];
 *     CHECK(cairn_distributed_sampler_create(n, cairn_group_rank(g), cairn_group_size(g), NULL, &sampler));
 *     for (int64_t epoch = 0; epoch < epochs; epoch++) {
 *         CHECK(cairn_sampler_set_epoch(sampler, epoch));
 *         while (cairn_sampler_next(sampler, batch, BATCH) == BATCH) train_on(batch);
 *     }
 *
 * Order     the n indices in the epoch's order (shuffled, or 0, 1, 2, ...) are repeated from the start until the number
 *           of ranks divides them, or truncated with drop_last; of the result, rank r of p takes places r, r + p, r +
 *           2p, ... So all ranks have the same number of examples and make the same number of steps. With pad off
 *           nothing is repeated or truncated: the first n mod p ranks have one more. Use that for evaluation, where no
 *           rank waits for another before the counts are reduced (cairn/metrics.h); torch's sampler counts some
 *           examples twice there.
 * Shuffle   depends on seed, epoch and n only, and is the same on every rank and machine. It differs from torch's,
 *           which uses a Mersenne Twister. To reproduce it: w is the stream of 32-bit words of Philox4x32-10 (SC11)
 *           with key seed and counters 2^127 + epoch * 2^64 + b, b = 0, 1, ..., four words each; order = 0, ..., n - 1;
 *           and
 *
 *               for i = n - 1, ..., 1:
 *                   take the next w until (w * (i + 1)) mod 2^32 >= 2^32 mod (i + 1)
 *                   swap order[i] with order[floor(w * (i + 1) / 2^32)]
 *
 *           If the words were random, all orders would be equally likely. Sources: Fisher and Yates in R. Durstenfeld's
 *           form, Comm. ACM 7 (1964), algorithm 235; D. Lemire, "Fast Random Integer Generation in an Interval", ACM
 *           TOMACS 29 (2019), for the unbiased draw.
 * Resuming  epoch and position are the whole state: restore them with cairn_sampler_set_epoch and cairn_sampler_seek,
 *           or save the sampler in a checkpoint with cairn_sampler_stateful. Position k on each of p ranks means that
 *           the first k p places of the order are done, so a run can continue on q ranks at position k p / q, if that
 *           is an integer.
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
    cairn_switch shuffle;   /* default CAIRN_ON; off: 0, 1, 2, ... in every epoch */
    uint64_t seed;          /* of the shuffles; the same on every rank */
    cairn_switch drop_last; /* default CAIRN_OFF; where ranks do not divide n: off repeats examples, on omits some */
    cairn_switch pad;       /* default CAIRN_ON; off, for evaluation: each example once, and some ranks get one fewer.
                             * Not with drop_last */
};
#define cairn_sampler_options(...) \
    (&(struct cairn_sampler_options){.struct_size = sizeof(struct cairn_sampler_options), __VA_ARGS__})

/* Makes a sampler for one of several ranks, at the start of epoch 0.
 *
 *   n        number of examples, from 0; below 2^32 if shuffled, otherwise at most 2^62
 *   rank     this rank, from 0 to size - 1
 *   size     the number of ranks that divide the data: cairn_group_size, or that of a group of data-parallel replicas
 *   options  NULL = all defaults; must be the same on every rank, or some examples are missed and others repeated
 *
 * Length    ceil(n / size), with drop_last floor(n / size), on every rank; without drop_last a dataset smaller than
 *           size is repeated as often as needed. With pad off ceil((n - rank) / size), which may be 0.
 * Errors    CAIRN_EINVAL; CAIRN_ENOMEM. Not collective.
 * Cost      shuffled: 4 n bytes, and for each epoch one read and write of them at random places; unshuffled:
 *           nothing. */
CAIRN_API cairn_status cairn_distributed_sampler_create(int64_t n, int rank, int size,
                                                        const struct cairn_sampler_options *options,
                                                        cairn_sampler **out);

/* Makes a sampler of all examples, for a single rank. torch.utils.data.RandomSampler; SequentialSampler with shuffle
 * off. */
CAIRN_API cairn_status cairn_sampler_create(int64_t n, const struct cairn_sampler_options *options,
                                            cairn_sampler **out);

CAIRN_API void cairn_sampler_destroy(cairn_sampler **sampler);

/* Starts an epoch, any number from 0, at position 0, and shuffles for it; the same number gives the same order again.
 * Call it on every rank before each epoch: a finished epoch does not restart by itself.
 * Errors: CAIRN_EINVAL NULL, or a negative epoch; nothing changed. Cost: the shuffle, no allocation. */
CAIRN_API cairn_status cairn_sampler_set_epoch(cairn_sampler *sampler, int64_t epoch);

/* Writes this rank's next n indices, each in [0, n of create), to indices and returns their number: fewer for the last,
 * incomplete batch of an epoch, then 0. Allocates nothing. For NULL it returns 0, with the cause in cairn_last_error.
 * torch.utils.data.BatchSampler; for its drop_last, end the loop at the first incomplete batch. */
CAIRN_API size_t cairn_sampler_next(cairn_sampler *sampler, int64_t *indices, size_t n);

/* Moves to a position of the epoch: the number of this rank's indices that count as returned, from 0 to the length.
 * Errors: CAIRN_EINVAL NULL, or a position outside; nothing changed. */
CAIRN_API cairn_status cairn_sampler_seek(cairn_sampler *sampler, int64_t position);

/* The number of this rank's indices in an epoch, the number returned so far, and the current epoch; 0 for NULL. */
CAIRN_API int64_t cairn_sampler_length(const cairn_sampler *sampler);
CAIRN_API int64_t cairn_sampler_position(const cairn_sampler *sampler);
CAIRN_API int64_t cairn_sampler_epoch(const cairn_sampler *sampler);

/* The sampler's state for a checkpoint (stateful.h): epoch and position. Saved on p ranks and loaded on q, position k
 * becomes k p / q; if q does not divide k p, loading returns CAIRN_EINVAL, except at the end of an epoch. It also
 * returns CAIRN_EINVAL for another n, seed or other options. Saving is always possible. */
CAIRN_API cairn_stateful cairn_sampler_stateful(cairn_sampler *sampler);

#ifdef __cplusplus
}
#endif

#endif
