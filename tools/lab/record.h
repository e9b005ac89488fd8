/* Reads what a training recorded with CAIRN_LAB=folder: rank0.jsonl and the other ranks' files; docs/observing.md
 * describes the format. */
#ifndef LAB_RECORD_H
#define LAB_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

/* Exponent counts of one tensor at one step. */
struct exponents {
    int64_t step;
    int rank;
    double scale;                 /* loss scale; true magnitudes are the recorded ones divided by it */
    int shift;                    /* floor(log2(scale)) */
    double count, zero, inf, nan; /* elements; count: all of them */
    int first;                    /* smallest binade, as recorded */
    size_t num_binades;
    double *counts; /* [num_binades] */
};

enum tensor_kind { GRAD, GRAD_BEFORE, ACTIVATION, ACTIVATION_GRAD, NUM_KINDS };

/* All records of one tensor, in the order of the files. */
struct tensor_record {
    enum tensor_kind kind;
    char *name, *type; /* "layer.weight", and of the second set "layer.weight @1"; type: of the last record */
    struct exponents *at;
    size_t count, room;
};

/* The scalars of one name, of rank 0 or, if rank 0 has no file, of another rank. */
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
    size_t next_tensor; /* likely index for the next line */
    int ranks;
};

/* Whether the folder has a file of a rank. */
bool record_is_in(const char *folder);

/* Must be freed also after a failure. An incomplete last line is ignored. Errors: CAIRN_EINVAL, with file and line, for
 * invalid content; CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status record_read(const char *folder, struct record *out);
void record_free(struct record *r);

const struct scalar_record *record_scalar(const struct record *r, const char *room, const char *name);
const char *record_fact(const struct record *r, const char *name); /* NULL = not recorded */

#endif
