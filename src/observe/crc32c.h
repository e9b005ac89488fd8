/* CRC-32C (Castagnoli), of which TensorBoard's files have one behind each length and record. */
#ifndef CAIRN__OBSERVE_CRC32C_H
#define CAIRN__OBSERVE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of the bytes; RFC 3720, appendix B.4 has examples. Cost: a table look-up a byte. Any thread. */
uint32_t cairn__crc32c(const void *bytes, size_t nbytes);

/* As TFRecord stores it, since a CRC of bytes that contain their CRC says little.
 * Source: tensorflow/core/lib/hash/crc32c.h, Mask. */
static inline uint32_t cairn__crc32c_masked(const void *bytes, size_t nbytes) {
    const uint32_t crc = cairn__crc32c(bytes, nbytes);
    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

#endif
