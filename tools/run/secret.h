/* The job's secret: read from where the options say, and handed to the ranks without a word of it in their arguments or
 * environment. One node needs none, since the kernel tells whose processes are this user's. */
#ifndef RUN_SECRET_H
#define RUN_SECRET_H

#include "options.h"

/* Fills o->secret and o->secret_fd. False after a message. */
bool secret_open(struct options *o);
void secret_close(struct options *o);

/* --new-secret: the exit code, after a message where that is not 0. */
int secret_make(const struct options *o);

#endif
