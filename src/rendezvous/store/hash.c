/* A table for the threads of one process: a mutex around every call, and a condition variable that every write
 * signals. */
#include <errno.h>
#include <pthread.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/status.h"
#include "rendezvous/store/local.h"

struct hash_store {
    cairn_store base;
    pthread_mutex_t mutex; /* guards the fields below */
    pthread_cond_t written;
    struct cairn__table table;
};

static struct hash_store *lock(cairn_store *s) {
    struct hash_store *h = (struct hash_store *)s;
    pthread_mutex_lock(&h->mutex);
    return h;
}

static cairn_status unlock(struct hash_store *h, cairn_status st) {
    pthread_mutex_unlock(&h->mutex);
    return st;
}

static cairn_status unlock_written(struct hash_store *h, cairn_status st) {
    pthread_cond_broadcast(&h->written);
    return unlock(h, st);
}

static cairn_status wait_locked(struct hash_store *h, const char *const *keys, size_t n) {
    const double timeout = h->base.timeout;
    const struct timespec deadline = cairn__clock_in(timeout);
    bool over = false;
    for (;;) {
        const char *missing = cairn__table_missing(&h->table, keys, n);
        if (!missing) return CAIRN_OK;
        REQUIRE(!over, CAIRN_ETIMEOUT, "key '%s' did not appear in the hash store within %g s", missing, timeout);
        over = pthread_cond_timedwait(&h->written, &h->mutex, &deadline) == ETIMEDOUT;
    }
}

static cairn_status hash_set(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    struct hash_store *h = lock(s);
    return unlock_written(h, cairn__table_set(&h->table, cairn__key_blob(key), cairn__blob_of(value, nbytes)));
}

static cairn_status hash_get(cairn_store *s, const char *key, void **value, size_t *nbytes) {
    struct hash_store *h = lock(s);
    struct cairn__blob held = {NULL, 0};
    cairn_status st = CAIRN_OK;
    TRY(wait_locked(h, &key, 1));
    cairn__table_get(&h->table, cairn__key_blob(key), &held);
    TRY(cairn__blob_copy(held, value, nbytes));
out:
    return unlock(h, st);
}

static cairn_status hash_add(cairn_store *s, const char *key, int64_t delta, int64_t *sum) {
    struct hash_store *h = lock(s);
    return unlock_written(h, cairn__table_add(&h->table, cairn__key_blob(key), delta, sum));
}

static cairn_status hash_wait(cairn_store *s, const char *const *keys, size_t n) {
    struct hash_store *h = lock(s);
    return unlock(h, wait_locked(h, keys, n));
}

static cairn_status hash_check(cairn_store *s, const char *const *keys, size_t n, int *present) {
    struct hash_store *h = lock(s);
    *present = cairn__table_missing(&h->table, keys, n) == NULL;
    return unlock(h, CAIRN_OK);
}

static cairn_status hash_compare_set(cairn_store *s, const char *key, const void *expected, size_t nexpected,
                                     const void *desired, size_t ndesired, void **value, size_t *nbytes) {
    struct hash_store *h = lock(s);
    struct cairn__blob now;
    cairn_status st = CAIRN_OK;
    TRY(cairn__table_compare_set(&h->table, cairn__key_blob(key), cairn__blob_of(expected, nexpected),
                                 cairn__blob_of(desired, ndesired), &now));
    TRY(cairn__blob_copy(now, value, nbytes));
out:
    return unlock_written(h, st);
}

static cairn_status hash_append(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    struct hash_store *h = lock(s);
    return unlock_written(h, cairn__table_append(&h->table, cairn__key_blob(key), cairn__blob_of(value, nbytes)));
}

static cairn_status hash_delete(cairn_store *s, const char *key, int *deleted) {
    struct hash_store *h = lock(s);
    *deleted = cairn__table_delete(&h->table, cairn__key_blob(key));
    return unlock(h, CAIRN_OK);
}

static cairn_status hash_num_keys(cairn_store *s, int64_t *count) {
    struct hash_store *h = lock(s);
    *count = (int64_t)h->table.num_keys;
    return unlock(h, CAIRN_OK);
}

static cairn_status hash_set_timeout(cairn_store *s, double timeout) {
    struct hash_store *h = lock(s);
    h->base.timeout = timeout;
    return unlock(h, CAIRN_OK);
}

static void hash_destroy(cairn_store *s) {
    struct hash_store *h = (struct hash_store *)s;
    cairn__table_clear(&h->table);
    pthread_cond_destroy(&h->written);
    pthread_mutex_destroy(&h->mutex);
    cairn__free(h);
}

static double hash_hurry(cairn_store *s, double timeout) {
    (void)s, (void)timeout;
    return 0;
}

static const struct cairn__store_ops hash_ops = {
    .name = "hash",
    .set = hash_set,
    .get = hash_get,
    .add = hash_add,
    .wait = hash_wait,
    .check = hash_check,
    .compare_set = hash_compare_set,
    .append = hash_append,
    .delete = hash_delete,
    .num_keys = hash_num_keys,
    .set_timeout = hash_set_timeout,
    .hurry = hash_hurry,
    .destroy = hash_destroy,
};

cairn_status cairn_hash_store_create(double timeout, cairn_store **out) {
    struct hash_store *h = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(out, CAIRN_EINVAL, "cairn_hash_store_create: out is NULL");
    TRY(cairn__store_timeout(timeout, &timeout));
    TRY(cairn__calloc(1, sizeof(*h), (void **)&h));
    h->base = (cairn_store){.ops = &hash_ops, .timeout = timeout};
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes); /* none of these can fail in glibc and musl */
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&h->written, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&h->mutex, NULL);
    *out = &h->base;
out:
    return st;
}
