/* A balanced tree by length and bytes of the key, which no choice of keys makes slow, and a list of its entries, so
 * that entries can be deleted during a walk. A value's capacity grows by doubling only under append. */
#include "rendezvous/store/table.h"

#include <errno.h>
#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "rendezvous/store/wire.h"

enum { TREE_NODE = 64 /* roughly the tree's memory for an entry */, SMALL = 64 };

struct cairn__pair {
    struct cairn__blob key; /* stored behind the struct */
    uint8_t *value;
    size_t nbytes, capacity;
    struct cairn__pair *next, **link;
};

static int compare_pairs(const void *a, const void *b) {
    const struct cairn__blob *x = &((const struct cairn__pair *)a)->key, *y = &((const struct cairn__pair *)b)->key;
    if (x->nbytes != y->nbytes) return x->nbytes < y->nbytes ? -1 : 1;
    return x->nbytes ? memcmp(x->data, y->data, x->nbytes) : 0;
}

static struct cairn__pair *find(const struct cairn__table *t, struct cairn__blob key) {
    struct cairn__pair wanted = {.key = key};
    struct cairn__pair **found = tfind(&wanted, &t->root, compare_pairs);
    return found ? *found : NULL;
}

static struct cairn__blob value_of(const struct cairn__pair *e) {
    return (struct cairn__blob){e->value, e->nbytes};
}

static size_t cost(size_t key_nbytes, size_t capacity) {
    return TREE_NODE + sizeof(struct cairn__pair) + key_nbytes + capacity;
}

static cairn_status insert(struct cairn__table *t, struct cairn__blob key, struct cairn__pair **out) {
    struct cairn__pair *e = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*e) + key.nbytes, (void **)&e));
    if (key.nbytes) memcpy(e + 1, key.data, key.nbytes);
    e->key = (struct cairn__blob){(uint8_t *)(e + 1), key.nbytes};
    if (!tsearch(e, &t->root, compare_pairs)) {
        cairn__free(e);
        return cairn__fail(CAIRN_ENOMEM, "out of memory: a key of %zu bytes could not be stored", key.nbytes);
    }
    e->next = t->first;
    e->link = &t->first;
    if (e->next) e->next->link = &e->next;
    t->first = e;
    t->num_keys++;
    t->nbytes += cost(key.nbytes, 0);
    *out = e;
out:
    return st;
}

static void forget(struct cairn__table *t, struct cairn__pair *e) {
    tdelete(e, &t->root, compare_pairs);
    *e->link = e->next;
    if (e->next) e->next->link = e->link;
    t->num_keys--;
    t->nbytes -= cost(e->key.nbytes, e->capacity);
    t->deletions++;
    cairn__free(e->value);
    cairn__free(e);
}

/* The capacity for a value of `want` bytes: the present one if that fits without much waste. */
static size_t room_for(size_t want, size_t kept, size_t capacity) {
    if (want <= capacity && (capacity <= SMALL || want >= capacity / 4)) return capacity;
    return kept && want <= STORE_MAX_VALUE / 2 ? 2 * want : want;
}

static cairn_status put(struct cairn__table *t, struct cairn__blob key, struct cairn__blob value, bool behind) {
    struct cairn__pair *e = find(t, key);
    const size_t kept = e && behind ? e->nbytes : 0, capacity = e ? e->capacity : 0;
    REQUIRE(key.nbytes <= STORE_MAX_KEY, CAIRN_EINVAL, "a key of %zu bytes; a store takes up to %d", key.nbytes,
            STORE_MAX_KEY);
    REQUIRE(value.nbytes <= (size_t)STORE_MAX_VALUE - kept, CAIRN_EINVAL,
            "a value of %zu bytes; a store takes up to %d", kept + value.nbytes, STORE_MAX_VALUE);
    const size_t want = kept + value.nbytes, room = room_for(want, kept, capacity);
    const size_t after = t->nbytes - capacity + room + (e ? 0 : cost(key.nbytes, 0));
    REQUIRE(after <= STORE_MAX_TABLE || (e && room <= capacity), CAIRN_EINVAL,
            "the store is full: its keys and values would take more than %d bytes", STORE_MAX_TABLE);
    void *data = e ? e->value : NULL;
    cairn_status st = room == capacity ? CAIRN_OK : cairn__alloc(room, &data);
    if (st == CAIRN_OK && !e) st = insert(t, key, &e);
    if (st != CAIRN_OK) {
        if (room != capacity) cairn__free(data);
        return st;
    }
    if (data != e->value) {
        if (kept) memcpy(data, e->value, kept);
        cairn__free(e->value);
        e->value = data;
        e->capacity = room;
        t->nbytes = after;
    }
    if (value.nbytes) memcpy(e->value + kept, value.data, value.nbytes);
    e->nbytes = want;
    t->changes++;
    return CAIRN_OK;
}

void cairn__table_clear(struct cairn__table *t) {
    while (t->first) forget(t, t->first);
}

bool cairn__table_get(const struct cairn__table *t, struct cairn__blob key, struct cairn__blob *value) {
    const struct cairn__pair *e = find(t, key);
    if (e) *value = value_of(e);
    return e != NULL;
}

cairn_status cairn__table_set(struct cairn__table *t, struct cairn__blob key, struct cairn__blob value) {
    return put(t, key, value, false);
}

cairn_status cairn__table_append(struct cairn__table *t, struct cairn__blob key, struct cairn__blob value) {
    return put(t, key, value, true);
}

static bool parse_i64(struct cairn__blob text, int64_t *value) {
    char digits[24] = "";
    if (text.nbytes == 0 || text.nbytes >= sizeof(digits)) return false;
    memcpy(digits, text.data, text.nbytes);
    if (digits[0] != '-' && (digits[0] < '0' || digits[0] > '9')) return false;
    char *end = NULL;
    errno = 0;
    *value = strtoll(digits, &end, 10);
    return end == digits + text.nbytes && errno == 0;
}

cairn_status cairn__table_add(struct cairn__table *t, struct cairn__blob key, int64_t delta, int64_t *sum) {
    struct cairn__blob held;
    int64_t old = 0;
    if (cairn__table_get(t, key, &held)) {
        REQUIRE(parse_i64(held, &old), CAIRN_EINVAL,
                "key '%.*s' does not hold a whole number, so nothing can be added to it",
                (int)(key.nbytes < 256 ? key.nbytes : 256), (const char *)key.data);
    }
    char text[24];
    const int64_t added = (int64_t)((uint64_t)old + (uint64_t)delta);
    const int length = snprintf(text, sizeof(text), "%" PRId64, added);
    cairn_status st = CAIRN_OK;
    TRY(put(t, key, (struct cairn__blob){(const uint8_t *)text, (size_t)length}, false));
    *sum = added;
out:
    return st;
}

cairn_status cairn__table_compare_set(struct cairn__table *t, struct cairn__blob key, struct cairn__blob expected,
                                      struct cairn__blob desired, struct cairn__blob *now) {
    struct cairn__blob held;
    const bool there = cairn__table_get(t, key, &held);
    const bool equal =
        there ? held.nbytes == expected.nbytes && (!held.nbytes || memcmp(held.data, expected.data, held.nbytes) == 0)
              : expected.nbytes == 0;
    cairn_status st = CAIRN_OK;
    if (equal) TRY(put(t, key, desired, false));
    *now = equal ? desired : there ? held : expected;
out:
    return st;
}

bool cairn__table_delete(struct cairn__table *t, struct cairn__blob key) {
    struct cairn__pair *e = find(t, key);
    if (e) forget(t, e);
    return e != NULL;
}

void cairn__table_keep(struct cairn__table *t, struct cairn__blob kept) {
    for (struct cairn__pair *e = t->first, *next; e; e = next) {
        next = e->next;
        const bool stays =
            e->key.nbytes >= kept.nbytes && (!kept.nbytes || memcmp(e->key.data, kept.data, kept.nbytes) == 0);
        if (!stays) forget(t, e);
    }
}

void cairn__table_walk(const struct cairn__table *t,
                       void (*visit)(void *cookie, struct cairn__blob key, struct cairn__blob value), void *cookie) {
    for (const struct cairn__pair *e = t->first; e; e = e->next) visit(cookie, e->key, value_of(e));
}
