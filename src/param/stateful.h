/* The interface through which objects describe their state. src/state saves and loads it without knowing the object,
 * and the object does not know files.
 *
 * An object lists its entries: arrays by address, numbers by value. Saving reads the listed entries. Loading lists them
 * too, finds each entry in the checkpoint (with equal name, type and shape, or nothing is changed), reads arrays into
 * their memory and numbers into the list, and then calls `loaded`, which gets the numbers from the list.
 *
 * Names are paths within the object, "momentum.encoder.0.weight"; src/state puts the object's name in front. Names are
 * part of the checkpoint format: a name never changes its meaning. */
#ifndef CAIRN__PARAM_STATEFUL_H
#define CAIRN__PARAM_STATEFUL_H

#include <stdbool.h>

#include "cairn/stateful.h"
#include "device/env.h"

/* Which ranks own an entry. On a load, the saved owner counts. */
enum cairn__entry_owner {
    CAIRN__ENTRY_SHARED = 1,    /* equal on all ranks: rank 0 writes it, all read it, on any number of ranks */
    CAIRN__ENTRY_RANK,          /* a rank's own: loads only on the same number of ranks */
    CAIRN__ENTRY_RANK_OR_FIRST, /* a rank's own; on another number of ranks all take rank 0's */
    /* Of one part of a whole that ranks hold together: equal on the ranks that list it, of which the lowest writes it;
     * loads wherever it is listed, on any number of ranks. */
    CAIRN__ENTRY_PART,
    /* The same for an entry that may differ between these ranks: all load the lowest rank's. */
    CAIRN__ENTRY_PART_OR_FIRST,
    /* Rows [first, first + shape[0]) of an array with `whole_rows` rows, which ranks divide in rank order; loads on any
     * number of ranks. */
    CAIRN__ENTRY_SLICE,
};

struct cairn__entry {
    char *name;
    enum cairn__entry_owner owner;
    cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    int64_t whole_rows, first; /* of a slice */
    bool is_flat; /* rows are single elements of an array of any shape; loads from an array saved whole too */
    size_t nbytes;
    void *memory;    /* the array; NULL = the entry is `number` */
    bool is_on_host; /* memory is host memory, not the device's */
    union {
        int64_t i64;
        double f64;
    } number; /* by dtype */
};

struct cairn__entries {
    struct cairn_env *env;
    const char *object; /* the name under which the program added it, for messages */
    /* The object is a part of what ranks hold together (cairn_state_add_part): names alone identify entries, not
     * indices into this rank's lists. */
    bool is_part;
    /* Loading: whether the checkpoint has an entry of the object with this name. NULL: saving. */
    bool (*has)(const struct cairn__entries *entries, const char *name);
    const void *ctx; /* used by has */
    struct cairn__entry *at;
    size_t count, capacity;
    size_t *slots; /* [num_slots] hash table of names: an entry's index + 1; 0 = free */
    size_t num_slots;
};

struct cairn_param_set;

struct cairn__stateful_ops {
    const char *kind;                             /* "optimizer": for messages */
    struct cairn_env *(*env)(const void *object); /* (optional: NULL = belongs to no environment) */
    /* Adds all entries. Waits for the device, so that numbers are those after the last step. Saving: CAIRN_ESTATE if
     * part of the state cannot be saved now; the message says what to call first. Loading: creates what the checkpoint
     * has and the object does not have yet. Errors: CAIRN_ENOMEM too. */
    cairn_status (*list)(void *object, struct cairn__entries *entries);
    /* (optional) Loading, after numbers and before arrays have been read: checks the numbers. Changes nothing. Errors:
     * CAIRN_EINVAL, CAIRN_ESTATE. */
    cairn_status (*check)(const void *object, const struct cairn__entries *entries);
    /* (optional) After arrays have been read: the rest of the load. Errors: CAIRN_EINVAL an invalid number. */
    cairn_status (*loaded)(void *object, const struct cairn__entries *entries);
    /* (optional: the object has no weights) What weight files contain of the object: all parameters of *set, and the
     * buffers, which are added as entries; owners are ignored. May be called at any time. Errors: CAIRN_ESTATE it has
     * no set of its own; CAIRN_ENOMEM. */
    cairn_status (*weights)(void *object, struct cairn_param_set **set, struct cairn__entries *buffers);
};

/* Add an entry; the name is formatted and copied. memory is device memory, or host memory for add_host_array. */
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

/* is_load: whether this is a load. has: whether it is, and the checkpoint has this entry. */
static inline bool cairn__entries_is_load(const struct cairn__entries *entries) {
    return entries->has != NULL;
}
bool cairn__entries_has(const struct cairn__entries *entries, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The array of the entry added last holds only elements [first, first + n) of the entry. If ranks share it, the others
 * have the rest. */
void cairn__entries_cut_last(struct cairn__entries *entries, size_t first, size_t n);

/* The number of an entry that `list` has added. */
int64_t cairn__entries_i64(const struct cairn__entries *entries, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
double cairn__entries_f64(const struct cairn__entries *entries, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Finds an entry through a hash of its name. NULL = none. */
struct cairn__entry *cairn__entries_find(const struct cairn__entries *entries, const char *name);

/* ---- for lists of objects that have parameters (set_state.c) ---- */

struct cairn__param;

/* Check that state can be saved or loaded now, between a step and the next backward. CAIRN_ESTATE, with a message that
 * says what to call first: a graph is being recorded, a backward runs, a scaled loss is open or waits for its step;
 * with params, also a gradient is pending. */
cairn_status cairn__env_check_between_steps(struct cairn_env *env);
cairn_status cairn__params_check_between_steps(struct cairn_env *env, struct cairn__param *const *params, size_t count);

/* Entries of a set besides parameters and buffers. */
#define CAIRN__ENTRY_REQUIRES_GRAD "requires_grad"
#define CAIRN__ENTRY_RANKS_DIFFER  "ranks_differ"
#define CAIRN__ENTRY_KEEPS_BUFFERS "keeps_buffers"

/* SHARED if a listener keeps the parameter equal on all ranks, or there is one rank; else RANK, also after a step has
 * applied gradients that were not reduced. For several parameters: SHARED if all are. */
enum cairn__entry_owner cairn__param_entry_owner(const struct cairn__param *p);
enum cairn__entry_owner cairn__params_entry_owner(struct cairn__param *const *params, size_t count);

/* The owner of a buffer of the module whose parameters are set; path: from the root. RANK_OR_FIRST if the listener
 * leaves each rank its own. */
enum cairn__entry_owner cairn__buffer_entry_owner(const struct cairn_param_set *set, const char *path);

/* What cairn_param_set_stateful lists and loads, for the module that owns the set. */
cairn_status cairn__param_set_list_state(struct cairn_param_set *set, struct cairn__entries *entries);
cairn_status cairn__param_set_state_loaded(struct cairn_param_set *set, const struct cairn__entries *entries);

/* The environment's seed and the number of its next random stream, which dropout and initialisation use. */
cairn_stateful cairn__env_stateful(struct cairn_env *env);

/* ---- */

/* Frees the list, not the memory that entries point to. */
void cairn__entries_clear(struct cairn__entries *entries);

#endif
