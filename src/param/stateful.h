/* How an object says what its state is, so that src/state can save it and bring it back without knowing the object, and
 * the object without knowing files.
 *
 * An object lists its entries: arrays where they stand, and numbers by value. Saving reads what is listed. Loading
 * lists too, finds each entry in the checkpoint (same name, type and shape, or nothing is changed), writes the arrays
 * where they stand and the numbers into the list, and then calls `loaded`, which takes the numbers out.
 *
 * Names are paths of the object's own, "momentum.encoder.0.weight"; what it was added as comes before. They are the
 * format of checkpoints: a name never changes its meaning. */
#ifndef CAIRN__PARAM_STATEFUL_H
#define CAIRN__PARAM_STATEFUL_H

#include <stdbool.h>

#include "cairn/stateful.h"
#include "device/env.h"

/* Whose an entry is. What was saved decides when it is loaded. */
enum cairn__entry_owner {
    CAIRN__ENTRY_SHARED = 1,    /* equal on all ranks: rank 0 writes it, all read it, on any number of ranks */
    CAIRN__ENTRY_RANK,          /* a rank's own: loads on the same number of ranks alone */
    CAIRN__ENTRY_RANK_OR_FIRST, /* a rank's own; on another number of ranks all take rank 0's */
    CAIRN__ENTRY_PART,          /* of a part of a whole that ranks have together: equal on the ranks that list it, the
                                   lowest of which writes it; loads wherever it is listed, on any number of ranks */
    CAIRN__ENTRY_PART_OR_FIRST, /* the same of what each of those ranks may have of its own: all take the lowest's */
    CAIRN__ENTRY_SLICE,         /* rows [first, first + shape[0]) of an array of rows `whole_rows`, whose other rows
                                   other ranks have, those of a lower rank first; loads on any number of ranks */
};

struct cairn__entry {
    char *name;
    enum cairn__entry_owner owner;
    cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    int64_t whole_rows, first; /* of a slice */
    bool is_flat; /* rows are the elements of an array of any shape, and loads from one that was saved whole */
    size_t nbytes;
    void *memory;    /* the array; NULL = a number, in `number` */
    bool is_on_host; /* memory is the host's, and not the device's */
    union {
        int64_t i64;
        double f64;
    } number; /* by dtype */
};

struct cairn__entries {
    struct cairn_env *env;
    const char *object; /* what the program added it as: for messages */
    bool is_part; /* the object is a part of what ranks have together (cairn_state_add_part): names say all about an
                     entry, and not places in lists of this rank's own */
    /* (optional) Loading: whether the checkpoint has an entry of this name of the object. NULL: saving. */
    bool (*has)(const struct cairn__entries *entries, const char *name);
    const void *ctx; /* of has */
    struct cairn__entry *at;
    size_t count, capacity;
    size_t *slots; /* [num_slots] of a hash table of names: an entry's place + 1; 0 = free */
    size_t num_slots;
};

struct cairn_param_set;

struct cairn__stateful_ops {
    const char *kind;                             /* "optimizer": for messages */
    struct cairn_env *(*env)(const void *object); /* (optional: NULL = it belongs to no environment) */
    /* Adds all entries. Waits for the device, so that numbers are those after the last step. Saving: CAIRN_ESTATE where
     * a part of the state cannot be saved now, with what to call first. Loading: makes what the checkpoint has and the
     * object does not have yet. Errors: CAIRN_ENOMEM too. */
    cairn_status (*list)(void *object, struct cairn__entries *entries);
    /* (optional) Loading, when numbers have been read and no array has: whether they make sense. Changes nothing.
     * Errors: CAIRN_EINVAL, CAIRN_ESTATE. */
    cairn_status (*check)(const void *object, const struct cairn__entries *entries);
    /* (optional) Arrays have been written: the rest of the load. Errors: CAIRN_EINVAL a number that makes no sense. */
    cairn_status (*loaded)(void *object, const struct cairn__entries *entries);
    /* (optional: it has none) What files of weights hold of it, at any time: all parameters of *set, and the buffers,
     * which are added as entries; owners mean nothing. Errors: CAIRN_ESTATE it has no set of its own; CAIRN_ENOMEM. */
    cairn_status (*weights)(void *object, struct cairn_param_set **set, struct cairn__entries *buffers);
};

/* Adds an entry; the name is formatted and copied. memory: in the device's memory, but for add_host_array's. */
cairn_status cairn__entries_add_array(struct cairn__entries *entries, enum cairn__entry_owner owner, cairn_dtype dtype,
                                      int ndim, const int64_t *shape, void *memory, const char *format, ...)
    __attribute__((format(printf, 7, 8)));
cairn_status cairn__entries_add_host_array(struct cairn__entries *entries, enum cairn__entry_owner owner,
                                           cairn_dtype dtype, int ndim, const int64_t *shape, void *memory,
                                           const char *format, ...) __attribute__((format(printf, 7, 8)));
cairn_status cairn__entries_add_i64(struct cairn__entries *entries, enum cairn__entry_owner owner, int64_t value,
                                    const char *format, ...) __attribute__((format(printf, 4, 5)));
cairn_status cairn__entries_add_f64(struct cairn__entries *entries, enum cairn__entry_owner owner, double value,
                                    const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Whether a load is under way, and the checkpoint has this entry. */
static inline bool cairn__entries_is_load(const struct cairn__entries *entries) {
    return entries->has != NULL;
}
bool cairn__entries_has(const struct cairn__entries *entries, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The array of the entry that was added last holds elements [first, first + n) of it alone; where the ranks share it,
 * the others have the rest. */
void cairn__entries_cut_last(struct cairn__entries *entries, size_t first, size_t n);

/* The number of an entry that list has added. */
int64_t cairn__entries_i64(const struct cairn__entries *entries, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
double cairn__entries_f64(const struct cairn__entries *entries, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* By a hash of its name. NULL where there is none. */
struct cairn__entry *cairn__entries_find(const struct cairn__entries *entries, const char *name);

/* ---- for lists of objects that have parameters (set_state.c) ---- */

struct cairn__param;

/* State is saved and loaded between a step and the next backward. CAIRN_ESTATE, with what to call first: a graph is
 * being recorded, a backward runs, a scaled loss is open or waits for its step; of params, also a gradient that is
 * pending. */
cairn_status cairn__env_check_between_steps(struct cairn_env *env);
cairn_status cairn__params_check_between_steps(struct cairn_env *env, struct cairn__param *const *params, size_t count);

/* What a set's list has beside parameters and buffers. */
#define CAIRN__ENTRY_REQUIRES_GRAD "requires_grad"
#define CAIRN__ENTRY_RANKS_DIFFER  "ranks_differ"
#define CAIRN__ENTRY_KEEPS_BUFFERS "keeps_buffers"

/* SHARED where a listener keeps it equal on all ranks, and on one rank; RANK elsewhere, and once a step has applied
 * gradients that were not reduced. Of several: SHARED if all are. */
enum cairn__entry_owner cairn__param_entry_owner(const struct cairn__param *p);
enum cairn__entry_owner cairn__params_entry_owner(struct cairn__param *const *params, size_t count);

/* Of a buffer of the module whose parameters are set; path: from the root. RANK_OR_FIRST where the listener leaves each
 * rank its own. */
enum cairn__entry_owner cairn__buffer_entry_owner(const struct cairn_param_set *set, const char *path);

/* What cairn_param_set_stateful lists and loads, for a module that has the set. */
cairn_status cairn__param_set_list_state(struct cairn_param_set *set, struct cairn__entries *entries);
cairn_status cairn__param_set_state_loaded(struct cairn_param_set *set, const struct cairn__entries *entries);

/* The environment's seed and the number of its next random stream: what dropout and initialisation draw from. */
cairn_stateful cairn__env_stateful(struct cairn_env *env);

/* ---- */

/* Frees the list, not what it points to. */
void cairn__entries_clear(struct cairn__entries *entries);

#endif
