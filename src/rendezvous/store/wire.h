/* The TCP store's bytes. A request is an op byte and its fields: a string or a vector is u64 length + bytes, counts are
 * u64, ADD's numbers i64; host byte order, no frame, no alignment. Replies carry no header either.
 *
 *   VALIDATE     u32 magic                     no reply; a connection's first bytes
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
 *   LIST_KEYS    (2.15 has it)                 i64 count, strings
 *   BARRIER      string, i64 n (2.15 has it)   adds 1 to the key; u8 STOP_WAITING once the n-th has come
 *
 * Not served: QUEUE_PUSH, QUEUE_POP and QUEUE_LEN (14 to 16, from 2.8 on): PyTorch's own Python never calls them.
 *
 * Clients of 2.1 and older send no VALIDATE and number from SET 0, as enum store_old_op; GET and MULTI_GET of a missing
 * key then close the connection. Up to 2.0 the last is DELETE_KEY 8 (WATCH_KEY 7 was never called); 2.1 has DELETE_KEY
 * 7, APPEND 8 and so on: a session is of 2.1 once it used a number that only 2.1 has.
 *
 * Source: PyTorch's TCPStore.cpp, TCPStoreBackend.hpp and TCPStoreLibUvBackend.cpp, v2.2 and later; TCPStore.cpp of
 * 1.13. */
#ifndef CAIRN__RENDEZVOUS_STORE_WIRE_H
#define CAIRN__RENDEZVOUS_STORE_WIRE_H

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
    STORE_LIST_KEYS = 17,
    STORE_BARRIER = 18,
};

enum store_old_op {
    STORE_OLD_SET = 0,
    STORE_OLD_COMPARE_SET = 1,
    STORE_OLD_GET = 2,
    STORE_OLD_ADD = 3,
    STORE_OLD_CHECK = 4,
    STORE_OLD_WAIT = 5,
    STORE_OLD_GETNUMKEYS = 6,
    STORE_OLD_DELETE_KEY = 8,
    STORE_2_1_DELETE_KEY = 7,
    STORE_2_1_APPEND = 8,
    STORE_2_1_MULTI_GET = 9,
    STORE_2_1_MULTI_SET = 10,
    STORE_2_1_CANCEL_WAIT = 11,
};

enum { STORE_READY = 0, STORE_NOT_READY = 1 };
enum { STORE_STOP_WAITING = 0, STORE_WAIT_CANCELED = 1 };

#define STORE_MAGIC 0x3C85F7CEu

enum {
    STORE_MAX_KEY = 8 << 10,
    STORE_MAX_VALUE = 8 << 20,
    STORE_MAX_KEYS = 131072,      /* in one request */
    STORE_MAX_REQUEST = 16 << 20, /* bytes of one request or one reply, also of an incomplete one */
    STORE_MAX_CONNECTIONS = 4096,
    STORE_MAX_TABLE = 256 << 20,   /* memory of all keys and values */
    STORE_MAX_BUFFERS = 256 << 20, /* of all connections: incomplete input, and output that is not sent yet */
};

#endif
