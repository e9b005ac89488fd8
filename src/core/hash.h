/* FNV-1a: for tables, for detecting truncated records, and for comparing data between ranks. Not collision-resistant.
 *
 * Each function continues a hash; the first one starts from CAIRN__HASH_START. Ranks and files exchange these values,
 * so they must not change.
 * Source: Fowler, Noll, Vo, http://www.isthe.com/chongo/tech/comp/fnv/. */
#ifndef CAIRN__CORE_HASH_H
#define CAIRN__CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN__HASH_START   UINT64_C(0xcbf29ce484222325)
#define CAIRN__HASH32_START UINT32_C(0x811c9dc5)

/* Hashes a whole word in one step. That is FNV-1a only for a word of one byte: low bits of the hash do not depend on
 * high bits of the word. */
static inline uint64_t cairn__hash_word(uint64_t hash, uint64_t word) {
    return (hash ^ word) * UINT64_C(0x100000001b3);
}

static inline uint64_t cairn__hash_bytes(uint64_t hash, const void *data, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i++) hash = cairn__hash_word(hash, ((const unsigned char *)data)[i]);
    return hash;
}

/* Hashes text without its terminating NUL. */
static inline uint64_t cairn__hash_text(uint64_t hash, const char *text) {
    for (; *text; text++) hash = cairn__hash_word(hash, (unsigned char)*text);
    return hash;
}

/* The 32-bit FNV-1a. */
static inline uint32_t cairn__hash32_bytes(uint32_t hash, const void *data, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * UINT32_C(16777619);
    return hash;
}

#endif
