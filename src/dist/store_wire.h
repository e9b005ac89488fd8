/* The TCP store's bytes. A request is an op byte and its fields: a string or a vector is u64 length + bytes, counts are
 * u64, ADD's numbers i64; host byte order, no frame, no alignment. Replies carry no header either.
 *
 *   VALIDATE     u32 magic                     no reply; the first request of a connection
 *   SET          string, vector                no reply
 *   COMPARE_SET  string, expected, desired     vector: the value now there; for a missing key desired is stored only
 *                                              where expected is empty, and otherwise expected comes back
 *   GET          string                        vector, empty for a missing key
 *   ADD          string, i64                   i64 sum; the value is kept as decimal text
 *   CHECK        count, strings                u8 READY or NOT_READY
 *   WAIT         count, strings                u8 STOP_WAITING once all are there
 *   GETNUMKEYS                                 i64
 *   DELETE_KEY   string                        i64 1 or 0
 *   APPEND       string, vector                no reply
 *   MULTI_GET    count, strings                vectors
 *   MULTI_SET    count, (string, vector)s      no reply
 *   CANCEL_WAIT                                u8 WAIT_CANCELED; a STOP_WAITING may have come before it
 *   PING         u32                           the same u32
 *
 * Source: PyTorch's TCPStore.cpp, TCPStoreBackend.hpp and TCPStoreLibUvBackend.cpp, v2.2 and later. */
#ifndef CAIRN__DIST_STORE_WIRE_H
#define CAIRN__DIST_STORE_WIRE_H

enum store_op {
    STORE_VALIDATE = 0,
    STORE_SET = 1,
    STORE_COMPARE_SET = 2,
    STORE_GET = 3,
    STORE_ADD = 4,
    STORE_CHECK = 5,
    STORE_WAIT = 6,
    STORE_GETNUMKEYS = 7,
    STORE_DELETE_KEY = 8,
    STORE_APPEND = 9,
    STORE_MULTI_GET = 10,
    STORE_MULTI_SET = 11,
    STORE_CANCEL_WAIT = 12,
    STORE_PING = 13,
};

enum { STORE_READY = 0, STORE_NOT_READY = 1 };
enum { STORE_STOP_WAITING = 0, STORE_WAIT_CANCELED = 1 };

#define STORE_MAGIC 0x3C85F7CEu

enum {
    STORE_MAX_KEY = 8 << 10,
    STORE_MAX_VALUE = 8 << 20,
    STORE_MAX_KEYS = 131072,      /* in one request */
    STORE_MAX_REQUEST = 64 << 20, /* bytes of one request or one reply */
    STORE_MAX_CONNECTIONS = 4096,
};

#endif
