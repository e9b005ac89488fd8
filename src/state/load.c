/* Loading a checkpoint, in parts, after each of which all ranks agree that it succeeded:
 *
 *   open     the manifest and the headers of the files this rank reads
 *   match    the state is listed; every entry has its source, and everything in the files has its entry
 *   numbers  are read, and objects check them
 *   read     arrays, in the order of the files, hashing on the way
 *   loaded   objects take their numbers out of the list
 *
 * The program's state does not change before arrays are read. Files are untrusted: safetensors.c checks each header by
 * itself, and match compares it with what the program's objects list. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "comm/task.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "state/file.h"
#include "state/safetensors.h"
#include "state/state_internal.h"

enum { MAX_MANIFEST = 64 << 20, BOUNCE = 4 << 20 };
#define CALL "cairn_state_load"

struct checkpoint {
    const char *path;
    int rank, ranks; /* the program's */
    bool is_lenient;
    bool has_parts; /* the program's state has parts */
    struct cairn__manifest manifest;
    struct cairn__safetensors *shared;
    struct cairn__safetensors **own; /* [manifest.ranks]; NULL = not needed */
};

/* Rows of a tensor in a file. */
struct source {
    struct cairn__safetensors *file;
    const struct cairn__safetensors_tensor *tensor;
    int64_t first, rows, whole_rows; /* [first, first + rows) of whole_rows */
    bool is_flat;                    /* rows are elements of an array of any shape */
};

/* ---- open ---- */

static cairn_status open_file(const struct checkpoint *c, int rank, struct cairn__safetensors **out) {
    char name[CAIRN__MAX_FILE_NAME], path[CAIRN__MAX_PATH + CAIRN__MAX_FILE_NAME + 1];
    struct stat s;
    cairn__manifest_file_name(rank, name);
    snprintf(path, sizeof(path), "%s/%s", c->path, name);
    const struct cairn__manifest_file *facts = cairn__manifest_find(&c->manifest, name);
    REQUIRE(facts, CAIRN_EINVAL, "%s: the manifest does not list %s", c->path, name);
    if (lstat(path, &s) != 0)
        return errno == ENOENT ? cairn__fail(CAIRN_EINVAL, "%s: the file is missing", path)
                               : cairn__fail_errno(errno, "%s", path);
    REQUIRE(!S_ISREG(s.st_mode) || (uint64_t)s.st_size == facts->nbytes, CAIRN_EINVAL,
            "%s: it has %" PRIu64 " bytes and the manifest says %" PRIu64, path, (uint64_t)s.st_size, facts->nbytes);
    return cairn__safetensors_open(path, CAIRN__READER_NO_LINK | CAIRN__READER_HASHES, out);
}

static void close_checkpoint(struct checkpoint *c) {
    for (int r = 0; c->own && r < c->manifest.ranks; r++) cairn__safetensors_close(&c->own[r]);
    cairn__free(c->own);
    c->own = NULL;
    cairn__safetensors_close(&c->shared);
    cairn__manifest_clear(&c->manifest);
}

static bool is_part(const char *owner) {
    return owner && strcmp(owner, "part") == 0;
}

/* Whether the file has slices, whose other rows are in other ranks' files. */
static bool has_pieces(const struct cairn__safetensors *file) {
    for (size_t i = 0; i < cairn__safetensors_metadata_count(file); i++) {
        const char *owner = cairn__safetensors_metadata_at(file, i).value;
        if (strncmp(owner, "rows ", 5) == 0 || strncmp(owner, "elements ", 9) == 0 || is_part(owner)) return true;
    }
    return false;
}

static cairn_status open_checkpoint(const char *path, struct checkpoint *c) {
    char name[CAIRN__MAX_PATH + 64];
    char *text = NULL;
    struct cairn__file_facts facts;
    struct stat s;
    cairn_status st = CAIRN_OK;
    REQUIRE(path && path[0], CAIRN_EINVAL, CALL ": path is NULL or empty");
    c->path = path;
    snprintf(name, sizeof(name), "%s/checkpoint.json", path);
    if (lstat(name, &s) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return cairn__fail(CAIRN_EINVAL, "%s: not a checkpoint, since there is no checkpoint.json", path);
    TRY(cairn__file_read(name, CAIRN__READER_NO_LINK, MAX_MANIFEST, &text, &facts));
    TRY(cairn__manifest_read(text, facts.nbytes, name, &c->manifest));
    TRY(open_file(c, -1, &c->shared));
    const bool same = c->manifest.ranks == c->ranks;
    const int mine = same ? c->rank : 0;
    TRY(cairn__calloc((size_t)c->manifest.ranks, sizeof(c->own[0]), (void **)&c->own));
    TRY(open_file(c, mine, &c->own[mine]));
    for (int r = 0; (!same || c->has_parts || has_pieces(c->own[mine])) && r < c->manifest.ranks; r++) {
        if (r != mine) TRY(open_file(c, r, &c->own[r]));
    }
out:
    cairn__free(text);
    return st;
}

/* ---- match ---- */

static void put_shape(const int64_t *shape, int ndim, char text[128]) {
    size_t used = (size_t)snprintf(text, 128, "[");
    for (int i = 0; i < ndim && used < 120; i++)
        used += (size_t)snprintf(text + used, 128 - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (used < 127) snprintf(text + used, 128 - used, "]");
}

static bool read_numbers_of(const char *text, const char *what, int64_t *first, int64_t *whole) {
    char end = 0;
    const size_t n = strlen(what);
    return text && strncmp(text, what, n) == 0 &&
           sscanf(text + n, " %" SCNd64 " of %" SCNd64 "%c", first, whole, &end) == 2 && *first >= 0 &&
           *whole >= *first;
}

/* Finds the tensor with this name in one file; false = none. */
static bool find_in(struct cairn__safetensors *file, const char *name, struct source *out) {
    const struct cairn__safetensors_tensor *t = file ? cairn__safetensors_find(file, name) : NULL;
    if (!t) return false;
    *out = (struct source){file, t, 0, t->ndim ? t->shape[0] : 1, t->ndim ? t->shape[0] : 1, false};
    const char *text = cairn__safetensors_metadata(file, name);
    out->is_flat = t->ndim == 1 && read_numbers_of(text, "elements", &out->first, &out->whole_rows);
    if (!out->is_flat) (void)read_numbers_of(text, "rows", &out->first, &out->whole_rows);
    return true;
}

/* Finds an entry: in the shared file, in this rank's file, or, for a part, in any rank's file. */
static bool find_source(const struct checkpoint *c, const char *name, struct source *out) {
    if (find_in(c->shared, name, out)) return true;
    if (find_in(c->own[c->manifest.ranks == c->ranks ? c->rank : 0], name, out)) return true;
    for (int r = 0; r < c->manifest.ranks; r++) {
        if (c->own[r] && is_part(cairn__safetensors_metadata(c->own[r], name)) && find_in(c->own[r], name, out))
            return true;
    }
    return false;
}

static bool has_entry(const struct cairn__entries *entries, const char *name) {
    char full[2 * CAIRN__MAX_PATH];
    struct source s;
    snprintf(full, sizeof(full), "%s%s%s", entries->object, entries->object[0] ? "/" : "", name);
    return find_source(entries->ctx, full, &s);
}

static bool has_object(const struct cairn__safetensors *file, const char *object) {
    const size_t n = strlen(object);
    for (size_t i = 0; file && i < cairn__safetensors_count(file); i++) {
        const char *name = cairn__safetensors_at(file, i)->name;
        if (strncmp(name, object, n) == 0 && name[n] == '/') return true;
    }
    return false;
}

/* Marks objects that the checkpoint lacks, which do not change. */
static void find_absent(cairn_state *state, const struct checkpoint *c) {
    const struct cairn__safetensors *own = c->own[c->manifest.ranks == c->ranks ? c->rank : 0];
    for (size_t i = 1; i < state->num_objects; i++) {
        struct cairn__state_object *object = &state->objects[i];
        object->is_absent = c->is_lenient && !has_object(c->shared, object->name) && !has_object(own, object->name);
        for (int r = 0; object->is_absent && object->is_part && r < c->manifest.ranks; r++)
            object->is_absent = !has_object(c->own[r], object->name);
        if (object->is_absent && c->rank == 0)
            cairn__log(CAIRN_LOG_NOTICE, CALL ": %s has no '%s', which stays as it is", c->path, object->name);
    }
}

static int64_t rows_of(const struct cairn__entry *e) {
    return e->ndim ? e->shape[0] : 1;
}

/* If either is flat, treats both as rows of one element. */
static void flatten(const struct cairn__entry *e, struct source *s, int64_t *first, int64_t *rows, int64_t *whole) {
    const bool slices = e->owner == CAIRN__ENTRY_SLICE;
    *rows = (int64_t)(e->nbytes / cairn_dtype_nbytes(e->dtype));
    *first = slices ? e->first : 0;
    *whole = slices ? e->whole_rows : *rows;
    if (s->is_flat) return;
    s->first = 0;
    s->rows = 1;
    for (int i = 0; i < s->tensor->ndim; i++) s->rows *= s->tensor->shape[i];
    s->whole_rows = s->rows;
}

/* Whether rows are elements. A slice of rows is not read by elements. */
static bool is_by_elements(const struct cairn__entry *e, const struct source *s) {
    return (e->is_flat && e->owner == CAIRN__ENTRY_SLICE && s->rows == s->whole_rows) || s->is_flat;
}

/* Checks the pieces of a slice: equal types and shapes, consecutive in rank order, from the first row to the last. */
static cairn_status match_parts(const struct checkpoint *c, const struct cairn__state_item *item,
                                const struct source *first) {
    int64_t rows = 0;
    if (first->rows == first->whole_rows && first->first == 0) return CAIRN_OK;
    for (int r = 0; r < c->manifest.ranks; r++) {
        struct source s;
        if (!find_in(c->own[r], item->name, &s)) continue;
        bool fits = s.tensor->type == first->tensor->type && s.tensor->ndim == first->tensor->ndim &&
                    s.whole_rows == first->whole_rows && s.first == rows && s.rows <= s.whole_rows - rows;
        for (int i = 1; fits && i < s.tensor->ndim; i++) fits = s.tensor->shape[i] == first->tensor->shape[i];
        REQUIRE(fits, CAIRN_EINVAL, CALL ": the part of '%s' that rank %d saved in %s does not fit the others",
                item->name, r, c->path);
        rows += s.rows;
    }
    REQUIRE(rows == first->whole_rows, CAIRN_EINVAL, CALL ": %s has %" PRId64 " of the %" PRId64 " rows of '%s'",
            c->path, rows, first->whole_rows, item->name);
    return CAIRN_OK;
}

static cairn_status match_entry(const struct checkpoint *c, const struct cairn__state_item *item) {
    const struct cairn__entry *e = item->entry;
    struct source s;
    char is[128], wanted[128];
    REQUIRE(find_source(c, item->name, &s), CAIRN_EINVAL,
            CALL ": %s does not have '%s'; was it saved by another program, or with other objects?", c->path,
            item->name);
    const bool slices = e->owner == CAIRN__ENTRY_SLICE || s.rows != s.whole_rows, flat = is_by_elements(e, &s);
    struct source elements = s;
    int64_t first, rows, whole = e->owner == CAIRN__ENTRY_SLICE ? e->whole_rows : rows_of(e);
    if (flat) flatten(e, &elements, &first, &rows, &whole);
    bool fits = (flat || s.tensor->ndim == e->ndim) && elements.whole_rows == whole;
    for (int i = slices ? 1 : 0; !flat && fits && i < e->ndim; i++) fits = s.tensor->shape[i] == e->shape[i];
    put_shape(s.tensor->shape, s.tensor->ndim, is);
    put_shape(e->shape, e->ndim, wanted);
    REQUIRE(cairn__safetensors_dtype(s.tensor->type) == e->dtype, CAIRN_EINVAL,
            CALL ": '%s' is %s in %s, and %s in the program; use the opt level and half type it was saved with",
            item->name, cairn__safetensors_type_name(s.tensor->type), c->path, cairn_dtype_name(e->dtype));
    REQUIRE(fits, CAIRN_EINVAL, CALL ": '%s' has shape %s in %s, and %s in the program", item->name, is, c->path,
            wanted);
    return match_parts(c, item, &s);
}

static int compare_name(const void *name, const void *item) {
    return strcmp(name, ((const struct cairn__state_item *)item)->name);
}

static const struct cairn__state_item *find_item(const struct cairn__state_list *list, const char *name) {
    return bsearch(name, list->at, list->count, sizeof(list->at[0]), compare_name);
}

/* Whether the entry would belong to an object that is a part. */
static bool is_of_part(const cairn_state *state, const char *name) {
    const char *slash = strchr(name, '/');
    for (size_t i = 1; slash && i < state->num_objects; i++) {
        const struct cairn__state_object *object = &state->objects[i];
        const size_t n = (size_t)(slash - name);
        if (strlen(object->name) == n && strncmp(object->name, name, n) == 0) return object->is_part;
    }
    return false;
}

static cairn_status match_file(const struct checkpoint *c, const cairn_state *state,
                               const struct cairn__state_list *list, const struct cairn__safetensors *file) {
    for (size_t i = 0; file && i < cairn__safetensors_count(file); i++) {
        const char *name = cairn__safetensors_at(file, i)->name, *owner = cairn__safetensors_metadata(file, name);
        if (c->is_lenient && !cairn__state_has_object(state, name)) continue;
        if (is_of_part(state, name) || (is_part(owner) && c->has_parts)) continue; /* see check_all_taken */
        REQUIRE(find_item(list, name), CAIRN_EINVAL,
                CALL ": %s has '%s', which the program does not; add the objects that it was saved with", c->path,
                name);
        REQUIRE(c->manifest.ranks == c->ranks || !owner || strcmp(owner, "rank") != 0, CAIRN_EINVAL,
                CALL ": %s was saved on %d ranks and '%s' belongs to one of them; load it on as many (there are %d)",
                c->path, c->manifest.ranks, name, c->ranks);
    }
    return CAIRN_OK;
}

/* The name of entry i over all files, which every rank has open. */
static const char *entry_at(const struct checkpoint *c, size_t i) {
    const struct cairn__safetensors *file = c->shared;
    for (int r = 0; i >= cairn__safetensors_count(file); r++) {
        i -= cairn__safetensors_count(file);
        file = c->own[r];
    }
    return cairn__safetensors_at(file, i)->name;
}

/* Collective if a state has parts: a rank does not load other ranks' parts, but some rank must load each entry. */
static cairn_status check_all_taken(const struct checkpoint *c, const cairn_state *state,
                                    const struct cairn__state_list *list) {
    cairn_group *group = cairn_env_group(state->env);
    uint8_t *taken = NULL;
    cairn_status st = CAIRN_OK;
    if (!c->has_parts) return CAIRN_OK;
    size_t count = cairn__safetensors_count(c->shared);
    for (int r = 0; r < c->manifest.ranks; r++) count += c->own[r] ? cairn__safetensors_count(c->own[r]) : 0;
    st = cairn__calloc(count + 1, sizeof(taken[0]), (void **)&taken);
    TRY(cairn__group_agree_on_status(group, CALL, st));
    for (size_t i = 0; i < count; i++) {
        const char *name = entry_at(c, i);
        taken[i] = find_item(list, name) || (c->is_lenient && !cairn__state_has_object(state, name));
    }
    TRY(cairn__parts_unite(group, taken, count));
    for (size_t i = 0; i < count && st == CAIRN_OK; i++) {
        if (!taken[i])
            st = cairn__fail(CAIRN_EINVAL, CALL ": %s has '%s', which is part of no rank's program", c->path,
                             entry_at(c, i));
    }
out:
    cairn__free(taken);
    return st;
}

static cairn_status match(const struct checkpoint *c, const cairn_state *state, const struct cairn__state_list *list) {
    cairn_status st = CAIRN_OK;
    TRY(match_file(c, state, list, c->shared));
    for (int r = 0; r < c->manifest.ranks; r++) TRY(match_file(c, state, list, c->own[r]));
    for (size_t i = 0; i < list->count; i++) TRY(match_entry(c, &list->at[i]));
out:
    return st;
}

/* ---- read ---- */

struct reading {
    const struct checkpoint *c;
    struct cairn_device *device; /* NULL = arrays are in host memory */
    void *bounce;
};

/* Reads the rows that source and entry have in common, and adds their number to *got. */
static cairn_status read_rows(const struct reading *r, const struct source *given, struct cairn__entry *e,
                              int64_t *got) {
    struct source of = *given;
    const struct source *const s = &of;
    int64_t first = e->owner == CAIRN__ENTRY_SLICE ? e->first : 0, rows = rows_of(e), whole;
    if (is_by_elements(e, given)) flatten(e, &of, &first, &rows, &whole);
    const int64_t end = first + rows;
    const int64_t from = s->first > first ? s->first : first;
    const int64_t to = s->first + s->rows < end ? s->first + s->rows : end;
    const size_t row = rows ? e->nbytes / (size_t)rows : 0;
    char *memory = e->memory ? e->memory : cairn__entry_number(e);
    cairn_status st = CAIRN_OK;
    if (from >= to) return CAIRN_OK;
    *got += to - from;
    memory += (size_t)(from - first) * row;
    const uint64_t at = (uint64_t)(from - s->first) * row;
    const size_t nbytes = (size_t)(to - from) * row;
    if (!r->device || !e->memory || e->is_on_host)
        return cairn__safetensors_read(s->file, s->tensor, at, memory, nbytes);
    for (size_t done = 0; done < nbytes; done += BOUNCE) {
        const size_t n = nbytes - done < BOUNCE ? nbytes - done : BOUNCE;
        TRY(cairn__safetensors_read(s->file, s->tensor, at + done, r->bounce, n));
        TRY(cairn__device_upload(r->device, memory + done, r->bounce, n));
    }
out:
    return st;
}

static cairn_status read_entry(const struct reading *r, const struct cairn__state_item *item, const struct source *s) {
    const struct checkpoint *c = r->c;
    int64_t got = 0;
    cairn_status st = CAIRN_OK;
    if (s->rows == s->whole_rows && s->first == 0) return read_rows(r, s, item->entry, &got);
    for (int rank = 0; rank < c->manifest.ranks; rank++) {
        struct source part;
        if (find_in(c->own[rank], item->name, &part)) TRY(read_rows(r, &part, item->entry, &got));
    }
    const int64_t rows =
        s->is_flat ? (int64_t)(item->entry->nbytes / cairn_dtype_nbytes(item->entry->dtype)) : rows_of(item->entry);
    if (got != rows)
        TRY(cairn__fail(CAIRN_EINVAL, CALL ": %s has %" PRId64 " of the %" PRId64 " rows of '%s'", c->path, got, rows,
                        item->name));
out:
    return st;
}

/* Reads the numbers, or the arrays, of a file, in the file's order. */
static cairn_status read_file(const struct reading *r, const struct cairn__state_list *list,
                              struct cairn__safetensors *file, bool numbers) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < cairn__safetensors_count(file); i++) {
        const struct cairn__state_item *item = find_item(list, cairn__safetensors_at(file, i)->name);
        struct source s;
        if (!item || numbers != !item->entry->memory) continue; /* NULL = of an object that the program lacks */
        if (find_source(r->c, item->name, &s) && s.file == file) TRY(read_entry(r, item, &s));
    }
out:
    return st;
}

static cairn_status check_hash(const struct checkpoint *c, int rank, struct cairn__safetensors *file) {
    char name[CAIRN__MAX_FILE_NAME];
    struct cairn__file_facts facts;
    cairn_status st = CAIRN_OK;
    if (!file) return CAIRN_OK;
    cairn__manifest_file_name(rank, name);
    TRY(cairn__safetensors_facts(file, &facts));
    if (facts.hash != cairn__manifest_find(&c->manifest, name)->xxh3)
        TRY(cairn__fail(CAIRN_EINVAL, "%s: its checksum is not the one in checkpoint.json: the file was changed",
                        cairn__safetensors_path(file)));
out:
    return st;
}

static cairn_status read_numbers(const struct checkpoint *c, const struct cairn__state_list *list) {
    const struct reading r = {c, NULL, NULL};
    cairn_status st = CAIRN_OK;
    TRY(read_file(&r, list, c->shared, true));
    for (int rank = 0; rank < c->manifest.ranks; rank++) {
        if (c->own[rank]) TRY(read_file(&r, list, c->own[rank], true));
    }
out:
    return st;
}

struct arrays {
    const struct checkpoint *c;
    struct cairn_device *device;
    const struct cairn__state_list *list;
};

static cairn_status read_arrays(void *ctx) {
    const struct arrays *arrays = ctx;
    const struct checkpoint *c = arrays->c;
    const struct cairn__state_list *list = arrays->list;
    struct reading r = {c, cairn__is_on_host(arrays->device) ? NULL : arrays->device, NULL};
    cairn_status st = CAIRN_OK;
    if (r.device) TRY(cairn__alloc(BOUNCE, &r.bounce));
    TRY(read_file(&r, list, c->shared, false));
    TRY(check_hash(c, -1, c->shared));
    for (int rank = 0; rank < c->manifest.ranks; rank++) {
        if (c->own[rank]) TRY(read_file(&r, list, c->own[rank], false));
        TRY(check_hash(c, rank, c->own[rank]));
    }
out:
    cairn__free(r.bounce);
    return st;
}

/* ---- the calls ---- */

static cairn_status check_objects(const cairn_state *state) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; st == CAIRN_OK && i < state->num_objects; i++) {
        const struct cairn__state_object *object = &state->objects[i];
        if (object->what.ops->check && !object->is_absent)
            st = object->what.ops->check(object->what.object, &object->entries);
    }
    return st;
}

/* Calls `loaded` of all objects even if one fails, since some are collective. Returns the first error. */
static cairn_status tell_objects(cairn_state *state) {
    cairn_status first = CAIRN_OK;
    char cause[1024] = "";
    for (size_t i = 0; i < state->num_objects; i++) {
        const struct cairn__state_object *object = &state->objects[i];
        if (!object->what.ops->loaded || object->is_absent) continue;
        const cairn_status st = object->what.ops->loaded(object->what.object, &object->entries);
        if (st == CAIRN_OK || first != CAIRN_OK) continue;
        first = st;
        snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    }
    return first == CAIRN_OK ? CAIRN_OK : cairn__fail(first, "%s", cause);
}

/* Collective: whether any rank's `mine` is true. */
static cairn_status any(cairn_state *state, bool mine, bool *result) {
    int32_t all[CAIRN__MAX_RANKS] = {mine}, own = mine;
    cairn_status st = CAIRN_OK;
    if (state->env->size > 1) TRY(cairn__group_exchange(cairn_env_group(state->env), all, &own, sizeof(own)));
    *result = false;
    for (int r = 0; r < state->env->size; r++) *result |= all[r] != 0;
out:
    return st;
}

/* A load of several ranks, and what is known of the checkpoint. */
struct load {
    cairn_state *state;
    struct checkpoint c;
    struct cairn__state_list list;
    bool broken;  /* the checkpoint is damaged */
    bool changed; /* the state was written to */
};

/* Collective. Keeps this rank's last error. */
static cairn_status find_broken(struct load *l, cairn_status agreed, bool mine) {
    char cause[1024];
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    const cairn_status st = any(l->state, mine, &l->broken);
    return st != CAIRN_OK ? st : cairn__fail(agreed, "%s", cause);
}

/* Collective. CAIRN_EINVAL means that the checkpoint is damaged. */
static cairn_status agree_on_reading(struct load *l, cairn_status st) {
    const cairn_status agreed = cairn__group_agree_on_status(cairn_env_group(l->state->env), CALL, st);
    return agreed == CAIRN_OK ? CAIRN_OK : find_broken(l, agreed, st == CAIRN_EINVAL);
}

static cairn_status check_hashes(void *ctx) {
    const struct checkpoint *c = ctx;
    cairn_status st = CAIRN_OK;
    TRY(check_hash(c, -1, c->shared));
    for (int r = 0; r < c->manifest.ranks; r++) TRY(check_hash(c, r, c->own[r]));
out:
    return st;
}

static cairn_status do_nothing(void *ctx) {
    (void)ctx;
    return CAIRN_OK;
}

/* Collective. CAIRN_EINVAL is caused by the program, or by an altered header or number; checksums tell which. They are
 * checked only if is_asked, by the ranks that failed. */
static cairn_status agree_on_fitting(struct load *l, cairn_status st, bool is_asked) {
    cairn_group *group = cairn_env_group(l->state->env);
    char cause[1024];
    const cairn_status agreed = cairn__group_agree_on_status(group, CALL, st);
    if (agreed == CAIRN_OK || !is_asked) return agreed;
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    const cairn_status hashed =
        cairn__group_run_task(group, CALL, st == CAIRN_EINVAL ? check_hashes : do_nothing, &l->c);
    l->broken = hashed == CAIRN_EINVAL;
    const cairn_status found = find_broken(l, agreed, l->broken);
    if (found != agreed || l->broken) return found;
    return cairn__fail(agreed, "%s", cause);
}

/* Collective. A GPU's memory is written by the environment's own thread, since only that thread queues on the
 * device. */
static cairn_status read_together(struct load *l, cairn_status (*run)(void *ctx), void *ctx) {
    cairn_group *group = cairn_env_group(l->state->env);
    const cairn_status st = cairn__is_on_host(l->state->env->device)
                                ? cairn__group_run_task(group, CALL, run, ctx)
                                : cairn__group_agree_on_status(group, CALL, run(ctx));
    return st == CAIRN_OK ? CAIRN_OK : find_broken(l, st, st == CAIRN_EINVAL);
}

/* Collective. latest: find out whether the checkpoint is damaged, so that an older one can be loaded. */
static cairn_status load(struct load *l, const char *path, bool latest, int64_t *step) {
    cairn_state *state = l->state;
    struct arrays arrays = {&l->c, state->env->device, &l->list};
    cairn_status st = CAIRN_OK;
    TRY(agree_on_reading(l, open_checkpoint(path, &l->c)));
    find_absent(state, &l->c);
    st = cairn__state_list(state, has_entry, &l->c, l->c.is_lenient, &l->list);
    if (st == CAIRN_OK) st = match(&l->c, state, &l->list);
    TRY(agree_on_fitting(l, st, latest));
    TRY(agree_on_fitting(l, check_all_taken(&l->c, state, &l->list), latest));
    TRY(agree_on_reading(l, read_numbers(&l->c, &l->list)));
    TRY(agree_on_fitting(l, check_objects(state), latest));
    /* Before any change: an object that an older checkpoint lacks must not keep values of a damaged one. */
    if (latest && l->c.is_lenient) TRY(read_together(l, check_hashes, &l->c));
    l->changed = true;
    TRY(read_together(l, read_arrays, &arrays));
    TRY(cairn__group_agree_on_status(cairn_env_group(state->env), CALL, tell_objects(state)));
    if (step) *step = l->c.manifest.step;
out:
    cairn__state_unlist(state, &l->list);
    close_checkpoint(&l->c);
    return st;
}

static cairn_status begin_load(struct load *l, cairn_state *state, const struct cairn_state_load_options *options) {
    struct cairn_state_load_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    *l = (struct load){.state = state, .c = {.rank = state->env->rank, .ranks = state->env->size}};
    st = cairn__options_read(&o, sizeof(o), options, "cairn_state_load_options");
    l->c.is_lenient = o.strict == CAIRN_OFF;
    bool is_lenient = false;
    TRY(cairn__group_agree_on_status(cairn_env_group(state->env), CALL, st));
    TRY(any(state, l->c.is_lenient, &is_lenient));
    st = is_lenient == l->c.is_lenient ? CAIRN_OK
                                       : cairn__fail(CAIRN_EINVAL, CALL ": strict on this rank, and not on another");
    TRY(cairn__group_agree_on_status(cairn_env_group(state->env), CALL, st));
    bool has_parts = false;
    for (size_t i = 0; i < state->num_objects; i++) has_parts |= state->objects[i].is_part;
    TRY(any(state, has_parts, &l->c.has_parts));
out:
    return st;
}

#define UNDEFINED "a load that failed half-way, which leaves the state undefined"

cairn_status cairn_state_load(cairn_state *state, const char *path, const struct cairn_state_load_options *options,
                              int64_t *step) {
    REQUIRE(state, CAIRN_EINVAL, "cairn_state_load: state is NULL");
    struct load l = {.changed = false};
    cairn_status st = CAIRN_OK;
    TRY(cairn_state_wait(state));
    TRY(begin_load(&l, state, options));
    TRY(load(&l, path, false, step));
out:
    if (st != CAIRN_OK && l.changed) cairn__fail_in(UNDEFINED);
    return st;
}

/* Lists the steps, after restoring a checkpoint that a program was replacing when it died. */
static cairn_status list_own_steps(const cairn_state *state, const char *dir, int64_t **steps, size_t *count) {
    REQUIRE(dir, CAIRN_EINVAL, "cairn_state_load_latest: dir is NULL");
    REQUIRE(strlen(dir) + 64 < CAIRN__MAX_PATH, CAIRN_EINVAL, "%.200s...: the path is too long", dir);
    if (state->env->rank == 0) cairn__checkpoint_restore(dir);
    return cairn__checkpoint_steps(dir, steps, count);
}

/* Collective: gives all ranks the list of rank 0. */
static cairn_status list_steps(cairn_state *state, const char *dir, int64_t **steps, size_t *count) {
    static const char call[] = "cairn_state_load_latest";
    cairn_group *group = cairn_env_group(state->env);
    int64_t *all = NULL, *counts = NULL, *own = NULL, mine;
    cairn_status st = list_own_steps(state, dir, steps, count);
    TRY(cairn__group_agree_on_status(group, call, st));
    mine = (int64_t)*count;
    TRY(cairn__group_make_room(group, call, sizeof(mine), (void **)&counts));
    TRY(cairn__group_exchange(group, counts, &mine, sizeof(mine)));
    const size_t n = (size_t)counts[0];
    for (int r = 1; r < state->env->size; r++) {
        if ((counts[r] == 0) != (n == 0))
            TRY(cairn__fail(CAIRN_EPEER,
                            "%s: rank %d finds %" PRId64 " checkpoints and rank 0 %zu; do all ranks see one "
                            "folder?",
                            dir, r, counts[r], n));
    }
    if (n == 0) goto out;
    st = cairn__calloc(n, sizeof(own[0]), (void **)&own);
    for (size_t i = 0; st == CAIRN_OK && i < n && i < *count; i++) own[i] = (*steps)[i];
    TRY(cairn__group_agree_on_status(group, call, st));
    TRY(cairn__group_make_room(group, call, n * sizeof(own[0]), (void **)&all));
    TRY(cairn__group_exchange(group, all, own, n * sizeof(own[0])));
    memcpy(own, all, n * sizeof(own[0]));
    cairn__free(*steps);
    *steps = own;
    *count = n;
    own = NULL;
out:
    cairn__free(own);
    cairn__free(counts);
    cairn__free(all);
    return st;
}

cairn_status cairn_state_load_latest(cairn_state *state, const char *dir,
                                     const struct cairn_state_load_options *options, int64_t *step) {
    REQUIRE(state, CAIRN_EINVAL, "cairn_state_load_latest: state is NULL");
    int64_t *steps = NULL;
    size_t count = 0;
    struct load l = {.changed = false};
    char path[CAIRN__MAX_PATH];
    cairn_status st = CAIRN_OK;
    TRY(cairn_state_wait(state));
    TRY(begin_load(&l, state, options));
    TRY(list_steps(state, dir, &steps, &count));
    if (count == 0 && step) *step = 0;
    l.broken = true;
    for (size_t i = count; l.broken && i-- > 0;) {
        l.broken = false;
        (void)cairn__checkpoint_path(dir, steps[i], path); /* short enough */
        st = load(&l, path, true, step);
        if (l.broken && state->env->rank == 0)
            cairn__log(CAIRN_LOG_WARNING, "cairn_state_load_latest: passes over %s: %s", path, cairn_last_error());
    }
    if (st != CAIRN_OK && l.broken)
        st = cairn__fail(CAIRN_EINVAL, "%s: none of its %zu checkpoints is whole", dir, count);
out:
    if (st != CAIRN_OK && l.changed) cairn__fail_in(UNDEFINED);
    cairn__free(steps);
    return st;
}
