/* The processes of one node: started together, watched, ended together, once for each attempt.
 *
 * Each rank leads a process group of its own, which is what signals go to, so what a rank started ends with it.
 * Where cairn-run itself is killed, PR_SET_PDEATHSIG ends the ranks and the keeper, a process that waits for that,
 * their groups; it removes what is temporary, too. Nothing here waits: the agent's loop calls ranks_reap on SIGCHLD
 * and ranks_tick when it is time.
 *
 * Standard input: local rank 0 has cairn-run's own unless that is a terminal (a process group in the background
 * would be stopped by reading it); the other ranks, and local rank 0 then, have /dev/null. */
#ifndef RUN_RANKS_H
#define RUN_RANKS_H

#include <signal.h>
#include <sys/types.h>

#include "logs.h"
#include "options.h"
#include "rendezvous.h"

struct rank {
    pid_t pid; /* of the rank and of its process group; 0 = never started */
    bool running, suspended;
    bool has_group;     /* somebody may be in it; once nobody is, the system may give its number to others */
    bool was_suspended; /* when the first rank failed */
    int suspended_by;   /* the signal */
    int status;         /* as waitpid gives it, once it no longer runs */
    int order;          /* of ends as they were seen; 0 = the first failure */
    double ended;       /* seconds since 1970 */
    bool ended_by_us;   /* after a stop had begun */
};

struct ranks {
    const struct options *options;
    struct rank *list; /* [options->ranks] */
    int running, ends;
    pid_t keeper;
    int to_keeper;        /* a pipe: +pid of a group that began, -pid of one that ended */
    int first_failed;     /* -1 = none */
    int stop_signal;      /* what the ranks were sent, 0 = nothing */
    double kill_at;       /* in seconds of the monotonic clock, as the next three */
    double swept_since;   /* 0 = ranks run */
    double told_again_at; /* when leftovers are signalled the second time */
    bool killed, over;
    sigset_t mask; /* that ranks begin with */
};

/* Makes this process what ranks' orphans fall to, and starts the keeper: before any thread begins, since a fork of
 * one thread is an ordinary process. temporary: a folder for the keeper to remove, or NULL. False: a sentence has been
 * said. */
bool ranks_open(struct ranks *ranks, const struct options *o, const sigset_t *mask, const char *temporary);
void ranks_close(struct ranks *ranks);

/* Returns once every rank has exec'ed or failed to; 0, or the exit code for what went wrong, after a sentence. What was
 * started is then being killed. */
int ranks_start(struct ranks *ranks, const struct world *world, const struct logs *logs);

/* Takes note of what has ended, been stopped, or goes on; the first failure is first_failed. */
void ranks_reap(struct ranks *ranks);

/* Sends signal to every group; SIGKILL follows after the grace. What is left of a group is ended too, in ranks_tick. */
void ranks_stop(struct ranks *ranks, int signal);
/* No more grace. */
void ranks_hurry(struct ranks *ranks);

/* Does what is due; true once no rank runs and their groups are empty. */
bool ranks_tick(struct ranks *ranks);
/* Seconds until ranks_tick should be called again without a signal. */
double ranks_delay(const struct ranks *ranks);

/* Of a status. */
bool rank_failed(int status);
int rank_exit_code(int status); /* 128 + signal */

#endif
