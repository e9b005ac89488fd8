/* One node's part of a run: rendezvous, ranks, restarts. */
#ifndef RUN_AGENT_H
#define RUN_AGENT_H

#include <signal.h>

#include "options.h"

/* main's first call: a signal that comes before agent_run stops the run there, with a sentence, instead of ending
 * cairn-run without one. *old_mask: what was blocked before. */
void agent_hold_signals(sigset_t *old_mask);

/* Runs it to its end; returns the exit code. The ranks get old_mask. */
int agent_run(const struct options *o, const sigset_t *old_mask);

#endif
