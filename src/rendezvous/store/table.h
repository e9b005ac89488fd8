/* Keys and values in memory, with the limits of a store: served by the TCP server, guarded by a lock in the hash
 * store, and read from its file by the file store. Keys are bytes here. One caller at a time. */
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

/* All zero is an empty table. It must not be moved while it holds entries. */
struct cairn__table {
    void *root; /* of a tsearch tree */
    struct cairn__pair *first;
    size_t num_keys;
    size_t nbytes;      /* of memory; STORE_MAX_TABLE at most */
    uint64_t changes;   /* number of writes: waiters need not look again while it stays the same */
    uint64_t deletions; /* number of deletions: keys seen before may be missing */
};

/* Frees all entries; the table is then empty, and its counters continue. */
void cairn__table_clear(struct cairn__table *t);

/* False if the key is missing. *value stays valid until the next change. */
bool cairn__table_get(const struct cairn__table *t, struct cairn__blob key, struct cairn__blob *value);

/* Copies key and value, which must not lie in the table itself. Errors, which leave the table unchanged: CAIRN_EINVAL
 * beyond a limit of wire.h, or for add to a value that is not a number; CAIRN_ENOMEM. */
cairn_status cairn__table_set(struct cairn__table *t, struct cairn__blob key, struct cairn__blob value);
cairn_status cairn__table_append(struct cairn__table *t, struct cairn__blob key, struct cairn__blob value);
cairn_status cairn__table_add(struct cairn__table *t, struct cairn__blob key, int64_t delta, int64_t *sum);
/* *now is the answer of a COMPARE_SET (wire.h); it points into the table or is `expected` or `desired`. */
cairn_status cairn__table_compare_set(struct cairn__table *t, struct cairn__blob key, struct cairn__blob expected,
                                      struct cairn__blob desired, struct cairn__blob *now);
bool cairn__table_delete(struct cairn__table *t, struct cairn__blob key);

/* Deletes every key that does not begin with kept. */
void cairn__table_keep(struct cairn__table *t, struct cairn__blob kept);

/* Calls visit for every key, in no particular order; visit must not change the table. */
void cairn__table_walk(const struct cairn__table *t,
                       void (*visit)(void *cookie, struct cairn__blob key, struct cairn__blob value), void *cookie);

#endif
