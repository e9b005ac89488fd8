/* A source: one file, or an index and its files. */
#include "state/weights_source.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/status.h"
#include "state/json_scan.h"

enum { MAX_PATH = 4096, MAX_INDEX = 100000000, MAX_DEPTH = 16, SHOWN = 64 };
static const char END_OF_INDEX[] = ".index.json", PLAIN[] = "model.safetensors",
                  INDEX[] = "model.safetensors.index.json";

static bool exists(const char *path) {
    struct stat s;
    return stat(path, &s) == 0;
}

static cairn_status join(char out[MAX_PATH], const char *first, const char *between, const char *last) {
    const int n = snprintf(out, MAX_PATH, "%s%s%s", first, between, last);
    return n > 0 && n < MAX_PATH ? CAIRN_OK : cairn__fail_errno(ENAMETOOLONG, "%.200s...", first);
}

/* The file that path refers to. */
static cairn_status resolve(const char *path, char out[MAX_PATH]) {
    struct stat s;
    cairn_status st = CAIRN_OK;
    if (stat(path, &s) == 0 && S_ISDIR(s.st_mode)) {
        TRY(join(out, path, "/", PLAIN));
        if (!exists(out)) TRY(join(out, path, "/", INDEX));
        if (!exists(out)) TRY(cairn__fail(CAIRN_EINVAL, "%s: a folder without %s and %s", path, PLAIN, INDEX));
        return CAIRN_OK;
    }
    TRY(join(out, path, "", END_OF_INDEX));
    if (exists(path) || !exists(out)) TRY(join(out, path, "", ""));
out:
    return st;
}

static bool is_index(const char *path) {
    static const char end[] = ".json";
    const size_t n = strlen(path);
    return n >= sizeof(end) && strcmp(path + n - (sizeof(end) - 1), end) == 0;
}

static cairn_status add_file(struct cairn__source *s, const char *path, size_t *number) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&s->files, &s->files_capacity, s->num_files + 1, sizeof(s->files[0])));
    TRY(cairn__safetensors_open(path, 0, &s->files[s->num_files]));
    *number = s->num_files++;
out:
    return st;
}

/* ---- an index ---- */

static cairn_status parse(const char *path, const char *text, size_t nbytes, json_t **index, json_t **map) {
    json_error_t error;
    const struct cairn__json_scan found = cairn__json_scan(text, nbytes);
    REQUIRE(found.depth <= MAX_DEPTH, CAIRN_EINVAL, "%s: an index nests less deep", path);
    REQUIRE(!found.is_costly, CAIRN_EINVAL, "%s: an index has fewer values", path);
    *index = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(*index || json_error_code(&error) != json_error_out_of_memory, CAIRN_ENOMEM, "%s: out of memory", path);
    REQUIRE(*index, CAIRN_EINVAL, "%s: broken in line %d: %s", path, error.line, error.text);
    *map = json_object_get(*index, "weight_map");
    REQUIRE(json_is_object(*map), CAIRN_EINVAL, "%s: not an index of weights: it has no weight_map", path);
    return CAIRN_OK;
}

/* The number of the file `name` beside the index, which is opened if it is not in numbers yet. */
static cairn_status open_beside(struct cairn__source *s, const char *path, const char *name, json_t *numbers,
                                size_t *number) {
    cairn_status st = CAIRN_OK;
    char file[MAX_PATH];
    const json_t *known = json_object_get(numbers, name);
    const char *slash = strrchr(path, '/');
    if (known) {
        *number = (size_t)json_integer_value(known);
        return CAIRN_OK;
    }
    REQUIRE(name[0] && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !strchr(name, '/'), CAIRN_EINVAL,
            "%s: '%.*s' is no file of its folder", path, SHOWN, name);
    const int n = snprintf(file, sizeof(file), "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, name);
    if (n < 0 || n >= MAX_PATH) TRY(cairn__fail_errno(ENAMETOOLONG, "%.200s...", path));
    TRY(add_file(s, file, number));
    if (json_object_set_new(numbers, name, json_integer((json_int_t)*number)) != 0)
        TRY(cairn__fail(CAIRN_ENOMEM, "%s: out of memory", path));
out:
    return st;
}

cairn_status cairn__source_read_index(const char *path, json_t **index, json_t **map) {
    cairn_status st = CAIRN_OK;
    struct cairn__file_facts facts;
    char *text = NULL;
    TRY(cairn__file_read(path, 0, MAX_INDEX, &text, &facts));
    TRY(parse(path, text, (size_t)facts.nbytes, index, map));
out:
    cairn__free(text);
    return st;
}

static cairn_status list_index(struct cairn__source *s, const char *path) {
    cairn_status st = CAIRN_OK;
    const char *name;
    json_t *index = NULL, *map = NULL, *file, *numbers = json_object();
    TRY(cairn__source_read_index(path, &index, &map));
    TRY(cairn__calloc(json_object_size(map), sizeof(s->tensors[0]), (void **)&s->tensors));
    json_object_foreach(map, name, file) {
        size_t number = 0;
        if (!json_is_string(file))
            TRY(cairn__fail(CAIRN_EINVAL, "%s: the file of '%.*s' is no text", path, SHOWN, name));
        TRY(open_beside(s, path, json_string_value(file), numbers, &number));
        struct cairn__source_tensor *t = &s->tensors[s->count];
        t->file = s->files[number];
        t->at = cairn__safetensors_find(t->file, name);
        if (!t->at)
            TRY(cairn__fail(CAIRN_EINVAL, "%s: '%.*s' is not in %s", path, SHOWN, name,
                            cairn__safetensors_path(t->file)));
        s->count++;
    }
out:
    json_decref(numbers);
    json_decref(index);
    return st;
}

/* ---- ---- */

static int by_name(const void *a, const void *b) {
    const struct cairn__source_tensor *x = a, *y = b;
    return strcmp(x->at->name, y->at->name);
}

cairn_status cairn__source_open(struct cairn__source *s, const char *path) {
    cairn_status st = CAIRN_OK;
    char file[MAX_PATH];
    size_t number;
    *s = (struct cairn__source){0};
    TRY(resolve(path, file));
    if (is_index(file)) {
        TRY(list_index(s, file));
    } else {
        TRY(add_file(s, file, &number));
        struct cairn__safetensors *f = s->files[0];
        const size_t n = cairn__safetensors_count(f);
        TRY(cairn__calloc(n, sizeof(s->tensors[0]), (void **)&s->tensors));
        for (size_t i = 0; i < n; i++)
            s->tensors[s->count++] = (struct cairn__source_tensor){.at = cairn__safetensors_at(f, i), .file = f};
    }
    qsort(s->tensors, s->count, sizeof(s->tensors[0]), by_name);
out:
    if (st != CAIRN_OK) cairn__source_close(s);
    return st;
}

void cairn__source_close(struct cairn__source *s) {
    for (size_t i = 0; i < s->num_files; i++) cairn__safetensors_close(&s->files[i]);
    cairn__free(s->files);
    cairn__free(s->tensors);
    *s = (struct cairn__source){0};
}

static struct cairn__source_tensor *find(const struct cairn__source *s, const char *name) {
    const struct cairn__safetensors_tensor wanted = {.name = name};
    const struct cairn__source_tensor key = {.at = &wanted};
    return s->count ? bsearch(&key, s->tensors, s->count, sizeof(key), by_name) : NULL;
}

struct cairn__source_tensor *cairn__source_find(const struct cairn__source *s, const char *name) {
    struct cairn__source_tensor *found = find(s, name);
    for (size_t i = 0; !found && i < s->num_files; i++) {
        const char *other = cairn__safetensors_metadata(s->files[i], name);
        if (other) found = find(s, other);
    }
    return found;
}
