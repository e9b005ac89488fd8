/* cairn-run's messages about failed ranks: a sentence for each rank, and a block in the form of torchrun's, with the
 * ranks' error files. */
#ifndef RUN_REPORT_H
#define RUN_REPORT_H

#include "logs.h"
#include "ranks.h"

/* The subject of a report: one attempt on this node, whose ranks have all ended, or of which the first has failed. */
struct account {
    const struct options *options;
    const struct world *world;
    const struct ranks *ranks;
    const struct logs *logs;
};

/* The local rank that failed first: by the time in its error file, else by when its end was noticed; a rank that
 * failed because another ended (its file says so) only if there is no other. -1 = none. */
int report_root_cause(const struct account *a);

/* Whether all failures so far are consequences of another rank's end, which may be noticed a little later. */
bool report_lacks_cause(const struct account *a);

/* "rank 3 (local_rank 1, pid 7) of ./train: exit code 1"; made with malloc. */
char *report_sentence(const struct account *a, int local_rank);

/* A line for every rank, the one that failed first here (-1 = none) first. elsewhere: another node failed first. */
void report_ranks(const struct account *a, int root_cause, bool elsewhere);

/* Prints the block; if cairn-run has an error file of its own, it gets root_cause's, with the exit code. */
void report_failure(const struct account *a, int root_cause);

#endif
