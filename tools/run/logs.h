/* Where ranks' output goes: inherited, into files, or both (tee), in torchrun's layout:
 * <log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}. Ranks write straight to
 * files; teed ones are read behind them and printed with a prefix. With --log_dir=/dev/null there are no files: what is
 * redirected is gone, and what is teed is inherited. */
#ifndef RUN_LOGS_H
#define RUN_LOGS_H

#include "options.h"

struct logs;

/* Makes the run's folder. False: a sentence has been said. */
bool logs_open(const struct options *o, struct logs **out);

/* The folder below TMPDIR that nobody will look for once cairn-run has died; NULL = none, or it holds ranks' output. */
const char *logs_temporary(const struct logs *logs);

/* Removes a folder and all in it, as far as that can be. */
void remove_tree(const char *path);

/* Makes the folders of an attempt anew and opens its files; the attempt before it is closed. first_rank: of this node's
 * local rank 0, for prefixes. */
bool logs_begin(struct logs *logs, int attempt, int first_rank);

/* The descriptor (close-on-exec) that a rank's stream (STREAM_OUT, STREAM_ERR) shall be; -1 = cairn-run's own. */
int logs_fd(const struct logs *logs, int local_rank, int stream);

/* A path, owned by logs; "" where there is no folder (--log_dir=/dev/null). */
const char *logs_error_file(const struct logs *logs, int local_rank);

/* Whether the files outlive logs_close. */
bool logs_stay(const struct logs *logs);

/* Prints what teed files have got since the last call; whole lines, and at the end (`rest`) an unfinished one too.
 * Blocks only at the end, and then for some seconds where cairn-run's stdout or stderr takes nothing. */
void logs_pump(struct logs *logs, bool rest);

/* Seconds until logs_pump should be called again; large where nothing is teed. */
double logs_interval(const struct logs *logs);

/* Shows the rest and closes everything; removes the folder where it is cairn-run's own and holds nothing that was not
 * shown, else says where it is. */
void logs_close(struct logs **logs);

#endif
