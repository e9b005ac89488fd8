/* Weight files, internal interface: a list of the pieces of memory that correspond to tensors of a file. */
#ifndef CAIRN__STATE_WEIGHTS_H
#define CAIRN__STATE_WEIGHTS_H

#include "cairn/weights.h"
#include "param/param.h"
#include "param/stateful.h"
#include "state/safetensors.h"

/* A parameter or buffer, or one of the equal parts into which a table of names divides it. */
struct cairn__weights_piece {
    const char *ours;           /* the program's name of the whole */
    char *file;                 /* the name in files */
    struct cairn__param *param; /* NULL = a buffer */
    cairn_dtype dtype;          /* of memory */
    char *memory;
    uint64_t n; /* elements */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    bool is_chosen; /* options.match selects it */
};

struct cairn__weights {
    struct cairn_param_set *set;
    struct cairn_env *env;
    bool is_on_host; /* host code can access the device's memory */
    struct cairn_weights_options options;
    struct cairn__entries buffers;
    struct cairn__weights_piece *at;
    size_t count, capacity;
    const char **excluded; /* the program's names of tensors that a rule excludes from files */
    size_t num_excluded, excluded_capacity;
};

/* Reads options, lists the object's weights, and gives them their names in the file. Errors: as cairn_weights_save. */
cairn_status cairn__weights_list(struct cairn__weights *w, const char *call, cairn_stateful object, const char *path,
                                 const struct cairn_weights_options *options);
void cairn__weights_clear(struct cairn__weights *w);

/* ---- names (weights_names.c) ---- */

enum { CAIRN__WEIGHTS_NAME = 1024 };

/* The rule for one of the program's names; NULL = none. */
const struct cairn_weights_name *cairn__weights_rule(const struct cairn_weights_options *o, const char *ours);

/* The number of parts into which a rule divides a tensor. */
int cairn__weights_parts(const struct cairn_weights_name *rule);

/* Writes the file's name of a part of `ours`, with the prefix. rule: NULL = none. Errors: CAIRN_EINVAL more "*" than
 * `ours` has, or a name that is too long. */
cairn_status cairn__weights_file_name(const struct cairn_weights_options *o, const struct cairn_weights_name *rule,
                                      int part, const char *ours, char name[CAIRN__WEIGHTS_NAME]);

/* Whether a name in the file that no tensor of the program has is unexpected. */
bool cairn__weights_is_unexpected(const struct cairn_weights_options *o, const char *file);

#endif
