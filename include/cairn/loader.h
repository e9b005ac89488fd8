/* Datasets and loaders: batches for training, read ahead by worker threads. Compare torch.utils.data.DataLoader.
 *
 * A dataset has a number of examples and a function that reads one of them. An example is a short list of fields:
 * arrays with a type and a shape, such as a picture and its class. A loader takes example indices from a sampler
 * (data.h); its worker threads read these examples and collate each batch, and it returns the batches in the sampler's
 * order, as tensors of an environment:
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
 * Position   is the sampler's: it counts the examples that cairn_loader_next has returned, and not those that are read
 *            ahead. So cairn_sampler_position is correct between two calls; moving the sampler (set_epoch, seek,
 *            loading a state) moves the loader; and the sampler's state is the loader's. A sampler serves one loader at
 *            a time.
 * Bits       of a batch depend on the dataset, the indices, seed and epoch only: not on the number of workers or ranks,
 *            on restarts, or on which thread was faster.
 * Memory     holds prefetch batches, and the examples of one more batch for each worker. It is reused: after the
 *            largest batch no call allocates, except tensors when shapes change. */
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

/* Adds a field and returns its memory for the caller to fill: uninitialised, and owned by fields. Its address stays the
 * same when further fields are added. The loader clears an example's fields and reuses their memory.
 *
 *   shape  [ndim]; no size is negative. ndim 0 and NULL: a single value, such as a class
 *
 * Errors: CAIRN_EINVAL dtype, shape, or more than CAIRN_MAX_FIELDS; CAIRN_ENOMEM. Does not allocate if the memory of
 * earlier use is large enough. */
CAIRN_API cairn_status cairn_fields_add(cairn_fields *fields, cairn_dtype dtype, int ndim, const int64_t *shape,
                                        void **data);

/* The same, with values that are copied; and for one integer, as i64. */
CAIRN_API cairn_status cairn_fields_add_values(cairn_fields *fields, cairn_dtype dtype, int ndim, const int64_t *shape,
                                               const void *values);
CAIRN_API cairn_status cairn_fields_add_i64(cairn_fields *fields, int64_t value);

/* The number of fields, and field i, or NULL if there is none. The pointer is valid until fields are added, cleared or
 * destroyed. */
CAIRN_API int cairn_fields_count(const cairn_fields *fields);
CAIRN_API const struct cairn_field *cairn_fields_at(const cairn_fields *fields, int i);

/* For programs that read a dataset without a loader; empty at first. Errors: CAIRN_EINVAL, CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_fields_create(cairn_fields **out);
CAIRN_API void cairn_fields_clear(cairn_fields *fields);
CAIRN_API void cairn_fields_destroy(cairn_fields **fields);

/* ---- random numbers of an example ---- */

/* The random numbers of one example in one epoch, for crops and flips. */
struct cairn_random {
    uint64_t state[8]; /* Cairn's own */
};

/* Starts the stream that a loader with this seed gives to this example in this epoch. Its words are those of
 * Philox4x32-10 (SC11) with key seed and counters 2^127 + 2^126 + (epoch mod 2^30) * 2^96 + index * 2^32 + b, b = 0, 1,
 * ..., 2^32 - 1, four words each; the streams of samplers and tensors do not overlap with it. epoch and index: from
 * 0. */
CAIRN_API void cairn_random_begin(struct cairn_random *random, uint64_t seed, int64_t epoch, int64_t index);

/* The next word; a uniform number in [0, 1) from a word's upper 24 bits; a uniform integer below bound, unbiased by
 * Lemire's method as in data.h (for bound 0 it returns 0 and consumes no word). */
CAIRN_API uint32_t cairn_random_word(struct cairn_random *random);
CAIRN_API float cairn_random_uniform(struct cairn_random *random);
CAIRN_API uint32_t cairn_random_below(struct cairn_random *random, uint32_t bound);

/* ---- datasets ---- */

typedef struct cairn_dataset cairn_dataset;

/* Collates n examples: adds the fields of a batch, whose tensors get these types and shapes. Called by several threads
 * concurrently. ctx: a dataset's self, or cairn_loader_options.collate_ctx. */
typedef cairn_status (*cairn_collate_fn)(void *ctx, const cairn_fields *const *examples, size_t n, cairn_fields *batch);

/* The functions of a dataset. On failure they return the result of cairn_dataset_fail, which sets the message. They
 * must not call anything that uses an environment, since they run on other threads. */
struct cairn_dataset_functions {
    size_t struct_size;
    /* Adds the fields of example index, in [0, count), to example, which is empty. Called by several threads
     * concurrently. random: the example's own random numbers; using only these makes results independent of the number
     * of workers. */
    cairn_status (*read)(void *self, int64_t index, struct cairn_random *random, cairn_fields *example);
    cairn_collate_fn collate;    /* (optional: NULL = cairn_collate_stack) */
    void (*destroy)(void *self); /* (optional: NULL = nothing to do) */
};
#define cairn_dataset_functions(...) \
    (&(struct cairn_dataset_functions){.struct_size = sizeof(struct cairn_dataset_functions), __VA_ARGS__})

/* Makes a dataset of the program's own.
 *
 *   self       passed to its functions. If the call succeeds the dataset owns it: functions->destroy frees it
 *   count      the number of examples; 0 or more
 *   functions  copied
 *
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM: self then stays the caller's. Threads: cairn_dataset_read may be called by
 * several threads concurrently. */
CAIRN_API cairn_status cairn_dataset_create(void *self, int64_t count, const struct cairn_dataset_functions *functions,
                                            cairn_dataset **out);

/* Call it after destroying all loaders that use the dataset. */
CAIRN_API void cairn_dataset_destroy(cairn_dataset **dataset);

/* 0 for NULL. */
CAIRN_API int64_t cairn_dataset_count(const cairn_dataset *dataset);

/* Reads one example, for datasets built on other datasets, or for inspection. Errors: CAIRN_EINVAL an index out of
 * range; the dataset's errors. The fields of example are then undefined. */
CAIRN_API cairn_status cairn_dataset_read(const cairn_dataset *dataset, int64_t index, struct cairn_random *random,
                                          cairn_fields *example);

/* Sets this thread's last error to the formatted message and returns status; for functions of the program's own. */
CAIRN_API cairn_status cairn_dataset_fail(cairn_status status, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* ---- collate functions ---- */

/* Stacks field i of all examples into field i of the batch: [n] + shape. ctx: NULL. torch's default_collate.
 * Errors: CAIRN_EINVAL examples differ in number of fields, types or shapes; the message says which and how. */
CAIRN_API cairn_status cairn_collate_stack(void *ctx, const cairn_fields *const *examples, size_t n,
                                           cairn_fields *batch);

struct cairn_pad_options {
    size_t struct_size;
    uint32_t fields;     /* bit i: pad field i; 0 = all fields that have dimensions. Other fields are stacked */
    int64_t length;      /* of the padded dimension; 0 = that of the batch's longest example */
    int64_t multiple_of; /* the longest is rounded up to a multiple of this; 0 = 1 */
    double values[CAIRN_MAX_FIELDS]; /* the padding value of field i, converted to its type; 0 */
    cairn_switch mask; /* ON: adds a last tensor: bool [n, length], true where field mask_of is not padding */
    int mask_of;       /* the index of the masked field; 0 */
};
#define cairn_pad_options(...) \
    (&(struct cairn_pad_options){.struct_size = sizeof(struct cairn_pad_options), __VA_ARGS__})

/* As cairn_collate_stack, for fields whose first dimension differs, such as sentences: arrays [T] become [n, longest
 * T], each padded at its end. The mask, viewed as [n, 1, 1, T], can be used for attention (ops.h). torch's
 * pad_sequence(batch_first=True); with length, Hugging Face's padding="max_length".
 * ctx: a struct cairn_pad_options that outlives the loader, or NULL = all defaults.
 * Errors: CAIRN_EINVAL an example longer than length; a difference in other dimensions; options. */
CAIRN_API cairn_status cairn_collate_pad(void *ctx, const cairn_fields *const *examples, size_t n, cairn_fields *batch);

/* ---- loaders ---- */

typedef struct cairn_loader cairn_loader;

struct cairn_loader_options {
    size_t struct_size;
    int workers;              /* reading threads, "cairn-loader", at most 256; 0 = cairn_loader_next reads itself */
    int prefetch;             /* batches read ahead, or being read, beyond the returned one; 0 = two per worker; always
                               * none without workers */
    cairn_switch drop_last;   /* ON: an epoch ends at the last full batch. OFF: the last one may have fewer examples */
    uint64_t seed;            /* of the examples' random numbers; the same on every rank. 0 is a valid seed */
    cairn_collate_fn collate; /* used instead of the dataset's; NULL = the dataset's */
    void *collate_ctx;        /* passed to collate; outlives the loader */
};
#define cairn_loader_options(...) \
    (&(struct cairn_loader_options){.struct_size = sizeof(struct cairn_loader_options), __VA_ARGS__})

/* A batch. The loader owns it; it is valid until the next call of cairn_loader_next. */
struct cairn_batch {
    size_t n; /* examples; fewer than the loader's batch size at the end of an epoch */
    int count;
    cairn_tensor *const *tensors; /* [count] the fields that collate made */
    const int64_t *indices;       /* [n] the examples' indices */
};

/* Makes a loader and starts its threads; they begin to read at the first cairn_loader_next.
 *
 *   dataset  outlives the loader
 *   sampler  outlives the loader; has at most as many examples as the dataset
 *   batch    examples per batch, at least 1
 *   options  NULL = all defaults; copied
 *
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_ESYSTEM a thread could not be started. */
CAIRN_API cairn_status cairn_loader_create(cairn_env *env, const cairn_dataset *dataset, cairn_sampler *sampler,
                                           size_t batch, const struct cairn_loader_options *options,
                                           cairn_loader **out);

/* Stops the threads; may be called at any time, and waits only for reads that have begun. Call it before destroying the
 * environment, the sampler or the dataset. */
CAIRN_API void cairn_loader_destroy(cairn_loader **loader);

/* Returns the next batch from the sampler's position, or *batch = NULL at the end of the epoch. Waits until it is read.
 *
 * Tensors  are leaves of the environment. As long as types and shapes stay the same, every batch has the same tensors
 *          with new values, as after cairn_tensor_write: so a recorded graph replays with them (drop_last ON); to use a
 *          batch later, or two in one graph, copy it with cairn_tensor_keep. If a shape changes, the old tensor is
 *          destroyed with cairn_tensor_destroy and replaced.
 * Errors   An example that cannot be read fails the call that would return it and no earlier one: with the dataset's
 *          error, prefixed by "example NUMBER: ". The sampler does not move, so the next call reads the batch again;
 *          skip it with cairn_sampler_seek. CAIRN_EINVAL collate's errors, or a field of u8, a type that tensors do not
 *          have; CAIRN_ESTATE a graph is being recorded, or the process is a child of fork, which has none of the
 *          threads; CAIRN_ENOMEM; CAIRN_EDEVICE.
 * Threads  that of the environment.
 * Cost     on the CPU one copy of the batch; on a GPU a copy that the device makes asynchronously. */
CAIRN_API cairn_status cairn_loader_next(cairn_loader *loader, const struct cairn_batch **batch);

/* The number of batches in an epoch of this rank; 0 for NULL. */
CAIRN_API int64_t cairn_loader_length(const cairn_loader *loader);

/* The loader's state for a checkpoint (stateful.h): it is the sampler's, with the same rules for another number of
 * ranks, so add only one of the two. Batches that were read ahead are read again. */
CAIRN_API cairn_stateful cairn_loader_stateful(cairn_loader *loader);

#ifdef __cplusplus
}
#endif

#endif
