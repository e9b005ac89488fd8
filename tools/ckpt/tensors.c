#include "tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/utf8.h"

enum { MAX_MANIFEST = 64 << 20 };

static cairn_status read_manifest(const char *path, struct cairn__manifest *out) {
    char name[CAIRN__MAX_PATH];
    char *text = NULL;
    struct cairn__file_facts facts;
    cairn_status st = CAIRN_OK;
    snprintf(name, sizeof(name), "%s/checkpoint.json", path);
    TRY(cairn__file_read(name, CAIRN__READER_NO_LINK, MAX_MANIFEST, &text, &facts));
    TRY(cairn__manifest_read(text, facts.nbytes, name, out));
out:
    cairn__free(text);
    return st;
}

/* Returns the rank that owns a file of a checkpoint, by the file's name; -1 = all ranks. */
static int rank_of(const char *file_name) {
    int rank;
    return file_name && sscanf(file_name, "rank-%9d.", &rank) == 1 ? rank : -1;
}

/* Prefixes entries of a single rank with "rank 1: ". */
static cairn_status put_name(int rank, const char *name, char **out) {
    const size_t room = strlen(name) + sizeof("rank 123456789: ");
    if (rank < 0) return cairn__strdup(name, out);
    const cairn_status st = cairn__alloc(room, (void **)out);
    if (st == CAIRN_OK) snprintf(*out, room, "rank %d: %s", rank, name);
    return st;
}

static cairn_status add(struct tensors *t, struct cairn__safetensors *file, const char *file_name,
                        const struct cairn__safetensors_tensor *info) {
    t->at[t->count] = (struct tensor){.rank = rank_of(file_name), .file = file, .info = info};
    const cairn_status st = put_name(t->at[t->count].rank, info->name, &t->at[t->count].name);
    if (st == CAIRN_OK) t->count++;
    return st;
}

static cairn_status add_file(struct tensors *t, const char *path, const char *file_name) {
    struct cairn__safetensors *file = NULL;
    size_t capacity = t->count;
    cairn_status st = CAIRN_OK;
    TRY(cairn__safetensors_open(path, CAIRN__READER_NO_LINK | CAIRN__READER_HASHES, &file));
    t->files[t->num_files++] = file;
    const size_t n = cairn__safetensors_count(file);
    TRY(cairn__grow((void **)&t->at, &capacity, t->count + n, sizeof(t->at[0])));
    for (size_t i = 0; i < n; i++) TRY(add(t, file, file_name, cairn__safetensors_at(file, i)));
out:
    return st;
}

static cairn_status open_checkpoint(struct tensors *t) {
    char name[CAIRN__MAX_PATH];
    cairn_status st = CAIRN_OK;
    TRY(read_manifest(t->path, &t->manifest));
    REQUIRE(t->manifest.num_files, CAIRN_EINVAL, "%s: its checkpoint.json lists no files", t->path);
    TRY(cairn__calloc(t->manifest.num_files + 1, sizeof(t->files[0]), (void **)&t->files));
    for (size_t i = 0; i < t->manifest.num_files; i++) {
        snprintf(name, sizeof(name), "%s/%s", t->path, t->manifest.files[i].name);
        TRY(add_file(t, name, t->manifest.files[i].name));
    }
out:
    return st;
}

static cairn_status open_files(struct tensors *t) {
    struct cairn__source *source = &t->source;
    cairn_status st = CAIRN_OK;
    TRY(cairn__source_open(source, t->path));
    t->files = source->files;
    t->num_files = source->num_files;
    TRY(cairn__calloc(source->count + 1, sizeof(t->at[0]), (void **)&t->at));
    for (size_t i = 0; i < source->count; i++) TRY(add(t, source->tensors[i].file, NULL, source->tensors[i].at));
out:
    return st;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

cairn_status tensors_open(const char *path, struct tensors *out) {
    char name[CAIRN__MAX_PATH];
    struct stat s;
    *out = (struct tensors){.path = path};
    snprintf(name, sizeof(name), "%s/checkpoint.json", path);
    const cairn_status st = lstat(name, &s) == 0 ? open_checkpoint(out) : open_files(out);
    if (st != CAIRN_OK) tensors_close(out);
    else if (out->count) qsort(out->at, out->count, sizeof(out->at[0]), by_name);
    return st;
}

void tensors_close(struct tensors *t) {
    for (size_t i = 0; i < t->count; i++) cairn__free(t->at[i].name);
    cairn__free(t->at);
    if (t->manifest.num_files) {
        for (size_t i = 0; i < t->num_files; i++) cairn__safetensors_close(&t->files[i]);
        cairn__free(t->files);
    }
    cairn__source_close(&t->source);
    cairn__manifest_clear(&t->manifest);
    *t = (struct tensors){.path = t->path};
}

const struct tensor *tensors_find(const struct tensors *t, const char *name) {
    const struct tensor wanted = {.name = (char *)name};
    return t->count ? bsearch(&wanted, t->at, t->count, sizeof(t->at[0]), by_name) : NULL;
}

cairn_status tensor_read(const struct tensor *t, void **out) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc(t->info->nbytes, out));
    TRY(cairn__safetensors_read(t->file, t->info, 0, *out, t->info->nbytes));
    return CAIRN_OK;
out:
    cairn__free(*out);
    *out = NULL;
    return st;
}

cairn_status tensors_check(const struct tensors *t) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < t->num_files; i++) {
        struct cairn__file_facts facts;
        TRY(cairn__safetensors_facts(t->files[i], &facts));
        if (t->manifest.num_files == 0) continue;
        const struct cairn__manifest_file *wanted = &t->manifest.files[i];
        if (facts.nbytes != wanted->nbytes)
            TRY(cairn__fail(CAIRN_EINVAL, "%s: it has %" PRIu64 " bytes and the manifest says %" PRIu64,
                            cairn__safetensors_path(t->files[i]), facts.nbytes, wanted->nbytes));
        if (facts.hash != wanted->xxh3)
            TRY(cairn__fail(CAIRN_EINVAL, "%s: its checksum is not the one in checkpoint.json: the file was changed",
                            cairn__safetensors_path(t->files[i])));
    }
out:
    return st;
}

bool is_float(cairn_dtype d) {
    return d == CAIRN_F64 || d == CAIRN_F32 || cairn__is_half(d);
}

/* Control characters, and characters that change the text direction. */
static bool is_command(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || (c >= 0x202a && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

void put_text(FILE *to, const char *text, int width) {
    size_t length;
    for (; *text; text += length) {
        const uint32_t c = cairn__utf8_decode(text, &length);
        const bool is_broken = c == CAIRN__NO_CHARACTER && length == 1; /* invalid UTF-8 byte */
        if (is_broken) width -= fprintf(to, "\\x%02x", (unsigned char)*text);
        else if (is_command(c)) width -= fprintf(to, c < 0x100 ? "\\x%02" PRIx32 : "\\u%04" PRIx32, c);
        else width -= fwrite(text, 1, length, to) == length;
    }
    if (width > 0) fprintf(to, "%*s", width, "");
}

void tensor_put_shape(const struct cairn__safetensors_tensor *t, char text[128]) {
    size_t used = (size_t)snprintf(text, 128, "[");
    for (int i = 0; i < t->ndim && used < 120; i++)
        used += (size_t)snprintf(text + used, 128 - used, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (used < 127) snprintf(text + used, 128 - used, "]");
}
