/* What a training recorded with CAIRN_LAB=folder: rank0.jsonl and those of the other ranks, as docs/observing.md
 * describes them. */
#ifndef LAB_RECORD_H
#define LAB_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

/* Exponents of the elements of one tensor at one step. */
struct exponents {
    int64_t step;
    int rank;
    double scale;                 /* of the loss; true magnitudes are those that are stored, divided by it */
    int shift;                    /* floor(log2(scale)) */
    double count, zero, inf, nan; /* elements; count: all of them */
    int first;                    /* the least binade, as it is stored */
    size_t num_binades;
    double *counts; /* [num_binades] */
};

enum tensor_kind { GRAD, GRAD_BEFORE, ACTIVATION, ACTIVATION_GRAD, NUM_KINDS };

/* All that was recorded of one tensor, in the order of the files. */
struct tensor_record {
    enum tensor_kind kind;
    char *name, *type; /* "layer.weight", and of the second set "layer.weight @1"; type: of the last record */
    struct exponents *at;
    size_t count, room;
};

/* Rank 0's scalars of one name; of the rank that is there, where rank 0 is not. */
struct scalar_record {
    char *room, *name;
    int64_t *steps;
    double *values;
    size_t count, steps_room, values_room;
};

struct fact {
    char *name, *value;
};

struct record {
    struct tensor_record *tensors;
    struct scalar_record *scalars;
    struct fact *facts; /* of the first rank; "ranks" and "every" among them */
    size_t num_tensors, num_scalars, num_facts, tensors_room, scalars_room, facts_room;
    size_t next_tensor; /* where the next line's is likely */
    int ranks;
};

/* Whether the folder has a file of a rank. */
bool record_is_in(const char *folder);

/* Free also after a failure. A last line that does not end was not written to its end, and is left out. Errors:
 * CAIRN_EINVAL, with file and line, for what is not as described; CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status record_read(const char *folder, struct record *out);
void record_free(struct record *r);

const struct scalar_record *record_scalar(const struct record *r, const char *room, const char *name);
const char *record_fact(const struct record *r, const char *name); /* NULL = not recorded */

#endif
