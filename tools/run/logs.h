/* Where ranks' output goes: inherited, into files, or both (tee), in torchrun's layout:
 * <log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}. Ranks write directly to
 * files; teed ones are read behind them and printed with a prefix. With --log_dir=/dev/null there are no files:
 * redirected output is discarded, and teed output is inherited. */
#ifndef RUN_LOGS_H
#define RUN_LOGS_H

#include "options.h"

struct logs;

/* Makes the run's folder. False after a message. */
bool logs_open(const struct options *o, struct logs **out);

/* The folder below TMPDIR that is to be removed if cairn-run dies; NULL = none, or it holds ranks' output. */
const char *logs_temporary(const struct logs *logs);

/* Removes a folder and its contents, as far as possible. */
void remove_tree(const char *path);

/* Makes the folders of an attempt anew and opens its files; closes the previous attempt. first_rank: the rank of
 * local rank 0, for prefixes. */
bool logs_begin(struct logs *logs, int attempt, int first_rank);

/* The descriptor (close-on-exec) for a rank's stream (STREAM_OUT, STREAM_ERR); -1 = cairn-run's own. */
int logs_fd(const struct logs *logs, int local_rank, int stream);

/* A path, owned by logs; "" without a folder (--log_dir=/dev/null). */
const char *logs_error_file(const struct logs *logs, int local_rank);

/* Whether the files outlive logs_close. */
bool logs_stay(const struct logs *logs);

/* Prints new output of teed files; complete lines, and at the end (`rest`) an unfinished one too. Blocks only at the
 * end, for some seconds, if cairn-run's stdout or stderr takes nothing. */
void logs_pump(struct logs *logs, bool rest);

/* Seconds until the next logs_pump; large without tee. */
double logs_interval(const struct logs *logs);

/* Shows the rest and closes everything; removes cairn-run's own folder if all output in it was shown, else prints
 * its path. */
void logs_close(struct logs **logs);

#endif
