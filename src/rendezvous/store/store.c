/* The front of all kinds of store: it checks arguments, once. */
#include "rendezvous/store/store.h"

#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "core/vars.h"
#include "rendezvous/store/wire.h"

static const double DEFAULT_TIMEOUT = 300.0; /* seconds */

enum { MAX_KEY = STORE_MAX_KEY - 1 /* torch's "/" */ };

cairn_status cairn__store_timeout(double given, double *timeout) {
    REQUIRE(given >= 0, CAIRN_EINVAL, "the store's timeout is %g; it must be a number of seconds, 0 = CAIRN_TIMEOUT",
            given);
    *timeout = given > 0 ? given : DEFAULT_TIMEOUT;
    return given > 0 ? CAIRN_OK : cairn__var_seconds("CAIRN_TIMEOUT", timeout);
}

bool cairn__store_is_open(void) {
    const char *insecure = cairn__var("CAIRN_INSECURE");
    return insecure && strcmp(insecure, "1") == 0;
}

/* ---- arguments ---- */

static cairn_status check_key(const cairn_store *s, const char *key) {
    REQUIRE(s, CAIRN_EINVAL, "the store is NULL");
    REQUIRE(key && key[0], CAIRN_EINVAL, "a store's key is %s; it must have 1 to %d bytes", key ? "empty" : "NULL",
            MAX_KEY);
    const size_t length = strlen(key);
    REQUIRE(length <= MAX_KEY, CAIRN_EINVAL, "a key of %zu bytes is more than a store holds (%d): '%.40s...'", length,
            MAX_KEY, key);
    return CAIRN_OK;
}

static cairn_status check_value(const char *key, const void *value, size_t nbytes) {
    REQUIRE(value || nbytes == 0, CAIRN_EINVAL, "the value for key '%.80s' is NULL, but its size is %zu bytes", key,
            nbytes);
    REQUIRE(nbytes <= STORE_MAX_VALUE, CAIRN_EINVAL,
            "a value of %zu bytes for key '%.80s' is more than a store holds (%d)", nbytes, key, STORE_MAX_VALUE);
    return CAIRN_OK;
}

static cairn_status check_pair(const cairn_store *s, const char *key, const void *value, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(check_key(s, key));
    TRY(check_value(key, value, nbytes));
out:
    return st;
}

/* All keys of a call form one request of a TCP store, which has a limit. */
static cairn_status check_keys(const cairn_store *s, const char *const *keys, size_t n) {
    cairn_status st = CAIRN_OK;
    size_t total = 0;
    REQUIRE(s, CAIRN_EINVAL, "the store is NULL");
    REQUIRE(keys || n == 0, CAIRN_EINVAL, "keys is NULL, but n is %zu", n);
    REQUIRE(n <= STORE_MAX_KEYS, CAIRN_EINVAL, "%zu keys are more than one call to a store can name (%d)", n,
            STORE_MAX_KEYS);
    for (size_t i = 0; i < n; i++) {
        TRY(check_key(s, keys[i]));
        total += strlen(keys[i]) + sizeof(uint64_t) + 1;
    }
    REQUIRE(total < STORE_MAX_REQUEST - 64, CAIRN_EINVAL,
            "%zu keys of %zu bytes are more than one call to a store can name", n, total);
out:
    return st;
}

/* ---- calls ---- */

void cairn_store_destroy(cairn_store **store) {
    if (!store || !*store) return;
    (*store)->ops->destroy(*store);
    *store = NULL;
}

cairn_status cairn_store_set_timeout(cairn_store *s, double timeout) {
    REQUIRE(s, CAIRN_EINVAL, "the store is NULL");
    REQUIRE(timeout > 0, CAIRN_EINVAL, "the store's timeout is %g s; it must be positive", timeout);
    if (s->ops->set_timeout) return s->ops->set_timeout(s, timeout);
    s->timeout = timeout;
    return CAIRN_OK;
}

double cairn__store_hurry(cairn_store *s, double timeout) {
    if (s->ops->hurry) return s->ops->hurry(s, timeout);
    const double before = s->timeout;
    if (timeout < before) s->timeout = timeout;
    return before;
}

bool cairn__store_forgets(const cairn_store *s) {
    return !s->ops->forgets || s->ops->forgets(s);
}

void cairn__store_local_address(const cairn_store *s, char *address, size_t nbytes) {
    address[0] = '\0';
    if (s->ops->local_address) s->ops->local_address(s, address, nbytes);
}

int cairn_store_port(const cairn_store *s) {
    return s ? s->port : 0;
}

cairn_status cairn_store_set(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(check_pair(s, key, value, nbytes));
    TRY(s->ops->set(s, key, value, nbytes));
out:
    return st;
}

cairn_status cairn_store_get(cairn_store *s, const char *key, void **value, size_t *nbytes) {
    void *got = NULL;
    size_t length = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_key(s, key));
    REQUIRE(value, CAIRN_EINVAL, "cairn_store_get: value is NULL");
    TRY(s->ops->get(s, key, &got, &length));
    *value = got;
    if (nbytes) *nbytes = length;
out:
    return st;
}

void cairn_store_free(void *value) {
    cairn__free(value);
}

cairn_status cairn_store_add(cairn_store *s, const char *key, int64_t delta, int64_t *sum) {
    int64_t total = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_key(s, key));
    TRY(s->ops->add(s, key, delta, &total));
    if (sum) *sum = total;
out:
    return st;
}

cairn_status cairn_store_wait(cairn_store *s, const char *const *keys, size_t n) {
    cairn_status st = CAIRN_OK;
    TRY(check_keys(s, keys, n));
    TRY(s->ops->wait(s, keys, n));
out:
    return st;
}

cairn_status cairn_store_check(cairn_store *s, const char *const *keys, size_t n, int *present) {
    cairn_status st = CAIRN_OK;
    TRY(check_keys(s, keys, n));
    REQUIRE(present, CAIRN_EINVAL, "cairn_store_check: present is NULL");
    TRY(s->ops->check(s, keys, n, present));
out:
    return st;
}

cairn_status cairn_store_compare_set(cairn_store *s, const char *key, const void *expected, size_t nexpected,
                                     const void *desired, size_t ndesired, void **value, size_t *nbytes) {
    void *now = NULL;
    size_t length = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_pair(s, key, expected, nexpected));
    TRY(check_value(key, desired, ndesired));
    TRY(s->ops->compare_set(s, key, expected, nexpected, desired, ndesired, &now, &length));
    if (nbytes) *nbytes = length;
    if (value) {
        *value = now;
    } else {
        cairn__free(now);
    }
out:
    return st;
}

cairn_status cairn_store_append(cairn_store *s, const char *key, const void *value, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(check_pair(s, key, value, nbytes));
    TRY(s->ops->append(s, key, value, nbytes));
out:
    return st;
}

cairn_status cairn_store_delete(cairn_store *s, const char *key, int *deleted) {
    int found = 0;
    cairn_status st = CAIRN_OK;
    TRY(check_key(s, key));
    TRY(s->ops->delete (s, key, &found));
    if (deleted) *deleted = found;
out:
    return st;
}

cairn_status cairn_store_num_keys(cairn_store *s, int64_t *count) {
    REQUIRE(s && count, CAIRN_EINVAL, "cairn_store_num_keys: the store or count is NULL");
    return s->ops->num_keys(s, count);
}
