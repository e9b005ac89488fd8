/* CRC-32C (Castagnoli), which follows each length and record in TensorBoard's files. */
#ifndef CAIRN__OBSERVE_CRC32C_H
#define CAIRN__OBSERVE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* CRC of the bytes; RFC 3720, appendix B.4 has examples. Cost: one table look-up per byte. Any thread. */
uint32_t cairn__crc32c(const void *bytes, size_t nbytes);

/* The masked form that TFRecord stores, because a CRC of bytes that contain their own CRC detects little. Source:
 * tensorflow/core/lib/hash/crc32c.h, Mask. */
static inline uint32_t cairn__crc32c_masked(const void *bytes, size_t nbytes) {
    const uint32_t crc = cairn__crc32c(bytes, nbytes);
    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

#endif
