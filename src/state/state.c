/* The contents of a state. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "core/utf8.h"
#include "param/param.h"
#include "state/state_internal.h"

enum { PROGRAM, ENVIRONMENT };
enum { MAX_NAME = 255 };

/* ---- the program's own values ---- */

static cairn_status list_program(void *object, struct cairn__entries *entries) {
    const struct cairn__entries *own = object;
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; st == CAIRN_OK && i < own->count; i++) {
        const struct cairn__entry *e = &own->at[i];
        st = cairn__entries_add_host_array(entries, e->owner, e->dtype, e->ndim, e->shape, e->memory, "%s", e->name);
    }
    return st;
}

static const struct cairn__stateful_ops program_ops = {.kind = "program", .list = list_program};

/* ---- making ---- */

static struct cairn__state_object *find_object(const cairn_state *state, const char *name) {
    for (size_t i = 1; i < state->num_objects; i++) {
        if (strcmp(state->objects[i].name, name) == 0) return &state->objects[i];
    }
    return NULL;
}

static bool is_utf8(const char *text) {
    for (size_t length; *text; text += length) {
        if (cairn__utf8_decode(text, &length) == CAIRN__NO_CHARACTER && length == 1) return false;
    }
    return true;
}

/* is_part: several parts may have the same name. */
static cairn_status check_name(const char *call, const cairn_state *state, const char *name, bool is_part) {
    REQUIRE(state, CAIRN_EINVAL, "%s: state is NULL", call);
    REQUIRE(name && name[0], CAIRN_EINVAL, "%s: the name is empty", call);
    REQUIRE(strcmp(name, "__metadata__") != 0 && strlen(name) <= MAX_NAME && is_utf8(name), CAIRN_EINVAL,
            "%s: '%.80s' cannot be a name: files take UTF-8 of at most %d bytes, and not \"__metadata__\"", call, name,
            MAX_NAME);
    for (const char *c = name; *c; c++) {
        REQUIRE(*c != '/' && (unsigned char)*c >= ' ' && *c != 0x7f, CAIRN_EINVAL,
                "%s: a name may contain neither '/' nor control characters: '%.80s'", call, name);
    }
    const struct cairn__state_object *other = find_object(state, name);
    REQUIRE((!other || (is_part && other->is_part)) && !cairn__entries_find(&state->own, name), CAIRN_EINVAL,
            "%s: '%.80s' has been added already; give each a name of its own", call, name);
    return CAIRN_OK;
}

static cairn_status add_object(cairn_state *state, const char *name, cairn_stateful what, bool is_part) {
    struct cairn__state_object object = {.what = what, .is_part = is_part};
    cairn_status st =
        cairn__grow((void **)&state->objects, &state->objects_capacity, state->num_objects + 1, sizeof(object));
    if (st == CAIRN_OK) st = cairn__strdup(name, &object.name);
    if (st == CAIRN_OK) state->objects[state->num_objects++] = object;
    return st;
}

cairn_status cairn_state_create(cairn_env *env, cairn_state **out) {
    REQUIRE(env && out, CAIRN_EINVAL, "cairn_state_create: env and out must be set");
    cairn_status st = CAIRN_OK;
    cairn_state *state = NULL;
    TRY(cairn__calloc(1, sizeof(*state), (void **)&state));
    state->env = env;
    state->own.env = env;
    TRY(add_object(state, "", (cairn_stateful){&program_ops, &state->own}, false));
    TRY(add_object(state, "env", cairn__env_stateful(env), false));
    *out = state;
    return CAIRN_OK;
out:
    cairn_state_destroy(&state);
    return st;
}

void cairn_state_destroy(cairn_state **state) {
    if (!state || !*state) return;
    cairn__state_end_save(*state);
    for (size_t i = 0; i < (*state)->num_objects; i++) {
        cairn__entries_clear(&(*state)->objects[i].entries);
        cairn__free((*state)->objects[i].name);
    }
    cairn__free((*state)->objects);
    cairn__entries_clear(&(*state)->own);
    cairn__free(*state);
    *state = NULL;
}

static cairn_status check_and_add(const char *call, cairn_state *state, const char *name, cairn_stateful object,
                                  bool is_part) {
    const cairn_status st = check_name(call, state, name, is_part);
    if (st != CAIRN_OK) return st;
    if (!object.ops || !object.object) return cairn__fail(CAIRN_EINVAL, "%s: the object '%.80s' is NULL", call, name);
    const struct cairn_env *env = object.ops->env ? object.ops->env(object.object) : NULL;
    REQUIRE(!env || env == state->env, CAIRN_EINVAL, "%s: the %s '%.80s' belongs to another environment than the state",
            call, object.ops->kind, name);
    return add_object(state, name, object, is_part);
}

cairn_status cairn_state_add(cairn_state *state, const char *name, cairn_stateful object) {
    return check_and_add("cairn_state_add", state, name, object, false);
}

cairn_status cairn_state_add_part(cairn_state *state, const char *name, cairn_stateful object) {
    return check_and_add("cairn_state_add_part", state, name, object, true);
}

static cairn_status add_value(const char *call, cairn_state *state, const char *name, enum cairn__entry_owner owner,
                              cairn_dtype dtype, int ndim, size_t n, void *memory) {
    const cairn_status st = check_name(call, state, name, false);
    if (st != CAIRN_OK) return st;
    REQUIRE(memory, CAIRN_EINVAL, "%s: the memory of '%.80s' is NULL", call, name);
    return cairn__entries_add_host_array(&state->own, owner, dtype, ndim, (const int64_t[]){(int64_t)n}, memory, "%s",
                                         name);
}

cairn_status cairn_state_add_i64(cairn_state *state, const char *name, int64_t *value) {
    return add_value("cairn_state_add_i64", state, name, CAIRN__ENTRY_SHARED, CAIRN_I64, 0, 1, value);
}

cairn_status cairn_state_add_f64(cairn_state *state, const char *name, double *value) {
    return add_value("cairn_state_add_f64", state, name, CAIRN__ENTRY_SHARED, CAIRN_F64, 0, 1, value);
}

cairn_status cairn_state_add_bytes(cairn_state *state, const char *name, void *memory, size_t nbytes) {
    return add_value("cairn_state_add_bytes", state, name, CAIRN__ENTRY_SHARED, CAIRN_U8, 1, nbytes, memory);
}

cairn_status cairn_state_add_rank_bytes(cairn_state *state, const char *name, void *memory, size_t nbytes) {
    return add_value("cairn_state_add_rank_bytes", state, name, CAIRN__ENTRY_RANK, CAIRN_U8, 1, nbytes, memory);
}

/* ---- listing ---- */

static int compare_items(const void *a, const void *b) {
    return strcmp(((const struct cairn__state_item *)a)->name, ((const struct cairn__state_item *)b)->name);
}

void cairn__state_unlist(cairn_state *state, struct cairn__state_list *list) {
    for (size_t i = 0; i < list->count; i++) cairn__free(list->at[i].name);
    cairn__free(list->at);
    *list = (struct cairn__state_list){NULL, 0};
    for (size_t i = 0; i < state->num_objects; i++) cairn__entries_clear(&state->objects[i].entries);
}

static cairn_status full_name(const struct cairn__state_object *object, const char *name, char **out) {
    const size_t before = strlen(object->name), after = strlen(name);
    const cairn_status st = cairn__alloc(before + after + 2, (void **)out);
    if (st != CAIRN_OK) return st;
    memcpy(*out, object->name, before);
    if (before) (*out)[before] = '/';
    memcpy(*out + before + (before > 0), name, after + 1);
    return CAIRN_OK;
}

static cairn_status name_items(cairn_state *state, struct cairn__state_list *list) {
    size_t count = 0;
    for (size_t i = 0; i < state->num_objects; i++) count += state->objects[i].entries.count;
    cairn_status st = cairn__calloc(count + 1, sizeof(list->at[0]), (void **)&list->at);
    for (size_t i = 0; st == CAIRN_OK && i < state->num_objects; i++) {
        struct cairn__state_object *object = &state->objects[i];
        for (size_t k = 0; st == CAIRN_OK && k < object->entries.count; k++) {
            struct cairn__state_item *item = &list->at[list->count];
            item->entry = &object->entries.at[k];
            st = full_name(object, item->entry->name, &item->name);
            if (st == CAIRN_OK) list->count++;
        }
    }
    if (st == CAIRN_OK) qsort(list->at, list->count, sizeof(list->at[0]), compare_items);
    return st;
}

/* Drops values of the program that the checkpoint lacks. */
static void drop_unknown(struct cairn__entries *entries) {
    size_t kept = 0;
    for (size_t i = 0; i < entries->count; i++) {
        if (entries->has(entries, entries->at[i].name)) entries->at[kept++] = entries->at[i];
        else cairn__free(entries->at[i].name);
    }
    entries->count = kept;
    cairn__free(entries->slots); /* indices have moved, and no name is looked up afterwards */
    entries->slots = NULL;
    entries->num_slots = 0;
}

/* Makes entries parts: whatever an entry's owner is within this rank's part, it is a part of the whole. */
static cairn_status make_parts(const struct cairn__state_object *object) {
    for (size_t i = 0; i < object->entries.count; i++) {
        struct cairn__entry *e = &object->entries.at[i];
        REQUIRE(e->owner != CAIRN__ENTRY_SLICE && !e->is_flat, CAIRN_ENOTSUP,
                "'%s' of '%s' is a slice of what several ranks have; add the object by cairn_state_add", e->name,
                object->name);
        e->owner = e->owner == CAIRN__ENTRY_RANK_OR_FIRST ? CAIRN__ENTRY_PART_OR_FIRST : CAIRN__ENTRY_PART;
    }
    return CAIRN_OK;
}

cairn_status cairn__state_list(cairn_state *state, bool (*has)(const struct cairn__entries *entries, const char *name),
                               const void *ctx, bool is_lenient, struct cairn__state_list *out) {
    cairn_status st = CAIRN_OK;
    *out = (struct cairn__state_list){NULL, 0};
    TRY(cairn__device_refuse_recording(state->env->device, "save and load between steps"));
    for (size_t i = 0; i < state->num_objects; i++) {
        struct cairn__state_object *object = &state->objects[i];
        object->entries = (struct cairn__entries){.env = state->env, .object = object->name, .has = has, .ctx = ctx};
        object->entries.is_part = object->is_part;
        if (has && object->is_absent) continue;
        TRY(object->what.ops->list(object->what.object, &object->entries));
        if (object->is_part) TRY(make_parts(object));
        if (i == PROGRAM && is_lenient) drop_unknown(&object->entries);
    }
    TRY(name_items(state, out));
    for (size_t i = 1; i < out->count; i++) {
        if (strcmp(out->at[i - 1].name, out->at[i].name) == 0)
            TRY(cairn__fail(CAIRN_EINVAL,
                            "two parts that this rank has under one name both have '%s'; name modules by their place "
                            "in the whole model (cairn_sequential_named)",
                            out->at[i].name));
    }
    return CAIRN_OK;
out:
    cairn__state_unlist(state, out);
    return st;
}

bool cairn__state_has_object(const cairn_state *state, const char *name) {
    const char *slash = strchr(name, '/');
    if (!slash) return cairn__entries_find(&state->own, name) != NULL;
    for (size_t i = 1; i < state->num_objects; i++) {
        const char *object = state->objects[i].name;
        if (strlen(object) == (size_t)(slash - name) && strncmp(object, name, (size_t)(slash - name)) == 0) return true;
    }
    return false;
}
