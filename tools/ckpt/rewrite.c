#include "rewrite.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/alloc.h"
#include "core/convert.h"
#include "core/status.h"
#include "state/shards.h"

enum { BLOCK = 1 << 18 }; /* elements converted at a time */

struct rewrite {
    const struct tensor **from;
    struct cairn__safetensors_tensor *to;
    size_t count;
    struct cairn__safetensors_text *texts;
    size_t num_texts;
    void *read, *converted; /* blocks */
};

/* ---- options ---- */

static bool read_type(const char *text, cairn_dtype *out) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, cairn_dtype_name(types[i])) == 0) *out = types[i];
    }
    return *out != 0;
}

static bool read_size(const char *text, uint64_t *out) {
    static const struct {
        const char *name;
        uint64_t nbytes;
    } units[] = {{"", 1},          {"B", 1},         {"KB", 1000},    {"MB", 1000000}, {"GB", 1000000000},
                 {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    char *end;
    const unsigned long long n = strtoull(text, &end, 10);
    if (end == text || text[0] == '-' || n == 0 || n > UINT32_MAX) return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcasecmp(end, units[i].name) == 0) *out = n * units[i].nbytes;
    }
    return *out != 0;
}

bool rewrite_options_read(char **args, int n, struct rewrite_options *out) {
    *out = (struct rewrite_options){.most = 0};
    for (int i = 0; i < n; i += 2) {
        const char *value = i + 1 < n ? args[i + 1] : "";
        const bool is_read = strcmp(args[i], "--type") == 0            ? read_type(value, &out->type)
                             : strcmp(args[i], "--max-file-size") == 0 ? read_size(value, &out->most)
                                                                       : false;
        if (!is_read) return false;
    }
    return true;
}

/* ---- writing ---- */

static void add(struct rewrite *r, const struct tensor *from, const char *name, const struct rewrite_options *o) {
    struct cairn__safetensors_tensor *to = &r->to[r->count];
    *to = *from->info;
    to->name = name;
    if (o->type && is_float(cairn__safetensors_dtype(to->type))) to->type = cairn__safetensors_type(o->type);
    r->from[r->count++] = from;
}

static cairn_status write_tensor(void *ctx, size_t i, struct cairn__safetensors_writer *w) {
    const struct rewrite *r = ctx;
    const struct tensor *from = r->from[i];
    const bool is_same = from->info->type == r->to[i].type;
    const cairn_dtype dtype = cairn__safetensors_dtype(from->info->type), to = cairn__safetensors_dtype(r->to[i].type);
    const size_t size = is_same ? 1 : cairn_dtype_nbytes(dtype);
    cairn_status st = CAIRN_OK;
    for (uint64_t at = 0; at < from->info->nbytes; at += BLOCK * size) {
        const uint64_t left = from->info->nbytes - at;
        const size_t nbytes = left < BLOCK * size ? (size_t)left : BLOCK * size, n = nbytes / size;
        TRY(cairn__safetensors_read(from->file, from->info, at, r->read, nbytes));
        if (is_same) {
            TRY(cairn__safetensors_write(w, r->read, nbytes));
        } else {
            cairn__convert(r->converted, to, r->read, dtype, n);
            TRY(cairn__safetensors_write(w, r->converted, n * cairn_dtype_nbytes(to)));
        }
    }
out:
    return st;
}

static cairn_status begin(struct rewrite *r, const struct tensors *t, size_t num_texts) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(t->count + 1, sizeof(r->from[0]), (void **)&r->from));
    TRY(cairn__calloc(t->count + 1, sizeof(r->to[0]), (void **)&r->to));
    TRY(cairn__calloc(num_texts + 1, sizeof(r->texts[0]), (void **)&r->texts));
    TRY(cairn__alloc(BLOCK * sizeof(double), &r->read));
    TRY(cairn__alloc(BLOCK * sizeof(double), &r->converted));
out:
    return st;
}

static void end(struct rewrite *r) {
    cairn__free(r->from);
    cairn__free(r->to);
    cairn__free(r->texts);
    cairn__free(r->read);
    cairn__free(r->converted);
}

/* Whether an entry is a weight or buffer of the model, not other state. */
static bool is_weight(const char *name, const char *model, size_t n) {
    return strncmp(name, model, n) == 0 && name[n] == '/' && strcmp(name + n + 1, CAIRN__ENTRY_REQUIRES_GRAD) != 0 &&
           strcmp(name + n + 1, CAIRN__ENTRY_RANKS_DIFFER) != 0 &&
           strncmp(name + n + 1, CAIRN__ENTRY_REQUIRES_GRAD ".", sizeof(CAIRN__ENTRY_REQUIRES_GRAD)) != 0 &&
           strcmp(name + n + 1, CAIRN__ENTRY_KEEPS_BUFFERS) != 0;
}

/* Whether the entry is a part of the model that only one rank's file has. */
static bool is_part(const struct tensor *one) {
    const char *owner = one->rank < 0 ? NULL : cairn__safetensors_metadata(one->file, one->info->name);
    return owner && strcmp(owner, "part") == 0;
}

/* For per-rank entries (buffers that are not broadcast) rank 0's counts, as in a load on another number of ranks.
 * Entries of a single rank, or its rows, do not belong to one model: error. */
static cairn_status check_owner(const struct tensors *t, const struct tensor *one) {
    const char *owner = one->rank < 0 ? NULL : cairn__safetensors_metadata(one->file, one->info->name);
    REQUIRE(one->rank < 0 || is_part(one) || (owner && strcmp(owner, "rank or first") == 0), CAIRN_EINVAL,
            "%s: '%s' is rank %d's alone: the ranks do not share this model, and none of theirs stands for it", t->path,
            one->info->name, one->rank);
    return CAIRN_OK;
}

cairn_status rewrite_model(const struct tensors *t, const char *model, const char *path,
                           const struct rewrite_options *o, size_t *count) {
    const size_t n = strlen(model);
    struct rewrite r = {.count = 0};
    cairn_status st = CAIRN_OK;
    TRY(begin(&r, t, 1));
    r.texts[r.num_texts++] = (struct cairn__safetensors_text){"format", "pt"};
    for (size_t i = 0; i < t->count; i++) {
        const struct tensor *one = &t->at[i];
        if (!is_weight(one->info->name, model, n)) continue;
        TRY(check_owner(t, one));
        if (one->rank <= 0 || is_part(one)) add(&r, one, one->info->name + n + 1, o);
    }
    if (r.count == 0)
        TRY(cairn__fail(CAIRN_EINVAL, "%s has no model '%s': cairn-ckpt show lists what it has", t->path, model));
    TRY(cairn__shards_save(path, r.to, r.count, r.texts, r.num_texts, o->most, write_tensor, &r));
    *count = r.count;
out:
    end(&r);
    return st;
}

/* Whether one of the first `files` files has a text with this key. */
static bool has_text(const struct tensors *t, size_t files, const char *key) {
    for (size_t f = 0; f < files; f++) {
        if (cairn__safetensors_metadata(t->files[f], key)) return true;
    }
    return false;
}

cairn_status rewrite_files(const struct tensors *t, const char *path, const struct rewrite_options *o, size_t *count) {
    struct rewrite r = {.count = 0};
    size_t num_texts = 0;
    cairn_status st = CAIRN_OK;
    if (t->manifest.num_files)
        return cairn__fail(CAIRN_EINVAL, "%s is a checkpoint: cairn-ckpt export writes the weights of its models",
                           t->path);
    for (size_t f = 0; f < t->num_files; f++) num_texts += cairn__safetensors_metadata_count(t->files[f]);
    TRY(begin(&r, t, num_texts));
    for (size_t f = 0; f < t->num_files; f++) {
        for (size_t i = 0; i < cairn__safetensors_metadata_count(t->files[f]); i++) {
            const struct cairn__safetensors_text text = cairn__safetensors_metadata_at(t->files[f], i);
            if (!has_text(t, f, text.key)) r.texts[r.num_texts++] = text; /* every file of a set repeats all texts */
        }
    }
    for (size_t i = 0; i < t->count; i++) add(&r, &t->at[i], t->at[i].name, o);
    TRY(cairn__shards_save(path, r.to, r.count, r.texts, r.num_texts, o->most, write_tensor, &r));
    *count = r.count;
out:
    end(&r);
    return st;
}
