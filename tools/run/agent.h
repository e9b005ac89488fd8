/* One node's part of a run: rendezvous, ranks, restarts. */
#ifndef RUN_AGENT_H
#define RUN_AGENT_H

#include "options.h"

/* Runs it to its end; returns the exit code. */
int agent_run(const struct options *o);

#endif
