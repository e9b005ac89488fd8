/* What cairn-run says of ranks that failed: a sentence for each rank, and a block in the form of torchrun's, with what
 * ranks left in their error files. */
#ifndef RUN_REPORT_H
#define RUN_REPORT_H

#include "logs.h"
#include "ranks.h"

/* What a report is about: one attempt on this node, all of whose ranks have ended, or the first has failed. */
struct account {
    const struct options *options;
    const struct world *world;
    const struct ranks *ranks;
    const struct logs *logs;
};

/* The local rank that failed first: by the time in its error file, else when it was seen to end; one that failed
 * because another ended (Cairn says so in the file) only where nothing else did. -1 = none. */
int report_root_cause(const struct account *a);

/* A rank has failed, and because another ended: that one's end may be seen a little later. */
bool report_lacks_cause(const struct account *a);

/* "rank 3 (local_rank 1, pid 7) of ./train: exit code 1"; made with malloc. */
char *report_sentence(const struct account *a, int local_rank);

/* A line for every rank, the one that failed first here (-1 = none) at the head. elsewhere: another node was first. */
void report_ranks(const struct account *a, int root_cause, bool elsewhere);

/* The block; and where cairn-run was itself given an error file, root_cause's goes there with its exit code. */
void report_failure(const struct account *a, int root_cause);

#endif
