/* cairn_state and its checkpoints, internal interface.
 *
 *   state.c       what a state consists of; its entries as one list under full names, "model/encoder.0.weight"
 *   manifest.c    checkpoint.json
 *   folders.c     the folder of checkpoints: which there are, which go
 *   save.c        writing one: collect (all ranks), write (each rank its file), publish (rank 0)
 *   parts.c       which rank writes what several have, and whether all that was saved is taken
 *   load.c        reading one: open and match before anything changes, then read
 *   signals.c     whether a signal asks for one
 *
 * safetensors.h and file.h deal with files, and know nothing of states. */
#ifndef CAIRN__STATE_STATE_INTERNAL_H
#define CAIRN__STATE_STATE_INTERNAL_H

#include <stdbool.h>
#include <string.h>

#include "cairn/state.h"
#include "param/stateful.h"

enum { CAIRN__MAX_PATH = 4096 };
#define CAIRN__MAX_STEPS INT64_C(1000000000000000000) /* limited by the digits in names of folders */

/* ---- state.c ---- */

struct cairn__state_object {
    char *name; /* "" = the program's own values */
    cairn_stateful what;
    struct cairn__entries entries; /* of the save or load in progress */
    bool is_part;                  /* part of a whole that ranks hold together */
    bool is_absent;                /* in a load: the checkpoint has nothing of it, so it does not change */
};

/* An entry under its full name. */
struct cairn__state_item {
    char *name;
    struct cairn__entry *entry;
    bool is_others; /* in a save: a part that another rank writes */
};

struct cairn__state_list {
    struct cairn__state_item *at;
    size_t count;
};

struct cairn__save; /* save.c */

struct cairn_state {
    struct cairn_env *env;
    struct cairn__state_object *objects; /* [0] the program's own values, [1] the environment's */
    size_t num_objects, objects_capacity;
    struct cairn__entries own; /* the program's values: copied into the list of each save and load */
    struct cairn__save *save;  /* background save that was not waited for yet; NULL = none */
    void *copy;                /* copy of the state for background saves */
    size_t copy_nbytes;

    bool watches;  /* cairn_state_watch_signals was called */
    unsigned seen; /* number of SIGUSR1 requests that cairn_state_due has reported */
    bool seen_stop;
};

/* Lists every entry of every object, sorted by name. has and ctx are as in struct cairn__entries; NULL: saving.
 * is_lenient: skips objects, and values of the program, that `has` does not find: these are absent. Errors: the
 * objects', with the object's name; nothing is listed then. */
cairn_status cairn__state_list(cairn_state *state, bool (*has)(const struct cairn__entries *entries, const char *name),
                               const void *ctx, bool is_lenient, struct cairn__state_list *out);

/* Whether the entry belongs to an object added as a part. */
static inline bool cairn__entry_is_part(const struct cairn__entry *e) {
    return e->owner == CAIRN__ENTRY_PART || e->owner == CAIRN__ENTRY_PART_OR_FIRST;
}

/* Whether the state has the object, or the program's value, to which an entry with this full name belongs. */
bool cairn__state_has_object(const cairn_state *state, const char *name);

void cairn__state_unlist(cairn_state *state, struct cairn__state_list *list);

/* The number of an entry, as bytes for a file. */
static inline void *cairn__entry_number(struct cairn__entry *e) {
    return &e->number;
}

/* ---- parts.c ---- */

/* Saving: marks the parts that a lower rank writes (is_others). data [list->count]: values in host memory; NULL = in
 * device memory, not compared. Collective. Errors, on all ranks: CAIRN_EINVAL a part differs between two ranks, with
 * its name; CAIRN_ENOMEM; the group's. */
cairn_status cairn__parts_share(cairn_group *group, struct cairn__state_list *list, const void *const *data);

/* Loading: taken [count] says for each entry of the files whether this rank loads it, and after the call whether any
 * rank does. Collective. Errors: CAIRN_ENOMEM; the group's. */
cairn_status cairn__parts_unite(cairn_group *group, uint8_t *taken, size_t count);

/* ---- save.c ---- */

/* Waits for the background save, and logs its error if it failed. */
void cairn__state_end_save(cairn_state *state);

/* ---- manifest.c ---- */

enum { CAIRN__MANIFEST_VERSION = 1, CAIRN__MAX_FILE_NAME = 64 };

struct cairn__manifest_file {
    char name[CAIRN__MAX_FILE_NAME];
    uint64_t nbytes, xxh3;
};

struct cairn__manifest {
    int64_t step;
    int ranks;
    struct cairn__manifest_file *files;
    size_t num_files;
};

/* Returns the manifest as text, to be freed with free(). NULL: out of memory. description: of the environment. */
char *cairn__manifest_write(const struct cairn__manifest *m, const char *description);

/* path: for messages. Errors: CAIRN_EINVAL not a manifest, or a broken one; CAIRN_ENOTSUP a later version;
 * CAIRN_ENOMEM. */
cairn_status cairn__manifest_read(const char *text, size_t nbytes, const char *path, struct cairn__manifest *out);
void cairn__manifest_clear(struct cairn__manifest *m);

/* "rank-00003.safetensors"; rank -1: "shared.safetensors". */
void cairn__manifest_file_name(int rank, char name[CAIRN__MAX_FILE_NAME]);
const struct cairn__manifest_file *cairn__manifest_find(const struct cairn__manifest *m, const char *name);

/* ---- folders.c ---- */

/* Writes DIR/step-00000100 to path. Errors: CAIRN_EINVAL too long. */
cairn_status cairn__checkpoint_path(const char *dir, int64_t step, char path[CAIRN__MAX_PATH]);

/* Lists the steps of DIR's folders "step-N", complete or not, in ascending order; free with cairn__free. An empty list
 * if DIR does not exist. Errors: CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status cairn__checkpoint_steps(const char *dir, int64_t **steps, size_t *count);

/* The hidden folder that one attempt to save this step writes into. attempt: a number equal on all ranks, and different
 * for every attempt. Errors: CAIRN_EINVAL too long. */
cairn_status cairn__checkpoint_partial_path(const char *dir, int64_t step, uint64_t attempt,
                                            char partial[CAIRN__MAX_PATH]);

/* Restores the names of checkpoints that a program was replacing when it died. */
void cairn__checkpoint_restore(const char *dir);

/* Creates DIR, with its parents, and the empty folder partial. Removes what killed saves left behind. Errors:
 * CAIRN_ESYSTEM. */
cairn_status cairn__checkpoint_begin(const char *dir, const char *partial);

/* Removes partial, whose save has failed, if it still exists. Keeps the last error. */
void cairn__checkpoint_abandon(const char *partial);

/* Renames partial, whose files are synced, to path, and replaces what was there. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__checkpoint_publish(const char *dir, const char *partial, const char *path);

/* Removes a folder with its files. Hides the folder first, so that no reader sees part of it. */
cairn_status cairn__checkpoint_remove(const char *dir, const char *path);

/* Removes checkpoints of steps before `step` that keep_last and keep_every do not keep. */
cairn_status cairn__checkpoint_prune(const char *dir, int64_t step, int64_t keep_last, int64_t keep_every);

#endif
