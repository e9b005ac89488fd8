/* All-reduces made of other collectives, to be timed beside Cairn's own. Sums of f32, in place. */
#ifndef LAB_ALLREDUCE_FORMS_H
#define LAB_ALLREDUCE_FORMS_H

#include "cairn/cairn.h"

enum lab_form_of_allreduce {
    LAB_FORM_ALLREDUCE,        /* cairn_allreduce */
    LAB_FORM_REDUCE_BROADCAST, /* to rank 0, and from there to all */
    LAB_FORM_ALLTOALL,         /* each rank gets all of one part, adds them up and sends them to all */
    LAB_FORM_RING,             /* 2 (p - 1) messages of a p-th, to the next rank */
    LAB_FORMS
};

/* "all-reduce", ... */
const char *lab_form_name(enum lab_form_of_allreduce form);

/* x [n] of every rank becomes the sum of all. n is a multiple of the group's size; room [n] is overwritten. Collective.
 * Errors: those of the collectives. */
cairn_status lab_allreduce_by(enum lab_form_of_allreduce form, cairn_group *group, float *x, float *room, size_t n);

#endif
