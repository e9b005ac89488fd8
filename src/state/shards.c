/* Tensors are dealt out to files, and these become whole one after the other, the index last. */
#include "state/shards.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/status.h"

enum { MOST_PATH = 4096, MOST_FILES = 99999 };

struct shards {
    const char *path;
    const struct cairn__safetensors_tensor *tensors;
    size_t num_files;
    size_t *first; /* [num_files + 1] of each file's tensors */
    struct cairn__safetensors_writer **files;
};

static cairn_status deal_out(struct shards *s, size_t n, uint64_t most) {
    cairn_status st = CAIRN_OK;
    uint64_t used = 0;
    if (most == 0) most = UINT64_MAX;
    TRY(cairn__calloc(n + 2, sizeof(s->first[0]), (void **)&s->first));
    s->num_files = 1;
    for (size_t i = 0; i < n; i++) {
        const uint64_t nbytes = cairn__safetensors_nbytes(&s->tensors[i]);
        if (i > s->first[s->num_files - 1] && (used > most || nbytes > most - used)) {
            s->first[s->num_files++] = i;
            used = 0;
        }
        used += nbytes;
    }
    s->first[s->num_files] = n;
    if (s->num_files > MOST_FILES)
        TRY(cairn__fail(CAIRN_EINVAL, "%s: %zu files of %" PRIu64 " bytes; %d are allowed", s->path, s->num_files, most,
                        MOST_FILES));
    TRY(cairn__calloc(s->num_files, sizeof(s->files[0]), (void **)&s->files));
out:
    return st;
}

/* "m/model-00001-of-00003.safetensors" of "m/model.safetensors". */
static cairn_status name_file(const struct shards *s, size_t f, char name[MOST_PATH]) {
    static const char end[] = ".safetensors";
    const size_t n = strlen(s->path), stem = n - (sizeof(end) - 1);
    const bool has_end = n > sizeof(end) - 1 && strcmp(s->path + stem, end) == 0;
    const int used = s->num_files == 1 ? snprintf(name, MOST_PATH, "%s", s->path)
                                       : snprintf(name, MOST_PATH, "%.*s-%05zu-of-%05zu%s", (int)(has_end ? stem : n),
                                                  s->path, f + 1, s->num_files, end);
    return used > 0 && used < MOST_PATH ? CAIRN_OK : cairn__fail_errno(ENAMETOOLONG, "%.200s...", s->path);
}

static cairn_status make_index(const struct shards *s, char **text) {
    cairn_status st = CAIRN_OK;
    uint64_t total = 0;
    json_t *map = json_object(), *index = NULL;
    for (size_t f = 0; f < s->num_files; f++) {
        char name[MOST_PATH];
        TRY(name_file(s, f, name));
        const char *slash = strrchr(name, '/');
        for (size_t i = s->first[f]; i < s->first[f + 1]; i++) {
            total += cairn__safetensors_nbytes(&s->tensors[i]);
            if (json_object_set_new(map, s->tensors[i].name, json_string(slash ? slash + 1 : name)) != 0)
                TRY(cairn__fail(CAIRN_EINVAL, "%s: a file's name that is not UTF-8 cannot stand in an index", name));
        }
    }
    index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    *text = index ? json_dumps(index, JSON_INDENT(2)) : NULL;
    if (!*text) TRY(cairn__fail(CAIRN_ENOMEM, "%s: out of memory: its index", s->path));
out:
    json_decref(index);
    json_decref(map);
    return st;
}

static cairn_status remove_old(const char *path) {
    return unlink(path) == 0 || errno == ENOENT ? CAIRN_OK : cairn__fail_errno(errno, "%s: removing it", path);
}

static cairn_status commit(struct shards *s) {
    cairn_status st = CAIRN_OK;
    struct cairn__writer *index = NULL;
    char name[MOST_PATH], *text = NULL;
    const int used = snprintf(name, sizeof(name), "%s.index.json", s->path);
    if (used < 0 || used >= MOST_PATH) TRY(cairn__fail_errno(ENAMETOOLONG, "%.200s...", s->path));
    if (s->num_files == 1) {
        TRY(cairn__safetensors_commit(&s->files[0], NULL));
        TRY(remove_old(name));
    } else {
        TRY(make_index(s, &text));
        TRY(cairn__writer_create(name, 0, &index));
        TRY(cairn__writer_write(index, text, strlen(text)));
        TRY(remove_old(name));
        for (size_t f = 0; f < s->num_files; f++) TRY(cairn__safetensors_commit(&s->files[f], NULL));
        TRY(cairn__writer_commit(&index, NULL));
        TRY(remove_old(s->path));
    }
    TRY(cairn__folder_sync_above(s->path));
out:
    free(text);
    cairn__writer_discard(&index);
    return st;
}

cairn_status cairn__shards_save(const char *path, const struct cairn__safetensors_tensor *tensors, size_t n,
                                const struct cairn__safetensors_text *metadata, size_t num_metadata, uint64_t most,
                                cairn__shards_write_fn *write, void *ctx) {
    cairn_status st = CAIRN_OK;
    struct shards s = {.path = path, .tensors = tensors};
    TRY(deal_out(&s, n, most));
    for (size_t f = 0; f < s.num_files; f++) {
        const size_t first = s.first[f], count = s.first[f + 1] - first;
        char name[MOST_PATH];
        TRY(name_file(&s, f, name));
        TRY(cairn__safetensors_create(name, 0, tensors + first, count, metadata, num_metadata, &s.files[f]));
        for (size_t k = 0; k < count; k++) TRY(write(ctx, first + cairn__safetensors_nth(s.files[f], k), s.files[f]));
    }
    TRY(commit(&s));
out:
    for (size_t f = 0; s.files && f < s.num_files; f++) cairn__safetensors_discard(&s.files[f]);
    cairn__free(s.files);
    cairn__free(s.first);
    return st;
}
