/* A caching allocator of GPU memory: takes segments from the driver and hands them out in blocks. Freed blocks stay in
 * the cache and are reused, so that a training step that has run once makes no driver calls for memory.
 *
 * A freed block is reused at once, even if queued work still uses it: the device has one stream, so the block's next
 * use is queued after that work. When the stream changes (cuda.c), the new stream first waits for the old one.
 *
 * Pure logic, no CUDA calls. Used by one thread at a time. */
#ifndef CAIRN__DEVICE_CUDA_CACHE_H
#define CAIRN__DEVICE_CUDA_CACHE_H

#include "device/device.h"

enum {
    CAIRN__CACHE_GRAIN = 512,     /* blocks of up to 1 MiB are multiples of it, cut from segments of 2 MiB */
    CAIRN__CACHE_SMALL = 1 << 20, /* bytes; larger blocks are multiples of 2 MiB, each at first its own segment */
    CAIRN__CACHE_SEGMENT_GRAIN = 2 << 20,
};

/* Where segments come from. */
struct cairn__cache_source {
    const char *name; /* "cuda:0", for messages */
    void *cookie;
    /* Errors: CAIRN_ENOMEM, whose message the cache writes; others with a message. */
    cairn_status (*take)(void *cookie, size_t nbytes, void **out);
    void (*give_back)(void *cookie, void *p);                    /* waits for queued work */
    void (*ask)(void *cookie, size_t *available, size_t *total); /* bytes */
};

struct cairn__cache;

/* source is copied; its name is not. */
cairn_status cairn__cache_create(const struct cairn__cache_source *source, struct cairn__cache **out);

/* Returns all segments to the driver, including those with blocks in use. */
void cairn__cache_destroy(struct cairn__cache **cache);

/* 512-byte aligned if segments are; 0 bytes give a valid pointer. Takes the smallest free block that is large enough,
 * else a new segment. If the driver has no memory, returns the segments without blocks in use and tries again. Errors:
 * CAIRN_ENOMEM "cuda:0 is out of memory: 3.2 GiB wanted; 139.8 GiB in all, 0.5 GiB free, held here: parameters 20.1
 * GiB, optimizer state 80.4 GiB; cached 1.2 GiB". */
cairn_status cairn__cache_alloc(struct cairn__cache *cache, enum cairn__holder holder, size_t nbytes, void **out);

/* p came from cairn__cache_alloc. */
void cairn__cache_free(struct cairn__cache *cache, void *p);

/* The bytes in blocks of a holder, and in free blocks. */
size_t cairn__cache_held(const struct cairn__cache *cache, enum cairn__holder holder);
size_t cairn__cache_unused(const struct cairn__cache *cache);

#endif
