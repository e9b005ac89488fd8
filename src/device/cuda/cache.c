/* A segment is a chain of blocks in address order. Free blocks of a pool are also in a list, which is short and
 * searched linearly for the best fit. Blocks in use are in an array sorted by address. Adjacent free blocks are always
 * merged. */
#include "device/cuda/cache.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

struct block {
    char *p;
    size_t nbytes;
    bool used, small;
    enum cairn__holder holder;
    struct block *before, *after;        /* neighbours in the segment, NULL at its ends */
    struct block *free_prev, *free_next; /* in the list of its pool */
};

struct cairn__cache {
    struct cairn__cache_source source;
    struct block *free[2]; /* [small] */
    struct block *spare;   /* unused headers: a step that has run once allocates no host memory either */
    struct block **used;   /* sorted by address */
    size_t count, capacity;
    size_t held[CAIRN__NUM_HOLDERS];
    size_t unused;
};

/* ---- lists ---- */

static void list(struct cairn__cache *c, struct block *b) {
    struct block **head = &c->free[b->small];
    b->used = false;
    b->free_prev = NULL;
    b->free_next = *head;
    if (*head) (*head)->free_prev = b;
    *head = b;
    c->unused += b->nbytes;
}

static void unlist(struct cairn__cache *c, struct block *b) {
    *(b->free_prev ? &b->free_prev->free_next : &c->free[b->small]) = b->free_next;
    if (b->free_next) b->free_next->free_prev = b->free_prev;
    c->unused -= b->nbytes;
}

/* The first block in use whose address is not below p. */
static size_t place_of(const struct cairn__cache *c, const char *p) {
    size_t low = 0, high = c->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (c->used[middle]->p < p) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The array has room. */
static void use(struct cairn__cache *c, struct block *b, enum cairn__holder holder) {
    const size_t place = place_of(c, b->p);
    memmove(&c->used[place + 1], &c->used[place], (c->count - place) * sizeof(struct block *));
    c->used[place] = b;
    c->count++;
    b->used = true;
    b->holder = holder;
    c->held[holder] += b->nbytes;
}

/* ---- blocks ---- */

static size_t round_up(size_t nbytes, size_t grain) {
    return (nbytes + grain - 1) / grain * grain;
}

static struct block *best_fit(const struct cairn__cache *c, bool small, size_t nbytes) {
    struct block *best = NULL;
    for (struct block *b = c->free[small]; b; b = b->free_next) {
        if (b->nbytes >= nbytes && (!best || b->nbytes < best->nbytes)) best = b;
    }
    return best;
}

static cairn_status new_header(struct cairn__cache *c, struct block **out) {
    if (!c->spare) return cairn__calloc(1, sizeof(**out), (void **)out);
    *out = c->spare;
    c->spare = c->spare->free_next;
    return CAIRN_OK;
}

static void drop_header(struct cairn__cache *c, struct block *b) {
    b->free_next = c->spare;
    c->spare = b;
}

/* Cuts what is more than nbytes off the end, as a free block with the header `rest`. */
static void split(struct cairn__cache *c, struct block *b, size_t nbytes, struct block *rest) {
    *rest = (struct block){
        .p = b->p + nbytes, .nbytes = b->nbytes - nbytes, .small = b->small, .before = b, .after = b->after};
    if (b->after) b->after->before = rest;
    b->after = rest;
    b->nbytes = nbytes;
    list(c, rest);
}

/* Merges the block behind b into b; neither is in a list. */
static void absorb_next(struct cairn__cache *c, struct block *b) {
    struct block *next = b->after;
    b->nbytes += next->nbytes;
    b->after = next->after;
    if (next->after) next->after->before = b;
    drop_header(c, next);
}

/* ---- segments ---- */

static cairn_status add_segment(struct cairn__cache *c, bool small, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    struct block *b = NULL;
    const size_t taken = round_up(nbytes, CAIRN__CACHE_SEGMENT_GRAIN);
    TRY(new_header(c, &b));
    *b = (struct block){.nbytes = taken, .small = small};
    TRY(c->source.take(c->source.cookie, taken, (void **)&b->p));
    list(c, b);
    return CAIRN_OK;
out:
    if (b) drop_header(c, b);
    return st;
}

/* Returns the segments without used blocks to the driver; returns whether there were any. */
static bool trim(struct cairn__cache *c) {
    bool found = false;
    for (int small = 0; small < 2; small++) {
        for (struct block *b = c->free[small], *next = NULL; b; b = next) {
            next = b->free_next;
            if (b->before || b->after) continue;
            unlist(c, b);
            c->source.give_back(c->source.cookie, b->p);
            drop_header(c, b);
            found = true;
        }
    }
    return found;
}

/* ---- the message when memory is out ---- */

struct text {
    char data[640];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void append(struct text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(t->data + t->used, sizeof(t->data) - t->used, format, args);
    va_end(args);
    if (length > 0) t->used += (size_t)length;
    if (t->used >= sizeof(t->data)) t->used = sizeof(t->data) - 1;
}

static void append_size(struct text *t, size_t nbytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)nbytes / 1024;
    int unit = 0;
    while (value >= 1023.95 && unit < 3) value /= 1024, unit++;
    append(t, "%.1f %s", value, units[unit]);
}

static cairn_status fail_without_memory(const struct cairn__cache *c, size_t nbytes) {
    struct text t = {.used = 0};
    size_t available = 0, total = 0;
    c->source.ask(c->source.cookie, &available, &total);
    append_size(&t, nbytes);
    append(&t, " wanted; ");
    append_size(&t, total);
    append(&t, " in all, ");
    append_size(&t, available);
    append(&t, " free, held here: ");
    const char *between = "";
    for (int h = 0; h < CAIRN__NUM_HOLDERS; h++) {
        if (c->held[h] == 0) continue;
        append(&t, "%s%s ", between, cairn__holder_name((enum cairn__holder)h));
        append_size(&t, c->held[h]);
        between = ", ";
    }
    append(&t, "%s; cached ", *between ? "" : "nothing");
    append_size(&t, c->unused);
    return cairn__fail(CAIRN_ENOMEM, "%s is out of memory: %s", c->source.name, t.data);
}

/* ---- the interface ---- */

cairn_status cairn__cache_create(const struct cairn__cache_source *source, struct cairn__cache **out) {
    struct cairn__cache *c = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*c), (void **)&c));
    c->source = *source;
    *out = c;
out:
    return st;
}

void cairn__cache_destroy(struct cairn__cache **cache) {
    if (!cache || !*cache) return;
    struct cairn__cache *c = *cache;
    while (c->count > 0) cairn__cache_free(c, c->used[c->count - 1]->p);
    trim(c);
    for (struct block *b = c->spare, *next = NULL; b; b = next) {
        next = b->free_next;
        cairn__free(b);
    }
    cairn__free(c->used);
    cairn__free(c);
    *cache = NULL;
}

static cairn_status find_block(struct cairn__cache *c, bool small, size_t nbytes, struct block **out) {
    *out = best_fit(c, small, nbytes);
    if (*out) return CAIRN_OK;
    cairn_status st = add_segment(c, small, nbytes);
    if (st == CAIRN_ENOMEM && trim(c)) st = add_segment(c, small, nbytes);
    if (st == CAIRN_ENOMEM) return fail_without_memory(c, nbytes);
    if (st == CAIRN_OK) *out = best_fit(c, small, nbytes);
    return st;
}

cairn_status cairn__cache_alloc(struct cairn__cache *c, enum cairn__holder holder, size_t nbytes, void **out) {
    cairn_status st = CAIRN_OK;
    const bool small = nbytes <= CAIRN__CACHE_SMALL;
    struct block *b = NULL, *rest = NULL;
    if (nbytes > SIZE_MAX / 2) return fail_without_memory(c, nbytes);
    nbytes = round_up(nbytes ? nbytes : 1, small ? CAIRN__CACHE_GRAIN : CAIRN__CACHE_SEGMENT_GRAIN);
    TRY(cairn__grow((void **)&c->used, &c->capacity, c->count + 1, sizeof(*c->used)));
    TRY(find_block(c, small, nbytes, &b));
    if (b->nbytes > nbytes) TRY(new_header(c, &rest));
    unlist(c, b);
    if (rest) split(c, b, nbytes, rest);
    use(c, b, holder);
    *out = b->p;
out:
    return st;
}

void cairn__cache_free(struct cairn__cache *c, void *p) {
    const size_t place = place_of(c, p);
    struct block *b = c->used[place];
    c->count--;
    memmove(&c->used[place], &c->used[place + 1], (c->count - place) * sizeof(struct block *));
    c->held[b->holder] -= b->nbytes;
    if (b->after && !b->after->used) {
        unlist(c, b->after);
        absorb_next(c, b);
    }
    if (b->before && !b->before->used) {
        b = b->before;
        unlist(c, b);
        absorb_next(c, b);
    }
    list(c, b);
}

size_t cairn__cache_held(const struct cairn__cache *c, enum cairn__holder holder) {
    return c->held[holder];
}

size_t cairn__cache_unused(const struct cairn__cache *c) {
    return c->unused;
}
