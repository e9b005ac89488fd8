#include "observe/crc32c.h"

#include <pthread.h>

static uint32_t table[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    const uint32_t polynomial = UINT32_C(0x82f63b78); /* RFC 3720's, bits reversed */
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
        table[i] = crc;
    }
}

uint32_t cairn__crc32c(const void *bytes, size_t nbytes) {
    const unsigned char *b = bytes;
    uint32_t crc = UINT32_MAX;
    pthread_once(&once, fill);
    for (size_t i = 0; i < nbytes; i++) crc = table[(crc ^ b[i]) & 0xff] ^ crc >> 8;
    return ~crc;
}
