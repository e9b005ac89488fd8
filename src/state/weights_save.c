/* Saving: finds tensors with two names, saves them once, and converts to the requested type. */
#include <string.h>

#include "core/alloc.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/status.h"
#include "state/shards.h"
#include "state/weights.h"

enum { BLOCK = 1 << 18 }; /* elements that are converted at once */

struct save {
    struct cairn__weights list;
    const char *path;
    struct cairn__weights_piece **kept; /* pieces to save, in their order */
    size_t count;
    struct cairn__safetensors_text *texts;
    size_t num_texts;
    void *host, *converted; /* blocks, allocated on first need */
};

static cairn_dtype saved_type(const struct save *s, const struct cairn__weights_piece *p) {
    const bool is_converted = p->dtype == CAIRN_F32 || cairn__is_half(p->dtype);
    return s->list.options.dtype && is_converted ? s->list.options.dtype : p->dtype;
}

/* ---- elements ---- */

/* Copies n elements to the host, starting at element `first`. */
static cairn_status fetch(struct save *s, const struct cairn__weights_piece *p, uint64_t first, size_t n,
                          const void **out) {
    cairn_status st = CAIRN_OK;
    const size_t size = cairn_dtype_nbytes(p->dtype);
    *out = p->memory + first * size;
    if (s->list.is_on_host) return CAIRN_OK;
    if (!s->host) TRY(cairn__alloc(BLOCK * sizeof(double), &s->host));
    TRY(cairn__device_download(s->list.env->device, s->host, *out, n * size));
    *out = s->host;
out:
    return st;
}

static cairn_status write_piece(void *ctx, size_t k, struct cairn__safetensors_writer *file) {
    cairn_status st = CAIRN_OK;
    struct save *s = ctx;
    const struct cairn__weights_piece *p = s->kept[k];
    const cairn_dtype type = saved_type(s, p);
    const uint64_t step = s->list.is_on_host && type == p->dtype && p->n > 0 ? p->n : BLOCK;
    if (type != p->dtype && !s->converted) TRY(cairn__alloc(BLOCK * sizeof(float), &s->converted));
    for (uint64_t i = 0; i < p->n; i += step) {
        const size_t n = (size_t)(p->n - i < step ? p->n - i : step);
        const void *elements = NULL;
        TRY(fetch(s, p, i, n, &elements));
        if (type != p->dtype) {
            cairn__convert(s->converted, type, elements, p->dtype, n);
            elements = s->converted;
        }
        TRY(cairn__safetensors_write(file, elements, n * cairn_dtype_nbytes(type)));
    }
out:
    return st;
}

/* ---- tensors with two names ---- */

static int by_memory(const void *a, const void *b) {
    const struct cairn__weights_piece *x = *(struct cairn__weights_piece *const *)a,
                                      *y = *(struct cairn__weights_piece *const *)b;
    if (x->memory != y->memory) return x->memory < y->memory ? -1 : 1;
    return x < y ? -1 : x > y; /* the first one keeps its name */
}

static int by_name(const void *a, const void *b) {
    const struct cairn__weights_piece *x = *(struct cairn__weights_piece *const *)a,
                                      *y = *(struct cairn__weights_piece *const *)b;
    const int order = strcmp(x->file, y->file);
    return order ? order : x < y ? -1 : x > y;
}

static bool same_shape(const struct cairn__weights_piece *a, const struct cairn__weights_piece *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(a->shape[0])) == 0;
}

static cairn_status compare(struct save *s, const struct cairn__weights_piece *a, const struct cairn__weights_piece *b,
                            bool *equal) {
    cairn_status st = CAIRN_OK;
    void *copy = NULL;
    const size_t size = cairn_dtype_nbytes(a->dtype);
    *equal = same_shape(a, b);
    TRY(cairn__alloc(BLOCK * sizeof(double), &copy));
    for (uint64_t i = 0; *equal && i < a->n; i += BLOCK) {
        const size_t n = (size_t)(a->n - i < BLOCK ? a->n - i : BLOCK);
        const void *elements = NULL;
        TRY(fetch(s, a, i, n, &elements));
        memcpy(copy, elements, n * size);
        TRY(fetch(s, b, i, n, &elements));
        *equal = memcmp(copy, elements, n * size) == 0;
    }
out:
    cairn__free(copy);
    return st;
}

/* Drops later neighbours with the same name, which must be bitwise equal to the first. */
static cairn_status join_names(struct save *s, struct cairn__weights_piece **sorted, size_t n) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 1, first = 0; i < n; i++) {
        bool equal = false;
        if (strcmp(sorted[i]->file, sorted[first]->file) != 0) {
            first = i;
            continue;
        }
        TRY(compare(s, sorted[first], sorted[i], &equal));
        if (!equal)
            TRY(cairn__fail(CAIRN_EINVAL, "%s: '%s' and '%s' would both be '%s' there, and they are not equal", s->path,
                            sorted[first]->ours, sorted[i]->ours, sorted[i]->file));
        sorted[i]->is_chosen = false;
    }
out:
    return st;
}

/* Drops later neighbours in the same memory, and keeps their names as aliases. */
static cairn_status join_memory(struct save *s, struct cairn__weights_piece **sorted, size_t n) {
    cairn_status st = CAIRN_OK;
    size_t capacity = s->num_texts;
    for (size_t i = 1, first = 0; i < n; i++) {
        if (sorted[i]->memory != sorted[first]->memory || !same_shape(sorted[i], sorted[first]) || sorted[i]->n == 0) {
            first = i;
            continue;
        }
        TRY(cairn__grow((void **)&s->texts, &capacity, s->num_texts + 1, sizeof(s->texts[0])));
        s->texts[s->num_texts++] = (struct cairn__safetensors_text){sorted[i]->file, sorted[first]->file};
        sorted[i]->is_chosen = false;
    }
out:
    return st;
}

static size_t list_chosen(const struct save *s, struct cairn__weights_piece **out) {
    size_t n = 0;
    for (size_t i = 0; i < s->list.count; i++) {
        if (s->list.at[i].is_chosen) out[n++] = &s->list.at[i];
    }
    return n;
}

static cairn_status choose_pieces(struct save *s) {
    cairn_status st = CAIRN_OK;
    size_t n;
    TRY(cairn__calloc(s->list.count, sizeof(s->kept[0]), (void **)&s->kept));
    n = list_chosen(s, s->kept);
    qsort(s->kept, n, sizeof(s->kept[0]), by_name);
    TRY(join_names(s, s->kept, n));
    n = list_chosen(s, s->kept);
    qsort(s->kept, n, sizeof(s->kept[0]), by_memory);
    TRY(join_memory(s, s->kept, n));
    s->count = list_chosen(s, s->kept);
out:
    return st;
}

static cairn_status collect_texts(struct save *s) {
    const struct cairn_weights_options *o = &s->list.options;
    bool has_format = false;
    cairn_status st = cairn__calloc(o->num_metadata + 1, sizeof(s->texts[0]), (void **)&s->texts);
    for (size_t i = 0; st == CAIRN_OK && i < o->num_metadata; i++) {
        if (!o->metadata[i].key || !o->metadata[i].value)
            return cairn__fail(CAIRN_EINVAL, "%s: key and value of metadata must be set", s->path);
        s->texts[s->num_texts++] = (struct cairn__safetensors_text){o->metadata[i].key, o->metadata[i].value};
        has_format |= strcmp(o->metadata[i].key, "format") == 0;
    }
    if (st == CAIRN_OK && !has_format) s->texts[s->num_texts++] = (struct cairn__safetensors_text){"format", "pt"};
    return st;
}

static cairn_status write_files(struct save *s) {
    cairn_status st = CAIRN_OK;
    const struct cairn_weights_options *o = &s->list.options;
    struct cairn__safetensors_tensor *tensors = NULL;
    TRY(cairn__calloc(s->count, sizeof(tensors[0]), (void **)&tensors));
    for (size_t i = 0; i < s->count; i++) {
        const struct cairn__weights_piece *p = s->kept[i];
        const enum cairn__safetensors_type type = cairn__safetensors_type(saved_type(s, p));
        tensors[i] =
            (struct cairn__safetensors_tensor){.name = p->file, .type = type, .ndim = p->ndim, .shape = p->shape};
    }
    TRY(cairn__shards_save(s->path, tensors, s->count, s->texts, s->num_texts, o->max_file_nbytes, write_piece, s));
out:
    cairn__free(tensors);
    return st;
}

cairn_status cairn_weights_save(cairn_stateful object, const char *path, const struct cairn_weights_options *options) {
    cairn_status st = CAIRN_OK;
    struct save s = {.path = path};
    TRY(cairn__weights_list(&s.list, "cairn_weights_save", object, path, options));
    TRY(cairn__device_synchronize(s.list.env->device));
    TRY(collect_texts(&s));
    TRY(choose_pieces(&s));
    TRY(write_files(&s));
out:
    cairn__free(s.texts);
    cairn__free(s.kept);
    cairn__free(s.host);
    cairn__free(s.converted);
    cairn__weights_clear(&s.list);
    return st;
}
