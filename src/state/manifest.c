/* checkpoint.json:
 *
 *     {"format": "cairn checkpoint", "version": 1, "step": 100, "ranks": 2, "cairn": "0.8.0", "environment": ["..."],
 *      "files": [{"name": "shared.safetensors", "nbytes": 1234, "xxh3": "0123456789abcdef"}, ...]}
 *
 * Readers check format and version; other keys may be added without a new version. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/status.h"
#include "state/json_scan.h"
#include "state/state_internal.h"

#define FORMAT "cairn checkpoint"

enum { MAX_DEPTH = 16 };

void cairn__manifest_file_name(int rank, char name[CAIRN__MAX_FILE_NAME]) {
    if (rank < 0) snprintf(name, CAIRN__MAX_FILE_NAME, "shared.safetensors");
    else snprintf(name, CAIRN__MAX_FILE_NAME, "rank-%05d.safetensors", rank);
}

const struct cairn__manifest_file *cairn__manifest_find(const struct cairn__manifest *m, const char *name) {
    for (size_t i = 0; i < m->num_files; i++) {
        if (strcmp(m->files[i].name, name) == 0) return &m->files[i];
    }
    return NULL;
}

void cairn__manifest_clear(struct cairn__manifest *m) {
    cairn__free(m->files);
    *m = (struct cairn__manifest){0};
}

/* ---- writing ---- */

static json_t *lines(const char *text) {
    json_t *array = json_array();
    while (array && *text) {
        const size_t n = strcspn(text, "\n");
        if (json_array_append_new(array, json_stringn(text, n)) != 0) break; /* not UTF-8: omitted */
        text += n + (text[n] == '\n');
    }
    return array;
}

char *cairn__manifest_write(const struct cairn__manifest *m, const char *description) {
    json_t *files = json_array();
    for (size_t i = 0; i < m->num_files; i++) {
        const struct cairn__manifest_file *f = &m->files[i];
        char digits[17];
        snprintf(digits, sizeof(digits), "%016" PRIx64, f->xxh3);
        json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", f->name, "nbytes", (json_int_t)f->nbytes,
                                               "xxh3", digits));
    }
    json_t *root = json_pack("{s:s, s:i, s:I, s:i, s:s, s:o, s:o}", "format", FORMAT, "version",
                             CAIRN__MANIFEST_VERSION, "step", (json_int_t)m->step, "ranks", m->ranks, "cairn",
                             cairn_version_string(), "environment", lines(description), "files", files);
    char *text = root && json_array_size(files) == m->num_files ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

/* ---- reading ---- */

static bool read_hex(const char *text, uint64_t *out) {
    *out = 0;
    for (int i = 0; i < 16; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at) return false;
        *out = *out << 4 | (uint64_t)(at - digits);
    }
    return text[16] == 0;
}

/* Whether name cannot refer to another folder. */
static bool is_file_name(const char *name) {
    return name[0] && name[0] != '.' && !strchr(name, '/') && strlen(name) < CAIRN__MAX_FILE_NAME;
}

static bool read_file_entry(json_t *entry, struct cairn__manifest_file *out) {
    const char *name, *digits;
    json_int_t nbytes;
    if (json_unpack(entry, "{s:s, s:I, s:s}", "name", &name, "nbytes", &nbytes, "xxh3", &digits) != 0) return false;
    if (!is_file_name(name) || nbytes < 0 || !read_hex(digits, &out->xxh3)) return false;
    memcpy(out->name, name, strlen(name) + 1);
    out->nbytes = (uint64_t)nbytes;
    return true;
}

static cairn_status read_files(json_t *files, const char *path, struct cairn__manifest *out) {
    const size_t n = json_array_size(files);
    REQUIRE(n <= (size_t)out->ranks + 1, CAIRN_EINVAL, "%s: %zu files, and %d ranks have one each and one together",
            path, n, out->ranks);
    const cairn_status st = cairn__calloc(n + 1, sizeof(out->files[0]), (void **)&out->files);
    if (st != CAIRN_OK) return st;
    for (size_t i = 0; i < n; i++) {
        struct cairn__manifest_file f = {{0}, 0, 0};
        REQUIRE(read_file_entry(json_array_get(files, i), &f), CAIRN_EINVAL, "%s: entry %zu of \"files\" is broken",
                path, i);
        REQUIRE(!cairn__manifest_find(out, f.name), CAIRN_EINVAL, "%s: file '%s' stands there twice", path, f.name);
        out->files[out->num_files++] = f;
    }
    return CAIRN_OK;
}

static cairn_status read_root(json_t *root, const char *path, struct cairn__manifest *out) {
    const char *format = "";
    json_int_t version = 0, step = -1, ranks = 0;
    json_t *files = NULL;
    const int unpacked = json_unpack(root, "{s:s, s:I, s:I, s:I, s:o}", "format", &format, "version", &version, "step",
                                     &step, "ranks", &ranks, "files", &files);
    REQUIRE(strcmp(format, FORMAT) == 0, CAIRN_EINVAL, "%s: not a checkpoint's", path);
    REQUIRE(version <= CAIRN__MANIFEST_VERSION, CAIRN_ENOTSUP,
            "%s: version %" JSON_INTEGER_FORMAT
            " of the format; this Cairn, %s, reads versions up to %d: load it with a newer one",
            path, version, cairn_version_string(), CAIRN__MANIFEST_VERSION);
    REQUIRE(unpacked == 0 && version >= 1 && step >= 0 && ranks > 0 && ranks <= CAIRN__MAX_RANKS &&
                json_is_array(files),
            CAIRN_EINVAL, "%s: a checkpoint's, but broken", path);
    out->step = step;
    out->ranks = (int)ranks;
    return read_files(files, path, out);
}

cairn_status cairn__manifest_read(const char *text, size_t nbytes, const char *path, struct cairn__manifest *out) {
    json_error_t error;
    *out = (struct cairn__manifest){0};
    const struct cairn__json_scan found = cairn__json_scan(text, nbytes);
    REQUIRE(found.depth <= MAX_DEPTH && !found.is_costly, CAIRN_EINVAL,
            "%s: it nests deeper, or has more values, than a manifest", path);
    json_t *root = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(root || json_error_code(&error) != json_error_out_of_memory, CAIRN_ENOMEM, "%s: out of memory", path);
    REQUIRE(root, CAIRN_EINVAL, "%s: no JSON: %s at byte %d", path, error.text, error.position);
    const cairn_status st = read_root(root, path, out);
    json_decref(root);
    if (st != CAIRN_OK) cairn__manifest_clear(out);
    return st;
}
