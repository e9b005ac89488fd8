/* What the stores with a table of their own (hash, file) have in common. */
#ifndef CAIRN__RENDEZVOUS_STORE_LOCAL_H
#define CAIRN__RENDEZVOUS_STORE_LOCAL_H

#include <string.h>

#include "rendezvous/store/store.h"
#include "rendezvous/store/table.h"

static inline struct cairn__blob cairn__blob_of(const void *data, size_t nbytes) {
    return (struct cairn__blob){data, nbytes};
}

static inline struct cairn__blob cairn__key_blob(const char *key) {
    return cairn__blob_of(key, strlen(key));
}

/* The first missing key, NULL if all are present. */
const char *cairn__table_missing(const struct cairn__table *t, const char *const *keys, size_t n);

/* Copies b as cairn_store_get returns it. */
cairn_status cairn__blob_copy(struct cairn__blob b, void **value, size_t *nbytes);

#endif
