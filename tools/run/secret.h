/* The job's secret. It is read from the file or descriptor of the options, or as the environment says, and passed to
 * the ranks without appearing in their arguments or environment. A run on one node needs no secret, since the kernel
 * identifies the user's processes. */
#ifndef RUN_SECRET_H
#define RUN_SECRET_H

#include "options.h"

/* Fills o->secret and o->secret_fd. False after a message. */
bool secret_open(struct options *o);
void secret_close(struct options *o);

/* --new-secret. Returns the exit code, after a message if it is not 0. */
int secret_make(const struct options *o);

#endif
