/* The processes of one node: started together, watched, ended together, once for each attempt.
 *
 * Each rank leads a process group, to which signals are sent, so that its children end with it. If cairn-run itself is
 * killed, PR_SET_PDEATHSIG ends the ranks, and the keeper, a process that waits for that, ends their groups and removes
 * temporary files. No function waits, except ranks_start: the agent's loop calls ranks_reap on SIGCHLD and ranks_tick
 * when it is due.
 *
 * Standard input: local rank 0 has cairn-run's own unless that is a terminal (reading it would stop a process group in
 * the background); the other ranks, and local rank 0 then, have /dev/null. */
#ifndef RUN_RANKS_H
#define RUN_RANKS_H

#include <signal.h>
#include <sys/types.h>

#include "logs.h"
#include "options.h"
#include "rendezvous.h"

struct rank {
    pid_t pid; /* the rank's, and its process group's; 0 = never started */
    bool running, suspended;
    bool has_group;     /* the group may have members; once it has none, the system may reuse its number */
    bool was_suspended; /* it was suspended when the first rank failed */
    int suspended_by;   /* the signal */
    int status;         /* as waitpid gives it, once it no longer runs */
    int order;          /* order of the ends as noticed; 0 = the first failure */
    double ended;       /* seconds since 1970 */
    bool ended_by_us;   /* after a stop began */
};

struct ranks {
    const struct options *options;
    struct rank *list; /* [options->ranks] */
    int running, ends;
    pid_t keeper;
    int to_keeper;        /* a pipe: +pid of a group that began, -pid of one that ended */
    int first_failed;     /* -1 = none */
    int stop_signal;      /* the signal sent to the ranks, 0 = none */
    double kill_at;       /* in seconds of the monotonic clock, as the next three */
    double swept_since;   /* 0 = ranks run */
    double told_again_at; /* when leftover processes are signalled again */
    bool killed, over;
    sigset_t mask; /* the ranks' signal mask */
};

/* Makes this process the subreaper of ranks' orphans, and starts the keeper. Call it before any thread starts, since
 * the keeper is forked. temporary: a folder for the keeper to remove, or NULL. False after a message. */
bool ranks_open(struct ranks *ranks, const struct options *o, const sigset_t *mask, const char *temporary);
void ranks_close(struct ranks *ranks);

/* Returns once every rank has exec'ed or failed to; 0, or the exit code after a message. Ranks that were started are
 * being killed then. */
int ranks_start(struct ranks *ranks, const struct world *world, const struct logs *logs);

/* Notes ranks that have ended, been stopped, or continue; the first failure is first_failed. */
void ranks_reap(struct ranks *ranks);

/* Sends signal to every group; SIGKILL follows after the grace. ranks_tick ends the rest of a group too. */
void ranks_stop(struct ranks *ranks, int signal);
/* Sends signal to every rank, and not to its children. */
void ranks_pass_on(const struct ranks *ranks, int signal);
/* Ends the grace now. */
void ranks_hurry(struct ranks *ranks);

/* Does what is due; true once no rank runs and their groups are empty. */
bool ranks_tick(struct ranks *ranks);
/* Seconds until ranks_tick should be called again without a signal. */
double ranks_delay(const struct ranks *ranks);

/* Of a status. */
bool rank_failed(int status);
int rank_exit_code(int status); /* 128 + signal */

#endif
