/* All-reduces built from other collectives, for timing against Cairn's own. Sums of f32, in place. */
#ifndef LAB_ALLREDUCE_FORMS_H
#define LAB_ALLREDUCE_FORMS_H

#include "cairn/cairn.h"

enum lab_form_of_allreduce {
    LAB_FORM_ALLREDUCE,        /* cairn_allreduce */
    LAB_FORM_REDUCE_BROADCAST, /* reduce to rank 0, then broadcast */
    LAB_FORM_ALLTOALL,         /* each rank receives one part from all ranks, adds it up and sends the sum to all */
    LAB_FORM_RING,             /* 2 (p - 1) messages of n / p elements to the next rank */
    LAB_FORMS
};

/* "all-reduce", ... */
const char *lab_form_name(enum lab_form_of_allreduce form);

/* Replaces x [n] on every rank by the sum over ranks. n must be a multiple of the group's size; room [n] is scratch
 * space. Collective.
 * Errors: those of the collectives. */
cairn_status lab_allreduce_by(enum lab_form_of_allreduce form, cairn_group *group, float *x, float *room, size_t n);

#endif
