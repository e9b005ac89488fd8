/* Keys and values in memory, with the limits of a store: what the TCP server serves, the hash store locks, and the file
 * store reads its file into. Keys are bytes here. One caller at a time. */
#ifndef CAIRN__RENDEZVOUS_STORE_TABLE_H
#define CAIRN__RENDEZVOUS_STORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

struct cairn__blob {
    const uint8_t *data;
    size_t nbytes;
};

/* All zero is an empty table. Not to be moved while it holds something. */
struct cairn__table {
    void *root; /* of a tsearch tree */
    struct cairn__pair *first;
    size_t num_keys;
    size_t nbytes;      /* of memory; STORE_MAX_TABLE at most */
    uint64_t changes;   /* how often a key was written: who waits for keys need not look while it stands */
    uint64_t deletions; /* how often one went: what was seen before may be gone */
};

/* Frees everything; the table is empty then, and its counters go on. */
void cairn__table_clear(struct cairn__table *t);

/* False where the key is not there. *value stays valid until the next change. */
bool cairn__table_get(const struct cairn__table *t, struct cairn__blob key, struct cairn__blob *value);

/* key and value are copied and must not lie in the table itself. Errors: CAIRN_EINVAL beyond a limit of wire.h, or
 * (add) no number; CAIRN_ENOMEM. The table is then as it was. */
cairn_status cairn__table_set(struct cairn__table *t, struct cairn__blob key, struct cairn__blob value);
cairn_status cairn__table_append(struct cairn__table *t, struct cairn__blob key, struct cairn__blob value);
cairn_status cairn__table_add(struct cairn__table *t, struct cairn__blob key, int64_t delta, int64_t *sum);
/* *now: what a COMPARE_SET answers (wire.h); it points into the table or is `expected` or `desired`. */
cairn_status cairn__table_compare_set(struct cairn__table *t, struct cairn__blob key, struct cairn__blob expected,
                                      struct cairn__blob desired, struct cairn__blob *now);
bool cairn__table_delete(struct cairn__table *t, struct cairn__blob key);

/* Deletes every key that does not begin with kept. */
void cairn__table_keep(struct cairn__table *t, struct cairn__blob kept);

/* Calls visit for every key, in no order; it must not change the table. */
void cairn__table_walk(const struct cairn__table *t,
                       void (*visit)(void *cookie, struct cairn__blob key, struct cairn__blob value), void *cookie);

#endif
