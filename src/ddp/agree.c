/* Agreement on parameters and buffers. Every rank describes its own as text, and ranks exchange a hash of it. Only if
 * hashes differ do they exchange the text; every rank then finds the same first difference and fails with it, where
 * torch's one-way broadcast leaves rank 0 hanging. */
#include <stdio.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "core/status.h"
#include "ddp/context.h"
#include "kernels/kernels.h"

/* ---- words ---- */

/* The text of a rank: for each parameter and buffer, in order, its name and its description, each ended by a zero
 * byte. */
struct words {
    char *text;
    size_t used, capacity;
};

struct entry {
    const char *name, *what;
};

/* Entries point into the text they were read from. */
struct list {
    struct entry *entries;
    size_t count;
};

static cairn_status add_text(struct words *w, const char *text) {
    const size_t nbytes = strlen(text) + 1;
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&w->text, &w->capacity, w->used + nbytes, 1));
    memcpy(w->text + w->used, text, nbytes);
    w->used += nbytes;
out:
    return st;
}

static void write_shape(char *text, size_t nbytes, int ndim, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, nbytes, "[");
    for (int i = 0; i < ndim; i++) {
        used += (size_t)snprintf(text + used, nbytes - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    }
    snprintf(text + used, nbytes - used, "]");
}

enum { SHAPE_TEXT = 24 * CAIRN_MAX_DIMS };

/* A parameter is "[16, 1024] f16 with master". */
static cairn_status describe(struct words *w, const struct ddp_context *d) {
    char shape[SHAPE_TEXT], what[SHAPE_TEXT + 64];
    cairn_status st = CAIRN_OK;
    const size_t buffers = d->model ? cairn_module_num_buffers(d->model) : 0;
    for (size_t s = 0; s < d->num_shared; s++) {
        const struct cairn__param *p = d->shared[s].param;
        write_shape(shape, sizeof(shape), p->ndim, p->shape);
        snprintf(what, sizeof(what), "%s %s%s%s%s%s", shape, cairn_dtype_name(p->dtype),
                 p->value_type ? " of values in " : "", p->value_type ? cairn_dtype_name(p->value_type) : "",
                 p->master ? " with master" : "", cairn__param_requires_grad(p) ? "" : ", frozen");
        TRY(add_text(w, p->name));
        TRY(add_text(w, what));
    }
    for (size_t i = 0; i < buffers; i++) {
        const char *name = NULL;
        const cairn_tensor *b = cairn_module_buffer(d->model, i, &name);
        int64_t sizes[CAIRN_MAX_DIMS] = {0};
        if (cairn__ddp_ignores(d, name)) continue;
        for (int k = 0; k < cairn_tensor_ndim(b); k++) sizes[k] = cairn_tensor_size(b, k);
        write_shape(shape, sizeof(shape), cairn_tensor_ndim(b), sizes);
        snprintf(what, sizeof(what), "%s %s, a buffer", shape, cairn_dtype_name(cairn_tensor_dtype(b)));
        TRY(add_text(w, name));
        TRY(add_text(w, what));
    }
out:
    return st;
}

static cairn_status read_list(const char *text, size_t nbytes, struct list *out) {
    size_t zeros = 0;
    for (size_t i = 0; i < nbytes; i++) zeros += text[i] == '\0';
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(zeros / 2 + 1, sizeof(out->entries[0]), (void **)&out->entries));
    out->count = zeros / 2;
    for (size_t i = 0; i < out->count; i++) {
        out->entries[i].name = text;
        out->entries[i].what = text += strlen(text) + 1;
        text += strlen(text) + 1;
    }
out:
    return st;
}

/* ---- the first difference ---- */

static bool has(const struct list *list, const char *name) {
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->entries[i].name, name) == 0) return true;
    }
    return false;
}

static bool is_same(const struct list *a, const struct list *b, size_t i) {
    if (i >= a->count || i >= b->count) return i >= a->count && i >= b->count;
    return strcmp(a->entries[i].name, b->entries[i].name) == 0 && strcmp(a->entries[i].what, b->entries[i].what) == 0;
}

#define ALIKE "; every rank must build the same model at the same opt level"

static cairn_status tell_missing(const char *call, const struct entry *e, size_t i, int there, int not_there) {
    return cairn__fail(CAIRN_EPEER, "%s: parameter %zu is '%s' %s on rank %d but missing on rank %d" ALIKE, call, i,
                       e->name, e->what, there, not_there);
}

/* Entry i of rank 0's list and of rank's differ. */
static cairn_status tell(const char *call, const struct list *first, const struct list *other, size_t i, int rank) {
    const struct entry *a = i < first->count ? &first->entries[i] : NULL;
    const struct entry *b = i < other->count ? &other->entries[i] : NULL;
    if (a && !has(other, a->name)) return tell_missing(call, a, i, 0, rank);
    if (b && !has(first, b->name)) return tell_missing(call, b, i, rank, 0);
    const bool is_order = strcmp(a->name, b->name) != 0;
    return cairn__fail(CAIRN_EPEER, "%s: parameter %zu is '%s' %s on rank 0 but '%s' %s on rank %d%s", call, i, a->name,
                       a->what, b->name, b->what, rank,
                       is_order ? ", which has both; every rank must register its parameters in the same order"
                                : ALIKE);
}

/* Every rank's text, padded to the longest one. */
static cairn_status compare_words(const char *call, struct words *w, const size_t *used, cairn_group *group) {
    cairn_status st = CAIRN_OK;
    char *all = NULL;
    struct list lists[CAIRN__MAX_RANKS] = {{0}};
    const int p = cairn_group_size(group);
    size_t most = 0;
    for (int r = 0; r < p; r++) most = used[r] > most ? used[r] : most;
    st = cairn__grow((void **)&w->text, &w->capacity, most, 1);
    TRY(cairn__group_agree_on_status(group, call, st));
    memset(w->text + w->used, 0, most - w->used);
    TRY(cairn__group_make_room(group, call, most, (void **)&all));
    TRY(cairn__group_exchange(group, all, w->text, most));
    size_t entries = 0;
    for (int r = 0; r < p; r++) {
        TRY(read_list(all + (size_t)r * most, used[r], &lists[r]));
        if (lists[r].count > entries) entries = lists[r].count;
    }
    for (size_t i = 0; i < entries; i++) {
        for (int r = 1; r < p; r++) {
            if (!is_same(&lists[0], &lists[r], i)) TRY(tell(call, &lists[0], &lists[r], i, r));
        }
    }
out:
    for (int r = 0; r < p; r++) cairn__free(lists[r].entries);
    cairn__free(all);
    return st;
}

/* ---- the calls ---- */

/* Different settings of amp on different ranks would go unnoticed until the weights differ. */
static cairn_status agree_on_precision(const struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    char(*all)[sizeof(d->set->precision)] = NULL;
    TRY(cairn__group_make_room(d->channel, d->call, sizeof(*all), (void **)&all));
    TRY(cairn__group_exchange(d->channel, all, d->set->precision, sizeof(*all)));
    for (int r = 1; r < cairn_group_size(d->channel); r++) {
        if (memcmp(all[0], all[r], sizeof(*all)) == 0) continue;
        st = cairn__fail(CAIRN_EPEER,
                         "%s: rank 0 runs with %s but rank %d with %s; call amp_initialize alike on every rank",
                         d->call, all[0][0] ? all[0] : "no amp", r, all[r][0] ? all[r] : "no amp");
        break;
    }
out:
    cairn__free(all);
    return st;
}

cairn_status cairn__ddp_agree_on_params(const struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    struct words words = {0};
    st = describe(&words, d);
    TRY(cairn__group_agree_on_status(d->channel, d->call, st));
    struct {
        uint64_t hash, used;
    } all[CAIRN__MAX_RANKS], mine = {cairn__hash_bytes(CAIRN__HASH_START, words.text, words.used), words.used};
    size_t used[CAIRN__MAX_RANKS];
    bool same = true;
    TRY(cairn__group_exchange(d->channel, all, &mine, sizeof(mine)));
    for (int r = 0; r < cairn_group_size(d->channel); r++) {
        same &= all[r].hash == all[0].hash && all[r].used == all[0].used;
        used[r] = all[r].used;
    }
    if (!same) TRY(compare_words(d->call, &words, used, d->channel));
    TRY(agree_on_precision(d));
out:
    cairn__free(words.text);
    return st;
}
