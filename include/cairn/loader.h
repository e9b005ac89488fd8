/* Batches for training, read ahead by threads: datasets and loaders.
 *
 * A dataset is a number of examples and a function that reads one of them. An example is a short list of fields: arrays
 * with a type and a shape, as a picture and its class. A loader takes the numbers that a sampler hands out (data.h),
 * has worker threads read these examples and put each batch of them together, and hands out batches in the sampler's
 * order, as tensors of an environment. torch.utils.data.DataLoader:
 *
 *     CAIRN_CHECK(cairn_npy_dataset_create((const char *const[]){"x.npy", "y.npy"}, 2, &dataset));     datasets.h
 *     CAIRN_CHECK(cairn_distributed_sampler_create(cairn_dataset_count(dataset), rank, ranks, NULL, &sampler));
 *     CAIRN_CHECK(cairn_loader_create(env, dataset, sampler, 32, cairn_loader_options(.workers = 2), &loader));
 *     for (int64_t epoch = 0; epoch < epochs; epoch++) {
 *         CAIRN_CHECK(cairn_sampler_set_epoch(sampler, epoch));
 *         for (;;) {
 *             CAIRN_CHECK(cairn_loader_next(loader, &batch));
 *             if (!batch) break;
 *             train_on(batch->tensors[0], batch->tensors[1]);
 *         }
 *     }
 *
 * Position   is the sampler's: it moves by the examples that cairn_loader_next has handed out and not by those that are
 *            read ahead. So cairn_sampler_position is right between two calls; what moves the sampler (set_epoch,
 *            seek, a load) moves the loader; and the sampler's state is the loader's. One loader at a time uses a
 *            sampler.
 * Bits       of a batch are a function of the dataset, the numbers, seed and epoch: not of the number of workers, of
 *            ranks, of restarts, or of which thread was first.
 * Memory     is prefetch batches, and the examples of one more for each worker. It is reused: once the largest batch
 *            has been seen, no call allocates, but for tensors where shapes change. */
#ifndef CAIRN_LOADER_H
#define CAIRN_LOADER_H

#include "core.h"
#include "data.h"
#include "env.h"
#include "stateful.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- fields: what an example is, and a batch ---- */

#define CAIRN_MAX_FIELDS 16

typedef struct cairn_fields cairn_fields;

struct cairn_field {
    const void *data; /* in row-major order, 64-byte aligned */
    size_t nbytes;
    cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
};

/* Adds a field and gives its memory, for the caller to fill: undefined until then, and owned by fields. It stays where
 * it is while others are added. An example's fields are cleared by the loader; their memory is reused.
 *
 *   shape  [ndim]; none is negative. ndim 0 and NULL: one value, as a class
 *
 * Errors: CAIRN_EINVAL dtype, shape, or more than CAIRN_MAX_FIELDS; CAIRN_ENOMEM. Cost: none where the memory
 * suffices. */
CAIRN_API cairn_status cairn_fields_add(cairn_fields *fields, cairn_dtype dtype, int ndim, const int64_t *shape,
                                        void **data);

/* The same with values, which are copied, and with one integer as i64. */
CAIRN_API cairn_status cairn_fields_add_values(cairn_fields *fields, cairn_dtype dtype, int ndim, const int64_t *shape,
                                               const void *values);
CAIRN_API cairn_status cairn_fields_add_i64(cairn_fields *fields, int64_t value);

/* How many there are, and one of them: NULL where there is none. It is valid until fields are added, cleared or
 * destroyed. */
CAIRN_API int cairn_fields_count(const cairn_fields *fields);
CAIRN_API const struct cairn_field *cairn_fields_at(const cairn_fields *fields, int i);

/* For programs that read a dataset without a loader: no fields at first. Errors: CAIRN_EINVAL, CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_fields_create(cairn_fields **out);
CAIRN_API void cairn_fields_clear(cairn_fields *fields);
CAIRN_API void cairn_fields_destroy(cairn_fields **fields);

/* ---- random numbers of an example ---- */

/* A stream of random numbers for one example in one epoch, for crops and flips. */
struct cairn_random {
    uint64_t state[8]; /* Cairn's own */
};

/* Starts the stream that a loader with this seed hands to the example in the epoch. Its words are those of
 * Philox4x32-10 (SC11) with key seed and counters 2^127 + 2^126 + (epoch mod 2^30) * 2^96 + index * 2^32 + b, b = 0, 1,
 * ..., 2^32 - 1, four words each: other numbers than those of samplers and tensors. epoch and index: from 0. */
CAIRN_API void cairn_random_begin(struct cairn_random *random, uint64_t seed, int64_t epoch, int64_t index);

/* The next word; uniform in [0, 1) of its upper 24 bits; a uniform whole number below bound, without bias, by Lemire's
 * rule as in data.h (0 where bound is 0, which takes no word). */
CAIRN_API uint32_t cairn_random_word(struct cairn_random *random);
CAIRN_API float cairn_random_uniform(struct cairn_random *random);
CAIRN_API uint32_t cairn_random_below(struct cairn_random *random, uint32_t bound);

/* ---- datasets ---- */

typedef struct cairn_dataset cairn_dataset;

/* Puts n examples together: adds the fields of a batch, whose tensors have these types and shapes. Called by several
 * threads at a time. ctx: a dataset's self, or cairn_loader_options.collate_ctx. */
typedef cairn_status (*cairn_collate_fn)(void *ctx, const cairn_fields *const *examples, size_t n, cairn_fields *batch);

/* What a dataset does. Functions that fail return what cairn_dataset_fail returns, so that there is a sentence. They
 * may not call what uses an environment: that is another thread's. */
struct cairn_dataset_functions {
    size_t struct_size;
    /* Adds the fields of example index, in [0, count), to example, which is empty. Called by several threads at a
     * time. random: the example's own numbers; what is drawn by it alone is the same for any number of workers. */
    cairn_status (*read)(void *self, int64_t index, struct cairn_random *random, cairn_fields *example);
    cairn_collate_fn collate;    /* (optional: NULL = cairn_collate_stack) */
    void (*destroy)(void *self); /* (optional: NULL = nothing to do) */
};
#define cairn_dataset_functions(...) \
    (&(struct cairn_dataset_functions){.struct_size = sizeof(struct cairn_dataset_functions), __VA_ARGS__})

/* A dataset of the program's own.
 *
 *   self       what its functions get; the dataset's from here on, where the call succeeds: destroy ends it
 *   count      examples, from 0
 *   functions  copied
 *
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM: self is still the caller's. Threads: cairn_dataset_read may be called by several
 * at a time. */
CAIRN_API cairn_status cairn_dataset_create(void *self, int64_t count, const struct cairn_dataset_functions *functions,
                                            cairn_dataset **out);

/* After every loader that uses it. */
CAIRN_API void cairn_dataset_destroy(cairn_dataset **dataset);

/* 0 for NULL. */
CAIRN_API int64_t cairn_dataset_count(const cairn_dataset *dataset);

/* Reads one example, for datasets that are made of others, and for looking at one. Errors: CAIRN_EINVAL an index that
 * is not there; what the dataset reports. example has fields of no meaning then. */
CAIRN_API cairn_status cairn_dataset_read(const cairn_dataset *dataset, int64_t index, struct cairn_random *random,
                                          cairn_fields *example);

/* Sets this thread's last error to the formatted sentence and returns status: for functions of the program's own. */
CAIRN_API cairn_status cairn_dataset_fail(cairn_status status, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* ---- collate functions ---- */

/* Field i of the batch is field i of the examples, one behind the other: [n] + shape. ctx: NULL. torch's
 * default_collate.
 * Errors: CAIRN_EINVAL the examples have other numbers of fields, types or shapes: says which, and both. */
CAIRN_API cairn_status cairn_collate_stack(void *ctx, const cairn_fields *const *examples, size_t n,
                                           cairn_fields *batch);

struct cairn_pad_options {
    size_t struct_size;
    uint32_t fields; /* bit i: field i of the examples is padded; 0 = all that have dimensions. Others are stacked */
    int64_t length;  /* of the padded dimension; 0 = that of the longest example of the batch */
    int64_t multiple_of;             /* the longest is rounded up to a multiple of this; 0 = 1 */
    double values[CAIRN_MAX_FIELDS]; /* what field i is padded with, converted to its type; 0 */
    cairn_switch mask; /* ON: one tensor more, the last: bool [n, length], true where mask_of is not padded */
    int mask_of;       /* the field that the mask is of; 0 */
};
#define cairn_pad_options(...) \
    (&(struct cairn_pad_options){.struct_size = sizeof(struct cairn_pad_options), __VA_ARGS__})

/* As cairn_collate_stack, for fields whose first dimension differs, as sentences: [T] become [n, longest T], and each
 * is filled up at its end. The mask, as [n, 1, 1, T], is one of attention (ops.h). torch's
 * pad_sequence(batch_first=True); with length, Hugging Face's padding="max_length".
 * ctx: a struct cairn_pad_options, which outlives the loader, or NULL = all defaults.
 * Errors: CAIRN_EINVAL an example longer than length; other dimensions that differ; options. */
CAIRN_API cairn_status cairn_collate_pad(void *ctx, const cairn_fields *const *examples, size_t n, cairn_fields *batch);

/* ---- loaders ---- */

typedef struct cairn_loader cairn_loader;

struct cairn_loader_options {
    size_t struct_size;
    int workers;              /* threads that read, "cairn-loader", up to 256; 0 = cairn_loader_next reads */
    int prefetch;             /* batches that are read, or being read, ahead of the one handed out; 0 = two a worker;
                               * without workers none is */
    cairn_switch drop_last;   /* ON: an epoch ends at the last full batch. OFF: the last one may have fewer examples */
    uint64_t seed;            /* of the examples' random numbers; the same on every rank. 0 is a seed */
    cairn_collate_fn collate; /* in the place of the dataset's. NULL = the dataset's */
    void *collate_ctx;        /* what it gets; outlives the loader */
};
#define cairn_loader_options(...) \
    (&(struct cairn_loader_options){.struct_size = sizeof(struct cairn_loader_options), __VA_ARGS__})

/* A batch. It belongs to the loader and is valid until the next call of cairn_loader_next. */
struct cairn_batch {
    size_t n; /* examples: fewer than the loader's batch at the end of an epoch */
    int count;
    cairn_tensor *const *tensors; /* [count]: the fields that collate has made */
    const int64_t *indices;       /* [n] the examples' numbers */
};

/* A loader, which starts its threads; they begin to read with the first cairn_loader_next.
 *
 *   dataset  outlives the loader
 *   sampler  likewise; of no more examples than the dataset has
 *   batch    examples, from 1
 *   options  NULL = all defaults; copied
 *
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_ESYSTEM a thread could not be started. */
CAIRN_API cairn_status cairn_loader_create(cairn_env *env, const cairn_dataset *dataset, cairn_sampler *sampler,
                                           size_t batch, const struct cairn_loader_options *options,
                                           cairn_loader **out);

/* Ends the threads, at any moment: waits for reads that have begun, and for no others. Before the environment, the
 * sampler and the dataset end. */
CAIRN_API void cairn_loader_destroy(cairn_loader **loader);

/* The next batch, from where the sampler is; *batch = NULL at the end of the epoch. Waits until it has been read.
 *
 * Tensors  are leaves of the environment. As long as types and shapes stay, they are the same ones with new values, as
 *          of cairn_tensor_write: so a recorded graph replays with them (drop_last ON), and a graph over two batches,
 *          or a batch that is used later, needs cairn_tensor_keep. Where a shape changes, the old tensor is ended by
 *          cairn_tensor_destroy and another takes its place.
 * Errors   an example that cannot be read fails the call that would hand it out, and not an earlier one: with what
 *          the dataset returned, behind "example NUMBER: ". The sampler stays where it was, so that the next call reads
 *          the batch again, and cairn_sampler_seek passes over it. CAIRN_EINVAL what collate refuses, or a field of u8,
 *          of which there are no tensors; CAIRN_ESTATE a graph is being recorded, or in a child of fork, which has none
 *          of the threads; CAIRN_ENOMEM; CAIRN_EDEVICE.
 * Threads  that of the environment.
 * Cost     on the CPU one copy of the batch; on a GPU one that the device makes while the host goes on. */
CAIRN_API cairn_status cairn_loader_next(cairn_loader *loader, const struct cairn_batch **batch);

/* Batches in an epoch of this rank; 0 for NULL. */
CAIRN_API int64_t cairn_loader_length(const cairn_loader *loader);

/* The loader as a part of a training's state (stateful.h): that is its sampler's, with its rules for another number of
 * ranks. A program adds one of the two. What was read ahead is read again. */
CAIRN_API cairn_stateful cairn_loader_stateful(cairn_loader *loader);

#ifdef __cplusplus
}
#endif

#endif
