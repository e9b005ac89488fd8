/* The memory of a GPU, taken in segments and handed out in blocks: what is freed stays here and is handed out again, so
 * that a training step that has run once asks the driver for nothing.
 *
 * A freed block is handed out at once, though what is queued may still use it: the device has one stream, so whatever
 * uses the block next is queued behind. Where the stream is changed (cuda.c), the new one first waits for the old.
 *
 * Pure logic: no CUDA here. Used by one thread at a time. */
#ifndef CAIRN__DEVICE_CUDA_CACHE_H
#define CAIRN__DEVICE_CUDA_CACHE_H

#include "device/device.h"

enum {
    CAIRN__CACHE_GRAIN = 512,     /* blocks of up to 1 MiB are multiples of it, cut from segments of 2 MiB */
    CAIRN__CACHE_SMALL = 1 << 20, /* bytes; more than that are multiples of 2 MiB, each first a segment of its own */
    CAIRN__CACHE_SEGMENT_GRAIN = 2 << 20,
};

/* Where segments come from. */
struct cairn__cache_source {
    const char *name; /* "cuda:0", for messages */
    void *cookie;
    /* CAIRN_ENOMEM: there is no more, and nothing is said about it; other failures are told with cairn__fail. */
    cairn_status (*take)(void *cookie, size_t nbytes, void **out);
    void (*give_back)(void *cookie, void *p); /* waits for what is queued */
    void (*ask)(void *cookie, size_t *available, size_t *total);
};

struct cairn__cache;

/* source is copied; its name is not. */
cairn_status cairn__cache_create(const struct cairn__cache_source *source, struct cairn__cache **out);

/* Gives everything back, blocks in use too. */
void cairn__cache_destroy(struct cairn__cache **cache);

/* 512-byte aligned, as long as segments are; 0 bytes give a valid pointer. Takes the smallest free block that is large
 * enough, else a new segment; where there is none, gives back what is wholly free and tries again.
 * Errors: CAIRN_ENOMEM "cuda:0 is out of memory: 3.2 GiB wanted; 139.8 GiB in all, 0.5 GiB free, held here: parameters
 * 20.1 GiB, optimizer state 80.4 GiB; cached 1.2 GiB". */
cairn_status cairn__cache_alloc(struct cairn__cache *cache, enum cairn__holder holder, size_t nbytes, void **out);

/* p came from cairn__cache_alloc. */
void cairn__cache_free(struct cairn__cache *cache, void *p);

/* Bytes in blocks that the holder has, and in blocks that nobody has. */
size_t cairn__cache_held(const struct cairn__cache *cache, enum cairn__holder holder);
size_t cairn__cache_unused(const struct cairn__cache *cache);

#endif
