/* Assigns tensors to files, and commits the files one after the other, the index last. */
#include "state/shards.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "state/weights_source.h"

enum { MAX_PATH = 4096, MAX_FILES = 99999 };
static const char END[] = ".safetensors";

struct shards {
    const char *path;
    const struct cairn__safetensors_tensor *tensors;
    size_t num_files;
    size_t *first; /* [num_files + 1] index of each file's first tensor */
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
    if (s->num_files > MAX_FILES)
        TRY(cairn__fail(CAIRN_EINVAL, "%s: %zu files of %" PRIu64 " bytes; %d are allowed", s->path, s->num_files, most,
                        MAX_FILES));
    TRY(cairn__calloc(s->num_files, sizeof(s->files[0]), (void **)&s->files));
out:
    return st;
}

/* The length of the name before the number of a file: for "m/model.safetensors" that of "m/model". */
static size_t stem(const char *path) {
    const size_t n = strlen(path), end = sizeof(END) - 1;
    return n > end && strcmp(path + n - end, END) == 0 ? n - end : n;
}

/* Writes "m/model-00001-of-00003.safetensors" for "m/model.safetensors". */
static cairn_status name_file(const struct shards *s, size_t f, char name[MAX_PATH]) {
    const int used = s->num_files == 1 ? snprintf(name, MAX_PATH, "%s", s->path)
                                       : snprintf(name, MAX_PATH, "%.*s-%05zu-of-%05zu%s", (int)stem(s->path), s->path,
                                                  f + 1, s->num_files, END);
    return used > 0 && used < MAX_PATH ? CAIRN_OK : cairn__fail_errno(ENAMETOOLONG, "%.200s...", s->path);
}

static cairn_status make_index(const struct shards *s, char **text) {
    cairn_status st = CAIRN_OK;
    uint64_t total = 0;
    json_t *map = json_object(), *index = NULL;
    for (size_t f = 0; f < s->num_files; f++) {
        char name[MAX_PATH];
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

/* ---- files of an earlier save ---- */

/* Whether a file in the old index has a name that name_file would give with another number of files. */
static bool is_stale(const struct shards *s, const char *file, char path[MAX_PATH]) {
    struct shards other = *s;
    char name[MAX_PATH];
    size_t number = 0;
    const char *slash = strrchr(s->path, '/');
    const int used = snprintf(path, MAX_PATH, "%.*s%s", slash ? (int)(slash - s->path + 1) : 0, s->path, file);
    if (used >= MAX_PATH || strncmp(path, s->path, stem(s->path)) != 0) return false;
    if (sscanf(path + stem(s->path), "-%5zu-of-%5zu", &number, &other.num_files) != 2) return false;
    if (number < 1 || other.num_files < 2 || other.num_files == s->num_files) return false;
    return name_file(&other, number - 1, name) == CAIRN_OK && strcmp(name, path) == 0;
}

/* map: the old index's weight_map; NULL = no old index. */
static void remove_stale(const struct shards *s, json_t *map) {
    const char *tensor;
    json_t *file;
    json_object_foreach(map, tensor, file) {
        char path[MAX_PATH];
        if (json_is_string(file) && is_stale(s, json_string_value(file), path) && remove_old(path) != CAIRN_OK)
            cairn__log(CAIRN_LOG_WARNING, "a file of an earlier save stays: %s", cairn_last_error());
    }
}

/* ---- ---- */

/* All files must be finished. */
static cairn_status commit(struct shards *s) {
    cairn_status st = CAIRN_OK;
    struct cairn__writer *writer = NULL;
    json_t *old = NULL, *map = NULL;
    char index[MAX_PATH], *text = NULL;
    const int used = snprintf(index, sizeof(index), "%s.index.json", s->path);
    if (used < 0 || used >= MAX_PATH) TRY(cairn__fail_errno(ENAMETOOLONG, "%.200s...", s->path));
    if (access(index, F_OK) == 0 && cairn__source_read_index(index, &old, &map) != CAIRN_OK) map = NULL;
    if (s->num_files == 1) {
        TRY(cairn__safetensors_commit(&s->files[0], NULL));
        TRY(remove_old(index));
    } else {
        TRY(make_index(s, &text));
        TRY(cairn__writer_create(index, 0, &writer));
        TRY(cairn__writer_write(writer, text, strlen(text)));
        TRY(cairn__writer_finish(writer));
        TRY(remove_old(index));
        for (size_t f = 0; f < s->num_files; f++) TRY(cairn__safetensors_commit(&s->files[f], NULL));
        TRY(cairn__writer_commit(&writer, NULL));
        TRY(remove_old(s->path));
    }
    TRY(cairn__folder_sync_above(s->path));
    remove_stale(s, map);
out:
    json_decref(old);
    free(text);
    cairn__writer_discard(&writer);
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
        char name[MAX_PATH];
        TRY(name_file(&s, f, name));
        TRY(cairn__safetensors_create(name, 0, tensors + first, count, metadata, num_metadata, &s.files[f]));
        for (size_t k = 0; k < count; k++) TRY(write(ctx, first + cairn__safetensors_nth(s.files[f], k), s.files[f]));
        TRY(cairn__safetensors_finish(s.files[f]));
    }
    TRY(commit(&s));
out:
    for (size_t f = 0; s.files && f < s.num_files; f++) cairn__safetensors_discard(&s.files[f]);
    cairn__free(s.files);
    cairn__free(s.first);
    return st;
}
