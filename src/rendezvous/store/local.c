#include "rendezvous/store/local.h"

#include "core/alloc.h"
#include "core/status.h"

const char *cairn__table_missing(const struct cairn__table *t, const char *const *keys, size_t n) {
    struct cairn__blob ignored;
    for (size_t i = 0; i < n; i++) {
        if (!cairn__table_get(t, cairn__key_blob(keys[i]), &ignored)) return keys[i];
    }
    return NULL;
}

cairn_status cairn__blob_copy(struct cairn__blob b, void **value, size_t *nbytes) {
    void *copy = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc(b.nbytes + 1, &copy));
    if (b.nbytes) memcpy(copy, b.data, b.nbytes);
    ((char *)copy)[b.nbytes] = '\0';
    *value = copy;
    *nbytes = b.nbytes;
out:
    return st;
}
