/* One node's part of a run: rendezvous, ranks, restarts. */
#ifndef RUN_AGENT_H
#define RUN_AGENT_H

#include <signal.h>

#include "options.h"

/* main's first call. Blocks signals, so that one that arrives before agent_run stops the run there, with a message,
 * instead of ending cairn-run silently. *old_mask: the signals that were blocked before. */
void agent_hold_signals(sigset_t *old_mask);

/* Runs this node's part to the end of the run; returns the exit code. The ranks get old_mask as their mask. */
int agent_run(const struct options *o, const sigset_t *old_mask);

#endif
