/* A pool of fields for calls that read: as many as were in use at one time. Any thread. */
#ifndef CAIRN__DATA_SCRATCH_H
#define CAIRN__DATA_SCRATCH_H

#include <pthread.h>

#include "data/fields.h"

struct cairn__scratch {
    pthread_mutex_t lock;
    cairn_fields *free; /* linked by ->next */
};

void cairn__scratch_begin(struct cairn__scratch *scratch);
void cairn__scratch_end(struct cairn__scratch *scratch);

/* Takes an empty object, to be given back. Errors: CAIRN_ENOMEM. */
cairn_status cairn__scratch_take(struct cairn__scratch *scratch, cairn_fields **out);
void cairn__scratch_give(struct cairn__scratch *scratch, cairn_fields *fields); /* NULL is fine */

#endif
