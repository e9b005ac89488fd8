/* Reading a checkpoint, in four parts, after each of which all ranks agree that it went well:
 *
 *   open     the manifest and the headers of the files this rank reads
 *   match    the state is listed; every entry has its source, and everything in the files has its entry
 *   numbers  are read, and objects check them
 *   read     arrays, in the order of the files, hashing on the way
 *   loaded   objects take their numbers out of the list
 *
 * Nothing of the program changes before arrays are read. What a file says is text of strangers: safetensors.c has
 * checked each header by itself, and match compares it with what the program's own objects say. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "state/file.h"
#include "state/safetensors.h"
#include "state/state_internal.h"

enum { MOST_MANIFEST = 64 << 20, BOUNCE = 4 << 20 };
#define CALL "cairn_state_load"

struct checkpoint {
    const char *path;
    int rank, ranks; /* the program's */
    struct cairn__manifest manifest;
    struct cairn__safetensors *shared;
    struct cairn__safetensors **own; /* [manifest.ranks]; NULL = not needed */
};

/* Rows of a tensor in a file. */
struct source {
    struct cairn__safetensors *file;
    const struct cairn__safetensors_tensor *tensor;
    int64_t first, rows, whole_rows; /* [first, first + rows) of whole_rows */
};

/* ---- open ---- */

static cairn_status open_file(const struct checkpoint *c, int rank, struct cairn__safetensors **out) {
    char name[CAIRN__MOST_FILE_NAME], path[CAIRN__MOST_PATH + CAIRN__MOST_FILE_NAME + 1];
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
    cairn__safetensors_close(&c->shared);
    cairn__manifest_clear(&c->manifest);
}

static bool has_slices(const struct cairn__safetensors *file) {
    for (size_t i = 0; i < cairn__safetensors_metadata_count(file); i++) {
        if (strncmp(cairn__safetensors_metadata_at(file, i).value, "rows ", 5) == 0) return true;
    }
    return false;
}

static cairn_status open_own_files(struct checkpoint *c) {
    const bool same = c->manifest.ranks == c->ranks;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc((size_t)c->manifest.ranks, sizeof(c->own[0]), (void **)&c->own));
    const int mine = same ? c->rank : 0;
    TRY(open_file(c, mine, &c->own[mine]));
    for (int r = 0; (!same || has_slices(c->own[mine])) && r < c->manifest.ranks; r++) {
        if (r != mine) TRY(open_file(c, r, &c->own[r]));
    }
out:
    return st;
}

static cairn_status open_checkpoint(const char *path, const struct cairn_env *env, struct checkpoint *c) {
    char name[CAIRN__MOST_PATH + 64];
    char *text = NULL;
    struct cairn__file_facts facts;
    struct stat s;
    cairn_status st = CAIRN_OK;
    REQUIRE(path && path[0], CAIRN_EINVAL, CALL ": path is NULL or empty");
    *c = (struct checkpoint){.path = path, .rank = env->rank, .ranks = env->size};
    snprintf(name, sizeof(name), "%s/checkpoint.json", path);
    if (lstat(name, &s) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return cairn__fail(CAIRN_EINVAL, "%s: not a checkpoint, since there is no checkpoint.json", path);
    TRY(cairn__file_read(name, CAIRN__READER_NO_LINK, MOST_MANIFEST, &text, &facts));
    TRY(cairn__manifest_read(text, facts.nbytes, name, &c->manifest));
    TRY(open_file(c, -1, &c->shared));
    TRY(open_own_files(c));
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

static bool read_rows_text(const char *text, int64_t *first, int64_t *whole) {
    char end = 0;
    return text && sscanf(text, "rows %" SCNd64 " of %" SCNd64 "%c", first, whole, &end) == 2 && *first >= 0 &&
           *whole >= *first;
}

/* The tensor of this name in one file; false where it has none. */
static bool find_in(struct cairn__safetensors *file, const char *name, struct source *out) {
    const struct cairn__safetensors_tensor *t = file ? cairn__safetensors_find(file, name) : NULL;
    if (!t) return false;
    *out = (struct source){file, t, 0, t->ndim ? t->shape[0] : 1, t->ndim ? t->shape[0] : 1};
    (void)read_rows_text(cairn__safetensors_metadata(file, name), &out->first, &out->whole_rows);
    return true;
}

/* Where rank's part of an entry is: in the file of all, or in that of a rank. */
static bool find_source(const struct checkpoint *c, const char *name, struct source *out) {
    if (find_in(c->shared, name, out)) return true;
    return find_in(c->own[c->manifest.ranks == c->ranks ? c->rank : 0], name, out);
}

static bool has_entry(const struct cairn__entries *entries, const char *name) {
    char full[2 * CAIRN__MOST_PATH];
    struct source s;
    snprintf(full, sizeof(full), "%s%s%s", entries->object, entries->object[0] ? "/" : "", name);
    return find_source(entries->ctx, full, &s);
}

static int64_t rows_of(const struct cairn__entry *e) {
    return e->ndim ? e->shape[0] : 1;
}

/* Parts of a slice: alike, and in the order of ranks, one behind the other, from the first row to the last. */
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
    const bool slices = e->owner == CAIRN__ENTRY_SLICE || s.rows != s.whole_rows;
    const int64_t whole = e->owner == CAIRN__ENTRY_SLICE ? e->whole_rows : rows_of(e);
    bool fits = s.tensor->ndim == e->ndim && s.whole_rows == whole;
    for (int i = slices ? 1 : 0; fits && i < e->ndim; i++) fits = s.tensor->shape[i] == e->shape[i];
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

static cairn_status match_file(const struct checkpoint *c, const struct cairn__state_list *list,
                               const struct cairn__safetensors *file) {
    for (size_t i = 0; file && i < cairn__safetensors_count(file); i++) {
        const char *name = cairn__safetensors_at(file, i)->name, *owner = cairn__safetensors_metadata(file, name);
        REQUIRE(find_item(list, name), CAIRN_EINVAL,
                CALL ": %s has '%s', which the program does not; add the objects that it was saved with", c->path,
                name);
        REQUIRE(c->manifest.ranks == c->ranks || !owner || strcmp(owner, "rank") != 0, CAIRN_EINVAL,
                CALL ": %s was saved on %d ranks and '%s' belongs to one of them; load it on as many (there are %d)",
                c->path, c->manifest.ranks, name, c->ranks);
    }
    return CAIRN_OK;
}

static cairn_status match(const struct checkpoint *c, const struct cairn__state_list *list) {
    cairn_status st = CAIRN_OK;
    TRY(match_file(c, list, c->shared));
    for (int r = 0; r < c->manifest.ranks; r++) TRY(match_file(c, list, c->own[r]));
    for (size_t i = 0; i < list->count; i++) TRY(match_entry(c, &list->at[i]));
out:
    return st;
}

/* ---- read ---- */

struct reading {
    const struct checkpoint *c;
    struct cairn_device *device; /* NULL = its memory is the host's */
    void *bounce;
};

static cairn_status read_bytes(const struct reading *r, const struct source *s, uint64_t at,
                               const struct cairn__entry *e, char *to, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    if (!r->device || !e->memory || e->is_on_host) return cairn__safetensors_read(s->file, s->tensor, at, to, nbytes);
    for (size_t done = 0; done < nbytes; done += BOUNCE) {
        const size_t n = nbytes - done < BOUNCE ? nbytes - done : BOUNCE;
        TRY(cairn__safetensors_read(s->file, s->tensor, at + done, r->bounce, n));
        TRY(cairn__device_upload(r->device, to + done, r->bounce, n));
    }
out:
    return st;
}

/* The rows that source and entry have in common; how many comes on top of *got. */
static cairn_status read_rows(const struct reading *r, const struct source *s, struct cairn__entry *e, int64_t *got) {
    const int64_t first = e->owner == CAIRN__ENTRY_SLICE ? e->first : 0, end = first + rows_of(e);
    const int64_t from = s->first > first ? s->first : first;
    const int64_t to = s->first + s->rows < end ? s->first + s->rows : end;
    const size_t row = rows_of(e) ? e->nbytes / (size_t)rows_of(e) : 0;
    char *memory = e->memory ? e->memory : cairn__entry_number(e);
    if (from >= to) return CAIRN_OK;
    *got += to - from;
    return read_bytes(r, s, (uint64_t)(from - s->first) * row, e, memory + (size_t)(from - first) * row,
                      (size_t)(to - from) * row);
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
    if (got != rows_of(item->entry))
        TRY(cairn__fail(CAIRN_EINVAL, CALL ": %s has %" PRId64 " of the %" PRId64 " rows of '%s'", c->path, got,
                        rows_of(item->entry), item->name));
out:
    return st;
}

/* The numbers, or the arrays, of a file, in the order of the file. */
static cairn_status read_file(const struct reading *r, const struct cairn__state_list *list,
                              struct cairn__safetensors *file, bool numbers) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < cairn__safetensors_count(file); i++) {
        const struct cairn__state_item *item = find_item(list, cairn__safetensors_at(file, i)->name);
        struct source s;
        if (numbers != !item->entry->memory) continue;
        if (find_source(r->c, item->name, &s) && s.file == file) TRY(read_entry(r, item, &s));
    }
out:
    return st;
}

static cairn_status check_hash(const struct checkpoint *c, int rank, struct cairn__safetensors *file) {
    char name[CAIRN__MOST_FILE_NAME];
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

/* Whether a file has another checksum than the manifest says; the last error stays what it was. */
static bool is_altered(const struct checkpoint *c) {
    char cause[1024];
    const cairn_status before = cairn__last_status();
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    cairn_status st = check_hash(c, -1, c->shared);
    for (int r = 0; st == CAIRN_OK && r < c->manifest.ranks; r++) st = check_hash(c, r, c->own[r]);
    if (st != CAIRN_OK) return true;
    (void)cairn__fail(before, "%s", cause);
    return false;
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

static cairn_status read_arrays(const struct checkpoint *c, cairn_state *state, const struct cairn__state_list *list) {
    struct cairn_device *d = state->env->device;
    struct reading r = {c, strcmp(cairn_device_name(d), "cpu") == 0 ? NULL : d, NULL};
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
        if (object->what.ops->check) st = object->what.ops->check(object->what.object, &object->entries);
    }
    return st;
}

/* All of them, whatever one says: some take their state together with the other ranks. The first error. */
static cairn_status tell_objects(cairn_state *state) {
    cairn_status first = CAIRN_OK;
    char cause[1024] = "";
    for (size_t i = 0; i < state->num_objects; i++) {
        const struct cairn__state_object *object = &state->objects[i];
        if (!object->what.ops->loaded) continue;
        const cairn_status st = object->what.ops->loaded(object->what.object, &object->entries);
        if (st == CAIRN_OK || first != CAIRN_OK) continue;
        first = st;
        snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    }
    return first == CAIRN_OK ? CAIRN_OK : cairn__fail(first, "%s", cause);
}

/* Collective. CAIRN_OK where it is on all ranks. blames: an error of this rank's is the checkpoint's fault, if it is
 * CAIRN_EINVAL. *broken: that holds on some rank. */
static cairn_status agree(cairn_state *state, cairn_status st, bool blames, bool *broken) {
    cairn_group *group = cairn_env_group(state->env);
    int32_t all[CAIRN__MAX_RANKS], mine = blames && st == CAIRN_EINVAL;
    const cairn_status agreed = cairn__group_agree_on_status(group, CALL, st);
    if (agreed == CAIRN_OK || state->env->size == 1) {
        *broken = mine;
        return agreed;
    }
    char cause[1024];
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    const cairn_status exchanged = cairn__group_exchange(group, all, &mine, sizeof(mine));
    if (exchanged != CAIRN_OK) return exchanged;
    *broken = false;
    for (int r = 0; r < state->env->size; r++) *broken |= all[r] != 0;
    return cairn__fail(agreed, "%s", cause);
}

/* Collective. *broken: the checkpoint is not whole. *changed: the state was written to. */
static cairn_status load(cairn_state *state, const char *path, int64_t *step, bool *broken, bool *changed) {
    struct checkpoint c = {0};
    struct cairn__state_list list = {NULL, 0};
    cairn_status st = CAIRN_OK;
    TRY(agree(state, open_checkpoint(path, state->env, &c), true, broken));
    st = cairn__state_list(state, has_entry, &c, &list);
    if (st == CAIRN_OK) st = match(&c, &list);
    TRY(agree(state, st, st != CAIRN_OK && is_altered(&c), broken)); /* a header that was altered may not fit */
    TRY(agree(state, read_numbers(&c, &list), true, broken));
    st = check_objects(state);
    TRY(agree(state, st, st != CAIRN_OK && is_altered(&c), broken));
    *changed = true;
    TRY(agree(state, read_arrays(&c, state, &list), true, broken));
    TRY(agree(state, tell_objects(state), false, broken));
    if (step) *step = c.manifest.step;
out:
    cairn__state_unlist(state, &list);
    close_checkpoint(&c);
    return st;
}

#define UNDEFINED "a load that failed half-way, which leaves the state undefined"

cairn_status cairn_state_load(cairn_state *state, const char *path, int64_t *step) {
    REQUIRE(state, CAIRN_EINVAL, "cairn_state_load: state is NULL");
    bool broken = false, changed = false;
    cairn_status st = cairn_state_wait(state);
    if (st == CAIRN_OK) st = load(state, path, step, &broken, &changed);
    if (st != CAIRN_OK && changed) cairn__fail_in(UNDEFINED);
    return st;
}

/* Rank 0's list, on all ranks. Collective. */
static cairn_status list_steps(cairn_state *state, const char *dir, int64_t **steps, size_t *count) {
    cairn_group *group = cairn_env_group(state->env);
    int64_t *all = NULL, mine = 0;
    int64_t *counts = NULL;
    cairn_status st = dir ? cairn__checkpoint_steps(dir, steps, count)
                          : cairn__fail(CAIRN_EINVAL, "cairn_state_load_latest: dir is NULL");
    TRY(cairn__group_agree_on_status(group, "cairn_state_load_latest", st));
    mine = (int64_t)*count;
    TRY(cairn__group_make_room(group, "cairn_state_load_latest", sizeof(mine), (void **)&counts));
    TRY(cairn__group_exchange(group, counts, &mine, sizeof(mine)));
    const size_t n = (size_t)counts[0];
    if (n == 0) {
        *count = 0;
        goto out;
    }
    int64_t *own = NULL;
    st = cairn__calloc(n, sizeof(own[0]), (void **)&own);
    for (size_t i = 0; st == CAIRN_OK && i < n && i < *count; i++) own[i] = (*steps)[i];
    st = cairn__group_agree_on_status(group, "cairn_state_load_latest", st);
    if (st == CAIRN_OK)
        st = cairn__group_make_room(group, "cairn_state_load_latest", n * sizeof(own[0]), (void **)&all);
    if (st == CAIRN_OK) st = cairn__group_exchange(group, all, own, n * sizeof(own[0]));
    if (st == CAIRN_OK) memcpy(own, all, n * sizeof(own[0]));
    cairn__free(*steps);
    *steps = own;
    *count = n;
out:
    cairn__free(counts);
    cairn__free(all);
    return st;
}

cairn_status cairn_state_load_latest(cairn_state *state, const char *dir, int64_t *step) {
    REQUIRE(state, CAIRN_EINVAL, "cairn_state_load_latest: state is NULL");
    int64_t *steps = NULL;
    size_t count = 0;
    bool broken = true, changed = false;
    char path[CAIRN__MOST_PATH];
    cairn_status st = CAIRN_OK;
    TRY(cairn_state_wait(state));
    TRY(list_steps(state, dir, &steps, &count));
    if (count == 0 && step) *step = 0;
    for (size_t i = count; broken && i-- > 0;) {
        broken = false;
        TRY(cairn__checkpoint_path(dir, steps[i], path));
        st = load(state, path, step, &broken, &changed);
        if (broken && state->env->rank == 0)
            cairn__log(CAIRN_LOG_WARNING, "cairn_state_load_latest: passes over %s: %s", path, cairn_last_error());
    }
    if (st != CAIRN_OK && broken)
        st = cairn__fail(CAIRN_EINVAL, "%s: none of its %zu checkpoints is whole", dir, count);
out:
    if (st != CAIRN_OK && changed) cairn__fail_in(UNDEFINED);
    cairn__free(steps);
    return st;
}
