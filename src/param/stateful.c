/* Lists of entries. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/status.h"
#include "param/stateful.h"

enum { MAX_NAME = 1024 };

static cairn_status format_name(char name[MAX_NAME], const char *format, va_list values) {
    const int n = vsnprintf(name, MAX_NAME, format, values);
    REQUIRE(n > 0 && n < MAX_NAME, CAIRN_ENOTSUP, "the name '%.40s...' of an entry is longer than %d characters", name,
            MAX_NAME - 1);
    return CAIRN_OK;
}

/* ---- by name ---- */

/* The slot of a name, or the free slot where it belongs. num_slots is a power of two, and half of them are free. */
static size_t *slot_of(const struct cairn__entries *entries, const char *name) {
    size_t s = (size_t)cairn__hash_text(CAIRN__HASH_START, name);
    for (;; s++) {
        size_t *const slot = &entries->slots[s & (entries->num_slots - 1)];
        if (*slot == 0 || strcmp(entries->at[*slot - 1].name, name) == 0) return slot;
    }
}

/* Of two entries with one name, the first is found. */
static void enter(struct cairn__entries *entries, size_t i) {
    size_t *const slot = slot_of(entries, entries->at[i].name);
    if (*slot == 0) *slot = i + 1;
}

static cairn_status make_room(struct cairn__entries *entries) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&entries->at, &entries->capacity, entries->count + 1, sizeof(entries->at[0])));
    if (entries->num_slots >= 2 * (entries->count + 1)) return CAIRN_OK;
    const size_t n = entries->num_slots ? 2 * entries->num_slots : 16;
    size_t *slots = NULL;
    TRY(cairn__calloc(n, sizeof(slots[0]), (void **)&slots));
    cairn__free(entries->slots);
    entries->slots = slots;
    entries->num_slots = n;
    for (size_t i = 0; i < entries->count; i++) enter(entries, i);
out:
    return st;
}

struct cairn__entry *cairn__entries_find(const struct cairn__entries *entries, const char *name) {
    const size_t place = entries->num_slots ? *slot_of(entries, name) : 0;
    return place ? &entries->at[place - 1] : NULL;
}

/* ---- adding ---- */

/* Fields that `entry` leaves out are 0. */
static cairn_status add(struct cairn__entries *entries, struct cairn__entry entry, const char *format, va_list values) {
    char name[MAX_NAME];
    cairn_status st = format_name(name, format, values);
    if (st != CAIRN_OK) return st;
    TRY(make_room(entries));
    TRY(cairn__strdup(name, &entry.name));
    entries->at[entries->count] = entry;
    enter(entries, entries->count++);
out:
    return st;
}

static struct cairn__entry array(enum cairn__entry_owner owner, cairn_dtype dtype, int ndim, const int64_t *shape,
                                 void *memory, bool is_on_host) {
    struct cairn__entry e = {.owner = owner, .dtype = dtype, .ndim = ndim, .memory = memory, .is_on_host = is_on_host};
    e.nbytes = cairn_dtype_nbytes(dtype);
    for (int i = 0; i < ndim; i++) e.nbytes *= (size_t)(e.shape[i] = shape[i]);
    return e;
}

cairn_status cairn__entries_add_array(struct cairn__entries *entries, enum cairn__entry_owner owner, cairn_dtype dtype,
                                      int ndim, const int64_t *shape, void *memory, const char *format, ...) {
    va_list values;
    va_start(values, format);
    const cairn_status st = add(entries, array(owner, dtype, ndim, shape, memory, false), format, values);
    va_end(values);
    return st;
}

cairn_status cairn__entries_add_host_array(struct cairn__entries *entries, enum cairn__entry_owner owner,
                                           cairn_dtype dtype, int ndim, const int64_t *shape, void *memory,
                                           const char *format, ...) {
    va_list values;
    va_start(values, format);
    const cairn_status st = add(entries, array(owner, dtype, ndim, shape, memory, true), format, values);
    va_end(values);
    return st;
}

cairn_status cairn__entries_add_i64(struct cairn__entries *entries, enum cairn__entry_owner owner, int64_t value,
                                    const char *format, ...) {
    struct cairn__entry e = {.owner = owner, .dtype = CAIRN_I64, .nbytes = sizeof(value), .number.i64 = value};
    va_list values;
    va_start(values, format);
    const cairn_status st = add(entries, e, format, values);
    va_end(values);
    return st;
}

cairn_status cairn__entries_add_f64(struct cairn__entries *entries, enum cairn__entry_owner owner, double value,
                                    const char *format, ...) {
    struct cairn__entry e = {.owner = owner, .dtype = CAIRN_F64, .nbytes = sizeof(value), .number.f64 = value};
    va_list values;
    va_start(values, format);
    const cairn_status st = add(entries, e, format, values);
    va_end(values);
    return st;
}

void cairn__entries_cut_last(struct cairn__entries *entries, size_t first, size_t n) {
    struct cairn__entry *e = &entries->at[entries->count - 1];
    const size_t width = cairn_dtype_nbytes(e->dtype);
    if (e->owner == CAIRN__ENTRY_SHARED) {
        e->owner = CAIRN__ENTRY_SLICE;
        e->whole_rows = (int64_t)(e->nbytes / width);
        e->first = (int64_t)first;
    }
    e->is_flat = true;
    e->ndim = 1;
    e->shape[0] = (int64_t)n;
    e->nbytes = n * width;
}

bool cairn__entries_has(const struct cairn__entries *entries, const char *format, ...) {
    char name[MAX_NAME];
    va_list values;
    va_start(values, format);
    const bool fits = format_name(name, format, values) == CAIRN_OK;
    va_end(values);
    return fits && entries->has && entries->has(entries, name);
}

static const struct cairn__entry *number(const struct cairn__entries *entries, const char *format, va_list values) {
    char name[MAX_NAME];
    return format_name(name, format, values) == CAIRN_OK ? cairn__entries_find(entries, name) : NULL;
}

int64_t cairn__entries_i64(const struct cairn__entries *entries, const char *format, ...) {
    va_list values;
    va_start(values, format);
    const struct cairn__entry *e = number(entries, format, values);
    va_end(values);
    return e ? e->number.i64 : 0;
}

double cairn__entries_f64(const struct cairn__entries *entries, const char *format, ...) {
    va_list values;
    va_start(values, format);
    const struct cairn__entry *e = number(entries, format, values);
    va_end(values);
    return e ? e->number.f64 : 0;
}

void cairn__entries_clear(struct cairn__entries *entries) {
    for (size_t i = 0; i < entries->count; i++) cairn__free(entries->at[i].name);
    cairn__free(entries->at);
    cairn__free(entries->slots);
    entries->at = NULL;
    entries->slots = NULL;
    entries->count = entries->capacity = entries->num_slots = 0;
}
