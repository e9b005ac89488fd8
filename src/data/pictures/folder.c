/* Folders of pictures by class. Names stand one behind the other in one array of text: a folder below the class, and
 * for each file its name and where its folder's begins, so that a million pictures take little more than their names.
 * */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "data/pictures/picture.h"

enum { MOST_DEPTH = 32, MOST_PATH = 4096 };

/* Places in text. */
struct entry {
    size_t folder, name; /* "class/part", "a.jpg" */
};

struct cairn_picture_folder {
    char *root;
    struct cairn_picture_options options;
    char *text;
    size_t used, room;
    struct entry *entries; /* of all classes, in order */
    size_t count, capacity;
    size_t *classes, num_classes, most_classes; /* names, in order */
    size_t *ends, most_ends;                    /* of class i: entries are those before ends[i] */
};

/* ---- names ---- */

static cairn_status add_text(cairn_picture_folder *f, const char *text, size_t *at) {
    const size_t nbytes = strlen(text) + 1;
    const cairn_status st = cairn__grow((void **)&f->text, &f->room, f->used + nbytes, 1);
    if (st != CAIRN_OK) return st;
    memcpy(f->text + f->used, text, nbytes);
    *at = f->used;
    f->used += nbytes;
    return CAIRN_OK;
}

static bool ends_with(const char *name, const char *const *suffixes) {
    const char *dot = strrchr(name, '.');
    for (; dot && *suffixes; suffixes++) {
        if (strcasecmp(dot, *suffixes) == 0) return true;
    }
    return false;
}

/* ---- listing ---- */

static cairn_status join(char path[MOST_PATH], const char *folder, const char *name) {
    const int n = snprintf(path, MOST_PATH, "%s/%s", folder, name);
    REQUIRE(n < MOST_PATH, CAIRN_EINVAL, "%s/%s: a path of %d bytes; the most is %d", folder, name, n, MOST_PATH - 1);
    return CAIRN_OK;
}

/* Whether path is a folder; a link counts as what it leads to, and one that leads nowhere as a file. */
static cairn_status is_folder(const struct dirent *e, const char *path, bool *is) {
    struct stat s;
    *is = e->d_type == DT_DIR;
    if (e->d_type != DT_LNK && e->d_type != DT_UNKNOWN) return CAIRN_OK;
    if (stat(path, &s) != 0) return errno == ENOENT ? CAIRN_OK : cairn__fail_errno(errno, "%s", path);
    *is = S_ISDIR(s.st_mode);
    return CAIRN_OK;
}

typedef cairn_status (*visit_fn)(cairn_picture_folder *f, const char *path, const char *name, bool is_folder,
                                 size_t folder, int depth);

/* visit for everything in path that has no dot in front. */
static cairn_status walk(cairn_picture_folder *f, const char *path, size_t folder, int depth, visit_fn visit) {
    cairn_status st = CAIRN_OK;
    char below[MOST_PATH];
    DIR *dir = opendir(path);
    if (!dir) return cairn__fail_errno(errno, "%s", path);
    for (;;) {
        bool is = false;
        errno = 0;
        const struct dirent *e = readdir(dir);
        if (!e && errno != 0) TRY(cairn__fail_errno(errno, "%s", path));
        if (!e) break;
        if (e->d_name[0] == '.') continue;
        TRY(join(below, path, e->d_name));
        TRY(is_folder(e, below, &is));
        TRY(visit(f, path, e->d_name, is, folder, depth));
    }
out:
    closedir(dir);
    return st;
}

/* What is read, what would be missed (with it torchvision's IMG_EXTENSIONS), and what is left out. */
static cairn_status visit_picture(cairn_picture_folder *f, const char *path, const char *name, bool is_folder,
                                  size_t folder, int depth) {
    static const char *const ours[] = {".jpg", ".jpeg", ".png", NULL};
    static const char *const others[] = {".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", NULL};
    char below[MOST_PATH], own[MOST_PATH];
    size_t at;
    cairn_status st = CAIRN_OK;
    if (is_folder) {
        REQUIRE(depth < MOST_DEPTH, CAIRN_EINVAL,
                "%s/%s: folders are more than %d deep here; does a link lead to a folder above it?", path, name,
                (int)MOST_DEPTH);
        TRY(join(below, path, name));
        TRY(join(own, f->text + folder, name));
        TRY(add_text(f, own, &at));
        return walk(f, below, at, depth + 1, visit_picture);
    }
    REQUIRE(!ends_with(name, others), CAIRN_EINVAL,
            "%s/%s: Cairn reads JPEG and PNG; convert it, or move it out of the folder", path, name);
    if (!ends_with(name, ours)) return CAIRN_OK;
    TRY(add_text(f, name, &at));
    TRY(cairn__grow((void **)&f->entries, &f->capacity, f->count + 1, sizeof(f->entries[0])));
    f->entries[f->count++] = (struct entry){folder, at};
out:
    return st;
}

static cairn_status visit_class(cairn_picture_folder *f, const char *path, const char *name, bool is_folder,
                                size_t folder, int depth) {
    size_t at;
    cairn_status st = CAIRN_OK;
    (void)path, (void)folder, (void)depth;
    if (!is_folder) return CAIRN_OK;
    TRY(add_text(f, name, &at));
    TRY(cairn__grow((void **)&f->classes, &f->most_classes, f->num_classes + 1, sizeof(f->classes[0])));
    f->classes[f->num_classes++] = at;
out:
    return st;
}

/* ---- order: that of bytes, by folder and then by name ---- */

static int compare_classes(const void *a, const void *b, void *text) {
    return strcmp((const char *)text + *(const size_t *)a, (const char *)text + *(const size_t *)b);
}

static int compare_entries(const void *a, const void *b, void *text) {
    const struct entry *x = a, *y = b;
    const char *t = text;
    const int folder = strcmp(t + x->folder, t + y->folder);
    return folder ? folder : strcmp(t + x->name, t + y->name);
}

static cairn_status list(cairn_picture_folder *f) {
    char path[MOST_PATH];
    cairn_status st = CAIRN_OK;
    TRY(walk(f, f->root, 0, 0, visit_class));
    TRY(f->num_classes > 0 ? CAIRN_OK
                           : cairn__fail(CAIRN_EINVAL, "%s: has no folder, where each class should have one", f->root));
    qsort_r(f->classes, f->num_classes, sizeof(f->classes[0]), compare_classes, f->text);
    TRY(cairn__calloc(f->num_classes, sizeof(f->ends[0]), (void **)&f->ends));
    for (size_t i = 0; i < f->num_classes; i++) {
        const size_t first = f->count;
        TRY(join(path, f->root, f->text + f->classes[i]));
        TRY(walk(f, path, f->classes[i], 1, visit_picture));
        TRY(f->count > first
                ? CAIRN_OK
                : cairn__fail(CAIRN_EINVAL, "%s: has no picture (.jpg, .jpeg or .png); a class needs one", path));
        qsort_r(f->entries + first, f->count - first, sizeof(f->entries[0]), compare_entries, f->text);
        f->ends[i] = f->count;
    }
out:
    return st;
}

/* ---- the folder ---- */

static cairn_status check_classes(const cairn_picture_folder *f, const cairn_picture_folder *other) {
    if (!other) return CAIRN_OK;
    for (size_t i = 0; i < f->num_classes || i < other->num_classes; i++) {
        const char *ours = i < f->num_classes ? f->text + f->classes[i] : NULL;
        const char *theirs = i < other->num_classes ? other->text + other->classes[i] : NULL;
        REQUIRE(ours && theirs && strcmp(ours, theirs) == 0, CAIRN_EINVAL,
                "%s: has %zu classes, and %s has %zu; the first that differs is number %zu, '%s' and '%s'", f->root,
                f->num_classes, other->root, other->num_classes, i, ours ? ours : "none", theirs ? theirs : "none");
    }
    return CAIRN_OK;
}

cairn_status cairn_picture_folder_create(const char *path, const struct cairn_picture_folder_options *options,
                                         cairn_picture_folder **out) {
    struct cairn_picture_folder_options o = *cairn_picture_folder_options(.max_pixels = 0);
    struct cairn__picture_file limits;
    cairn_status st = CAIRN_OK;
    cairn_picture_folder *f = NULL;
    REQUIRE(path && out, CAIRN_EINVAL, "cairn_picture_folder_create: path and out must be set");
    TRY(cairn__pictures_built("cairn_picture_folder_create"));
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_picture_folder_options"));
    TRY(cairn__calloc(1, sizeof(*f), (void **)&f));
    f->options = *cairn_picture_options(.max_pixels = o.max_pixels, .allow_damaged = o.allow_damaged);
    TRY(cairn__picture_read_options(&f->options, &limits));
    TRY(cairn__strdup(path, &f->root));
    TRY(list(f));
    TRY(check_classes(f, o.same_classes_as));
    *out = f;
    return CAIRN_OK;
out:
    cairn_picture_folder_destroy(&f);
    return st;
}

void cairn_picture_folder_destroy(cairn_picture_folder **folder) {
    if (!folder || !*folder) return;
    cairn__free((*folder)->root);
    cairn__free((*folder)->text);
    cairn__free((*folder)->entries);
    cairn__free((*folder)->classes);
    cairn__free((*folder)->ends);
    cairn__free(*folder);
    *folder = NULL;
}

int64_t cairn_picture_folder_count(const cairn_picture_folder *folder) {
    return folder ? (int64_t)folder->count : 0;
}

int64_t cairn_picture_folder_num_classes(const cairn_picture_folder *folder) {
    return folder ? (int64_t)folder->num_classes : 0;
}

const char *cairn_picture_folder_class_name(const cairn_picture_folder *folder, int64_t number) {
    if (!folder || number < 0 || number >= (int64_t)folder->num_classes) return NULL;
    return folder->text + folder->classes[number];
}

int64_t cairn_picture_folder_class(const cairn_picture_folder *folder, int64_t i) {
    if (!folder || i < 0 || i >= (int64_t)folder->count) return -1;
    size_t low = 0, high = folder->num_classes - 1; /* the first class whose end is above i */
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (folder->ends[middle] > (size_t)i) high = middle;
        else low = middle + 1;
    }
    return (int64_t)low;
}

static cairn_status check_index(const cairn_picture_folder *folder, int64_t i) {
    REQUIRE(folder, CAIRN_EINVAL, "folder is NULL");
    REQUIRE(i >= 0 && i < (int64_t)folder->count, CAIRN_EINVAL, "%s: has %zu pictures, and none of number %" PRId64,
            folder->root, folder->count, i);
    return CAIRN_OK;
}

int cairn_picture_folder_path(const cairn_picture_folder *folder, int64_t i, char *path, size_t nbytes) {
    if (check_index(folder, i) != CAIRN_OK) return -1;
    const struct entry e = folder->entries[i];
    return snprintf(path, nbytes, "%s/%s/%s", folder->root, folder->text + e.folder, folder->text + e.name);
}

cairn_status cairn_picture_folder_read(const cairn_picture_folder *folder, int64_t i, cairn_picture **out) {
    char path[2 * MOST_PATH]; /* a folder's, and a name's */
    REQUIRE(out, CAIRN_EINVAL, "cairn_picture_folder_read: out must be set");
    if (cairn_picture_folder_path(folder, i, path, sizeof(path)) < 0) return CAIRN_EINVAL;
    return cairn_picture_read(path, &folder->options, out);
}
