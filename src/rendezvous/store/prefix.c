/* Another store's keys under a prefix. Joined keys are built on the stack, so this store allows as many threads as the
 * inner one. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/wire.h"

enum { MAX_KEY = STORE_MAX_KEY - 1 };

typedef char joined[STORE_MAX_KEY];

struct prefix_store {
    cairn_store base;
    cairn_store *inner; /* owned by the caller */
    char prefix[];
};

static cairn_store *inner(cairn_store *s) {
    return ((struct prefix_store *)s)->inner;
}

static cairn_status join(cairn_store *s, const char *key, joined out) {
    const char *prefix = ((struct prefix_store *)s)->prefix;
    const int length = snprintf(out, sizeof(joined), "%s/%s", prefix, key);
    REQUIRE(length <= MAX_KEY, CAIRN_EINVAL,
            "a key of %zu bytes behind a prefix of %zu is more than a store holds (%d): '%.40s...'", strlen(key),
            strlen(prefix), MAX_KEY, key);
    return CAIRN_OK;
}

static cairn_status prefix_set(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    joined k;
    cairn_status st = CAIRN_OK;
    TRY(join(s, key, k));
    TRY(cairn_store_set(inner(s), k, value, nbytes));
out:
    return st;
}

static cairn_status prefix_get(cairn_store *s, const char *key, void **value, size_t *nbytes) {
    joined k;
    cairn_status st = CAIRN_OK;
    TRY(join(s, key, k));
    TRY(cairn_store_get(inner(s), k, value, nbytes));
out:
    return st;
}

static cairn_status prefix_add(cairn_store *s, const char *key, int64_t delta, int64_t *sum) {
    joined k;
    cairn_status st = CAIRN_OK;
    TRY(join(s, key, k));
    TRY(cairn_store_add(inner(s), k, delta, sum));
out:
    return st;
}

static cairn_status prefix_compare_set(cairn_store *s, const char *key, const void *expected, size_t nexpected,
                                       const void *desired, size_t ndesired, void **value, size_t *nbytes) {
    joined k;
    cairn_status st = CAIRN_OK;
    TRY(join(s, key, k));
    TRY(cairn_store_compare_set(inner(s), k, expected, nexpected, desired, ndesired, value, nbytes));
out:
    return st;
}

static cairn_status prefix_append(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    joined k;
    cairn_status st = CAIRN_OK;
    TRY(join(s, key, k));
    TRY(cairn_store_append(inner(s), k, value, nbytes));
out:
    return st;
}

static cairn_status prefix_delete(cairn_store *s, const char *key, int *deleted) {
    joined k;
    cairn_status st = CAIRN_OK;
    TRY(join(s, key, k));
    TRY(cairn_store_delete(inner(s), k, deleted));
out:
    return st;
}

/* One block of memory: the pointers, then the names. Free it with cairn__free. */
static cairn_status join_all(cairn_store *s, const char *const *keys, size_t n, const char ***out) {
    size_t nbytes = n * sizeof(char *);
    void *memory = NULL;
    cairn_status st = CAIRN_OK;
    joined k;
    for (size_t i = 0; i < n; i++) {
        TRY(join(s, keys[i], k));
        nbytes += strlen(k) + 1;
    }
    TRY(cairn__alloc(nbytes, &memory));
    char *name = (char *)memory + n * sizeof(char *);
    for (size_t i = 0; i < n; i++) {
        join(s, keys[i], k);
        ((const char **)memory)[i] = memcpy(name, k, strlen(k) + 1);
        name += strlen(k) + 1;
    }
    *out = memory;
out:
    return st;
}

static cairn_status prefix_wait(cairn_store *s, const char *const *keys, size_t n) {
    const char **all = NULL;
    cairn_status st = CAIRN_OK;
    TRY(join_all(s, keys, n, &all));
    TRY(cairn_store_wait(inner(s), all, n));
out:
    cairn__free(all);
    return st;
}

static cairn_status prefix_check(cairn_store *s, const char *const *keys, size_t n, int *present) {
    const char **all = NULL;
    cairn_status st = CAIRN_OK;
    TRY(join_all(s, keys, n, &all));
    TRY(cairn_store_check(inner(s), all, n, present));
out:
    cairn__free(all);
    return st;
}

static cairn_status prefix_num_keys(cairn_store *s, int64_t *count) {
    return cairn_store_num_keys(inner(s), count);
}

static cairn_status prefix_set_timeout(cairn_store *s, double timeout) {
    return cairn_store_set_timeout(inner(s), timeout);
}

static double prefix_hurry(cairn_store *s, double timeout) {
    return cairn__store_hurry(inner(s), timeout);
}

static void prefix_local_address(const cairn_store *s, char *address, size_t nbytes) {
    cairn__store_local_address(((const struct prefix_store *)s)->inner, address, nbytes);
}

static bool prefix_forgets(const cairn_store *s) {
    return cairn__store_forgets(((const struct prefix_store *)s)->inner);
}

static void prefix_destroy(cairn_store *s) {
    cairn__free(s);
}

static const struct cairn__store_ops prefix_ops = {
    .name = "prefix",
    .set = prefix_set,
    .get = prefix_get,
    .add = prefix_add,
    .wait = prefix_wait,
    .check = prefix_check,
    .compare_set = prefix_compare_set,
    .append = prefix_append,
    .delete = prefix_delete,
    .num_keys = prefix_num_keys,
    .set_timeout = prefix_set_timeout,
    .hurry = prefix_hurry,
    .local_address = prefix_local_address,
    .forgets = prefix_forgets,
    .destroy = prefix_destroy,
};

cairn_status cairn_prefix_store_create(const char *prefix, cairn_store *store, cairn_store **out) {
    struct prefix_store *p = NULL;
    REQUIRE(prefix && store && out, CAIRN_EINVAL, "cairn_prefix_store_create: prefix, store or out is NULL");
    const size_t length = strlen(prefix);
    REQUIRE(length + 2 <= MAX_KEY, CAIRN_EINVAL, "a prefix of %zu bytes leaves no room for a key (%d)", length,
            MAX_KEY);
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc(sizeof(*p) + length + 1, (void **)&p));
    p->base = (cairn_store){.ops = &prefix_ops};
    p->inner = store;
    memcpy(p->prefix, prefix, length + 1);
    *out = &p->base;
out:
    return st;
}
