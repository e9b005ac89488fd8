/* Saves states in memory instead of files: copies the entries that objects list, and writes them into other objects'
 * entries as a checkpoint would. Functions return a failure message, as in ranks.h; CALM fails the cmocka test with
 * it. */
#ifndef TESTS_STATE_IN_MEMORY_H
#define TESTS_STATE_IN_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "param/stateful.h"

#define CALM(call)                                       \
    do {                                                 \
        char *said_ = (call);                            \
        if (said_) {                                     \
            char text_[2048];                            \
            snprintf(text_, sizeof(text_), "%s", said_); \
            free(said_);                                 \
            fail_msg("%s", text_);                       \
        }                                                \
    } while (0)

enum { MAX_KEPT = 10 };

/* An object's entries, with copies of its arrays in host memory. */
struct kept_object {
    struct cairn__entries entries;
    void **bytes; /* [entries.count]; NULL for numbers */
};

struct kept_state {
    struct kept_object objects[MAX_KEPT];
    size_t count;
};

static inline void drop_state(struct kept_state *kept) {
    for (size_t o = 0; o < kept->count; o++) {
        struct kept_object *object = &kept->objects[o];
        for (size_t i = 0; object->bytes && i < object->entries.count; i++) free(object->bytes[i]);
        free(object->bytes);
        cairn__entries_clear(&object->entries);
    }
    *kept = (struct kept_state){.count = 0};
}

static inline struct cairn_env *state_env(const cairn_stateful *of) {
    return of->ops->env ? of->ops->env(of->object) : NULL;
}

static inline char *copy_entry(struct cairn_env *env, const struct cairn__entry *e, void *host, bool into_object) {
    void *const to = into_object ? e->memory : host;
    const void *const from = into_object ? host : e->memory;
    if (e->nbytes == 0) return NULL;
    if (e->is_on_host) {
        memcpy(to, from, e->nbytes);
    } else if (into_object) {
        EXPECT_OK(cairn__device_upload(env->device, to, from, e->nbytes));
    } else {
        EXPECT_OK(cairn__device_download(env->device, to, from, e->nbytes));
    }
    return NULL;
}

/* Replaces bytes by rank 0's, since rank 0 saves what all ranks share. */
static inline char *take_rank_0s(struct cairn_env *env, void *bytes, size_t nbytes) {
    const size_t words = (nbytes + sizeof(int32_t) - 1) / sizeof(int32_t);
    int32_t *mine = calloc(words + 1, sizeof(mine[0]));
    int32_t *all = calloc(words * (size_t)env->size + 1, sizeof(all[0]));
    memcpy(mine, bytes, nbytes);
    const cairn_status st = env->gather(env, all, mine, words);
    memcpy(bytes, all, nbytes);
    free(mine);
    free(all);
    EXPECT_OK(st);
    return NULL;
}

static inline char *share_entry(struct cairn_env *env, struct cairn__entry *e, void *bytes) {
    if (!env || env->size == 1 || e->owner != CAIRN__ENTRY_SHARED || e->nbytes == 0) return NULL;
    return take_rank_0s(env, e->memory ? bytes : &e->number, e->nbytes);
}

static inline char *keep_object(struct kept_object *kept, const cairn_stateful *of) {
    *kept = (struct kept_object){.entries = {.env = state_env(of), .object = of->ops->kind}};
    EXPECT_OK(of->ops->list(of->object, &kept->entries));
    kept->bytes = calloc(kept->entries.count + 1, sizeof(kept->bytes[0]));
    for (size_t i = 0; i < kept->entries.count; i++) {
        struct cairn__entry *e = &kept->entries.at[i];
        EXPECT(cairn__entries_find(&kept->entries, e->name) == e); /* names are unique */
        if (e->memory) kept->bytes[i] = malloc(e->nbytes + 1);
        if (e->memory) PASS(copy_entry(state_env(of), e, kept->bytes[i], false));
        PASS(share_entry(state_env(of), e, kept->bytes[i]));
    }
    return NULL;
}

/* Saves several objects, replacing the previous contents of kept. */
static inline char *keep_state(struct kept_state *kept, const cairn_stateful *objects, size_t count) {
    drop_state(kept);
    for (size_t o = 0; o < count; o++) {
        kept->count = o + 1;
        PASS(keep_object(&kept->objects[o], &objects[o]));
    }
    return NULL;
}

static inline bool kept_has(const struct cairn__entries *entries, const char *name) {
    const struct kept_object *kept = entries->ctx;
    return cairn__entries_find(&kept->entries, name) != NULL;
}

static inline char *fill_entry(struct cairn_env *env, struct cairn__entry *e, const struct kept_object *kept) {
    char text[1200];
    const struct cairn__entry *saved = cairn__entries_find(&kept->entries, e->name);
    snprintf(text, sizeof(text), "of '%s', what is listed and what was saved are alike", e->name);
    if (!saved || saved->dtype != e->dtype || saved->ndim != e->ndim || saved->nbytes != e->nbytes ||
        !saved->memory != !e->memory || memcmp(saved->shape, e->shape, sizeof(e->shape)) != 0)
        return FAILURE(text);
    if (!e->memory) {
        memcpy(&e->number, &saved->number, sizeof(e->number));
        return NULL;
    }
    return copy_entry(env, e, kept->bytes[saved - kept->entries.at], true);
}

/* Lists the entries of an object to load into, which must be the saved ones. */
static inline char *list_object(const struct kept_object *kept, const cairn_stateful *of,
                                struct cairn__entries *entries) {
    *entries = (struct cairn__entries){.env = state_env(of), .object = of->ops->kind, .has = kept_has, .ctx = kept};
    EXPECT_OK(of->ops->list(of->object, entries));
    EXPECT(entries->count == kept->entries.count);
    return NULL;
}

/* Writes the saved numbers, or the saved arrays, into the entries. */
static inline char *fill_object(const struct kept_object *kept, const cairn_stateful *of,
                                struct cairn__entries *entries, bool numbers) {
    for (size_t i = 0; i < entries->count; i++) {
        if (numbers == !entries->at[i].memory) PASS(fill_entry(state_env(of), &entries->at[i], kept));
    }
    return NULL;
}

/* Loads in the same order as cairn_state_load. */
static inline char *load_all(const struct kept_state *kept, const cairn_stateful *objects,
                             struct cairn__entries *entries) {
    for (size_t o = 0; o < kept->count; o++) {
        PASS(list_object(&kept->objects[o], &objects[o], &entries[o]));
        PASS(fill_object(&kept->objects[o], &objects[o], &entries[o], true));
    }
    for (size_t o = 0; o < kept->count; o++) {
        if (objects[o].ops->check) EXPECT_OK(objects[o].ops->check(objects[o].object, &entries[o]));
    }
    for (size_t o = 0; o < kept->count; o++) PASS(fill_object(&kept->objects[o], &objects[o], &entries[o], false));
    for (size_t o = 0; o < kept->count; o++) {
        if (objects[o].ops->loaded) EXPECT_OK(objects[o].ops->loaded(objects[o].object, &entries[o]));
    }
    return NULL;
}

static inline char *bring_back(const struct kept_state *kept, const cairn_stateful *objects, size_t count) {
    struct cairn__entries entries[MAX_KEPT] = {{.env = NULL}};
    EXPECT(count == kept->count);
    char *failure = load_all(kept, objects, entries);
    for (size_t o = 0; o < count; o++) cairn__entries_clear(&entries[o]);
    return failure;
}

static inline bool same_entry(const struct kept_object *a, const struct kept_object *b, size_t i) {
    const struct cairn__entry *x = &a->entries.at[i], *y = &b->entries.at[i];
    if (strcmp(x->name, y->name) != 0 || x->nbytes != y->nbytes || x->owner != y->owner) return false;
    return x->memory ? memcmp(a->bytes[i], b->bytes[i], x->nbytes) == 0 : x->number.i64 == y->number.i64;
}

/* Compares every bit of the first `count` objects. */
static inline char *same_parts(const struct kept_state *a, const struct kept_state *b, size_t count) {
    EXPECT(a->count >= count && b->count >= count);
    for (size_t o = 0; o < count; o++) {
        const struct kept_object *x = &a->objects[o], *y = &b->objects[o];
        EXPECT(x->entries.count == y->entries.count);
        for (size_t i = 0; i < x->entries.count; i++) {
            char text[1200];
            snprintf(text, sizeof(text), "the %s's '%s' is what it should be", x->entries.object,
                     x->entries.at[i].name);
            if (!same_entry(x, y, i)) return FAILURE(text);
        }
    }
    return NULL;
}

static inline char *same_states(const struct kept_state *a, const struct kept_state *b) {
    EXPECT(a->count == b->count);
    return same_parts(a, b, a->count);
}

#endif
