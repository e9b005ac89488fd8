/* The safetensors format. jansson reads and writes the JSON; this file checks the format's own rules. */
#include "state/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "state/json_scan.h"

enum {
    MAX_HEADER = 100000000, /* limit of the format's own library */
    MAX_DEPTH = 3,          /* {"name": {"shape": [ */
    MAX_SIZES = 64,         /* dimensions of a shape: PyTorch's limit */
    LENGTH = 8,
    /* Of the first element: copies are faster if source and destination have equal alignment to cache lines. */
    ALIGNMENT = 64,
    SHOWN = 64, /* characters of untrusted text in a message */
};
static const char METADATA[] = "__metadata__";

static const struct {
    const char *name;
    unsigned bits;
    cairn_dtype dtype;
} types[] = {{"?", 0, (cairn_dtype)0},
#define CAIRN__X(name, bits, dtype) {#name, bits, (cairn_dtype)dtype},
             CAIRN__SAFETENSORS_TYPES(CAIRN__X)
#undef CAIRN__X
};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

static unsigned row(enum cairn__safetensors_type type) {
    return (unsigned)type < TYPES ? (unsigned)type : 0;
}

const char *cairn__safetensors_type_name(enum cairn__safetensors_type type) {
    return types[row(type)].name;
}

cairn_dtype cairn__safetensors_dtype(enum cairn__safetensors_type type) {
    return types[row(type)].dtype;
}

enum cairn__safetensors_type cairn__safetensors_type(cairn_dtype dtype) {
    for (unsigned i = 1; i < TYPES; i++) {
        if (types[i].dtype == dtype) return (enum cairn__safetensors_type)i;
    }
    return CAIRN__SAFETENSORS_NONE;
}

/* False if the product overflows 64 bits, or is not a whole number of bytes. */
static bool measure(const struct cairn__safetensors_tensor *t, uint64_t *nbytes) {
    uint64_t bits = types[row(t->type)].bits;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0 || __builtin_mul_overflow(bits, (uint64_t)t->shape[i], &bits)) return false;
    }
    *nbytes = bits / 8;
    return bits % 8 == 0 && bits / 8 <= INT64_MAX;
}

/* ---- writing ---- */

struct cairn__safetensors_writer {
    struct cairn__writer *file;
    size_t *order;
    size_t n;
    uint64_t missing; /* bytes still to be written */
};

uint64_t cairn__safetensors_nbytes(const struct cairn__safetensors_tensor *tensor) {
    uint64_t nbytes = 0;
    return measure(tensor, &nbytes) ? nbytes : 0;
}

/* Orders tensors by element size, larger first, otherwise in the given order: one pass per size, since there are
 * few. */
static cairn_status order_tensors(const char *path, const struct cairn__safetensors_tensor *tensors, size_t n,
                                  size_t *order) {
    size_t used = 0;
    for (unsigned bits = 64; bits > 0; bits--) {
        for (size_t i = 0; i < n && used < n; i++) {
            if (types[row(tensors[i].type)].bits == bits) order[used++] = i;
        }
    }
    REQUIRE(used == n, CAIRN_EINVAL, "%s: a tensor without a type is to be written", path);
    return CAIRN_OK;
}

/* Takes ownership of value. */
static cairn_status put(const char *path, json_t *object, const char *key, json_t *value) {
    const bool is_twice = json_object_get(object, key) != NULL;
    if (is_twice) json_decref(value);
    REQUIRE(!is_twice, CAIRN_EINVAL, "%s: '%s' is to be written twice", path, key);
    REQUIRE(value, CAIRN_EINVAL, "%s: what is to be written for '%s' is not UTF-8", path, key);
    REQUIRE(json_object_set_new(object, key, value) == 0, CAIRN_EINVAL, "%s: the name '%.*s' is not UTF-8", path, SHOWN,
            key);
    return CAIRN_OK;
}

static cairn_status put_metadata(const char *path, json_t *header, const struct cairn__safetensors_text *metadata,
                                 size_t n) {
    cairn_status st = CAIRN_OK;
    json_t *texts = json_object();
    for (size_t i = 0; i < n; i++) TRY(put(path, texts, metadata[i].key, json_string(metadata[i].value)));
    if (n > 0) TRY(put(path, header, METADATA, json_incref(texts)));
out:
    json_decref(texts);
    return st;
}

static cairn_status put_tensors(const char *path, json_t *header, const struct cairn__safetensors_tensor *tensors,
                                struct cairn__safetensors_writer *w) {
    uint64_t begin = 0;
    for (size_t k = 0; k < w->n; k++) {
        const struct cairn__safetensors_tensor *t = &tensors[w->order[k]];
        uint64_t nbytes = 0;
        REQUIRE(t->name && t->name[0] && strcmp(t->name, METADATA) != 0, CAIRN_EINVAL,
                "%s: no tensor can be called '%s'", path, t->name ? t->name : "");
        REQUIRE(measure(t, &nbytes) && begin + nbytes <= INT64_MAX, CAIRN_EINVAL,
                "%s: the sizes of '%.*s' have no product", path, SHOWN, t->name);
        json_t *shape = json_array();
        for (int i = 0; i < t->ndim; i++) json_array_append_new(shape, json_integer(t->shape[i]));
        json_t *described = json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[t->type].name, "shape", shape,
                                      "data_offsets", (json_int_t)begin, (json_int_t)(begin + nbytes));
        const cairn_status st = put(path, header, t->name, described);
        if (st != CAIRN_OK) return st;
        begin += nbytes;
    }
    w->missing = begin;
    return CAIRN_OK;
}

static cairn_status write_header(struct cairn__safetensors_writer *w, const char *path, const json_t *header) {
    cairn_status st = CAIRN_OK;
    unsigned char length[LENGTH];
    char spaces[ALIGNMENT], *text = json_dumps(header, JSON_COMPACT);
    if (!text) TRY(cairn__fail(CAIRN_ENOMEM, "%s: out of memory: its header", path));
    const size_t nbytes = strlen(text), padding = ALIGNMENT - 1 - (LENGTH + nbytes + ALIGNMENT - 1) % ALIGNMENT;
    if (nbytes + padding > MAX_HEADER)
        TRY(cairn__fail(CAIRN_EINVAL, "%s: a header of %zu bytes; the format allows %d", path, nbytes, MAX_HEADER));
    for (int i = 0; i < LENGTH; i++) length[i] = (unsigned char)((uint64_t)(nbytes + padding) >> 8 * i);
    TRY(cairn__writer_write(w->file, length, LENGTH));
    TRY(cairn__writer_write(w->file, text, nbytes));
    memset(spaces, ' ', padding);
    TRY(cairn__writer_write(w->file, spaces, padding));
out:
    free(text);
    return st;
}

cairn_status cairn__safetensors_create(const char *path, unsigned flags,
                                       const struct cairn__safetensors_tensor *tensors, size_t n,
                                       const struct cairn__safetensors_text *metadata, size_t num_metadata,
                                       struct cairn__safetensors_writer **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__safetensors_writer *w = NULL;
    json_t *header = json_object();
    if (!header) TRY(cairn__fail(CAIRN_ENOMEM, "%s: out of memory: its header", path));
    TRY(cairn__calloc(1, sizeof(*w), (void **)&w));
    TRY(cairn__calloc(n, sizeof(*w->order), (void **)&w->order));
    w->n = n;
    TRY(order_tensors(path, tensors, n, w->order));
    TRY(put_metadata(path, header, metadata, num_metadata));
    TRY(put_tensors(path, header, tensors, w));
    TRY(cairn__writer_create(path, flags, &w->file));
    TRY(write_header(w, path, header));
    *out = w;
    w = NULL;
out:
    json_decref(header);
    cairn__safetensors_discard(&w);
    return st;
}

size_t cairn__safetensors_nth(const struct cairn__safetensors_writer *w, size_t k) {
    return w->order[k];
}

cairn_status cairn__safetensors_write(struct cairn__safetensors_writer *w, const void *data, size_t nbytes) {
    REQUIRE(nbytes <= w->missing, CAIRN_EINTERNAL, "%zu bytes of tensors, where %" PRIu64 " are missing", nbytes,
            w->missing);
    w->missing -= nbytes;
    return cairn__writer_write(w->file, data, nbytes);
}

cairn_status cairn__safetensors_finish(struct cairn__safetensors_writer *w) {
    REQUIRE(w->missing == 0, CAIRN_EINTERNAL, "%" PRIu64 " bytes of tensors are missing", w->missing);
    return cairn__writer_finish(w->file);
}

cairn_status cairn__safetensors_commit(struct cairn__safetensors_writer **writer, struct cairn__file_facts *facts) {
    struct cairn__safetensors_writer *w = *writer;
    cairn_status st = CAIRN_OK;
    TRY(cairn__safetensors_finish(w));
    TRY(cairn__writer_commit(&w->file, facts));
out:
    cairn__safetensors_discard(writer);
    return st;
}

void cairn__safetensors_discard(struct cairn__safetensors_writer **writer) {
    struct cairn__safetensors_writer *w = *writer;
    if (!w) return;
    cairn__writer_discard(&w->file);
    cairn__free(w->order);
    cairn__free(w);
    *writer = NULL;
}

/* ---- reading ---- */

struct cairn__safetensors {
    struct cairn__reader *reader;
    uint64_t first;                        /* byte at which elements begin */
    json_t *header;                        /* owns the texts */
    json_t *metadata;                      /* in header; NULL = none */
    struct cairn__safetensors_text *texts; /* metadata's texts, in its order */
    size_t num_texts;
    struct cairn__safetensors_tensor *at;
    size_t count;
    const struct cairn__safetensors_tensor **by_name;
    int64_t *sizes; /* memory of all shapes */
};

static cairn_status parse(const char *path, const char *text, size_t nbytes, json_t **out) {
    json_error_t error;
    REQUIRE(nbytes > 0 && text[0] == '{', CAIRN_EINVAL, "%s: not a safetensors file: its header is no JSON object",
            path);
    const struct cairn__json_scan found = cairn__json_scan(text, nbytes);
    REQUIRE(found.depth <= MAX_DEPTH, CAIRN_EINVAL, "%s: the header nests deeper than one of tensors does", path);
    REQUIRE(found.longest <= MAX_SIZES, CAIRN_EINVAL,
            "%s: the header has an array of %zu elements; the shape of a tensor has %d at most", path, found.longest,
            MAX_SIZES);
    REQUIRE(!found.is_costly, CAIRN_EINVAL, "%s: the header of %zu bytes has more values than one of so many tensors",
            path, nbytes);
    *out = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(*out || json_error_code(&error) != json_error_out_of_memory, CAIRN_ENOMEM, "%s: out of memory: its header",
            path);
    REQUIRE(*out, CAIRN_EINVAL, "%s: the header is broken at byte %d: %s", path, error.position + LENGTH, error.text);
    REQUIRE(json_is_object(*out), CAIRN_EINVAL, "%s: not a safetensors file: its header is no JSON object", path);
    return CAIRN_OK;
}

static cairn_status read_header(struct cairn__safetensors *f) {
    cairn_status st = CAIRN_OK;
    const char *path = cairn__reader_path(f->reader);
    const uint64_t all = cairn__reader_nbytes(f->reader);
    unsigned char length[LENGTH];
    uint64_t nbytes = 0;
    char *text = NULL;
    if (all < LENGTH) TRY(cairn__fail(CAIRN_EINVAL, "%s: not a safetensors file: it has %" PRIu64 " bytes", path, all));
    TRY(cairn__reader_read(f->reader, 0, length, LENGTH));
    for (int i = 0; i < LENGTH; i++) nbytes |= (uint64_t)length[i] << 8 * i;
    if (nbytes > MAX_HEADER || nbytes > all - LENGTH)
        TRY(cairn__fail(CAIRN_EINVAL,
                        "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64
                        ": was it cut, or is it no safetensors file?",
                        path, nbytes, all));
    TRY(cairn__alloc((size_t)nbytes, (void **)&text));
    TRY(cairn__reader_read(f->reader, LENGTH, text, (size_t)nbytes));
    TRY(parse(path, text, (size_t)nbytes, &f->header));
    f->first = LENGTH + nbytes;
out:
    cairn__free(text);
    return st;
}

static cairn_status read_metadata(struct cairn__safetensors *f) {
    const char *path = cairn__reader_path(f->reader), *key;
    json_t *value;
    f->metadata = json_object_get(f->header, METADATA);
    if (!f->metadata) return CAIRN_OK;
    REQUIRE(json_is_object(f->metadata), CAIRN_EINVAL, "%s: %s is no JSON object", path, METADATA);
    const cairn_status st = cairn__calloc(json_object_size(f->metadata), sizeof(*f->texts), (void **)&f->texts);
    if (st != CAIRN_OK) return st;
    json_object_foreach(f->metadata, key, value) {
        REQUIRE(json_is_string(value), CAIRN_EINVAL, "%s: '%.*s' of %s is no text", path, SHOWN, key, METADATA);
        f->texts[f->num_texts++] = (struct cairn__safetensors_text){key, json_string_value(value)};
    }
    return CAIRN_OK;
}

static cairn_status read_type(const char *path, const json_t *described, struct cairn__safetensors_tensor *t) {
    const char *name = json_string_value(json_object_get(described, "dtype"));
    REQUIRE(name, CAIRN_EINVAL, "%s: '%.*s' has no dtype", path, SHOWN, t->name);
    for (unsigned i = 1; i < TYPES; i++) {
        if (strcmp(name, types[i].name) == 0) t->type = (enum cairn__safetensors_type)i;
    }
    REQUIRE(t->type, CAIRN_EINVAL, "%s: '%.*s' has the type '%.*s', which Cairn does not know", path, SHOWN, t->name,
            SHOWN, name);
    return CAIRN_OK;
}

static cairn_status read_shape(const char *path, const json_t *described, struct cairn__safetensors_tensor *t,
                               int64_t *sizes) {
    const json_t *shape = json_object_get(described, "shape");
    REQUIRE(json_is_array(shape), CAIRN_EINVAL, "%s: '%.*s' has no shape", path, SHOWN, t->name);
    const size_t ndim = json_array_size(shape);
    for (size_t i = 0; i < ndim; i++) {
        const json_t *size = json_array_get(shape, i);
        REQUIRE(json_is_integer(size) && json_integer_value(size) >= 0, CAIRN_EINVAL,
                "%s: the shape of '%.*s' has a size that is no number of elements", path, SHOWN, t->name);
        sizes[i] = json_integer_value(size);
    }
    t->ndim = (int)ndim;
    t->shape = sizes;
    REQUIRE(measure(t, &t->nbytes), CAIRN_EINVAL, "%s: the sizes of '%.*s' have no product in bytes", path, SHOWN,
            t->name);
    return CAIRN_OK;
}

/* Sets t->begin relative to the first element of the file. */
static cairn_status read_offsets(const char *path, const json_t *described, struct cairn__safetensors_tensor *t) {
    const json_t *offsets = json_object_get(described, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    REQUIRE(json_array_size(offsets) == 2 && json_is_integer(begin) && json_is_integer(end), CAIRN_EINVAL,
            "%s: '%.*s' has no data_offsets", path, SHOWN, t->name);
    const json_int_t from = json_integer_value(begin), to = json_integer_value(end);
    REQUIRE(from >= 0 && to >= from && (uint64_t)(to - from) == t->nbytes, CAIRN_EINVAL,
            "%s: '%.*s' has the bytes from %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT
            ", and its shape needs %" PRIu64,
            path, SHOWN, t->name, from, to, t->nbytes);
    t->begin = (uint64_t)from;
    return CAIRN_OK;
}

static int by_begin(const void *a, const void *b) {
    const struct cairn__safetensors_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->nbytes != y->nbytes) return x->nbytes < y->nbytes ? -1 : 1; /* empty tensors first */
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const struct cairn__safetensors_tensor *const *)a)->name,
                  (*(const struct cairn__safetensors_tensor *const *)b)->name);
}

/* Checks that tensors cover all bytes up to the end of the file without holes. */
static cairn_status check_cover(struct cairn__safetensors *f) {
    const char *path = cairn__reader_path(f->reader);
    const uint64_t elements = cairn__reader_nbytes(f->reader) - f->first;
    uint64_t end = 0;
    for (size_t i = 0; i < f->count; i++) {
        struct cairn__safetensors_tensor *t = &f->at[i];
        REQUIRE(t->begin == end, CAIRN_EINVAL, "%s: '%.*s' begins at byte %" PRIu64 " of the elements, %s", path, SHOWN,
                t->name, t->begin, t->begin < end ? "within another tensor" : "behind bytes that no tensor has");
        end += t->nbytes;
        t->begin += f->first;
    }
    REQUIRE(end == elements, CAIRN_EINVAL,
            "%s: %" PRIu64 " bytes of elements, and its tensors have %" PRIu64 ": was it cut?", path, elements, end);
    return CAIRN_OK;
}

static cairn_status read_tensors(struct cairn__safetensors *f) {
    cairn_status st = CAIRN_OK;
    const char *path = cairn__reader_path(f->reader), *name;
    json_t *described;
    size_t num_sizes = 0;
    int64_t *sizes;
    json_object_foreach(f->header, name, described) {
        num_sizes += json_array_size(json_object_get(described, "shape"));
    }
    TRY(cairn__calloc(json_object_size(f->header), sizeof(*f->at), (void **)&f->at));
    TRY(cairn__calloc(json_object_size(f->header), sizeof(*f->by_name), (void **)&f->by_name));
    TRY(cairn__calloc(num_sizes, sizeof(*f->sizes), (void **)&f->sizes));
    sizes = f->sizes;
    json_object_foreach(f->header, name, described) {
        if (strcmp(name, METADATA) == 0) continue;
        struct cairn__safetensors_tensor *t = &f->at[f->count++];
        t->name = name;
        if (!json_is_object(described))
            TRY(cairn__fail(CAIRN_EINVAL, "%s: '%.*s' is described by no JSON object", path, SHOWN, name));
        TRY(read_type(path, described, t));
        TRY(read_shape(path, described, t, sizes));
        TRY(read_offsets(path, described, t));
        sizes += t->ndim;
    }
    qsort(f->at, f->count, sizeof(*f->at), by_begin);
    TRY(check_cover(f));
    for (size_t i = 0; i < f->count; i++) f->by_name[i] = &f->at[i];
    qsort(f->by_name, f->count, sizeof(*f->by_name), by_name);
out:
    return st;
}

cairn_status cairn__safetensors_open(const char *path, unsigned flags, struct cairn__safetensors **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__safetensors *f = NULL;
    TRY(cairn__calloc(1, sizeof(*f), (void **)&f));
    TRY(cairn__reader_open(path, flags, &f->reader));
    TRY(read_header(f));
    TRY(read_metadata(f));
    TRY(read_tensors(f));
    *out = f;
    return CAIRN_OK;
out:
    cairn__safetensors_close(&f);
    return st;
}

void cairn__safetensors_close(struct cairn__safetensors **file) {
    struct cairn__safetensors *f = *file;
    if (!f) return;
    cairn__reader_close(&f->reader);
    json_decref(f->header);
    cairn__free(f->texts);
    cairn__free(f->sizes);
    cairn__free(f->by_name);
    cairn__free(f->at);
    cairn__free(f);
    *file = NULL;
}

const char *cairn__safetensors_path(const struct cairn__safetensors *file) {
    return cairn__reader_path(file->reader);
}

size_t cairn__safetensors_count(const struct cairn__safetensors *file) {
    return file->count;
}

const struct cairn__safetensors_tensor *cairn__safetensors_at(const struct cairn__safetensors *file, size_t i) {
    return &file->at[i];
}

const struct cairn__safetensors_tensor *cairn__safetensors_find(const struct cairn__safetensors *file,
                                                                const char *name) {
    const struct cairn__safetensors_tensor wanted = {.name = name}, *key = &wanted;
    const struct cairn__safetensors_tensor **found =
        file->count ? bsearch(&key, file->by_name, file->count, sizeof(key), by_name) : NULL;
    return found ? *found : NULL;
}

cairn_status cairn__safetensors_read(struct cairn__safetensors *file, const struct cairn__safetensors_tensor *tensor,
                                     uint64_t offset, void *to, size_t nbytes) {
    REQUIRE(offset <= tensor->nbytes && nbytes <= tensor->nbytes - offset, CAIRN_EINTERNAL,
            "%s: %zu bytes from %" PRIu64 " on of '%.*s', which has %" PRIu64, cairn__reader_path(file->reader), nbytes,
            offset, SHOWN, tensor->name, tensor->nbytes);
    return cairn__reader_read(file->reader, tensor->begin + offset, to, nbytes);
}

const char *cairn__safetensors_metadata(const struct cairn__safetensors *file, const char *key) {
    return json_string_value(json_object_get(file->metadata, key));
}

size_t cairn__safetensors_metadata_count(const struct cairn__safetensors *file) {
    return file->num_texts;
}

struct cairn__safetensors_text cairn__safetensors_metadata_at(const struct cairn__safetensors *file, size_t i) {
    return file->texts[i];
}

cairn_status cairn__safetensors_facts(struct cairn__safetensors *file, struct cairn__file_facts *facts) {
    uint64_t hash = 0;
    const cairn_status st = cairn__reader_hash(file->reader, &hash);
    if (st == CAIRN_OK) *facts = (struct cairn__file_facts){.nbytes = cairn__reader_nbytes(file->reader), .hash = hash};
    return st;
}
